"""Helper processes that answer requests with a time limit, one line of JSON each, and end with their parent.

For work that cannot be limited from within a thread: comparing formulas, running programs, decoding untrusted video.
A process that hangs or dies is killed and replaced. It gets none of our environment variables but those it needs to
start, so no token or key; open files can be sent with a request, so that it needs no permission to open any.

    pool = SubprocessPool([sys.executable, "-m", "guerdon.tasks.verifier_worker", "10", "0"], workers=2,
                          start_seconds=120)
    pool.request({"gold": "1/2", "answer": "0.5"}, timeout=10)            # {"verdict": "equal", "detail": ""}
    pool.close()

    answer_requests(answer, alarm=25)                                     # in the process: its whole main function

A child process is killed when its parent is gone, however that ended: the parent holds the writing end of a pipe,
which the kernel closes for it; on Linux the kernel then kills the child, even in the middle of a call that never
returns, elsewhere a thread does.

    process = start_child([sys.executable, "-m", "guerdon", "run"])       # in the parent
    end_with_parent()                                                     # first thing in the child
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import multiprocessing
import os
import queue
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any, Self

from guerdon.errors import MissingDependencyError

_VARIABLE = "GUERDON_PARENT"  # descriptor and inode of the pipe, for the child
_PLAIN = ("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")


class WorkerError(Exception):
    """A request got no answer."""


class WorkerDiedError(WorkerError):
    """The process ended, or its reply is not a JSON object."""


class WorkerTimeoutError(WorkerError):
    """There was no reply in time, or within the processor time of a request; the process must be killed."""


class PoolClosedError(WorkerError, RuntimeError):
    """The pool was closed before the request was answered."""


def plain_environment() -> dict[str, str]:
    """Those of our variables that a process needs to find its interpreter and libraries: no token, no key."""
    return {name: os.environ[name] for name in _PLAIN if name in os.environ}


def start_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, if it calls `end_with_parent`.

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
    """The pipe's descriptor, removed from the environment so that no process of ours looks for it."""
    number, _, inode = os.environ.pop(_VARIABLE, "").partition(":")
    if not number:
        return None
    try:
        found = os.fstat(int(number))
    except OSError:
        return None  # a process in between closed it
    if not stat.S_ISFIFO(found.st_mode) or found.st_ino != int(inode):
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def _wait(handle: int) -> None:
    select.select([handle], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


class SubprocessWorker:
    """One process, and the pipes to it. It writes `{"ready": true}` once it can work, or `{"error": why}`.

    Attributes:
        ready: all that it wrote then.

    Args:
        command: what to run.
        start_seconds: time limit until it is ready.
        description: of the process, for the error message.
        pass_files: open a socket for files; its descriptor becomes the last argument of the command.
        environment: all variables that it gets; None: `plain_environment()`.
        group: `kill` ends the processes that it started, too.

    Raises:
        MissingDependencyError: it does not start.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        start_seconds: float,
        description: str = "process",
        pass_files: bool = False,
        environment: Mapping[str, str] | None = None,
        group: bool = False,
    ) -> None:
        self._group = group
        self._socket: socket.socket | None = None
        theirs: socket.socket | None = None
        by_hand = " ".join([*command, "-"] if pass_files else command)
        if pass_files:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX)
            command = [*command, str(theirs.fileno())]
        self.process = start_child(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            pass_fds=() if theirs is None else (theirs.fileno(),),
            process_group=0 if group else None,
            environment=plain_environment() if environment is None else environment,
        )
        if theirs is not None:
            theirs.close()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._replies = self.process.stdin, self.process.stdout
        self._read = bytearray()
        self.ready: dict[str, Any] = {}
        with contextlib.suppress(WorkerError):
            self.ready = self.reply(start_seconds)
        if "ready" not in self.ready:
            self.kill()
            why = f" ({self.ready['error']})" if "error" in self.ready else ""
            raise MissingDependencyError(f"the {description} does not start{why}; try it: {by_hand}")

    def request(self, request: Mapping[str, Any], timeout: float, *, files: Sequence[int] = ()) -> dict[str, Any]:
        """The process's reply.

        Args:
            request: plain JSON values.
            timeout: seconds of wall-clock.
            files: descriptors that it gets copies of, before the request.

        Raises:
            WorkerDiedError: the process ended, or its reply is not a JSON object.
            WorkerTimeoutError: there was no reply in time; the process must be killed.
        """
        self.send(request, files=files)
        return self.reply(timeout)

    def send(self, request: Mapping[str, Any], *, files: Sequence[int] = ()) -> None:
        """Send a request, whose reply `reply` reads.

        Raises:
            WorkerDiedError: the process ended.
        """
        try:
            if files:
                assert self._socket is not None
                socket.send_fds(self._socket, [b"."], list(files))
            self._requests.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise WorkerDiedError from error

    def reply(self, timeout: float) -> dict[str, Any]:
        """The next line that the process writes; raises as `request` does."""
        deadline = time.monotonic() + timeout
        searched = 0
        while self._read.find(b"\n", searched) < 0:
            searched = len(self._read)
            if not wait([self._replies.fileno()], max(0.0, deadline - time.monotonic())):
                raise WorkerTimeoutError
            piece = os.read(self._replies.fileno(), 1 << 16)
            if not piece:
                raise WorkerTimeoutError if self._out_of_time() else WorkerDiedError
            self._read += piece
        end = self._read.index(b"\n")
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        try:
            reply = json.loads(line)
        except ValueError as error:
            raise WorkerDiedError from error
        if not isinstance(reply, dict):
            raise WorkerDiedError
        return reply

    def _out_of_time(self) -> bool:
        """Whether the process, which closed its pipe, was ended for its processor time (see `answer_requests`)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout=1) == -signal.SIGPROF
        return False

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        if self._group and self.process.returncode is None:  # until it is waited for, its number is no other group's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self._requests.close()
        self._replies.close()
        if self._socket is not None:
            self._socket.close()


