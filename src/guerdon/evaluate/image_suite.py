"""Evaluation of reward models for robots: metrics with intervals, probes, pictures, and `guerdon evaluate` of a study.

Held-out episodes are scored once, measured and probed. Writes `evaluation.json` (last, so a folder that has it is
complete), `evaluation.txt` and SVG pictures.

    evaluation = evaluate_model(model, episodes, kind="success", threshold=0.5, seed=0)
    print(evaluation.metrics["auroc"].estimate, evaluation.probes["black_frame"].passed)
    write_evaluation(evaluation, Path("runs/resnet/evaluation"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.episodes.targets import episode_success, within_labels
from guerdon.errors import DataError
from guerdon.evaluate import charts
from guerdon.evaluate import metrics as measure
from guerdon.evaluate.classification import ReliabilityBin
from guerdon.evaluate.gate import GateVerdict, unknown
from guerdon.evaluate.gate_card import card_verdict, gate_table, remote_folder, verdict_lines
from guerdon.evaluate.gate_features import robot_features
from guerdon.evaluate.intervals import BootstrapOptions, Interval
from guerdon.evaluate.metrics import Table, aligned, figure_table, number
from guerdon.evaluate.probe_checks import ProbeResult, run_probes, separating_value
from guerdon.evaluate.scores import Kind, failure_counts, info_record, score_episodes, write_record
from guerdon.models.load import load_reward_model
from guerdon.progress import doing
from guerdon.settings.evaluate import GateSettings, judged_names
from guerdon.settings.study import Study
from guerdon.settings.train import ImageTrainSettings, VLMTrainSettings
from guerdon.types import Episode, FloatArray, RewardInfo, RewardModel, Score

CURVES_PER_OUTCOME = 3


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The evaluation of a reward model.

    Attributes:
        model: its `info` as JSON values, with `kind` and `threshold` as they were used.
        data: episodes, rows, positives (successful episodes), rows_positive, outcome_unknown, hash.
        metrics: by name.
        reliability: the bins of the reliability diagram; empty when the scores are not probabilities.
        probes: by name.
        failures: failed measurements by reason.
        table: labels and scores behind the pictures, rows where the model scores rows, else episodes.
        curves: values (T,) over a few episodes, and whether each succeeded.
        verdict: whether it will help RL.
    """

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    metrics: Mapping[str, Interval]
    reliability: Sequence[ReliabilityBin]
    probes: Mapping[str, ProbeResult]
    failures: Mapping[str, int]
    table: Table
    curves: Sequence[tuple[FloatArray, bool]]
    verdict: GateVerdict

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: no NaN, no arrays."""
        record = asdict(self)
        del record["table"], record["curves"], record["verdict"]
        return {"verdict": self.verdict.to_dict(), **record}


def evaluate_model(
    model: RewardModel,
    episodes: Sequence[Episode],
    *,
    kind: Kind,
    threshold: float | None,
    seed: int,
    reps: int = 1000,
    task_conditioned: bool = False,
    data_hash: str | None = None,
    gate: GateSettings | None = None,
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
        seed: of the resampling and the shuffling probe.
        reps: bootstrap resamples.
        task_conditioned: does the model read the task sentence? Only then is the wrong-task probe run.
        data_hash: of the data set, copied into the result.
        gate: of the verdict; None: the defaults.

    Raises:
        DataError: there is no episode, the model returned another number of scores, or the gate's table cannot be
            read.
    """
    if not episodes:
        raise DataError("no episode to evaluate on: collect some, or point `data_path` at a data set")
    scores = score_episodes(model, episodes)
    info = model.info
    at = info.success_threshold if threshold is None else threshold
    limit = separating_value(episodes, scores, kind) if at is None else at
    by_row = info.granularity == "step"
    episode_table = measure.episode_table(episodes, scores, kind)
    table = measure.row_table(episodes, scores) if by_row else episode_table
    probabilities = kind == "success" and info.range[0] >= 0 and info.range[1] <= 1
    bootstrap: BootstrapOptions = {"reps": reps, "seed": seed}
    metrics: dict[str, Interval] = {}
    if by_row and kind == "success":
        metrics |= measure.classification_metrics(table, threshold=at, probabilities=probabilities, **bootstrap)
    metrics |= measure.classification_metrics(
        episode_table, threshold=at, probabilities=probabilities and not by_row, prefix="episode_", **bootstrap
    )
    if by_row:
        metrics |= measure.order_metrics(episodes, scores, **bootstrap)
    if by_row and kind == "progress":
        metrics |= measure.progress_metrics(episodes, scores, horizon=info.progress_horizon, **bootstrap)
    metrics |= measure.comparison_metrics(episodes, scores, kind, **bootstrap)
    probes = run_probes(model, episodes, scores, kind=kind, limit=limit, seed=seed, task_conditioned=task_conditioned)
    features = robot_features(episodes, scores, kind=kind, threshold=at)
    return Evaluation(
        model={**info_record(info), "kind": kind, "threshold": at},
        data=_data(episodes, data_hash),
        metrics=metrics,
        reliability=table.reliability() if probabilities else [],
        probes=probes,
        failures=failure_counts(scores),
        table=table,
        curves=_curves(episodes, scores),
        verdict=_verdict(features, info, gate or GateSettings()),
    )


