"""Chunks in the learner: credit, ratios and masks against plain loops, and against policies without chunks."""

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_policy import ChunkPolicy
from guerdon.compute.optimizers import FlatAdam
from guerdon.policies.robots.control import build_policy
from guerdon.policies.robots.robot import ControlInputs
from guerdon.rewards import shaping
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import SourceTerms
from guerdon.rl.advantages import groups_within
from guerdon.rl.build_control import check_bounds, check_decisions
from guerdon.rl.learner import OnPolicyLearner, decision_mask, decision_rows, source_advantages
from guerdon.rl.losses import sum_parts
from guerdon.rl.update import make_batch, update_policy
from guerdon.rl.videos import _at
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.policy import MLPPolicySettings
from guerdon.settings.reward_source import RobotSource
from guerdon.settings.study import Study
from guerdon.types import Advantages, Chunks, RewardInfo, Rewards, Rollout, Score
from tables import cases, refuses

HEADS = ("env", "prm")
LEVELS = ("token_level", "action_level", "chunk_level")


@dataclass
class Numbered:
    """Inputs that are nothing but their numbers."""

    numbers: np.ndarray

    def __len__(self):
        return len(self.numbers)

    def take(self, rows):
        return Numbered(self.numbers[rows])


def random_rollout(seed, size, tokens, *, streams=3, steps=11, whole=False, ends=0.3, resets=True):
    """Decisions as a queue of actions makes them: dropped where an episode ends, with steps that only reset.

    Args:
        whole: every stream is one episode, after which nothing happens, and there is no critic.
    """
    rng = np.random.default_rng(seed)
    decision, slot = np.full((2, streams, steps), -1, dtype=np.int64)
    terminated, truncated = np.zeros((2, streams, steps), dtype=bool)
    count = 0
    for b in range(streams):
        left, resetting, over = 0, False, False
        for t in range(steps):
            if resetting or over:
                resetting = False
                continue
            if not left:
                count, left = count + 1, size
            decision[b, t], slot[b, t] = count - 1, size - left
            left -= 1
            if rng.random() < ends:
                (terminated if rng.random() < 0.5 else truncated)[b, t] = True
                left, resetting, over = 0, resets and bool(rng.random() < 0.5), whole
    mask = decision >= 0
    none = np.zeros_like(mask)
    heads = () if whole else HEADS
    random = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return Rollout(
        inputs=Numbered(np.arange(count)), log_probs=random(count, size * tokens), mask=mask, terminated=terminated,
        truncated=truncated, success=none, success_known=none, rewards=np.where(mask, random(streams, steps), 0),
        failed=none, group_ids=np.zeros(streams, np.int64) if whole else None,
        values={name: random(count) for name in heads}, next_values={name: random(count) for name in heads},
        chunks=Chunks(decision, slot, size, tokens),
    )  # fmt: skip


def rewards_of(rollout, seed, failing=0.0):
    """Of two sources, the second of which fails at times."""
    rng = np.random.default_rng([seed, 1])
    shape = rollout.mask.shape
    failed = (rng.random(shape) < failing) & rollout.mask
    values = np.where(rollout.mask & ~failed, rng.normal(size=shape), 0).astype(np.float32)
    return {"env": Rewards(rollout.rewards, np.zeros(shape, bool)), "prm": Rewards(values, failed)}


TERMS = {"env": SourceTerms("env", 0.9), "prm": SourceTerms("prm", 0.7, 0.5)}
WEIGHTS = {"env": 1.0, "prm": 0.5}


def chunks_of(rollout, stream):
    """The steps of each decision of a stream, in order."""
    of = rollout.chunks.decision[stream]
    return [np.flatnonzero(of == r).tolist() for r in dict.fromkeys(of[of >= 0].tolist())]


