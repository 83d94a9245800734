"""Seconds of the parts of a piece of work, each second in one part: what is inside another part is taken out of it.

Nothing is recorded, at the price of a comparison, until a clock runs; and nothing of other threads.

    clock = PartsClock()
    with counted("update"):
        with counted("waiting"): ...
    clock.stop()
    clock.seconds        # {"update": 2.0, "waiting": 0.4}
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class PartsClock:
    """Records parts of the thread that makes it, until `stop`.

    Attributes:
        seconds: of each part up to now.
        wall: seconds in all.
    """

    def __init__(self) -> None:
        global _running
        self.seconds: dict[str, float] = {}
        self.wall = 0.0
        self._thread = threading.get_ident()
        self._parts: list[str] = []
        self._closed = 0  # parts that keep what is inside them
        self._started = self._since = time.perf_counter()
        _running = self

    def stop(self) -> None:
        """Record nothing more."""
        global _running
        self._turn()
        self.wall = self._since - self._started
        _running = None

    @contextmanager
    def part(self, name: str, *, closed: bool) -> Iterator[None]:
        """See `counted`."""
        if threading.get_ident() != self._thread or self._closed:
            yield
            return
        self._turn()
        self._parts.append(name)
        self._closed += closed
        try:
            yield
        finally:
            self._turn()
            self._parts.pop()
            self._closed -= closed

    def _turn(self) -> None:
        """Give the time since the last turn to the part that was innermost."""
        now = time.perf_counter()
        if self._parts:
            self.seconds[self._parts[-1]] = self.seconds.get(self._parts[-1], 0.0) + now - self._since
        self._since = now


_running: PartsClock | None = None


@contextmanager
def counted(name: str, *, closed: bool = False) -> Iterator[None]:
    """Give the time inside to a part, where a clock runs.

    Args:
        name: of the part.
        closed: parts inside it are not parts of their own.
    """
    if _running is None:
        yield
        return
    with _running.part(name, closed=closed):
        yield
