"""Does the reward rank policies as true success does? Mean reward against success rate over checkpoints.

Knows nothing about models or files. The question behind it: would picking checkpoints by this reward pick
good policies (RoboReward, Robometer)?

    ranking = policy_ranking(mean_reward_P, success_rate_P, seed=0)
    print(ranking.spearman.estimate)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from guerdon.evaluate.intervals import Float64, Interval, percentile_interval
from guerdon.evaluate.ordering import pearson, spearman

FEWEST_POLICIES = 5  # with fewer, most resamples repeat so few policies that a correlation says nothing


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
