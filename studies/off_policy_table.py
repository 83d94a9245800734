"""The tables of docs/results/robots.md on studies/off_policy.yaml and studies/few_demonstrations.yaml.

    python studies/off_policy_table.py studies/off_policy.csv                             the curves that were measured
    python studies/off_policy_table.py runs/off_policy --keep=studies/off_policy.csv      with those of finished runs
    python studies/off_policy_table.py studies/off_policy_falling.csv --differences=FA,LA,CA

By task: true success at the end and the mean height of the curve, with t intervals over seeds cut to 0 and 1, and
differences of pairs of arms, paired by seed; by default that of the learned reward (L) from 0/1 (A). Then how many
steps an arm needs, as a share of PPO's, to the level that PPO with the same reward (P) has at its end in the mean over
seeds: the median over tasks and seeds, a run that never gets there counting as infinite, with a percentile interval of
runs resampled within each task.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from guerdon.comparison.results import (
    SUCCESS,
    RunRecord,
    StudyRecord,
    final_success,
    mean_area,
    measure_curve,
    read_study,
    scores,
)
from guerdon.pages.formats import bounds, decimal, signed_interval
from guerdon.statistics.intervals import Float64, Interval
from guerdon.statistics.learning_curves import first_reach
from guerdon.statistics.training_runs import stratified_t_interval

MARGIN = 0.1  # L counts as worse than 0/1 from this difference on
SOLVED = 0.8  # a task on which 0/1 ends above this leaves no gain to show


class Row(NamedTuple):
    """An evaluation in a file of curves."""

    task: str
    arm: str
    seed: str
    step: str
    success: str


def shares_of_steps(study: StudyRecord, arm: str, reference: str = "P") -> Float64:
    """(tasks, seeds) steps to the reference's level over the reference's steps; infinite: never, NaN: no run."""
    found = np.full((len(study.tasks), len(study.seeds)), np.nan)
    for k, task in enumerate(study.tasks):
        ends = [run for run in study.select(arm=reference, status="complete") if run.task == task]
        if not ends:
            continue
        level = float(np.mean([final_success(run, study.measure) for run in ends]))
        steps = measure_curve(ends[0], study.measure)[0][-1]
        for run in study.select(arm=arm, status="complete"):
            if run.task == task:
                reached = first_reach(*measure_curve(run, study.measure), level)
                found[k, study.seeds.index(run.seed)] = np.inf if reached is None else reached / steps
    return found


def median_interval(shares_K_S: Float64, *, reps: int = 10_000, seed: int = 0) -> tuple[float, float, float]:
    """The median of all runs and its 95 % percentile interval; runs are resampled within each task."""
    rows = [row[~np.isnan(row)] for row in shares_K_S]
    rows = [row for row in rows if len(row)]
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([row[rng.integers(len(row), size=(reps, len(row)))] for row in rows], axis=1)
    # Order statistics: a mean with an infinite number has no use.
    medians = np.quantile(drawn, 0.5, axis=1, method="higher")
    low, high = np.quantile(medians, [0.025, 0.975], method="higher")
    return float(np.quantile(np.concatenate(rows), 0.5, method="higher")), float(low), float(high)


def with_bounds(interval: Interval) -> str:
    """Such as `0.42 [0.31, 0.53]`."""
    return f"{decimal(interval.estimate)} {bounds(interval)}".strip()


def of_tasks(study: StudyRecord, arm: str, tasks: tuple[str, ...], *, area: bool = False) -> Interval:
    """An arm's mean over tasks, with its t interval."""
    found = stratified_t_interval(scores(study, arm, tasks, mean_area if area else final_success))
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))


def finished(folder: Path) -> Iterator[Row]:
    """Task, arm, seed, step and success of each evaluation of the complete runs of a study."""
    study = read_study(folder)
    for run in study.runs:
        if run.status == "complete":
            for step, success in zip(*measure_curve(run, study.measure), strict=True):
                yield Row(run.task, run.arm, str(run.seed), f"{step:.0f}", f"{success:.6g}")


