"""Coroutines called from synchronous code, whether or not the caller's thread runs an event loop (as a notebook does).

All of them run in one event loop, in a daemon thread that the first call starts. So clients that keep connections open
belong to one loop, whoever calls. After a fork the child starts a thread of its own.

    status = run_async(client.get(url))
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine; the caller's thread waits for it. Safe to call from several threads at once.

    The coroutine is cancelled if the caller is interrupted (Ctrl-C).

    Raises:
        RuntimeError: called by a coroutine that runs here, which has to `await` instead.
    """
    loop = _running_loop()
    if asyncio._get_running_loop() is loop:
        coroutine.close()
        raise RuntimeError("run_async was called by a coroutine of its own event loop; await the coroutine instead")
    running: list[asyncio.Task[Any]] = []

    async def cancellable() -> T:
        running.extend(filter(None, [asyncio.current_task()]))
        return await coroutine

    try:  # an interrupt may come before the call that starts it has returned
        found = asyncio.run_coroutine_threadsafe(cancellable(), loop)
        while not found.done():  # a wait without an end does not notice an interrupt that comes just before it
            wait([found], timeout=1.0)
        return found.result()
    except BaseException:
        loop.call_soon_threadsafe(loop.call_soon, lambda: [task.cancel() for task in running])  # after it has begun
        raise


def _running_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(_loop,), name="guerdon-async", daemon=True).start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the event loop for good: asyncio ends it where a coroutine raises one of these, before its caller is told."""
    while True:
        with suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()


def _forget() -> None:
    """Threads do not survive a fork, and the lock may have been held."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
