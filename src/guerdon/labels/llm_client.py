"""Language models behind the HTTP APIs of Anthropic (Messages) and OpenAI (chat completions): retries, cache, budget.

`post_json` sends one request: redirects are not followed (a key would follow them), replies are bounded in size, and
the time limit holds for the whole request, however slowly a server sends.

Each reply is parsed by the caller: into a value, or a `Failure` that says what is wrong with it. A reply that can be
used, and the failure that remains after the last try, are kept on disk by the content of the request, so the same
request is sent once. Failures of the network or the server are not kept: a later run tries again. Keys come from the
environment or from a `.env` file, never from a configuration.

    settings = OpenAIJudgeSettings(model="qwen", base_url="http://localhost:8000/v1")
    client = HttpLLMClient(settings, cache, ledger)
    answers = dict(client.complete(requests, [lambda reply: parse(reply.text)] * len(requests), role="judge"))
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import ssl
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import httpx2

from guerdon.config import api_key
from guerdon.errors import ConfigError, boundary
from guerdon.labels.append_log import Cache, Ledger, content_key
from guerdon.labels.request_settings import AcceptedSettings, neutral
from guerdon.labels.usage import LONG_WRITE, CallUsage, reported_usage
from guerdon.retry import (
    LOOPBACK,
    Attempt,
    Calls,
    Clock,
    HttpFailure,
    RequestPool,
    Retry,
    check_proxies,
    error_message,
    is_transient,
    read_reply,
    retry_after,
)
from guerdon.secrets import hide, remember
from guerdon.settings.label import HttpJudgeSettings, OpenAIJudgeSettings, OwnJudgeSettings
from guerdon.types import Failure, Message

BUDGET = "budget_spent"  # the reason of a request that the budget does not allow
NOT_ASKED = "not_asked"  # the reason of a request that is not in the cache, where only the cache is used
PARSE_TRIES = 3  # of a request whose replies cannot be used, unless temperature 0 makes them all the same

MAX_BYTES = 16_000_000  # of a reply
_FATAL = {401: "does not accept the key", 403: "does not allow this", 404: "has no such model or path"}
_NOT_BEGUN = {425, 429, 501, 503, 529}  # no other error says that no text was written, and none is charged
_NOT_SENT = (httpx2.ConnectError, httpx2.ProxyError, httpx2.WriteError)
_Stop = Literal["end", "length", "refusal"]
_STOPS: dict[Any, _Stop] = {  # anything else, or nothing, does not say that the text is complete
    "stop": "end", "end_turn": "end", "stop_sequence": "end", "eos_token": "end",
    "max_tokens": "length", "length": "length", "model_context_window_exceeded": "length",
    "refusal": "refusal", "content_filter": "refusal",
}  # fmt: skip


@dataclass(frozen=True)
class LLMRequest:
    """A request to a language model.

    Attributes:
        messages: chat messages that end with the user's turn.
        max_tokens: longest reply.
        temperature: None leaves it to the endpoint.
        sample: distinguishes several samples of the same request.
        schema: of the JSON that is wanted, for an endpoint that takes one; None: free text.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float | None = None
    sample: int = 0
    schema: Mapping[str, Any] | None = None

    @property
    def max_prompt_tokens(self) -> int:
        """The most tokens that it can have: one per byte, 16 per message and 32 for the template.

        Models that read digits one by one do reach a token per byte.
        """
        schema = len(json.dumps(self.schema)) if self.schema else 0
        return sum(len(m["content"].encode("utf-8", "surrogatepass")) + 16 for m in self.messages) + 32 + schema


@dataclass(frozen=True)
class LLMReply:
    """A reply of a language model.

    Attributes:
        text: what the model wrote.
        stop: why it ended: by itself, at the length limit, or as a refusal.
        usage: None where the endpoint does not say.
    """

    text: str
    stop: _Stop
    usage: CallUsage | None = None


T = TypeVar("T")
Parse = Callable[[LLMReply], T | Failure]


class LLMClient(Protocol):
    """A language model that answers requests."""

    @property
    def name(self) -> str:
        """The model."""
        ...

    def complete(
        self, requests: Sequence[LLMRequest], parsers: Sequence[Parse[T]], *, role: str
    ) -> Generator[tuple[int, T | Failure]]:
        """Parsed replies as they arrive, each with the index of its request; closing it sends nothing more.

        Args:
            requests: what is sent.
            parsers: of each request, what makes a value of its reply.
            role: what the requests are for, in the ledger.
        """
        ...


