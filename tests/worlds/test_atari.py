"""Atari games: the pictures are those of Gymnasium's wrapper, and a lost life ends the task for learning alone."""

import gymnasium
import numpy as np
import pytest

from guerdon.rewards.source import GroundTruth, SourceTerms
from guerdon.rl.episode_stats import EpisodeStats
from guerdon.settings.study import Study
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.returned import LIFE_LOST
from tables import refuses

GAME = "ale_py:ALE/Breakout-v5"


@pytest.fixture(scope="module")
def games():
    pytest.importorskip("cv2", reason="needs guerdon[games]")
    ale = pytest.importorskip("ale_py", reason="needs guerdon[games]")
    gymnasium.register_envs(ale)
    return ale


@pytest.mark.parametrize("task", ["ale_py:ALE/Pong-v5", "ale_py:ALE/MsPacman-v5"])
def test_pictures_and_rewards_are_those_of_gymnasiums_wrapper(games, task):
    from guerdon.worlds.build import build_world

    world = build_world(GymnasiumSettings(task=task, num_envs=1, native_reward="dense", atari=True), seed=0)
    ours = world.reset().observations
    fires = task.endswith("Pong-v5")
    other = gymnasium.make(task, frameskip=1)
    theirs = gymnasium.wrappers.AtariPreprocessing(other)
    frames = [theirs.reset(seed=world.episode_seed(0))[0]]
    if fires:
        frames = [theirs.step(1)[0]]
    frames *= 4
    rng, paid = np.random.default_rng(0), 0.0
    for _ in range(100):
        assert np.array_equal(ours[0], np.stack(frames[-4:], axis=-1))
        action = int(rng.integers(world.action_space.nvec[0]))
        transition = world.step(np.array([[action]]))
        shown, reward, terminated, truncated, _ = theirs.step(action)
        assert (transition.rewards[0], transition.terminated[0]) == (reward, terminated)
        assert not truncated
        frames.append(shown)
        ours, paid = transition.final_observations, paid + abs(reward)
    assert ours.shape == (1, 84, 84, 4)
    assert paid or fires, "points come early in MsPacman"
    world.close()


def test_a_lost_life_is_said_and_the_game_goes_on(games):
    from guerdon.worlds.build import build_world

    world = build_world(GymnasiumSettings(task=GAME, num_envs=2, native_reward="dense", atari=True), seed=0)
    world.reset()
    lost, ended = np.zeros(2, int), np.zeros(2, int)
    for _ in range(400):  # without moving: the ball is lost each time, and FIRE brings the next
        transition = world.step(np.zeros((2, 1), int))
        lost += transition.life_lost
        ended += transition.terminated
        assert not (transition.life_lost & transition.done).any()
        if ended.all():
            break
    assert ended.all(), "the game waits for FIRE"
    assert (lost >= 4 * ended).all(), "five lives, of which the last ends the game"
    world.close()


class Dying(gymnasium.Env):
    """A game of six steps with points of 5 and -3; a life is lost at the third."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        info = {LIFE_LOST: True} if self.steps == 3 else {}
        return np.full(1, self.steps, np.float32), (5.0, -3.0)[self.steps % 2], self.steps == 6, False, info


gymnasium.register("Dying-v0", lambda **given: Dying(), order_enforce=False)


def collected(**given):
    from guerdon.collect.control import ControlCollector
    from guerdon.settings.policy import MLPPolicySettings

    env = GymnasiumSettings(task="Dying-v0", num_envs=2, native_reward="dense")
    collector = ControlCollector(env, MLPPolicySettings(hidden=(4,)), seed=0, rollout_steps=6, **given)
    return collector.collect(collector.build_policy())


def test_advantages_stop_at_a_lost_life_and_returns_do_not():
    from guerdon.rl.learner import source_advantages
    from guerdon.settings.algorithm import ControlAlgorithmSettings

    rollout = collected(heads=["env"])
    assert rollout.life_lost.tolist() == [[False, False, True, False, False, False]] * 2
    assert not rollout.terminated[:, 2].any()
    terms = {"env": SourceTerms("env", gamma=0.9)}
    rewards = {"env": GroundTruth(terms["env"], clipped=True).measure(rollout)}
    found = source_advantages(rollout, rewards, terms, {"env": 1.0}, ControlAlgorithmSettings(gae_lambda=1.0))
    values = rollout.values["env"]
    assert np.allclose(found.advantages[:, 2], -1.0 - values[:, 2])
    assert np.allclose(found.advantages[:, 1], 1.0 - 0.9 - values[:, 1])
    rows = EpisodeStats(["env"], learned=[], num_streams=2).add(rollout, rewards, {"env": 1.0}, step=12)
    assert [row["return/env"] for row in rows] == [6.0, 6.0]
    assert rows[0]["length"] == 6


def test_transitions_of_a_replay_stop_at_a_lost_life(tmp_path):
    from guerdon.rl.replay import Replay

    rollout = collected(algorithm="dqn")
    replay = Replay(tmp_path, ["env"])
    rewards = {"env": GroundTruth(SourceTerms("env"), clipped=True).measure(rollout)}
    replay.add(rollout, rollout.actions, rewards)
    rows = replay.transitions
    assert replay.terminated(rows).reshape(2, 6).tolist() == [[False, False, True, False, False, True]] * 2
    assert replay.paid["env"]["reward"][rows].tolist() == [-1.0, 1.0] * 6
    assert replay.rows("ended")[rows].reshape(2, 6).sum(axis=1).tolist() == [1, 1]


def test_it_is_refused_where_it_would_do_nothing():
    for given, key, said in (
        ({"task": "CartPole-v1"}, "atari", "is about games of ALE"),
        ({"task": "ALE/Pong-v5", "kwargs": {"frameskip": 2}}, "kwargs", "frameskip"),
        ({"task": "ALE/Pong-v5", "native_reward": "sparse"}, "native_reward", "must be dense"),
    ):
        with refuses(key, said):
            Study.model_validate({"env": {"type": "gymnasium", "atari": True, "native_reward": "dense", **given}})
    assert GymnasiumSettings(task="ALE/Pong-v5", native_reward="dense", atari=True).frame_stack == 4
