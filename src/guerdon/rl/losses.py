"""Policy and value losses: pure functions of tensors with a mask.

This module knows neither how advantages were made nor which policy is trained.

    loss, clipped = ppo_clip_loss(new_N, old_N, advantages_N, mask_N, clip_low=0.2, clip_high=0.2)
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_mean(values_N: Tensor, mask_N: Tensor) -> Tensor:
    """Mean over the entries where the mask is 1; 0 where there are none."""
    return (values_N * mask_N).sum() / mask_N.sum().clamp_min(1.0)


def ppo_clip_loss(
    log_probs_N: Tensor,
    old_log_probs_N: Tensor,
    advantages_N: Tensor,
    mask_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate (Schulman et al. 2017, 1707.06347, eq. 7), negated; asymmetric as in DAPO (2503.14476, eq. 10).

    Returns:
        The loss and the share of clipped ratios, both scalars.
    """
    ratio = (log_probs_N - old_log_probs_N).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -torch.minimum(ratio * advantages_N, clipped * advantages_N)
    with torch.no_grad():
        outside = ((ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)).float()
    return masked_mean(loss, mask_N), masked_mean(outside, mask_N)


def value_loss(
    values_N_K: Tensor,
    returns_N_K: Tensor,
    mask_N_K: Tensor,
    old_values_N_K: Tensor,
    clip_range: float | None,
) -> Tensor:
    """Half the mean squared error of each value head, summed over the K heads.

    With a clip range, the larger of the clipped and the unclipped error counts (as in OpenAI's PPO2; not in the paper).
    """
    errors = (values_N_K - returns_N_K) ** 2
    if clip_range is not None:
        moved = old_values_N_K + (values_N_K - old_values_N_K).clamp(-clip_range, clip_range)
        errors = torch.maximum(errors, (moved - returns_N_K) ** 2)
    per_head = (errors * mask_N_K).sum(0) / mask_N_K.sum(0).clamp_min(1.0)
    return 0.5 * per_head.sum()


def approx_kl(log_probs_N: Tensor, old_log_probs_N: Tensor, mask_N: Tensor) -> Tensor:
    """KL(old || new) estimated by k3 = r - 1 - log r (Schulman 2020), never negative."""
    log_ratio = log_probs_N - old_log_probs_N
    return masked_mean(log_ratio.exp() - 1 - log_ratio, mask_N)
