"""Results of a study: what lies on disk of its runs, and how its arms compare with the baseline.

Everything that reads results goes through here. A run is never dropped silently: a planned run without a
directory is `missing`, one with `FAILED.json` is `failed`, one without `COMPLETE` is `unfinished`. A
truncated JSON line (a killed process leaves one) is skipped and counted, and a number that is not finite
becomes None. What a step is differs: environment steps of a robot, responses written by a language model.

Only complete runs enter final success, area and steps to a threshold; failure rates count every run, finished or not.
An arm whose measurements fail more or less often than the baseline's is not compared at all. A word of comparison
(`better`, `fewer`) is used only where the interval excludes no difference.

    study = read_study(Path("runs/demo"))
    for run in study.runs: print(run.name, run.status, len(run.evals))
    for row in comparison_rows(study): print(row.arm, row.final.estimate, row.conclusion)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from guerdon.errors import DataError
from guerdon.files.json_files import read_json, read_lines
from guerdon.pages import formats as fmt
from guerdon.pages.formats import CONTROL, TEXT
from guerdon.statistics.intervals import Conclusion, Float64, Interval, conclusion
from guerdon.statistics.learning_curves import (
    UNDEFINED,
    StepsRatio,
    StepsToThreshold,
    area_under_curve,
    first_reach,
    pair_reach,
    steps_ratio,
)
from guerdon.statistics.training_runs import (
    Correction,
    PairedDifference,
    paired_differences,
    probability_of_improvement,
    stratified_bootstrap,
    stratified_t_interval,
)

Status = Literal["complete", "unfinished", "failed", "missing"]
Row = Mapping[str, Any]

SUCCESS, RETURN, TRUTH = "success", "return/env", "truth"  # what results can be about
MEASURES = {SUCCESS: "true success", RETURN: "return of the environment", TRUTH: "value of reward.truth"}
ArmConclusion = Conclusion | Literal["baseline", "not comparable", "no data"]

FAILURE_GAP = 0.01
"""Arms whose shares of failed measurements differ by more than one percentage point are not compared."""
SIGNIFICANT = 0.05
ALL_TASKS = "all tasks"
_SEED = 0


@dataclass(frozen=True)
class RunRecord:
    """One run: an arm, a task, a seed, and what its directory holds.

    Attributes:
        status: `complete`, `unfinished` (no `COMPLETE`), `failed` (`FAILED.json`), `missing` (no directory).
        error: the message of `FAILED.json`, else empty.
        evals: evaluation lines in the order of their steps, the last one kept where a step occurs twice.
        trains: training lines, likewise.
        skipped_lines: lines that were not valid JSON objects (a kill leaves a truncated last line).
        n_failures: rows of `failures.jsonl`.
        config_text: the resolved configuration as written, empty when there is none.
        unit: what its steps count, "environment steps" or "responses" (every one written, filtered ones too).
    """

    task: str
    arm: str
    seed: int | None
    path: Path
    status: Status
    error: str = ""
    evals: tuple[Row, ...] = ()
    trains: tuple[Row, ...] = ()
    skipped_lines: int = 0
    n_failures: int = 0
    config_text: str = ""
    unit: str = CONTROL
    info: Row = field(default_factory=dict)

    @cached_property
    def config(self) -> Row:
        """The resolved configuration; empty where it cannot be read."""
        return read_config(self.config_text)

    @property
    def planned_steps(self) -> float | None:
        """`runner.total_steps` of its configuration."""
        return number(mapping(self.config.get("runner")), "total_steps")

    @property
    def last_step(self) -> float:
        """The last step with a line of metrics."""
        return max((number(row, "step") or 0.0 for row in (*self.evals[-1:], *self.trains[-1:])), default=0.0)

    @property
    def stopped_early(self) -> bool:
        """Whether the run is marked complete and has fewer steps than its configuration plans."""
        return self.status == "complete" and self.last_step < (self.planned_steps or 0)

    @property
    def name(self) -> str:
        """How the report calls the run: `task/arm/seed3`."""
        return f"{self.task}/{self.arm}" + ("" if self.seed is None else f"/seed{self.seed}")

    @property
    def wall_seconds(self) -> float | None:
        """Seconds from the start of the run to its last line of metrics."""
        times = [t for row in (*self.evals, *self.trains) if (t := number(row, "wall_time")) is not None]
        return max(times, default=None)


@dataclass(frozen=True)
class RewardModelCard:
    """The evaluation of one reward model.

    Attributes:
        evaluation: the content of `evaluation.json`, with non-finite numbers as None.
        pictures: title to SVG file.
    """

    task: str
    name: str
    evaluation: Row
    pictures: Mapping[str, Path]


@dataclass(frozen=True)
class StudyRecord:
    """A study: its plan and all that is on disk of it.

    Attributes:
        arms: arm name to label, in the order of the study.
        correction: how its comparisons are corrected for their number.
        notes: problems of the directory itself (unknown runs, unreadable files), one line each.
        planned: whether its runs were planned as a comparison; False for runs that lie side by side in a folder.
    """

    name: str
    path: Path
    arms: Mapping[str, str]
    baseline: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[RunRecord, ...]
    cards: tuple[RewardModelCard, ...]
    config_text: str
    info: Row
    notes: tuple[str, ...] = ()
    correction: Correction = "none"
    planned: bool = True

    @cached_property
    def config(self) -> Row:
        """The study file, resolved for its first task; empty where it cannot be read."""
        return read_config(self.config_text)

    @property
    def unit(self) -> str:
        """What the steps of its runs count; a study compares arms of one kind."""
        return next((run.unit for run in self.runs if run.status != "missing"), CONTROL)

    @cached_property
    def measure(self) -> str:
        """What its results are about: one of `MEASURES`."""
        return measure_of_runs(self.runs)

    def select(self, *, arm: str, task: str | None = None, status: Status | None = None) -> list[RunRecord]:
        """The runs of an arm, of one task or of all, with one status or with any."""
        return [
            run for run in self.runs if run.arm == arm and task in (None, run.task) and status in (None, run.status)
        ]


def number(row: Row, key: str) -> float | None:
    """A finite float from a row, or None where it is absent, null, not a number or not finite."""
    return finite(row.get(key))


def finite(value: Any) -> float | None:
    """A number of JSON as a float; None for everything else, NaN and infinity included."""
    return float(value) if isinstance(value, bool | int | float) and math.isfinite(value) else None


def mapping(value: Any) -> Row:
    """A value of JSON if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def read_config(text: str) -> Row:
    """A configuration as plain values; empty where the text is none."""
    try:
        return mapping(yaml.safe_load(text))
    except yaml.YAMLError:
        return {}


