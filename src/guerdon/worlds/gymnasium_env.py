"""Vector environments: any Gymnasium environment id, the base of guerdon's own, and the `Eye`s that draw one."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from guerdon.config.modules import users_modules
from guerdon.episodes.images import rgb_picture
from guerdon.errors import ConfigError, DataError, GuerdonError, MissingDependencyError, boundary
from guerdon.processes.progress import log_once
from guerdon.settings.gymnasium_ids import GAMES, time_limit
from guerdon.settings.world import GUARD
from guerdon.types import BoolArray, ByteArray
from guerdon.worlds.atari import atari_game
from guerdon.worlds.camera import choose_headless_backend, close_at_exit
from guerdon.worlds.eye import stacked
from guerdon.worlds.resets import CopiesVectorEnv, CopyEnv
from guerdon.worlds.spaces import ShowAs, is_text, plain

_NO_MODES = r".*not in the possible render_modes \(\[\]\)"  # Gymnasium's words where an environment names none


class PlainVectorEnv(gymnasium.vector.VectorEnv):  # type: ignore[misc]
    """Copies with autoreset disabled; an environment of guerdon's own says how one of them begins and steps."""

    def declare(self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        """What there is: copies, and the spaces of one of them."""
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED, "render_modes": ["rgb_array"]}
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = gymnasium.vector.utils.batch_space(observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(action_space, num_envs)
        self._observations = np.zeros((num_envs, *(observation_space.shape or ())), dtype=observation_space.dtype)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes.

        Args:
            seed: one per copy. A single number stands for seed + i in copy i, and seeds the environment's own random
                numbers. What it means, and what None does, is the environment's: see `_begin`.
            options: `reset_mask` (N,) bool picks the copies to reset (all by default).

        Returns:
            (N, S) observations and an empty info.
        """
        for index, own in self._asked(seed, options).items():
            self._begin(index, own, options or {})
        return self._observations.copy(), {}

    def _asked(self, seed: int | list[int | None] | None, options: dict[str, Any] | None) -> dict[int, int | None]:
        """The copies to reset, each with its seed."""
        mask: BoolArray = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        if isinstance(seed, int):
            self._np_random, self._np_random_seed = gymnasium.utils.seeding.np_random(seed)
            seed = [seed + i for i in range(self.num_envs)]
        return {i: None if seed is None else seed[i] for i in np.flatnonzero(mask).tolist()}

    def _begin(self, index: int, seed: int | None, options: dict[str, Any]) -> None:
        """Start an episode of one copy, and keep what it shows in `_observations`."""
        raise NotImplementedError


NAMED = "an id that a package registers is PACKAGE:ID, an environment class in a file is MODULE:CLASS"


@contextmanager
def gymnasium_errors(error: type[GuerdonError], what: str, **about: str) -> Iterator[None]:
    """`boundary`, with guerdon's extra in the message about a package that is not installed."""
    try:
        with boundary(error, what, **about):
            yield
    except GuerdonError as exc:
        missing = exc.__cause__ and exc.__cause__.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name in GAMES:
            said = f"{what}: the package {missing.name} is not installed: pip install 'guerdon[games]'"
            raise MissingDependencyError(said) from missing
        if isinstance(exc.__cause__, gymnasium.error.UnregisteredEnv):
            raise ConfigError(f"{exc} ({NAMED})", **about) from exc.__cause__
        if not isinstance(exc.__cause__, gymnasium.error.DependencyNotInstalled):
            raise
        said = re.sub(r"gymnasium\[(classic[-_]control|mujoco)\]", "guerdon[gymnasium]", str(exc))
        said = re.sub(r"gymnasium\[(box2d|other)\]", "guerdon[games]", said)
        said = said.replace("`pip install swig` followed by ", "")
        raise MissingDependencyError(said) from exc.__cause__


class _MoreInfo(gymnasium.Wrapper, RecordConstructorArgs):  # type: ignore[misc]
    """Adds to the info of a step."""

    def __init__(self, env: gymnasium.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, with more in its info."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, **self._more(terminated, truncated)}

    def _more(self, terminated: bool, truncated: bool) -> dict[str, Any]:
        raise NotImplementedError


class KeepTerminalFrame(_MoreInfo):
    """Draws the terminal moment into `info["terminal_frame"]`, for vector environments that reset within a step."""

    def _more(self, terminated: bool, truncated: bool) -> dict[str, Any]:
        return {"terminal_frame": rgb_picture(self.env.render())} if terminated or truncated else {}


_GOALS = ("MountainCarContinuous",)  # of Gymnasium's own environments: only the goal terminates an episode


class GoalReached(_MoreInfo):
    """Reports `info["success"]` for environments that terminate an episode only at the goal."""

    def _more(self, terminated: bool, truncated: bool) -> dict[str, Any]:
        return {"success": bool(terminated)}


_PARTICLES = ("LunarLander", "LunarLanderContinuous")  # of Gymnasium's own: with a render mode they simulate flames


class WithoutParticles(gymnasium.Wrapper, RecordConstructorArgs):  # type: ignore[misc]
    """Hides the render mode during a step, so that no particles are simulated, which only decorate pictures."""

    def __init__(self, env: gymnasium.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, as of an environment that does not draw."""
        mode, self.unwrapped.render_mode = self.unwrapped.render_mode, None
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        finally:
            self.unwrapped.render_mode = mode
        return observation, reward, terminated, truncated, info


def make_gymnasium_env(
    env_id: str,
    num_envs: int,
    *,
    autoreset: str = "disabled",
    max_episode_steps: int | None = None,
    kwargs: dict[str, Any] | None = None,
    frame_stack: int = 1,
    show_as: ShowAs | None = None,
    atari: bool = False,
) -> gymnasium.vector.VectorEnv:
    """N copies of a registered environment that can draw itself.

    Args:
        env_id: a Gymnasium id such as `Pendulum-v1`, or `module:Name` of a `gymnasium.Env` class.
        num_envs: N.
        autoreset: `disabled`, `next_step` or `same_step`, Gymnasium's three conventions.
        max_episode_steps: replaces the registered time limit; None: that one. Where it has none, the attribute
            `unlimited` says so, but for environments that reset themselves: `GUARD` steps.
        kwargs: passed to the environment.
        frame_stack: moments that are observed at once.
        show_as: what arrays are, see `plain`.
        atari: a game of ALE, prepared as in `guerdon.worlds.atari`.

    Raises:
        ConfigError: the id is not registered, or its observations or actions are of another kind than `plain` takes.
    """
    choose_headless_backend()

    def one(index: int) -> gymnasium.Env:
        extra = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
        arguments = {**extra, **(kwargs or {})}
        env = atari_game(env_id, _made, arguments) if atari else _made(env_id, arguments)
        if autoreset != "disabled" and not limited(env):
            env = gymnasium.wrappers.TimeLimit(env, GUARD)
        if _gymnasium_own(env_id) in _GOALS:
            env = GoalReached(env)
        if _gymnasium_own(env_id) in _PARTICLES:
            env = WithoutParticles(env)
        env = stacked_moments(env, frame_stack)
        env = KeepTerminalFrame(env) if autoreset == "same_step" and _draws(env) else env
        return named_copy(env, index, num_envs, env_id)

    mode = AutoresetMode[autoreset.upper()]
    with gymnasium_errors(ConfigError, f"env.task {env_id!r} could not be made", key="env.task"), users_modules():
        env = CopiesVectorEnv([partial(one, i) for i in range(num_envs)], autoreset_mode=mode)
        unlimited = not limited(env.envs[0])
        env = plain(env, f"env.task {env_id!r}", show_as, frame_stack)
        env.unlimited = unlimited
        return env


def limited(env: gymnasium.Env) -> bool:
    """Whether an environment is known to end its episodes: by a time limit, or by a count of its own."""
    own = env.spec is not None and "max_num_frames_per_episode" in env.spec.kwargs  # ALE
    counts = [env.get_wrapper_attr(name) for name in ("_max_episode_steps", "max_steps") if env.has_wrapper_attr(name)]
    return own or any(isinstance(count, int | np.integer) and count > 0 for count in counts)


def _made(env_id: str, arguments: Mapping[str, Any]) -> gymnasium.Env:
    named = _class_named(env_id) or env_id
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _NO_MODES)  # guerdon asks for the mode, not the user
            return gymnasium.make(named, render_mode="rgb_array", **arguments)
    except (AssertionError, TypeError, ValueError) as error:
        if not isinstance(error, AssertionError) and "render_mode" not in str(error):
            raise
        env = gymnasium.make(named, **arguments)
        log_once(f"[env] {env_id} does not take render_mode rgb_array: its frames may be missing")
        return env


def _class_named(env_id: str) -> EnvSpec | None:
    """The `gymnasium.Env` class that `module:Name` names where no such id is registered; None: it names none."""
    module, _, name = env_id.rpartition(":")
    if not module:
        return None
    with suppress(LookupError):
        time_limit(env_id)  # imports the module, which may register the id
        return None
    found = getattr(sys.modules.get(module), name, None)
    if not (isinstance(found, type) and issubclass(found, gymnasium.Env)):
        return None
    return EnvSpec(id=name, entry_point=env_id)


def stacked_moments(env: gymnasium.Env, count: int) -> gymnasium.Env:
    """The environment with so many moments in each observation; keys of text that cannot be stacked are left out."""
    if count == 1:
        return env
    if isinstance(space := env.observation_space, gymnasium.spaces.Dict):
        text = {k for k, one in space.items() if not isinstance(one, gymnasium.spaces.Text) and is_text(one)}
        if text:
            log_once(f"[env] moments are stacked without the text of {', '.join(sorted(text))}")
            env = gymnasium.wrappers.FilterObservation(env, [key for key in space if key not in text])
    kept = gymnasium.wrappers.TransformObservation(env, deepcopy, None)  # an environment may change its array later
    return gymnasium.wrappers.FrameStackObservation(kept, count)


def named_copy(env: gymnasium.Env, index: int, copies: int, name: str) -> CopyEnv:
    """A copy of an environment whose errors name it, and its number where there are several.

    Gymnasium's MuJoCo environments point their free camera at the middle of the scene at the moment of the first
    picture. Here it is the middle at rest, so that pictures do not depend on when drawing began, as after a resume.
    """
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None:
        import mujoco

        mujoco.mj_forward(renderer.model, rest := mujoco.MjData(renderer.model))
        middle = np.median(rest.geom_xpos, axis=0)
        renderer.default_cam_config = {"lookat": middle, **(renderer.default_cam_config or {})}
    return CopyEnv(env, index, name if copies == 1 else f"copy {index} of {name}")


def merged_infos(infos: Sequence[Mapping[str, np.ndarray]], shares: Sequence[int]) -> dict[str, Any]:
    """The infos of several vector environments as one; `_<key>` says which copies have a key.

    Args:
        infos: of each; empty where there is none.
        shares: copies of each.
    """
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for info in infos for name in info if not name.startswith("_")):
        first = next(np.asarray(info[name]) for info in infos if name in info)
        values, known = [], []
        for info, count in zip(infos, shares, strict=True):
            values.append(info.get(name, np.zeros((count, *first.shape[1:]), dtype=first.dtype)))
            known.append(np.broadcast_to(info.get(f"_{name}", True) if name in info else False, count))
        merged |= {name: np.concatenate(values), f"_{name}": np.concatenate(known)}
    return merged


def _gymnasium_own(env_id: str) -> str | None:
    """Name of an environment of Gymnasium itself, without version; None: another one, or not registered (yet)."""
    try:
        namespace, name, version = parse_env_id(env_id)
    except gymnasium.error.Error:
        return None
    newest = find_highest_version(namespace, name) if version is None else version
    spec = gymnasium.registry.get(get_env_id(namespace, name, newest))
    entry_point = None if spec is None or spec.additional_wrappers else spec.entry_point
    own = isinstance(entry_point, str) and entry_point.startswith("gymnasium.envs.")
    return str(name) if own else None


def never_reports_success(env_id: str) -> bool:
    """Whether an id is an environment of Gymnasium whose success is unknown.

    Only the registry is read, no environment is made. An id that is not registered (yet) may report success.
    """
    name = _gymnasium_own(env_id)
    return name is not None and name not in _GOALS


def _draws(env: gymnasium.Env) -> bool:
    """Whether `render` may give pictures."""
    modes = env.metadata.get("render_modes") or ["rgb_array"]
    able = env.render_mode is not None or "rgb_array" in modes
    return able and type(env.unwrapped).render is not gymnasium.Env.render


class RenderEye:
    """Looks by calling `render()` of the copies; the picture is drawn at once."""

    def __init__(self, env: gymnasium.vector.VectorEnv, size: tuple[int, int]) -> None:
        self._env = env
        self.size = size
        self._drawn = False

    @property
    def cannot_draw(self) -> bool:
        """Whether the environment has no `render` of its own, or one for a window alone."""
        env = self._env.unwrapped
        return isinstance(env, SyncVectorEnv) and not _draws(env.envs[0])

    def look(self, index: int) -> ByteArray | None:
        """The picture of copy `index` now, (H, W, 3) uint8; None where `render()` gives None."""
        return self.looks([index])[0]

    def looks(self, indices: Sequence[int]) -> list[ByteArray | None]:
        """Current pictures of copies, each (H, W, 3) uint8, or None where `render()` gives None.

        `SyncVectorEnv` and `AsyncVectorEnv` draw the given copies alone; others draw all of them in one `render()`.

        Raises:
            ConfigError: `render()` does not return one picture per copy, or something else.
            MissingDependencyError: it raises.
        """
        with gymnasium_errors(MissingDependencyError, "the environment cannot draw itself"):
            if isinstance(self._env.unwrapped, SyncVectorEnv):
                drawn = {index: self._env.unwrapped.envs[index].render() for index in indices}
            elif isinstance(self._env.unwrapped, AsyncVectorEnv):
                drawn = _drawn_in_processes(self._env.unwrapped, indices)
            else:
                pictures = self._env.render()
                count = None if pictures is None else len(pictures)
                if count not in (None, self._env.num_envs):
                    raise ConfigError(f"render() gives {count} pictures of {self._env.num_envs} copies")
                drawn = {index: None if pictures is None else pictures[index] for index in indices}
        try:
            shown = [None if drawn[index] is None else rgb_picture(drawn[index]) for index in indices]
        except DataError as error:
            raise ConfigError(f"render() of the environment: {error}") from error
        if not self._drawn:
            close_at_exit(self._env)
            self._drawn = True
        return shown

    def render(self, looks: Sequence[ByteArray | None]) -> ByteArray:
        """Stack pictures, resized to the declared size."""
        return stacked(looks, self.size)

    def close(self) -> None:
        """Nothing to free: the copies own their renderers."""


def _drawn_in_processes(env: AsyncVectorEnv, indices: Sequence[int]) -> dict[int, Any]:
    """Pictures of some copies; `AsyncVectorEnv.call` would draw all of them."""
    for index in indices:
        env.parent_pipes[index].send(("_call", ("render", (), {})))
    found = {index: env.parent_pipes[index].recv() for index in indices}
    env._raise_if_errors([found.get(index, (None, True))[1] for index in range(env.num_envs)])
    return {index: picture for index, (picture, _) in found.items()}


class SceneEye:
    """Looks by keeping a MuJoCo snapshot; the picture is drawn when it is needed."""

    def __init__(self, env: Any, camera: Any) -> None:
        self._env = env
        self._camera = camera
        self.size: tuple[int, int] = camera.size

    def look(self, index: int) -> Any:
        """The snapshot of copy `index` now."""
        return self._env.snapshot(index)

    def render(self, looks: Sequence[Any]) -> ByteArray:
        """(N, H, W, 3) uint8."""
        with boundary(MissingDependencyError, "rendering failed; run `guerdon doctor`"):
            return np.asarray(self._camera.render(looks))

    def close(self) -> None:
        """Free the renderer."""
        self._camera.close()