def _verdict(features: Mapping[str, float | None], info: RewardInfo, gate: GateSettings) -> GateVerdict:
    if info.modality == "state" and gate.table is None:
        return unknown("the packaged table has no reward model that looks at states; see evaluate.gate.table", features)
    return card_verdict(features, "robot", gate)


def _data(episodes: Sequence[Episode], data_hash: str | None) -> dict[str, Any]:
    outcomes = [episode_success(episode) for episode in episodes]
    return {
        "episodes": len(episodes),
        "rows": sum(len(episode) for episode in episodes),
        "positives": sum(outcome is True for outcome in outcomes),
        "rows_positive": sum(int(e.success.sum()) for e in episodes if e.success is not None),
        "outcome_unknown": sum(outcome is None for outcome in outcomes),
        "hash": data_hash,
    }


def _curves(episodes: Sequence[Episode], scores: Sequence[Score]) -> list[tuple[FloatArray, bool]]:
    """Values over the first few episodes of each outcome."""
    known = [(s.steps, episode_success(e)) for e, s in zip(episodes, scores, strict=True) if s.steps is not None]
    return [
        (steps, wanted)
        for wanted in (True, False)
        for steps in [steps for steps, outcome in known if outcome is wanted][:CURVES_PER_OUTCOME]
    ]


_ANSWERS = {None: "not measured", True: "passed", False: "FAILED"}


def evaluation_text(evaluation: Evaluation) -> str:
    """The evaluation as aligned plain text; `-` stands for undefined."""
    model, data = evaluation.model, evaluation.data
    found = [["probe", "answer", "value", "n"]]
    for name, result in evaluation.probes.items():
        answer = _ANSWERS[result.passed] if result.applicable else "not applicable"
        found.append([name, answer, number(result.value), str(result.n)])
    metrics = [(name, asdict(metric)) for name, metric in evaluation.metrics.items()]
    ordered = any(name.startswith("value_order_") for name in evaluation.metrics)
    failed = ", ".join(f"{reason} x {count}" for reason, count in evaluation.failures.items())
    lines = [
        *verdict_lines(evaluation.verdict.to_dict()),
        "",
        f"{model['name']} ({model['kind']}), threshold {number(model['threshold'])}",
        f"{data['episodes']} episodes ({data['positives']} successful), {data['rows']} rows "
        f"({data['rows_positive']} successful)",
        f"failed measurements: {failed or 'none'}",
        "",
        *figure_table(metrics, "metric", ["baseline"]),
        "",
        *aligned(found),
        "",
        *(f"{name}: {result.expected}" for name, result in evaluation.probes.items()),
        *(["value_order: rows up to first success, mean over successful episodes"] if ordered else []),
    ]
    return "\n".join(lines) + "\n"