def points(rows: Iterable[Row], x: str, y: str) -> list[tuple[float, float]]:
    """The two numbers of each row that has both."""
    pairs = ((number(row, x), number(row, y)) for row in rows)
    return [(one, other) for one, other in pairs if one is not None and other is not None]


def measure_of_runs(runs: Iterable[RunRecord]) -> str:
    """`TRUTH` where a run measured it; else `SUCCESS`, or `RETURN` where no evaluated run knows success but that."""
    evaluated = [run for run in runs if run.evals]
    if any(points(run.evals, "step", TRUTH) for run in evaluated):
        return TRUTH
    silent = bool(evaluated) and all(success_unknown(run) for run in evaluated)
    return RETURN if silent and any(points(run.evals, "step", RETURN) for run in evaluated) else SUCCESS


def measure_curve(run: RunRecord, measure: str = SUCCESS) -> tuple[list[float], list[float]]:
    """Steps and one of `MEASURES` of a run's evaluations; success that is no number from 0 to 1 is left out."""
    pairs = points(run.evals, "step", measure)
    pairs = [(step, value) for step, value in pairs if measure != SUCCESS or 0 <= value <= 1]
    return [step for step, _ in pairs], [value for _, value in pairs]


def success_unknown(run: RunRecord) -> bool:
    """Whether a run was evaluated, and not once with a known true success."""
    return bool(run.evals) and not measure_curve(run)[0]


def read_run(path: Path, *, task: str, arm: str, seed: int | None) -> RunRecord:
    """One run directory as it lies on disk; never raises for what a killed run leaves behind."""
    if not path.is_dir():
        return RunRecord(task=task, arm=arm, seed=seed, path=path, status="missing")
    files = {name: read_lines(path / f"{name}.jsonl") for name in ("metrics", "timings", "failures")}
    # a run keeps its times apart, since metrics repeat exactly for a seed and times never do
    times = {(t.get("kind", "train"), t.get("step")): t for t in files["timings"][0]}
    rows = [{**times.get((row.get("kind"), row.get("step")), {}), **row} for row in files["metrics"][0]]
    status, error = _status(path)
    config_text = _read_text(path / "config.yaml")
    unit = (read_json(path / "COMPLETE") or {}).get("unit")
    if not isinstance(unit, str) or not unit:
        policy = mapping(read_config(config_text).get("policy"))
        unit = TEXT if policy.get("type") == "text" else CONTROL
    return RunRecord(
        task=task,
        arm=arm,
        seed=seed,
        path=path,
        status=status,
        error=error,
        evals=_by_step(rows, "eval"),
        trains=_by_step(rows, "train"),
        skipped_lines=sum(skipped for _, skipped in files.values()),
        n_failures=len(files["failures"][0]),
        config_text=config_text,
        unit=unit,
        info=read_json(path / "run.json") or {},
    )


