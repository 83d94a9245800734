from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.errors import DataError
from guerdon.rewards.source import SourceTerms
from guerdon.rl.advantages import Estimate, SourceRewards, Steps, episode_scores, estimate_advantages, estimators, gae
from guerdon.rl.learner import source_advantages
from guerdon.settings.algorithm import ControlAlgorithmSettings, TextAlgorithmSettings
from guerdon.types import Rewards
from tables import refuses

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


def stream(*, next_values=N, terminated=flag, truncated=flag, failed=None, mask=None):
    """GAE of one stream of a robot: advantages and value targets."""
    source = SourceRewards(R, gamma=GAMMA, values_B_T=V, next_values_B_T=next_values, failed_B_T=failed)
    exists = np.ones_like(flag) if mask is None else mask
    found = gae(source, Steps(exists, terminated_B_T=terminated, truncated_B_T=truncated), lam=LAM)
    return found.advantages_B_T, found.targets_B_T


def test_gae_by_hand_while_the_episode_goes_on():
    # deltas: 1 + .5*1 - .5 = 1; 2 + .5*1.5 - 1 = 1.75; 3 + .5*2 - 1.5 = 2.5; each carries .25 of the next
    advantages, returns = stream()
    expected = [[1 + 0.25 * (1.75 + 0.25 * 2.5), 1.75 + 0.25 * 2.5, 2.5]]
    np.testing.assert_allclose(advantages, expected, rtol=1e-6)
    np.testing.assert_allclose(returns, np.array(expected) + V, rtol=1e-6)


def test_a_terminated_episode_has_no_value_beyond_it():
    advantages, _ = stream(terminated=at(1))
    np.testing.assert_allclose(advantages, [[1 + 0.25 * 1.0, 2 - 1.0, 2.5]], rtol=1e-6)


def test_a_truncated_episode_bootstraps_from_its_last_observation():
    final = N.copy()
    final[0, 1] = 4.0  # value of the terminal observation, not of the next episode's first
    advantages, _ = stream(next_values=final, truncated=at(1))
    cut = 2 + 0.5 * 4 - 1
    np.testing.assert_allclose(advantages, [[1 + 0.25 * cut, cut, 2.5]], rtol=1e-6)


def test_a_missing_reward_says_nothing_and_lets_later_steps_through():
    advantages, _ = stream(failed=at(1))
    np.testing.assert_allclose(advantages, [[1 + 0.25 * 0.25 * 2.5, 0.25 * 2.5, 2.5]], rtol=1e-6)


def test_a_reset_step_has_no_advantage_and_carries_none_into_the_episode_before():
    advantages, _ = stream(mask=~at(1), truncated=at(0))
    np.testing.assert_allclose(advantages, [[1.0, 0.0, 2.5]], rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 3), st.integers(1, 8))
def test_gae_with_lambda_one_is_the_discounted_sum_and_rows_do_not_mix(data, b, t):
    rewards = data.draw(hnp.arrays(np.float32, (b, t), elements=FLOATS))
    values = data.draw(hnp.arrays(np.float32, (b, t + 1), elements=FLOATS))

    def estimate(rows):
        none = np.zeros((len(rewards[rows]), t), dtype=np.bool_)
        source = SourceRewards(rewards[rows], gamma=0.9, values_B_T=values[rows, :-1], next_values_B_T=values[rows, 1:])
        return gae(source, Steps(~none, terminated_B_T=none, truncated_B_T=none), lam=1.0)

    found = estimate(slice(None))
    for i in range(b):
        total = float(values[i, -1])
        for k in range(t - 1, -1, -1):
            total = rewards[i, k] + 0.9 * total
        assert found.targets_B_T[i, 0] == pytest.approx(total, abs=1e-3)
        np.testing.assert_array_equal(estimate(slice(i, i + 1)).advantages_B_T[0], found.advantages_B_T[i])


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(2, 8), st.sampled_from(["gae", "reinforce", "rloo"]))
def test_the_number_in_a_failed_or_absent_step_never_matters(data, t, estimator):
    rewards, values, following = (data.draw(hnp.arrays(np.float32, (2, t), elements=FLOATS)) for _ in range(3))
    done, cut, failed, mask = (data.draw(hnp.arrays(np.bool_, (2, t))) for _ in range(4))
    hidden = failed | ~mask
    steps = Steps(mask, terminated_B_T=done, truncated_B_T=cut, groups_B=np.zeros(2, dtype=np.int64))
    first, second = (
        estimators(lam=0.8)[estimator](
            SourceRewards(r, gamma=0.9, values_B_T=values, next_values_B_T=following, failed_B_T=failed), steps
        ).advantages_B_T
        for r in (rewards, np.where(hidden, np.nan, rewards))
    )
    np.testing.assert_array_equal(first, second)
    assert not first[~mask].any()


