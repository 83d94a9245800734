"""How much of the reward a feature explains among rows that can be compared, with a permutation test.

Rows are compared within strata (one prompt at one step, and one truth where it is known): under the hypothesis that the
reward does not depend on the feature, the rewards of a stratum may be permuted. The permutation distribution of
sum_i x_i y_i has, with x and y centred within strata, mean 0 and variance sum_s SSx_s SSy_s / (n_s - 1) (Hoeffding
1951).
Where many rows vary it is normal; elsewhere it is sampled, until 20 permutations were as extreme or 9,999 were drawn
(Besag & Clifford 1991).

    found = associate(lengths_N, rewards_N, strata(prompt_N, step_N), seed=0)
    found.r, found.low, found.high, found.p
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from guerdon.auditing.rows import Codes, Numbers

PERMUTATIONS = 9999
EXTREME = 20  # permutations as extreme as the data that end the sampling
MANY = 200  # rows that vary, and
OFTEN = 10  # rows on the rarer side of a flag: from here on the normal distribution is used
_CHUNK = 200_000  # numbers permuted at once, at most
_FIRST = 64  # permutations that are drawn first; where they are as extreme as the data, more are not needed


@dataclass(frozen=True)
class Association:
    """A feature and the reward within strata.

    Attributes:
        r: correlation within strata; 0 where nothing varies.
        low: bound of its 95 % interval, strata as the sample.
        high: the other one.
        difference: reward per unit of the feature: of a flag, what rows with it get more.
        spread: standard deviation of the reward within strata.
        p: two-sided; None where nothing varies.
        n: rows in strata where both vary.
    """

    r: float
    low: float
    high: float
    difference: float
    spread: float
    p: float | None
    n: int


NOTHING = Association(0.0, 0.0, 0.0, 0.0, 0.0, None, 0)


def strata(*columns: ArrayLike | None) -> Codes:
    """One number for each combination of the columns' values, from 0; columns that are None do not count."""
    found = [np.unique(np.asarray(column), return_inverse=True)[1] for column in columns if column is not None]
    joint = found[0].astype(np.int64)
    for column in found[1:]:
        joint = np.unique(joint * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1].astype(np.int64)
    return joint


def stratum_means(values_N: Numbers, stratum_N: Codes) -> Numbers:
    """The mean of each row's stratum, (N,)."""
    counts = np.bincount(stratum_N)
    means: Numbers = (np.bincount(stratum_N, values_N) / np.maximum(counts, 1))[stratum_N]
    return means


def stratum_ends(values_N: Numbers, stratum_N: Codes) -> tuple[Numbers, Numbers]:
    """The smallest and the largest value of each stratum, (S,) each; NaN does not count."""
    known, strata_count = np.isfinite(values_N), int(stratum_N.max(initial=-1)) + 1
    low, high = np.full(strata_count, np.inf), np.full(strata_count, -np.inf)
    np.minimum.at(low, stratum_N[known], values_N[known])
    np.maximum.at(high, stratum_N[known], values_N[known])
    return low, high


def mean_ranks(values_N: ArrayLike) -> Numbers:
    """The rank of each value from 1 for the smallest, (N,); equal values share the mean of theirs."""
    code, count = np.unique(np.asarray(values_N), return_inverse=True, return_counts=True)[1:]
    ranks: Numbers = (np.cumsum(count) - (count - 1) / 2)[code]
    return ranks


def associate(x_N: ArrayLike, y_N: Numbers, stratum_N: Codes, *, seed: int | None) -> Association:
    """How a feature and the reward go together within strata.

    Args:
        x_N: the feature; a flag is 0 or 1.
        y_N: the reward, finite.
        stratum_N: numbers from 0.
        seed: of the permutations; None: no p-value is needed.
    """
    x, y = np.asarray(x_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    xc, yc = x - stratum_means(x, stratum_N), y - stratum_means(y, stratum_N)
    xc[np.abs(xc) < 1e-9 * (np.abs(x).max(initial=0.0) + 1e-300)] = 0.0
    yc[np.abs(yc) < 1e-9 * (np.abs(y).max(initial=0.0) + 1e-300)] = 0.0
    size_S = np.bincount(stratum_N)
    a_S, b_S, c_S = (np.bincount(stratum_N, v) for v in (xc * yc, xc * xc, yc * yc))
    varying_S = (b_S > 0) & (c_S > 0)
    if not varying_S.any():
        return NOTHING
    a, b = float(a_S[varying_S].sum()), float(b_S[varying_S].sum())
    c = float(c_S[varying_S].sum())
    n = int(size_S[varying_S].sum())
    freedom = n - int(varying_S.sum())
    r = a / np.sqrt(b * c)
    influence_S = a_S[varying_S] / np.sqrt(b * c) - r / 2 * (b_S[varying_S] / b + c_S[varying_S] / c)
    error = np.sqrt((influence_S**2).sum() + (1 - r * r) ** 2 / max(freedom, 1) * (len(influence_S) < 30))
    p = None if seed is None else _p_value(xc, yc, stratum_N, varying_S, a, seed)
    low, high = max(-1.0, r - 1.96 * error), min(1.0, r + 1.96 * error)
    return Association(float(r), float(low), float(high), a / b, float(np.sqrt(c / max(freedom, 1))), p, n)


def _p_value(
    xc_N: Numbers, yc_N: Numbers, stratum_N: Codes, varying_S: NDArray[np.bool_], observed: float, seed: int
) -> float:
    """Two-sided p-value of the sum of products, by its permutation distribution."""
    rows = np.flatnonzero(varying_S[stratum_N])
    rows = rows[np.argsort(stratum_N[rows], kind="stable")]
    x, y, stratum = xc_N[rows], yc_N[rows], stratum_N[rows]
    size_S = np.bincount(stratum)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.bincount(stratum, x * x) * np.bincount(stratum, y * y) / (size_S - 1)
    variance = float(each[size_S > 1].sum())
    rarer = min(int((x > 0).sum()), int((x < 0).sum()))
    if len(rows) >= MANY and rarer >= OFTEN:
        return float(2 * ndtr(-abs(observed) / np.sqrt(variance)))
    rng = np.random.default_rng(seed)
    most_at_once = max(1, _CHUNK // len(rows))
    at_once = min(_FIRST, most_at_once)
    extreme, drawn, limit = 0, 0, abs(observed) * (1 - 1e-9)
    while drawn < PERMUTATIONS and extreme < EXTREME:
        count = min(at_once, PERMUTATIONS - drawn)
        order = np.argsort(stratum + rng.random((count, len(rows))), axis=1)
        hits = np.abs(y[order] @ x) >= limit
        stop = np.flatnonzero(np.cumsum(hits) + extreme >= EXTREME)
        used = int(stop[0]) + 1 if len(stop) else count
        extreme, drawn = extreme + int(hits[:used].sum()), drawn + used
        at_once = min(2 * at_once, most_at_once)
    return extreme / drawn if extreme >= EXTREME else (extreme + 1) / (drawn + 1)
