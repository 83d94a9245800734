# ruff: noqa: S108 (/tmp here is the one that this process makes for itself)
r"""Body of the process that runs programs of a model, one test at a time, away from everything else (Linux).

It moves itself into namespaces of its own (user, mounts, processes, network, IPC) and into a root directory that holds
the interpreter and the system's libraries, read-only, and an empty `/tmp` in memory. Then it answers requests, one line
of JSON each, until its input ends. A request is a process without privileges, in namespaces of processes and of IPC of
its own, with limits on time, memory, files and processes and an allow list of system calls (`code_filter.py`); nothing
of it is left when the next one starts. A sandbox that runs programs never learns what the right outputs are: they are
judged in another one. It imports nothing but the standard library and these modules.

    $ echo '{"program": "print(2)", "stdin": "1", "most": 99, "cpu": 9}' | python -I -S -B code_start.py -
    {"ready": true, "memory": "group", "user": 65534}
    {"state": "done", "output": "2\n"}

A control group (`code_memory.py`) limits the memory of all processes of a program together. Where none can be made, a
program must be one process. The state `processes` says that it tried to start another one; asked for again with
`"processes": true` it may, and each process has a share of the memory.

Its own processes:

- The first one watches the process that reads the replies.
- A helper stays outside of the namespaces: it maps users, makes the control group and removes it.
- Process 1 of the namespaces answers the requests.
- Process 1 of a program's own namespace only waits to be killed. All others there end with it.
"""

from __future__ import annotations

import contextlib
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
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.tasks.code.code_filter import filter_of_program, filter_of_sandbox
from guerdon.tasks.code.code_kernel import (
    NEW_HOST,
    NEW_IPC,
    NEW_MOUNTS,
    NEW_NETWORK,
    NEW_PROCESSES,
    NEW_USERS,
    architecture,
    call,
    fork_apart,
    install_filter,
    leave_session_keyring,
    make_read_only,
    mount,
)
from guerdon.tasks.code.code_memory import first_to_be_killed, make_group, remove_group

MEMORY = 1 << 30  # bytes of all processes of a program, and of address space of each
DISK = 64 << 20  # bytes in /tmp
OUTPUT = 8 << 20  # bytes that a process may write to a file, its output included
PROCESSES = 8  # and threads, at a time
SHARE = MEMORY // PROCESSES  # bytes of address space of each, where there may be several and no control group
FILES = 64  # open in a process
_GROUP = MEMORY + 2 * DISK  # with /tmp and what the kernel and this process need
_OURS = 3  # processes of this user in the namespace of users: the first one, and two that are process 1
_PYTHON = os.path.realpath(sys.executable)  # of the interpreter itself, where this one belongs to a virtual environment
_NOBODY = 65534
_SHOWN = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/dev/null", "/dev/zero",
          "/dev/random", "/dev/urandom")  # fmt: skip
_PARTS = ("code_link.py", "code_calls.py")  # what the processes of a test run
_START = """
import sys
sys.path.insert(0, '/calls')
from guerdon.tasks.code.code_calls import main
del sys.path[0]
main()
"""


class _Part(NamedTuple):
    """A module that the processes of a test run.

    Attributes:
        name: of its file.
        text: of the file.
        changed: when, in nanoseconds.
        compiled: the file that Python keeps next to it; None where that is missing or of another text.
    """

    name: str
    text: bytes
    changed: int
    compiled: bytes | None


