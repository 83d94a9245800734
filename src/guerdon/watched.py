"""A process that answers requests, one line of JSON each, and is watched by the clock: one that hangs is killed.

For work that nobody can limit from within: comparing formulas, decoding a stranger's video. Open files can be handed
over with a request, so that the process needs no right to open any. It gets no secret of our environment, and ends
with this process, where it calls `end_with_parent`. This module does not know what is asked.

    worker = Watched([sys.executable, "-m", "guerdon.worlds.verifier_worker", "10", "0"], start_seconds=120)
    worker.ask({"gold": "1/2", "answer": "0.5"}, timeout=10)      # None where the time ran out
    worker.kill()
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from guerdon.errors import MissingDependencyError
from guerdon.lifeline import start_child

_PLAIN = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")


def plain_environment() -> dict[str, str]:
    """Those of our variables that a process needs to find its interpreter and libraries: no token, no key."""
    return {name: os.environ[name] for name in _PLAIN if name in os.environ}


class DiedError(Exception):
    """The process ended, or spoke nonsense."""


class Watched:
    """One process, and the pipes to it. It says `{"ready": true}` once it can work, or `{"error": why}`.

    Args:
        command: what to run.
        start_seconds: how long it may take to get ready.
        what: the process in words, for the error.
        hands_files: give it a socket for open files; its descriptor becomes the last argument of the command.
        environment: all variables that it gets; None: `plain_environment()`.

    Raises:
        MissingDependencyError: it does not start.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        start_seconds: float,
        what: str = "process",
        hands_files: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._socket: socket.socket | None = None
        theirs: socket.socket | None = None
        if hands_files:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX)
            command = [*command, str(theirs.fileno())]
        self.process = start_child(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            pass_fds=() if theirs is None else (theirs.fileno(),),
            environment=plain_environment() if environment is None else environment,
        )
        if theirs is not None:
            theirs.close()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._replies = self.process.stdin, self.process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._replies, selectors.EVENT_READ)
        self._read = bytearray()
        try:
            ready = self._line(start_seconds)
        except DiedError:
            ready = None
        if ready is None or "ready" not in ready:
            self.kill()
            why = f" ({ready['error']})" if ready and "error" in ready else ""
            raise MissingDependencyError(f"the {what} does not start{why}; try it: {' '.join(command)}")

    def ask(self, request: Mapping[str, Any], timeout: float, *, files: Sequence[int] = ()) -> dict[str, Any] | None:
        """The process's reply, or None where the time ran out: then it must be killed.

        Args:
            request: plain JSON values.
            timeout: seconds of wall-clock.
            files: descriptors that it gets copies of, before the request.

        Raises:
            DiedError: there is no process any more.
        """
        try:
            if files:
                assert self._socket is not None
                socket.send_fds(self._socket, [b"."], list(files))
            self._requests.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise DiedError from error
        return self._line(timeout)

    def _line(self, timeout: float) -> dict[str, Any] | None:
        """The next line that the process writes, or None where the time ran out."""
        deadline = time.monotonic() + timeout
        searched = 0
        while self._read.find(b"\n", searched) < 0:
            searched = len(self._read)
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return None
            piece = os.read(self._replies.fileno(), 1 << 16)
            if not piece:
                raise DiedError
            self._read += piece
        end = self._read.index(b"\n")
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        try:
            reply = json.loads(line)
        except ValueError as error:
            raise DiedError from error
        if not isinstance(reply, dict):
            raise DiedError
        return reply

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        self._selector.close()
        self._requests.close()
        self._replies.close()
        if self._socket is not None:
            self._socket.close()
