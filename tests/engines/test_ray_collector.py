"""Runs on a Ray cluster of this machine have the metrics of runs in one process, also when collectors are killed."""

from pathlib import Path

import numpy as np
import pytest
from ray_studies import on_ray, ordered, recorded, robots, words

import chunk_policy
import corridor
import ladder
import mortal_corridor
from guerdon.episodes.read import read_episodes
from guerdon.errors import ClusterError, ConfigError
from guerdon.rl.loop import Loop
from guerdon.rl.run import run, run_folder
from tables import refuses
from text_rl import letter_study, lines

ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


KINDS = {
    "gae": (robots, {}),
    "grpo": (robots, {"algorithm": {"adv_estimator": "grpo", "group_size": 2}}),
    "chunks": (robots, {"policy": {"type": f"{chunk_policy.__name__}:ChunkPolicy", "params": {"chunk": 3}}}),
    "choices": (
        robots, {"env": {"task": "mixed_env:Mixed-v0"}, "policy": {"type": "mlp", "hidden": [8], "keys": ["arm"]}},
    ),
    "sac": (
        robots,
        {"algorithm": {"type": "sac", "rollout_steps": 10, "batch_size": 8, "online_step_before_learning": 20}},
    ),
    "text": (words, {}),
    "curriculum": (
        robots,
        {
            "env": {
                "task": ladder.IDS[0], "task_ids": list(ladder.IDS), "max_episode_steps": None,
                "use_curriculum": True, "curriculum_over": "both", "curriculum_states": 4,
            },
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_collectors_gives_the_metrics_of_one_process(kind, tmp_path):
    study, given = KINDS[kind]
    expected = recorded(run(study(tmp_path, "local", **given))[0])
    for collectors in (1, 2):
        found = recorded(run(study(tmp_path, f"ray{collectors}", **given, **on_ray(collectors)))[0])
        assert found == expected


def mortal(folder, name, *, data_collection=None, **more):
    env = {
        "data_collection": data_collection or {},
        "task": f"{mortal_corridor.__name__}:{mortal_corridor.ID}",
        "kwargs": {"folder": str(folder / "orders")},
    }
    return robots(folder, name, env=env, **more)


@pytest.mark.parametrize("collectors", [1, 2])
def test_killed_collectors_change_no_number(collectors, tmp_path):
    orders = ordered(tmp_path, "kill", 0)
    expected = recorded(run(mortal(tmp_path, "local"))[0])
    ordered(tmp_path, "kill", 3)
    study = mortal(tmp_path, "ray", **on_ray(collectors))
    (tmp_path / "ray").mkdir()
    loop = Loop(study, tmp_path / "ray")
    loop.run()
    assert recorded(tmp_path / "ray") == expected
    assert not list(orders.iterdir()), "every order was carried out"
    assert loop.collector.replaced == 3


def test_recorded_episodes_are_those_of_one_process(tmp_path):
    """Of a killed collector those that were under way are missing, as after a resume; none is there twice."""

    def given(name, **more):
        data = {"enabled": True, "mode": "all", "save_dir": str(tmp_path / name / "data"), "sample_rate_fail": 1.0}
        return mortal(tmp_path, name, data_collection=data, **more)

    orders = ordered(tmp_path, "kill", 0)
    expected = recorded(run(given("local"))[0])
    assert recorded(run(given("ray", **on_ray(2)))[0]) == expected
    ordered(tmp_path, "kill", 2)
    assert recorded(run(given("killed", **on_ray(2)))[0]) == expected
    assert not list(orders.iterdir())
    local, placed, killed = (list(read_episodes(tmp_path / name / "data")) for name in ("local", "ray", "killed"))
    assert len(local) > 10
    assert [one.id for one in placed] == [one.id for one in local]
    for one, other in zip(local, placed, strict=True):
        assert np.array_equal(one.frames, other.frames)
        assert np.array_equal(one.actions, other.actions)
    ids = [one.id for one in killed]
    assert ids == [one.id for one in local if one.id in set(ids)]
    assert len(local) - 8 <= len(ids) < len(local), "two kills, of collectors with at most four episodes each"


def test_a_run_that_lost_too_many_collectors_resumes_to_the_same_metrics(tmp_path):
    ordered(tmp_path, "kill", 0)
    expected = recorded(run(mortal(tmp_path, "local"))[0])
    ordered(tmp_path, "kill", 1)
    study = mortal(tmp_path, "ray", **on_ray(2, max_replacements=0))
    with pytest.raises(ClusterError, match="max_replacements"):
        run(study)
    assert recorded(run(study, resume=True)[0]) == expected


def test_a_cluster_without_room_is_refused(tmp_path):
    cluster = {"collectors": 2, "collector_resources": {"gripper": 1}, "start_timeout": 1}
    with refuses("cluster.collectors", "1 gripper each"):
        run(robots(tmp_path, "none", engine="ray", cluster=cluster))


def test_what_a_user_did_wrong_is_said_as_in_one_process(tmp_path):
    env = {"task": f"corridor:{corridor.ID}", "kwargs": {"stop": True}}
    messages = []
    for more in ({}, on_ray(1)):
        with pytest.raises(ConfigError) as found:
            run(robots(tmp_path, Path(tmp_path).name + str(len(messages)), env=env, **more))
        messages.append(str(found.value))
    assert messages[0] == messages[1]


AGENTS = {
    "turns": ({}, {"adv_estimator": "turn_rloo", "by_state": True}),
    "critic": ({}, {"adv_estimator": "gae"}),
    "greedy": ({"params": {"paid": False}}, {"adv_estimator": "remax"}),
}


@pytest.mark.parametrize("kind", AGENTS)
def test_conversations_of_an_agent_are_those_of_one_process(kind, tmp_path):
    agent, algorithm = AGENTS[kind]
    given = {
        "agent": {"type": "agent_parts:Counting", "max_turns": 3, **agent},
        "algorithm": {"learning_rate": 1e-2, **algorithm}, "runner": {"rollout_shards": 2, "total_steps": 48},
    }  # fmt: skip
    expected = letter_study(tmp_path, name="local", **given)
    run(expected)
    for collectors in (1, 2):
        placed = letter_study(tmp_path, name=f"ray{collectors}", **given, **on_ray(collectors))
        run(placed)
        assert recorded(run_folder(placed)) == recorded(run_folder(expected))
        assert lines(placed, "conversations") == lines(expected, "conversations")
