"""An environment whose copies report values of different types in `info`: `telling:guerdon-tests/Telling-v0`."""

import enum

import gymnasium
import numpy as np

ID = "telling:guerdon-tests/Telling-v0"


class TeleopEvents(enum.Enum):
    """As LeRobot has them: no text, and keys of `info` all the same."""

    SUCCESS = "success"
    IS_INTERVENTION = "is_intervention"


REPORTS = (
    {"success": 0, "is_intervention": False, "teleop_action": np.zeros(2, int), "hit": None, "contacts": np.ones(2)},
    {"success": True, "is_intervention": True, "teleop_action": np.array([0.7, -0.7]), "_success": np.ones(2)},
    {"success": None, "is_intervention": None, "teleop_action": None, "contacts": np.ones((3, 2)), "hit": {"x": 1}},
    {"success": float("nan"), "is_intervention": np.bool_(True), "teleop_action": [0.25, 0.5]},
    {"success": 0.5, 7: "a number", "contacts": "none", "final_obs": np.zeros(2), "final_info": 3},
    {TeleopEvents.SUCCESS: np.float32(1), TeleopEvents.IS_INTERVENTION: True, "teleop_action": (-1, 0)},
    {},
)
SUCCESS = (False, True, None, None, True, True, None)
EXECUTED = (None, (0.7, -0.7), None, (0.25, 0.5), None, (-1, 0), None)


class Telling(gymnasium.Env):
    """Observes which of `REPORTS` it makes in this episode, and the last action, which it halves in place."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.which, self.age = int(self.np_random.integers(len(REPORTS))), 0
        return np.array([self.which, 0, 0], np.float32), {TeleopEvents.SUCCESS: False, "final_obs": 3}

    def step(self, action):
        self.age += 1
        seen = np.array([self.which, *action], np.float32)
        action *= 0.5
        return seen, 1.0, False, self.age == 4, dict(REPORTS[self.which])


if "guerdon-tests/Telling-v0" not in gymnasium.registry:
    gymnasium.register("guerdon-tests/Telling-v0", Telling, disable_env_checker=True)
