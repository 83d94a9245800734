"""Let a policy act: the arrays of what happened and the looks that were taken, rewards of models not yet known.

This module does not know reward models, advantages or updates.

    trace = roll_out(world, policy.actor(), observations, rng, steps=250, wants_row=None)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

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
        moments: (copy, step) to what `keep_moment` kept after the step.
    """

    observations: np.ndarray
    actions: FloatArray
    mask: BoolArray
    terminated: BoolArray
    truncated: BoolArray
    success: BoolArray
    success_known: BoolArray
    env_rewards: FloatArray
    finals: dict[tuple[int, int], np.ndarray]
    last_observations: np.ndarray
    sightings: list[Sighting]
    moments: dict[tuple[int, int], Any] = field(default_factory=dict)


Watcher = Callable[[np.ndarray, np.ndarray, Transition], None]


def roll_out(
    world: World,
    actor: Acts,
    observations_B: np.ndarray,
    rng: np.random.Generator,
    *,
    steps: int,
    wants_row: Callable[[int], bool] | None,
    watcher: Watcher | None = None,
    keep_moment: Callable[[int, int], Any] | None = None,
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
        wants_row: whether the moment after the k-th action of an episode is looked at; terminal and first moments
            always are. None looks at nothing.
        watcher: told (number of the action in its episode, actions, transition) of every step; a recorder. Needs
            `wants_row`.
        keep_moment: asked (copy, number of the action in its episode) at every look within an episode; what it
            answers, unless None, is kept as the moment after that step.
        first: looks already taken at the current moment, put in front.
        one_episode: mask whatever a copy does after its first episode's end (GRPO), and stop when all have ended.
    """
    arrays = _Arrays(world, observations_B, steps)
    sightings = list(first)
    over = np.zeros(world.num_envs, dtype=np.bool_)
    taken = steps
    for t in range(steps):
        action = actor.act(observations_B, rng)
        if wants_row is None:
            transition = world.step(action)
        else:
            rows, episodes = world.steps_in_episode + 1, world.episode_ids
            capture = np.array([wants_row(r) for r in rows.tolist()]) & ~over
            transition = world.step(action, capture=capture, capture_ends=True)
            sightings += _sightings(transition, t, rows, episodes, ~over, fresh=not one_episode)
            if keep_moment is not None:
                for i in np.flatnonzero(capture & ~transition.done):
                    kept = keep_moment(int(i), int(rows[i]))
                    if kept is not None:
                        arrays.moments[int(i), t] = kept
            if watcher is not None:
                watcher(rows, action, transition)
        arrays.put(t, observations_B, action, transition, over if one_episode else None)
        observations_B = transition.observations
        if one_episode:
            over |= transition.done
            if over.all():
                taken = t + 1
                break
    return arrays.trace(taken, observations_B, sightings)


class _Arrays:
    """The arrays of a trace, filled column by column."""

    def __init__(self, world: World, observations_B: np.ndarray, steps: int) -> None:
        b = world.num_envs
        self.observations = np.empty((b, steps, *observations_B.shape[1:]), dtype=observations_B.dtype)
        self.actions = np.empty((b, steps, *(world.action_space.shape or ())), dtype=np.float32)
        self.mask, self.terminated, self.truncated, self.success, self.success_known = (
            np.zeros((b, steps), dtype=np.bool_) for _ in range(5)
        )
        self.env_rewards = np.zeros((b, steps), dtype=np.float32)
        self.finals: dict[tuple[int, int], np.ndarray] = {}
        self.moments: dict[tuple[int, int], Any] = {}

    def put(
        self, t: int, observations_B: np.ndarray, action: np.ndarray, step: Transition, over_B: BoolArray | None
    ) -> None:
        """Column t; copies that are `over` leave no trace but what they saw and did."""
        self.observations[:, t], self.actions[:, t] = observations_B, action
        alive: BoolArray | Literal[True] = True if over_B is None else ~over_B
        self.mask[:, t] = step.mask & alive
        self.terminated[:, t] = step.terminated & alive
        self.truncated[:, t] = step.truncated & alive
        self.success[:, t] = step.success & alive
        self.success_known[:, t] = step.success_known & alive
        self.env_rewards[:, t] = step.rewards if over_B is None else np.where(alive, step.rewards, 0)
        done = step.done & alive
        if done.any():
            for i in np.flatnonzero(done):
                self.finals[int(i), t] = step.final_observations[i]

    def trace(self, taken: int, last_observations: np.ndarray, sightings: list[Sighting]) -> Trace:
        """The first `taken` columns."""
        return Trace(
            observations=self.observations[:, :taken],
            actions=self.actions[:, :taken],
            mask=self.mask[:, :taken],
            terminated=self.terminated[:, :taken],
            truncated=self.truncated[:, :taken],
            success=self.success[:, :taken],
            success_known=self.success_known[:, :taken],
            env_rewards=self.env_rewards[:, :taken],
            finals=self.finals,
            last_observations=last_observations,
            sightings=sightings,
            moments=self.moments,
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
        Sighting(i, t, False, bool(done[i]), int(episodes[i]), int(rows[i]), transition.success_of(i), look)
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