def test_episode_scores_by_hand():
    rewards = np.array([[1, 2, 4], [1, 2, 4], [1, 2, 4]], np.float32)
    mask = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=np.bool_)
    np.testing.assert_allclose(episode_scores(rewards, mask, gamma=0.5), [1 + 1 + 1, 1 + 1, 0])
    np.testing.assert_allclose(episode_scores(rewards, mask), [7, 3, 0])


def to_go(*, terminated=flag, truncated=flag, failed=None, mask=None):
    """REINFORCE of one stream of a robot: advantages and where they are known."""
    steps = Steps(~flag if mask is None else mask, terminated_B_T=terminated, truncated_B_T=truncated)
    found = estimators()["reinforce"](SourceRewards(R, gamma=GAMMA, failed_B_T=failed), steps)
    return found.advantages_B_T, found.known_B_T


def test_reinforce_of_a_robot_sums_up_every_episode_for_itself():
    np.testing.assert_allclose(to_go()[0], [[1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3]])
    for end in ("terminated", "truncated"):  # no value beyond either: there is no critic
        np.testing.assert_allclose(to_go(**{end: at(1)})[0], [[1 + 0.5 * 2, 2, 3]])
        np.testing.assert_allclose(to_go(**{end: at(0)}, mask=~at(1))[0], [[1, 0, 3]])


def test_reinforce_of_a_robot_leaves_out_the_episodes_with_a_missing_reward():
    advantages, known = to_go(terminated=at(1), failed=at(0))
    np.testing.assert_allclose(advantages, [[0, 0, 3]])
    np.testing.assert_array_equal(known, at(2))
    advantages, known = to_go(terminated=at(1), failed=at(2))
    np.testing.assert_allclose(advantages, [[1 + 0.5 * 2, 2, 0]])
    np.testing.assert_array_equal(known, at(0, 1))


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 3), st.integers(1, 8), st.sampled_from([1.0, 0.9]))
def test_reinforce_of_rows_with_several_episodes_is_that_of_a_row_for_each(data, b, t, gamma):
    rewards = data.draw(hnp.arrays(np.float32, (b, t), elements=FLOATS))
    done, failed, mask = (data.draw(hnp.arrays(np.bool_, (b, t))) for _ in range(3))
    found = estimators()["reinforce"](
        SourceRewards(rewards, gamma=gamma, failed_B_T=failed),
        Steps(mask, terminated_B_T=done, truncated_B_T=np.zeros_like(done)),
    )
    for i in range(b):
        ends = np.flatnonzero(done[i]).tolist()
        for start, end in zip([0, *(e + 1 for e in ends)], [*ends, t - 1], strict=True):
            part = np.s_[i : i + 1, start : end + 1]
            alone = estimators()["reinforce"](
                SourceRewards(rewards[part], gamma=gamma, failed_B_T=failed[part]), Steps(mask[part])
            )
            np.testing.assert_allclose(found.advantages_B_T[part], alone.advantages_B_T, atol=1e-12)
            np.testing.assert_array_equal(found.known_B_T[part], alone.known_B_T)


