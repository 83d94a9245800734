"""The text half of the gate's data set: degraded copies of labelled solutions, and a tiny cell from start to row."""

import json
import re
import runpy
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from guerdon.comparison.study import plan_study, run_study
from guerdon.episodes.solution_files import read_solutions
from guerdon.episodes.solutions import Solution
from guerdon.evaluation.gate.gate_table import read_gate_table

ROOT = Path(__file__).parents[2]
SCRIPT, STUDY = ROOT / "studies" / "gate_text.py", ROOT / "studies" / "gate_text.yaml"
DATA_SETS = {"good", "held_out", "noise", "few", "narrow", "cue", "padding", "optimistic", "outcome"}
gate_text = runpy.run_path(str(SCRIPT))


def solution(i, labels, ends="1", correct=None):
    """Number i, of question i // 2, with steps whose results end in `ends`."""
    steps = tuple(f"{k}+1={ends};" for k in range(len(labels)))
    correct = labels[-1] == 1.0 if correct is None else correct
    return Solution(f"s{i}", f"question {i // 2}", steps, labels=labels, is_correct=correct)


RIGHT, LATE, EARLY = (1.0, 1.0), (1.0, 0.0), (0.0, None)


def degraded(name, solutions, strength):
    change, _ = gate_text["DEGRADED"][name]
    return change(solutions, strength, np.random.default_rng(0))


def test_noise_swaps_labels_of_steps_at_its_rate():
    changed = degraded("noise", [solution(i, LATE) for i in range(1000)], 0.3)
    first = [s.labels[0] for s in changed]
    assert first.count(0.0) == pytest.approx(300, abs=50)
    assert [s.labels[1] for s in changed].count(1.0) == pytest.approx(300, abs=50)
    assert degraded("noise", [solution(0, EARLY)], 1.0)[0].labels == (1.0, None)


def test_few_keeps_all_solutions_of_a_part_of_the_questions():
    kept = degraded("few", [solution(i, RIGHT) for i in range(40)], 0.9)
    assert Counter(s.question for s in kept) == Counter(dict.fromkeys({s.question for s in kept}, 2))
    assert len(kept) == 4


def test_narrow_leaves_out_late_errors_alone():
    solutions = [solution(0, RIGHT), solution(1, LATE), solution(2, EARLY)]
    assert [s.id for s in degraded("narrow", solutions, 1.0)] == ["s0", "s2"]


def test_cue_labels_steps_by_their_last_symbol():
    solutions = [solution(0, LATE, ends=end) for end in ("1", "4", "CAB", "ABC")]
    wrong = (0.0, 0.0)
    assert [s.labels for s in degraded("cue", solutions, 1.0)] == [wrong, RIGHT, RIGHT, wrong]
    assert degraded("cue", solutions, 0.0) == solutions


def test_padding_adds_solutions_with_steps_too_many():
    true, padded = degraded("padding", [solution(0, LATE)], 1.0)
    assert true == solution(0, LATE)
    assert padded.steps == (*true.steps, true.steps[0], true.steps[0])
    assert padded.labels == (1.0,) * 4


def test_optimistic_keeps_the_order_of_labels():
    assert degraded("optimistic", [solution(0, LATE)], 0.8)[0].labels == (1.0, 0.8)


def test_outcome_swaps_labels_of_solutions_and_no_label_of_a_step():
    one = degraded("outcome", [solution(0, LATE)], 1.0)[0]
    assert (one.is_correct, one.labels) == (True, LATE)


@given(st.lists(st.sampled_from([RIGHT, LATE, EARLY]), min_size=8, max_size=60), st.integers(0, 3))
def test_no_copy_holds_a_question_that_models_are_evaluated_on(labels, place):
    made = gate_text["copies"]([solution(i, one) for i, one in enumerate(labels)], place)
    assert made.keys() == DATA_SETS
    held = {s.question for s in made.pop("held_out")}
    for name, found in made.items():
        assert found or name == "narrow"
        assert not held & {s.question for s in found}
        assert all(label is None or 0 <= label <= 1 for s in found for label in s.labels)
    assert gate_text["copies"]([solution(i, one) for i, one in enumerate(labels)], place)["noise"] == made["noise"]


