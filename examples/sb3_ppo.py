"""PPO of Stable-Baselines3 with the rewards of a model of frames: `python examples/sb3_ppo.py`."""

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from guerdon import RewardInfo, Score
from guerdon.integrations.sb3 import KeepTerminalFrame, RewardModelVecEnv

LENGTH = 12


class Dot(gymnasium.Env):
    """A dot on a line is to reach the right end, where the picture is bright."""

    render_mode = "rgb_array"
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.left = float(self.np_random.uniform(-0.9, 0)), LENGTH
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x, self.left = float(np.clip(self.x + 0.2 * action[0], -1, 1)), self.left - 1
        return np.array([self.x], np.float32), 0.0, False, self.left == 0, {"success": self.x > 0.9}

    def render(self):
        return np.full((16, 16, 3), int(127 * (self.x + 1)), np.uint8)


class Brightness:
    """How bright a frame is: 0 black, 1 white."""

    info = RewardInfo(name="brightness", range=(0.0, 1.0))

    def score(self, episodes):
        return [Score.from_values(episode.frames.mean(axis=(1, 2, 3)) / 255) for episode in episodes]


def success(ppo):
    """Share of 50 starts from which the policy ends at the goal: true success."""
    x = np.linspace(-0.9, 0, 50, dtype=np.float32)[:, None]
    for _ in range(LENGTH):
        x = np.clip(x + 0.2 * ppo.predict(x, deterministic=True)[0], -1, 1)
    return float((x > 0.9).mean())


def train(venv, seed):
    """True success before and after training."""
    ppo = PPO("MlpPolicy", venv, n_steps=48, batch_size=96, learning_rate=1e-3, gamma=0.9, seed=seed, device="cpu")
    return success(ppo), success(ppo.learn(6000))


if __name__ == "__main__":
    copies = DummyVecEnv([lambda: KeepTerminalFrame(Dot())] * 8)
    paid = RewardModelVecEnv(copies, Brightness(), reward_mode="per_step", shaping="relative", reward_coef=5.0)
    print("true success {:.2f} -> {:.2f}".format(*train(paid, seed=0)))
