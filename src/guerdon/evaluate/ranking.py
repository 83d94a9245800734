"""Ranking metrics: correlation with time, preferences between episodes, and the ranking of policies by their reward.

Functions of one episode's values or of a set of episode scores; None where undefined (constant values, fewer than two
rows).

    print(spearman(values_T, np.arange(len(values_T))))     # value-order correlation (GVL, arXiv 2411.04549)
    ranking = policy_ranking(mean_reward_P, success_rate_P, seed=0)     # as in RoboReward and Robometer
    print(ranking.spearman.estimate)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from guerdon.evaluate.intervals import Float64, Interval, bootstrap_weighted, percentile_interval


def _pair(x_N: ArrayLike, y_N: ArrayLike) -> tuple[Float64, Float64]:
    x, y = np.asarray(x_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"both sides need the same shape (N,), got {x.shape} and {y.shape}")
    return x, y


def pearson(x_N: ArrayLike, y_N: ArrayLike) -> float | None:
    """Pearson correlation; None for fewer than two values or where either side is constant."""
    x, y = _pair(x_N, y_N)
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(np.clip(x @ y / scale, -1, 1)) if scale > 0 else None


def spearman(x_N: ArrayLike, y_N: ArrayLike) -> float | None:
    """Spearman correlation, ties sharing their mean rank; None where either side is constant.

    With y the row index this is the value-order correlation of GVL, VLAC and TOPReward.
    """
    x, y = _pair(x_N, y_N)
    return pearson(rankdata(x), rankdata(y)) if len(x) else None


def _concordance(x: Float64, y: Float64) -> tuple[float, float, float, float]:
    """Concordant minus discordant pairs, all pairs, pairs tied in x, pairs tied in y."""
    upper = np.triu_indices(len(x), 1)
    dx, dy = np.sign(x[upper[0]] - x[upper[1]]), np.sign(y[upper[0]] - y[upper[1]])
    return float(dx @ dy), float(len(dx)), float((dx == 0).sum()), float((dy == 0).sum())


def kendall_tau_a(x_N: ArrayLike, y_N: ArrayLike) -> float | None:
    """(C - D) / (n (n-1) / 2), a tied pair counting 0; None for fewer than two or constant values.

    This is what Robometer computes although its docstring says tau-b (Kendall 1938). Ties in `y` keep it
    below 1. O(N^2) memory: for the rows of one episode or the episodes of one task.
    """
    x, y = _pair(x_N, y_N)
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    score, pairs, _, _ = _concordance(x, y)
    return score / pairs


def kendall_tau_b(x_N: ArrayLike, y_N: ArrayLike) -> float | None:
    """(C - D) / sqrt((n0 - ties_x)(n0 - ties_y)), corrected for ties (Kendall 1945); None as in tau-a."""
    x, y = _pair(x_N, y_N)
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    score, pairs, ties_x, ties_y = _concordance(x, y)
    return float(np.clip(score / np.sqrt((pairs - ties_x) * (pairs - ties_y)), -1, 1))


@dataclass(frozen=True)
class PreferenceReport:
    """Preferences between successful and failed episodes of the same task.

    Attributes:
        strict: accuracy, ties counted as wrong.
        decided: accuracy among pairs that do not tie.
        ties: share of pairs that tie.
    """

    strict: Interval
    decided: Interval
    ties: Interval


def episode_preferences(
    scores_E: ArrayLike, success_E: ArrayLike, tasks: Sequence[Any], *, reps: int, seed: int
) -> PreferenceReport:
    """All pairs (successful, failed) within a task, with intervals from resampling episodes.

    Pairs share episodes, so resampling pairs would pretend to more data than there is: episodes are resampled
    and a pair weighs the product of its two. The `n` of each interval is the number of pairs.

    Args:
        scores_E: (E,) one score per episode.
        success_E: (E,) bool.
        tasks: (E,) task of each episode; pairs never cross tasks.
        reps: number of resamples.
        seed: of the generator.
    """
    scores, success = np.asarray(scores_E, dtype=np.float64), np.asarray(success_E, dtype=np.bool_)
    _, task_E = np.unique(np.asarray(tasks, dtype=str), return_inverse=True)
    wins, losses = np.flatnonzero(success), np.flatnonzero(~success)
    same = (task_E[wins][:, None] == task_E[losses][None, :]).astype(np.float64)
    higher = same * (scores[wins][:, None] > scores[losses][None, :])
    equal = same * (scores[wins][:, None] == scores[losses][None, :])
    n_pairs = int(same.sum())

    def total(pairs: Float64, weights_R_E: Float64) -> Float64:
        return np.asarray(((weights_R_E[:, wins] @ pairs) * weights_R_E[:, losses]).sum(axis=1))

    def share(top: Float64, bottom: Float64, undefined: int) -> Interval:
        def statistic(weights_R_E: Float64) -> Float64:
            divisor = total(bottom, weights_R_E)
            blank = np.full(len(divisor), np.nan)
            return np.asarray(np.divide(total(top, weights_R_E), divisor, out=blank, where=divisor > 0))

        found = bootstrap_weighted(statistic, np.arange(len(scores)), reps=reps, seed=seed)
        return Interval(found.estimate, found.low, found.high, n_pairs - undefined, undefined)

    return PreferenceReport(
        strict=share(higher, same, 0),
        decided=share(higher, same - equal, int(equal.sum())),
        ties=share(equal, same, 0),
    )


FEWEST_POLICIES = 5  # with fewer, most resamples repeat so few policies that a correlation has no meaning


@dataclass(frozen=True)
class PolicyRanking:
    """Correlation over policies between mean reward and true success rate.

    Attributes:
        spearman: of ranks. No bounds with fewer than 5 policies.
        pearson: of the numbers themselves. Likewise.
    """

    spearman: Interval
    pearson: Interval


def policy_ranking(
    reward_P: ArrayLike, success_P: ArrayLike, *, reps: int = 2000, seed: int, level: float = 0.95
) -> PolicyRanking:
    """Correlate the mean reward of each policy with its true success rate; policies are resampled for the CI.

    Args:
        reward_P: (P,) mean reward of each policy; NaN where it could not be measured.
        success_P: (P,) true success rate; NaN where unknown.
        reps: number of resamples.
        seed: of the generator.
        level: such as 0.95.

    Raises:
        ValueError: the two have different lengths.
    """
    reward, success = np.asarray(reward_P, dtype=np.float64), np.asarray(success_P, dtype=np.float64)
    if reward.shape != success.shape or reward.ndim != 1:
        raise ValueError(f"reward and success need the same shape (P,), got {reward.shape} and {success.shape}")
    keep = np.isfinite(reward) & np.isfinite(success)
    missing = int((~keep).sum())
    reward, success = reward[keep], success[keep]
    picks = np.random.default_rng(seed).integers(0, max(1, len(reward)), size=(reps, len(reward)))

    def interval(correlation: Callable[[Float64, Float64], float | None]) -> Interval:
        estimate = correlation(reward, success)
        if estimate is None or len(reward) < FEWEST_POLICIES:
            return Interval(estimate, None, None, len(reward), missing)
        found = [correlation(reward[row], success[row]) for row in picks]
        replicates = np.array([np.nan if value is None else value for value in found])
        return percentile_interval(estimate, replicates, level=level, n=len(reward), n_undefined=missing)

    return PolicyRanking(spearman=interval(spearman), pearson=interval(pearson))


def policy_means(
    policies: Sequence[str | None], rewards: Sequence[float | None], successes: Sequence[bool | None]
) -> tuple[list[str], Float64, Float64]:
    """Names, mean reward (P,) and success rate (P,) of each policy, over episodes where both are known.

    Args:
        policies: which policy made each episode; None leaves the episode out.
        rewards: what the model gave each episode; None where the measurement failed.
        successes: did each episode truly succeed? None where unknown.
    """
    rows: dict[str, list[tuple[float, float]]] = {}
    for policy, reward, success in zip(policies, rewards, successes, strict=True):
        if policy is not None and reward is not None and success is not None:
            rows.setdefault(policy, []).append((reward, float(success)))
    names = sorted(rows)
    means = np.array([np.mean(rows[name], axis=0) for name in names], dtype=np.float64).reshape(-1, 2)
    return names, means[:, 0], means[:, 1]
