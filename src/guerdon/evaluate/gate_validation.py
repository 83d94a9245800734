"""How well the gate predicts what a reward model does in RL, on tasks and kinds of models left out of its fit.

Every number of `GateValidation` is of predictions that saw nothing of the task they are for. Intervals resample reward
models, with the tasks fixed: they are too narrow for "such tasks in general".

    validation = validate_gate(read_gate_table("gate.parquet").of("robot"), seed=0)
    print(validation.correlation.estimate, validation.ceiling, validation.false_passes)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from guerdon.evaluate.classification import ece
from guerdon.evaluate.gate import common_features, fit_gate
from guerdon.evaluate.gate_table import OUTCOMES, GateTable
from guerdon.evaluate.intervals import Float64, Interval, percentile_interval, resampling_weights, wilson_interval

RECALL = 0.8
HARMS, HELPS = OUTCOMES.index("harms"), OUTCOMES.index("helps")
LOWER_IS_BETTER = {
    "epic", "dard", "starc", "brier", "ece", "progress_mae", "false_positive_rate", "row_false_positive_rate",
    "far_false_positives", "near_false_positives", "far_error", "near_error", "near_miss", "wandering", "pixel_change",
    "probe_black_frame", "probe_frozen_first_frame", "probe_reversed_video", "probe_goal_pasted_first",
}  # fmt: skip
"""Features that are distances, errors or failures; so are those named `attack_...`."""
PUBLISHED = ("auroc", "voc", "epic", "dard", "starc", "reward_variance", "accuracy")
"""Single metrics that the predictor is compared with, where a table has them."""


@dataclass(frozen=True, eq=False)
class OutOfTask:
    """Predictions for every reward model of a table, each by a predictor that saw nothing of its task.

    Attributes:
        scores_N: what ranks them. Not the expected gain: its constant, the mean of the other tasks, is the lower, the
            higher the gains of the task itself.
        gains_N: expected gains.
        probabilities_N_3: of `OUTCOMES`.
        low_N: lower bound of the gain.
        high_N: upper bound.
        unknown_N: whether the answer would be "unknown".
    """

    scores_N: Float64
    gains_N: Float64
    probabilities_N_3: Float64
    low_N: Float64
    high_N: Float64
    unknown_N: NDArray[np.bool_]


def out_of_task(table: GateTable, names: Sequence[str]) -> OutOfTask:
    """Leave one task out: fit to the others, predict its reward models.

    Raises:
        ValueError: fewer than three tasks, so that a fit would have fewer than two.
    """
    n = len(table)
    scores, gains, low, high = np.empty((4, n))
    found = OutOfTask(scores, gains, np.empty((n, len(OUTCOMES))), low, high, np.empty(n, dtype=np.bool_))
    for task in table.tasks:
        inside = table.tasks_N == task
        predictor = fit_gate(table.take(~inside), names)
        x_M_F = table.take(inside).columns(names)
        expected = predictor.gains(x_M_F)
        found.scores_N[inside] = predictor.weights.scores(x_M_F)
        found.gains_N[inside] = expected
        found.probabilities_N_3[inside] = predictor.probabilities(x_M_F)
        found.low_N[inside], found.high_N[inside] = expected + predictor.errors[0], expected + predictor.errors[1]
        found.unknown_N[inside] = predictor.unknown(x_M_F)
    return found


def spearman_weighted(x_N: Float64, y_N: Float64, weights_R_N: Float64) -> Float64:
    """(R,) Spearman correlation where case n occurs `weights[r, n]` times; NaN where a side is constant.

    Args:
        x_N: one side.
        y_N: the other.
        weights_R_N: whole numbers, as a bootstrap draws them.
    """
    x, y = (_weighted_ranks(side, weights_R_N) for side in (x_N, y_N))
    total = weights_R_N.sum(axis=1, keepdims=True)
    x, y = (side - (weights_R_N * side).sum(axis=1, keepdims=True) / total for side in (x, y))
    covariance, of_x, of_y = ((weights_R_N * product).sum(axis=1) for product in (x * y, x * x, y * y))
    scale = np.sqrt(of_x * of_y)
    return np.asarray(np.divide(covariance, scale, out=np.full(len(scale), np.nan), where=scale > 1e-9))


def _weighted_ranks(values_N: Float64, weights_R_N: Float64) -> Float64:
    """(R, N) mean ranks among repeated cases, up to a constant."""
    order = np.argsort(values_N, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(values_N[order]) != 0])
    sizes = np.add.reduceat(weights_R_N[:, order], starts, axis=1)
    group = np.cumsum(np.r_[False, np.diff(values_N[order]) != 0])
    ranks = np.empty(weights_R_N.shape)
    ranks[:, order] = (np.cumsum(sizes, axis=1) - sizes / 2)[:, group]
    return ranks


def correlation(x_N: Float64, y_N: Float64, *, reps: int, seed: int) -> Interval:
    """Spearman correlation with a bootstrap interval over cases; those where either is NaN are left out and counted."""
    known = np.isfinite(x_N) & np.isfinite(y_N)
    n = int(known.sum())
    if n == 0:
        return Interval(None, None, None, 0, len(known))
    drawn = spearman_weighted(x_N[known], y_N[known], resampling_weights(n, reps, np.random.default_rng(seed)))
    return percentile_interval(drawn[0], drawn[1:], n=n, n_undefined=len(known) - n, can_vary=n > 1)


def correlation_difference(a_N: Float64, b_N: Float64, gains_N: Float64, *, reps: int, seed: int) -> Interval:
    """Spearman correlation of `a` with the gain minus that of `b`, on the cases and resamples where both exist."""
    known = np.isfinite(a_N) & np.isfinite(b_N) & np.isfinite(gains_N)
    n = int(known.sum())
    if n == 0:
        return Interval(None, None, None, 0, len(known))
    weights = resampling_weights(n, reps, np.random.default_rng(seed))
    drawn = spearman_weighted(a_N[known], gains_N[known], weights)
    drawn = drawn - spearman_weighted(b_N[known], gains_N[known], weights)
    return percentile_interval(drawn[0], drawn[1:], n=n, n_undefined=len(known) - n, can_vary=n > 1)


def reliability(gains_N_S: Float64) -> float | None:
    """Split-half reliability of the outcomes over RL seeds, stepped up to all seeds (Spearman 1910, Brown 1910).

    Spearman correlation r of the mean gains of two disjoint halves of h = S // 2 seeds, averaged over all pairs of
    halves; with k = S / h the reliability of all S seeds is k r / (1 + (k - 1) r). Models that lack a seed are left
    out. A perfect predictor of the true gain would correlate by its square root with the measured ones. None with
    fewer than two seeds or three models, or where a half is constant.
    """
    complete = gains_N_S[np.isfinite(gains_N_S).all(axis=1)]
    seeds = gains_N_S.shape[1]
    half = seeds // 2
    if half == 0 or len(complete) < 3:
        return None
    found = []
    for first in combinations(range(seeds), half):
        for second in combinations(sorted(set(range(seeds)) - set(first)), half):
            if first < second:
                a, b = (rankdata(complete[:, list(one)].mean(axis=1)) for one in (first, second))
                if np.ptp(a) == 0 or np.ptp(b) == 0:
                    return None
                found.append(np.corrcoef(a, b)[0, 1])
    return spearman_brown(float(np.mean(found)), seeds / half)


def spearman_brown(r: float, k: float) -> float:
    """Reliability of a measurement k times as long as one of reliability r; 0 where r is negative."""
    return k * r / (1 + (k - 1) * r) if r > 0 else 0.0


def false_passes(outcomes_N: NDArray[np.int64], scores_N: Float64, *, recall: float = RECALL) -> Interval:
    """Share of the reward models that harm among those with a score above the threshold that passes enough helpers.

    The threshold is the highest one that passes at least `recall` of the reward models that help. Wilson interval.

    Args:
        outcomes_N: indices into `OUTCOMES`.
        scores_N: the higher the better.
        recall: share of the helping ones that pass.

    Returns:
        The share of harming reward models that pass; undefined without any harming or any helping one.
    """
    helping, harming = (np.sort(scores_N[outcomes_N == one])[::-1] for one in (HELPS, HARMS))
    if not len(helping) or not len(harming):
        return Interval(None, None, None, len(harming))
    threshold = helping[int(np.ceil(recall * len(helping) - 1e-9)) - 1]
    return wilson_interval(int((harming >= threshold).sum()), len(harming))


def brier_score(outcomes_N: NDArray[np.int64], probabilities_N_3: Float64) -> float:
    """Mean over cases of the sum over outcomes of (p - y)^2 (Brier 1950): 0 perfect, 2/3 for one third each."""
    truth = np.eye(len(OUTCOMES))[outcomes_N]
    return float(((probabilities_N_3 - truth) ** 2).sum(axis=1).mean())


def classwise_ece(outcomes_N: NDArray[np.int64], probabilities_N_3: Float64) -> float:
    """Expected calibration error of each outcome's probability, averaged (Kull et al. 2019, 1910.12656)."""
    every = np.ones((1, len(outcomes_N)))
    parts = [ece(outcomes_N == k, probabilities_N_3[:, k], every)[0] for k in range(len(OUTCOMES))]
    return float(np.mean(parts))


