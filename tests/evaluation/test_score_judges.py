"""`guerdon score` with a judge: rubric files, what it costs, groups, and an endpoint that dies half-way."""

import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "labels"))

from judge_server import DROP, judge_server
from typer.testing import CliRunner

from guerdon.auditing.logs import read_log
from guerdon.cli import app
from guerdon.errors import CheckpointError, ConfigError, DataError, GuerdonError
from guerdon.evaluation.scoring.score_file import load_any_text_model, score_file
from guerdon.files.append_log import AppendLog

RUBRIC = '[[criteria]]\nname = "ones"\ntext = "It has a one."\n'
ROWS = [{"prompt": f"p{k % 2}", "response": text} for k, text in enumerate(["1", "2", "11", "", "111", "22"])]


def shown(text):
    return re.findall(r"<response-\w+[^>]*>\n(.*?)\n</response", text, re.S)


def says(text):
    """Of one response whether it has a one; of several, how many ones each has."""
    found = shown(text)
    if len(found) > 1:
        return json.dumps({str(k + 1): {"reason": "counted", "score": one.count("1")} for k, one in enumerate(found)})
    names = re.findall(r"^- (\w+): ", text, re.M)
    return json.dumps({n: {"reason": "seen", "choice": "yes" if "1" in found[0] else "no"} for n in names})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rubric.toml").write_text(RUBRIC)
    rows(ROWS)
    return tmp_path


def rows(given, name="in.jsonl"):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in given))


def read(name="out.jsonl"):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def options(server, **more):
    judge = {"api": "openai", "model": "m", "base_url": server.url + "/v1", "retries": 0, "concurrency": 1}
    return {"judge": {**judge, "usd_per_million_in": 100.0, "usd_per_million_out": 1000.0}, **more}


@contextmanager
def judge(server, path="rubric.toml", **more):
    model = load_any_text_model(path, options=options(server, **more))
    try:
        yield model
    finally:
        model.close()


def scored(model, *, name="rubric.toml", **more):
    return score_file(Path("in.jsonl"), model, Path("out.jsonl"), name=name, **more)


def test_a_rubric_file_is_a_model_of_the_command_and_its_cost_is_shown_before(folder):
    with judge_server(says) as server:
        keys = ["judge.api=openai", "judge.model=m", f"judge.base_url={server.url}/v1",
                "judge.usd_per_million_in=100", "judge.usd_per_million_out=1000"]  # fmt: skip
        words = ["score", "in.jsonl", "--model", "rubric.toml", "-o", "out.jsonl", *keys]
        before = CliRunner().invoke(app, [*words, "--dry-run"])
        assert before.exit_code == 0, before.output
        assert f"calls: at most 6, to m at {server.url}/v1" in before.output
        assert re.search(r"dollars: about \$\d+\.\d\d if no call fails; \$12\.\d\d if every reply", before.output)
        assert "6 of 6 rows would be scored" in before.output
        assert not server.requests
        assert not Path("out.jsonl").exists()
    assert sorted(one.name for one in folder.iterdir()) == ["in.jsonl", "rubric.toml"]


