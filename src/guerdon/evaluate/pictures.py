"""Pictures of an evaluation as self-contained SVG strings: pure functions of arrays.

Every picture has a title for screen readers, carries no script and no link, and says so where there is nothing to
draw. This module does not know models, files or HTML.

    svg = score_histogram(labels_N, scores_N)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guerdon.evaluate import svg
from guerdon.evaluate.classification import ReliabilityBin, roc_points
from guerdon.evaluate.intervals import Interval
from guerdon.evaluate.svg import Box, Line

SUCCESS, FAILURE = 1, 2  # styles of the two classes: blue and orange, told apart by colour-blind readers too
MOST_CURVES = len(svg.PALETTE)
_MARGIN = (30.0, 14.0, 44.0, 52.0)
_MOST_POINTS = 200
_OUTCOMES = {"exact": 3, "clean": 3, "early": 5, "late": 6, "missed": 2, "false_alarm": 2, "failed": 0}  # styles


def _box(x: tuple[float, float] = (0.0, 1.0), y: tuple[float, float] = (0.0, 1.0), width: float = 360.0) -> Box:
    return Box(width, 280.0, x=x, y=y, margin=_MARGIN)


def _title(box: Box, title: str) -> str:
    return svg.text((box.left + box.right) / 2, 18, title, classes="title")


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
        frame = svg.axes(box, x_label=x_label, y_label=y_label, x_ticks=x_ticks, y_ticks=y_ticks)
    else:
        inside = svg.text((box.left + box.right) / 2, (box.top + box.bottom) / 2, "no data")
        frame = svg.axes(box, x_label=x_label, y_label=y_label, x_ticks={}, y_ticks={})
    whole = frame + inside + _title(box, title)
    return svg.standalone(svg.svg(box.width, box.height, whole, title=title, classes="chart"))


def _line(box: Box, x_N: ArrayLike, y_N: ArrayLike, style: int) -> str:
    """A line, thinned to a few hundred points."""
    x, y = np.asarray(x_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    if len(x) > _MOST_POINTS:
        keep = np.unique(np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(int))
        x, y = x[keep], y[keep]
    return svg.path(box, zip(x.tolist(), y.tolist(), strict=True), f"line {svg.style_class(style)}")


def _diagonal(box: Box) -> str:
    return svg.path(box, ((0, 0), (1, 1)), "guide")


def _legend(box: Box) -> list[str]:
    """Names of the two classes at the lower right, below the axis, where no bar or line can cover them."""
    return [
        f'<g class="{svg.style_class(style)}">{svg.marker(1, x, box.height - 10)}</g>'
        + svg.text(x + 8, box.height - 6, name, anchor="start")
        for style, name, x in ((SUCCESS, "success", box.right - 104), (FAILURE, "failure", box.right - 44))
    ]


def _limits(values: NDArray[np.float64]) -> tuple[float, float]:
    """Smallest and largest value, widened where they are equal."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def reliability_diagram(bins: Sequence[ReliabilityBin]) -> str:
    """How often scores of each bin came true, against the bin's mean score; the diagonal is perfect."""
    box = _box()
    full = [(one, one.mean_score or 0.0, one.frequency or 0.0) for one in bins if one.n]
    body = [
        svg.bar(box, (one.low, one.high), (0.0, y), SUCCESS, f"{one.n} rows, {y:.3f} successful") for one, _, y in full
    ]
    if full:
        dots = "".join(svg.marker(0, box.px(x), box.py(y), 3) for _, x, y in full)
        body += [_diagonal(box), f'<g class="{svg.style_class(SUCCESS)}">{dots}</g>']
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
    labels, scores = np.asarray(labels_N, dtype=np.bool_), np.asarray(scores_N, dtype=np.float64)
    low, high = _limits(scores) if scores.size else (0.0, 1.0)
    box = _box((low, high))
    body = []
    for label, style, name in ((False, FAILURE, "failure"), (True, SUCCESS, "success")):
        counts, edges = np.histogram(scores[labels == label], bins=bins, range=(low, high))
        body += [
            svg.bar(box, (edges[i], edges[i + 1]), (0, n / counts.max()), style, f"{name}: {n} rows")
            for i, n in enumerate(counts)
            if n
        ]
    if body and threshold is not None and low <= threshold <= high:
        body.append(svg.path(box, ((threshold, 0), (threshold, 1)), "guide"))
    body += _legend(box) if body else []
    return _picture("Scores by class", box, body, x_label="score", y_label="relative count", y_ticks={0: "0"})


def value_curves(curves: Sequence[tuple[ArrayLike, bool]]) -> str:
    """Values over the rows of a few episodes, time scaled to each episode's length.

    Args:
        curves: (values (T,), did the episode succeed?) of each episode.
    """
    drawn = [(np.asarray(values, dtype=np.float64), success) for values, success in curves]
    drawn = [(values, success) for values, success in drawn if values.size]
    box = _box(y=_limits(np.concatenate([values for values, _ in drawn])) if drawn else (0.0, 1.0))
    body = [
        _line(box, np.linspace(0, 1, len(values)), values, SUCCESS if success else FAILURE) for values, success in drawn
    ]
    body += _legend(box) if body else []
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
    low, high = np.floor(min(values) * 10 + 1e-9) / 10, np.ceil(max(values) * 10 - 1e-9) / 10
    box = _box((places[0], max(places[-1], places[0] + 1)), (float(low), float(max(high, low + 0.1))), width=440.0)
    lines = [
        Line(
            name,
            k,
            tuple((x, i.estimate) for x, i in zip(places, row, strict=True) if i.estimate is not None),
            tuple((x, i.low, i.high) for x, i in zip(places, row, strict=True) if i.low is not None is not i.high),
        )
        for k, (name, row) in enumerate(curves.items())
    ]
    named = {x: str(n) for x, n in zip(places, ns, strict=True)}
    return svg.standalone(
        svg.line_chart(
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
        counts: name of the bar (such as `erroneous`) to outcome to count.
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
            body.append(svg.bar(box, (b + 0.15, b + 0.85), (base, top), _OUTCOMES.get(what, 0), label))
            if n / total > 0.06:
                body.append(svg.text(box.px(b + 0.5), box.py((base + top) / 2) + 4, f"{what} {n}"))
            base = top
    named = {b + 0.5: f"{name} ({sum(part.values())})" for b, (name, part) in enumerate(bars.items())}
    return _picture(title, box, body, x_label="", y_label="share of solutions", x_ticks=named)
