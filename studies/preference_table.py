"""The table of docs/results/preferences.md: each arm of configs/preference.yaml, and the difference by seed.

    python studies/preference_table.py runs/preference

`turn` is sqrt(KL) where the mean truth over seeds is highest, with a bootstrap interval over seeds. Differences are
paired by seed, each with the highest point of its own curve of 24 windows, and have t intervals.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from guerdon.comparison.report_gold import arm_curve
from guerdon.comparison.results import StudyRecord, final_success, read_study
from guerdon.pages.formats import bounds, decimal, signed_interval
from guerdon.statistics.intervals import Interval
from guerdon.statistics.training_runs import stratified_t_interval


def paired(study: StudyRecord, arm: str) -> dict[str, Interval]:
    """Differences of an arm from the baseline, by seed: sqrt(KL) of the turn, highest truth, final truth."""
    rows = []
    for seed in study.seeds:
        found = []
        for name in (arm, study.baseline):
            runs = [run for run in study.select(arm=name, status="complete") if run.seed == seed]
            curve = arm_curve(runs)
            if curve is not None:
                top = curve.turn.place.estimate
                rise = (curve.start.estimate or 0.0) + (curve.turn.rise.estimate or 0.0)
                found.append([top, rise, final_success(runs[0], study.measure)])
        if len(found) == 2:
            rows.append(np.subtract(*np.array(found, dtype=np.float64)))
    names = ("turn", "highest truth", "final truth of greedy answers")
    return {name: stratified_t_interval([column]) for name, column in zip(names, np.array(rows).T, strict=True)}


def table(folder: Path) -> str:
    """The lines of the table, and those of the differences."""
    study = read_study(folder)
    lines = [
        "| arm | runs | truth at the start | rise | turn, sqrt(KL) | fall | shown |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in study.arms:
        curve = arm_curve(study.select(arm=arm))
        if curve is not None:
            start, place, turn = curve.start, curve.turn.place, curve.turn
            cells = [arm, str(start.n), f"{decimal(start.estimate)} {bounds(start)}", signed_interval(turn.rise)]
            cells += [f"{decimal(place.estimate)} {bounds(place)}", signed_interval(turn.fall), str(turn.shown)]
            lines.append(f"| {' | '.join(cells)} |")
    for arm in study.arms:
        if arm != study.baseline:
            found = paired(study, arm)
            lines += [f"{arm} minus {study.baseline}, {name}: {signed_interval(one)}" for name, one in found.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `guerdon compare` wrote")
    print(table(parser.parse_args().folder))
