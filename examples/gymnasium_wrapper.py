"""A reward model inside Gymnasium: the reward is what a model sees in the environment's frames.

python examples/gymnasium_wrapper.py
"""

import gymnasium
import numpy as np

from guerdon import Failure, RewardInfo, Score
from guerdon.integrations import RewardFailure
from guerdon.integrations.gymnasium import RewardModelWrapper


class Dot(gymnasium.Env):
    """A dot on a line is to reach the right end, where the picture is bright."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    render_mode = "rgb_array"
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.left = float(self.np_random.uniform(-0.9, 0)), 12
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x, self.left = float(np.clip(self.x + 0.2 * action[0], -1, 1)), self.left - 1
        return np.array([self.x], np.float32), 0.0, False, self.left == 0, {"success": self.x > 0.9}

    def render(self):
        return np.full((16, 16, 3), int(127 * (self.x + 1)), np.uint8)


class Brightness:
    """How bright a frame is; a dark one cannot be measured."""

    info = RewardInfo(name="brightness", range=(0.0, 1.0))

    def score(self, episodes):
        means = [episode.frames.mean(axis=(1, 2, 3)) / 255 for episode in episodes]
        return [Score.from_values(m) if m.min() > 0.01 else Score(failure=Failure("camera", "dark")) for m in means]


if __name__ == "__main__":
    env = RewardModelWrapper(Dot(), Brightness(), reward_mode="per_step", shaping="relative", reward_coef=5.0)
    for action in (1.0, -1.0):  # to the bright end, and into the dark
        env.reset(seed=0)
        rewards, truncated = [], False
        while not truncated:
            try:
                _, reward, _, truncated, info = env.step(np.array([action], np.float32))
                rewards.append(reward)
            except RewardFailure as failure:
                _, _, _, truncated, info = failure.result
                print(f"no reward: {failure.reasons[0]}")
        print(f"sum of rewards {sum(rewards):.2f} in {len(rewards)} steps, true success {float(info['success']):.2f}")
