"""Language models behind the HTTP APIs of Anthropic (Messages) and OpenAI (chat completions): retries, cache, budget.

Each reply is parsed by the caller: into a value, or a `Failure` that says what is wrong with it. A reply that can be
used, and the failure that remains after the last try, are kept on disk by the content of the request, so the same
request is sent once. Failures of the network or the server are not kept: a later run tries again. Keys come from the
environment or from a `.env` file, never from a configuration.

    settings = OpenAIJudgeSettings(model="qwen", base_url="http://localhost:8000/v1")
    client = HttpLLMClient(settings, cache, ledger)
    answers = dict(client.complete(requests, [lambda reply: parse(reply.text)] * len(requests), role="judge"))
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from guerdon.config.loading import api_key
from guerdon.endpoints.chat_replies import has_reasoning, kind_of_end, model_of, refusal_of, text_of, valid_unicode
from guerdon.endpoints.endpoint import AcceptedSettings, ReplyModels, bearer, endpoint, neutral, post_json
from guerdon.errors import ConfigError
from guerdon.files.append_log import LONG_WRITE, Cache, CallUsage, Ledger, content_key, reported_usage
from guerdon.network.retry import Attempt, Calls, Clock, HttpFailure, RequestPool, Retry, check_proxies, error_message
from guerdon.processes.attempts import attempt
from guerdon.secrets import hide, remember
from guerdon.settings.label import HttpJudgeSettings, OpenAIJudgeSettings, OwnJudgeSettings
from guerdon.types import Failure, Message, Tool

BUDGET = "budget_spent"  # the reason of a request that the budget does not allow
NOT_ASKED = "not_asked"  # the reason of a request that is not in the cache, where only the cache is used
PARSE_TRIES = 3  # of a request whose replies cannot be used, unless temperature 0 makes them all the same


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
        stop: how it ended, in the word of the endpoint: "end", "length", "refusal", or any other of
            `chat_replies.ENDS`; None where it does not say.
        usage: None where the endpoint does not say.
        model: that wrote it; None where the endpoint does not say.
    """

    text: str
    stop: str | None
    usage: CallUsage | None = None
    model: str | None = None


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


def answer_of(request: LLMRequest, reply: LLMReply, parse: Parse[T]) -> T | Failure:
    """What the parser makes of a reply; a `Failure` where the reply is a refusal, or did not end by itself.

    A reply with an unknown end, or with none, counts where JSON was requested and is complete.
    """
    end = kind_of_end(reply.stop)
    if end == "refusal":
        return Failure("refusal", reply.text[:200] or f"the reply ended with {reply.stop!r}")
    if end == "length":
        return Failure("truncated", f"the reply reached its length limit ({reply.stop})")
    if end == "end" and not reply.text.strip():
        return Failure("no_text", "the reply has reasoning and no text")
    if end == "end":
        return parse(reply)
    how = f"the reply ended with {reply.stop!r}" if reply.stop else "the reply does not say how it ended"
    if end == "unknown" and request.schema is not None:
        found = parse(reply)
        if not isinstance(found, Failure):
            return found
        how += f" ({found.reason}: {found.detail})"
    return Failure("unfinished", how)


