"""What the person watching sees while something long goes on: a bar on a terminal, plain lines elsewhere.

Everything goes to the standard error stream, so that output can be piped. This module does not know what is
counted.

    narrator = Narrator(200, what="episodes", lines=10)
    narrator.advance(20, "expert")      # a terminal: the bar moves; a log file: `episodes 20/200: expert`
    narrator.say("wrote data")
    narrator.close()
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Narrator:
    """A progress bar on a terminal, plain lines elsewhere.

    Args:
        total: how much there is to do.
        what: the unit of it.
        lines: plain lines to spread over the whole where there is no terminal; 0 writes none but `say`'s.
    """

    def __init__(self, total: int, *, what: str = "steps", lines: int = 0) -> None:
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._total, self._what, self._lines = total, what, lines
        self._told = 0
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                console=self._console,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(what, total=total)

    def advance(self, done: int, text: str) -> None:
        """Move the bar to `done`; where there is none, write a line each time another share of the total is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text)
            return
        share = done * self._lines // max(self._total, 1)
        if share > self._told:
            self._told = share
            self.say(f"{self._what} {done}/{self._total}" + (f": {text}" if text else ""))

    def say(self, line: str) -> None:
        """One line for the record."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.stop()
