"""`guerdon evaluate --model PATH --data FILE`: what a path holds, the card, and mistakes that cost one line."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from text_models import Scripted

import guerdon
from guerdon import cli
from guerdon.episodes.solution_files import write_solutions
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.step_benchmarks import generated_bench
from guerdon.evaluation.by_path import kind_of
from guerdon.settings.data import ChainSettings
from guerdon.settings.train import ResNetTrainSettings
from guerdon.train.images import train_image_model
from guerdon.types import RewardInfo, Score

pytestmark = pytest.mark.usefixtures("narrow_resnets")

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "labels"), str(HERE.parent / "train")]

from judge_server import judge_server  # noqa: E402
from synthetic import square_episodes  # noqa: E402

UNBOUNDED = RewardInfo("length", (-np.inf, np.inf), granularity="total", modality="text", frames_needed=0)
CHAT, SAID = [{"role": "user", "content": "p"}], {"role": "assistant"}


def length():
    """Longer is better."""
    return Scripted(lambda episode: Score(total=float(len("".join(episode.texts)))), UNBOUNDED)


def even():
    """Every step is as good as not."""
    return Scripted(lambda episode: np.full(len(episode.texts), 0.6))


def colourful():
    return Scripted(lambda episode: [0.0], RewardInfo("colour", (0.0, 1.0), modality="image"))


def written(name, rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


PAIRS = [{"prompt": f"p{k // 2}", "chosen": "x" * (3 + k % 5), "rejected": "y" * 5} for k in range(20)]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["guerdon", "evaluate", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return run


def test_the_card_is_that_of_a_study(call):
    written("pairs.jsonl", PAIRS)
    study = {"evaluate": {"aggregation": "min", "models": {"rm": "test_by_path:length"}, "pairs": "pairs.jsonl"}}
    Path("study.yaml").write_text(yaml.safe_dump(study))
    status, out, err = call("study.yaml", "evaluate.save_dir=there")
    assert status == 0, err
    before = set(Path().iterdir())
    status, shown, err = call("--model", "test_by_path:length", "--data", "pairs.jsonl")
    assert status == 0, err
    card = Path("there/rm/evaluation.txt").read_text()
    assert shown == f"test_by_path:length\n{card}\n"
    assert out.startswith(f"rm\n{card}\n")
    assert set(Path().iterdir()) == before  # nothing is left on the disk
    status, out, _ = call("--model", "test_by_path:length", "--data", "pairs.jsonl", "-o", "here", "evaluate.ties=half")
    assert "wrote here/evaluation.json and 2 more files" in out
    found = json.loads(Path("here/evaluation.json").read_text())["pairs"]
    assert found["overall"]["measured"]["estimate"] == (8 + 4 * 0.5) / 20
    assert found["ties"] == {"pairs": 4}
    assert set(found["calibration"]) == {"log_loss", "brier", "ece"}
    assert Path("here/pairs_reliability.svg").read_text().startswith("<svg")


def test_values_between_0_and_1_are_no_logits(call):
    written("pairs.jsonl", PAIRS)
    status, out, _ = call("--model", "test_by_path:even", "--data", "pairs.jsonl")
    assert status == 0
    assert "Bradley-Terry" not in out
    assert "ties: 20" in out


def test_steps_and_published_benchmarks_are_recognised(call):
    write_solutions(Path("chain.jsonl"), generated_bench([ChainSettings(steps=4)], 20, 0), "process_bench")
    status, out, err = call(
        "--model",
        "test_by_path:even",
        "--data",
        "chain.jsonl",
        "-o",
        "out",
        "evaluate.attacks=null",
        "evaluate.reps=100",
    )
    assert status == 0, err
    assert "== process_bench: 20 solutions" in out
    row = {"idx": "c1", "question": "q", "modified_question": "q", "modified_process": ["a", "b"], "error_steps": [2],
           "classification": "circular"}  # fmt: skip
    written("prm.jsonl", [row])
    status, out, err = call("--model", "test_by_path:even", "--data", "prm.jsonl")
    assert status == 0, err
    assert "== PRMBench" in out


def talk(*said):
    turns = [{"role": role, "content": text} for text in said for role, text in (("assistant", text), ("user", "on"))]
    return [{"role": "user", "content": said[0]}, *turns[:-1]]


def led(texts, rewards, step=1):
    """A row of conversations.jsonl."""
    calls = [{"tokens": 1, "finished": True, "reward": reward} for reward in rewards]
    return {"step": step, "id": "a", "group": 0, "messages": talk(*texts), "calls": calls, "reward": 1.0,
            "success": True, "failure": None, "truncated": False}  # fmt: skip


def test_rewards_of_turns_are_compared_with_those_of_a_world(call):
    rows = [led(["a" * n, "b" * 9], [0.0, 1.0], step=n) for n in range(1, 9)]
    rows += [led(["a", "b" * 2], [1.0, None]), led(["x"], [None])]  # one turn that the model ranks too low
    written("conversations.jsonl", rows)
    given = ("--model", "test_by_path:length", "--data", "conversations.jsonl", "--turns", "evaluate.reps=100")
    status, out, err = call(*given, "-o", "card")
    assert status == 0, err
    assert "== turns with a known reward: 17 of 19 turns" in out
    found = json.loads(Path("card/evaluation.json").read_text())["turns"]
    assert found["metrics"]["auroc"]["estimate"] == pytest.approx((8 * 8 + 0.5) / (9 * 8))
    of_python = guerdon.evaluate("test_by_path:length", "conversations.jsonl", "evaluate.reps=100", turns=True)
    assert json.loads(json.dumps(of_python.record["turns"])) == found
    assert out.startswith(f"test_by_path:length\n{of_python.card}\n")


def test_labels_of_turns_may_stand_in_a_column(call):
    rows = [{"messages": talk("a", "b" * 4), "step_labels": [0, 3]}, {"messages": talk("a" * 2), "step_labels": [1]}]
    written("turns.jsonl", [*rows, {"messages": talk("a"), "step_labels": [1, 2]}])
    status, out, err = call("--model", "test_by_path:length", "--data", "turns.jsonl", "--turns", "evaluate.reps=100")
    assert status == 0, err
    assert "== turns with a known reward: 3 of 3 turns" in out
    assert "not a label for each turn" in out
    assert "spearman" in out


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ([{"messages": talk("a")}], (), "no column has a label for each turn"),
        ([led(["a"], [None])], (), "no turn of the assistant has a label (all labels are null, or no numbers)"),
        ([{"prompt": "p", "chosen": "a", "rejected": "b"}], (), "nothing to score"),
        ([led(["a"], [1.0])], ("evaluate.aggregation=",), "aggregation"),
    ],
)
def test_turns_without_a_truth_cost_one_line(call, rows, words, said):
    written("turns.jsonl", rows)
    status, out, err = call("--model", "test_by_path:length", "--data", "turns.jsonl", "--turns", *words)
    assert (status, out) == (2, "")
    assert said in err


def test_turns_are_of_data_and_a_model(call):
    written("pairs.jsonl", PAIRS)
    assert "--turns is for --model and --data" in call("--data", "pairs.jsonl", "--turns")[2]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "pairs"),
        ({"chosen": [*CHAT, {**SAID, "content": "a"}], "rejected": [*CHAT, {**SAID, "content": "b"}]}, "pairs"),
        ({"prompt": "p", "completions": [{"response": "a", "score": 1}, {"response": "b", "score": 2}]}, "pairs"),
        ({"prompt": "p", "responses": ["a", "b"], "scores": [1, 2]}, "pairs"),
        ({"pair_id": "1", "question": "q", "response_A": "a", "response_B": "b", "label": "A>B"}, "pairs"),
        ({"prompt": "p", "response_1": "a", "response_2": "b", "winner": "tie"}, "pairs"),
        ({"prompt": "p", "completion": "a", "label": True}, "labels"),
        ({"prompt": "p", "response": "a", "helpfulness": 3}, "labels"),
        ({"prompt_id": "p", "judge_score": 0.3, "oracle_label": None}, "labels"),
        ({"prompt": "p", "response": "a", "oracle_label": None}, "labels"),
        ({"prompt": "p", "completions": ["a\n", "b\n"], "labels": [True, False]}, "process_bench"),
        ({"id": "1", "problem": "q", "steps": ["a", "b"], "label": -1}, "process_bench"),
        ({"question": {"problem": "q", "ground_truth_answer": "1"}, "label": {"steps": [], "finish_reason": "x"}},
         "process_bench"),
        ({"input": "q a ки\nb ки", "label": "q a +\nb -", "task": "x"}, "process_bench"),
        ({"question": "q", "steps": ["a"]}, "process_bench"),
        ({"question": "q", "modified_process": ["a"], "error_steps": [1]}, "prm_bench"),
    ],
)  # fmt: skip
def test_what_a_row_is(tmp_path, row, kind):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    assert kind_of(str(path)) == kind


@pytest.mark.hostile("files")
def test_other_rows_are_refused_with_what_is_known(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}')
    with pytest.raises(DataError, match=r"rows\.jsonl: no known layout, found text; known are .*chosen and rejected"):
        kind_of(str(path))
    path.write_text("3\n")
    with pytest.raises(DataError, match="no row can be read: 1 x a row that is no map"):
        kind_of(str(path))
    path.write_text("{\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:1"):
        kind_of(str(path))
    path.write_text("\n")
    with pytest.raises(DataError, match="there is no row"):
        kind_of(str(path))


def judged(n=40):
    return [
        {"prompt_id": f"p{k}", "prompt": f"p{k}", "response": "r" * (k % 7), "judge_score": (k % 10) / 10,
         "oracle_label": int(k % 10 > 5) if k < n // 2 else None}
        for k in range(n)
    ]  # fmt: skip


def test_scores_of_a_file_need_no_model(call):
    written("judged.jsonl", judged())
    for option in ("--data", "--labels"):
        status, out, err = call(option, "judged.jsonl")
        assert status == 0, err
        assert out.startswith("== labels of people: 20 of 40 rows")
        assert "agreement: kappa" in out
        assert "mean label: corrected" in out
    status, out, _ = call("--data", "judged.jsonl", "-o", "out")
    assert "wrote out/evaluation.json" in out
    found = json.loads(Path("out/evaluation.json").read_text())["labels"]
    assert found["agreement"]["percent"]["estimate"] == 1.0  # labels are 1 for 6, 7, 8, 9, scores above 0.5 as well
    assert found["mean"]["corrected"]["estimate"] == pytest.approx(0.4)


def test_a_models_own_scores_against_the_labels(call):
    written("judged.jsonl", judged())
    written("pairs.jsonl", PAIRS)
    status, out, err = call("--model", "test_by_path:length", "--data", "judged.jsonl", "-o", "out")
    assert status == 0, err
    found = json.loads(Path("out/evaluation.json").read_text())
    assert found["labels"]["mean"]["judge"]["estimate"] == np.mean([k % 7 for k in range(40)])
    assert found["labels"]["failures"] == {}
    status, out, err = call(
        "--model", "test_by_path:length", "--data", "pairs.jsonl", "--labels", "judged.jsonl", "-o", "both"
    )
    assert status == 0, err
    assert {"pairs", "labels"} <= json.loads(Path("both/evaluation.json").read_text()).keys()
    study = {"evaluate": {"aggregation": "min", "models": {"rm": "test_by_path:length"}, "pairs": "pairs.jsonl"}}
    Path("study.yaml").write_text(yaml.safe_dump(study))
    status, out, err = call("study.yaml", "--labels", "judged.jsonl")
    assert status == 0, err
    assert "== labels of people" in out


def test_a_rubric_is_a_model(call):
    """A judge says yes where there are at least five letters; the file says which of two is better."""
    Path("rubric.toml").write_text('[[criteria]]\nname = "long"\ntext = "It is long."\n')
    written("pairs.jsonl", PAIRS[:6])

    def says(text):
        shown = text.split(">\n")[-1] if "<response" not in text else text.split("<response")[1].split("\n")[1]
        return json.dumps({"long": {"reason": "seen", "choice": "yes" if len(shown) > 4 else "no"}})

    with judge_server(says) as server:
        judge = f'{{api: openai, model: m, base_url: "{server.url}/v1", retries: 0}}'
        words = ("--model", "rubric.toml", "--data", "pairs.jsonl", "-o", "out")
        status, _, err = call(*words, f"evaluate.models.model.options.judge={judge}")
    assert status == 0, err
    found = json.loads(Path("out/evaluation.json").read_text())["pairs"]
    assert found["failures"] == {}
    assert found["overall"]["measured"]["estimate"] == 0  # rejected responses are long, and equal scores are ties
    assert found["ties"] == {"pairs": 3}


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    """A data set of eight episodes and a success classifier."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("robot")
    with EpisodeWriter(folder / "data", fps=10) as writer:
        for episode in square_episodes(8):
            writer.add(episode)
    train_image_model(ResNetTrainSettings(
        data_path=str(folder / "data"), save_dir=str(folder / "rm"), image_size=32, hidden_dim=8, max_epochs=1,
        max_steps=4, batch_size=16, tensorboard=False, augment=False,
    ))  # fmt: skip
    return folder