def request_key(model: HttpJudgeSettings | OwnJudgeSettings, request: LLMRequest) -> str:
    """A hash of a request's content; where the model is served does not count."""
    if isinstance(model, OwnJudgeSettings):
        more: list[Any] = [hide(dict(model.params))]
    else:
        more = [hide(dict(model.extra_body)), model.response_format if request.schema is not None else None]
    return content_key(
        model.api, model.model_name, list(request.messages), request.max_tokens, request.temperature, request.sample,
        *[part for part in more if part],
    )  # fmt: skip


def unusable(reply: LLMReply) -> Failure | None:
    """Why a reply cannot be used, whatever was asked: a refusal, or cut by the length limit."""
    if reply.stop == "refusal":
        return Failure("refusal", reply.text[:200])
    if reply.stop == "length":
        return Failure("truncated", "the reply reached its length limit")
    return None


class HttpLLMClient:
    """A language model behind an HTTP API, several requests at a time.

    Attributes:
        name: the model.
        only_cached: answer `NOT_ASKED` instead of sending requests.
        reserve_later: by role, dollars to reserve with a request for a later one about its reply.

    Args:
        settings: which API, where, which model.
        cache: replies on disk.
        ledger: costs on disk.
        clock: time.

    Raises:
        ConfigError: the key that it needs is missing.
    """

    def __init__(self, settings: HttpJudgeSettings, cache: Cache, ledger: Ledger, clock: Clock | None = None) -> None:
        self.name = settings.model_name
        self.only_cached = False
        self.reserve_later: dict[str, float] = {}
        remember(settings.model_dump())
        check_proxies(settings.url)
        own = settings.url != settings.default_url and settings.api_key_env is None
        self._key = api_key(settings.api_key_env or settings.key_variable, required=not own)
        self._settings, self._cache, self._ledger = settings, cache, ledger
        self._accepted = AcceptedSettings(
            f"the judge {self.name}", settings.leave_out, needs_limit=ledger.max_usd is not None
        )
        self._may_write_cache = settings.api == "anthropic" or "cache_control" in str(settings.extra_body)
        self._clock = clock or Clock()
        self._pool = RequestPool(
            Retry(settings.retries + 1), settings.concurrency, self._clock, per_minute=settings.requests_per_minute
        )

    def complete(
        self, requests: Sequence[LLMRequest], parsers: Sequence[Parse[T]], *, role: str
    ) -> Generator[tuple[int, T | Failure]]:
        """See `LLMClient`; equal requests are sent once.

        Raises:
            ConfigError: the endpoint refuses the key, the model or the path.
        """
        places: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            places.setdefault(request_key(self._settings, request), []).append(i)
        todo: Calls[str, T | Failure] = deque()
        for key, (first, *_) in places.items():
            answer = self._cached(key, parsers[first])
            if answer is not None:
                self._ledger.count_cached(role)
            elif self.only_cached:
                answer = Failure(NOT_ASKED)
            else:
                todo.append((key, partial(self._try, key, requests[first], parsers[first], role)))
                continue
            yield from ((i, answer) for i in places[key])
        with closing(self._pool.run(todo)) as outcomes:
            for key, answer in outcomes:
                yield from ((i, answer) for i in places[key])

    def most(self, request: LLMRequest) -> CallUsage:
        """The most that a request can use; where a cache may be written, in tokens of that price."""
        dearest = LONG_WRITE if self._may_write_cache else 1.0
        return CallUsage(math.ceil(request.max_prompt_tokens * dearest), request.max_tokens)

    def _cached(self, key: str, parse: Parse[T]) -> T | Failure | None:
        kept: dict[str, Any] | None = self._cache.get(key)
        if kept is None or "tries" in kept:
            return None
        if "reason" not in kept:
            return parse(LLMReply(kept["text"], "end"))
        if "refused" in kept:  # text that an earlier version could not parse
            answer = parse(LLMReply(kept["refused"], "end"))
            if not isinstance(answer, Failure):
                return answer
        return Failure(kept["reason"], kept["detail"])

    def _try(self, key: str, request: LLMRequest, parse: Parse[T], role: str, seconds: float) -> Attempt[T | Failure]:
        """Send a request once."""
        later = self.reserve_later.get(role, 0.0)
        most = self.most(request)
        reservation = self._ledger.reserve(
            role, tokens_in=most.tokens_in or 0, tokens_out=request.max_tokens, later=later
        )
        if reservation is None:
            return Attempt(Failure(BUDGET))
        reply = None
        try:
            reply = send(
                self._settings, self._key, request, seconds=seconds, clock=self._clock, accepted=self._accepted
            )
            answer = unusable(reply) or parse(reply)
        except HttpFailure as error:
            self._ledger.settle(reservation, None, failure=error.reason, billed=error.billed)
            return Attempt(Failure(error.reason, str(error)), again=error.again, retry_after=error.retry_after)
        except BaseException as error:  # a refused key costs nothing; a call that was cut off may have been billed
            usage, billed = reply.usage if reply else None, not isinstance(error, ConfigError)
            self._ledger.settle(reservation, usage, failure="stopped", billed=billed)
            raise
        failure = answer if isinstance(answer, Failure) else None
        kept: dict[str, Any] = {"text": reply.text}
        last = True
        if failure is not None:
            tries = (self._cache.get(key) or {}).get("tries", 0) + 1  # also those of a run that was cut off
            same = request.temperature == 0 and not self._accepted.left_out("temperature")
            last = tries >= (1 if same else min(PARSE_TRIES, self._settings.retries + 1))
            kept = {"reason": failure.reason, "detail": failure.detail, **({} if last else {"tries": tries})}
            kept |= {"refused": reply.text} if reply.stop == "end" else {}
        try:
            self._cache.put({key: kept})  # first: a reply that was paid for is not lost to a kill
        finally:
            self._ledger.settle(reservation, reply.usage, failure=failure.reason if failure else "")
        return Attempt(answer, again=not last)


