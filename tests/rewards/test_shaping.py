import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.rewards.shaping import (
    MAX_LOG_ODDS,
    confirmed_bonus,
    log_odds_reward,
    min_form_rewards,
    potential_reward,
    relative_reward,
    threshold_reward,
)
from guerdon.rl.advantages import discounted_returns

VALUES = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12)


def test_threshold_by_hand():
    rewards = threshold_reward(np.array([0.2, 0.5, 0.9]), threshold=0.5, success=2.0, fail=-1.0)
    assert rewards.tolist() == [-1, -1, 2]


def test_log_odds_by_hand():
    rewards = log_odds_reward(np.array([0.5, 0.8, 0.2, 0.0, 1.0]))
    np.testing.assert_allclose(rewards, [0, np.log(4), -np.log(4), -MAX_LOG_ODDS, MAX_LOG_ODDS])


@given(VALUES, st.floats(0, 1, width=32))
def test_relative_rewards_telescope(values, start):
    rewards = relative_reward(np.array(values), previous=start)
    assert rewards.sum() == pytest.approx(values[-1] - start, abs=1e-9)


@settings(deadline=None)
@given(VALUES, st.floats(0, 1, width=32), st.floats(0.1, 1))
def test_potential_shaping_sums_to_its_ends(values, start, gamma):
    discounts = gamma ** np.arange(len(values))
    going_on = potential_reward(np.array(values), previous=start, gamma=gamma, terminated=False)
    assert (going_on * discounts).sum() == pytest.approx(gamma ** len(values) * values[-1] - start, abs=1e-9)
    ended = potential_reward(np.array(values), previous=start, gamma=gamma, terminated=True)
    assert (ended * discounts).sum() == pytest.approx(-start, abs=1e-9)
    np.testing.assert_array_equal(ended[:-1], going_on[:-1])


def test_potential_by_hand():
    values = np.array([0.5, 1.0])
    assert potential_reward(values, previous=0.25, gamma=0.9, terminated=False) == pytest.approx([0.2, 0.4])
    assert potential_reward(values, previous=0.25, gamma=0.9, terminated=True) == pytest.approx([0.2, -0.5])


def test_a_bonus_needs_frames_in_a_row():
    values = np.array([0.9, 0.1, 0.9, 0.9, 0.9, 0.1, 0.9, 0.9])
    rewards, streak, paid = confirmed_bonus(values, threshold=0.5, frames=2, bonus=3.0, streak=0, paid=False)
    assert rewards.tolist() == [0, 0, 0, 3, 0, 0, 0, 0]
    assert (streak, paid) == (2, True)


@settings(deadline=None)
@given(VALUES, st.data(), st.integers(1, 4))
def test_a_bonus_is_paid_at_most_once_wherever_the_episode_is_cut(values, data, frames):
    whole, streak, paid = confirmed_bonus(
        np.array(values), threshold=0.5, frames=frames, bonus=1.0, streak=0, paid=False
    )
    assert whole.sum() in (0, 1)
    cut = data.draw(st.integers(0, len(values)))
    parts, state = [], (0, False)
    for part in (values[:cut], values[cut:]):
        rewards, *state = confirmed_bonus(
            np.array(part), threshold=0.5, frames=frames, bonus=1.0, streak=state[0], paid=state[1]
        )
        parts.append(rewards)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert tuple(state) == (streak, paid)


def test_min_form_by_hand():
    steps = np.array([[0.0, 0.9, 0.0, -0.6, 0.3]])
    paid = np.array([[False, True, False, True, True]])
    shaped = min_form_rewards(steps, paid, temperature=0.1)
    weights = np.exp(-np.array([0.9, -0.6, 0.3]) / 0.1)
    np.testing.assert_allclose(shaped[0, [1, 3, 4]], np.array([0.9, -0.6, 0.3]) * weights / weights.sum(), rtol=1e-9)
    assert not shaped[~paid].any()
    returns = discounted_returns(shaped, np.ones_like(paid), gamma=1.0)
    np.testing.assert_allclose(returns, [[-0.6, -0.6, -0.6, -0.6, 0.0]], atol=1e-3)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 8), st.sampled_from([0.01, 0.1, 2.0]))
def test_min_form_sums_to_at_least_the_minimum_and_tends_to_it(data, t, temperature):
    rewards = data.draw(hnp.arrays(np.float64, (2, t), elements=st.floats(-1, 1)))
    paid = data.draw(hnp.arrays(np.bool_, (2, t)))
    shaped = min_form_rewards(np.where(paid, rewards, np.nan), paid, temperature=temperature)
    assert np.isfinite(shaped).all()
    assert not shaped[~paid].any()
    for i in range(2):
        own = rewards[i][paid[i]]
        if not own.size:
            continue
        total = shaped[i].sum()
        assert own.min() - 1e-9 <= total <= own.mean() + 1e-9
        assert total - own.min() <= temperature * own.size  # each step adds at most temperature / e


def test_min_form_needs_a_temperature():
    with pytest.raises(ValueError, match="temperature"):
        min_form_rewards(np.ones((1, 2)), np.ones((1, 2), dtype=np.bool_), temperature=0.0)
