"""A point on a line that should reach a goal: `env.task: goal_world:Goal-v1`."""

import gymnasium
import numpy as np


class Goal(gymnasium.Env):
    """The reward is 0 within 0.1 of the goal, else -1, as in gymnasium-robotics."""

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        point = gymnasium.spaces.Box(-2, 2, (1,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            {"observation": point, "achieved_goal": point, "desired_goal": point}
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.abs(achieved_goal - desired_goal)[..., 0] > 0.1).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.goal = self.np_random.uniform(-1, 1, (2, 1)).astype(np.float32)
        return self._see(), {}

    def step(self, action):
        self.x = np.clip(self.x + 0.2 * action, -1, 1).astype(np.float32)
        reward = float(self.compute_reward(self.x, self.goal, {}))
        return self._see(), reward, False, False, {"is_success": reward == 0}

    def _see(self):
        return {"observation": 2 * self.x, "achieved_goal": self.x, "desired_goal": self.goal}


if "Goal-v1" not in gymnasium.registry:
    gymnasium.register("Goal-v1", Goal, max_episode_steps=10, disable_env_checker=True)


class Effort(Goal):
    """Its reward is less by the effort of the action, which only info says; the first action of an episode has none."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return super().compute_reward(achieved_goal, desired_goal, info) - info.get("effort", np.zeros(2))[1]

    def reset(self, *, seed=None, options=None):
        self.age = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        shown, _, *ends, info = super().step(action)
        self.age += 1
        info["effort"] = np.array([0.0, 0.0 if self.age == 1 else round(float(abs(action[0])), 3)])
        return shown, float(self.compute_reward(self.x, self.goal, info)), *ends, info


if "GoalEffort-v1" not in gymnasium.registry:
    gymnasium.register("GoalEffort-v1", Effort, max_episode_steps=10, disable_env_checker=True)
