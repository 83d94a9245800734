"""Agreement between raters, and means that people's labels correct for a judge's errors.

Raters are rows of a matrix with NaN where a rater gave no rating. Intervals resample items, so they are about items
that were not rated, given these raters.

    agreement(np.array([[1, 0, 1, 1], [1, 0, 0, np.nan]]), seed=0).kappa.estimate
    corrected_mean(judge_scores_N, oracle_labels_N)     # labels are NaN where no person looked; `labelled` reads files
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import krippendorff
import numpy as np
from numpy.typing import ArrayLike

from guerdon.errors import DataError
from guerdon.evaluate.intervals import LEVEL, Float64, Interval, bootstrap_weighted, widen_at_edge

Level = Literal["nominal", "ordinal", "interval", "ratio"]


@dataclass(frozen=True)
class Agreement:
    """How far raters agree.

    Attributes:
        percent: share of the pairs of ratings of one item that are equal, pairs weighed alike.
        kappa: Cohen's kappa (1960) of two raters over the items that both rated; None for more raters.
        alpha: Krippendorff's alpha (2011) for any number of raters and missing ratings.
    """

    percent: Interval
    kappa: Interval | None
    alpha: Interval


def agreement(
    ratings_R_N: ArrayLike,
    *,
    level: Level = "nominal",
    groups: ArrayLike | None = None,
    reps: int = 1000,
    seed: int,
) -> Agreement:
    """Percent agreement, Cohen's kappa and Krippendorff's alpha with 95 % intervals.

    Args:
        ratings_R_N: (R, N) ratings of N items by R raters; NaN where there is none.
        level: of measurement, for alpha: how far apart two unequal ratings are.
        groups: (N,) labels; items with the same one are resampled together. None: each by itself.
        reps: bootstrap resamples of items.
        seed: of the bootstrap.

    Raises:
        DataError: fewer than two raters, or no item with two ratings.
    """
    ratings = np.asarray(ratings_R_N, dtype=np.float64)
    if ratings.ndim != 2 or len(ratings) < 2:
        raise DataError(f"agreement needs at least two raters, one per row; this has the shape {ratings.shape}")
    pairable = (~np.isnan(ratings)).sum(axis=0) >= 2
    if not pairable.any():
        raise DataError("agreement needs items that two raters rated, and there is none")
    ratings = ratings[:, pairable]
    values, index = np.unique(ratings[~np.isnan(ratings)], return_inverse=True)
    counts_N_V = np.zeros((ratings.shape[1], len(values)))
    np.add.at(counts_N_V, (np.nonzero(~np.isnan(ratings))[1], index), 1)
    total_N = counts_N_V.sum(axis=1)
    pairs_N, equal_N = total_N * (total_N - 1), (counts_N_V * (counts_N_V - 1)).sum(axis=1)
    items = np.arange(len(pairable)) if groups is None else np.asarray(groups)
    items = items[pairable]

    def percent(weights_K_N: Float64) -> Float64:
        return np.asarray(weights_K_N @ equal_N / (weights_K_N @ pairs_N))

    def alpha(weights_K_N: Float64) -> Float64:
        return np.array([_alpha(counts_N_V, row.astype(np.int64), values, level) for row in weights_K_N])

    drawn = {"reps": reps, "seed": seed, "n_undefined": int((~pairable).sum())}

    def figure(statistic: Callable[[Float64], Float64]) -> Interval:
        return widen_at_edge(bootstrap_weighted(statistic, items, **drawn), len(np.unique(items)))

    kappa = None if len(ratings) > 2 else figure(lambda weights: _kappa(ratings, values, weights))
    return Agreement(figure(percent), kappa, figure(alpha))


def _alpha(counts_N_V: Float64, times_N: np.ndarray, values: Float64, level: Level) -> float:
    """Krippendorff's alpha of items that occur so many times; undefined where all ratings are equal."""
    drawn = np.repeat(counts_N_V, times_N, axis=0)
    used = drawn.any(axis=0)
    if used.sum() < 2:
        return float("nan")
    found = krippendorff.alpha(value_counts=drawn[:, used], value_domain=values[used], level_of_measurement=level)
    return float(found)


