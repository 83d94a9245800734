"""Losses of a gradient step: those of the policy by name, the others, and how terms are added; pure functions.

A policy loss is what each decision adds to the loss, from its log-probability and its advantage. It is called with what
it names of `LOSS_INPUTS` (`log_probs`, `old_log_probs`, `advantages`, `mask`, each (R, K): R rows of K decisions) and
of `CLIP_KEYS` (`clip_range`, `clip_range_high`, `clip_ratio_c`), and with `algorithm.loss_params`. It returns a term
per decision, which is minimised, and numbers for the log. It takes no mean: `aggregation_weights` weighs the terms
(`algorithm.loss_agg`), so that micro-batches and several learners give the gradient of the whole step. A row is never
split: it is a response of a language model, or a decision of a robot, with its parts where each has a ratio of its own.

What stands in masked places must be finite and does not matter otherwise.

    loss = policy_loss(settings)  # of an `algorithm` section
    weights_B_T = aggregation_weights(mask_B_T, "token")  # of the whole gradient step
    found = loss(new_b_T, old_b_T, advantages_b_T, mask_b_T)
    (found.terms * weights_B_T[rows]).sum().backward()  # micro-batches add up to the whole exactly

A loss may have an attribute `slope`, a function of the same arguments as numpy arrays that returns `SlopedTerms`. Then
small networks on states learn without autograd (`guerdon.rl.update`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import ConfigError, DataError
from guerdon.settings.algorithm import CLIP_KEYS, LOSS_INPUTS, LOSSES, AlgorithmSettings

Aggregation = Literal["token", "sequence", "constant"]
KLEstimator = Literal["k1", "k2", "k3"]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_CLIPPED = "clip_fraction"
_LARGEST = 80.0  # a log-ratio up to which the ratio is an ordinary float32


def aggregation_weights(
    mask_B_T: Tensor, how: Aggregation, *, max_length: int | None = None, streams_B: Tensor | None = None
) -> Tensor:
    """Weight of each token's term in the loss of one gradient step.

    token: 1 / number of valid tokens (DAPO, 2503.14476, section 3.3). sequence: 1 / (responses x tokens of the
    response) (GRPO, 2402.03300, eq. 3). constant: 1 / (responses x `max_length`), so that length earns and costs
    nothing (Dr. GRPO, 2503.20783, section 3.2). Empty responses do not count as responses.

    Where several rows are the calls of one conversation, conversations stand in the place of responses: the number of
    calls depends on the actions, so that a mean over calls would be biased.

    Args:
        mask_B_T: valid tokens of the whole gradient step, not of one micro-batch.
        how: the mean to take.
        max_length: `constant`: the length limit of a response, or of all that is written in a conversation.
        streams_B: number of the conversation that each row is part of; None: every row is one.

    Returns:
        (B, T), 0 where masked.
    """
    mask = mask_B_T.to(torch.float32)
    lengths = mask.sum(-1, keepdim=True)
    if streams_B is not None:
        _, of_row, rows = torch.unique(streams_B, return_inverse=True, return_counts=True)
        totals = lengths.new_zeros(len(rows)).index_add_(0, of_row, lengths[:, 0])
        conversations = (totals > 0).sum().clamp_min(1)
        if how != "token":
            whole = max_length if how == "constant" else totals.clamp_min(1.0)[of_row][:, None]
            if whole is None:
                raise ValueError("aggregation over a constant length needs max_length")
            return mask / (whole * conversations)
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


# The policy losses.


class PolicyTerms(NamedTuple):
    """What a policy loss returns.

    Attributes:
        terms: to minimise, one per decision, shaped as the log-probabilities.
        numbers: name to a number per decision, shaped alike. Their means over the mask are logged as
            `policy_loss/<name>`, `clip_fraction` under its own name.
    """

    terms: Tensor
    numbers: Mapping[str, Tensor] = _NOTHING


class SlopedTerms(NamedTuple):
    """What the `slope` of a policy loss returns: arrays shaped as the log-probabilities.

    Attributes:
        terms: see `PolicyTerms`.
        slope: derivative of each term by its own log-probability.
        numbers: see `PolicyTerms`.
    """

    terms: np.ndarray
    slope: np.ndarray
    numbers: Mapping[str, np.ndarray] = _NOTHING


def ppo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_range: float,
    clip_range_high: float,
    clip_ratio_c: float | None = None,
) -> PolicyTerms:
    """Clipped surrogate of each token (1707.06347, eq. 7; asymmetric: 2503.14476, eq. 10), negated.

    With `clip_ratio_c` c > 1, a token of negative advantage loses at most c abs(A) (Ye et al. 2020, 1912.09729,
    dual-clip PPO): a ratio that exploded no longer dominates the batch.

    `clip_fraction`: where the ratio left the clip range (no gradient).
    """
    found = _clipped((log_probs - old_log_probs).exp(), advantages, clip_range, clip_range_high)
    if clip_ratio_c is None:
        return found
    capped = torch.minimum(found.terms, -clip_ratio_c * advantages)
    return found._replace(terms=torch.where(advantages < 0, capped, found.terms))


def gspo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_range: float,
    clip_range_high: float,
) -> PolicyTerms:
    """One ratio per response, s = exp(mean_t log ratio), clipped as a whole (GSPO, 2507.18071).

    Advantages may differ between tokens (GSPO-token, section 4.3): every token carries the value of s and the gradient
    of its own log-probability. Where all tokens of a response share one advantage, and terms are aggregated by
    `sequence`, value and gradient are GSPO's. s moves far less than a token's ratio: the paper clips at 3e-4 below and
    4e-4 above.

    `clip_fraction`: where s left the clip range (no gradient).
    """
    valid = mask > 0
    log_ratio = torch.where(valid, log_probs - old_log_probs, 0.0)
    mean = log_ratio.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp_min(1)
    own = torch.where(valid, log_probs, 0.0)
    return _clipped((mean.detach() + own - own.detach()).exp(), advantages, clip_range, clip_range_high)


def cispo(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip_range: float, clip_range_high: float
) -> PolicyTerms:
    """REINFORCE weighted by the clipped ratio as a constant (CISPO, MiniMax 2025, 2506.13585, section 3.1).

    -sg[clip(ratio)] A log pi: beyond the clip range a token weighs less but never loses its gradient.

    `clip_fraction`: where the ratio left the clip range.
    """
    ratio = (log_probs.detach() - old_log_probs).exp()
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range_high)
    return PolicyTerms(-clipped * advantages * log_probs, {_CLIPPED: _outside(ratio, clip_range, clip_range_high)})


def reinforce(log_probs: Tensor, advantages: Tensor) -> PolicyTerms:
    """-A log pi of each token (Williams 1992): right only on the policy that acted, one step per batch."""
    return PolicyTerms(-advantages * log_probs, {_CLIPPED: torch.zeros_like(log_probs)})


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> PolicyTerms:
    """The clipped surrogate, negated, and where the ratio left the clip range."""
    clipped = ratio.clamp(1.0 - low, 1.0 + high)
    terms = -torch.minimum(ratio * advantages, clipped * advantages)
    return PolicyTerms(terms, {_CLIPPED: _outside(ratio, low, high)})


def _outside(ratio: Tensor, low: float, high: float) -> Tensor:
    ratio = ratio.detach()
    return ((ratio < 1.0 - low) | (ratio > 1.0 + high)).to(ratio.dtype)


# Their slopes. In the surrogate the ratio is its own derivative by the log-probability.


def _ppo_slope(
    log_probs: np.ndarray,
    old_log_probs: np.ndarray,
    advantages: np.ndarray,
    *,
    clip_range: float,
    clip_range_high: float,
    clip_ratio_c: float | None = None,
) -> SlopedTerms:
    found = _clipped_slope(np.exp(log_probs - old_log_probs), advantages, clip_range, clip_range_high)
    if clip_ratio_c is None:
        return found
    cap = np.float32(-clip_ratio_c) * advantages
    capped = (advantages < 0) & (cap < found.terms)
    return found._replace(terms=np.where(capped, cap, found.terms), slope=np.where(capped, 0.0, found.slope))


def _gspo_slope(
    log_probs: np.ndarray,
    old_log_probs: np.ndarray,
    advantages: np.ndarray,
    mask: np.ndarray,
    *,
    clip_range: float,
    clip_range_high: float,
) -> SlopedTerms:
    valid = mask > 0
    log_ratio = np.where(valid, log_probs - old_log_probs, np.float32(0))
    mean = log_ratio.sum(-1, keepdims=True) / np.maximum(valid.sum(-1, keepdims=True), 1).astype(log_ratio.dtype)
    ratio = np.exp(np.broadcast_to(mean, log_probs.shape))
    found = _clipped_slope(ratio, advantages, clip_range, clip_range_high)
    return found._replace(slope=found.slope * valid)


def _cispo_slope(
    log_probs: np.ndarray,
    old_log_probs: np.ndarray,
    advantages: np.ndarray,
    *,
    clip_range: float,
    clip_range_high: float,
) -> SlopedTerms:
    ratio = np.exp(log_probs - old_log_probs)
    clipped = _within(ratio, clip_range, clip_range_high)
    slope = -clipped * advantages
    return SlopedTerms(slope * log_probs, slope, {_CLIPPED: clipped != ratio})


def _reinforce_slope(log_probs: np.ndarray, advantages: np.ndarray) -> SlopedTerms:
    slope = -advantages
    return SlopedTerms(slope * log_probs, slope, {_CLIPPED: np.zeros_like(log_probs)})


def _clipped_slope(ratio: np.ndarray, advantages: np.ndarray, low: float, high: float) -> SlopedTerms:
    clipped = _within(ratio, low, high)
    gain = ratio * advantages
    limit = clipped * advantages
    slope = -(gain * (gain <= limit))
    return SlopedTerms(-np.minimum(gain, limit), slope, {_CLIPPED: clipped != ratio})


def _within(ratio: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.asarray(np.minimum(np.maximum(ratio, np.float32(1.0 - low)), np.float32(1.0 + high)))


_SLOPES = {ppo: _ppo_slope, gspo: _gspo_slope, cispo: _cispo_slope, reinforce: _reinforce_slope}
for _loss, _slope in _SLOPES.items():
    _loss.slope = _slope  # type: ignore[attr-defined]


# The loss of a configuration.


Found = TypeVar("Found", PolicyTerms, SlopedTerms)


class PolicyLoss:
    """A policy loss with the parameters of its configuration.

    Args:
        name: in the registry.
        function: the loss.
        params: its own.
        offered: values of `CLIP_KEYS`.
        own: whether a user brought it, so that what it returns is checked.

    Attributes:
        offers_slope: whether `sloped` may be called.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., PolicyTerms],
        params: Mapping[str, Any],
        offered: Mapping[str, Any],
        *,
        own: bool,
    ) -> None:
        self.name, self.own = name, own
        slope = getattr(function, "slope", None)
        self.offers_slope = slope is not None
        self._terms = _Bound(function, params, offered)
        self._sloped = _Bound(slope, params, offered) if slope is not None else None

    def __call__(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyTerms:
        """The terms of R rows of K decisions, each tensor (R, K).

        Raises:
            ConfigError: a user-defined loss returned something else, terms of another shape, or terms without gradient.
            DataError: its terms are NaN where what it was given is not.
        """
        arguments = self._terms.arguments(log_probs, old_log_probs, advantages, mask)
        found: PolicyTerms = self._terms.function(**arguments)
        if self.own:
            self._check(found, PolicyTerms, log_probs, old_log_probs, advantages, mask)
            if log_probs.requires_grad and not found.terms.requires_grad:
                raise ConfigError(
                    f"the terms of the policy loss {self.name} do not depend on log_probs: nothing would be learned. "
                    "Compute them from log_probs itself, not from a detached copy",
                    key="algorithm.loss",
                )
        return found

    def sloped(
        self, log_probs: np.ndarray, old_log_probs: np.ndarray, advantages: np.ndarray, mask: np.ndarray
    ) -> SlopedTerms:
        """The terms and their slopes, of arrays (R, K).

        Raises:
            ConfigError: as of a call.
            DataError: as of a call.
        """
        assert self._sloped is not None
        arguments = self._sloped.arguments(log_probs, old_log_probs, advantages, mask)
        found: SlopedTerms = self._sloped.function(**arguments)
        if self.own:
            self._check(found, SlopedTerms, log_probs, old_log_probs, advantages, mask)
        return found

    def _check(self, found: Found, kind: type[Found], *inputs: Tensor | np.ndarray) -> None:
        """Refuse what does not fit the decisions."""
        if not isinstance(found, kind):
            raise ConfigError(
                f"the policy loss {self.name} returned a {type(found).__name__}, it must return {kind.__name__}: "
                "docs/extend.md#policy-loss shows one",
                key="algorithm.loss",
            )
        shape = tuple(inputs[0].shape)
        given = {**found._asdict(), **found.numbers}
        del given["numbers"]
        for what, values in given.items():
            if tuple(values.shape) != shape:
                raise ConfigError(
                    f"the policy loss {self.name}: {what} has the shape {tuple(values.shape)}, it must have one number "
                    f"per decision, {shape} as log_probs: return them without a sum or a mean, which guerdon takes",
                    key="algorithm.loss",
                )
        log_probs, old_log_probs, advantages, mask = (torch.as_tensor(one).detach() for one in inputs)
        wrong = torch.as_tensor(found.terms).detach().isnan()
        if not wrong.any():
            return
        ordinary = ((log_probs - old_log_probs).abs() < _LARGEST) & advantages.isfinite()
        wrong &= ordinary  # where a ratio overflowed, the gradient step is skipped, as with any other loss
        if wrong.any():
            masked = int((wrong & (mask == 0)).sum())
            raise DataError(
                f"the policy loss {self.name}: {int(wrong.sum())} of {wrong.numel()} terms are NaN ({masked} of them "
                "where the mask is 0), although log-probabilities and advantages there are finite: look for a division "
                "by 0, a logarithm or a root in it"
            )


class _Bound:
    """A function with its parameters, which takes some of `LOSS_INPUTS`."""

    def __init__(self, function: Callable[..., Any], params: Mapping[str, Any], offered: Mapping[str, Any]) -> None:
        wanted = signature(function).parameters
        free = any(one.kind is one.VAR_KEYWORD for one in wanted.values())
        self.function = function
        self.given = {name: value for name, value in params.items() if free or name in wanted}
        self.given |= {name: value for name, value in offered.items() if name in wanted}
        self.inputs = [(place, name) for place, name in enumerate(LOSS_INPUTS) if name in wanted]

    def arguments(self, *inputs: Any) -> dict[str, Any]:
        """What the function is called with, of values of `LOSS_INPUTS` in their order."""
        return {name: inputs[place] for place, name in self.inputs} | self.given


def policy_loss(settings: AlgorithmSettings) -> PolicyLoss:
    """The policy loss of an `algorithm` section.

    Raises:
        ConfigError: it is not known, or its parameters do not fit.
    """
    name = settings.loss
    own = LOSSES.is_own(name)
    params = LOSSES.check(name, settings.loss_params, key="algorithm.loss_params") if own else {}
    offered = {key: getattr(settings, key) for key in CLIP_KEYS}
    if settings.clip_range_high is None:
        offered["clip_range_high"] = settings.clip_range
    return PolicyLoss(name, LOSSES.factory(name), params, offered, own=own)


def logged_name(number: str) -> str:
    """How a number of a policy loss is called in the log."""
    return number if number == _CLIPPED else f"policy_loss/{number}"
