"""A Gymnasium environment whose pictures say which moment they show, and reward models that read them."""

from __future__ import annotations

import json

import numpy as np
from gymnasium import Env, spaces
from gymnasium.envs.registration import register, registry

from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from guerdon.settings.study import Study
from guerdon.types import Failure, RewardInfo, Score
from rl_killed import kill_at

ID = "guerdon-test/Clock-v0"
SIZE = 40


class Clock(Env):
    """Counts its steps. An episode ends (by its task or by a limit) after a length that its seed decides.

    Each picture holds, in its first pixels, the low and high byte of the episode's name (from its seed), the step
    and whether the episode ended by its task. The observation says step and the last action. With `own_order` the
    first seed decides all episodes, so that conventions that seed every reset and those that do not can be compared.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, longest=9, fixed=0, push=0.0, own_order=False):
        self.render_mode = render_mode
        self.own_order, self.first, self.episodes = own_order, None, 0
        self.longest, self.fixed, self.push = longest, fixed, push
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.pictures = 0

    def reset(self, *, seed=None, options=None):
        if self.own_order:  # as if nobody had seeded it but the first time
            self.first = seed if self.first is None else self.first
            seed = 1000 * (self.first % 10**6) + self.episodes
            self.episodes += 1
        super().reset(seed=seed)
        self.name = int(self.np_random.integers(65536))
        self.length = self.fixed or int(self.np_random.integers(1, self.longest + 1))
        self.by_task = bool(self.np_random.integers(2))
        self.count = 0
        return self._see(0.0), {}

    def step(self, action):
        self.count += 1
        over = self.count >= self.length
        success = bool(self.count % 3 == 0) if not self.push else bool(action[0] > self.push)
        reward = float(self.count + self.name / 65536)
        return self._see(action[0]), reward, over and self.by_task, over and not self.by_task, {"success": success}

    def render(self):
        self.pictures += 1
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        picture[0, 0] = (self.name % 256, self.name // 256, self.count)
        picture[0, 1] = (int(self.count >= self.length), int(self.by_task), 0)
        return picture

    def _see(self, last):
        return np.array([self.count, last], np.float32)


def register_clock():
    if ID not in registry:
        register(ID, entry_point=Clock, disable_env_checker=True, order_enforce=False)


def read_moment(picture):
    """(episode name, step, whether it is the terminal moment)"""
    low, high, count = (int(x) for x in picture[0, 0])
    return low + 256 * high, count, bool(picture[0, 1, 0])


def truth_of(name, count):
    """A value in [0, 1) that each moment has for itself."""
    return ((name * 31 + count * 17) % 997) / 997


class Reader:
    """Scores every picture by the moment it shows, remembers all it has seen, and fails where told to."""

    def __init__(self, fails=lambda name, count: False, threshold=0.5):
        self.seen = []
        self.fails = fails
        self.threshold = threshold

    @property
    def info(self):
        return RewardInfo(name="reader", range=(0, 1), success_threshold=self.threshold)

    def score(self, episodes):
        scores = []
        for episode in episodes:
            moments = [read_moment(frame) for frame in episode.frames]
            self.seen.append(moments)
            broken = [m for m in moments if self.fails(m[0], m[1])]
            if broken:
                scores.append(Score(failure=Failure("broken", str(broken[0]))))
            else:
                scores.append(Score.from_values(np.array([truth_of(n, c) for n, c, _ in moments])))
        return scores


def clock_study(folder, *, name="run", env=None, algorithm=None, reward=None, runner=None, policy=None):
    """A study of the clock, small enough for a test."""
    return Study.model_validate(
        {
            "runner": {
                "total_steps": 160,
                "eval_every": 60,
                "eval_episodes": 2,
                "checkpoint_every": 40,
                "film_frames": 2,
                "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False},
                **(runner or {}),
            },
            "env": {
                "type": "gymnasium",
                "task": f"rl_clock:{ID}",
                "num_envs": 2,
                "frame_size": SIZE,
                "max_episode_steps": 8,
                **(env or {}),
            },
            "policy": policy or {"type": "mlp", "hidden": [8]},
            "algorithm": algorithm or {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2},
            "reward": reward or {},
        }
    )


def reader_reward(**given):
    """A reward section whose model the test replaces by a `Reader`."""
    model = {"model": {"model_type": "constant"}}
    return {"use_reward_model": True, "reward_mode": "per_step", "shaping": "raw", **model, **given}


def start(study, *, resume=False, reader=None):
    """A loop in the study's folder, with a reader in place of its models (unless `reader` is "own")."""
    loop = Loop(study, run_folder(study), resume=resume)
    models = list(loop.sources.values())[1:]
    for source in models:
        source.model = source.model if reader == "own" else reader or Reader()
    loop.collector.observes = tuple(source.observes for source in models)  # another model may look at frames
    return loop


def lines(study, name="metrics"):
    """The rows of one of a run's log files."""
    text = (run_folder(study) / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def result(study):
    """Everything a run leaves that may not depend on when it was interrupted."""
    folder = run_folder(study)
    files = {n: (folder / f"{n}.jsonl").read_bytes() for n in ("metrics", "episodes", "failures")}
    files["policy"] = (folder / "policy/policy.safetensors").read_bytes()
    complete = json.loads((folder / "COMPLETE").read_text())
    del complete["wall_time"]
    return files | {"complete": json.dumps(complete)}


register_clock()


def interrupted(study, where, count, **kwargs):
    """Run until the method `where` has begun `count` times, then stop as dead."""
    kill_at(start(study, **kwargs), where, count)
