"""The loss of a node of a simulated Ray cluster: the run goes on with fewer collectors, and with all once it can."""

import subprocess
import sys
import time
from pathlib import Path

import paced_corridor
import pytest
from ray_studies import judged, on_ray, ordered, recorded, robots

import corridor
from child import environment
from guerdon.config.loading import to_yaml
from guerdon.files import atomic
from guerdon.rl.loop import Loop
from guerdon.rl.run import run
from guerdon.settings.study import Study

ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
HERE = Path(__file__).parent, Path(__file__).parents[1]


def study(folder, name, **more):
    return Study.model_validate(
        {
            "env": {
                "type": "gymnasium", "task": f"corridor:{corridor.ID}", "num_envs": 4, "max_episode_steps": 7,
                "native_reward": "dense",
            },
            "policy": {"type": "mlp", "hidden": [8]},
            "algorithm": {"rollout_steps": 10, "minibatch_size": 16},
            "runner": {
                "seed": 1, "rollout_shards": 2, "total_steps": 240, "eval_every": 240, "eval_episodes": 2,
                "checkpoint_every": 240, "film_frames": 2,
                "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False},
            },
            **more,
        }
    )  # fmt: skip


def at_work(collector):
    return sum(actor.running for actor in collector._actors)


def test_a_run_goes_on_without_a_lost_node_and_uses_its_successor(tmp_path):
    from ray.cluster_utils import Cluster

    expected = (run(study(tmp_path, "local"))[0] / "metrics.jsonl").read_bytes()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    placed = {"collectors": 2, "collector_cpus": 1, "strategy": "spread"}
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        (tmp_path / "ray").mkdir()
        loop = Loop(study(tmp_path, "ray", engine="ray", cluster=placed), tmp_path / "ray")
        loop.iterate()
        assert at_work(loop.collector) == 2
        cluster.remove_node(nodes[0], allow_graceful=False)
        loop.iterate()
        assert at_work(loop.collector) == 1, "the cluster has no room for another one"
        assert loop.collector.replaced >= 1
        cluster.add_node(num_cpus=1)
        while at_work(loop.collector) < 2:  # the first replacement may have been promised a place on the dead node
            loop.collector._actors.look_for_ready(60.0)
        loop.iterate()
        assert all(actor.holds for actor in loop.collector._actors), "each collected a shard"
        loop.run()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert (tmp_path / "ray" / "metrics.jsonl").read_bytes() == expected


def test_packed_actors_share_nodes(tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2, num_gpus=2)  # Ray only counts these GPUs
    ray.init(address=cluster.address, log_to_driver=False)
    placed = {
        "collectors": 2, "collector_cpus": 0.5, "collector_gpus": 0.5, "reward_workers": 2,
        "reward_worker_cpus": 0.5, "reward_worker_gpus": 0.5, "strategy": "pack", "start_timeout": 600,
    }  # fmt: skip
    given = robots(tmp_path, "packed", reward=judged(ordered(tmp_path, "kill", 0)), engine="ray", cluster=placed)
    try:
        (tmp_path / "packed").mkdir()
        loop = Loop(given, tmp_path / "packed")
        (group,) = ray.util.placement_group_table().values()
        loop.close()
        (removed,) = ray.util.placement_group_table().values()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert group["bundles"] == {0: {"CPU": 1.0, "GPU": 1.0}, 1: {"CPU": 1.0, "GPU": 1.0}}
    assert len(set(group["bundles_to_node_id"].values())) == 1, "there is room on one node"
    assert removed["state"] == "REMOVED"


@pytest.mark.parametrize("staleness", [0, 1])
def test_after_the_loss_of_the_head_a_run_resumes_on_another_cluster(staleness, tmp_path):
    from ray.cluster_utils import Cluster

    env = {"task": f"{paced_corridor.__name__}:{paced_corridor.ID}", "kwargs": {"folder": str(tmp_path)}}
    runner = {"max_staleness": staleness}
    expected = recorded(run(robots(tmp_path, "local", env=env, runner=runner))[0])
    given = robots(tmp_path, "ray", env=env, runner=runner, **on_ray(2, address="auto"))
    (tmp_path / "study.yaml").write_text(to_yaml(given))
    atomic.write_text(tmp_path / "pace", "0.3")
    command = [sys.executable, "-m", "guerdon", "run", str(tmp_path / "study.yaml")]
    codes = []
    for flags in ([], ["--resume"]):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            child = subprocess.Popen([*command, *flags], env=environment(*HERE, RAY_ADDRESS=cluster.address))
            if not flags:
                while child.poll() is None and not list((tmp_path / "ray").glob("checkpoints/step_*")):
                    time.sleep(0.1)
                cluster.shutdown()
                (tmp_path / "pace").unlink()
            codes.append(child.wait(600))
        finally:
            cluster.shutdown()
    assert codes[0] != 0
    assert codes[1] == 0
    assert recorded(tmp_path / "ray") == expected
