"""How near is success? A scripted expert goes on from a moment, and the steps it needs are counted.

The robots' twin of Monte-Carlo labels for steps of reasoning (Math-Shepherd, 2312.08935): a moment is as good as what
a capable continuation makes of it, whoever led there. So frames of failed episodes get true labels too. It needs
a simulator that can be put back to a moment, and an expert: Meta-World has both. This module does not know reward
models.

    left = Continuations(study.env, limit=200).steps_left(world.env.moment(0))
"""

from __future__ import annotations

import numpy as np

from guerdon.errors import ConfigError
from guerdon.policies.experts import ScriptedExpert
from guerdon.settings.world import EnvSettings
from guerdon.worlds.metaworld import MetaWorldVectorEnv, Moment

UNREACHED = -1  # the expert did not succeed within the limit


class Continuations:
    """A copy of the environment of its own, in which an expert tries from any moment.

    Args:
        settings: the `env` section.
        limit: steps after which the expert gives up.

    Raises:
        ConfigError: the environment cannot be put back to a moment, or has no expert.
    """

    def __init__(self, settings: EnvSettings, limit: int) -> None:
        if settings.type != "metaworld":
            raise ConfigError(
                f"continuations need Meta-World, where a scripted expert can go on from any moment; env.type is "
                f"{settings.type}"
            )
        self.limit = limit
        self._env = MetaWorldVectorEnv(settings.task, 1, goals_seed=settings.goals_seed)
        self._expert = ScriptedExpert(settings.task)
        self._rng = np.random.default_rng(0)  # the expert draws nothing
        self._env.reset(seed=0)

    def steps_left(self, moment: Moment) -> int:
        """Steps that the expert needs to the step that succeeds, 0 where the very next one does; `UNREACHED`."""
        self._env.put(0, moment)
        observations = moment.observation[None]
        for step in range(self.limit):
            observations, _, _, _, info = self._env.step(self._expert.act(observations, self._rng))
            if info["success"][0]:
                return step
        return UNREACHED

    def close(self) -> None:
        """Close the copy."""
        self._env.close()
