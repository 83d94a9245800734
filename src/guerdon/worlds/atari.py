"""Atari games as the literature plays them (Mnih et al. 2015; Machado et al. 2018, 1709.06009).

Pictures are those of Gymnasium's `AtariPreprocessing`: of every four frames the largest values of the last two, in
84 x 84 shades of gray, after up to 30 idle frames. A game that waits for FIRE gets it at its start and after each lost
life. A lost life is said in `info` under `LIFE_LOST`, and the game goes on.

    env = atari_game("ale_py:ALE/Breakout-v5", make, {})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import AtariPreprocessing

from guerdon.worlds.returned import LIFE_LOST

FRAME_SKIP = 4
_FIRE = 1  # its place among the actions of games that have it


def atari_game(
    env_id: str, make: Callable[[str, Mapping[str, Any]], gymnasium.Env], arguments: Mapping[str, Any]
) -> gymnasium.Env:
    """A game with its pictures prepared and lost lives in its infos.

    Args:
        env_id: of ALE, whatever frames it skips itself.
        make: makes the environment of an id with arguments.
        arguments: for it; `max_episode_steps` counts actions, of which each takes `FRAME_SKIP` frames.

    Raises:
        gymnasium.error.DependencyNotInstalled: OpenCV is missing.
    """
    of_frames = {key: value for key, value in arguments.items() if key != "max_episode_steps"}
    # the memory in place of pictures, which are taken where they are used
    game = make(env_id, {**of_frames, "frameskip": 1, "obs_type": "grayscale"})
    env = Lives(AtariPreprocessing(game, frame_skip=FRAME_SKIP))
    limit = arguments.get("max_episode_steps")
    return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)


class Lives(gymnasium.Wrapper, RecordConstructorArgs):  # type: ignore[misc]
    """Says where a life was lost and the game goes on, and presses FIRE where it waits for that.

    The reward of a step after which FIRE was pressed is that of both; what is shown is what follows FIRE, the start of
    the next life.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        meanings = env.unwrapped.get_action_meanings()
        self._fires = len(meanings) > _FIRE + 1 and meanings[_FIRE] == "FIRE"
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new game."""
        observation, info = self.env.reset(seed=seed, options=options)
        if self._fires:
            observation, _, terminated, truncated, info = self.env.step(_FIRE)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        self._lives = int(info["lives"])
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        before, self._lives = self._lives, int(info["lives"])
        over = terminated or truncated
        if over or self._lives >= before:
            return observation, reward, terminated, truncated, info
        if self._fires:
            observation, more, terminated, truncated, info = self.env.step(_FIRE)
            reward, self._lives = float(reward) + float(more), int(info["lives"])
        return observation, reward, terminated, truncated, {**info, LIFE_LOST: True}
