"""An estimate with its uncertainty: `Interval`, the bootstrap behind it, and the conclusion it allows.

What is undefined is None and counted. Percentile bootstrap: Efron & Tibshirani 1993, chapter 13; cluster bootstrap:
Davison & Hinkley 1997, §3.8.

    interval = bootstrap_ci(errors_N, mean, seed=0)
    print(interval.estimate, interval.low, interval.high, conclusion(interval))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guerdon.statistics.proportion import wilson_bounds

Float64 = NDArray[np.float64]
Conclusion = Literal["better", "worse", "no difference shown"]

LEVEL = 0.95  # of every interval, except where conclusions are corrected for their number
MOST_UNDEFINED = 0.1  # an interval needs at least 90 % of its resamples to be defined
_CHUNK = 4_000_000  # numbers held at once while resampling: 32 MB


@dataclass(frozen=True)
class Interval:
    """A point estimate and the bounds of its confidence interval.

    Attributes:
        estimate: None where the statistic is undefined.
        low: None where no interval can be given (too few values, or undefined in most resamples).
        high: as `low`.
        n: how many values went in.
        n_undefined: how many more cases have no value (a failed run, a constant prediction).
        baseline: what a model that ignores its input would reach: the majority class for decisions, the base rate for
            probabilities, a constant for orders; None where the question makes no sense.
    """

    estimate: float | None
    low: float | None
    high: float | None
    n: int
    n_undefined: int = 0
    baseline: float | None = None

    def __post_init__(self) -> None:
        for value in (self.estimate, self.low, self.high):
            if value is not None and not np.isfinite(value):
                raise ValueError("an Interval is never NaN or infinite: undefined is None")


class BootstrapOptions(TypedDict):
    """The keyword arguments of every bootstrap of an evaluation: resamples, and seed of the generator."""

    reps: int
    seed: int


def defined(value: float | np.floating[Any]) -> float | None:
    """The value as a float, or None where it is NaN or infinite."""
    return float(value) if np.isfinite(value) else None


def conclusion(difference: Interval) -> Conclusion:
    """The conclusion of an interval of a difference: `better` or `worse` only if it excludes 0."""
    if difference.low is None or difference.high is None:
        return "no difference shown"
    if difference.low > 0:
        return "better"
    return "worse" if difference.high < 0 else "no difference shown"


def mean(values_N: ArrayLike) -> Float64:
    """Mean over the last axis."""
    return np.asarray(np.mean(np.asarray(values_N, dtype=np.float64), axis=-1))


def iqm(values_N: ArrayLike) -> Float64:
    """Interquartile mean over the last axis: floor(N/4) values are cut off at either end.

    Agarwal et al. 2021 (arXiv 2108.13264) §4.3; the same numbers as `scipy.stats.trim_mean(x, 0.25)`. NaN
    anywhere, or no value at all, gives NaN.
    """
    ordered = np.sort(np.asarray(values_N, dtype=np.float64), axis=-1)
    cut = ordered.shape[-1] // 4
    if ordered.shape[-1] == 0:
        return np.full(ordered.shape[:-1], np.nan)
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1) + 0.0 * ordered[..., -1])


def percentile_interval(
    estimate: float | np.floating[Any], replicates_R: Float64, *, n: int, n_undefined: int = 0, can_vary: bool = True
) -> Interval:
    """95 % bounds from the quantiles of bootstrap replicates, undefined (NaN) ones left out.

    Args:
        estimate: the statistic on the data itself; NaN becomes None.
        replicates_R: (R,) the statistic on each resample, NaN where undefined.
        n: number of values behind the estimate.
        n_undefined: number of values that were missing.
        can_vary: False where the data has fewer than two units to resample, so no interval exists.
    """
    point = defined(estimate)
    good = replicates_R[np.isfinite(replicates_R)]
    if point is None or not can_vary or good.size < (1 - MOST_UNDEFINED) * replicates_R.size:
        return Interval(point, None, None, n, n_undefined)
    low, high = np.quantile(good, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(point, float(low), float(high), n, n_undefined)


def bootstrap_ci(
    values_N: ArrayLike, statistic: Callable[[Float64], ArrayLike], *, reps: int = 2000, seed: int
) -> Interval:
    """Percentile bootstrap interval of a statistic of independent values.

    Args:
        values_N: (N,) values; NaN counts as undefined and is left out.
        statistic: reduces the last axis, such as `mean` or `iqm`: (..., N) to (...).
        reps: number of resamples.
        seed: of the generator; the same seed gives the same interval.
    """
    values = np.asarray(values_N, dtype=np.float64).reshape(-1)
    missing = int((~np.isfinite(values)).sum())
    values = values[np.isfinite(values)]
    n = len(values)
    if n == 0:
        return Interval(None, None, None, 0, missing)
    rng = np.random.default_rng(seed)

    def draw(size: int) -> Float64:
        resampled = values[rng.integers(0, n, size=(size, n))]
        return np.asarray(statistic(resampled), dtype=np.float64)

    estimate = float(np.asarray(statistic(values)))
    drawn = _in_chunks(reps, n, draw)
    return percentile_interval(estimate, drawn, n=n, n_undefined=missing, can_vary=n > 1)


def _in_chunks(reps: int, width: int, draw: Callable[[int], Float64]) -> Float64:
    """`reps` replicates, drawn so many at a time that arrays of this width fit into memory."""
    rows = max(1, _CHUNK // width)
    parts = [draw(min(rows, reps - start)) for start in range(0, reps, rows)]
    return np.concatenate([np.empty(0), *parts])


def bootstrap_weighted(
    statistic: Callable[[Float64], Float64],
    groups_N: Sequence[Any] | NDArray[Any],
    *,
    reps: int,
    seed: int,
    n_undefined: int = 0,
) -> Interval:
    """Cluster bootstrap of any statistic that accepts row weights: a row drawn k times weighs k.

    The same resamples as drawing groups with replacement, but every resample is one row of a weight matrix,
    so the statistic runs vectorised over resamples.

    Args:
        statistic: (R, N) weights to (R,) values, NaN where undefined.
        groups_N: (N,) labels; rows with the same label are resampled together.
        reps: number of resamples.
        seed: of the generator.
        n_undefined: cases without a value, passed on to the result.
    """
    n = len(groups_N)
    if n == 0:
        return Interval(None, None, None, 0, n_undefined)
    labels, index = np.unique(np.asarray(groups_N), return_inverse=True)
    share = np.full(len(labels), 1 / len(labels))
    rng = np.random.default_rng(seed)

    def draw(size: int) -> Float64:
        counts = rng.multinomial(len(labels), share, size=size).astype(np.float64)
        return statistic(counts[:, index])

    estimate = statistic(np.ones((1, n)))[0]
    drawn = _in_chunks(reps, 4 * n, draw)
    return percentile_interval(estimate, drawn, n=n, n_undefined=n_undefined, can_vary=len(labels) > 1)


def resampling_weights(n: int, reps: int, rng: np.random.Generator) -> Float64:
    """(1 + reps, n) how often each of n cases occurs: once each in the first row, then in each bootstrap resample."""
    if n == 0:
        return np.zeros((1 + reps, 0))
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=reps)
    return np.concatenate([np.ones((1, n)), drawn])


def wilson_interval(successes: int, n: int) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927), valid for few trials and at 0 and 1.

    Raises:
        ValueError: `successes` is not between 0 and `n`.
    """
    if successes == n == 0:
        return Interval(None, None, None, 0)
    low, high = wilson_bounds(successes, n, level=LEVEL)
    return Interval(successes / n, low, high, n)


def widen_at_edge(interval: Interval, trials: int) -> Interval:
    """Wilson bounds for a share that is exactly 0 or 1, where resampling cannot show any doubt.

    Resampling a perfect score gives perfect scores: bounds [1, 1] from three episodes promise too
    much. Bounds with any width, and estimates between 0 and 1, stay as they are.

    Args:
        interval: of a quantity between 0 and 1.
        trials: independent cases that the estimate rests on, at least: 20 failed episodes, say, for a
            false-positive rate; for an AUROC as many disjoint pairs as the smaller class has episodes.
    """
    if interval.estimate not in (0.0, 1.0) or interval.low != interval.high or trials < 1:
        return interval
    wilson = wilson_interval(trials if interval.estimate == 1.0 else 0, trials)
    return replace(interval, low=wilson.low, high=wilson.high)
