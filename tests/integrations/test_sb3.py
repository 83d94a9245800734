"""Stable-Baselines3 learns from a reward model, and stops where a reward is missing."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import robot_episodes as robot
from gymnasium.wrappers import FlattenObservation

from guerdon.errors import RewardFailure

sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize  # noqa: E402

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
    """The numbers in docs/integrations/sb3.md and docs/results.md; both arms end with the same share."""
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