def read_study(study_dir: Path) -> StudyRecord:
    """A study directory: its runs, and the plan of `study.json`.

    Raises:
        DataError: the directory holds no plan.
    """
    plan = _read_plan(study_dir)
    arms = {str(name): str(mapping(arm).get("label") or name) for name, arm in mapping(plan.get("arms")).items()}
    if not arms:
        raise DataError("the study plan names no arm; run `guerdon compare` on a study file first", where=study_dir)
    tasks = tuple(str(task) for task in plan.get("tasks") or ())
    seeds = tuple(int(seed) for seed in plan.get("seeds") or ())
    baseline = str(plan.get("baseline") or next(iter(arms)))
    if baseline not in arms:
        raise DataError(
            f"the baseline {baseline!r} is none of the arms {sorted(arms)}", where=study_dir, field="baseline"
        )
    root = study_dir / "runs"
    runs = tuple(
        read_run(root / task / arm / f"seed{seed}", task=task, arm=arm, seed=seed)
        for task, arm, seed in product(tasks, arms, seeds)
    )
    cards, card_notes = _read_cards(study_dir / "models")
    return StudyRecord(
        name=str(plan.get("name") or study_dir.resolve().name),
        path=study_dir,
        arms=arms,
        baseline=baseline,
        tasks=tasks,
        seeds=seeds,
        runs=runs,
        cards=cards,
        config_text=_read_text(study_dir / "study.yaml"),
        info=plan,
        notes=(*_notes_on_others(study_dir, runs), *card_notes),
        correction="holm" if plan.get("correction") == "holm" else "none",
    )


def _read_plan(study_dir: Path) -> Row:
    plan = read_json(study_dir / "study.json")
    if plan is None:
        raise DataError(
            "no study.json: run `guerdon compare` first, or give the directory that it wrote", where=study_dir
        )
    return plan


def _notes_on_others(study_dir: Path, runs: Sequence[RunRecord]) -> list[str]:
    """A line for each folder of a run that the plan does not have."""
    planned = {run.path for run in runs}
    found = sorted((study_dir / "runs").glob("*/*/seed*"))
    others = [path for path in found if path.is_dir() and path not in planned]
    return [f"{path.relative_to(study_dir)} is not part of the study's plan and is left out" for path in others]


def _status(path: Path) -> tuple[Status, str]:
    if (path / "COMPLETE").exists():
        return "complete", ""
    if (path / "FAILED.json").exists():
        content = read_json(path / "FAILED.json") or {}
        return "failed", str(content.get("error") or "no reason was written")
    return "unfinished", ""


def _by_step(rows: Sequence[Row], kind: str) -> tuple[Row, ...]:
    kept = {step: row for row in rows if row.get("kind") == kind and (step := number(row, "step")) is not None}
    return tuple(kept[step] for step in sorted(kept))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_cards(root: Path) -> tuple[tuple[RewardModelCard, ...], list[str]]:
    cards: list[RewardModelCard] = []
    notes: list[str] = []
    for path in sorted([*root.glob("*/*/evaluation.json"), *root.glob("*/*/method*/evaluation.json")]):
        folder = path.parent
        content = read_json(path)
        task, *name = folder.relative_to(root).parts
        if content is None:
            notes.append(f"models/{task}/{'/'.join(name)}/evaluation.json cannot be read")
            continue
        files = mapping(content.get("pictures")).items()
        pictures = {str(title): folder / Path(str(file)).name for title, file in files}
        cards.append(RewardModelCard(task, "/".join(name), content, pictures))
    return tuple(cards), notes


