"""Progress of long work on the standard error stream: a bar on a terminal, plain lines elsewhere.

progress = ProgressBar(200, what="episodes", lines=10)
progress.advance(20, "expert")      # a terminal: the bar moves; a log file: `episodes 20/200: expert`
progress.write_line("wrote data")
progress.close()

Inside `heartbeat` a log file gets a line at least every 20 s: `collect, 75 s: loading runs/policy, episodes 20/200`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from guerdon.processes.clock import counted
from guerdon.secrets import hide

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_S = 15.0  # seconds without a line after which `heartbeat` writes one
_silent = False
_written = 0.0  # when the last line was written
_under_way: list[object] = []  # what is being done now, the oldest first; its text says what


def fall_silent() -> None:
    """Write no more lines: of several processes that do the same, one writes them."""
    global _silent
    _silent = True


def log_line(line: str) -> None:
    """Write one line without secrets to the standard error stream, so that output can be piped."""
    global _written
    _written = time.monotonic()
    if _silent:
        return
    sys.stderr.write(hide(line) + "\n")
    sys.stderr.flush()


@cache
def log_once(line: str) -> None:
    """`log_line`, of a line that this process has not written yet."""
    log_line(line)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name what may take long and shows no progress of its own, such as `loading runs/policy`."""
    _under_way.append(what)
    try:
        yield
    finally:
        _under_way.remove(what)


def tell(text: str) -> None:
    """Show a text in the line of the newest bar, from inside of one of its steps; nothing where there is no bar."""
    bars = [one for one in tuple(_under_way) if isinstance(one, ProgressBar)]
    if bars:
        bars[-1].show(text)


@contextmanager
def heartbeat(command: str) -> Iterator[None]:
    """Where there is no terminal, write what is being done whenever no line was written for `QUIET_S`.

    Args:
        command: begins each line.
    """
    global _written
    start = _written = time.monotonic()
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(max(_written + QUIET_S - time.monotonic(), 0.01)):
            if (now := time.monotonic()) >= _written + QUIET_S:
                log_line(f"{command}, {now - start:.0f} s: {', '.join(map(str, tuple(_under_way))) or 'working'}")

    if not _animated():
        threading.Thread(target=write, name="guerdon-heartbeat", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _animated() -> bool:
    """Whether a bar can move: the standard error stream is a terminal."""
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal and not console.is_dumb_terminal


class ProgressBar:
    """A progress bar on a terminal, plain lines elsewhere.

    Args:
        total: number of units to do.
        what: name of the unit.
        lines: plain lines to spread over the whole where there is no terminal; 0: only those of `write_line`.
        clock: whether a terminal shows the time left, as far as the speed up to now tells it.
    """

    def __init__(self, total: int, *, what: str = "steps", lines: int = 0, clock: bool = True) -> None:
        self._bar: Progress | None = None
        self._total, self._what, self._lines = total, what, lines
        self._written = self._done = 0
        self._line = f"{what} 0/{total}"
        _under_way.append(self)
        if _animated():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(),
                *([TimeRemainingColumn()] if clock else []),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(what, total=total)

    def __str__(self) -> str:
        return self._line

    def advance(self, done: int, text: str) -> None:
        """Move the bar to `done`; without a terminal, write a line each time another share of the total is done.

        Args:
            done: units.
            text: what a terminal shows; of several lines, a log has one.
        """
        self._done = done
        self.show(text)
        if self._bar is not None:
            return
        share = done * self._lines // max(self._total, 1)
        if share > self._written:
            self._written = share
            log_line(self._line)

    def show(self, text: str) -> None:
        """Change the text beside the bar, and in the lines of `heartbeat`."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=hide(text))
        self._line = f"{self._what} {self._done}/{self._total}" + (f": {text.replace(chr(10), '; ')}" if text else "")

    def write_line(self, line: str) -> None:
        """Write one line above the bar."""
        if self._bar is not None:
            self._bar.console.print(hide(line), highlight=False, markup=False, soft_wrap=True)
        else:
            log_line(line)

    def close(self) -> None:
        """Remove the bar."""
        if self in _under_way:
            _under_way.remove(self)
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def timed(seconds: dict[str, float] | None, name: str) -> Iterator[None]:
    """Add the time that passes inside to `seconds[name]`, and to the part of that name of a clock that runs."""
    start = time.perf_counter()
    with counted(name):
        yield
    if seconds is not None:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
