"""The log of a server process: what repeats becomes a count.

A model that raises on every item, or a client that sends nonsense over and over, would fill a disk. Of the records from
one line of code (of one kind of exception) the first few of a minute are written; the next one that is written says how
many were not, and so does the end of the log.

    log_to_stderr()
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from guerdon.secrets import hide

FEW = 3
WINDOW_S = 60.0
_FORM = "%(asctime)s %(name)s %(levelname)s %(message)s"


@dataclass
class _Place:
    ends: float = -math.inf  # of its minute
    written: int = 0
    left_out: int = 0
    said: str = ""


class CountingHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes records to the standard error stream, repeated ones as a count.

    Args:
        clock: seconds that only ever grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int, type[BaseException] | None], _Place] = {}
        self.setFormatter(logging.Formatter(_FORM))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it."""
        kind = record.exc_info[0] if record.exc_info else None
        place = self._places.setdefault((record.pathname, record.lineno, kind), _Place())
        now = self._clock()
        if now >= place.ends:
            self._tell(place)
            place.ends, place.written = now + WINDOW_S, 0
        if place.written < FEW:
            place.written += 1
            super().emit(record)
        else:
            place.left_out += 1
            place.said = record.getMessage()

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, without secrets."""
        return hide(super().format(record))

    def close(self) -> None:
        """Write the counts that were not written yet; called at the end of the process."""
        for place in self._places.values():
            self._tell(place)
        super().close()

    def _tell(self, place: _Place) -> None:
        if place.left_out:
            line = f"{place.left_out} more like this: {place.said}"
            super().emit(logging.LogRecord("guerdon", logging.WARNING, "", 0, line, None, None))
            place.left_out = 0


def log_to_stderr() -> None:
    """Write the log of this process to the standard error stream; HTTP clients do not log every request."""
    logging.basicConfig(level=logging.INFO, handlers=[CountingHandler()])
    for name in ("httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
