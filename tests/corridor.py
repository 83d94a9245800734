"""A tiny environment whose every moment can be checked by hand: a walk along a line, drawn as its own numbers."""

import gymnasium
import numpy as np

ID = "guerdon-tests/Corridor-v0"
GOAL = 3.0


class Corridor(gymnasium.Env):
    """Position and age; reward is the position; success at `GOAL`, which ends the episode if `stops`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, stops=True):
        self.render_mode = render_mode
        self.stops = stops
        self.observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.drawn = 0

    def _see(self):
        return np.array([self.position, self.age], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.age = float(np.float32(self.np_random.uniform(0, 1))), 0
        return self._see(), {}

    def step(self, action):
        self.position = float(np.float32(self.position) + np.float32(action[0]))
        self.age += 1
        success = self.position >= GOAL
        info = {"success": np.bool_(success)} if self.age % 2 == 0 or success else {}
        return self._see(), self.position, bool(success and self.stops), False, info

    def render(self):
        self.drawn += 1
        return np.full((8, 8, 3), [int(self.position * 20) % 256, self.age, 7], dtype=np.uint8)


gymnasium.register(ID, Corridor)
