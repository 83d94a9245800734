"""LIBERO tasks as one Gymnasium vector environment, and the eye that draws their cameras.

Each copy simulates one task of a suite. A reset takes one of the task's initial states, places the scene as the
protocol says, and lets it settle; what that leads to is computed once per state and restored after that, to the same
bits in everything that later steps read. Steps are LIBERO's own code without its renderer: pictures are drawn later,
of the moments at which LIBERO itself samples its observations.

    env = LiberoVectorEnv([libero_task("libero_object", "0")] * 4)
    observations, _ = env.reset(seed=[0, 1, 2, 3])          # initial states 0 to 3
    eye = LiberoEye(env, ("agentview", "robot0_eye_in_hand"), (256, 256))
    frame = eye.render([eye.look(0)])[0]
"""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

from guerdon.compute.generators import small_seed
from guerdon.errors import MissingDependencyError, boundary
from guerdon.types import BoolArray, ByteArray
from guerdon.worlds.camera import MuJoCoCamera, Snapshot, check_camera
from guerdon.worlds.gymnasium_env import PlainVectorEnv
from guerdon.worlds.libero_files import INSTALL, LiberoTask, import_libero, init_states
from guerdon.worlds.mujoco_state import (
    SimulatorState,
    attributes_of,
    model_fields,
    restore,
    saved,
    set_attributes,
    set_model_fields,
)

_SCENE = "guerdon_scene"


class Settling(NamedTuple):
    """What happens between LIBERO's reset and the first observation of an episode.

    Attributes:
        steps: without motion of the arm, until objects have come to rest.
        open_gripper: the gripper opens meanwhile (-1); otherwise it gets no command (0).
        fixtures: LIBERO moves cabinets, stoves and racks by up to a centimetre at every reset, and initial states do
            not say where. `sequence`: the random numbers are seeded once, and initial state k has the fixtures of
            reset k+1 (OpenVLA's evaluation). `each`: every reset is seeded, with k added (LeRobot, RLinf).
        fixtures_seed: of those random numbers.
        resets_before: resets of a fresh environment before the first episode (LeRobot: one). LIBERO draws more random
            numbers with each, in tasks that begin with an open drawer or the like.
    """

    steps: int = 10
    open_gripper: bool = True
    fixtures: Literal["sequence", "each"] = "each"
    fixtures_seed: int = 1000
    resets_before: int = 1


@functools.lru_cache(maxsize=1)
def _compiled_model(xml: str) -> Any:
    """The `mujoco.MjModel` of a scene; never to be changed, only copied."""
    import mujoco

    return mujoco.MjModel.from_xml_string(xml)


class _NothingTwice:
    """Mixed into robosuite's simulation: what only positions and velocities decide is computed once per physics step.

    Between two physics steps robosuite asks twice for all derived quantities, and MuJoCo computes them a third time
    when it steps. Collisions, the largest part, are the same in all three; forces are not, since each solution begins
    from the last one. So these are solved three times as before, and every bit is the same.

    Attributes:
        in_step: robosuite is between physics steps, and nobody else changes the state.
        placed: positions and velocities are those that the derived quantities are of.
        lite: forces are solved once per physics step too, as robosuite 1.5 does by default.
    """

    model: Any
    data: Any
    in_step = placed = lite = False

    def forward(self) -> None:
        import mujoco

        model, data = self.model._model, self.data._data
        if not self.in_step:
            super().forward()  # type: ignore[misc]
        elif self.lite:
            if not self.placed:
                mujoco.mj_step1(model, data)
        else:
            stage = mujoco.mjtStage.mjSTAGE_VEL if self.placed else mujoco.mjtStage.mjSTAGE_NONE
            mujoco.mj_forwardSkip(model, data, stage, 0)
        self.placed = self.in_step

    def step(self, with_udd: bool = True) -> None:
        import mujoco

        if not self.placed:
            super().step(with_udd)  # type: ignore[misc]
            return
        mujoco.mj_step2(self.model._model, self.data._data)
        self.placed = False


class _SharedScene:
    """Mixed into a LIBERO environment: the scene is compiled once per process and copied."""

    model: Any
    sim: Any
    control_freq: int

    def _initialize_sim(self, xml_string: str | None = None) -> None:
        from robosuite.utils.binding_utils import MjSim

        compiled = _compiled_model(xml_string or self.model.get_xml())
        self.sim = type("_Sim", (_NothingTwice, MjSim), {})(copy.copy(compiled))
        self.sim.pristine = model_fields(compiled)
        self.sim.forward()
        self.initialize_time(self.control_freq)  # type: ignore[attr-defined]

    def step(self, action: np.ndarray) -> Any:
        self.sim.in_step, self.sim.placed = True, False
        return super().step(action)  # type: ignore[misc]

    def _post_action(self, action: np.ndarray) -> Any:
        self.sim.in_step = self.sim.placed = False
        return super()._post_action(action)  # type: ignore[misc]


