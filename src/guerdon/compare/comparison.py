"""Comparison of the arms of a study: one row of numbers per arm, with the verdict against the baseline in words.

Only complete runs enter final success, area and steps to a threshold; failure rates count every run, finished or not.
An arm whose measurements fail more or less often than the baseline's is not compared at all. A word of comparison
(`better`, `fewer`) is used only where the interval excludes no difference.

    for row in comparison_rows(read_study(Path("runs/demo"))): print(row.arm, row.final.estimate, row.outcome)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from guerdon.compare import report_format as fmt
from guerdon.compare.read_runs import (
    RETURN,
    SUCCESS,
    RunRecord,
    StudyRecord,
    number,
    outcome_curve,
    success_unknown,
)
from guerdon.evaluate.intervals import Float64, Interval, verdict
from guerdon.evaluate.learning_curves import (
    UNDEFINED,
    StepsRatio,
    StepsToThreshold,
    area_under_curve,
    first_reach,
    pair_reach,
    steps_ratio,
)
from guerdon.evaluate.statistics import (
    PairedDifference,
    paired_differences,
    probability_of_improvement,
    stratified_bootstrap,
    stratified_t_interval,
)

Outcome = Literal["baseline", "better", "worse", "no difference shown", "not comparable", "no data"]

FAILURE_GAP = 0.01
"""Arms whose shares of failed measurements differ by more than one percentage point are not compared."""
ALL_TASKS = "all tasks"
_SEED = 0


@dataclass(frozen=True)
class ArmRow:
    """The numbers of one arm over some tasks.

    Where true success is unknown in a whole study, `final`, `area` and `difference` are of the environment's own return
    of a task, not clipped and not over several tasks, whose returns have no unit in common; steps are not compared.

    Attributes:
        final: success at the last evaluation, averaged over tasks, with a t interval inside [0, 1].
        final_iqm: interquartile mean of the same over all runs, with a bootstrap interval.
        area: mean height of the success curve, likewise.
        to_half: steps to the first evaluation with success >= 0.5, over runs.
        to_most: steps to the first evaluation with success >= 0.8.
        p_above: probability that a run of the arm ends above a run of the baseline; None for the baseline.
        difference: final success minus the baseline's, paired by task and seed; None for the baseline.
        speed: the baseline's steps to its own final success over the arm's; None for the baseline.
        speed_sentence: that ratio in plain words where its interval excludes 1, else empty.
        failure_rate: mean share of failed measurements of the source that fails most, over all runs that logged one.
        n_runs: complete runs; `n_planned` is how many the study has, `n_stopped` how many of the complete ones have
            fewer steps than their configuration plans.
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
    final_iqm: Interval
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
    n_stopped: int
    wall_seconds: float | None


def arm_styles(study: StudyRecord) -> dict[str, int]:
    """Index of colour, dash and marker per arm: 0 for the baseline, then the arms in the study's order."""
    others = [arm for arm in study.arms if arm != study.baseline]
    return {study.baseline: 0} | {arm: i + 1 for i, arm in enumerate(others)}


def final_success(run: RunRecord, outcome: str = SUCCESS) -> float | None:
    """True success (or the return) at the last evaluation of a complete run, else None."""
    values = outcome_curve(run, outcome)[1]
    return values[-1] if values and run.status == "complete" else None


def mean_area(run: RunRecord, outcome: str = SUCCESS) -> float | None:
    """Mean height of the curve of a complete run; None with fewer than two evaluations."""
    steps, values = outcome_curve(run, outcome)
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
    """(tasks, seeds) of a number per run, NaN where the run has none; of returns of several tasks all are NaN."""
    values = {(run.task, run.seed): of(run, study.outcome) for run in study.select(arm=arm)}
    mixed = study.outcome == RETURN and len(tasks) > 1
    table = [[None if mixed else values.get((task, seed)) for seed in study.seeds] for task in tasks]
    return np.array(table, dtype=np.float64).reshape(len(tasks), len(study.seeds))


def comparison_rows(study: StudyRecord) -> list[ArmRow]:
    """The arms over all tasks of the study, then task by task (a study with one task has the pooled rows only)."""
    tasks = study.tasks if len(study.tasks) > 1 else ()
    return [*summarise(study, study.tasks), *(row for task in tasks for row in summarise(study, [task]))]


