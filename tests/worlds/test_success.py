"""True success is what the environment reports, and unknown where it reports nothing."""

import numpy as np
import pytest

import telling
from corridor import GOAL, ID, LENGTH
from guerdon.collect.episode_capture import Recorder
from guerdon.collect.stepping import evaluate
from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError, MissingDependencyError
from guerdon.policies.robots.experts import MountainCarExpert
from guerdon.settings.world import GymnasiumSettings, MetaWorldSettings
from guerdon.worlds.build import build_world, check_tasks
from guerdon.worlds.success import success_from_info
from tables import cases, refuses

MODES = ("disabled", "next_step", "same_step")


class Forward:
    """Always walks on."""

    def mean(self, observations_B):
        return np.ones((len(observations_B), 1), np.float32)


def corridor(reports, *, mode="disabled", limit=6, copies=2, readers=(), kwargs=None, **env):
    given = {"native_reward": "dense", "num_envs": copies, "max_episode_steps": limit, "autoreset_mode": mode, **env}
    kwargs = {"stops": False, "reports": reports, **(kwargs or {})}
    settings = GymnasiumSettings(task=ID, frame_size=8, kwargs=kwargs, **given)
    return build_world(settings, seed=3, success_readers=readers)


def walk(world, steps):
    """(steps, copies) of true success, of where it is known, and of where an episode ended."""
    world.reset(capture=np.zeros(world.num_envs, np.bool_))
    taken = [world.step(np.ones((world.num_envs, 1), np.float32)) for _ in range(steps)]
    world.close()
    return (np.array([getattr(t, name) for t in taken]) for name in ("success", "success_known", "done"))


@cases(
    ("info", "success"),
    [
        ({}, None),
        ({"x_position": np.array([3.0])}, None),
        ({"success": np.array([True]), "_success": np.array([True])}, True),
        ({"success": np.array([False]), "_success": np.array([True])}, False),
        ({"success": np.array([False]), "_success": np.array([False])}, None),  # Gymnasium fills other copies' gaps
        ({"success": np.array([None], dtype=object)}, None),
        ({"success": np.array([np.nan])}, None),
        ({"success": np.array([np.inf])}, None),
        ({"success": np.array([[True]])}, True),
        ({"is_success": np.array([0.0])}, False),
        ({"is_success": np.array([1.0])}, True),
        ({"success": np.array([0.0]), "_success": np.array([False]), "is_success": np.array([1.0])}, True),
    ],
)
def test_success_is_read_from_info_or_unknown(info, success):
    assert success_from_info(info, 0) is success


@pytest.mark.hostile("parts")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.array(["yes"]), "yes"),
        ({"rate": np.array([1.0]), "_rate": np.array([True])}, r"no number \(dict\)"),  # Gymnasium nests dictionaries
        (np.array([object()]), r"no number \(object\)"),
    ],
)
def test_a_success_that_is_no_number_is_refused_by_name(value, said):
    with refuses("success", f"is {said}"):
        success_from_info({"success": value, "_success": np.array([True])}, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_world_knows_success_only_where_it_was_reported(mode):
    success, known, done = walk(corridor("always", mode=mode), 14)
    acted = ~np.roll(done, 1, axis=0) if mode == "next_step" else np.ones_like(done)
    assert (known[1:] == acted[1:]).all()
    assert success.any()
    for reports in ("never", "end", "won"):
        _, known, done = walk(corridor(reports, mode=mode), 14)
        if reports == "never":
            assert not known.any()
        elif reports == "end":
            assert (known == done).all()
            assert known.any()
        else:
            assert known.any()
            assert not known[0].any()


def test_what_one_copy_reports_is_not_taken_for_another():
    world = corridor("every other", limit=3, copies=2)
    world.reset(capture=np.zeros(2, np.bool_))
    world._reset_again(np.array([True, False]))  # copy 0 is an episode ahead, which has no report
    transition = world.step(np.zeros((2, 1), np.float32))
    world.close()
    assert transition.success_known.tolist() == [False, True]
    assert transition.success_of(0) is None
    assert transition.success_of(1) is False


def test_another_key_is_read_where_it_is_named():
    _, known, _ = walk(corridor("always", kwargs={"key": "done_well"}), 3)
    assert not known.any()
    success, known, _ = walk(corridor("always", kwargs={"key": "done_well"}, success_key="done_well"), 5)
    assert known.all()
    assert success.any()


def test_sparse_rewards_need_a_report_in_every_episode():
    with refuses("env.success_key", r"env\.task Pendulum-v1 does not report success.*sparse"):
        build_world(GymnasiumSettings(task="Pendulum-v1", num_envs=1), seed=0)
    for mode in MODES:
        with refuses("env.success_key", r"no value at .* or next\.success; .*position"):
            walk(corridor("never", mode=mode, native_reward="sparse"), 8)
        with refuses("env.success_key"):
            walk(corridor("every other", mode=mode, native_reward="sparse"), 30)
        walk(corridor("end", mode=mode, native_reward="sparse"), 14)


def test_sparse_rewards_at_the_end_alone_are_those_of_the_reports():
    world = corridor("end", native_reward="sparse")
    world.reset(capture=np.zeros(2, np.bool_))
    rewards = [world.step(np.ones((2, 1), np.float32)).rewards.tolist() for _ in range(LENGTH)]
    world.close()
    assert rewards == [[0.0, 0.0]] * (LENGTH - 1) + [[1.0, 1.0]]
    assert LENGTH > GOAL, "every walk arrives"


def test_what_needs_success_is_named_where_there_is_no_report():
    settings = GymnasiumSettings(task="Pendulum-v1", num_envs=1, native_reward="dense")
    build_world(settings, seed=0).close()
    with refuses("env.success_key", r"collect\.only_success need"):
        build_world(settings, seed=0, success_readers=["collect.only_success"])
    with refuses("env.success_key", "end_on_success"):
        walk(corridor("never", end_on_success=True), 8)
    walk(corridor("never", limit=3, readers=["collect.only_success"]), 2)  # no episode is over yet
    with refuses("env.success_key", r"copy 0, 3 steps.*collect\.only_success"):
        walk(corridor("never", limit=3, readers=["collect.only_success"]), 3)
    walk(corridor("every other", limit=3, readers=["collect.only_success"]), 12)  # what reads it counts the unknown
    with refuses("success_key"):
        MetaWorldSettings(success_key="success")


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ("always", {"success": 1.0, "success_at_end": 1.0, "success_known": 4.0}),
        ("end", {"success": 1.0, "success_at_end": 1.0, "success_known": 4.0}),
        ("never", {"success_known": 0.0}),
        ("every other", {"success": 1.0, "success_at_end": 1.0, "success_known": 2.0}),
    ],
)
def test_an_evaluation_gives_shares_over_known_episodes_and_their_count(reports, expected):
    world = corridor(reports)
    found = evaluate(world, Forward().mean, episodes=4)
    world.close()
    assert {k: v for k, v in found.items() if "success" in k} == expected
    assert found["episodes"] == 4.0


