"""Is this reward model any good? Score held-out episodes once, measure everything, probe it.

Knows the `RewardModel` protocol and the metrics; does not know files (`output` writes), training, or how the
episodes came about. The caller sees to it that no episode was trained on.

    evaluation = evaluate_model(model, episodes, kind="success", threshold=0.5, seed=0, max_rows=None)
    print(evaluation.metrics["auroc"].interval, evaluation.probes["black_frame"].passed)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from guerdon.episodes.targets import episode_success
from guerdon.errors import DataError
from guerdon.evaluate import metrics as measure
from guerdon.evaluate.classification import ReliabilityBin, reliability_bins
from guerdon.evaluate.judge import ProbeResult, run_probes, separating_value
from guerdon.evaluate.metrics import Metric, Table
from guerdon.evaluate.scoring import Kind, choose_episodes, failure_counts, score_episodes
from guerdon.types import Episode, FloatArray, RewardInfo, RewardModel, Score

CURVES_PER_OUTCOME = 3


@dataclass(frozen=True, eq=False)
class Curve:
    """Values over one episode, for a picture.

    Attributes:
        episode: its id.
        success: did it succeed?
        values: (T,) float32.
    """

    episode: str
    success: bool
    values: FloatArray


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Everything found out about a reward model.

    Attributes:
        model: its `info` as JSON values, with `kind` and `threshold` as they were used.
        data: episodes, rows, positives (successful episodes), rows_positive, outcome_unknown,
            episodes_left_out (by `max_rows`), hash.
        metrics: by name.
        reliability: the bins of the reliability diagram; empty when the scores are no probabilities.
        probes: by name.
        failures: failed measurements by reason.
        table: labels and scores behind the pictures, rows where the model judges rows, else episodes.
        curves: values over a few episodes.
    """

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    reliability: Sequence[ReliabilityBin]
    probes: Mapping[str, ProbeResult]
    failures: Mapping[str, int]
    table: Table
    curves: Sequence[Curve]

    def to_dict(self, pictures: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Plain JSON values: no NaN, no arrays.

        Args:
            pictures: name to file name of the pictures beside it.
        """
        return {
            "model": dict(self.model),
            "data": dict(self.data),
            "metrics": {name: metric.to_dict() for name, metric in self.metrics.items()},
            "reliability": [asdict(one) for one in self.reliability],
            "probes": {name: asdict(result) for name, result in self.probes.items()},
            "failures": dict(self.failures),
            "pictures": dict(pictures or {}),
        }


def evaluate_model(
    model: RewardModel,
    episodes: Sequence[Episode],
    *,
    kind: Kind,
    threshold: float | None,
    seed: int,
    reps: int = 1000,
    max_rows: int | None,
    task_conditioned: bool = False,
    data_hash: str | None = None,
) -> Evaluation:
    """Score the episodes and measure the model: every metric with a 95 % interval clustered by episode.

    Frame labels come from `success`, episode labels from `outcome`, progress targets from
    `guerdon.episodes.targets`. An episode's value is its total, or its largest (success) or last (progress)
    row value.

    Args:
        model: anything that scores episodes.
        episodes: held-out ones.
        kind: `success` (classification of rows and episodes) or `progress` (order and error of row values).
        threshold: a value above it is a success; None takes the model's own. Without either, the metrics of
            decisions are left out.
        seed: of the choice of episodes, the resampling and the shuffling probe.
        reps: bootstrap resamples.
        max_rows: score whole episodes, drawn at random, up to this many rows; None: all.
        task_conditioned: does the model read the task sentence? Only then is the wrong-task probe run.
        data_hash: of the data set, copied into the result.

    Raises:
        DataError: there is no episode, or the model returned another number of scores.
    """
    if not episodes:
        raise DataError("no episode to evaluate on: collect some, or point `data_path` at a data set")
    chosen = choose_episodes(episodes, max_rows, seed)
    scores = score_episodes(model, chosen)
    info = model.info
    at = info.success_threshold if threshold is None else threshold
    limit = separating_value(chosen, scores, kind) if at is None else at
    by_row = info.granularity == "step"
    table = measure.row_table(chosen, scores) if by_row else measure.episode_table(chosen, scores, kind)
    calibrated = _gives_probabilities(info, kind) and table.within(0, 1)
    return Evaluation(
        model={**asdict(info), "range": _json_range(info), "kind": kind, "threshold": at},
        data=_data(chosen, len(episodes) - len(chosen), data_hash),
        metrics=_metrics(chosen, scores, info, kind=kind, threshold=at, reps=reps, seed=seed),
        reliability=reliability_bins(table.labels, table.scores) if calibrated else [],
        probes=run_probes(model, chosen, scores, kind=kind, limit=limit, seed=seed, task_conditioned=task_conditioned),
        failures=failure_counts(scores),
        table=table,
        curves=_curves(chosen, scores),
    )


def _metrics(
    episodes: Sequence[Episode],
    scores: Sequence[Score],
    info: RewardInfo,
    *,
    kind: Kind,
    threshold: float | None,
    reps: int,
    seed: int,
) -> dict[str, Metric]:
    """All metrics that make sense for this kind of model; row metrics only where it judges rows."""
    by_row, probabilities = info.granularity == "step", _gives_probabilities(info, kind)
    found: dict[str, Metric] = {}
    if by_row and kind == "success":
        rows = measure.row_table(episodes, scores)
        found |= measure.classification_metrics(
            rows, threshold=threshold, probabilities=probabilities, reps=reps, seed=seed
        )
    found |= measure.classification_metrics(
        measure.episode_table(episodes, scores, kind),
        threshold=threshold,
        probabilities=probabilities and not by_row,
        reps=reps,
        seed=seed,
        prefix="episode_",
    )
    if by_row:
        found |= measure.order_metrics(episodes, scores, reps=reps, seed=seed)
    if by_row and kind == "progress":
        found |= measure.progress_metrics(episodes, scores, horizon=info.progress_horizon, reps=reps, seed=seed)
    return found | measure.comparison_metrics(episodes, scores, kind, reps=reps, seed=seed)


def _gives_probabilities(info: RewardInfo, kind: Kind) -> bool:
    return kind == "success" and info.range[0] >= 0 and info.range[1] <= 1


def _json_range(info: RewardInfo) -> list[float | None]:
    """The range with None for an open end: JSON has no infinity."""
    return [float(end) if np.isfinite(end) else None for end in info.range]


def _data(episodes: Sequence[Episode], left_out: int, data_hash: str | None) -> dict[str, Any]:
    outcomes = [episode_success(episode) for episode in episodes]
    return {
        "episodes": len(episodes),
        "rows": sum(len(episode) for episode in episodes),
        "positives": sum(outcome is True for outcome in outcomes),
        "rows_positive": sum(int(e.success.sum()) for e in episodes if e.success is not None),
        "outcome_unknown": sum(outcome is None for outcome in outcomes),
        "episodes_left_out": left_out,
        "hash": data_hash,
    }


def _curves(episodes: Sequence[Episode], scores: Sequence[Score]) -> list[Curve]:
    """Values over the first few episodes of each outcome."""
    curves: list[Curve] = []
    for wanted in (True, False):
        some = [
            Curve(episode.id, wanted, score.steps)
            for episode, score in zip(episodes, scores, strict=True)
            if score.steps is not None and episode_success(episode) is wanted
        ]
        curves += some[:CURVES_PER_OUTCOME]
    return curves