def _arm_row(study: StudyRecord, arm: str, style: int, tasks: Sequence[str], paired: PairedDifference | None) -> ArmRow:
    runs = [run for run in study.select(arm=arm) if run.task in tasks]
    complete = [run for run in runs if run.status == "complete"]
    final = scores(study, arm, tasks, final_success)
    p_above = difference = speed = None
    outcome: Outcome = "baseline" if arm == study.baseline else "not comparable"
    sentence = detail = ""
    success = study.outcome == SUCCESS
    if paired is not None and not paired.interval.n:
        outcome = "no data"
    elif paired is not None:
        outcome = verdict(paired.interval)
        baseline = scores(study, study.baseline, tasks, final_success)
        difference = replace(paired, interval=_clipped(paired.interval, -1.0)) if success else paired
        if (np.isfinite(final - baseline).sum(axis=1) > 1).any():  # some task has pairs of several seeds
            p_above = probability_of_improvement(final, baseline, seed=_SEED)
        else:  # tests and chances are about other seeds, and there is none
            difference = replace(difference, p_value=None, smallest_p=None)
        speed = speed_against(study, arm, tasks) if success else None
        detail = _detail(arm, study.baseline, final, baseline, difference, p_above)
    area = stratified_t_interval(scores(study, arm, tasks, mean_area))
    if arm != study.baseline:
        sentence = _sentence(study, arm, tasks, outcome, difference)
    return ArmRow(
        task=ALL_TASKS if len(tasks) != 1 else tasks[0],
        arm=arm,
        label=study.arms[arm],
        style=style,
        outcome=outcome,
        sentence=sentence,
        detail=detail,
        final=_clipped(stratified_t_interval(final)) if success else stratified_t_interval(final),
        final_iqm=stratified_bootstrap(final, average="iqm", seed=_SEED),
        area=_clipped(area) if success else area,
        to_half=_reach(complete, 0.5),
        to_most=_reach(complete, 0.8),
        p_above=p_above,
        difference=difference,
        speed=speed,
        speed_sentence=speed_sentence(speed, arm, study.baseline, study.unit),
        failure_rate=_failure_rate(study, arm, tasks),
        n_runs=len(complete),
        n_planned=len(runs),
        n_stopped=sum(run.stopped_early for run in complete),
        wall_seconds=_mean([run.wall_seconds for run in complete]),
    )


def _sentence(
    study: StudyRecord, arm: str, tasks: Sequence[str], outcome: Outcome, difference: PairedDifference | None
) -> str:
    """The verdict in plain words."""
    baseline = study.baseline
    if outcome == "not comparable":
        own, other = (fmt.percent(_failure_rate(study, name, tasks) or 0.0) for name in (arm, baseline))
        rates = f"{own} of measurements failed in {arm}, {other} in {baseline}"
        return f"{arm} and {baseline} are not comparable: failure rates differ ({rates})"
    if study.outcome == RETURN and len(tasks) > 1:
        return f"{arm} against {baseline}: no verdict over all tasks, whose returns have no unit in common"
    silent = study.outcome == SUCCESS
    runs = [run for run in study.runs if run.task in tasks and success_unknown(run) and silent]
    unknown = [name for name in (arm, baseline) if any(run.arm == name for run in runs)]
    if outcome == "no data" and unknown:
        return f"{arm} against {baseline}: no verdict, true success is unknown in runs of {' and '.join(unknown)}"
    if difference is None:
        return f"{arm} against {baseline}: no verdict, no task and seed has a complete run of both"
    what = "final success" if silent else "final return of the environment (true success is unknown)"
    amount = f"{what} {fmt.signed_interval(difference.interval)}"
    if outcome in ("better", "worse"):
        return f"{arm} {'beats' if outcome == 'better' else 'is worse than'} {baseline}: {amount}"
    without = " without an interval" if difference.interval.low is None else ""
    return f"{arm} against {baseline}: no difference shown, {amount}{without}"


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
    return StepsToThreshold(tuple(first_reach(*outcome_curve(run), threshold) for run in runs))


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
        {(run.task, run.seed): outcome_curve(run) for run in study.select(arm=name, status="complete")}
        for name in (arm, study.baseline)
    )
    pairs = [
        pair_reach(*baselines[pair], *arms[pair]) if pair in arms and pair in baselines else UNDEFINED
        for pair in product(tasks, study.seeds)
    ]
    baseline, own, censored = np.array(pairs).reshape(len(tasks), len(study.seeds), 3).transpose(2, 0, 1)
    return steps_ratio(baseline, own, censored, seed=0)


def speed_text(speed: StepsRatio) -> tuple[str, str, str]:
    """The ratio, its interval and its censored pairs in words; any of them may be empty.

    With `more`, the ratio is turned round: 3× more, not a third as many.
    """
    interval, more = speed.interval, speed.outcome == "more"
    if interval.estimate is None:
        return "", "", ""
    ends = (
        (interval.estimate, interval.high, interval.low) if more else (interval.estimate, interval.low, interval.high)
    )
    ratio, *bounds = (1 / end if more and end is not None else end for end in ends)
    limit = ("at least " if more else "at most ") if speed.censored else ""
    word = "" if speed.outcome == "no difference shown" else f" {speed.outcome}"
    words = [fmt.DASH if end is None else fmt.times(end).removesuffix("×") for end in bounds]
    never = f"not reached in {speed.censored} of {fmt.plural(interval.n, 'pair')}" if speed.censored else ""
    if speed.censored == interval.n:
        return never, "", ""
    return f"{limit}{fmt.times(ratio)}{word}", "" if bounds == [None, None] else f"[{words[0]}, {words[1]}]", never


def speed_sentence(speed: StepsRatio | None, arm: str, baseline: str, unit: str) -> str:
    """`PRIME reaches the final success of RLOO in 2.4× fewer responses [1.1, 3.9].`; empty where nothing is shown."""
    if speed is None or speed.outcome == "no difference shown":
        return ""
    ratio, bounds, never = speed_text(speed)
    verb = "reaches" if speed.outcome == "fewer" else "needs"
    what = f"the final success of {baseline} in {ratio} {unit}"
    if speed.outcome == "more":
        what = f"{ratio} {unit} to reach the final success of {baseline}"
    pairs = fmt.plural(speed.interval.n, "pair")
    detail = f", {never}" if never else ""
    return f"{arm} {verb} {what} {bounds} over {pairs} of runs{detail}."
