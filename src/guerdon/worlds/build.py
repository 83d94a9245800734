"""`build_world`: from the `env` section of a configuration to a `World`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from guerdon.config.registry import parameters_of
from guerdon.errors import ConfigError, MissingDependencyError
from guerdon.processes.progress import doing, log_once
from guerdon.settings.world import (
    GUARD,
    PROTOCOLS,
    WORLDS,
    GymnasiumSettings,
    LiberoSettings,
    ManiSkillSettings,
    MetaWorldSettings,
    OwnWorldSettings,
    WorldSettings,
)
from guerdon.types import BoolArray, ByteArray
from guerdon.worlds.camera import CameraPool, MuJoCoCamera, choose_headless_backend
from guerdon.worlds.eye import Eye
from guerdon.worlds.gymnasium_env import (
    PlainVectorEnv,
    RenderEye,
    SceneEye,
    gymnasium_errors,
    limited,
    make_gymnasium_env,
    merged_infos,
    named_copy,
    never_reports_success,
    stacked_moments,
)
from guerdon.worlds.libero import LiberoEye, LiberoVectorEnv, Settling
from guerdon.worlds.libero_files import libero_task, mujoco_changes
from guerdon.worlds.maniskill import ManiSkillEye, ManiSkillVectorEnv, check_maniskill_task, task_text
from guerdon.worlds.metaworld import MetaWorldVectorEnv, metaworld_task
from guerdon.worlds.processes import ProcessVectorEnv
from guerdon.worlds.resets import CopiesVectorEnv
from guerdon.worlds.returned import Declared, marks_of, with_marks
from guerdon.worlds.spaces import plain
from guerdon.worlds.starts import Curriculum, Playing, Rotation, Starts
from guerdon.worlds.success import SUCCESS_KEYS, own_readers, unreported
from guerdon.worlds.world import World

# ---------------------------------------------------------------------------------------------------------------------
# Copies of a world that change their task from episode to episode.
#
# A copy plays one of several single-task environments, chosen at each reset (`options["tasks"]`). They are made when
# they are needed and are kept: as many of a task as copies have played it at once.
#
#     env = TaskPool(lambda task: make_parts(settings_of[task], 1, seed), count=3, num_envs=8)
#     env.reset(seed=seeds, options={"reset_mask": mask, "tasks": tasks})
# ---------------------------------------------------------------------------------------------------------------------


class _Slot(NamedTuple):
    """An environment of one copy, and what draws it."""

    env: VectorEnv
    eye: Eye
    task: int
    declared: Declared


def _slot(env: VectorEnv, eye: Eye, task: int) -> _Slot:
    return _Slot(env, eye, task, Declared(env.single_observation_space, ""))


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
            self._free[task].append(_slot(env, eye, task))
            texts.append(words if isinstance(words, str) else words[0])
        first = [slots[0] for slots in self._free]
        self.all_texts = tuple(texts)
        self.task_texts = (texts[0],) * num_envs
        if any(one.env.single_observation_space.shape in (None, ()) for one in first):
            raise ConfigError.about(
                "env.task_ids", "needs tasks whose observations are one array of numbers, without keys"
            )
        self._own = [one.env.single_observation_space.shape[0] for one in first]
        self._size = max(self._own)
        actions = first[0].env.single_action_space
        for one in first:
            if one.env.single_action_space != actions:
                raise ConfigError.about("env.task_ids", f": {texts[one.task]!r} takes other actions than {texts[0]!r}")
        shape = (self._size + (count if one_hot else 0),)
        self.declare(num_envs, gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32), actions)
        self.proprioception = getattr(first[0].env, "proprioception", None)
        self.unlimited = any(getattr(one.env, "unlimited", False) for one in first)
        self._slots: list[_Slot | None] = [None] * num_envs
        self._marks: dict[int, dict[str, Any]] = {}  # of the observations of the last reset, by copy
        self.eye = PoolEye(self, [one.eye for one in first])

    def slot(self, index: int) -> _Slot:
        """What copy `index` plays."""
        found = self._slots[index]
        assert found is not None, "a copy has no task before its first reset"
        return found

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes; the info has nothing but marks (`worlds.returned`)."""
        self._marks.clear()
        observations, _ = super().reset(seed=seed, options=options)
        return observations, merged_infos([self._marks.get(i, {}) for i in range(self.num_envs)], [1] * self.num_envs)

    def _begin(self, index: int, seed: int | None, options: dict[str, Any]) -> None:
        """`options["tasks"]` (N,): the number of each copy's task; by default that which it has played, or the first.

        Without a seed the environment draws its own.
        """
        now = self._slots[index]
        task = 0 if now is None else now.task
        if "tasks" in options:
            task = options["tasks"][index]
        slot = self._of_task(index, task)
        shown, info = slot.env.reset(seed=[seed])
        self._marks[index] = with_marks(marks_of(info), slot.declared(shown, 1)[1])
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
            infos.append(with_marks(info, slot.declared(shown, 1)[1]))
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
            self._free[task].append(_slot(env, eye, task))
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
            kept = [looks[n][1] for n in places]
            eye = self._eyes[task]
            pictures[places] = eye.render(kept) if camera is None else eye.render(kept, camera)
        return pictures

    def close(self) -> None:
        """Free the renderers."""
        for eye in self._eyes:
            eye.close()


