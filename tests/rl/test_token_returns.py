import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.rl.advantages import (
    SourceRewards,
    Steps,
    discounted_returns,
    episode_scores,
    gae,
    last_valid,
    whiten,
)

MASK = np.array([[1, 1, 1], [1, 1, 0]], dtype=np.bool_)
REWARDS = np.array([[0.5, -0.25, 0.75], [-1.0, 0.25, 99.0]])


def test_gae_with_perfect_values_has_nothing_to_say():
    returns = discounted_returns(REWARDS, MASK, gamma=0.9)
    found = gae(SourceRewards(REWARDS, gamma=0.9, values_B_T=returns), Steps(MASK), lam=0.8)
    np.testing.assert_allclose(found.advantages_B_T, 0, atol=1e-12)
    np.testing.assert_allclose(found.targets_B_T, returns, atol=1e-12)


def test_a_tools_output_in_between_hands_credit_through():
    mask = np.array([[True, False, True]])
    rewards, values = np.array([[1.0, 50.0, 2.0]]), np.array([[0.5, 50.0, 1.0]])
    np.testing.assert_allclose(discounted_returns(rewards, mask, gamma=0.5), [[2, 0, 2]])
    np.testing.assert_allclose(discounted_returns(rewards, mask, gamma=1.0), [[3, 0, 2]])
    found = gae(SourceRewards(rewards, gamma=0.5, values_B_T=values), Steps(mask), lam=0.5)
    np.testing.assert_allclose(found.advantages_B_T, [[(1 + 0.5 * 1 - 0.5) + 0.25 * (2 - 1), 0, 1]])
    assert last_valid(mask).tolist() == [[False, False, True]]


@settings(deadline=None, max_examples=40)
@given(hnp.arrays(np.float64, (3, 5), elements=st.integers(-8, 8)), st.sampled_from([1.0, 0.5]))
def test_the_first_return_is_the_episode_score(rewards, gamma):
    mask = np.arange(5)[None, :] < np.array([5, 3, 1])[:, None]
    scores = episode_scores(rewards, mask, gamma=gamma)
    np.testing.assert_allclose(discounted_returns(rewards, mask, gamma=gamma)[:, 0], scores)


def test_whiten_needs_two_numbers():
    assert whiten(np.array([[5.0, 1.0]]), np.array([[True, False]])).tolist() == [[0, 0]]
    np.testing.assert_allclose(whiten(np.array([[1.0, 3.0]]), np.array([[True, True]])), [[-(0.5**0.5), 0.5**0.5]])