class HttpLLMClient:
    """A language model behind an HTTP API, several requests at a time.

    Attributes:
        name: the model.
        only_cached: answer `NOT_ASKED` instead of sending requests.
        reserve_later: by role, dollars to reserve with a request for a later one about its reply.
        models: which of them wrote the replies that are used.

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
        self.models = ReplyModels(f"the judge {self.name}")
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
            answer = self._cached(key, requests[first], parsers[first])
            if answer is not None:
                self._ledger.count_cached(role)
            elif self.only_cached:
                answer = Failure(NOT_ASKED)
            else:
                todo.append((key, partial(self._try, key, requests[first], parsers[first], role)))
                continue
            yield from ((i, answer) for i in places[key])
        with closing(self._pool.run(todo)) as answers:
            for key, answer in answers:
                yield from ((i, answer) for i in places[key])

    def most(self, request: LLMRequest) -> CallUsage:
        """The most that a request can use; where a cache may be written, in tokens of that price."""
        dearest = LONG_WRITE if self._may_write_cache else 1.0
        return CallUsage(math.ceil(request.max_prompt_tokens * dearest), request.max_tokens)

    def knows(self, request: LLMRequest) -> bool:
        """Whether a reply to a request, or its failure after the last try, is on disk."""
        kept = self._cache.get(request_key(self._settings, request))
        return kept is not None and "tries" not in kept

    def _cached(self, key: str, request: LLMRequest, parse: Parse[T]) -> T | Failure | None:
        kept: dict[str, Any] | None = self._cache.get(key)
        if kept is None or "tries" in kept:
            return None
        text = kept.get("text", kept.get("refused"))  # refused: could not be used
        if text is not None:
            reply = LLMReply(text, kept.get("stop", "end"), model=kept.get("model"))
            answer = answer_of(request, reply, parse)
            if "reason" not in kept or not isinstance(answer, Failure):
                self.models.count(reply.model)
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
            answer = answer_of(request, reply, parse)
        except HttpFailure as error:
            self._ledger.settle(reservation, None, failure=error.reason, billed=error.billed)
            return Attempt(Failure(error.reason, str(error)), again=error.again, retry_after=error.retry_after)
        except BaseException as error:  # a refused key costs nothing; a call that was cut off may have been billed
            usage, billed = reply.usage if reply else None, not isinstance(error, ConfigError)
            self._ledger.settle(reservation, usage, failure="stopped", billed=billed)
            raise
        failure = answer if isinstance(answer, Failure) else None
        if failure is None:
            self.models.count(reply.model)
        kept, again = self._record(key, request, reply, failure)
        try:
            self._cache.put({key: kept})  # first: a reply that was paid for is not lost to a kill
        finally:
            self._ledger.settle(reservation, reply.usage, failure=failure.reason if failure else "")
        return Attempt(answer, again=again)

    def _record(
        self, key: str, request: LLMRequest, reply: LLMReply, failure: Failure | None
    ) -> tuple[dict[str, Any], bool]:
        """What is kept of a reply, and whether another one is asked for."""
        kept: dict[str, Any] = {"stop": reply.stop}
        if reply.model:
            kept["model"] = reply.model
        if failure is None:
            return {**kept, "text": reply.text}, False
        kept |= {"reason": failure.reason, "detail": failure.detail, "refused": reply.text}
        tries = (self._cache.get(key) or {}).get("tries", 0) + 1  # also those of a run that was cut off
        same = request.temperature == 0 and not self._accepted.left_out("temperature")
        once = same and failure.reason != "unfinished"  # the next reply may have an end
        if tries >= (1 if once else min(PARSE_TRIES, self._settings.retries + 1)):
            return kept, False
        return {**kept, "tries": tries}, True


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
        """See `LLMClient`; a request at which the judge raises is a `Failure("judge_error")`.

        Raises:
            ConfigError: the judge returned something else than a reply.
        """
        for i, (request, parse) in enumerate(zip(requests, parsers, strict=True)):
            key = request_key(self._settings, request)
            kept = self._cache.get(key)
            if kept is None:
                reply = attempt(f"the judge {self._settings.api}", "judge_error", partial(self._model.reply, request))
                if isinstance(reply, Failure):
                    yield i, reply
                    continue
                if not isinstance(reply, LLMReply):
                    what = f"returned a {type(reply).__name__}, which is not an LLMReply"
                    raise ConfigError(f"the judge {self._settings.api} {what}", key="api")
                kept = {"text": reply.text, "stop": reply.stop}
                if kind_of_end(reply.stop) != "error":
                    self._cache.put({key: kept})
            yield i, answer_of(request, LLMReply(kept["text"], kept["stop"]), parse)


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
        endpoint(settings.url, path), headers, body, timeout=min(settings.timeout, seconds), clock=clock or Clock(),
        who="the judge", check=check, accepted=accepted,
    )  # fmt: skip
    try:
        reply = _reply(payload, anthropic=settings.api == "anthropic")
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise HttpFailure("bad_reply", f"no text in the reply: {error_message(payload, 80)!r}", billed=True) from error
    return replace(reply, text=valid_unicode(reply.text))


def _encode(
    settings: HttpJudgeSettings, request: LLMRequest, key: str | None
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Path, headers and body of a request."""
    if isinstance(settings, OpenAIJudgeSettings):
        return "/chat/completions", bearer(settings.url, key), _openai_body(settings, request)
    headers = {"anthropic-version": "2023-06-01"}
    if key:
        headers = {"x-api-key": key, **headers}
    return "/v1/messages", headers, _anthropic_body(settings, request)