def _part(name: str) -> _Part:
    path = Path(__file__).with_name(name)
    text, changed = path.read_bytes(), path.stat().st_mtime_ns
    try:
        compiled = Path(cache_from_source(str(path))).read_bytes()
    except OSError:
        return _Part(name, text, changed, None)
    of_this_text = struct.pack("<III", 0, changed // 10**9 & 0xFFFFFFFF, len(text))
    return _Part(name, text, changed, compiled if compiled[4:16] == of_this_text else None)


_parts = list(map(_part, _PARTS))  # while this process sees them


class Isolation(NamedTuple):
    """What every process of a program gets, apart from its namespaces.

    Attributes:
        user: that it runs as.
        in_group: whether a control group limits the memory of all processes.
        filters: of its system calls; by whether it must be the only process.
        processes: descriptor of `/proc` outside.
    """

    user: int
    in_group: bool
    filters: dict[bool, bytes]
    processes: int


class _Job(NamedTuple):
    """What the process of one program gets.

    Attributes:
        files: descriptors of its input and output.
        link: the socket to the other process of a test.
        options: of Python.
        variables: of its environment.
        cpu: seconds.
        memory: bytes of address space.
        alone: whether it must be the only process.
    """

    files: list[int]
    link: int | None
    options: list[str]
    variables: dict[str, str]
    cpu: int
    memory: int
    alone: bool


def enter_namespaces(packages: Sequence[str]) -> tuple[int, socket.socket]:
    """Move into new namespaces.

    Args:
        packages: folders that programs will read.

    Returns:
        The user that programs run as there, and a socket to the helper outside, which waits for the number of the
        process whose memory it shall limit.
    """
    ours, theirs = socket.socketpair()
    me = os.getpid()
    if os.fork() == 0:
        try:
            _help_from_outside(theirs, me, packages)
        finally:
            os._exit(0)
    theirs.close()
    call("unshare", NEW_USERS | NEW_MOUNTS | NEW_PROCESSES | NEW_NETWORK | NEW_IPC | NEW_HOST)
    ours.sendall(b".")
    user = ours.recv(20)
    if not user:
        raise OSError("users cannot be mapped into a namespace")
    return int(user), ours


def _help_from_outside(link: socket.socket, process: int, packages: Sequence[str]) -> None:
    """Do for a process in a new namespace what none may do there, until it has ended."""
    os.setsid()
    os.closerange(0, link.fileno())
    os.closerange(link.fileno() + 1, 4096)
    if not link.recv(1):
        return
    link.sendall(str(map_users(process, packages)).encode())
    limited = link.recv(20)
    if not limited:
        return
    group = make_group(int(limited), _GROUP)
    with contextlib.suppress(OSError):
        link.sendall(b"group" if group else b"share")
        while group and link.recv(1):
            pass
    if group:
        remove_group(group)


def map_users(process: int, packages: Sequence[str]) -> int:
    """Map users into the namespace of a process, and return the one that programs run as.

    That is `nobody` where root asks. Any other user may map themselves, and where the system has assigned them further
    numbers (`/etc/subuid`) and lets others read the interpreter, one of these, as `nobody`.
    """
    user, group = os.getuid(), os.getgid()
    place = Path(f"/proc/{process}")
    if user == 0:
        for name, own in (("uid_map", user), ("gid_map", group)):
            (place / name).write_text(f"{own} {own} 1\n{_NOBODY} {_NOBODY} 1\n")
        return _NOBODY
    readable = all(map(_is_readable_by_all, (_PYTHON, os.path.dirname(os.__file__), os.__file__, *packages)))
    groups_mapped = readable and _map_assigned("gid", process, group)
    users_mapped = groups_mapped and _map_assigned("uid", process, user)
    if not groups_mapped:
        (place / "setgroups").write_text("deny")
        (place / "gid_map").write_text(f"{group} {group} 1\n")
    if not users_mapped:
        (place / "uid_map").write_text(f"{user} {user} 1\n")
    return _NOBODY if users_mapped else user


def _is_readable_by_all(path: str) -> bool:
    needed = 0o4 if path.endswith(".py") else 0o5
    return os.stat(path).st_mode & needed == needed


def _map_assigned(kind: str, process: int, own: int) -> bool:
    """Map a user (`uid`) or group (`gid`), and as `nobody` a number that the system has assigned to this user."""
    tool = f"/usr/bin/new{kind}map"
    assigned = assigned_number(Path(f"/etc/sub{kind}"), os.getuid())
    if assigned is None or not os.access(tool, os.X_OK):
        return False
    numbers = (own, own, 1, _NOBODY, assigned, 1)
    command = [tool, str(process), *map(str, numbers)]
    return os.spawnv(os.P_WAIT, tool, command) == 0  # noqa: S606 (a program of the system, with numbers)


def assigned_number(file: Path, user: int) -> int | None:
    """The first number that a file such as `/etc/subuid` assigns to a user; None where there is none."""
    import pwd

    names = {str(user)}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(user).pw_name)
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            owner, first, count = line.split(":")
            if owner in names and int(count) > 0:
                return int(first)
    return None


