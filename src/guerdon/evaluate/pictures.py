"""Pictures of an evaluation as self-contained SVG strings: pure functions of arrays.

Knows nothing about models, files or HTML. Every picture has a title for screen readers, carries no script, no
font and no link, and says so where there is nothing to draw.

    svg = score_histogram(labels_N, scores_N)
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from guerdon.evaluate.classification import ReliabilityBin, roc_points

SUCCESS, FAILURE, GREY = "#0072b2", "#d55e00", "#767676"  # told apart by colour-blind readers too
_WIDTH, _HEIGHT = 360.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 30.0, 44.0
_MOST_POINTS = 200


def x_of(share: float) -> float:
    """Where a share of the horizontal axis lies, in pixels."""
    return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def y_of(share: float) -> float:
    """Where a share of the vertical axis lies, in pixels from the top."""
    return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def words_at(x: float, y: float, words: str, *, anchor: str = "middle", colour: str = "#333", turn: str = "") -> str:
    """A text element; its words are escaped."""
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{turn}'
    return f"<text {place}>{escape(words)}</text>"


def line(x_N: ArrayLike, y_N: ArrayLike, colour: str, *, dashed: bool = False) -> str:
    """A polyline through shares of the axes, thinned to a few hundred points."""
    x, y = np.asarray(x_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    if len(x) > _MOST_POINTS:
        keep = np.unique(np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(int))
        x, y = x[keep], y[keep]
    points = " ".join(f"{x_of(a):g},{y_of(b):g}" for a, b in zip(x, y, strict=True))
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>'


def bar(low: float, high: float, height: float, colour: str, label: str) -> str:
    """A bar from the horizontal axis up; coordinates are shares of the axes, the label shows on hovering."""
    return (
        f'<rect x="{x_of(low):g}" y="{y_of(height):g}" width="{max(x_of(high) - x_of(low), 0.5):.1f}" '
        f'height="{max(y_of(0) - y_of(height), 0):.1f}" fill="{colour}" fill-opacity="0.55">'
        f"<title>{escape(label)}</title></rect>"
    )


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x_of(x):g}" cy="{y_of(y):g}" r="3" fill="{SUCCESS}"/>'


def picture(
    title: str,
    x_label: str,
    y_label: str,
    body: Sequence[str],
    *,
    x_ticks: tuple[str, str] = ("0", "1"),
    y_ticks: tuple[str, str] = ("0", "1"),
) -> str:
    """Axes, labels and title around the body; without a body the words "no data"."""
    middle_x, middle_y = x_of(0.5), y_of(0.5)
    frame = (
        f'<path d="M{x_of(0):g},{y_of(1):g}V{y_of(0):g}H{x_of(1):g}" fill="none" stroke="#333" stroke-width="1"/>',
        words_at(x_of(0), y_of(0) + 15, x_ticks[0]),
        words_at(x_of(1), y_of(0) + 15, x_ticks[1], anchor="end"),
        words_at(x_of(0) - 5, y_of(0), y_ticks[0], anchor="end"),
        words_at(x_of(0) - 5, y_of(1) + 8, y_ticks[1], anchor="end"),
        words_at(middle_x, _HEIGHT - 10, x_label),
        words_at(14, middle_y, y_label, turn=f' transform="rotate(-90 14 {middle_y:g})"'),
        words_at(middle_x, 18, title, colour="#000"),
    )
    inside = list(body) or [words_at(middle_x, middle_y, "no data", colour=GREY)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'font-family="sans-serif" font-size="11"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(inside)}{"".join(frame)}</svg>\n'
    )


def reliability_diagram(bins: Sequence[ReliabilityBin]) -> str:
    """How often scores of each bin came true, against the bin's mean score; the diagonal is perfect."""
    full = [one for one in bins if one.n]
    body = [
        bar(one.low, one.high, one.frequency or 0.0, SUCCESS, f"{one.n} rows, {one.frequency:.3f} successful")
        for one in full
    ]
    if full:
        body.append(line([0, 1], [0, 1], GREY, dashed=True))
        body += [_dot(one.mean_score or 0.0, one.frequency or 0.0) for one in full]
    return picture("Reliability", "predicted probability of success", "frequency of success", body)


def roc_curve(labels_N: ArrayLike, scores_N: ArrayLike) -> str:
    """True against false positive rate over all thresholds; the diagonal is chance."""
    false_positive, true_positive = roc_points(labels_N, scores_N)
    body = []
    if false_positive.size:
        body = [line([0, 1], [0, 1], GREY, dashed=True), line(false_positive, true_positive, SUCCESS)]
    return picture("ROC", "false positive rate", "true positive rate", body)


def _limits(values: ArrayLike) -> tuple[float, float]:
    """Smallest and largest value, widened where they are equal."""
    array = np.asarray(values, dtype=np.float64)
    low, high = float(array.min()), float(array.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def score_histogram(labels_N: ArrayLike, scores_N: ArrayLike, *, threshold: float | None = None, bins: int = 20) -> str:
    """Scores of successes and of failures, each class scaled to its own highest bar; the threshold dashed."""
    labels, scores = np.asarray(labels_N, dtype=np.bool_), np.asarray(scores_N, dtype=np.float64)
    if scores.size == 0:
        return picture("Scores by class", "score", "relative count", [])
    low, high = _limits(scores)
    body = []
    for label, colour, name in ((False, FAILURE, "failure"), (True, SUCCESS, "success")):
        counts, edges = np.histogram(scores[labels == label], bins=bins, range=(low, high))
        shares = (edges - low) / (high - low)
        body += [
            bar(shares[i], shares[i + 1], counts[i] / counts.max(), colour, f"{name}: {counts[i]} rows")
            for i in range(bins)
            if counts[i]
        ]
    if threshold is not None and low <= threshold <= high:
        at = (threshold - low) / (high - low)
        body.append(line([at, at], [0, 1], GREY, dashed=True))
    body += _legend()
    return picture(
        "Scores by class",
        "score",
        "relative count",
        body,
        x_ticks=(f"{low:.3g}", f"{high:.3g}"),
        y_ticks=("0", ""),
    )


def value_curves(curves: Sequence[tuple[ArrayLike, bool]]) -> str:
    """Values over the rows of a few episodes, time scaled to each episode's length.

    Args:
        curves: (values (T,), did the episode succeed?) of each episode.
    """
    drawn = [(np.asarray(values, dtype=np.float64), success) for values, success in curves]
    drawn = [(values, success) for values, success in drawn if values.size]
    if not drawn:
        return picture("Value over time", "time", "value", [])
    low, high = _limits(np.concatenate([values for values, _ in drawn]))
    body = [
        line(
            np.linspace(0, 1, len(values)) if len(values) > 1 else np.zeros(1),
            (values - low) / (high - low),
            SUCCESS if success else FAILURE,
        )
        for values, success in drawn
    ]
    return picture(
        "Value over time",
        "time in the episode",
        "value",
        body + _legend(),
        x_ticks=("start", "end"),
        y_ticks=(f"{low:.3g}", f"{high:.3g}"),
    )


def _legend() -> list[str]:
    return [
        words_at(x_of(1) - 42, _HEIGHT - 10, "success", anchor="end", colour=SUCCESS),
        words_at(x_of(1), _HEIGHT - 10, "failure", anchor="end", colour=FAILURE),
    ]
