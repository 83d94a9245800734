"""Measured parts of the scale model: a run's parts in one process, and whole iterations with 1, 2 and 4 collectors.

Iterations are those of a Meta-World study in four shards. Each round measures everything once, in turn: the parts in
one process, the parts in two processes at the same time, and an iteration with 1, 2 and 4 collectors on Ray. On a
shared machine the other work slows parts and iterations down alike, and medians over the rounds are compared.

    python benchmarks/scale_measure.py --rounds 20        # writes benchmarks/scale_measured.json
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
import time
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("scale_measured.json")
SHARDS = 4
COLLECTORS = (1, 2, 4)
STUDY = {
    "env": {"type": "metaworld", "task": "reach", "num_envs": 16, "max_episode_steps": 100, "native_reward": "dense"},
    "policy": {"type": "mlp", "hidden": [64, 64]},
    "algorithm": {"rollout_steps": 125, "minibatch_size": 500, "num_epochs": 4},
    "runner": {"seed": 0, "rollout_shards": SHARDS, "total_steps": 1_000_000, "eval_every": 1_000_000,
               "eval_episodes": 1, "checkpoint_every": 1_000_000},
}  # fmt: skip


def loop_of(folder: str, name: str = "run", **more: object) -> Any:
    """The loop of the study."""
    from guerdon.rl.loop import Loop
    from guerdon.settings.study import Study

    runner = {**STUDY["runner"], "logger": {"log_path": folder, "experiment_name": name, "tensorboard": False}}
    Path(folder, name).mkdir(parents=True)
    return Loop(Study.model_validate({**STUDY, "runner": runner, **more}), Path(folder, name))


def parts() -> None:
    """For each line of the standard input, one iteration; writes the seconds of its shards, and of the rest."""
    with tempfile.TemporaryDirectory() as folder:
        loop = loop_of(folder)
        spent: list[float] = []

        def timed(collect: Any) -> Any:
            def collect_timed(*args: object, **given: object) -> Any:
                start = time.perf_counter()
                found = collect(*args, **given)
                spent.append(time.perf_counter() - start)
                return found

            return collect_timed

        for one in loop.collector.collectors:
            one.collect = timed(one.collect)
        loop.iterate()
        print("ready", flush=True)
        for _ in sys.stdin:
            spent.clear()
            start = time.perf_counter()
            loop.iterate()
            rest = time.perf_counter() - start - sum(spent)
            print(json.dumps({"shards": spent, "update": rest}), flush=True)


class PartsProcess:
    """A process that runs `parts`."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--parts"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while self._line() != "ready":
            pass

    def begin(self) -> None:
        """Start an iteration."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Its parts."""
        found: dict[str, Any] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a process that measures parts has ended")
        return line.strip()


class Echo:
    """An actor that returns what it holds."""

    def hold(self, thing: object) -> None:
        """Keep it."""
        self.thing = thing

    def give(self) -> object:
        """Return it."""
        return self.thing


def seam(ray: Any, loop: Any) -> dict[str, float]:
    """Core-seconds of the learner's process for what crosses a seam: of one shard, and of the weights."""
    rollout = loop.collector.collect(loop.learner.policy)
    actor = ray.remote(Echo).options(num_cpus=0.1).remote()
    ray.get(actor.hold.remote((rollout, loop.collector.state())))
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


def main() -> None:
    """Measure and write."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--parts", action="store_true")
    given = arguments.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    if given.parts:
        return parts()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (its name); 15 by default, which on a shared machine stops its workers
    import ray

    from guerdon.files import provenance

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        cluster = [{"collectors": n, "collector_cpus": 0.25} for n in COLLECTORS]
        loops = {
            one["collectors"]: loop_of(folder, f"run{one['collectors']}", engine="ray", cluster=one) for one in cluster
        }
        processes = [PartsProcess(), PartsProcess()]
        for loop in loops.values():
            loop.iterate()
        found = {
            "machine": provenance.machine(), "cores": len(os.sched_getaffinity(0)), "shards": SHARDS,
            "when": provenance.now(), **seam(ray, loops[1]), "rounds": [],
        }  # fmt: skip
        for k in range(given.rounds):
            row: dict[str, Any] = {"load": os.getloadavg()[0], "runs": {}}
            for name, count in (("alone", 1), ("both", 2)):
                for process in processes[:count]:
                    process.begin()
                ends = [process.end() for process in processes[:count]]
                row[name] = ends
            for n in sorted(COLLECTORS, key=lambda n: (n * 3 + k) % 5):  # in another order each time
                start = time.perf_counter()
                loops[n].iterate()
                row["runs"][str(n)] = time.perf_counter() - start
            found["rounds"].append(row)
            FILE.write_text(json.dumps(found, indent=1) + "\n")
            print(f"round {k}: {json.dumps(row)}", flush=True)
        for process in processes:
            process.process.kill()
        for loop in loops.values():
            loop.collector.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
