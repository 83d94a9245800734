"""Hand-made inline SVG: small pure functions from numbers to a picture that follows the page's colours.

Colours and fonts come from the page's style sheet through classes (`s0` is the baseline, `s1` the next arm),
so one picture serves light mode, dark mode and print. Arms differ by marker as well as by colour. This module
does not know runs, statistics or files; missing values never reach it.

    box = Box(width=640, height=320, x=(0, 1e5), y=(0, 1))
    svg = line_chart(box, [Line("C", 1, points=((0, 0), (1e5, 0.8)))], title="Success", x_label="steps")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

Point = tuple[float, float]
N_STYLES = 8
MARKS_PER_LINE = 7
MAX_NAME = 11


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
) -> Markup:
    """Lines with bands, names at their right ends (which set the right margin), and the axes.

    `chance` draws a dashed line at the height that guessing reaches.
    """
    longest = max((len(clip(line.name, MAX_NAME)) for line in lines if line.points), default=0)
    box = replace(box, margin=(box.margin[0], 20 + 8.0 * longest, *box.margin[2:]))
    parts = [axes(box, x_label=x_label, y_label=y_label)]
    if chance is not None:
        parts.append(f'<path class="guide" d="M{box.left:g} {box.py(chance):.1f}H{box.right:g}"/>')
    for line in lines:
        if line.band:
            upper = [f"{box.px(x):.1f} {box.py(high):.1f}" for x, _, high in line.band]
            lower = [f"{box.px(x):.1f} {box.py(low):.1f}" for x, low, _ in reversed(line.band)]
            parts.append(f'<path class="band {style_class(line.style)}" d="M{"L".join(upper + lower)}z"/>')
    for line in lines:
        parts += [
            f'<path class="thin {style_class(line.style)}" d="{_path(box, points)}"/>' for points in line.thin if points
        ]
    for line in lines:
        if line.points:
            parts.append(
                f'<path class="line {style_class(line.style)}" data-arm="{escape(line.name)}" '
                f'd="{_path(box, line.points)}"/>'
            )
            parts.append(_marks(box, line))
    parts += _end_labels(box, lines)
    data = (
        f' data-x="{box.x[0]:g} {box.x[1]:g}" data-y="{box.y[0]:g} {box.y[1]:g}" '
        f'data-box="{box.left:g} {box.right:g} {box.top:g} {box.bottom:g}"'
    )
    return svg(box.width, box.height, "".join(parts), title=title, classes="chart curves", data=data)


def axes(box: Box, *, x_label: str, y_label: str) -> str:
    """Horizontal grid lines, tick labels and axis names."""
    parts: list[str] = []
    for y in ticks(*box.y, count=5):
        py = box.py(y)
        parts.append(f'<path class="grid" d="M{box.left:g} {py:.1f}H{box.right:g}"/>')
        parts.append(f'<text x="{box.left - 8:g}" y="{py + 3.5:.1f}" text-anchor="end">{short(y)}</text>')
    count = max(2, int((box.right - box.left) / 72))
    for x in ticks(*box.x, count=count):
        px = box.px(x)
        parts.append(f'<path class="tick" d="M{px:.1f} {box.bottom:g}v4"/>')
        parts.append(f'<text x="{px:.1f}" y="{box.bottom + 16:g}" text-anchor="middle">{short(x)}</text>')
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
        parts.append(
            f'<text x="{box.px(x):.1f}" y="{box.bottom + 16:g}" text-anchor="middle">'
            f"{'+' if x > 0 else ''}{short(x)}</text>"
        )
    parts.append(f'<path class="zero" d="M{box.px(0):.1f} {box.top:g}V{box.bottom:g}"/>')
    for i, (name, style, estimate, low, high) in enumerate(rows):
        y = box.top + 34 * i + 18
        parts.append(
            f'<g class="{style_class(style)}"><text class="arm" x="{box.left - 10:g}" y="{y + 4:g}" '
            f'text-anchor="end">{escape(clip(name, 8))}</text>'
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
        px, py = box.px(x), box.py(y)
        marks.append(marker(shape, px, py, 3.2, f' opacity="{0.18 + 0.72 * age:.2f}"'))
        if alarm:
            rings.append(f'<circle class="alarm" cx="{px:.1f}" cy="{py:.1f}" r="6.5"/>')
    body = axes(box, x_label=x_label, y_label=y_label)
    body += f'<g class="{style_class(style)}">{"".join(marks)}</g>{"".join(rings)}'
    return svg(box.width, box.height, body, title=title, classes="chart scatter")


def clip(text: str, length: int) -> str:
    """At most `length` characters, with an ellipsis where some were left out."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _x_name(box: Box, label: str) -> str:
    place = f'x="{(box.left + box.right) / 2:.1f}" y="{box.height - 6:g}"'
    return f'<text class="name" {place} text-anchor="middle">{escape(label)}</text>'


def _path(box: Box, points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{box.px(x):.1f} {box.py(y):.1f}" for x, y in points)


def _marks(box: Box, line: Line) -> str:
    """The line's first point and a few others as markers, at other places for each arm; the last has its own."""
    stride = max(1, len(line.points) // MARKS_PER_LINE)
    start = (line.style * stride) // 4 + 1
    shown = [*line.points[:1], *line.points[start : -max(1, stride // 2) : stride]]
    places = [(box.px(x), box.py(y)) for x, y in shown]
    marks = "".join(marker(line.style, x, y, 3.4) for x, y in places)
    return f'<g class="{style_class(line.style)}">{marks}</g>'


def _end_labels(box: Box, lines: Sequence[Line]) -> list[str]:
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
        f'<text class="arm" x="{box.right + 12:g}" y="{label_y + 4:.1f}">'
        f"{escape(clip(line.name, MAX_NAME))}</text></g>"
        for label_y, (y, x, line) in zip(heights, ends, strict=True)
    ]


def legend_mark(style: int) -> Markup:
    """The line and marker of an arm, for a legend."""
    body = f'<path class="line" d="M0 6H35"/>{marker(style, 17.5, 6, 3.6)}'
    return Markup(  # noqa: S704 - numbers and fixed text only
        f'<svg viewBox="0 0 35 12" class="chart {style_class(style)}" aria-hidden="true">{body}</svg>'
    )