@dataclass(frozen=True)
class ArmRow:
    """The numbers of one arm over some tasks.

    Where results are not about true success, `final`, `area` and `difference` are of another measure, not
    clipped and not over several tasks, whose returns have no unit in common; steps are not compared.

    Attributes:
        final: success at the last evaluation, averaged over tasks, with a t interval inside [0, 1].
        final_iqm: interquartile mean of the same over all runs, with a bootstrap interval.
        area: mean height of the success curve, likewise.
        to_half: steps to the first evaluation with success >= 0.5, over runs.
        to_most: steps to the first evaluation with success >= 0.8.
        p_above: probability that a run of the arm ends above a run of the baseline; None for the baseline.
        difference: final success minus the baseline's, paired by task and seed; None for the baseline.
        speed: the baseline's steps to its own final success over the arm's; None for the baseline.
        failure_rate: mean share of failed measurements of the source that fails most, over all runs that logged one.
        n_runs: complete runs; `n_planned` is how many the study has, `n_stopped` how many of the complete ones have
            fewer steps than their configuration plans.
        wall_seconds: mean over complete runs.
    """

    task: str
    arm: str
    label: str
    style: int
    conclusion: ArmConclusion
    sentence: str
    detail: str
    final: Interval
    final_iqm: Interval
    area: Interval
    to_half: StepsToThreshold
    to_most: StepsToThreshold
    p_above: Interval | None
    difference: PairedDifference | None
    speed: StepsRatio | None
    failure_rate: float | None
    n_runs: int
    n_planned: int
    n_stopped: int
    wall_seconds: float | None

    @property
    def is_probable(self) -> bool:
        """Whether the interval alone says better or worse and the sign-flip test does not agree: words are softer."""
        return self.conclusion in ("better", "worse") and _unconfirmed(self.difference)

    def numbers(self) -> dict[str, Any]:
        """What the conclusion rests on, as plain values; intervals as three columns."""
        found: dict[str, Any] = {"task": self.task, "arm": self.arm, "label": self.label, "conclusion": self.conclusion}
        found |= _columns("final", self.final) | _columns("area", self.area)
        found |= _columns("difference", None if self.difference is None else self.difference.interval)
        return found | {"runs": self.n_runs, "failure_rate": self.failure_rate, "wall_seconds": self.wall_seconds}


def _unconfirmed(difference: PairedDifference | None) -> bool:
    """Whether a sign-flip test was made and does not show a difference."""
    return difference is not None and difference.p_value is not None and difference.p_value > SIGNIFICANT


def _columns(name: str, interval: Interval | None) -> dict[str, float | None]:
    """An estimate and its bounds under names of their own."""
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def arm_styles(study: StudyRecord) -> dict[str, int]:
    """Index of colour, dash and marker per arm: 0 for the baseline, then the arms in the study's order."""
    others = [arm for arm in study.arms if arm != study.baseline]
    return {study.baseline: 0} | {arm: i + 1 for i, arm in enumerate(others)}


def final_success(run: RunRecord, measure: str = SUCCESS) -> float | None:
    """True success (or another measure) at the last evaluation of a complete run, else None."""
    values = measure_curve(run, measure)[1]
    return values[-1] if values and run.status == "complete" else None


def mean_area(run: RunRecord, measure: str = SUCCESS) -> float | None:
    """Mean height of the curve of a complete run; None with fewer than two evaluations."""
    steps, values = measure_curve(run, measure)
    if run.status != "complete" or len(steps) < 2:
        return None
    return float(area_under_curve(steps, values))


def failure_rate(run: RunRecord) -> float | None:
    """Mean of the failure rates that the run logged, whether or not it finished."""
    return _mean([number(row, "failure_rate") for row in run.trains])


def summarise(study: StudyRecord, tasks: Sequence[str]) -> list[ArmRow]:
    """One row per arm over these tasks, the baseline first."""
    differences = _differences(study, tasks)
    return [_arm_row(study, arm, style, tasks, differences.get(arm)) for arm, style in arm_styles(study).items()]


def _differences(study: StudyRecord, tasks: Sequence[str]) -> dict[str, PairedDifference]:
    """Arms minus the baseline, for arms with comparable failure rates; corrected as the study is configured."""
    rates = {arm: _failure_rate(study, arm, tasks) or 0.0 for arm in study.arms}
    base = rates.pop(study.baseline)
    others = [arm for arm, rate in rates.items() if abs(rate - base) <= FAILURE_GAP]
    baseline = scores(study, study.baseline, tasks, final_success)
    finals = [scores(study, arm, tasks, final_success) for arm in others]
    found = paired_differences(finals, baseline, seed=_SEED, correction=study.correction)
    return dict(zip(others, found, strict=True))


