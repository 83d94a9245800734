# ruff: noqa: S108 (/tmp here is the one that this process makes for itself)
r"""Body of the process that runs programs of a model, one test at a time, away from everything else (Linux).

It moves itself into namespaces of its own (user, mounts, processes, network, IPC) and into a root directory that holds
the interpreter and the system's libraries, read-only, and an empty `/tmp` in memory, and gives up every family of
sockets but AF_UNIX. Then it answers requests, one line of JSON each, until its input ends. A request is a process
without privileges, with limits on time, memory, files and processes; after it every process of the namespace is killed.
A sandbox that runs programs never learns what the right outputs are: they are judged in another one. It imports nothing
but the standard library. Its arguments are folders of packages to show, at `/packages/0` and so on.

    $ echo '{"program": "print(2)", "stdin": "1", "most": 99, "cpu": 9}' | python -I -S code_sandbox.py
    {"ready": true}
    {"state": "done", "output": "2\n"}
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import py_compile
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MEMORY = 1 << 30  # bytes of address space per process
DISK = 64 << 20  # bytes in /tmp
OUTPUT = 8 << 20  # bytes that a process may write to a file, its output included
PROCESSES = 8  # and threads, at a time
FILES = 64  # open in a process
_PYTHON = os.path.realpath(sys.executable)  # of the interpreter itself, where this one belongs to a virtual environment
_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # USER NS PID NET IPC UTS
_NOBODY = 65534
_SHOWN = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/dev/null", "/dev/zero",
          "/dev/random", "/dev/urandom")  # fmt: skip
_MOUNT_SETATTR = 442
_PARTS = ("code_link.py", "code_calls.py")  # what the processes of a test run
_START = """
import sys
sys.path.insert(0, '/calls')
from guerdon.tasks.code.code_calls import main
del sys.path[0]
main()
"""
_FAMILY = 1  # AF_UNIX
_ARCHITECTURES = {  # of the kernel: its number, and those of socket, socketpair and other calls that open sockets
    "x86_64": (0xC000003E, 41, 53, ()),
    "aarch64": (0xC00000B7, 198, 199, ()),
    "riscv64": (0xC00000F3, 198, 199, ()),
    "ppc64le": (0xC0000015, 326, 333, (102,)),
    "s390x": (0x80000016, 359, 360, (102,)),
}
_IO_URING = (425, 426, 427)  # setup, enter, register; the same everywhere

_libc = ctypes.CDLL(None, use_errno=True)
_parts = {p.name: p.read_bytes() for p in map(Path(__file__).with_name, _PARTS) if p.is_file()}  # while it sees them


def _call(name: str, *arguments: Any) -> None:
    """A function of libc that returns 0.

    Raises:
        OSError: it does not, or libc has none.
    """
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(f"{name} is not in libc")
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    _call("mount", *texts[:3], ctypes.c_ulong(flags), texts[3])


def _read_only(path: str) -> None:
    """Everything mounted at or below a path: read-only, without set-user-id programs."""
    attributes = (ctypes.c_uint64 * 4)(1 | 2, 0, 0, 0)
    _call("syscall", ctypes.c_long(_MOUNT_SETATTR), -100, path.encode(), 0x8000, ctypes.byref(attributes), 32)


def enter_namespaces() -> int:
    """Move into new namespaces and return the user of the tests there.

    As root, tests are `nobody`; as any other user they keep it, and it owns nothing that can be seen.
    """
    user, group = os.getuid(), os.getgid()
    ours, theirs = os.pipe()
    me = os.getpid()
    helper = os.fork()
    if helper == 0:  # maps users from outside, which a process inside may not
        os.close(theirs)
        code = 1
        if os.read(ours, 1):
            for name, own in (("uid_map", user), ("gid_map", group)):
                extra = f"{_NOBODY} {_NOBODY} 1\n" if user == 0 else ""
                if name == "gid_map" and user != 0:
                    Path(f"/proc/{me}/setgroups").write_text("deny")
                Path(f"/proc/{me}/{name}").write_text(f"{own} {own} 1\n{extra}")
            code = 0
        os._exit(code)
    os.close(ours)
    _call("unshare", _NAMESPACES)
    os.write(theirs, b".")
    os.close(theirs)
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError("users cannot be mapped into a namespace")
    return _NOBODY if user == 0 else user


class _Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def close_sockets() -> None:
    """Forbid this process and its children every socket but those of AF_UNIX, and io_uring, which opens its own.

    Calls of another architecture (32 bits, x32) end the process, so that none is reached by another number.

    Raises:
        OSError: the kernel has no seccomp, or guerdon no numbers for this architecture.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(f"no filter of system calls for {machine}")
    architecture, single, pair, others = _ARCHITECTURES[machine]
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EAFNOSUPPORT
    family = 16 if sys.byteorder == "little" else 20  # of the low half of the first argument
    steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, kill), (load, 0, 0, 0)]
    if machine == "x86_64":
        steps += [(at_least, 0, 1, 0x40000000), (end, 0, 0, kill)]
    for number in (*others, *_IO_URING):
        steps += [(equal, 0, 1, number), (end, 0, 0, refuse)]
    steps += [(equal, 2, 0, single), (equal, 1, 0, pair), (end, 0, 0, allow)]
    steps += [(load, 0, 0, family), (equal, 1, 0, _FAMILY), (end, 0, 0, refuse), (end, 0, 0, allow)]
    program = _Filter(len(steps), b"".join(struct.pack("=HBBI", *step) for step in steps))
    _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    _call("prctl", 22, 2, ctypes.byref(program), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def enter_root(packages: Sequence[str] = ()) -> None:
    """A root directory of its own: the interpreter, the system's libraries and four devices, read-only.

    Args:
        packages: folders to show as `/packages/0`, `/packages/1`, ...
    """
    _mount("none", "/", None, 0x4000 | 0x40000)  # MS_REC | MS_PRIVATE
    _mount("tmpfs", "/tmp", "tmpfs", 2 | 4, "size=1m,mode=755")
    Path("/tmp/old").mkdir()
    _call("pivot_root", b"/tmp", b"/tmp/old")
    os.chdir("/")
    shown = [*_SHOWN, sys.base_prefix, sys.base_exec_prefix]
    for path in sorted({p for p in shown if not any(p.startswith(f"{q}/") for q in shown)}):
        source, target = Path("/old" + path), Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            target.mkdir(parents=True)
            _mount(str(source), path, None, 0x1000 | 0x4000)  # MS_BIND | MS_REC
        elif source.exists():
            target.touch()
            _mount(str(source), path, None, 0x1000)
    for place, folder in enumerate(packages):
        Path(f"/packages/{place}").mkdir(parents=True)
        _mount(f"/old{folder}", f"/packages/{place}", None, 0x1000 | 0x4000)
    Path("/calls/guerdon/tasks/code").mkdir(parents=True)
    for name, text in _parts.items():
        Path(f"/calls/guerdon/tasks/code/{name}").write_bytes(text)
        py_compile.compile(f"/calls/guerdon/tasks/code/{name}")
    limit = Path("/old/proc/sys/user/max_user_namespaces")
    with contextlib.suppress(OSError):  # where /proc is read-only; a namespace inside gains rights over nothing here
        limit.write_text("0")  # of this namespace: no test makes another one
    Path("/tmp").mkdir()
    _call("umount2", b"/old", 2)  # MNT_DETACH
    Path("/old").rmdir()
    _read_only("/")


def run(asked: dict[str, Any], user: int, link: int | None) -> dict[str, str]:
    """How a process ended: `state` (done, failed, time) and its `output`.

    Args:
        asked: `program`, the text of a Python program, with `stdin`; or `calls`, for `code_calls.py`. `cpu`
            seconds, `most` bytes of output.
        user: that it runs as.
        link: the socket to the other process of a test.
    """
    _mount("tmpfs", "/tmp", "tmpfs", 2 | 4, f"size={DISK},nr_inodes=4096,mode=1777")
    try:
        return _run(asked, user, link)
    finally:
        _call("umount2", b"/tmp", 2)


def _run(asked: dict[str, Any], user: int, link: int | None) -> dict[str, str]:
    given = os.open("/tmp/stdin", os.O_RDWR | os.O_CREAT, 0o600)
    written = os.open("/tmp/stdout", os.O_RDWR | os.O_CREAT, 0o600)
    for name in ("/tmp/stdin", "/tmp/stdout"):
        os.unlink(name)
    os.write(given, asked.get("stdin", "").encode("utf-8", "replace"))
    os.lseek(given, 0, os.SEEK_SET)
    calls = asked.get("calls")
    Path("/tmp/main.py").write_text(_START if calls else asked["program"], encoding="utf-8", errors="replace")
    if calls:
        Path("/tmp/calls.json").write_text(json.dumps(calls))
    pid = os.fork()
    if pid == 0:
        options = ["-I", "-B", *(["-S"] if calls else [])]  # `site` takes as long as all that a test imports
        _become(user, [given, written], int(asked["cpu"]), link, options)
    if link is not None:
        os.close(link)
    status = _wait(pid, 2.0 * asked["cpu"] + 1.0)
    _kill_all()
    size = os.fstat(written).st_size
    os.lseek(written, 0, os.SEEK_SET)
    output = b"".join(iter(lambda: os.read(written, 1 << 16), b"")) if size <= asked["most"] else b""
    os.close(given)
    os.close(written)
    late = status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
    state = "time" if late else "done" if status == 0 and size <= asked["most"] else "failed"
    return {"state": state, "output": output.decode("utf-8", "replace") if state == "done" else ""}


def _become(user: int, streams: list[int], cpu: int, link: int | None, options: Sequence[str]) -> None:
    """Turn into the process under test; never returns."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        nothing = os.open("/dev/null", os.O_RDWR)
        kept = [*streams, nothing, *([] if link is None else [link])]
        for place, file in enumerate([os.dup(file) for file in kept]):
            os.dup2(file, place)
        os.closerange(len(kept), 4096)
        os.chdir("/tmp")
        for kind, soft, hard in (
            (resource.RLIMIT_AS, MEMORY, MEMORY),
            (resource.RLIMIT_CPU, cpu, cpu + 1),
            (resource.RLIMIT_FSIZE, OUTPUT, OUTPUT),
            (resource.RLIMIT_NPROC, PROCESSES, PROCESSES),
            (resource.RLIMIT_NOFILE, FILES, FILES),
            (resource.RLIMIT_CORE, 0, 0),
        ):
            resource.setrlimit(kind, (soft, hard))
        if os.getuid() != user:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        os.execve(_PYTHON, [_PYTHON, *options, "/tmp/main.py"], {})  # noqa: S606 (what all this is for)
    finally:
        os._exit(127)


def _wait(pid: int, seconds: float) -> int | None:
    """The status of a process, or None where the time ran out; orphans are reaped on the way."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == pid:
            return status
        if ended == 0:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            signal.sigtimedwait([signal.SIGCHLD], left)


def _kill_all() -> None:
    """End every process of the namespace but this one, which is its first."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def serve(user: int, packages: Sequence[str], files: socket.socket | None) -> None:
    """Answer requests from standard input until it ends. Process 1 of its namespace: all others end with it."""
    _call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    _call("prctl", 4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: its memory is closed to the tests
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        enter_root(packages)
        close_sockets()
    except OSError as error:
        _say({"error": str(error)})
        return
    _say({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        links = socket.recv_fds(files, 1, 1)[1] if files is not None and asked.get("link") else []
        _say(run(asked, user, links[0] if links else None))


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def main(packages: Sequence[str], files: socket.socket | None = None) -> None:
    """Start the first process of the namespace, and end it when the reader of the replies is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle; its end closes the pipe
    try:
        user = enter_namespaces()
    except OSError as error:
        _say({"error": str(error)})
        return
    child = os.fork()
    if child == 0:
        serve(user, packages, files)
        os._exit(0)
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(1, select.POLLERR)  # the reader of the replies is gone
    poll.poll()
    os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    *shown, descriptor = sys.argv[1:] or ["-"]
    main(shown, None if descriptor == "-" else socket.socket(fileno=int(descriptor)))
