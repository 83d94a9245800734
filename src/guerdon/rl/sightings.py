"""What the reward models get to see of a rollout: pictures in order, cut at episode ends.

A `Sighting` is one look at one copy of the environment: after its step t of the rollout, or at the first moment
of the episode that begins after step t (t = -1 before the rollout's first step). Each moment is seen once.
This module does not know models or rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from guerdon.types import ByteArray


@dataclass(frozen=True)
class Sighting:
    """One look.

    Attributes:
        env: which copy.
        t: step of the rollout that led here; for a first moment, the step before it (-1 at the very start).
        first: the first moment of an episode.
        last: the terminal moment of an episode.
        episode: number of the episode in this copy.
        row: steps since the episode began.
        success: ground truth at this moment.
        look: what the world's eye kept.
    """

    env: int
    t: int
    first: bool
    last: bool
    episode: int
    row: int
    success: bool
    look: Any


@dataclass(frozen=True)
class Segment:
    """The sightings of one episode within one rollout, in order.

    Attributes:
        env: which copy.
        episode: its number there.
        start: first step of the rollout that belongs to the episode.
        end: last such step.
        terminated: the task ended at `end`.
        finished: the episode ended at `end`.
        sightings: at least none, in order of time.
        frames: one picture per sighting.
    """

    env: int
    episode: int
    start: int
    end: int
    terminated: bool
    finished: bool
    sightings: tuple[Sighting, ...]
    frames: ByteArray


def cut_into_segments(
    sightings: Sequence[Sighting],
    frames_N: ByteArray,
    mask_B_T: np.ndarray,
    terminated_B_T: np.ndarray,
    done_B_T: np.ndarray,
) -> list[Segment]:
    """Group sightings by copy and episode.

    Args:
        sightings: all looks of a rollout.
        frames_N: their pictures, in the same order.
        mask_B_T: False where no step was taken.
        terminated_B_T: the task ended.
        done_B_T: the episode ended.

    Returns:
        One segment for every episode that has a sighting, by copy and time. An episode that only just began
        (a first moment after the last step) has `end < start`.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for n, s in enumerate(sightings):
        groups.setdefault((s.env, s.episode), []).append(n)
    segments = []
    for (env, episode), members in sorted(groups.items()):
        members.sort(key=lambda n: (sightings[n].t, sightings[n].first))
        start, end = _extent(env, sightings[members[0]], mask_B_T, done_B_T)
        finished = end >= start and bool(done_B_T[env, end])
        segments.append(
            Segment(
                env=env,
                episode=episode,
                start=start,
                end=end,
                terminated=finished and bool(terminated_B_T[env, end]),
                finished=finished,
                sightings=tuple(sightings[n] for n in members),
                frames=frames_N[members],
            )
        )
    return segments


def _extent(env: int, some: Sighting, mask_B_T: np.ndarray, done_B_T: np.ndarray) -> tuple[int, int]:
    """First and last step of the episode that a sighting belongs to, within the rollout."""
    steps = mask_B_T.shape[1]
    inside = some.t + 1 if some.first else some.t
    ends = np.flatnonzero(done_B_T[env])
    earlier, later = ends[ends < inside], ends[ends >= inside]
    start = int(earlier[-1]) + 1 if len(earlier) else 0
    return start, int(later[0]) if len(later) else steps - 1
