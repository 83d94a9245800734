"""Let a policy act: the arrays of what happened and the looks that were taken, rewards of models not yet known.

This module does not know reward models, advantages or updates.

    trace = roll_out(world, policy.actor(), observations, rng, steps=250)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from guerdon.collect.observed_frames import ObservedFrames
from guerdon.collect.recorder import Recorder
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


def roll_out(
    world: World,
    actor: Acts,
    observations_B: np.ndarray,
    rng: np.random.Generator,
    *,
    steps: int,
    observed: ObservedFrames | None = None,
    recorder: Recorder | None = None,
    one_episode: bool = False,
) -> Trace:
    """Act for `steps` steps in every copy.

    Args:
        world: where.
        actor: what acts.
        observations_B: what the copies show now.
        rng: draws the actions.
        steps: T.
        observed: takes in what reward models look at.
        recorder: takes in every step, and the episodes that begin.
        one_episode: mask whatever a copy does after its first episode's end (GRPO), and stop when all have ended.
    """
    arrays = _Arrays(world, observations_B, steps)
    looking = observed is not None or recorder is not None
    over = np.zeros(world.num_envs, dtype=np.bool_)
    taken = steps
    for t in range(steps):
        action = actor.act(observations_B, rng)
        if not looking:
            transition = world.step(action)
        else:
            rows, numbers = world.steps_in_episode + 1, world.episode_ids
            capture = np.zeros(world.num_envs, dtype=np.bool_) if observed is None else observed.capture(rows)
            if recorder is not None:
                capture |= np.array([recorder.wants_row(r) for r in rows.tolist()])
            transition = world.step(action, capture=capture & ~over, capture_ends=True)
            if observed is not None:
                observed.add(t, rows, numbers, transition, over, one_episode=one_episode)
            if recorder is not None:
                recorder.watch(rows, action, transition)
                if not one_episode:  # what follows the one episode of a copy is not part of the run
                    for i, look in transition.first_looks.items():
                        recorder.begin(i, transition.observations[i], look)
        arrays.put(t, observations_B, action, transition, over if one_episode else None)
        observations_B = transition.observations
        if one_episode:
            over |= transition.done
            if over.all():
                taken = t + 1
                break
    return arrays.trace(taken, observations_B)


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

    def trace(self, taken: int, last_observations: np.ndarray) -> Trace:
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
        )