def write_evaluation(evaluation: Evaluation, directory: Path) -> dict[str, Path]:
    """Write everything into `directory`, made if missing.

    Returns:
        Paths by name: `json`, `text`, and the pictures `roc`, `histogram`, `reliability`, `values` as drawn.
    """
    table, threshold = evaluation.table, evaluation.model["threshold"]
    drawn = {
        "roc": charts.roc_curve(table.labels, table.scores),
        "histogram": charts.score_histogram(table.labels, table.scores, threshold=threshold),
    }
    if evaluation.reliability:
        drawn["reliability"] = charts.reliability_diagram(evaluation.reliability)
    if evaluation.curves:
        drawn["values"] = charts.value_curves(evaluation.curves)
    return write_record(directory, evaluation.to_dict(), drawn, evaluation_text(evaluation))


def check_evaluation(study: Study) -> None:
    """Check the data of an evaluation of robots, without frames and models, for `--dry-run`.

    Raises:
        DataError: `evaluate.gate.table` or the data at `evaluate.data_path` cannot be read.
    """
    how = study.control_evaluate
    gate_table(how.gate)
    if how.data_path is not None and Path(how.data_path).exists():
        for _ in read_episodes(how.data_path, with_frames=False):
            break


def evaluate_study(study: Study, *, only: Sequence[str] = ()) -> dict[str, tuple[Evaluation, dict[str, Path]]]:
    """Evaluate the models of the `train` section and of `evaluate.remote`.

    Args:
        study: the configuration.
        only: names of models; all by default.

    Returns:
        Model name to its evaluation and the files written into the folder of the model (of one on a server: to
        `work_dir/models/<task>/<name>`).

    Raises:
        ConfigError: a name that the study lacks or has twice, or a server that does not answer.
        CheckpointError: a model is not trained yet.
        DataError: no held-out episode.
    """
    remote = study.control_evaluate.remote
    how, results = study.control_evaluate, {}
    gate_table(how.gate)  # before anything is scored
    for name in judged_names(study.train, remote, only, "evaluate.remote"):
        if name in remote:
            model = load_reward_model("remote", remote=remote[name])
            progress = model.info.name == "progress" or model.info.progress_horizon is not None
            assert how.data_path is not None
            named = "camera" in study.env.model_fields_set or hasattr(study.env, "cameras")
            camera = study.env.camera_name if named else None
            episodes, digest = list(read_episodes(how.data_path, camera=camera)), dataset_hash(how.data_path)
            folder = remote_folder(study, name)
        else:
            settings = study.vlm_models[name] if name in study.vlm_models else study.image_models[name]
            model = load_reward_model(settings.type, settings.save_dir, device=settings.device)
            progress = "progress" in (settings.type, getattr(settings, "question", None))
            episodes, digest = held_out(settings, how.data_path)
            within = getattr(settings, "within_steps", None)
            if within is not None:  # its truth is the success that comes, not the one that is
                episodes = [known for episode in episodes if (known := within_labels(episode, within)) is not None]
            folder = Path(settings.save_dir)
        kind: Kind = "progress" if progress else "success"
        with doing(f"evaluating {name}"):
            evaluation = evaluate_model(
                model,
                episodes,
                kind=kind,
                threshold=None,
                seed=how.seed,
                reps=how.reps,
                data_hash=digest,
                gate=how.gate,
            )
        results[name] = (evaluation, write_evaluation(evaluation, folder))
    return results


def held_out(settings: ImageTrainSettings | VLMTrainSettings, data_path: str | None) -> tuple[list[Episode], str]:
    """Episodes the model was not fitted to: another data set, or its own validation split.

    Returns:
        The episodes and a hash of the data set they come from.
    """
    from guerdon.train.images import held_out_episodes, read_data, sees_states

    if data_path is not None:
        read = read_episodes(data_path, camera=settings.camera, with_frames=not sees_states(settings))
        return list(read), dataset_hash(data_path)
    everything, digest = read_data(settings)
    episodes = list(everything)
    names = held_out_episodes(episodes, settings)
    if not names:
        raise DataError(
            "no held-out episode: the model was trained with val_split 0; name another data set as evaluate.data_path"
        )
    return [e for e in episodes if e.id in names], digest