def test_models_of_robots_are_evaluated_on_episodes(call, robot):
    status, out, err = call("--model", robot / "rm", "--data", robot / "data", "-o", "card", "evaluate.reps=100")
    assert status == 0, err
    assert "wrote card/evaluation.json" in out
    found = json.loads(Path("card/evaluation.json").read_text())
    assert found["data"]["episodes"] == 8
    assert found["data"]["trained_on"]
    assert "measured on the data that the model was trained on" in out
    assert out.startswith(f"{robot / 'rm'}\n{Path('card/evaluation.txt').read_text()}")
    before = sorted(p for p in robot.rglob("*"))
    assert call("--model", robot / "rm", "--data", robot / "data", "evaluate.reps=100")[0] == 0
    assert sorted(p for p in robot.rglob("*")) == before
    with EpisodeWriter("other", fps=10) as writer:
        for episode in square_episodes(10)[8:]:
            writer.add(episode)
    status, out, err = call("--model", robot / "rm", "--data", "other", "evaluate.reps=100")
    assert (status, "trained on" in out) == (0, False), err


def test_each_of_several_training_sets_is_known(call, robot, tmp_path):
    with EpisodeWriter(tmp_path / "more", fps=10) as writer:
        for episode in square_episodes(16)[8:]:
            writer.add(episode)
    train_image_model(ResNetTrainSettings(
        data_path=[str(robot / "data"), str(tmp_path / "more")], save_dir=str(tmp_path / "rm"), image_size=32,
        hidden_dim=8, max_epochs=1, max_steps=2, batch_size=16, tensorboard=False, augment=False,
    ))  # fmt: skip
    for data in (robot / "data", tmp_path / "more"):
        status, out, err = call("--model", tmp_path / "rm", "--data", data, "evaluate.reps=100")
        assert (status, "measured on the data that the model was trained on" in out) == (0, True), err


