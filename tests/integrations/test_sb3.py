"""Stable-Baselines3 learns from a reward model, and stops where a reward is missing."""

import runpy
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import robot_episodes as robot
from gymnasium.wrappers import FlattenObservation

from guerdon.errors import ConfigError, RewardFailure
from guerdon.integrations.gymnasium import RewardModelWrapper
from guerdon.types import Failure, RewardInfo, Score

sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
from stable_baselines3.common.callbacks import EvalCallback  # noqa: E402
from stable_baselines3.common.env_checker import check_env  # noqa: E402
from stable_baselines3.common.envs import BitFlippingEnv  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize  # noqa: E402

from guerdon.integrations.sb3 import KeepTerminalFrame, RewardModelVecEnv  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "sb3_ppo.py"
PER_STEP = {"reward_mode": "per_step", "shaping": "raw"}


def copies(kind=DummyVecEnv, count=2):
    def make(first):
        return KeepTerminalFrame(FlattenObservation(robot.Playback(first=first, stride=count)))

    return kind([lambda i=i: make(i) for i in range(count)])


def learner(venv):
    return sb3.PPO("MlpPolicy", venv, n_steps=8, batch_size=8, n_epochs=1, device="cpu", seed=0)


def test_rewards_reach_the_rollout_buffer():
    venv = RewardModelVecEnv(copies(), robot.Injected({}), **PER_STEP)
    ppo = learner(venv).learn(16)
    moments = [(0, row) for row in range(1, robot.LENGTHS[0] + 1)]
    expected = [robot.VALUES[place] / 100 for place in moments][:8]
    bootstrap = not robot.BY_TASK[0]  # PPO adds the value of what a time limit cut off to the last reward
    upto = len(expected) - bootstrap
    paid = ppo.rollout_buffer.rewards[:, 0]
    np.testing.assert_array_equal(paid[:upto], np.float32(expected[:upto]))


def test_a_missing_reward_stops_learning_and_learning_can_go_on():
    venv = RewardModelVecEnv(copies(), robot.Injected({(1, 2): "timeout"}), **PER_STEP)
    ppo = learner(venv)
    with pytest.raises(RewardFailure, match="1: timeout"):
        ppo.learn(16)
    assert ppo.num_timesteps < 16
    ppo.learn(16, reset_num_timesteps=False)


@pytest.mark.slow
def test_copies_in_processes_give_the_same_rewards():
    paid = {}
    for kind in (DummyVecEnv, SubprocVecEnv):
        venv = RewardModelVecEnv(copies(kind), robot.Injected({}), **PER_STEP)
        venv.reset()
        paid[kind] = np.stack([venv.step(np.zeros((2, 1), np.float32))[1] for _ in range(8)])
        venv.close()
    np.testing.assert_array_equal(*paid.values())


def test_it_goes_under_vec_normalize_and_keeps_the_environments_own_reward():
    venv = VecNormalize(
        RewardModelVecEnv(copies(), robot.Injected({}), env_reward_weight=1.0, **PER_STEP), norm_obs=False
    )
    venv.reset()
    _, _, _, infos = venv.step(np.zeros((2, 1), np.float32))
    assert [info["env_reward"] for info in infos] == [1.0, 1.0]
    np.testing.assert_allclose(venv.get_original_reward(), 1.0 + robot.VALUES[:2, 1] / 100, rtol=1e-6)


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_reward_model_trains_as_the_same_reward_in_the_environment_does(seed):
    """The numbers in docs/integrations/sb3.md and docs/results/robots.md; both arms end with the same share."""
    example = runpy.run_path(str(EXAMPLE))
    model = example["Brightness"]()

    class Native(example["Dot"]):
        """Pays the change in brightness itself."""

        def bright(self):
            return float(np.float32(self.render()[None].mean(axis=(1, 2, 3))[0] / 255))

        def step(self, action):
            before = self.bright()
            observation, _, *ends = super().step(action)
            return observation, float(np.float32(self.bright() - before) * np.float32(5.0)), *ends

    made = [lambda: KeepTerminalFrame(example["Dot"]())] * 8
    paid = RewardModelVecEnv(DummyVecEnv(made), model, reward_mode="per_step", shaping="relative", reward_coef=5.0)
    before, after = example["train"](paid, seed)
    print(f"seed {seed}: {before:.2f} -> {after:.2f}")
    assert before <= 0.3
    assert after >= 0.6
    assert (before, after) == example["train"](DummyVecEnv([Native] * 8), seed)