R_OF = {"values": {}, "next_values": {}, "greedy": None, "chunks": None, "life_lost": None, "conversations": False,
        "states": None}  # fmt: skip
THREE = np.array([[1.0, 2.0], [0.0, 4.0], [9.0, 1.0]], np.float32)  # 3, 4 and 10 in all


@pytest.mark.parametrize(
    ("given", "by_hand"),
    [
        ({"adv_estimator": "rloo", "group_size": 3}, [3 - 7, 4 - 6.5, 10 - 3.5]),
        ({"adv_estimator": "dr_grpo", "group_size": 3}, [3 - 17 / 3, 4 - 17 / 3, 10 - 17 / 3]),
        ({"adv_estimator": "grpo", "group_size": 3, "grpo_std": False}, [3 - 17 / 3, 4 - 17 / 3, 10 - 17 / 3]),
    ],
    ids=lambda value: value["adv_estimator"] if isinstance(value, dict) else "",
)
def test_what_a_robot_learns_from_a_group_of_episodes(given, by_hand):
    none, end = np.zeros((3, 2), np.bool_), np.array([[0, 1]] * 3, np.bool_)
    rollout = SimpleNamespace(**R_OF, group_ids=np.zeros(3, np.int64), mask=~none, terminated=end, truncated=none)
    terms, algorithm = {"env": SourceTerms("env", 1.0)}, ControlAlgorithmSettings(gamma=1.0, **given)
    found = source_advantages(rollout, {"env": Rewards(THREE, failed=none)}, terms, {"env": 1.0}, algorithm)
    np.testing.assert_allclose(found.advantages, np.repeat(np.array(by_hand)[:, None], 2, axis=1), rtol=1e-6)