def test_mistakes_cost_one_line(call, robot):
    written("pairs.jsonl", PAIRS)
    written("judged.jsonl", judged())
    written("odd.jsonl", [{"text": "a"}])
    Path("study.yaml").write_text("evaluate: {}\n")
    length_, data = "test_by_path:length", robot / "data"
    for words, said in (
        ((), "name a study file, or --model PATH --data FILE"),
        (("--model", length_), "name a study file, or --model PATH --data FILE"),
        (("--data", "pairs.jsonl"), "has pairs: name the reward model"),
        (("--data", data), "has episodes: name the reward model"),
        (("--model", length_, "--data", "none.jsonl"), "none.jsonl: there is no such file"),
        (("--model", length_, "--data", "odd.jsonl"), "odd.jsonl: no known layout"),
        (("--model", "./none", "--data", "pairs.jsonl"), "./none: there is no such folder"),
        (("--model", "none.toml", "--data", "pairs.jsonl"), "none.toml: there is no such folder"),
        (("--model", "no_module:make", "--data", "pairs.jsonl"), "no_module"),
        (("--model", robot / "rm", "--data", "pairs.jsonl"), "holds a reward model of robots"),
        (("--model", length_, "--data", data), "judges text"),
        (("--model", "test_by_path:colourful", "--data", "pairs.jsonl"), "judges image"),
        (("--model", "rubric.toml", "--data", data), "rubric.toml"),
        (("--model", robot / "rm", "--data", data, "--labels", "judged.jsonl"), "--labels is for models of text"),
        (("study.yaml", "--model", length_, "--data", "pairs.jsonl"), "study.yaml and --model"),
        (("study.yaml", "-o", "out"), "--output is for a model without a study"),
        (("--model", length_, "--data", "pairs.jsonl", "--only", "x"), "--only and --attack are for the models"),
        (("--data", "judged.jsonl", "evaluate.reps=100"), "evaluate.reps=100 would do nothing"),
        (("--model", length_, "--data", "pairs.jsonl", "evaluate.rep=100"), "did you mean evaluate.reps"),
        (("--model", length_, "--data", "pairs.jsonl", "evaluate.models.model.options={a: 1}"), "params"),
    ):
        status, out, err = call(*words)
        assert status == 2, (words, out, err)
        assert out == "", words
        assert err.startswith("guerdon: "), (words, err)
        assert err.count("\n") == 1, (words, err)
        assert said in err, (words, err)


def test_a_dry_run_shows_the_study_and_scores_nothing(call):
    written("pairs.jsonl", PAIRS)
    status, out, err = call("--model", "test_by_path:length", "--data", "pairs.jsonl", "--dry-run")
    assert status == 0, err
    assert "pairs: pairs.jsonl" in out
    assert "ties:" not in out.replace("ties: wrong", "")
