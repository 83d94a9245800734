"""What a replay will take, known before it grows: rows times their size, against free disk and memory.

note = check_room(rows=100_000, sizes=ReplaySizes(...), folder=Path("runs/x/checkpoints/replay"))
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from guerdon.errors import ConfigError
from guerdon.rl.replay import MAPPED, PAID, SEGMENTS
from guerdon.worlds.spaces import ObservedColumn

_OTHERS = (
    8 + 8 + 8 + 1 + 1 + 1 + 1 + 8 + 8
)  # before, episode, moment, four flags; numbers of transitions, and of places
_MEMINFO = Path("/proc/meminfo")


class ReplaySizes(NamedTuple):
    """Bytes of a row.

    Attributes:
        disk: in files.
        memory: in memory.
    """

    disk: int
    memory: int

    @classmethod
    def of(
        cls, columns: Sequence[ObservedColumn], *, moments: int, actions: int, sources: int, kept: int = 0
    ) -> ReplaySizes:
        """The sizes of a row.

        Args:
            columns: that are observed.
            moments: that pictures show at once, of which one is kept.
            actions: numbers of an action.
            sources: of reward.
            kept: numbers of `algorithm.keep_info`.
        """
        observation = 0
        for column in columns:
            if column.kind == "image":
                observation += column.size // moments
            elif column.kind != "text":
                observation += column.size * (1 if column.kind == "mask" else 4)
        small = actions * 4 + _OTHERS + kept * 8
        in_memory = small + sources * PAID.itemsize + (0 if observation >= MAPPED else observation)
        return cls(observation + small + sources * PAID.itemsize, in_memory)


def check_room(*, steps: int, limit: int | None, sizes: ReplaySizes, folder: Path) -> str:
    """A line for the log.

    Args:
        steps: of the run.
        limit: `algorithm.buffer_size`.
        sizes: of a row.
        folder: of the replay; what it holds already is not needed again.

    Raises:
        ConfigError: the disk or the memory has no room for it.
    """
    rows = steps if limit is None else min(steps, limit + limit // SEGMENTS + 1)
    there = sum(path.stat().st_size for path in folder.glob("*.bin"))
    disk = max(rows * sizes.disk - there, 0)
    memory = rows * sizes.memory
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = {"disk": shutil.disk_usage(place).free, "memory": free_memory()}
    for name, needed in (("disk", disk), ("memory", memory)):
        have, each = free[name], getattr(sizes, name)
        if have is not None and needed > have:
            raise ConfigError.about(
                "algorithm.buffer_size",
                f": the replay of {rows:,} rows would take {_size(needed)} of {name}, and {_size(have)} are free: set "
                f"it to fewer steps (there is room for about {int(0.8 * have / each):,}), or shorten the run",
            )
    return (
        f"replay: {rows:,} rows of {sizes.disk:,} bytes: at most {_size(rows * sizes.disk)} of disk "
        f"({_size(free['disk'] or 0)} free) and {_size(memory)} of memory"
    )


def free_memory() -> int | None:
    """Bytes of memory that processes can get; None where the system does not say."""
    if not _MEMINFO.is_file():
        return None
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
    words = lines.get("MemAvailable", "").split()
    return int(words[0]) * 1024 if words else None


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**8 else f"{count / 1e6:.1f} MB"
