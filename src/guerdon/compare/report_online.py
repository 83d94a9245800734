"""How good a reward model stays beside the policy: its accuracy on fresh rollouts, over training.

A run logs `reward_model/<name>/<metric>` on each batch, before a model that learns online learns from it. Batches are
small, so each run's values are averaged in windows before runs are averaged; undefined values (a batch without a wrong
answer has no pair to order) are left out and counted. This module turns runs into pictures; it knows neither the page
nor files.

    for panel in quality_panels({"PRIME": (1, runs)}): print(panel.title, panel.undefined, panel.logged)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from guerdon.compare.read_runs import RunRecord, number
from guerdon.evaluate.charts import Box, Line, line_chart
from guerdon.evaluate.learning_curves import curve_band

Float64 = NDArray[np.float64]

WINDOWS = 24
METRICS = {
    "dpo_acc": ("Pairs ordered rightly", "Of answers to one prompt, how often the right one is paid more."),
    "step_auroc": (
        "Steps told apart",
        "AUROC of the value of a step against its truth; steps count up to the first error of a response.",
    ),
    "dpo_acc_abs": (
        "Outcomes told by sign",
        "How often a positive total means a right answer, a negative one a wrong one.",
    ),
}
CHANCE = {"dpo_acc": 0.5, "step_auroc": 0.5}
PREFIX = "reward_model/"


@dataclass(frozen=True)
class QualityPanel:
    """One metric of the arms' reward models over training.

    Attributes:
        undefined: how many logged values had no meaning.
        logged: how many values were asked for.
    """

    title: str
    hint: str
    svg: Markup
    undefined: int
    logged: int


def quality_panels(arms: Mapping[str, tuple[int, Sequence[RunRecord]]]) -> list[QualityPanel]:
    """One panel per metric that any run logged; nothing where no reward model learnt.

    Args:
        arms: name to style and runs.
    """
    panels = []
    every = [run for _, runs in arms.values() for run in runs]
    end = max([number(row, "step") or 0.0 for run in every for row in run.trains], default=0.0) or 1.0
    unit = next((run.unit for run in every if run.status != "missing"), "")
    for metric, (title, hint) in METRICS.items():
        keys = sorted({key for run in every for row in run.trains for key in row if _is(key, metric)})
        if not keys:
            continue
        lines = [_line(arm, style, runs, key, end) for arm, (style, runs) in arms.items() for key in keys]
        lines = [line for line in lines if line.points or any(line.thin)]
        box = Box(400, 250, x=(0.0, end), y=(0.0, 1.0))
        svg = line_chart(
            box, lines, title=f"{title.lower()} against {unit}", x_label=unit, y_label="", chance=CHANCE.get(metric)
        )
        asked = [number(row, key) for run in every for row in run.trains for key in keys if key in row]
        panels.append(QualityPanel(title, hint, svg, sum(value is None for value in asked), len(asked)))
    return panels


def windowed(run: RunRecord, key: str, end: float, windows: int = WINDOWS) -> Float64:
    """(windows,) mean of a logged value in equal windows of [0, end]; NaN where it was never defined."""
    pairs = [
        (x, y) for row in run.trains if (x := number(row, "step")) is not None and (y := number(row, key)) is not None
    ]
    places = np.array([min(int(windows * x / end), windows - 1) for x, _ in pairs], dtype=np.int64)
    count = np.bincount(places, minlength=windows)
    total = np.bincount(places, weights=[y for _, y in pairs], minlength=windows)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _is(key: str, metric: str) -> bool:
    return key.startswith(PREFIX) and key.rpartition("/")[2] == metric


def _line(arm: str, style: int, runs: Sequence[RunRecord], key: str, end: float) -> Line:
    """The mean over complete runs with its band; the others thin."""
    centres = (np.arange(WINDOWS) + 0.5) * end / WINDOWS
    rows = [(run, values) for run in runs if np.isfinite(values := windowed(run, key, end)).any()]
    thin = tuple(_defined(centres, values) for run, values in rows if run.status != "complete")
    complete = [(run, values) for run, values in rows if run.status == "complete"]
    if not complete:
        return Line(arm, style, (), thin=thin)
    tasks = sorted({run.task for run, _ in complete})
    by_task = [[values for run, values in complete if run.task == task] for task in tasks]
    table = np.full((len(tasks), max(map(len, by_task)), WINDOWS), np.nan)
    for k, group in enumerate(by_task):
        table[k, : len(group)] = group
    last = min(int(np.flatnonzero(np.isfinite(values))[-1]) for _, values in complete)
    band = curve_band(table[..., : last + 1], seed=0)
    points = [(float(x), i.estimate) for x, i in zip(centres, band, strict=False) if i.estimate is not None]
    edges = [
        (float(x), i.low, i.high)
        for x, i in zip(centres, band, strict=False)
        if i.low is not None and i.high is not None
    ]
    return Line(arm, style, tuple(points), tuple(edges), thin)


def _defined(xs: Float64, values: Float64) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), float(y)) for x, y in zip(xs, values, strict=True) if np.isfinite(y))
