"""System calls that Python has no function for, on the architectures that programs of a model can be isolated on.

Imports nothing but the standard library.

    call("mount", b"none", b"/tmp", b"tmpfs", 0, None)
    first, child = fork_apart()                             # child is 0 in the child
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from typing import Any, NamedTuple

NEW_MOUNTS, NEW_HOST, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USERS, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_SHARED = 0x00000100 | 0x00000200 | 0x00000400  # of clone: memory, directories, descriptors
_CLONE3, _MOUNT_SETATTR = 435, 442  # the same on every architecture

_libc = ctypes.CDLL(None, use_errno=True)
_stack = ctypes.create_string_buffer(1 << 16)  # of the process 1 that waits


class Architecture(NamedTuple):
    """What differs between architectures.

    Attributes:
        name: as `uname` has it.
        audit: the number that the kernel gives a filter for it.
        column: of its numbers in the table of `code_filter.py`.
        seccomp: number of that system call.
        keyctl: number of that system call.
    """

    name: str
    audit: int
    column: int
    seccomp: int
    keyctl: int


_ARCHITECTURES = (Architecture("x86_64", 0xC000003E, 0, 317, 250), Architecture("aarch64", 0xC00000B7, 1, 277, 219))


def architecture(machine: str | None = None) -> Architecture:
    """The architecture of a machine, this one by default.

    Raises:
        OSError: there is no list of its system calls.
    """
    machine = os.uname().machine if machine is None else machine
    known = {one.name: one for one in _ARCHITECTURES}
    if machine not in known or sys.maxsize < 1 << 32:
        bits = "" if machine not in known else " with a 32-bit Python"
        raise OSError(f"there is no list of system calls for {machine}{bits}: programs run on {' and '.join(known)}")
    return known[machine]


def call(name: str, *arguments: Any) -> int:
    """The value of a function of libc that returns -1 on failure.

    Raises:
        OSError: it fails, or libc has none.
    """
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(f"{name} is not in libc")
    value = int(function(*arguments))
    if value == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return value


def _system_call(name: str, number: int, *arguments: Any) -> int:
    value = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if value == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return value


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """As the system call of that name."""
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    call("mount", *texts[:3], ctypes.c_ulong(flags), texts[3])


def make_read_only(path: str) -> None:
    """Make everything mounted at or below a path read-only, without set-user-id programs."""
    attributes = (ctypes.c_uint64 * 4)(1 | 2, 0, 0, 0)
    _system_call(
        "mount_setattr", _MOUNT_SETATTR, -100, path.encode(), 0x8000, ctypes.byref(attributes), ctypes.c_size_t(32)
    )


def fork_apart() -> tuple[int, int]:
    """As os.fork() in a process with one thread and no children; the child is in new namespaces of processes and IPC.

    Process 1 of the child's namespace reaps what is left to it, and all others there end with it. It is as small as a
    thread: in the memory of this process, it waits in libc until it is killed.

    Returns:
        Process 1 and the child, as this process sees them; 0 in the child for the second one.
    """
    here = os.pidfd_open(os.getpid())
    top = ctypes.c_void_p((ctypes.addressof(_stack) + len(_stack)) & ~15)
    wait = ctypes.cast(_libc.pause, ctypes.c_void_p)
    arguments = struct.pack("8Q", NEW_IPC, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # which process 1 keeps: what ends there is reaped at once
    call("unshare", NEW_PROCESSES)  # for the next children
    first = call("clone", wait, top, _SHARED | signal.SIGCHLD, None)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = _system_call("clone3", _CLONE3, arguments, ctypes.c_size_t(len(arguments)))
    if child != 0:
        call("setns", here, NEW_PROCESSES)
        os.close(here)
    return first, child


def leave_session_keyring() -> None:
    """Give this process an empty session keyring; a kernel without keys has none to leave."""
    with contextlib.suppress(OSError):  # ENOSYS, or too many keys of this user: programs cannot call it in any case
        _system_call("keyctl", architecture().keyctl, 1, None)  # KEYCTL_JOIN_SESSION_KEYRING


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def install_filter(steps: bytes) -> None:
    """Filter the system calls of this process and its children, for good, in addition to the filters that it has.

    Args:
        steps: of `code_filter.py`.
    """
    call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    program = _Program(len(steps) // 8, steps)
    _system_call("seccomp", architecture().seccomp, 1, 0, ctypes.byref(program))  # SECCOMP_SET_MODE_FILTER
