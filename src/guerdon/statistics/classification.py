"""Classification metrics: ranking, decisions at a threshold, and calibration of scores against success.

Every metric takes labels (N,), scores (N,) and weights (R, N), and returns one value per row of weights, NaN
where it is undefined (one class only): R resamples cost one vectorised call. `point` returns the plain number.

    print(point(auroc, labels_N, scores_N))             # a float, or None
    interval = bootstrap_weighted(lambda w_R_N: auroc(labels_N, scores_N, w_R_N), episode_of_row_N, ...)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guerdon.statistics.intervals import Float64, Interval, defined, widen_at_edge
from guerdon.statistics.training_runs import stratified_t_interval

Labels = NDArray[np.bool_]
WeightedMetric = Callable[[Labels, Float64, Float64], Float64]


def point(metric: WeightedMetric, labels_N: ArrayLike, scores_N: ArrayLike) -> float | None:
    """The metric on unweighted data; None where undefined.

    Raises:
        ValueError: labels and scores differ in length, or a score is not finite.
    """
    labels = np.asarray(labels_N, dtype=np.bool_)
    scores = np.asarray(scores_N, dtype=np.float64)
    if labels.shape != scores.shape or labels.ndim != 1:
        raise ValueError(f"labels and scores must both have shape (N,), got {labels.shape} and {scores.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite: leave failed measurements out and count them")
    if not len(labels):
        return None
    once = np.ones((1, len(labels)))
    return defined(metric(labels, scores, once)[0])


def ratio(top: Float64, bottom: Float64) -> Float64:
    """Divide; NaN where bottom is 0."""
    blank = np.full(np.broadcast(top, bottom).shape, np.nan)
    return np.asarray(np.divide(top, bottom, out=blank, where=bottom > 0))


def _by_score(labels: Labels, scores: Float64, weights: Float64) -> tuple[Float64, Float64]:
    """(R, U) weight of positives and of negatives at each distinct score, in rising order."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(scores[order]) != 0])
    ordered = weights[:, order]
    everything = np.add.reduceat(ordered, starts, axis=1)
    positive = np.add.reduceat(ordered * labels[order], starts, axis=1)
    return positive, everything - positive


def auroc(labels: Labels, scores: Float64, weights: Float64) -> Float64:
    """P(a positive scores above a negative), ties 1/2 (Hanley & McNeil 1982); NaN with one class only."""
    positive, negative = _by_score(labels, scores, weights)
    below = np.cumsum(negative, axis=1) - negative
    wins = (positive * (below + negative / 2)).sum(axis=1)
    pairs = positive.sum(axis=1) * negative.sum(axis=1)
    return ratio(wins, pairs)


def auroc_within(labels_N: ArrayLike, scores_N: ArrayLike, groups_N: ArrayLike) -> Float64:
    """(G,) AUROC of each group by itself, in the order of their names; NaN in a group with one class only.

    Args:
        labels_N: whether a row is positive.
        scores_N: finite.
        groups_N: the group of each row, such as its episode.
    """
    labels, scores = np.asarray(labels_N, dtype=np.bool_), np.asarray(scores_N, dtype=np.float64)
    groups = np.unique(np.asarray(groups_N), return_inverse=True)[1]
    order = np.lexsort((scores, groups))
    begins = np.r_[True, (np.diff(scores[order]) != 0) | (np.diff(groups[order]) != 0)][: len(order)]
    cell = np.cumsum(begins) - 1  # rows of one group with the same score share their mean rank
    counts = np.bincount(cell)
    rank = np.empty(len(order))
    rank[order] = (np.cumsum(counts) - (counts - 1) / 2)[cell]
    sizes, positive = np.bincount(groups), np.bincount(groups, labels)
    sums = np.bincount(groups, labels * rank) - positive * (np.cumsum(sizes) - sizes)
    return ratio(sums - positive * (positive + 1) / 2, positive * (sizes - positive))


def mean_auroc(auroc_G: ArrayLike) -> Interval:
    """Mean of the AUROC of independent groups with its t interval; Wilson's where all are 0, or all are 1."""
    known = np.asarray(auroc_G, dtype=np.float64)
    interval = stratified_t_interval(known[None])
    return widen_at_edge(interval, interval.n)


def auprc(labels: Labels, scores: Float64, weights: Float64) -> Float64:
    """Average precision, sum_n (R_n - R_{n-1}) P_n over distinct scores; NaN with one class only."""
    positive, negative = (part[:, ::-1] for part in _by_score(labels, scores, weights))
    true = np.cumsum(positive, axis=1)
    false = np.cumsum(negative, axis=1)
    accepted = true + false
    precision = np.divide(true, accepted, out=np.zeros_like(true), where=accepted > 0)
    one_class = (true[:, -1] == 0) | (false[:, -1] == 0)
    value = ratio((positive * precision).sum(axis=1), true[:, -1])
    return np.where(one_class, np.nan, value)


def _confusion(
    labels: Labels, scores: Float64, weights: Float64, threshold: float
) -> tuple[Float64, Float64, Float64, Float64]:
    """(R,) weights of true positives, false positives, false negatives, true negatives; positive is `>`."""
    judged = scores > threshold
    cells = (labels & judged, ~labels & judged, labels & ~judged, ~labels & ~judged)
    true_pos, false_pos, false_neg, true_neg = (weights @ cell.astype(np.float64) for cell in cells)
    return true_pos, false_pos, false_neg, true_neg


