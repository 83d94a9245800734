"""The update of a language model by one process, by two that torchrun starts, and by two on a Ray cluster.

Whole runs (`guerdon run`) of a model of random weights with one thread per process: all weights are trained, by AdamW,
a gradient step per rollout. All runs are started at once and take a step in turn, while the others wait.
`update` is what the run writes as the time of its gradient step, in the first process, which waits for the other;
`step` the whole iteration, in which the first process, or a collector of Ray, generates. `apart` is what two processes
reach that share nothing but the machine: a run each, with half of the responses. Needs two quiet cores: a turn in which
other processes took more than a tenth of a core is repeated, `--turns` times in all.

    python benchmarks/sharded.py --repetitions=9
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from harness import machine_line, ratios, spread, table
from text_sides import ALGORITHM, Size, make_model

SIZES = {
    "30M": Size(512, 8, 8, 8, 1536, 8192, 4, 4, 35, 1, 0),  # with prompts of 93 tokens, 16 x 128 tokens in an update
    "tiny": Size(64, 2, 4, 4, 128, None, 2, 2, 4, 1, 0),
}
SIDES = {
    "one": "one process", "torchrun": "two, torchrun", "ray": "two, Ray", "apart": "two runs with half of the responses"
}  # fmt: skip
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
BUSY = 0.1  # of a core
MINE = "GUERDON_BENCHMARK=sharded"  # in the environment of what is started here


def study(model: str, size: Size, turns: int, folder: Path, side: str, *, bf16: bool, checkpointing: bool) -> Path:
    """The file of a run."""
    never, prompts = 10**12, size.prompts // (2 if side == "apart" else 1)
    given: dict[str, Any] = {
        "work_dir": str(folder),
        "runner": {
            "total_steps": prompts * size.samples * (size.warm + turns), "eval_every": never, "eval_episodes": 1,
            "checkpoint_every": never, "logger": {"tensorboard": False}, "threads": 1,
        },
        "policy": {"type": "text", "path": model, "bf16": bf16, "gradient_checkpointing": checkpointing,
                   "share_prompts": False},
        "data": {
            "task": {"family": "chain", "steps": 15}, "train_size": 64, "val_size": 1,
            "max_response_length": size.length,
            "train_batch_size": prompts, "n_samples": size.samples, "filter_accuracy": False, "filter_truncated": False,
        },
        "algorithm": ALGORITHM,
        **({"engine": "ray", "cluster": {"learners": 2}} if side == "ray" else {}),
    }  # fmt: skip
    folder.mkdir()
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(given))
    return file


def run_in_turn(file: Path) -> None:
    """`guerdon run`, an iteration for every file `go`, answered by a file `done` with its seconds."""
    from guerdon.cli import main
    from guerdon.rl.loop import Loop

    iterate, go, done = Loop.iterate, file.with_name("go"), file.with_name("done")

    def wait_and_iterate(loop: Loop) -> None:
        while not go.exists():
            time.sleep(0.02)
        go.unlink()
        start = time.perf_counter()
        iterate(loop)
        part = file.with_name("part")
        part.write_text(json.dumps({"update": loop._seconds["update"], "step": time.perf_counter() - start}))
        part.rename(done)

    Loop.iterate = wait_and_iterate  # type: ignore[method-assign]
    sys.argv = ["guerdon", "run", str(file)]
    main()


class Side:
    """The run, or the two runs, of a side."""

    def __init__(self, side: str, work: Path, start: Callable[[Path, str], Path]) -> None:
        command = [sys.executable, *(TORCHRUN if side == "torchrun" else []), __file__]
        given = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.files = [start(work / f"{side}{i}", side) for i in range(1 + (side == "apart"))]
        self.logs = [file.with_name("log").open("w+") for file in self.files]
        self.runs = [
            subprocess.Popen([*command, f"--study={file}"], env=given, stdout=log, stderr=subprocess.STDOUT)
            for file, log in zip(self.files, self.logs, strict=True)
        ]

    def turn(self) -> dict[str, float]:
        """Seconds of an update and of a whole step; the longer ones of two runs."""
        found = []
        for file in self.files:
            file.with_name("go").touch()
        for file, run in zip(self.files, self.runs, strict=True):
            done = file.with_name("done")
            while not done.exists():
                if run.poll() is not None:
                    sys.exit(f"{file.parent.name} ended with {run.returncode}:\n{file.with_name('log').read_text()}")
                time.sleep(0.02)
            found.append(json.loads(done.read_text()))
            done.unlink()
        return {name: max(one[name] for one in found) for name in found[0]}

    def end(self) -> None:
        """End the runs, and what they started."""
        for run in self.runs:
            run.terminate()
        for run, log in zip(self.runs, self.logs, strict=True):
            run.wait()
            log.close()


def others(known: dict[int, bool]) -> dict[int, float]:
    """Core-seconds up to now of each process that this one did not start, by its number.

    Args:
        known: whether a process is one of them, by its number; filled here.
    """
    spent = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            number = int(folder.name)
            if number not in known:
                known[number] = MINE.encode() not in (folder / "environ").read_bytes() and number != os.getpid()
            if known[number]:
                ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
                spent[number] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return spent


def in_turn(sides: Mapping[str, Side], repetitions: int, turns: int) -> dict[str, list[dict[str, float]]]:
    """Seconds of each side in as many rounds as are wanted, of those in which the machine was quiet."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    known: dict[int, bool] = {}
    for name, side in sides.items():
        print(f"{name}: ready after {side.turn()['step']:.1f} s", flush=True)
    for turn in range(turns):
        before, start = others(known), time.perf_counter()
        took = {name: side.turn() for name, side in sides.items()}
        spent = sum(now - before.get(number, 0.0) for number, now in others(known).items())
        share = spent / (time.perf_counter() - start)
        shown = ", ".join(f"{name} {one['update']:.2f} s" for name, one in took.items())
        print(f"turn {turn}: {shown}; other processes took {share:.2f} of a core", flush=True)
        if share <= BUSY:
            for name, one in took.items():
                found[name].append(one)
        if len(found["one"]) == repetitions:
            break
    return found


