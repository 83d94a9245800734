"""A scripted pick-and-place for LIBERO tasks, with access to the simulator: demonstrations without any download.

It knows where the object and its goal are, moves above the object, grasps it in the middle, carries it above the goal
and lets it go. Made for the tasks of `libero_object`; docs/libero.md says how often it succeeds in which. It cannot
grasp bowls and plates, which are wider than the gripper opens.

    expert = LiberoExpert(world.env)
    actions_B_A = expert.act(observations_B, rng)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from guerdon.errors import ConfigError
from guerdon.worlds.libero import LiberoVectorEnv

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
            raise ConfigError(f"collect.mixture: {name} has no scripted expert: its goal is not one object in a place")
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