def test_a_refused_start_leaves_no_folder_behind(folder):
    rows([{"prompt": "p"}], "odd.jsonl")
    keys = ["judge.api=openai", "judge.model=m", "judge.base_url=http://127.0.0.1:9/v1"]
    for words, said in (
        (["odd.jsonl", "-o", "out.jsonl", *keys], "nothing to score"),
        (["in.jsonl", "-o", "out.jsonl", *keys, "judge.api_key_env=NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["in.jsonl", "-o", "out.jsonl", *keys, "cache_dir=deep/er", "votes=0"], "votes"),
        (["odd.jsonl", "-o", "out.jsonl", *keys, "cache_dir=deep"], "nothing to score"),
    ):
        with pytest.raises(GuerdonError, match=said):
            CliRunner().invoke(app, ["score", words[0], "--model", "rubric.toml", *words[1:]], catch_exceptions=False)
    assert sorted(one.name for one in folder.iterdir()) == ["in.jsonl", "odd.jsonl", "rubric.toml"]


def test_what_a_judge_was_paid_for_stays_also_where_the_start_is_refused(folder):
    with judge_server(says) as server:
        with judge(server) as model:
            scored(model)
        rows([{"prompt": "p"}], "odd.jsonl")
        with judge(server) as model, pytest.raises(DataError, match="nothing to score"):
            score_file(Path("odd.jsonl"), model, Path("new.jsonl"), name="rubric.toml")
        assert len(Path("judge_cache/replies.jsonl").read_text().splitlines()) == 6
        assert len(Path("judge_cache/calls.jsonl").read_text().splitlines()) == 12


def test_rows_get_the_values_of_the_rubric(folder, capfd):
    with judge_server(says) as server, judge(server) as model:
        line = scored(model)
        assert len(server.requests) == 6
        assert [row["reward"] for row in read()] == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
        assert line == "wrote out.jsonl: 6 of 6 rows scored, 0 with a missing reward"
        said = capfd.readouterr().err
        assert said.index("calls: at most 6") < said.index("rows scored")
        Path("out.jsonl").unlink()
        assert scored(model, dry_run=True).splitlines()[0].startswith("calls: at most 0")
        assert "replies on disk: 6" in scored(model, dry_run=True)


TWO = RUBRIC + '[[criteria]]\nname = "twos"\ntext = "It has a two."\nweight = -3\n'


def counts(text):
    """Whether a response has a one and a two; nothing about the two where it has neither."""
    (response,) = shown(text)
    found = {name: digit in response for name, digit in (("ones", "1"), ("twos", "2"))}
    asked = found if any(found.values()) else {"ones": False}
    return json.dumps({n: {"reason": "seen", "choice": "yes" if has else "no"} for n, has in asked.items()})


def test_each_criterion_is_a_column_and_none_of_the_reward_that_is_there(folder):
    Path("rubric.toml").write_text(TWO)
    said = ["1", "12", "2", "3"]
    trl = {"step": 1, "advantage": 0.0, "right": 0.25}
    trace = {"nodes": [{"message": {"role": "user", "content": "p"}}], "rewards": {"own": {"score": 0.5}}}
    with judge_server(counts) as server, judge(server, min_measured=0.2) as model:
        rows([{"prompt": "p", "response": one} for one in said])
        scored(model)
        assert [(r["reward"], r["reward.ones"], r.get("reward.twos")) for r in read()] == [
            (1.0, 1.0, 0.0), (0.25, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 0.0, None),
        ]  # fmt: skip
        rows([{**trl, "prompt": "p", "completion": one} for one in said])
        score_file(Path("in.jsonl"), model, Path("trl.jsonl"), name="rubric.toml")
        log = read_log(Path("trl.jsonl"))
        assert log.reward_N.tolist() == [0.25] * 4
        assert log.rewards["guerdon_reward.ones"].tolist() == [1.0, 1.0, 0.0, 0.0]
        answered = [{"message": {"role": "assistant", "content": said[0]}, "sampled": True, "parent": 0}]
        rows([{**trace, "nodes": [*trace["nodes"], *answered]}])
        score_file(Path("in.jsonl"), model, Path("trace.jsonl"), name="rubric.toml")
        (row,) = read("trace.jsonl")
        assert row["metrics"] == {"guerdon_reward": 1.0, "guerdon_reward.ones": 1.0, "guerdon_reward.twos": 0.0}
        Path("in.csv").write_text("prompt,response\np,1\np,12\n")
        score_file(Path("in.csv"), model, Path("out.csv"), name="rubric.toml")
        assert Path("out.csv").read_text().splitlines()[0].endswith("reward_failure,reward.ones,reward.twos")


def test_an_endpoint_that_dies_half_way_loses_nothing_and_nothing_is_paid_twice(folder):
    with judge_server(says, script=[{}, {}, *[DROP] * 20]) as server, judge(server) as model:
        line = scored(model, batch_size=2)
        paid = [shown(one["messages"][-1]["content"])[0] for one in server.requests[:2]]
    assert "4 with a missing reward" in line
    assert "--only-failed" in line
    measured = [row["reward"] for row in read()]
    assert [m is None for m in measured].count(False) == 2
    with judge_server(says) as server, judge(server) as model:  # at another address
        scored(model, only_failed=True)
        again = [shown(one["messages"][-1]["content"])[0] for one in server.requests]
    assert [row["reward"] for row in read()] == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert sorted(paid + again) == sorted(["1", "2", "11", "", "111", "22"])


def test_a_start_that_was_killed_sends_no_request_again(folder, monkeypatch):
    original, lines = AppendLog.append, []

    def dies(self, row):
        if self.path.name == "out.jsonl.part":
            lines.append(row)
            if len(lines) == 3:
                raise KeyboardInterrupt
        return original(self, row)

    with judge_server(says) as server:
        monkeypatch.setattr(AppendLog, "append", dies)
        with judge(server) as model, pytest.raises(KeyboardInterrupt):
            scored(model, batch_size=3, options=options(server))
        monkeypatch.undo()
        monkeypatch.chdir(folder)
        Path("rubric.toml").write_text(RUBRIC.replace("a one", "no one"))
        with judge(server) as model, pytest.raises(DataError, match="another file, model"):
            scored(model, options=options(server))
        Path("rubric.toml").write_text(RUBRIC)
        with judge(server) as model, pytest.raises(DataError, match="another file, model"):
            scored(model, options=options(server, votes=3))
        with judge(server) as model:
            scored(model, options=options(server, max_usd=50.0))
        assert [row["reward"] for row in read()] == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
        assert len(server.requests) == 6


def test_rows_of_a_prompt_are_compared_together_wherever_they_stand(folder):
    with judge_server(says) as server, judge(server, "judge", mode="listwise", scale=(0, 10)) as model:
        scored(model, name="judge", batch_size=1)
        assert sorted(len(shown(one["messages"][-1]["content"])) for one in server.requests) == [3, 3]
        assert [row["reward"] for row in read()] == pytest.approx([0.1, 0.0, 0.2, 0.0, 0.3, 0.0])


def test_a_prompt_whose_comparison_failed_is_scored_again_as_a_whole(folder):
    rows([{"prompt": "a", "response": "1"}, {"prompt": "b", "response": "1"}, {"prompt": "a", "response": "11"},
          {"prompt": "b", "response": "2"}])  # fmt: skip
    lost = [{}, {"text": "I like the second one."}]
    with judge_server(says, script=lost) as server, judge(server, "judge", mode="listwise") as model:
        scored(model, name="judge")
        assert [row["reward"] for row in read()] == [0.1, None, 0.2, None]
        assert {row["reward_failure"].partition(":")[0] for row in read()[1::2]} == {"not_json"}
    # the reply is kept as a failure, so it is not paid for again either
    with judge_server(says) as server, judge(server, "judge", mode="listwise", cache_dir="new") as model:
        scored(model, name="judge", only_failed=True)
        assert [len(shown(one["messages"][-1]["content"])) for one in server.requests] == [2]
        assert [row["reward"] for row in read()] == [0.1, 0.1, 0.2, 0.0]
        assert all(row["reward_failure"] is None for row in read())


def test_pairs_are_compared_in_both_orders(folder):
    def longer(text):
        a, b = shown(text)
        return json.dumps({"reason": "", "winner": "tie" if len(a) == len(b) else "A" if len(a) > len(b) else "B"})

    rows([{"prompt": "p", "chosen": "111", "rejected": "1"}, {"prompt": "q", "chosen": "1", "rejected": "2"}])
    with judge_server(longer) as server, judge(server, "judge", mode="pairwise") as model:
        scored(model, name="judge")
        assert [(row["reward_chosen"], row["reward_rejected"]) for row in read()] == [(1.0, 0.0), (0.5, 0.5)]
        assert len(server.requests) == 4


def test_the_rubric_and_the_reference_of_a_row(folder):
    # columns as in ScaleAI/RaR-Medicine (2507.17746): question, reference_answer, rubric of title, description, weight
    rubric = [{"title": "One", "description": "It has a one.", "weight": 5}, {"description": "Short.", "weight": -1}]
    rows([{"question": "q", "reference_answer": "r1", "rubric": rubric, "response": "1"},
          {"question": "q", "reference_answer": "r2", "rubric": "nonsense", "response": "1"},
          {"question": "q", "response": "1"}])  # fmt: skip
    with judge_server(says) as server, judge(server, "judge", reference=True) as model:
        scored(model, name="judge")
        first, second, third = read()
        assert first["reward"] == pytest.approx(5 / 6)  # the fault was met, too
        assert second["reward_failure"].startswith("no_rubric")
        assert third["reward_failure"].startswith("no_rubric")
        asked = server.requests[0]["messages"][-1]["content"]
        assert "r1" in asked
        assert "It has a one." in asked
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("path", "given", "key", "said"),
    [
        ("rubric.toml", {"modle": 1}, "modle", None),
        ("rubric.toml", {"judge": {"api": "openai"}}, "judge.model", None),
        ("none.toml", {"judge": {"api": "openai", "model": "m"}}, "rubric", "none.toml"),
        ("runs/none", {}, None, "there is no such folder"),
        ("./none", {}, None, "there is no such folder; check the path"),
        ("runs/none", {"mode": "scale"}, "mode", None),
    ],
)
def test_a_wrong_model_is_one_line(folder, path, given, key, said, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_exists", lambda *_: False)
    with pytest.raises((CheckpointError, ConfigError), match=said) as caught:
        load_any_text_model(path, options=given)
    assert getattr(caught.value, "key", None) == key
    assert "\n" not in str(caught.value)
    assert "http" not in str(caught.value)