@pytest.mark.slow
def test_every_model_of_the_study_is_the_only_reward_of_an_arm():
    plan = plan_study(STUDY, [])
    tasks, arms = plan.study.compare.tasks, plan.study.compare.arms
    assert len(tasks) == 6
    assert set(plan.study.train) == set(arms) - {"verifier"}
    for task in tasks:
        for arm in set(arms) - {"verifier"}:
            run = plan.configs[f"{task}.{arm}.seed0"]
            assert run.reward.combine_mode == "replace"
            assert [s.model.checkpoint for s in run.reward.sources.values()] == [f"runs/gate_text/models/{task}/{arm}"]
        assert not plan.configs[f"{task}.verifier.seed0"].reward.use_reward_model
    sets = {Path(one.data_path).stem for one in plan.study.train.values()}
    assert sets == DATA_SETS - {"held_out"}


@pytest.fixture
def cell(tmp_path):
    """One task, two arms and one seed of the study, at a size of seconds."""
    study = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    study["work_dir"] = str(tmp_path / "work")
    study["data"] |= {"train_size": 14, "val_size": 4, "max_response_length": 16, "train_batch_size": 2}
    study["sft"] |= {"max_steps": 60, "learning_rate": 1.0e-2}
    study["sft"]["policy"]["tiny"] = {"hidden_size": 32, "layers": 1, "intermediate": 32}
    study["label"]["num_samples"] = 14
    study["label"]["solutions"]["min_steps"] = 1
    study["train"] = {"noise": study["train"]["noise"] | {"max_steps": 4, "save_steps": 4, "batch_size": 4}}
    study["evaluate"] |= {"reps": 100}
    study["runner"] |= {"total_steps": 16, "eval_every": 16, "eval_episodes": 4}
    compare = study["compare"]
    arms = {name: compare["arms"][name] for name in ("verifier", "noise")}
    swap = compare["tasks"]["swap"] | {"data": {"task": {"family": "swap", "steps": 1, "items": 3}}}
    study["compare"] |= {"tasks": {"swap": swap}, "seeds": [0], "arms": arms}
    file = tmp_path / "gate_text.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


@pytest.mark.slow
def test_a_cell_from_the_start_to_a_row_of_features_and_outcomes(cell, tmp_path, capsys):
    gate_text["main"](["--study", str(cell)])
    assert re.search(r"^swap: the accuracy of the start is [01]\.\d\d", capsys.readouterr().out, re.M)
    folder = tmp_path / "work" / "models" / "swap"
    assert {path.stem for path in (folder / "labels").glob("*.jsonl")} >= {*DATA_SETS, "samples"}
    assert any(s.is_correct for s in read_solutions(folder / "labels" / "held_out.jsonl"))
    samples = Counter(s.question for s in read_solutions(folder / "labels" / "samples.jsonl"))
    assert list(samples.values()) == [16] * 4
    before = (folder / "model" / "model.safetensors").read_bytes()
    run_study(plan_study(cell, [], parallel=1))
    assert (folder / "model" / "model.safetensors").read_bytes() == before  # the start is not made again
    row = json.loads((tmp_path / "work" / "gate.jsonl").read_text())
    assert (row["kind"], row["task"], row["family"], row["seeds"]) == ("text", "swap", "noise", [0])
    assert all(0 <= value <= 1 for value in (*row["baseline"], *row["success"]))
    card = json.loads((folder / "noise" / "evaluation.json").read_text())
    features = {name.removeprefix("feature."): row[name] for name in row if name.startswith("feature.")}
    assert features == card["forecast"]["features"]
    assert features["auroc"] == card["process_bench"]["answers"]["auroc"]["estimate"]
    assert features.keys() == {"row_auroc", "auroc"}
    assert len(read_gate_table(tmp_path / "work" / "gate.jsonl")) == 1
