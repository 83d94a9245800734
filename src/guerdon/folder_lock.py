"""A lock on a folder for one process at a time; it is released when the process ends, however that happens.

with held(Path("runs/a"), busy="runs/a is in use by another run"):
...
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guerdon.errors import ConfigError, InUseError


@contextmanager
def held(folder: Path, *, busy: str) -> Iterator[None]:
    """Keep others out of a folder, which is made where it is not there.

    Args:
        folder: receives a file `.lock`.
        busy: what to say where another holds it.

    Raises:
        InUseError: another holds it.
        ConfigError: the disk has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(busy) from error
        except OSError as error:
            raise ConfigError(f"{folder} cannot be locked ({error.strerror}); choose one on another disk") from error
        yield
    finally:
        os.close(lock)