# ---------------------------------------------------------------------------------------------------------------------


def check_success_reported(settings: WorldSettings, success_readers: Sequence[str] = ()) -> None:
    """Refuse what needs true success where the environment is known not to report it; nothing is made.

    Args:
        settings: the `env` section.
        success_readers: keys of the configuration, besides `env`'s own, that need true success.

    Raises:
        ConfigError: something needs it.
    """
    readers = [*own_readers(settings.native_reward, settings.end_on_success), *success_readers]
    readers += ["env.use_curriculum"] if settings.use_curriculum else []
    gymnasium_own = isinstance(settings, GymnasiumSettings) and never_reports_success(settings.task)
    silent = gymnasium_own and settings.success_key is None
    if readers and silent:
        raise ConfigError(unreported(f"env.task {settings.task}", readers, SUCCESS_KEYS), key="env.success_key")


def reports_success(settings: WorldSettings) -> bool | None:
    """Whether an environment reports true success; None where only its episodes can tell. Nothing is made.

    Args:
        settings: the `env` section.
    """
    if isinstance(settings, OwnWorldSettings):
        return None
    if not isinstance(settings, GymnasiumSettings) or settings.success_key is not None:
        return True
    return False if never_reports_success(settings.task) else None


@doing("building the world")
def build_world(
    settings: WorldSettings,
    *,
    seed: int,
    num_envs: int | None = None,
    group_size: int = 1,
    success_readers: Sequence[str] = (),
    tries: int = 0,
    adaptive: bool = False,
    shard: int = 0,
    shards: int = 1,
    wrap: Callable[[VectorEnv], VectorEnv] | None = None,
    keep_info: Sequence[str] = (),
) -> World:
    """Make the world that a configuration describes.

    Args:
        settings: the `env` section.
        seed: decides every reset.
        num_envs: overrides the section's number of copies.
        group_size: neighbouring copies that start every episode alike (GRPO).
        success_readers: keys of the configuration, besides `env`'s own, that need true success.
        tries: how often an episode that a broken simulator cut off is begun again.
        adaptive: the section's curriculum decides tasks and starts; False: tasks come in turn, as in evaluations.
        shard, shards: make this one of so many equal parts of the copies.
        wrap: changes the vector of copies.
        keep_info: see `World`.

    Raises:
        ConfigError: an unknown task, camera or environment id; or something needs true success, and the environment
            is known not to report it.
        MissingDependencyError: the simulator is not installed.
    """
    whole, settings = settings, settings.of_shard(shard, shards)
    copies = num_envs or settings.num_envs
    if settings.vectorization == "async":
        env = ProcessVectorEnv(settings, copies, seed, keep_info)
        eye: Eye = env.eye
        words: str | Sequence[str] = env.task_texts
    else:
        env, eye, words = make_parts(settings, copies, seed)
    try:
        check_success_reported(settings, success_readers)  # an id may be registered only since its module is imported
    except ConfigError:
        env.close()
        raise
    text = settings.task_text or words
    ordered = isinstance(settings, LiberoSettings) and settings.init_states == "ordered"
    starts = _starts(settings, text, env, seed=seed, ordered=ordered, adaptive=adaptive, part=(shard, shards))
    first, among = shard * copies, shards * copies  # of the copies of the run
    playing = None
    if starts is not None:
        playing = Playing(starts, copies, group_size, first=first, among=among)
    each = among
    if whole.task_ids is not None:
        each = among // len(whole.task_ids)
    if adaptive and settings.use_curriculum:
        success_readers = [*success_readers, "env.use_curriculum"]
    return World(
        env if wrap is None else wrap(env),
        [text] * env.num_envs if isinstance(text, str) else text,
        seed=seed,
        eye=eye,
        max_episode_steps=_step_limit(settings),
        guard=_guard(settings, env),
        end_on_success=settings.end_on_success,
        native_reward=settings.native_reward,
        success_keys=SUCCESS_KEYS if settings.success_key is None else (settings.success_key,),
        info_keys=getattr(settings, "info_keys", {}),
        success_readers=success_readers,
        group_size=group_size,
        pixels=settings.observation == "pixels",
        moments=getattr(settings, "frame_stack", 1),
        keep_info=keep_info,
        ordered=(first, each) if ordered else None,
        tries=tries,
        playing=playing,
    )


