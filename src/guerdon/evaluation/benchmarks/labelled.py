"""Scores of a judge or of a reward model against the labels that people gave: agreement, and the corrected mean.

A row has CJE's columns: `oracle_label`, null or absent where no person looked, and `judge_score`, or a response that a
reward model scores (`prompt` and `response`, or `messages`). Rows with the same `prompt_id` (else the same prompt)
are resampled together. The label of a row of KTO (`completion`, `label`) or of HelpSteer2 (`helpfulness`) is read, too.

    rows = read_labelled("judged.jsonl")
    section = label_figures(rows.judged(), rows.labels_N, rows.prompts, seed=0)
    print(*label_lines(section), sep="; ")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import krippendorff
import numpy as np
from numpy.typing import ArrayLike

from guerdon.episodes.preferences import ATTRIBUTES, comparison, is_preference
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluation.metrics import Table, classification_metrics, figure_table, number
from guerdon.evaluation.scoring.score_file import responses_to_score
from guerdon.models.scores import failure_line
from guerdon.reading.data_sets import data_parts
from guerdon.reading.fields import RowFields
from guerdon.statistics.classification import ratio
from guerdon.statistics.intervals import LEVEL, Float64, Interval, bootstrap_weighted, widen_at_edge
from guerdon.types import Failure, IntArray

# ---------------------------------------------------------------------------------------------------------------------
# Agreement between raters, and means that people's labels correct for a judge's errors.
#
# Raters are rows of a matrix with NaN where a rater gave no rating. Intervals resample items, so they are about items
# that were not rated, given these raters.
#
#     agreement(np.array([[1, 0, 1, 1], [1, 0, 0, np.nan]]), seed=0).kappa.estimate
#     corrected_mean(judge_scores_N, oracle_labels_N)     # labels are NaN where no person looked
# ---------------------------------------------------------------------------------------------------------------------


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
        corrected: mean of the judge's scores on the unlabelled items plus the mean error of its scores on the labelled
            ones.
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


# ---------------------------------------------------------------------------------------------------------------------


SCORE, LABEL = "judge_score", "oracle_label"
_WORDS = {"true": 1.0, "false": 0.0}  # of files of columns, whose cells are text


@dataclass(frozen=True, eq=False)
class LabelledResponses:
    """Rows of which people labelled a part.

    Attributes:
        rows: place and columns.
        labels_N: NaN where there is none.
        prompts: rows with the same one are resampled together.
    """

    rows: Sequence[tuple[str, Mapping[str, Any]]]
    labels_N: Float64
    prompts: Sequence[str]

    def judged(self) -> list[float | Failure]:
        """The scores in the rows; a null one was not measured.

        Raises:
            DataError: no row has one, or one is not a number.
        """
        if not any(row.get(SCORE) is not None for _, row in self.rows):
            raise DataError(
                f"no row has a {SCORE}; name the model that scores them (--model)", where=self.rows[0][0], field=SCORE
            )
        found = (_number(row, SCORE, where) for where, row in self.rows)
        return [Failure("no_score", f"{SCORE} is null") if value is None else value for value in found]

    def responses(self) -> list[Solution | Failure]:
        """The response of each row.

        Raises:
            DataError: a row has none.
        """
        return [responses_to_score(row, where, str(k))[0] for k, (where, row) in enumerate(self.rows)]


def read_labelled(data: str) -> LabelledResponses:
    """The rows of a file, a folder or a hub data set.

    Raises:
        DataError: it cannot be read, a label is not a number, no row has a label, or it holds comparisons.
    """
    rows: list[tuple[str, Mapping[str, Any]]] = []
    labels: list[float] = []
    prompts: list[str] = []
    for part in data_parts(data):
        for where, row in part.rows():
            if isinstance(row, DataError):
                raise row
            value = _label(RowFields(row, where).row, where)
            rows.append((where, row))
            labels.append(np.nan if value is None else value)
            prompt = next((row[key] for key in ("prompt_id", "prompt", "question") if row.get(key) is not None), where)
            prompts.append(str(prompt))
    if np.isnan(labels).all():
        raise DataError(f"no row has a label of a person ({LABEL})", where=data, field=LABEL)
    return LabelledResponses(rows, np.array(labels), prompts)


def _label(row: Mapping[str, Any], where: str) -> float | None:
    if LABEL in row or not is_preference(row):
        return _number(row, LABEL, where)
    one = comparison(row, where, "", every=True)
    if isinstance(one, str):
        return None
    if len(one.responses) != 1:
        raise DataError(
            "a comparison of responses has no label of its own; name the file in evaluate.pairs", where=where
        )
    return one.attributes.get(ATTRIBUTES[0]) if one.label is None else float(one.label)


def _number(row: Mapping[str, Any], key: str, where: str) -> float | None:
    """A number, a truth value, or either as text; None where it is null or absent."""
    value = row.get(key)
    try:
        found = None if value is None else float(_WORDS.get(str(value).strip().casefold(), value))
    except (TypeError, ValueError, OverflowError):
        found = np.nan
    if found is not None and not np.isfinite(found):
        raise DataError(f"{key} must be a finite number or null, this is {str(value)[:80]!r}", where=where, field=key)
    return found


def label_figures(
    values: Sequence[float | Failure],
    labels_N: Float64,
    prompts: Sequence[str],
    *,
    threshold: float | None = None,
    reps: int = 1000,
    seed: int,
) -> dict[str, Any]:
    """Agreement of scores with labels, how well they rank, and the mean label of all rows.

    Labels of 0 and 1 alone are compared with decisions, score > threshold; other ones with the scores themselves, where
    those are on the labels' scale (between the smallest and the largest label, or 0 and 1): percent and kappa where all
    are whole numbers, and Krippendorff's alpha of numbers.

    Args:
        values: one for each row, or why there is none.
        labels_N: NaN where no person looked.
        prompts: rows with the same one are resampled together.
        threshold: None: 0.5 for scores between 0 and 1, else there are no decisions.
        reps: bootstrap resamples.
        seed: of the bootstrap.

    Returns:
        Plain values for `evaluation.json`.
    """
    judge = np.array([np.nan if isinstance(value, Failure) else value for value in values])
    measured = ~np.isnan(judge)
    both = measured & ~np.isnan(labels_N)
    x, y = judge[both], labels_N[both]
    groups = np.unique(np.array(prompts, dtype=str), return_inverse=True)[1]
    drawn: dict[str, Any] = {"reps": reps, "seed": seed}
    found: dict[str, Any] = {
        "rows": len(judge), "labelled": int(both.sum()), "threshold": None, "agreement": {}, "metrics": {}, "mean": {},
        "failures": dict(Counter(value.reason for value in values if isinstance(value, Failure))),
    }  # fmt: skip
    if not both.any():
        return found
    if np.isin(y, (0, 1)).all():
        unit = bool(x.min() >= 0 and x.max() <= 1)
        at = threshold
        if threshold is None and unit:
            at = 0.5
        found["threshold"] = at
        table = Table(y > 0, x, groups[both], int((~both).sum()))
        ranks = classification_metrics(table, threshold=at, probabilities=unit, **drawn)
        found["metrics"] = {name: asdict(one) for name, one in ranks.items()}
        if at is not None:
            found["agreement"] = asdict(agreement([x > at, y], level="nominal", groups=groups[both], **drawn))
    else:
        found |= _as_numbers(x, y, groups=groups[both], **drawn)
    if min(len(set(groups[both])), len(set(groups[measured & ~both]))) >= 2:
        found["mean"] = asdict(corrected_mean(judge[measured], labels_N[measured], groups[measured]))
    return found


def _as_numbers(x: Float64, y: Float64, *, groups: IntArray, reps: int, seed: int) -> dict[str, Any]:
    """How well scores rank labels that are not 0 and 1 alone, and how well they agree where they are on one scale."""
    from scipy.stats import rankdata

    rank_x, rank_y = rankdata(x), rankdata(y)
    rank = bootstrap_weighted(lambda w: _correlation(rank_x, rank_y, w), groups, reps=reps, seed=seed)
    found: dict[str, Any] = {"metrics": {"spearman": {**asdict(rank), "baseline": 0.0}}}
    if x.min() >= min(0, y.min()) and x.max() <= max(1, y.max()):
        agreed = asdict(agreement([x, y], level="interval", groups=groups, reps=reps, seed=seed))
        whole = (x % 1 == 0).all() and (y % 1 == 0).all()
        found["agreement"] = agreed if whole else {"alpha": agreed["alpha"]}
    return found


def _correlation(x_N: Float64, y_N: Float64, weights_R_N: Float64) -> Float64:
    """(R,) weighted Pearson correlation; NaN where a side does not vary."""
    total = weights_R_N.sum(axis=1)
    x, y = (ratio(weights_R_N @ side, total) for side in (x_N, y_N))
    xx, yy, xy = (ratio(weights_R_N @ product, total) for product in (x_N * x_N, y_N * y_N, x_N * y_N))
    return ratio(xy - x * y, np.sqrt(np.clip(xx - x * x, 0, None) * np.clip(yy - y * y, 0, None)))


def label_lines(section: Mapping[str, Any]) -> list[str]:
    """The section `labels` of a card."""
    at = section["threshold"]
    agreed = {f"agreement: {name}": one for name, one in section["agreement"].items() if one is not None}
    means = {f"mean label: {name}": one for name, one in section["mean"].items()}
    shift = means.pop("mean label: shift", None)
    lines = [
        f"== labels of people: {section['labelled']} of {section['rows']} rows",
        *figure_table([*agreed.items(), *section["metrics"].items(), *means.items()]),
        *([] if at is None else [f"decisions: score above {number(at)}"]),
    ]
    if not section["labelled"]:
        lines.append("no agreement: no row has both a label and a score")
    elif not agreed:
        lines.append("no agreement: the scores are on another scale than the labels")
    if shift is None:
        lines.append("no corrected mean: it needs labelled and unlabelled rows of two prompts each")
    elif shift["low"] > 0 or shift["high"] < 0:
        lines.append(
            "WARNING: labelled and unlabelled rows have different scores (mean difference "
            f"{shift['estimate']:+.3f} [{shift['low']:+.3f}, {shift['high']:+.3f}]); the corrected mean holds only if "
            "the labelled rows are a random part"
        )
    return [*lines, failure_line(section["failures"])]
