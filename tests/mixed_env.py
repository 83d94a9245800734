"""An environment of every kind of space: `mixed_env:Mixed-v0`. Actions that its mask forbids are errors."""

import gymnasium
import numpy as np
from gymnasium import spaces

ACTIONS = {
    "discrete": spaces.Discrete(4, start=2),
    "multi": spaces.MultiDiscrete([3, 2], start=[0, 5]),
    "binary": spaces.MultiBinary(3),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2, start=-1)]),
    "matrix": spaces.Box(-2, 2, (2, 2), np.float32),
}
OBSERVED = spaces.Dict(
    {
        "arm": spaces.Dict(
            {
                "joints": spaces.Box(-9, 9, (2, 2), np.float64),
                "mode": spaces.Discrete(3, start=1),
                "hand": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])]),
            }
        ),
        "front": spaces.Box(0, 255, (12, 10, 3), np.uint8),
        "mission": spaces.Text(9),
    }
)


def sizes(space):
    """Values of each choice."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(space.n)
    if isinstance(space, spaces.Tuple):
        return [int(one.n) for one in space.spaces]
    return [] if isinstance(space, spaces.Box) else space.nvec.tolist()


class Mixed(gymnasium.Env):
    """Pays 1 where the first choice is the one that `arm.mode` names.

    Args:
        actions: one of `ACTIONS`.
        masks: `info` has a mask: `array`, `tuple` of one for each choice, `late` only after steps, `none`.
        end: what the last mask of an episode allows: nothing.
        stuck: step at which nothing is allowed although the episode goes on.
        length: of an episode.
        broken: number of the step, of all episodes of this environment, whose joints are not finite; 0: none,
            -1: the third of every episode.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, actions="discrete", masks="array", stuck=-1, length=5, broken=0):
        self.broken, self.count = broken, 0
        self.render_mode, self.masks, self.stuck, self.length = render_mode, masks, stuck, length
        self.action_space, self.observation_space = ACTIONS[actions], OBSERVED
        self.counts, self.taken = sizes(self.action_space), []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._see(), self._info(begins=True)

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not in {self.action_space}")
        chosen = self._choices(action)
        if any(not mask[c] for mask, c in zip(self.allowed, chosen, strict=False)):
            raise ValueError(f"{action} is not allowed")
        self.taken.append(action)
        right = bool(len(chosen) and chosen[0] == self.seen["arm"]["mode"] - 1)
        self.age, self.count = self.age + 1, self.count + 1
        over, seen = self.age == self.length, self._see()
        if self.count == self.broken or (self.broken == -1 and self.age == 3):
            seen["arm"]["joints"][0, 0] = np.nan
        return seen, float(right), over and self.age % 2 == 0, over, {"success": right, **self._info()}

    def render(self):
        return np.full((12, 10, 3), 40 * self.age, np.uint8)

    def _choices(self, action):
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return [int(action - space.start)]
        if isinstance(space, spaces.Tuple):
            return [int(a - one.start) for a, one in zip(action, space.spaces, strict=True)]
        if isinstance(space, spaces.MultiDiscrete):
            return (action - space.start).tolist()
        return [] if isinstance(space, spaces.Box) else action.tolist()

    def _see(self):
        draw = self.np_random
        hand = (draw.integers(0, 2, 2).astype(np.int8), draw.integers(0, [2, 3]))
        arm = {"joints": draw.normal(size=(2, 2)), "mode": np.int64(draw.integers(1, 4)), "hand": hand}
        self.seen = {
            "arm": arm, "front": draw.integers(0, 256, (12, 10, 3)).astype(np.uint8), "mission": "go" * (self.age % 3),
        }  # fmt: skip
        return self.seen

    def _info(self, begins=False):
        over = self.age == self.length or self.age == self.stuck
        self.allowed = [] if self.masks in ("none", "late") else [self._mask(n, over) for n in self.counts]
        if self.masks == "none" or (self.masks == "late" and begins):
            return {}
        masks = [np.ones(n, np.int8) for n in self.counts] if self.masks == "late" else self.allowed
        return {"action_mask": tuple(masks) if self.masks == "tuple" else np.concatenate(masks)}

    def _mask(self, count, over):
        if over:
            return np.zeros(count, np.int8)
        mask = self.np_random.integers(0, 2, count).astype(np.int8)
        mask[self.np_random.integers(count)] = 1
        return mask


if "Mixed-v0" not in gymnasium.registry:
    gymnasium.register("Mixed-v0", Mixed)