def _failure_rate(study: StudyRecord, arm: str, tasks: Sequence[str]) -> float | None:
    return _mean([failure_rate(run) for run in study.select(arm=arm) if run.task in tasks])


def scores(study: StudyRecord, arm: str, tasks: Sequence[str], of: Callable[[RunRecord, str], float | None]) -> Float64:
    """(tasks, seeds) of a number per run, NaN where the run has none; of several tasks' returns all are NaN."""
    values = {(run.task, run.seed): of(run, study.measure) for run in study.select(arm=arm)}
    mixed = study.measure != SUCCESS and len(tasks) > 1
    table = [[None if mixed else values.get((task, seed)) for seed in study.seeds] for task in tasks]
    return np.array(table, dtype=np.float64).reshape(len(tasks), len(study.seeds))


def comparison_rows(study: StudyRecord) -> list[ArmRow]:
    """The arms over all tasks of the study, then task by task (a study with one task has the pooled rows only)."""
    tasks = study.tasks if len(study.tasks) > 1 else ()
    return [*summarise(study, study.tasks), *(row for task in tasks for row in summarise(study, [task]))]


def _arm_row(study: StudyRecord, arm: str, style: int, tasks: Sequence[str], paired: PairedDifference | None) -> ArmRow:
    runs = [run for run in study.select(arm=arm) if run.task in tasks]
    complete = [run for run in runs if run.status == "complete"]
    scores_of_arm = scores(study, arm, tasks, final_success)
    final = stratified_t_interval(scores_of_arm)
    area = stratified_t_interval(scores(study, arm, tasks, mean_area))
    p_above = difference = speed = None
    concluded: ArmConclusion
    sentence = detail = ""
    success = study.measure == SUCCESS
    if success:
        final, area = _clipped(final), _clipped(area)
    if paired is None:
        concluded = "baseline" if arm == study.baseline else "not comparable"
    elif not paired.interval.n:
        concluded = "no data"
    else:
        concluded = conclusion(paired.interval)
        baseline = scores(study, study.baseline, tasks, final_success)
        difference = paired
        if success:
            difference = replace(paired, interval=_clipped(paired.interval, -1.0))
            speed = speed_against(study, arm, tasks)
        if (np.isfinite(scores_of_arm - baseline).sum(axis=1) > 1).any():  # some task has pairs of several seeds
            p_above = probability_of_improvement(scores_of_arm, baseline, seed=_SEED)
        else:  # tests and chances are about other seeds, and there is none
            difference = replace(difference, p_value=None, smallest_p=None)
        detail = _detail(arm, study.baseline, scores_of_arm, baseline, difference, p_above)
    if arm != study.baseline:
        sentence = _sentence(study, arm, tasks, concluded, difference)
    return ArmRow(
        task=ALL_TASKS if len(tasks) != 1 else tasks[0],
        arm=arm,
        label=study.arms[arm],
        style=style,
        conclusion=concluded,
        sentence=sentence,
        detail=detail,
        final=final,
        final_iqm=stratified_bootstrap(scores_of_arm, average="iqm", seed=_SEED),
        area=area,
        to_half=_reach(complete, 0.5),
        to_most=_reach(complete, 0.8),
        p_above=p_above,
        difference=difference,
        speed=speed,
        failure_rate=_failure_rate(study, arm, tasks),
        n_runs=len(complete),
        n_planned=len(runs),
        n_stopped=sum(run.stopped_early for run in complete),
        wall_seconds=_mean([run.wall_seconds for run in complete]),
    )


def _sentence(
    study: StudyRecord, arm: str, tasks: Sequence[str], concluded: ArmConclusion, difference: PairedDifference | None
) -> str:
    """The conclusion in plain words."""
    baseline = study.baseline
    if difference is None or _without_unit(study, tasks):
        return _no_conclusion(study, arm, tasks, concluded)
    amount = f"{_measured(study.measure)} {fmt.signed_interval(difference.interval)}"
    probably = " probably" if _unconfirmed(difference) else ""
    if concluded == "better":
        return f"{arm}{probably} beats {baseline}: {amount}"
    if concluded == "worse":
        return f"{arm} is{probably} worse than {baseline}: {amount}"
    without = " without an interval" if difference.interval.low is None else ""
    return f"{arm} against {baseline}: no difference shown, {amount}{without}"


