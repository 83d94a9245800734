"""200 recorded robot episodes, a model that cannot measure 20 of their frames, and an environment that plays them.

A frame shows its episode, its row and its value in its bytes, so that a score says what was looked at.
"""

from collections import Counter

import gymnasium
import numpy as np

from guerdon.types import Episode, Failure, RewardInfo, Score

EPISODES = 200
TABLE = 256  # further ones keep copies busy that are through with theirs
KINDS = ("timeout", "parse", "non_finite", "refused", "crash")
SIZE = 4
ID = "guerdon-tests/Playback-v0"
_RNG = np.random.default_rng(15)
LENGTHS = _RNG.integers(2, 6, TABLE)  # steps; there is one row more
VALUES = _RNG.integers(0, 101, (TABLE, 6))
BY_TASK = _RNG.random(TABLE) < 0.5  # terminated, else truncated


def _failures():
    """20 frames: four of each kind, at first, middle and terminal rows."""
    places = {}
    for n, episode in enumerate(_RNG.choice(EPISODES, 20, replace=False).tolist()):
        row = (0, 1, int(LENGTHS[episode]))[n % 3]
        places[episode, row] = KINDS[n % len(KINDS)]
    return places


FAILURES = _failures()


def frame(episode, row):
    picture = np.zeros((SIZE, SIZE, 3), np.uint8)
    picture[0, 0], picture[0, 1, 0] = (episode, row, VALUES[episode, row]), BY_TASK[episode]
    return picture


def place(picture):
    return int(picture[0, 0, 0]), int(picture[0, 0, 1])


class Injected:
    """The value of a frame is its byte / 100; those of `FAILURES` cannot be measured."""

    info = RewardInfo(name="injected", range=(0.0, 1.0), success_threshold=0.5)

    def __init__(self, failures=None):
        self.failures = FAILURES if failures is None else failures
        self.looks = Counter()

    def score(self, episodes):
        return [self._one(episode.frames) for episode in episodes]

    def _one(self, frames):
        self.looks.update(place(picture) for picture in frames)
        why = next((self.failures[p] for p in map(place, frames) if p in self.failures), None)
        if why == "non_finite":
            return Score.from_values(np.full(len(frames), np.nan))
        if why is not None:
            return Score(failure=Failure(why, "injected"))
        values = np.array([picture[0, 0, 2] / 100 for picture in frames])
        return Score.from_values(values, total=float(values.max()))


class Playback(gymnasium.Env):
    """Plays the episodes `first`, `first + stride`, ...; the action does nothing, and the own reward is the row."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode="rgb_array", first=0, stride=1):
        self.render_mode, self._next, self._stride = render_mode, first, stride
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        box = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({"image": box})
        self.drawn = Counter()

    def _see(self):
        return {"image": frame(self.episode, self.row)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.row = min(self._next, TABLE - 1), 0
        self._next += self._stride
        return self._see(), {}

    def step(self, action):
        self.row += 1
        over = bool(self.row == LENGTHS[self.episode])
        by_task = bool(BY_TASK[self.episode])
        return self._see(), float(self.row), over and by_task, over and not by_task, {"success": over and by_task}

    def render(self):
        self.drawn[self.episode, self.row] += 1
        return frame(self.episode, self.row)


gymnasium.register(ID, Playback)


def recorded(episode):
    frames = np.stack([frame(episode, row) for row in range(LENGTHS[episode] + 1)])
    states = np.array([[episode, row] for row in range(len(frames))], np.float32)
    return Episode(id=str(episode), task="play", frames=frames, states=states)


GAMMA = 0.9
SOURCES = {
    "raw": {"reward_mode": "per_step", "shaping": "raw"},
    "every other": {"reward_mode": "per_step", "shaping": "raw", "score_every": 2},
    "threshold at the end": {"success_reward": 2.0, "fail_reward": -1.0},
    "relative": {"reward_mode": "per_step", "shaping": "relative", "reward_coef": 5.0},
    "potential": {"reward_mode": "per_step", "shaping": "potential", "gamma": GAMMA, "score_every": 2},
    "bonus": {"reward_mode": "per_step", "shaping": "bonus", "confirm_frames": 2},
    "episode": {"reward_mode": "episode", "shaping": "raw"},
}


def expected(name):
    """(episode, row) to the reward, or to None where it is missing; worked out from the definitions."""
    found = {}
    for episode in range(EPISODES):
        length = int(LENGTHS[episode])
        value = {
            r: None if (episode, r) in FAILURES else np.float32(VALUES[episode, r] / 100) for r in range(length + 1)
        }
        previous, streak, paid = value[0], 0, False
        for row in range(1, length + 1):
            now, last = value[row], row == length
            looked = last or row % SOURCES[name].get("score_every", 1) == 0
            reward = 0.0
            match name:
                case "raw" | "every other":
                    reward = now if looked else 0.0
                case "threshold at the end" if last:
                    reward = None if now is None else 2.0 if now > 0.5 else -1.0
                case "relative":
                    reward = None if now is None or previous is None else 5 * np.float32(float(now) - float(previous))
                    previous = previous if now is None else now
                case "potential":
                    after = now if looked and now is not None else previous
                    unknown = after is None or previous is None or (looked and now is None)
                    end = last and BY_TASK[episode]
                    reward = None if unknown else GAMMA * (0.0 if end else float(after)) - float(previous)
                    previous = after
                case "bonus" if now is None:
                    reward = None
                case "bonus":
                    streak = streak + 1 if now > 0.5 else 0
                    if streak == 2 and not paid:
                        reward, paid = 1.0, True
                case "episode" if last:
                    reward = None if None in value.values() else max(value.values())
            found[episode, row] = None if reward is None else float(np.float32(reward))
    return found
