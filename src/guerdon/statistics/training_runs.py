"""Statistics of training runs, K tasks x S seeds: averages with intervals, and whether one arm beats another.

Tasks are fixed, seeds are the sample: runs are resampled within their task (stratified bootstrap, Agarwal et al. 2021,
arXiv 2108.13264, §4.1). A missing run is NaN: it is left out and counted, never replaced.

With few seeds the percentile bootstrap is too narrow, because 3 values cannot show the spread they came from.
Simulated coverage of nominal 95 % intervals of a mean, normal / U-shaped scores (3,000 data sets each):

    tasks x seeds   bootstrap      t, stratified
    1 x 3           0.76 / 0.76    0.95 / 0.93
    2 x 3           0.80 / 0.82    0.96 / 0.96
    4 x 5           0.90 / 0.90    0.96 / 0.95

So bootstrap bands are for looking at curves, and every conclusion rests on the t interval of paired differences.

    interval = stratified_t_interval(success_K_S)
    difference = paired_difference(arm_K_S, baseline_K_S, seed=0)
    print(conclusion(difference.interval), difference.p_value)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from guerdon.statistics.intervals import Float64, Interval, defined, iqm, percentile_interval

Average = Literal["mean", "iqm"]


def no_spread(values: Float64) -> bool:
    """Are all values equal up to rounding?"""
    return bool(np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())))


def task_rows(scores_K_S: ArrayLike) -> tuple[list[Float64], int]:
    """The finite scores of each task (tasks without any are left out), and how many entries were missing.

    Raises:
        ValueError: the array is not of shape (tasks, seeds).
    """
    scores = np.asarray(scores_K_S, dtype=np.float64)
    if scores.ndim != 2:
        raise ValueError(f"scores must have shape (tasks, seeds), got {scores.shape}; pad missing runs with NaN")
    rows = [row[np.isfinite(row)] for row in scores]
    missing = int((~np.isfinite(scores)).sum())
    return [row for row in rows if len(row)], missing


def _average(rows: list[Float64], average: Average) -> Float64:
    """Mean of the tasks' means, or IQM of all runs together; each row is (..., S_k)."""
    if average == "mean":
        return np.asarray(np.mean([row.mean(axis=-1) for row in rows], axis=0))
    return iqm(np.concatenate(rows, axis=-1))


def stratified_bootstrap(scores_K_S: ArrayLike, *, average: Average = "mean", reps: int = 2000, seed: int) -> Interval:
    """Percentile interval of an aggregate score, runs resampled within each task.

    Too narrow for few seeds (see the table above): for bands and orientation, not for conclusions.

    Args:
        scores_K_S: (tasks, seeds), NaN for a missing run.
        average: `mean` of the tasks' means, or `iqm` over all runs (Agarwal et al. 2021 §4.3).
        reps: number of resamples.
        seed: of the generator.
    """
    rows, missing = task_rows(scores_K_S)
    n = sum(len(row) for row in rows)
    if n == 0:
        return Interval(None, None, None, 0, missing)
    estimate = float(_average(rows, average))
    if all(len(row) == 1 for row in rows):  # nothing to resample
        return Interval(defined(estimate), None, None, n, missing)
    rng = np.random.default_rng(seed)
    resampled = [row[rng.integers(0, len(row), size=(reps, len(row)))] for row in rows]
    drawn = _average(resampled, average)
    return percentile_interval(estimate, drawn, n=n, n_undefined=missing)


def stratified_t_interval(scores_K_S: ArrayLike, *, level: float = 0.95) -> Interval:
    """Student-t interval of the mean over tasks, Welch-Satterthwaite degrees of freedom (Welch 1947).

    mean = 1/K sum_k m_k, variance = 1/K^2 sum_k v_k with v_k = s_k^2 / n_k, and
    df = (sum_k v_k)^2 / sum_k v_k^2 / (n_k - 1). Bounds are None where a task has a single run, or where no
    task shows any spread: identical values give no estimate of the spread.

    Args:
        scores_K_S: (tasks, seeds), NaN for a missing run; tasks without a run are left out.
        level: such as 0.95.
    """
    rows, missing = task_rows(scores_K_S)
    n = sum(len(row) for row in rows)
    if n == 0:
        return Interval(None, None, None, 0, missing)
    estimate = float(_average(rows, "mean"))
    found = _standard_error(rows)
    if found is None:
        return Interval(estimate, None, None, n, missing)
    error, df = found
    half = float(stdtrit(df, (1 + level) / 2) * error)
    return Interval(estimate, estimate - half, estimate + half, n, missing)


