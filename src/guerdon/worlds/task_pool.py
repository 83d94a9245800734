"""Copies of a world that change their task from episode to episode.

A copy plays one of several single-task environments, chosen at each reset (`options["tasks"]`). They are made when they
are needed and are kept: as many of a task as copies have played it at once.

    env = TaskPool(lambda task: make_parts(settings_of[task], 1, seed), count=3, num_envs=8)
    env.reset(seed=seeds, options={"reset_mask": mask, "tasks": tasks})
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from guerdon.errors import ConfigError
from guerdon.types import BoolArray, ByteArray
from guerdon.worlds.eye import Eye
from guerdon.worlds.gymnasium_env import PlainVectorEnv, merged_infos


class _Slot(NamedTuple):
    """An environment of one copy, and what draws it."""

    env: VectorEnv
    eye: Eye
    task: int


class TaskPool(PlainVectorEnv):
    """Copies of several tasks with the same actions, with autoreset disabled.

    An observation is the task's own, with zeros behind where another task's is longer, and behind that, with `one_hot`,
    which of the tasks it is, as in Meta-World's multi-task benchmarks.

    Attributes:
        task_texts: of each copy, in words.
        all_texts: the tasks, in words.
        proprioception: as the first task has it.
        eye: draws the copies.

    Args:
        make: an environment of one copy of a task, what draws it, and its task in words.
        count: tasks.
        num_envs: copies.
        one_hot: observations say which task it is.

    Raises:
        ConfigError: tasks take different actions.
    """

    def __init__(
        self,
        make: Callable[[int], tuple[VectorEnv, Eye, str | Sequence[str]]],
        *,
        count: int,
        num_envs: int,
        one_hot: bool = False,
    ) -> None:
        self._make, self._one_hot = make, one_hot
        self._free: list[list[_Slot]] = [[] for _ in range(count)]
        texts = []
        for task in range(count):  # one of each: what is wrong with a task is said at the start
            env, eye, words = make(task)
            self._free[task].append(_Slot(env, eye, task))
            texts.append(words if isinstance(words, str) else words[0])
        first = [slots[0] for slots in self._free]
        self.all_texts = tuple(texts)
        self.task_texts = (texts[0],) * num_envs
        if any(one.env.single_observation_space.shape in (None, ()) for one in first):
            raise ConfigError("env.task_ids needs tasks whose observations are one array of numbers, without keys")
        self._own = [one.env.single_observation_space.shape[0] for one in first]
        self._size = max(self._own)
        actions = first[0].env.single_action_space
        for one in first:
            if one.env.single_action_space != actions:
                raise ConfigError(f"env.task_ids: {texts[one.task]!r} takes other actions than {texts[0]!r}")
        shape = (self._size + (count if one_hot else 0),)
        self.declare(num_envs, gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32), actions)
        self.proprioception = getattr(first[0].env, "proprioception", None)
        self._slots: list[_Slot | None] = [None] * num_envs
        self.eye = PoolEye(self, [one.eye for one in first])

    def slot(self, index: int) -> _Slot:
        """What copy `index` plays."""
        found = self._slots[index]
        assert found is not None, "a copy has no task before its first reset"
        return found

    def _begin(self, index: int, seed: int | None, options: dict[str, Any]) -> None:
        """`options["tasks"]` (N,): the number of each copy's task; by default that which it has played, or the first.

        Without a seed the environment draws its own.
        """
        now = self._slots[index]
        task = options["tasks"][index] if "tasks" in options else 0 if now is None else now.task
        shown, _ = self._of_task(index, task).env.reset(seed=[seed])
        self._show(index, task, shown[0])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, BoolArray, BoolArray, dict[str, Any]]:
        """One step of every copy.

        Args:
            actions: (N, A).

        Returns:
            (N, S) observations, (N,) float32 rewards, (N,) bool terminated and truncated, and the infos of all.
        """
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=np.bool_)
        infos = []
        for i in range(self.num_envs):
            slot = self.slot(i)
            shown, paid, ended, cut, info = slot.env.step(actions[i : i + 1])
            self._show(i, slot.task, shown[0])
            rewards[i], terminated[i], truncated[i] = paid[0], ended[0], cut[0]
            infos.append(info)
        return self._observations.copy(), rewards, terminated, truncated, merged_infos(infos, [1] * self.num_envs)

    def save_state(self, index: int) -> Any:
        """The state of copy `index`, for `load_state`."""
        slot = self.slot(index)
        return slot.task, slot.env.save_state(0), self._observations[index].copy()

    def load_state(self, index: int, state: Any) -> None:
        """Bring copy `index` to a saved state."""
        task, own, observation = state
        self._of_task(index, task).env.load_state(0, own)
        self._observations[index] = observation

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments."""
        for slot in [*(one for slots in self._free for one in slots), *(one for one in self._slots if one)]:
            slot.env.close()

    def _of_task(self, index: int, task: int) -> _Slot:
        """Let copy `index` play a task."""
        now = self._slots[index]
        if now is not None and now.task == task:
            return now
        if now is not None:
            self._free[now.task].append(now)
        if not self._free[task]:
            env, eye, _ = self._make(task)
            self._free[task].append(_Slot(env, eye, task))
        slot = self._slots[index] = self._free[task].pop()
        return slot

    def _show(self, index: int, task: int, shown: np.ndarray) -> None:
        row = self._observations[index]
        row[:] = 0
        row[: self._own[task]] = shown
        if self._one_hot:
            row[self._size + task] = 1.0


class PoolEye:
    """Looks at the copies of a `TaskPool`. All pictures of a task are drawn by one renderer.

    Attributes:
        size: (height, width) of the pictures.
        cameras: names, of a world that has several.

    Args:
        env: what is looked at.
        eyes: one for each task.
    """

    def __init__(self, env: TaskPool, eyes: Sequence[Eye]) -> None:
        self._env, self._eyes = env, tuple(eyes)
        self.size = self._eyes[0].size
        self.cameras: tuple[str, ...] = tuple(getattr(self._eyes[0], "cameras", ()))

    def look(self, index: int) -> Any:
        """What is needed to draw copy `index` as it is now."""
        slot = self._env.slot(index)
        return slot.task, slot.eye.look(0)

    def render(self, looks: Sequence[Any], camera: str | None = None) -> ByteArray:
        """(N, H, W, 3) uint8 of earlier looks, by one of the cameras."""
        pictures = np.zeros((len(looks), *self.size, 3), dtype=np.uint8)
        for task in sorted({task for task, _ in looks}):
            places = [n for n, (one, _) in enumerate(looks) if one == task]
            kept, eye = [looks[n][1] for n in places], self._eyes[task]
            pictures[places] = eye.render(kept) if camera is None else eye.render(kept, camera)
        return pictures

    def close(self) -> None:
        """Free the renderers."""
        for eye in self._eyes:
            eye.close()
