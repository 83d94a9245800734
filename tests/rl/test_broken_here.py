"""An environment in the run's own process that gives no numbers, raises, or cannot begin an episode."""

import json

import gymnasium
import numpy as np
import pytest
from test_broken_simulators import counts, fragile_study

import fragile
from guerdon.collect.stepping import evaluate
from guerdon.errors import SimulatorError, TooManyFailuresError
from guerdon.rl.run import run_folder
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.build import build_world
from guerdon.worlds.world import World
from rl_clock import interrupted, lines, reader_reward, result, start
from tables import first

HERE = {"vectorization": "sync"}
NO_NUMBERS = {(0, 1): "nan", (1, 2): "nan reward", (0, 4): "inf reward", (1, 5): "huge reward"}
ANY = {"max_failure_rate": 1.0}


def world_of(breaks, *, num_envs=2, mode="disabled", vectorization="sync", **more):
    settings = GymnasiumSettings(
        task=fragile.ID, num_envs=num_envs, max_episode_steps=None, native_reward="dense", autoreset_mode=mode,
        frame_size=(8, 8), kwargs={"breaks": breaks}, vectorization=vectorization,
    )  # fmt: skip
    return build_world(settings, seed=0, **more)


def seeds_of(copies, episodes, **more):
    world, found = world_of({}, num_envs=copies, **more), {}
    for episode in range(episodes):
        world.rewind(episode)
        found |= {(copy, episode): str(world.episode_seed(copy)) for copy in range(copies)}
    world.close()
    return found


@pytest.mark.hostile("parts")
def test_numbers_that_are_not_finite_cost_their_episode(tmp_path):
    study = fragile_study(tmp_path, NO_NUMBERS, env=HERE, reward=ANY)
    start(study).run()
    failures = [row for row in lines(study, "failures") if row["source"] == "env"]
    assert [row["reason"] for row in failures] == ["simulator_non_finite"] * 4
    assert {row["env"] for row in failures} == {0, 1}
    assert all("step 2 of" in row["detail"] and "with action [" in row["detail"] for row in failures)
    found, rows = counts(study), lines(study, "episodes")
    assert (found["failed"], found["finished"]) == (4, len(rows))
    assert found["begun"] == found["finished"] + found["failed"] + found["unfinished"]
    trained = [row for row in lines(study) if row["kind"] == "train"]
    assert trained[-1]["episodes_failed"] == 4
    assert trained[-1]["failure_rate/env"] > 0
    assert {row["length"] for row in rows} == {4}


@pytest.mark.slow
def test_a_run_here_has_the_bytes_of_one_in_processes(tmp_path):
    numbers = {(0, 1): "nan", (1, 6): "nan reward"}
    here = fragile_study(tmp_path, numbers, name="here", env=HERE, reward=ANY)
    apart = fragile_study(tmp_path, numbers, name="apart", reward=ANY)
    start(here).run()
    start(apart).run()
    assert all(result(here)[name] == result(apart)[name] for name in ("episodes", "policy"))


def test_a_run_here_resumes_to_the_same_bytes(tmp_path):
    numbers = {(0, 1): "nan", (1, 6): "nan reward"}
    whole, cut = (fragile_study(tmp_path, numbers, name=name, env=HERE, reward=ANY) for name in ("whole", "cut"))
    start(whole).run()
    interrupted(cut, "update", 3)
    start(cut, resume=True).run()
    assert result(cut) == result(whole)


def test_where_nothing_fails_nothing_is_counted(tmp_path):
    study = fragile_study(tmp_path, env=HERE)
    start(study).run()
    assert "episodes" not in json.loads((run_folder(study) / "COMPLETE").read_text())
    assert not any("episodes_failed" in row or "failure_rate/env" in row for row in lines(study))


@pytest.mark.hostile("parts")
def test_an_environment_that_fails_all_the_time_stops_the_run(tmp_path):
    broken = {(copy, episode): "nan" for copy in range(2) for episode in range(40)}
    short = {"rollout_steps": 4, "minibatch_size": 4, "num_epochs": 1}
    study = fragile_study(tmp_path, broken, env=HERE, reward={"failure_window": 6}, algorithm=short)
    with pytest.raises(TooManyFailuresError, match=r"'env'.*simulator_non_finite"):
        start(study).run()


@pytest.mark.parametrize("mode", ["disabled", "next_step", "same_step"])
@pytest.mark.parametrize("way", first(["nan", "nan reward"], 1))
def test_every_way_of_resetting_goes_on_with_a_new_episode(mode, way):
    seed = seeds_of(2, 1)[1, 0]
    world = world_of({seed: way}, mode=mode)
    world.reset()
    still, failures = np.zeros((2, 2), np.float32), []
    for t in range(1, 13):
        transition = world.step(still)
        failures += [(t, i, why.reason) for i, why in transition.failures.items()]
        assert np.isfinite(transition.observations).all()
        assert np.isfinite(transition.final_observations).all()
        assert np.isfinite(transition.rewards).all()
        if t == 2:
            assert transition.mask.tolist() == [True, False]
            assert transition.observations[1, 0] == 0, "the first moment of the next episode"
            assert not transition.done[1]
        if t == 3:
            assert transition.mask.tolist() == [True, True]
    assert failures == [(2, 1, "simulator_non_finite")]
    world.close()


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("vectorization", first(["sync", "async"], 1))
@pytest.mark.parametrize("way", first(["reset raises", "reset nan"], 1))
def test_a_reset_that_fails_takes_the_next_seed(way, vectorization):
    seeds = seeds_of(2, 3)
    world = world_of({seeds[1, 0]: way, seeds[0, 1]: way}, vectorization=vectorization)
    begun = world.reset()
    ((copy, why),) = begun.failed_resets
    assert copy == 1
    assert why.reason == ("simulator_raised" if way == "reset raises" else "simulator_non_finite")
    assert f"with seed {seeds[1, 0]}" in why.detail
    assert world.episode_seed(0) == int(seeds[0, 0])
    assert str(world.episode_seed(1)) not in seeds.values()
    still, later = np.zeros((2, 2), np.float32), []
    state = None
    for t in range(8):
        transition = world.step(still)
        assert not transition.failures
        assert transition.mask.all()
        later += transition.failed_resets
        state = world.state_dict() if t == 5 else state
    assert [(i, f"with seed {seeds[0, 1]}" in one.detail) for i, one in later] == [(0, True)]
    assert str(world.episode_seed(0)) == seeds[0, 2], "the next episode has the seed that it always has"
    again = world_of({seeds[1, 0]: way, seeds[0, 1]: way})
    again.load_state_dict(state)
    assert np.array_equal(again.observations, state["observations"])
    world.close()
    again.close()


