"""The few numbers watched while an image reward model is fitted; `guerdon evaluate` has the full evaluation.

Pure functions of arrays; an undefined metric is None, never 0.

    classifier_quality(probabilities_N, targets_N)   # {"accuracy": 0.97, "auroc": 0.99}
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata


def auroc(scores_N: NDArray[Any], labels_N: NDArray[Any]) -> float | None:
    """Probability that a random positive scores above a random negative, ties counting one half.

    The rank form of Mann and Whitney: (sum of the positives' average ranks - P(P+1)/2) / (P N).

    Args:
        scores_N: (N,) finite numbers.
        labels_N: (N,) truth, nonzero for positives.

    Returns:
        None when one of the classes is empty.
    """
    positive = np.asarray(labels_N, dtype=bool)
    p, n = int(positive.sum()), int((~positive).sum())
    if p == 0 or n == 0:
        return None
    ranks = rankdata(np.asarray(scores_N, dtype=np.float64))
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * n))


def classifier_quality(
    probabilities_N: NDArray[Any], targets_N: NDArray[Any], threshold: float = 0.5
) -> dict[str, float | None]:
    """Accuracy at a threshold and AUROC of a success classifier.

    Args:
        probabilities_N: (N,) in [0, 1].
        targets_N: (N,) success where above 0.5.
        threshold: probabilities above it count as success.
    """
    if not len(targets_N):
        return {"accuracy": None, "auroc": None}
    truth = np.asarray(targets_N) > 0.5
    accuracy = float(((np.asarray(probabilities_N) > threshold) == truth).mean())
    return {"accuracy": accuracy, "auroc": auroc(probabilities_N, truth)}


def progress_quality(predictions_N: NDArray[Any], targets_N: NDArray[Any]) -> dict[str, float | None]:
    """Mean absolute error of predicted progress, both in [0, 1]."""
    if not len(targets_N):
        return {"mae": None}
    return {"mae": float(np.abs(np.asarray(predictions_N, np.float64) - np.asarray(targets_N, np.float64)).mean())}


def frame_quality(values_N: NDArray[Any], targets_N: NDArray[Any], threshold: float | None) -> dict[str, float | None]:
    """Quality of a classifier with this threshold; None: of a progress model."""
    if threshold is None:
        return progress_quality(values_N, targets_N)
    return classifier_quality(values_N, targets_N, threshold)
