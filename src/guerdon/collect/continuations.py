"""Continuation labels: the steps that a scripted expert needs from a moment to success.

The counterpart for robots of Monte-Carlo labels for steps of reasoning (Math-Shepherd, 2312.08935): a moment is as
good as what a capable continuation makes of it, whatever led there. So frames of failed episodes get true labels too.
It needs a simulator that can be put back to a moment, and an expert: Meta-World has both.

    left = Continuations(study.env, limit=200).steps_left(world.save_state(0))
"""

from __future__ import annotations

import numpy as np

from guerdon.collect.stepping import steps
from guerdon.errors import ConfigError
from guerdon.policies.robots.experts import ScriptedExpert
from guerdon.settings.world import MetaWorldSettings, WorldSettings
from guerdon.worlds.metaworld import MetaWorldVectorEnv
from guerdon.worlds.mujoco_state import SimulatorState
from guerdon.worlds.world import World

UNREACHED = -1  # the expert did not succeed within the limit


class Continuations:
    """A copy of the environment of its own, in which an expert tries from any moment.

    Args:
        settings: the `env` section.
        limit: steps after which the expert gives up.

    Raises:
        ConfigError: the environment cannot be put back to a moment, or has no expert.
    """

    def __init__(self, settings: WorldSettings, limit: int) -> None:
        if not isinstance(settings, MetaWorldSettings):
            raise ConfigError(
                f"continuations need Meta-World, where a scripted expert can go on from any moment; env.type is "
                f"{settings.type}",
                key="env.type",
            )
        if settings.task_ids is not None:
            raise ConfigError(
                "continuations need an expert for the task: set env.task instead of env.task_ids", key="env.task_ids"
            )
        self.limit = limit
        self._world = World(MetaWorldVectorEnv(settings.task, 1), [settings.task])
        self._world.reset()
        self._expert = ScriptedExpert(settings.task)
        self._rng = np.random.default_rng(0)  # the expert draws nothing

    def steps_left(self, state: SimulatorState) -> int:
        """Steps that the expert needs to the step that succeeds, 0 where the very next one does; `UNREACHED`."""
        self._world.load_state(0, state)
        expert = steps(self._world, lambda o: self._expert.act(o, self._rng), state.observation[None])
        for left, step in zip(range(self.limit), expert, strict=False):
            if step.transition.success[0]:
                return left
        return UNREACHED

    def close(self) -> None:
        """Close the copy."""
        self._world.close()
