"""How far a study is, in words: for each setting the runs that are complete and its last success, and the time left.

progress = StudyProgress(jobs, estimates, parallel=2)
print(progress.text)        # A 3/8 runs, success 0.38
                            # B 2/8 runs, success 1.00
                            # about 40 s left
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guerdon.comparison.jobs import Job, JobResult
from guerdon.comparison.results import RETURN, SUCCESS, TRUTH, Row, number
from guerdon.pages.durations import duration
from guerdon.plan.estimate import total_seconds
from guerdon.processes.progress import ProgressBar

REFRESH_S = 2.0  # seconds between two looks at the files
_TAIL = 1 << 16  # bytes of a metrics file that are read
_NAME = 24  # characters of a setting's name, so that its line and the bar beside it fit into 80
_MEASURES = {TRUTH: "truth", SUCCESS: "success", RETURN: "return"}


@dataclass(frozen=True)
class _RunState:
    """What a run has written: its last step, the name and value of its last result; None without one."""

    step: float = 0.0
    result: tuple[str, float] | None = None


class StudyProgress:
    """The progress of the jobs of a study.

    Args:
        jobs: all of them.
        estimates: job name to its expected `seconds`, None where nothing limits them.
        steps: job name of a run to its steps.
        parallel: jobs at a time.
    """

    def __init__(
        self, jobs: Sequence[Job], estimates: Mapping[str, Mapping[str, Any]], steps: Mapping[str, float], parallel: int
    ) -> None:
        self._jobs, self._steps, self._parallel = tuple(jobs), steps, parallel
        self._seconds = {job.name: estimates[job.name].get("seconds", 0.0) for job in jobs}
        self._settled: dict[str, JobResult] = {}
        self._read: dict[Path, tuple[int, _RunState]] = {}

    def settle(self, result: JobResult) -> None:
        """Take in the end of a job."""
        self._settled[result.job.name] = result

    @property
    def text(self) -> str:
        """A line for each setting, and one with the time left where it is known."""
        settings: dict[str, list[Job]] = {}
        for job in self._jobs:
            if job.folder is not None:
                settings.setdefault(job.folder.parent.name, []).append(job)
        lines = [self._of_setting(name, runs) for name, runs in settings.items()]
        left = self.seconds_left
        if left is not None:
            lines.append(f"about {duration(left)} left" if left >= 1 else "about 1 s left")
        return "\n".join(lines)

    @property
    def seconds_left(self) -> float | None:
        """From the estimates, corrected by how long finished jobs took against theirs; None where there is no limit."""
        left = [job for job in self._jobs if job.name not in self._settled]
        if any(self._seconds[job.name] is None for job in left):
            return None
        settled = list(self._settled.values())  # another thread adds to it
        done = [one for one in settled if one.state == "done" and one.seconds]
        expected = sum(self._seconds[one.job.name] or 0.0 for one in done)
        pace = sum(one.seconds for one in done) / expected if expected else 1.0
        parts = [{"seconds": pace * self._seconds[job.name] * (1 - self._share(job))} for job in left]
        return total_seconds(parts, self._parallel)

    def _of_setting(self, name: str, runs: Sequence[Job]) -> str:
        complete = sum(self._state(job) == "done" for job in runs)
        failed = sum(self._state(job) == "failed" for job in runs)
        shown = name if len(name) <= _NAME else f"{name[: _NAME // 2 - 1]}…{name[-(_NAME // 2) :]}"
        line = f"{shown} {complete}/{len(runs)} runs" + (f", {failed} failed" if failed else "")
        results = [found for job in runs if (found := self._run(job).result) is not None]
        kinds = {kind for kind, _ in results}
        if len(kinds) != 1:  # none yet, or none in common
            return line
        mean = sum(value for _, value in results) / len(results)
        return f"{line}, {kinds.pop()} {mean:.2f}"

    def _state(self, job: Job) -> str:
        result = self._settled.get(job.name)
        return "" if result is None else result.state

    def _share(self, job: Job) -> float:
        """Which part of a run is done, from its metrics."""
        planned = self._steps.get(job.name)
        return min(self._run(job).step / planned, 1.0) if planned else 0.0

    def _run(self, job: Job) -> _RunState:
        """What a run has written; a file is read again only where it has grown."""
        if job.folder is None:
            return _RunState()
        path = job.folder / "metrics.jsonl"
        with suppress(OSError):
            size = path.stat().st_size
            if self._read.get(path, (-1,))[0] != size:
                self._read[path] = size, _last_state(path)
        return self._read.get(path, (0, _RunState()))[1]


def _last_state(path: Path) -> _RunState:
    """The end of a metrics file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
        rows = [row for line in file.read().splitlines() if (row := _row(line)) is not None]
    step = max((number(row, "step") or 0.0 for row in rows), default=0.0)
    last = next((row for row in reversed(rows) if row.get("kind") == "eval"), {})
    found = ((name, number(last, key)) for key, name in _MEASURES.items())
    return _RunState(step, next(((name, value) for name, value in found if value is not None), None))


def _row(line: bytes) -> Row | None:
    """An object of JSON; None for what is none, such as half a line."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


class ShownProgress:
    """The progress of a study on the terminal, brought up to date every few seconds until it is closed."""

    def __init__(self, progress: StudyProgress, total: int) -> None:
        self.bar = ProgressBar(total, what="jobs", clock=False)
        self._progress, self._count = progress, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="guerdon-progress", daemon=True)
        self._thread.start()

    def settle(self, result: JobResult, count: int) -> None:
        """Take in the end of a job, of which there have been so many."""
        self._progress.settle(result)
        self._count = count

    def close(self) -> None:
        """End the line."""
        self._ended.set()
        self._thread.join()
        self.bar.close()

    def _refresh(self) -> None:
        while True:
            self.bar.advance(self._count, self._progress.text)
            if self._ended.wait(REFRESH_S):
                return
