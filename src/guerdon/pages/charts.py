"""Charts as inline SVG: pure functions from numbers to a picture, for the report and for an evaluation's own files.

Colours and fonts come through classes (`s0` is the baseline, `s1` the next arm). In the report its style sheet sets
them, so one picture serves light mode, dark mode and print; `standalone` gives a picture a style of its own, for a
file. Arms differ by marker as well as by colour. Every picture has a title for screen readers, contains no script and
no link, and shows "no data" where there is nothing to draw.

    box = Box(width=640, height=320, x=(0, 1e5), y=(0, 1))
    svg = line_chart(box, [Line("C", 1, points=((0, 0), (1e5, 0.8)))], title="Success", x_label="steps")
    svg = score_histogram(labels_N, scores_N)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import ArrayLike, NDArray

from guerdon.statistics.classification import ReliabilityBin, roc_points
from guerdon.statistics.intervals import Interval

Point = tuple[float, float]
N_STYLES = 8
MARKS_PER_LINE = 7
MAX_NAME = 11
PALETTE = ("#6b6b73", "#0072b2", "#d55e00", "#009e73", "#b5538c", "#c98500", "#3a9fd8", "#7a6a00")  # s0 to s7
_STYLE = (
    "text{font:11px sans-serif;fill:#333}.title,.arm{fill:#000}.axis,.tick{stroke:#333;fill:none}"
    ".grid{stroke:#e9e6df;fill:none}.guide{stroke:#767676;stroke-dasharray:4 3;fill:none}"
    ".line{stroke:currentColor;stroke-width:1.6;fill:none}.mark{fill:currentColor}"
    ".band{fill:currentColor;opacity:.13}.bar{fill:currentColor;opacity:.55}"
    + "".join(f".s{i}{{color:{colour}}}" for i, colour in enumerate(PALETTE))
)  # literal colours: not every viewer of SVG files knows variables


@dataclass(frozen=True)
class Box:
    """The drawing area: size in pixels, margins (top, right, bottom, left), and the data ranges it shows."""

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    margin: tuple[float, float, float, float] = (14, 92, 40, 46)

    @property
    def left(self) -> float:
        """Pixel of the left end of the x axis."""
        return self.margin[3]

    @property
    def right(self) -> float:
        """Pixel of the right end of the x axis."""
        return self.width - self.margin[1]

    @property
    def top(self) -> float:
        """Pixel of the upper end of the y axis."""
        return self.margin[0]

    @property
    def bottom(self) -> float:
        """Pixel of the lower end of the y axis."""
        return self.height - self.margin[2]

    def px(self, x: float) -> float:
        """Horizontal pixel of a data value."""
        span = (self.x[1] - self.x[0]) or 1.0
        return self.left + (x - self.x[0]) / span * (self.right - self.left)

    def py(self, y: float) -> float:
        """Vertical pixel of a data value."""
        span = (self.y[1] - self.y[0]) or 1.0
        return self.bottom - (y - self.y[0]) / span * (self.bottom - self.top)


@dataclass(frozen=True)
class Line:
    """One arm in a line chart: its points, the band around them, and single runs drawn thin.

    Attributes:
        style: index of the arm, for colour and marker.
        band: (x, low, high) triples, or nothing.
        thin: dashed lines of runs that are not part of the band (unfinished or failed ones).
    """

    name: str
    style: int
    points: tuple[Point, ...]
    band: tuple[tuple[float, float, float], ...] = ()
    thin: tuple[tuple[Point, ...], ...] = ()

    @staticmethod
    def of(
        name: str, style: int, row: Sequence[tuple[float, Interval]], thin: tuple[tuple[Point, ...], ...] = ()
    ) -> Line:
        """The line of some estimates over x, with the band of their intervals."""
        points = tuple((x, i.estimate) for x, i in row if i.estimate is not None)
        band = tuple((x, i.low, i.high) for x, i in row if i.low is not None and i.high is not None)
        return Line(name, style, points, band, thin)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) inside [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def short(value: float) -> str:
    """A number for an axis: 0.25, 12, 40k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9999:
            return f"{value / size:.4g}{letter}".replace("-", "−")
    return f"{value + 0.0:.4g}".replace("-", "−")


