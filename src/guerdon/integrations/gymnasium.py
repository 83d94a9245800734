"""Reward models as wrappers of Gymnasium environments: `Wrapper` and `VectorWrapper`, in all autoreset modes.

The model's reward replaces the environment's (`env_reward_weight` adds it), and the environment's own stays in
`info["env_reward"]`. Success, ends of episodes and observations are left alone. A reward that cannot be measured is
tried again, and then raises `RewardFailure`: Gymnasium's `step` returns a number, and there is none.

    env = RewardModelWrapper(gymnasium.make("Reacher-v5", render_mode="rgb_array"), model,
                             reward_mode="per_step", shaping="relative")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import Autoreset

from guerdon.integrations.step_rewards import CopyFrames, Frames, StepRewards, checked_frame, frame_of
from guerdon.types import BoolArray, ByteArray, RewardModel
from guerdon.worlds.gymnasium_env import KeepTerminalFrame, RenderEye

__all__ = ["KeepTerminalFrame", "RewardModelVectorWrapper", "RewardModelWrapper"]


class RewardModelWrapper(gymnasium.Wrapper):  # type: ignore[misc]
    """An environment whose rewards come from a reward model.

    Args:
        env: `gymnasium.wrappers.Autoreset` may be among its wrappers.
        model: a reward model, or the keys of `reward.model`.
        frames: where the model's frames come from; None: `env.render()`.
        env_reward_weight: weight of the environment's own reward, which is added.
        **rewards: `task`, `tries`, `gamma` and keys of a reward source, see `StepRewards`.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        model: RewardModel | Mapping[str, Any],
        *,
        frames: Frames = None,
        env_reward_weight: float = 0.0,
        **rewards: Any,
    ) -> None:
        super().__init__(env)
        self.rewards = StepRewards(model, num_envs=1, **rewards)
        self._frames, self._env_weight = frames, env_reward_weight
        self._over = True
        layer = env
        while isinstance(layer, gymnasium.Wrapper) and not isinstance(layer, Autoreset):
            layer = layer.env
        self._autoreset = isinstance(layer, Autoreset)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._begin(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
            RewardFailure: the reward could not be measured; its `result` is this step's, with NaN for the reward.
            ResetNeeded: the episode is over.
        """
        if self._over and not self._autoreset:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before the next step()")
        observation, native, terminated, truncated, info = self.env.step(action)
        if self._over:  # Autoreset: this step was a reset
            self._begin(observation)
            return observation, 0.0, terminated, truncated, {**info, "env_reward": native}
        self._over = bool(terminated or truncated)
        acted, done = np.array([True]), np.array([self._over])
        seen = {0: self._see(observation)} if self.rewards.wanted(acted, done)[0] else {}
        ends = {"terminated": np.array([terminated]), "truncated": np.array([truncated])}
        found = self.rewards.step(seen, acted=acted, **ends)
        reward = float(found.numbers(np.array([native]), self._env_weight)[0])
        result = (observation, reward, terminated, truncated, {**info, "env_reward": native})
        found.check(f"the reward of step {self.rewards.rows[0]} of the episode", result)
        return result

    def _begin(self, observation: Any) -> None:
        self._over = False
        self.rewards.begin({0: self._see(observation) if self.rewards.first else None})

    def _see(self, observation: Any) -> ByteArray:
        if self._frames is not None:
            return frame_of(observation, self._frames)
        return checked_frame(self.env.render(), "env.render()")


class RewardModelVectorWrapper(gymnasium.vector.VectorWrapper):  # type: ignore[misc]
    """Copies of an environment whose rewards come from a reward model, which scores all of them in one batch.

    Terminal frames are scored once, as part of the episode that ended, whichever autoreset mode the environment has:
    `NEXT_STEP` (a copy's reset step earns 0 and nothing is scored), `SAME_STEP` (the terminal frame is in
    `infos["final_obs"]`; where frames are rendered, wrap each copy in `KeepTerminalFrame`), and `DISABLED` (copies
    begin anew by `reset` with `options["reset_mask"]`).

    Args:
        env: the copies.
        model: a reward model, or the keys of `reward.model`.
        frames: where the model's frames come from; None: the copies' `render()`.
        env_reward_weight: weight of the environment's own reward, which is added.
        **rewards: `task`, `tries`, `gamma` and keys of a reward source, see `StepRewards`.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        model: RewardModel | Mapping[str, Any],
        *,
        frames: Frames = None,
        env_reward_weight: float = 0.0,
        **rewards: Any,
    ) -> None:
        super().__init__(env)
        self.rewards = StepRewards(model, num_envs=env.num_envs, **rewards)
        self._copies = CopyFrames(frames, RenderEye(env.unwrapped, (0, 0)).look)
        self._env_weight = env_reward_weight
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._over = np.ones(env.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes: of all copies, or of those in `options["reset_mask"]`."""
        begins = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        observations, infos = self.env.reset(seed=seed, options=options)
        self._begin(begins, observations)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, BoolArray, BoolArray, dict[str, Any]]:
        """One step of all copies.

        Raises:
            RewardFailure: rewards could not be measured; its `result` is this step's, with NaN for those rewards.
        """
        observations, native, terminated, truncated, infos = self.env.step(actions)
        acted = ~self._over
        done = (terminated | truncated) & acted
        final = infos.get("final_obs") if self.mode is AutoresetMode.SAME_STEP else None
        kept = infos.get("final_info", {}).get("terminal_frame") if final is not None else None
        seen = {
            copy: self._copies.terminal(final[copy], None if kept is None else kept[copy])
            if final is not None and done[copy]
            else self._copies.now(copy, observations)
            for copy in np.flatnonzero(self.rewards.wanted(acted, done)).tolist()
        }
        found = self.rewards.step(seen, acted=acted, terminated=terminated, truncated=truncated)
        if self.mode is AutoresetMode.NEXT_STEP:
            self._begin(self._over, observations)
            self._over = done
        elif self.mode is AutoresetMode.SAME_STEP:
            self._begin(done, observations)
        else:
            self._over = self._over | done
        rewards = np.where(acted, found.numbers(native, self._env_weight), 0.0)
        result = (observations, rewards, terminated, truncated, {**infos, "env_reward": native})
        found.check("rewards of this step, by copy,", result)
        return result

    def _begin(self, begins_B: BoolArray, observations: Any) -> None:
        self._over = self._over & ~begins_B
        copies = np.flatnonzero(begins_B).tolist()
        first = self.rewards.first
        self.rewards.begin({copy: self._copies.now(copy, observations) if first else None for copy in copies})