def gae_by_hand(rollout, rewards, name, gamma, lam):
    """Advantages, value targets and where they are known, of every decision in order: a loop over chunks."""
    found = []
    for b in range(len(rollout.mask)):
        later, rows = 0.0, []
        for steps in reversed(chunks_of(rollout, b)):
            r = int(rollout.chunks.decision[b, steps[0]])
            paid = sum(float(rewards.values[b, t]) for t in steps)
            terminated = any(rollout.terminated[b, t] for t in steps)
            over = terminated or any(rollout.truncated[b, t] for t in steps)
            missing = any(rewards.failed[b, t] for t in steps)
            before = float(rollout.values[name][r])
            beyond = 0.0 if terminated else float(rollout.next_values[name][r])
            delta = 0.0 if missing else paid + gamma * beyond - before
            later = delta + (0.0 if over else gamma * lam * later)
            rows.append((later, later + (0.0 if missing else before), not missing))
        found += reversed(rows)
    return [np.array(column) for column in zip(*found, strict=True)]


@given(seed=st.integers(0, 10**6), size=st.integers(1, 4), tokens=st.integers(1, 3), steps=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_gae_of_chunks_is_a_loop_over_chunks(seed, size, tokens, steps):
    rollout = random_rollout(seed, size, tokens, steps=steps)
    rewards = rewards_of(rollout, seed, failing=0.2)
    algorithm = ControlAlgorithmSettings(gae_lambda=0.8, normalize_advantages=False)
    found = decision_rows(rollout, source_advantages(rollout, rewards, TERMS, WEIGHTS, algorithm), algorithm).found
    total = np.zeros(len(rollout.inputs))
    for name in HEADS:
        advantages, targets, known = gae_by_hand(rollout, rewards[name], name, TERMS[name].gamma, 0.8)
        np.testing.assert_array_equal(found.known[name], known)
        np.testing.assert_allclose(found.value_targets[name][known], targets[known], rtol=1e-4, atol=1e-5)
        total += WEIGHTS[name] * advantages
    executed = executed_by_hand(rollout)
    np.testing.assert_allclose(found.advantages, np.where(executed, total[:, None], 0), rtol=1e-4, atol=1e-5)


def executed_by_hand(rollout):
    chunks = rollout.chunks
    found = np.zeros((len(rollout.inputs), chunks.size), bool)
    for b, t in np.argwhere(rollout.mask).tolist():
        found[chunks.decision[b, t], chunks.slot[b, t]] = True
    return found


@given(seed=st.integers(0, 10**6), size=st.integers(1, 4), tokens=st.integers(1, 3), level=st.sampled_from(LEVELS))
@settings(max_examples=60, deadline=None)
def test_log_probs_are_sums_over_executed_actions(seed, size, tokens, level):
    rollout = random_rollout(seed, size, tokens)
    algorithm = ControlAlgorithmSettings(logprob_type=level)
    found = source_advantages(rollout, rewards_of(rollout, seed), TERMS, WEIGHTS, algorithm)
    rows = decision_rows(rollout, found, algorithm)
    executed = executed_by_hand(rollout)
    assert executed[:, 0].all(), "the first action of a decision is always executed"
    for r in range(len(rollout.inputs)):
        parts = [[float(rollout.log_probs[r, c * tokens + d]) for d in range(tokens)] for c in range(size)]
        wanted = {
            "token_level": [p if executed[r, c] else 0.0 for c in range(size) for p in parts[c]],
            "action_level": [sum(parts[c]) if executed[r, c] else 0.0 for c in range(size)],
            "chunk_level": [sum(sum(parts[c]) for c in range(size) if executed[r, c])],
        }[level]
        np.testing.assert_allclose(rows.log_probs[r], wanted, rtol=1e-4, atol=1e-5)
    wanted = {"token_level": np.repeat(executed, tokens, 1), "action_level": executed}.get(level, executed[:, :1])
    np.testing.assert_array_equal(rows.mask, wanted)
    np.testing.assert_array_equal(rows.parts, np.repeat(executed, tokens, 1))


@given(seed=st.integers(0, 10**6), size=st.integers(1, 4), tokens=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_groups_compare_episodes_whatever_credit_goes_to(seed, size, tokens):
    """GRPO gives all that an episode executed one advantage: its return against its group's."""
    rollout = random_rollout(seed, size, tokens, whole=True, ends=0.15)
    rewards = {"env": rewards_of(rollout, seed)["env"]}
    returns = rollout.rewards.astype(float).sum(axis=1)
    wanted_B = (returns - returns.mean()) / (returns.std() + 1e-6)
    stream = np.nonzero(rollout.chunks.slot == 0)[0]
    for credit in ("chunk_level", "action_level"):
        algorithm = ControlAlgorithmSettings(
            adv_estimator="grpo", group_size=3, gamma=1.0, reward_type=credit, logprob_type="token_level"
        )
        terms = {"env": SourceTerms("env", 1.0)}
        rows = decision_rows(rollout, source_advantages(rollout, rewards, terms, {"env": 1}, algorithm), algorithm)
        np.testing.assert_allclose(
            rows.found.advantages, np.where(rows.mask, wanted_B[stream][:, None], 0), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("level", LEVELS[:2])
def test_credit_per_action_is_that_of_steps(level):
    """`reinforce` with `action_level`: each action earns what follows it; with `chunk_level` its whole chunk does."""
    rollout = replace(random_rollout(3, 3, 2, steps=14), values={}, next_values={})
    rewards, terms = {"env": rewards_of(rollout, 3)["env"]}, {"env": SourceTerms("env", 0.5)}
    algorithm = ControlAlgorithmSettings(adv_estimator="reinforce", reward_type="action_level", logprob_type=level)
    found = decision_rows(rollout, source_advantages(rollout, rewards, terms, {"env": 1}, algorithm), algorithm).found
    by_chunk = ControlAlgorithmSettings(adv_estimator="reinforce", logprob_type=level)
    other = decision_rows(rollout, source_advantages(rollout, rewards, terms, {"env": 1}, by_chunk), by_chunk).found
    width = 2 if level == "token_level" else 1
    done = rollout.done
    for b in range(len(rollout.mask)):
        later = 0.0
        for t in reversed(range(done.shape[1])):
            if not rollout.mask[b, t]:
                continue
            later = float(rollout.rewards[b, t]) + (0.0 if done[b, t] else 0.5 * later)
            r, c = rollout.chunks.decision[b, t], rollout.chunks.slot[b, t]
            np.testing.assert_allclose(found.advantages[r, c * width : (c + 1) * width], later, rtol=1e-5, atol=1e-6)
        later = 0.0
        for steps in reversed(chunks_of(rollout, b)):
            later = float(rollout.rewards[b, steps].sum()) + (0.0 if done[b, steps].any() else 0.5 * later)
            here = other.advantages[rollout.chunks.decision[b, steps[0]]]
            np.testing.assert_allclose(here[: width * len(steps)], later, rtol=1e-5, atol=1e-6)
            assert not here[width * len(steps) :].any()


def policy_of(*, chunk=1, tokens=1, heads=HEADS, seed=0):
    torch.manual_seed(seed)
    space = Box(-1, 1, (1,), np.float32)
    return ChunkPolicy((2,), space, heads, chunk=chunk, tokens=tokens)


def with_inputs(rollout, policy, seed=0):
    """The rollout with observations and tokens, and the log-probabilities and values of the policy."""
    rng = np.random.default_rng(seed)
    count = len(rollout.inputs)
    parts = policy.chunk * policy.tokens_per_action
    inputs = ControlInputs(rng.normal(size=(count, 2)).astype(np.float32), rng.integers(3, size=(count, parts)))
    found = policy.evaluate_all(inputs, micro=256)
    values = {}
    if found.values is not None:
        values = {name: found.values[:, 0, k].numpy() for k, name in enumerate(HEADS)}
    return replace(rollout, inputs=inputs, log_probs=found.log_probs.numpy(), values=values)


def learner_of(policy, algorithm, heads=HEADS):
    return OnPolicyLearner(policy, FlatAdam(policy, 1e-2), algorithm, seed=0, heads=heads)


def test_chunks_of_one_action_learn_exactly_what_steps_do():
    """To the last bit: advantages, metrics and weights."""
    decided = with_inputs(random_rollout(5, 1, 1, resets=False), policy_of())
    shape = decided.mask.shape
    plain = replace(
        decided,
        chunks=None,
        log_probs=decided.log_probs.reshape(shape),
        values={k: v.reshape(shape) for k, v in decided.values.items()},
        next_values={k: v.reshape(shape) for k, v in decided.next_values.items()},
    )
    results = []
    for rollout in (plain, decided):
        policy = policy_of()
        learner = learner_of(policy, ControlAlgorithmSettings(minibatch_size=7, num_epochs=3, clip_range_value=0.1))
        metrics = learner.update(rollout, rewards_of(rollout, 5, failing=0.2), TERMS, progress=0.25)
        results.append((metrics, policy.tensors()))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(results[0][1][name], value) for name, value in results[1][1].items())


@cases(
    ("loss", "level"),
    [*product(["gae", "grpo"], LEVELS), ("grpo by action", "token_level"), ("grpo by action", "action_level")],
)
def test_actions_that_were_not_executed_have_no_gradient(loss, level):
    """The weights of the last action of every chunk get exactly zero, whatever the loss is made of."""
    rollout = random_rollout(2, 3, 2, steps=12, whole=loss != "gae", ends=0.1)
    keep = rollout.chunks.slot < 2  # the third action of every chunk did not happen
    mask = rollout.mask & keep
    chunks = replace(
        rollout.chunks,
        decision=np.where(mask, rollout.chunks.decision, -1),
        slot=np.where(mask, rollout.chunks.slot, -1),
    )
    flags = {name: getattr(rollout, name) & mask for name in ("terminated", "truncated")}
    heads = HEADS if loss == "gae" else ()
    policy = policy_of(chunk=3, tokens=2, heads=heads)
    rollout = with_inputs(replace(rollout, mask=mask, chunks=chunks, **flags), policy)
    given = {"logprob_type": level, "entropy_coef": 0.1, "num_epochs": 1, "minibatch_size": 1000}
    if loss != "gae":
        given |= {"adv_estimator": "grpo", "group_size": 3}
        given |= {"reward_type": "action_level"} if "action" in loss else {}
    algorithm = ControlAlgorithmSettings(**given)
    found = source_advantages(rollout, rewards_of(rollout, 2), TERMS, WEIGHTS, algorithm)
    rows = decision_rows(rollout, found, algorithm)
    batch = make_batch(
        rollout.inputs, rows.mask, rows.found, old=rows.log_probs, values=rollout.values, parts=rows.parts
    )
    update_policy(policy, FlatAdam(policy, 0.0), batch, algorithm, np.random.default_rng(0), learning_rate=0.0)
    by_action = policy.pi.bias.grad.reshape(3, -1)
    assert by_action[:2].abs().min() > 0
    assert torch.equal(by_action[2], torch.zeros_like(by_action[2]))


@pytest.mark.parametrize("level", LEVELS)
def test_clips_apply_to_the_ratio_of_their_level(level):
    """Asymmetric and dual clip: loss, clipped share and divisor by hand."""
    rollout, policy = random_rollout(8, 3, 2, whole=True, ends=0.1), policy_of(chunk=3, tokens=2, heads=())
    rollout = with_inputs(rollout, policy)
    algorithm = ControlAlgorithmSettings(
        adv_estimator="grpo", group_size=3, logprob_type=level, clip_range=0.2, clip_range_high=0.28, clip_ratio_c=3.0,
        num_epochs=1, minibatch_size=1000,
    )  # fmt: skip
    rewards = {"env": rewards_of(rollout, 8)["env"]}
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.3, rollout.log_probs.shape).astype(np.float32)
    moved = replace(rollout, log_probs=rollout.log_probs + noise)
    found = source_advantages(moved, rewards, {"env": TERMS["env"]}, {"env": 1}, algorithm)
    rows = decision_rows(moved, found, algorithm)
    batch = make_batch(rollout.inputs, rows.mask, rows.found, old=rows.log_probs, parts=rows.parts)
    metrics = update_policy(policy, FlatAdam(policy, 0.0), batch, algorithm, rng, learning_rate=0.0)
    executed, terms, outside = executed_by_hand(rollout), [], []
    new, old = rollout.log_probs.astype(float), moved.log_probs.astype(float)
    for r in range(len(new)):
        width = {"token_level": 1, "action_level": 2, "chunk_level": 6}[level]
        for k in range(6 // width):
            parts = [p for p in range(k * width, (k + 1) * width) if executed[r, p // 2]]
            if not parts:
                continue
            ratio, a = math.exp(sum(new[r, p] - old[r, p] for p in parts)), float(rows.found.advantages[r, k])
            term = max(-ratio * a, -min(max(ratio, 0.8), 1.28) * a)
            terms.append(min(term, -3.0 * a) if a < 0 else term)
            outside.append(not 0.8 <= ratio <= 1.28)
    assert metrics["policy_loss"] == pytest.approx(np.mean(terms), rel=1e-4)
    assert metrics["clip_fraction"] == pytest.approx(np.mean(outside), abs=1e-6)
    assert 0 < np.mean(outside) < 1


@pytest.mark.parametrize("normalize", [False, True])
def test_micro_batches_add_up(normalize):
    results = []
    for micro in (None, 2):
        policy = policy_of(chunk=2, tokens=2)
        rollout = with_inputs(random_rollout(4, 2, 2), policy)
        algorithm = ControlAlgorithmSettings(
            minibatch_size=6, micro_batch_size=micro, num_epochs=2, normalize_advantages=normalize
        )
        metrics = learner_of(policy, algorithm).update(rollout, rewards_of(rollout, 4), TERMS, progress=0.0)
        results.append((metrics, policy.tensors()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4, abs=1e-5)
    for name, value in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("micro", [4, 2])
def test_an_entropy_of_all_decisions_counts_once_per_gradient_step(micro):
    """The entropy of a Gaussian policy is one number, however many micro-batches a gradient step has."""
    space, rng = Box(-1, 1, (2,)), np.random.default_rng(0)
    inputs = ControlInputs(*(rng.normal(size=(8, size)).astype(np.float32) for size in (3, 2)))
    advantages, mask = rng.normal(size=(2, 4)).astype(np.float32), np.ones((2, 4), dtype=np.bool_)
    mask[1, 3] = False
    results = []
    for size in (None, micro):
        policy = build_policy(MLPPolicySettings(), (3,), space, sources=[], seed=0)
        algorithm = ControlAlgorithmSettings(
            adv_estimator="reinforce", entropy_coef=0.1, minibatch_size=8, micro_batch_size=size, num_epochs=1
        )
        batch = make_batch(policy.prepared(inputs), mask, Advantages(advantages * mask, advantages, {}, {}))
        metrics = update_policy(policy, FlatAdam(policy, 0.0), batch, algorithm, rng, learning_rate=0.0)
        assert metrics["entropy"] == pytest.approx(policy.head.entropy(torch.zeros(1, 2)).item())
        results.append((metrics["grad_norm"], policy.log_std.grad.clone()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1])


def test_sums_of_parts():
    values = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, float("nan")]])
    counts = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    assert sum_parts(values, counts, 1).tolist() == [[10], [11]]
    assert sum_parts(values, counts, 2).tolist() == [[3, 7], [11, 0]]
    assert sum_parts(values, counts, 4).tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]


def test_places_of_decisions():
    chunks = Chunks(np.array([[0, 0, 1], [-1, 2, 2]]), np.array([[0, 1, 0], [-1, 0, 1]]), 2)
    assert decision_mask(chunks).tolist() == [[True, True], [True, False]]


# The critic alone, and groups that are left out.


def test_the_critic_learns_alone_at_first():
    policy = policy_of(chunk=2)
    rollout = with_inputs(random_rollout(4, 2, 2 // 2), policy)
    learner = learner_of(policy, ControlAlgorithmSettings(value_init_steps=2, num_epochs=2, minibatch_size=8))
    seen = [policy.tensors()]
    for _ in range(3):
        learner.update(rollout, rewards_of(rollout, 4), TERMS, progress=0.0)
        seen.append(policy.tensors())
    assert all(p.requires_grad for p in policy.parameters())
    for k, moves in enumerate((False, False, True)):
        for name in seen[0]:
            same = torch.equal(seen[k][name], seen[k + 1][name])
            assert same == (not moves and not name.startswith("vf.")), (k, name)


def test_groups_outside_the_bounds():
    returns, known = np.array([1.0, 3, 5, 5, 0, 9, 7]), np.array([1, 1, 1, 0, 0, 0, 1], bool)
    groups = np.array([0, 0, 4, 4, 2, 2, 1])  # means 2, 5, unknown, 7
    assert groups_within(returns, known, groups, 2.0, 5.0).tolist() == [True] * 6 + [False]
    assert groups_within(returns, known, groups, 2.1, None).tolist() == [False, False, True, True, True, True, True]
    assert groups_within(returns, known, groups, None, 4.9).tolist() == [True, True, False, False, True, True, False]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5), st.booleans()), min_size=1), st.floats(-5, 5))
