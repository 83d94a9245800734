"""The quick observation and the quick step of a Meta-World copy equal Meta-World's own, bit for bit."""

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


def check_steps(task, steps):
    world = MetaWorldVectorEnv(task, 1)
    quick = world._envs[0]
    own = type(quick).__mro__[2]()  # without the mixin
    for env in (quick, own):
        env.set_task(world._goals[3])
        env.reset()
    rng = np.random.default_rng(0)
    for _ in range(steps):
        action = rng.normal(0, 2, 4).astype(np.float32)
        for a, b in zip(quick.step(action)[:2], own.step(action)[:2], strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(quick.tcp_center, own.tcp_center)
    for name in ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat", "site_xpos", "efc_force"):
        np.testing.assert_array_equal(getattr(quick.data, name), getattr(own.data, name))


@pytest.mark.parametrize("task", [ONE_OBJECT, TWO_OBJECTS])
def test_step_is_meta_worlds_own(task):
    check_steps(task, 20)


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


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(TASK_TEXTS))
def test_step_of_every_task(task):
    check_steps(task, 60)
