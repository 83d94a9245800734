"""Losses of a gradient step other than the policy loss, and how terms are added: pure functions of tensors.

`aggregation_weights` turns the terms of a gradient step into its loss (those of the policy: `policy_losses`). What
stands in masked places must be finite and does not matter otherwise.

    weights_B_T = aggregation_weights(mask_B_T, "token")  # of the whole gradient step
    terms_b_T, _ = ppo(new_b_T, old_b_T, advantages_b_T, clip_range=0.2, clip_range_high=0.28)
    (terms_b_T * weights_B_T[rows]).sum().backward()  # micro-batches add up to the whole exactly
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "sequence", "constant"]
KLEstimator = Literal["k1", "k2", "k3"]


def aggregation_weights(mask_B_T: Tensor, how: Aggregation, *, max_length: int | None = None) -> Tensor:
    """Weight of each token's term in the loss of one gradient step.

    token: 1 / number of valid tokens (DAPO, 2503.14476, section 3.3). sequence: 1 / (responses x tokens of the
    response) (GRPO, 2402.03300, eq. 3). constant: 1 / (responses x `max_length`), so that length earns and costs
    nothing (Dr. GRPO, 2503.20783, section 3.2). Empty responses do not count as responses.

    Args:
        mask_B_T: valid tokens of the whole gradient step, not of one micro-batch.
        how: the mean to take.
        max_length: `constant`: the length limit of a response.

    Returns:
        (B, T), 0 where masked.
    """
    mask = mask_B_T.to(torch.float32)
    lengths = mask.sum(-1, keepdim=True)
    responses = (lengths > 0).sum().clamp_min(1)
    if how == "token":
        return mask / mask.sum().clamp_min(1.0)
    if how == "sequence":
        return mask / (lengths.clamp_min(1.0) * responses)
    if max_length is None:
        raise ValueError("aggregation over a constant length needs max_length")
    return mask / (responses * max_length)


def truncated_weights(log_probs: Tensor, sampled_log_probs: Tensor, threshold: float) -> Tensor:
    """Importance weights min(p / q, threshold) of samples from q, in an expectation over p.

    Truncation bounds the variance of the sum at the price of a bias (Ionides 2008, eq. 4; rho of V-trace, 1802.01561,
    eq. 1). Here p is the policy that learns at the start of an update, and q what an engine drew from.

    Args:
        log_probs: of the samples by p, of any shape.
        sampled_log_probs: by q, of the same shape.
        threshold: the largest weight.
    """
    return (log_probs - sampled_log_probs).exp().clamp_max(threshold)


def sum_parts(values_R_P: Tensor, counts_R_P: Tensor, decisions: int) -> Tensor:
    """(R, K) sums over the parts of each of `decisions` decisions of a row; what does not count has no gradient.

    Args:
        values_R_P: log-probabilities or entropies of the parts, P / K of each decision after those of another.
        counts_R_P: above 0 where a part counts.
        decisions: K.
    """
    counted = torch.where(counts_R_P > 0, values_R_P, 0.0)
    return counted.reshape(len(counted), decisions, counted.shape[1] // decisions).sum(-1)


def value_errors(values: Tensor, returns: Tensor, old_values: Tensor | None, clip_range: float | None) -> Tensor:
    """Squared error of each value.

    With a clip range, the larger of the clipped and the unclipped error counts (as in OpenAI's PPO2; not in the paper).
    """
    errors = (values - returns) ** 2
    if clip_range is None or old_values is None:
        return errors
    moved = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return torch.maximum(errors, (moved - returns) ** 2)


def old_kl_terms(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """KL(old || new) of each decision, sampled from old: k3 = r - 1 - log r (Schulman 2020), never negative."""
    log_ratio = log_probs - old_log_probs
    return log_ratio.exp() - 1 - log_ratio


def kl_terms(log_probs: Tensor, ref_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """KL(pi || ref) of each token, sampled from pi (Schulman 2020, "Approximating KL divergence").

    With d = log pi - log ref: k1 = d (unbiased), k2 = d^2 / 2, k3 = exp(-d) - 1 + d (unbiased, never negative).
    As a term of the loss, k1 does nothing: its gradient is the score of the policy, zero on average; k2's gradient is
    that of the KL, k3's is an approximation near the reference. As a reward, k1 is right.
    """
    gap = log_probs - ref_log_probs
    if estimator == "k1":
        return gap
    if estimator == "k2":
        return 0.5 * gap**2
    return torch.expm1(-gap) + gap
