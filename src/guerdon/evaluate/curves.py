"""Curves over training: bands, area under the curve, steps to a threshold.

Knows nothing about files or arms: arrays of scores at P evaluation points in, numbers out. A point that was
never measured is NaN going in; it is left out of the band and counted, and makes an area undefined.

    band = curve_band(success_K_S_P, seed=0)
    areas_K_S = area_under_curve(steps_P, success_K_S_P)
    print(steps_to_threshold(steps_P, success_K_S_P.reshape(-1, P), 0.5).reached)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from guerdon.evaluate.intervals import Float64, Interval
from guerdon.evaluate.runs import Average, stratified_bootstrap


@dataclass(frozen=True)
class StepsToThreshold:
    """When each run's curve first reached a threshold.

    Attributes:
        steps: one entry per run, None where it never did.
        reached: how many runs did.
        n: how many runs there are.
        median: over all runs, "never" being later than any step; None where that is the median.
    """

    steps: tuple[float | None, ...]
    reached: int
    n: int
    median: float | None


def curve_band(
    scores_K_S_P: ArrayLike, *, average: Average = "mean", reps: int = 2000, seed: int, level: float = 0.95
) -> list[Interval]:
    """Pointwise stratified bootstrap band: one `Interval` per evaluation point.

    The same resampled runs are used at every point, so the band moves smoothly. For few seeds it is narrower
    than nominal (see `runs`): a picture, not a test.

    Args:
        scores_K_S_P: (tasks, seeds, points), NaN where a run has no value at a point.
        average: `mean` of the tasks' means, or `iqm` over all runs.
        reps: number of resamples.
        seed: of the generator.
        level: such as 0.95.

    Raises:
        ValueError: the array is not of shape (tasks, seeds, points).
    """
    scores = np.asarray(scores_K_S_P, dtype=np.float64)
    if scores.ndim != 3:
        raise ValueError(f"curves must have shape (tasks, seeds, points), got {scores.shape}")
    return [
        stratified_bootstrap(scores[:, :, p], average=average, reps=reps, seed=seed, level=level)
        for p in range(scores.shape[2])
    ]


def area_under_curve(steps_P: ArrayLike, scores_P: ArrayLike) -> Float64:
    """Trapezoidal area divided by the range of steps: the mean height of the curve, in units of the score.

    Args:
        steps_P: (P,) strictly increasing.
        scores_P: (..., P) scores; a NaN makes its own curve's area NaN.

    Returns:
        (...) areas, NaN where undefined (a missing point, fewer than two points).

    Raises:
        ValueError: the lengths differ, or steps do not increase.
    """
    steps, scores = _curve(steps_P, scores_P)
    if len(steps) < 2:
        return np.full(scores.shape[:-1], np.nan)
    heights = (scores[..., 1:] + scores[..., :-1]) / 2
    return np.asarray(heights @ np.diff(steps) / (steps[-1] - steps[0]))


def steps_to_threshold(steps_P: ArrayLike, scores_N_P: ArrayLike, threshold: float) -> StepsToThreshold:
    """The first evaluation at which each curve is at or above `threshold`; a missing point reaches nothing.

    Args:
        steps_P: (P,) strictly increasing.
        scores_N_P: (N, P) one curve per run.
        threshold: such as 0.5 for half of the episodes successful.

    Raises:
        ValueError: the lengths differ, or steps do not increase.
    """
    steps, scores = _curve(steps_P, scores_N_P)
    hits = np.atleast_2d(scores) >= threshold
    first = tuple(float(steps[row.argmax()]) if row.any() else None for row in hits)
    ordered = sorted(np.inf if step is None else step for step in first)
    middle = float("nan")
    if ordered:
        lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        middle = (lower + upper) / 2
    return StepsToThreshold(
        steps=first,
        reached=sum(step is not None for step in first),
        n=len(first),
        median=middle if np.isfinite(middle) else None,
    )


def _curve(steps_P: ArrayLike, scores_P: ArrayLike) -> tuple[Float64, Float64]:
    steps, scores = np.asarray(steps_P, dtype=np.float64), np.asarray(scores_P, dtype=np.float64)
    if steps.ndim != 1 or scores.shape[-1:] != steps.shape:
        raise ValueError(f"a curve needs one score per step, got {steps.shape} steps and {scores.shape} scores")
    if (np.diff(steps) <= 0).any():
        raise ValueError("the steps of a curve must increase strictly")
    return steps, scores
