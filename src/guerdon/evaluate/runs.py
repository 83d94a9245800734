"""Average scores of training runs, K tasks x S seeds, with intervals: bootstrap and Student t.

Knows nothing about arms or files. Tasks are fixed, seeds are the sample: runs are resampled within their task
(stratified bootstrap, Agarwal et al. 2021, arXiv 2108.13264, §4.1). A missing run is NaN: it is left out and
counted, never replaced.

With few seeds the percentile bootstrap is too narrow, because 3 values cannot show the spread they came from.
Simulated coverage of nominal 95 % intervals of a mean, normal / U-shaped scores (3,000 data sets each):

    tasks x seeds   bootstrap      t, stratified
    1 x 3           0.76 / 0.76    0.95 / 0.93
    2 x 3           0.80 / 0.82    0.96 / 0.96
    4 x 5           0.90 / 0.90    0.96 / 0.95

So bootstrap bands are for looking at curves, and verdicts rest on t intervals.

    interval = stratified_t_interval(success_K_S)
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from guerdon.evaluate.intervals import Float64, Interval, iqm, percentile_interval

Average = Literal["mean", "iqm"]


def no_spread(values: Float64) -> bool:
    """Are all values equal up to rounding?"""
    return bool(np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())))


def task_rows(scores_K_S: ArrayLike) -> tuple[list[Float64], int]:
    """The finite scores of each task (tasks without any are left out), and how many entries were missing.

    Raises:
        ValueError: the array is not of shape (tasks, seeds).
    """
    scores = np.asarray(scores_K_S, dtype=np.float64)
    if scores.ndim != 2:
        raise ValueError(f"scores must have shape (tasks, seeds), got {scores.shape}; pad missing runs with NaN")
    finite = np.isfinite(scores)
    return [row[keep] for row, keep in zip(scores, finite, strict=True) if keep.any()], int((~finite).sum())


def _average(rows: list[Float64], average: Average) -> Float64:
    """Mean of the tasks' means, or IQM of all runs together; each row is (..., S_k)."""
    if average == "mean":
        return np.asarray(np.mean([row.mean(axis=-1) for row in rows], axis=0))
    return iqm(np.concatenate(rows, axis=-1))


def stratified_bootstrap(
    scores_K_S: ArrayLike, *, average: Average = "mean", reps: int = 2000, seed: int, level: float = 0.95
) -> Interval:
    """Percentile interval of an aggregate score, runs resampled within each task.

    Too narrow for few seeds (see the table above): for bands and orientation, not for verdicts.

    Args:
        scores_K_S: (tasks, seeds), NaN for a missing run.
        average: `mean` of the tasks' means, or `iqm` over all runs (Agarwal et al. 2021 §4.3).
        reps: number of resamples.
        seed: of the generator.
        level: such as 0.95.
    """
    rows, missing = task_rows(scores_K_S)
    n = sum(len(row) for row in rows)
    if n == 0:
        return Interval(None, None, None, 0, missing)
    rng = np.random.default_rng(seed)
    resampled = [row[rng.integers(0, len(row), size=(reps, len(row)))] for row in rows]
    return percentile_interval(
        float(_average(rows, average)),
        _average(resampled, average),
        level=level,
        n=n,
        n_undefined=missing,
        can_vary=any(len(row) > 1 for row in rows),
    )


def stratified_t_interval(scores_K_S: ArrayLike, *, level: float = 0.95) -> Interval:
    """Student-t interval of the mean over tasks, Welch-Satterthwaite degrees of freedom (Welch 1947).

    mean = 1/K sum_k m_k, variance = 1/K^2 sum_k v_k with v_k = s_k^2 / n_k, and
    df = (sum_k v_k)^2 / sum_k v_k^2 / (n_k - 1). Bounds are None where a task has a single run, or where no
    task shows any spread: identical values say nothing about how far others may lie.

    Args:
        scores_K_S: (tasks, seeds), NaN for a missing run; tasks without a run are left out.
        level: such as 0.95.
    """
    rows, missing = task_rows(scores_K_S)
    n = sum(len(row) for row in rows)
    if n == 0:
        return Interval(None, None, None, 0, missing)
    estimate = float(_average(rows, "mean"))
    error = _standard_error(rows)
    if error is None:
        return Interval(estimate, None, None, n, missing)
    half = float(stdtrit(error[1], (1 + level) / 2) * error[0])
    return Interval(estimate, estimate - half, estimate + half, n, missing)


def stratified_t_p_value(scores_K_S: ArrayLike) -> float | None:
    """Two-sided p-value of "the mean over tasks is 0": 1 - the level at which `stratified_t_interval` touches 0.

    None where that interval has no bounds.
    """
    rows, _ = task_rows(scores_K_S)
    error = _standard_error(rows)
    if error is None:
        return None
    return float(2 * stdtr(error[1], -abs(float(_average(rows, "mean"))) / error[0]))


def _standard_error(rows: list[Float64]) -> tuple[float, float] | None:
    """Standard error of the mean over tasks and its degrees of freedom; None where runs show no spread."""
    if not rows or any(len(row) < 2 for row in rows):
        return None
    v = np.array([0.0 if no_spread(row) else row.var(ddof=1) / len(row) for row in rows])
    if v.sum() == 0:
        return None
    df = v.sum() ** 2 / sum(v_k**2 / (len(row) - 1) for v_k, row in zip(v, rows, strict=True))
    return float(np.sqrt(v.sum()) / len(rows)), float(df)
