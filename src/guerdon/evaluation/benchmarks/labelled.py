"""Scores of a judge or of a reward model against the labels that people gave: agreement, and the corrected mean.

A row has a label, null where no person looked (CJE's `oracle_label`, KTO's `label`, BeaverTails' `is_safe`, the
`helpfulness` of HelpSteer2, or another by `columns`), and the score of a judge (CJE's `judge_score`) or a response that
a reward model scores. Rows of one group, such as CJE's `prompt_id`, else with the same prompt, are resampled together.

    rows = read_labelled("judged.jsonl")
    section = label_figures(rows.judged(), rows.labels_N, rows.prompts, seed=0)
    print(*label_lines(section), sep="; ")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import krippendorff
import numpy as np
from numpy.typing import ArrayLike

from guerdon.episodes.preferences import ATTRIBUTES, is_preference
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluation.metrics import Table, classification_metrics, figure_table, number
from guerdon.evaluation.scoring.responses import scored_responses, turns_in
from guerdon.models.scores import failure_line
from guerdon.reading.chats import ChatError, asked_of
from guerdon.reading.codings import MEASURED, check_words, ends_of
from guerdon.reading.plan import Plan, cell_of
from guerdon.reading.reader import DataReading, Record, read
from guerdon.reading.shown import shown_record
from guerdon.reading.values import MOST_FIT, number_of
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
            ones, where the scores count `tuning` times.
        labelled: mean of the labels alone, which uses no judge.
        judge: mean of the judge's scores alone, whose interval ignores the judge's errors.
        shift: mean score of the labelled items minus that of the others; an interval without 0 says that the labelled
            items are not a random part.
        tuning: how much the judge counts, 0 to 1; 0: not at all, which gives the mean of the labels.
    """

    corrected: Interval
    labelled: Interval
    judge: Interval
    shift: Interval
    tuning: float


@dataclass(frozen=True)
class Draws:
    """How items were drawn for people, one after the other without replacement; NaN: the item could not be drawn.

    Attributes:
        draw_N: 1 of the first draw, 2 of the second, ...
        probability_N: with which the item was drawn from those that were left.
        pool: of how many items.
    """

    draw_N: Float64
    probability_N: Float64
    pool: int

    @property
    def chosen(self) -> bool:
        """Whether some items were more likely than others to be drawn."""
        known = ~np.isnan(self.draw_N)
        left_N = self.pool - self.draw_N[known] + 1
        return not np.allclose(self.probability_N[known] * left_N, 1)

    @property
    def of_all(self) -> bool:
        """Whether every item could be drawn."""
        return not np.isnan(self.draw_N).any()

    def only(self, keep_N: np.ndarray) -> Draws:
        """Those of some items."""
        return replace(self, draw_N=self.draw_N[keep_N], probability_N=self.probability_N[keep_N])

    def made(self, labelled_N: np.ndarray) -> int:
        """How many draws there were up to the last one with a label."""
        return int(self.draw_N[labelled_N].max(initial=0))

    def weights(self, labelled_N: np.ndarray) -> Float64:
        """R_LURE weights of the labelled items (Farquhar, Gal and Rainforth 2021, 2101.11665, eq. 3).

        v_m = 1 + (N - M) / (N - m) (1 / ((N - m + 1) q_m) - 1) of draw m of M from a pool of N; 1 where M = N.
        """
        draw, probability = self.draw_N[labelled_N], self.probability_N[labelled_N]
        made = self.made(labelled_N)
        if made >= self.pool:
            return np.ones(len(draw))
        left = self.pool - draw
        return np.asarray(1 + (self.pool - made) / left * (1 / ((left + 1) * probability) - 1))


