"""Actors without training: Meta-World's scripted experts, uniform random actions, noise on another policy.

Every actor has `act(observations_B, rng)`.

    actor = ScriptedExpert("window-close")
    actions_B_A = actor.act(observations_B, rng)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch

from guerdon.errors import ConfigError
from guerdon.policies.robots.heads import Categorical
from guerdon.policies.robots.robot import RobotPolicy
from guerdon.settings.world import WorldSettings
from guerdon.worlds.camera import import_mujoco


class ScriptedExpert:
    """Meta-World's own scripted policy for a task.

    Args:
        task: the task's name, with or without `-v3`.
        noise: standard deviation of Gaussian noise added to every action.

    Attributes:
        intended_B_A: the last actions without the noise.
    """

    intended_B_A: np.ndarray

    def __init__(self, task: str, noise: float = 0.0) -> None:
        import_mujoco()
        from metaworld.policies import ENV_POLICY_MAP

        name = f"{task.removesuffix('-v3')}-v3"
        if name not in ENV_POLICY_MAP:
            raise ConfigError(f"no scripted expert for task {task!r}")
        self._policy = ENV_POLICY_MAP[name]()
        self._noise = noise

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, 4) actions in [-1, 1]."""
        with warnings.catch_warnings():  # its constants are what they are; the actions are clipped below
            warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high", category=UserWarning)
            actions = np.stack([self._policy.get_action(o.astype(np.float64)) for o in observations_B])
        self.intended_B_A = np.asarray(np.clip(actions, -1.0, 1.0), dtype=np.float32)
        if self._noise:
            actions = actions + self._noise * rng.standard_normal(actions.shape)
        return np.asarray(np.clip(actions, -1.0, 1.0), dtype=np.float32)


class FormulaExpert:
    """An expert whose actions are a formula of what it sees.

    Args:
        noise: standard deviation of Gaussian noise added to every action.

    Attributes:
        intended_B_A: the last actions without the noise.
    """

    intended_B_A: np.ndarray

    def __init__(self, noise: float = 0.0) -> None:
        self._noise = noise

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions in [-1, 1]."""
        self.intended_B_A = np.clip(self._formula(observations_B), -1.0, 1.0).astype(np.float32)
        noise = self._noise * rng.standard_normal(self.intended_B_A.shape)
        return np.asarray(np.clip(self.intended_B_A + noise, -1.0, 1.0), dtype=np.float32)

    def _formula(self, observations_B: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class MountainCarExpert(FormulaExpert):
    """Accelerates the car of MountainCarContinuous in the direction in which it moves, which adds the most energy."""

    def _formula(self, observations_B: np.ndarray) -> np.ndarray:
        return np.where(observations_B[:, 1:2] < 0, -1.0, 1.0)


class FetchExpert(FormulaExpert):
    """Brings the object of gymnasium-robotics' FetchPickAndPlace to its goal: above it, down, close, to the goal.

    It reads `desired_goal` (3) and the first columns of `observation`: the hand, the object, the object from the hand
    (3 each) and the two fingers. An action is 5 cm in each direction, and the fingers.
    """

    def _formula(self, observations_B: np.ndarray) -> np.ndarray:
        goal, seen = observations_B["desired_goal"], observations_B["observation"]
        thing, away, fingers = seen[:, 3:6], seen[:, 6:9], seen[:, 9:11]
        above = np.linalg.norm(away[:, :2], axis=1) < 0.01
        there = np.linalg.norm(away, axis=1) < 0.015
        held = there & (fingers.sum(axis=1) < 0.055)
        over = away + np.array([0.0, 0.0, 0.08])
        move = np.where(held[:, None], goal - thing, np.where(above[:, None], away, over)) / 0.05
        move[there & ~held] = 0.0
        return np.concatenate([move, np.where(there, -1.0, 1.0)[:, None]], axis=1)


StateExpert = ScriptedExpert | FormulaExpert


def expert_of(env: WorldSettings, noise: float = 0.0) -> StateExpert | None:
    """The expert of an `env` section's task that acts on its observations alone; None: there is none."""
    if env.type == "gymnasium" and env.task.startswith("MountainCarContinuous-"):
        return MountainCarExpert(noise)
    if env.type == "gymnasium" and "FetchPickAndPlace" in env.task:
        return FetchExpert(noise)
    return ScriptedExpert(env.task, noise=noise) if env.type == "metaworld" else None


class RandomActor:
    """Uniform actions that are held for a few steps, so that the arm really moves about.

    Args:
        low_A, high_A: bounds of each action.
        hold: steps that an action is kept.
    """

    def __init__(self, low_A: np.ndarray, high_A: np.ndarray, hold: int = 10) -> None:
        self._low, self._high, self._hold = low_A, high_A, hold
        self._held: np.ndarray | None = None
        self._age = 0

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions."""
        if self._held is None or len(self._held) != len(observations_B) or self._age >= self._hold:
            self._held = rng.uniform(self._low, self._high, (len(observations_B), *self._low.shape))
            self._age = 0
        self._age += 1
        return self._held.astype(np.float32)


class RandomChoices:
    """Uniform choices among the values of discrete actions that are allowed.

    Args:
        counts: values of each choice.
        allowed: (B, O) values that are allowed in observations; None: all.
    """

    def __init__(self, counts: tuple[int, ...], allowed: Callable[[np.ndarray], np.ndarray | None]) -> None:
        self._head, self._allowed = Categorical(counts), allowed

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions."""
        logits = np.zeros((len(observations_B), self._head.outputs))
        return self._head.act(logits, rng, False, self._allowed(observations_B)).values


class NoisyActor:
    """A policy with Gaussian noise on its most likely actions."""

    def __init__(self, policy: RobotPolicy, noise: float) -> None:
        self._actor, self._noise = policy.actor(), noise

    @torch.no_grad()
    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions."""
        mean = self._actor.act(observations_B, rng, greedy=True).values
        return np.asarray(mean + self._noise * rng.standard_normal(mean.shape, dtype=np.float32))