def svg(width: float, height: float, body: str, *, title: str, classes: str = "", data: str = "") -> Markup:
    """The outer element: scales with its container and reads its title aloud."""
    return Markup(  # noqa: S704 - every part is escaped or a number
        f'<svg viewBox="0 0 {width:g} {height:g}" class="{escape(classes)}" role="img" '
        f'aria-label="{escape(title)}"{data}>{body}</svg>'
    )


def standalone(picture: Markup) -> str:
    """A picture as the text of a file: with a namespace, white paper and a style of its own."""
    head, body = picture.split(">", 1)
    paper = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{_STYLE}</style>{paper}{body}\n'


def text(x: float, y: float, words: str, *, anchor: str = "middle", classes: str = "") -> str:
    """Words at a pixel; they are escaped."""
    kind = f' class="{classes}"' if classes else ""
    return f'<text{kind} x="{round(x, 1):g}" y="{round(y, 1):g}" text-anchor="{anchor}">{escape(words)}</text>'


def path(box: Box, points: Iterable[Point], classes: str, *, data: str = "") -> str:
    """A line through data points."""
    return f'<path class="{classes}"{data} d="M{"L".join(_pixels(box, points))}"/>'


def band(box: Box, rows: Sequence[tuple[float, float, float]], style: int) -> str:
    """The area between the lower and upper bounds of (x, low, high) triples."""
    edge = [*((x, high) for x, _, high in rows), *((x, low) for x, low, _ in reversed(rows))]
    return f'<path class="band {style_class(style)}" d="M{"L".join(_pixels(box, edge))}z"/>'


def bar(box: Box, x: tuple[float, float], y: tuple[float, float], style: int, label: str) -> str:
    """A rectangle between data values; the label shows on hovering where the picture is a page of its own."""
    left = box.px(x[0])
    right = box.px(x[1])
    low = box.py(y[0])
    high = box.py(y[1])
    return (
        f'<rect class="bar {style_class(style)}" x="{left:.1f}" y="{high:.1f}" width="{max(right - left, 0.5):.1f}" '
        f'height="{max(low - high, 0):.1f}"><title>{escape(label)}</title></rect>'
    )


def marker(kind: int, x: float, y: float, size: float = 4.0, extra: str = "") -> str:
    """A small shape at a pixel: circle, square, triangle, diamond, triangle down, hexagon, in turn."""
    s, d = size, 1.3 * size
    shapes = (
        f"M{x - s:.1f} {y:.1f}a{s:g} {s:g} 0 1 0 {2 * s:g} 0a{s:g} {s:g} 0 1 0 {-2 * s:g} 0z",
        f"M{x - s:.1f} {y - s:.1f}h{2 * s:g}v{2 * s:g}h{-2 * s:g}z",
        f"M{x:.1f} {y - 1.25 * s:.1f}l{1.2 * s:g} {2.1 * s:g}h{-2.4 * s:g}z",
        f"M{x:.1f} {y - d:.1f}l{d:g} {d:g}l{-d:g} {d:g}l{-d:g} {-d:g}z",
        f"M{x - s:.1f} {y - s:.1f}h{2 * s:g}l{-s:g} {2 * s:g}z",
        f"M{x - s:.1f} {y:.1f}l{s / 2:g} {-s:g}h{s:g}l{s / 2:g} {s:g}l{-s / 2:g} {s:g}h{-s:g}z",
    )
    return f'<path class="mark" d="{shapes[kind % len(shapes)]}"{extra}/>'


def style_class(index: int) -> str:
    """The class that carries the colour of an arm."""
    return f"s{index % N_STYLES}"


