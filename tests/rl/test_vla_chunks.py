"""Actions that were not executed and VLA policies: they are in no sum, no ratio and no gradient."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box
from test_chunks import random_rollout

from guerdon.policies.robots.robot import ControlInputs
from guerdon.rewards.source import SourceTerms
from guerdon.rl.build_control import control_optimizer
from guerdon.rl.learner import decision_rows, source_advantages
from guerdon.rl.update import make_batch, update_policy
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.types import Rewards

sys.path.append(str(Path(__file__).parents[1] / "policies"))

from vla_models import observations, policy_of

from tables import cases

torch.set_num_threads(1)
FLOW = {"family": "flow", "num_steps": 3}
FAMILIES = {
    "parallel": {},
    "autoregressive": {"parallel_decoding": False},
    "flow_sde": FLOW,
    "flow_noise": {**FLOW, "noise_method": "flow_noise"},
}
SPACE = Box(-1, 1, (2,), np.float32)


def gradient(policy, rollout, rewards, algorithm):
    """Of one step on all decisions, by GRPO with clips that are not symmetric, and entropy."""
    found = source_advantages(rollout, rewards, {"env": SourceTerms("env")}, {"env": 1.0}, algorithm)
    rows = decision_rows(rollout, found, algorithm)
    inputs = policy.prepared(rollout.inputs)
    batch = make_batch(inputs, rows.mask, rows.found, old=rows.log_probs, parts=rows.parts)
    optimizer = control_optimizer(policy, 0.0)
    update_policy(policy, optimizer, batch, algorithm, np.random.default_rng(0), learning_rate=0.0)
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}, rows.parts


@cases("level", ["token_level", "action_level", "chunk_level"])
@cases("keys", FAMILIES.values(), ids=FAMILIES)
def test_other_actions_that_were_not_executed_change_no_gradient(keys, level):
    policy = policy_of(heads=(), space=SPACE, **keys)
    rollout = random_rollout(2, 3, policy.tokens_per_action, streams=6, whole=True, ends=0.3)
    count = len(rollout.inputs)
    seen = observations(count)
    record = policy.act(seen, np.random.default_rng(0)).record
    rollout = replace(rollout, inputs=ControlInputs(seen, record), group_ids=np.repeat([0, 1], 3))
    before = policy.evaluate_all(policy.prepared(rollout.inputs), micro=64).log_probs.numpy()
    drift = np.random.default_rng(1).normal(scale=0.2, size=before.shape).astype(np.float32)
    rollout = replace(rollout, log_probs=before + drift)  # some ratios are clipped
    paid = np.where(rollout.mask, np.random.default_rng(2).normal(size=rollout.mask.shape), 0).astype(np.float32)
    rewards = {"env": Rewards(paid, np.zeros_like(rollout.mask))}
    algorithm = ControlAlgorithmSettings(
        adv_estimator="grpo", group_size=3, clip_range=0.2, clip_range_high=0.28, entropy_coef=0.1,
        logprob_type=level, num_epochs=1, minibatch_size=1000,
    )  # fmt: skip
    plain, parts = gradient(policy, rollout, rewards, algorithm)
    executed = parts.reshape(count, 3, -1)[..., 0]
    assert (~executed).any()
    assert executed[:, 0].all()
    for wanted, same in ((~executed, True), (executed, False)):
        other = record.copy()
        if keys.get("family") == "flow":
            other[np.broadcast_to(wanted[:, None, :, None], other.shape)] += 0.3  # the noise and every step
        else:
            other[np.repeat(wanted, 2, axis=1)] = (other[np.repeat(wanted, 2, axis=1)] + 7) % 256
        changed, _ = gradient(policy, replace(rollout, inputs=ControlInputs(seen, other)), rewards, algorithm)
        assert plain.keys() == changed.keys()
        assert all(torch.equal(plain[name], changed[name]) for name in plain) == same
    assert any(value.abs().sum() > 0 for value in plain.values())
