"""A circuit breaker: after many failures in a row nothing is asked for a while, then one request looks.

    closed      everything passes; `failures` in a row open it
    open        nothing passes for `seconds`
    half open   one probe passes, the rest does not; it closes the breaker, or opens it again

This module does not know what passes.

    with breaker.attempt() as attempt:      # raises CircuitOpenError
        attempt.succeeded()                 # leaving without this counts as a failure
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from guerdon.serve.retry import Clock

State = Literal["closed", "open", "half_open"]


class CircuitOpenError(Exception):
    """Nothing passes now.

    Attributes:
        wait: seconds until a probe may.
    """

    def __init__(self, wait: float) -> None:
        super().__init__(f"the reward server failed again and again; asked anew in {wait:.1f} s")
        self.wait = wait


class Attempt:
    """One request on its way, and how it went; nothing said is a failure."""

    def __init__(self) -> None:
        self.verdict: bool | None = False

    def succeeded(self) -> None:
        """The server works."""
        self.verdict = True

    def unclear(self) -> None:
        """Nothing was learned about the server."""
        self.verdict = None


class Breaker:
    """Counts failures in a row.

    Args:
        failures: in a row that open it.
        seconds: that it then stays open.
        clock: time.
    """

    def __init__(self, failures: int, seconds: float, clock: Clock) -> None:
        self._limit, self._seconds, self._clock = failures, seconds, clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._opened: float | None = None
        self._probing = False

    @property
    def state(self) -> State:
        """What the next request would meet."""
        with self._lock:
            if self._opened is None:
                return "closed"
            return "half_open" if self._wait() <= 0 else "open"

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Let one request pass and learn from it.

        Raises:
            CircuitOpenError: it may not pass.
        """
        probe = self._enter()
        attempt = Attempt()
        try:
            yield attempt
        except BaseException:
            if attempt.verdict is False:
                attempt.verdict = None  # stopped from outside: the server is not to blame
            raise
        finally:
            self._leave(probe, attempt.verdict)

    def _wait(self) -> float:
        return 0.0 if self._opened is None else self._opened + self._seconds - self._clock.now()

    def _enter(self) -> bool:
        with self._lock:
            if self._opened is None:
                return False
            wait = self._wait()
            if wait > 0 or self._probing:
                raise CircuitOpenError(max(wait, 0.0))
            self._probing = True
            return True

    def _leave(self, probe: bool, verdict: bool | None) -> None:
        with self._lock:
            if probe:
                self._probing = False
            if verdict is True:
                self._in_a_row, self._opened = 0, None
            elif verdict is False:
                self._in_a_row += 1
                if probe or (self._opened is None and self._in_a_row >= self._limit):
                    self._opened = self._clock.now()
