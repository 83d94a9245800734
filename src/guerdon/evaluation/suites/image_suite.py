"""Evaluation of reward models for robots: metrics with intervals, probes, pictures, and `guerdon evaluate` of a study.

Held-out episodes are scored once and measured. Probes score changed episodes whose right answer is known, without their
ground truth (`success`, `rewards`, `outcome`); one that makes no sense for a model (black frames for one that reads
states, another task for one that reads no task) is reported as not applicable, never as passed. Writes
`evaluation.json` (last, so a folder that has it is complete), `evaluation.txt` and SVG pictures.

    evaluation = evaluate_model(model, episodes, kind="success", threshold=0.5, seed=0)
    print(evaluation.metrics["auroc"].estimate, evaluation.probes["black_frame"].passed)
    write_evaluation(evaluation, Path("runs/resnet/evaluation"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from guerdon.episodes.layout import camera_for
from guerdon.episodes.outcomes import Outcomes, read_outcomes
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.episodes.targets import episode_success, first_success, within_labels
from guerdon.errors import DataError
from guerdon.evaluation import metrics as measure
from guerdon.evaluation.gate.advice import advice, facts_of
from guerdon.evaluation.gate.forecast import GateForecast, unknown
from guerdon.evaluation.gate.gate_card import card_forecast, forecast_lines, gate_table, remote_folder
from guerdon.evaluation.gate.gate_features import robot_features
from guerdon.evaluation.metrics import Table, aligned, figure_table, number, spearman
from guerdon.evaluation.suites.swap import swap_test
from guerdon.models.load import load_reward_model
from guerdon.models.scores import (
    Kind,
    episode_value,
    failure_counts,
    failure_line,
    info_record,
    score_episodes,
    write_record,
)
from guerdon.pages import charts
from guerdon.processes.progress import doing
from guerdon.settings.evaluate import EvaluateSettings, GateSettings, judged_names
from guerdon.settings.study import Study
from guerdon.settings.train import ImageTrainSettings, VLMTrainSettings
from guerdon.statistics.classification import ReliabilityBin
from guerdon.statistics.intervals import BootstrapOptions, Interval
from guerdon.types import Episode, FloatArray, RewardInfo, RewardModel, Score

CURVES_PER_OUTCOME = 3
EPISODES_PER_OUTCOME = 8
_OTHER_TASK = "stay where you are and touch nothing"


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found.

    Attributes:
        applicable: does the question make sense for this model and this data?
        passed: None where it does not, or where nothing could be measured.
        value: the number that is compared with the expectation.
        expected: the expectation in words, with what the value is.
        n: episodes behind the value.
        failures: failed measurements by reason.
        detail: the answer in a sentence, or what it lacks; empty where the other fields say all.
    """

    applicable: bool
    passed: bool | None
    value: float | None
    expected: str
    n: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The evaluation of a reward model.

    Attributes:
        model: its `info` as JSON values, with `kind` and `threshold` as they were used.
        data: episodes, rows, positives (successful episodes), rows_positive, outcome_unknown, hash; `trained_on` where
            the model was trained on them.
        metrics: by name.
        reliability: the bins of the reliability diagram; empty when the scores are not probabilities.
        probes: by name.
        failures: failed measurements by reason.
        table: labels and scores behind the pictures, rows where the model scores rows, else episodes.
        curves: values (T,) over a few episodes, and whether each succeeded.
        forecast: whether it will help RL.
        advice: what to train a policy with, in a study that could do so.
    """

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    metrics: Mapping[str, Interval]
    reliability: Sequence[ReliabilityBin]
    probes: Mapping[str, ProbeResult]
    failures: Mapping[str, int]
    table: Table
    curves: Sequence[tuple[FloatArray, bool]]
    forecast: GateForecast
    advice: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: no NaN, no arrays."""
        record = asdict(self)
        del record["table"], record["curves"], record["forecast"]
        return {"forecast": self.forecast.to_dict(), **record}


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
    known: Sequence[Episode] | None = None,
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
        gate: of the forecast; None: the defaults.
        known: of a model that looks at states: episodes with true success that it may know, for the swap test
            (`swapped_columns`); None: those of the evaluation.

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
    table = of_episodes = measure.episode_table(episodes, scores, kind)
    of_rows = None
    if info.granularity == "step":
        table = of_rows = measure.row_table(episodes, scores)
    probes = run_probes(model, episodes, scores, kind=kind, limit=limit, seed=seed, task_conditioned=task_conditioned)
    if info.modality == "state" and of_rows is not None:
        probes["swapped_columns"] = _swapped(model, known, episodes, seed=seed, reps=reps)
    metrics = _metrics(info, episodes, scores, of_episodes, of_rows, kind=kind, threshold=at, seed=seed, reps=reps)
    features = robot_features(episodes, scores, kind=kind, threshold=at)
    return Evaluation(
        model={**info_record(info), "kind": kind, "threshold": at},
        data=_data(episodes, data_hash),
        metrics=metrics,
        reliability=table.reliability() if _gives_probabilities(info, kind) else [],
        probes=probes,
        failures=failure_counts(scores),
        table=table,
        curves=_curves(episodes, scores),
        forecast=_forecast(features, info, gate or GateSettings()),
    )


