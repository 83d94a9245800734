"""`wrong_env:Wrong-v0` shows something at one moment that its space does not have."""

import gymnasium
import numpy as np
from gymnasium import spaces

SPACES = {
    "numbers": spaces.Box(-1, 1, (3,), np.float32),
    "whole": spaces.Box(0, 9, (3,), np.int64),
    "bytes": spaces.Box(0, 255, (16, 16, 3), np.uint8),
    "floats": spaces.Box(0, 1, (16, 16, 3), np.float32),
    "choice": spaces.Discrete(4),
}


class Wrong(gymnasium.Env):
    """Episodes of four steps.

    Args:
        part: of `SPACES`, that is shown.
        value: what its first number is at the moment; the others are 1.
        at: `reset`, `step` (the second one) or `end`, in the second episode.
        keys: observations are a dict of it and another part.
        everywhere: the value is all of its numbers.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, part="numbers", value=np.nan, at="step", keys=True, everywhere=False, render_mode=None):
        self.render_mode, self.part, self.value, self.keys = render_mode, part, value, keys
        self.moment = {"reset": 0, "step": 2, "end": 4}[at]
        self.everywhere, self.episode = everywhere, -1
        own = SPACES[part]
        self.observation_space = spaces.Dict({"a": own, "b": spaces.Box(-1, 1, (2,), np.float32)}) if keys else own
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def shown(self):
        wrong = self.episode == 1 and self.age == self.moment
        if self.part == "choice":
            found = self.value if wrong else 1
        else:
            found = np.ones(SPACES[self.part].shape, SPACES[self.part].dtype)
            if wrong:
                found = found.astype(np.float64)
                found[... if self.everywhere else 0] = self.value
        return {"a": found, "b": np.zeros(2, np.float32)} if self.keys else found

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.episode = 0, self.episode + 1
        return self.shown(), {}

    def step(self, action):
        self.age += 1
        return self.shown(), 0.0, self.age == 4, False, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


gymnasium.register("Wrong-v0", entry_point=Wrong, max_episode_steps=9)