def keep(rows: Iterator[Row], file: Path) -> None:
    """Put evaluations into a file of curves, in place of those of the same runs."""
    new = list(rows)
    runs = {row[:3] for row in new}
    old = [row for row in read_rows(file) if row[:3] not in runs] if file.exists() else []
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(sorted([*old, *new], key=lambda row: (*row[:2], int(row[2]), int(row[3]))))


def read_rows(file: Path) -> list[Row]:
    """The evaluations in a file of curves."""
    with file.open(newline="") as opened:
        return [Row(**row) for row in csv.DictReader(opened)]


def curves(file: Path) -> StudyRecord:
    """A file of curves as a study."""
    found = defaultdict(list)
    for task, arm, seed, step, success in read_rows(file):
        found[task, arm, int(seed)].append({"step": float(step), SUCCESS: float(success)})
    tasks, arms, seeds = (sorted({key[k] for key in found}) for k in range(3))
    runs = tuple(
        RunRecord(task, arm, seed, file, "complete", evals=tuple(rows)) for (task, arm, seed), rows in found.items()
    )
    return StudyRecord(
        name=file.stem, path=file, arms={arm: arm for arm in arms}, baseline="A", tasks=tuple(tasks),
        seeds=tuple(seeds), runs=runs, cards=(), config_text="", info={},
    )  # fmt: skip


def difference(study: StudyRecord, pair: str, tasks: tuple[str, ...], of: Callable[[RunRecord], float]) -> Interval:
    """One arm minus another, paired by task and seed, with its t interval."""
    one, other = (scores(study, arm, tasks, of) for arm in pair)
    return stratified_t_interval(one - other)


def by_task(study: StudyRecord, pair: str) -> str:
    """A sentence on how the difference of two arms at the end is spread over tasks."""
    one, other = pair
    better, worse = [], []
    for task in study.tasks:
        plain = of_tasks(study, other, (task,)).estimate
        gain = difference(study, pair, (task,), final_success).estimate
        if plain is None or gain is None:
            continue
        if plain < SOLVED:
            better.append(gain > 0)
        else:
            worse.append(gain <= -MARGIN)
    name = "0/1" if other == "A" else other
    return (
        f"Where {name} ends below {SOLVED:g}: {one} above on {sum(better)} of {len(better)} tasks; elsewhere {one} "
        f"lower by {MARGIN:g} or more on {sum(worse)} of {len(worse)}."
    )


def table(path: Path, pairs: tuple[str, ...] = ("LA",)) -> str:
    """All lines, of a study's folder or of a file of curves.

    Args:
        path: of either.
        pairs: two letters each, of an arm and of the one that it is compared with.
    """
    study = curves(path) if path.is_file() else read_study(path)
    tasks, arms = tuple(study.tasks), list(study.arms)
    heads = [f"{one} − {other}{what}" for one, other in pairs for what in ("", ", area")]
    lines = [f"| task | {' | '.join([*arms, *heads])} |", "| --- |" + " ---: |" * len([*arms, *heads])]
    for names, title in [(tasks, "all"), *(((task,), task) for task in tasks)]:
        cells = [with_bounds(of_tasks(study, arm, names)) for arm in arms]
        cells += [
            signed_interval(difference(study, pair, names, of)) for pair in pairs for of in (final_success, mean_area)
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += [
        "",
        *(by_task(study, pair) for pair in pairs),
        "",
        "| arm | area under the curve | share of PPO's steps to its level, median | never |",
        "| --- | ---: | ---: | ---: |",
    ]
    for arm in arms:
        shares = shares_of_steps(study, arm)
        known = shares[~np.isnan(shares)]
        steps = "–" if not len(known) else "{} [{}, {}]".format(*(decimal(one) for one in median_interval(shares)))
        area = with_bounds(of_tasks(study, arm, tasks, area=True))
        lines.append(f"| {arm} | {area} | {steps} | {int(np.isinf(known).sum())} of {len(known)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="what `guerdon compare` wrote, or a file of curves")
    parser.add_argument("--keep", type=Path, help="file of curves that its finished runs are put into, then shown")
    parser.add_argument("--differences", default="LA", help="pairs of arms, such as FA,LA: F minus A, L minus A")
    options = parser.parse_args()
    if options.keep:
        keep(finished(options.path), options.keep)
    print(table(options.keep or options.path, tuple(options.differences.split(","))))
