"""A tiny environment whose every moment can be checked by hand: a walk along a line, drawn as its own numbers."""

import gymnasium
import numpy as np

ID = "guerdon-tests/Corridor-v0"
GOAL = 3.0
LENGTH = 4  # of an episode that reports at its end


class Corridor(gymnasium.Env):
    """Position and age; reward is the position; success at `GOAL`, which ends the episode if `stops`.

    `reports` is when `info` says whether this is a success: `always`, at `even` ages and at success, at the `end`,
    `won` (at success only), `never`, or in `every other` episode; `key` is where. Actions are taken as they are:
    `bound` is what the action space says, infinite for policies that were trained without bounds. With `moment`, the
    only success is at that age.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, stops=True, reports="always", key="success", bound=1.0, moment=None):
        self.render_mode, self.moment = render_mode, moment
        self.stops, self.reports, self.key = stops, reports, key
        self.episodes = 0
        self.observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-bound, bound, (1,), np.float32)
        self.drawn = 0

    def _see(self):
        return np.array([self.position, self.age], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.age = float(np.float32(self.np_random.uniform(0, 1))), 0
        self.episodes += 1
        return self._see(), {}

    def step(self, action):
        self.position = float(np.float32(self.position) + np.float32(action[0]))
        self.age += 1
        success = self.position >= GOAL if self.moment is None else self.age == self.moment
        over = bool(success and self.stops) or (self.reports == "end" and self.age >= LENGTH)
        said = {
            "always": True,
            "even": self.age % 2 == 0 or success,
            "end": over,
            "won": success,
            "every other": self.episodes % 2 == 1,
        }.get(self.reports, False)
        info = {"position": self.position, **({self.key: np.bool_(success)} if said else {})}
        return self._see(), self.position, over, False, info

    def render(self):
        self.drawn += 1
        return np.full((8, 8, 3), [int(self.position * 20) % 256, self.age, 7], dtype=np.uint8)


gymnasium.register(ID, Corridor)