class SubprocessPool:
    """Processes that run one command, started when first needed. Usable from any number of threads.

    Attributes:
        workers: how many processes, at most.
        restarts: processes that were ended because they hung or died.

    Args:
        command: what to run.
        workers: how many processes, at most.
        once: no request is sent twice, since it may have had an effect: one process that dies of it is an error.
        **options: as for `SubprocessWorker`.
    """

    def __init__(self, command: Sequence[str], *, workers: int, once: bool = False, **options: Any) -> None:
        self.workers, self.restarts, self._once = workers, 0, once
        self._command, self._options = command, options
        self._closed = False
        self._running: set[SubprocessWorker] = set()
        self._slots: queue.LifoQueue[SubprocessWorker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._slots.put(None)

    def request(
        self, request: Mapping[str, Any], timeout: float, *, files: Callable[[], Sequence[int]] = tuple
    ) -> dict[str, Any]:
        """A process's reply; where a process dies, another one gets the request once more, unless `once`.

        Args:
            request: plain JSON values.
            timeout: seconds of wall-clock, once a process is free.
            files: descriptors that the process gets copies of; called before each try, to rewind or empty the files.

        Raises:
            WorkerTimeoutError: there was no reply in time.
            WorkerDiedError: two processes died of it, or one with `once`.
            PoolClosedError: the pool was closed.
            MissingDependencyError: no process can be started.
        """
        worker = self._slots.get()
        try:
            for last in (True,) if self._once else (False, True):
                if worker is not None and worker.process.poll() is not None:  # died while it was idle
                    self._end(worker)
                    worker = None
                worker = worker or self._start()
                try:
                    return worker.request(request, timeout, files=files())
                except WorkerError as error:
                    self._end(worker)
                    worker = None
                    if isinstance(error, WorkerTimeoutError) or (last and not self._closed):
                        raise
            raise PoolClosedError("the pool of processes is closed")
        finally:
            self._slots.put(worker)

    def close(self) -> None:
        """Kill all processes; requests that have no reply yet raise `PoolClosedError`."""
        self._closed = True
        for worker in list(self._running):
            worker.process.kill()
        for idle in [self._slots.get() for _ in range(self.workers)]:
            if idle is not None:
                self._end(idle)
            self._slots.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> SubprocessWorker:
        if not self._closed:
            worker = SubprocessWorker(self._command, **self._options)
            self._running.add(worker)
            if not self._closed:  # looked at after `close` can see the worker: one of the two ends it
                return worker
            self._end(worker)
        raise PoolClosedError("the pool of processes is closed")

    def _end(self, worker: SubprocessWorker) -> None:
        worker.kill()
        self._running.discard(worker)
        self.restarts += not self._closed


def limit_memory(more: int) -> None:
    """Bound the address space of this process to what it has now and so many bytes more; on Linux, where it is kept."""
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


def answer_requests(
    answer: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    alarm: float,
    processor: float = 0.0,
    prepare: Callable[[], object] | None = None,
) -> None:
    """Main function of a process that a `SubprocessWorker` starts: answer standard input until it ends.

    Args:
        answer: makes a reply of a request.
        alarm: seconds after which the operating system ends the process within a request, should the parent, which
            has a shorter time limit, be gone.
        processor: seconds of processor time after which the operating system ends the process within a request, which
            is a `WorkerTimeoutError` of the parent: how long it waits for a processor makes no difference; 0: none.
        prepare: called before the process says that it is ready.
    """
    end_with_parent()
    with (
        os.fdopen(os.dup(0), encoding="utf-8") as requests,
        os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as replies,
        open(os.devnull, "rb") as nothing,
    ):
        os.dup2(nothing.fileno(), 0)  # whatever a library, or a program that it starts, reads must not be a request
        os.dup2(2, 1)  # whatever a library prints must not look like a reply
        logging.disable(logging.CRITICAL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles an interrupt; its end closes the pipe
        if prepare is not None:
            prepare()
        replies.write('{"ready": true}\n')
        for line in requests:
            signal.setitimer(signal.ITIMER_REAL, alarm)
            signal.setitimer(signal.ITIMER_PROF, processor)
            reply = answer(json.loads(line))
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            replies.write(json.dumps(reply) + "\n")