def check_tasks(settings: WorldSettings, *, drawn: bool = False) -> None:
    """Refuse tasks that the simulator does not have; nothing is made.

    Args:
        settings: the `env` section.
        drawn: the task cannot do without frames; a run without them only lacks its videos.

    Raises:
        ConfigError: with the nearest names.
        MissingDependencyError: the simulator is not installed, or its renderer and it is `drawn`.
    """
    for task in settings.task_names:
        if isinstance(settings, LiberoSettings):
            libero_task(settings.task_suite_name, task)
        elif isinstance(settings, ManiSkillSettings):
            check_maniskill_task(task)
        elif isinstance(settings, MetaWorldSettings):
            metaworld_task(task)
        elif isinstance(settings, GymnasiumSettings) and ":" not in task:  # a module registers the others
            with gymnasium_errors(ConfigError, f"env.task {task!r} could not be found", key="env.task"):
                entry_point = str(gymnasium.spec(task).entry_point)
            classic = entry_point.startswith("gymnasium.envs.classic_control.")
            if drawn and classic and find_spec("pygame") is None:
                raise MissingDependencyError(f"env.task {task} needs pygame to draw: pip install 'guerdon[gymnasium]'")


def first_world(settings: WorldSettings, success_readers: Sequence[str] = (), keep_info: Sequence[str] = ()) -> World:
    """As few copies of the world of a configuration as show what its start would refuse; the caller closes them.

    Of LIBERO and ManiSkill, whose scenes take many seconds to load, that is the first task.

    Raises:
        ConfigError, MissingDependencyError: as `build_world` does.
    """
    check_tasks(settings)
    if isinstance(settings, LiberoSettings | ManiSkillSettings):
        settings = settings.of_task(0)
    copies = settings.num_envs if isinstance(settings, OwnWorldSettings) else len(settings.task_names)
    return build_world(settings, seed=0, num_envs=copies, success_readers=success_readers, keep_info=keep_info)