def withheld_family(table: GateTable, names: Sequence[str], family: str) -> tuple[int, int]:
    """How many reward models of a family are called unknown by predictors that saw neither it nor their task.

    Returns:
        Unknown ones, and all that could be tested (without its family a task must leave two others).
    """
    unknown = tested = 0
    for task in sorted(set(table.tasks_N[table.families_N == family].tolist())):
        inside = (table.tasks_N == task) & (table.families_N == family)
        rest = table.take((table.tasks_N != task) & (table.families_N != family))
        if len(rest.tasks) >= 2:
            predictor = fit_gate(rest, names)
            unknown += int(predictor.unknown(table.take(inside).columns(names)).sum())
            tested += int(inside.sum())
    return unknown, tested


@dataclass(frozen=True, eq=False)
class GateValidation:
    """What a predictor reaches on tasks left out of its fit.

    Attributes:
        names: of its features.
        predicted: the predictions behind it.
        correlation: Spearman correlation of score and measured gain.
        singles: the same of each single feature with its sign known (a distance counts negative).
        difference: correlation of the predictor minus that of the best single feature of `PUBLISHED`.
        best_single: its name; None where the table has none of them.
        reliability: of the measured gains over seeds.
        false_passes: at 80 % recall, by score.
        brier: of the three probabilities.
        brier_constant: of the frequencies of the table as a constant answer.
        ece: of the three probabilities.
        coverage: share of measured gains inside their interval.
        known: share of unknown answers on tasks left out.
        withheld: share of unknown answers, by family left out.
    """

    names: tuple[str, ...]
    predicted: OutOfTask
    correlation: Interval
    singles: Mapping[str, Interval]
    difference: Interval | None
    best_single: str | None
    reliability: float | None
    false_passes: Interval
    brier: float
    brier_constant: float
    ece: float
    coverage: Interval
    known: Interval
    withheld: Mapping[str, Interval]

    @property
    def ceiling(self) -> float | None:
        """The correlation that a perfect predictor of the true gains would reach: the root of `reliability`."""
        return None if self.reliability is None else float(np.sqrt(self.reliability))


