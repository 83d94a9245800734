"""Agreement between raters, and means that people's labels correct for a judge's errors.

Raters are rows of a matrix with NaN where a rater gave no rating. Intervals resample items, so they are about items
that were not rated, given these raters.

    agreement(np.array([[1, 0, 1, 1], [1, 0, 0, np.nan]]), seed=0).kappa.estimate
    corrected_mean(judge_scores_N, oracle_labels_N)     # labels are NaN where no person looked
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import krippendorff
import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t

from guerdon.episodes.row_files import RowFields
from guerdon.errors import DataError
from guerdon.evaluate.intervals import LEVEL, Float64, Interval, bootstrap_weighted

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


def agreement(ratings_R_N: ArrayLike, *, level: Level = "nominal", reps: int = 1000, seed: int) -> Agreement:
    """Percent agreement, Cohen's kappa and Krippendorff's alpha with 95 % intervals.

    Args:
        ratings_R_N: (R, N) ratings of N items by R raters; NaN where there is none.
        level: of measurement, for alpha: how far apart two unequal ratings are.
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
    items = range(ratings.shape[1])

    def percent(weights_K_N: Float64) -> Float64:
        return np.asarray(weights_K_N @ equal_N / (weights_K_N @ pairs_N))

    def alpha(weights_K_N: Float64) -> Float64:
        return np.array([_alpha(counts_N_V, row.astype(np.int64), values, level) for row in weights_K_N])

    drawn = {"reps": reps, "seed": seed, "n_undefined": int((~pairable).sum())}
    return Agreement(
        bootstrap_weighted(percent, items, **drawn),
        None if len(ratings) > 2 else bootstrap_weighted(lambda w: _kappa(ratings, values, w), items, **drawn),
        bootstrap_weighted(alpha, items, **drawn),
    )


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
    """

    corrected: Interval
    labelled: Interval
    judge: Interval


def corrected_mean(judge_N: ArrayLike, labels_N: ArrayLike) -> CorrectedMean:
    """Prediction-powered mean (Angelopoulos et al. 2023, 2301.09633, §2.1) with a 95 % interval.

    The estimate is mean(f) over the unlabelled items minus mean(f - y) over the labelled ones; its variance is
    var(f) / N + var(f - y) / n. The items that people labelled must be a random part of all. Bounds are Student's with
    the degrees of freedom of Welch (1947), since n is often small.

    Args:
        judge_N: (N,) score of every item, in the unit of the labels.
        labels_N: (N,) labels, NaN where there is none.

    Raises:
        DataError: fewer than two labelled, or fewer than two unlabelled items.
    """
    judge, labels = np.asarray(judge_N, dtype=np.float64), np.asarray(labels_N, dtype=np.float64)
    known = ~np.isnan(labels)
    if known.sum() < 2 or (~known).sum() < 2:
        raise DataError(
            f"a corrected mean needs two labelled and two unlabelled items at least; there are {int(known.sum())} and "
            f"{int((~known).sum())}"
        )
    error = judge[known] - labels[known]
    return CorrectedMean(
        _mean_interval([judge[~known], -error]), _mean_interval([labels[known]]), _mean_interval([judge])
    )


def _mean_interval(parts: list[Float64]) -> Interval:
    """The sum of the means of independent samples."""
    estimate = float(sum(part.mean() for part in parts))
    of_mean = np.array([part.var(ddof=1) / len(part) for part in parts])
    n = sum(len(part) for part in parts)
    if not of_mean.any():
        return Interval(estimate, estimate, estimate, n)
    freedom = of_mean.sum() ** 2 / sum(v**2 / (len(part) - 1) for v, part in zip(of_mean, parts, strict=True))
    half = float(t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(of_mean.sum()))
    return Interval(estimate, estimate - half, estimate + half, n)


def judged_rows(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[Float64, Float64]:
    """Judge's scores and people's labels from rows with CJE's columns: `prompt_id`, `judge_score`, `oracle_label`.

    `oracle_label` is null or absent where no person looked; `true` and `false` count 1 and 0.

    Args:
        rows: place and row.

    Returns:
        (N,) scores and (N,) labels, NaN where there is none. Rows without a score are an error, not a 0.

    Raises:
        DataError: a row without `judge_score`, or a value that is not a finite number.
    """
    found = []
    for where, row in rows:
        fields = RowFields(row, where)
        found.append([
            fields.get("judge_score", (int, float, bool), "a number"),
            fields.get("oracle_label", (int, float, bool), "a number or null", default=np.nan),
        ])  # fmt: skip
        if not np.isfinite(found[-1][0]) or np.isinf(found[-1][1]):
            raise DataError(f"{where}: judge_score and oracle_label must be finite, these are {found[-1]}")
    scores, labels = np.array(found, dtype=np.float64).reshape(-1, 2).T
    return scores, labels
