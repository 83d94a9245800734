"""What the speed comparisons share: one core, one process per measurement, tables ready for `docs/benchmarks.md`.

This module does not know what is measured. Run by itself it prints the machine.

    rows = measure(__file__, {"side": "sb3", "core": 1, "steps": 20000})
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from guerdon import provenance

_MARK = "measured: "


def pin(cores: Sequence[int]) -> None:
    """Keep this process, and what it starts, on these cores; must come before numpy's and torch's threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))


def measure(script: str, options: Mapping[str, Any], *, threads: int = 1) -> dict[str, Any]:
    """Run `script` in a process of its own, with these options, and return what it told by `tell`.

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
    told = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not told:
        sys.exit(f"{script} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(told[-1].removeprefix(_MARK))
    return result


def tell(result: Mapping[str, Any]) -> None:
    """Hand a measurement to the process that called `measure`."""
    print(_MARK + json.dumps(result))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and range: `1.52 (1.49 to 1.55)`."""
    low, middle, high = float(np.min(values)), float(np.median(values)), float(np.max(values))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


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
