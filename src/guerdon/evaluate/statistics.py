"""Does one arm beat another? The statistics of a report, from scores of K tasks x S seeds.

Knows nothing about reward models or files. A missing run is NaN going in: it is left out and counted. This is
the one module a report needs: averages of one arm (`runs`) and of curves (`curves`) are importable from here.
Bootstrap intervals are for looking; every verdict rests on the t interval of paired differences, because
with 3 seeds a nominal 95 % bootstrap covers 76 to 82 % (`runs` has the table).

    difference = paired_difference(arm_K_S, baseline_K_S, seed=0)
    print(verdict(difference.interval), difference.p_value)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from guerdon.evaluate.curves import StepsToThreshold, area_under_curve, curve_band, steps_to_threshold
from guerdon.evaluate.intervals import (
    Interval,
    Verdict,
    bootstrap_ci,
    iqm,
    percentile_interval,
    verdict,
    wilson_interval,
)
from guerdon.evaluate.runs import (
    no_spread,
    stratified_bootstrap,
    stratified_t_interval,
    stratified_t_p_value,
    task_rows,
)

__all__ = [
    "Interval",
    "PairedDifference",
    "StepsToThreshold",
    "Verdict",
    "area_under_curve",
    "bootstrap_ci",
    "curve_band",
    "holm",
    "iqm",
    "paired_difference",
    "paired_differences",
    "probability_of_improvement",
    "sign_flip_p_value",
    "steps_to_threshold",
    "stratified_bootstrap",
    "stratified_t_interval",
    "verdict",
    "wilson_interval",
]

Correction = Literal["none", "holm"]

_EXACT_PAIRS = 14  # up to 2^14 sign patterns are listed one by one
_MONTE_CARLO = 20_000


@dataclass(frozen=True)
class PairedDifference:
    """Arm minus baseline over the same tasks and seeds.

    Attributes:
        interval: mean difference (tasks weigh the same), its stratified t interval; verdicts rest on this.
        bootstrap: the same estimate with a stratified percentile bootstrap: too narrow for few seeds.
        p_value: two-sided sign-flip permutation test of "no difference in any pair"; None without pairs.
        smallest_p: the smallest p-value this number of pairs can give, 2 / 2^n; with 5 pairs or fewer it is
            above 0.05, so the test alone can show nothing.
        n_tasks: tasks with at least one complete pair.
        level: of `interval`.
        family: comparisons that `interval` and `p_value` are corrected for; 1: not corrected.
    """

    interval: Interval
    bootstrap: Interval
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
    return float(extreme.mean() if exact else (extreme.sum() + 1) / (len(signs) + 1))


def paired_difference(
    arm_K_S: ArrayLike, baseline_K_S: ArrayLike, *, reps: int = 2000, seed: int, level: float = 0.95
) -> PairedDifference:
    """Arm minus baseline, paired by task and seed: estimate, interval for the verdict, permutation p-value.

    The interval is `stratified_t_interval` of the differences. Where all differences within every task are
    equal it has no width to offer; then the bounds equal the estimate if the sign-flip test rejects at
    1 - `level` (at least 6 pairs, all of one sign), and are None otherwise.

    Args:
        arm_K_S: (tasks, seeds) scores; NaN for a missing run drops the pair and is counted.
        baseline_K_S: (tasks, seeds) scores of the same tasks and seeds.
        reps: resamples of the bootstrap interval.
        seed: of the generator.
        level: such as 0.95.

    Raises:
        ValueError: the shapes differ.
    """
    arm, baseline = np.asarray(arm_K_S, dtype=np.float64), np.asarray(baseline_K_S, dtype=np.float64)
    if arm.shape != baseline.shape:
        raise ValueError(f"paired scores must have the same (tasks, seeds) shape, got {arm.shape} and {baseline.shape}")
    differences = arm - baseline
    rows, _ = task_rows(differences)
    interval = stratified_t_interval(differences, level=level)
    p_value = sign_flip_p_value(differences, seed=seed)
    no_width = bool(rows) and all(len(row) > 1 and no_spread(row) for row in rows)
    if no_width and p_value is not None and p_value <= 1 - level:
        interval = Interval(interval.estimate, interval.estimate, interval.estimate, interval.n, interval.n_undefined)
    return PairedDifference(
        interval=interval,
        bootstrap=stratified_bootstrap(differences, reps=reps, seed=seed, level=level),
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
        p = one.p_value if p is None and one.interval.low is not None else p
        tests += [] if p is None else [(p, i)]
    adjusted = holm([one.p_value for one in found])
    level, stopped = 0.95, False
    for rank, (p, i) in enumerate(sorted(tests)):
        if not stopped:
            alpha = 0.05 / (len(tests) - rank)
            level, stopped = 1 - alpha, p > alpha
        found[i] = paired_difference(arms[i], baseline, seed=seed, level=level)
    family = sum(p is not None for p in adjusted)
    return [replace(one, p_value=p, family=max(family, 1)) for one, p in zip(found, adjusted, strict=True)]


def probability_of_improvement(
    arm_K_S: ArrayLike, baseline_K_S: ArrayLike, *, reps: int = 2000, seed: int, level: float = 0.95
) -> Interval:
    """P(a run of the arm scores above a run of the baseline), ties 1/2, averaged over tasks.

    Agarwal et al. 2021 (arXiv 2108.13264) §4.3: the Mann-Whitney U of each task divided by its pairs. Runs
    need no pairing; the two arms are resampled apart, within each task. Tasks that lack runs in one arm are
    left out.

    Args:
        arm_K_S: (tasks, seeds) scores, NaN for a missing run.
        baseline_K_S: (tasks, other seeds) scores.
        reps: number of resamples.
        seed: of the generator.
        level: such as 0.95.

    Raises:
        ValueError: the two arms have different numbers of tasks.
    """
    arm, baseline = np.asarray(arm_K_S, dtype=np.float64), np.asarray(baseline_K_S, dtype=np.float64)
    if arm.ndim != 2 or baseline.ndim != 2 or len(arm) != len(baseline):
        raise ValueError(f"both arms need shape (tasks, seeds) for the same tasks, got {arm.shape}, {baseline.shape}")
    rng = np.random.default_rng(seed)
    estimates, replicates, n, can_vary = [], [], 0, False
    for x_S, y_S in zip(arm, baseline, strict=True):
        x, y = x_S[np.isfinite(x_S)], y_S[np.isfinite(y_S)]
        n += len(x) + len(y)
        if len(x) == 0 or len(y) == 0:
            continue
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        u = rng.multinomial(len(x), np.full(len(x), 1 / len(x)), size=reps) / len(x)
        w = rng.multinomial(len(y), np.full(len(y), 1 / len(y)), size=reps) / len(y)
        estimates.append(wins.mean())
        replicates.append(np.einsum("ri,ij,rj->r", u, wins, w, optimize=True))
        can_vary |= len(x) > 1 or len(y) > 1
    missing = arm.size + baseline.size - n
    if not estimates:
        return Interval(None, None, None, n, missing)
    return percentile_interval(
        float(np.mean(estimates)),
        np.mean(replicates, axis=0),
        level=level,
        n=n,
        n_undefined=missing,
        can_vary=can_vary,
    )
