"""A scripted expert that takes over where the policy makes no progress, in place of the person next to a robot.

Its reports are those of a person's interventions (`guerdon.worlds.interventions`).

    env = ScriptedInterventions(env, MountainCarExpert(), after=50, steps=20)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from guerdon.errors import ConfigError
from guerdon.generators import ACTING, generator
from guerdon.policies.experts import StateExpert, expert_of
from guerdon.settings.world import WorldSettings
from guerdon.types import BoolArray
from guerdon.worlds.interventions import NAMES
from guerdon.worlds.spaces import OpenWrapper


class ScriptedInterventions(OpenWrapper):
    """Copies whose actions an expert replaces for some steps, after steps without a new best reward of the episode.

    Its reports in `info` are those of a person's interventions. It depends on nothing but the steps of an episode, so
    that a run repeats and resumes to the same bytes.

    Args:
        env: autoreset disabled.
        expert: acts on what the environment itself shows.
        after: steps in a row without a reward above all earlier ones of the episode.
        steps: that the expert takes then.
    """

    repeats_interventions = True

    def __init__(self, env: VectorEnv, expert: StateExpert, *, after: int, steps: int) -> None:
        super().__init__(env)
        self._expert, self._after, self._for = expert, after, steps
        self._rng = generator(0, ACTING)  # of an expert without noise, which draws nothing
        self._best = np.full(env.num_envs, -np.inf)
        self._since, self._left = np.zeros((2, env.num_envs), np.int64)
        self._shown = np.zeros(0)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin episodes, those of `reset_mask` alone where it is given."""
        begun: BoolArray = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._best[begun], self._since[begun], self._left[begun] = -np.inf, 0, 0
        self._shown, info = self.env.reset(seed=seed, options=options)
        return self._shown, info

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, Any, Any, Any, dict[str, Any]]:
        """One step, with the expert's actions in copies where it has taken over."""
        helped = self._left > 0
        executed = actions.copy()
        if helped.any():
            executed[helped] = self._expert.act(self._shown[helped], self._rng)
        self._shown, rewards, terminated, truncated, info = self.env.step(executed)
        better = np.asarray(rewards) > self._best
        self._best = np.where(better, rewards, self._best)
        self._since = np.where(better | helped, 0, self._since + 1)
        self._left = np.where(self._since >= self._after, self._for, self._left - helped)
        reports = {NAMES["is_intervention"]: helped, NAMES["teleop_action"]: executed}
        return self._shown, rewards, terminated, truncated, {**info, **reports}


def scripted_interventions(settings: WorldSettings) -> Callable[[VectorEnv], VectorEnv] | None:
    """What puts the interventions of an `env` section around its copies; None: it has none.

    Raises:
        ConfigError: there is no scripted expert for the task.
    """
    after = settings.intervene_after
    if after is None:
        return None
    expert = None if settings.tasks_change else expert_of(settings)
    if expert is None:
        raise ConfigError(
            f"env.intervene_after: {', '.join(settings.task_names)} has no scripted expert; there are those of single "
            "Meta-World tasks and of MountainCarContinuous. Remove it, or let your environment report interventions "
            "of its own (docs/people.md)"
        )
    return lambda env: ScriptedInterventions(env, expert, after=after, steps=settings.intervene_steps)
