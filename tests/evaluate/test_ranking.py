import numpy as np
import pytest

from guerdon.evaluate.ranking import policy_means, policy_ranking


def test_a_monotone_reward_ranks_policies_perfectly():
    success = np.linspace(0, 1, 8)
    found = policy_ranking(success**3, success, seed=0)
    assert (found.spearman.estimate, found.spearman.low) == (1.0, pytest.approx(1.0))
    assert 0.8 < found.pearson.estimate < 1
    assert found.pearson.low <= found.pearson.estimate <= found.pearson.high
    assert policy_ranking(-success, success, seed=0).spearman.estimate == -1.0


def test_few_policies_give_an_estimate_without_bounds():
    found = policy_ranking([1.0, 2.0, np.nan, 3.0], [0.1, 0.2, 0.3, 0.4], seed=0)
    assert (found.pearson.estimate, found.pearson.low) == (pytest.approx(0.982, abs=1e-3), None)
    assert (found.pearson.n, found.pearson.n_undefined) == (3, 1)


def test_constant_rewards_and_no_policies_are_undefined():
    assert policy_ranking(np.ones(8), np.arange(8), seed=0).spearman.estimate is None
    assert policy_ranking([], [], seed=0).spearman.n == 0
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
