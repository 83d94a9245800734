"""Copies of a model, each in its own process: for several cores, or several GPUs, and away from the event loop.

A batch goes to a free copy; call from as many threads as there are copies. A copy that died, or whose answer was not
waited for, is started again before the next batch is sent. If a copy dies with a single episode, that is sent once
more: something else may have killed it. Copies end with the object, with the server, and when the server is killed.
They do not learn: their weights would drift apart.

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
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import Any, NamedTuple

from guerdon.devices import visible_gpus
from guerdon.errors import GuerdonError, boundary
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, judge
from guerdon.serve.errors import ModelFailed, NotReady
from guerdon.serve.logs import log_to_stderr
from guerdon.streams import keep_streams
from guerdon.subprocess_worker import end_with_parent
from guerdon.types import Episode, RewardInfo, RewardModel, Score

END_S = 5.0  # time limit of a copy that must end
log = logging.getLogger("guerdon.serve")


class CopyDied(ModelFailed):
    """The process of a copy ended without an answer."""


class ModelCopy(NamedTuple):
    """A process, the pipe to it, and another whose closing ends it: at once if idle, else within `END_S`."""

    process: BaseProcess
    pipe: Connection
    life: Connection


class Replicas:
    """A reward model in several copies.

    Args:
        name: of the model.
        build: builds it; is sent to the processes, so it is picklable.
        count: number of copies.
        threads: CPU threads of each.

    Attributes:
        info: the model's declaration of its scores.
        card: its card; None: it has none.

    Raises:
        GuerdonError: it could not be built, as `build` raised it.
        ModelFailed: a process ended while it was being built.
    """

    info: RewardInfo
    card: Any

    def __init__(self, name: str, build: Callable[[], RewardModel], *, count: int, threads: int) -> None:
        self._name, self._build, self._threads = name, build, threads
        self._copies: dict[int, ModelCopy] = {}
        self._lock = threading.Lock()
        self._free: SimpleQueue[int] = SimpleQueue()
        # called at exit before the process waits for its children, or when the object is deleted
        self.close = Finalize(self, _end_all, (self._copies, self._lock), exitpriority=100)
        try:
            for number in range(count):
                self._start(number)
            for number in range(count):
                self.info, self.card = self._receive(number)
                self._free.put(number)
        except BaseException:
            self.close()
            raise

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order."""
        return [explained.score for explained in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One explained score per episode, in order; waits for a free copy. Safe to call from several threads.

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
        copy = self._copies.get(number)
        if copy is not None and not copy.process.is_alive():
            log.warning("copy %d of the model %s has died; it is started again", number, self._name)
            _end(self._copies, number)
            copy = None
        if copy is None:
            copy = self._start(number)
            try:
                self._receive(number)
            except NotReady:
                raise
            except GuerdonError as error:
                log.error("copy %d of the model %s cannot be started again", number, self._name, exc_info=error)
                raise NotReady(f"a copy of the model {self._name} cannot be started again") from error
        with contextlib.suppress(OSError):  # it has died, as its answer will show
            copy.pipe.send((episodes, options))
        scores: list[ExplainedScore] = self._receive(number)
        return scores

    def _start(self, number: int) -> ModelCopy:
        """Start a copy, unless the others are being ended."""
        context = get_context("spawn")
        with self._lock:
            if not self.close.still_active():
                raise NotReady(f"the copies of the model {self._name} are being ended")
            pipe, theirs = context.Pipe()
            their_life, life = context.Pipe(duplex=False)
            arguments = (theirs, their_life, self._build, gpu_of(number), self._threads)
            process = context.Process(target=_work, args=arguments, name=f"guerdon-{self._name}-{number}")
            process.start()
            theirs.close()
            their_life.close()
            self._copies[number] = copy = ModelCopy(process, pipe, life)
            return copy

    def _receive(self, number: int) -> Any:
        """The answer of a copy; a copy that gives none, or has no model, is ended."""
        copy = self._copies.get(number)
        if copy is None:
            raise NotReady(f"the copies of the model {self._name} are being ended")
        try:
            kind, answer = copy.pipe.recv()
        except (EOFError, OSError) as error:
            _end(self._copies, number)
            copy.process.join(2 * END_S)
            status = copy.process.exitcode
            raise CopyDied(f"copy {number} of the model {self._name} ended with status {status}") from error
        except BaseException:  # interrupted: a late answer must not be taken for that of the next batch
            _end(self._copies, number)
            raise
        if kind == "unbuilt":
            _end(self._copies, number)
        if kind != "answer":
            raise answer
        return answer


def _end(copies: dict[int, ModelCopy], number: int) -> None:
    """End one copy; does not wait for that."""
    copy = copies.pop(number, None)
    if copy is not None:
        copy.pipe.close()
        copy.life.close()


def _end_all(copies: dict[int, ModelCopy], lock: threading.Lock) -> None:
    with lock:
        for number in list(copies):
            _end(copies, number)


def gpu_of(number: int) -> str | None:
    """The GPU of a copy, if the server sees several."""
    visible = visible_gpus()
    return visible[number % len(visible)] if len(visible) > 1 else None


def _end_with(life: Connection) -> None:
    """Wait until the pipe closes, then end the process within `END_S`."""
    with contextlib.suppress(EOFError, OSError):
        life.recv()
    time.sleep(END_S)
    os._exit(1)


def _work(pipe: Connection, life: Connection, build: Callable[[], RewardModel], gpu: str | None, threads: int) -> None:
    """Body of a process: build the model, then judge until the pipe closes."""
    keep_streams()
    end_with_parent(spawned=True)
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    for name in (signal.SIGINT, signal.SIGTERM):  # the server handles a signal to the group
        signal.signal(name, signal.SIG_IGN)
    log_to_stderr()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the other cores are for the other copies
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
        gc.freeze()  # objects that live on are not scanned again by the garbage collector
        while True:
            episodes, options = pipe.recv()
            try:
                with boundary(ModelFailed, f"the model raised on {len(episodes)} items"):
                    pipe.send(("answer", judge(model, episodes, options)))
            except GuerdonError as error:
                log.error("%s", error, exc_info=error)
                pipe.send(("raised", _plain(error)))


def _plain(error: GuerdonError) -> GuerdonError:
    """An error that can be pickled: of its class if that takes a message alone, else a `ModelFailed`."""
    kinds = type(error).__mro__
    plain = not any("__init__" in vars(kind) for kind in kinds[: kinds.index(GuerdonError)])
    return (type(error) if plain else ModelFailed)(str(error))