def _without_unit(study: StudyRecord, tasks: Sequence[str]) -> bool:
    return study.measure != SUCCESS and len(tasks) > 1


def _no_conclusion(study: StudyRecord, arm: str, tasks: Sequence[str], concluded: ArmConclusion) -> str:
    """Why there is no conclusion, in plain words."""
    baseline = study.baseline
    if concluded == "not comparable":
        own, other = (fmt.percent(_failure_rate(study, name, tasks) or 0.0) for name in (arm, baseline))
        rates = f"{own} of measurements failed in {arm}, {other} in {baseline}"
        return f"{arm} and {baseline} are not comparable: failure rates differ ({rates})"
    if _without_unit(study, tasks):
        return f"{arm} against {baseline}: no conclusion over all tasks, whose returns have no unit in common"
    unknown = [name for name in (arm, baseline) if _has_unknown_success(study, name, tasks)]
    if concluded == "no data" and study.measure == SUCCESS and unknown:
        return f"{arm} against {baseline}: no conclusion, true success is unknown in runs of {' and '.join(unknown)}"
    return f"{arm} against {baseline}: no conclusion, no task and seed has a complete run of both"


def _has_unknown_success(study: StudyRecord, arm: str, tasks: Sequence[str]) -> bool:
    return any(run.arm == arm and run.task in tasks and success_unknown(run) for run in study.runs)


def _measured(measure: str) -> str:
    """What the numbers of a conclusion are."""
    if measure == SUCCESS:
        return "final success"
    unknown = " (true success is unknown)" if measure == RETURN else ""
    return f"final {MEASURES[measure]}{unknown}"


def _detail(
    arm: str, baseline: str, own: Float64, other: Float64, difference: PairedDifference, p_above: Interval | None
) -> str:
    """What lies behind the sentence: both levels, the pairs, the test."""
    pair = np.isfinite(own) & np.isfinite(other)
    levels = [stratified_t_interval(np.where(pair, values, np.nan)).estimate for values in (own, other)]
    n = difference.interval.n
    text = f"{arm} ends at {fmt.decimal(levels[0])}, {baseline} at {fmt.decimal(levels[1])}, over "
    text += f"{fmt.plural(n, 'pair')} of runs on {fmt.plural(difference.n_tasks, 'task')}. "
    if p_above is None:
        return text + "One seed: what another would give is not known, so there is no interval and no test."
    text += f"P({arm}\u00a0>\u00a0{baseline})\u00a0= {fmt.decimal(p_above.estimate)}; "
    p_value = fmt.p_value(difference.p_value)
    text += "sign-flip test p " + (p_value if p_value.startswith("<") else f"= {p_value}")
    if difference.family > 1:
        text += f" after Holm's correction for {difference.family} comparisons, interval at {difference.level:.1%}"
    if difference.smallest_p is not None and difference.smallest_p > 0.05:
        smallest = fmt.p_value(difference.smallest_p)
        text += f", the smallest that {fmt.plural(n, 'pair')} can give being {smallest}"
        text += " before it" if difference.family > 1 else ""
    return text + "."


def _reach(runs: Sequence[RunRecord], threshold: float) -> StepsToThreshold:
    return StepsToThreshold(tuple(first_reach(*measure_curve(run), threshold) for run in runs))


def _clipped(interval: Interval, floor: float = 0.0) -> Interval:
    """Success lies in [0, 1] and a difference of two in [-1, 1], so their intervals do too."""
    if interval.low is None or interval.high is None:
        return interval
    return replace(interval, low=max(interval.low, floor), high=min(interval.high, 1.0))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def speed_against(study: StudyRecord, arm: str, tasks: Sequence[str]) -> StepsRatio:
    """The baseline's steps to its own final success over the arm's, over pairs of complete runs."""
    arms, baselines = (
        {(run.task, run.seed): measure_curve(run) for run in study.select(arm=name, status="complete")}
        for name in (arm, study.baseline)
    )
    pairs = [
        pair_reach(*baselines[pair], *arms[pair]) if pair in arms and pair in baselines else UNDEFINED
        for pair in product(tasks, study.seeds)
    ]
    shape = (len(tasks), len(study.seeds), len(UNDEFINED))
    baseline, own, censored, baseline_after, own_after = np.array(pairs).reshape(shape).transpose(2, 0, 1)
    return steps_ratio(baseline, own, censored, baseline_after_K_S=baseline_after, arm_after_K_S=own_after, seed=_SEED)
