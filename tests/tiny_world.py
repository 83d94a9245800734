"""A world that costs nothing: a dot that should reach the right edge. `env.task: tiny_world:Dot-v1`.

Actions are taken as they are; `bound` is what the action space says.
"""

import gymnasium
import numpy as np


class Dot(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, render_mode=None, bound=1.0):
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-bound, bound, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.y = self.np_random.uniform(-0.5, 0.5, 2)
        return self._state(), {"success": False}

    def step(self, action):
        self.x = float(np.clip(self.x + 0.2 * action[0], -1, 1))
        return self._state(), self.x, False, False, {"success": self.x > 0.5}

    def render(self):
        picture = np.zeros((32, 32, 3), np.uint8)
        column, row = int((self.x + 1) * 13), int((self.y + 1) * 13)
        picture[row : row + 6, column : column + 6] = 255
        return picture

    def _state(self):
        return np.array([self.x, self.y], np.float32)


class Undrawn(Dot):
    """As a simulator that nobody wrote pictures for."""

    metadata, render = {}, gymnasium.Env.render

    def __init__(self):
        super().__init__()


class Window(Dot):
    """As Gymnasium's template of an environment, with no other mode than a window for a person."""

    metadata = {"render_modes": ["human"], "render_fps": 20}

    def __init__(self, render_mode=None):
        assert render_mode is None or render_mode in self.metadata["render_modes"]
        super().__init__(render_mode)

    def render(self):
        assert self.render_mode is None


class Blank(Dot):
    """As an environment with the render() of a template, which returns nothing."""

    def render(self):
        return None


if "Dot-v1" not in gymnasium.registry:
    gymnasium.register("Blank-v1", Blank, max_episode_steps=10)
    gymnasium.register("Undrawn-v1", Undrawn, max_episode_steps=10)
    gymnasium.register("Window-v1", Window, max_episode_steps=10)
    gymnasium.register("Dot-v1", Dot, max_episode_steps=10)