def chosen_mean(
    judge_N: ArrayLike,
    labels_N: ArrayLike,
    draws: Draws,
    groups: ArrayLike | None = None,
    *,
    tuning: float | None = 1.0,
) -> CorrectedMean:
    """The mean label of all items that could be drawn, of which people labelled those that were drawn first.

    The estimate is mean(t f) over all items plus mean(v (y - t f)) over the labelled ones, with the weights v of
    `Draws.weights`, which make it unbiased whatever the draws preferred; that of the labels alone is mean(v y).
    Intervals are as those of `corrected_mean`.

    Args:
        judge_N: (N,) score of every item that could be drawn, in the unit of the labels.
        labels_N: (N,) labels, NaN where there is none.
        draws: of the items.
        groups: see `corrected_mean`.
        tuning: t; None: as `corrected_mean` has it.

    Raises:
        DataError: fewer than two labelled items, or groups of them.
    """
    judge, labels = np.asarray(judge_N, dtype=np.float64), np.asarray(labels_N, dtype=np.float64)
    known, group = ~np.isnan(labels), np.arange(len(labels)) if groups is None else np.asarray(groups)
    if len(set(group[known])) < 2:
        raise DataError(f"a corrected mean needs two labelled items at least; there are {int(known.sum())}")
    if tuning is None:
        tuning = 0.0 if known.all() else _power_tuning(judge, labels, known)
    weights = draws.weights(known)
    error = weights * (labels[known] - tuning * judge[known])
    corrected = _mean_interval([(tuning * judge, group), (error, group[known])])
    labelled = _mean_interval([(weights * labels[known], group[known])])
    if np.ptp(labels[known]) == 0:  # that others would be equal, too, is not known
        corrected, labelled = (replace(one, low=None, high=None) for one in (corrected, labelled))
    whole = _mean_interval([(judge, group)])
    shift = Interval(float(judge[known].mean() - judge.mean()), None, None, int(known.sum()))
    return CorrectedMean(corrected, labelled, whole, shift, tuning)


