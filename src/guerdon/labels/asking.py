"""Ask a model many things at a time: cached, paced, tried again, within a budget.

An answer is what a caller's check makes of a reply: a value, or a `Failure` that says what is wrong with it. A reply
that is good, and the failure that stays after the last try, are kept on disk by the content of the request: asking
again calls nobody. What the network or the server did wrong is not kept, so that a later run tries it anew. This
module does not know what is asked.

    asker = HttpAsker(HttpModel(settings), cache, ledger)
    answers = asker.ask(requests, [lambda reply: parse(reply.text)] * len(requests), role="judge")
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Protocol, TypeVar

from guerdon.errors import ConfigError
from guerdon.labels.append_log import Cache, content_key
from guerdon.labels.chat import ChatReply, ChatRequest, HttpModel
from guerdon.labels.ledger import Ledger
from guerdon.labels.wire import WireError
from guerdon.retry import Clock, Crew, Retry, Todo, Tried
from guerdon.types import Failure

BUDGET = "budget_spent"  # the reason of what was not asked for want of money
NOT_ASKED = "not_asked"  # the reason of what is not in the cache, while nothing else is wanted
CONTENT_TRIES = 3  # of a request whose replies are unusable, unless temperature 0 makes them all the same

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

    def answers(
        self, requests: Sequence[ChatRequest], checks: Sequence[Check[T]], *, role: str
    ) -> Generator[tuple[int, T | Failure]]:
        """The same as they come, each with the place of its request; closing it asks nothing more."""
        ...


def request_key(
    api: str, model: str, request: ChatRequest, extra: Mapping[str, Any] | None = None, form: str | None = None
) -> str:
    """The content of a request; where the model is served does not count.

    Args:
        api: the protocol.
        model: its name.
        request: what is asked.
        extra: `judge.extra_body`.
        form: `judge.response_format`.
    """
    more = [*([dict(extra)] if extra else []), *([form] if form and request.schema is not None else [])]
    return content_key(
        api, model, list(request.messages), request.max_tokens, request.temperature, request.sample, *more
    )


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
    if "reason" not in kept:
        return check(ChatReply(kept["text"], "end"))
    if "refused" in kept:  # text that an earlier version could not read
        answer = check(ChatReply(kept["refused"], "end"))
        if not isinstance(answer, Failure):
            return answer
    return Failure(kept["reason"], kept["detail"])


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
        s = self._settings = model.settings
        self._clock = clock or Clock()
        self._crew = Crew(Retry(s.retries + 1), s.concurrency, self._clock, per_minute=s.requests_per_minute)
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
        answers: dict[int, T | Failure] = dict(self.answers(requests, checks, role=role))
        return [answers[i] for i in range(len(requests))]

    def answers(
        self, requests: Sequence[ChatRequest], checks: Sequence[Check[T]], *, role: str
    ) -> Generator[tuple[int, T | Failure]]:
        """The answers as they come, each with the place of its request; closing it asks nothing more.

        Raises:
            ConfigError: as `ask`.
        """
        s = self._settings
        places: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            key = request_key(s.api, self.name, request, s.extra_body, s.response_format)
            places.setdefault(key, []).append(i)
        todo: Todo[str, T | Failure] = deque()
        for key, (first, *_) in places.items():
            answer = recall(self._cache, key, checks[first])
            if answer is not None:
                self._ledger.cached(role)
            elif self.only_cached:
                answer = Failure(NOT_ASKED)
            else:
                todo.append((key, partial(self._try, key, requests[first], checks[first], role)))
                continue
            yield from ((i, answer) for i in places[key])
        with closing(self._crew.run(todo)) as outcomes:
            for key, answer in outcomes:
                yield from ((i, answer) for i in places[key])

    def _try(self, key: str, request: ChatRequest, check: Check[T], role: str, seconds: float) -> Tried[T | Failure]:
        """Ask once."""
        hold = self._ledger.reserve(
            role, tokens_in=request.most_tokens, tokens_out=request.max_tokens, later=self.later.get(role, 0.0)
        )
        if hold is None:
            return Tried(Failure(BUDGET))
        reply = None
        try:
            reply = self._model.complete(request, seconds=seconds, clock=self._clock)
            answer = unusable(reply) or check(reply)
        except WireError as error:
            self._ledger.settle(hold, None, failure=error.reason, billed=error.billed)
            return Tried(Failure(error.reason, str(error)), again=error.again, asked=error.asked)
        except BaseException as error:  # a refused key costs nothing; of a call cut off nobody knows, so it counts
            usage, billed = reply.usage if reply else None, not isinstance(error, ConfigError)
            self._ledger.settle(hold, usage, failure="stopped", billed=billed)
            raise
        wrong = answer if isinstance(answer, Failure) else None
        kept: dict[str, Any] = {"text": reply.text}
        last = True
        if wrong is not None:
            tries = (self._cache.get(key) or {}).get("tries", 0) + 1  # also those of a run that was cut off
            last = tries >= (1 if request.temperature == 0 else min(CONTENT_TRIES, self._settings.retries + 1))
            kept = {"reason": wrong.reason, "detail": wrong.detail, **({} if last else {"tries": tries})}
            kept |= {"refused": reply.text} if reply.stop == "end" else {}
        try:
            self._cache.put({key: kept})  # first: a reply that was paid for is not lost to a kill
        finally:
            self._ledger.settle(hold, reply.usage, failure=wrong.reason if wrong else "")
        return Tried(answer, again=not last)