def enter_root(packages: Sequence[str] = ()) -> None:
    """A root directory of its own: the interpreter, the system's libraries and four devices, read-only.

    Args:
        packages: folders to show as `/packages/0`, `/packages/1`, ...
    """
    mount("none", "/", None, 0x4000 | 0x40000)  # MS_REC | MS_PRIVATE
    mount("tmpfs", "/tmp", "tmpfs", 2 | 4, "size=1m,mode=755")
    Path("/tmp/old").mkdir()
    call("pivot_root", b"/tmp", b"/tmp/old")
    os.chdir("/")
    shown = [*_SHOWN, sys.base_prefix, sys.base_exec_prefix]
    for path in sorted({p for p in shown if not any(p.startswith(f"{q}/") for q in shown)}):
        source, target = Path("/old" + path), Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            target.mkdir(parents=True)
            mount(str(source), path, None, 0x1000 | 0x4000)  # MS_BIND | MS_REC
        elif source.exists():
            target.touch()
            mount(str(source), path, None, 0x1000)
    for place, folder in enumerate(packages):
        Path(f"/packages/{place}").mkdir(parents=True)
        mount(f"/old{folder}", f"/packages/{place}", None, 0x1000 | 0x4000)
    Path("/calls/guerdon/tasks/code").mkdir(parents=True)
    for part in _parts:
        _show(part, Path("/calls/guerdon/tasks/code"))
    limit = Path("/old/proc/sys/user/max_user_namespaces")
    with contextlib.suppress(OSError):  # where /proc is read-only; a namespace inside gains rights over nothing here
        limit.write_text("0")  # of this namespace: no test makes another one
    Path("/tmp").mkdir()
    call("umount2", b"/old", 2)  # MNT_DETACH
    Path("/old").rmdir()
    make_read_only("/")


def _show(part: _Part, folder: Path) -> None:
    """Write a module and its compiled form, which takes longer to make than a sandbox to start."""
    path = folder / part.name
    path.write_bytes(part.text)
    os.utime(path, ns=(part.changed, part.changed))
    if part.compiled is None:
        py_compile.compile(str(path))
        return
    kept = Path(cache_from_source(str(path)))
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(part.compiled)


def run(asked: dict[str, Any], isolation: Isolation, link: int | None) -> dict[str, str]:
    """How a process ended: `state` (done, failed, time, processes) and its `output`.

    Args:
        asked: `program`, the text of a Python program, with `stdin`; or `calls`, for `code_calls.py`. `cpu`
            seconds, `most` bytes of output; `processes`, whether it may start others where no control group limits
            their memory.
        isolation: what its process gets.
        link: the socket to the other process of a test.
    """
    mount("tmpfs", "/tmp", "tmpfs", 2 | 4, f"size={DISK},nr_inodes=4096,mode=1777")
    try:
        return _run(asked, isolation, link)
    finally:
        call("umount2", b"/tmp", 2)


def _run(asked: dict[str, Any], isolation: Isolation, link: int | None) -> dict[str, str]:
    given, written = _unnamed("/tmp/stdin"), _unnamed("/tmp/stdout")
    os.write(given, asked.get("stdin", "").encode("utf-8", "replace"))
    os.lseek(given, 0, os.SEEK_SET)
    calls = asked.get("calls")
    Path("/tmp/main.py").write_text(_START if calls else asked["program"], encoding="utf-8", errors="replace")
    options = ["-I", "-B"]
    if calls:
        Path("/tmp/calls.json").write_text(json.dumps(calls))
        options.append("-S")  # `site` takes as long as all that a test imports
    shared = not isolation.in_group and bool(asked.get("processes"))
    job = _Job(
        files=[given, written],
        link=link,
        options=options,
        variables={"MALLOC_ARENA_MAX": "1"} if shared else {},  # threads reserve no more of a share than they use
        cpu=int(asked["cpu"]),
        memory=SHARE if shared else MEMORY,
        alone=not isolation.in_group and not shared,
    )
    first, pid = fork_apart()
    if pid == 0:
        _become(job, isolation)
    if link is not None:
        os.close(link)
    status = _wait(pid, first, 2.0 * asked["cpu"] + 1.0)
    output = _read_output(written, asked["most"])
    os.close(given)
    os.close(written)
    state = "failed" if output is None else _state(status, job.alone)
    if output is None or state != "done":
        return {"state": state, "output": ""}
    return {"state": state, "output": output.decode("utf-8", "replace")}