def corrected_mean(judge_N: ArrayLike, labels_N: ArrayLike, groups: ArrayLike | None = None) -> CorrectedMean:
    """Prediction-powered mean with power tuning (Angelopoulos, Duchi and Zrnic 2023, 2311.01453) with a 95 % interval.

    The estimate is mean(t f) over the unlabelled items minus mean(t f - y) over the labelled ones; its variance is
    var(t f) / N + var(t f - y) / n, and t makes it small (example 6.1 of the paper): cov(f, y) over the labelled items,
    over (1 + n / N) var(f) over all, within 0 and 1. The items that people labelled must be a random part of all.
    Bounds are Student's with the degrees of freedom of Welch (1947), since n is often small; labels that are all equal
    give none. With groups the variance
    is that of the groups' summed deviations, those of groups with labelled and unlabelled items together.

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
    tuning = _power_tuning(judge, labels, known)
    error, rest = labels[known] - tuning * judge[known], judge[~known]
    corrected = _mean_interval([(tuning * rest, group[~known]), (error, group[known])])
    labelled = _mean_interval([(labels[known], group[known])])
    if np.ptp(labels[known]) == 0:  # that others would be equal, too, is not known
        corrected, labelled = (replace(one, low=None, high=None) for one in (corrected, labelled))
    return CorrectedMean(
        corrected,
        labelled,
        _mean_interval([(judge, group)]),
        _mean_interval([(judge[known], group[known]), (-rest, group[~known])]),
        tuning,
    )


def _power_tuning(judge: Float64, labels: Float64, known: np.ndarray) -> float:
    """How much the scores of a judge count, see `corrected_mean`; 0 where they do not vary."""
    n, spread = known.sum(), judge.var(ddof=1)
    if spread == 0:
        return 0.0
    y, f = labels[known], judge[known]
    together = ((y - y.mean()) * (f - f.mean())).mean()
    return float(np.clip(together / ((1 + n / (~known).sum()) * spread), 0, 1))


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

Scale = tuple[float, float]
Scales = tuple[Scale | None, Scale | None]  # of scores and of labels
UNIT: Scale = (0.0, 1.0)
_HELP_STEER: Scale = (0.0, 4.0)  # 2406.08673
_UNKNOWN = "the {} ({:g} to {:g}) are on no known scale"
_SAY_SCALE = ", and the other side may be on another scale; say it, as in --columns label=NAME:1..5"


@dataclass(frozen=True, eq=False)
class LabelledResponses:
    """Rows of which people labelled a part.

    Attributes:
        reading: of the data.
        records: the rows that are used.
        labels_N: NaN where there is none.
        prompts: rows with the same one are resampled together.
        left_out: rows whose label cannot be read, and what is no row, by reason.
        draws: how the rows were drawn for people; None: the data does not say.
    """

    reading: DataReading
    records: Sequence[Record]
    labels_N: Float64
    prompts: Sequence[str]
    left_out: Mapping[str, int]
    draws: Draws | None = None

    def judged(self) -> list[float | Failure]:
        """The scores in the rows; a null one was not measured.

        Raises:
            DataError: no row has one, or more than a few are not numbers.
        """
        use = self.reading.plan.uses.get("reward")
        column = "judge_score" if use is None else use.column
        cells = [record.roles.get("reward") for record in self.records]
        if all(cell is None for cell in cells):
            raise DataError(
                f"no row has a {column}; name the model that scores them (--model)",
                where=self.records[0].where,
                field=column,
            )
        check_words(self.reading.data, "reward", column, self.reading.sketches[column])
        values = [None if cell is None else MEASURED.read(cell, {}) for cell in cells]
        _refuse_other_than_numbers(column, self.records, cells, values)
        found: list[float | Failure] = []
        for cell, value in zip(cells, values, strict=True):
            if cell is None:
                found.append(Failure("no_score", f"{column} is null"))
            elif value is None:
                found.append(Failure("unreadable_score", f"{column} is {cell!r}"[:80]))
            else:
                found.append(value)
        return found

    def responses(self) -> list[Solution | Failure]:
        """The response of each row.

        Raises:
            DataError: no column is a response.
        """
        responses_of = scored_responses(self.reading)
        return [responses_of(one.row, one.where, str(k)).found[0] for k, one in enumerate(self.records)]

    @property
    def scales(self) -> Scales:
        """The scales of the scores in the rows and of the labels, where they are said or those of HelpSteer2."""
        uses = self.reading.plan.uses
        own, label, rating = (
            ends_of(uses[role].coding) if role in uses else None for role in ("reward", "label", "rating")
        )
        rated = "label" not in uses and {*ATTRIBUTES} <= {*self.reading.sketches}
        return own, label or rating or (_HELP_STEER if rated else None)

    @property
    def read_as(self) -> dict[str, Any]:
        """What the columns were taken for, see `shown_record`."""
        return shown_record(self.reading, used=len(self.records), left_out=self.left_out)


def read_labelled(
    data: str, *, columns: str | Mapping[str, str] | None = None, stored: Mapping[str, str] | None = None
) -> LabelledResponses:
    """The rows of a file, a folder or a hub data set.

    Args:
        data: see `read`.
        columns: see `read`.
        stored: see `read`.

    Raises:
        ConfigError: as `read`.
        DataError: it cannot be read, a label could be two things, more than a few are not what the others are, no row
            has a label, or it holds comparisons.
    """
    return labelled_in(read(data, columns=columns, stored=stored))


def labelled_in(reading: DataReading) -> LabelledResponses:
    """The rows of data that was read.

    Raises:
        DataError: as `read_labelled`.
    """
    reading.need_rows()
    reading.need("label")
    column = _label_column(reading)
    left_out = Counter(reading.bad)
    records = list(reading.records())
    cells = [cell_of(one.row, column) for one in records]
    values = [_label(one, reading.plan, cell) for one, cell in zip(records, cells, strict=True)]
    _refuse_other_than_numbers(column, records, cells, values)
    known = [value is not None or _is_null(cell) for value, cell in zip(values, cells, strict=True)]
    left_out.update({"unreadable_label": known.count(False)} if not all(known) else {})
    labels = [np.nan if value is None else value for value, kept in zip(values, known, strict=True) if kept]
    kept_records = [one for one, kept in zip(records, known, strict=True) if kept]
    if np.isnan(labels).all():
        raise DataError(f"no row has a label of a person ({column})", where=reading.data, field=column)
    return LabelledResponses(
        reading, kept_records, np.array(labels), list(map(_group, kept_records)), left_out, _draws_of(kept_records)
    )


class LabelledTurns(NamedTuple):
    """Turns of conversations, and how good they truly were.

    Attributes:
        turns: of the assistant, each with what was said before it.
        labels_N: rewards of a world or labels of people; NaN where there is none.
        prompts: turns with the same one are resampled together.
        read_as: what the columns were taken for, see `shown_record`.
    """

    turns: list[Solution | Failure]
    labels_N: Float64
    prompts: list[str]
    read_as: dict[str, Any]


def read_turns(
    data: str, *, columns: str | Mapping[str, str] | None = None, stored: Mapping[str, str] | None = None
) -> LabelledTurns:
    """Conversations with a list of labels, one for each turn of the assistant: those of a run, or `step_labels`.

    Args:
        data: see `read`.
        columns: see `read`.
        stored: see `read`.

    Raises:
        ConfigError: as `read`.
        DataError: it cannot be read, or no turn has a label.
    """
    reading = read(data, columns=columns, stored=stored)
    reading.need_rows()
    scored_responses(reading, turns=True)
    if not reading.plan.has("step_labels"):
        raise DataError(
            "no column has a label for each turn: name it, --columns step_labels=NAME", where=data, field="step_labels"
        )
    turns, labels, prompts = list[Solution | Failure](), list[float](), list[str]()
    left_out, used = Counter(reading.bad), 0
    for record in reading.records():
        found, cells = turns_in(record), record.roles.get("step_labels")
        if isinstance(found, Failure):
            left_out[found.reason] += 1
        elif not isinstance(cells, list | tuple) or len(cells) != len(found):
            left_out["not a label for each turn"] += 1
        else:
            turns += found
            labels += [np.nan if (value := number_of(cell)) is None else value for cell in cells]
            prompts += [_group(record)] * len(found)
            used += 1
    if np.isnan(labels).all():
        why = ", ".join(f"{n} x {reason}" for reason, n in left_out.items()) or "all labels are null, or no numbers"
        raise DataError(f"no turn of the assistant has a label ({why})", where=data, field="step_labels")
    return LabelledTurns(turns, np.array(labels), prompts, shown_record(reading, used=used, left_out=left_out))


_DRAW_COLUMNS = ("draw", "draw_probability", "pool")


def _draws_of(records: Sequence[Record]) -> Draws | None:
    """How the rows were drawn, where they have the columns of `guerdon annotate`; nulls: it was not in the pool.

    Raises:
        DataError: what stands there is no draw.
    """
    if not any(all(one.row.get(name) is not None for name in _DRAW_COLUMNS) for one in records):
        return None
    found = np.full((3, len(records)), np.nan)
    for k, record in enumerate(records):
        cells = [record.row.get(name) for name in _DRAW_COLUMNS]
        numbers = [number_of(cell) for cell in cells]
        if all(map(_is_null, cells)):
            continue
        draw, probability, pool = (np.nan if one is None else one for one in numbers)
        if not (1 <= draw <= pool and draw % 1 == pool % 1 == 0 and 0 < probability <= 1):
            raise DataError(
                f"draw {cells[0]}, draw_probability {cells[1]} and pool {cells[2]} are no draw: a draw is a number "
                "from 1 to pool, its probability above 0 and at most 1",
                where=record.where,
                field="draw",
            )
        found[:, k] = draw, probability, pool
    pools = np.unique(found[2][~np.isnan(found[2])])
    if len(pools) > 1:
        raise DataError(
            f"draws from pools of {pools[0]:g} and {pools[-1]:g} rows cannot be weighted together; evaluate each file "
            "of guerdon annotate by itself",
            where=records[0].where,
            field="pool",
        )
    return Draws(found[0], found[1], int(pools[0]))


def _label_column(reading: DataReading) -> str:
    """The column with the label of people: a label, or a rating.

    Raises:
        DataError: there is none.
    """
    plan = reading.plan
    if plan.has("label"):
        return plan.uses["label"].column
    if plan.has("rating"):
        return plan.uses["rating"].column
    if plan.ratings:
        return plan.ratings[0]
    if is_preference(plan):
        raise DataError(
            "a comparison of responses has no label of its own; name the file in evaluate.pairs",
            where=reading.data,
            field="label",
        )
    raise DataError(
        "no row has a label of a person (oracle_label); name its column: --columns label=NAME",
        where=reading.data,
        field="label",
    )


def _label(record: Record, plan: Plan, cell: Any) -> float | None:
    """The label of a row as a number; None: it has none, or it cannot be read."""
    if plan.has("label"):
        value = record.roles["label"]
    elif plan.has("rating"):
        value = record.roles["rating"]
    else:
        value = cell
    return number_of(value)


def _is_null(cell: Any) -> bool:
    return cell is None or cell != cell


def _refuse_other_than_numbers(
    column: str, records: Sequence[Record], cells: Sequence[Any], values: Sequence[float | None]
) -> None:
    """Refuse a column of which more than a few cells are not read.

    Raises:
        DataError: with the first of them.
    """
    filled = [k for k, cell in enumerate(cells) if not _is_null(cell)]
    lost = [k for k in filled if values[k] is None]
    if len(lost) > (1 - MOST_FIT) * len(filled):
        raise DataError(
            f"{column} must be a finite number or null, this is {str(cells[lost[0]])[:80]!r}",
            where=records[lost[0]].where,
            field=column,
        )


def _group(record: Record) -> str:
    """What rows are resampled together by: their group, else what was asked, else each by itself."""
    if record.roles.get("group") is not None:
        return str(record.roles["group"])
    try:
        asked = asked_of(record.roles)
    except ChatError:
        asked = None
    return record.where if asked is None else str(asked)


def label_figures(
    values: Sequence[float | Failure],
    labels_N: Float64,
    prompts: Sequence[str],
    *,
    threshold: float | None = None,
    scales: Scales = (None, None),
    draws: Draws | None = None,
    reps: int = 1000,
    seed: int,
) -> dict[str, Any]:
    """Agreement of scores with labels, how well they rank, and the mean label of all rows.

    Labels of two values are compared with decisions, score > threshold. Other ones are compared with the scores as
    numbers where both are of one coding: percent and kappa where all are whole numbers, and Krippendorff's alpha of
    numbers. Of one coding are columns whose scales are known, which are mapped to 0..1 where they differ, and columns
    with the same smallest and the same largest number. In all other cases ranks alone are compared, and the reason is
    `no_agreement`.

    Args:
        values: one for each row, or why there is none.
        labels_N: NaN where no person looked.
        prompts: rows with the same one are resampled together.
        threshold: None: the middle of the scores' scale; of scores of no known scale there are no decisions.
        scales: lowest and highest score, and label, that there can be; None: not known. Numbers between 0 and 1 are on
            the scale of these.
        draws: how the rows were drawn for people; None: at random, or the data does not say.
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
        "no_agreement": None, "scales": {}, "draws": None,
        "failures": dict(Counter(value.reason for value in values if isinstance(value, Failure))),
    }  # fmt: skip
    if not both.any():
        return found | {"no_agreement": "no row has both a label and a score"}
    own, of_labels = _scales_of(judge[measured], labels_N[~np.isnan(labels_N)], scales)
    found["scales"] = {"scores": own, "labels": of_labels}
    ends = _two_values(labels_N, of_labels)
    if ends is None:
        found |= _as_numbers(x, y, (own, of_labels), groups=groups[both], **drawn)
    else:
        found["scales"]["labels"] = ends
        at = threshold
        if threshold is None and own is not None:
            at = sum(own) / 2
        found["threshold"] = at
        table = Table(y > ends[0], x, groups[both], int((~both).sum()))
        ranks = classification_metrics(table, threshold=at, probabilities=own == UNIT, **drawn)
        found["metrics"] = {name: asdict(one) for name, one in ranks.items()}
        if at is None:
            found["no_agreement"] = f"{_UNKNOWN.format('scores', x.min(), x.max())}, so that none is a decision"
        else:
            found["agreement"] = asdict(agreement([x > at, y > ends[0]], level="nominal", groups=groups[both], **drawn))
    if draws is not None:
        found |= _drawn_figures(judge, labels_N, groups, draws, same_scale=own is not None and own == of_labels)
    elif min(len(set(groups[both])), len(set(groups[measured & ~both]))) >= 2:
        found["mean"] = asdict(corrected_mean(judge[measured], labels_N[measured], groups[measured]))
    return found


