"""Ask a model many things at a time: cached, paced, tried again, within a budget.

An answer is what a caller's check makes of a reply: a value, or a `Failure` that says what is wrong with it. A reply
that is good, and the failure that stays after the last try, are kept on disk by the content of the request: asking
again calls nobody. What the network or the server did wrong is not kept, so that a later run tries it anew. This
module does not know what is asked.

    asker = HttpAsker(HttpModel(settings), cache, ledger)
    answers = asker.ask(requests, [lambda reply: parse(reply.text)] * len(requests), role="judge")
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from guerdon.errors import ConfigError
from guerdon.labels.append_log import Cache, content_key
from guerdon.labels.chat import ChatError, ChatReply, ChatRequest, HttpModel
from guerdon.labels.ledger import Ledger
from guerdon.types import Failure

BUDGET = "budget_spent"  # the reason of what was not asked for want of money
NOT_ASKED = "not_asked"  # the reason of what is not in the cache, while nothing else is wanted
CONTENT_TRIES = 3  # of a request whose replies are unusable; more would mostly buy the same again
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between tries, doubling

T = TypeVar("T")
Check = Callable[[ChatReply], T | Failure]


class Asker(Protocol):
    """Anything that answers requests."""

    @property
    def name(self) -> str:
        """The model."""
        ...

    def ask(self, requests: Sequence[ChatRequest], checks: Sequence[Check[T]], *, role: str) -> list[T | Failure]:
        """An answer to each request, in order; its check says what its reply is worth."""
        ...


@dataclass(frozen=True)
class Clock:
    """Time as an asker sees it; tests bring their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Pace:
    """When the next request may start: at a limited rate, and not while the server asks for a pause.

    Args:
        per_minute: requests; None: no limit.
        clock: time.
    """

    def __init__(self, per_minute: float | None, clock: Clock) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._next = clock.now()

    def wait(self) -> None:
        """Sleep until this request's turn."""
        with self._lock:
            turn = max(self._clock.now(), self._next)
            self._next = turn + self._gap
        while (left := turn - self._clock.now()) > 0:
            self._clock.sleep(left)

    def hold(self, seconds: float) -> None:
        """Let nobody start for so long."""
        with self._lock:
            self._next = max(self._next, self._clock.now() + seconds)


def request_key(api: str, model: str, request: ChatRequest) -> str:
    """The content of a request; where the model is served does not count."""
    return content_key(api, model, list(request.messages), request.max_tokens, request.temperature, request.sample)


def unusable(reply: ChatReply) -> Failure | None:
    """Why a reply cannot be what was asked for, whatever that was."""
    if reply.stop == "refusal":
        return Failure("refusal", reply.text[:200])
    if reply.stop == "length":
        return Failure("truncated", "the reply reached its length limit")
    return None


def recall(cache: Cache, key: str, check: Check[T]) -> T | Failure | None:
    """An answer from the cache; None where there is none."""
    kept: dict[str, Any] | None = cache.get(key)
    if kept is None or "tries" in kept:
        return None
    if "reason" in kept:
        return Failure(kept["reason"], kept["detail"])
    return check(ChatReply(kept["text"], "end"))


class HttpAsker:
    """Asks a model behind an HTTP API, several requests at a time.

    Attributes:
        only_cached: answer `NOT_ASKED` instead of asking.
        later: by role, dollars to set aside with a call for one about its reply.

    Args:
        model: the endpoint.
        cache: kept replies.
        ledger: kept costs.
        clock: time.
    """

    def __init__(self, model: HttpModel, cache: Cache, ledger: Ledger, clock: Clock | None = None) -> None:
        self._model, self._cache, self._ledger = model, cache, ledger
        self._settings = model.settings
        self._clock = clock or Clock()
        self._pace = Pace(model.settings.requests_per_minute, self._clock)
        self.only_cached = False
        self.later: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The model."""
        return self._settings.model_name

    def ask(self, requests: Sequence[ChatRequest], checks: Sequence[Check[T]], *, role: str) -> list[T | Failure]:
        """An answer to each request, in order; equal requests are asked once.

        Raises:
            ConfigError: the endpoint refuses the key, the model or the path.
        """
        keys = [request_key(self._settings.api, self.name, request) for request in requests]
        answers: dict[str, T | Failure] = {}
        missing: dict[str, tuple[ChatRequest, Check[T]]] = {}
        for key, request, check in zip(keys, requests, checks, strict=True):
            if key in answers or key in missing:
                continue
            known = recall(self._cache, key, check)
            if known is None:
                missing[key] = (request, check)
            else:
                answers[key] = known
        self._ledger.cached(role, len(answers))
        if self.only_cached:
            return [answers.get(key, Failure(NOT_ASKED)) for key in keys]
        pool = ThreadPoolExecutor(self._settings.concurrency)
        try:
            found = pool.map(lambda key: self._one(key, *missing[key], role), missing)
            answers |= zip(missing, found, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)
        return [answers[key] for key in keys]

    def _one(self, key: str, request: ChatRequest, check: Check[T], role: str) -> T | Failure:
        """Ask until there is an answer, or no more tries."""
        failure = Failure("connection")
        unusables = (self._cache.get(key) or {}).get("tries", 0)  # of a run that was cut off
        for attempt in range(self._settings.retries + 1):
            if attempt:
                self._clock.sleep(min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE))
            self._pace.wait()
            hold = self._ledger.reserve(
                role, tokens_in=request.most_tokens, tokens_out=request.max_tokens, later=self.later.get(role, 0.0)
            )
            if hold is None:
                return Failure(BUDGET)
            reply = None
            try:
                reply = self._model.complete(request)
                answer = unusable(reply) or check(reply)
            except ChatError as error:
                failure = Failure(error.reason, str(error))
                self._ledger.settle(hold, None, failure=error.reason, billed=error.billed)
                if error.pause is not None:
                    self._pace.hold(error.pause)
                if not error.again:
                    break
                continue
            except BaseException as error:  # a refused key costs nothing; of a call cut off nobody knows, so it counts
                usage, billed = reply.usage if reply else None, not isinstance(error, ConfigError)
                self._ledger.settle(hold, usage, failure="stopped", billed=billed)
                raise
            wrong = answer if isinstance(answer, Failure) else None
            unusables += wrong is not None
            last = unusables >= CONTENT_TRIES or attempt == self._settings.retries
            kept: dict[str, Any] = {"text": reply.text}
            if wrong is not None:
                kept = {"reason": wrong.reason, "detail": wrong.detail, **({} if last else {"tries": unusables})}
            try:
                self._cache.put({key: kept})  # first: a reply that was paid for is not lost to a kill
            finally:
                self._ledger.settle(hold, reply.usage, failure=wrong.reason if wrong else "")
            if wrong is None:
                return answer
            failure = wrong
            if last:
                break
        return failure
