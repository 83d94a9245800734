"""The policy update of a language model: one or more passes over a batch of responses with token advantages.

Losses of micro-batches add up to exactly the loss of the gradient step they belong to. This module does not know
where advantages came from.

    metrics = update_text_policy(policy, optimizer, answered.batch, told, settings, rng, learning_rate=1e-6)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from guerdon.finite import SkippedSteps
from guerdon.policies.text import TextPolicy, TokenScores
from guerdon.policies.tokens import TokenBatch
from guerdon.rl import losses
from guerdon.settings.text_algorithm import TextAlgorithmSettings


@dataclass(frozen=True, eq=False)
class Told:
    """What the update is told about B responses.

    Attributes:
        advantages_B_T: 0 where masked.
        old_log_probs_B_T: of the policy that acted, as training computes them; None when there is one gradient step,
            whose policy is the one that acted.
        ref_log_probs_B_T: of the KL's reference; None without a KL in the loss.
        value_targets: source name to (B, T) returns, for `gae`.
        taught: source name to (B,) bool, where those are known.
        behaviour_B_T: log-probabilities as they were sampled, to measure how far training is from them.
    """

    advantages_B_T: Tensor
    old_log_probs_B_T: Tensor | None = None
    ref_log_probs_B_T: Tensor | None = None
    value_targets: dict[str, Tensor] = field(default_factory=dict)
    taught: dict[str, Tensor] = field(default_factory=dict)
    behaviour_B_T: Tensor | None = None


class _Sums:
    """Token-weighted sums of a whole update."""

    def __init__(self) -> None:
        self.tokens = self.entropy = self.clipped = self.kl = self.kl_old = 0.0
        self.rollout_gap = self.largest_rollout_gap = 0.0

    def add(
        self,
        scores: TokenScores,
        outside: Tensor,
        gap_ref: Tensor | None,
        old: Tensor,
        behaviour: Tensor | None,
        mask: Tensor,
    ) -> None:
        new = scores.log_probs_B_T.detach()
        self.tokens += float(mask.sum())
        self.clipped += float((outside * mask).sum())
        self.kl_old += float((losses.kl_terms(new, old, "k3") * mask).sum())
        if scores.entropy_B_T is not None:
            self.entropy += float((scores.entropy_B_T.detach() * mask).sum())
        if gap_ref is not None:
            self.kl += float((gap_ref.detach() * mask).sum())
        if behaviour is not None and mask.numel():
            gap = (old - behaviour).abs() * mask
            self.rollout_gap += float(gap.sum())
            self.largest_rollout_gap = max(self.largest_rollout_gap, float(gap.max()))


def adamw(
    policy: TextPolicy, learning_rate: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, 1711.05101) on what a policy trains."""
    parameters = policy.parameters()
    return torch.optim.AdamW(parameters, lr=learning_rate, betas=betas, weight_decay=weight_decay, fused=True)


def adam_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of AdamW as named tensors: `adam.<parameter>.<slot>`."""
    state = optimizer.state_dict()["state"]
    return {f"adam.{i}.{k}": torch.as_tensor(v).cpu().clone() for i, slots in state.items() for k, v in slots.items()}


def load_adam(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Return to what `adam_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("adam."):
            _, index, slot = name.split(".", 2)
            state.setdefault(int(index), {})[slot] = value.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def steps_per_update(settings: TextAlgorithmSettings, responses: int) -> int:
    """Gradient steps that an update of so many responses takes."""
    return settings.num_epochs * -(-responses // (settings.minibatch_size or max(responses, 1)))


@torch.no_grad()
def log_probs_of(policy: TextPolicy, batch: TokenBatch, *, micro: int, temperature: float) -> Tensor:
    """(B, T) float32 log-probabilities, on the CPU, a few responses at a time."""
    found = torch.zeros(batch.mask_B_T.shape)
    for start in range(0, len(batch), micro):
        rows = np.arange(start, min(start + micro, len(batch)))
        part = batch.take(rows)
        found[rows, : part.mask_B_T.shape[1]] = policy.log_probs(part, temperature=temperature).cpu()
    return found


def update_text_policy(
    policy: TextPolicy,
    optimizer: torch.optim.Optimizer,
    batch: TokenBatch,
    told: Told,
    settings: TextAlgorithmSettings,
    rng: np.random.Generator,
    *,
    learning_rate: float,
    temperature: float,
    max_length: int,
    skipped_steps: SkippedSteps | None = None,
) -> dict[str, float | None]:
    """Gradient steps on the responses.

    Args:
        policy: with a value head where `told` has value targets.
        optimizer: of the policy's parameters.
        batch: the responses.
        told: advantages and what they are compared with.
        settings: loss, aggregation, sizes.
        rng: the order of responses, where there is more than one mini-batch.
        learning_rate: for every step.
        temperature: that the responses were sampled with.
        max_length: the length limit of a response (`loss_agg: constant`).
        skipped_steps: counts over all updates; None: over this one.

    Returns:
        Means over tokens and steps; `rollout_gap_*`: how far the acting policy's log-probabilities are from those that
        were sampled with; `skipped_updates` counts losses or gradients that were not finite.

    Raises:
        NonFiniteError: too many in a row were not.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    skipped_steps = skipped_steps or SkippedSteps("the policy", "algorithm.learning_rate")
    sums = _Sums()
    norms, policy_losses, value_losses, skipped = [], [], [], 0
    for mini in _mini_batches(len(batch), settings, rng):
        optimizer.zero_grad(set_to_none=True)
        mask = torch.from_numpy(batch.mask_B_T[mini])
        weights = losses.aggregation_weights(mask, settings.loss_agg, max_length=max_length)
        policy_loss = value_loss = 0.0
        for start in range(0, len(mini), settings.micro_batch_size or len(mini)):
            place = np.arange(start, min(start + (settings.micro_batch_size or len(mini)), len(mini)))
            total, facts = _loss(policy, batch, mini[place], told, weights[place], settings, temperature, sums)
            total.backward()  # type: ignore[no-untyped-call]
            policy_loss += facts[0]
            value_loss += facts[1]
        norm = skipped_steps.clipped_step(optimizer, policy_loss + value_loss, settings.max_grad_norm)
        if norm is None:
            skipped += 1
            continue
        norms.append(norm)
        policy_losses.append(policy_loss)
        value_losses.append(value_loss)
    tokens = max(sums.tokens, 1.0)
    metrics: dict[str, float | None] = {
        "policy_loss": float(np.mean(policy_losses)) if norms else None,
        "grad_norm": float(np.mean(norms)) if norms else None,
        "entropy": sums.entropy / tokens,
        "clip_fraction": sums.clipped / tokens,
        "approx_kl": sums.kl_old / tokens,
        "updates": float(len(norms)),
        "skipped_updates": float(skipped),
    }
    if told.value_targets:
        metrics["value_loss"] = float(np.mean(value_losses)) if norms else None
    if told.ref_log_probs_B_T is not None:
        metrics["kl"] = sums.kl / tokens
    if told.behaviour_B_T is not None:
        metrics |= {"rollout_gap_mean": sums.rollout_gap / tokens, "rollout_gap_max": sums.largest_rollout_gap}
    return metrics


