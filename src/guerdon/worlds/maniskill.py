"""ManiSkill 3 tasks (Tao et al. 2024, arXiv 2410.00425) as one Gymnasium vector environment, and its cameras.

Each copy is one of ManiSkill's CPU simulations (PhysX) with its own scene. A reset builds the scene again: contacts
that PhysX remembers would otherwise reach from one episode into the next, and an episode could not be replayed from
its seed and its actions alone.

    env = ManiSkillVectorEnv("PickCube-v1", 4)
    observations, _ = env.reset(seed=[0, 1, 2, 3])
    frame = ManiSkillEye(env).look(0)["render_camera"]
"""

from __future__ import annotations

import functools
import gc
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import gymnasium
import numpy as np

from guerdon.errors import ConfigError, MissingDependencyError, boundary, did_you_mean, needs
from guerdon.types import BoolArray, ByteArray
from guerdon.worlds.gymnasium_env import PlainVectorEnv

INSTALL = "make env-maniskill (docs/maniskill.md)"
DRIVER = (
    "SAPIEN needs a Vulkan driver with descriptor indexing: Mesa 23 or newer, on Debian 12 from backports: make "
    "env-maniskill, or VK_ICD_FILENAMES with the path of its lvp_icd*.json (docs/maniskill.md)"
)
MESA = "mesa/usr/share/vulkan/icd.d"
"""Where `make env-maniskill` puts the description of a Vulkan driver, below the Python environment."""

TASK_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "PickCube-v1": "Pick up the red cube and hold it at the green goal.",
        "PushCube-v1": "Push the blue cube into the red and white target.",
        "PullCube-v1": "Pull the blue cube into the red and white target.",
        "StackCube-v1": "Pick up the red cube and stack it on the green cube.",
        "LiftPegUpright-v1": "Stand the peg upright on the table.",
        "PegInsertionSide-v1": "Pick up the peg and insert it sideways into the hole of the box.",
        "PlugCharger-v1": "Plug the charger into the receptacle.",
        "PokeCube-v1": "Poke the cube with the peg so that it reaches the target.",
        "PullCubeTool-v1": "Pick up the L-shaped tool and pull the cube closer with it.",
        "PlaceSphere-v1": "Pick up the sphere and place it into the bin.",
        "RollBall-v1": "Push the ball so that it rolls into the goal at the other end of the table.",
        "StackPyramid-v1": "Put the red cube next to the green cube and the blue cube on top of both.",
    }
)
"""Tasks in words, by id: our own, since ManiSkill ships none. Other tasks have the words of their id."""


def task_text(task: str) -> str:
    """The task in words."""
    plain = re.sub(r"-v\d+$", "", task)
    return TASK_TEXTS.get(task) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", plain).lower()


def choose_vulkan_driver() -> None:
    """Name the Vulkan driver that `make env-maniskill` unpacked, unless the user names one; before SAPIEN draws.

    Like MuJoCo's, the software rasteriser gets one thread per process (`LP_NUM_THREADS`).
    """
    os.environ.setdefault("LP_NUM_THREADS", "1")
    if os.environ.get("VK_ICD_FILENAMES") or os.environ.get("VK_DRIVER_FILES"):
        return
    found = sorted((Path(sys.prefix) / MESA).glob("lvp_icd*.json"))
    if found:
        os.environ["VK_ICD_FILENAMES"] = str(found[0])


@functools.cache
def import_maniskill() -> Mapping[str, Any]:
    """ManiSkill's tasks by id. It asks nothing on the terminal and downloads nothing.

    Raises:
        MissingDependencyError: ManiSkill, or what it imports, is missing.
    """
    choose_vulkan_driver()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SAPIEN uses its own Vulkan loader where the system has none
        with needs(f"env.type maniskill needs the package {{name}}: {INSTALL}", ModuleNotFoundError):
            from mani_skill import logger
            from mani_skill.envs import sapien_env
        with boundary(MissingDependencyError, f"ManiSkill cannot be imported; {INSTALL}"):
            from mani_skill.utils import download_asset, registration
    logger.setLevel("ERROR")  # some tasks warn of their own scene at every reset
    download_asset.prompt_yes_no = _needs_assets
    sapien_env.gc = _RareCollection()
    return dict(registration.REGISTERED_ENVS)


