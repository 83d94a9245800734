"""A study on a Ray cluster has the files of one on this machine, also when its workers and nodes are killed."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from child import environment
from guerdon.comparison.study import plan_study
from guerdon.engines import ray_jobs
from guerdon.settings.cluster import ClusterSettings

TESTS = Path(__file__).parents[1]
STUDY = {
    "name": "Tiny study",
    "work_dir": "work",
    "env": {"type": "gymnasium", "task": "Dot-v1", "num_envs": 2, "max_episode_steps": 10,
            "native_reward": "dense", "frame_size": 32},
    "policy": {"type": "mlp", "hidden": [8]},
    "algorithm": {"rollout_steps": 10, "minibatch_size": 10, "num_epochs": 1},
    "runner": {"total_steps": 20_000, "eval_every": 10_000, "eval_episodes": 2, "checkpoint_every": 400,
               "logger": {"tensorboard": False}},
    "compare": {
        "baseline": "A", "seeds": [0, 1], "tasks": ["tiny_world:Dot-v1"], "parallel": 2,
        "arms": {"A": {"label": "native"}},
    },
}  # fmt: skip
CLUSTER = {"job_cpus": 0.5}


def write_study(folder, **more):
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump({**STUDY, **more}, sort_keys=False))
    return folder / "study.yaml"


def compare(folder, **variables):
    return subprocess.Popen(
        [sys.executable, "-m", "guerdon", "compare", "study.yaml"], cwd=folder, env=environment(TESTS, **variables),
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(process):
    out, err = process.communicate(timeout=800)
    assert process.returncode == 0, err
    return out, err


def results(folder):
    """Everything of the runs of a study that has no times, and the job files."""
    work = folder / "work"
    names = [p for p in work.rglob("*") if p.name in ("metrics.jsonl", "episodes.jsonl") or p.suffix == ".safetensors"]
    names += list(work.glob("jobs/*.yaml"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in names if "checkpoints" not in p.parts}


def table(out):
    """What a study prints, without its wall time and what Ray says of lost workers."""
    lines = [line for line in out.splitlines() if line.startswith(("|", "report:"))]
    assert len(lines) > 2
    return [line.rpartition("|")[0].rpartition("|")[0] or line for line in lines]  # the last cell is the wall time


class StuckCluster:
    """In place of Ray: a job never ends, whatever it is told. Calls are recorded."""

    class exceptions:
        class TaskCancelledError(Exception):
            pass

        class RayTaskError(Exception):
            pass

    def __init__(self):
        self.calls, self.begun = [], threading.Event()

    def remote(self, function):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: self.begin(function.__name__)))

    def begin(self, name):
        if name == "_run_job":
            self.begun.set()
        return name

    def wait(self, tasks, timeout):
        return (tasks, []) if tasks == ["_nothing"] else ([], tasks)

    def cancel(self, task, force=False):
        self.calls.append(("cancel", task, force))

    def shutdown(self):
        self.calls.append("shutdown")

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="")


def test_a_job_that_does_not_end_in_time_is_left_before_ray_is_shut_down(tmp_path, monkeypatch):
    ray = StuckCluster()
    monkeypatch.setattr(ray_jobs, "connected", lambda *_, **__: (ray, True))
    monkeypatch.setattr(ray_jobs, "losses", lambda: ())
    monkeypatch.setattr(ray_jobs, "_GRACE", -5.0)
    monkeypatch.setattr(ray_jobs, "_LOOK", 0.1)
    (tmp_path / "job.yaml").write_text("")
    jobs = ray_jobs.RayJobs(ClusterSettings())
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(jobs.start, "a", ("run", str(tmp_path / "job.yaml")), tmp_path / "a.log")
        assert ray.begun.wait(30)
        jobs.end()
        assert status.result(30) == -signal.SIGTERM
    assert ray.calls == [("cancel", "_run_job", False), ("cancel", "_run_job", True), "shutdown"]


def test_jobs_that_need_no_actors_of_their_own_are_those_of_one_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = plan_study(write_study(tmp_path), [])
    placed = plan_study(write_study(tmp_path, engine="ray", cluster=CLUSTER), [])
    assert placed.configs == local.configs
    assert (local.parallel, placed.parallel) == (2, 2)
    assert plan_study(tmp_path / "study.yaml", ["compare.parallel=0"]).parallel == 2, "all of them: Ray finds room"
    spread = ["cluster.collectors=2", "runner.rollout_shards=2"]
    assert {one.engine for one in plan_study(tmp_path / "study.yaml", spread).configs.values()} == {"ray"}


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestOnACluster:
    @pytest.fixture(scope="class")
    def expected(self, tmp_path_factory):
        pytest.importorskip("ray", reason="needs guerdon[ray]")
        folder = tmp_path_factory.mktemp("local")
        write_study(folder)
        out, _ = finished(compare(folder))
        return results(folder), table(out)

    def test_killed_jobs_change_nothing(self, tmp_path, expected):
        """The task's process is killed for one run, the run's own process for the other."""
        write_study(tmp_path, engine="ray", cluster=CLUSTER)
        process = compare(tmp_path)
        runs = tmp_path / "work" / "runs" / "tiny_world:Dot-v1" / "A"
        for seed, parent in ((0, True), (1, False)):
            while not (runs / f"seed{seed}" / "checkpoints").is_dir():
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.02)
            (job,) = processes(f"A.seed{seed}.yaml")
            os.kill(parent_of(job) if parent else job, signal.SIGKILL)
        out, err = finished(process)
        assert "A.seed0 was lost (" in err
        assert "A.seed1 was lost (its process was killed)" in err
        assert (results(tmp_path), table(out)) == expected

    def test_a_study_begun_on_one_machine_continues_on_a_cluster_that_loses_a_node(self, tmp_path, expected):
        ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        write_study(tmp_path)
        process = compare(tmp_path)
        runs = tmp_path / "work" / "runs" / "tiny_world:Dot-v1" / "A"
        while not (runs / "seed0" / "checkpoints").is_dir():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
            write_study(tmp_path, engine="ray", cluster={"address": cluster.address, "job_cpus": 1})
            process = compare(tmp_path)
            while not (found := processes("A.seed0.yaml")):
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.02)
            raylet = parent_of(parent_of(found[0]))
            (node,) = [one for one in nodes if one.all_processes["raylet"][0].process.pid == raylet]
            cluster.remove_node(node, allow_graceful=False)
            out, err = finished(process)
        finally:
            ray.shutdown()
            cluster.shutdown()
        assert "A.seed0 was lost (" in err
        assert results(tmp_path) == expected[0]
        assert table(out) == expected[1]

    def test_a_study_that_is_told_to_end_ends_its_jobs_and_goes_on(self, tmp_path, expected):
        write_study(tmp_path, engine="ray", cluster=CLUSTER)
        process = compare(tmp_path)
        run = tmp_path / "work" / "runs" / "tiny_world:Dot-v1" / "A" / "seed0"
        while not (run / "checkpoints").is_dir():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        (job,) = processes("A.seed0.yaml")
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=200)[1]
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert not Path(f"/proc/{job}").exists()
        assert not (run / "FAILED.json").exists()
        out, _ = finished(compare(tmp_path))
        assert (results(tmp_path), table(out)) == expected

    def test_runs_of_a_study_may_have_collectors_of_their_own(self, tmp_path):
        pytest.importorskip("ray", reason="needs guerdon[ray]")
        found = []
        for name, engine in (("local", {}), ("ray", {"engine": "ray"})):
            runner = {
                **STUDY["runner"],
                "total_steps": 80,
                "eval_every": 80,
                "checkpoint_every": 40,
                "rollout_shards": 2,
            }
            compare_ = {**STUDY["compare"], "seeds": [0]}
            cluster = {"cluster": {**CLUSTER, "collectors": 2, "collector_cpus": 0.5}} if engine else {}
            write_study(tmp_path / name, runner=runner, compare=compare_, **engine, **cluster)
            finished(compare(tmp_path / name))
            found.append({file: b for file, b in results(tmp_path / name).items() if not file.endswith(".yaml")})
        assert found[0] == found[1]
        log = (tmp_path / "ray" / "work" / "jobs" / "tiny_world:Dot-v1.A.seed0.log").read_text()
        assert "Traceback" not in log

    def test_a_folder_that_nodes_do_not_share_is_refused(self, tmp_path):
        pytest.importorskip("ray", reason="needs guerdon[ray]")
        from guerdon.errors import ConfigError

        (tmp_path / "job.yaml").write_text("other: 1\n")
        with pytest.raises(ConfigError, match="all nodes share"):
            ray_jobs._run_job(["run", "job.yaml"], "log", "0" * 64, str(tmp_path), [], {})

    def test_jobs_that_no_node_can_take_are_refused(self, tmp_path):
        pytest.importorskip("ray", reason="needs guerdon[ray]")
        write_study(tmp_path, engine="ray", cluster={"job_gpus": 1, "start_timeout": 1})
        process = compare(tmp_path)
        err = process.communicate(timeout=300)[1]
        assert process.returncode == 2
        assert "no node of the cluster has the 1 CPU and 1 GPU of a job" in err


def processes(word):
    """Processes of `guerdon run` with this word in their command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(one.endswith(word) for one in command) and "run" in command:
            found.append(int(folder.name))
    return found


def parent_of(pid):
    return int(re.search(r"PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1))
