"""A run on a simulated Ray cluster whose nodes and processes are killed at random has the records of one process.

Collectors and reward workers are killed (SIGKILL) or made to hang (SIGSTOP), nodes are removed and others added. When
time and kills are enough, the run goes on to its end undisturbed. It is compared with a run of the same study in one
process: metrics, episodes, failed measurements, weights of the policy and counts must be the same bytes.

    PYTHONPATH=tests python tests/engines/soak.py runs/soak --minutes 20 --seed 0
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import subprocess
import sys
import time
from pathlib import Path

import paced_corridor
import psutil
from ray_studies import judged, ordered, recorded, robots

from child import environment
from guerdon.config.loading import to_yaml
from guerdon.files import atomic
from guerdon.processes.progress import log_line
from guerdon.rl.run import run

NAMES = {"ShardWorker": "collector", "ScoringWorker": "reward worker"}
HERE = Path(__file__).parent
HANG = 60  # seconds after which an actor that does nothing is replaced
ROLLOUT = 6 * 10  # steps: six copies of the corridor, ten steps each


def study(folder, name, *, total_steps, staleness=0, **more):
    runner = {
        "rollout_shards": 3, "total_steps": total_steps, "eval_every": total_steps // 4,
        "checkpoint_every": total_steps // 8, "max_staleness": staleness,
    }  # fmt: skip
    return robots(
        folder, name, runner=runner, reward=judged(ordered(folder, "kill", 0), max_failure_rate=0.9),
        env={
            "task": f"{paced_corridor.__name__}:{paced_corridor.ID}", "num_envs": 6, "kwargs": {"folder": str(folder)},
        },
        **more,
    )  # fmt: skip


def on_cluster():
    return {
        "engine": "ray",
        "cluster": {
            "address": "auto", "collectors": 3, "reward_workers": 2, "strategy": "spread", "task_timeout": HANG,
            "start_timeout": 900, "max_replacements": 1000,
        },
    }  # fmt: skip


class Killer:
    """Disturbs a cluster until there was enough of it.

    Args:
        cluster: of `ray.cluster_utils`.
        nodes: of it that may be removed.
        folder: with the file `pace`; gets `kills.jsonl`.
        minutes, kills: the least of both.
        progress: returns the share of the run that is done, 0 to 1.
        seed: of the order of kills.
    """

    def __init__(self, cluster, nodes, folder, *, minutes, kills, progress, seed):
        self.cluster, self.nodes, self.folder, self.progress = cluster, list(nodes), folder, progress
        self.minutes, self.least, self.rng = minutes, kills, random.Random(seed)
        self.done: list[dict] = []
        self.missing = 0  # nodes to add again

    def run(self, process):
        """Disturb a run, once it has begun, until it was enough, or the run is over."""
        while process.poll() is None and not self.progress():
            time.sleep(1)
        start = time.monotonic()
        every = self.minutes * 60 / (self.least * 1.3)
        due = start + every
        while process.poll() is None:
            share = (time.monotonic() - start) / (self.minutes * 60)
            if share >= 1 and len(self.done) >= self.least:
                break
            ahead = self.progress() > min(0.9, 0.9 * share)  # the run must not end before
            atomic.write_text(self.folder / "pace", "0.3" if ahead else "0")
            if time.monotonic() >= due:
                due += every * self.rng.uniform(0.5, 1.5)
                self.disturb(time.monotonic() - start)
            time.sleep(1)
        (self.folder / "pace").unlink(missing_ok=True)
        while self.missing and len(self.nodes) < 2:  # there must be room for one actor of each kind
            self.add_node()

    def disturb(self, seconds):
        what = self.rng.choices(["process", "hang", "node"], weights=[6, 2, 2])[0]
        if self.missing and self.rng.random() < 0.7:
            self.add_node()
        if what == "node" and len(self.nodes) > 1:
            node = self.nodes.pop(self.rng.randrange(len(self.nodes)))
            held = [NAMES[kind] for kind, _ in self.actors([node])]
            self.cluster.remove_node(node, allow_graceful=False)
            self.missing += 1
            self.note(seconds, "node removed", f"{len(self.nodes)} left", held)
            return
        found = self.actors(self.nodes)
        if not found:
            return
        kind, process = self.rng.choice(found)
        if what == "hang":
            process.suspend()
        else:
            process.kill()
        self.note(seconds, f"{NAMES[kind]} {'stopped' if what == 'hang' else 'killed'}", process.pid, [])

    def add_node(self):
        try:
            self.nodes.append(self.cluster.add_node(num_cpus=2, object_store_memory=100_000_000))
        except Exception as error:  # noqa: BLE001 - Ray gives a node 30 s to start: another one, later
            log_line(f"a node was not added: {error}")
        else:
            self.missing -= 1

    def note(self, seconds, what, which, held):
        self.done.append({"seconds": round(seconds, 1), "what": what, "which": which, "actors_on_it": held})
        with (self.folder / "kills.jsonl").open("a") as file:
            file.write(json.dumps(self.done[-1]) + "\n")
        log_line(f"[{seconds:6.0f} s] {len(self.done)}: {what} ({which}) {', '.join(held)}")

    def actors(self, nodes):
        """Kind and process of the actors on these nodes."""
        found = []
        for node in nodes:
            for raylet in node.all_processes["raylet"]:
                try:
                    for one in psutil.Process(raylet.process.pid).children(recursive=True):
                        words = " ".join(one.cmdline())
                        found += [(k, one) for k in NAMES if f"ray::{k}" in words and one.status() != "stopped"]
                except psutil.Error:
                    continue  # it has just ended
        return found


def digest(folder):
    files = recorded(folder) | {"failures": (folder / "failures.jsonl").read_bytes()}
    complete = json.loads((folder / "COMPLETE").read_text())
    del complete["wall_time"]
    return hashlib.sha256(repr([sorted(files.items()), complete]).encode()).hexdigest(), complete


def soak(folder, *, minutes, kills, iterations, seed, staleness=0):
    """Both runs, and what there is to say of them."""
    from ray.cluster_utils import Cluster

    folder.mkdir(parents=True)
    steps = iterations * ROLLOUT
    expected, counts = digest(run(study(folder, "local", total_steps=steps, staleness=staleness))[0])
    small = {"object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    nodes = [cluster.add_node(num_cpus=2, **small) for _ in range(3)]
    given = study(folder, "ray", total_steps=steps, staleness=staleness, **on_cluster())
    (folder / "study.yaml").write_text(to_yaml(given))
    metrics = folder / "ray" / "metrics.jsonl"

    def progress():
        rows = metrics.read_text().splitlines() if metrics.is_file() else []
        return json.loads(rows[-1])["step"] / steps if rows else 0.0

    started = time.monotonic()
    killer = Killer(cluster, nodes, folder, minutes=minutes, kills=kills, progress=progress, seed=seed)
    try:
        with (folder / "run.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "guerdon", "run", str(folder / "study.yaml")],
                env=environment(HERE, HERE.parent, RAY_ADDRESS=cluster.address), stdout=log, stderr=log,
            )  # fmt: skip
            killer.run(process)
            code = process.wait()
    finally:
        cluster.shutdown()
    said = (folder / "run.log").read_text()
    if code:
        raise SystemExit(f"the run ended with exit code {code}: {said[-2000:]}")
    found, again = digest(folder / "ray")
    by_kind: dict[str, int] = {}
    for one in killer.done:
        by_kind[one["what"]] = by_kind.get(one["what"], 0) + 1
    report = {
        "minutes": round((time.monotonic() - started) / 60, 1),
        "minutes of kills": minutes,
        "seed": seed,
        "kills": len(killer.done),
        "by kind": by_kind,
        "replaced": {name: said.count(f"a {name} was lost") for name in NAMES.values()},
        "steps": steps,
        "measurements": again["scored"],
        "failed measurements": again["failures"],
        "counts as in one process": again == counts,
        "sha256 in one process": expected,
        "sha256 with kills": found,
        "same": found == expected,
    }
    (folder / "soak.json").write_text(json.dumps(report, indent=1))
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="must not exist yet")
    parser.add_argument("--minutes", type=_positive, default=20, help="for which it is disturbed")
    parser.add_argument("--kills", type=int, help="the least; 1.5 a minute")
    parser.add_argument("--iterations", type=int, help="of the run; as many as the minutes need")
    parser.add_argument("--seed", type=int, default=0, help="of the order of kills")
    parser.add_argument("--staleness", type=int, default=0)
    given = parser.parse_args()
    kills = math.ceil(1.5 * given.minutes) if given.kills is None else given.kills
    report = soak(
        given.folder.absolute(), minutes=given.minutes, kills=kills, seed=given.seed, staleness=given.staleness,
        iterations=given.iterations or max(150, math.ceil(7.5 * given.minutes)),
    )  # fmt: skip
    print(json.dumps(report, indent=1))
    return 0 if report["same"] and report["kills"] >= kills else 1


def _positive(text):
    if not 0 < (minutes := float(text)) < math.inf:
        raise ValueError
    return minutes


if __name__ == "__main__":
    raise SystemExit(main())
