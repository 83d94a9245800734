"""The update of a language model by one process, by two that torchrun starts, and by two on a Ray cluster.

Whole runs (`guerdon run`) of a model of random weights in alternation, with one thread per process: all weights are
trained, by AdamW, a gradient step per rollout. `update` is what the run writes as the time of that step (of the first
process, which waits for the other), `step` the whole iteration, in which the first process, or a collector of Ray,
generates. `apart` is what two processes reach that share nothing but the machine: each a run with half of the
responses, at the same time. Needs two quiet cores.

    python benchmarks/sharded.py --repetitions=5
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from harness import machine_line, ratios, spread, table
from text_sides import ALGORITHM, Size, make_model

SIZES = {
    "30M": Size(512, 8, 8, 8, 1536, 8192, 4, 4, 35, 1, 3),  # with prompts of 93 tokens, 16 x 128 tokens in an update
    "tiny": Size(64, 2, 4, 4, 128, None, 2, 2, 4, 1, 1),
}
SIDES = {
    "one": "one process", "torchrun": "two, torchrun", "ray": "two, Ray", "apart": "two runs with half of the responses"
}  # fmt: skip
RUN = ["-m", "guerdon", "run"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def study(model: str, size: Size, folder: Path, side: str, *, bf16: bool, checkpointing: bool) -> Path:
    """The file of a run."""
    never, prompts = 10**12, size.prompts // (2 if side == "apart" else 1)
    given: dict[str, Any] = {
        "work_dir": str(folder),
        "runner": {
            "total_steps": prompts * size.samples * (size.warm + size.steps), "eval_every": never, "eval_episodes": 1,
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


def seconds(model: str, size: Size, side: str, **options: bool) -> dict[str, float]:
    """Median seconds of an update, and of a whole step, of a run."""
    with tempfile.TemporaryDirectory() as work:
        files = [study(model, size, Path(work) / str(i), side, **options) for i in range(1 + (side == "apart"))]
        command = [sys.executable, *(TORCHRUN if side == "torchrun" else []), *RUN]
        given = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        started = [
            subprocess.Popen([*command, file], env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for file in files
        ]
        for process in started:
            said = process.communicate()[0]
            if process.returncode:
                sys.exit(f"{side} ended with {process.returncode}:\n{said}")
        found = []
        for file in files:
            rows = [json.loads(line) for line in (file.parent / "run" / "timings.jsonl").read_text().splitlines()]
            steps = [{k: v for k, v in row.items() if k.startswith("seconds/")} for row in rows]
            found.append([[step["seconds/update"], sum(step.values())] for step in steps if step][size.warm :])
        update, step = np.max(np.median(found, axis=1), axis=0)
        return {"update": float(update), "step": float(step)}


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
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    parser.add_argument("--checkpointing", action="store_true", help="with gradient_checkpointing")
    options = parser.parse_args()
    given, size = {"bf16": options.bf16, "checkpointing": options.checkpointing}, SIZES[options.size]
    results: dict[str, list[dict[str, float]]] = {
        side: [] for side in SIDES if side == "one" or side in options.sides.split(",")
    }
    where = machine_line(["transformers", "ray"])
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), size)
        for repetition in range(options.repetitions):
            for side, runs in results.items():
                runs.append(seconds(model, size, side, **given))
                shown = ", ".join(f"{name} {value:.2f} s" for name, value in runs[-1].items())
                print(f"repetition {repetition}: {SIDES[side]}, {shown} (load {os.getloadavg()[0]:.1f})", flush=True)
    print(f"\n{where}\n\n{options.repetitions} repetitions in alternation; median (lowest to highest).\n")
    print(report(results))


if __name__ == "__main__":
    main()
