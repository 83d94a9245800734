"""The numbers of a study: one row per arm, the verdict against the baseline, and the table for the terminal.

Only complete runs enter final success, area and steps to a threshold; failure rates count every run, finished
or not. An arm whose measurements fail more or less often than the baseline's is not compared at all. All
statistics come from `evaluate.statistics`; this module knows neither HTML nor pictures.

    for row in comparison_table(Path("runs/demo")): print(row["arm"], row["final_success"], row["verdict"])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from guerdon.compare import report_words as words
from guerdon.compare.read_runs import (
    CONTROL,
    RunRecord,
    StudyRecord,
    number,
    read_study,
    success_curve,
    success_unknown,
)
from guerdon.compare.report_speed import speed_against, speed_sentence, speed_text
from guerdon.evaluate.intervals import Interval, verdict
from guerdon.evaluate.learning_curves import StepsRatio, StepsToThreshold, area_under_curve, steps_to_threshold
from guerdon.evaluate.statistics import (
    PairedDifference,
    paired_differences,
    probability_of_improvement,
    stratified_t_interval,
)

Float64 = NDArray[np.float64]
Outcome = Literal["baseline", "better", "worse", "no difference shown", "not comparable", "no data"]

FAILURE_GAP = 0.01
"""Arms whose shares of failed measurements differ by more than one percentage point are not compared."""
ALL_TASKS = "all tasks"
_SEED = 0


@dataclass(frozen=True)
class ArmRow:
    """What the table says about one arm, over some tasks.

    Attributes:
        final: success at the last evaluation, averaged over tasks, with a t interval inside [0, 1].
        area: mean height of the success curve, likewise.
        to_half: steps to the first evaluation with success >= 0.5, over runs.
        to_most: steps to the first evaluation with success >= 0.8.
        p_above: probability that a run of the arm ends above a run of the baseline; None for the baseline.
        difference: final success minus the baseline's, paired by task and seed; None for the baseline.
        speed: the baseline's steps to its own final success over the arm's; None for the baseline.
        speed_sentence: that ratio in plain words where its interval excludes 1, else empty.
        failure_rate: mean share of failed measurements of the source that fails most, over all runs that logged one.
        n_runs: complete runs; `n_planned` is how many the study asked for.
        wall_seconds: mean over complete runs.
    """

    task: str
    arm: str
    label: str
    style: int
    outcome: Outcome
    sentence: str
    detail: str
    final: Interval
    area: Interval
    to_half: StepsToThreshold
    to_most: StepsToThreshold
    p_above: Interval | None
    difference: PairedDifference | None
    speed: StepsRatio | None
    speed_sentence: str
    failure_rate: float | None
    n_runs: int
    n_planned: int
    wall_seconds: float | None


def arm_styles(study: StudyRecord) -> dict[str, int]:
    """Index of colour, dash and marker per arm: 0 for the baseline, then the arms in the study's order."""
    others = [arm for arm in study.arms if arm != study.baseline]
    return {study.baseline: 0} | {arm: i + 1 for i, arm in enumerate(others)}


def final_success(run: RunRecord) -> float | None:
    """True success at the last evaluation of a complete run, else None."""
    values = success_curve(run)[1]
    return values[-1] if values and run.status == "complete" else None


def mean_area(run: RunRecord) -> float | None:
    """Mean height of the success curve of a complete run; None with fewer than two evaluations."""
    steps, values = success_curve(run)
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
    """Arms minus the baseline, those alone whose failure rates let them be compared; corrected as the study says."""
    rates = {arm: _failure_rate(study, arm, tasks) for arm in study.arms}
    others = [arm for arm in study.arms if arm != study.baseline and _comparable(rates[arm], rates[study.baseline])]
    baseline = scores(study, study.baseline, tasks, final_success)
    finals = [scores(study, arm, tasks, final_success) for arm in others]
    found = paired_differences(finals, baseline, seed=_SEED, correction=study.correction)
    return dict(zip(others, found, strict=True))


def _failure_rate(study: StudyRecord, arm: str, tasks: Sequence[str]) -> float | None:
    return _mean([failure_rate(run) for run in study.select(arm=arm) if run.task in tasks])


def _comparable(own: float | None, other: float | None) -> bool:
    return abs((own or 0.0) - (other or 0.0)) <= FAILURE_GAP


def scores(study: StudyRecord, arm: str, tasks: Sequence[str], of: Callable[[RunRecord], float | None]) -> Float64:
    """(tasks, seeds) of a number per run, NaN where the run has none."""
    table = np.full((len(tasks), len(study.seeds)), np.nan)
    rows = {task: k for k, task in enumerate(tasks)}
    columns = {seed: s for s, seed in enumerate(study.seeds)}
    for run in study.runs:
        if run.arm == arm and run.task in rows and run.seed in columns and (value := of(run)) is not None:
            table[rows[run.task], columns[run.seed]] = value
    return table


