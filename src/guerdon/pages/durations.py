"""Durations in words, for estimates and reports.

duration(7800)      # '2 h 10 min'
"""

from __future__ import annotations

import math

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_ROUNDED = ((600, 1), (86400, 60), (math.inf, 3600))  # below so many seconds, to so many


def duration(seconds: float) -> str:
    """`45 s`, `2 min 10 s`, `25 min`, `2 h 10 min`, `3 d 4 h`: at most two units, rounded.

    Args:
        seconds: not negative; what is not finite is `unknown`.
    """
    if not math.isfinite(seconds):
        return "unknown"
    left = 0
    for below, step in _ROUNDED:
        left = step * round(seconds / step)
        if left < below:
            break
    parts = []
    for size, name in _UNITS:
        count, left = divmod(left, size)
        parts += [f"{count} {name}"] if count else []
    return " ".join(parts) or "0 s"
