"""ManiSkill's own motion planning as an expert: demonstrations without any download.

Each episode is planned in a simulator of its own that starts from the same seed, by ManiSkill's solution for the task
(`mani_skill.examples.motionplanning.panda`), which moves the joints of a Panda arm. The copy then follows these joint
positions in its own control mode. docs/maniskill.md says how often that succeeds.

    expert = ManiSkillExpert(world.env)
    actions_B_A = expert.act(observations_B, rng)
"""

from __future__ import annotations

import contextlib
import io
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from guerdon.errors import ConfigError, MissingDependencyError, boundary
from guerdon.worlds.maniskill import ManiSkillVectorEnv

_TRIES = {  # steps for one planned position, where the bounds of an action do not reach it at once
    "pd_joint_pos": 1,
    "pd_joint_delta_pos": 2,
    "pd_joint_target_delta_pos": 2,
    "pd_ee_delta_pos": 4,
    "pd_ee_delta_pose": 4,
}


class ManiSkillExpert:
    """One planned episode per copy; make a new one, or call `restart`, where episodes begin.

    Args:
        env: the copies.
        noise: standard deviation of Gaussian noise added to every number of an action but the gripper's.

    Attributes:
        intended_B_A: the last actions without the noise.

    Raises:
        ConfigError: ManiSkill has no solution for the task, the robot or the control mode.
        MissingDependencyError: the planner does not work with what is installed.
    """

    intended_B_A: np.ndarray

    def __init__(self, env: ManiSkillVectorEnv, noise: float = 0.0) -> None:
        mode, robot = env.simulator(0).control_mode, env.simulator(0).agent.uid
        if not robot.startswith("panda") or mode not in _TRIES:
            raise ConfigError(
                f"collect.mixture: the expert moves a Panda arm in control_mode {', '.join(_TRIES)}; this is {robot} "
                f"in {mode}"
            )
        self._env, self._noise, self._mode = env, noise, mode
        self._solve = _solution(env.task)
        self._planner = env.make("pd_joint_pos")
        self.restart()

    def restart(self) -> None:
        """Episodes begin in all copies."""
        self._paths: list[_Path] = []

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions; the first call of an episode plans it."""
        if not self._paths:
            plans = [self._plan(int(seed)) for seed in self._env.seeds]
            self._paths = [_Path(self._env.simulator(i), plan, self._mode) for i, plan in enumerate(plans)]
        actions = np.stack([path.act() for path in self._paths])
        self.intended_B_A = actions.astype(np.float32)
        if self._noise:
            actions[:, :-1] += self._noise * rng.standard_normal(actions[:, :-1].shape)
        return actions.astype(np.float32)

    def _plan(self, seed: int) -> np.ndarray:
        """(T, 8) planned positions of the joints, and what the gripper does, of an episode with this seed."""
        written = _Written(self._planner)
        self._planner.reset(seed=seed, options={"reconfigure": True})
        with boundary(ConfigError, f"{self._env.task} cannot be planned"), contextlib.redirect_stdout(io.StringIO()):
            self._solve(written)
        still = np.append(self._planner.agent.robot.get_qpos()[0, :7].numpy(), 1.0)
        return np.array(written.actions or [still], dtype=np.float64)


class _Written(gymnasium.Wrapper):  # type: ignore[misc]
    """Writes down actions; the solution's own reset, without a seed, is left out."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.actions: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Nothing: the episode has begun."""
        return {}, {}

    def step(self, action: Any) -> Any:
        """One step of the planner's simulator."""
        self.actions.append(np.array(action, dtype=np.float64))
        return self.env.step(action)


class _Move(NamedTuple):
    """An action of the arm before it is clipped, and whether it has to be."""

    arm: np.ndarray
    far: bool


class _Path:
    """How far one copy has come on its planned positions."""

    def __init__(self, env: Any, targets_T_8: np.ndarray, mode: str) -> None:
        self._env, self._targets, self._mode = env, targets_T_8, mode
        self._arm = env.agent.controller.controllers["arm"]
        self._kinematics: Any = env.agent.robot.create_pinocchio_model() if "ee" in mode else None
        self._at = self._tried = 0

    def act(self) -> np.ndarray:
        """(A,) the next action; at the end of the path, to stay there."""
        target = self._targets[self._at]
        move = self._move(target[:7])
        self._tried += 1
        if (not move.far or self._tried >= _TRIES[self._mode]) and self._at < len(self._targets) - 1:
            self._at, self._tried = self._at + 1, 0
        return np.append(move.arm, target[7])

    def _move(self, target: np.ndarray) -> _Move:
        from mani_skill.trajectory.utils.actions import conversion

        if self._mode == "pd_joint_pos":
            return _Move(target, False)
        if self._mode == "pd_joint_delta_pos":
            arm = conversion.qpos_to_pd_joint_delta_pos(self._arm, target)
        elif self._mode == "pd_joint_target_delta_pos":
            arm = conversion.qpos_to_pd_joint_target_delta_pos(self._arm, target)
        else:
            arm = self._displacement(target, conversion)
        clipped = np.clip(arm, -1.0, 1.0)
        turn = np.linalg.norm(arm[3:]) if self._mode == "pd_ee_delta_pose" else 0.0
        if turn > 1:
            clipped[3:] = arm[3:] / turn
        return _Move(clipped, bool(np.abs(arm - clipped).max() > 1e-3))

    def _displacement(self, target: np.ndarray, conversion: Any) -> np.ndarray:
        """The action that moves the hand to where it is with these positions of the joints."""
        import sapien

        robot = self._env.agent.robot
        positions = robot.get_qpos()[0].numpy().astype(np.float64)
        positions[:7] = target
        self._kinematics.compute_forward_kinematics(positions)
        goal = robot.pose.sp * self._kinematics.get_link_pose(int(self._arm.ee_link.index))
        hand = self._arm.ee_link.pose.sp
        delta = sapien.Pose(goal.p - hand.p, (hand * goal.inv()).q)
        only_position = self._mode == "pd_ee_delta_pos"
        return np.asarray(conversion.delta_pose_to_pd_ee_delta(self._arm, delta, pos_only=only_position))


def _solution(task: str) -> Any:
    """ManiSkill's solution for a task."""
    if int(np.__version__.split(".")[0]) >= 2:
        raise MissingDependencyError(
            f"ManiSkill's motion planner (mplib 0.1.1) crashes with numpy {np.__version__}: pip install 'numpy<2'"
        )
    with boundary(MissingDependencyError, "ManiSkill's motion planning cannot be imported; make env-maniskill"):
        from mani_skill.examples.motionplanning.panda.run import MP_SOLUTIONS
    if task not in MP_SOLUTIONS:
        raise ConfigError(
            f"collect.mixture: ManiSkill has no motion planning for {task}; it has some for {', '.join(MP_SOLUTIONS)}"
        )
    return MP_SOLUTIONS[task]