def report(results: dict[str, list[dict[str, float]]]) -> str:
    """Seconds of each side, and how much faster than one process it is, repetition by repetition."""
    rows = []
    for side in results:
        row = [SIDES[side]]
        for what in ("update", "step"):
            own, one = ([run[what] for run in results[name]] for name in (side, "one"))
            row += [spread(own), spread(ratios(one, own)) if side != "one" else ""]
        rows.append(row)
    return table(["", "update, s", "speed, one process = 1", "whole step, s", "speed, one process = 1"], rows)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="30M")
    parser.add_argument("--sides", default=",".join(SIDES), help="separated by commas; `one` is always there")
    parser.add_argument("--repetitions", type=int, default=9, help="turns that count")
    parser.add_argument("--turns", type=int, default=60, help="turns at most")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    parser.add_argument("--checkpointing", action="store_true", help="with gradient_checkpointing")
    parser.add_argument("--study", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.study:
        run_in_turn(options.study)
        return
    os.environ[MINE.partition("=")[0]] = MINE.partition("=")[2]
    size, sides = SIZES[options.size], {}
    where = machine_line(["transformers", "ray"])
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model", size)

        def start(work: Path, side: str) -> Path:
            given = {"bf16": options.bf16, "checkpointing": options.checkpointing}
            return study(model, size, options.turns, work, side, **given)

        try:
            for name in SIDES:
                if name == "one" or name in options.sides.split(","):
                    sides[name] = Side(name, Path(folder), start)
            results = in_turn(sides, options.repetitions, options.turns)
        finally:
            for side in sides.values():
                side.end()
    if not results["one"]:
        sys.exit(f"in none of {options.turns} turns was the machine quiet")
    print(f"\n{where}\n\n{len(results['one'])} turns; median (lowest to highest).\n")
    print(report(results))


if __name__ == "__main__":
    main()