def check_maniskill_task(task: str) -> Any:
    """What ManiSkill registers of a task.

    Raises:
        ConfigError: there is none of this id.
        MissingDependencyError: see `import_maniskill`.
    """
    tasks = import_maniskill()
    if task not in tasks:
        hint = did_you_mean(task, tasks, most=3, cutoff=0.5)
        raise ConfigError.about("env.task", f": ManiSkill has no task {task!r}{hint}")
    return tasks[task]


class _RareCollection:
    """Takes the place of Python's `gc` in ManiSkill, which looks for garbage whenever a scene is built.

    That takes four times as long as building the scene. Here every 20th call does it.
    """

    def __init__(self) -> None:
        self._calls = 0

    def collect(self) -> int:
        """Count a call."""
        self._calls += 1
        return gc.collect() if self._calls % 20 == 0 else 0


def _needs_assets(question: str) -> NoReturn:
    """Takes the place of ManiSkill's question whether to download what a task or a robot needs."""
    said = question.split("Would you")[0].strip().rstrip(".")
    raise MissingDependencyError(
        f"{said}; guerdon downloads nothing: python -m mani_skill.utils.download_asset <name> does"
    )


class ManiSkillVectorEnv(PlainVectorEnv):
    """Copies of a ManiSkill task on the CPU, with autoreset disabled.

    Rewards are those of `reward_mode`; `info["success"]` is (N,) bool, where the task reports it. No episode ends by
    itself but at the time limit: ManiSkill ends episodes at success or failure, which tells a learned reward the truth.

    Attributes:
        task: its id.
        seeds: (N,) int64, what each copy was last reset with.
        proprioception: which numbers of an observation the robot measures of itself: positions and velocities of its
            joints, and the state of its controller.

    Args:
        task: an id that ManiSkill registers.
        num_envs: N.
        control_mode: what an action means; ManiSkill's name.
        reward_mode: `none` (all zero), `sparse`, `dense` or `normalized_dense`.
        max_episode_steps: time limit; None: the one that the task is registered with.
        frame_size: (height, width) of all cameras.
        kwargs: further arguments of the task.
    """

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        control_mode: str = "pd_joint_delta_pos",
        reward_mode: str = "normalized_dense",
        max_episode_steps: int | None = None,
        frame_size: tuple[int, int] = (128, 128),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        spec = check_maniskill_task(task)
        self.task = task
        self._limit = max_episode_steps or spec.max_episode_steps or 2**31
        self._arguments = {
            **(kwargs or {}),
            "obs_mode": "state",
            "reward_mode": reward_mode,
            "sim_backend": "physx_cpu",
            "render_backend": "cpu",
            "sensor_configs": {"height": frame_size[0], "width": frame_size[1]},
            "human_render_camera_configs": {"height": frame_size[0], "width": frame_size[1]},
        }
        self._envs = [self.make(control_mode) for _ in range(num_envs)]
        self.seeds = np.zeros(num_envs, dtype=np.int64)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        first = self._envs[0]
        if not isinstance(first.single_action_space, gymnasium.spaces.Box):
            raise ConfigError.about("env.task", f"{task}: actions of several robots at once are not supported")
        size = int(first.get_obs().shape[1])
        own = first._get_obs_agent()
        self.proprioception = range(sum(int(np.prod(part.shape[1:])) for part in _leaves(own)))
        shown = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.declare(num_envs, shown, first.single_action_space)

    def make(self, control_mode: str) -> Any:
        """A ManiSkill environment of this task, without its wrappers.

        Raises:
            ConfigError: the task does not take these arguments.
            MissingDependencyError: it needs files that are not there, or no Vulkan driver works.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return gymnasium.make(self.task, control_mode=control_mode, **self._arguments).unwrapped
            except (AssertionError, KeyError, NotImplementedError, TypeError) as error:
                raise ConfigError.about(
                    "env.task",
                    f"{self.task}: ManiSkill does not take control_mode {control_mode!r}, reward_mode "
                    f"{self._arguments['reward_mode']!r} or kwargs: {type(error).__name__}: {error}",
                ) from error
            except RuntimeError as error:
                raise MissingDependencyError(
                    f"ManiSkill's task {self.task} cannot be made: {error}; {DRIVER}"
                ) from error

    def simulator(self, index: int) -> Any:
        """ManiSkill's environment of copy `index`, for cameras and for experts that look into it."""
        return self._envs[index]

    def _begin(self, index: int, seed: int | None, options: dict[str, Any]) -> None:
        """The seed alone decides the start; None draws one from the environment's own random numbers."""
        self.seeds[index] = int(self.np_random.integers(2**31)) if seed is None else seed
        shown, _ = self._envs[index].reset(seed=int(self.seeds[index]), options={"reconfigure": True})
        self._observations[index] = shown[0].numpy()
        self._steps[index] = 0

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, BoolArray, BoolArray, dict[str, Any]]:
        """One step of every copy, in most tasks a twentieth of a second.

        Args:
            actions: (N, A); ManiSkill clips those of control modes with normalised actions, which are most.

        Returns:
            (N, S) float32 observations, (N,) float32 rewards, (N,) False, (N,) bool where the time limit is reached,
            and info with `success` (N,) bool, where the task reports it.
        """
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        success = np.zeros(self.num_envs, dtype=np.bool_)
        known = False
        for i, env in enumerate(self._envs):
            shown, reward, _, _, found = env.step(actions[i])
            self._observations[i] = shown[0].numpy()
            rewards[i] = float(reward)
            if "success" in found:
                known, success[i] = True, bool(found["success"])
        self._steps += 1
        never = np.zeros(self.num_envs, dtype=np.bool_)
        info = {"success": success} if known else {}
        return self._observations.copy(), rewards, never, self._steps >= self._limit, info

    def close_extras(self, **kwargs: Any) -> None:
        """Close the copies."""
        for env in self._envs:
            env.close()


