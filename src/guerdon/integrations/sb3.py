"""A reward model as a `VecEnvWrapper` of Stable-Baselines3.

The model's reward replaces the environment's (`env_reward_weight` adds it), and the environment's own stays in
`infos[i]["env_reward"]`: put `Monitor` under this wrapper, and it logs true returns. Put `VecNormalize` above it. A
reward that cannot be measured is tried again, and then raises `RewardFailure`; `learn(..., reset_num_timesteps=False)`
then begins new episodes.

    drawn = {"render_mode": "rgb_array"}
    venv = make_vec_env("Reacher-v5", n_envs=8, wrapper_class=KeepTerminalFrame, env_kwargs=drawn)
    venv = RewardModelVecEnv(venv, model, reward_mode="per_step", shaping="relative", gamma=0.99)
    PPO("MlpPolicy", venv).learn(100_000)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from guerdon.integrations.step_rewards import CopyRewards, Frames, refuse_relabelling
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
        env_reward_weight: weight of the reward of `venv`, which is added.
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
        self.rewards = CopyRewards(model, frames, self._draw, num_envs=venv.num_envs, **rewards)
        self._env_weight = env_reward_weight

    def reset(self) -> Any:
        """Begin an episode in every copy."""
        observations = self.venv.reset()
        self.rewards.begin_with(np.ones(self.num_envs, dtype=np.bool_), observations)
        return observations

    def step_wait(self) -> tuple[Any, FloatArray, BoolArray, list[dict[str, Any]]]:
        """What the actions led to.

        Raises:
            RewardFailure: rewards could not be measured; its `result` is this step's, with NaN for those rewards. An
                algorithm that was learning resets the copies when it learns again, because it has the observation
                before this step.
        """
        observations, native, dones, infos = self.venv.step_wait()
        infos = [{"env_reward": float(reward), **info} for info, reward in zip(infos, native, strict=True)]
        acted, done = np.ones(self.num_envs, dtype=np.bool_), np.asarray(dones, dtype=np.bool_)
        truncated = done & np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        ended = np.flatnonzero(done).tolist()
        ends = {copy: (infos[copy].get("terminal_observation"), infos[copy].get("terminal_frame")) for copy in ended}
        found = self.rewards.follow(
            observations, ends, acted=acted, terminated=done & ~truncated, truncated=truncated, begins=done
        )
        result = (observations, found.numbers(native, self._env_weight).astype(np.float32), dones, infos)
        if found.reasons:
            _reset_before_learning()
        found.check("rewards of this step, by copy,", result)
        return result

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **named: Any) -> list[Any]:
        """Call a method of copies.

        Raises:
            ConfigError: it is `compute_reward`, which would give the environment's own rewards.
        """
        refuse_relabelling(method_name)
        found: list[Any] = self.venv.env_method(method_name, *args, indices=indices, **named)
        return found

    def _draw(self, copies: Sequence[int]) -> list[Any]:
        found: list[Any] = self.venv.env_method("render", indices=list(copies))
        return found


def _reset_before_learning() -> None:
    """Make the algorithm that called `step` reset the copies at its next `learn`, and end its last episode there.

    `learn(..., reset_num_timesteps=False)` would otherwise continue from the observation before this step. An
    environment has no reference to the algorithm of Stable-Baselines3, so it is found in the call stack.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, BaseAlgorithm) and caller.env is not None:
            caller.set_env(caller.env)
            if isinstance(buffer := getattr(caller, "replay_buffer", None), ReplayBuffer):
                _end_last_episode(buffer)
        frame = frame.f_back


def _end_last_episode(buffer: ReplayBuffer) -> None:
    """Keep a replay buffer from reading on beyond the last transition, as n-step returns do."""
    last = buffer.pos - 1
    if buffer.optimize_memory_usage:  # its next observation will be overwritten; Stable-Baselines3 does the same
        buffer.dones[last] = 1.0
    else:
        buffer.timeouts[last] = np.maximum(buffer.timeouts[last], 1.0 - buffer.dones[last])
