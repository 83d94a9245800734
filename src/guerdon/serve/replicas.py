"""Copies of a model, each in a process of its own: for several cores, or several GPUs, and away from the requests.

A batch goes to a copy that is free; ask from as many threads as there are copies. The server's process only speaks
HTTP then, and no copy waits for its interpreter. A copy that dies is a failure of its batch, and is started again for
the next one. Copies end with the object, with the server, and when the server is killed (their pipe closes). They do
not learn: their weights would drift apart. This module does not know how a model is built.

    model = Replicas("prm", build, count=2, threads=1)
    model.judge(episodes, JudgeOptions())
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from guerdon.errors import GuerdonError, boundary
from guerdon.models.judgement import Judgement, JudgeOptions, judge
from guerdon.serve.errors import ModelFailed
from guerdon.types import Episode, RewardInfo, RewardModel, Score

_END_S = 5.0


@dataclass(frozen=True, eq=False)
class Copy:
    """One process, and the pipe to it."""

    process: BaseProcess
    pipe: Connection


class Replicas:
    """A reward model that is there several times.

    Args:
        name: what clients call it.
        build: builds it; goes to the processes, so it is picklable.
        count: how many copies.
        threads: cores that each computes on.

    Attributes:
        info: what the model promises about its scores.
        card: what it says about itself; None where it says nothing.

    Raises:
        GuerdonError: it could not be built, as `build` raised it.
        ModelFailed: a process ended while it was being built.
    """

    def __init__(self, name: str, build: Callable[[], RewardModel], *, count: int, threads: int) -> None:
        self._name, self._build, self._threads = name, build, threads
        self._copies: dict[int, Copy] = {}
        self._started: list[Copy] = []
        self._free: SimpleQueue[int] = SimpleQueue()
        self._finalizer = weakref.finalize(self, _end_all, self._started)
        for number in range(count):
            self._copies[number] = self._start(number)
        for number in range(count):
            self.info: RewardInfo
            self.card: Any
            self.info, self.card = self._hear(number)
            self._free.put(number)

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order."""
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[Judgement]:
        """One judgement per episode, in order; waits for a copy that is free. Safe to call from several threads.

        Raises:
            GuerdonError: as the model raised it.
            ModelFailed: the model raised something else, or its process died.
        """
        number = self._free.get()
        try:
            if number not in self._copies:
                self._copies[number] = self._start(number)
                self._hear(number)
            with contextlib.suppress(OSError):  # it has died, as its answer will say
                self._copies[number].pipe.send((episodes, options))
            judgements: list[Judgement] = self._hear(number)
            return judgements
        finally:
            self._free.put(number)

    def close(self) -> None:
        """End all processes."""
        self._finalizer()

    def _start(self, number: int) -> Copy:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work, args=(theirs, self._build, _gpu_of(number), self._threads), daemon=True,
            name=f"guerdon-{self._name}-{number}",
        )  # fmt: skip
        process.start()
        theirs.close()
        copy = Copy(process, ours)
        self._started.append(copy)
        return copy

    def _hear(self, number: int) -> Any:
        copy = self._copies[number]
        try:
            ok, answer = copy.pipe.recv()
        except (EOFError, OSError) as error:
            del self._copies[number]
            self._started.remove(copy)
            _end_all([copy])
            status = copy.process.exitcode
            raise ModelFailed(f"copy {number} of the model {self._name} ended with status {status}") from error
        if not ok:
            raise answer
        return answer


def _gpu_of(number: int) -> str | None:
    """The GPU of a copy, where the server was given several."""
    visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    return visible[number % len(visible)] if len(visible) > 1 else None


def _end_all(copies: list[Copy]) -> None:
    for copy in copies:
        copy.pipe.close()
        copy.process.terminate()
    for copy in copies:
        copy.process.join(_END_S)
        if copy.process.is_alive():
            copy.process.kill()
            copy.process.join()
    copies.clear()


def _work(pipe: Connection, build: Callable[[], RewardModel], gpu: str | None, threads: int) -> None:
    """Body of a process: build the model, then judge until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the server's to handle
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the other cores are the other copies'
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        with boundary(ModelFailed, "the model could not be built"):
            model = build()
            answer: Any = (model.info, getattr(model, "card", None))
    except GuerdonError as error:
        pipe.send((False, _plain(error)))
        return
    gc.collect()
    gc.freeze()  # what is there now stays, and is not looked through between batches
    pipe.send((True, answer))
    while True:
        try:
            episodes, options = pipe.recv()
        except EOFError:
            return
        try:
            with boundary(ModelFailed, f"the model raised on {len(episodes)} items"):
                reply: tuple[bool, Any] = (True, judge(model, episodes, options))
        except GuerdonError as error:
            reply = (False, _plain(error))
        pipe.send(reply)


def _plain(error: GuerdonError) -> GuerdonError:
    """An error that can be sent: of its kind where that is built from a message alone."""
    kinds = type(error).__mro__
    plain = not any("__init__" in vars(kind) for kind in kinds[: kinds.index(GuerdonError)])
    return (type(error) if plain else ModelFailed)(str(error))
