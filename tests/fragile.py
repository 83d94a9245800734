"""An environment whose simulator breaks in chosen episodes: it dies, stops, gives no numbers, or raises."""

import os
import signal
import sys

import gymnasium
import numpy as np

from guerdon.errors import ConfigError

ID = "fragile:guerdon-tests/Fragile-v0"
WAYS = {
    "exits": "simulator_raised",
    "dies": "simulator_died",
    "stops": "simulator_hung",
    "nan": "simulator_non_finite",
    "raises": "simulator_raised",
}


class Refused(ConfigError):
    """One of guerdon's errors, of a class of a user's own."""


def is_first(marker):
    """Whether no process made the file before this one did."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Fragile(gymnasium.Env):
    """Observes how far it is in the episode and the episode's first number; the reward is the age.

    Args:
        breaks: seed of an episode to the way in which it breaks at age `age`: one of `WAYS`, with `once` only where
            the file that the word after it names is not there yet; or `reset raises`, `reset nan`.
        age: of the breaking step.
        length: of the others.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, breaks=(), age=2, length=4):
        self.render_mode = render_mode
        self.breaks, self.age_of_break, self.length = dict(breaks), age, length
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.first = 0, float(self.np_random.integers(250))
        self.way = self.breaks.get(seed, self.breaks.get(str(seed), ""))
        if self.way == "reset raises":
            raise RuntimeError("the drawer is missing")
        return np.full(2, np.nan, np.float32) if self.way == "reset nan" else self._see(), {}

    def step(self, action):
        self.age += 1
        way, _, marker = self.way.partition(" once ")
        if way and self.age == self.age_of_break and (not marker or is_first(marker)):
            match way:
                case "talks":
                    print("warning " * 200_000, flush=True)
                case "exits":
                    sys.exit(3)
                case "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "stops":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "raises":
                    raise RuntimeError("the gripper fell off")
                case "refuses":
                    raise Refused("the gripper is not licensed")
                case "nan reward" | "inf reward" | "huge reward":
                    reward = {"nan": np.nan, "inf": -np.inf, "huge": 1e300}[way.split()[0]]
                    return self._see(), reward, False, self.age == self.length, {"success": False}
                case "nan":
                    return np.full(2, np.nan, np.float32), 0.0, False, False, {"success": False}
        over = self.age == self.length
        return self._see(), float(self.age), False, over, {"success": bool(over and self.first > 100)}

    def render(self):
        return np.full((8, 8, 3), (self.age, int(self.first), 7), np.uint8)

    def _see(self):
        return np.array([self.age, self.first], np.float32)


def never(**_):
    """A factory of a simulator that cannot start."""
    print("no licence for the physics", flush=True)
    os._exit(7)


if "guerdon-tests/Fragile-v0" not in gymnasium.registry:
    gymnasium.register("guerdon-tests/Fragile-v0", Fragile)
