"""Credit of turns, by enumeration: a bandit of two turns whose first action may end the episode."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from guerdon.rewards.source import SourceTerms
from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages, rloo, turn_rloo
from guerdon.rl.learner import decision_rows, source_advantages
from guerdon.rl.losses import aggregation_weights
from guerdon.settings.algorithm import TextAlgorithmSettings
from guerdon.types import Chunks, Rewards
from tables import cases, refuses
from text_rl import bare_rollout

A, B = 0.4, -0.7  # logits of going on in the first turn, and of action 1 in the second
EPISODES = (((0,), (0.3,)), ((1, 0), (0.5, -0.4)), ((1, 1), (0.5, 1.0)))  # actions, rewards


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def probability(actions):
    found = sigmoid(A) if actions[0] else 1 - sigmoid(A)
    if len(actions) > 1:
        found *= sigmoid(B) if actions[1] else 1 - sigmoid(B)
    return found


def exact():
    """Gradient of the expected return by both logits."""
    p, q = sigmoid(A), sigmoid(B)
    second = q * 1.0 + (1 - q) * -0.4
    return np.array([p * (1 - p) * (0.5 + second - 0.3), p * q * (1 - q) * (1.0 + 0.4)])


class Groups:
    """All groups of K episodes, each with its probability; rows of one group are neighbours."""

    def __init__(self, k):
        self.k = k
        groups = list(itertools.product(range(3), repeat=k))
        self.weight_G = np.array([np.prod([probability(EPISODES[e][0]) for e in group]) for group in groups])
        episodes = [EPISODES[e] for group in groups for e in group]
        self.mask = np.array([[True, len(actions) > 1] for actions, _ in episodes])
        self.rewards = np.array([[*rewards, 0.0][:2] for _, rewards in episodes])
        actions = np.array([[*actions, 0][:2] for actions, _ in episodes])
        self.score = np.where(self.mask, actions - sigmoid(np.array([A, B])), 0.0)  # d log pi / d logit, per turn
        self.groups = np.repeat(np.arange(len(groups)), k)
        self.states = np.where(self.mask, np.array([0, 1]), -1)

    def steps(self, states=None):
        return Steps(self.mask, groups_B=self.groups, turns=True, states_B_T=states)

    def gradient(self, advantages, weights=None):
        """Expected gradient; `weights` of turns within their group, 1 / K of each member by default."""
        weights = np.full(self.mask.shape, 1 / self.k) if weights is None else weights
        terms = (advantages * self.score * weights).reshape(-1, self.k, 2).sum(axis=1)
        return (self.weight_G[:, None] * terms).sum(axis=0)


@pytest.fixture(scope="module", params=[2, 4])
def groups(request):
    return Groups(request.param)


def test_turn_rloo_is_the_exact_gradient(groups):
    for by_state in (False, True):
        source = SourceRewards(groups.rewards)
        found = turn_rloo(source, groups.steps(groups.states), by_state=by_state).advantages_B_T
        np.testing.assert_allclose(groups.gradient(found), exact(), atol=1e-6)
    sources = {"env": SourceRewards(groups.rewards)}
    found = estimate_advantages(sources, groups.steps(), estimator="turn_rloo").advantages
    np.testing.assert_allclose(groups.gradient(found), exact(), atol=1e-6)


def test_means_over_conversations_are_exact_and_means_over_calls_are_not(groups):
    found = turn_rloo(SourceRewards(groups.rewards), groups.steps()).advantages_B_T
    calls = groups.mask.sum(axis=1)
    by_conversation, by_call = np.zeros(groups.mask.shape), np.zeros(groups.mask.shape)
    for g in np.unique(groups.groups):
        rows = np.flatnonzero(groups.groups == g)
        mask = torch.ones(int(calls[rows].sum()), 1)  # a row per call, of one token
        streams = torch.tensor(np.repeat(rows, calls[rows]))
        for into, given in ((by_conversation, streams), (by_call, None)):
            weights = aggregation_weights(mask, "constant", max_length=1, streams_B=given)
            into[rows] = np.where(groups.mask[rows], float(weights[0, 0]), 0.0)
    np.testing.assert_allclose(groups.gradient(found, by_conversation), exact(), atol=1e-6)
    assert abs(groups.gradient(found, by_call) - exact()).max() > 0.01


def test_other_credit_is_not_the_gradient(groups):
    returns = np.where(groups.mask, groups.rewards[:, ::-1].cumsum(axis=1)[:, ::-1], 0.0)
    by_group = (-1, groups.k)
    own_inside = (
        returns - np.repeat(_mean_over_turns(groups, returns).reshape(by_group).mean(axis=1), groups.k)[:, None]
    )
    count = groups.mask.reshape(-1, groups.k, 2).sum(axis=1)
    means = returns.reshape(-1, groups.k, 2).sum(axis=1) / np.maximum(count, 1)
    per_index = returns - np.repeat(means, groups.k, axis=0)
    totals = returns[:, 0]
    episode = totals - np.repeat(totals.reshape(by_group).mean(axis=1), groups.k)
    wrong = {
        "rloo on turn rewards": rloo(SourceRewards(groups.rewards), Steps(groups.mask, groups_B=groups.groups)),
        "own member inside": own_inside,
        "means per turn index": per_index,
        "GiGPO": episode[:, None] + per_index,  # a turn's index is its state here
    }
    for name, found in wrong.items():
        advantages = found if isinstance(found, np.ndarray) else found.advantages_B_T
        assert abs(groups.gradient(np.where(groups.mask, advantages, 0.0)) - exact()).max() > 0.01, name


def _mean_over_turns(groups, returns):
    return returns.sum(axis=1) / groups.mask.sum(axis=1)


def test_unknown_members_stay_out():
    mask = np.array([[1, 1], [1, 0], [1, 1], [0, 0]], dtype=bool)
    rewards = np.array([[1.0, 2.0], [5.0, 0.0], [7.0, 7.0], [0.0, 0.0]])
    failed = np.array([[0, 0], [0, 0], [0, 1], [0, 0]], dtype=bool)
    found = turn_rloo(SourceRewards(rewards, failed_B_T=failed), Steps(mask, groups_B=np.zeros(4, dtype=np.int64)))
    assert found.known_B_T.tolist() == [[True, True], [True, False], [False, False], [False, False]]
    np.testing.assert_allclose(found.advantages_B_T, [[3 - 5, 2 - 5], [5 - 2.5, 0], [0, 0], [0, 0]])


def test_gae_is_of_turns_and_each_token_has_its_turns_advantage():
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    decision = np.array([[0, 0, 0, 1, 1], [2, 2, -1, -1, -1]])
    slot = np.array([[0, 1, 2, 0, 1], [0, 1, -1, -1, -1]])
    happened = replace(
        bare_rollout(mask, np.zeros(2, dtype=np.int64)),
        inputs=range(3), chunks=Chunks(decision, slot, 3), conversations=True, log_probs=np.zeros((3, 3), np.float32),
        values={"env": np.array([0.5, 0.25, 1.0], np.float32)},
    )  # fmt: skip
    paid = np.array([[0, 0, 1, 0, 2], [0, 3, 0, 0, 0]], np.float32)
    settings = TextAlgorithmSettings(adv_estimator="gae", gae_lambda=0.5, gamma=0.9, normalize_advantages=False)
    given = {"env": Rewards(paid, np.zeros(mask.shape, bool))}, {"env": SourceTerms("env", 0.9)}, {"env": 1.0}
    found = source_advantages(happened, *given, settings)
    second = 2 - 0.25
    first = 1 + 0.9 * 0.25 - 0.5 + 0.9 * 0.5 * second
    np.testing.assert_allclose(found.advantages, [[first, second], [3 - 1, 0]], rtol=1e-6)
    np.testing.assert_allclose(found.value_targets["env"], [[first + 0.5, 2], [3, 0]], rtol=1e-6)
    rows = decision_rows(happened, found, settings)
    np.testing.assert_allclose(rows.found.advantages, [[first] * 3, [second] * 2 + [0], [2, 2, 0]], rtol=1e-6)


@cases("estimator", ["rloo", "grpo", "dr_grpo", "gdpo", "remax"])
def test_estimators_of_outcomes_refuse_rewards_at_turns(estimator):
    mask = np.ones((2, 2), dtype=bool)
    steps = Steps(mask, groups_B=np.zeros(2, dtype=np.int64), turns=True)
    sources = {"env": SourceRewards(np.array([[0.5, 1.0], [0.0, 0.0]]), greedy_B=np.zeros(2))}
    with refuses("algorithm.adv_estimator"):
        estimate_advantages(sources, steps, estimator=estimator, whitened=estimator == "gdpo")


def test_weights_of_conversations_by_hand():
    mask = torch.tensor([[1.0, 1, 0], [1, 0, 0], [1, 1, 1]])  # two calls of one conversation, one of another
    streams = torch.tensor([7, 7, 9])
    constant = aggregation_weights(mask, "constant", max_length=10, streams_B=streams)
    torch.testing.assert_close(constant, mask / 20)
    sequence = aggregation_weights(mask, "sequence", streams_B=streams)
    torch.testing.assert_close(sequence, mask / 6)
    torch.testing.assert_close(aggregation_weights(mask, "token", streams_B=streams), mask / 6)
