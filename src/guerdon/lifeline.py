"""A process that ends when the one that started it does, however that ended.

The parent holds the writing end of a pipe, which the kernel closes for it; the child has the reading end and is killed
when nobody is left to write. On Linux the kernel kills it, even in the middle of a call that never returns; elsewhere a
thread does. This module does not know what the processes do.

    process = start_child([sys.executable, "-m", "guerdon", "run"])      # in the parent
    end_with_parent()                                                    # first thing in the child
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import select
import signal
import stat
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

_VARIABLE = "GUERDON_PARENT"  # descriptor and inode of the pipe, for the child


def start_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, where it calls `end_with_parent`.

    Args:
        command: what to run.
        environment: all variables that it gets; None: ours.
        pass_fds: descriptors that it inherits.
        **options: as for `subprocess.Popen`.
    """
    theirs, ours = os.pipe()
    try:
        variables = dict(os.environ if environment is None else environment)
        variables[_VARIABLE] = f"{theirs}:{os.fstat(theirs).st_ino}"
        process = subprocess.Popen(  # noqa: S603 (what our own callers chose)
            command, env=variables, pass_fds=(*pass_fds, theirs), **options
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    weakref.finalize(process, os.close, ours)
    return process


def end_with_parent(*, spawned: bool = False) -> None:
    """Have this process killed when the one that started it is gone.

    Args:
        spawned: `multiprocessing` started it, not `start_child`. A process that neither started stays as it is.
    """
    parent = multiprocessing.parent_process()
    handle = int(parent.sentinel) if spawned and parent is not None else _inherited()
    if handle is None:
        return
    if sys.platform == "linux":
        fcntl.fcntl(handle, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([handle], [], [], 0)[0]:  # it was gone before
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        threading.Thread(target=_wait, args=(handle,), name="guerdon-parent", daemon=True).start()


def _inherited() -> int | None:
    """The pipe's descriptor, taken out of the environment so that no process of ours looks for it."""
    number, _, inode = os.environ.pop(_VARIABLE, "").partition(":")
    if not number:
        return None
    try:
        found = os.fstat(int(number))
    except OSError:
        return None  # somebody between closed it
    if not stat.S_ISFIFO(found.st_mode) or found.st_ino != int(inode):
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def _wait(handle: int) -> None:
    select.select([handle], [], [])
    os.kill(os.getpid(), signal.SIGKILL)
