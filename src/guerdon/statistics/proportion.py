"""Confidence interval of a proportion.

wilson_bounds(3, 8)         # (0.137, 0.694): 95 % interval of the true share after 3 of 8
"""

from __future__ import annotations

from math import sqrt
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