def test_a_group_is_kept_or_dropped_as_a_whole(members, bound):
    groups, returns, known = (np.array(column) for column in zip(*members, strict=True))
    kept = groups_within(returns, known, groups, bound, None)
    for group in set(groups.tolist()):
        here = groups == group
        mean = np.mean(returns[here & known]) if (here & known).any() else np.inf
        if abs(mean - bound) > 1e-9:
            assert kept[here].tolist() == [bool(mean >= bound)] * int(here.sum())


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_filtered_is_not_learned_from(size):
    """Two of three groups drop out: the update is that of the third alone."""
    rollout, policy = random_rollout(6, size, 1, streams=6, whole=True, ends=0.1), policy_of(chunk=size, heads=())
    rollout = replace(with_inputs(rollout, policy), group_ids=np.array([0, 0, 1, 1, 2, 2]))
    rewards = np.where(rollout.mask, 0, 0).astype(np.float32)
    rewards[:, 0] = [0.0, 0.2, 1.0, 0.0, 1.0, 0.9]
    rewards = {"env": Rewards(rewards, np.zeros_like(rollout.mask))}
    weights, learned = [], []
    for bounds in ({"rewards_lower_bound": 0.1, "rewards_upper_bound": 0.9}, {"rewards_lower_bound": 0.1}):
        policy = policy_of(chunk=size, heads=())
        algorithm = ControlAlgorithmSettings(
            adv_estimator="grpo", group_size=2, filter_rewards=True, minibatch_size=1000, num_epochs=1, **bounds
        )  # fmt: skip
        learned.append(learner_of(policy, algorithm, ()).update(rollout, rewards, {"env": TERMS["env"]}, progress=0.0))
        weights.append(policy.tensors())
    assert [m["filtered_groups"] for m in learned] == [1.0, 0.0]
    kept = np.flatnonzero(np.isin(np.nonzero(rollout.chunks.slot == 0)[0], [0, 1, 2, 3]))
    policy = policy_of(chunk=size, heads=())
    algorithm = ControlAlgorithmSettings(adv_estimator="grpo", group_size=2, minibatch_size=1000, num_epochs=1)
    found = source_advantages(rollout, rewards, {"env": SourceTerms("env")}, {"env": 1.0}, algorithm)
    rows = decision_rows(rollout, found, algorithm)
    batch = make_batch(rollout.inputs, rows.mask, rows.found, parts=rows.parts).take(kept)
    update_policy(policy, FlatAdam(policy, 1e-2), batch, algorithm, np.random.default_rng(0), learning_rate=1e-3)
    assert all(torch.equal(policy.tensors()[name], value) for name, value in weights[0].items())
    assert not torch.equal(weights[0]["pi.weight"], weights[1]["pi.weight"])