def _openai_body(settings: OpenAIJudgeSettings, request: LLMRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"model": settings.model_name, "stream": False, **settings.extra_body}
    if request.temperature is not None:
        if settings.url != settings.default_url:
            body = {**neutral(request.temperature), **body}
        body["temperature"] = request.temperature
    if request.schema is not None and settings.response_format is not None:
        form: dict[str, Any] = {"type": settings.response_format}
        if settings.response_format == "json_schema":
            form["json_schema"] = {"name": "judgement", "strict": True, "schema": request.schema}
        body["response_format"] = form
    return body | {settings.token_limit_key: request.max_tokens, "messages": [dict(m) for m in request.messages]}


def _anthropic_body(settings: HttpJudgeSettings, request: LLMRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"model": settings.model_name, "stream": False, **settings.extra_body}
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.schema is not None and settings.response_format is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": request.schema}}
    body["max_tokens"] = request.max_tokens
    system = "\n\n".join(m["content"] for m in request.messages if m["role"] == "system")
    if system:
        body["system"] = system
    body["messages"] = [dict(m) for m in request.messages if m["role"] != "system"]
    return body


def _reply(payload: Any, *, anthropic: bool) -> LLMReply:
    if anthropic:
        stop = payload.get("stop_reason")
        text = _text(payload["content"], payload, stop)
    else:
        choice = payload["choices"][0]
        message = choice["message"]
        refusal = refusal_of(message)
        stop = "refusal" if refusal else choice.get("finish_reason")
        text = refusal or _text(message.get("content"), message, stop)
    return LLMReply(text, stop, reported_usage(payload.get("usage"), text), model_of(payload))


def _text(content: Any, message: Mapping[str, Any], stop: str | None) -> str:
    """The text of a reply; an empty one is an error if the reply has no reasoning and reports no other end.

    Raises:
        KeyError: there is nothing.
    """
    text = text_of(content)
    if not text.strip() and kind_of_end(stop) in ("end", "unknown") and not has_reasoning(message):
        raise KeyError("content")
    return text


def asked_text(question: str, context: Sequence[Message], tools: Sequence[Tool], mark: str) -> str:
    """The question; or the tools and all turns of the conversation that the solution answers, between marks."""
    if not context and not tools:
        return f"<question-{mark}>\n{question}\n</question-{mark}>"
    parts = ["The conversation that the solution answers:"]
    if tools:
        parts.append(f"<tools-{mark}>\n{_in_json(tools)}\n</tools-{mark}>")
    for message in context or ({"role": "user", "content": question},):
        said = [message["content"]] if message["content"] else []
        said += [f"{key}: {_in_json(message[key])}" for key in sorted(message.keys() - {"role", "content"})]
        text = "\n".join(said)
        parts.append(f'<turn-{mark} role="{message["role"]}">\n{text}\n</turn-{mark}>')
    return "\n".join(parts)


def _in_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def reason_text(given: Any) -> str:
    """Why, as text: no half characters; a LaTeX command that JSON read as a control character is one again."""
    return valid_unicode(str(given))[:500].replace("\f", "\\f").replace("\b", "\\b")