def _drawn_figures(
    judge_N: Float64, labels_N: Float64, groups_N: IntArray, draws: Draws, *, same_scale: bool
) -> dict[str, Any]:
    """The mean of rows of which some were drawn for people, and what to know of the draws.

    Draws without a score or without a label are missing at random, as far as is known, and counted.
    """
    of_pool = ~np.isnan(draws.draw_N)
    kept = of_pool & ~np.isnan(judge_N)
    labelled = kept & ~np.isnan(labels_N)
    made = draws.made(labelled)
    known = {
        "pool": draws.pool, "made": made, "labelled": int(labelled.sum()), "chosen": draws.chosen,
        "without_value": made - int(labelled.sum()), "of_all_rows": draws.of_all,
    }  # fmt: skip
    if len(set(groups_N[labelled])) < 2:
        return {"draws": known}
    mean = chosen_mean(
        judge_N[kept], labels_N[kept], draws.only(kept), groups_N[kept], tuning=1.0 if same_scale else None
    )
    return {"draws": known, "mean": asdict(mean)}


def _scales_of(scores: Float64, labels: Float64, known: Scales) -> Scales:
    """The scales of scores and labels: as known, 0 to 1 where all numbers lie there, or one where both end alike."""
    ends = [(float(side.min()), float(side.max())) for side in (scores, labels)]
    found: list[Scale | None] = []
    for (low, high), said in zip(ends, known, strict=True):
        own = said if said is not None and said[0] <= low and high <= said[1] else None
        if own is None and low >= 0 and high <= 1:
            own = UNIT
        found.append(own)
    if ends[0] == ends[1] and found == [None, None]:
        return ends[0], ends[1]
    own, of_labels = found
    if own is None and of_labels == ends[0]:
        own = of_labels
    if of_labels is None and own == ends[1]:
        of_labels = own
    return own, of_labels


