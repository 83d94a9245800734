"""Copies that change their task: observations, pictures, words and resuming, in one process and in several."""

import numpy as np
import pytest

from guerdon.errors import CheckpointError
from guerdon.settings.world import GymnasiumSettings, LiberoSettings, MetaWorldSettings
from guerdon.types import Failure
from guerdon.worlds.build import build_world
from guerdon.worlds.world import ObservationSpec
from ladder import IDS, LENGTH
from tables import cases, refuses

SPEC = ObservationSpec(states=True, task=True, frames=(8, 8))


def settings(copies=4, **more):
    given = {"max_episode_steps": None, "frame_size": 8, "task_ids": IDS, **more}
    return GymnasiumSettings(num_envs=copies, **given)


def played(world, count, *, start=None):
    """What the copies show at every step, and which task that says."""
    world.show(SPEC)
    shown = [world.reset().observations if start is None else start]
    for t in range(count):
        actions = np.random.default_rng(t).uniform(-1, 1, (world.num_envs, 1))
        shown.append(world.step(actions).observations)
    return shown


def check(shown_B):
    """Words, one-hot, the task's own numbers and its picture say the same."""
    for row in shown_B:
        task = IDS.index(str(row["task"]))
        state = row["states"]
        assert state[4:].tolist() == [float(k == task) for k in range(3)]
        assert state[2:4].tolist() == [[0, 0], [7, 0], [7, 7]][task]
        assert (row["frames"] == np.array([task + 1, state[0], state[1]])).all()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_episodes_play_the_tasks_in_turn(vectorization):
    more = {"num_envs_per_process": 2} if vectorization == "async" else {}
    world = build_world(settings(vectorization=vectorization, **more), seed=3)
    shown = played(world, 3 * LENGTH)
    for rows in shown:
        check(rows)
    words = [rows["task"].tolist() for rows in shown]
    assert words[0] == [IDS[0], IDS[1], IDS[2], IDS[0]]
    assert words[LENGTH - 1] == words[0]
    assert words[LENGTH] == [IDS[1], IDS[2], IDS[0], IDS[1]]  # episodes 4 to 7
    assert world.tasks == tuple(words[-1])
    world.close()


def test_processes_give_the_numbers_of_one():
    one, other = (build_world(settings(vectorization=how), seed=3) for how in ("sync", "async"))
    for alone, apart in zip(played(one, 10), played(other, 10), strict=True):
        assert np.array_equal(alone, apart)
    one.close()
    other.close()


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("cut", [0, 5, 9])
def test_a_world_comes_back_to_the_tasks_it_was_in(adaptive, cut):
    given = settings(use_curriculum=True, curriculum_over="both", curriculum_states=6) if adaptive else settings()
    world = build_world(given, seed=3, adaptive=adaptive)
    shown = played(world, cut)
    state = world.state_dict()
    drawn = world.curriculum.state_dict() if adaptive else None
    again = build_world(given, seed=3, adaptive=adaptive)
    again.show(SPEC)
    if adaptive:
        again.curriculum.load_state_dict(drawn)
    again.load_state_dict(state)
    assert np.array_equal(again.observations, shown[-1])
    for one, other in zip(*(played(w, 9, start=shown[-1]) for w in (world, again)), strict=True):
        assert np.array_equal(one, other)
    world.close()
    again.close()


def test_a_terminal_observation_is_of_the_task_that_ended():
    world = build_world(settings(1), seed=3)
    world.show(SPEC)
    world.reset()
    for t in range(2 * LENGTH):
        step = world.step(np.zeros((1, 1)), capture_ends=True)
        check(step.final_observations)
        if step.done.any():
            ended, begun = world.render([step.looks[0]])[0], world.render([step.first_looks[0]])[0]
            assert ended[0, 0, 0] == 1 + t // LENGTH
            assert begun[0, 0, 0] == 2 + t // LENGTH
    world.close()


def test_starts_of_a_curriculum_are_numbers_of_resets():
    world = build_world(settings(2, use_curriculum=True, curriculum_states=3), seed=3, adaptive=True)
    world.reset()
    seeds = set()
    for _ in range(12 * LENGTH):
        world.step(np.zeros((2, 1)))
        seeds |= {world.episode_seed(i) for i in range(2)}
    assert seeds == {0, 1, 2}
    assert world.curriculum.episodes.sum() == 24
    world.close()