@pytest.mark.parametrize(("on_failure", "filtered"), [("drop", 0.0), ("neutral", 1.0)])
def test_a_failure_that_is_paid_0_counts_in_the_mean_of_its_group(on_failure, filtered):
    rollout, policy = random_rollout(6, 1, 1, streams=4, whole=True), policy_of(chunk=1, tokens=1, heads=())
    rollout = replace(with_inputs(rollout, policy), group_ids=np.array([0, 0, 1, 1]))
    rewards, failed = np.zeros(rollout.mask.shape, np.float32), np.zeros(rollout.mask.shape, np.bool_)
    rewards[:, 0], failed[1, 0] = [1.0, 0.0, 1.0, 0.9], True
    algorithm = ControlAlgorithmSettings(
        adv_estimator="grpo", group_size=2, filter_rewards=True, rewards_lower_bound=0.8
    )
    terms = {"env": SourceTerms("env", on_failure=on_failure)}
    metrics = learner_of(policy, algorithm, ()).update(rollout, {"env": Rewards(rewards, failed)}, terms, progress=0.0)
    assert metrics["filtered_groups"] == filtered


def test_without_any_group_nothing_is_learned():
    rollout, policy = random_rollout(6, 2, 1, streams=4, whole=True), policy_of(chunk=2, heads=())
    rollout = replace(with_inputs(rollout, policy), group_ids=np.array([0, 0, 1, 1]))
    algorithm = ControlAlgorithmSettings(
        adv_estimator="grpo", group_size=2, filter_rewards=True, rewards_lower_bound=1e6
    )
    before = policy.tensors()
    metrics = learner_of(policy, algorithm, ()).update(
        rollout, {"env": rewards_of(rollout, 1)["env"]}, {"env": TERMS["env"]}, progress=0.0
    )
    assert metrics["filtered_groups"] == 2
    assert metrics["updates"] == 0
    assert metrics["policy_loss"] is None
    assert all(torch.equal(value, before[name]) for name, value in policy.tensors().items())


