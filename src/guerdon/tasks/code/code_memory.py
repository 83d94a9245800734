"""One limit on the memory of all processes of a program together: a control group, where this user may make one.

It is made within its own group (version 1), or next to it (version 2, whose groups hold either processes or groups).

Imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_REMOVAL_SECONDS = 60.0  # for the processes of a group to end


class _Place(NamedTuple):
    """Where a group may be made, and its files for the limit of memory, and of swap with what that gets."""

    folder: str
    memory: str
    swap: str
    swap_limit: int


def make_group(process: int, limit: int, root: Path = Path("/")) -> Path | None:
    """Put a process into a new control group with a limit on memory, swap included; its children follow it.

    Args:
        process: as this process sees it.
        limit: bytes.
        root: of the file system.

    Returns:
        The group's folder, for `remove_group`; None where none can be made.
    """
    for place in _places(limit, root):
        folder = root / place.folder.lstrip("/") / f"guerdon-{os.urandom(8).hex()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / place.memory).write_text(str(limit))
            if (folder / place.swap).exists():  # the kernel counts swap
                (folder / place.swap).write_text(str(place.swap_limit))
            (folder / "cgroup.procs").write_text(str(process))
        except OSError:
            remove_group(folder)
            continue
        return folder
    return None


def _places(limit: int, root: Path) -> Iterator[_Place]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, own = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder = f"/sys/fs/cgroup/memory{own}"
            yield _Place(folder, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit)
        elif not controllers:
            at = Path(own)
            for above in (at, *at.parents):
                folder = f"/sys/fs/cgroup{above}"
                if "memory" in _text(root / f"{folder}/cgroup.subtree_control".lstrip("/")).split():
                    yield _Place(folder, "memory.max", "memory.swap.max", 0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def remove_group(folder: Path, seconds: float = _REMOVAL_SECONDS) -> None:
    """Remove a control group once its processes have ended; it stays where they do not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                return
            time.sleep(0.02)
        else:
            return


def first_to_be_killed(processes: int) -> None:
    """Let a group that is full end this process rather than those that started it.

    Args:
        processes: a descriptor of `/proc`.
    """
    with contextlib.suppress(OSError):  # ended by its size, then
        file = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=processes)
        os.write(file, b"1000")
        os.close(file)
