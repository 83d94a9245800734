"""`guerdon run --profile N`: traces of some iterations, and a table of where their time went in every process.

    runs/one/profile/
      trace_process0.json.gz      for chrome://tracing or Perfetto; one of each process that learns
      times.json                  the table, and the seconds of each part by its own name
      times.txt                   the table

The first iteration of a process is left out: it loads libraries and, on a GPU, compiles kernels. Numbers of the run do
not change.

    profile = RunProfile(folder / "profile", iterations=3)
    profile.before()
    loop.iterate()
    profile.after()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guerdon.compute import distributed, profiling
from guerdon.errors import ConfigError
from guerdon.files import atomic

MOST = 100  # iterations: a trace of many cannot be shown
COLUMNS = ("collect", "score", "update", "weights", "waiting", "other")
_COLUMN = {  # of each part; others are `other`
    **dict.fromkeys(("generate", "verify", "old log-probs", "simulate", "render", "log-probs", "look"), "collect"),
    **dict.fromkeys(("video frames", "collect", "warm up"), "collect"),
    "score": "score",
    **dict.fromkeys(("update", "refit", "called update", "called fit"), "update"),
    **dict.fromkeys(("weights", "called _gather", "called tensors", "called stored"), "weights"),
    **dict.fromkeys(("wait", "waiting"), "waiting"),
}


def check_iterations(iterations: int) -> None:
    """Refuse a number of iterations that cannot be profiled.

    Raises:
        ConfigError: it is below 0 or too large.
    """
    if not 0 <= iterations <= MOST:
        raise ConfigError(f"--profile {iterations}: choose a number of iterations from 1 to {MOST}", key="--profile")


class RunProfile:
    """Records iterations of a run, in the first process and in those that follow it.

    Args:
        folder: receives what is written.
        iterations: to record; fewer where the run ends before.
    """

    def __init__(self, folder: Path, iterations: int) -> None:
        check_iterations(iterations)
        self.folder, self._left = folder, iterations
        self._begun = self._done = 0

    def before(self) -> None:
        """An iteration begins."""
        self._begun += 1
        if self._begun == 2 and self._left:
            distributed.everywhere(profiling.begin)

    def after(self) -> str | None:
        """An iteration has ended, and what follows it; after the last one, the table."""
        if not profiling.recording():
            return None
        self._done += 1
        self._left -= 1
        return None if self._left else self._write()

    def close(self) -> str | None:
        """The run has ended: what was recorded until now, or why nothing was; None where the profile is written."""
        if profiling.recording():
            return self._write()
        if self._left and not self._done:
            return f"no profile: the run had {self._begun} more iterations, and the first one is left out"
        return None

    def _write(self) -> str:
        self._left = 0
        parts = distributed.everywhere(_ended, str(self.folder))
        rows = [{"process": number, **row_of(one)} for number, one in enumerate(parts)]
        found = {"iterations": self._done, "processes": rows, "parts": parts}
        atomic.write_json(self.folder / "times.json", found)
        text = table(rows, self._done)
        atomic.write_text(self.folder / "times.txt", text)
        return f"{text}wrote {self.folder}"


def _ended(folder: str) -> list[dict[str, float]]:
    """In every process: its trace on the disk, and the seconds of all processes."""
    return distributed.collected(profiling.end(Path(folder) / f"trace_process{distributed.rank()}.json.gz"))


def row_of(parts: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a process by column, which add up to `wall`.

    Args:
        parts: seconds by name, and `wall`; what is in none of them is `other`.
    """
    found = dict.fromkeys(COLUMNS, 0.0)
    for name, seconds in parts.items():
        if name != profiling.WALL:
            found[_COLUMN.get(name, "other")] += seconds
    wall = parts[profiling.WALL]
    found["other"] += wall - sum(found.values())
    return {**found, profiling.WALL: wall}


def table(rows: list[dict[str, Any]], iterations: int) -> str:
    """Seconds of each process, and their shares, as text."""
    columns = (*COLUMNS, profiling.WALL)
    lines = [f"seconds of {iterations} iterations", "process " + "".join(f"{name:>16}" for name in columns)]
    for row in rows:
        wall = row[profiling.WALL] or 1.0
        cells = [f"{row[name]:.3f} ({row[name] / wall:4.0%})" for name in COLUMNS]
        lines.append(f"{row['process']:<8}" + "".join(f"{cell:>16}" for cell in [*cells, f"{wall:.3f}"]))
    return "\n".join(lines) + "\n"
