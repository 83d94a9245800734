"""Statistics of features, per episode and over a data set, as LeRobot stores and uses them for normalisation.

For every feature: min, max, mean, std (population), count and the quantiles q01 q10 q50 q90 q99. Images are
counted per channel, scaled to 0..1, in shape (3, 1, 1), on a sample of frames. Values that are not finite are
left out.

    stats = {"action": vector_stats(actions_T_A)}
    total = merge([stats, other_stats])
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.types import ByteArray

FeatureStats = dict[str, NDArray[Any]]
Stats = dict[str, FeatureStats]

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)
_SAMPLED_FRAMES = 100
_SAMPLED_SIDE = 150


def vector_stats(values_T: NDArray[Any]) -> FeatureStats:
    """Statistics over rows.

    Args:
        values_T: (T,) or (T, D) numbers or bools, T >= 1.

    Returns:
        Arrays of shape (D,) in float64, D = 1 for (T,); `count` has shape (1,). A dimension without a finite
        value is NaN.
    """
    values_T_D = values_T.reshape(len(values_T), -1).astype(np.float64)
    columns = [_column_stats(column[np.isfinite(column)]) for column in values_T_D.T]
    stats = {name: np.array([column[name] for column in columns]) for name in NAMES if name != "count"}
    return stats | {"count": np.array([len(values_T)], dtype=np.int64)}


def _column_stats(values: NDArray[np.float64]) -> dict[str, float]:
    if values.size == 0:
        return dict.fromkeys(NAMES, float("nan"))
    quantiles = np.quantile(values, list(QUANTILES.values()))
    low, high = float(values.min()), float(values.max())
    # Rounding must not put the mean outside [min, max].
    mean = float(np.clip(values.mean(), low, high))
    return {"min": low, "max": high, "mean": mean, "std": float(values.std())} | dict(
        zip(QUANTILES, map(float, quantiles), strict=True)
    )


def image_stats(frames_T_H_W_C: ByteArray) -> FeatureStats:
    """Statistics per channel over a sample of frames and pixels, in 0..1.

    Args:
        frames_T_H_W_C: (T, H, W, 3) uint8, T >= 1.

    Returns:
        Arrays of shape (3, 1, 1); `count`, shape (1,), is the number of sampled frames.
    """
    length, height, width = frames_T_H_W_C.shape[:3]
    rows = np.unique(np.linspace(0, length - 1, min(length, _SAMPLED_FRAMES)).round().astype(np.int64))
    stride = max(1, max(height, width) // _SAMPLED_SIDE)
    sample = frames_T_H_W_C[rows, ::stride, ::stride]
    levels = np.arange(256) / 255.0
    channels = []
    for c in range(3):
        counts = np.bincount(sample[..., c].reshape(-1), minlength=256)
        present = np.flatnonzero(counts)
        cumulative = np.cumsum(counts) / counts.sum()
        mean = float(counts @ levels / counts.sum())
        values = {
            "min": levels[present[0]],
            "max": levels[present[-1]],
            "mean": mean,
            "std": float(np.sqrt(counts @ (levels - mean) ** 2 / counts.sum())),
        }
        channels.append(values | {name: levels[np.searchsorted(cumulative, q)] for name, q in QUANTILES.items()})
    stats = {name: np.array([channel[name] for channel in channels]).reshape(3, 1, 1) for name in channels[0]}
    return stats | {"count": np.array([len(rows)], dtype=np.int64)}


def merge(parts: Iterable[Stats]) -> Stats:
    """Statistics of the union of disjoint parts.

    Exact for min, max, mean, std and count (Chan, Golub and LeVeque 1979, eq. 2.1); quantiles are the
    count-weighted mean of the parts' quantiles, the approximation that LeRobot makes.
    """
    merged: Stats = {}
    for part in parts:  # in order, so that a resumed writer gets the same bytes
        for feature, stats in part.items():
            merged[feature] = _merge_feature([merged[feature], stats]) if feature in merged else stats
    return merged


def _merge_feature(group: list[FeatureStats]) -> FeatureStats:
    shape = group[0]["mean"].shape
    stacked = {name: np.stack([stats[name] for stats in group]) for name in NAMES}
    count = stacked["count"].reshape(-1, *(1 for _ in shape)).astype(np.float64)
    known = np.isfinite(stacked["mean"])
    weight = np.where(known, count, 0.0)
    total = weight.sum(axis=0)

    def average(values: NDArray[Any]) -> NDArray[Any]:
        summed = (np.where(known, values, 0.0) * weight).sum(axis=0)
        mean: NDArray[Any] = np.divide(summed, total, out=np.full(shape, np.nan), where=total > 0)
        return mean

    mean = average(stacked["mean"])
    merged = {
        "min": np.fmin.reduce(stacked["min"], axis=0),
        "max": np.fmax.reduce(stacked["max"], axis=0),
        "mean": mean,
        "std": np.sqrt(average(stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2)),
    }
    merged |= {name: average(stacked[name]) for name in QUANTILES}
    return merged | {"count": stacked["count"].sum(axis=0)}
