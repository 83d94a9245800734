from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from guerdon.evaluation.metrics import kendall_tau, pearson, policy_means, policy_ranking, preference_metrics, spearman

pairs = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=25)
kendall_tau_a, kendall_tau_b = partial(kendall_tau, variant="a"), partial(kendall_tau, variant="b")
MEASURES = [pearson, spearman, kendall_tau_a, kendall_tau_b]
STRICT, DECIDED, TIES = "preference_accuracy", "preference_accuracy_without_ties", "preference_ties"
SPEARMAN, PEARSON = "policy_ranking_spearman", "policy_ranking_pearson"


def columns(rows):
    return np.array([row[0] for row in rows], float), np.array([row[1] for row in rows], float)


@given(pairs)
def test_scipy_agrees(rows):
    x, y = columns(rows)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert [measure(x, y) for measure in MEASURES] == [None] * 4
        return
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert kendall_tau_b(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
    n = len(x)
    score = sum(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]) for i in range(n) for j in range(i))
    assert kendall_tau_a(x, y) == pytest.approx(score / (n * (n - 1) / 2))


@given(pairs, st.randoms(use_true_random=False))
def test_bounds_symmetry_and_reversal(rows, random):
    x, y = columns(rows)
    order = list(range(len(x)))
    random.shuffle(order)
    for measure in MEASURES:
        value = measure(x, y)
        if value is None:
            continue
        assert -1 <= value <= 1
        assert measure(y, x) == pytest.approx(value)
        assert measure(-x, y) == pytest.approx(-value)
        assert measure(x[order], y[order]) == pytest.approx(value)
        if measure is not pearson:
            assert measure(np.exp(x), y) == pytest.approx(value)
    if kendall_tau_b(x, y) is not None:
        assert abs(kendall_tau_a(x, y)) <= abs(kendall_tau_b(x, y)) + 1e-12


def test_tau_a_and_tau_b_by_hand():
    x, y = [1, 2, 2, 3], [1, 2, 3, 4]  # 5 concordant, none discordant, one tie of 6 pairs
    assert kendall_tau_a(x, y) == pytest.approx(5 / 6)
    assert kendall_tau_b(x, y) == pytest.approx(5 / np.sqrt(5 * 6))


def test_undefined_is_none():
    for measure in MEASURES:
        assert measure([], []) is None
        assert measure([1.0], [2.0]) is None
        assert measure([0.3, 0.3, 0.3], [0, 1, 2]) is None
    with pytest.raises(ValueError, match="shape"):
        spearman([1, 2], [1, 2, 3])


def test_ties_are_wrong_and_counted_apart():
    found = preference_metrics([0.9, 0.5, 0.5, 0.1, 0.7], [True] * 2 + [False] * 3, ["t"] * 5, reps=50, seed=0)
    assert (found[STRICT].n, found[DECIDED].n, found[DECIDED].n_undefined) == (6, 5, 1)
    assert found[STRICT].estimate == pytest.approx(4 / 6)
    assert found[DECIDED].estimate == pytest.approx(4 / 5)
    assert preference_metrics([0.1], [False], ["t"], reps=50, seed=0)[STRICT].estimate is None
    assert preference_metrics([0.1, 0.1], [True, False], ["t"] * 2, reps=50, seed=0)[DECIDED].estimate is None


def test_preferences_stay_within_a_task():
    scores, success = [0.9, 0.1, 0.4, 0.6], [True, False, True, False]
    together = preference_metrics(scores, success, ["a"] * 4, reps=50, seed=0)
    apart = preference_metrics(scores, success, ["a", "a", "b", "b"], reps=50, seed=0)
    assert (together[STRICT].estimate, together[STRICT].n) == (0.75, 4)
    assert (apart[STRICT].estimate, apart[STRICT].n) == (0.5, 2)
    alone = preference_metrics(scores, success, list("abcd"), reps=50, seed=0)
    assert (alone[STRICT].estimate, alone[STRICT].n) == (None, 0)


def test_preference_counts_agree_with_the_plain_count():
    rng = np.random.default_rng(0)
    scores, success = rng.integers(0, 6, size=40) / 5.0, rng.random(40) < 0.4
    found = preference_metrics(scores, success, ["t"] * 40, reps=300, seed=0)
    difference = scores[success][:, None] - scores[~success][None, :]
    pairs, correct, ties = difference.size, int((difference > 0).sum()), int((difference == 0).sum())
    assert found[STRICT].estimate == pytest.approx(correct / pairs)
    assert found[DECIDED].estimate == pytest.approx(correct / (pairs - ties))
    assert found[TIES].estimate == pytest.approx(ties / pairs)
    assert (found[DECIDED].n, found[DECIDED].n_undefined) == (pairs - ties, ties)
    assert found[STRICT].low < found[STRICT].estimate < found[STRICT].high
    assert found == preference_metrics(scores, success, ["t"] * 40, reps=300, seed=0)


def test_a_monotone_reward_ranks_policies_perfectly():
    success = np.linspace(0, 1, 8)
    found = policy_ranking(success**3, success, seed=0)
    assert (found[SPEARMAN].estimate, found[SPEARMAN].low) == (1.0, pytest.approx(1.0))
    assert 0.8 < found[PEARSON].estimate < 1
    assert found[PEARSON].low <= found[PEARSON].estimate <= found[PEARSON].high
    assert policy_ranking(-success, success, seed=0)[SPEARMAN].estimate == -1.0


def test_few_policies_give_an_estimate_without_bounds():
    found = policy_ranking([1.0, 2.0, np.nan, 3.0], [0.1, 0.2, 0.3, 0.4], seed=0)
    assert (found[PEARSON].estimate, found[PEARSON].low) == (pytest.approx(0.982, abs=1e-3), None)
    assert (found[PEARSON].n, found[PEARSON].n_undefined) == (3, 1)


def test_constant_rewards_and_no_policies_are_undefined():
    assert policy_ranking(np.ones(8), np.arange(8), seed=0)[SPEARMAN].estimate is None
    assert policy_ranking([], [], seed=0)[SPEARMAN].n == 0
    with pytest.raises(ValueError, match="shape"):
        policy_ranking([1.0], [1.0, 2.0], seed=0)


def test_means_use_episodes_where_both_are_known():
    names, reward, success = policy_means(
        ["b", "a", "b", "b", None, "c"],
        [1.0, 2.0, 3.0, None, 9.0, 5.0],
        [True, False, False, True, True, None],
    )
    assert names == ["a", "b"]
    np.testing.assert_array_equal(reward, [2, 2])
    np.testing.assert_array_equal(success, [0, 0.5])
    assert policy_means([], [], [])[0] == []