def _unnamed(path: str) -> int:
    """A new file that has no name any more."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.unlink(path)
    return file


def _read_output(file: int, most: int) -> bytes | None:
    """What a program wrote; None where it is more than so many bytes."""
    if os.fstat(file).st_size > most:
        return None
    os.lseek(file, 0, os.SEEK_SET)
    return b"".join(iter(lambda: os.read(file, 1 << 16), b""))


def _state(status: int | None, alone: bool) -> str:
    """How a program ended, of its status, which is None where the time ran out; `alone` as for its filter."""
    if status == 0:
        return "done"
    killed_by = None if status is None else os.WTERMSIG(status)
    if killed_by in (None, signal.SIGXCPU):
        return "time"
    return "processes" if killed_by == signal.SIGSYS and alone else "failed"


def _become(job: _Job, isolation: Isolation) -> None:
    """Turn into the process under test; never returns."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if isolation.in_group:
            call("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, or it may not write to its own files of /proc
            first_to_be_killed(isolation.processes)
        nothing = os.open("/dev/null", os.O_RDWR)
        kept = [*job.files, nothing, *([] if job.link is None else [job.link])]
        for place, file in enumerate([os.dup(file) for file in kept]):
            os.dup2(file, place)
        os.closerange(len(kept), 4096)
        os.chdir("/tmp")
        processes = PROCESSES if os.getuid() != isolation.user else PROCESSES + _OURS
        for kind, soft, hard in (
            (resource.RLIMIT_AS, job.memory, job.memory),
            (resource.RLIMIT_CPU, job.cpu, job.cpu + 1),
            (resource.RLIMIT_FSIZE, OUTPUT, OUTPUT),
            (resource.RLIMIT_NPROC, processes, processes),
            (resource.RLIMIT_NOFILE, FILES, FILES),
            (resource.RLIMIT_CORE, 0, 0),
        ):
            resource.setrlimit(kind, (soft, hard))
        if os.getuid() != isolation.user:
            os.setgroups([])
            os.setresgid(*[isolation.user] * 3)
            os.setresuid(*[isolation.user] * 3)
        install_filter(isolation.filters[job.alone])
        command = [_PYTHON, *job.options, "/tmp/main.py"]
        os.execve(_PYTHON, command, job.variables)  # noqa: S606 (what all this is for)
    finally:
        os._exit(127)


def _wait(pid: int, first: int, seconds: float) -> int | None:
    """The status of a program, or None where the time ran out. Ends everything in its namespace.

    Args:
        pid: of the program.
        first: process 1 of its namespace.
        seconds: that it has.
    """
    deadline = time.monotonic() + seconds
    ended, status = os.waitpid(pid, os.WNOHANG)
    while ended == 0 and (left := deadline - time.monotonic()) > 0:
        signal.sigtimedwait([signal.SIGCHLD], left)
        ended, status = os.waitpid(pid, os.WNOHANG)
    os.kill(first, signal.SIGKILL)
    if ended == 0:
        os.waitpid(pid, 0)
    os.waitpid(first, 0)
    return None if ended == 0 else status


def serve(
    user: int, packages: Sequence[str], files: socket.socket | None, outside: socket.socket, processes: int
) -> None:
    """Answer requests from standard input until it ends. Process 1 of its namespace: all others end with it.

    Args:
        user: that programs run as.
        packages: folders to show.
        files: where the sockets of tests come from.
        outside: to the helper, which says whether there is a control group.
        processes: descriptor of `/proc` outside.
    """
    call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    call("prctl", 4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: its memory is closed to the tests
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        machine = architecture()
        leave_session_keyring()
        enter_root(packages)
        install_filter(filter_of_sandbox(machine))
        _try_namespace()
        in_group = outside.recv(20) == b"group"
    except OSError as error:
        _say({"error": error.strerror or str(error)})
        return
    filters = {alone: filter_of_program(machine, alone=alone) for alone in (False, True)}
    isolation = Isolation(user, in_group, filters, processes)
    _say({"ready": True, "memory": "group" if in_group else "share", "user": user})
    for line in sys.stdin:
        asked = json.loads(line)
        links = socket.recv_fds(files, 1, 1)[1] if files is not None and asked.get("link") else []
        _say(run(asked, isolation, links[0] if links else None))


def _try_namespace() -> None:
    """Start and end an empty process in namespaces of its own, as each program will be.

    Raises:
        OSError: this machine does not allow it.
    """
    first, child = fork_apart()
    if child == 0:
        os._exit(0)
    _wait(child, first, 60.0)


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def main(packages: Sequence[str], files: socket.socket | None = None) -> None:
    """Start the first process of the namespace, and end it when the reader of the replies is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle; its end closes the pipe
    os.umask(0o022)  # programs run as another user, and read what is written here
    try:
        processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        user, outside = enter_namespaces(packages)
    except OSError as error:
        _say({"error": error.strerror or str(error)})
        return
    child = os.fork()
    if child == 0:
        serve(user, packages, files, outside, processes)
        os._exit(0)
    outside.sendall(str(child).encode())
    outside.close()
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(1, select.POLLERR)  # the reader of the replies is gone
    poll.poll()
    os.kill(child, signal.SIGKILL)


def start(arguments: Sequence[str]) -> None:
    """Run with the arguments of the command: folders of packages, and a socket's descriptor or `-`."""
    *packages, descriptor = arguments
    main(packages, None if descriptor == "-" else socket.socket(fileno=int(descriptor)))
