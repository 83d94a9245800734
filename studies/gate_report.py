"""How well the verdict of `guerdon evaluate` does on a table of reward models: Markdown tables and a picture.

Everything is on tasks left out of the fit. Without a file it is the table that guerdon is delivered with.

    python studies/gate_report.py
    python studies/gate_report.py mine.parquet --picture gate.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from guerdon.evaluate import charts
from guerdon.evaluate.gate import too_small
from guerdon.evaluate.gate_table import MARGIN, OUTCOMES, PACKAGED, GateTable, read_gate_table
from guerdon.evaluate.gate_validation import PUBLISHED, GateValidation, validate_gate
from guerdon.evaluate.intervals import Interval

KINDS = {"robot": "Reward models for robots", "text": "Reward models for text"}


def main(given: Sequence[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", nargs="?", type=Path, default=PACKAGED, help="Parquet or JSON lines")
    parser.add_argument("--picture", type=Path, help="SVG of expected and measured gains; several kinds: name-kind.svg")
    parser.add_argument("--reps", type=int, default=2000, help="bootstrap resamples")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    asked = parser.parse_args(given)
    table = read_gate_table(asked.table)
    kinds = [kind for kind in KINDS if len(table.of(kind))]
    for kind in kinds:
        part = table.of(kind)
        harmed, nothing, helped = np.bincount(part.outcomes_N, minlength=len(OUTCOMES)).tolist()
        watched = np.isfinite(part.exploited_N)
        say(
            f"## {KINDS[kind]}\n\n{len(part)} on {len(part.tasks)} tasks: {helped} helped, {nothing} had no effect, "
            f"{harmed} harmed (a change of mean true success by at least {MARGIN:g}); in runs of "
            f"{int((part.exploited_N[watched] > 0).sum())} of {int(watched.sum())} the hacking alarm was raised.\n"
        )
        if (reason := too_small(part)) is not None:
            say(f"No validation: {reason}.\n")
            continue
        found = validate_gate(part, reps=asked.reps, seed=asked.seed)
        say("\n".join(tables(part, found)))
        if asked.picture is not None:
            name = asked.picture if len(kinds) == 1 else asked.picture.with_stem(f"{asked.picture.stem}-{kind}")
            name.write_text(picture(part, found), encoding="utf-8")


def tables(table: GateTable, found: GateValidation) -> list[str]:
    """The tables of one kind of reward models."""
    measured = [name for name, one in found.singles.items() if one.n]
    singles = sorted(measured, key=lambda name: -(found.singles[name].estimate or -1.0))
    rows = [("**predictor**", found.correlation)]
    rows += [(f"`{name}`" + (" (published)" if name in PUBLISHED else ""), found.singles[name]) for name in singles]
    lines = ["| rank correlation with the gain | estimate | 95 % interval | models |", "|---|---|---|---|"]
    lines += [f"| {name} | {number(one)} | {bounds(one)} | {one.n} |" for name, one in rows]
    lines += ["", "| on tasks left out | value | 95 % interval |", "|---|---|---|"]
    if found.difference is not None:
        lines.append(
            f"| predictor minus best published metric (`{found.best_single}`) | {number(found.difference)} | "
            f"{bounds(found.difference)} |"
        )
    ceiling = "-" if found.ceiling is None else f"{found.ceiling:.2f} (reliability {found.reliability:.2f})"
    lines += [
        f"| ceiling: correlation of a perfect predictor | {ceiling} | |",
        f"| harmful models that pass at 80 % recall | {number(found.false_passes)} | {bounds(found.false_passes)} |",
        f"| Brier score of the probabilities (constant: {found.brier_constant:.2f}) | {found.brier:.2f} | |",
        f"| calibration error (ECE) of the probabilities | {found.ece:.2f} | |",
        f"| gains inside their 90 % bounds | {number(found.coverage)} | {bounds(found.coverage)} |",
        f"| called unknown, family known | {number(found.known)} | {bounds(found.known)} |",
    ]
    lines += ["", "| called unknown, family withheld | share | 95 % interval | models |", "|---|---|---|---|"]
    lines += [f"| {name} | {number(one)} | {bounds(one)} | {one.n} |" for name, one in found.withheld.items()]
    return [*lines, ""]


def picture(table: GateTable, found: GateValidation) -> str:
    """Expected gain on tasks left out against the measured one, a shape per task."""
    shapes = {task: i for i, task in enumerate(table.tasks)}
    expected = found.predicted.gains_N
    reach = 1.1 * float(np.abs([expected, table.gains_N]).max())
    box = charts.Box(420, 360, x=(-reach, reach), y=(-reach, reach), margin=(28, 16, 42, 50))
    points = [
        (float(x), float(y), 0.8, shapes[task], False)
        for x, y, task in zip(expected, table.gains_N, table.tasks_N.tolist(), strict=True)
    ]
    title = "Expected and measured change of true success, tasks left out"
    drawn = charts.scatter(box, points, style=1, title=title, x_label="expected change", y_label="measured change")
    return charts.standalone(drawn)


def number(one: Interval) -> str:
    """The estimate; a dash where it is undefined."""
    return "-" if one.estimate is None else f"{one.estimate:.2f}"


def bounds(one: Interval) -> str:
    """The interval; nothing where it has no bounds."""
    return "" if one.low is None or one.high is None else f"[{one.low:.2f}, {one.high:.2f}]"


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