def _leaves(tree: Any) -> list[Any]:
    """The tensors of a nested dictionary."""
    return [leaf for part in tree.values() for leaf in _leaves(part)] if isinstance(tree, Mapping) else [tree]


class ManiSkillEye:
    """Looks by drawing at once: what SAPIEN draws belongs to the scene as it stands.

    Attributes:
        cameras: names; the first is drawn where none is named.
        size: (height, width) of the pictures.

    Args:
        env: what is looked at.
        cameras: of ManiSkill: sensors (such as `base_camera`), which do not show what ManiSkill hides from them (the
            goal of PickCube, for example), and cameras for people (`render_camera`), which do.

    Raises:
        ConfigError: the task has no such camera.
    """

    def __init__(self, env: ManiSkillVectorEnv, cameras: Sequence[str] = ("render_camera",)) -> None:
        self._env, self.cameras = env, tuple(cameras)
        scene = env.simulator(0).scene
        known = [*scene.human_render_cameras, *scene.sensors]
        for camera in self.cameras:
            if camera not in known:
                raise ConfigError.about(
                    "env.cameras", f": {env.task} has no camera {camera!r}; it has {', '.join(known)}"
                )
        shaped = env._arguments["sensor_configs"]
        self.size = (int(shaped["height"]), int(shaped["width"]))

    def look(self, index: int) -> dict[str, ByteArray]:
        """(H, W, 3) uint8 pictures of copy `index` now, by camera."""
        with boundary(MissingDependencyError, f"rendering failed; {DRIVER}"):
            return {camera: self._draw(self._env.simulator(index), camera) for camera in self.cameras}

    def render(self, looks: Sequence[dict[str, ByteArray]], camera: str | None = None) -> ByteArray:
        """(N, H, W, 3) uint8 of earlier looks, by one of the cameras."""
        if not len(looks):
            return np.empty((0, *self.size, 3), np.uint8)
        return np.stack([look[camera or self.cameras[0]] for look in looks])

    def close(self) -> None:
        """Nothing to free: the copies own their renderers."""

    def _draw(self, env: Any, name: str) -> ByteArray:
        people = env.scene.human_render_cameras
        for hidden in env._hidden_objects:
            hidden.show_visual() if name in people else hidden.hide_visual()
        env.scene.update_render(update_sensors=name not in people, update_human_render_cameras=name in people)
        camera = people[name] if name in people else env.scene.sensors[name]
        camera.capture()
        picture = camera.get_obs(rgb=True, depth=False, position=False, segmentation=False)["rgb"]
        return np.asarray(picture[0, ..., :3].cpu().numpy(), dtype=np.uint8)