def test_one_task_has_a_curriculum_of_starts():
    given = GymnasiumSettings(task=IDS[1], num_envs=2, use_curriculum=True, curriculum_states=4, frame_size=8)
    world = build_world(given.model_copy(update={"max_episode_steps": None}), seed=3, adaptive=True)
    world.reset()
    for _ in range(20 * LENGTH):
        world.step(np.zeros((2, 1)))
    played = world.curriculum.episodes[0]
    assert (played > 0).all()
    assert set(world.curriculum.successes[0] / played) == {0.0, 1.0}
    world.close()


def test_evaluations_have_no_curriculum():
    world = build_world(settings(use_curriculum=True), seed=3)
    assert world.curriculum is None
    world.reset()
    assert world.tasks == (IDS[0], IDS[1], IDS[2], IDS[0])
    world.close()


@cases(
    ("given", "key", "said"),
    [
        ({"task_ids": ["a", "a"]}, "task_ids", "differ"),
        ({"task": "a", "task_ids": []}, "task_ids", "differ"),
        ({"task": "b", "task_ids": ["a", "c"]}, "task", "would do nothing with task_ids"),
        ({"task_text": "b", "task_ids": ["a", "c"]}, "task", "would do nothing with task_ids"),
        ({"task_ids": ["a", "b"], "autoreset_mode": "next_step"}, "task_ids", "autoreset_mode: disabled"),
        (
            {"task": "a", "use_curriculum": True, "autoreset_mode": "same_step"},
            "use_curriculum",
            "autoreset_mode: disabled",
        ),
        ({"task": "a", "curriculum_temp": 2.0}, "curriculum_temp", "without use_curriculum"),
        (
            {"task": "a", "use_curriculum": True, "curriculum_over": "tasks"},
            "curriculum_over",
            "needs several in task_ids",
        ),
        (
            {"task_ids": ["a", "b"], "use_curriculum": True, "curriculum_over": "tasks", "curriculum_min_prob": 0.1},
            "curriculum_min_prob",
            "with curriculum_over tasks",
        ),
        (
            {"task": "a", "use_curriculum": True, "curriculum_states": 1},
            "curriculum_states",
            "greater than or equal to 2",
        ),
    ],
)
def test_keys_that_would_do_nothing_are_refused(given, key, said):
    with refuses(key, said):
        GymnasiumSettings(**given)


def test_a_section_reads_back_as_it_was_resolved():
    for given in (
        settings(use_curriculum=True),
        MetaWorldSettings(task_ids=["reach", "push"]),
        LiberoSettings(task_ids=[3, 4, 5], num_envs=4, use_curriculum=True, curriculum_over="tasks"),
    ):
        assert type(given).model_validate(given.model_dump()) == given
    assert MetaWorldSettings(task_ids=["reach", "push"]).task == "reach"


def test_every_process_of_a_curriculum_has_all_tasks():
    several = {"suite": "libero_goal", "task_ids": (3, 5), "num_envs": 3, "vectorization": "async"}
    assert LiberoSettings(**several, use_curriculum=True).of_copies(range(1)).task_ids == (3, 5)


def test_tasks_must_take_the_same_actions():
    given = GymnasiumSettings(task_ids=[IDS[0], "Pendulum-v1"], num_envs=1, native_reward="dense", frame_size=8)
    with refuses("env.task_ids", "takes other actions than"):
        build_world(given, seed=0)


@pytest.mark.parametrize("breaks", [0, 1, 2, 3])
def test_a_simulator_that_breaks_while_episodes_are_replayed_has_three_attempts(breaks):
    world = build_world(settings(), seed=3)
    shown = played(world, 6)
    again = build_world(settings(), seed=3)
    again.show(SPEC)
    broken = iter([{1: Failure("simulator_died")}] * breaks)
    again.env.lost_episodes = lambda: next(broken, {})
    if breaks == 3:
        with pytest.raises(CheckpointError, match="copy 1 broke while its episode was replayed, 3 times in a row"):
            again.load_state_dict(world.state_dict())
    else:
        again.load_state_dict(world.state_dict())
        assert np.array_equal(again.observations, shown[-1])
    world.close()
    again.close()
