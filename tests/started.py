"""Processes that are forked from one that has imported what they need: importing takes each of them seconds.

    process = Started(["serve", "serve.yaml"], folder=tmp_path, variables={...})  # as subprocess.Popen with a `stderr`
    subprocess_worker.subprocess = with_forked_simulators()                       # in tests/conftest.py

The process that forks has one thread. It is started by the first call of a test process and ends with it; there is one
for servers, one for servers of models that need torch, and one for simulators. In a test that sets other variables for
drawing, simulators are started as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

SERVERS = ("guerdon.serve.app", "guerdon.serve.launch")
MODEL_SERVERS = (*SERVERS, "torch", "peft", "guerdon.models.images.backbone", "guerdon.models.vlm.vlm_transformers")
SIMULATOR = "guerdon.worlds.simulator_process"
HEAVY = ("torch", "mujoco", "metaworld")  # imported for simulators where the test process has imported them
DRAWING = ("MUJOCO_GL", "PYOPENGL_PLATFORM")  # read when a module is imported


class Forked:
    """A process: what guerdon and its tests use of `subprocess.Popen`.

    Attributes:
        pid: of the process.
        returncode: as of `subprocess.Popen`; None while it was not seen to have ended.

    Args:
        imports: modules that the process from which it is forked imports before.
        order: what it does, for `fork_as_asked`.
        descriptors: that it gets.
    """

    def __init__(self, imports: Sequence[str], order: dict[str, Any], descriptors: Sequence[int]) -> None:
        self._ask = functools.partial(_ask, tuple(imports))
        self.pid = int(self._ask(order, descriptors))
        self.returncode: int | None = None
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """The exit status, or minus the signal that ended it; None while it runs."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.returncode = int(self._ask({"ended": self.pid}))
            os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it runs after so many seconds.
        """
        if self.returncode is None and not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("guerdon", timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Started(Forked):
    """A command of guerdon that serves.

    Attributes:
        stderr: what it writes there.

    Args:
        words: of the command line.
        folder: the working directory.
        variables: all environment variables.
        imports: as of `Forked`.
    """

    def __init__(
        self, words: list[str], *, folder: Path, variables: dict[str, str], imports: tuple[str, ...] = SERVERS
    ) -> None:
        reading, writing = os.pipe()
        super().__init__(imports, {"words": words, "folder": str(folder), "variables": variables}, [writing])
        os.close(writing)
        self.stderr: TextIO = os.fdopen(reading)


def with_forked_simulators() -> types.SimpleNamespace:
    """The module `subprocess` with a `Popen` that forks simulators; everything else is started as usual."""
    return types.SimpleNamespace(**{**vars(subprocess), "Popen": _popen})


def _popen(command: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], **options: Any) -> Any:
    same_drawing = all(env.get(name) == os.environ.get(name) == _DRAWS_WITH[name] for name in DRAWING)
    if list(command[:4]) != [sys.executable, "-P", "-m", SIMULATOR] or not same_drawing:
        return subprocess.Popen(command, env=env, pass_fds=pass_fds, **options)
    with open(os.devnull) as nothing:
        assert options.pop("stdin") == subprocess.DEVNULL
        streams = [nothing.fileno(), options.pop("stdout").fileno(), options.pop("stderr").fileno()]
        assert not options
        order = {
            "arguments": list(command[4:]), "folder": os.getcwd(), "variables": dict(env), "numbers": list(pass_fds),
            "imports": [name for name in HEAVY if name in sys.modules],
        }  # fmt: skip
        return Forked([SIMULATOR], order, [*streams, *pass_fds])


_DRAWS_WITH = {name: os.environ.get(name) for name in DRAWING}


def _ask(imports: tuple[str, ...], order: dict[str, Any], descriptors: Sequence[int] = ()) -> str:
    """What the process that forks answers."""
    connection, lock = _forks(os.getpid(), imports)
    with lock:
        socket.send_fds(connection, [json.dumps(order).encode()], list(descriptors))
        answer = connection.recv(100).decode()
    assert answer, "the process that forks has ended"
    return answer


@functools.cache
def _forks(parent: int, imports: tuple[str, ...]) -> tuple[socket.socket, Any]:
    """A connection to the process that forks, which ends with this one, and who may use it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    flags = ["-P"] if SIMULATOR in imports else []  # as guerdon starts them
    command = [sys.executable, *flags, __file__, str(theirs.fileno()), *imports]
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": paths})
    theirs.close()

    def end() -> None:
        if os.getpid() == parent:
            ours.close()
            process.wait()

    atexit.register(end)
    return ours, threading.Lock()


def fork_as_asked(connection: socket.socket) -> None:
    """Fork a process for each order until the other side closes; what runs then is ended."""
    running: set[int] = set()
    while True:
        order, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 16)
        if not order:  # the tests have ended, or were killed
            for left in running:
                os.kill(left, signal.SIGKILL)
            return
        asked = json.loads(order)
        if "ended" in asked:
            _, status = os.waitpid(asked["ended"], 0)
            running.discard(asked["ended"])
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        for name in asked.get("imports", ()):
            importlib.import_module(name)
        pid = os.fork()
        if pid == 0:
            connection.close()
            run(serve if "words" in asked else simulate, asked, descriptors)
        running.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(pid).encode())


def run(work: Callable[..., None], asked: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be the process: never returns."""
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["variables"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status: Any = 1
    try:
        work(asked, descriptors)
        status = 0
    except SystemExit as left:
        status = left.code or 0
    except BaseException:  # noqa: BLE001 (as an interpreter does)
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # as at the end of an interpreter: models in processes end with the server
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def serve(asked: dict[str, Any], descriptors: list[int]) -> None:
    """A command of guerdon, with its errors to the one descriptor."""
    from guerdon import cli

    os.dup2(descriptors[0], 2)
    os.close(descriptors[0])
    paths = asked["variables"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [asked["folder"], *paths]
    sys.argv = ["guerdon", *asked["words"]]
    cli.main()


def simulate(asked: dict[str, Any], descriptors: list[int]) -> None:
    """A simulator, with its streams and the descriptors that its arguments name."""
    numbers = [0, 1, 2, *asked["numbers"]]
    out_of_the_way = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 512) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(out_of_the_way, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.path[:] = asked["variables"]["PYTHONPATH"].split(os.pathsep)
    sys.argv = [SIMULATOR, *asked["arguments"]]
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.modules[SIMULATOR].main()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    fork_as_asked(socket.socket(fileno=int(sys.argv[1])))
