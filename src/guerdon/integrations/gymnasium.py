"""Reward models as wrappers of Gymnasium environments: `Wrapper` and `VectorWrapper`, in all autoreset modes.

The model's reward replaces the environment's (`env_reward_weight` adds it), and the environment's own stays in
`info["env_reward"]`, also where such wrappers are stacked. Success, ends of episodes and observations are left alone. A
reward that cannot be measured is tried again, and then raises `RewardFailure`: Gymnasium's `step` returns a number, and
there is none.

    env = RewardModelWrapper(gymnasium.make("Reacher-v5", render_mode="rgb_array"), model,
                             reward_mode="per_step", shaping="relative")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import Autoreset

from guerdon.integrations.step_rewards import CopyRewards, Frames, refuse_relabelling
from guerdon.types import BoolArray, RewardModel
from guerdon.worlds.gymnasium_env import KeepTerminalFrame, RenderEye

__all__ = ["KeepTerminalFrame", "RewardModelVectorWrapper", "RewardModelWrapper"]


class _Shared(dict[str, Any]):
    """Arguments of a wrapper in its `spec`, which Gymnasium copies: a copy has the same model, not another one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return _Shared(self)


class RewardModelWrapper(gymnasium.Wrapper, RecordConstructorArgs):  # type: ignore[misc]
    """An environment whose rewards come from a reward model.

    `gymnasium.make(env.spec)` makes another environment with the same model.

    Args:
        env: `gymnasium.wrappers.Autoreset` may be among its wrappers.
        model: a reward model, or the keys of `reward.model`.
        frames: where the model's frames come from; None: `env.render()`.
        env_reward_weight: weight of the reward of `env`, which is added.
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
        RecordConstructorArgs.__init__(self)
        self._saved_kwargs: dict[str, Any] = _Shared(
            model=model, frames=frames, env_reward_weight=env_reward_weight, **rewards
        )
        super().__init__(env)
        self.rewards = CopyRewards(model, frames, self._draw, num_envs=1, **rewards)
        self._env_weight = env_reward_weight
        if frames is None:  # frames for the model are rendered, so human mode is not possible
            modes = [mode for mode in env.metadata.get("render_modes", ()) if mode in ("rgb_array", "rgb_array_list")]
            self.metadata = {**env.metadata, "render_modes": modes}
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
            return observation, 0.0, terminated, truncated, {"env_reward": native, **info}
        self._over = bool(terminated or truncated)
        ends = {"terminated": np.array([terminated]), "truncated": np.array([truncated])}
        here, stays = np.array([True]), np.array([False])
        found = self.rewards.follow([observation], {}, acted=here, begins=stays, **ends)
        reward = float(found.numbers(np.array([native]), self._env_weight)[0])
        result = (observation, reward, terminated, truncated, {"env_reward": native, **info})
        found.check(f"the reward of step {self.rewards.rows[0]} of the episode", result)
        return result

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of this wrapper or of what it wraps.

        Raises:
            ConfigError: it is `compute_reward`, which would give the environment's own rewards.
        """
        found = super().get_wrapper_attr(name)
        refuse_relabelling(name)
        return found

    def _begin(self, observation: Any) -> None:
        self._over = False
        self.rewards.begin_with(np.array([True]), [observation])

    def _draw(self, copies: Sequence[int]) -> list[Any]:
        return [self.env.render() for _ in copies]


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
        env_reward_weight: weight of the reward of `env`, which is added.
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
        looks = RenderEye(env.unwrapped, (0, 0)).looks
        self.rewards = CopyRewards(model, frames, looks, num_envs=env.num_envs, **rewards)
        self._env_weight = env_reward_weight
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._over = np.ones(env.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes: of all copies, or of those in `options["reset_mask"]`."""
        begins = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        observations, infos = self.env.reset(seed=seed, options=options)
        self.rewards.begin_with(begins, observations)
        self._over = self._over & ~begins
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, BoolArray, BoolArray, dict[str, Any]]:
        """One step of all copies.

        Raises:
            RewardFailure: rewards could not be measured; its `result` is this step's, with NaN for those rewards.
        """
        observations, native, terminated, truncated, infos = self.env.step(actions)
        acted = ~self._over
        done = (terminated | truncated) & acted
        begins = {AutoresetMode.NEXT_STEP: ~acted, AutoresetMode.SAME_STEP: done}.get(self.mode, acted & ~acted)
        final: Any = infos.get("final_obs") if self.mode is AutoresetMode.SAME_STEP else None
        ends = {}
        if final is not None:
            kept = infos.get("final_info", {}).get("terminal_frame")
            for copy in np.flatnonzero(done).tolist():
                ends[copy] = (final[copy], None if kept is None else kept[copy])
        found = self.rewards.follow(
            observations, ends, acted=acted, terminated=terminated, truncated=truncated, begins=begins
        )
        self._over = (self._over | done) & ~begins
        rewards = np.where(acted, found.numbers(native, self._env_weight), 0.0)
        own = {"env_reward": _own_rewards(infos, native), "_env_reward": np.ones(self.num_envs, dtype=np.bool_)}
        result = (observations, rewards, terminated, truncated, {**infos, **own})
        found.check("rewards of this step, by copy,", result)
        return result


def _own_rewards(infos: Mapping[str, Any], native_B: np.ndarray) -> np.ndarray:
    """(B,) the environment's own rewards: as reported by the wrappers below, else `native_B`."""
    own_B = np.asarray(native_B, dtype=np.float64)
    for told in (infos, infos.get("final_info", {})):  # final_info: copies that were reset within this step
        if "env_reward" in told:
            own_B = np.where(told["_env_reward"], told["env_reward"], own_B)
    return own_B
