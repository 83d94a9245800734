"""What the numbers of a state are for, from successful episodes alone.

Some move, some say where the goal is, and some only tell the episodes apart. A classifier of success should look at the
first two kinds. The third (where an object lies that the task does not touch) lets it recognise the episodes that it
was trained on.

    found = column_roles([e.states[: first_success(e) + 1] for e in episodes], seed=0)
    found.goal, found.episode          # indices of columns
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guerdon.types import Failure, FloatArray, IntArray

MIN_EPISODES = 8
"""Fewer say nothing about which columns go together."""
STILL = 0.1
"""A column stays the same where its spread within an episode is at most this share of the spread between episodes."""
LINKED, FREE = 0.05, 0.2
"""Below the first probability a column goes with what moves; above the second nothing speaks for it; else undecided."""
_PERMUTATIONS = 999


@dataclass(frozen=True, eq=False)
class ColumnRoles:
    """Columns of states, by number, in order.

    Attributes:
        moving: they change on the way to success.
        goal: they stay the same within an episode, and where they are says where what moves is at success.
        episode: they stay the same within an episode, and what moves does not depend on them: they tell episodes apart.
        undecided: they stay the same within an episode, and whether what moves depends on them cannot be told.
    """

    moving: IntArray
    goal: IntArray
    episode: IntArray
    undecided: IntArray


def column_roles(ways: Sequence[FloatArray], *, seed: int) -> ColumnRoles | Failure:
    """Tell the columns of states apart; those that never differ are in none of the groups.

    A column goes with what moves if, over the episodes, its largest rank correlation (Spearman) with a moving column at
    success is larger than it would be for episodes put together at random: a permutation test, in which the largest
    of all moving columns is taken each time, so that their number does not matter.

    Args:
        ways: (T, S) states of each successful episode, up to its first success.
        seed: of the permutations.

    Returns:
        A failure where there are too few episodes.
    """
    usable = [np.asarray(way, np.float64) for way in ways if len(way) > 1]
    if len(usable) < MIN_EPISODES:
        return Failure(
            "too_few_successes",
            f"{len(usable)} successful episodes with a way to success, and {MIN_EPISODES} are needed to tell which "
            "numbers of the state matter",
        )
    within = np.mean([way.std(axis=0) for way in usable], axis=0)
    between = np.std([way.mean(axis=0) for way in usable], axis=0)
    size = np.max([np.abs(way).max(axis=0) for way in usable], axis=0)
    varies = np.maximum(within, between) > 1e-6 * np.maximum(size, 1e-6)  # more than rounding
    still = varies & (within <= STILL * between)
    moving = np.flatnonzero(varies & ~still)
    chance = _chance_of_link(np.stack([way[-1] for way in usable]), np.flatnonzero(still), moving, seed)
    own = np.flatnonzero(still)
    return ColumnRoles(
        moving=moving,
        goal=own[chance <= LINKED],
        episode=own[chance > FREE],
        undecided=own[(chance > LINKED) & (chance <= FREE)],
    )


def _chance_of_link(ends_E_S: NDArray[np.float64], still: IntArray, moving: IntArray, seed: int) -> NDArray[np.float64]:
    """(len(still),) probability of so large a correlation with a moving column at success where there is none."""
    if not len(moving):
        return np.ones(len(still))
    fixed, moved = _ranks(ends_E_S[:, still]), _ranks(ends_E_S[:, moving])
    found = np.abs(fixed.T @ moved).max(axis=1)
    rng = np.random.default_rng(seed)
    larger = np.ones(len(still))
    for _ in range(_PERMUTATIONS):
        shuffled = fixed[rng.permutation(len(fixed))]
        larger += np.abs(shuffled.T @ moved).max(axis=1) >= found - 1e-12
    return larger / (_PERMUTATIONS + 1)


def _ranks(values_E_S: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks of each column, centred and of length 1, so that products are correlations; 0 of a constant column."""
    from scipy.stats import rankdata

    ranks = rankdata(values_E_S, axis=0)
    ranks -= ranks.mean(axis=0)
    length = np.sqrt((ranks**2).sum(axis=0))
    unit: NDArray[np.float64] = ranks / np.where(length > 0, length, 1.0)
    return unit
