"""When to try again, and how long to wait: full jitter, the server's own word, one deadline over all.

Time and chance are handed in, so that a test can pass an hour in a moment. This module does not know HTTP clients.

    retry = Retry(tries=3)
    pause_s = retry.pause(attempt=0, retry_after="2", clock=clock, rng=random.Random(0))
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

TRANSIENT = frozenset({408, 429})  # of the 4xx; every 5xx is too


@dataclass(frozen=True)
class Clock:
    """Time as a client sees it; tests bring their own.

    Attributes:
        now: seconds that only ever grow.
        wall: seconds since 1970, to read dates with.
        sleep: wait so many seconds.
    """

    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(frozen=True)
class Deadline:
    """A moment after which nothing is tried any more."""

    clock: Clock
    at: float

    @staticmethod
    def after(seconds: float, clock: Clock) -> Deadline:
        """The deadline so many seconds from now."""
        return Deadline(clock, clock.now() + seconds)

    @property
    def left(self) -> float:
        """Seconds left; negative once it is over."""
        return self.at - self.clock.now()


@dataclass(frozen=True)
class Retry:
    """How often, and how far apart.

    Attributes:
        tries: in all.
        first: upper end of the first pause, in seconds; it doubles with every try.
        longest: upper end of any pause that the server did not ask for.
    """

    tries: int = 3
    first: float = 0.5
    longest: float = 10.0

    def pause(self, attempt: int, retry_after: str | None, *, clock: Clock, rng: random.Random) -> float:
        """Seconds to wait after try number `attempt` (from 0) failed.

        Uniform in [0, first * 2^attempt] (full jitter), on top of what the server asks for, so that the clients that it
        sent away do not all come back at once.
        """
        jitter = rng.uniform(0.0, min(self.longest, self.first * 2**attempt))
        return jitter + (asked_pause(retry_after, clock) or 0.0)


def is_transient(status: int) -> bool:
    """Whether the same request may fare better later."""
    return status in TRANSIENT or status >= 500


def asked_pause(retry_after: str | None, clock: Clock) -> float | None:
    """Seconds that a `Retry-After` asks for, given as seconds or as a date; None for nonsense or nothing."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - clock.wall()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
