"""Confidence intervals of a proportion, and of the difference of two.

wilson_bounds(3, 8)                     # (0.137, 0.694): 95 % interval of the true share after 3 of 8
difference_bounds((3, 8), (7, 8))       # (0.029, 0.759): how much higher the second one is
"""

from __future__ import annotations

from math import hypot, sqrt
from statistics import NormalDist


def wilson_bounds(successes: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927), honest for few trials and at 0 and 1.

    Of a mean of shares, `n` is the number of trials that would have its variance, which is no whole number then.

    Raises:
        ValueError: `successes` is not between 0 and `n`, or there is no trial.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"successes must lie between 0 and n, and n be at least 1, got {successes} of {n}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = successes / n
    shrunk = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / shrunk
    half = z / shrunk * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = max(0.0, min(p, centre - half))
    high = min(1.0, max(p, centre + half))
    return low, high


def difference_bounds(
    first: tuple[float, float], second: tuple[float, float], *, level: float = 0.95
) -> tuple[float, float]:
    """Interval of the second proportion minus the first, from Wilson's of either (Newcombe 1998, method 10).

    Args:
        first: successes, and trials, 1 or more.
        second: as `first`.
        level: of confidence.
    """
    (low_1, high_1), (low_2, high_2) = (wilson_bounds(*one, level=level) for one in (first, second))
    share_1, share_2 = first[0] / first[1], second[0] / second[1]
    difference = share_2 - share_1
    return difference - hypot(share_2 - low_2, high_1 - share_1), difference + hypot(high_2 - share_2, share_1 - low_1)
