"""The two protocols that judges speak: Anthropic's Messages API and OpenAI's chat completions.

A request is encoded, a reply decoded and checked; an error status becomes a reason. Keys come from the environment or
from a `.env` file, never from a configuration. This module does not know when to try again, nor what a reply means.

    model = HttpModel(JudgeSettings(api="openai", model="qwen", base_url="http://localhost:8000/v1"))
    reply = model.complete(ChatRequest(({"role": "user", "content": "1+1?"},), max_tokens=16))
    reply.text, reply.stop, reply.usage
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from guerdon.config import dot_env
from guerdon.errors import ConfigError
from guerdon.labels.ledger import Usage
from guerdon.labels.wire import WireError, post_json
from guerdon.retry import Clock
from guerdon.settings.label import JudgeSettings
from guerdon.worlds.prompts import Message

Stop = Literal["end", "length", "refusal"]

KEY_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
_STOPS: dict[Any, Stop] = {  # anything else, or nothing, does not say that the text ended by itself
    "stop": "end", "end_turn": "end", "stop_sequence": "end", "eos_token": "end",
    "max_tokens": "length", "length": "length", "model_context_window_exceeded": "length",
    "refusal": "refusal", "content_filter": "refusal",
}  # fmt: skip


@dataclass(frozen=True)
class ChatRequest:
    """What a model is asked.

    Attributes:
        messages: chat messages that end with the user's turn.
        max_tokens: longest reply.
        temperature: None leaves it to the endpoint.
        sample: tells several samples of the same request apart.
        schema: of the JSON that is wanted, for an endpoint that takes one; None: free text.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float | None = None
    sample: int = 0
    schema: Mapping[str, Any] | None = None

    @property
    def most_tokens(self) -> int:
        """The most tokens that it can have: one per byte, 16 per message and 32 for the template.

        Models that read digits one by one do reach a token per byte.
        """
        schema = len(json.dumps(self.schema)) if self.schema else 0
        return sum(len(m["content"].encode("utf-8", "surrogatepass")) + 16 for m in self.messages) + 32 + schema


@dataclass(frozen=True)
class ChatReply:
    """What came back.

    Attributes:
        text: what the model wrote.
        stop: it ended by itself, at the length limit, or refused.
        usage: None where the endpoint does not say.
    """

    text: str
    stop: Stop
    usage: Usage | None = None


class HttpModel:
    """A model behind an HTTP API.

    Args:
        settings: which API, where, which model.

    Raises:
        ConfigError: the key it needs is not there.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self._key = api_key(settings)

    def complete(self, request: ChatRequest, *, seconds: float = math.inf, clock: Clock | None = None) -> ChatReply:
        """One reply.

        Args:
            request: what is asked.
            seconds: wait no longer for it, nor longer than the settings allow.
            clock: time.

        Raises:
            WireError: there is none, and why.
            ConfigError: the endpoint refuses the key, the model or the path; asking on would not help.
        """
        s = self.settings
        path, headers, body = encode(s, request, self._key)
        check = f"label.judge.model, base_url and the key in {s.api_key_env or KEY_VARIABLES[s.api]}"
        payload = post_json(
            s.url + path, headers, body, timeout=min(s.timeout, seconds), clock=clock or Clock(), who="the judge",
            check=check,
        )  # fmt: skip
        return decode(s, payload)


def api_key(settings: JudgeSettings) -> str | None:
    """The key of an endpoint, from the environment or from `.env` in the working directory.

    Raises:
        ConfigError: there is none, and the endpoint needs one.
    """
    name = settings.api_key_env or KEY_VARIABLES[settings.api]
    key = os.environ.get(name) or dot_env().get(name)
    own = settings.api == "openai" and settings.base_url is not None and settings.api_key_env is None
    if not key and not own:
        raise ConfigError(f"{name} is not set: export it, or write {name}=... into a file .env here")
    return key or None


def encode(
    settings: JudgeSettings, request: ChatRequest, key: str | None
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Path, headers and body of a request."""
    body: dict[str, Any] = {"model": settings.model_name, **settings.extra_body}
    if request.schema is not None and settings.response_format is not None:
        body |= _format(settings, request.schema)
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if settings.api == "anthropic":
        system = "\n\n".join(m["content"] for m in request.messages if m["role"] == "system")
        body |= {"max_tokens": request.max_tokens, **({"system": system} if system else {})}
        body["messages"] = [dict(m) for m in request.messages if m["role"] != "system"]
        return "/v1/messages", {"x-api-key": key or "", "anthropic-version": "2023-06-01"}, body
    body |= {settings.token_limit_key: request.max_tokens, "messages": [dict(m) for m in request.messages]}
    return "/chat/completions", {"Authorization": f"Bearer {key}"} if key else {}, body


def _format(settings: JudgeSettings, schema: Mapping[str, Any]) -> dict[str, Any]:
    """What holds the model to JSON."""
    if settings.api == "anthropic":
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    if settings.response_format == "json_object":
        return {"response_format": {"type": "json_object"}}
    named = {"name": "judgement", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def decode(settings: JudgeSettings, payload: Any) -> ChatReply:
    """A reply from what the endpoint sent with status 200.

    Raises:
        WireError: `bad_reply`: it is not what the protocol says.
    """
    try:
        reply = _anthropic(payload) if settings.api == "anthropic" else _openai(payload)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise WireError("bad_reply", f"not what the API promises: {str(payload)[:80]!r}", billed=True) from error
    return replace(reply, text=whole(reply.text))


def whole(text: str) -> str:
    """The text without halves of characters, which JSON can say and UTF-8 cannot."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _anthropic(payload: Any) -> ChatReply:
    blocks = [block["text"] for block in payload["content"] if block["type"] == "text"]
    usage = payload.get("usage") or {}
    read = [usage.get(k) for k in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")]
    return ChatReply(
        "".join(blocks), _STOPS.get(payload["stop_reason"], "length"), _usage(read, usage.get("output_tokens"))
    )


def _openai(payload: Any) -> ChatReply:
    choice = payload["choices"][0]
    message = choice["message"]
    stop: Stop = "refusal" if message.get("refusal") else _STOPS.get(choice.get("finish_reason"), "length")
    usage = payload.get("usage") or {}
    text = message.get("content")
    if not isinstance(text, str):
        text = str(message.get("refusal") or "")
        if stop == "end":
            raise KeyError("content")
    return ChatReply(text, stop, _usage([usage.get("prompt_tokens")], usage.get("completion_tokens")))


def _usage(read: list[Any], written: Any) -> Usage | None:
    counts = [n for n in read if n is not None]
    if not counts or not all(isinstance(n, int) and n >= 0 for n in (*counts, written)):
        return None
    return Usage(sum(counts), written)