class _Copy:
    """One simulated task, and what it remembers of its starts.

    Attributes:
        task: which.
        control: LIBERO's `ControlEnv`.
        env: the robosuite environment in it.
        model: its `mujoco.MjModel`.
        seen: LIBERO's observation after the last step.
    """

    def __init__(self, task: LiberoTask, settling: Settling) -> None:
        self.task, self._settling = task, settling
        self.states = init_states(task)
        self.control = _make(task)
        self.env = self.control.env
        self.model = self.env.sim.model._model
        self.data = self.env.sim.data._data
        self._openers = list(self.env.object_property_initializers)
        self._drawn: list[Any] = []  # `sequence`: numpy's random state before reset 1, 2, ...
        self.seen: dict[str, np.ndarray] = {}
        self._look_when_sampled()

    def begin(self, number: int) -> dict[str, np.ndarray]:
        """Place initial state `number` and let it settle; LIBERO's observation then."""
        outside = np.random.get_state()
        try:
            self._reset_scene(number)
        finally:
            np.random.set_state(outside)
        self.control.set_init_state(self.states[number])
        still = np.zeros(7)
        still[6] = -1.0 if self._settling.open_gripper else 0.0
        for _ in range(self._settling.steps):
            self.control.step(still)
        self.env.timestep = 0
        self.seen = self.env._get_observations()
        return self.seen

    def _reset_scene(self, number: int) -> None:
        """LIBERO's own reset, with the random numbers that the protocol has at this initial state."""
        if self._settling.fixtures == "each":
            np.random.seed(small_seed(self._settling.fixtures_seed + number))
            kept = self._settling.resets_before  # 0: RLinf makes a new environment for every episode
            self._reset_once(1 + kept + (number if kept else 0))
            return
        if not self._drawn:
            np.random.seed(small_seed(self._settling.fixtures_seed))
            self._drawn.append(np.random.get_state())
        while len(self._drawn) <= number:
            np.random.set_state(self._drawn[-1])
            self._reset_once(len(self._drawn) + self._settling.resets_before)
            self._drawn.append(np.random.get_state())
        np.random.set_state(self._drawn[number])
        self._reset_once(number + 1 + self._settling.resets_before)

    def _reset_once(self, resets: int) -> None:
        """The `resets`-th reset of a LIBERO environment; each full one appends its openers of drawers once more."""
        set_model_fields(self.model, self.env.sim.pristine)
        self.env.object_property_initializers = self._openers * (resets + 1)
        self.env.robots[0].gripper.current_action = np.zeros(self.env.robots[0].gripper.dof)
        self.control.reset()

    def _look_when_sampled(self) -> None:
        """Keep the placements of the scene whenever LIBERO samples its observations, which its pictures are part of."""
        from robosuite.utils.observables import Observable, sensor

        @sensor(modality="scene")  # type: ignore[untyped-decorator]
        def scene(_: Any) -> np.ndarray:
            return np.concatenate([MuJoCoCamera.snapshot(self.data), self.model.site_rgba.ravel()])

        kept = Observable(name=_SCENE, sensor=scene, sampling_rate=self.env.control_freq, active=False)
        self.env.add_observable(kept)

    @property
    def scene(self) -> Snapshot:
        """The placements at the last observation."""
        return np.asarray(self.env._observables[_SCENE]._current_observed_value)

    def in_python(self) -> dict[str, Any]:
        """Copies of what robosuite and LIBERO keep in Python between steps."""
        return {
            "parts": [attributes_of(part) for part in self._parts()],
            "lights": {name: dict(self._lights(name)) for name in self.env.visualization_sites_list},
            "seen": copy.deepcopy(self.seen),
        }

    def set_python(self, values: dict[str, Any]) -> None:
        """Return to what `in_python` kept."""
        for part, kept in zip(self._parts(), values["parts"], strict=True):
            set_attributes(part, kept)
        for name, lit in values["lights"].items():
            self._lights(name).update(lit)
        self.seen = copy.deepcopy(values["seen"])

    def _parts(self) -> list[Any]:
        """The objects of robosuite whose attributes change from step to step."""
        from robosuite.utils.buffers import Buffer

        env, robot = self.env, self.env.robots[0]
        buffers = [value for value in vars(robot).values() if isinstance(value, Buffer)]
        return [env, robot, robot.controller, robot.gripper, *buffers, *env._observables.values()]

    def _lights(self, name: str) -> dict[str, Any]:
        """Which sites of an object are shown, such as a burner that is on."""
        found: dict[str, Any] = self.env.get_object(name).object_properties["vis_site_names"]
        return found


