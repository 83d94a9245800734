"""Progress of long work on the standard error stream: a bar on a terminal, plain lines elsewhere.

progress = ProgressBar(200, what="episodes", lines=10)
progress.advance(20, "expert")      # a terminal: the bar moves; a log file: `episodes 20/200: expert`
progress.write_line("wrote data")
progress.close()
"""

from __future__ import annotations

import sys
from functools import cache

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_silent = False


def fall_silent() -> None:
    """Write no more lines: of several processes that do the same, one writes them."""
    global _silent
    _silent = True


def log_line(line: str) -> None:
    """Write one line to the standard error stream, so that output can be piped."""
    if _silent:
        return
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@cache
def log_once(line: str) -> None:
    """`log_line`, of a line that this process has not written yet."""
    log_line(line)


class ProgressBar:
    """A progress bar on a terminal, plain lines elsewhere.

    Args:
        total: number of units to do.
        what: name of the unit.
        lines: plain lines to spread over the whole where there is no terminal; 0: only those of `write_line`.
    """

    def __init__(self, total: int, *, what: str = "steps", lines: int = 0) -> None:
        console = Console(stderr=True)
        self._bar: Progress | None = None
        self._total, self._what, self._lines = total, what, lines
        self._written = 0
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                console=console,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(what, total=total)

    def advance(self, done: int, text: str) -> None:
        """Move the bar to `done`; without a terminal, write a line each time another share of the total is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text)
            return
        share = done * self._lines // max(self._total, 1)
        if share > self._written:
            self._written = share
            log_line(f"{self._what} {done}/{self._total}" + (f": {text}" if text else ""))

    def write_line(self, line: str) -> None:
        """Write one line above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            log_line(line)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