# What is refused.


class Judge:
    def __init__(self, low=0.0, high=1.0):
        self.info = RewardInfo(name="judge", range=(low, high), success_threshold=0.5)

    def score(self, episodes):
        return [Score(total=0.0) for _ in episodes]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"shaping": "raw", "reward_mode": "terminal", "reward_coef": 5.0}, (-5, 10)),
        ({"shaping": "raw", "reward_mode": "per_step", "score_every": 4}, (-3, 6)),
        ({"shaping": "relative", "reward_mode": "per_step", "reward_coef": 2.0}, (-6, 6)),
        ({"shaping": "threshold", "reward_mode": "terminal", "success_reward": 2.0, "reward_coef": -1.0}, (-2, 0)),
        ({"shaping": "threshold", "reward_mode": "per_step", "success_reward": 2.0, "fail_reward": 1.0}, (1, 20)),
        ({"shaping": "bonus", "reward_mode": "per_step", "success_reward": 3.0}, (0, 3)),
        ({"shaping": "potential", "reward_mode": "per_step"}, None),
    ],
)
def test_what_a_source_can_pay_in_an_episode(given, wanted):
    settings = RobotSource(model={"model_type": "constant"}, **given)
    source = ControlReward(SourceTerms("rm"), Judge(-1.0, 2.0), settings, num_envs=1)
    assert source.return_range(10) == wanted


