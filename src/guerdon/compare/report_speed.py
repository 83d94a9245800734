"""How much sooner an arm gets where the baseline ends: the ratio of steps, in numbers and in words.

Complete runs are paired by task and seed; the statistics are `guerdon.evaluate.learning_curves`. A word of comparison
(`fewer`, `more`) is used only where the interval excludes 1. This module knows neither HTML nor pictures.

    speed = speed_against(study, "PRIME", study.tasks)
    print(*speed_text(speed))  # 2.4× fewer [1.1, 3.9]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from guerdon.compare import report_words as words
from guerdon.compare.read_runs import RunRecord, StudyRecord, success_curve
from guerdon.evaluate.learning_curves import StepsRatio, pair_reach, steps_ratio


def speed_against(study: StudyRecord, arm: str, tasks: Sequence[str]) -> StepsRatio:
    """The baseline's steps to its own final success over the arm's, over pairs of complete runs."""
    shape = (len(tasks), len(study.seeds))
    own, other = np.full(shape, np.nan), np.full(shape, np.nan)
    censored = np.zeros(shape, dtype=bool)
    arms, baselines = (_complete(study, name) for name in (arm, study.baseline))
    for k, task in enumerate(tasks):
        for s, seed in enumerate(study.seeds):
            run, base = arms.get((task, seed)), baselines.get((task, seed))
            if run is None or base is None:
                continue
            reach = pair_reach(*success_curve(base), *success_curve(run))
            own[k, s], other[k, s], censored[k, s] = reach.arm, reach.baseline, reach.censored
    return steps_ratio(other, own, censored, seed=0)


def speed_text(speed: StepsRatio) -> tuple[str, str, str]:
    """The ratio, its interval and its censored pairs in words; any of them may be empty.

    With `more`, the ratio is turned round: 3× more, not a third as many.
    """
    interval = speed.interval
    if interval.estimate is None:
        return "", "", ""
    never = f"{speed.censored} of {interval.n} never" if speed.censored else ""
    if speed.outcome == "more":
        bound = "at least " if speed.censored else ""
        bounds = (_inverse(interval.high), _inverse(interval.low))
        return f"{bound}{words.times(_inverse(interval.estimate))} more", _bounds(*bounds), never
    ratio = words.times(interval.estimate)
    if speed.outcome == "fewer":
        return f"{ratio} fewer", _bounds(interval.low, interval.high), never
    at_most = "at most " if speed.censored else ""
    return f"{at_most}{ratio}", _bounds(interval.low, interval.high), never


def speed_sentence(speed: StepsRatio | None, arm: str, baseline: str, unit: str) -> str:
    """`PRIME reaches the final success of RLOO in 2.4× fewer responses [1.1, 3.9].`; empty where nothing is shown."""
    if speed is None or speed.outcome == "no difference shown":
        return ""
    ratio, bounds, never = speed_text(speed)
    verb = "reaches" if speed.outcome == "fewer" else "needs"
    what = f"the final success of {baseline} in {ratio} {unit}"
    if speed.outcome == "more":
        what = f"{ratio} {unit} to reach the final success of {baseline}"
    pairs = words.plural(speed.interval.n, "pair")
    detail = f", {never} reached it" if never else ""
    return f"{arm} {verb} {what} {bounds} over {pairs} of runs{detail}."


def _complete(study: StudyRecord, arm: str) -> dict[tuple[str, int], RunRecord]:
    runs = study.select(arm=arm, status="complete")
    return {(run.task, run.seed): run for run in runs if run.seed is not None}


def _inverse(value: float | None) -> float | None:
    return None if value is None else 1 / value


def _bounds(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    ends = [words.DASH if end is None else words.times(end).removesuffix("×") for end in (low, high)]
    return f"[{ends[0]}, {ends[1]}]"
