"""How well the forecast of `guerdon evaluate` does on a table of reward models: Markdown tables and a picture.

Everything is on tasks left out of the fit. Without a file it is the table that guerdon is delivered with. Intervals
resample reward models, with the tasks fixed: they are too narrow for "such tasks in general".

    python studies/gate_report.py
    python studies/gate_report.py mine.parquet --picture gate.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from guerdon.evaluation.gate.forecast import (
    FEATURES,
    OutOfTask,
    correlation,
    false_passes,
    fit_gate,
    out_of_task,
    spearman_by_row,
    too_small,
    usable_features,
)
from guerdon.evaluation.gate.gate_table import EFFECTS, MARGIN, PACKAGED, GateTable, read_gate_table
from guerdon.pages import charts
from guerdon.statistics.classification import ece
from guerdon.statistics.intervals import Float64, Interval, wilson_interval

KINDS = {"robot": "Reward models for robots", "text": "Reward models for text"}
LOWER_IS_BETTER = {
    "epic", "dard", "starc", "brier", "ece", "progress_mae", "false_positive_rate", "row_false_positive_rate",
    "far_false_positives", "near_false_positives", "far_error", "near_error", "near_miss", "wandering", "pixel_change",
    "probe_black_frame", "probe_frozen_first_frame", "probe_reversed_video", "probe_goal_pasted_first",
}  # fmt: skip
"""Features that are distances, errors or failures; so are those named `attack_...`."""


def reliability(gains_N_S: Float64) -> float | None:
    """Split-half reliability of the effects over RL seeds, stepped up to all seeds (Spearman 1910, Brown 1910).

    Spearman correlation r of the mean gains of two disjoint halves of h = S // 2 seeds, averaged over all pairs of
    halves; with k = S / h the reliability of all S seeds is k r / (1 + (k - 1) r). Models that lack a seed are left
    out. A perfect predictor of the true gain would correlate by its square root with the measured ones. None with
    fewer than two seeds or three models, or where a half is constant.
    """
    complete = gains_N_S[np.isfinite(gains_N_S).all(axis=1)]
    seeds = gains_N_S.shape[1]
    half = seeds // 2
    if half == 0 or len(complete) < 3:
        return None
    pairs = [
        (first, second)
        for first in combinations(range(seeds), half)
        for second in combinations(sorted(set(range(seeds)) - set(first)), half)
        if first < second
    ]
    a, b = (np.array([complete[:, list(pair[side])].mean(axis=1) for pair in pairs]) for side in (0, 1))
    r = float(spearman_by_row(a, b).mean())
    return None if np.isnan(r) else spearman_brown(r, seeds / half)


def spearman_brown(r: float, k: float) -> float:
    """Reliability of a measurement k times as long as one of reliability r; 0 where r is negative."""
    return k * r / (1 + (k - 1) * r) if r > 0 else 0.0


def brier_score(effects_N: NDArray[np.int64], probabilities_N_3: Float64) -> float:
    """Mean over cases of the sum over effects of (p - y)^2 (Brier 1950): 0 perfect, 2/3 for one third each."""
    truth = np.eye(len(EFFECTS))[effects_N]
    return float(((probabilities_N_3 - truth) ** 2).sum(axis=1).mean())


def classwise_ece(effects_N: NDArray[np.int64], probabilities_N_3: Float64) -> float:
    """Expected calibration error of each effect's probability, averaged (Kull et al. 2019, 1910.12656)."""
    every = np.ones((1, len(effects_N)))
    return float(np.mean([ece(effects_N == k, probabilities_N_3[:, k], every)[0] for k in range(len(EFFECTS))]))


def withheld_family(table: GateTable, names: Sequence[str], kind: str, family: str) -> tuple[int, int]:
    """How many reward models of a family are called unknown by predictors that saw neither it nor their task.

    Returns:
        Unknown ones, and all that could be tested (without its family a task must leave two others).
    """
    unknown = tested = 0
    for task in sorted(set(table.tasks_N[table.families_N == family].tolist())):
        inside = (table.tasks_N == task) & (table.families_N == family)
        rest = table.take((table.tasks_N != task) & (table.families_N != family))
        if len(rest.tasks) >= 2:
            unknown += int(fit_gate(rest, names, kind).unknown(table.columns(names)[inside]).sum())
            tested += int(inside.sum())
    return unknown, tested


def oriented(table: GateTable, name: str) -> Float64:
    """(N,) a feature with higher values meant to be better."""
    values = table.columns([name])[:, 0]
    return -values if name in LOWER_IS_BETTER or name.startswith("attack_") else values


@dataclass(frozen=True, eq=False)
class Validation:
    """What the forecast reaches on tasks left out.

    Attributes:
        predicted: the predictions behind it.
        score: Spearman correlation of score and measured gain.
        singles: the same of each feature of the table with its sign known (a distance counts negative).
        best: the single feature with the highest one. It is picked on this table, so its figure is too good.
        difference: correlation of the score minus that of `best`.
        reliability: of the measured gains over seeds.
    """

    predicted: OutOfTask
    score: Interval
    singles: Mapping[str, Interval]
    best: str
    difference: Interval
    reliability: float | None


