"""Charts of a study: learning curves, intervals, reward against success, reward models during training, alarms.

Bands use complete runs only and end where the first of them ends, so every point of a band rests on the same runs;
unfinished and failed runs are drawn as thin dotted lines. A run logs `reward_model/<name>/<metric>` on each batch,
before a model that learns online learns from it. Batches are small, so each run's values are averaged in windows before
runs are averaged; undefined values (a batch without a wrong answer has no pair to order) are left out and counted.

    panels = curve_panels(study, study.tasks)
    print(panels[0].stat, panels[0].axis, panels[0].svg)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from markupsafe import Markup

from guerdon.comparison.report_tables import ONLINE_METRICS, OnlineMetric
from guerdon.comparison.results import (
    MEASURES,
    SUCCESS,
    TRUTH,
    ArmRow,
    Row,
    RunRecord,
    StudyRecord,
    arm_styles,
    mapping,
    measure_curve,
    measure_of_runs,
    number,
    points,
)
from guerdon.pages.charts import Box, Line, Point, forest, line_chart, padded, scatter, spread
from guerdon.statistics.intervals import Float64
from guerdon.statistics.learning_curves import curve_band

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
class Panel:
    """One picture of a section, with what the page says about it.

    Attributes:
        title: above it: the metric, or the source of the rewards that it is about.
        hint: below it.
        stat, axis, unit: of a learning curve: mean or IQM, against steps or wall-clock (then in `unit`).
        arm, style: of a picture about one arm.
        correlation: of reward and success, mean of those that the runs logged; None where none was defined.
        undefined: how many of the `logged` values were undefined.
    """

    svg: Markup
    title: str = ""
    hint: str = ""
    stat: Stat = "mean"
    axis: Axis = "steps"
    unit: str = ""
    arm: str = ""
    style: int = 0
    correlation: float | None = None
    undefined: int = 0
    logged: int = 0


def curve_panels(study: StudyRecord, tasks: Sequence[str], size: tuple[float, float] = LARGE) -> list[Panel]:
    """Learning curves over these tasks: mean and IQM, against steps and wall-clock.

    They show what the study's results are about; a return of one task only.
    """
    panels: list[Panel] = []
    if study.measure != SUCCESS and len(tasks) > 1:
        return panels
    what = MEASURES[study.measure]
    where = "all tasks" if len(tasks) > 1 else tasks[0]
    runs = [run for run in study.runs if run.task in tasks]
    for axis in KEYS:
        curves = [_curve(run, axis, study.measure) for run in runs]
        box, scale, unit, label = _time_box(curves, axis, size, study.unit, study.measure)
        scaled = []
        for run, curve in zip(runs, curves, strict=True):
            scaled.append((run, [(x / scale, y) for x, y in curve]))
        for stat, name in STATS.items():
            lines = _arm_lines(study, scaled, axis, stat)
            title = f"{what}, {name} and 95% band, against {label}, {where}"
            picture = line_chart(box, lines, title=title, x_label=label, y_label=what)
            panels.append(Panel(picture, stat=stat, axis=axis, unit=unit))
    return panels


def _arm_lines(
    study: StudyRecord, curves: Sequence[tuple[RunRecord, Sequence[Point]]], axis: Axis, stat: Stat
) -> list[Line]:
    """The line of each arm, at places that all its complete runs cover."""
    lines = []
    for arm, style in arm_styles(study).items():
        own = [(run, curve) for run, curve in curves if run.arm == arm]
        complete = [curve for run, curve in own if run.status == "complete" and curve]
        lines.append(_line(arm, style, own, _grid(complete, axis), _interpolated, stat))
    return lines


def _time_box(
    curves: Sequence[Sequence[Point]], axis: Axis, size: tuple[float, float], steps: str, measure: str
) -> tuple[Box, float, str, str]:
    """The drawing area of curves over time, seconds in a unit of time, its name, and the name of the axis."""
    longest = max([x for curve in curves for x, _ in curve], default=1.0) or 1.0
    scale, unit, label = 1.0, "", steps
    if axis == "time":
        scale, unit = 3600.0, "h"
        if longest < 180:
            scale, unit = 1.0, "s"
        elif longest < 3 * 3600:
            scale, unit = 60.0, "min"
        label = f"wall-clock ({unit})"
    low, high, room = 0.0, 1.0, Box.margin
    if measure != SUCCESS:
        room = (*room[:3], 66)  # its ticks are wider
        low, high = padded([y for curve in curves for _, y in curve] or [0.0])
    return Box(*size, x=(0.0, longest / scale), y=(low, high), margin=room), scale, unit, label


def conclusion_picture(rows: Sequence[ArmRow], baseline: str, measure: str = SUCCESS) -> Markup | None:
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
    label = f"difference in final {'success' if measure == SUCCESS else 'return'} from {baseline}"
    return forest(drawn, title=f"{label}, 95% intervals", x_label=label)


def scatter_panels(arms: Mapping[str, Arm], tasks: Sequence[str]) -> list[Panel]:
    """One panel per arm and learned source (the environment's own return for an arm that has none)."""
    panels: list[Panel] = []
    shapes = {task: i for i, task in enumerate(tasks)}
    for arm, (style, runs) in arms.items():
        for source in sources(runs):
            svg = return_scatter(runs, source, style=style, shapes=shapes, arm=arm)
            if svg is None:
                continue
            key = f"reward_{TRUTH if measure_of_runs(runs) == TRUTH else SUCCESS}_correlation"
            logged = [number(row, key) for run in runs for row in run.trains]
            known = [value for value in logged if value is not None]
            mean = float(np.mean(known)) if known else None
            undefined, n = len(logged) - len(known), len(logged)
            panels.append(Panel(svg, source, arm=arm, style=style, correlation=mean, undefined=undefined, logged=n))
    return panels


def sources(runs: Sequence[RunRecord]) -> list[str]:
    """The learned sources whose returns these runs logged, but for `reward.truth`; `env` where there is none."""
    keys = {key.removeprefix("return/") for run in runs for row in run.trains for key in row if key[:7] == "return/"}
    learned = sorted(keys - {*NOT_LEARNED, *(mapping(run.config.get("reward")).get("truth") for run in runs)})
    return learned or sorted(keys & {"env"})


def return_scatter(
    runs: Sequence[RunRecord], source: str, *, style: int, shapes: dict[str, int], arm: str
) -> Markup | None:
    """A source's return against true success or the truth, one mark per line of training (thinned, alarms kept)."""
    measure = TRUTH if measure_of_runs(runs) == TRUTH else SUCCESS
    marks = [mark for run in runs for mark in _return_marks(run, source, measure, shapes.get(run.task, 0))]
    if not marks:
        return None
    stride = -(-len(marks) // MAX_SCATTER)
    kept = [mark for i, mark in enumerate(marks) if i % stride == 0 or mark[4]]
    across, up = padded([mark[0] for mark in marks]), padded([mark[1] for mark in marks])
    box = Box(310, 230, x=across, y=up if measure == TRUTH else (-0.03, 1.03), margin=(12, 14, 42, 46))
    what = MEASURES[measure]
    title = f"{arm}: return of {source} against {what}, {len(kept)} points"
    return scatter(box, kept, style=style, title=title, x_label=f"mean return of {source}", y_label=what)


def _return_marks(
    run: RunRecord, source: str, measure: str, shape: int
) -> Iterator[tuple[float, float, float, int, bool]]:
    """The marks of one run: return, measure, share of the steps before, shape, and whether there was an alarm."""
    last = max([number(row, "step") or 0.0 for row in run.trains], default=0.0) or 1.0
    for row in run.trains:
        share = (number(row, "step") or 0.0) / last
        for x, y in points([row], f"return/{source}", measure):
            yield x, y, share, shape, _alarmed(row)


def alarms(runs: Sequence[RunRecord]) -> list[tuple[RunRecord, list[float]]]:
    """The runs whose learned return rose while success did not, and the steps at which the hacking alarm was raised."""
    found = [(run, [number(row, "step") or 0.0 for row in run.trains if _alarmed(row)]) for run in runs]
    return [(run, steps) for run, steps in found if steps]


class Inversions(NamedTuple):
    """What the inversion alarms of runs with learned rewards of robots say.

    Attributes:
        raised: runs with such an alarm, and the steps at which it was raised.
        clean: how many others could be judged.
        undecided: how many could not.
    """

    raised: list[tuple[RunRecord, list[float]]]
    clean: int
    undecided: int


def inversions(runs: Sequence[RunRecord]) -> Inversions | None:
    """The inversion alarms of these runs; None where none of them logs any."""
    logged = [run for run in runs if any("inversion_alarm" in row for row in run.trains)]
    if not logged:
        return None
    raised, undecided = [], 0
    for run in logged:
        alarms = [number(row, "inversion_alarm") for row in run.trains]
        steps = [number(row, "step") or 0.0 for row, alarm in zip(run.trains, alarms, strict=True) if alarm]
        raised += [(run, steps)] if steps else []
        undecided += all(alarm is None for alarm in alarms)
    return Inversions(raised, len(logged) - len(raised) - undecided, undecided)


def single_run_panels(run: RunRecord, size: tuple[float, float] = (LARGE[0], 340.0)) -> list[Panel]:
    """True success of one run, in evaluation and in training, against steps and wall-clock; else its return."""
    panels: list[Panel] = []
    measure = measure_of_runs([run])
    for axis, key in KEYS.items():
        reach = points([*run.evals, *run.trains], key, key if measure == SUCCESS else measure)
        box, scale, unit, label = _time_box([reach], axis, size, run.unit, measure)
        lines = [
            Line(name, style, _thinned([(x / scale, y) for x, y in points(rows, key, measure)]))
            for style, (name, rows) in enumerate((("training", run.trains), ("evaluation", run.evals)))
        ]
        what = MEASURES[measure]
        svg = line_chart(box, lines, title=f"{what} against {label}", x_label=label, y_label=what)
        panels.append(Panel(svg, axis=axis, unit=unit))
    return panels


def _line(
    arm: str,
    style: int,
    curves: Sequence[tuple[RunRecord, Sequence[Point]]],
    xs: Sequence[float],
    values: Callable[[Sequence[Point], Sequence[float]], Float64],
    stat: Stat = "mean",
) -> Line:
    """The average of complete runs over tasks and seeds at these places, with its band; the others thin."""
    thin = tuple(_thinned(curve) for run, curve in curves if run.status != "complete")
    by_task: dict[str, list[Float64]] = {}
    for run, curve in curves:
        if run.status == "complete" and curve:
            by_task.setdefault(run.task, []).append(values(curve, xs))
    table = np.full((len(by_task), max(map(len, by_task.values()), default=0), len(xs)), np.nan)
    for k, rows in enumerate(by_task.values()):
        table[k, : len(rows)] = rows
    band = list(zip(xs, curve_band(table, average=stat, seed=0), strict=True))
    return Line.of(arm, style, band, thin)


def _interpolated(curve: Sequence[Point], xs: Sequence[float]) -> Float64:
    return np.interp(xs, [x for x, _ in curve], [y for _, y in curve])


def _where_defined(curve: Sequence[Point], xs: Sequence[float]) -> Float64:
    return np.array([dict(curve).get(x, np.nan) for x in xs])


def _grid(curves: Sequence[Sequence[Point]], axis: Axis) -> list[float]:
    """Places that the curves of all runs cover: the evaluations themselves for steps, even spacing for wall-clock."""
    if not curves:
        return []
    start = max(curve[0][0] for curve in curves)
    end = min(curve[-1][0] for curve in curves)
    if end <= start:
        return [end]
    if axis == "time":
        return [float(x) for x in np.linspace(start, end, MAX_POINTS)]
    union = sorted({x for curve in curves for x, _ in curve if start <= x <= end})
    return [union[i] for i in spread(len(union), MAX_POINTS)]


def _curve(run: RunRecord, axis: Axis, measure: str) -> list[Point]:
    if axis == "steps":
        return list(zip(*measure_curve(run, measure), strict=True))
    return points(run.evals, KEYS[axis], measure)


def _alarmed(row: Row) -> bool:
    return bool(number(row, "hacking_alarm"))


def _thinned(curve: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(curve[i] for i in spread(len(curve), 4 * MAX_POINTS))


WINDOWS = 24
PREFIX = "reward_model/"


def quality_panels(
    arms: Mapping[str, Arm], metrics: Mapping[str, OnlineMetric] = ONLINE_METRICS, prefix: str = PREFIX
) -> list[Panel]:
    """One panel per metric that any run logged; nothing without reward models that were measured.

    Args:
        arms: to their runs.
        metrics: what is shown.
        prefix: of the names under which runs log them.
    """
    every = [run for _, runs in arms.values() for run in runs]
    unit = next((run.unit for run in every if run.status != "missing"), "")
    rows = [row for run in every for row in run.trains]
    logged = {key for row in rows for key in row if key.startswith(prefix)}
    panels = []
    for metric, about in metrics.items():
        keys = sorted(key for key in logged if f"/{key}".endswith(f"/{metric}"))
        if keys:
            panels.append(_quality_panel(arms, rows, about, keys, unit=unit))
    return panels


def _quality_panel(
    arms: Mapping[str, Arm], rows: Sequence[Row], about: OnlineMetric, keys: Sequence[str], *, unit: str
) -> Panel:
    """The chart of one metric.

    Args:
        arms: to their runs.
        rows: that all runs logged.
        about: the metric.
        keys: under which runs logged it.
        unit: of their steps.
    """
    end = max([number(row, "step") or 0.0 for row in rows], default=0.0) or 1.0
    lines = []
    for arm, (style, runs) in arms.items():
        for key in keys:
            line = _quality_line(arm, style, runs, key, end)
            if line.points or any(line.thin):
                lines.append(line)
    title = f"{about.title} against {unit}"
    svg = line_chart(
        Box(400, 250, x=(0.0, end), y=(0.0, 1.0)),
        lines,
        title=title,
        x_label=unit,
        y_label="",
        chance=about.chance,
    )
    values = [number(row, key) for row in rows for key in keys if key in row]
    return Panel(
        svg,
        about.title,
        about.hint,
        undefined=values.count(None),
        logged=len(values),
    )


def windowed(run: RunRecord, key: str, end: float, windows: int = WINDOWS) -> Float64:
    """(windows,) mean of a logged value in equal windows of [0, end]; NaN where it was never defined."""
    pairs = points(run.trains, "step", key)
    places = np.array([min(int(windows * x / end), windows - 1) for x, _ in pairs], dtype=np.int64)
    count = np.bincount(places, minlength=windows)
    total = np.bincount(places, weights=[y for _, y in pairs], minlength=windows)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _quality_line(arm: str, style: int, runs: Sequence[RunRecord], key: str, end: float) -> Line:
    """The mean over complete runs with its band, up to where the first of them ends; the others thin."""
    centres = ((np.arange(WINDOWS) + 0.5) * end / WINDOWS).tolist()
    found = [(run, zip(centres, windowed(run, key, end).tolist(), strict=True)) for run in runs]
    curves = [(run, [(x, y) for x, y in pairs if np.isfinite(y)]) for run, pairs in found]
    last = min((curve[-1][0] for run, curve in curves if curve and run.status == "complete"), default=0.0)
    return _line(arm, style, curves, [x for x in centres if x <= last], _where_defined)
