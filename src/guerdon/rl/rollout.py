"""Let a policy act: the arrays of what happened and the looks that were taken, rewards of models not yet known.

This module does not know reward models, advantages or updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from guerdon.rl.sightings import Sighting
from guerdon.types import BoolArray, FloatArray
from guerdon.worlds.world import Transition, World


class Acts(Protocol):
    """Anything that turns observations into actions."""

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions."""
        ...


@dataclass(frozen=True, eq=False)
class Trace:
    """B copies over T steps, before any reward model has spoken. Shapes as in `types.Rollout`.

    Attributes:
        finals: (copy, step) to the observation after the step, where an episode ended.
        last_observations: (B, ...) what the copies show after the last step.
        sightings: every look taken, in order of time.
    """

    observations: np.ndarray
    actions: FloatArray
    mask: BoolArray
    terminated: BoolArray
    truncated: BoolArray
    success: BoolArray
    env_rewards: FloatArray
    finals: dict[tuple[int, int], np.ndarray]
    last_observations: np.ndarray
    sightings: list[Sighting]


Watcher = Callable[[np.ndarray, np.ndarray, Transition], None]


def roll_out(
    world: World,
    actor: Acts,
    observations_B: np.ndarray,
    rng: np.random.Generator,
    *,
    steps: int,
    wants_row: Callable[[int], bool],
    see_ends: bool,
    watcher: Watcher | None = None,
    first: Sequence[Sighting] = (),
    one_episode: bool = False,
) -> Trace:
    """Act for `steps` steps in every copy.

    Args:
        world: where.
        actor: what acts.
        observations_B: what the copies show now.
        rng: draws the actions.
        steps: T.
        wants_row: whether the moment after the k-th action of an episode is looked at.
        see_ends: look at terminal and first moments too.
        watcher: told (number of the action in its episode, actions, transition) of every step; a recorder.
        first: looks already taken at the current moment, put in front.
        one_episode: mask whatever a copy does after its first episode's end (GRPO), and stop when all have ended.
    """
    b = world.num_envs
    observations = np.empty((b, steps, *observations_B.shape[1:]), dtype=observations_B.dtype)
    actions = np.empty((b, steps, *(world.action_space.shape or ())), dtype=np.float32)
    flags = {k: np.zeros((b, steps), dtype=np.bool_) for k in ("mask", "terminated", "truncated", "success")}
    env_rewards = np.zeros((b, steps), dtype=np.float32)
    finals: dict[tuple[int, int], np.ndarray] = {}
    sightings = list(first)
    over = np.zeros(b, dtype=np.bool_)
    taken = steps
    for t in range(steps):
        action = actor.act(observations_B, rng)
        rows, episodes = world.steps_in_episode + 1, world.episode_ids
        capture = np.array([wants_row(int(r)) for r in rows]) & ~over
        transition = world.step(action, capture=capture, capture_ends=see_ends)
        observations[:, t], actions[:, t] = observations_B, action
        alive = transition.mask & ~over
        flags["mask"][:, t] = alive
        flags["terminated"][:, t] = transition.terminated & alive
        flags["truncated"][:, t] = transition.truncated & alive
        flags["success"][:, t] = transition.success & alive
        env_rewards[:, t] = np.where(alive, transition.rewards, 0)
        for i in np.flatnonzero(transition.done & alive):
            finals[int(i), t] = transition.final_observations[i]
        sightings += _sightings(transition, t, rows, episodes, ~over, fresh=not one_episode)
        if watcher is not None:
            watcher(rows, action, transition)
        observations_B = transition.observations
        if one_episode:
            over |= transition.done
            if over.all():
                taken = t + 1
                break
    return Trace(
        observations=observations[:, :taken],
        actions=actions[:, :taken],
        mask=flags["mask"][:, :taken],
        terminated=flags["terminated"][:, :taken],
        truncated=flags["truncated"][:, :taken],
        success=flags["success"][:, :taken],
        env_rewards=env_rewards[:, :taken],
        finals=finals,
        last_observations=observations_B,
        sightings=sightings,
    )


def first_sightings(world: World, looks: dict[int, Any]) -> list[Sighting]:
    """Looks at the very first moments of a run, as sightings before step 0."""
    episodes = world.episode_ids
    return [Sighting(i, -1, True, False, int(episodes[i]), 0, False, look) for i, look in looks.items()]


def _sightings(
    transition: Transition, t: int, rows: np.ndarray, episodes: np.ndarray, counted: BoolArray, *, fresh: bool
) -> list[Sighting]:
    done = transition.done
    after = [
        Sighting(i, t, False, bool(done[i]), int(episodes[i]), int(rows[i]), bool(transition.success[i]), look)
        for i, look in transition.looks.items()
        if counted[i]
    ]
    if not fresh:
        return after
    # A copy that resets in a step of its own (NEXT_STEP) already carries the number of its new episode.
    return after + [
        Sighting(i, t, True, False, int(episodes[i]) + int(done[i]), 0, False, look)
        for i, look in transition.first_looks.items()
        if counted[i]
    ]
