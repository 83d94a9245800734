"""A trace of torch's profiler and a clock of the parts of this process's work, from `begin` to `end`.

begin()
...
end(Path("runs/one/profile/trace_process0.json.gz"))        # {"wall": 1.2, "update": 0.7, "weights": 0.3}
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch.profiler import profile, supported_activities

from guerdon.files.atomic import publish
from guerdon.processes.clock import PartsClock

WALL = "wall"


class _Recording(NamedTuple):
    """What records this process."""

    profiler: profile
    clock: PartsClock


_now: _Recording | None = None


def recording() -> bool:
    """Whether this process is recorded now."""
    return _now is not None


def begin() -> None:
    """Record from now on."""
    global _now
    profiler = profile(activities=supported_activities())  # type: ignore[no-untyped-call]
    profiler.start()
    _now = _Recording(profiler, PartsClock())


def discard() -> None:
    """Record nothing more, and write nothing: the work has failed."""
    global _now
    if _now is not None:
        _now.clock.stop()
        _now.profiler.stop()
        _now = None


def end(trace: Path) -> dict[str, float]:
    """Write the trace; the seconds of each part, and of the whole time as `wall`."""
    global _now
    assert _now is not None
    (profiler, clock), _now = _now, None
    clock.stop()
    profiler.stop()
    trace.parent.mkdir(parents=True, exist_ok=True)
    temporary = trace.with_name(f".partial.{trace.name}")  # its ending decides how it is written
    profiler.export_chrome_trace(str(temporary))
    publish(temporary, trace)
    return {WALL: clock.wall, **clock.seconds}