def stratified_t_p_value(scores_K_S: ArrayLike) -> float | None:
    """Two-sided p-value of "the mean over tasks is 0": 1 - the level at which `stratified_t_interval` touches 0.

    None where that interval has no bounds.
    """
    rows, _ = task_rows(scores_K_S)
    found = _standard_error(rows)
    if found is None:
        return None
    error, df = found
    mean = float(_average(rows, "mean"))
    return float(2 * stdtr(df, -abs(mean) / error))


def _standard_error(rows: list[Float64]) -> tuple[float, float] | None:
    """Standard error of the mean over tasks and its degrees of freedom; None where runs show no spread."""
    if not rows or any(len(row) < 2 for row in rows):
        return None
    v = np.array([0.0 if no_spread(row) else row.var(ddof=1) / len(row) for row in rows])
    total = v.sum()
    if total == 0:
        return None
    error = np.sqrt(total) / len(rows)
    df = total**2 / sum(v_k**2 / (len(row) - 1) for v_k, row in zip(v, rows, strict=True))
    return float(error), float(df)


Correction = Literal["none", "holm"]

_EXACT_PAIRS = 14  # up to 2^14 sign patterns are listed one by one
_MONTE_CARLO = 20_000


@dataclass(frozen=True)
class PairedDifference:
    """Arm minus baseline over the same tasks and seeds.

    Attributes:
        interval: mean difference (tasks weigh the same), its stratified t interval; conclusions rest on this.
        p_value: two-sided sign-flip permutation test of "no difference in any pair"; None without pairs.
        smallest_p: the smallest p-value this number of pairs can give, 2 / 2^n; with 5 pairs or fewer it is
            above 0.05, so the test alone can show nothing.
        n_tasks: tasks with at least one complete pair.
        level: of `interval`.
        family: comparisons that `interval` and `p_value` are corrected for; 1: not corrected.
    """

    interval: Interval
    p_value: float | None
    smallest_p: float | None
    n_tasks: int
    level: float = 0.95
    family: int = 1


def sign_flip_p_value(differences_K_S: ArrayLike, *, seed: int = 0) -> float | None:
    """Two-sided permutation test of paired differences: under no difference each sign is a fair coin.

    The statistic is the mean of the tasks' means. Exact for up to 14 pairs (every pattern of signs), above
    that 20,000 random patterns with the observed one counted in (Phipson & Smyth 2010). None without pairs.
    """
    rows, _ = task_rows(differences_K_S)
    if not rows:
        return None
    weighted = np.concatenate([row / len(row) / len(rows) for row in rows])
    n = len(weighted)
    exact = n <= _EXACT_PAIRS
    if exact:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(_MONTE_CARLO, n))
    extreme = np.abs(signs @ weighted) >= abs(weighted.sum()) - 1e-12
    if exact:
        return float(extreme.mean())
    return float((extreme.sum() + 1) / (len(signs) + 1))


def paired_difference(
    arm_K_S: ArrayLike, baseline_K_S: ArrayLike, *, seed: int, level: float = 0.95
) -> PairedDifference:
    """Arm minus baseline, paired by task and seed: estimate, interval for the conclusion, permutation p-value.

    The interval is `stratified_t_interval` of the differences. Where all differences within every task are
    equal it has no width to offer; then the bounds equal the estimate if the sign-flip test rejects at
    1 - `level` (at least 6 pairs, all of one sign), and are None otherwise.

    Args:
        arm_K_S: (tasks, seeds) scores; NaN for a missing run drops the pair and is counted.
        baseline_K_S: (tasks, seeds) scores of the same tasks and seeds.
        seed: of the generator of the permutation test.
        level: such as 0.95.

    Raises:
        ValueError: the shapes differ.
    """
    arm = np.asarray(arm_K_S, dtype=np.float64)
    baseline = np.asarray(baseline_K_S, dtype=np.float64)
    if arm.shape != baseline.shape:
        raise ValueError(f"paired scores must have the same (tasks, seeds) shape, got {arm.shape} and {baseline.shape}")
    differences = arm - baseline
    rows, _ = task_rows(differences)
    interval = stratified_t_interval(differences, level=level)
    p_value = sign_flip_p_value(differences, seed=seed)
    no_width = bool(rows) and all(len(row) > 1 and no_spread(row) for row in rows)
    if no_width and p_value is not None and p_value <= 1 - level:
        interval = replace(interval, low=interval.estimate, high=interval.estimate)
    return PairedDifference(
        interval=interval,
        p_value=p_value,
        smallest_p=2.0 ** (1 - interval.n) if interval.n else None,
        n_tasks=len(rows),
        level=level,
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted by Holm's step-down method (Holm 1979): at most 5% chance of any false rejection.

    The i-th smallest of m becomes the largest (m - j + 1) p_(j) of all j <= i, at most 1. None stays None and does not
    count as a comparison.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, i) in enumerate(order):
        worst = max(worst, min((len(order) - rank) * p, 1.0))
        adjusted[i] = worst
    return adjusted


