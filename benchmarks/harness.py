"""What the speed comparisons share: chosen cores, a process per measurement, tables ready for `docs/benchmarks.md`.

Run by itself it prints the machine.

    rows = measure(__file__, {"side": "sb3", "core": 1, "steps": 20000})
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.files import provenance

MARK = "measured: "


def pin(cores: Sequence[int]) -> None:
    """Keep this process, and what it starts, on these cores; must come before numpy's and torch's threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))


def measure(script: str, options: Mapping[str, Any], *, threads: int = 1) -> dict[str, Any]:
    """Run `script` in a process of its own, with these options, and return the measurement it printed.

    Raises:
        SystemExit: the process failed; its messages are shown.
    """
    arguments = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)},
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not found:
        sys.exit(f"{script} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(found[-1].removeprefix(MARK))
    return result


class Stopwatch:
    """Time since it was made: `seconds` on the wall, and `core_seconds` of computing by this process.

    On an idle machine the two agree for work on one core; on a shared machine only the second measures the work.
    """

    def __init__(self) -> None:
        self._wall, self._core = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Both times by name, after all work of a GPU that was begun."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - self._wall, "core_seconds": time.process_time() - self._core}


def time_guerdon(study: Mapping[str, Any]) -> dict[str, Any]:
    """Time of guerdon's loop from after its first reset to its last update, in all and by phase.

    Args:
        study: a configuration; evaluations, checkpoints and TensorBoard are switched off here.

    Returns:
        What `Stopwatch.read` gives, `steps` taken, `phases` (name to seconds on the wall) and `frames` scored.
    """
    from guerdon.rl.loop import Loop
    from guerdon.settings.study import Study

    never = 10**12
    quiet = {"eval_every": never, "eval_episodes": 1, "checkpoint_every": never, "logger": {"tensorboard": False}}
    marks = []
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Study.model_validate({**study, "runner": {**study["runner"], **quiet}}), Path(folder))
        evaluate = loop.collector.evaluate

        def stop_and_evaluate(*args: Any, **kwargs: Any) -> dict[str, float]:
            marks.append(watch.read())  # a run ends with an evaluation, right after its last update
            return evaluate(*args, **kwargs)

        loop.collector.evaluate = stop_and_evaluate  # type: ignore[method-assign]
        watch = Stopwatch()
        summary = loop.run()
        rows = [json.loads(line) for line in (Path(folder) / "timings.jsonl").read_text().splitlines()]
    names = sorted({name for row in rows for name in row if name.startswith("seconds/")})
    phases = {name.removeprefix("seconds/"): sum(row.get(name, 0.0) for row in rows) for name in names}
    return {**marks[0], "steps": summary["step"], "phases": phases, "frames": summary["scored"]}


def report_measurement(result: Mapping[str, Any]) -> None:
    """Hand a measurement to the process that called `measure`."""
    print(MARK + json.dumps(result))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and range: `1.52 (1.49 to 1.55)`."""
    low, middle, high = float(np.min(values)), float(np.median(values)), float(np.max(values))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def rates(runs: Sequence[Mapping[str, float]], clock: str = "seconds") -> list[float]:
    """Environment steps per second of each run, by one of the two clocks of `Stopwatch`."""
    return [run["steps"] / run[clock] for run in runs]


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Quotients, repetition by repetition."""
    return [x / y for x, y in zip(a, b, strict=True)]


def core_share(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """How much of its core the measurements on one core were given: says whether wall-clock numbers can be trusted."""
    shares = [run["core_seconds"] / run["seconds"] for runs in results.values() for run in runs]
    return f"The processes had {min(shares):.0%} to {max(shares):.0%} of their core."


def machine_line(packages: Sequence[str] = ()) -> str:
    """Processor, memory, load and versions, as one Markdown paragraph. Names nothing that identifies a host."""
    facts = provenance.machine()
    load = os.getloadavg()[0]
    shared = f"**shared with other work** (load {load:.1f})" if load > 1.3 else f"otherwise idle (load {load:.1f})"
    versions = [f"Python {platform.python_version()}"]
    for name in ("torch", "numpy", "gymnasium", "metaworld", "mujoco", *packages):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} absent")
    return (
        f"Machine: {facts['processor']}, {facts['cores']} cores, {facts['memory_gib']:.0f} GiB, {facts['system']}; "
        f"{shared} at the start. {', '.join(versions)}. {provenance.now()[:10]}."
    )


if __name__ == "__main__":
    print(machine_line())