def _gives_probabilities(info: RewardInfo, kind: Kind) -> bool:
    return kind == "success" and info.range[0] >= 0 and info.range[1] <= 1


def _metrics(
    info: RewardInfo,
    episodes: Sequence[Episode],
    scores: Sequence[Score],
    of_episodes: Table,
    of_rows: Table | None,
    *,
    kind: Kind,
    threshold: float | None,
    seed: int,
    reps: int,
) -> dict[str, Interval]:
    """The metrics of episodes, and those of rows where the model gives each row a value, by name."""
    bootstrap: BootstrapOptions = {"reps": reps, "seed": seed}
    probabilities = _gives_probabilities(info, kind)
    classified = measure.classification_metrics(
        of_episodes,
        threshold=threshold,
        probabilities=probabilities and of_rows is None,
        prefix="episode_",
        **bootstrap,
    )
    compared = measure.comparison_metrics(episodes, scores, kind, **bootstrap)
    if of_rows is None:
        return {**classified, **compared}
    ordered = measure.order_metrics(episodes, scores, **bootstrap)
    if kind == "progress":
        progress = measure.progress_metrics(episodes, scores, horizon=info.progress_horizon, **bootstrap)
        return {**classified, **ordered, **progress, **compared}
    rows = measure.classification_metrics(of_rows, threshold=threshold, probabilities=probabilities, **bootstrap)
    return {**rows, **classified, **ordered, **compared}


_SWAPPED = (
    "a success with the numbers of another episode, of those that only tell episodes apart, loses less than a row that "
    "is not at success (value: mean loss by the first minus that by the second, below 0)"
)


def _swapped(
    model: RewardModel, known: Sequence[Episode] | None, episodes: Sequence[Episode], *, seed: int, reps: int
) -> ProbeResult:
    """Whether a model of states recognises the episode instead of success, as a probe."""
    found = swap_test(model, episodes if known is None else known, episodes, seed=seed, reps=reps)
    passed = {"found": False, "not found": True, "unknown": None}[found.answer]
    value = None if found.difference is None else found.difference.estimate
    return ProbeResult(True, passed, value, _SWAPPED, found.n, detail=found.why)


def _forecast(features: Mapping[str, float | None], info: RewardInfo, gate: GateSettings) -> GateForecast:
    if info.modality == "state" and gate.table is None:
        return unknown("the packaged table has no reward model that looks at states; see evaluate.gate.table", features)
    return card_forecast(features, "robot", gate)


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


_TRAINED_ON = (
    "measured on the data that the model was trained on, so these figures are better than on new episodes: `guerdon "
    "evaluate` with the study of its training measures on the episodes that were held out"
)
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
    lines = [
        *forecast_lines(evaluation.forecast.to_dict()),
        "",
        f"{model['name']} ({model['kind']}), threshold {number(model['threshold'])}",
        f"{data['episodes']} episodes ({data['positives']} successful), {data['rows']} rows "
        f"({data['rows_positive']} successful)",
        *([_TRAINED_ON] if data.get("trained_on") else []),
        failure_line(evaluation.failures),
        "",
        *figure_table(metrics, "metric", ["baseline"]),
        "",
        *aligned(found),
        "",
        *(f"{name}: {result.expected}" for name, result in evaluation.probes.items()),
        *(f"{name}: {result.detail}" for name, result in evaluation.probes.items() if result.detail),
        *(["value_order: rows up to first success, mean over successful episodes"] if ordered else []),
    ]
    if evaluation.advice:
        lines += ["", "what to train a policy with:", *(f"  {line}" for line in evaluation.advice)]
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
        for _ in read_episodes(how.data_path, with_frames=False, outcomes=outcomes_of_data(how)):
            break


