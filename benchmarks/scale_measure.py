"""Measured parts of the scale model: a run's parts in one process, and whole iterations with 1, 2 and 4 collectors.

Iterations are those of a Meta-World study in four shards. Every repetition measures everything in turn, and counts the
other processes that want a core meanwhile, so that a prediction for the same moment can be made on a shared machine.

    python benchmarks/scale_measure.py --repetitions 3        # writes benchmarks/scale_measured.json
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

FILE = Path(__file__).with_name("scale_measured.json")
SHARDS, ITERATIONS = 4, 5
STUDY = {
    "env": {"type": "metaworld", "task": "reach", "num_envs": 16, "max_episode_steps": 100, "native_reward": "dense"},
    "policy": {"type": "mlp", "hidden": [64, 64]},
    "algorithm": {"rollout_steps": 125, "minibatch_size": 500, "num_epochs": 4},
    "runner": {"seed": 0, "rollout_shards": SHARDS, "total_steps": 1_000_000, "eval_every": 1_000_000,
               "eval_episodes": 1, "checkpoint_every": 1_000_000},
}  # fmt: skip


class OthersAtWork:
    """How many processes that are not ours want a core, on average while the block runs."""

    def __enter__(self) -> OthersAtWork:
        self._counts: list[int] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def mean(self) -> float:
        """Of all samples."""
        return statistics.fmean(self._counts) if self._counts else 0.0

    def _sample(self) -> None:
        me = os.getpid()
        while not self._end.wait(0.1):
            parents, running = {}, []
            for stat in Path("/proc").glob("[0-9]*/stat"):
                try:
                    name, rest = stat.read_text().rsplit(")", 1)
                except OSError:
                    continue
                pid, fields = int(name.split()[0]), rest.split()
                parents[pid] = int(fields[1])
                if fields[0] == "R":
                    running.append(pid)
            self._counts.append(sum(not _descends(pid, me, parents) for pid in running))


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = parents.get(pid, 0)
    return False


def _loop(folder: str, **more: object):
    from guerdon.rl.loop import Loop
    from guerdon.settings.study import Study

    runner = {**STUDY["runner"], "logger": {"log_path": folder, "experiment_name": "run", "tensorboard": False}}
    Path(folder, "run").mkdir(parents=True)
    return Loop(Study.model_validate({**STUDY, "runner": runner, **more}), Path(folder, "run"))


def parts() -> dict[str, float]:
    """Core-seconds of the parts of an iteration in one process; a `go` on the standard input starts the clock."""
    with tempfile.TemporaryDirectory() as folder:
        loop = _loop(folder)
        spent: list[float] = []
        collect = loop.collector.collect

        def timed(*args: object, **given: object):
            start = time.process_time()
            found = collect(*args, **given)
            spent.append(time.process_time() - start)
            return found

        loop.collector.collect = timed
        loop.iterate()
        print("ready", flush=True)
        sys.stdin.readline()
        wholes = []
        for _ in range(ITERATIONS):
            start = time.process_time()
            loop.iterate()
            wholes.append(time.process_time() - start)
        collected = spent[-ITERATIONS:]
        rest = [whole - part for whole, part in zip(wholes, collected, strict=True)]
        return {"shard": statistics.median(collected) / SHARDS, "update": statistics.median(rest)}


def _parts_at_once(count: int) -> dict[str, float]:
    """`parts` of so many processes at the same time; medians."""
    command = [sys.executable, __file__, "--parts"]
    found = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for process in found:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":
            assert process.poll() is None
    for process in found:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    rows = [json.loads(process.communicate()[0].splitlines()[-1]) for process in found]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


class _Echo:
    """An actor that returns what it holds."""

    def hold(self, thing):
        self.thing = thing

    def give(self):
        return self.thing


def seam() -> dict[str, float]:
    """Core-seconds of the learner's process for what crosses a seam: of one shard, and of the weights."""
    import ray

    with tempfile.TemporaryDirectory() as folder:
        loop = _loop(folder)
        rollout = loop.collector.collect(loop.learner.policy)
        state = loop.collector.state()
        actor = ray.remote(_Echo).options(num_cpus=0.1).remote()
        ray.get(actor.hold.remote((rollout, state)))
        ray.get(actor.give.remote())
        shards, puts = [], []
        weights = loop.learner.policy.tensors()
        for _ in range(10):
            start = time.process_time()
            copy.deepcopy(ray.get(actor.give.remote()))
            shards.append((time.process_time() - start) / SHARDS)
            start = time.process_time()
            ray.put(weights)
            puts.append(time.process_time() - start)
        ray.kill(actor)
    return {"seam": statistics.median(shards), "put": statistics.median(puts)}


def iterations(collectors: int) -> tuple[list[float], float]:
    """Seconds of iterations with so many collectors, and how many other processes wanted a core."""
    with tempfile.TemporaryDirectory() as folder:
        loop = _loop(folder, engine="ray", cluster={"collectors": collectors, "collector_cpus": 0.25})
        try:
            loop.iterate()
            seconds = []
            with OthersAtWork() as others:
                for _ in range(ITERATIONS):
                    start = time.perf_counter()
                    loop.iterate()
                    seconds.append(time.perf_counter() - start)
        finally:
            loop.collector.close()
    return seconds, others.mean


def main() -> None:
    """Measure and write."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--repetitions", type=int, default=3)
    arguments.add_argument("--parts", action="store_true")
    given = arguments.parse_args()
    if given.parts:
        print(json.dumps(parts()))
        return
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    from guerdon import provenance

    found: dict[str, object] = {
        "machine": provenance.machine(), "cores": len(os.sched_getaffinity(0)), "shards": SHARDS,
        "when": provenance.now(), "repetitions": [],
    }  # fmt: skip
    for repetition in range(given.repetitions):
        row: dict[str, object] = {"alone": _parts_at_once(1), "both": _parts_at_once(2), **seam(), "runs": {}}
        for collectors in (1, 2, 4):
            seconds, others = iterations(collectors)
            row["runs"][str(collectors)] = {"seconds": seconds, "others": others}  # type: ignore[index]
        found["repetitions"].append(row)  # type: ignore[attr-defined]
        FILE.write_text(json.dumps(found, indent=1) + "\n")
        print(f"repetition {repetition}: {json.dumps(row)}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
