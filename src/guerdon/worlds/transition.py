"""What a step of a world led to, and where the observations after it need pictures.

transition = world.step(actions)
transition.rewards, transition.done
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from guerdon.types import BoolArray, Failure, FloatArray


@dataclass(frozen=True)
class Transition:
    """One step of all B copies.

    Attributes:
        observations: (B, ...) what to act on next; after a reset where an episode ended.
        final_observations: (B, ...) what the action led to; terminal where an episode ended.
        own_observations, own_final: the same two as the environment itself shows them, whatever the policy observes.
        rewards: (B,) float32: success or the environment's own, as `native_reward` says.
        own_rewards: (B,) float32, the environment's own.
        terminated: (B,) bool, the task ended.
        truncated: (B,) bool, the time limit ended the episode.
        success: (B,) bool, ground truth after the action; False where it is not known.
        success_known: (B,) bool, where the environment reported whether this is a success.
        mask: (B,) bool, False where no action was taken because the copy was resetting.
        actions: (B, A) that were executed: the policy's within the bounds of the action space, somebody else's as the
            environment reports them; empty after a reset.
        life_lost: (B,) bool, where the task is over for who learns, and the episode goes on (a lost life of a game).
        kept: name to (B, ...) float64 of the values of `info` that are kept for rewards of other goals.
        intervened: (B,) bool, where somebody else's action was executed in place of the policy's.
        looks: copy index to look, taken after the action (of the terminal moment where an episode ended).
        first_looks: copy index to look at the start of a new episode.
        failures: copy index to why its simulator broke. Its episode is over without an end: the copy has mask False
            and no look, and has begun another one.
        failed_resets: copy and reason of each reset that failed before an episode began, with the next seed.
    """

    observations: np.ndarray
    final_observations: np.ndarray
    own_observations: np.ndarray
    own_final: np.ndarray
    rewards: FloatArray
    own_rewards: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    success: BoolArray
    success_known: BoolArray
    mask: BoolArray
    actions: np.ndarray
    intervened: BoolArray
    life_lost: BoolArray
    looks: dict[int, Any] = field(default_factory=dict)
    first_looks: dict[int, Any] = field(default_factory=dict)
    failures: Mapping[int, Failure] = field(default_factory=dict)
    failed_resets: tuple[tuple[int, Failure], ...] = ()
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def done(self) -> BoolArray:
        """(B,) bool, where an episode ended with this step."""
        return self.terminated | self.truncated

    @property
    def failed(self) -> BoolArray:
        """(B,) bool, where an episode was lost with this step."""
        return among(self.failures, len(self.mask))

    def success_of(self, index: int) -> bool | None:
        """True success of copy `index` after the action; None where the environment did not report it."""
        return bool(self.success[index]) if self.success_known[index] else None


class FramesDue(NamedTuple):
    """Copies whose observations after a step have the frames of `ObservationSpec`; those of others are black and free.

    Attributes:
        going_on: (B,) bool, where the episode goes on.
        new: (B,) bool, where an episode begins.
        ends: last observations of episodes that a time limit ended.
    """

    going_on: BoolArray
    new: BoolArray
    ends: bool = False


def among(copies: Mapping[int, Any], count: int) -> BoolArray:
    """(count,) bool, True for these copies."""
    found = np.zeros(count, dtype=np.bool_)
    found[list(copies)] = True
    return found


def with_finals(observations_B: np.ndarray, finals: Sequence[Any], ended_B: BoolArray) -> np.ndarray:
    """(B, ...) a copy of the observations, with the last ones of the episodes that ended before them."""
    found = observations_B.copy()
    for i in np.flatnonzero(ended_B).tolist():
        found[i] = finals[i]
    return found
