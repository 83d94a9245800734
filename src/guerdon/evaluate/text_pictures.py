"""Pictures of reward models for text as self-contained SVG: curves over n, and where the first error was seen.

Pure functions of numbers, drawn with the parts of `pictures`. This module does not know models or files.

    svg = n_curves(found.ns, {"majority": found.failures_wrong["majority"].intervals})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from guerdon.evaluate.intervals import Interval
from guerdon.evaluate.pictures import GREY, line, picture, words_at, x_of, y_of

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f3c8d")
_MOST = len(PALETTE)
_CONFUSION = {
    "exact": "#009e73", "clean": "#009e73", "early": "#e69f00", "late": "#56b4e9", "missed": "#d55e00",
    "false_alarm": "#d55e00", "failed": GREY,
}  # fmt: skip


def n_curves(ns: Sequence[int], curves: Mapping[str, Sequence[Interval]], *, title: str = "Choosing among n") -> str:
    """Accuracy over the number of samples (logarithmic), a band per curve; up to eight curves.

    Args:
        ns: (P,) rising numbers of samples.
        curves: name to P intervals.
        title: above the picture.

    Raises:
        ValueError: more than eight curves, or another number of intervals than of n.
    """
    if len(curves) > _MOST or any(len(row) != len(ns) for row in curves.values()):
        raise ValueError(f"at most {_MOST} curves, each with one interval per n")
    points = [x for row in curves.values() for i in row for x in (i.estimate, i.low, i.high) if x is not None]
    if not points:
        return picture(title, "samples n", "share right", [])
    low, high = _rounded(min(points), max(points))
    places = np.log2(np.asarray(ns, dtype=np.float64)) - np.log2(ns[0])
    places = places / places[-1] if len(ns) > 1 else np.zeros(1)
    body, labels = [], []
    for k, (name, row) in enumerate(curves.items()):
        known = [(x, n, i) for x, n, i in zip(places, ns, row, strict=True) if i.estimate is not None]
        band = [(x, i.low, i.high) for x, _, i in known if i.low is not None and i.high is not None]
        if len(band) > 1:
            body.append(_band(band, low, high, PALETTE[k]))
        heights = [((i.estimate or 0.0) - low) / (high - low) for _, _, i in known]
        body.append(line([x for x, _, _ in known], heights, PALETTE[k], dashed=name == "pass"))
        body += [
            f'<circle cx="{x_of(x):g}" cy="{y_of(h):g}" r="2.2" fill="{PALETTE[k]}"><title>{escape(name)}, n = {n}: '
            f"{i.estimate:.3f}</title></circle>"
            for (x, n, i), h in zip(known, heights, strict=True)
        ]
        labels.append(words_at(x_of(0) + 8, 40 + 12 * k, name, anchor="start", colour=PALETTE[k]))
    return picture(
        title,
        "samples n (logarithmic)",
        "share right",
        body + labels,
        x_ticks=(str(ns[0]), str(ns[-1])),
        y_ticks=(f"{low:.2f}", f"{high:.2f}"),
    )


def first_error_bars(counts: Mapping[str, Mapping[str, int]], *, title: str = "First error") -> str:
    """A stacked bar per kind of solution: exact, early, late, missed; clean, false alarm; failed.

    Args:
        counts: name of the bar (such as `erroneous`) to outcome to count.
        title: above the picture.
    """
    bars = {name: {k: n for k, n in part.items() if n} for name, part in counts.items()}
    bars = {name: part for name, part in bars.items() if part}
    body: list[str] = []
    for b, (name, part) in enumerate(bars.items()):
        total, base = sum(part.values()), 0.0
        left, right = (b + 0.15) / len(bars), (b + 0.85) / len(bars)
        for what, n in part.items():
            top = base + n / total
            body.append(
                f'<rect x="{x_of(left):g}" y="{y_of(top):g}" width="{x_of(right) - x_of(left):.1f}" '
                f'height="{y_of(base) - y_of(top):.1f}" fill="{_CONFUSION.get(what, GREY)}" fill-opacity="0.7">'
                f"<title>{escape(name)}, {what}: {n} of {total}</title></rect>"
            )
            if n / total > 0.06:
                body.append(words_at(x_of((left + right) / 2), y_of((base + top) / 2) + 4, f"{what} {n}"))
            base = top
        body.append(words_at(x_of((left + right) / 2), y_of(0) + 15, f"{name} ({total})"))
    return picture(title, "", "share of solutions", body, x_ticks=("", ""))


def _band(rows: Sequence[tuple[float, float, float]], low: float, high: float, colour: str) -> str:
    """The area between lower and upper bounds."""
    up = [f"{x_of(x):g},{y_of((b - low) / (high - low)):g}" for x, _, b in rows]
    down = [f"{x_of(x):g},{y_of((a - low) / (high - low)):g}" for x, a, _ in reversed(rows)]
    return f'<polygon points="{" ".join(up + down)}" fill="{colour}" fill-opacity="0.12"/>'


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis: the tenths around the values."""
    bottom, top = np.floor(low * 10 + 1e-9) / 10, np.ceil(high * 10 - 1e-9) / 10
    return float(bottom), float(max(top, bottom + 0.1))