def paired_differences(
    arms: Sequence[ArrayLike], baseline_K_S: ArrayLike, *, seed: int, correction: Correction = "none"
) -> list[PairedDifference]:
    """Several arms minus one baseline; `holm` corrects p-values and intervals for their number.

    With `holm` the arms are tested in the order of their t-test p-values, the i-th of m at 0.05 / (m - i + 1), until
    one is not rejected; the rest then are not, either. Each interval has the level of its arm's test (Serlin 1993, "a
    case for Holm on the range"), the arms behind the first that is not rejected have the level of that one, so an
    interval excludes 0 exactly where Holm's method rejects. Where the interval has no width the sign-flip test orders.
    An arm without any test is not counted.

    Args:
        arms: (tasks, seeds) scores each, NaN for a missing run.
        baseline_K_S: (tasks, seeds) scores.
        seed: of the generators.
        correction: `none`, or `holm`.
    """
    baseline = np.asarray(baseline_K_S, dtype=np.float64)
    found = [paired_difference(arm, baseline, seed=seed) for arm in arms]
    if correction == "none":
        return found
    tests = []
    for i, (arm, one) in enumerate(zip(arms, found, strict=True)):
        p = stratified_t_p_value(np.asarray(arm, dtype=np.float64) - baseline)
        if p is None and one.interval.low is not None:
            p = one.p_value
        if p is not None:
            tests.append((p, i))
    adjusted = holm([one.p_value for one in found])
    level, stopped = 0.95, False
    for rank, (p, i) in enumerate(sorted(tests)):
        if not stopped:
            alpha = 0.05 / (len(tests) - rank)
            level = 1 - alpha
            stopped = p > alpha
        found[i] = paired_difference(arms[i], baseline, seed=seed, level=level)
    family = sum(p is not None for p in adjusted)
    return [replace(one, p_value=p, family=max(family, 1)) for one, p in zip(found, adjusted, strict=True)]


def _resampled_shares(n: int, reps: int, rng: np.random.Generator) -> Float64:
    """(reps, n) the share of each of n runs in bootstrap resamples."""
    return rng.multinomial(n, np.full(n, 1 / n), size=reps) / n


def probability_of_improvement(arm_K_S: ArrayLike, baseline_K_S: ArrayLike, *, reps: int = 2000, seed: int) -> Interval:
    """P(a run of the arm scores above a run of the baseline), ties 1/2, averaged over tasks.

    Agarwal et al. 2021 (arXiv 2108.13264) §4.3: the Mann-Whitney U of each task divided by its pairs. Runs
    need no pairing; the two arms are resampled apart, within each task. Tasks that lack runs in one arm are
    left out.

    Args:
        arm_K_S: (tasks, seeds) scores, NaN for a missing run.
        baseline_K_S: (tasks, other seeds) scores.
        reps: number of resamples.
        seed: of the generator.

    Raises:
        ValueError: the two arms have different numbers of tasks.
    """
    arm = np.asarray(arm_K_S, dtype=np.float64)
    baseline = np.asarray(baseline_K_S, dtype=np.float64)
    if arm.ndim != 2 or baseline.ndim != 2 or len(arm) != len(baseline):
        raise ValueError(f"both arms need shape (tasks, seeds) for the same tasks, got {arm.shape}, {baseline.shape}")
    rng = np.random.default_rng(seed)
    estimates, replicates, n, can_vary = [], [], 0, False
    for x_S, y_S in zip(arm, baseline, strict=True):
        x = x_S[np.isfinite(x_S)]
        y = y_S[np.isfinite(y_S)]
        n += len(x) + len(y)
        if len(x) == 0 or len(y) == 0:
            continue
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        u = _resampled_shares(len(x), reps, rng)
        w = _resampled_shares(len(y), reps, rng)
        estimates.append(wins.mean())
        replicates.append(np.einsum("ri,ij,rj->r", u, wins, w, optimize=True))
        can_vary |= len(x) > 1 or len(y) > 1
    missing = arm.size + baseline.size - n
    if not estimates:
        return Interval(None, None, None, n, missing)
    estimate = float(np.mean(estimates))
    drawn = np.mean(replicates, axis=0)
    return percentile_interval(estimate, drawn, n=n, n_undefined=missing, can_vary=can_vary)
