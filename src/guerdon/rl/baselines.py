"""Baselines of reward estimators with dense rewards: leave-one-out, group-relative, greedy; one source at a time.

Arrays (B, T) of rewards in, rewards minus their baseline out. `paid_B_T` says where a source pays (every token,
or the last), already without responses on which it failed. Nothing here sums over time, weighs or whitens.

    statistics = group_statistics(rewards_B_T, paid_B_T, groups_B)
    centred_B_T = rloo_rewards(rewards_B_T, paid_B_T, statistics)

Notation: r_it is what the source pays for token t of response i, m_i its mean over the tokens where it pays, K the
members of a group on which the source did not fail.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from guerdon.types import BoolArray, IntArray

LeaveOneOut = Literal["paper", "prime_compat"]
EPS = 1e-6  # added to a group's standard deviation, as in `advantages.group_advantages`
FLAT = 1e-6  # a spread of the means this small beside the largest reward is rounding, not a difference


class GroupStatistics(NamedTuple):
    """Per response, what its group says about one source, all (B,).

    Attributes:
        known: number of known members.
        total: sum of their means m.
        mean: mean of m.
        std: standard deviation of m (with n).
        flat: True where the members' means do not differ.
    """

    known: np.ndarray
    total: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    flat: BoolArray


def last_valid(mask_B_T: BoolArray) -> BoolArray:
    """(B, T) bool, True at the last valid token of each response that has one."""
    later = np.cumsum(mask_B_T[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(mask_B_T & (later == 1))


def paid_means(rewards_B_T: np.ndarray, paid_B_T: BoolArray) -> np.ndarray:
    """m_i: mean reward over the paying tokens of each response, (B,) float64; 0 where no token pays."""
    total = np.where(paid_B_T, rewards_B_T, 0.0).sum(axis=1, dtype=np.float64)
    return np.asarray(total / np.maximum(paid_B_T.sum(axis=1), 1))


def group_statistics(rewards_B_T: np.ndarray, paid_B_T: BoolArray, groups_B: IntArray) -> GroupStatistics:
    """Number, sum, mean and spread of m over the known members of each response's group: those paid somewhere."""
    known_B = paid_B_T.any(axis=1)
    _, group = np.unique(groups_B, return_inverse=True)
    groups = int(group.max(initial=-1)) + 1
    means = paid_means(rewards_B_T, paid_B_T)

    def total(values_B: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=np.where(known_B, values_B, 0.0), minlength=groups)[group]

    known = total(np.ones(len(means)))
    mean = total(means) / np.maximum(known, 1)
    std = np.sqrt(total((means - mean) ** 2) / np.maximum(known, 1))
    largest = np.zeros(groups)
    paid = np.where(paid_B_T, np.abs(rewards_B_T), 0.0)
    np.maximum.at(largest, group, paid.max(axis=1, initial=0.0))
    return GroupStatistics(known, total(means), mean, std, np.asarray(std <= FLAT * largest[group]))


def rloo_rewards(
    rewards_B_T: np.ndarray, paid_B_T: BoolArray, statistics: GroupStatistics, *, form: LeaveOneOut = "paper"
) -> np.ndarray:
    """Rewards minus the mean of the other members of the group (Ahmadian et al. 2024, 2402.14740; PRIME, 2502.01456).

    `paper` (PRIME eq. 5): r_it - 1/(K-1) sum_{j != i} m_j. `prime_compat` (PRIME's code): r_it K/(K-1) -
    1/(K-1) sum_j m_j, which adds (r_it - m_i)/(K-1): nothing for outcomes, a reshaping of dense credit.

    Returns:
        (B, T) float64, 0 where the source does not pay or the group has fewer than two known members.
    """
    others = np.maximum(statistics.known - 1, 1)[:, None]
    total = statistics.total[:, None]
    if form == "paper":
        centred = rewards_B_T - (total - paid_means(rewards_B_T, paid_B_T)[:, None]) / others
    else:
        centred = rewards_B_T * (statistics.known[:, None] / others) - total / others
    return np.where(paid_B_T & (statistics.known >= 2)[:, None], centred, 0.0)


def grpo_rewards(
    rewards_B_T: np.ndarray, paid_B_T: BoolArray, statistics: GroupStatistics, *, standardize: bool = True
) -> np.ndarray:
    """(r_it - mean_j m_j) / (std_j m_j + 1e-6) (GRPO, 2402.03300, section 4.1.3; with process rewards 2502.01456).

    Without the division it is Dr. GRPO (Liu et al. 2025, 2503.20783), whose other half, the constant length, is in
    the loss (`loss_agg: constant`); for outcomes it is RLOO's advantage times (K-1)/K. A group whose means do not
    differ has no spread to divide by: zeros.

    Returns:
        (B, T) float64, 0 where the source does not pay or the group has fewer than two known members.
    """
    centred = rewards_B_T - statistics.mean[:, None]
    taught = statistics.known >= 2
    if standardize:
        taught = taught & ~statistics.flat
        centred = centred / (statistics.std + EPS)[:, None]
    return np.where(paid_B_T & taught[:, None], centred, 0.0)


def remax_rewards(rewards_B_T: np.ndarray, paid_B_T: BoolArray, greedy_B: np.ndarray) -> np.ndarray:
    """Rewards minus m of the greedy response (ReMax, Li et al. 2024, 2310.10505); for an outcome, minus its score.

    Returns:
        (B, T) float64, 0 where the source does not pay.
    """
    return np.where(paid_B_T, rewards_B_T - np.asarray(greedy_B, dtype=np.float64)[:, None], 0.0)
