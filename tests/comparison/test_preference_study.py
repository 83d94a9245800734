"""configs/preference.yaml: the pairs that it is made of, and every stage of a short one."""

import json
from pathlib import Path

import numpy as np
import pytest
from studies import preference_pairs as pairs

from guerdon.comparison.results import number, read_study
from guerdon.comparison.study import plan_study, run_study
from guerdon.episodes.preferences import read_preferences
from guerdon.episodes.solutions import Solution
from tables import first

ROOT = Path(__file__).parents[2]


def test_the_gold_reward_by_hand():
    assert pairs.gold_reward("abcdabcd", "ab") == 2
    assert pairs.gold_reward("aaaaaaaa", "dcba") == 4
    assert pairs.gold_reward("aaaaaaaa", "abaz") == pytest.approx(2 - 2 * 0.15)
    assert pairs.gold_reward("hhhhhhhh", "abcd") == pytest.approx(-4 * 0.15)
    (score,) = pairs.Gold().score([Solution("x", "efefefef", ("ea",)).as_episode()])
    assert score.total == pytest.approx(1 - 0.15)


def test_the_gold_reward_of_words_by_hand():
    assert pairs.gold_reward("river lamp stone gold", "gold river") == 2
    assert pairs.gold_reward("river lamp stone gold", "gold gold, sugar") == pytest.approx(1 - 3 * 0.15)
    assert pairs.gold_reward("river lamp stone gold", "rivers 3") == pytest.approx(-2 * 0.15)
    assert pairs.gold_reward("river lamp stone gold", "") == 0
    (score,) = pairs.Gold().score([Solution("x", "river lamp stone gold", ("lamp ", "lamp")).as_episode()])
    assert score.total == pytest.approx(1 - 0.15)


def test_raters_follow_bradley_terry_with_a_preference_for_length(tmp_path):
    """Of pairs that differ by d in the raters' own reward, a share of 1 / (1 + e^-d) is ordered by it."""
    rng = np.random.default_rng(0)
    expected, ordered, longer = [], [], []
    for _ in range(4000):
        row = pairs.pair("abcdabcd", rng, noisy=True)
        gold, size = ([f(row[k]) for k in ("chosen", "rejected")] for f in (lambda r: pairs.gold_reward("a", r), len))
        rated = 2 * (gold[0] - gold[1] + 0.5 * (size[0] - size[1]))
        expected.append(1 / (1 + np.exp(-abs(rated))))
        ordered.append(rated > 0 if rated else 0.5)
        if (gold[0] - gold[1]) * rated < 0:  # the gold reward and the raters disagree
            longer.append(size[0] > size[1])
    assert np.mean(ordered) == pytest.approx(np.mean(expected), abs=0.02)
    assert np.mean(longer) > 0.6, "where the gold reward prefers the shorter one"


@pytest.mark.parametrize("words", first([False, True], 1))
def test_the_files(tmp_path, words):
    pairs.write(tmp_path, 3, words=words)
    found = read_preferences(str(tmp_path / "pairs.jsonl"))
    assert len(found.comparisons) == pairs.PAIRS
    rows = {
        name: [json.loads(x) for x in (tmp_path / f"{name}.jsonl").open()]
        for name in ("prompts/train", "pairs", "test")
    }
    prompts = [row["prompt"] for one in rows.values() for row in one]
    assert len(set(prompts)) == len(prompts) == pairs.PROMPTS + pairs.PAIRS + pairs.TEST
    for row in rows["test"]:
        assert pairs.gold_reward(row["prompt"], row["chosen"]) > pairs.gold_reward(row["prompt"], row["rejected"])
    solutions = [pairs.pieces(row["prompt"], row["solution"]) for row in rows["prompts/train"]]
    assert 1 <= min(map(len, solutions)) < max(map(len, solutions)) <= pairs.LONGEST
    known = set(pairs.WORDS) if words else set("".join(pairs.HALVES))
    assert {one for solution in solutions for one in solution} == known
    right = [one in pairs.wanted(row["prompt"]) for row, found in zip(rows["prompts/train"], solutions, strict=True)
             for one in found]  # fmt: skip
    assert np.mean(right) == pytest.approx(0.5 + 0.5 * 4 / len(known), abs=0.02)


SHORT = [
    "sft.max_steps=20", "compare.seeds=[0]", "data.val_size=8", "runner.total_steps=256", "runner.eval_every=128",
    "runner.eval_episodes=4", "evaluate.best_of_n.questions=4", "evaluate.best_of_n.n=8",
    "evaluate.best_of_n.ns=[1,2,4]", "evaluate.reps=100",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)  # seven processes, a loaded machine
def test_a_short_study_runs_every_stage(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("PROMPTS", "PAIRS", "TEST"):
        monkeypatch.setattr(pairs, name, 96)
    pairs.write(tmp_path, 0)
    report, table = run_study(plan_study(Path("configs/preference.yaml"), [f"work_dir={tmp_path}", *SHORT]))
    study = read_study(tmp_path)
    assert [run.status for run in study.runs] == ["complete"] * 2
    for run in study.runs:
        assert all(number(row, "truth") == number(row, "return/gold") is not None for row in run.trains)
        assert all(number(row, "kl") is not None for row in run.trains)
    assert {card.name for card in study.cards} == {"mean", "lower"}
    for card in study.cards:
        assert card.evaluation["over_optimisation"]["n"] == [1, 2, 4]
        assert card.evaluation["seen_in_training"]["best_of_n"]["seen"] == 0
    assert "This study shows nothing about over-optimisation" in table
    assert "This study shows nothing about over-optimisation" in report.read_text()
