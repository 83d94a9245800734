"""Calibration of a success classifier on held-out frames: Platt scaling, written into its last layer.

The classifier was fitted to balanced batches, so its probabilities are those of another share of successes than the
data have. sigma(a z + b) of its logit z, with a and b fitted to held-out frames, corrects both share and confidence
(Platt 1999; Guo et al. 2017, 1706.04599, section 4.1), and keeps the order of the frames.

    scaling = fit_scaling(logits_N, labels_N)
    fold_scaling(scorer, scaling)               # from now on the network gives calibrated logits
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from guerdon.models.backbone import ImageScorer
from guerdon.types import BoolArray, IntArray


class Scaling(NamedTuple):
    """Calibrated logit = slope * logit + offset; the slope is positive."""

    slope: float
    offset: float


def fit_scaling(logits_N: NDArray[Any], labels_N: BoolArray) -> Scaling:
    """The scaling with the least cross-entropy, to Platt's targets, which stay finite where classes are separable.

    With P positives and Q negatives the targets are (P + 1) / (P + 2) and 1 / (Q + 2).

    Args:
        logits_N: of held-out frames.
        labels_N: their truth.
    """
    from scipy.optimize import minimize

    z, labels = np.asarray(logits_N, dtype=np.float64), np.asarray(labels_N, dtype=np.bool_)
    positives, negatives = int(labels.sum()), int((~labels).sum())
    targets = np.where(labels, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        slope = np.exp(theta[0])
        scaled = slope * z + theta[1]
        gap = 1 / (1 + np.exp(-np.clip(scaled, -500, 500))) - targets
        return float(_cross_entropy(scaled, targets)), np.array([(gap * z).mean() * slope, gap.mean()])

    found = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[(-5.0, 5.0), (-50.0, 50.0)])
    return Scaling(float(np.exp(found.x[0])), float(found.x[1]))


def fold_scaling(scorer: ImageScorer, scaling: Scaling) -> None:
    """Change the last layer so that the network gives scaled logits."""
    last = [layer for layer in scorer.head.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.mul_(scaling.slope)
        last.bias.mul_(scaling.slope).add_(scaling.offset)


def calibrate(
    scorer: ImageScorer, logits_N: NDArray[np.float64], labels_N: BoolArray, episode_N: IntArray
) -> dict[str, float | None]:
    """Fit a scaling to held-out frames and fold it into the network.

    Args:
        scorer: changed in place.
        logits_N: its logits of held-out frames.
        labels_N: their truth.
        episode_N: which episode each is of.

    Returns:
        `calibration_slope`, `calibration_offset`; and the cross-entropy of the truth: `nll_uncalibrated`, and `nll` of
        a scaling that was fitted to the other half of the episodes (None with a single episode).
    """
    scaling = fit_scaling(logits_N, labels_N)
    fold_scaling(scorer, scaling)
    second = np.searchsorted(np.unique(episode_N), episode_N) % 2 == 1
    crossed = None
    if second.any():
        scaled = np.empty_like(logits_N)
        for half in (second, ~second):
            other = fit_scaling(logits_N[~half], labels_N[~half])
            scaled[half] = other.slope * logits_N[half] + other.offset
        crossed = float(_cross_entropy(scaled, labels_N))
    return {
        "calibration_slope": scaling.slope,
        "calibration_offset": scaling.offset,
        "nll_uncalibrated": float(_cross_entropy(logits_N, labels_N)),
        "nll": crossed,
    }


def _cross_entropy(logits_N: NDArray[np.float64], targets_N: NDArray[Any]) -> np.float64:
    """Mean of log(1 + exp(z)) - y z."""
    return np.float64((np.logaddexp(0.0, logits_N) - np.asarray(targets_N, dtype=np.float64) * logits_N).mean())
