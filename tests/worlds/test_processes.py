"""Copies in processes of their own: the numbers of one process, and a broken one costs its own episode alone."""

import os
import signal

import numpy as np
import pytest

import fragile
from fragile import WAYS
from guerdon.collect.stepping import evaluate
from guerdon.errors import SimulatorError
from guerdon.settings.world import GymnasiumSettings, LiberoSettings, MetaWorldSettings, OwnWorldSettings
from guerdon.worlds.build import build_world
from tables import first, refuses, sample

PARTS = ("observations", "final_observations", "rewards", "terminated", "truncated", "success", "success_known", "mask")


def settings(copies=2, breaks=None, **more):
    kwargs = {"breaks": {str(seed): way for seed, way in (breaks or {}).items()}}
    more = {"vectorization": "async", "max_episode_steps": None, "frame_size": 8, **more}
    return GymnasiumSettings(task=fragile.ID, num_envs=copies, kwargs=kwargs, **more)


def seed_of(copy, episode, copies=2, seed=0):
    """That with which a world begins an episode."""
    world = build_world(settings(copies, vectorization="sync"), seed=seed)
    world.rewind(episode)
    found = world.episode_seed(copy)
    world.close()
    return found


def stepped(world, count):
    """Transitions with all looks, which are drawn at the end."""
    start = world.reset()
    taken = [start]
    everything = np.ones(world.num_envs, np.bool_)
    for t in range(count):
        actions = np.random.default_rng(t).uniform(-1, 1, (world.num_envs, *world.action_space.shape))
        taken.append(world.step(actions, capture=everything, capture_ends=True))
    return taken


def pictures(world, taken):
    return world.render([look for one in taken for part in (one.looks, one.first_looks) for look in part.values()])


def same(taken, others):
    for t, (one, other) in enumerate(zip(taken, others, strict=True)):
        for name in PARTS:
            assert np.array_equal(getattr(one, name), getattr(other, name)), (t, name)
        assert list(one.looks) == list(other.looks)
        assert list(one.first_looks) == list(other.first_looks)


