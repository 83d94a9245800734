"""`--dry-run` refuses what the start of a command refuses, in the same words, and writes nothing."""

import json
import os
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from guerdon import cli
from guerdon.processes.progress import log_once


class Pictures(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode


class Unbounded(Pictures):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)


gymnasium.register("guerdon-tests/Pictures-v0", Pictures, max_episode_steps=5)
gymnasium.register("guerdon-tests/Unbounded-v0", Unbounded, max_episode_steps=5)

GYM = ["env.type=gymnasium", "env.native_reward=dense"]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(
        "work_dir: work\npolicy: {type: mlp, hidden: [4]}\nenv: {num_envs: 2, frame_size: 16}\n"
        "algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}\n"
        "runner: {total_steps: 20, eval_every: 20, eval_episodes: 1}\n"
    )

    def run(verb, *words):
        monkeypatch.setattr(sys, "argv", ["guerdon", verb, "study.yaml", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        found = capsys.readouterr()
        return left.value.code, found.err, found.out

    return run


REFUSED = [
    ("run", [*GYM, "env.task=CartPole-v1", "policy.keys=[position]"], "one array, without keys"),
    ("run", [*GYM, "env.task=CartPole-v1", "policy.log_std_init=-1.0"], "actions are discrete"),
    ("run", [*GYM, "env.task=Nothing-v3"], "Nothing"),
    ("run", [*GYM, "env.task=CartPole-v1", "policy.type=cnn"], "policy.type cnn takes pictures"),
    ("run", ["env.type=metaworld", "env.task=no-such-task"], "Meta-World has no task"),
    ("run", ["env.type=metaworld", "env.task=reach", "env.camera=topp"], "env.camera"),
    ("collect", ["collect.save_dir=data", *GYM, "env.task=Pendulum-v1", "collect.mixture=[{type: expert}]"],
     "no scripted expert"),
    ("collect", ["collect.save_dir=data", *GYM, "env.task=guerdon-tests/Unbounded-v0",
                 "collect.mixture=[{type: random}]"], "no bounds to draw random ones from"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "words", "message"), REFUSED)
def test_a_dry_run_refuses_what_the_start_refuses(call, verb, words, message):
    code, said, _ = call(verb, *words, "--dry-run")
    assert code == 2
    assert message in said
    assert said.count("\n") == 1
    started = call(verb, *words)
    assert started[0] == 2
    assert message in started[1]


@pytest.mark.parametrize("task", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_a_dry_run_of_what_runs_shows_the_limit_and_writes_nothing(call, task):
    code, said, out = call("run", *GYM, f"env.task={task}", "--dry-run")
    assert (code, said) == (0, "")
    assert f"max_episode_steps: {gymnasium.spec(task).max_episode_steps}" in out
    collected = ("collect.save_dir=data", "collect.mixture=[{type: random}]")
    assert call("collect", *GYM, f"env.task={task}", *collected, "--dry-run")[0] == 0
    assert os.listdir() == ["study.yaml"]


def test_data_that_cannot_be_read_or_split_are_refused_and_data_to_come_are_not(call):
    model = ("train={rm: {type: resnet, data_path: data, save_dir: rm}}",)
    assert call("train", *model, "--dry-run")[0] == 0, "they may be collected later"
    Path("data").mkdir()
    Path("data/demo.hdf5").write_bytes(b"x")
    code, said, _ = call("train", *model, "--dry-run")
    assert code == 2
    assert "HDF5" in said
    one = ("collect.save_dir=later", "collect.episodes=1", "train={rm: {type: resnet, data_path: later, save_dir: rm}}")
    code, said, _ = call("train", *one, "--dry-run")
    assert code == 2
    assert "1 episode(s) are too few to hold some out" in said
    none = "train={rm: {type: resnet, data_path: later, save_dir: rm, val_split: 0, early_stopping_patience: null, "
    assert call("train", *one[:2], none + "calibrate: false}}", "--dry-run")[0] == 0


TEXT = (
    "work_dir: work\npolicy: {type: text, tiny: {alphabet: '0123456789+?= A', layers: 1}, bf16: false}\n"
    "data: {type: files, train_files: rows.jsonl, val_size: 1}\nalgorithm: {}\nsft: {save_dir: sft}\n"
)
ROWS = '{"question": "1+1?", "answer": "2"}\n{"question": "1+2?", "answer": "3"}\n'
NO_SOLUTION = "training prompts has a worked solution"  # all that a supervised start needs
BAD = [
    (ROWS + '{"question": "Which?", "choices": "one or two", "answer": "B"}\n', "rows.jsonl:3: choices"),
    ('{"question": "1+1?"}\n{"question": "1+2?"}\n', "no true answer"),
    ("", "there is no prompt in it"),
    (None, "there is no such file"),
]


@pytest.mark.parametrize(("rows", "message"), BAD)
def test_prompts_that_a_run_would_refuse(call, rows, message):
    Path("study.yaml").write_text(TEXT)
    if rows is not None:
        Path("rows.jsonl").write_text(rows)
    there = sorted(os.listdir())
    for verb, *words in (("run",), ("train", "policy=sft")):
        code, said, _ = call(verb, *words, "--dry-run")
        assert code == 2
        assert (NO_SOLUTION if verb == "train" and message == "no true answer" else message) in said
        lines = said.splitlines()
        assert [line for line in lines if line.startswith("guerdon: ")] == lines[-1:]
        assert sorted(os.listdir()) == there
    started = call("run")
    assert started[0] == 2
    assert message in started[1]


def test_prompts_that_a_run_reads_and_those_of_another_machine(call):
    log_once.cache_clear()  # other tests have rows of the same name
    Path("study.yaml").write_text(TEXT)
    Path("rows.jsonl").write_text(ROWS)
    code, said, out = call("run", "--dry-run")
    assert code == 0
    assert said.splitlines() == [
        "rows.jsonl: question is the prompt (for example '1+1?')",
        "rows.jsonl: answer is the reference (for example '2')",
        "rows.jsonl: 2 rows read, 2 used",
    ]
    assert "not checked" not in out
    code, said, out = call("run", "data={type: gsm8k, path: elsewhere}", "--dry-run")
    assert (code, said) == (0, "")
    assert "not checked: data.path elsewhere does not exist on this machine" in out
    assert sorted(os.listdir()) == ["rows.jsonl", "study.yaml"]


def episodes(outcomes, *, camera="front"):
    from guerdon.episodes.write import EpisodeWriter
    from guerdon.types import Episode

    rng = np.random.default_rng(0)
    with EpisodeWriter("data", camera=camera) as writer:
        for k, outcome in enumerate(outcomes):
            frames = rng.integers(0, 255, (6, 16, 16, 3), dtype=np.uint8)
            actions = rng.normal(size=(6, 2)).astype(np.float32)
            actions[0] = 0
            success = None if outcome is None else np.array([False] * 5 + [outcome])
            writer.add(
                Episode(
                    id=f"e{k}", task="press", frames=frames, states=rng.normal(size=(6, 3)).astype(np.float32),
                    actions=actions, success=success, outcome=outcome,
                )
            )  # fmt: skip


RESNET = "train={rm: {type: resnet, data_path: data, save_dir: rm, image_size: 16, max_epochs: 1%s}}"


@pytest.mark.parametrize(
    ("outcomes", "more", "message"),
    [
        ([False] * 4, "", "no success frame in 4 episodes"),
        ([None] * 4, "", "success labels"),
        ([True, False], "", "too few to hold some out"),
        ([True, False, True, False], ", camera: wrist", "no camera 'wrist'; it has front"),
    ],
)
def test_labels_and_cameras_of_data_are_refused_as_by_the_training(call, outcomes, more, message):
    episodes(outcomes)
    for flag in (["--dry-run"], []):
        code, said, _ = call("train", RESNET % more, *flag)
        assert code == 2
        assert message in said


def test_data_that_can_be_learned_from_are_not_decoded(call, monkeypatch):
    episodes([True, False, True, False])
    monkeypatch.setattr("guerdon.episodes.read._frames", None)
    assert call("train", RESNET % "", "--dry-run")[:2] == (0, "")
    assert not Path("rm").exists()


def test_cloning_is_checked(call):
    bc = ["policy=bc", "bc.data_path=data", "bc.save_dir=bc", "bc.epochs=1"]
    assert call("train", *bc, "--dry-run")[0] == 0, "data may come later"
    episodes([True])
    for words, message in [([], "1 episode"), (["policy.checkpoint=there"], "policy.checkpoint would do nothing")]:
        for flag in (["--dry-run"], []):
            code, said, _ = call("train", *bc, *words, *flag)
            assert code == 2
            assert message in said


COMPARED = (
    "work_dir: work\npolicy: {type: mlp, hidden: [4]}\nenv: {num_envs: 2, frame_size: 16}\n"
    "algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}\n"
    "runner: {total_steps: 20, eval_every: 20, eval_episodes: 1}\n"
    "compare: {seeds: [0, 1], tasks: [reach, raech], baseline: plain, arms: {plain: {label: plain}}}\n"
)


@pytest.mark.parametrize("flag", [["--dry-run"], []])
def test_a_study_names_a_task_that_is_not_there_once_and_starts_nothing(call, flag):
    Path("study.yaml").write_text(COMPARED)
    code, said, _ = call("compare", *flag)
    assert code == 2
    assert said.count("\n") == 1
    assert "no task 'raech'; did you mean reach" in said
    assert os.listdir() == ["study.yaml"]


def text_study(*, positions=64, validation="ab", system=None):
    """A study of a tiny model and the files of its prompts in this folder."""
    for name, questions in (("train", ["a", "b", "aa"]), ("val", [validation])):
        Path(f"{name}.jsonl").write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in questions))
    Path("study.yaml").write_text(
        "work_dir: work\npolicy: {type: text, tiny: {hidden_size: 16, heads: 2, layers: 1, intermediate: 16, "
        f"max_positions: {positions}}}}}\n"
        "data: {type: files, train_files: train.jsonl, val_files: val.jsonl, verifier: exact, unparsable: wrong, "
        "max_response_length: 4, train_batch_size: 2, n_samples: 2, filter_accuracy: false, filter_truncated: false}\n"
        "runner: {total_steps: 8, eval_every: 1000, checkpoint_every: 1000}\n"
    )


def test_a_validation_prompt_that_is_too_long_is_refused_before_the_first_step(call):
    text_study(validation="ab" * 40)
    for words in (["--dry-run"], []):
        code, said, _ = call("run", *words)
        assert code == 2
        assert re.search(r"the prompt \S+ \(to validate on\) of 8\d tokens .* the model's 64 positions", said)
        assert not list(Path("work").rglob("step_*"))


def test_a_dry_run_of_text_that_fits_writes_nothing(call):
    text_study()
    before = sorted(Path().rglob("*"))
    code, _, shown = call("run", "--dry-run")
    assert code == 0
    assert "not checked" not in shown
    assert sorted(Path().rglob("*")) == before
    code, said, _ = call("run")
    assert code == 0, said


@pytest.mark.parametrize("words", [["policy.tiny=null", "policy.path=some-hub/Model-1.5B"],
                                   ["data={type: datasets, path: some-hub/data}"]])  # fmt: skip
def test_what_is_on_another_machine_is_not_checked_and_said(call, words):
    text_study(validation="ab" * 40)
    code, _, shown = call("run", "--dry-run", *words)
    assert code == 0
    assert re.search(r"not checked: .* on this machine", shown)


LONG = [
    ("label", ["label={method: 1, save_dir: labels}", "data.max_prompt_length=3"], "all 3 questions are longer than"),
    ("search", ["search={model: {model_type: constant}, aggregation: min, questions: val.jsonl}"], "does not judge"),
    ("search", ["search={model: {model_type: text, checkpoint_path: prm}, aggregation: min, questions: val.jsonl}"],
     r"the question \S+ of 8\d tokens .* the model's 64 positions"),
    ("train", ["policy=sft", "sft={save_dir: sft}"], "none of the 3 training prompts has a worked solution"),
    ("train", ["train={prm: {type: stepwise, save_dir: prm, data_path: rows.jsonl}}"], "too few to hold some out"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "words", "message"), LONG)
def test_what_other_commands_refuse_of_their_text_is_refused_by_a_dry_run(call, verb, words, message):
    text_study(validation="ab" * 40)
    row = {"question": "a", "steps": ["b", "a"], "labels": [1, 0]}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    before = sorted(Path().rglob("*"))
    code, said, _ = call(verb, "--dry-run", *words)
    assert (code, bool(re.search(message, said))) == (2, True), said
    assert sorted(Path().rglob("*")) == before


def test_an_evaluation_of_robots_reads_its_table_and_its_data(call):
    episodes([True, False])
    words = ["evaluate", RESNET % "", "--dry-run"]
    assert call(*words, "evaluate.data_path=data")[0] == 0
    Path("table.json").write_text("{}")
    for given, message in [("gate.table=table.json", "table.json"), ("data_path=broken", "broken")]:
        Path("broken").mkdir(exist_ok=True)
        code, said, _ = call(*words, f"evaluate.{given}")
        assert code == 2
        assert message in said
        assert said.count("\n") == 1