@runtime_checkable
class ReplyModel(Protocol):
    """A user's judge."""

    def reply(self, request: LLMRequest) -> LLMReply:
        """The reply to one request."""
        ...


class OwnLLMClient:
    """An `LLMClient` of a user's judge: replies are kept on disk, and equal requests are sent once.

    Args:
        model: replies to one request at a time.
        settings: its name and `params`.
        cache: replies on disk.
    """

    def __init__(self, model: ReplyModel, settings: OwnJudgeSettings, cache: Cache) -> None:
        self.name = settings.model_name
        self._model, self._settings, self._cache = model, settings, cache

    def complete(
        self, requests: Sequence[LLMRequest], parsers: Sequence[Parse[T]], *, role: str
    ) -> Generator[tuple[int, T | Failure]]:
        """See `LLMClient`.

        Raises:
            ConfigError: the judge raised, or returned something else.
        """
        for i, (request, parse) in enumerate(zip(requests, parsers, strict=True)):
            key = request_key(self._settings, request)
            kept = self._cache.get(key)
            if kept is None:
                with boundary(ConfigError, f"the judge {self._settings.api} raised"):
                    reply = self._model.reply(request)
                if not isinstance(reply, LLMReply):
                    what = f"returned a {type(reply).__name__}, which is no LLMReply"
                    raise ConfigError(f"the judge {self._settings.api} {what}")
                kept = {"text": reply.text, "stop": reply.stop}
                self._cache.put({key: kept})
            reply = LLMReply(kept["text"], kept["stop"])
            yield i, unusable(reply) or parse(reply)


def send(
    settings: HttpJudgeSettings,
    key: str | None,
    request: LLMRequest,
    *,
    seconds: float = math.inf,
    clock: Clock | None = None,
    accepted: AcceptedSettings | None = None,
) -> LLMReply:
    """The reply to one request.

    Args:
        settings: which API, where, which model.
        key: of the API.
        request: what is sent.
        seconds: time limit, where it is below that of the settings.
        clock: what dates in a reply are compared with.
        accepted: which settings the endpoint accepts.

    Raises:
        HttpFailure: there is no reply that can be used.
        ConfigError: the endpoint refuses the key, the model or the path; trying again would not help.
    """
    path, headers, body = _encode(settings, request, key)
    check = f"label.judge.model, base_url and the key in {settings.api_key_env or settings.key_variable}"
    payload = post_json(
        settings.url + path, headers, body, timeout=min(settings.timeout, seconds), clock=clock or Clock(),
        who="the judge", check=check, accepted=accepted,
    )  # fmt: skip
    try:
        reply = _anthropic_reply(payload) if settings.api == "anthropic" else _openai_reply(payload)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise HttpFailure("bad_reply", f"not what the API promises: {str(payload)[:80]!r}", billed=True) from error
    return replace(reply, text=valid_unicode(reply.text))