@pytest.mark.parametrize("together", sample([1, 2], 2))
@pytest.mark.parametrize("observation", ["state", "pixels"])
def test_processes_give_the_numbers_and_pictures_of_one(together, observation):
    given = settings(3, num_envs_per_process=together, observation=observation)
    alone = build_world(given.of_copies(range(3)), seed=4)
    apart = build_world(given, seed=4)
    assert len(apart.env.pids) == len(set(apart.env.pids)) == -(-3 // together)
    taken, others = stepped(alone, 11), stepped(apart, 11)
    same(taken, others)
    assert np.array_equal(pictures(alone, taken), pictures(apart, others))
    for world in (alone, apart):
        world.close()


def test_metaworld_in_processes_is_metaworld_bit_for_bit():
    given = {"task": "door-close", "num_envs": 3, "max_episode_steps": 12, "frame_size": 32}
    alone = build_world(MetaWorldSettings(**given), seed=4)
    apart = build_world(MetaWorldSettings(**given, vectorization="async", num_envs_per_process=2), seed=4)
    taken, others = stepped(alone, 15), stepped(apart, 15)
    same(taken, others)
    os.kill(apart.env.pids[0], signal.SIGKILL)
    assert np.array_equal(pictures(alone, taken), pictures(apart, others)), "drawn by a process that was replaced"
    assert sorted(apart.step(np.zeros((3, 4))).failures) == [0, 1]
    apart.load_state(2, alone.save_state(0))
    actions = np.full((3, 4), 0.3, np.float32)
    assert np.array_equal(alone.step(actions).observations[0], apart.step(actions).observations[2])
    for world in (alone, apart):
        world.close()


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("way", first(WAYS, 3))
def test_a_broken_simulator_costs_its_own_episode(way):
    broken = settings(breaks={seed_of(1, 1): way}, step_timeout=2.0)
    whole, world = build_world(settings(), seed=0), build_world(broken, seed=0)
    taken, others = stepped(whole, 12), stepped(world, 12)
    failed = [(t, i, why) for t, one in enumerate(others) for i, why in one.failures.items()]
    assert [(t, i, why.reason) for t, i, why in failed] == [(6, 1, WAYS[way])], "at age 2 of its second episode"
    assert way != "raises" or "the gripper fell off" in failed[0][2].detail
    assert way != "exits" or failed[0][2].detail.endswith("called sys.exit(3)")
    assert world.env.restarts == 1
    for t, (one, other) in enumerate(zip(taken, others, strict=True)):  # the neighbour notices nothing
        for name in PARTS:
            assert np.array_equal(getattr(one, name)[0], getattr(other, name)[0]), (t, name)
    at = others[6]
    assert not any((at.mask[1], at.done[1], at.success[1], at.success_known[1], at.rewards[1]))
    assert 1 not in at.looks
    assert 1 in at.first_looks
    later = [one.observations[1].tolist() for one in others[6:]]
    first = later[0][1]
    assert later[:4] == [[0, first], [1, first], [2, first], [3, first]]
    assert first == float(np.random.Generator(np.random.PCG64(seed_of(1, 2))).integers(250)), "another start"
    world.close()
    whole.close()


def test_copies_in_one_process_break_together(capsys):
    world = build_world(settings(4, {seed_of(1, 0, 4): "dies"}, num_envs_per_process=2), seed=0)
    taken = stepped(world, 3)
    assert [sorted(one.failures) for one in taken] == [[], [], [0, 1], []]
    assert taken[3].mask.all()
    os.kill(world.env.pids[1], signal.SIGKILL)
    assert world.save_state(2) is None
    with pytest.raises(SimulatorError, match="reset it before"):
        world.load_state(3, None)
    world.close()
    told = capsys.readouterr().err
    assert told.count("a simulator broke and is started again (later ones are counted): simulator_died") == 1
    assert world.env.restarts == 2


@pytest.mark.hostile("parts")
def test_a_process_that_is_killed_between_steps_loses_an_episode_but_no_picture():
    world = build_world(settings(step_timeout=2.0), seed=0)
    taken = stepped(world, 3)
    os.kill(world.env.pids[0], signal.SIGKILL)
    assert np.array_equal(pictures(world, taken)[:, 0, 0, 0], [0, 0, 1, 1, 2, 2, 3, 3])
    after = world.step(np.zeros((2, 2)), capture=np.ones(2, np.bool_), capture_ends=True)
    assert list(after.failures) == [0]
    assert after.mask.tolist() == [False, True]
    os.kill(world.env.pids[0], signal.SIGKILL)
    assert world.render(list(world._look(np.ones(2, np.bool_)).values())).any(axis=(1, 2, 3)).all(), "begun again"
    again = world.step(np.zeros((2, 2)))
    assert not again.failures
    assert world.env.restarts == 2
    os.kill(world.env.pids[1], signal.SIGKILL)
    assert world.render(list(world._look(np.ones(2, np.bool_)).values())).shape == (2, 8, 8, 3)
    assert list(world.step(np.zeros((2, 2))).failures) == [1], "it had taken steps"
    world.close()


@pytest.mark.hostile("parts")
def test_a_simulator_that_cannot_start_stops_the_run_and_shows_its_messages():
    given = OwnWorldSettings(type="fragile:never", task="walk", num_envs=1, vectorization="async")
    with pytest.raises(SimulatorError, match=r"(?s)does not start.*exit status 7.*no licence for the physics.*sync"):
        build_world(given, seed=0)
    with refuses("env.task", "wndow-close"):
        build_world(MetaWorldSettings(task="wndow-close", num_envs=1, vectorization="async"), seed=0)


@pytest.mark.hostile("parts")
def test_an_exception_leaves_no_answer_for_the_next_request():
    world = build_world(settings(breaks={seed_of(0, 0): "refuses"}), seed=0)
    world.reset()
    world.step(np.zeros((2, 2)))
    with pytest.raises(SimulatorError, match="the gripper is not licensed"):
        world.step(np.zeros((2, 2)))
    assert list(world.step(np.zeros((2, 2))).failures) == [1], "its answer to the step before was not read"
    assert world.reset().observations[:, 0].tolist() == [0, 0]
    assert world.step(np.zeros((2, 2))).observations[:, 0].tolist() == [1, 1]
    world.close()


@pytest.mark.hostile("parts")
def test_messages_of_a_process_do_not_fill_the_disk():
    world = build_world(settings(1, {seed_of(0, 0, 1): "talks"}), seed=0)
    stepped(world, 3)
    assert os.fstat(world.env._processes[0]._said.fileno()).st_size == 0
    world.close()


def test_a_neighbour_that_is_lost_at_a_reset_keeps_its_last_observation():
    world = build_world(settings(num_envs_per_process=2), seed=0)
    start = world.reset().observations
    world.step(np.zeros((2, 2)))
    os.kill(world.env.pids[0], signal.SIGKILL)
    shown, _ = world.env.reset(seed=[5, None], options={"reset_mask": np.array([True, False])})
    assert shown[:, 0].tolist() == [0, 1], "a checkpoint of this moment can be replayed"
    assert shown[1, 1] == start[1, 1]
    assert list(world.step(np.zeros((2, 2))).failures) == [1]
    world.close()


def test_evaluation_repeats_an_episode_and_then_leaves_it_out(tmp_path):
    breaks = {seed_of(0, 0): f"dies once {tmp_path / 'x'}", seed_of(1, 1): "nan"}
    whole = build_world(settings(), seed=0)
    world = build_world(settings(breaks=breaks), seed=0, tries=1)
    found, wanted = (evaluate(w, lambda seen: np.zeros((2, 2)), episodes=6) for w in (world, whole))
    assert (found["episodes"], found["episodes_failed"]) == (5, 3)
    assert wanted["episodes"] == 6
    assert "episodes_failed" not in wanted
    firsts = [np.random.Generator(np.random.PCG64(seed_of(i, n))).integers(250) for i in range(2) for n in range(3)]
    assert found["success"] == pytest.approx(np.mean([f > 100 for k, f in enumerate(firsts) if k != 4]))
    world.close()
    whole.close()


def test_settings_that_would_do_nothing_are_refused():
    with refuses("step_timeout"):
        MetaWorldSettings(step_timeout=5)
    with refuses("render_workers"):
        MetaWorldSettings(vectorization="async", render_workers=2)
    with refuses("vectorization"):
        GymnasiumSettings(task="Pendulum-v1", vectorization="async", autoreset_mode="next_step")
    shares = {"suite": "libero_goal", "task_ids": (3, 5), "num_envs": 8, "vectorization": "async"}
    one = LiberoSettings(**shares, num_envs_per_process=2)
    assert [one.of_copies(range(i, i + 2)).task_ids for i in (0, 2, 4, 6)] == [(3,), (3,), (5,), (5,)]
    assert LiberoSettings(**shares, num_envs_per_process=8).of_copies(range(8)).task_ids == (3, 5)
    with refuses("num_envs_per_process", "unevenly"):
        LiberoSettings(**shares, num_envs_per_process=3)