def comparison_table(study_dir: Path) -> list[dict[str, Any]]:
    """The numbers of a study as plain rows: all tasks pooled first, then task by task.

    Raises:
        DataError: the directory holds no study.
    """
    study = read_study(study_dir)
    return [{"unit": study.unit, **_plain(row)} for row in (*pooled_rows(study), *task_rows(study))]


def pooled_rows(study: StudyRecord) -> list[ArmRow]:
    """The arms over all tasks of the study."""
    return summarise(study, study.tasks)


def task_rows(study: StudyRecord) -> list[ArmRow]:
    """The arms task by task; nothing for a study with one task, which the pooled rows already show."""
    return [row for task in study.tasks for row in summarise(study, [task])] if len(study.tasks) > 1 else []


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `comparison_table` as a Markdown table, for documents and terminals."""
    unit = words.short_unit(str(rows[0]["unit"]) if rows else CONTROL)
    header = ["task", "arm", "final success", "area", f"{unit} to 50%", f"{unit} to 80%", "P(arm > baseline)"]
    header += ["difference", "verdict", f"{unit} to match the baseline", "failed", "runs", "wall time"]
    lines = [header, ["---", "---", *["---:"] * 6, "---", *["---:"] * 4]]
    for row in rows:
        cells = [
            str(row["task"]),
            f"{row['arm']}: {row['label']}" if row["label"] != row["arm"] else str(row["arm"]),
            _estimate(row, "final_success"),
            _estimate(row, "area"),
            f"{words.steps(row['steps_to_50'])} ({row['reached_50']}/{row['n_runs']})",
            f"{words.steps(row['steps_to_80'])} ({row['reached_80']}/{row['n_runs']})",
            _estimate(row, "p_above"),
            _estimate(row, "difference", sign=True),
            str(row["verdict"]),
            str(row["speed"] or words.DASH),
            words.percent(row["failure_rate"]),
            f"{row['n_runs']}/{row['n_planned']}",
            words.duration(row["wall_seconds"]),
        ]
        lines.append([cell.replace("|", "\\|").replace("\n", " ") for cell in cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _arm_row(study: StudyRecord, arm: str, style: int, tasks: Sequence[str], paired: PairedDifference | None) -> ArmRow:
    runs = [run for run in study.select(arm=arm) if run.task in tasks]
    complete = [run for run in runs if run.status == "complete"]
    final = scores(study, arm, tasks, final_success)
    own_rate = _failure_rate(study, arm, tasks)
    p_above = difference = speed = None
    outcome: Outcome = "baseline" if arm == study.baseline else "not comparable"
    sentence = detail = ""
    if paired is not None:
        outcome = verdict(paired.interval) if paired.interval.n else "no data"
    if paired is not None and paired.interval.n:
        baseline = scores(study, study.baseline, tasks, final_success)
        difference = replace(paired, interval=_clipped(paired.interval, -1.0))
        if _repeated(final, baseline):
            p_above = probability_of_improvement(final, baseline, seed=_SEED)
        else:  # tests and chances are about other seeds, and there is none
            difference = replace(difference, p_value=None, smallest_p=None)
        speed = speed_against(study, arm, tasks)
        detail = _detail(arm, study.baseline, final, baseline, difference, p_above)
    if arm != study.baseline:
        other_rate = _failure_rate(study, study.baseline, tasks)
        other_runs = [run for run in study.select(arm=study.baseline) if run.task in tasks]
        unknown = [
            name for name, some in ((arm, runs), (study.baseline, other_runs)) if any(map(success_unknown, some))
        ]
        sentence = _sentence(outcome, arm, study.baseline, difference, own_rate, other_rate, unknown)
    return ArmRow(
        task=ALL_TASKS if len(tasks) != 1 else tasks[0],
        arm=arm,
        label=study.arms[arm],
        style=style,
        outcome=outcome,
        sentence=sentence,
        detail=detail,
        final=_clipped(stratified_t_interval(final)),
        area=_clipped(stratified_t_interval(scores(study, arm, tasks, mean_area))),
        to_half=_reach(complete, 0.5),
        to_most=_reach(complete, 0.8),
        p_above=p_above,
        difference=difference,
        speed=speed,
        speed_sentence=speed_sentence(speed, arm, study.baseline, study.unit),
        failure_rate=own_rate,
        n_runs=len(complete),
        n_planned=len(runs),
        wall_seconds=_mean([run.wall_seconds for run in complete]),
    )


def _repeated(own: Float64, other: Float64) -> bool:
    """Whether any task has pairs of runs of more than one seed."""
    return bool(((np.isfinite(own) & np.isfinite(other)).sum(axis=1) > 1).any())


def _sentence(
    outcome: Outcome,
    arm: str,
    baseline: str,
    difference: PairedDifference | None,
    own: float | None,
    other: float | None,
    unknown: Sequence[str],
) -> str:
    """The verdict in plain words; `unknown` are the arms with runs whose true success nobody knows."""
    if outcome == "not comparable":
        rates = f"{words.percent(own or 0.0)} of measurements failed in {arm}, "
        rates += f"{words.percent(other or 0.0)} in {baseline}"
        return f"{arm} and {baseline} are not comparable: failure rates differ ({rates})"
    if outcome == "no data" and unknown:
        return f"{arm} against {baseline}: no verdict, true success is unknown in runs of {' and '.join(unknown)}"
    if difference is None:
        return f"{arm} against {baseline}: no verdict, no task and seed has a complete run of both"
    amount = f"final success {words.signed_interval(difference.interval)}"
    if outcome == "better":
        return f"{arm} beats {baseline}: {amount}"
    if outcome == "worse":
        return f"{arm} is worse than {baseline}: {amount}"
    if difference.interval.low is None:
        return f"{arm} against {baseline}: no difference shown, {amount} without an interval"
    return f"{arm} against {baseline}: no difference shown, {amount}"


def _detail(
    arm: str, baseline: str, own: Float64, other: Float64, difference: PairedDifference, p_above: Interval | None
) -> str:
    """What lies behind the sentence: both levels, the pairs, the test."""
    pair = np.isfinite(own) & np.isfinite(other)
    levels = [stratified_t_interval(np.where(pair, values, np.nan)).estimate for values in (own, other)]
    n = difference.interval.n
    text = f"{arm} ends at {words.decimal(levels[0])}, {baseline} at {words.decimal(levels[1])}, over "
    text += f"{words.plural(n, 'pair')} of runs on {words.plural(difference.n_tasks, 'task')}. "
    if p_above is None:
        return text + "One seed: what another would give is not known, so there is no interval and no test."
    text += f"P({arm}\u00a0>\u00a0{baseline})\u00a0= {words.decimal(p_above.estimate)}; "
    text += f"sign-flip test p {_p(difference.p_value)}"
    if difference.family > 1:
        text += f" after Holm's correction for {difference.family} comparisons, interval at {difference.level:.1%}"
    if difference.smallest_p is not None and difference.smallest_p > 0.05:
        smallest = words.p_value(difference.smallest_p)
        text += f", the smallest that {words.plural(n, 'pair')} can give being {smallest}"
        text += " before it" if difference.family > 1 else ""
    return text + "."


def _p(value: float | None) -> str:
    text = words.p_value(value)
    return text if text.startswith("<") else f"= {text}"


def _reach(runs: Sequence[RunRecord], threshold: float) -> StepsToThreshold:
    curves = [success_curve(run) for run in runs]
    grid = sorted({step for steps, _ in curves for step in steps})
    table = np.full((len(curves), len(grid)), np.nan)
    index = {step: p for p, step in enumerate(grid)}
    for row, (steps, values) in zip(table, curves, strict=True):
        row[[index[step] for step in steps]] = values
    if not curves:
        return StepsToThreshold(steps=(), reached=0, n=0, median=None)
    return steps_to_threshold(grid, table, threshold)


def _clipped(interval: Interval, floor: float = 0.0) -> Interval:
    """Success lies in [0, 1] and a difference of two in [-1, 1], so their intervals do too."""
    if interval.low is None or interval.high is None:
        return interval
    return replace(interval, low=max(interval.low, floor), high=min(interval.high, 1.0))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _plain(row: ArmRow) -> dict[str, Any]:
    ratio = None if row.speed is None else row.speed.interval
    plain: dict[str, Any] = {"task": row.task, "arm": row.arm, "label": row.label, "verdict": row.outcome}
    paired = None if row.difference is None else row.difference.interval
    for key, interval in (
        ("final_success", row.final),
        ("area", row.area),
        ("p_above", row.p_above),
        ("difference", paired),
        ("steps_ratio", ratio),
    ):
        plain[key] = None if interval is None else interval.estimate
        plain[f"{key}_low"] = None if interval is None else interval.low
        plain[f"{key}_high"] = None if interval is None else interval.high
    plain |= {
        "p_value": None if row.difference is None else row.difference.p_value,
        "difference_level": None if row.difference is None else row.difference.level,
        "n_pairs": None if paired is None else paired.n,
        "speed": None if row.speed is None else " ".join(part for part in speed_text(row.speed) if part),
        "never_reached": None if row.speed is None else row.speed.censored,
        "steps_to_50": row.to_half.median,
        "reached_50": row.to_half.reached,
        "steps_to_80": row.to_most.median,
        "reached_80": row.to_most.reached,
        "failure_rate": row.failure_rate,
        "n_runs": row.n_runs,
        "n_planned": row.n_planned,
        "wall_seconds": row.wall_seconds,
    }
    return plain


def _estimate(row: Mapping[str, Any], key: str, *, sign: bool = False) -> str:
    interval = Interval(row[key], row[f"{key}_low"], row[f"{key}_high"], n=0)
    text = words.signed(interval.estimate) if sign else words.decimal(interval.estimate)
    return f"{text} {words.bounds(interval)}".strip()
