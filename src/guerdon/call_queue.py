"""Calls of one model from several threads: one at a time, and those that wait meanwhile are made as one call.

A forward pass switches adapters, attention and modes of the model, so two at a time would disturb each other. Every
method that begins passes is `batched` or `alone`: the thread that comes first makes its call, and the others wait; then
one of them makes a single call with the items of all that wait, which is faster than one call for each. A caller in a
single thread pays for a lock and nothing else. A method may call others of its own object.

    class Model:
        @batched
        def score(self, episodes): ...       # one result per episode, whatever else is in the call
        @alone
        def learn(self, episodes): ...

    with ThreadPoolExecutor(64) as pool:
        scores = list(pool.map(lambda one: model.score([one])[0], episodes))     # two calls or a few, not 64
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar, cast

from guerdon.errors import DataError, GuerdonError, boundary

MOST = 1024  # items of several calls in one
_THREADS = ThreadPoolExecutor(64, "guerdon-calls")  # they wait most of the time
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(eq=False)
class _Call:
    """A call that waits.

    Attributes:
        method: what is called, with the object; its items come first.
        items: one result belongs to each.
        options: positional and named arguments behind the items.
        results: once it was made.
        single: it was tried with others and raised, so it is made by itself.
    """

    method: Callable[..., list[Any]]
    items: Sequence[Any]
    options: tuple[tuple[Any, ...], dict[str, Any]]
    results: list[Any] | None = None
    single: bool = False


class CallQueue:
    """The calls of one object."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._owner: int | None = None  # the thread that makes a call
        self._waiting: list[_Call] = []

    def __reduce__(self) -> tuple[type[CallQueue], tuple[()]]:
        return CallQueue, ()  # a copy of the object has calls of its own

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other thread's call is made inside the block."""
        if self._owner == threading.get_ident():
            yield
            return
        self._enter(None)
        try:
            yield
        finally:
            self._leave()

    def together(self, method: Callable[..., list[Any]], items: Sequence[Any], *given: Any, **named: Any) -> list[Any]:
        """The results of a call, which is made with those of the same method and options that wait as well.

        What it raises is raised for the call that caused it alone.
        """
        if self._owner == threading.get_ident():
            return method(items, *given, **named)
        call = _Call(method, items, (given, named))
        while self._enter(call):
            try:
                calls = self._next(call)
                if len(calls) == 1:
                    return method(items, *given, **named)
                _make(calls)
            finally:
                self._leave()
        assert call.results is not None
        return call.results

    def _enter(self, call: _Call | None) -> bool:
        """Wait until no other thread makes a call; False: this one has been made meanwhile."""
        with self._free:
            if call is not None and call.results is None and not call.single:
                self._waiting.append(call)
            try:
                while self._owner is not None and (call is None or call.results is None):
                    self._free.wait()
                if call is not None and call.results is not None:
                    return False
                self._owner = threading.get_ident()
                return True
            finally:
                if call in self._waiting:
                    self._waiting.remove(call)

    def _next(self, call: _Call) -> list[_Call]:
        """This call and those that are made with it, which wait no more."""
        found, items = [call], len(call.items)
        if call.single:
            return found
        with self._free:
            for other in self._waiting:
                alike = not other.single and other.method == call.method and other.options == call.options
                if alike and items + len(other.items) <= MOST:
                    found.append(other)
                    items += len(other.items)
            self._waiting = [other for other in self._waiting if other not in found]
        return found

    def _leave(self) -> None:
        with self._free:
            self._owner = None
            self._free.notify_all()


def _make(calls: Sequence[_Call]) -> None:
    """Make several calls as one; where that raises, each is to be made by itself."""
    items = [item for call in calls for item in call.items]
    given, named = calls[0].options
    try:
        with boundary(DataError, "calls made together"):
            found = calls[0].method(items, *given, **named)
            if len(found) == len(items):
                rest = iter(found)
                for call in calls:
                    call.results = [next(rest) for _ in call.items]
    except GuerdonError:
        pass  # raised again, for the call that caused it
    finally:
        for call in calls:
            call.single = call.results is None


def calls_of(owner: Any) -> CallQueue:
    """The queue of an object."""
    own = vars(owner)
    found: CallQueue | None = own.get("_calls")
    return own.setdefault("_calls", CallQueue()) if found is None else found


def batched(method: F) -> F:
    """A method of items, with a result for each, that several threads may call: see the module."""
    first = list(inspect.signature(method).parameters)[1]

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> list[Any]:
        items, *options = given or (named.pop(first),)
        return calls_of(self).together(method.__get__(self), items, *options, **named)

    return cast(F, call)


def alone(method: F) -> F:
    """A method that changes its object, or is not made for several threads: it is called while no other one is."""

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        with calls_of(self).alone():
            return method(self, *given, **named)

    return cast(F, call)


async def in_thread(call: Callable[..., T], *given: Any, **named: Any) -> T:
    """What `call` gives, called in a thread.

    As `asyncio.to_thread`, with more threads: as many calls as wait are made together.
    """
    work = partial(copy_context().run, call, *given, **named)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)
