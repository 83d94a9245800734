"""Calls of one model from several threads: they run one at a time, and waiting calls are merged into one.

A forward pass switches adapters, attention and modes of the model, so concurrent passes would interfere. Every method
that runs forward passes is `batched` or `alone`. While one call runs, other threads wait; then one of them makes a
single call with the items of all waiting calls, which is faster than one call for each. In a single thread the cost is
that of a lock. A method may call other methods of its own object. A method that needs no protection is `concurrent`.
`guerdon.models.scores.score_episodes` calls a `score` without any of these decorators one at a time.

    class Model:
        @batched
        def score(self, episodes): ...       # one result per episode, independent of the others
        @alone
        def learn(self, episodes): ...
        @concurrent
        def describe(self): ...

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
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from typing import Any, TypeVar, cast

from guerdon.errors import DataError, GuerdonError, boundary

MOST = 1024  # most items of a merged call
_THREADS = ThreadPoolExecutor(64, "guerdon-calls")  # they wait most of the time
_WITHOUT_ATTRIBUTES: dict[int, CallQueue] = {}  # queues of objects that cannot hold their own, by `id`
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(eq=False)
class _Call:
    """A waiting call.

    Attributes:
        method: bound method; its first argument is the items.
        items: the method returns one result for each.
        options: positional and keyword arguments after the items.
        results: None until the call was made.
        single: a merged call with it raised, so it is made alone.
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
        self._owner: int | None = None  # the thread whose call runs
        self._waiting: list[_Call] = []

    def __reduce__(self) -> tuple[type[CallQueue], tuple[()]]:
        return CallQueue, ()  # a copy of the object gets a new queue

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run the block while no other thread's call runs."""
        if self._owner == threading.get_ident():
            yield
            return
        self._enter(None)
        try:
            yield
        finally:
            self._leave()

    def together(self, method: Callable[..., list[Any]], items: Sequence[Any], *given: Any, **named: Any) -> list[Any]:
        """The results of a call, merged with waiting calls of the same method and options.

        An exception is raised only in the thread whose call caused it.
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
        """Wait until no other thread's call runs; False: another thread has made this call."""
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
        """This call and the waiting calls to merge with it, which are removed from the queue."""
        found, items = [call], len(call.items)
        if call.single:
            return found
        with self._free:
            for other in self._waiting:
                alike = not other.single and other.method == call.method and same(other.options, call.options)
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
    """Make several calls as one; if that raises, mark each to be made alone."""
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
        pass  # raised again by the single call that caused it
    finally:
        for call in calls:
            call.single = call.results is None


def same(one: Any, other: Any) -> bool:
    """Whether two values are certainly equal; arrays, tensors and other objects only if they are identical."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if is_dataclass(one) and not isinstance(one, type):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return isinstance(one, str | bytes | int | float) and one == other


def calls_of(owner: Any) -> CallQueue:
    """The queue of an object."""
    try:
        own: dict[str, CallQueue] = vars(owner)
        return own.get("_guerdon_calls") or own.setdefault("_guerdon_calls", CallQueue())
    except (TypeError, AttributeError):  # it has `__slots__`, or is a class or a module
        return _WITHOUT_ATTRIBUTES.setdefault(id(owner), CallQueue())


def batched(method: F) -> F:
    """Make a method thread-safe that takes items first and returns one result for each: see the module."""
    first = list(inspect.signature(method).parameters)[1]

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> list[Any]:
        items, *options = given or (named.pop(first),)
        return calls_of(self).together(method.__get__(self), items, *options, **named)

    return concurrent(cast(F, call))


def alone(method: F) -> F:
    """Make a method thread-safe by running it while no other call of the object runs."""

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        with calls_of(self).alone():
            return method(self, *given, **named)

    return concurrent(cast(F, call))


def concurrent(method: F) -> F:
    """Declare that a method may run in several threads at the same time."""
    method.thread_safe = True  # type: ignore[attr-defined]
    return method


async def in_thread(call: Callable[..., T], *given: Any, **named: Any) -> T:
    """The result of `call`, run in a thread.

    As `asyncio.to_thread`, with more threads, so that more calls wait and are merged.
    """
    work = partial(copy_context().run, call, *given, **named)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)