class Numbered(gymnasium.Env):
    """Every moment has a number, in its observation and its frame; an episode has five steps, resets skip to tens."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(0, 255, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    render_mode = "rgb_array"
    number = -10

    def _see(self):
        return np.array([self.number], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = self.number // 10 * 10 + 10
        return self._see(), {}

    def step(self, action):
        self.number += 1
        return self._see(), 0.0, False, self.number % 10 == 5, {}

    def render(self):
        return np.full((2, 2, 3), self.number, np.uint8)


def numbered(discrete=False):
    env = Numbered()
    env.action_space = gymnasium.spaces.Discrete(2) if discrete else env.action_space
    return KeepTerminalFrame(env)


class ReadsNumbers:
    """The number in a frame, which it fails to see once where it is 13."""

    info = RewardInfo("numbers", (0.0, 255.0))

    def __init__(self, fails=True):
        self.failed = not fails

    def score(self, episodes):
        found = []
        for episode in episodes:
            number = float(episode.frames[-1, 0, 0, 0])
            fails = number == 13 and not self.failed
            self.failed |= fails
            found.append(Score(failure=Failure("timeout")) if fails else Score.from_values(np.array([number])))
        return found


SLIM = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
LEARNERS = {
    "PPO": {"n_steps": 12, "batch_size": 12, "n_epochs": 1, "gamma": 0.0},
    "A2C": {"n_steps": 12, "gamma": 0.0},
    "SAC": {},
    "SAC, slim": SLIM,
    "SAC, 3 steps": {"n_steps": 3, "gamma": 1.0},
    "TD3": {},
    "TD3, slim": SLIM,
    "DQN": {},
    "DQN, slim": SLIM,
    "DQN, full": {"buffer_size": 9},
    "DQN, full and slim": {"buffer_size": 9, **SLIM},
}


def learner_of(name, venv):
    kind = name.partition(",")[0]
    keys = {} if kind in ("PPO", "A2C") else {"learning_starts": 100, "buffer_size": 1000}
    return getattr(sb3, kind)("MlpPolicy", venv, **{**keys, **LEARNERS[name]}, device="cpu", seed=0)


AROUND = [(name, around) for name in LEARNERS for around in (None, "VecNormalize", "VecFrameStack")]


@pytest.mark.parametrize(("name", "around"), [*AROUND, ("PPO", "SubprocVecEnv"), ("SAC", "SubprocVecEnv")])
def test_after_a_failure_learning_goes_on_with_the_observation_that_the_copies_have(name, around):
    made = [partial(numbered, discrete=name.startswith("DQN"))]
    inside = SubprocVecEnv(made) if around == "SubprocVecEnv" else DummyVecEnv(made)
    venv = RewardModelVecEnv(inside, ReadsNumbers(), tries=1, **PER_STEP)
    if around == "VecNormalize":
        venv = VecNormalize(venv, norm_obs=False, norm_reward=False)
    if around == "VecFrameStack":
        venv = VecFrameStack(venv, 2)
    learner = learner_of(name, venv)
    with pytest.raises(RewardFailure, match="timeout"):
        learner.learn(12)
    assert venv.get_attr("number") == [13]
    learner.learn(12, reset_num_timesteps=False)
    if around == "SubprocVecEnv":
        venv.close()
    if name in ("PPO", "A2C"):
        kept = learner.rollout_buffer
        before, rewards = kept.observations.reshape(12, -1)[:, -1], kept.rewards.reshape(12)
        assert before.tolist() == [20, 21, 22, 23, 24, 30, 31, 32, 33, 34, 40, 41]
        np.testing.assert_allclose(rewards, before + 1)  # with gamma 0 nothing is added at the end of an episode
        return
    kept = learner.replay_buffer
    count = kept.buffer_size if kept.full else kept.pos
    wanted = [0, 1, 2, 3, 4, 10, 11, 20, 21, 22, 23, 24, 30, 31, 32, 33, 34, 40, 41]
    places = np.arange(count) if not kept.full else (np.arange(1, count) + kept.pos) % count
    found = kept._get_samples(places)
    before, after = (one[:, -1].numpy() for one in (found.observations, found.next_observations))
    assert sorted(before.tolist()) == wanted[-len(places) :]
    bootstrapped = found.dones[:, 0].numpy() == 0
    if name == "SAC, 3 steps":
        steps = np.minimum(3, [5 - one % 10 if one < 10 or one >= 20 else 12 - one for one in before])
        steps = np.minimum(steps, 42 - before)
        np.testing.assert_allclose(after, before + steps)
        np.testing.assert_allclose(found.rewards[:, 0], [sum(range(int(b) + 1, int(b + n) + 1)) for b, n in
                                                        zip(before, steps, strict=True)])  # fmt: skip
        assert bootstrapped.all()  # time limits only
        return
    np.testing.assert_allclose(found.rewards[:, 0].numpy(), before + 1)
    np.testing.assert_allclose(after[bootstrapped], before[bootstrapped] + 1)
    lost = {4, 14, 24, 34} | {11} if kept.optimize_memory_usage else set()  # that buffer ends episodes at time limits
    assert set(before[~bootstrapped]) == {one for one in lost if one in before}


def test_a_failure_while_a_callback_evaluates_resets_the_copies_too(tmp_path):
    venv = RewardModelVecEnv(DummyVecEnv([numbered]), ReadsNumbers(fails=False), tries=1, **PER_STEP)
    apart = RewardModelVecEnv(DummyVecEnv([numbered]), ReadsNumbers(), tries=1, **PER_STEP)
    learner = learner_of("SAC", venv)
    with pytest.raises(RewardFailure, match="timeout"):
        learner.learn(12, EvalCallback(apart, eval_freq=2, n_eval_episodes=3, best_model_save_path=str(tmp_path)))
    learner.learn(6, reset_num_timesteps=False)
    kept = learner.replay_buffer
    before, after = kept.observations[: kept.pos, 0, 0], kept.next_observations[: kept.pos, 0, 0]
    assert before.tolist() == [0, 10, 11, 12, 13, 14, 20]
    np.testing.assert_allclose(after, before + 1)
    np.testing.assert_allclose(kept.rewards[: kept.pos, 0], after)


def test_relabelling_is_refused_and_other_methods_of_the_copies_are_not():
    made = [lambda: FlattenObservation(RewardModelWrapper(Goals(), robot.Injected({}), **PER_STEP))]
    inside = DummyVecEnv([lambda: Goals()])
    for venv in (RewardModelVecEnv(inside, robot.Injected({}), **PER_STEP), DummyVecEnv(made)):
        with pytest.raises(ConfigError, match="HerReplayBuffer"):
            venv.env_method("compute_reward", np.zeros((1, 2)), np.zeros((1, 2)), [{}], indices=[0])
        assert venv.env_method("twice", 4) == [8]
    plain = RewardModelWrapper(robot.Playback(), robot.Injected({}), **PER_STEP)
    assert not plain.has_wrapper_attr("compute_reward")
    with pytest.raises(AttributeError):
        plain.get_wrapper_attr("compute_reward")


class Goals(robot.Playback):
    """An environment with goals, which rewards them itself."""

    def compute_reward(self, achieved, desired, info):
        return -np.ones(len(achieved))

    def twice(self, number):
        return 2 * number


@pytest.mark.parametrize("copy_info_dict", [False, True])
@pytest.mark.parametrize("goals", [0, 4])
def test_hindsight_replay_does_not_learn_from_the_environments_own_reward(copy_info_dict, goals):
    venv = RewardModelVecEnv(
        DummyVecEnv([lambda: KeepTerminalFrame(BitFlipping())]), {"model_type": "constant", "value": 0.5}, **PER_STEP
    )
    learner = sb3.SAC("MultiInputPolicy", venv, replay_buffer_class=sb3.HerReplayBuffer, learning_starts=20,
                      replay_buffer_kwargs={"copy_info_dict": copy_info_dict, "n_sampled_goal": goals},
                      device="cpu", seed=0)  # fmt: skip
    with pytest.raises(ConfigError, match="compute_reward"):
        learner.learn(30)


class BitFlipping(BitFlippingEnv):
    """That of Stable-Baselines3, with a picture."""

    def __init__(self):
        super().__init__(n_bits=4, continuous=True)
        self.render_mode = "rgb_array"

    def render(self):
        return np.full((2, 2, 3), 9, np.uint8)


@pytest.mark.parametrize("autoreset", [False, True])
def test_the_checkers_accept_the_wrapper(autoreset):
    env = gymnasium.make(robot.ID)
    env = gymnasium.wrappers.Autoreset(env) if autoreset else env
    check_env(FlattenObservation(RewardModelWrapper(env, robot.Injected({}), **PER_STEP)), warn=False)


def test_of_stacked_wrappers_the_environments_own_reward_is_kept():
    venv = RewardModelVecEnv(copies(), robot.Injected({}), **PER_STEP)
    venv = RewardModelVecEnv(venv, {"model_type": "constant", "value": 0.5}, env_reward_weight=1.0, **PER_STEP)
    venv.reset()
    _, rewards, _, infos = venv.step(np.zeros((2, 1), np.float32))
    assert [info["env_reward"] for info in infos] == [1.0, 1.0]
    np.testing.assert_allclose(rewards, 0.5 + robot.VALUES[:2, 1] / 100, rtol=1e-6)
