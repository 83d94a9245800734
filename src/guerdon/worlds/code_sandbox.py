# ruff: noqa: S108 (/tmp here is the one that this process makes for itself)
r"""Body of the process that runs programs of a model, one test at a time, away from everything else (Linux).

It moves itself into namespaces of its own (user, mounts, processes, network, IPC) and into a root directory that holds
the interpreter and the system's libraries, read-only, and an empty `/tmp` in memory. Then it answers requests, one line
of JSON each, until its input ends. A test is a process without privileges, with limits on time, memory, files and
processes; after each test every process of the namespace is killed. This process never learns what the right outputs
are: they are compared by the one that started it (`code_tests.py`). It imports nothing but the standard library.

    $ echo '{"source": "print(2)", "tests": [{"stdin": "1", "most": 99}], "cpu": 9}' | python -I -S code_sandbox.py
    {"ready": true}
    {"results": [{"state": "done", "output": "2\n"}]}
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

MEMORY = 1 << 30  # bytes of address space per process
DISK = 64 << 20  # bytes in /tmp
OUTPUT = 8 << 20  # bytes that a process may write to a file, its output included
PROCESSES = 8  # and threads, at a time
FILES = 64  # open in a process
LATE = 3  # tests that run out of time, after which the others are not run

_PYTHON = os.path.realpath(sys.executable)  # of the interpreter itself, where this one belongs to a virtual environment
_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # USER NS PID NET IPC UTS
_NOBODY = 65534
_SHOWN = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/dev/null", "/dev/zero",
          "/dev/random", "/dev/urandom")  # fmt: skip
_MOUNT_SETATTR = 442
_CALLS = """
import decimal, fractions, json, os, sys
_results = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # what the program prints is no result

def _plain(value):
    if value is None or isinstance(value, (bool, str)):
        return value if value is None or isinstance(value, bool) else str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return _plain(value.item())
    if isinstance(value, (fractions.Fraction, decimal.Decimal)) and value - value == 0:
        return {"ratio": list(value.as_integer_ratio())}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [_plain(v) for v in kind.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[_plain(k), _plain(v)] for k, v in dict.items(value)]}
    return {"other": type(value).__name__}

_PRELUDE = '''
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
from collections import *
from functools import *
from heapq import *
from itertools import *
from typing import *
'''  # what the functions of such data sets expect to find, as at the sites that they come from

def _main():
    with open("/tmp/calls.json", encoding="utf-8") as file:
        asked = json.load(file)
    names = {"__name__": "solution"}
    if asked["function"]:
        exec(_PRELUDE, names)
    exec(compile(asked["source"], "solution.py", "exec"), names)
    exec(asked["setup"], names)
    if asked["function"].isidentifier() and asked["function"] not in names and "Solution" in names:
        names[asked["function"]] = getattr(names["Solution"](), asked["function"])
    _results.write(json.dumps([_plain(eval(call, names)) for call in asked["calls"]]))
    _results.flush()

_main()
"""  # runs in the process of the program, so that it guarantees nothing: the values are what the program claims

_libc = ctypes.CDLL(None, use_errno=True)


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


def enter_root() -> None:
    """A root directory of its own: the interpreter, the system's libraries and four devices, read-only."""
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
    limit = Path("/old/proc/sys/user/max_user_namespaces")
    with contextlib.suppress(OSError):  # where /proc is read-only; a namespace inside gains rights over nothing here
        limit.write_text("0")  # of this namespace: no test makes another one
    Path("/tmp").mkdir()
    _call("umount2", b"/old", 2)  # MNT_DETACH
    Path("/old").rmdir()
    _read_only("/")


def run_test(asked: dict[str, Any], test: dict[str, Any], user: int) -> dict[str, str]:
    """How one test ended: `state` (done, failed, time) and its `output`."""
    _mount("tmpfs", "/tmp", "tmpfs", 2 | 4, f"size={DISK},nr_inodes=4096,mode=1777")
    try:
        return _run(asked, test, user)
    finally:
        _call("umount2", b"/tmp", 2)


def _run(asked: dict[str, Any], test: dict[str, Any], user: int) -> dict[str, str]:
    given = os.open("/tmp/stdin", os.O_RDWR | os.O_CREAT, 0o600)
    written = os.open("/tmp/stdout", os.O_RDWR | os.O_CREAT, 0o600)
    for name in ("/tmp/stdin", "/tmp/stdout"):
        os.unlink(name)
    os.write(given, test.get("stdin", "").encode("utf-8", "replace"))
    os.lseek(given, 0, os.SEEK_SET)
    calls = {"source": asked["source"], "setup": "", "function": "", **test}
    Path("/tmp/main.py").write_text(_CALLS if "calls" in test else asked["source"], encoding="utf-8", errors="replace")
    Path("/tmp/calls.json").write_text(json.dumps(calls if "calls" in test else {}))
    pid = os.fork()
    if pid == 0:
        _become(user, given, written, int(asked["cpu"]))
    status = _wait(pid, 2.0 * asked["cpu"] + 1.0)
    _kill_all()
    size = os.fstat(written).st_size
    os.lseek(written, 0, os.SEEK_SET)
    output = b"".join(iter(lambda: os.read(written, 1 << 16), b"")) if size <= test["most"] else b""
    os.close(given)
    os.close(written)
    late = status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
    state = "time" if late else "done" if status == 0 and size <= test["most"] else "failed"
    return {"state": state, "output": output.decode("utf-8", "replace") if state == "done" else ""}


def _become(user: int, given: int, written: int, cpu: int) -> None:
    """Turn into the program under test; never returns."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        nothing = os.open("/dev/null", os.O_RDWR)
        for place, file in enumerate((given, written, nothing)):
            os.dup2(file, place)
        os.closerange(3, 4096)
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
        _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS; capabilities go with the change of user, or at execve
        os.execve(_PYTHON, [_PYTHON, "-I", "-B", "/tmp/main.py"], {})  # noqa: S606 (what all this is for)
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


def serve(user: int) -> None:
    """Answer requests from standard input until it ends. Process 1 of its namespace: all others end with it."""
    _call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    _call("prctl", 4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: its memory is closed to the tests
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        enter_root()
    except OSError as error:
        _say({"error": str(error)})
        return
    _say({"ready": True})
    for line in sys.stdin:
        asked, results = json.loads(line), list[dict[str, str]]()
        for test in asked["tests"]:
            late = sum(result["state"] == "time" for result in results)
            results.append({"state": "skipped", "output": ""} if late >= LATE else run_test(asked, test, user))
        _say({"results": results})


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Start the first process of the namespace, and end it when the reader of the replies is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle; its end closes the pipe
    try:
        user = enter_namespaces()
    except OSError as error:
        _say({"error": str(error)})
        return
    child = os.fork()
    if child == 0:
        serve(user)
        os._exit(0)
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(1, select.POLLERR)  # the reader of the replies is gone
    poll.poll()
    os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
