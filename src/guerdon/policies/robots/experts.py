"""Actors without training: scripted experts, uniform random actions, noise on another policy.

Every actor has `act(observations_B, rng)`; `actor_maker` makes those of an entry of `collect.mixture`.

    actor = ScriptedExpert("window-close")
    actions_B_A = actor.act(observations_B, rng)
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from guerdon.errors import ConfigError, MissingDependencyError, boundary
from guerdon.policies.robots.heads import Categorical
from guerdon.policies.robots.robot import RobotPolicy
from guerdon.settings.collect import ActorShare
from guerdon.settings.world import WorldSettings
from guerdon.worlds.camera import import_mujoco
from guerdon.worlds.libero import LiberoVectorEnv
from guerdon.worlds.maniskill import ManiSkillVectorEnv
from guerdon.worlds.spaces import action_bounds, allowed_in, choices
from guerdon.worlds.world import World

# ---------------------------------------------------------------------------------------------------------------------
# ManiSkill's own motion planning as an expert: demonstrations without any download.
#
# Each episode is planned in a simulator of its own that starts from the same seed, by ManiSkill's solution for the
# task (`mani_skill.examples.motionplanning.panda`), which moves the joints of a Panda arm. The copy then follows
# these joint positions in its own control mode. docs/maniskill.md says how often that succeeds.
#
#     expert = ManiSkillExpert(world.env)
#     actions_B_A = expert.act(observations_B, rng)
# ---------------------------------------------------------------------------------------------------------------------


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
            raise ConfigError.about(
                "collect.mixture",
                f": the expert moves a Panda arm in control_mode {', '.join(_TRIES)}; this is {robot} in {mode}",
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
        raise ConfigError.about(
            "collect.mixture",
            f": ManiSkill has no motion planning for {task}; it has some for {', '.join(MP_SOLUTIONS)}",
        )
    return MP_SOLUTIONS[task]


# ---------------------------------------------------------------------------------------------------------------------
# A scripted pick-and-place for LIBERO tasks, with access to the simulator: demonstrations without any download.
#
# It knows where the object and its goal are, moves above the object, grasps it in the middle, carries it above the
# goal and lets it go. Made for the tasks of `libero_object`; docs/libero.md says how often it succeeds in which. It
# cannot grasp bowls and plates, which are wider than the gripper opens.
#
#     expert = LiberoExpert(world.env)
#     actions_B_A = expert.act(observations_B, rng)
# ---------------------------------------------------------------------------------------------------------------------


_REACH = 0.05  # m that a full action moves the goal of the hand by
_ABOVE = 0.14  # m above the object before and after grasping
_CLOSE, _OPEN = 18, 10  # steps to close and to open the gripper


class LiberoExpert:
    """One pick-and-place per copy; make a new one where episodes begin.

    Args:
        env: the copies.
        noise: standard deviation of Gaussian noise added to every action but the gripper's.

    Attributes:
        intended_B_A: the last actions without the noise.

    Raises:
        ConfigError: the goal of a task is not one object in or on something.
    """

    intended_B_A: np.ndarray

    def __init__(self, env: LiberoVectorEnv, noise: float = 0.0) -> None:
        self._env, self._noise = env, noise
        self._plans = [_PickAndPlace(*env.simulator(i)) for i in range(env.num_envs)]

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, 7) actions; the first three numbers of what the copies show are the positions of their hands."""
        actions = np.stack([plan.act(seen[:3]) for plan, seen in zip(self._plans, observations_B, strict=True)])
        if self._env.gripper == "openvla":
            actions[:, 6] = (1 - actions[:, 6]) / 2
        self.intended_B_A = actions.astype(np.float32)
        if self._noise:
            actions[:, :6] += self._noise * rng.standard_normal((len(actions), 6))
        return np.asarray(np.clip(actions, -1.0, 1.0), dtype=np.float32)


