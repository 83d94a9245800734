"""One thread that does all work of one model, so that the event loop never waits for it.

A thread and not a process: the time of a reward model is spent in kernels that let other threads run, frames need
no copying, and the weights are there once. One thread and not several: a model is not asked to be safe for two callers,
and more would only share the same cores. It is a daemon: a model that hangs does not keep the server from ending. This
module does not know what it runs.

    worker = Worker("prm")
    scores = await worker.run(model.score, episodes)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from guerdon.errors import GuerdonError, boundary
from guerdon.serve.errors import ModelFailed

T = TypeVar("T")


class Worker:
    """Runs functions one after another in a thread of its own.

    Args:
        name: what it works for, in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[], Any]] | None]
        self._queue = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"guerdon-{name}", daemon=True)
        self._thread.start()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result; called in the worker's thread, after what was given before.

        Raises:
            GuerdonError: as the function raised it; any other exception becomes `ModelFailed`, with it as the cause.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put((loop, future, lambda: function(*arguments)))
        return await future

    def stop(self) -> None:
        """End the thread after what it was given so far."""
        self._queue.put(None)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            loop, future, call = job
            result: Any = None
            error: GuerdonError | None = None
            try:
                with boundary(ModelFailed, self._name):
                    result = call()
            except GuerdonError as caught:
                error = caught
            except SystemExit as caught:
                error = ModelFailed(f"{self._name} asked the process to end with {caught.code}")
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, future, result, error)
            del job, future, call, result, error  # let go of the episodes while waiting


def _settle(future: asyncio.Future[Any], result: Any, error: GuerdonError | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
