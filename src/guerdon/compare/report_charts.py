"""Charts of a study: learning curves, verdict intervals, reward against success, reward models during training, alarms.

Bands use complete runs only and end where the first of them ends, so every point of a band rests on the same runs;
unfinished and failed runs are drawn as thin dotted lines. A run logs `reward_model/<name>/<metric>` on each batch,
before a model that learns online learns from it. Batches are small, so each run's values are averaged in windows before
runs are averaged; undefined values (a batch without a wrong answer has no pair to order) are left out and counted.

    panels = curve_panels(study, study.tasks)
    print(panels[0].stat, panels[0].axis, panels[0].svg)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup

from guerdon.compare.comparison import ArmRow, arm_styles
from guerdon.compare.read_runs import (
    OUTCOMES,
    RETURN,
    SUCCESS,
    Row,
    RunRecord,
    StudyRecord,
    number,
    outcome_curve,
    outcome_of_runs,
    points,
)
from guerdon.compare.report_tables import ONLINE_METRICS
from guerdon.evaluate.charts import Box, Line, Point, forest, line_chart, scatter, spread
from guerdon.evaluate.intervals import Float64
from guerdon.evaluate.learning_curves import curve_band

Arm = tuple[int, Sequence[RunRecord]]  # its style and runs
Stat = Literal["mean", "iqm"]
Axis = Literal["steps", "time"]
KEYS: dict[Axis, str] = {"steps": "step", "time": "wall_time"}
STATS: dict[Stat, str] = {"mean": "mean", "iqm": "interquartile mean"}
LARGE = (860.0, 360.0)

MAX_POINTS = 40
MAX_SCATTER = 400
NOT_LEARNED = ("env", "verifier", "combined")


@dataclass(frozen=True)
class CurvePanel:
    """One learning-curve picture: mean or IQM, against steps or wall-clock (then in `unit`)."""

    stat: Stat
    axis: Axis
    unit: str
    svg: Markup


@dataclass(frozen=True)
class ScatterPanel:
    """One source of one arm: its return against true success in training, and how the two correlate.

    Attributes:
        correlation: mean of the correlations that the runs logged, None where none was defined.
        undefined: how many logged correlations were undefined.
        logged: how many lines of training were logged.
    """

    arm: str
    style: int
    source: str
    svg: Markup
    correlation: float | None
    undefined: int
    logged: int


def curve_panels(study: StudyRecord, tasks: Sequence[str], size: tuple[float, float] = LARGE) -> list[CurvePanel]:
    """Learning curves over these tasks: mean and IQM, against steps and wall-clock.

    They show true success; its return where a study knows none, and then of one task only.
    """
    panels: list[CurvePanel] = []
    if study.outcome == RETURN and len(tasks) > 1:
        return panels
    what = OUTCOMES[study.outcome]
    where = "all tasks" if len(tasks) > 1 else tasks[0]
    for axis in KEYS:
        box, scale, unit, label = _time_box(
            [_curve(run, axis, study.outcome) for run in study.runs if run.task in tasks],
            axis,
            size,
            study.unit,
            study.outcome,
        )
        for stat, name in STATS.items():
            lines = [
                _arm_line(study, arm, style, tasks, axis=axis, stat=stat, scale=scale)
                for arm, style in arm_styles(study).items()
            ]
            title = f"{what}, {name} and 95% band, against {label}, {where}"
            picture = line_chart(box, lines, title=title, x_label=label, y_label=what)
            panels.append(CurvePanel(stat, axis, unit, picture))
    return panels


def _time_box(
    curves: Sequence[Sequence[Point]], axis: Axis, size: tuple[float, float], steps: str, outcome: str
) -> tuple[Box, float, str, str]:
    """The drawing area of curves over time, seconds in a unit of time, its name, and the name of the axis."""
    longest = max([x for curve in curves for x, _ in curve], default=1.0) or 1.0
    scale, unit, label = 1.0, "", steps
    if axis == "time":
        scale, unit = (1.0, "s") if longest < 180 else (60.0, "min") if longest < 3 * 3600 else (3600.0, "h")
        label = f"wall-clock ({unit})"
    low, high, room = 0.0, 1.0, Box.margin
    if outcome == RETURN:
        room = (*room[:3], 66)  # its ticks are wider
        heights = [y for curve in curves for _, y in curve] or [0.0]
        pad = 0.05 * (max(heights) - min(heights)) or 0.5
        low, high = min(heights) - pad, max(heights) + pad
    return Box(*size, x=(0.0, longest / scale), y=(low, high), margin=room), scale, unit, label


def verdict_picture(rows: Sequence[ArmRow], baseline: str, outcome: str = SUCCESS) -> Markup | None:
    """The paired differences with their intervals against zero, or None where no arm has an interval."""
    drawn = [
        (row.arm, row.style, interval.estimate, interval.low, interval.high)
        for row in rows
        if row.difference is not None
        and (interval := row.difference.interval).estimate is not None
        and interval.low is not None
        and interval.high is not None
    ]
    if not drawn:
        return None
    label = f"difference in final {'success' if outcome == SUCCESS else 'return'} from {baseline}"
    return forest(drawn, title=f"{label}, 95% intervals", x_label=label)


def scatter_panels(arms: Mapping[str, Arm], tasks: Sequence[str]) -> list[ScatterPanel]:
    """One panel per arm and learned source (the environment's own return for an arm that has none)."""
    panels: list[ScatterPanel] = []
    shapes = {task: i for i, task in enumerate(tasks)}
    for arm, (style, runs) in arms.items():
        for source in sources(runs):
            svg = return_scatter(runs, source, style=style, shapes=shapes, arm=arm)
            if svg is None:
                continue
            logged = [number(row, "reward_success_correlation") for run in runs for row in run.trains]
            known = [value for value in logged if value is not None]
            mean = float(np.mean(known)) if known else None
            panels.append(ScatterPanel(arm, style, source, svg, mean, len(logged) - len(known), len(logged)))
    return panels


def sources(runs: Sequence[RunRecord]) -> list[str]:
    """The learned sources whose returns these runs logged; `env` where there is none but it was logged."""
    keys = {key.removeprefix("return/") for run in runs for row in run.trains for key in row if key[:7] == "return/"}
    learned = sorted(keys - set(NOT_LEARNED))
    return learned or sorted(keys & {"env"})


def return_scatter(
    runs: Sequence[RunRecord], source: str, *, style: int, shapes: dict[str, int], arm: str
) -> Markup | None:
    """A source's return against true success, one mark per line of training (thinned, alarms kept)."""
    marks: list[tuple[float, float, float, int, bool]] = []
    for run in runs:
        last = max([number(row, "step") or 0.0 for row in run.trains], default=0.0) or 1.0
        for row in run.trains:
            for x, y in points([row], f"return/{source}", "success"):
                marks.append((x, y, (number(row, "step") or 0.0) / last, shapes.get(run.task, 0), _alarmed(row)))
    if not marks:
        return None
    stride = -(-len(marks) // MAX_SCATTER)
    kept = [mark for i, mark in enumerate(marks) if i % stride == 0 or mark[4]]
    low, high = min(m[0] for m in marks), max(m[0] for m in marks)
    pad = 0.05 * (high - low) or 0.5
    box = Box(310, 230, x=(low - pad, high + pad), y=(-0.03, 1.03), margin=(12, 14, 42, 46))
    title = f"{arm}: return of {source} against true success, {len(kept)} points"
    return scatter(box, kept, style=style, title=title, x_label=f"mean return of {source}", y_label="true success")


def alarms(runs: Sequence[RunRecord]) -> list[tuple[RunRecord, list[float]]]:
    """The runs whose learned return rose while success did not, and the steps at which the hacking alarm was raised."""
    found = [(run, [number(row, "step") or 0.0 for row in run.trains if _alarmed(row)]) for run in runs]
    return [(run, steps) for run, steps in found if steps]


def single_run_panels(run: RunRecord, size: tuple[float, float] = (LARGE[0], 340.0)) -> list[CurvePanel]:
    """True success of one run, in evaluation and in training, against steps and wall-clock; else its return."""
    panels: list[CurvePanel] = []
    outcome = outcome_of_runs([run])
    for axis, key in KEYS.items():
        reach = points([*run.evals, *run.trains], key, key if outcome == SUCCESS else outcome)
        box, scale, unit, label = _time_box([reach], axis, size, run.unit, outcome)
        lines = [
            Line(name, style, _thinned([(x / scale, y) for x, y in points(rows, key, outcome)]))
            for style, (name, rows) in enumerate((("training", run.trains), ("evaluation", run.evals)))
        ]
        what = OUTCOMES[outcome]
        svg = line_chart(box, lines, title=f"{what} against {label}", x_label=label, y_label=what)
        panels.append(CurvePanel("mean", axis, unit, svg))
    return panels


def _arm_line(
    study: StudyRecord, arm: str, style: int, tasks: Sequence[str], *, axis: Axis, stat: Stat, scale: float
) -> Line:
    runs = [run for run in study.select(arm=arm) if run.task in tasks]
    curves = {
        (run.task, run.seed): xy
        for run in runs
        if run.status == "complete" and (xy := _curve(run, axis, study.outcome))
    }
    others = [_curve(run, axis, study.outcome) for run in runs if run.status != "complete"]
    thin = tuple(_thinned([(x / scale, y) for x, y in curve]) for curve in others)
    if not curves:
        return Line(arm, style, (), thin=thin)
    grid = _grid([[x for x, _ in xy] for xy in curves.values()], axis)
    table = np.full((len(tasks), len(study.seeds), len(grid)), np.nan)
    for (task, seed), xy in curves.items():
        table[tasks.index(task), study.seeds.index(seed or 0)] = np.interp(grid, [x for x, _ in xy], [y for _, y in xy])
    return _band_line(arm, style, [x / scale for x in grid], table, stat, thin)


def _band_line(
    arm: str, style: int, xs: Sequence[float], table_K_S_P: Float64, stat: Stat, thin: tuple[tuple[Point, ...], ...]
) -> Line:
    """The average of runs over tasks and seeds at these places, with its band."""
    band = list(zip(xs, curve_band(table_K_S_P, average=stat, seed=0), strict=False))
    points = tuple((float(x), i.estimate) for x, i in band if i.estimate is not None)
    edges = tuple((float(x), i.low, i.high) for x, i in band if i.low is not None and i.high is not None)
    return Line(arm, style, points, edges, thin)


def _grid(xs_by_run: Sequence[Sequence[float]], axis: Axis) -> list[float]:
    """Points that every run covers: the evaluations themselves for steps, even spacing for wall-clock."""
    start, end = max(xs[0] for xs in xs_by_run), min(xs[-1] for xs in xs_by_run)
    if end <= start:
        return [end]
    if axis == "time":
        return [float(x) for x in np.linspace(start, end, MAX_POINTS)]
    union = sorted({x for xs in xs_by_run for x in xs if start <= x <= end})
    return [union[i] for i in spread(len(union), MAX_POINTS)]


def _curve(run: RunRecord, axis: Axis, outcome: str) -> list[tuple[float, float]]:
    if axis == "steps":
        return list(zip(*outcome_curve(run, outcome), strict=True))
    return points(run.evals, KEYS[axis], outcome)


def _alarmed(row: Row) -> bool:
    return bool(number(row, "hacking_alarm"))


def _thinned(curve: list[Point]) -> tuple[Point, ...]:
    return tuple(curve[i] for i in spread(len(curve), 4 * MAX_POINTS))


WINDOWS = 24
PREFIX = "reward_model/"


@dataclass(frozen=True)
class QualityPanel:
    """One metric of the arms' reward models over training.

    Attributes:
        undefined: how many logged values had no meaning.
        logged: how many values were logged, those without meaning included.
    """

    title: str
    hint: str
    svg: Markup
    undefined: int
    logged: int


def quality_panels(arms: Mapping[str, Arm]) -> list[QualityPanel]:
    """One panel per metric that any run logged; nothing without reward models that were measured."""
    panels = []
    every = [run for _, runs in arms.values() for run in runs]
    end = max([number(row, "step") or 0.0 for run in every for row in run.trains], default=0.0) or 1.0
    unit = next((run.unit for run in every if run.status != "missing"), "")
    logged = {key for run in every for row in run.trains for key in row if key.startswith(PREFIX)}
    for metric, about in ONLINE_METRICS.items():
        keys = sorted(key for key in logged if key.endswith(f"/{metric}"))
        if not keys:
            continue
        lines = [_quality_line(arm, style, runs, key, end) for arm, (style, runs) in arms.items() for key in keys]
        lines = [line for line in lines if line.points or any(line.thin)]
        box = Box(400, 250, x=(0.0, end), y=(0.0, 1.0))
        title = f"{about.title} against {unit}"
        svg = line_chart(box, lines, title=title, x_label=unit, y_label="", chance=about.chance)
        values = [number(row, key) for run in every for row in run.trains for key in keys if key in row]
        panels.append(QualityPanel(about.title, about.hint, svg, sum(v is None for v in values), len(values)))
    return panels


def windowed(run: RunRecord, key: str, end: float, windows: int = WINDOWS) -> Float64:
    """(windows,) mean of a logged value in equal windows of [0, end]; NaN where it was never defined."""
    pairs = points(run.trains, "step", key)
    places = np.array([min(int(windows * x / end), windows - 1) for x, _ in pairs], dtype=np.int64)
    count = np.bincount(places, minlength=windows)
    total = np.bincount(places, weights=[y for _, y in pairs], minlength=windows)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _quality_line(arm: str, style: int, runs: Sequence[RunRecord], key: str, end: float) -> Line:
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
    return _band_line(arm, style, centres.tolist(), table[..., : last + 1], "mean", thin)


def _defined(xs: Float64, values: Float64) -> tuple[Point, ...]:
    return tuple((float(x), float(y)) for x, y in zip(xs, values, strict=True) if np.isfinite(y))