class _PickAndPlace:
    """The plan of one copy: waypoints for the hand, each with what the gripper does."""

    def __init__(self, name: str, env: Any) -> None:
        goals = env.parsed_problem["goal_state"]
        if len(goals) != 1 or len(goals[0]) != 3 or goals[0][1] not in env.objects_dict:
            raise ConfigError.about(
                "collect.mixture", f": {name} has no scripted expert: its goal is not one object in a place"
            )
        self._env, self._object, self._place = env, goals[0][1], goals[0][2]
        body = env.get_object(self._object)
        self._height = min(float(body.top_offset[-1]), 0.01)  # m above its middle where an object is grasped
        self._stage = self._waited = 0
        self._held = np.zeros(3)

    def act(self, hand: np.ndarray) -> np.ndarray:
        """(7,) the action from where the hand is."""
        target, gripper, done = self._next(hand)
        if done:
            self._stage, self._waited = self._stage + 1, 0
        self._waited += 1
        motion = np.clip((target - hand) / _REACH * 2.0, -1.0, 1.0)
        return np.array([*motion, 0.0, 0.0, 0.0, gripper])

    def _next(self, hand: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Where the hand is to go, what the gripper does, and whether this stage is over."""
        grasp = self._position(self._object)
        grasp[2] += self._height
        up, late = np.array([0.0, 0.0, _ABOVE]), self._waited > 80
        if self._stage == 0:
            return grasp + up, -1.0, _near(grasp + up, hand, 0.015) or late
        if self._stage == 1:
            return grasp, -1.0, _near(grasp, hand, 0.008) or late
        if self._stage == 2:
            self._held = hand - self._position(self._object)
            return hand, 1.0, self._waited > _CLOSE
        over = self._position(self._place) + 2 * up
        over[:2] += self._held[:2]
        if self._stage == 3:
            return np.array([hand[0], hand[1], over[2]]), 1.0, abs(over[2] - hand[2]) < 0.03 or late
        if self._stage == 4:
            return over, 1.0, _near(over, hand, 0.02) or late
        if self._stage == 5:
            low = over - 2 * up + np.array([0.0, 0.0, self._held[2] + 0.05])
            return low, 1.0, _near(low, hand, 0.015) or self._waited > 40
        if self._stage == 6:
            return hand, -1.0, self._waited > _OPEN
        return hand + up, -1.0, False

    def _position(self, name: str) -> np.ndarray:
        """(3,) where an object, a fixture or a marked place is."""
        env = self._env
        if name in env.obj_body_id:
            return np.array(env.sim.data.body_xpos[env.obj_body_id[name]])
        return np.array(env.sim.data.get_site_xpos(name))


def _near(point: np.ndarray, hand: np.ndarray, within: float) -> bool:
    return bool(np.linalg.norm(point - hand) < within)


# ---------------------------------------------------------------------------------------------------------------------


class ScriptedExpert:
    """Meta-World's own scripted policy for a task.

    Args:
        task: the task's name, with or without `-v3`.
        noise: standard deviation of Gaussian noise added to every action.

    Attributes:
        intended_B_A: the last actions without the noise.
    """

    intended_B_A: np.ndarray

    def __init__(self, task: str, noise: float = 0.0) -> None:
        import_mujoco()
        from metaworld.policies import ENV_POLICY_MAP

        name = f"{task.removesuffix('-v3')}-v3"
        if name not in ENV_POLICY_MAP:
            raise ConfigError(f"no scripted expert for task {task!r}", key="collect.mixture")
        self._policy = ENV_POLICY_MAP[name]()
        self._noise = noise

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, 4) actions in [-1, 1]."""
        with warnings.catch_warnings():  # its constants are what they are; the actions are clipped below
            warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high", category=UserWarning)
            actions = np.stack([self._policy.get_action(o.astype(np.float64)) for o in observations_B])
        self.intended_B_A = np.asarray(np.clip(actions, -1.0, 1.0), dtype=np.float32)
        if self._noise:
            actions = actions + self._noise * rng.standard_normal(actions.shape)
        return np.asarray(np.clip(actions, -1.0, 1.0), dtype=np.float32)


class FormulaExpert:
    """An expert whose actions are a formula of what it sees.

    Args:
        noise: standard deviation of Gaussian noise added to every action.

    Attributes:
        intended_B_A: the last actions without the noise.
    """

    intended_B_A: np.ndarray

    def __init__(self, noise: float = 0.0) -> None:
        self._noise = noise

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions in [-1, 1]."""
        self.intended_B_A = np.clip(self._formula(observations_B), -1.0, 1.0).astype(np.float32)
        noise = self._noise * rng.standard_normal(self.intended_B_A.shape)
        return np.asarray(np.clip(self.intended_B_A + noise, -1.0, 1.0), dtype=np.float32)

    def _formula(self, observations_B: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class MountainCarExpert(FormulaExpert):
    """Accelerates the car of MountainCarContinuous in the direction in which it moves, which adds the most energy."""

    def _formula(self, observations_B: np.ndarray) -> np.ndarray:
        return np.where(observations_B[:, 1:2] < 0, -1.0, 1.0)


class FetchExpert(FormulaExpert):
    """Brings the object of gymnasium-robotics' FetchPickAndPlace to its goal: above it, down, close, to the goal.

    It reads `desired_goal` (3) and the first columns of `observation`: the hand, the object, the object from the hand
    (3 each) and the two fingers. An action is 5 cm in each direction, and the fingers.
    """

    def _formula(self, observations_B: np.ndarray) -> np.ndarray:
        goal, seen = observations_B["desired_goal"], observations_B["observation"]
        thing, away, fingers = seen[:, 3:6], seen[:, 6:9], seen[:, 9:11]
        above = np.linalg.norm(away[:, :2], axis=1) < 0.01
        there = np.linalg.norm(away, axis=1) < 0.015
        held = there & (fingers.sum(axis=1) < 0.055)
        over = away + np.array([0.0, 0.0, 0.08])
        move = np.where(held[:, None], goal - thing, np.where(above[:, None], away, over)) / 0.05
        move[there & ~held] = 0.0
        return np.concatenate([move, np.where(there, -1.0, 1.0)[:, None]], axis=1)


StateExpert = ScriptedExpert | FormulaExpert


def expert_of(env: WorldSettings, noise: float = 0.0) -> StateExpert | None:
    """The expert of an `env` section's task that acts on its observations alone; None: there is none."""
    if env.type == "gymnasium" and env.task.startswith("MountainCarContinuous-"):
        return MountainCarExpert(noise)
    if env.type == "gymnasium" and "FetchPickAndPlace" in env.task:
        return FetchExpert(noise)
    return ScriptedExpert(env.task, noise=noise) if env.type == "metaworld" else None


class RandomActor:
    """Uniform actions that are held for a few steps, so that the arm really moves about.

    Args:
        low_A, high_A: bounds of each action.
        hold: steps that an action is kept.
    """

    def __init__(self, low_A: np.ndarray, high_A: np.ndarray, hold: int = 10) -> None:
        self._low, self._high, self._hold = low_A, high_A, hold
        self._held: np.ndarray | None = None
        self._age = 0

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions."""
        if self._held is None or len(self._held) != len(observations_B) or self._age >= self._hold:
            self._held = rng.uniform(self._low, self._high, (len(observations_B), *self._low.shape))
            self._age = 0
        self._age += 1
        return self._held.astype(np.float32)


class RandomChoices:
    """Uniform choices among the values of discrete actions that are allowed.

    Args:
        counts: values of each choice.
        allowed: (B, O) values that are allowed in observations; None: all.
    """

    def __init__(self, counts: tuple[int, ...], allowed: Callable[[np.ndarray], np.ndarray | None]) -> None:
        self._head, self._allowed = Categorical(counts), allowed

    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions."""
        logits = np.zeros((len(observations_B), self._head.outputs))
        return self._head.act(logits, rng, False, self._allowed(observations_B)).values


class NoisyActor:
    """A policy with Gaussian noise on its most likely actions."""

    def __init__(self, policy: RobotPolicy, noise: float) -> None:
        self._actor, self._noise = policy.actor(), noise

    @torch.no_grad()
    def act(self, observations_B: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(B, A) actions."""
        mean = self._actor.act(observations_B, rng, greedy=True).values
        return np.asarray(mean + self._noise * rng.standard_normal(mean.shape, dtype=np.float32))


Expert = StateExpert | LiberoExpert | ManiSkillExpert
Actor = Expert | NoisyActor | RandomActor | RandomChoices
"""`act`: (B, ...) observations to (B, A) actions; of a policy of chunks, (n, ...) to (n, C, A) where one is due."""


def actor_maker(share: ActorShare, world: World, env: WorldSettings, policy: RobotPolicy | None) -> Callable[[], Actor]:
    """Makes a new actor for each round.

    Raises:
        ConfigError: an expert for a world that has none, or random actions without bounds.
        CheckpointError: the policy was made for other observations or actions.
    """
    if policy is not None:
        policy.check_fits(world.observation_shape, world.action_space, world.columns)
        world.show(policy.observation_spec and policy.observation_spec.with_states())
        return lambda: NoisyActor(policy, share.noise)
    if share.type in ("expert", "noisy"):
        noise = share.noise if share.type == "noisy" else 0.0
        if env.tasks_change:
            raise ConfigError.about(
                "collect.mixture",
                ": an expert plays one task: set env.task instead of env.task_ids (or remove "
                "env.use_curriculum), and collect each task into a folder of its own",
            )
        if isinstance(world.env, LiberoVectorEnv):
            return lambda: LiberoExpert(world.env, noise)
        if isinstance(world.env, ManiSkillVectorEnv):
            return _planner(share, ManiSkillExpert(world.env, noise))
        if env.type in ("libero", "maniskill"):
            raise ConfigError.about(
                "collect.mixture", ": this expert looks into the simulator; set env.vectorization=sync"
            )
        expert = expert_of(env, noise)
        if expert is None:
            raise ConfigError.about(
                "collect.mixture", f": {env.task} has no scripted expert; use type random or checkpoint"
            )
        if share.calibration_error and env.type != "metaworld":
            raise ConfigError.about(
                "collect.mixture", ": calibration_error is of what Meta-World's experts see: remove it"
            )
        return lambda: expert
    random_actor(world)  # what is wrong with the actions is said before the first round
    return lambda: random_actor(world)


def random_actor(world: World) -> Actor:
    """Draws random actions.

    Raises:
        ConfigError: they have no bounds.
    """
    if (counts := choices(world.action_space)) is not None:
        return RandomChoices(counts, partial(allowed_in, columns=world.own_columns))
    low, high = action_bounds(world.action_space)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError.about(
            "collect.mixture", f": the actions of {world.tasks[0]!r} have no bounds to draw random ones from"
        )
    return RandomActor(low, high)


def _planner(share: ActorShare, expert: ManiSkillExpert) -> Callable[[], Actor]:
    """Makes the motion planner plan anew for each round; it is made once, with a simulator of its own."""
    unused = [key for key in ("random_steps", "calibration_error") if getattr(share, key)]
    if unused:
        raise ConfigError.about(
            "collect.mixture",
            f": ManiSkill's expert plans a whole episode from its first moment, so "
            f"{' and '.join(unused)} would not do what is expected; remove them",
        )

    def make() -> Actor:
        expert.restart()
        return expert

    return make
