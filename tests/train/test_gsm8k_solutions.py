"""The study of judges on real solutions (studies/gsm8k_solutions.py): reader, figures by hand, a tiny run."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from guerdon.episodes.solution_files import read_solutions
from guerdon.errors import DataError
from guerdon.types import Failure, Score

torch.set_num_threads(1)
RIGHT = (0.25, 0.4, 0.35, 0.6)  # how often each system is right


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "studies"))
    return importlib.import_module("gsm8k_solutions")


def write(path, module, n):
    rng = np.random.default_rng(0)
    rows = []
    for k in range(n):
        row = {"question": f"What is {k} and {k + 1}?", "ground_truth": f"{k} + {k + 1} = {2 * k + 1}\nA: {2 * k + 1}"}
        for system, share in zip(module.SYSTEMS, RIGHT, strict=True):
            right = bool(rng.random() < share)
            answer = 2 * k + 1 if right else 2 * k + 2
            text = f"{k}+{k + 1} = <<{k}+{k + 1}={answer}>>{answer}\nA: {answer}"
            row[system] = {"is_correct": right, "solution": text}
        rows.append(json.dumps(row))
    path.write_text("\n".join(rows) + "\n")
    return path


def test_rows_become_four_solutions_and_questions_stay_together(tmp_path, module):
    solutions = module.read_systems(write(tmp_path / "s.jsonl", module, 10))
    assert len(solutions) == 40
    first = solutions[0]
    assert "<<" not in first.text
    assert (first.answer, first.ground_truth) == (first.text.rpartition("A: ")[2], "1")
    assert all((s.answer == s.ground_truth) == s.is_correct for s in solutions)
    train, test = module.split(solutions, 6, 3)
    assert (len(train), len(test)) == (24, 12)
    assert not {s.question for s in train} & {s.question for s in test}
    assert module.split(list(reversed(solutions)), 6, 3)[1] == list(reversed(test))
    with pytest.raises(DataError, match="more than the file's 10"):
        module.split(solutions, 8, 3)
    (tmp_path / "bad.jsonl").write_text('{"question": "Why?", "6b_finetuning": {"solution": "A: 1"}}\n')
    with pytest.raises(DataError, match="6b_finetuning"):
        module.read_systems(tmp_path / "bad.jsonl")


def test_figures_by_hand(tmp_path, module):
    solutions = module.read_systems(write(tmp_path / "s.jsonl", module, 30))
    truth = [Score(total=float(s.is_correct)) for s in solutions]
    perfect = module.judged(solutions, [truth], probabilities=True)
    assert [perfect[name]["estimate"] for name in ("auroc", "within", "ece", "brier")] == [1, 1, 0, 0]
    any_right = np.mean([any(s.is_correct for s in solutions[k : k + 4]) for k in range(0, 120, 4)])
    assert perfect["best_of_4"]["estimate"] == pytest.approx(any_right)
    # who wrote it is all that this one knows: nothing within a system, something overall
    system = [Score(total=RIGHT[k % 4]) for k in range(120)]
    known = module.judged(solutions, [system, system], probabilities=True)
    assert known["within"]["estimate"] == 0.5
    assert known["auroc_of_seeds"] == [known["auroc"]["estimate"]] * 2
    always = [s.is_correct for s in solutions if s.meta["system"] == "175b_verification"]
    assert known["best_of_4"]["estimate"] == pytest.approx(np.mean(always))
    rules = module.baselines(solutions, solutions)
    assert rules["always 175b_verification"]["estimate"] == pytest.approx(np.mean(always))
    assert rules["any of 4 (ceiling)"]["estimate"] == pytest.approx(any_right)
    # two answers per question: the majority is right with three right ones, a tie is worth one half
    counts = [sum(s.is_correct for s in solutions[k : k + 4]) for k in range(0, 120, 4)]
    assert rules["majority of 4"]["estimate"] == pytest.approx(np.mean([c > 2 or 0.5 * (c == 2) for c in counts]))
    negative = module.judged(solutions, [[Score(total=-1.0)] * 120], probabilities=False)
    assert "weighted_vote" not in negative
    with pytest.raises(DataError, match="too_long"):
        module.judged(solutions, [[Score(failure=Failure("too_long"))] * 120], probabilities=True)


@pytest.mark.slow
def test_the_study_at_a_tiny_size(tmp_path, module):
    path = write(tmp_path / "s.jsonl", module, 24)
    tiny = "policy={type: text, tiny: {hidden_size: 16, layers: 1, heads: 2, intermediate: 16}}"
    small = [f"train.{name}.{key}" for name in ("outcome", "implicit", "verdict") for key in
             ("max_steps=2", "batch_size=4", "micro_batch_size=4", "max_length=1000", "lora={r: 2}")]  # fmt: skip
    arguments = [
        str(path),
        f"work_dir={tmp_path / 'w'}",
        tiny,
        *small,
        "--train",
        "14",
        "--test",
        "8",
        "--seeds",
        "0",
        "1",
    ]
    assert module.main([*arguments, "--estimate"]) == {}
    record = module.main(arguments)
    assert list(record["judges"]) == ["shorter is better", "log-likelihood", "outcome", "implicit", "verdict"]
    for name in ("outcome", "implicit", "verdict"):
        row = record["judges"][name]
        assert len(row["auroc_of_seeds"]) == 2
        assert 0 <= row["brier"]["estimate"] <= 1
        assert row["within"]["n"] == 32
    assert len(read_solutions(tmp_path / "w/train.jsonl")) == 56
    again = module.main(arguments)  # nothing is trained or scored again
    assert again["judges"] == record["judges"]
