"""Meta-World tasks (Yu et al. 2019, arXiv 1910.10897) as one Gymnasium vector environment.

N copies of one of the 50 tasks step together; a reset picks one of the task's goals by seed. Meta-World's own
reset simulates the arm back to its start (about as long as 40 steps); the state after it depends on the goal
alone, so it is computed once per goal and restored after that, to the same bits in everything that later steps
read. Steps are Meta-World's own code, except that actions reach the simulator, and positions are read from it, with
fewer detours, to the same bits.

    env = MetaWorldVectorEnv("window-close", num_envs=8)
    observations, _ = env.reset(seed=list(range(8)))
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np

from guerdon.compute.generators import small_seed
from guerdon.errors import ConfigError, did_you_mean, needs
from guerdon.types import BoolArray
from guerdon.worlds.camera import MuJoCoCamera, Snapshot, import_mujoco
from guerdon.worlds.gymnasium_env import PlainVectorEnv
from guerdon.worlds.mujoco_state import (
    SimulatorState,
    attributes_of,
    model_fields,
    restore,
    saved,
    set_attributes,
    set_model_fields,
)

TASK_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "assembly": "Pick up the ring by its handle and put it over the peg.",
        "basketball": "Put the basketball through the hoop.",
        "bin-picking": "Pick up the cube and move it into the other bin.",
        "box-close": "Pick up the lid and close the box with it.",
        "button-press": "Press the button on the front of the box.",
        "button-press-topdown": "Press the button down from above.",
        "button-press-topdown-wall": "Reach over the wall and press the button down from above.",
        "button-press-wall": "Reach around the wall and press the button on the front of the box.",
        "coffee-button": "Press the button on the coffee machine.",
        "coffee-pull": "Pull the mug away from the coffee machine.",
        "coffee-push": "Push the mug under the coffee machine.",
        "dial-turn": "Turn the dial half way round.",
        "disassemble": "Lift the ring off the peg.",
        "door-close": "Close the door.",
        "door-lock": "Lock the door by turning the lock clockwise.",
        "door-open": "Open the door.",
        "door-unlock": "Unlock the door by turning the lock counter-clockwise.",
        "drawer-close": "Close the drawer.",
        "drawer-open": "Open the drawer.",
        "faucet-close": "Close the faucet by turning its handle clockwise.",
        "faucet-open": "Open the faucet by turning its handle counter-clockwise.",
        "hammer": "Pick up the hammer and drive the nail into the wall.",
        "hand-insert": "Move the gripper into the hole.",
        "handle-press": "Press the handle down.",
        "handle-press-side": "Press the handle down from the side.",
        "handle-pull": "Pull the handle up.",
        "handle-pull-side": "Pull the handle up from the side.",
        "lever-pull": "Pull the lever up.",
        "peg-insert-side": "Pick up the peg and insert it sideways into the hole.",
        "peg-unplug-side": "Pull the peg sideways out of its hole.",
        "pick-out-of-hole": "Pick the puck out of the hole and bring it to the goal.",
        "pick-place": "Pick up the puck and place it at the goal.",
        "pick-place-wall": "Pick up the puck and place it at the goal behind the wall.",
        "plate-slide": "Slide the plate into the goal cabinet.",
        "plate-slide-back": "Slide the plate back out of the goal cabinet.",
        "plate-slide-back-side": "Slide the plate sideways out of the goal cabinet.",
        "plate-slide-side": "Slide the plate sideways into the goal cabinet.",
        "push": "Push the puck to the goal.",
        "push-back": "Pull the block back towards the robot to the goal.",
        "push-wall": "Push the puck around the wall to the goal.",
        "reach": "Move the gripper to the goal.",
        "reach-wall": "Move the gripper past the wall to the goal.",
        "shelf-place": "Pick up the block and place it on the shelf.",
        "soccer": "Kick the ball into the goal.",
        "stick-pull": "Pick up the stick, hook the thermos with it and pull it to the goal.",
        "stick-push": "Pick up the stick and push the thermos to the goal with it.",
        "sweep": "Sweep the block off the table.",
        "sweep-into": "Sweep the puck into the hole.",
        "window-close": "Close the window.",
        "window-open": "Open the window.",
    }
)
"""Each task in words, by its name without the version: our own, since Meta-World ships none. No two are equal."""
_DOWNWARDS = (1.0, 0.0, 1.0, 0.0)  # quaternion of the hand


@functools.lru_cache(maxsize=1)
def _compiled_model(path: str) -> Any:
    """The `mujoco.MjModel` of an XML file; never to be changed, only copied."""
    import mujoco

    return mujoco.MjModel.from_xml_path(path)


_GOALS_LOCK = threading.Lock()  # a class of Meta-World is changed meanwhile


@functools.cache
def _benchmark(name: str, goals_seed: int) -> tuple[type[Any], list[Any]]:
    """The environment class of a task and its 50 goals.

    Meta-World resets an environment to draw each goal. The simulated movement of the hand in these resets takes most of
    the time and decides nothing about the goals, so it is left out.
    """
    import metaworld

    cls = metaworld.env_dict.ALL_V3_ENVIRONMENTS[name]
    with _GOALS_LOCK:
        cls.do_simulation = lambda *_: None  # copies of guerdon have a method of their own (`_FastSteps`)
        try:
            benchmark = metaworld.MT1(name, seed=small_seed(goals_seed))
        finally:
            del cls.do_simulation
    return cls, benchmark.train_tasks


def metaworld_task(task: str) -> str:
    """The name of a task, without the version.

    Raises:
        ConfigError: there is none of this name.
    """
    name = task.removesuffix("-v3")
    if name not in TASK_TEXTS:
        raise ConfigError.about(
            "env.task", f": Meta-World has no task {task!r}{did_you_mean(name, TASK_TEXTS, most=3)}"
        )
    return name


class _FastSteps:
    """Mixed into a Meta-World environment: the same model, steps and observation at less cost.

    The model is compiled from XML once per process and copied. Places of named objects are windows into the memory of
    the simulator, found once. None of the 50 tasks overrides these methods; they define where their objects are.
    """

    fullpath: str
    width: int
    height: int
    action_scale: float
    mocap_low: np.ndarray
    mocap_high: np.ndarray
    data: Any
    _prev_obs: np.ndarray
    _partially_observable: bool
    _get_pos_objects: Callable[[], np.ndarray]
    _get_quat_objects: Callable[[], np.ndarray]
    _get_pos_goal: Callable[[], np.ndarray]
    _step_mujoco_simulation: Callable[[Any, int], None]

    def _initialize_simulation(self) -> tuple[Any, Any]:
        """An `MjModel` of its own, and its `MjData`; the rendering buffer as in `MujocoEnv`."""
        import mujoco

        model = copy.copy(_compiled_model(self.fullpath))
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        self._placed: dict[str, np.ndarray] = {}
        return model, mujoco.MjData(model)

    def _body(self, name: str) -> np.ndarray:
        """(3,) position of a body, which follows the simulator."""
        if name not in self._placed:
            self._placed[name] = self.data.body(name).xpos
        return self._placed[name]

    def _site(self, name: str) -> np.ndarray:
        """(3,) position of a site, which follows the simulator."""
        key = f"site {name}"
        if key not in self._placed:
            self._placed[key] = self.data.site(name).xpos
        return self._placed[key]

    @property
    def tcp_center(self) -> np.ndarray:
        """(3,) between the fingers."""
        middle: np.ndarray = (self._site("rightEndEffector") + self._site("leftEndEffector")) / 2.0
        return middle

    def _get_site_pos(self, site_name: str) -> np.ndarray:
        return self._site(site_name).copy()

    def _set_pos_site(self, name: str, pos: np.ndarray) -> None:
        self._site(name)[:] = pos[:3]

    def set_xyz_action(self, action: np.ndarray) -> None:
        """Move the mocap body, which the hand follows, by (3,) in [-1, 1] along each axis."""
        positions = self.data.mocap_pos
        positions += np.minimum(np.maximum(action, -1), 1) * self.action_scale
        first = positions[0]
        np.minimum(np.maximum(first, self.mocap_low, out=first), self.mocap_high, out=first)
        self.data.mocap_quat[:] = _DOWNWARDS

    def do_simulation(self, ctrl: Any, n_frames: int) -> None:
        """Steps of the simulator with one control of both fingers."""
        self._step_mujoco_simulation(ctrl, n_frames)

    def _get_curr_obs_combined_no_goal(self) -> np.ndarray:
        """(18,) hand, opening of the gripper, position and quaternion of one or two objects, zeros."""
        apart = self._body("rightclaw") - self._body("leftclaw")
        one = np.zeros(18)
        one[:3] = self._body("hand")
        one[3] = min(max(math.sqrt(apart.dot(apart)) / 0.1, 0.0), 1.0)
        positions = self._get_pos_objects()
        quaternions = self._get_quat_objects()
        for k in range(len(positions) // 3):
            one[4 + 7 * k : 7 + 7 * k] = positions[3 * k : 3 * k + 3]
            one[7 + 7 * k : 11 + 7 * k] = quaternions[4 * k : 4 * k + 4]
        return one

    def _get_obs(self) -> np.ndarray:
        """(39,) the row above now and one step ago, and the goal."""
        goal = self._get_pos_goal()
        current = self._get_curr_obs_combined_no_goal()
        observation = np.concatenate((current, self._prev_obs, np.zeros(3) if self._partially_observable else goal))
        self._prev_obs = current
        return observation


class MetaWorldVectorEnv(PlainVectorEnv):
    """N copies of a Meta-World v3 task with autoreset disabled.

    Rewards are Meta-World's dense ones, in [0, 10]; `info["success"]` is (N,) bool. No episode ends by itself:
    the time limit and what to do at success are the caller's.
    """

    proprioception = range(4)  # of an observation: the hand's position and the opening of the gripper

    def __init__(self, task: str, num_envs: int, *, goals_seed: int = 0) -> None:
        name = metaworld_task(task)
        import_mujoco()
        with needs(
            "env.type metaworld needs the package {name}: pip install 'guerdon[metaworld]'", ModuleNotFoundError
        ):
            cls, self._goals = _benchmark(f"{name}-v3", goals_seed)
        self.task_text = TASK_TEXTS[name]
        fast = type(cls.__name__, (_FastSteps, cls), {})
        self._envs = [fast() for _ in range(num_envs)]
        for env in self._envs:
            env.set_task(self._goals[0])
            env.max_path_length = 2**31
        self._memory: dict[int, SimulatorState] = {}
        self._pristine = model_fields(self._envs[0].model)
        space = self._envs[0].sawyer_observation_space  # that of the environment hides goals
        low = space.low.astype(np.float32)
        high = space.high.astype(np.float32)
        shown = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.declare(num_envs, shown, gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32))

    @property
    def simulation_model(self) -> Any:
        """The `mujoco.MjModel` that all copies share the structure of."""
        return self._envs[0].model

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, BoolArray, BoolArray, dict[str, Any]]:
        """One step of every copy.

        Args:
            actions: (N, 4) in [-1, 1]; Meta-World clips what lies outside.

        Returns:
            (N, 39) float32 observations, (N,) float32 dense rewards, two (N,) arrays of False, and info with
            `success` (N,) bool.
        """
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        success = np.zeros(self.num_envs, dtype=np.bool_)
        for i, env in enumerate(self._envs):
            observation, rewards[i], _, _, info = env.step(actions[i])
            self._observations[i] = observation
            success[i] = info["success"] > 0
        never = np.zeros(self.num_envs, dtype=np.bool_)
        return self._observations.copy(), rewards, never, never.copy(), {"success": success}

    def snapshot(self, index: int) -> Snapshot:
        """The placements of copy `index`, for a camera to draw later."""
        return MuJoCoCamera.snapshot(self._envs[index].data)

    def save_state(self, index: int) -> SimulatorState:
        """The state of copy `index`, for `load_state`."""
        env = self._envs[index]
        return saved(env.model, env.data, self._pristine, attributes_of(env), self._observations[index])

    def load_state(self, index: int, state: SimulatorState) -> None:
        """Bring copy `index` to a saved state, of this environment or of another one of the same task."""
        env = self._envs[index]
        restore(env.model, env.data, state, self._pristine)
        set_attributes(env, state.attributes)
        self._observations[index] = state.observation

    def close_extras(self, **kwargs: Any) -> None:
        """Close the copies."""
        for env in self._envs:
            env.close()

    def _begin(self, index: int, seed: int | None, options: dict[str, Any]) -> None:
        """The seed alone decides the goal; None draws one from the environment's own random numbers."""
        env = self._envs[index]
        rng = self.np_random if seed is None else np.random.default_rng(seed)
        goal = int(rng.integers(len(self._goals)))
        if goal not in self._memory:
            set_model_fields(env.model, self._pristine)
            env.set_task(self._goals[goal])
            self._observations[index] = env.reset()[0]
            env._did_see_sim_exception = False
            self._memory[goal] = self.save_state(index)
        self.load_state(index, self._memory[goal])
