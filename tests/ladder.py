"""Three tasks of different difficulty, `ladder:Low-v0`, `ladder:Half-v0` and `ladder:High-v0`, which cost nothing.

High always succeeds at its end, Low never does, Half does for starts whose first number is even. Every step pays 1, so
that rewards say nothing about success. Observations have 2, 3 and 4 numbers; pictures show the
task's number and the age.
"""

import gymnasium
import numpy as np

NAMES = ("Low", "Half", "High")
IDS = tuple(f"ladder:{name}-v0" for name in NAMES)
LENGTH = 4


class Rung(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, render_mode=None, rung=0):
        self.render_mode, self.rung = render_mode, rung
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2 + rung,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.first, self.age = int(self.np_random.integers(200)), 0
        return self._see(), {}

    def step(self, action):
        self.age += 1
        over = self.age == LENGTH
        succeeds = (False, self.first % 2 == 0, True)[self.rung]
        return self._see(), 1.0, False, over, {"success": over and succeeds}

    def render(self):
        picture = np.zeros((8, 8, 3), np.uint8)
        picture[...] = (self.rung + 1, self.age, self.first)
        return picture

    def _see(self):
        return np.array([self.age, self.first, *[7] * self.rung], np.float32)


for number, name in enumerate(NAMES):
    if f"{name}-v0" not in gymnasium.registry:
        gymnasium.register(f"{name}-v0", Rung, kwargs={"rung": number})