def line_chart(
    box: Box,
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str = "success",
    chance: float | None = None,
    max_name: int = MAX_NAME,
    x_ticks: Mapping[float, str] | None = None,
    extra: str = "",
) -> Markup:
    """Lines with bands, names at their right ends (which set the right margin), and the axes.

    `chance` draws a dashed line at the height that guessing reaches; names longer than `max_name` are cut;
    `x_ticks` names places of the x axis, in place of round numbers; `extra` is drawn on top.
    """
    longest = max((len(clip(line.name, max_name)) for line in lines if line.points), default=0)
    box = replace(box, margin=(box.margin[0], 20 + 8.0 * longest, *box.margin[2:]))
    parts = [axes(box, x_label=x_label, y_label=y_label, x_ticks=x_ticks)]
    if chance is not None:
        parts.append(f'<path class="guide" d="M{box.left:g} {box.py(chance):.1f}H{box.right:g}"/>')
    parts += [band(box, line.band, line.style) for line in lines if line.band]
    for line in lines:
        parts += [path(box, points, f"thin {style_class(line.style)}") for points in line.thin if points]
    for line in lines:
        if line.points:
            arm = f' data-arm="{escape(line.name)}"'
            parts += [path(box, line.points, f"line {style_class(line.style)}", data=arm), _marks(box, line)]
    parts += [*_end_labels(box, lines, max_name), extra]
    data = (
        f' data-x="{box.x[0]:g} {box.x[1]:g}" data-y="{box.y[0]:g} {box.y[1]:g}" '
        f'data-box="{box.left:g} {box.right:g} {box.top:g} {box.bottom:g}"'
    )
    return svg(box.width, box.height, "".join(parts), title=title, classes="chart curves", data=data)


def axes(
    box: Box,
    *,
    x_label: str,
    y_label: str,
    x_ticks: Mapping[float, str] | None = None,
    y_ticks: Mapping[float, str] | None = None,
) -> str:
    """Horizontal grid lines, tick labels (round numbers where no ticks are given) and axis names."""
    parts: list[str] = []
    if y_ticks is None:
        y_ticks = _named(ticks(*box.y, count=5))
    if x_ticks is None:
        count = max(2, int((box.right - box.left) / 72))
        x_ticks = _named(ticks(*box.x, count=count))
    for y, words in y_ticks.items():
        py = box.py(y)
        parts.append(f'<path class="grid" d="M{box.left:g} {py:.1f}H{box.right:g}"/>')
        parts.append(text(box.left - 8, py + 3.5, words, anchor="end"))
    for x, words in x_ticks.items():
        px = box.px(x)
        parts.append(f'<path class="tick" d="M{px:.1f} {box.bottom:g}v4"/>')
        parts.append(text(px, box.bottom + 16, words))
    parts.append(f'<path class="axis" d="M{box.left:g} {box.bottom:g}H{box.right:g}"/>')
    parts.append(_x_name(box, x_label))
    if y_label:
        centre = (box.top + box.bottom) / 2
        parts.append(
            f'<text class="name" transform="translate(12 {centre:.1f}) rotate(-90)" '
            f'text-anchor="middle">{escape(y_label)}</text>'
        )
    return "".join(parts)


def forest(rows: Sequence[tuple[str, int, float, float, float]], *, title: str, x_label: str) -> Markup:
    """Intervals against zero: one row (name, style, estimate, low, high) per arm."""
    reach = max([0.1, *(abs(v) for row in rows for v in row[2:])]) * 1.1
    height = 34 * len(rows) + 56
    box = Box(420, height, x=(-reach, reach), y=(0, 1), margin=(8, 16, 42, 60))
    parts = [f'<path class="axis" d="M{box.left:g} {box.bottom:g}H{box.right:g}"/>']
    for x in ticks(-reach, reach, count=4):
        parts.append(f'<path class="grid" d="M{box.px(x):.1f} {box.top:g}V{box.bottom:g}"/>')
        parts.append(text(box.px(x), box.bottom + 16, f"{'+' if x > 0 else ''}{short(x)}"))
    parts.append(f'<path class="zero" d="M{box.px(0):.1f} {box.top:g}V{box.bottom:g}"/>')
    for i, (name, style, estimate, low, high) in enumerate(rows):
        y = box.top + 34 * i + 18
        parts.append(
            f'<g class="{style_class(style)}">{text(box.left - 10, y + 4, clip(name, 8), anchor="end", classes="arm")}'
            f'<path class="whisker" d="M{box.px(low):.1f} {y:g}H{box.px(high):.1f}'
            f'M{box.px(low):.1f} {y - 5:g}v10M{box.px(high):.1f} {y - 5:g}v10"/>'
            f"{marker(style, box.px(estimate), y, 5)}</g>"
        )
    parts.append(_x_name(box, x_label))
    return svg(box.width, box.height, "".join(parts), title=title, classes="chart forest")


