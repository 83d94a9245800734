"""Figures of pairs: closed forms, scikit-learn's regression, and intervals over prompts.

Length control as in tatsu-lab/alpaca_eval, src/alpaca_eval/metrics/glm_winrate.py: tanh of the difference of lengths in
characters over its standard deviation, set to 0 in the prediction.
"""

import json
import math

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.reward_bench import (
    ResponsePairs,
    by_length,
    calibration,
    choices_from_rows,
    pairs_of,
    read_choices,
    reward_bench,
)
from guerdon.statistics.intervals import wilson_interval
from guerdon.types import Failure


def pairs(differences, lengths=None, prompts=None, weights=None):
    n = len(differences)
    return ResponsePairs(
        np.array(differences, float), np.zeros(n) if lengths is None else np.array(lengths, float),
        np.ones(n) if weights is None else np.array(weights, float),
        [f"p{k}" for k in range(n)] if prompts is None else prompts, 0,
    )  # fmt: skip


def test_calibration_by_hand():
    found, bins = calibration(pairs([2.0, 2.0, -1.0, 0.0]), reps=100, seed=0)
    p = [expit(2), expit(2), expit(-1), 0.5]
    assert found["log_loss"].estimate == pytest.approx(-np.mean(np.log(p)))
    assert found["brier"].estimate == pytest.approx(np.mean([(1 - one) ** 2 for one in p]))
    # chances of the order that the model gives: .88 twice, right; .73, wrong; .5, half right
    assert found["ece"].estimate == pytest.approx((2 * (1 - expit(2)) + expit(1)) / 4)
    assert (found["log_loss"].baseline, found["brier"].baseline) == (math.log(2), 0.25)
    assert [(one.n, one.frequency) for one in bins if one.n] == [(1, 0.0), (2, 1.0)]


def test_true_bradley_terry_values_are_calibrated_and_larger_ones_are_not():
    rng = np.random.default_rng(0)
    d = rng.normal(0, 1.5, 4000)
    seen = np.where(rng.random(4000) < expit(d), d, -d)  # people prefer the first with probability sigma(d)
    true, _ = calibration(pairs(seen), reps=100, seed=0)
    assert true["ece"].estimate < 0.03
    for factor in (0.3, 3.0):
        other, _ = calibration(pairs(factor * seen), reps=100, seed=0)
        assert other["ece"].low > 0.05
        assert other["log_loss"].estimate > true["log_loss"].estimate
        assert other["brier"].estimate > true["brier"].estimate


def test_accuracy_at_equal_length_with_two_lengths_is_the_mean_logit():
    """One column of two values: the regression is saturated, logit P = a +- b, so a is the mean of both logits."""
    right = [1] * 9 + [0] * 1 + [1] * 12 + [0] * 18  # 0.9 where the right one is longer, 0.4 where it is shorter
    lengths = [50] * 10 + [-50] * 30
    found = by_length(pairs([2 * one - 1 for one in right], lengths), ties="wrong", reps=200, seed=0)
    assert found["length_controlled"].estimate == pytest.approx(expit((logit(0.9) + logit(0.4)) / 2), abs=2e-4)
    assert found["right_is_longer"].estimate == 0.9
    assert found["right_is_shorter"].estimate == 0.4
    assert found["share_right_is_longer"].estimate == 0.25
    assert found["length_controlled"].low < found["length_controlled"].estimate < found["length_controlled"].high


def test_accuracy_at_equal_length_is_scikit_learns():
    rng = np.random.default_rng(1)
    lengths = rng.normal(20, 60, 500).round()
    z = np.tanh(lengths / lengths.std(ddof=1))
    right = rng.random(500) < expit(0.4 + 1.3 * z)
    oracle = LogisticRegression(C=1e9, tol=1e-10).fit(z[:, None], right)
    found = by_length(pairs(np.where(right, 1.0, -1.0), lengths), ties="wrong", reps=100, seed=0)
    assert found["length_controlled"].estimate == pytest.approx(expit(oracle.intercept_[0]), abs=1e-4)
    assert found["length_controlled"].estimate < right.mean()  # the right response is the longer one more often


@pytest.mark.parametrize(("sign", "wanted"), [(1, 1.0), (-1, 0.0)])
def test_all_right_and_all_wrong(sign, wanted):
    found = by_length(pairs([sign] * 30, range(-15, 15)), ties="wrong", reps=100, seed=0)["length_controlled"]
    assert found.estimate == wanted
    assert found.high - found.low > 0.05


def test_values_that_are_lengths_say_nothing_at_equal_length():
    lengths = np.array([-40, -20, -10, 10, 20, 40] * 5)
    found = by_length(pairs(lengths, lengths), ties="wrong", reps=100, seed=0)
    assert found["length_controlled"].estimate == pytest.approx(0.5, abs=1e-6)
    assert (found["right_is_longer"].estimate, found["right_is_shorter"].estimate) == (1.0, 0.0)