def f1(labels: Labels, scores: Float64, weights: Float64, threshold: float) -> Float64:
    """F1 = 2TP / (2TP + FP + FN) of `score > threshold`; NaN with one class only."""
    tp, fp, fn, tn = _confusion(labels, scores, weights, threshold)
    one_class = (tp + fn == 0) | (fp + tn == 0)
    return np.where(one_class, np.nan, ratio(2 * tp, 2 * tp + fp + fn))


def balanced_accuracy(labels: Labels, scores: Float64, weights: Float64, threshold: float) -> Float64:
    """Mean of the true positive and the true negative rate; NaN with one class only."""
    tp, fp, fn, tn = _confusion(labels, scores, weights, threshold)
    sensitivity = ratio(tp, tp + fn)
    specificity = ratio(tn, tn + fp)
    return (sensitivity + specificity) / 2


def accuracy(labels: Labels, scores: Float64, weights: Float64, threshold: float) -> Float64:
    """Share of correct decisions. Inflated by imbalance: read it against the majority baseline."""
    tp, _, _, tn = _confusion(labels, scores, weights, threshold)
    return ratio(tp + tn, weights.sum(axis=1))


def false_positive_rate(labels: Labels, scores: Float64, weights: Float64, threshold: float) -> Float64:
    """FP / (FP + TN): how often a failure is rewarded as a success; NaN without failures."""
    _, fp, _, tn = _confusion(labels, scores, weights, threshold)
    return ratio(fp, fp + tn)


DECISIONS = (f1, balanced_accuracy, accuracy, false_positive_rate)
"""The metrics at a threshold."""


def brier(labels: Labels, scores: Float64, weights: Float64) -> Float64:
    """Mean squared error of probabilities (Brier 1950). Scores must lie in [0, 1]."""
    return ratio(weights @ (scores - labels) ** 2, weights.sum(axis=1))


def ece(labels: Labels, scores: Float64, weights: Float64, bins: int = 10) -> Float64:
    """Expected calibration error over equal-width bins (Guo et al. 2017, arXiv 1706.04599, eq. 3).

    Probability of *success* against its frequency (not confidence of the predicted class). Scores must lie in
    [0, 1]; bin m holds scores in ((m-1)/bins, m/bins], the first one 0 too. Resampling adds noise to every
    bin, so bootstrap intervals of the ECE lie a little high: read them as an upper guess.
    """
    member = np.zeros((len(scores), bins))
    member[np.arange(len(scores)), _bin_of(scores, bins)] = 1.0
    error = scores - labels
    gap = np.abs(weights @ (member * error[:, None])).sum(axis=1)
    return ratio(gap, weights.sum(axis=1))


@dataclass(frozen=True)
class ReliabilityBin:
    """One bar of a reliability diagram: scores in (low, high], their mean and how often they came true."""

    low: float
    high: float
    n: int
    mean_score: float | None
    frequency: float | None


def _bin_of(scores: Float64, bins: int) -> NDArray[np.int64]:
    return np.clip(np.ceil(scores * bins).astype(np.int64) - 1, 0, bins - 1)


def reliability_bins(labels_N: ArrayLike, scores_N: ArrayLike, bins: int = 10) -> list[ReliabilityBin]:
    """The bins of a reliability diagram; an empty bin has None for its mean score and frequency.

    Raises:
        ValueError: a score lies outside [0, 1].
    """
    labels = np.asarray(labels_N, dtype=np.bool_)
    scores = np.asarray(scores_N, dtype=np.float64)
    if scores.size and (scores.min() < 0 or scores.max() > 1):
        raise ValueError("a reliability diagram needs probabilities between 0 and 1")
    index = _bin_of(scores, bins)
    result = []
    for m in range(bins):
        inside = index == m
        n = int(inside.sum())
        mean_score = frequency = None
        if n:
            mean_score = float(scores[inside].mean())
            frequency = float(labels[inside].mean())
        result.append(ReliabilityBin(m / bins, (m + 1) / bins, n, mean_score, frequency))
    return result


def roc_points(labels_N: ArrayLike, scores_N: ArrayLike) -> tuple[Float64, Float64]:
    """False and true positive rates (U+1,) from (0, 0) to (1, 1); empty arrays with one class only."""
    labels = np.asarray(labels_N, dtype=np.bool_)
    scores = np.asarray(scores_N, dtype=np.float64)
    if labels.all() or not labels.any():
        return np.empty(0), np.empty(0)
    positive, negative = _by_score(labels, scores, np.ones((1, len(labels))))
    false_positive = np.cumsum(negative[0, ::-1]) / negative.sum()
    true_positive = np.cumsum(positive[0, ::-1]) / positive.sum()
    return np.r_[0.0, false_positive], np.r_[0.0, true_positive]


def baselines(prevalence: float) -> dict[str, float]:
    """What a model that ignores its input reaches: the majority class always, or the base rate as probability.

    Decisions use the majority class, probabilities the base rate, rankings a constant.

    Args:
        prevalence: share of positives, strictly between 0 and 1.
    """
    majority = prevalence > 0.5
    return {
        "auroc": 0.5,
        "auprc": prevalence,
        "f1": 2 * prevalence / (1 + prevalence) if majority else 0.0,
        "balanced_accuracy": 0.5,
        "accuracy": max(prevalence, 1 - prevalence),
        "false_positive_rate": 1.0 if majority else 0.0,
        "brier": prevalence * (1 - prevalence),
        "ece": 0.0,
    }


def correlation(a_E: NDArray[Any], b_E: NDArray[Any]) -> float | None:
    """Pearson's r of a run's log; None where either does not vary or there are fewer than three episodes."""
    if len(a_E) < 3 or a_E.std() == 0 or b_E.std() == 0:
        return None
    return float(np.corrcoef(a_E, b_E)[0, 1])
