"""Metrics of a scored set of episodes, each with its interval, its baseline and its undefined cases.

Rows of one episode resemble one another, so every interval resamples whole episodes.

    metrics = classification_metrics(row_table(episodes, scores), threshold=0.5, probabilities=True, reps=1000, seed=0)
    print(metrics["auroc"].estimate, metrics["auroc"].baseline)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from guerdon.episodes.targets import episode_success, first_success, progress_targets, success_labels
from guerdon.evaluate import classification
from guerdon.evaluate.intervals import (
    Float64,
    Interval,
    bootstrap_ci,
    bootstrap_weighted,
    mean,
    widen_at_edge,
)
from guerdon.evaluate.ranking import (
    episode_preferences,
    kendall_tau_a,
    kendall_tau_b,
    pearson,
    policy_means,
    policy_ranking,
    spearman,
)
from guerdon.evaluate.scores import Kind, episode_value
from guerdon.types import Episode, Score

FEWEST_CHECKPOINTS = 3  # two points always correlate perfectly


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
        wanted |= {
            "f1": classification.f1_at(threshold),
            "balanced_accuracy": classification.balanced_accuracy_at(threshold),
            "accuracy": classification.accuracy_at(threshold),
            "false_positive_rate": classification.false_positive_rate_at(threshold),
        }
    if probabilities:
        within = table.within(0, 1)
        wanted |= {
            "brier": classification.brier if within else None,
            "ece": classification.ece_with() if within else None,
        }
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


def order_metrics(episodes: Sequence[Episode], scores: Sequence[Score], *, reps: int, seed: int) -> dict[str, Interval]:
    """Do values of a successful episode rise with time? Mean over episodes, rows up to the first success.

    After the first success there is no order to find, so those rows are left out. An episode of constant
    values, of one row, or whose measurement failed is undefined and counted.
    """
    measures: dict[str, Callable[[ArrayLike, ArrayLike], float | None]] = {
        "value_order_spearman": spearman,
        "value_order_pearson": pearson,
        "value_order_tau_a": kendall_tau_a,
        "value_order_tau_b": kendall_tau_b,
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
    episodes: Sequence[Episode],
    scores: Sequence[Score],
    *,
    horizon: float | None = None,
    reps: int,
    seed: int,
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
    error, target_N = np.concatenate(errors), np.concatenate(targets)
    mae = bootstrap_weighted(
        lambda weights_R_N: weights_R_N @ error / weights_R_N.sum(axis=1),
        np.concatenate(groups),
        reps=reps,
        seed=seed,
        n_undefined=missing,
    )
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
    found = episode_preferences(
        table.scores, table.labels, [episodes[e].task for e in table.groups], reps=reps, seed=seed
    )
    trials = int(min(table.labels.sum(), (~table.labels).sum()))
    metrics = {
        "preference_accuracy": replace(widen_at_edge(found.strict, trials), baseline=0.5),
        "preference_accuracy_without_ties": replace(widen_at_edge(found.decided, trials), baseline=0.5),
        "preference_ties": found.ties,
    }
    policies = [episode.meta.get("checkpoint", episode.meta.get("policy")) for episode in episodes]
    _, reward_P, success_P = policy_means(
        [None if policy is None else str(policy) for policy in policies],
        [episode_value(score, kind) for score in scores],
        [episode_success(episode) for episode in episodes],
    )
    if len(reward_P) >= FEWEST_CHECKPOINTS:
        ranking = policy_ranking(reward_P, success_P, reps=reps, seed=seed)
        metrics["policy_ranking_spearman"] = replace(ranking.spearman, baseline=0.0)
        metrics["policy_ranking_pearson"] = replace(ranking.pearson, baseline=0.0)
    return metrics
