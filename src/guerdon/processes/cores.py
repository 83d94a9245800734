"""Number of processor cores that this process may use, to plan processes and threads.

A container often sees all cores of its machine, but its CPU quota (in the files of control groups) limits it to the
time of a few. A process with a thread for each core is then throttled.

    workers = usable_cores()
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """The smaller of the cores that this process may run on and the whole cores of its CPU quota, at least 1.

    Args:
        root: folder of `proc` and `sys`; tests use another one.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *map(int, _quotas(root))]))


def use_threads(count: int) -> None:
    """Let torch compute with so many threads, where it is installed."""
    with suppress(ModuleNotFoundError):
        import torch

        torch.set_num_threads(count)


def _quotas(root: Path) -> Iterator[float]:
    """Cores' worth of time that each control group above this process allows, where it has a limit."""
    mounts = [line.split() for line in _lines(root / "proc/self/mountinfo")]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        for words in mounts:
            kind, options = words[words.index("-") + 1], words[-1].split(",")
            version_1 = kind == "cgroup" and "cpu" in options and "cpu" in controllers.split(",")
            if not version_1 and (controllers or kind != "cgroup2"):
                continue
            top, mounted = words[3], root / words[4].lstrip("/")
            below = Path(group).is_relative_to(top) and ".." not in Path(group).parts
            # a container may see only its own group, mounted as the top
            folder = mounted / Path(group).relative_to(top) if below else mounted
            for place in (folder, *folder.parents):
                yield from _quota(place)
                if place == mounted:
                    break


def _quota(folder: Path) -> Iterator[float]:
    """The limit of one group: `cpu.max` (version 2), or `cpu.cfs_quota_us` and `cpu.cfs_period_us` (version 1)."""
    words = [word for line in _lines(folder / "cpu.max") for word in line.split()]
    words = words or [word for name in ("quota", "period") for word in _lines(folder / f"cpu.cfs_{name}_us")]
    if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):  # no limit: max, -1
        yield int(words[0]) / int(words[1])


def _lines(path: Path) -> list[str]:
    """The lines of a file; an empty list if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