class Kept(list):
    """Takes the place of a writer."""

    add = list.append
    success_by_row = None


@pytest.mark.parametrize(
    ("reports", "rows", "outcomes"),
    [
        ("always", [True] * 4, [True] * 4),
        ("end", [False] * 4, [True] * 4),
        ("won", [False] * 4, [True] * 4),
        ("never", [False] * 4, [None] * 4),
        ("every other", [True, True, False, False], [True, True, None, None]),
    ],
)
def test_recorded_episodes_say_what_is_known_of_them(reports, rows, outcomes):
    world, kept = corridor(reports), Kept()
    evaluate(world, Forward().mean, episodes=4, recorder=Recorder(world, kept, keep_fail=0.0))
    world.close()
    assert [episode.outcome for episode in kept] == outcomes
    assert [episode.success is not None for episode in kept] == rows


def record(world, folder, episodes):
    with EpisodeWriter(folder) as writer:
        evaluate(world, Forward().mean, episodes=episodes, recorder=Recorder(world, writer, keep_fail=0.0))
    world.close()


def test_a_recording_whose_success_falls_silent_is_refused_with_what_to_set(tmp_path):
    with pytest.raises(DataError, match=r"copy 0\) does not report success at every step of episode 2.*success_key"):
        record(corridor("every other"), tmp_path / "d", 4)
    assert [e.outcome for e in read_episodes(tmp_path / "d")] == [True, True], "what came before is whole"


def test_a_recording_that_began_without_success_goes_on_without_it(tmp_path):
    record(corridor("end"), tmp_path / "d", 2)
    record(corridor("always", limit=5, copies=4), tmp_path / "d", 4)
    episodes = list(read_episodes(tmp_path / "d"))
    assert len(episodes) > 2
    assert {(e.outcome, e.success is None) for e in episodes} == {(True, True)}


def test_a_car_at_the_goal_has_succeeded_and_one_that_ran_out_of_time_has_not():
    world = build_world(GymnasiumSettings(task="MountainCarContinuous-v0", num_envs=2, max_episode_steps=130), seed=0)
    world.takes_pictures = False
    shown = world.reset().observations
    expert, rng, ends = MountainCarExpert(), np.random.default_rng(0), {}
    for row in range(1, 131):
        actions = expert.act(shown, rng)
        actions[1] = 0  # the second car does nothing
        transition = world.step(actions)
        shown = transition.observations
        for i in np.flatnonzero(transition.done).tolist():
            ends[i] = (row, transition.success_of(i))
    world.close()
    assert 100 < ends[0][0] < 115
    assert ends[0][1] is True
    assert ends[1] == (130, False)


def test_a_missing_renderer_is_an_error_only_where_frames_are_required(monkeypatch):
    monkeypatch.setattr("guerdon.worlds.build.find_spec", lambda name: None)
    settings = GymnasiumSettings(task="MountainCarContinuous-v0", num_envs=2)
    check_tasks(settings)
    with pytest.raises(MissingDependencyError, match=r"needs pygame to draw: pip install 'guerdon\[gymnasium\]'"):
        check_tasks(settings, drawn=True)


def told(**given):
    """Steps of 12 copies of `Telling`: which report each made, and the actions they were given."""
    settings = GymnasiumSettings(task=telling.ID, num_envs=12, native_reward="dense", frame_size=8, **given)
    world, rng = build_world(settings, seed=1), np.random.default_rng(0)
    world.reset(capture=np.zeros(12, np.bool_))
    for _ in range(9):
        which, taken = world.observations[:, 0].astype(int), rng.uniform(-1, 1, (12, 2)).astype(np.float32)
        if not world.resetting.any():
            yield world, which, taken.copy(), world.step(taken)
        else:
            world.step(taken)
    world.close()


WAYS = [{}, {"vectorization": "async", "num_envs_per_process": 5}, *({"autoreset_mode": m} for m in MODES[1:])]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_copies_may_report_values_of_different_types(way):
    reports = set()
    for _, which, taken, step in told(**way):
        assert [step.success_of(i) for i in range(12)] == [telling.SUCCESS[k] for k in which]
        assert step.intervened.tolist() == [telling.EXECUTED[k] is not None for k in which]
        executed = [taken[i] if telling.EXECUTED[k] is None else telling.EXECUTED[k] for i, k in enumerate(which)]
        assert np.array_equal(step.actions, np.array(executed, np.float32))
        reports |= set(which)
    assert reports == set(range(len(telling.REPORTS)))
