"""The report of work that goes on: a process of low priority writes it again from time to time, and reads only files.

    with live_page(Path("runs/demo")):      # a study or a run
        ...                                 # runs/demo/report.html follows; the last one is written by the caller

The first page appears with the first evaluation, the next ones at most every `EVERY_S` and with at most `SHARE` of a
core; what the first costs is not counted. A run inside the folder of a study has no page of its own until its end: that
of the study shows it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from types import FrameType
from typing import NoReturn

from guerdon.errors import DataError, GuerdonError, boundary
from guerdon.files.json_files import read_json
from guerdon.processes.progress import log_line
from guerdon.processes.subprocess_worker import end_with_parent, start_child

FIRST_S = 3.0  # seconds of work before the process is started: short work needs none
LOOK_S = 1.0  # between looks for a first evaluation
EVERY_S = 30.0  # between two pages, at least
SHARE = 0.02  # of a core that pages take on average, after the first
PAGE = "report.html"
_END_S = 10.0  # for a page under way when the work ends


@contextmanager
def live_page(folder: Path) -> Iterator[None]:
    """Keep the report of a study or a run up to date while the block works; it is named on the terminal.

    Where the block raises after a page was written, a last one says how far the work came. Else the caller writes it.
    """
    if any((parent / "study.json").is_file() for parent in folder.absolute().parents):
        yield
        return
    log_line(f"report: {folder / PAGE}, from the first evaluation on")
    began = time.time()
    writer, done = _Writer(folder), False
    try:
        yield
        done = True
    finally:
        writer.end()
        if not done:
            _write_last(folder, began)


def _write_last(folder: Path, began: float) -> None:
    """Replace a page that was written since `began` by one that does not reload itself."""
    with suppress(GuerdonError, OSError):
        if (folder / PAGE).stat().st_mtime >= began - 1:
            _write(folder, None)


class _Writer:
    """The process that writes pages, started after a while by a thread that passes its warnings on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._follow, name="guerdon-report", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the process; a page that it has begun does not appear."""
        with self._lock:
            self._ended.set()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._thread.join(_END_S)

    def _follow(self) -> None:
        if self._ended.wait(FIRST_S):
            return
        with self._lock:
            if self._ended.is_set():
                return
            self._process = start_child(
                [sys.executable, "-m", __name__, str(self._folder)],
                environment={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the work, which then ends this one
            )  # fmt: skip
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                log_line(line.decode(errors="replace").rstrip())


def _metrics(folder: Path) -> list[Path]:
    """The metrics files of a run, or of the runs of a study, that are there."""
    plan = read_json(folder / "study.json")
    runs = [folder]
    if plan is not None:
        names = product(plan.get("tasks") or (), plan.get("arms") or (), plan.get("seeds") or ())
        runs = [folder / "runs" / str(task) / str(arm) / f"seed{seed}" for task, arm, seed in names]
    return [file for run in runs if (file := run / "metrics.jsonl").is_file()]


def _is_evaluated(folder: Path) -> bool:
    """Whether a run of the folder was evaluated."""
    return any(b'"kind": "eval"' in file.read_bytes() for file in _metrics(folder))


def _state(folder: Path) -> list[tuple[int, int]]:
    """What changes when a run writes a result."""
    found = [file.stat() for file in _metrics(folder)]
    return [(one.st_size, one.st_mtime_ns) for one in found]


def _write(folder: Path, every: float | None) -> None:
    from guerdon.comparison.report import write_report, write_single_report

    write = write_report if (folder / "study.json").is_file() else write_single_report
    write(folder, every=every)


def write_pages(folder: Path) -> NoReturn:
    """Write the report of a study or a run again whenever it has new results, until this process is ended.

    A page that cannot be written is one line on the standard output; the next one is tried as usual.
    """
    while not _is_evaluated(folder):
        time.sleep(LOOK_S)
    before: list[tuple[int, int]] = []
    has_warned, wait = False, EVERY_S
    while True:
        now = _state(folder)
        if now != before:
            before, began = now, time.process_time()
            try:
                with boundary(DataError, "it cannot be drawn"):
                    _write(folder, wait)
            except (GuerdonError, OSError) as error:
                if not has_warned:
                    sys.stdout.write(f"WARNING: {folder / PAGE} is not up to date: {error}\n")
                    sys.stdout.flush()
                has_warned = True
            cost = time.process_time() - began
            wait = max(EVERY_S, cost / SHARE - cost)
        time.sleep(wait)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End by an exception, so that a file that is being written is removed."""
    raise SystemExit


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    end_with_parent()
    os.nice(19)
    write_pages(Path(sys.argv[1]))
