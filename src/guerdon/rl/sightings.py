"""What the reward models get to see of a rollout: pictures in order, cut at episode ends.

A `Sighting` is one look at one copy of the environment: after its step t of the rollout, or at the first moment
of the episode that begins after step t (t = -1 before the rollout's first step). Each moment is seen once.
This module does not know models or rewards.

    segments = cut_into_segments(trace.sightings, frames_N, trace.mask, trace.terminated, done_B_T)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from guerdon.types import BoolArray, ByteArray


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
        success: ground truth at this moment; None where nobody knows.
        look: what the world's eye kept.
    """

    env: int
    t: int
    first: bool
    last: bool
    episode: int
    row: int
    success: bool | None
    look: Any


@dataclass(frozen=True)
class Segment:
    """The sightings of one episode within one rollout, in order.

    Attributes:
        env: which copy.
        episode: its number there; None where nothing of it was seen.
        start: first step of the rollout that belongs to the episode.
        end: last such step.
        terminated: the task ended at `end`.
        finished: the episode ended at `end`.
        sightings: at least none, in order of time.
        frames: one picture per sighting.
    """

    env: int
    episode: int | None
    start: int
    end: int
    terminated: bool
    finished: bool
    sightings: tuple[Sighting, ...]
    frames: ByteArray


def cut_into_segments(
    sightings: Sequence[Sighting],
    frames_N: ByteArray,
    mask_B_T: BoolArray,
    terminated_B_T: BoolArray,
    done_B_T: BoolArray,
) -> list[Segment]:
    """Cut a rollout at episode ends and give every stretch its sightings.

    Args:
        sightings: all looks of a rollout.
        frames_N: their pictures, in the same order.
        mask_B_T: False where no step was taken.
        terminated_B_T: the task ended.
        done_B_T: the episode ended.

    Returns:
        One segment for every episode that took a step or was looked at, by copy and time. An episode that only
        just began (a first moment after the last step) has `end < start`.
    """
    steps = mask_B_T.shape[1]
    seen: list[list[int]] = [[] for _ in range(len(mask_B_T))]
    for n, s in enumerate(sightings):
        seen[s.env].append(n)
    segments = []
    for env, members in enumerate(seen):
        members.sort(key=lambda n: (_inside(sightings[n]), not sightings[n].first))
        ends = np.flatnonzero(done_B_T[env]).tolist()
        starts = [0, *(end + 1 for end in ends)]
        for start, end, finished in zip(starts, [*ends, steps - 1], [True] * len(ends) + [False], strict=True):
            mine = [n for n in members if start <= _inside(sightings[n]) <= (end if finished else steps)]
            taken = np.flatnonzero(mask_B_T[env, start : end + 1])
            if not mine and not len(taken):
                continue
            segments.append(
                Segment(
                    env=env,
                    episode=sightings[mine[0]].episode if mine else None,
                    start=start + int(taken[0]) if len(taken) else end + 1,
                    end=end,
                    terminated=finished and bool(terminated_B_T[env, end]),
                    finished=finished,
                    sightings=tuple(sightings[n] for n in mine),
                    frames=frames_N[mine],
                )
            )
    return segments


def _inside(sighting: Sighting) -> int:
    """A step of the rollout at or after which the sighting's episode goes on: its own, or the one after a first."""
    return sighting.t + 1 if sighting.first else sighting.t
