"""An environment that takes no action outside its Box, and remembers those that it took: `strict_box:StrictBox-v0`."""

import gymnasium
import numpy as np


class StrictBox(gymnasium.Env):
    """Observes the share of the way from the lower to the upper bound of the last action; rewards `target`.

    Args:
        low, high: bounds of the only action; None: infinite.
        dtype: of the action space.
        target: share of the way.
        shape: of the action space; what the first of its numbers does is observed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, low=-1.0, high=1.0, dtype="float32", target=0.75, shape=(1,)):
        self.render_mode = render_mode
        self.low, self.high = (-np.inf if low is None else low), (np.inf if high is None else high)
        self.action_space = gymnasium.spaces.Box(self.low, self.high, tuple(shape), np.dtype(dtype))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.target, self.taken = target, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.went = 0, float(np.float32(self.np_random.uniform()))
        return self._see(), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not in {self.action_space}")
        self.taken.append(np.array(action))
        self.age += 1
        finite = np.isfinite([self.low, self.high]).all()
        first = action.reshape(-1)[0]
        self.went = float((first - self.low) / (self.high - self.low)) if finite else float(first)
        return self._see(), -abs(self.went - self.target), False, self.age == 5, {"success": False}

    def render(self):
        return np.full((8, 8, 3), self.age, np.uint8)

    def _see(self):
        return np.array([self.age, self.went], np.float32)


if "StrictBox-v0" not in gymnasium.registry:
    gymnasium.register("StrictBox-v0", StrictBox, disable_env_checker=True)