def test_copies_of_a_group_take_the_next_seed_together():
    seed = seeds_of(4, 1, group_size=2)[2, 0]
    world = world_of({seed: "reset raises"}, num_envs=4, group_size=2)
    shown = world.reset().observations
    assert np.array_equal(shown[2], shown[3])
    assert world.episode_seed(2) == world.episode_seed(3) != int(seed)
    world.close()


class NoReset(gymnasium.Env):
    """Never begins an episode."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        raise OSError("no scene file")


@pytest.mark.hostile("parts")
def test_an_environment_that_never_begins_gives_up_with_one_line():
    env = gymnasium.vector.SyncVectorEnv([NoReset], autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)
    world = World(env, ["t"])
    with pytest.raises(SimulatorError, match=r"10 seeds in a row failed.*OSError: no scene file.*seed \d+") as caught:
        world.reset()
    assert "\n" not in str(caught.value)
    world.close()


@pytest.mark.hostile("parts")
def test_a_run_goes_on_where_a_reset_fails_and_names_the_seed(tmp_path):
    broken = {(0, 0): "reset raises", (1, 3): "reset nan"}
    study = fragile_study(tmp_path, broken, env=HERE, reward=reader_reward(score_every=1, **ANY))
    seeds = {way: seed for seed, way in study.env.kwargs["breaks"].items()}
    summary = start(study).run()
    assert summary["failures"] == {"simulator_raised": 1, "simulator_non_finite": 1}
    details = [row["detail"] for row in lines(study, "failures") if row["source"] == "env"]
    assert all(f"with seed {seeds[way]}" in detail for way, detail in zip(broken.values(), details, strict=True))
    assert len(lines(study, "episodes")) == 168 // 4


def test_an_evaluation_counts_resets_that_failed():
    world = world_of({seeds_of(2, 1)[0, 0]: "reset nan"})
    found = evaluate(world, lambda seen: np.zeros((2, 2), np.float32), episodes=4)
    assert (found["episodes"], found["episodes_failed"], found["length"]) == (4, 1, 4)
    world.close()


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("copies", [1, 2])
def test_what_a_step_raises_names_environment_step_and_action(copies):
    seed = seeds_of(copies, 1)[copies - 1, 0]
    world = world_of({seed: "raises"}, num_envs=copies)
    world.reset()
    world.step(np.zeros((copies, 2)))
    with pytest.raises(SimulatorError) as caught:
        world.step(np.full((copies, 2), [0.25, -3.0]))
    said = str(caught.value)
    name = f"copy 1 of {fragile.ID}" if copies == 2 else fragile.ID
    assert f"step 2 of {name} with action [0.25, -1] raised" in said
    assert "RuntimeError: the gripper fell off (fragile.py, line " in said
    assert "\n" not in said
    world.close()


@pytest.mark.hostile("parts")
def test_an_environment_that_raises_when_it_is_closed_is_named_and_the_others_are_closed(monkeypatch, caplog):
    closed = []

    def close(self):
        closed.append(self)
        if len(closed) == 1:
            raise RuntimeError("the arm is still moving")

    monkeypatch.setattr(fragile.Fragile, "close", close)
    world = world_of({}, num_envs=2)
    world.reset()
    world.close()
    assert len(closed) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"close of copy 0 of {fragile.ID}: RuntimeError: the arm is still moving"
    ]


@pytest.mark.hostile("parts")
def test_a_vector_environment_that_raises_when_it_is_closed_is_named(monkeypatch, caplog):
    world = world_of({}, num_envs=2)

    def close(**_):
        raise OSError("the bridge is gone")

    monkeypatch.setattr(world.env, "close", close)
    world.close()
    assert [record.getMessage() for record in caplog.records] == [f"close of {fragile.ID}: OSError: the bridge is gone"]


@pytest.mark.hostile("parts")
def test_what_a_step_raises_in_a_process_is_named_too():
    seed = seeds_of(2, 1)[1, 0]
    world = world_of({seed: "raises"}, vectorization="async")
    world.reset()
    world.step(np.zeros((2, 2)))
    failures = world.step(np.full((2, 2), 0.5)).failures
    assert list(failures) == [1]
    assert failures[1].detail.startswith(
        f"step 2 of {fragile.ID} with action [0.5, 0.5] raised RuntimeError: the gripper"
    )
    world.close()
