"""The few numbers watched while an image reward model is fitted; `guerdon evaluate` has the full evaluation.

Pure functions of arrays; an undefined metric is None, never 0.

    frame_quality(probabilities_N, targets_N, threshold=0.5)   # {"accuracy": 0.97, "auroc": 0.99}
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def auroc(scores_N: NDArray[Any], labels_N: NDArray[Any]) -> float | None:
    """Probability that a random positive scores above a random negative, ties counting one half.

    The rank form of Mann and Whitney: (sum of the positives' average ranks - P(P+1)/2) / (P N).

    Args:
        scores_N: (N,) finite numbers.
        labels_N: (N,) truth, nonzero for positives.

    Returns:
        None when one of the classes is empty.
    """
    from scipy.stats import rankdata

    positive = np.asarray(labels_N, dtype=bool)
    p = int(positive.sum())
    n = int((~positive).sum())
    if p == 0 or n == 0:
        return None
    ranks = rankdata(np.asarray(scores_N, dtype=np.float64))
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * n))


def frame_quality(values_N: NDArray[Any], targets_N: NDArray[Any], threshold: float | None) -> dict[str, float | None]:
    """Accuracy and AUROC of a success classifier; of a progress model the mean absolute error.

    Args:
        values_N: (N,) in [0, 1].
        targets_N: (N,) success where above 0.5, or progress in [0, 1].
        threshold: probabilities above it count as success; None: a progress model.
    """
    values = np.asarray(values_N)
    targets = np.asarray(targets_N)
    if threshold is None:
        return {"mae": float(np.abs(np.float64(values) - np.float64(targets)).mean()) if len(targets) else None}
    truth = targets > 0.5
    return {
        "accuracy": float(((values > threshold) == truth).mean()) if len(targets) else None,
        "auroc": auroc(values, truth),
    }