def _two_values(labels_N: Float64, scale: Scale | None) -> Scale | None:
    """The lower and the higher of two values that are all that labels have; None: they are numbers on a scale.

    Of 0 and 1 one may be missing. Labels that are known to be of a larger scale are numbers.
    """
    values = np.unique(labels_N[~np.isnan(labels_N)])
    if np.isin(values, UNIT).all() and scale in (None, UNIT):
        return UNIT
    ends = (float(values[0]), float(values[-1]))
    return ends if len(values) == 2 and scale in (None, ends) else None


def _as_numbers(x: Float64, y: Float64, scales: Scales, *, groups: IntArray, reps: int, seed: int) -> dict[str, Any]:
    """How well scores rank labels of more than two values, and how well they agree where both are of one coding."""
    from scipy.stats import rankdata

    rank_x, rank_y = rankdata(x), rankdata(y)
    rank = bootstrap_weighted(lambda w: _correlation(rank_x, rank_y, w), groups, reps=reps, seed=seed)
    found: dict[str, Any] = {"metrics": {"spearman": {**asdict(rank), "baseline": 0.0}}}
    own, of_labels = scales
    if own is None or of_labels is None:
        what, side = ("labels", y) if of_labels is None else ("scores", x)
        return found | {"no_agreement": _UNKNOWN.format(what, side.min(), side.max()) + _SAY_SCALE}
    whole = own == of_labels and (x % 1 == 0).all() and (y % 1 == 0).all()
    if own != of_labels:
        x, y = ((side - low) / (high - low) for side, (low, high) in ((x, own), (y, of_labels)))
    agreed = asdict(agreement([x, y], level="interval", groups=groups, reps=reps, seed=seed))
    return found | {"agreement": agreed if whole else {"alpha": agreed["alpha"]}}


