import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.rl.advantages import combine, episode_scores, gae, group_advantages

FLOATS = st.floats(-10, 10, width=32)
flag = np.zeros((1, 3), dtype=np.bool_)


def at(*where, shape=(1, 3)):
    flags = np.zeros(shape, dtype=np.bool_)
    for i in where:
        flags[0, i] = True
    return flags


R = np.array([[1.0, 2.0, 3.0]], np.float32)
V = np.array([[0.5, 1.0, 1.5]], np.float32)
N = np.array([[1.0, 1.5, 2.0]], np.float32)  # value after each step; 2.0 after the last one
GAMMA, LAM = 0.5, 0.5


def test_gae_by_hand_while_the_episode_goes_on():
    # deltas: 1 + .5*1 - .5 = 1; 2 + .5*1.5 - 1 = 1.75; 3 + .5*2 - 1.5 = 2.5; each carries .25 of the next
    advantages, returns = gae(R, V, N, flag, flag, gamma=GAMMA, lam=LAM)
    expected = [[1 + 0.25 * (1.75 + 0.25 * 2.5), 1.75 + 0.25 * 2.5, 2.5]]
    np.testing.assert_allclose(advantages, expected, rtol=1e-6)
    np.testing.assert_allclose(returns, np.array(expected) + V, rtol=1e-6)


def test_a_terminated_episode_has_no_value_beyond_it():
    advantages, _ = gae(R, V, N, at(1), flag, gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(advantages, [[1 + 0.25 * 1.0, 2 - 1.0, 2.5]], rtol=1e-6)


def test_a_truncated_episode_bootstraps_from_its_last_observation():
    final = N.copy()
    final[0, 1] = 4.0  # value of the terminal observation, not of the next episode's first
    advantages, _ = gae(R, V, final, flag, at(1), gamma=GAMMA, lam=LAM)
    cut = 2 + 0.5 * 4 - 1
    np.testing.assert_allclose(advantages, [[1 + 0.25 * cut, cut, 2.5]], rtol=1e-6)


def test_a_missing_reward_says_nothing_and_lets_later_steps_through():
    advantages, _ = gae(R, V, N, flag, flag, gamma=GAMMA, lam=LAM, failed_B_T=at(1))
    np.testing.assert_allclose(advantages, [[1 + 0.25 * 0.25 * 2.5, 0.25 * 2.5, 2.5]], rtol=1e-6)


def test_a_step_that_does_not_exist_has_no_advantage_and_carries_none():
    advantages, _ = gae(R, V, N, flag, flag, gamma=GAMMA, lam=LAM, mask_B_T=~at(1))
    np.testing.assert_allclose(advantages, [[1.0, 0.0, 2.5]], rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 3), st.integers(1, 8))
def test_gae_with_lambda_one_is_the_discounted_sum_and_rows_do_not_mix(data, b, t):
    rewards = data.draw(hnp.arrays(np.float32, (b, t), elements=FLOATS))
    values = data.draw(hnp.arrays(np.float32, (b, t + 1), elements=FLOATS))
    none = np.zeros((b, t), dtype=np.bool_)
    advantages, returns = gae(rewards, values[:, :-1], values[:, 1:], none, none, gamma=0.9, lam=1.0)
    for i in range(b):
        total = float(values[i, -1])
        for k in range(t - 1, -1, -1):
            total = rewards[i, k] + 0.9 * total
        assert returns[i, 0] == pytest.approx(total, abs=1e-3)
        alone, _ = gae(
            rewards[i : i + 1], values[i : i + 1, :-1], values[i : i + 1, 1:], none[:1], none[:1], gamma=0.9, lam=1.0
        )
        np.testing.assert_array_equal(alone[0], advantages[i])


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(2, 8))
def test_the_number_in_a_failed_or_absent_step_never_matters(data, t):
    rewards, values, following = (data.draw(hnp.arrays(np.float32, (2, t), elements=FLOATS)) for _ in range(3))
    done, cut, failed, mask = (data.draw(hnp.arrays(np.bool_, (2, t))) for _ in range(4))
    hidden = failed | ~mask
    other = np.where(hidden, rewards + 1000, rewards)
    first, second = (
        gae(r, values, following, done, cut, gamma=0.9, lam=0.8, mask_B_T=mask, failed_B_T=failed)[0]
        for r in (rewards, other)
    )
    np.testing.assert_array_equal(first, second)
    assert not first[~mask].any()


def test_episode_scores_by_hand():
    rewards = np.array([[1, 2, 4], [1, 2, 4], [1, 2, 4]], np.float32)
    mask = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=np.bool_)
    failed = np.zeros_like(mask)
    scores, known = episode_scores(rewards, mask, failed, gamma=0.5)
    np.testing.assert_allclose(scores, [1 + 1 + 1, 1 + 1, 0])
    assert known.tolist() == [True, True, False]
    failed[0, 1] = True
    failed[1, 2] = True  # beyond the end: it was not part of the episode
    scores, known = episode_scores(rewards, mask, failed)
    assert known.tolist() == [False, True, False]
    np.testing.assert_allclose(scores, [0, 3, 0])


def test_group_advantages_by_hand():
    scores = np.array([1.0, 3.0, 10.0, 10.0, 7.0, 99.0])
    known = np.array([True, True, True, True, True, False])
    groups = np.array([0, 0, 1, 1, 2, 2])
    np.testing.assert_allclose(group_advantages(scores, known, groups), [-1, 1, 0, 0, 0, 0], atol=1e-5)
    np.testing.assert_allclose(group_advantages(scores, known, groups, divide_by_std=False), [-1, 1, 0, 0, 0, 0])


@settings(deadline=None)
@given(st.data(), st.integers(1, 12), st.booleans())
def test_group_advantages_are_relative_within_survivors(data, b, divide):
    scores = data.draw(hnp.arrays(np.float64, b, elements=st.floats(-10, 10, width=16)))
    known = data.draw(hnp.arrays(np.bool_, b))
    groups = data.draw(hnp.arrays(np.int64, b, elements=st.integers(0, 3)))
    order = np.array(data.draw(st.permutations(range(b))))
    result = group_advantages(scores, known, groups, divide_by_std=divide)
    for g in np.unique(groups):
        members = groups == g
        assert result[members].sum() == pytest.approx(0, abs=1e-6)
        if (members & known).sum() < 2:
            assert not result[members].any()
    assert not result[~known].any()
    permuted = group_advantages(scores[order], known[order], groups[order], divide_by_std=divide)
    np.testing.assert_allclose(permuted, result[order], atol=1e-6)
    removed = group_advantages(scores[known], known[known], groups[known], divide_by_std=divide)
    np.testing.assert_allclose(removed, result[known], atol=1e-9)
    garbage = np.where(known, scores, 1e9)
    np.testing.assert_array_equal(group_advantages(garbage, known, groups, divide_by_std=divide), result)


def test_sources_meet_in_a_weighted_sum():
    a, b = np.array([[1.0, 2.0]]), np.array([[10.0, 20.0]])
    np.testing.assert_allclose(combine({"env": a, "rm": b}, {"env": 1.0, "rm": 0.5}), [[6.0, 12.0]])