def test_log_odds_pay_no_more_than_their_bound_in_an_episode():
    settings = RobotSource(
        model={"model_type": "constant"}, shaping="log_odds", reward_mode="terminal", reward_coef=0.5
    )
    bound = 0.5 * shaping.MAX_LOG_ODDS
    assert ControlReward(SourceTerms("rm"), Judge(), settings, num_envs=1).return_range(10) == (-bound, bound)


def test_a_video_shows_the_number_of_the_decision_that_a_step_executed():
    """Of two actions with two parts each, the sum over the parts of the one that was executed."""
    rollout = random_rollout(3, 2, 2)
    values = np.arange(len(rollout.inputs), dtype=np.float32)
    parts = values[:, None, None] + np.array([[0.0, 1.0], [10.0, 100.0]], np.float32)
    of_decisions, of_actions = (rollout.chunks.on_steps(v) for v in (np.stack([values] * 2, 1), parts.sum(-1)))
    assert rollout.mask.sum() > 10
    for b, step in np.argwhere(rollout.mask):
        assert _at(rollout, values, b, step) == of_decisions[b, step]
        assert _at(rollout, parts.reshape(-1, 4), b, step) == of_actions[b, step]


def test_bounds_in_another_unit_are_refused():
    algorithm = ControlAlgorithmSettings(
        adv_estimator="grpo", filter_rewards=True, rewards_lower_bound=0.5, rewards_upper_bound=4.5
    )
    check_bounds(algorithm, (0.0, 5.0))
    check_bounds(algorithm, None)
    for key, bound in (("lower", 0.0), ("upper", 5.0)):
        idle = ControlAlgorithmSettings(adv_estimator="grpo", filter_rewards=True, **{f"rewards_{key}_bound": bound})
        with refuses(f"algorithm.rewards_{key}_bound"):
            check_bounds(idle, (0.0, 5.0))
        check_bounds(idle, (-1.0, 6.0))
    with refuses("algorithm.rewards_upper_bound"):
        check_bounds(algorithm, (0.0, 1.0))
    with refuses("algorithm.rewards_lower_bound"):
        check_bounds(algorithm, (1.0, 5.0))