def scatter(
    box: Box,
    points: Sequence[tuple[float, float, float, int, bool]],
    *,
    style: int,
    title: str,
    x_label: str,
    y_label: str = "success",
) -> Markup:
    """Points (x, y, age in 0..1, shape, alarm): later points are more opaque, alarms carry a ring."""
    marks: list[str] = []
    rings: list[str] = []
    for x, y, age, shape, alarm in points:
        px = box.px(x)
        py = box.py(y)
        marks.append(marker(shape, px, py, 3.2, f' opacity="{0.18 + 0.72 * age:.2f}"'))
        if alarm:
            rings.append(f'<circle class="alarm" cx="{px:.1f}" cy="{py:.1f}" r="6.5"/>')
    body = axes(box, x_label=x_label, y_label=y_label)
    body += f'<g class="{style_class(style)}">{"".join(marks)}</g>{"".join(rings)}'
    return svg(box.width, box.height, body, title=title, classes="chart scatter")


def spread(n: int, most: int) -> list[int]:
    """At most so many of the indices 0 ... n-1, evenly spread from the first to the last."""
    return list(range(n)) if n <= most else np.linspace(0, n - 1, most).round().astype(int).tolist()


def clip(text: str, length: int) -> str:
    """At most `length` characters, with an ellipsis where some were left out."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _x_name(box: Box, label: str) -> str:
    return text((box.left + box.right) / 2, box.height - 6, label, classes="name")


def _named(values: Sequence[float]) -> dict[float, str]:
    return {value: short(value) for value in values}


def _pixels(box: Box, points: Iterable[Point]) -> list[str]:
    return [f"{box.px(x):.1f} {box.py(y):.1f}" for x, y in points]


def _marks(box: Box, line: Line) -> str:
    """The line's first point and a few others as markers, at other places for each arm; the last has its own."""
    stride = max(1, len(line.points) // MARKS_PER_LINE)
    start = (line.style * stride) // 4 + 1
    shown = [*line.points[:1], *line.points[start : -max(1, stride // 2) : stride]]
    places = [(box.px(x), box.py(y)) for x, y in shown]
    marks = "".join(marker(line.style, x, y, 3.4) for x, y in places)
    return f'<g class="{style_class(line.style)}">{marks}</g>'


def _end_labels(box: Box, lines: Sequence[Line], max_name: int) -> list[str]:
    """The arm's name and marker at the end of each line, pushed apart so that none covers another."""
    ends = sorted(
        ((box.py(line.points[-1][1]), box.px(line.points[-1][0]), line) for line in lines if line.points),
        key=lambda end: end[0],
    )
    heights: list[float] = []
    for y, _, _ in ends:
        heights.append(max(y, heights[-1] + 15) if heights else y)
    overflow = (heights[-1] - box.bottom) if heights else 0.0
    if overflow > 0:
        heights[-1] -= overflow
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - 15)
    return [
        f'<g class="{style_class(line.style)}">{marker(line.style, x, y, 3.6)}'
        f"{text(box.right + 12, label_y + 4, clip(line.name, max_name), anchor='start', classes='arm')}</g>"
        for label_y, (y, x, line) in zip(heights, ends, strict=True)
    ]


def legend_mark(style: int) -> Markup:
    """The line and marker of an arm, for a legend."""
    body = f'<path class="line" d="M0 6H35"/>{marker(style, 17.5, 6, 3.6)}'
    return Markup(  # noqa: S704 - numbers and fixed text only
        f'<svg viewBox="0 0 35 12" class="chart {style_class(style)}" aria-hidden="true">{body}</svg>'
    )


SUCCESS, FAILURE = 1, 2  # styles of the two classes: blue and orange, distinct for colour-blind readers too
MOST_CURVES = len(PALETTE)
_MARGIN = (30.0, 14.0, 44.0, 52.0)
_MOST_POINTS = 200
_COUNTED = {"exact": 3, "clean": 3, "early": 5, "late": 6, "missed": 2, "false_alarm": 2, "failed": 0}  # styles


def _box(x: tuple[float, float] = (0.0, 1.0), y: tuple[float, float] = (0.0, 1.0), width: float = 360.0) -> Box:
    return Box(width, 280.0, x=x, y=y, margin=_MARGIN)


def _title(box: Box, title: str) -> str:
    return text((box.left + box.right) / 2, 18, title, classes="title")


def _picture(
    title: str,
    box: Box,
    body: Iterable[str],
    *,
    x_label: str,
    y_label: str,
    x_ticks: Mapping[float, str] | None = None,
    y_ticks: Mapping[float, str] | None = None,
) -> str:
    """Axes, labels and title around the body; without a body the words "no data"."""
    inside = "".join(body)
    if inside:
        frame = axes(box, x_label=x_label, y_label=y_label, x_ticks=x_ticks, y_ticks=y_ticks)
    else:
        inside = text((box.left + box.right) / 2, (box.top + box.bottom) / 2, "no data")
        frame = axes(box, x_label=x_label, y_label=y_label, x_ticks={}, y_ticks={})
    whole = frame + inside + _title(box, title)
    return standalone(svg(box.width, box.height, whole, title=title, classes="chart"))


def _line(box: Box, x_N: ArrayLike, y_N: ArrayLike, style: int) -> str:
    """A line, thinned to a few hundred points."""
    x = np.asarray(x_N, dtype=np.float64)
    y = np.asarray(y_N, dtype=np.float64)
    points = [(float(x[i]), float(y[i])) for i in spread(len(x), _MOST_POINTS)]
    return path(box, points, f"line {style_class(style)}")


def _diagonal(box: Box) -> str:
    return path(box, ((0, 0), (1, 1)), "guide")


def _legend(box: Box) -> list[str]:
    """Names of the two classes at the lower right, below the axis, where no bar or line can cover them."""
    return [
        f'<g class="{style_class(style)}">{marker(1, x, box.height - 10)}</g>'
        + text(x + 8, box.height - 6, name, anchor="start")
        for style, name, x in ((SUCCESS, "success", box.right - 104), (FAILURE, "failure", box.right - 44))
    ]


def limits(values: NDArray[np.float64]) -> tuple[float, float]:
    """Smallest and largest value, widened where they are equal."""
    low = float(values.min())
    high = float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def padded(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis with some room around these values."""
    pad = 0.05 * (max(values) - min(values)) or 0.5
    return min(values) - pad, max(values) + pad


def reliability_diagram(bins: Sequence[ReliabilityBin]) -> str:
    """How often scores of each bin came true, against the bin's mean score; the diagonal is perfect."""
    box = _box()
    full = [(one, one.mean_score or 0.0, one.frequency or 0.0) for one in bins if one.n]
    body = [bar(box, (one.low, one.high), (0.0, y), SUCCESS, f"{one.n} rows, {y:.3f} successful") for one, _, y in full]
    if full:
        dots = "".join(marker(0, box.px(x), box.py(y), 3) for _, x, y in full)
        body += [_diagonal(box), f'<g class="{style_class(SUCCESS)}">{dots}</g>']
    x_label, y_label = "predicted probability of success", "frequency of success"
    return _picture("Reliability", box, body, x_label=x_label, y_label=y_label)


def roc_curve(labels_N: ArrayLike, scores_N: ArrayLike) -> str:
    """True against false positive rate over all thresholds; the diagonal is chance."""
    box = _box()
    false_positive, true_positive = roc_points(labels_N, scores_N)
    body = [_diagonal(box), _line(box, false_positive, true_positive, SUCCESS)] if false_positive.size else []
    return _picture("ROC", box, body, x_label="false positive rate", y_label="true positive rate")


def score_histogram(labels_N: ArrayLike, scores_N: ArrayLike, *, threshold: float | None = None, bins: int = 20) -> str:
    """Scores of successes and of failures, each class scaled to its own highest bar; the threshold dashed."""
    labels = np.asarray(labels_N, dtype=np.bool_)
    scores = np.asarray(scores_N, dtype=np.float64)
    low, high = limits(scores) if scores.size else (0.0, 1.0)
    box = _box((low, high))
    body = []
    for label, style, name in ((False, FAILURE, "failure"), (True, SUCCESS, "success")):
        counts, edges = np.histogram(scores[labels == label], bins=bins, range=(low, high))
        for i, n in enumerate(counts):
            if n:
                width = (edges[i], edges[i + 1])
                body.append(bar(box, width, (0, n / counts.max()), style, f"{name}: {n} rows"))
    if body and threshold is not None and low <= threshold <= high:
        body.append(path(box, ((threshold, 0), (threshold, 1)), "guide"))
    if body:
        body += _legend(box)
    return _picture("Scores by class", box, body, x_label="score", y_label="relative count", y_ticks={0: "0"})


def value_curves(curves: Sequence[tuple[ArrayLike, bool]]) -> str:
    """Values over the rows of a few episodes, time scaled to each episode's length.

    Args:
        curves: (values (T,), did the episode succeed?) of each episode.
    """
    drawn = [(np.asarray(values, dtype=np.float64), success) for values, success in curves]
    drawn = [(values, success) for values, success in drawn if values.size]
    box = _box()
    body = []
    if drawn:
        box = _box(y=limits(np.concatenate([values for values, _ in drawn])))
        for values, success in drawn:
            times = np.linspace(0, 1, len(values))
            body.append(_line(box, times, values, SUCCESS if success else FAILURE))
        body += _legend(box)
    ends = {0.0: "start", 1.0: "end"}
    return _picture("Value over time", box, body, x_label="time", y_label="value", x_ticks=ends)


def n_curves(ns: Sequence[int], curves: Mapping[str, Sequence[Interval]], *, title: str = "Choosing among n") -> str:
    """Accuracy over the number of samples (logarithmic), a band per curve; up to eight curves.

    Args:
        ns: (P,) rising numbers of samples.
        curves: name to P intervals.
        title: above the picture.

    Raises:
        ValueError: more than eight curves, or another number of intervals than of n.
    """
    if len(curves) > MOST_CURVES or any(len(row) != len(ns) for row in curves.values()):
        raise ValueError(f"at most {MOST_CURVES} curves, each with one interval per n")
    x_label, y_label = "samples n (logarithmic)", "share right"
    values = [x for row in curves.values() for i in row for x in (i.estimate, i.low, i.high) if x is not None]
    places = np.log2(np.asarray(ns, dtype=np.float64)).tolist()
    if not values:
        return _picture(title, _box(), [], x_label=x_label, y_label=y_label)
    low = np.floor(min(values) * 10 + 1e-9) / 10
    high = np.ceil(max(values) * 10 - 1e-9) / 10
    box = _box((places[0], max(places[-1], places[0] + 1)), (float(low), float(max(high, low + 0.1))), width=440.0)
    lines = [Line.of(name, k, list(zip(places, row, strict=True))) for k, (name, row) in enumerate(curves.items())]
    named = {x: str(n) for x, n in zip(places, ns, strict=True)}
    return standalone(
        line_chart(
            box,
            lines,
            title=title,
            x_label=x_label,
            y_label=y_label,
            max_name=18,
            x_ticks=named,
            extra=_title(box, title),
        )
    )


def first_error_bars(counts: Mapping[str, Mapping[str, int]], *, title: str = "First error") -> str:
    """A stacked bar per kind of solution: exact, early, late, missed; clean, false alarm; failed.

    Args:
        counts: name of the bar (such as `erroneous`) to what was found, to its count.
        title: above the picture.
    """
    bars = {name: {k: n for k, n in part.items() if n} for name, part in counts.items() if any(part.values())}
    box = _box((0.0, max(len(bars), 1)))
    body: list[str] = []
    for b, (name, part) in enumerate(bars.items()):
        total, base = sum(part.values()), 0.0
        for what, n in part.items():
            top = base + n / total
            label = f"{name}, {what}: {n} of {total}"
            body.append(bar(box, (b + 0.15, b + 0.85), (base, top), _COUNTED.get(what, 0), label))
            if n / total > 0.06:
                body.append(text(box.px(b + 0.5), box.py((base + top) / 2) + 4, f"{what} {n}"))
            base = top
    named = {b + 0.5: f"{name} ({sum(part.values())})" for b, (name, part) in enumerate(bars.items())}
    return _picture(title, box, body, x_label="", y_label="share of solutions", x_ticks=named)
