"""Copies of a model, each in a process of its own: for several cores, or several GPUs, and away from the requests.

A batch goes to a copy that is free; ask from as many threads as there are copies. The server's process only speaks
HTTP then, and no copy waits for its interpreter. A copy that has died, or whose answer nobody waited for, is started
again before the next batch is sent. Where a copy dies with a single episode, that is sent once more: something else
may have killed it. Copies end with the object, with the server, and when the server is killed (their
pipe closes). They do not learn: their weights would drift apart. This module does not know how a model is built.

    model = Replicas("prm", build, count=2, threads=1)
    model.judge(episodes, JudgeOptions())
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import Any

from guerdon.errors import GuerdonError, boundary
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, judge
from guerdon.serve.errors import ModelFailed, NotReady
from guerdon.subprocess_worker import end_with_parent
from guerdon.types import Episode, RewardInfo, RewardModel, Score

END_S = 5.0  # how long a copy that was told to end may take
log = logging.getLogger("guerdon.serve")


class CopyDied(ModelFailed):
    """The process of a copy ended without an answer."""


@dataclass(frozen=True, eq=False)
class Copy:
    """One process, the pipe to it, and another whose closing tells it to end."""

    process: BaseProcess
    pipe: Connection
    life: Connection

    def end(self) -> None:
        """Let it end: at once where it waits, within `END_S` where it computes. Does not wait for that."""
        self.pipe.close()
        self.life.close()


@dataclass(eq=False)
class Family:
    """The copies that are alive, by number; closed, it takes no new ones."""

    copies: dict[int, Copy] = field(default_factory=dict)
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, number: int, start: Callable[[], Copy]) -> Copy:
        """Start a copy.

        Raises:
            NotReady: the others are being ended.
        """
        with self.lock:
            if self.closed:
                raise NotReady("the copies of the model are being ended")
            self.copies[number] = start()
            return self.copies[number]

    def drop(self, number: int) -> None:
        """End one copy."""
        with self.lock:
            copy = self.copies.pop(number, None)
        if copy is not None:
            copy.end()

    def close(self) -> None:
        """End all."""
        with self.lock:
            self.closed = True
            left, self.copies = self.copies, {}
        for copy in left.values():
            copy.end()


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

    info: RewardInfo
    card: Any

    def __init__(self, name: str, build: Callable[[], RewardModel], *, count: int, threads: int) -> None:
        self._name, self._build, self._threads = name, build, threads
        self._family = Family()
        self._free: SimpleQueue[int] = SimpleQueue()
        # before the process waits for its children at its end, or when nobody has this object any more
        self.close = Finalize(self, self._family.close, exitpriority=100)
        try:
            for number in range(count):
                self._start(number)
            for number in range(count):
                self.info, self.card = self._hear(number)
                self._free.put(number)
        except BaseException:
            self.close()
            raise

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order."""
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One judgement per episode, in order; waits for a copy that is free. Safe to call from several threads.

        Raises:
            GuerdonError: as the model raised it.
            ModelFailed: the model raised something else, or its process died (of a single episode: twice).
            NotReady: the copies are being ended, or one that died cannot be started again.
        """
        number = self._free.get()
        try:
            return self._judge(number, episodes, options)
        except CopyDied as error:
            if len(episodes) != 1:
                raise
            log.warning("%s; its item is sent once more", error)
            return self._judge(number, episodes, options)
        finally:
            self._free.put(number)

    def _judge(self, number: int, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        copy = self._family.copies.get(number)
        if copy is not None and not copy.process.is_alive():
            log.warning("copy %d of the model %s has died; it is started again", number, self._name)
            self._family.drop(number)
            copy = None
        if copy is None:
            copy = self._start(number)
            try:
                self._hear(number)
            except NotReady:
                raise
            except GuerdonError as error:
                log.error("copy %d of the model %s cannot be started again", number, self._name, exc_info=error)
                raise NotReady(f"a copy of the model {self._name} cannot be started again") from error
        with contextlib.suppress(OSError):  # it has died, as its answer will say
            copy.pipe.send((episodes, options))
        judgements: list[ExplainedScore] = self._hear(number)
        return judgements

    def _start(self, number: int) -> Copy:
        def start() -> Copy:
            context = get_context("spawn")
            ours, theirs = context.Pipe()
            their_life, life = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(theirs, their_life, self._build, _gpu_of(number), self._threads),
                name=f"guerdon-{self._name}-{number}",
            )  # fmt: skip
            process.start()
            theirs.close()
            their_life.close()
            return Copy(process, ours, life)

        return self._family.add(number, start)

    def _hear(self, number: int) -> Any:
        """The answer of a copy; a copy that gives none, or has no model, is ended."""
        copy = self._family.copies.get(number)
        if copy is None:
            raise NotReady(f"the copies of the model {self._name} are being ended")
        try:
            kind, answer = copy.pipe.recv()
        except (EOFError, OSError) as error:
            self._family.drop(number)
            copy.process.join(2 * END_S)
            status = copy.process.exitcode
            raise CopyDied(f"copy {number} of the model {self._name} ended with status {status}") from error
        except BaseException:  # interrupted: its answer may come, and must not be taken for that of the next batch
            self._family.drop(number)
            raise
        if kind == "unbuilt":
            self._family.drop(number)
        if kind != "answer":
            raise answer
        return answer


def _gpu_of(number: int) -> str | None:
    """The GPU of a copy, where the server was given several."""
    visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    return visible[number % len(visible)] if len(visible) > 1 else None


def _end_with(life: Connection) -> None:
    """Wait until the pipe closes, and see to it that the process ends."""
    with contextlib.suppress(EOFError, OSError):
        life.recv()
    time.sleep(END_S)
    os._exit(1)


def _work(pipe: Connection, life: Connection, build: Callable[[], RewardModel], gpu: str | None, threads: int) -> None:
    """Body of a process: build the model, then judge until the pipe closes."""
    end_with_parent(spawned=True)
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    for name in (signal.SIGINT, signal.SIGTERM):  # a signal to the group is the server's to handle
        signal.signal(name, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the other cores are the other copies'
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            with boundary(ModelFailed, "the model could not be built"):
                model = build()
                pipe.send(("answer", (model.info, getattr(model, "card", None))))
        except GuerdonError as error:
            pipe.send(("unbuilt", _plain(error)))
            return
        gc.collect()
        gc.freeze()  # what is there now stays, and is not looked through between batches
        while True:
            episodes, options = pipe.recv()
            try:
                with boundary(ModelFailed, f"the model raised on {len(episodes)} items"):
                    pipe.send(("answer", judge(model, episodes, options)))
            except GuerdonError as error:
                log.error("%s", error, exc_info=error)
                pipe.send(("raised", _plain(error)))


def _plain(error: GuerdonError) -> GuerdonError:
    """An error that can be sent: of its kind where that is built from a message alone."""
    kinds = type(error).__mro__
    plain = not any("__init__" in vars(kind) for kind in kinds[: kinds.index(GuerdonError)])
    return (type(error) if plain else ModelFailed)(str(error))