GRPO = {"adv_estimator": "grpo"}


@cases(
    ("given", "key"),
    [
        ({"reward_type": "action_level"}, "reward_type"),
        ({**GRPO, "reward_type": "action_level", "logprob_type": "chunk_level"}, "logprob_type"),
        (
            {"filter_rewards": True, "rewards_lower_bound": 0.0},
            "filter_rewards",
        ),
        ({**GRPO, "filter_rewards": True}, "filter_rewards"),
        ({**GRPO, "rewards_upper_bound": 1.0}, "rewards_upper_bound"),
        ({**GRPO, "filter_rewards": True, "rewards_lower_bound": 2, "rewards_upper_bound": 1}, "rewards_lower_bound"),
        ({**GRPO, "value_init_steps": 2}, "value_init_steps"),
        ({"minibatch_size": 10, "micro_batch_size": 3}, "minibatch_size"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given, key):
    with refuses(key):
        ControlAlgorithmSettings(**given)


def test_keys_of_chunks_are_refused_for_policies_without():
    for keys in ({"logprob_type": "token_level"}, {"reward_type": "chunk_level"}):
        with refuses(f"algorithm.{next(iter(keys))}"):
            Study.model_validate({"algorithm": keys})
        with refuses(f"algorithm.{next(iter(keys))}", "would do nothing with this policy"):
            check_decisions(policy_of(), ControlAlgorithmSettings(**keys))
        check_decisions(policy_of(chunk=2), ControlAlgorithmSettings(**keys))
    check_decisions(policy_of(tokens=2), ControlAlgorithmSettings(logprob_type="token_level"))
    with refuses("algorithm.reward_type"):
        check_decisions(policy_of(tokens=2), ControlAlgorithmSettings(reward_type="chunk_level"))
    with refuses("algorithm.value_init_steps"):
        check_decisions(policy_of(heads=()), ControlAlgorithmSettings(value_init_steps=1))
