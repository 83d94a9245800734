"""Metrics of a scored set of episodes, each with its interval, its baseline and its undefined cases.

Rows of one episode resemble one another, so every interval resamples whole episodes.

    metrics = classification_metrics(row_table(episodes, scores), threshold=0.5, probabilities=True, reps=1000, seed=0)
    print(metrics["auroc"].estimate, metrics["auroc"].baseline)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from guerdon.episodes.targets import episode_success, first_success, progress_targets, success_labels
from guerdon.models.scores import Kind, episode_value
from guerdon.statistics import classification
from guerdon.statistics.intervals import (
    Float64,
    Interval,
    bootstrap_ci,
    bootstrap_weighted,
    mean,
    percentile_interval,
    widen_at_edge,
)
from guerdon.types import Episode, Score

FEWEST_CHECKPOINTS = 3  # two points always correlate perfectly
FEWEST_POLICIES = 5  # with fewer, most resamples repeat so few policies that a correlation has no meaning


def number(value: float | None) -> str:
    """Three decimals; `-` where undefined."""
    return "-" if value is None else f"{value:.3f}"


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows as aligned columns, the first one left, the others right."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if c == 0 else cell.rjust(width)
            for c, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


Figure = tuple[str, Mapping[str, Any]]  # its name, and its `Interval` as a dict


def figure_table(figures: Iterable[Figure], first: str = "", columns: Sequence[str] = ()) -> list[str]:
    """Lines of a table of intervals: estimate, bounds, more columns, and how many cases stand behind each."""
    rows = [[first, "estimate", "95% low", "high", *columns, "n", "undefined"]]
    for name, one in figures:
        numbers = [number(one[key]) for key in ("estimate", "low", "high", *columns)]
        rows.append([name, *numbers, str(one["n"]), str(one["n_undefined"])])
    return aligned(rows)


@dataclass(frozen=True, eq=False)
class Table:
    """Labels and scores side by side: rows of frames, or episodes.

    Attributes:
        labels: (N,) bool, the truth.
        scores: (N,) float64, the model's values.
        groups: (N,) int64, which episode a row belongs to.
        missing: rows without a label or without a score.
    """

    labels: classification.Labels
    scores: Float64
    groups: np.ndarray[Any, np.dtype[np.int64]]
    missing: int

    @classmethod
    def of(cls, cases: Sequence[tuple[bool, float, int]], missing: int) -> Table:
        """A table of (label, score, group) triples."""
        labels, scores, groups = zip(*cases, strict=True) if cases else ((), (), ())
        return cls(
            np.array(labels, dtype=np.bool_),
            np.array(scores, dtype=np.float64),
            np.array(groups, dtype=np.int64),
            missing,
        )

    def within(self, low: float, high: float) -> bool:
        """Do all scores lie in [low, high]?"""
        return bool(((self.scores >= low) & (self.scores <= high)).all())

    def reliability(self) -> list[classification.ReliabilityBin]:
        """The bins of a reliability diagram; none where scores lie outside [0, 1]."""
        return classification.reliability_bins(self.labels, self.scores) if self.within(0, 1) else []


def row_table(episodes: Sequence[Episode], scores: Sequence[Score]) -> Table:
    """Every labelled and scored row of the episodes."""
    cases: list[tuple[bool, float, int]] = []
    missing = 0
    for e, (episode, score) in enumerate(zip(episodes, scores, strict=True)):
        truth = success_labels(episode)
        if truth is None or score.steps is None:
            missing += len(episode)
        else:
            cases += [(bool(label), float(value), e) for label, value in zip(truth, score.steps, strict=True)]
    return Table.of(cases, missing)


def episode_table(episodes: Sequence[Episode], scores: Sequence[Score], kind: Kind) -> Table:
    """One row per episode with a known outcome and a value."""
    cases = [
        (success, value, e)
        for e, (episode, score) in enumerate(zip(episodes, scores, strict=True))
        if (success := episode_success(episode)) is not None and (value := episode_value(score, kind)) is not None
    ]
    return Table.of(cases, len(episodes) - len(cases))


def classification_metrics(
    table: Table, *, threshold: float | None, probabilities: bool, reps: int, seed: int, prefix: str = ""
) -> dict[str, Interval]:
    """AUROC, AUPRC; F1, accuracies and false-positive rate at the threshold; Brier and ECE of probabilities.

    Bounds of a perfect score come from `widen_at_edge`, with the episodes of the smaller class as trials
    (for AUPRC and F1 that is a rule of thumb).

    Args:
        table: labels and scores.
        threshold: a score above it is a success; None leaves the four decision metrics out.
        probabilities: are the scores meant as probabilities? Otherwise Brier and ECE are left out; they are
                undefined where a score breaks that promise.
        reps: number of resamples of whole episodes.
        seed: of the resampling.
        prefix: put before each name, such as `episode_`.
    """
    wanted: dict[str, classification.WeightedMetric | None] = {
        "auroc": classification.auroc,
        "auprc": classification.auprc,
    }
    if threshold is not None:
        wanted |= {metric.__name__: partial(metric, threshold=threshold) for metric in classification.DECISIONS}
    if probabilities:
        within = table.within(0, 1)
        wanted |= {"brier": classification.brier if within else None, "ece": classification.ece if within else None}
    positive, negative = (len(np.unique(table.groups[table.labels == label])) for label in (True, False))
    trials = {"accuracy": len(np.unique(table.groups)), "false_positive_rate": negative}
    both = table.labels.any() and not table.labels.all()
    base = classification.baselines(float(table.labels.mean())) if both else {}
    return {
        prefix + name: replace(
            widen_at_edge(_interval(metric, table, reps, seed), trials.get(name, min(positive, negative))),
            baseline=base.get(name),
        )
        for name, metric in wanted.items()
    }


def _interval(metric: classification.WeightedMetric | None, table: Table, reps: int, seed: int) -> Interval:
    if metric is None:
        return Interval(None, None, None, 0, table.missing + len(table.labels))

    def statistic(weights_R_N: Float64) -> Float64:
        return metric(table.labels, table.scores, weights_R_N)

    return bootstrap_weighted(statistic, table.groups, reps=reps, seed=seed, n_undefined=table.missing)


def _pair(x_N: ArrayLike, y_N: ArrayLike) -> tuple[Float64, Float64] | None:
    """Both sides as numbers; None for fewer than two values or where either side is constant."""
    x, y = np.asarray(x_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"both sides need the same shape (N,), got {x.shape} and {y.shape}")
    return None if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0 else (x, y)


def pearson(x_N: ArrayLike, y_N: ArrayLike) -> float | None:
    """Pearson correlation; None for fewer than two values or where either side is constant."""
    if (pair := _pair(x_N, y_N)) is None:
        return None
    x, y = (side / np.abs(side).max() for side in pair)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(np.clip(x @ y / scale, -1, 1)) if scale > 0 else None


def spearman(x_N: ArrayLike, y_N: ArrayLike) -> float | None:
    """Spearman correlation, ties sharing their mean rank; None where either side is constant.

    With y the row index this is the value-order correlation of GVL (arXiv 2411.04549), VLAC and TOPReward.
    """
    from scipy.stats import rankdata

    pair = _pair(x_N, y_N)
    return None if pair is None else pearson(*map(rankdata, pair))


def kendall_tau(x_N: ArrayLike, y_N: ArrayLike, variant: Literal["a", "b"]) -> float | None:
    """Kendall's tau-a or tau-b; None for fewer than two or constant values.

    With C concordant and D discordant pairs of n0 = n (n-1) / 2, tau-a (Kendall 1938) is (C - D) / n0: a tied pair
    counts 0, and ties in `y` keep it below 1. This is what Robometer computes although its docstring says tau-b.
    Tau-b (Kendall 1945) is (C - D) / sqrt((n0 - ties_x)(n0 - ties_y)). O(N^2) memory: for the rows of one episode.
    """
    if (pair := _pair(x_N, y_N)) is None:
        return None
    first, second = np.triu_indices(len(pair[0]), 1)
    dx, dy = (np.sign(side[first] - side[second]) for side in pair)
    if variant == "a":
        return float(dx @ dy) / len(dx)
    return float(np.clip(dx @ dy / np.sqrt(float((dx != 0).sum()) * float((dy != 0).sum())), -1, 1))


def order_metrics(episodes: Sequence[Episode], scores: Sequence[Score], *, reps: int, seed: int) -> dict[str, Interval]:
    """Do values of a successful episode rise with time? Mean over episodes, rows up to the first success.

    After the first success there is no order to find, so those rows are left out. An episode of constant
    values, of one row, or whose measurement failed is undefined and counted.
    """
    measures: dict[str, Callable[[ArrayLike, ArrayLike], float | None]] = {
        "value_order_spearman": spearman,
        "value_order_pearson": pearson,
        "value_order_tau_a": partial(kendall_tau, variant="a"),
        "value_order_tau_b": partial(kendall_tau, variant="b"),
    }
    parts: list[Float64] = []
    for episode, score in zip(episodes, scores, strict=True):
        goal = first_success(episode)
        if episode_success(episode) and goal is not None:
            parts.append(np.empty(0) if score.steps is None else score.steps[: goal + 1].astype(np.float64))
    return {
        name: _mean_of([measure(part, np.arange(len(part))) for part in parts], reps=reps, seed=seed)
        for name, measure in measures.items()
    }


def _mean_of(values: list[float | None], *, reps: int, seed: int) -> Interval:
    """Mean of correlations over episodes; a constant model has 0."""
    numbers = [np.nan if value is None else value for value in values]
    return replace(bootstrap_ci(numbers, mean, reps=reps, seed=seed), baseline=0.0)


def progress_metrics(
    episodes: Sequence[Episode], scores: Sequence[Score], *, horizon: float | None = None, reps: int, seed: int
) -> dict[str, Interval]:
    """MAE against the progress target, and Pearson with it over successful episodes (Robometer's VOC r).

    The MAE's baseline is the best constant, the median target.
    """
    errors, targets, groups, missing = [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)], 0
    correlations: list[float | None] = []
    for e, (episode, score) in enumerate(zip(episodes, scores, strict=True)):
        target = progress_targets(episode, horizon=horizon)
        if target is None or score.steps is None:
            missing += len(episode)
            if target is not None and episode_success(episode):
                correlations.append(None)
            continue
        known = np.isfinite(target)
        value, wanted = score.steps[known].astype(np.float64), target[known].astype(np.float64)
        missing += int((~known).sum())
        if episode_success(episode):
            correlations.append(pearson(value, wanted))
        errors.append(np.abs(value - wanted))
        targets.append(wanted)
        groups.append(np.full(len(wanted), e, dtype=np.int64))
    error, target_N, group_N = np.concatenate(errors), np.concatenate(targets), np.concatenate(groups)

    def mean_error(weights_R_N: Float64) -> Float64:
        return np.asarray(weights_R_N @ error / weights_R_N.sum(axis=1))

    mae = bootstrap_weighted(mean_error, group_N, reps=reps, seed=seed, n_undefined=missing)
    best = float(np.abs(target_N - np.median(target_N)).mean()) if target_N.size else None
    return {
        "progress_mae": replace(mae, baseline=best),
        "progress_pearson": _mean_of(correlations, reps=reps, seed=seed),
    }


def comparison_metrics(
    episodes: Sequence[Episode], scores: Sequence[Score], kind: Kind, *, reps: int, seed: int
) -> dict[str, Interval]:
    """Preferences between successful and failed episodes of a task; ranking of the policies that made them.

    Policies are identified by `meta["checkpoint"]`, else `meta["policy"]`; fewer than three leave the ranking
    out.
    """
    table = episode_table(episodes, scores, kind)
    tasks = [episodes[e].task for e in table.groups]
    metrics = preference_metrics(table.scores, table.labels, tasks, reps=reps, seed=seed)
    policies = [episode.meta.get("checkpoint", episode.meta.get("policy")) for episode in episodes]
    _, reward_P, success_P = policy_means(
        [None if policy is None else str(policy) for policy in policies],
        [episode_value(score, kind) for score in scores],
        [episode_success(episode) for episode in episodes],
    )
    if len(reward_P) >= FEWEST_CHECKPOINTS:
        metrics |= policy_ranking(reward_P, success_P, reps=reps, seed=seed)
    return metrics


def preference_metrics(
    scores_E: ArrayLike, success_E: ArrayLike, tasks: Sequence[Any], *, reps: int, seed: int
) -> dict[str, Interval]:
    """Accuracy over all pairs (successful, failed) of a task, ties wrong or left out, and the share of ties.

    Pairs share episodes, so resampling pairs would pretend to more data than there is: episodes are resampled
    and a pair weighs the product of its two. The `n` of each interval is the number of pairs.

    Args:
        scores_E: (E,) one score per episode.
        success_E: (E,) bool.
        tasks: (E,) task of each episode; pairs never cross tasks.
        reps: number of resamples.
        seed: of the generator.
    """
    scores, success = np.asarray(scores_E, dtype=np.float64), np.asarray(success_E, dtype=np.bool_)
    _, task_E = np.unique(np.asarray(tasks, dtype=str), return_inverse=True)
    wins, losses = np.flatnonzero(success), np.flatnonzero(~success)
    same = (task_E[wins][:, None] == task_E[losses][None, :]).astype(np.float64)
    higher = same * (scores[wins][:, None] > scores[losses][None, :])
    equal = same * (scores[wins][:, None] == scores[losses][None, :])
    n_pairs = int(same.sum())

    def total(pairs: Float64, weights_R_E: Float64) -> Float64:
        return np.asarray(((weights_R_E[:, wins] @ pairs) * weights_R_E[:, losses]).sum(axis=1))

    def share(top: Float64, bottom: Float64, undefined: int = 0, baseline: float | None = 0.5) -> Interval:
        def statistic(weights_R_E: Float64) -> Float64:
            return classification.ratio(total(top, weights_R_E), total(bottom, weights_R_E))

        found = bootstrap_weighted(statistic, np.arange(len(scores)), reps=reps, seed=seed)
        found = found if baseline is None else widen_at_edge(found, min(len(wins), len(losses)))
        return replace(found, n=n_pairs - undefined, n_undefined=undefined, baseline=baseline)

    return {
        "preference_accuracy": share(higher, same),
        "preference_accuracy_without_ties": share(higher, same - equal, int(equal.sum())),
        "preference_ties": share(equal, same, baseline=None),
    }


def policy_ranking(reward_P: ArrayLike, success_P: ArrayLike, *, reps: int = 2000, seed: int) -> dict[str, Interval]:
    """Correlation of the mean reward of each policy with its true success rate (as in RoboReward and Robometer).

    Policies are resampled; with fewer than five there are no bounds.

    Args:
        reward_P: (P,) mean reward of each policy; NaN where it could not be measured.
        success_P: (P,) true success rate; NaN where unknown.
        reps: number of resamples.
        seed: of the generator.

    Raises:
        ValueError: the two have different lengths.
    """
    reward, success = np.asarray(reward_P, dtype=np.float64), np.asarray(success_P, dtype=np.float64)
    if reward.shape != success.shape or reward.ndim != 1:
        raise ValueError(f"reward and success need the same shape (P,), got {reward.shape} and {success.shape}")
    keep = np.isfinite(reward) & np.isfinite(success)
    missing = int((~keep).sum())
    reward, success = reward[keep], success[keep]
    picks = np.random.default_rng(seed).integers(0, max(1, len(reward)), size=(reps, len(reward)))

    def interval(correlation: Callable[[Float64, Float64], float | None]) -> Interval:
        estimate = correlation(reward, success)
        if estimate is None or len(reward) < FEWEST_POLICIES:
            return Interval(estimate, None, None, len(reward), missing, baseline=0.0)
        drawn = [correlation(reward[row], success[row]) for row in picks]
        replicates = np.array([np.nan if value is None else value for value in drawn])
        found = percentile_interval(estimate, replicates, n=len(reward), n_undefined=missing)
        return replace(found, baseline=0.0)

    return {"policy_ranking_spearman": interval(spearman), "policy_ranking_pearson": interval(pearson)}


def policy_means(
    policies: Sequence[str | None], rewards: Sequence[float | None], successes: Sequence[bool | None]
) -> tuple[list[str], Float64, Float64]:
    """Names, mean reward (P,) and success rate (P,) of each policy, over episodes where both are known.

    Args:
        policies: which policy made each episode; None leaves the episode out.
        rewards: what the model gave each episode; None where the measurement failed.
        successes: did each episode truly succeed? None where unknown.
    """
    rows: dict[str, list[tuple[float, float]]] = {}
    for policy, reward, success in zip(policies, rewards, successes, strict=True):
        if policy is not None and reward is not None and success is not None:
            rows.setdefault(policy, []).append((reward, float(success)))
    names = sorted(rows)
    means = np.array([np.mean(rows[name], axis=0) for name in names], dtype=np.float64).reshape(-1, 2)
    return names, means[:, 0], means[:, 1]
