"""What n of N samples would give, averaged over all subsets of size n: pass@n, best-of-n, votes.

One question at a time. Ties are split evenly, which is what taking the first seen amounts to when samples come in
random order. An answer class is an integer; -1 is a sample without an answer, which casts no vote. This module does
not know solutions, models or questions.

    pass_at(correct_N, 4)                     # 1 - C(N - c, 4) / C(N, 4)  (Chen et al. 2021, 2107.03374, eq. 1)
    best_of(values_N, correct_N, 4)           # order statistics, exact
    majority(classes_N, right_K, 8)           # (8,) for n = 1 ... 8, exact
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guerdon.evaluate.intervals import Float64

NO_ANSWER = -1


def pass_at(correct_N: ArrayLike, n: int) -> float:
    """The chance that n of N samples, drawn without replacement, hold a right one.

    Raises:
        ValueError: n is not between 1 and N.
    """
    correct = np.asarray(correct_N, dtype=np.bool_)
    total, wrong = len(correct), int((~correct).sum())
    _check(n, total)
    return 1.0 - comb(wrong, n) / comb(total, n)


def best_of(values_N: ArrayLike, correct_N: ArrayLike, n: int) -> float:
    """The chance that the sample with the largest value among n of N is right; ties are split evenly.

    With g samples at one value, c of them right, and l samples below, that value is the largest with chance
    (C(l + g, n) - C(l, n)) / C(N, n), and then right with chance c / g.

    Args:
        values_N: (N,) what the reward model said; -inf where it could not say (chosen only if nothing else is there).
        correct_N: (N,) whether each sample is right.
        n: samples to choose from.

    Raises:
        ValueError: n is not between 1 and N.
    """
    values, correct = np.asarray(values_N, dtype=np.float64), np.asarray(correct_N, dtype=np.float64)
    total = len(values)
    _check(n, total)
    _, level, sizes = np.unique(values, return_inverse=True, return_counts=True)
    right = np.bincount(level.reshape(-1), weights=correct, minlength=len(sizes))
    below, found, all_ways = 0, 0.0, comb(total, n)
    for size, rights in zip(sizes.tolist(), right.tolist(), strict=True):
        found += (comb(below + size, n) - comb(below, n)) / all_ways * rights / size
        below += size
    return found


def majority(classes_N: ArrayLike, right_K: ArrayLike, most: int) -> Float64:
    """(most,) chance that the most frequent answer among n of N is right, for n = 1 ... most; exact.

    Counts the ways to draw n samples with j votes for each of t answers and fewer for all others, for every j and t,
    with the sum over these ways of how many of the t are right.

    Args:
        classes_N: (N,) answer class of each sample, 0 ... K-1, or -1 for none.
        right_K: (K,) whether each answer is right (or how likely).
        most: largest n.

    Raises:
        ValueError: `most` is not between 1 and N.
    """
    classes, right = np.asarray(classes_N, dtype=np.int64), np.asarray(right_K, dtype=np.float64)
    total = len(classes)
    _check(most, total)
    sizes = np.bincount(classes[classes >= 0], minlength=len(right))
    silent = int((classes < 0).sum())
    found = np.zeros(most + 1)
    for j in range(1, min(most, int(sizes.max(initial=0))) + 1):
        ways = np.zeros((most + 1, most // j + 1))  # votes and silent samples so far, answers with j votes
        for i in range(min(silent, most) + 1):
            ways[i, 0] = comb(silent, i)
        share = np.zeros_like(ways)  # ways, weighted by how many of the answers with j votes are right
        for size, correct in zip(sizes.tolist(), right.tolist(), strict=True):
            more, gain = np.zeros_like(ways), np.zeros_like(ways)
            for i in range(min(size, j, most) + 1):
                times = comb(size, i)
                rows = slice(0, most + 1 - i)
                if i < j:
                    more[i:] += times * ways[rows]
                    gain[i:] += times * share[rows]
                else:
                    more[i:, 1:] += times * ways[rows, :-1]
                    gain[i:, 1:] += times * (share[rows, :-1] + correct * ways[rows, :-1])
            ways, share = more, gain
        found += (share[:, 1:] / np.arange(1, share.shape[1])).sum(axis=1)
    return np.array([found[n] / comb(total, n) for n in range(1, most + 1)])


def weighted_majority(
    classes_N: ArrayLike,
    right_K: ArrayLike,
    weights_N: ArrayLike,
    n: int,
    *,
    draws: int,
    rng: np.random.Generator,
) -> float:
    """The chance that the answer with the largest sum of weights among n of N is right.

    Averaged over all subsets where there are at most `draws` of them, else over `draws` random ones.

    Args:
        classes_N: (N,) answer class of each sample, 0 ... K-1, or -1 for none.
        right_K: (K,) whether each answer is right (or how likely).
        weights_N: (N,) not negative.
        n: samples to vote.
        draws: most subsets looked at.
        rng: of the random subsets.

    Raises:
        ValueError: n is not between 1 and N, or a weight is negative.
    """
    classes, right = np.asarray(classes_N, dtype=np.int64), np.asarray(right_K, dtype=np.float64)
    weights = np.asarray(weights_N, dtype=np.float64)
    total = len(classes)
    _check(n, total)
    if not (weights >= 0).all():
        raise ValueError("weights of votes must not be negative")
    if not len(right):
        return 0.0
    member_D_N = _subsets(total, n, draws, rng)
    votes_N_K = (classes[:, None] == np.arange(len(right))).astype(np.float64)
    sums_D_K = member_D_N @ (votes_N_K * weights[:, None])
    sums_D_K = np.where(member_D_N @ votes_N_K > 0, sums_D_K, -np.inf)
    top_D = sums_D_K.max(axis=1, keepdims=True)
    best_D_K = (sums_D_K >= top_D - 1e-9 * np.abs(np.where(np.isfinite(top_D), top_D, 0.0))) & np.isfinite(sums_D_K)
    number_D = best_D_K.sum(axis=1)
    return float(np.mean((best_D_K @ right) / np.maximum(number_D, 1)))


def _subsets(total: int, n: int, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(D, N) membership of all subsets of size n, or of `draws` random ones."""
    if comb(total, n) <= draws:
        picks = np.array(list(combinations(range(total), n)), dtype=np.int64)
    else:
        picks = rng.random((draws, total)).argsort(axis=1)[:, :n]
    member = np.zeros((len(picks), total))
    np.put_along_axis(member, picks, 1.0, axis=1)
    return member


def _check(n: int, total: int) -> None:
    if not 1 <= n <= total:
        raise ValueError(f"n must lie between 1 and the number of samples, got {n} of {total}")
