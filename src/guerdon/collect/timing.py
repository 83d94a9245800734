"""Time that the parts of a rollout take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


@contextmanager
def timed(seconds: dict[str, float] | None, name: str) -> Iterator[None]:
    """Add the time that passes inside to `seconds[name]`."""
    start = perf_counter()
    yield
    if seconds is not None:
        seconds[name] = seconds.get(name, 0.0) + perf_counter() - start