def _make(task: LiberoTask) -> Any:
    """LIBERO's environment of a task without its renderer."""
    _, wrapper = import_libero()
    mapping = wrapper.TASK_MAPPING
    with boundary(MissingDependencyError, f"LIBERO's task {task.name} cannot be made; {INSTALL}"):
        problem = wrapper.BDDLUtils.get_problem_info(task.bddl)["problem_name"]
        own = mapping[problem]
        mapping[problem] = type(own.__name__, (_SharedScene, own), {})
        try:
            return wrapper.ControlEnv(
                bddl_file_name=task.bddl,
                use_camera_obs=False,
                has_offscreen_renderer=False,
                ignore_done=True,
                hard_reset=False,
            )
        finally:
            mapping[problem] = own


class LiberoVectorEnv(PlainVectorEnv):
    """Copies of LIBERO tasks with autoreset disabled.

    Rewards are LIBERO's: 1 at every step at which the goal holds, else 0; `info["success"]` is (N,) bool. No episode
    ends by itself. Actions are 7 numbers in [-1, 1]: displacement and rotation of the hand, and the gripper.

    Args:
        tasks: of each copy.
        settling: how episodes begin.
        gripper: `signed`: -1 opens, 1 closes, as LIBERO has it. `openvla`: the action is in [0, 1], above one half
            opens, below closes, as OpenVLA's and OpenVLA-OFT's policies give it.
        lite_physics: forces are solved once per physics step: faster, and not LIBERO's own bits.
        state: what a copy shows. `axis_angle`: position of the hand (3), its rotation as axis times angle (3), the
            fingers (2). `quaternion`: the rotation as x, y, z, w. `full`: `axis_angle`, then all positions and
            velocities of the simulator.
    """

    def __init__(
        self,
        tasks: Sequence[LiberoTask],
        *,
        settling: Settling | None = None,
        gripper: Literal["signed", "openvla"] = "signed",
        state: Literal["axis_angle", "quaternion", "full"] = "axis_angle",
        lite_physics: bool = False,
    ) -> None:
        self.task_texts = tuple(task.language for task in tasks)
        self.gripper, self._state = gripper, state
        self.proprioception = range(9 if state == "quaternion" else 8)  # of an observation
        self._copies = [_Copy(task, settling or Settling()) for task in tasks]
        for one in self._copies:
            one.env.sim.lite = lite_physics
        self._memory: dict[tuple[LiberoTask, int], SimulatorState] = {}
        size = max(len(self._shown(one, one.env._get_observations(force_update=True))) for one in self._copies)
        low = np.array([-1.0] * 6 + [0.0 if gripper == "openvla" else -1.0], dtype=np.float32)
        shown = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.declare(len(tasks), shown, gymnasium.spaces.Box(low, np.ones(7, np.float32), dtype=np.float32))

    def simulator(self, index: int) -> tuple[str, Any]:
        """The name of copy `index`'s task and its robosuite environment, for experts that look into it."""
        return self._copies[index].task.name, self._copies[index].env

    def model_of(self, index: int) -> tuple[LiberoTask, Any]:
        """The task of copy `index`, and its `mujoco.MjModel`; copies of one task have models of one structure."""
        return self._copies[index].task, self._copies[index].model

    def _begin(self, index: int, seed: int | None, options: dict[str, Any]) -> None:
        """The seed is the number of the initial state, modulo how many the task has; None draws one."""
        one = self._copies[index]
        number = (int(self.np_random.integers(2**31)) if seed is None else seed) % len(one.states)
        start = self._memory.get((one.task, number))
        if start is None:
            self._show(index, one.begin(number))
            self._memory[one.task, number] = self.save_state(index)
        else:
            self.load_state(index, start)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, BoolArray, BoolArray, dict[str, Any]]:
        """One step of every copy, a twentieth of a second.

        Args:
            actions: (N, 7); LIBERO clips what lies outside [-1, 1].

        Returns:
            (N, S) float32 observations, (N,) float32 rewards, two (N,) arrays of False, and info with `success` (N,)
            bool.
        """
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        success = np.zeros(self.num_envs, dtype=np.bool_)
        actions = np.array(actions, dtype=np.float64)
        if self.gripper == "openvla":
            actions[:, 6] = -np.sign(2 * actions[:, 6] - 1)
        for i, one in enumerate(self._copies):
            one.seen, rewards[i], success[i], _ = one.control.step(actions[i])
            self._show(i, one.seen)
        never = np.zeros(self.num_envs, dtype=np.bool_)
        return self._observations.copy(), rewards, never, never.copy(), {"success": success}

    def snapshot(self, index: int) -> Snapshot:
        """The placements of copy `index` at its last observation, for a camera to draw later."""
        return self._copies[index].scene

    def save_state(self, index: int) -> SimulatorState:
        """The state of copy `index`, for `load_state`."""
        one = self._copies[index]
        return saved(one.model, one.data, one.env.sim.pristine, one.in_python(), self._observations[index])

    def load_state(self, index: int, state: SimulatorState) -> None:
        """Bring copy `index` to a saved state, of this environment or of another one of the same task."""
        one = self._copies[index]
        restore(one.model, one.data, state, one.env.sim.pristine)
        one.set_python(state.attributes)
        self._observations[index] = state.observation

    def close_extras(self, **kwargs: Any) -> None:
        """Close the copies."""
        for one in self._copies:
            one.control.close()
        self._copies.clear()
        gc.collect()  # robosuite's objects refer to each other; a copy has 0.3 GB

    def _show(self, index: int, seen: dict[str, np.ndarray]) -> None:
        shown = self._shown(self._copies[index], seen)
        self._observations[index] = 0
        self._observations[index, : len(shown)] = shown

    def _shown(self, one: _Copy, seen: dict[str, np.ndarray]) -> np.ndarray:
        hand, rotation, fingers = (seen[f"robot0_{name}"] for name in ("eef_pos", "eef_quat", "gripper_qpos"))
        if self._state == "quaternion":
            return np.concatenate([hand, rotation, fingers])
        pose = np.concatenate([hand, axis_angle(rotation), fingers])
        return pose if self._state == "axis_angle" else np.concatenate([pose, one.data.qpos, one.data.qvel])


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """(3,) axis times angle of a rotation given as x, y, z, w; the angle is in [0, 2 pi], as in robosuite."""
    w = min(max(float(quaternion[3]), -1.0), 1.0)
    length = np.sqrt(1.0 - w * w)
    return np.zeros(3) if length < 1e-9 else np.asarray(quaternion[:3] * (2.0 * np.arccos(w) / length))