def _kappa(ratings_2_N: Float64, values: Float64, weights_K_N: Float64) -> Float64:
    """(observed - expected) / (1 - expected), expected from each rater's own shares; NaN where that is 0 / 0."""
    first, second = (rater[:, None] == values for rater in ratings_2_N)
    n = weights_K_N.sum(axis=1)
    observed = weights_K_N @ (first & second).any(axis=1) / n
    expected = ((weights_K_N @ first) * (weights_K_N @ second)).sum(axis=1) / n**2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(expected < 1, (observed - expected) / (1 - expected), np.nan))


@dataclass(frozen=True)
class CorrectedMean:
    """The mean label of all items, of which people labelled a part.

    Attributes:
        corrected: mean of the judge's scores plus the mean error of those scores on the labelled items.
        labelled: mean of the labels alone, which uses no judge.
        judge: mean of the judge's scores alone, whose interval ignores the judge's errors.
        shift: mean score of the labelled items minus that of the others; an interval without 0 says that the labelled
            items are not a random part.
    """

    corrected: Interval
    labelled: Interval
    judge: Interval
    shift: Interval


def corrected_mean(judge_N: ArrayLike, labels_N: ArrayLike, groups: ArrayLike | None = None) -> CorrectedMean:
    """Prediction-powered mean (Angelopoulos et al. 2023, 2301.09633, §2.1) with a 95 % interval.

    The estimate is mean(f) over the unlabelled items minus mean(f - y) over the labelled ones; its variance is
    var(f) / N + var(f - y) / n. The items that people labelled must be a random part of all. Bounds are Student's with
    the degrees of freedom of Welch (1947), since n is often small. With groups the variance is that of the groups'
    summed deviations, those of groups with labelled and unlabelled items together.

    Args:
        judge_N: (N,) score of every item, in the unit of the labels.
        labels_N: (N,) labels, NaN where there is none.
        groups: (N,) whole numbers; items of one group, such as responses to a prompt, resemble one another. None: each
            by itself.

    Raises:
        DataError: fewer than two labelled, or fewer than two unlabelled items (or groups of them).
    """
    judge, labels = np.asarray(judge_N, dtype=np.float64), np.asarray(labels_N, dtype=np.float64)
    known, group = ~np.isnan(labels), np.arange(len(labels)) if groups is None else np.asarray(groups)
    sizes = [len(set(group[part])) for part in (known, ~known)]
    if min(sizes) < 2:
        raise DataError(
            f"a corrected mean needs two labelled and two unlabelled items at least; there are {sizes[0]} and "
            f"{sizes[1]}"
        )
    error, rest = labels[known] - judge[known], judge[~known]
    return CorrectedMean(
        _mean_interval([(rest, group[~known]), (error, group[known])]),
        _mean_interval([(labels[known], group[known])]),
        _mean_interval([(judge, group)]),
        _mean_interval([(judge[known], group[known]), (-rest, group[~known])]),
    )


def _mean_interval(parts: list[tuple[Float64, np.ndarray]]) -> Interval:
    """The sum of the means of samples, each with the groups of its items."""
    from scipy.stats import t

    estimate = float(sum(part.mean() for part, _ in parts))
    n, most = sum(len(part) for part, _ in parts), max(group.max() for _, group in parts) + 1
    sums = [np.bincount(group, (part - part.mean()) / len(part), most) for part, group in parts]
    sizes = np.array([len(np.unique(group)) for _, group in parts])
    own = np.array([one @ one for one in sums]) * sizes / (sizes - 1)
    total = own.sum() + (2 * sums[0] @ sums[1] if len(sums) == 2 else 0.0)
    if total <= 0:
        return Interval(estimate, estimate, estimate, n)
    half = float(t.ppf((1 + LEVEL) / 2, own.sum() ** 2 / (own**2 / (sizes - 1)).sum()) * np.sqrt(total))
    return Interval(estimate, estimate - half, estimate + half, n)