def oriented(table: GateTable, name: str) -> Float64:
    """(N,) a feature with higher values meant to be better."""
    values = table.columns([name])[:, 0]
    return -values if name in LOWER_IS_BETTER or name.startswith("attack_") else values


def validate_gate(
    table: GateTable, names: Sequence[str] | None = None, *, reps: int = 2000, seed: int = 0
) -> GateValidation:
    """Validate the predictor on a table of one kind of reward models.

    Args:
        table: reward models for robots, or for text.
        names: features of the predictor; None: all that half of the reward models have.
        reps: bootstrap resamples.
        seed: of the bootstrap.

    Raises:
        ValueError: fewer than three tasks.
    """
    if len(table.tasks) < 3:
        raise ValueError(f"{len(table.tasks)} tasks; leaving one out needs three")
    chosen = tuple(common_features(table) if names is None else names)
    predicted, outcomes = out_of_task(table, chosen), table.outcomes_N
    gains = table.gains_N
    singles = {name: correlation(oriented(table, name), gains, reps=reps, seed=seed) for name in table.names}
    ranked = {n: one.estimate for n, one in singles.items() if n in PUBLISHED and one.estimate is not None}
    best = max(ranked, key=lambda name: ranked[name]) if ranked else None
    frequencies = np.bincount(outcomes, minlength=len(OUTCOMES)) / len(table)
    inside = (gains >= predicted.low_N) & (gains <= predicted.high_N)
    counts = {family: withheld_family(table, chosen, family) for family in sorted(set(table.families_N.tolist()))}
    return GateValidation(
        names=chosen,
        predicted=predicted,
        correlation=correlation(predicted.scores_N, gains, reps=reps, seed=seed),
        singles=singles,
        difference=None
        if best is None
        else correlation_difference(predicted.scores_N, oriented(table, best), gains, reps=reps, seed=seed),
        best_single=best,
        reliability=reliability(table.gains_N_S),
        false_passes=false_passes(outcomes, predicted.scores_N),
        brier=brier_score(outcomes, predicted.probabilities_N_3),
        brier_constant=brier_score(outcomes, np.tile(frequencies, (len(table), 1))),
        ece=classwise_ece(outcomes, predicted.probabilities_N_3),
        coverage=wilson_interval(int(inside.sum()), len(table)),
        known=wilson_interval(int(predicted.unknown_N.sum()), len(table)),
        withheld={family: wilson_interval(*count) for family, count in counts.items()},
    )