def outcomes_of_data(how: EvaluateSettings) -> Outcomes | None:
    """The outcomes of the data at `evaluate.data_path` that are in a file."""
    return None if how.outcomes is None else read_outcomes(how.outcomes, at_end=bool(how.success_at_end))


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
    said = _advice(study)
    for name in judged_names(study.train, remote, only, "evaluate.remote"):
        if name in remote:
            found = replace(evaluate_on_data(load_reward_model("remote", remote=remote[name]), study), advice=said)
            results[name] = (found, write_evaluation(found, remote_folder(study, name)))
            continue
        settings = study.vlm_models[name] if name in study.vlm_models else study.image_models[name]
        model = load_reward_model(settings.type, settings.save_dir, device=settings.device)
        progress = "progress" in (settings.type, getattr(settings, "question", None))
        episodes, digest = held_out(settings, how.data_path, outcomes_of_data(how))
        fitted = _known(settings)
        within = getattr(settings, "within_steps", None)
        if within is not None:  # its truth is the success that comes, not the one that is
            episodes = [known for episode in episodes if (known := within_labels(episode, within)) is not None]
        found = replace(_evaluated(name, model, episodes, digest, how, progress, fitted), advice=said)
        results[name] = (found, write_evaluation(found, Path(settings.save_dir)))
    return results


def _advice(study: Study) -> list[str]:
    """What fits the study, by what it has."""
    from guerdon.worlds.build import reports_success

    success = reports_success(study.env) if "env" in study.model_fields_set else None
    return advice(facts_of([study.model_dump(mode="json")], success=success))


def _known(settings: ImageTrainSettings | VLMTrainSettings) -> list[Episode] | None:
    """The episodes that a model of states was fitted to; None for other models, and where they are gone."""
    from guerdon.train.images import held_out_episodes, read_data, sees_states

    if not sees_states(settings) or not all(Path(path).exists() for path in settings.data_paths):
        return None
    episodes = list(read_data(settings)[0])
    held = held_out_episodes(episodes, settings)
    return [e for e in episodes if e.id not in held]


def evaluate_on_data(model: RewardModel, study: Study) -> Evaluation:
    """Evaluate a model that this study did not train on `evaluate.data_path`.

    Raises:
        DataError: the data cannot be read, or holds no episode.
    """
    how = study.control_evaluate
    info = model.info
    progress = info.progress or info.name == "progress" or info.progress_horizon is not None
    assert how.data_path is not None
    pictures, named = info.modality != "state", "camera" in study.env.model_fields_set
    camera = camera_for(how.data_path, info, study.env.camera_name if named else None)
    if camera is None and hasattr(study.env, "cameras"):
        camera = study.env.camera_name
    known = outcomes_of_data(how)
    episodes = list(read_episodes(how.data_path, camera=camera, with_frames=pictures, outcomes=known))
    return _evaluated(info.name, model, episodes, dataset_hash(how.data_path, known), how, progress)


def _evaluated(
    name: str,
    model: RewardModel,
    episodes: Sequence[Episode],
    digest: str,
    how: EvaluateSettings,
    progress: bool,
    known: Sequence[Episode] | None = None,
) -> Evaluation:
    kind: Kind = "progress" if progress else "success"
    with doing(f"evaluating {name}"):
        found = evaluate_model(
            model,
            episodes,
            kind=kind,
            threshold=None,
            seed=how.seed,
            reps=how.reps,
            data_hash=digest,
            gate=how.gate,
            known=known,
        )
    seen = how.data_path is not None and digest in _training_data(model)
    return replace(found, data={**found.data, "trained_on": True}) if seen else found


def _training_data(model: RewardModel) -> list[str]:
    """The hashes of the data sets that a model was trained on; none where its card does not say."""
    from guerdon.models.images.image import ImageRewardModel
    from guerdon.models.vlm.vlm import VLMRewardModel

    card = model.config if isinstance(model, ImageRewardModel) else None
    own = model.card if isinstance(model, VLMRewardModel) else card
    return [] if own is None else own.data_hash.split()


