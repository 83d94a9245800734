"""The policy update: PPO epochs over one rollout, or the same clipped update from group-relative advantages.

All parameters live in one flat tensor, so that clipping and Adam are a handful of operations instead of one per
layer. This module does not know where rewards came from.

    batch = make_batch(rollout, policy, settings, weights, gammas, reward_scales)
    metrics = update_policy(policy, FlatAdam(policy, 1e-3), batch, settings, rng, learning_rate=1e-3)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.errors import CheckpointError
from guerdon.finite import SkippedSteps
from guerdon.policies.control import ControlPolicy
from guerdon.rl import losses
from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages
from guerdon.settings.policy import AlgorithmSettings
from guerdon.types import Rollout


class FlatAdam:
    """Adam (Kingma & Ba 2015, 1412.6980) on all parameters of a module as one tensor.

    The module's parameters become windows into `flat`; gradients are gathered into `flat.grad`.
    """

    def __init__(self, module: nn.Module, learning_rate: float, *, eps: float = 1e-5) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        size = sum(p.numel() for p in self._parameters)
        self.flat = torch.empty(size)
        self.flat.grad = torch.zeros(size)
        offset = 0
        for p in self._parameters:
            window = self.flat[offset : offset + p.numel()].view_as(p)
            window.copy_(p.detach())
            p.data = window
            p.grad = self.flat.grad[offset : offset + p.numel()].view_as(p)
            offset += p.numel()
        self.optimizer = torch.optim.Adam([self.flat], lr=learning_rate, eps=eps, fused=True)
        self.skipped = SkippedSteps("the policy", "algorithm.learning_rate")

    def zero_grad(self) -> None:
        """Forget gradients, in place."""
        assert self.flat.grad is not None
        self.flat.grad.zero_()

    def step(self, max_norm: float, learning_rate: float) -> float | None:
        """Clip to the norm and step; a gradient that is not finite is skipped and answered with None.

        Raises:
            NonFiniteError: too many in a row were skipped.
        """
        grad = self.flat.grad
        assert grad is not None
        norm = float(torch.linalg.vector_norm(grad))
        if not self.skipped.takes(norm):
            return None
        if norm > max_norm:
            grad.mul_(max_norm / (norm + 1e-6))
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """Adam's moments and step count."""
        state = self.optimizer.state_dict()["state"]
        return {k: torch.as_tensor(v).clone() for k, v in state[0].items()} if state else {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Return to stored moments."""
        if not tensors:
            return
        if tensors["exp_avg"].numel() != self.flat.numel():
            raise CheckpointError(
                f"the optimiser state is for {tensors['exp_avg'].numel()} parameters, "
                f"this policy has {self.flat.numel()}"
            )
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict(
            {"state": {0: {k: v.clone() for k, v in tensors.items()}}, "param_groups": groups}
        )


@dataclass(frozen=True)
class Batch:
    """One rollout, flattened to N steps and ready for minibatches.

    Attributes:
        x: prepared observations.
        actions: (N, A).
        log_probs: (N,) of the behaviour policy.
        advantages: (N,) combined.
        mask: (N,) 1 where the step exists.
        values: (N, K) value heads, K = 0 without a critic.
        returns: (N, K) their targets.
        value_mask: (N, K) 0 where a target is missing.
    """

    x: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    values: Tensor
    returns: Tensor
    value_mask: Tensor


def make_batch(
    rollout: Rollout,
    policy: ControlPolicy,
    settings: AlgorithmSettings,
    weights: dict[str, float],
    gammas: dict[str, float],
    reward_scales: dict[str, float],
) -> Batch:
    """Advantages per source, combined; value targets per head.

    Args:
        rollout: with rewards of every source in `weights`.
        policy: its heads are the sources that have a value.
        settings: the estimator.
        weights: source name to weight in the advantage.
        gammas: source name to discount.
        reward_scales: source name to divisor of its rewards.
    """
    n = rollout.mask.size
    groups = None if rollout.group_ids is None else rollout.group_ids[:, 0]
    sources = {
        name: SourceRewards(
            rollout.rewards[name] / np.float32(reward_scales[name]),
            gamma=gammas[name],
            weight=weight,
            failed_B_T=rollout.failed.get(name),
            credit="dense" if groups is None else "episode",
            standardize=settings.grpo_std,
            values_B_T=rollout.values.get(name),
            next_values_B_T=rollout.next_values.get(name),
        )
        for name, weight in weights.items()
    }
    steps = Steps(
        rollout.mask,
        rollout.terminated,
        rollout.truncated,
        None if rollout.group_ids is None else rollout.group_ids[:, 0],
    )
    found = estimate_advantages(sources, steps, estimator=settings.adv_estimator, lam=settings.gae_lambda)
    heads = list(found.value_targets)
    return Batch(
        x=policy.prepare(rollout.observations.reshape(n, *rollout.observations.shape[2:])),
        actions=torch.from_numpy(rollout.actions.reshape(n, -1)),
        log_probs=torch.from_numpy(rollout.log_probs.reshape(n)),
        advantages=torch.from_numpy(found.advantages.reshape(n)),
        mask=torch.from_numpy(rollout.mask.reshape(n).astype(np.float32)),
        values=_columns([rollout.values[name] for name in heads], n),
        returns=_columns([found.value_targets[name] for name in heads], n),
        value_mask=_columns([found.known[name] for name in heads], n),
    )


def update_policy(
    policy: ControlPolicy,
    optimizer: FlatAdam,
    batch: Batch,
    settings: AlgorithmSettings,
    rng: np.random.Generator,
    *,
    learning_rate: float,
) -> dict[str, float | None]:
    """PPO epochs over minibatches, stopped early when the policy moved further than `target_kl`.

    Returns:
        Means over the updates, None where there was none: losses, KL, clip fraction, gradient norm; then the entropy
        and the counts `updates` and `skipped_updates` (gradients that were not finite).
    """
    seen: list[dict[str, float]] = []
    skipped = 0
    stop = False
    for _ in range(settings.num_epochs):
        order = torch.from_numpy(rng.permutation(len(batch.mask)))
        for part in _minibatches(batch, order, settings.minibatch_size):
            total, facts = _losses(policy, part, settings)
            if settings.target_kl is not None and facts["approx_kl"] > 1.5 * settings.target_kl:
                stop = True
                break
            optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
            norm = optimizer.step(settings.max_grad_norm, learning_rate)
            if norm is None:
                skipped += 1
            else:
                seen.append({**facts, "grad_norm": norm})
        if stop:
            break
    names = ("policy_loss", "value_loss", "approx_kl", "clip_fraction", "grad_norm")
    means = {k: sum(row[k] for row in seen) / len(seen) if seen and k in seen[0] else None for k in names}
    if not batch.values.shape[1]:
        del means["value_loss"]
    return {**means, "entropy": float(policy.entropy().detach()), "updates": len(seen), "skipped_updates": skipped}


def _losses(policy: ControlPolicy, part: Batch, settings: AlgorithmSettings) -> tuple[Tensor, dict[str, float]]:
    """The loss of one minibatch, with its parts as plain numbers."""
    high = settings.clip_range if settings.clip_range_high is None else settings.clip_range_high
    a = part.advantages
    if settings.normalize_advantages and settings.adv_estimator == "gae":
        a = _standardise(a, part.mask)
    new = policy.log_prob(part.x, part.actions)
    loss, clipped = losses.ppo_clip_loss(
        new, part.log_probs, a, part.mask, clip_low=settings.clip_range, clip_high=high, dual_clip=settings.clip_ratio_c
    )
    facts = {
        "policy_loss": float(loss.detach()),
        "approx_kl": float(losses.approx_kl(new.detach(), part.log_probs, part.mask)),
        "clip_fraction": float(clipped),
    }
    total = loss - settings.entropy_coef * policy.entropy() if settings.entropy_coef else loss
    if part.values.shape[1]:
        v = losses.value_loss(
            policy.value(part.x), part.returns, part.value_mask, part.values, settings.clip_range_value
        )
        total = total + settings.value_coef * v
        facts["value_loss"] = float(v.detach())
    return total, facts


def scheduled(base: float, schedule: str, progress: float) -> float:
    """Learning rate after a share `progress` of the run: constant, linear to 0, or half a cosine to 0."""
    if schedule == "linear":
        return base * max(0.0, 1.0 - progress)
    if schedule == "cosine":
        return base * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return base


def optimizer_state(optimizer: FlatAdam) -> dict[str, Any]:
    """The optimiser's tensors, prefixed for a checkpoint."""
    return {f"optimizer.{k}": v for k, v in optimizer.tensors().items()}


def _minibatches(batch: Batch, order_N: Tensor, size: int) -> Iterator[Batch]:
    """Parts of at most `size` steps in this order.

    Narrow columns are put in order once per epoch, which is cheaper than picking from each for every part;
    observations, which may be pictures, are picked part by part.
    """
    narrow = (batch.actions, batch.log_probs, batch.advantages, batch.mask, batch.values, batch.returns)
    ordered = [torch.split(c.index_select(0, order_N), size) for c in (*narrow, batch.value_mask)]
    for pick, *part in zip(torch.split(order_N, size), *ordered, strict=True):
        yield Batch(batch.x.index_select(0, pick), *part)


def _columns(arrays: list[np.ndarray], n: int) -> Tensor:
    if not arrays:
        return torch.zeros((n, 0))
    return torch.from_numpy(np.stack([a.reshape(n).astype(np.float32) for a in arrays], axis=1))


def _standardise(a: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum().clamp_min(1.0)
    mean = (a * mask).sum() / count
    centred = (a - mean) * mask
    return centred / ((centred * centred).sum() / (count - 1).clamp_min(1.0)).sqrt().add(1e-8)