def _loss(
    policy: TextPolicy,
    batch: TokenBatch,
    rows: np.ndarray,
    told: Told,
    weights_B_T: Tensor,
    settings: TextAlgorithmSettings,
    temperature: float,
    sums: _Sums,
) -> tuple[Tensor, tuple[float, float]]:
    """The part of a gradient step's loss that these responses make up."""
    part = batch.take(rows)
    width = part.mask_B_T.shape[1]
    scores = policy.evaluate(part, temperature=temperature, entropy=True)
    new = scores.log_probs_B_T
    mask = torch.from_numpy(part.mask_B_T).to(new.device)
    weights = weights_B_T[:, :width].to(new.device)

    def these(tensor: Tensor) -> Tensor:
        return tensor[rows, :width].to(new.device)

    advantages = these(told.advantages_B_T)
    old = new.detach() if told.old_log_probs_B_T is None else these(told.old_log_probs_B_T)
    terms, outside = _policy_terms(new, old, advantages, mask, settings)
    policy_loss = (terms * weights).sum()
    total = policy_loss
    if settings.entropy_coef and scores.entropy_B_T is not None:
        total = total - settings.entropy_coef * (scores.entropy_B_T * weights).sum()
    gap = None
    if told.ref_log_probs_B_T is not None:
        gap = losses.kl_terms(new, these(told.ref_log_probs_B_T), settings.kl_type)
        total = total + settings.kl_coef * (gap * weights).sum()
    value_loss = torch.zeros((), device=new.device)
    if told.value_targets:
        assert scores.values_B_T_K is not None
        for k, (name, targets) in enumerate(told.value_targets.items()):
            known = told.taught[name][rows].to(new.device)[:, None].float()
            errors = (scores.values_B_T_K[..., k] - these(targets)) ** 2
            value_loss = value_loss + 0.5 * (errors * weights * known).sum()
        total = total + settings.value_coef * value_loss
    behaviour = None if told.behaviour_B_T is None else these(told.behaviour_B_T)
    sums.add(scores, outside, gap, old, behaviour, mask.float())
    return total, (float(policy_loss.detach()), float(value_loss.detach()))


def _policy_terms(
    new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, settings: TextAlgorithmSettings
) -> tuple[Tensor, Tensor]:
    """Terms of the policy loss per token, and where the ratio was clipped."""
    low = settings.clip_range
    high = low if settings.clip_range_high is None else settings.clip_range_high
    if settings.loss == "ppo":
        dual_clip = settings.clip_ratio_c
        return losses.ppo_clip_terms(new, old, advantages, clip_low=low, clip_high=high, dual_clip=dual_clip)
    if settings.loss == "gspo":
        return losses.gspo_terms(new, old, advantages, mask, clip_low=low, clip_high=high)
    if settings.loss == "cispo":
        return losses.cispo_terms(new, old, advantages, clip_low=low, clip_high=high)
    return losses.reinforce_terms(new, advantages), torch.zeros_like(new)


def _mini_batches(n: int, settings: TextAlgorithmSettings, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Rows of each gradient step; in their own order where one step takes them all."""
    size = settings.minibatch_size or n
    for _ in range(settings.num_epochs):
        order = np.arange(n) if size >= n else rng.permutation(n)
        for start in range(0, n, size):
            yield order[start : start + size]