@pytest.mark.parametrize("name", ["reinforce", "reinforce_pp"])
def test_what_a_robot_learns_from_a_rollout_without_a_critic(name):
    none, end = np.zeros((3, 2), np.bool_), np.array([[0, 1], [1, 0], [0, 0]], np.bool_)
    rollout = SimpleNamespace(**R_OF, group_ids=None, mask=~none, terminated=end, truncated=none)
    terms, algorithm = {"env": SourceTerms("env", 0.5)}, ControlAlgorithmSettings(adv_estimator=name)
    found = source_advantages(rollout, {"env": Rewards(THREE, failed=none)}, terms, {"env": 1.0}, algorithm)
    returns = np.array([[1 + 0.5 * 2, 2], [0, 4], [9 + 0.5, 1]])
    white = (returns - returns.mean()) / np.sqrt(returns.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(found.advantages, white if name == "reinforce_pp" else returns, rtol=1e-5)


def episodes(scores, known, groups, *, divide=True):
    """GRPO of whole episodes of two steps, as robots take it: (B,) advantages that both steps share."""
    rewards = np.stack([np.zeros(len(scores)), scores], axis=1)
    failed = np.stack([~known, np.zeros(len(scores), dtype=np.bool_)], axis=1)
    source = SourceRewards(rewards, credit="episode", standardize=divide, failed_B_T=failed)
    steps = Steps(np.ones(rewards.shape, dtype=np.bool_), groups_B=groups)
    if max(np.unique(groups, return_counts=True)[1], default=0) < 2:
        return np.zeros(len(scores))  # refused: there is nothing to compare
    found = estimate_advantages({"env": source}, steps, estimator="grpo").advantages
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    return found[:, 0]


def test_grpo_of_episodes_by_hand():
    scores = np.array([1.0, 3.0, 10.0, 10.0, 7.0, 99.0])
    known = np.array([True, True, True, True, True, False])
    groups = np.array([0, 0, 1, 1, 2, 2])
    np.testing.assert_allclose(episodes(scores, known, groups), [-1, 1, 0, 0, 0, 0], atol=1e-5)
    np.testing.assert_allclose(episodes(scores, known, groups, divide=False), [-1, 1, 0, 0, 0, 0])


def test_an_episode_is_worth_its_discounted_sum_to_the_group():
    rewards = np.array([[1.0, 2.0], [0.0, 4.0]])
    source = SourceRewards(rewards, gamma=0.5, credit="episode", standardize=False)
    steps = Steps(np.ones((2, 2), dtype=np.bool_), groups_B=np.zeros(2, dtype=np.int64))
    found = estimate_advantages({"env": source}, steps, estimator="grpo").advantages
    np.testing.assert_allclose(found, 0)  # 1 + .5 * 2 = 0 + .5 * 4


@settings(deadline=None)
@given(st.data(), st.integers(1, 12), st.booleans())
def test_group_advantages_are_relative_within_survivors(data, b, divide):
    scores = data.draw(hnp.arrays(np.float64, b, elements=st.floats(-10, 10, width=16)))
    known = data.draw(hnp.arrays(np.bool_, b))
    groups = data.draw(hnp.arrays(np.int64, b, elements=st.integers(0, 3)))
    order = np.array(data.draw(st.permutations(range(b))))
    result = episodes(scores, known, groups, divide=divide)
    for g in np.unique(groups):
        members = groups == g
        assert result[members].sum() == pytest.approx(0, abs=1e-6)
        if (members & known).sum() < 2:
            assert not result[members].any()
    assert not result[~known].any()
    permuted = episodes(scores[order], known[order], groups[order], divide=divide)
    np.testing.assert_allclose(permuted, result[order], atol=1e-6)
    removed = episodes(scores[known], known[known], groups[known], divide=divide)
    np.testing.assert_allclose(removed, result[known], atol=1e-9)
    garbage = np.where(known, scores, 1e9)
    np.testing.assert_array_equal(episodes(garbage, known, groups, divide=divide), result)


def test_sources_meet_in_a_weighted_sum():
    mask = np.ones((1, 2), dtype=np.bool_)
    sources = {"env": SourceRewards(np.array([[1.0, 2.0]])), "rm": SourceRewards(np.array([[10.0, 20.0]]), weight=0.5)}
    found = estimate_advantages(sources, Steps(mask), estimator="reinforce")
    np.testing.assert_allclose(found.advantages, [[18.0, 12.0]])


def doubled(scale: float = 2.0):
    """A user's factory of an estimator."""

    def estimate(source, steps):
        return Estimate(scale * source.rewards_B_T.astype(np.float64), steps.mask_B_T)

    return estimate


def test_an_estimator_of_a_user_is_used_by_the_learner_and_has_to_fit():
    name = f"{__name__}:doubled"
    settings = TextAlgorithmSettings(adv_estimator=name, estimator_params={"scale": 3}, normalize_advantages=False)
    mask = np.ones_like(R, np.bool_)
    rollout = SimpleNamespace(
        values={},
        next_values={},
        greedy=None,
        group_ids=None,
        chunks=None,
        mask=mask,
        terminated=flag,
        truncated=flag,
        life_lost=None,
        conversations=False,
        states=None,
    )
    rewards, terms = {"a": Rewards(R, failed=flag)}, {"a": SourceTerms("a", 1.0, 0.5)}
    found = source_advantages(rollout, rewards, terms, {"a": 0.5}, settings)
    np.testing.assert_allclose(found.advantages, 1.5 * R)
    with refuses("algorithm.adv_estimator"):
        source_advantages(
            SimpleNamespace(**{**vars(rollout), "values": {"a": V}}), rewards, terms, {"a": 0.5}, settings
        )
    steps = Steps(mask)
    with refuses("algorithm.adv_estimator"):
        estimate_advantages({"a": SourceRewards(R)}, steps, estimator=lambda source, steps: source.rewards_B_T)
    with pytest.raises(DataError, match="the source 'a', gives advantages_B_T that are not finite"):
        estimate_advantages({"a": SourceRewards(R)}, steps, estimator=doubled(np.inf))