class _SceneCamera(MuJoCoCamera):
    """The cameras of one LIBERO scene. As in robosuite, visual meshes are drawn and collision meshes are not."""

    def __init__(self, model: Any, cameras: Sequence[str], size: tuple[int, int], fast: bool, mirror: bool) -> None:
        super().__init__(model, cameras[0], size, fast=fast)
        for camera in cameras[1:]:
            check_camera(model, camera)
        import mujoco

        self._option = mujoco.MjvOption()
        self._option.geomgroup[0] = 0
        self._mirror = mirror

    def draw(self, scene: Snapshot, camera: str) -> ByteArray:
        """(H, W, 3) uint8 of one look."""
        if self._renderer is None:
            self._renderer = self._start()
        lights = self.model.site_rgba
        kept = lights.copy()
        lights[...] = scene[-lights.size :].reshape(lights.shape)
        picture = self._draw(scene, camera)
        lights[...] = kept
        return picture[:, ::-1] if self._mirror else picture


class LiberoEye:
    """Looks by keeping placements; pictures of any of its cameras are drawn when they are needed.

    One renderer draws all copies of a task.

    Attributes:
        cameras: names; the first is drawn where none is named.
        size: (height, width) of the pictures.

    Args:
        env: what is looked at.
        cameras: of LIBERO, such as `agentview` and `robot0_eye_in_hand`.
        size: (height, width).
        fast: without shadows and multisampling, which LIBERO's own pictures have.
        mirror: left and right exchanged: LIBERO's pictures are upside down, and OpenVLA, LeRobot and RLinf turn them
            by half a turn, so their policies know mirrored scenes. They are upright either way.
    """

    def __init__(
        self,
        env: LiberoVectorEnv,
        cameras: Sequence[str] = ("agentview",),
        size: tuple[int, int] = (256, 256),
        *,
        fast: bool = True,
        mirror: bool = True,
    ) -> None:
        self._env, self.cameras, self.size = env, tuple(cameras), size
        self._scenes: dict[LiberoTask, _SceneCamera] = {}
        for task, model in map(env.model_of, range(env.num_envs)):
            if task not in self._scenes:
                self._scenes[task] = _SceneCamera(model, self.cameras, size, fast, mirror)

    def look(self, index: int) -> tuple[LiberoTask, Snapshot]:
        """What is needed to draw copy `index` as it is now."""
        return self._env.model_of(index)[0], self._env.snapshot(index)

    def render(self, looks: Sequence[tuple[LiberoTask, Snapshot]], camera: str | None = None) -> ByteArray:
        """(N, H, W, 3) uint8 of earlier looks, by one of the cameras."""
        with boundary(MissingDependencyError, "rendering failed; run `guerdon doctor`"):
            frames = [self._scenes[task].draw(scene, camera or self.cameras[0]) for task, scene in looks]
        return np.stack(frames) if frames else np.empty((0, *self.size, 3), np.uint8)

    def close(self) -> None:
        """Free the renderers."""
        for scene in self._scenes.values():
            scene.close()
