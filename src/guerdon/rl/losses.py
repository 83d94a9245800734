"""Policy and value losses: pure functions of tensors, one term per decision.

`aggregation_weights` turns the terms of a gradient step into its loss. What stands in masked places must be finite and
does not matter otherwise.

    weights_B_T = aggregation_weights(mask_B_T, "token")  # of the whole gradient step
    terms_b_T, clipped_b_T = ppo_clip_terms(new_b_T, old_b_T, advantages_b_T, clip_low=0.2, clip_high=0.28)
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


def ppo_clip_terms(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate of each token (1707.06347, eq. 7; asymmetric: 2503.14476, eq. 10), negated.

    With `dual_clip` c > 1, a token of negative advantage loses at most c abs(A) (Ye et al. 2020, 1912.09729, dual-clip
    PPO): a ratio that exploded no longer dominates the batch.

    Returns:
        Terms to minimise, and 1 where the ratio left the clip range (no gradient); both shaped as `log_probs`.
    """
    terms, outside = _clipped((log_probs - old_log_probs).exp(), advantages, clip_low, clip_high)
    if dual_clip is not None:
        terms = torch.where(advantages < 0, torch.minimum(terms, -dual_clip * advantages), terms)
    return terms, outside


def gspo_terms(
    log_probs_B_T: Tensor,
    old_log_probs_B_T: Tensor,
    advantages_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:
    """One ratio per response, s = exp(mean_t log ratio), clipped as a whole (GSPO, 2507.18071).

    Advantages may differ between tokens (GSPO-token, section 4.3): every token carries the value of s and the gradient
    of its own log-probability. Where all tokens of a response share one advantage, and terms are aggregated by
    `sequence`, value and gradient are GSPO's. s moves far less than a token's ratio: the paper clips at 3e-4 below and
    4e-4 above.

    Returns:
        Terms to minimise, and 1 where s left the clip range (no gradient); both (B, T).
    """
    valid = mask_B_T > 0
    log_ratio = torch.where(valid, log_probs_B_T - old_log_probs_B_T, 0.0)
    mean = log_ratio.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp_min(1)
    own = torch.where(valid, log_probs_B_T, 0.0)
    return _clipped((mean.detach() + own - own.detach()).exp(), advantages_B_T, clip_low, clip_high)


def cispo_terms(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """REINFORCE weighted by the clipped ratio as a constant (CISPO, MiniMax 2025, 2506.13585, section 3.1).

    -sg[clip(ratio)] A log pi: beyond the clip range a token weighs less but never loses its gradient.

    Returns:
        Terms to minimise, and 1 where the ratio left the clip range (no gradient); both shaped as `log_probs`.
    """
    ratio = (log_probs.detach() - old_log_probs).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -clipped * advantages * log_probs, _outside(ratio, clip_low, clip_high)


def reinforce_terms(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """-A log pi of each token (Williams 1992): right only on the policy that acted, one step per batch."""
    return -advantages * log_probs


def _clipped(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """The clipped surrogate, negated, and where the ratio left the clip range."""
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages), _outside(ratio, clip_low, clip_high)


def _outside(ratio: Tensor, clip_low: float, clip_high: float) -> Tensor:
    ratio = ratio.detach()
    return ((ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)).to(ratio.dtype)


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
