"""Processes that compare answers, watched by the clock: one that hangs is killed and replaced.

`math-verify` limits its time with signals, which fail in threads and do nothing inside a long multiplication; here
the time limit is the kernel's. Usable from any number of threads. This module does not know prompts, how an answer
is found in a response, or what a verdict is worth.

    with MathPool(workers=2, timeout=10.0) as pool:
        pool.compare("1/2", "0.5")              # ("equal", "")
"""

from __future__ import annotations

import importlib.util
import queue
import sys
from collections.abc import Sequence
from typing import Literal, cast, get_args

from guerdon.errors import MissingDependencyError
from guerdon.watched import DiedError, Watched

Verdict = Literal["equal", "different", "gold_unparsable", "answer_unparsable", "timeout"]

_START_SECONDS = 120.0  # for a process to import its libraries, on a machine that is busy
_LONGEST = 2000  # characters of an answer worth parsing


class MathPool:
    """Answer-checking processes, started when first needed.

    Attributes:
        restarts: processes that were ended because they hung or died.

    Args:
        workers: how many, at most.
        timeout: seconds of wall-clock per pair.
        tolerance: relative difference at which two numbers count as equal.
        command: what a process runs instead of the module `verifier_worker`, speaking its protocol.

    Raises:
        MissingDependencyError: math-verify is not installed.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        timeout: float = 10.0,
        tolerance: float = 0.0,
        command: Sequence[str] | None = None,
    ) -> None:
        if command is None and importlib.util.find_spec("math_verify") is None:
            raise MissingDependencyError("comparing answers needs the package math-verify: pip install 'guerdon[text]'")
        module = [sys.executable, "-m", "guerdon.worlds.verifier_worker", str(timeout), str(tolerance)]
        self.workers = workers
        self.timeout = timeout
        self.restarts = 0
        self._command = list(command) if command is not None else module
        self._closed = False
        self._slots: queue.LifoQueue[Watched | None] = queue.LifoQueue()
        for _ in range(workers):
            self._slots.put(None)

    def compare(self, gold: str, answer: str) -> tuple[Verdict, str]:
        """Verdict on an answer and, where there is none, a word on why.

        `timeout` also stands for a process that ended twice on the same pair (out of memory, killed): no verdict
        in time.

        Raises:
            MissingDependencyError: no process can be started.
        """
        if gold.strip() and gold.strip() == answer.strip():
            return "equal", ""
        for text, verdict in ((gold, "gold_unparsable"), (answer, "answer_unparsable")):
            if len(text) > _LONGEST:
                return cast(Verdict, verdict), f"longer than {_LONGEST} characters"
        worker = self._slots.get()
        try:
            for _ in range(2):
                if self._closed:
                    raise RuntimeError("the pool of answer-checking processes is closed")
                worker = worker or Watched(self._command, start_seconds=_START_SECONDS, what="answer-checking process")
                try:
                    reply = _ask(worker, gold, answer, self.timeout)
                except DiedError:
                    worker = self._end(worker)
                    continue
                if reply is not None:
                    return reply
                worker = self._end(worker)
                return "timeout", f"no verdict within {self.timeout:g} s"
            return "timeout", "the comparing process ended twice"
        finally:
            self._slots.put(worker)

    def _end(self, worker: Watched) -> Watched | None:
        """End a process; the next pair starts another in its place."""
        worker.kill()
        self.restarts += 1
        return None

    def close(self) -> None:
        """End all processes, once each has finished the pair that it is at."""
        self._closed = True
        for worker in [self._slots.get() for _ in range(self.workers)]:
            if worker is not None:
                worker.kill()
        for _ in range(self.workers):
            self._slots.put(None)

    def __enter__(self) -> MathPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ask(worker: Watched, gold: str, answer: str, timeout: float) -> tuple[Verdict, str] | None:
    """The process's verdict, or None where the time ran out.

    Raises:
        DiedError: there is no process any more, or it spoke nonsense.
    """
    reply = worker.ask({"gold": gold, "answer": answer}, timeout)
    if reply is None:
        return None
    if reply.get("verdict") not in get_args(Verdict):
        raise DiedError
    return reply["verdict"], str(reply.get("detail", ""))