def _correlation(x_N: Float64, y_N: Float64, weights_R_N: Float64) -> Float64:
    """(R,) weighted Pearson correlation; NaN where a side does not vary."""
    total = weights_R_N.sum(axis=1)
    x, y = (ratio(weights_R_N @ side, total) for side in (x_N, y_N))
    xx, yy, xy = (ratio(weights_R_N @ product, total) for product in (x_N * x_N, y_N * y_N, x_N * y_N))
    return ratio(xy - x * y, np.sqrt(np.clip(xx - x * x, 0, None) * np.clip(yy - y * y, 0, None)))


def label_lines(section: Mapping[str, Any], what: str = "labels of people", unit: str = "rows") -> list[str]:
    """The section `labels` of a card, or one with the same figures of something else."""
    at = section["threshold"]
    agreed = {f"agreement: {name}": one for name, one in section["agreement"].items() if one is not None}
    means = {f"mean label: {name}": one for name, one in section["mean"].items() if name != "tuning"}
    shift = means.pop("mean label: shift", None)
    lines = [
        f"== {what}: {section['labelled']} of {section['rows']} {unit}",
        *figure_table([*agreed.items(), *section["metrics"].items(), *means.items()]),
        *([] if at is None else [f"decisions: score above {number(at)}"]),
    ]
    if section["no_agreement"] is not None:
        lines.append(f"no agreement: {section['no_agreement']}")
    if section["mean"]:
        lines.append(f"corrected mean: the scores count {section['mean']['tuning']:.3f} times")
    if section.get("draws") is not None:
        lines += _draw_lines(section["draws"], has_mean=bool(section["mean"]))
    elif shift is None:
        lines.append("no corrected mean: it needs labelled and unlabelled rows of two prompts each")
    elif shift["low"] > 0 or shift["high"] < 0:
        lines.append(
            "WARNING: labelled and unlabelled rows have different scores (mean difference "
            f"{shift['estimate']:+.3f} [{shift['low']:+.3f}, {shift['high']:+.3f}]); the corrected mean holds only if "
            "the labelled rows are a random part"
        )
    return [*lines, failure_line(section["failures"])]


def _draw_lines(draws: Mapping[str, Any], *, has_mean: bool) -> list[str]:
    """What to know of rows that were drawn for people."""
    lines = [f"draws: {draws['made']} of {draws['pool']} rows, {draws['without_value']} of them without a value"]
    if draws["chosen"]:
        lines.append(
            "the labelled rows were chosen: agreement and metrics are those of chosen rows; means are weighted by the "
            "probabilities of the draws (R_LURE)"
        )
    if not draws["of_all_rows"]:
        lines.append(f"the mean is about the {draws['pool']} rows that could be drawn, and not about the others")
    if not has_mean:
        lines.append("no corrected mean: it needs two labelled rows at least")
    return lines