def test_equal_lengths_and_ties():
    for ties, wanted in (("wrong", 0.5), ("half", 0.75)):
        found = by_length(pairs([1, 0]), ties=ties, reps=100, seed=0)
        assert found["length_controlled"].estimate == pytest.approx(wanted, abs=1e-3)
        assert found["right_is_longer"].estimate is None


def test_pairs_of_several_responses_weigh_one_together_and_failures_are_counted():
    rows = [{"prompt": "p", "chosen": ["aaaa", "bb"], "rejected": ["c"], "subset": "s"},
            {"prompt": "q", "chosen": ["a"], "rejected": ["c", "dd"], "subset": "s"}]  # fmt: skip
    found = pairs_of(choices_from_rows(rows), [1.0, 2.0, 0.5, 3.0, Failure("late"), 1.0])
    np.testing.assert_array_equal(found.differences_P, [0.5, 1.5, 2.0])
    np.testing.assert_array_equal(found.lengths_P, [3, 1, -1])
    np.testing.assert_array_equal(found.weights_P, [0.5, 0.5, 0.5])
    assert found.failed == 1
    assert found.prompts[0] == found.prompts[1] != found.prompts[2]


def test_rows_of_one_prompt_are_no_more_evidence():
    rows = [{"prompt": f"p{k}", "chosen": "a", "rejected": "b", "subset": "s", "id": k} for k in range(12)]
    values = [v for k in range(12) for v in ((1.0, 0.0) if k % 3 else (0.0, 1.0))]
    once = reward_bench(choices_from_rows(rows), values, reps=400, seed=0).overall.measured
    twice = reward_bench(choices_from_rows([*rows, *rows]), values * 2, reps=400, seed=0).overall.measured
    assert (once.n, twice.n) == (12, 24)
    assert (once.estimate, once.low, once.high) == (twice.estimate, twice.low, twice.high)
    same = [{**row, "prompt": "p"} for row in rows]
    alone = reward_bench(choices_from_rows(same), [1.0, 0.0] * 12, reps=100, seed=0)
    assert alone.overall.measured.low == alone.subsets["s"].measured.low == wilson_interval(1, 1).low
    found, _ = calibration(pairs([1, -1] * 6, prompts=["p"] * 12), reps=100, seed=0)
    assert found["brier"].low is None


def test_contradicting_pairs_are_left_out_and_counted(tmp_path):
    a, b = {"prompt": "p", "chosen": "x", "rejected": "y"}, {"prompt": "p", "chosen": "y", "rejected": "x"}
    rows = [a, b, {**a, "prompt": "q"}, {**a, "prompt": "q"}, {"prompt": "r", "chosen": "x", "rejected": "x"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    choices, left_out, votes, _ = read_choices(str(tmp_path / "pairs.jsonl"))
    assert [choice.prompt for choice in choices] == [choices[0].prompt] * 2
    assert dict(left_out) == {"contradicted": 2, "equal_answers": 1}
    assert votes.label_noise == pytest.approx(0.5)  # half of the repeated pairs differ, 2 e (1 - e) = 1/2
    more = [*rows, a, {**a, "prompt": "t", "status": "tie"}]  # two of three are for x; a tie
    own = "".join(json.dumps({**row, "subset": "s", "status": row.get("status", "kept")}) + "\n" for row in more)
    (tmp_path / "majority.jsonl").write_text(own)
    choices, left_out, votes, _ = read_choices(str(tmp_path / "majority.jsonl"))
    assert [(choice.prompt, choice.chosen[0].text) for choice in choices[:3]] == [("p", "x"), ("q", "x"), ("q", "x")]
    assert dict(left_out) == {"outvoted": 1, "tie": 1}
    facts = votes.facts()
    low, high = facts.pop("label_noise_interval")
    assert low < facts["label_noise"] < high
    assert facts == {
        "label_noise": pytest.approx((1 - (1 - 2 / 3) ** 0.5) / 2), "majorities": 1,
        "majority_share": pytest.approx(2 / 3),
    }  # fmt: skip
    (tmp_path / "own.jsonl").write_text("".join(json.dumps({**row, "subset": "s"}) + "\n" for row in rows))
    assert read_choices(str(tmp_path / "own.jsonl"))[1] == {"contradicted": 2}
    (tmp_path / "reward_bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_choices(str(tmp_path / "reward_bench.jsonl"))[0]) == 5  # a benchmark is measured as it is
    (tmp_path / "none.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (a, b)))
    with pytest.raises(DataError, match="no comparison that can be used: 2 contradicted"):
        read_choices(str(tmp_path / "none.jsonl"))