def valid_unicode(text: str) -> str:
    """The text with lone surrogates, which JSON can express and UTF-8 cannot, replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _encode(
    settings: HttpJudgeSettings, request: LLMRequest, key: str | None
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Path, headers and body of a request."""
    body: dict[str, Any] = {"model": settings.model_name, **settings.extra_body}
    if request.temperature is not None:
        if isinstance(settings, OpenAIJudgeSettings) and settings.url != settings.default_url:
            body = {**neutral(request.temperature), **body}
        body["temperature"] = request.temperature
    form = settings.response_format if request.schema is not None else None
    if not isinstance(settings, OpenAIJudgeSettings):
        if form is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": request.schema}}
        system = "\n\n".join(m["content"] for m in request.messages if m["role"] == "system")
        body |= {"max_tokens": request.max_tokens, **({"system": system} if system else {})}
        body["messages"] = [dict(m) for m in request.messages if m["role"] != "system"]
        return "/v1/messages", {**({"x-api-key": key} if key else {}), "anthropic-version": "2023-06-01"}, body
    if form is not None:
        schema = {"json_schema": {"name": "judgement", "strict": True, "schema": request.schema}}
        body["response_format"] = {"type": form, **(schema if form == "json_schema" else {})}
    body |= {settings.token_limit_key: request.max_tokens, "messages": [dict(m) for m in request.messages]}
    return "/chat/completions", {"Authorization": f"Bearer {key}"} if key else {}, body


def _anthropic_reply(payload: Any) -> LLMReply:
    blocks = [block["text"] for block in payload["content"] if block["type"] == "text"]
    text, stop = "".join(blocks), _STOPS.get(payload["stop_reason"], "length")
    return LLMReply(text, stop, reported_usage(payload.get("usage"), text))


def _openai_reply(payload: Any) -> LLMReply:
    choice = payload["choices"][0]
    message = choice["message"]
    stop: _Stop = "refusal" if message.get("refusal") else _STOPS.get(choice.get("finish_reason"), "length")
    text = message.get("content")
    if not isinstance(text, str):
        text = str(message.get("refusal") or "")
        if stop == "end":
            raise KeyError("content")
    return LLMReply(text, stop, reported_usage(payload.get("usage"), text))


def post_json(
    url: str,
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    timeout: float,
    clock: Clock,
    who: str,
    check: str,
    accepted: AcceptedSettings | None = None,
) -> Any:
    """The payload of a reply with status 200. Not to be called in an event loop.

    Args:
        url: http or https.
        headers: besides the content type.
        body: plain JSON values.
        timeout: seconds of wall-clock.
        clock: what a date in `Retry-After` is compared with.
        who: the endpoint, for messages.
        check: what a user should look at where the address, the key or the model is wrong.
        accepted: which settings the endpoint accepts; the request is repeated without those it rejects by name.

    Raises:
        HttpFailure: no reply in time, no connection, another status, or a reply that is not JSON.
        ConfigError: the address is invalid, or the endpoint refuses the key, the model or the path.
    """
    address = _parsed(url)
    if address is None:
        raise ConfigError(f"{who}: {url!r} is no address; write http://host:port/v1 or https://...; check {check}")
    sent = accepted.fit(body) if accepted else body
    try:
        status, found, payload = asyncio.run(_post(address, headers, sent, timeout))
        while accepted and accepted.learn(sent, status, payload):
            sent = accepted.fit(body)
            status, found, payload = asyncio.run(_post(address, headers, sent, timeout))
    except TimeoutError as error:
        raise HttpFailure("timeout", f"no reply within {timeout:g} s", billed=True) from error
    except httpx2.HTTPError as error:
        detail = f"{address.netloc.decode()}: {_first_cause(error)}"
        raise HttpFailure("connection", detail, billed=not isinstance(error, _NOT_SENT)) from error
    if status == 200:
        return payload
    message = f"{status}: {error_message(payload, 200)}"
    if status in _FATAL:
        raise ConfigError(f"{who} at {url} {_FATAL[status]} ({message}); check {check}")
    if is_transient(status):
        reason = "rate_limited" if status == 429 else "server_error"
        raise HttpFailure(reason, message, retry_after=retry_after(found, clock), billed=status not in _NOT_BEGUN)
    raise HttpFailure("rejected", message, again=False)


def _first_cause(error: BaseException) -> str:
    """What went wrong in the network, below the layers of the client."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below.exceptions[0] if isinstance(below, BaseExceptionGroup) else below
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _parsed(url: str) -> httpx2.URL | None:
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL:
        return None
    return address if address.scheme in ("http", "https") and address.host else None


async def _post(
    url: httpx2.URL, headers: Mapping[str, str], body: Mapping[str, Any], timeout: float
) -> tuple[int, Mapping[str, str], Any]:
    """Status, headers and payload of a reply."""
    content = json.dumps(body, ensure_ascii=True, allow_nan=False).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "guerdon", "Accept-Encoding": "identity", **headers}
    trust_env = url.host not in LOOPBACK
    async with httpx2.AsyncClient(verify=_ssl_context(), trust_env=trust_env, timeout=None) as client:
        return await read_reply(client.stream("POST", url, content=content, headers=headers), timeout, MAX_BYTES)


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    return ssl.create_default_context()
