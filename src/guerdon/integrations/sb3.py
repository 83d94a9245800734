"""A reward model as a `VecEnvWrapper` of Stable-Baselines3.

The model's reward replaces the environment's (`env_reward_weight` adds it), and the environment's own stays in
`infos[i]["env_reward"]`: put `Monitor` under this wrapper, and it logs true returns. Put `VecNormalize` above it. A
reward that cannot be measured is tried again, and then raises `RewardFailure`.

    drawn = {"render_mode": "rgb_array"}
    venv = make_vec_env("Reacher-v5", n_envs=8, wrapper_class=KeepTerminalFrame, env_kwargs=drawn)
    venv = RewardModelVecEnv(venv, model, reward_mode="per_step", shaping="relative", gamma=0.99)
    PPO("MlpPolicy", venv).learn(100_000)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from guerdon.integrations.step_rewards import CopyFrames, Frames, StepRewards
from guerdon.types import BoolArray, FloatArray, RewardModel
from guerdon.worlds.gymnasium_env import KeepTerminalFrame

__all__ = ["KeepTerminalFrame", "RewardModelVecEnv"]


class RewardModelVecEnv(VecEnvWrapper):  # type: ignore[misc]
    """Copies of an environment whose rewards come from a reward model, which scores all of them in one batch.

    A `VecEnv` resets within the step. Terminal frames come from `infos[i]["terminal_observation"]`, or, where frames
    are rendered, from `KeepTerminalFrame` around each copy.

    Args:
        venv: the copies.
        model: a reward model, or the keys of `reward.model`.
        frames: where the model's frames come from; None: the copies' `render()`.
        env_reward_weight: weight of the environment's own reward, which is added.
        **rewards: `task`, `tries`, `gamma` and keys of a reward source, see `StepRewards`.
    """

    def __init__(
        self,
        venv: VecEnv,
        model: RewardModel | Mapping[str, Any],
        *,
        frames: Frames = None,
        env_reward_weight: float = 0.0,
        **rewards: Any,
    ) -> None:
        super().__init__(venv)
        self.rewards = StepRewards(model, num_envs=venv.num_envs, **rewards)
        self._copies = CopyFrames(frames, lambda copy: venv.env_method("render", indices=[copy])[0])
        self._env_weight = env_reward_weight

    def reset(self) -> Any:
        """Begin an episode in every copy."""
        observations = self.venv.reset()
        self._begin(range(self.num_envs), observations)
        return observations

    def step_wait(self) -> tuple[Any, FloatArray, BoolArray, list[dict[str, Any]]]:
        """What the actions led to.

        Raises:
            RewardFailure: rewards could not be measured; its `result` is this step's, with NaN for those rewards.
        """
        observations, native, dones, infos = self.venv.step_wait()
        infos = [{**info, "env_reward": float(reward)} for info, reward in zip(infos, native, strict=True)]
        acted, done = np.ones(self.num_envs, dtype=np.bool_), np.asarray(dones, dtype=np.bool_)
        truncated = done & np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        seen = {
            copy: self._copies.terminal(infos[copy]["terminal_observation"], infos[copy].get("terminal_frame"))
            if done[copy]
            else self._copies.now(copy, observations)
            for copy in np.flatnonzero(self.rewards.wanted(acted, done)).tolist()
        }
        found = self.rewards.step(seen, acted=acted, terminated=done & ~truncated, truncated=truncated)
        self._begin(np.flatnonzero(done).tolist(), observations)
        result = (observations, found.numbers(native, self._env_weight).astype(np.float32), dones, infos)
        found.check("rewards of this step, by copy,", result)
        return result

    def _begin(self, copies: Any, observations: Any) -> None:
        first = self.rewards.first
        self.rewards.begin({copy: self._copies.now(copy, observations) if first else None for copy in copies})
