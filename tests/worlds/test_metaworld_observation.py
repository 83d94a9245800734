"""The quick observation of a Meta-World copy equals Meta-World's own, bit for bit."""

import numpy as np
import pytest

from guerdon.worlds.metaworld import TASK_TEXTS

pytest.importorskip("metaworld")

from metaworld.sawyer_xyz_env import SawyerXYZEnv

from guerdon.worlds.metaworld import MetaWorldVectorEnv

ONE_OBJECT, TWO_OBJECTS = "window-close", "stick-push"


def check(task, steps):
    world = MetaWorldVectorEnv(task, 1)
    world.reset(seed=[5])
    env = world._envs[0]
    rng = np.random.default_rng(0)
    for _ in range(steps):
        world.step(rng.uniform(-1, 1, (1, 4)).astype(np.float32))
        before = env._prev_obs.copy()
        quick = env._get_obs()
        env._prev_obs = before
        own = SawyerXYZEnv._get_curr_obs_combined_no_goal(env)
        np.testing.assert_array_equal(quick, np.hstack((own, before, env._get_pos_goal())))
        assert quick.dtype == own.dtype


@pytest.mark.parametrize("task", [ONE_OBJECT, TWO_OBJECTS])
def test_observation_is_meta_worlds_own(task):
    check(task, 20)


@pytest.mark.parametrize("partially", [True, False])
def test_goal_is_hidden_where_the_task_hides_it(partially):
    world = MetaWorldVectorEnv(ONE_OBJECT, 1)
    world.reset(seed=[5])
    env = world._envs[0]
    env._partially_observable = partially
    before = env._prev_obs.copy()
    quick = env._get_obs()
    env._prev_obs = before
    np.testing.assert_array_equal(quick, SawyerXYZEnv._get_obs(env))


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(TASK_TEXTS))
def test_observation_of_every_task(task):
    check(task, 30)
