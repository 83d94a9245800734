"""Runs on a Ray cluster of this machine have the metrics of runs in one process, also when collectors are killed."""

import os
from pathlib import Path

import pytest

import chunk_policy
import corridor
import mortal_corridor
from guerdon.errors import ClusterError, ConfigError
from guerdon.rl.loop import Loop
from guerdon.rl.run import run
from guerdon.settings.study import Study
from scripted import SHAPE

ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def runner(folder, name, **given):
    return {
        "seed": 1, "rollout_shards": 2, "eval_episodes": 2,
        "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False}, **given,
    }  # fmt: skip


def robots(folder, name, *, env=None, algorithm=None, policy=None, **more):
    return Study.model_validate(
        {
            "env": {
                "type": "gymnasium", "task": f"corridor:{corridor.ID}", "num_envs": 4, "max_episode_steps": 7,
                "frame_size": 8, **(env or {}),
            },
            "policy": policy or {"type": "mlp", "hidden": [8]},
            "algorithm": algorithm or {"rollout_steps": 10, "minibatch_size": 16, "num_epochs": 2},
            "reward": {
                "use_reward_model": True, "combine_mode": "add", "reward_mode": "per_step", "shaping": "raw",
                "model": {"model_type": "constant", "value": 0.5},
            },
            "runner": runner(folder, name, total_steps=160, eval_every=80, checkpoint_every=40, film_frames=2),
            **more,
        }
    )  # fmt: skip


def words(folder, name, **more):
    return Study.model_validate(
        {
            "policy": {"type": "text", "tiny": {**SHAPE, "alphabet": "0123456789+-*=?;"}, "bf16": False},
            "data": {
                "task": {"family": "chain", "steps": 2}, "train_size": 24, "val_size": 4, "max_response_length": 10,
                "train_batch_size": 4, "n_samples": 2, "filter_accuracy": False, "filter_truncated": True,
                "shortfall": "fill",
            },
            "algorithm": {"adv_estimator": "remax", "learning_rate": 1e-2},
            "runner": runner(folder, name, total_steps=64, eval_every=32, checkpoint_every=16),
            **more,
        }
    )  # fmt: skip


def on_ray(collectors, **given):
    return {"engine": "ray", "cluster": {"collectors": collectors, "collector_cpus": 0.5, **given}}


def recorded(folder):
    """Everything of a run that has no times: metrics, episodes, and the weights of its policy."""
    names = ["metrics.jsonl", "episodes.jsonl", *(p.relative_to(folder) for p in folder.glob("policy/*.safetensors"))]
    assert len(names) > 2
    return {str(name): (folder / name).read_bytes() for name in names}


KINDS = {
    "gae": (robots, {}),
    "grpo": (robots, {"algorithm": {"adv_estimator": "grpo", "group_size": 2}}),
    "chunks": (robots, {"policy": {"type": f"{chunk_policy.__name__}:ChunkPolicy", "params": {"chunk": 3}}}),
    "text": (words, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_collectors_gives_the_metrics_of_one_process(kind, tmp_path):
    study, given = KINDS[kind]
    expected = recorded(run(study(tmp_path, "local", **given))[0])
    for collectors in (1, 2):
        found = recorded(run(study(tmp_path, f"ray{collectors}", **given, **on_ray(collectors)))[0])
        assert found == expected


def mortal(folder, name, **more):
    env = {"task": f"{mortal_corridor.__name__}:{mortal_corridor.ID}", "kwargs": {"folder": str(folder / "orders")}}
    return robots(folder, name, env=env, **more)


def kills(folder, count):
    orders = folder / "orders"
    orders.mkdir(exist_ok=True)
    for k in range(count):
        (orders / f"kill{k}").touch()
    return orders


@pytest.mark.parametrize("collectors", [1, 2])
def test_killed_collectors_change_no_number(collectors, tmp_path):
    orders = kills(tmp_path, 0)
    expected = recorded(run(mortal(tmp_path, "local"))[0])
    kills(tmp_path, 3)
    study = mortal(tmp_path, "ray", **on_ray(collectors))
    (tmp_path / "ray").mkdir()
    loop = Loop(study, tmp_path / "ray")
    loop.run()
    assert recorded(tmp_path / "ray") == expected
    assert not list(orders.iterdir()), "every order was carried out"
    assert loop.collector.replaced == 3


def test_a_run_that_lost_too_many_collectors_resumes_to_the_same_metrics(tmp_path):
    kills(tmp_path, 0)
    expected = recorded(run(mortal(tmp_path, "local"))[0])
    kills(tmp_path, 1)
    study = mortal(tmp_path, "ray", **on_ray(2, max_replacements=0))
    with pytest.raises(ClusterError, match="max_replacements"):
        run(study)
    assert recorded(run(study, resume=True)[0]) == expected


def test_a_cluster_without_room_is_refused(tmp_path):
    cluster = {"collectors": 2, "collector_resources": {"gripper": 1}, "start_timeout": 1}
    with pytest.raises(ConfigError, match="1 gripper each"):
        run(robots(tmp_path, "none", engine="ray", cluster=cluster))


def test_what_a_user_did_wrong_is_said_as_in_one_process(tmp_path):
    env = {"task": f"corridor:{corridor.ID}", "kwargs": {"stop": True}}
    messages = []
    for more in ({}, on_ray(1)):
        with pytest.raises(ConfigError) as found:
            run(robots(tmp_path, Path(tmp_path).name + str(len(messages)), env=env, **more))
        messages.append(str(found.value))
    assert messages[0] == messages[1]