def _step_limit(settings: WorldSettings) -> int | None:
    """After how many steps an episode ends; None where the environment alone decides."""
    if isinstance(settings, GymnasiumSettings | ManiSkillSettings):
        return None  # they end episodes at the limit themselves
    return settings.max_episode_steps


def _guard(settings: WorldSettings, env: VectorEnv) -> int | None:
    """Steps after which an episode is cut until one has ended by itself; None where there is a limit."""
    if settings.max_episode_steps is not None or not getattr(env, "unlimited", False):
        return None
    name = settings.type if isinstance(settings, OwnWorldSettings) else ", ".join(settings.task_names)
    if not settings.notes:  # which say it of ids
        log_once(
            f"[env] {name} shows no time limit of its own; until an episode has ended by itself, episodes are "
            f"cut after {GUARD:,} steps (env.max_episode_steps)"
        )
    return GUARD


def _starts(
    settings: WorldSettings,
    text: str | Sequence[str],
    env: Any,
    *,
    seed: int,
    ordered: bool,
    adaptive: bool,
    part: tuple[int, int],
) -> Starts | None:
    """What decides the tasks and starts of episodes; None: copies keep their tasks, and the seed decides."""
    first = text if isinstance(text, str) else text[0]
    texts = env.all_texts if settings.tasks_change else [first]
    if not (adaptive and settings.use_curriculum):
        return Rotation(texts, ordered=ordered) if settings.tasks_change else None
    return Curriculum(
        texts,
        names=settings.task_names,
        seed=seed,
        over=settings.curriculum_over,
        states=settings.curriculum_states,
        temp=settings.curriculum_temp,
        min_prob=settings.curriculum_min_prob,
        ordered=ordered,
        shard=part[0],
        shards=part[1],
    )


EnvParts = tuple[VectorEnv, Eye, str | Sequence[str]]
"""Copies of an environment, what draws them, and their task in words, or that of each copy."""


def make_parts(settings: WorldSettings, copies: int, seed: int) -> EnvParts:
    """Copies of the environment of an `env` section, in this process."""
    if settings.tasks_change:
        pool = TaskPool(
            lambda task: make_parts(settings.of_task(task), 1, seed),
            count=len(settings.task_names),
            num_envs=copies,
            one_hot=settings.one_hot,
        )
        return pool, pool.eye, pool.task_texts
    if isinstance(settings, OwnWorldSettings):
        return own_world(settings, copies, seed)
    parts: EnvParts = WORLDS.factory(settings.type)(settings, copies, seed)
    return parts


def metaworld(settings: MetaWorldSettings, copies: int, seed: int) -> EnvParts:
    """Copies of a Meta-World task."""
    env = MetaWorldVectorEnv(settings.task, copies)
    model, name, size = env.simulation_model, settings.camera, settings.frame_size
    workers = settings.render_workers
    camera = CameraPool(model, name, size, workers) if workers else MuJoCoCamera(model, name, size)
    return env, SceneEye(env, camera), env.task_text