def held_out(
    settings: ImageTrainSettings | VLMTrainSettings, data_path: str | None, outcomes: Outcomes | None = None
) -> tuple[list[Episode], str]:
    """Episodes the model was not fitted to: another data set, or its own validation split.

    Args:
        settings: of the model.
        data_path: the other data set; None: the model's own.
        outcomes: of the other data set, where a file has them.

    Returns:
        The episodes and a hash of the data set they come from.
    """
    from guerdon.train.images import held_out_episodes, read_data, sees_states
    from guerdon.train.trainer import joint_hash

    if data_path is not None:
        frames = not sees_states(settings)
        read = read_episodes(data_path, camera=settings.camera, with_frames=frames, outcomes=outcomes)
        return list(read), dataset_hash(data_path, outcomes)
    everything, digests = read_data(settings)
    episodes = list(everything)
    names = held_out_episodes(episodes, settings)
    if not names:
        why = "the model was trained with val_split 0"
        if settings.val_split:
            why = "none has the labels of its training: pass the same outcomes, and success_at_end: true if it had that"
        raise DataError(f"no held-out episode: {why}; or name another data set as evaluate.data_path")
    return [e for e in episodes if e.id in names], joint_hash(digests)


def run_probes(
    model: RewardModel,
    episodes: Sequence[Episode],
    scores: Sequence[Score],
    *,
    kind: Kind,
    limit: float | None,
    seed: int,
    task_conditioned: bool = False,
) -> dict[str, ProbeResult]:
    """Every probe on up to 8 successful and 8 failed episodes.

    Args:
        model: the reward model.
        episodes: those of the evaluation.
        scores: its scores of these episodes, unchanged.
        kind: how an episode's value is read from its rows.
        limit: an episode with a value above it is judged successful; None makes the two probes that need it
            not applicable.
        seed: of the shuffling.
        task_conditioned: does the model read the task sentence?
    """
    info = model.info
    wins, losses = _pick(episodes, scores, True), _pick(episodes, scores, False)
    sees_frames, sees_rows = _seen(info)
    judged = sorted(wins + losses) if limit is not None and sees_rows else []
    ordered = wins if sees_rows and info.granularity == "step" else []
    window = max(1, info.frames_needed)  # rows from here on do not look back at row 0
    rng = np.random.default_rng(seed)

    def accepted(_: Score, new: Score) -> float | None:
        value = episode_value(new, kind)
        return None if value is None or limit is None else float(value > limit)

    def change_after_row_0(old: Score, new: Score) -> float | None:
        if old.steps is None or new.steps is None or np.ptp(old.steps) == 0:
            return None
        return float(np.abs(new.steps[window:] - old.steps[window:]).mean() / np.ptp(old.steps))

    def lower(old: Score, new: Score) -> float | None:
        before, after = episode_value(old, kind), episode_value(new, kind)
        return None if before is None or after is None else float(after < before)

    plan = {
        "black_frame": _Probe(
            "no episode of black frames is judged successful (value: share judged successful)",
            [i for i in judged if sees_frames and episodes[i].frames is not None],
            black_frames, accepted, lambda value, _: value == 0,
        ),
        "frozen_first_frame": _Probe(
            "no episode frozen at its first frame is judged successful (value: share)",
            [i for i in judged if first_success(episodes[i]) != 0],
            frozen_first_row, accepted, lambda value, _: value == 0,
        ),
        "reversed_video": _Probe(
            "values of a success fall when it plays backwards (value: mean Spearman with the row index, below 0)",
            ordered, reversed_rows, _trend, lambda value, _: value < 0,
        ),
        "shuffled_frames": _Probe(
            "values do not rise merely because time passes (value: mean Spearman with the shown order, within 0.25 of "
            "0 or 3 standard errors)",
            ordered, lambda episode: shuffled_rows(episode, rng), _trend, _no_trend,
        ),
        "goal_pasted_first": _Probe(
            "a goal frame at row 0 leaves later values as they were (value: mean change over the spread of values, at "
            "most 0.1)",
            [i for i in ordered if len(episodes[i]) > window and _succeeds_later(episodes[i])],
            goal_pasted_first, change_after_row_0, lambda value, _: value <= 0.1,
        ),
        "wrong_task": _Probe(
            "a success scores lower under another task (value: share of episodes that do, at least 0.8)",
            wins if task_conditioned else [],
            lambda episode: wrong_task(episode, _other_task(episode, episodes)),
            lower, lambda value, _: value >= 0.8,
        ),
    }  # fmt: skip
    return {name: _run(probe, model, episodes, scores) for name, probe in plan.items()}


def _seen(info: RewardInfo) -> tuple[bool, bool]:
    """Whether a model looks at frames, and whether it looks at rows at all: an image model may need no frame."""
    sees_frames = info.modality == "image" and info.frames_needed > 0
    return sees_frames, sees_frames or info.modality == "state"


def _succeeds_later(episode: Episode) -> bool:
    """Whether the first success is known and after row 0."""
    goal = first_success(episode)
    return goal is not None and goal > 0