def validate(table: GateTable, kind: str, *, reps: int = 2000, seed: int = 0) -> Validation:
    """Validate the forecast on reward models of one kind.

    Raises:
        ValueError: fewer than three tasks.
    """
    if len(table.tasks) < 3:
        raise ValueError(f"{len(table.tasks)} tasks; leaving one out needs three")
    predicted, gains = out_of_task(table, usable_features(table, kind), kind), table.gains_N
    singles = {name: correlation(oriented(table, name), gains, reps=reps, seed=seed) for name in table.names}
    best = max(singles, key=lambda name: -2.0 if (r := singles[name].estimate) is None else r)
    return Validation(
        predicted,
        correlation(predicted.scores_N, gains, reps=reps, seed=seed),
        singles,
        best,
        correlation(predicted.scores_N, gains, reps=reps, seed=seed, minus_N=oriented(table, best)),
        reliability(table.gains_N_S),
    )


def tables(table: GateTable, kind: str, found: Validation) -> list[str]:
    """The tables of one kind of reward models."""
    singles, predicted, effects = found.singles, found.predicted, table.effects_N
    measured = sorted((n for n, one in singles.items() if one.n), key=lambda n: -(singles[n].estimate or -1.0))
    rows = [("**forecast**: mean rank of " + " and ".join(f"`{name}`" for name in FEATURES[kind]), found.score)]
    rows += [(f"`{n}`" + (" (best of all, picked here)" if n == found.best else ""), singles[n]) for n in measured]
    lines = ["| rank correlation with the gain | estimate | 95 % interval | models |", "|---|---|---|---|"]
    lines += [f"| {name} | {number(one)} | {bounds(one)} | {one.n} |" for name, one in rows]
    known = found.reliability
    ceiling = "-" if known is None else f"{known**0.5:.2f} (reliability {known:.2f})"
    frequencies = np.tile(np.bincount(effects, minlength=len(EFFECTS)) / len(table), (len(table), 1))
    inside = (table.gains_N >= predicted.low_N) & (table.gains_N <= predicted.high_N)
    shares = {
        "harmful models that pass at 80 % recall": false_passes(effects, predicted.scores_N),
        "gains inside their 90 % bounds": wilson_interval(int(inside.sum()), len(table)),
        "called unknown, family known": wilson_interval(int(predicted.unknown_N.sum()), len(table)),
    }
    brier, constant = (brier_score(effects, one) for one in (predicted.probabilities_N_3, frequencies))
    lines += [
        "",
        "| on tasks left out | value | 95 % interval |",
        "|---|---|---|",
        f"| forecast minus `{found.best}`, which was picked on this table | {number(found.difference)} | "
        f"{bounds(found.difference)} |",
        f"| ceiling: correlation of a perfect predictor | {ceiling} | |",
        *(f"| {name} | {number(one)} | {bounds(one)} |" for name, one in shares.items()),
        f"| Brier score of the probabilities (constant: {constant:.2f}) | {brier:.2f} | |",
        f"| calibration error (ECE) | {classwise_ece(effects, predicted.probabilities_N_3):.2f} | |",
        "",
        "| called unknown, family withheld | share | 95 % interval | models |",
        "|---|---|---|---|",
    ]
    for family in sorted(set(table.families_N.tolist())):
        one = wilson_interval(*withheld_family(table, usable_features(table, kind), kind, family))
        lines.append(f"| {family} | {number(one)} | {bounds(one)} | {one.n} |")
    return [*lines, ""]


def picture(table: GateTable, expected: Float64) -> str:
    """Expected gain on tasks left out against the measured one, a shape per task."""
    shapes = {task: i for i, task in enumerate(table.tasks)}
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
        harmed, nothing, helped = np.bincount(part.effects_N, minlength=len(EFFECTS)).tolist()
        watched = np.isfinite(part.exploited_N)
        lines = [
            f"## {KINDS[kind]}\n\n{len(part)} on {len(part.tasks)} tasks: {helped} helped, {nothing} had no effect, "
            f"{harmed} harmed (a change of mean true success by at least {MARGIN:g}); in runs of "
            f"{int((part.exploited_N[watched] > 0).sum())} of {int(watched.sum())} the hacking alarm was raised.\n"
        ]
        reason = too_small(part) or ("" if usable_features(part, kind) else "the table has none of its features")
        if reason:
            lines.append(f"No validation: {reason}.\n")
        else:
            found = validate(part, kind, reps=asked.reps, seed=asked.seed)
            lines += tables(part, kind, found)
            if asked.picture is not None:
                name = asked.picture if len(kinds) == 1 else asked.picture.with_stem(f"{asked.picture.stem}-{kind}")
                name.write_text(picture(part, found.predicted.gains_N), encoding="utf-8")
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
