"""Videos of a run: the rewards of each source, and of the environment where it has any."""

import gymnasium
import numpy as np
import pytest

from guerdon.collect import stepping
from guerdon.collect.stepping import video as episode_video
from guerdon.comparison.report import choose_videos, fit_videos
from guerdon.comparison.results import RunRecord
from guerdon.rl.videos import write_video
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.build import build_world
from tables import cases


class Pusher:
    """Walks to the right, and from the goal back to the left."""

    def __init__(self):
        self.steps = 0

    def mean(self, observations):
        self.steps += 1
        return np.full((len(observations), 1), 1.0 if self.steps <= 7 else -1.0, np.float32)


@pytest.fixture
def world():
    kind = {"task": "tiny_world:Dot-v1", "num_envs": 1, "frame_size": 32}
    made = build_world(GymnasiumSettings(native_reward="sparse", **kind), seed=1)
    yield made
    made.close()


def video(world, folder, *, native):
    path = folder / "run" / "films" / "step_1_0.npz"
    path.parent.mkdir(parents=True)
    moments, rewards = episode_video(world, Pusher().mean, frames=4)
    write_video(path, moments, {}, step=1, env_rewards=rewards if native else None)
    return path


def test_the_native_reward_is_shown_where_it_is_paid(world, tmp_path):
    path = video(world, tmp_path, native=True)
    with np.load(path) as content:
        rows, success, paid = (content[key] for key in ("rows", "success", "reward/env"))
    assert paid.tolist() == success.astype(float).tolist()
    assert success.any(), rows  # its first success is among the moments, however few there are
    run = RunRecord("t", "A", 0, tmp_path / "run", "complete")
    (shown,), left_out, notes = fit_videos(choose_videos([run])[0], budget=10**6)
    assert (left_out, notes) == ([], [])
    assert {frame.text for frame in shown.frames} == {"env 0.000", "env 1.000"}


def test_a_native_reward_that_nobody_is_paid_is_not_shown(world, tmp_path):
    with np.load(video(world, tmp_path, native=False)) as content:
        assert "reward/env" not in content.files


class Counted(gymnasium.Env):
    """A walk of `length` steps, successful from `goal` on, whose pictures show the step and are counted."""

    metadata = {"render_modes": ["rgb_array"]}

    drawn = 0

    def __init__(self, length, goal, render_mode=None):
        self.length, self.goal, self.render_mode = length, goal, render_mode
        self.observation_space = self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        info = {} if self.goal is None else {"success": self.steps >= self.goal}
        return np.zeros(1, np.float32), 0.5, self.steps == self.length, False, info

    def render(self):
        Counted.drawn += 1
        return np.full((8, 8, 3), (self.steps // 256, self.steps % 256, 0), np.uint8)


gymnasium.register("guerdon-tests/Counted-v0", Counted, max_episode_steps=50_000)


def counted_video(length, goal, frames, **more):
    kwargs = {"length": length, "goal": goal}
    settings = {"task": "guerdon-tests/Counted-v0", "num_envs": 1, "frame_size": 8, "native_reward": "dense", **more}
    world = build_world(GymnasiumSettings(kwargs=kwargs, **settings), seed=1)
    Counted.drawn = 0
    moments, rewards = episode_video(world, lambda seen: np.zeros((len(seen), 1), np.float32), frames=frames)
    world.close()
    assert len(rewards) == len(moments)
    shown = moments.frames_F[:, 0, 0].astype(int)
    assert (shown[:, 0] * 256 + shown[:, 1]).tolist() == moments.rows_F.tolist(), "every picture is of its row"
    return moments, Counted.drawn


@cases("mode", ["disabled", "next_step", "same_step"])
@cases("length", [1, 7, 47, 48, 49, 333, 1000])
def test_a_video_draws_few_moments_and_always_the_first_success_and_the_end(length, mode):
    goal = max(1, length * 2 // 3)
    moments, drawn = counted_video(length, goal, 24, autoreset_mode=mode)
    rows = moments.rows_F.tolist()
    assert {0, goal, length} <= set(rows)
    assert min(length + 1, 24) <= len(rows) <= 25
    assert moments.finished
    assert drawn <= 48 + 24 * np.ceil(np.log2(max(2, length / 48))) + 4  # a thousand steps: 150 pictures
    gaps = np.diff([row for row in rows if row != goal or row == length])
    assert gaps.max() <= 2.5 * length / 23 + 2, "spread over the whole episode"
    known = [s is True for s in moments.success_F]
    assert known == [row >= goal for row in rows]


def test_an_episode_with_fewer_steps_than_pictures_is_shown_whole():
    moments, drawn = counted_video(9, None, 24)
    assert moments.rows_F.tolist() == list(range(10))
    assert drawn <= 11  # and the start of the next one
    assert set(moments.success_F[1:]) == {None}


def test_drawing_stops_in_time_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(stepping, "VIDEO_SECONDS", 0.0)
    moments, drawn = counted_video(300, 200, 24)
    assert moments.rows_F.tolist() == [0, 200, 300]
    assert drawn <= 4
    assert "up to step 200 of 300" in capsys.readouterr().err


def test_an_episode_without_end_is_cut_and_said_to_be(monkeypatch, capsys):
    monkeypatch.setattr(stepping, "VIDEO_LIMIT", 90)
    moments, _ = counted_video(300, None, 10)
    assert moments.rows_F[-1] == 90
    assert not moments.finished
    assert not moments.last_F.any()
    assert "did not end within 90 steps" in capsys.readouterr().err
