"""What the conformance suite does not show: refusals, retries, rewards that are added, and going on after a failure."""

import runpy
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import robot_episodes as robot
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from guerdon.errors import ConfigError, RewardFailure
from guerdon.integrations.gymnasium import RewardModelVectorWrapper, RewardModelWrapper
from guerdon.types import Failure, RewardInfo, Score

EXAMPLES = Path(__file__).parents[2] / "examples"
STILL = np.zeros(1, np.float32)


class Clip(robot.Injected):
    info = RewardInfo(name="clip", range=(0.0, 1.0), frames_needed=8)


class Transient(robot.Injected):
    """Fails to measure every frame at the first try."""

    def _one(self, frames):
        score = super()._one(frames)
        return Score(failure=Failure("timeout")) if self.looks[robot.place(frames[0])] == 1 else score


def wrapped(model=None, env=None, **given):
    env = RewardModelWrapper(env or robot.Playback(), robot.Injected({}) if model is None else model, **given)
    env.reset()
    return env


PER_STEP = {"reward_mode": "per_step", "shaping": "raw"}


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (None, {"on_failure": "drop"}, "raises RewardFailure"),
        (None, {"reward_weight": 2.0}, "take reward_coef"),
        (None, {"shapping": "raw"}, "shaping"),
        (None, {"shaping": "relative"}, "per_step"),
        (None, {"tries": 0}, "at least 1"),
        (None, {"task": ["one", "two"]}, "2 tasks for 1 copies"),
        (Clip(), PER_STEP, "looks at 8 frames at a time"),
        ({"model_type": "nothing"}, {}, "nothing"),
    ],
)
def test_keys_that_cannot_work_are_refused(model, given, message):
    with pytest.raises(ConfigError, match=message):
        wrapped(model, **given)


def test_a_model_by_its_keys_and_a_reward_that_is_added():
    env = wrapped({"model_type": "constant", "value": 0.25}, env_reward_weight=2.0, **PER_STEP)
    assert env.step(STILL)[1] == 2.25  # the environment's own is the row
    _, reward, _, _, info = env.step(STILL)
    assert (reward, info["env_reward"]) == (4.25, 2.0)


def test_success_is_the_environments_own():
    env = wrapped(**PER_STEP)
    done = False
    while not done:
        _, _, terminated, truncated, info = env.step(STILL)
        done = terminated or truncated
    assert info["success"] == bool(robot.BY_TASK[0])


def test_a_step_after_the_end_asks_for_a_reset():
    env = wrapped()
    for _ in range(robot.LENGTHS[0]):
        env.step(STILL)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(STILL)
    env.reset()
    env.step(STILL)


def test_a_failure_that_passes_is_tried_again():
    model = Transient({})
    env = wrapped(model, tries=2, **PER_STEP)
    assert env.step(STILL)[1] == np.float32(robot.VALUES[0, 1] / 100)
    assert model.looks == {(0, 1): 2}


def test_the_change_after_a_failure_counts_from_the_last_known_value():
    model = robot.Injected({(0, 1): "timeout"})
    env = wrapped(model, reward_mode="per_step", shaping="relative")
    with pytest.raises(RewardFailure, match=r"step 1 of the episode.*timeout: injected") as caught:
        env.step(STILL)
    observation, reward, terminated, _, info = caught.value.result
    assert np.isnan(reward)
    assert not terminated
    assert info["env_reward"] == 1.0
    assert robot.place(observation["image"]) == (0, 1)
    assert env.step(STILL)[1] == pytest.approx((robot.VALUES[0, 2] - robot.VALUES[0, 0]) / 100)


def test_only_the_frames_that_are_scored_are_drawn():
    playback = robot.Playback()
    env = wrapped(env=playback)  # terminal mode
    for _ in range(robot.LENGTHS[0]):
        env.step(STILL)
    assert playback.drawn == {(0, int(robot.LENGTHS[0])): 1}


@pytest.mark.parametrize(
    ("frames", "message"),
    [("picture", "which has image"), (lambda seen: seen["image"][0, 0], r"shape \(3,\)")],
)
def test_frames_that_are_not_there_are_refused(frames, message):
    with pytest.raises(ConfigError, match=message):
        wrapped(frames=frames, **PER_STEP).step(STILL)


def test_an_environment_that_draws_nothing_is_refused():
    playback = robot.Playback()
    playback.render = lambda: None
    with pytest.raises(ConfigError, match="render_mode='rgb_array'"):
        wrapped(env=playback, **PER_STEP).step(STILL)


def test_a_terminal_picture_that_nothing_kept_is_refused():
    env = SyncVectorEnv([robot.Playback], autoreset_mode=AutoresetMode.SAME_STEP)
    env = RewardModelVectorWrapper(env, robot.Injected({}))
    env.reset()
    for _ in range(robot.LENGTHS[0] - 1):
        env.step(np.zeros((1, 1), np.float32))
    with pytest.raises(ConfigError, match="KeepTerminalFrame"):
        env.step(np.zeros((1, 1), np.float32))


def test_one_copy_failing_leaves_the_rewards_of_the_others_readable():
    model = robot.Injected({(1, 1): "timeout"})
    make = [lambda i=i: robot.Playback(first=i, stride=3) for i in range(3)]
    env = RewardModelVectorWrapper(SyncVectorEnv(make), model, **PER_STEP)
    env.reset()
    with pytest.raises(RewardFailure) as caught:
        env.step(np.zeros((3, 1), np.float32))
    assert caught.value.reasons == {1: "timeout: injected"}
    rewards = caught.value.result[1]
    expected = np.float32(robot.VALUES[[0, 2], 1] / 100)
    np.testing.assert_array_equal(rewards[[0, 2]], expected)
    assert np.isnan(rewards[1])


def test_the_example_runs(capsys):
    runpy.run_path(str(EXAMPLES / "gymnasium_wrapper.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "true success 1.00" in said
    assert "camera: dark" in said
    assert len((EXAMPLES / "gymnasium_wrapper.py").read_text().splitlines()) < 60