def _trend(_: Score, new: Score) -> float | None:
    """Spearman correlation of values with the row index."""
    return None if new.steps is None else spearman(new.steps, np.arange(len(new.steps)))


def _no_trend(value: float, rows: list[int]) -> bool:
    error = float(np.sqrt(sum(1 / (n - 1) for n in rows))) / len(rows)  # of a random order
    return abs(value) <= max(0.25, 3 * error)


class _Probe(NamedTuple):
    expected: str
    indices: list[int]  # of the episodes it applies to; none where it makes no sense for the model
    change: Callable[[Episode], Episode]
    measure: Callable[[Score, Score], float | None]  # of the unchanged and the changed episode
    passes: Callable[[float, list[int]], bool]  # given the mean value, and the rows of each episode


def _run(probe: _Probe, model: RewardModel, episodes: Sequence[Episode], scores: Sequence[Score]) -> ProbeResult:
    if not probe.indices:
        return ProbeResult(False, None, None, probe.expected)
    changed = score_episodes(model, [probe.change(episodes[i]) for i in probe.indices])
    found = [
        (value, 0 if new.steps is None else len(new.steps))
        for i, new in zip(probe.indices, changed, strict=True)
        if new.failure is None and (value := probe.measure(scores[i], new)) is not None
    ]
    value = float(np.mean([value for value, _ in found])) if found else None
    passed = None if value is None else probe.passes(value, [rows for _, rows in found])
    return ProbeResult(True, passed, value, probe.expected, len(found), failure_counts(changed))


def separating_value(episodes: Sequence[Episode], scores: Sequence[Score], kind: Kind) -> float | None:
    """Halfway between the mean value of successful and of failed episodes, for a model without a threshold.

    None where the successful ones do not score higher: there is nothing to separate at.
    """
    pairs = list(zip(episodes, scores, strict=True))
    means = []
    for wanted in (True, False):
        values = [episode_value(score, kind) for episode, score in pairs if episode_success(episode) is wanted]
        known = [value for value in values if value is not None]
        means.append(float(np.mean(known)) if known else np.nan)
    return sum(means) / 2 if means[0] > means[1] else None


def _pick(episodes: Sequence[Episode], scores: Sequence[Score], success: bool) -> list[int]:
    """The first measured episodes with this outcome."""
    measured = [i for i, score in enumerate(scores) if score.failure is None]
    return [i for i in measured if episode_success(episodes[i]) is success][:EPISODES_PER_OUTCOME]


def _other_task(episode: Episode, episodes: Sequence[Episode]) -> str:
    """A task of the data set that is not this episode's, else a sentence that no motion fulfils."""
    others = sorted({other.task for other in episodes} - {episode.task})
    return others[0] if others else _OTHER_TASK


def without_truth(episode: Episode) -> Episode:
    """The episode without ground truth: no success, no rewards, no outcome."""
    return replace(episode, success=None, rewards=None, outcome=None)


def black_frames(episode: Episode) -> Episode:
    """Every frame black.

    Raises:
        ValueError: the episode has no frames.
    """
    if episode.frames is None:
        raise ValueError(f"episode {episode.id!r} has no frames to black out")
    return without_truth(replace(episode, frames=np.zeros_like(episode.frames)))


def frozen_first_row(episode: Episode) -> Episode:
    """Nothing ever moves: the first row's frame and state at every row."""
    return without_truth(episode.take(np.zeros(len(episode), dtype=np.int64)))


def reversed_rows(episode: Episode) -> Episode:
    """The video played backwards."""
    return without_truth(episode.take(np.arange(len(episode))[::-1]))


def shuffled_rows(episode: Episode, rng: np.random.Generator) -> Episode:
    """The rows in random order."""
    return without_truth(episode.take(rng.permutation(len(episode))))


def goal_pasted_first(episode: Episode) -> Episode:
    """The row of the first success pasted over row 0, everything else as it was.

    Raises:
        ValueError: the episode is not a success, so it shows no goal.
    """
    goal = first_success(episode)
    if goal is None:
        raise ValueError(f"episode {episode.id!r} never succeeds, so it has no goal frame to paste")
    rows = np.arange(len(episode))
    rows[0] = goal
    return without_truth(episode.take(rows))


def wrong_task(episode: Episode, task: str) -> Episode:
    """The same video under another task sentence.

    Raises:
        ValueError: the sentence is the episode's own.
    """
    if task == episode.task:
        raise ValueError(f"episode {episode.id!r} already has the task {task!r}")
    return without_truth(replace(episode, task=task))