def libero(settings: LiberoSettings, copies: int, seed: int) -> EnvParts:
    """Copies of LIBERO tasks."""
    names = [str(task) for task in settings.task_ids or ()] or [settings.task]
    if copies % len(names):
        raise ConfigError(
            f"{len(names)} env.task_ids cannot share {copies} copies equally; change env.num_envs", key="env.num_envs"
        )
    tasks = [libero_task(settings.task_suite_name, name) for name in names]
    if changes := mujoco_changes(importlib.metadata.version("mujoco")):
        log_once(f"WARNING: {changes}")
    protocol = PROTOCOLS[settings.protocol]
    settling = Settling(
        steps=settings.num_steps_wait,
        open_gripper=settings.reset_gripper_open,
        fixtures=protocol.fixtures,
        fixtures_seed=protocol.fixtures_seed,
        resets_before=protocol.resets_before,
    )
    env = LiberoVectorEnv(
        [task for task in tasks for _ in range(copies // len(tasks))],
        settling=settling,
        gripper=settings.gripper,
        state=settings.state,
        lite_physics=settings.lite_physics,
    )
    mirror = settings.image_flip == "height_width"
    eye = LiberoEye(env, settings.cameras, settings.frame_size, fast=settings.fast_rendering, mirror=mirror)
    return env, eye, env.task_texts


def maniskill(settings: ManiSkillSettings, copies: int, seed: int) -> EnvParts:
    """Copies of a ManiSkill task."""
    env = ManiSkillVectorEnv(
        settings.task,
        copies,
        control_mode=settings.control_mode,
        reward_mode="none" if settings.native_reward == "sparse" else settings.native_reward,
        max_episode_steps=settings.max_episode_steps,
        frame_size=settings.frame_size,
        kwargs=settings.kwargs,
    )
    return env, ManiSkillEye(env, settings.cameras), task_text(settings.task)


def gymnasium_id(settings: GymnasiumSettings, copies: int, seed: int) -> EnvParts:
    """Copies of a registered environment."""
    env = make_gymnasium_env(
        settings.task,
        copies,
        autoreset=settings.autoreset_mode,
        max_episode_steps=settings.max_episode_steps,
        kwargs=dict(settings.kwargs),
        frame_stack=settings.frame_stack,
        show_as=settings.show_as,
        atari=settings.atari,
    )
    env.proprioception = getattr(env.unwrapped.envs[0].unwrapped, "proprioception", None)
    return env, RenderEye(env, settings.frame_size), settings.task


def own_world(settings: OwnWorldSettings, copies: int, seed: int) -> EnvParts:
    """Copies of a user's own: a factory makes one `gymnasium.Env`, called for each copy, or the vector of them.

    A vector environment may have an `eye` of its own, which draws pictures later than it looks.
    """
    choose_headless_backend()
    offered = {"task": settings.task, "num_envs": copies, "seed": seed, "frame_size": settings.frame_size}
    asked = (parameters_of(WORLDS.factory(settings.type)) or {}).get("max_episode_steps")
    if settings.max_episode_steps or (asked is not None and asked.default is asked.empty):  # else its own default
        offered["max_episode_steps"] = settings.max_episode_steps or GUARD

    def make() -> Any:
        return WORLDS.build(settings.type, settings.params, (gymnasium.Env, VectorEnv), **offered)

    env = make()
    if isinstance(env, gymnasium.Env):
        made = [env, *(make() for _ in range(copies - 1))]
        proprioception = getattr(env.unwrapped, "proprioception", None)
        made = [stacked_moments(one, settings.frame_stack) for one in made]
        named = [named_copy(one, i, copies, settings.task or settings.type) for i, one in enumerate(made)]
        env = CopiesVectorEnv([partial(named.pop, 0)] * copies, autoreset_mode=AutoresetMode.DISABLED)
        env.proprioception = proprioception
    elif settings.frame_stack > 1:
        raise ConfigError.about(
            "env.frame_stack", f": env.type {settings.type} makes a vector of copies; stack moments in it"
        )
    env = plain(env, f"env.type {settings.type}", settings.show_as, settings.frame_stack)
    env.unlimited = not _limited(env)
    if env.num_envs != copies:
        raise ConfigError.about("env.type", f"{settings.type} made {env.num_envs} copies, not the {copies} of num_envs")
    return env, getattr(env, "eye", None) or RenderEye(env, settings.frame_size), settings.task


def _limited(env: VectorEnv) -> bool:
    """Whether an environment is known to end its episodes at a time limit, or is the only one that can."""
    mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
    first = next(iter(getattr(env.unwrapped, "envs", ())), None)
    of_copies = isinstance(first, gymnasium.Env) and limited(first)
    of_all = env.unwrapped.spec is not None and env.unwrapped.spec.max_episode_steps
    return bool(of_copies or of_all) or mode is not AutoresetMode.DISABLED
