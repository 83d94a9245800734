"""Server processes that are forked from one that has imported the server already: importing it takes two seconds.

    process = Started(["serve", "serve.yaml"], folder=tmp_path, variables={...})  # as subprocess.Popen with a `stderr`

The process that is forked has one thread. It is started by the first call of a test process and ends with it.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn, TextIO


class Started:
    """A command of guerdon in a process of its own: what tests use of `subprocess.Popen`.

    Attributes:
        pid: of the process.
        returncode: as of `subprocess.Popen`; None while it was not seen to have ended.
        stderr: what it writes there.
    """

    def __init__(self, words: list[str], *, folder: Path, variables: dict[str, str]) -> None:
        reading, writing = os.pipe()
        order = {"words": words, "folder": str(folder), "variables": variables}
        self.pid = int(_ask(order, [writing]))
        os.close(writing)
        self.stderr: TextIO = os.fdopen(reading)
        self.returncode: int | None = None
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """The exit status, or minus the signal that ended it; None while it runs."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.returncode = int(_ask({"ended": self.pid}))
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


def _ask(order: dict[str, Any], descriptors: list[int] | None = None) -> str:
    """What the process that forks answers."""
    connection = _forks(os.getpid())
    socket.send_fds(connection, [json.dumps(order).encode()], descriptors or [])
    answer = connection.recv(100).decode()
    assert answer, "the process from which servers are forked has ended"
    return answer


@functools.cache
def _forks(parent: int) -> socket.socket:
    """A connection to the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        if os.getpid() == parent:
            ours.close()
            process.wait()

    atexit.register(end)
    return ours


def fork_as_asked(connection: socket.socket) -> None:
    """Fork a process for each order until the other side closes; what runs then is ended."""
    import guerdon.serve.app
    import guerdon.serve.launch  # noqa: F401

    running: set[int] = set()
    while True:
        order, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 1)
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
        pid = os.fork()
        if pid == 0:
            connection.close()
            run(asked, descriptors[0])
        running.add(pid)
        os.close(descriptors[0])
        connection.send(str(pid).encode())


def run(asked: dict[str, Any], errors: int) -> NoReturn:
    """Be the command: never returns."""
    from guerdon import cli

    os.dup2(errors, 2)
    os.close(errors)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["variables"])
    paths = asked["variables"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [asked["folder"], *paths]
    sys.argv = ["guerdon", *asked["words"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status: Any = 1
    try:
        cli.main()
    except SystemExit as left:
        status = left.code or 0
    finally:
        atexit._run_exitfuncs()  # as at the end of an interpreter: models in processes end with the server
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fork_as_asked(socket.socket(fileno=int(sys.argv[1])))
