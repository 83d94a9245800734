"""Text, finish reason and errors of endpoints' replies, in the formats of many servers.

Servers differ: text is a string or a list of parts, with reasoning in other fields; finish reasons have many names; an
error may have status 200 or be inside a choice; and some servers stream although `stream` is false. Judges of steps and
vision-language models use these functions.

Of finish reasons `ENDS` has the documented words. One rule holds for every other word and for none: the text counts
where it is JSON, as asked for, and complete; otherwise nobody can see whether it ended, and it is no answer.

    payload = read_payload(data)                  # of a body in JSON, or as a stream of events
    error_in(payload)                             # None, or the status that the error in it should have had
    text_of([{"type": "thinking", "thinking": "..."}, {"type": "text", "text": "85"}])       # "85"
    kind_of_end("MAX_TOKENS")                     # "length"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from guerdon.network.retry import error_message

End = Literal["end", "length", "refusal", "tool", "error", "unknown"]
"""How a text ended: by itself, at a limit, as a refusal, in a call of a tool, in an error; or nobody knows."""

ENDS: dict[str, End] = {
    "stop": "end",  # OpenAI, vLLM, Gemini
    "end": "end",  # a user-defined judge
    "end_turn": "end",  # Anthropic
    "stop_sequence": "end",  # Anthropic
    "eos": "end",  # Together
    "eos_token": "end",  # text-generation-inference
    "length": "length",  # OpenAI, vLLM
    "max_tokens": "length",  # Anthropic, Gemini
    "model_context_window_exceeded": "length",  # Anthropic
    "model_length": "length",  # Mistral
    "content_filter": "refusal",  # OpenAI
    "refusal": "refusal",  # Anthropic
    "safety": "refusal",  # Gemini
    "recitation": "refusal",  # Gemini
    "blocklist": "refusal",  # Gemini
    "prohibited_content": "refusal",  # Gemini
    "spii": "refusal",  # Gemini: personal information
    "tool_calls": "tool",  # OpenAI, vLLM
    "function_call": "tool",  # OpenAI
    "tool_use": "tool",  # Anthropic
    "pause_turn": "tool",  # Anthropic
    "abort": "error",  # vLLM, SGLang
    "error": "error",  # OpenRouter
}
_STREAMED = re.compile(rb"\s*(?::|data:|event:|id:|retry:)")
_SPENT = re.compile(  # the names of spent quotas
    r"insufficient_(?:user_)?(?:quota|balance|credits?|funds)|billing_(?:hard_limit_reached|not_active)"
    r"|exceeded_current_quota|not_enough_balance|budget_exceeded|arrearage",
    re.IGNORECASE,
)
_SPENT_WORDS = re.compile(
    r"insufficient (?:account )?(?:quota|balance|credit|fund)|balance (?:is )?(?:too low|insufficient)"
    r"|not enough (?:balance|credit|quota)|exceeded your current quota|billing (?:hard )?limit|check your "
    r"(?:plan and )?billing|used all .{0,40}credits"
    r"|(?:out of|no|have any|any more|included) (?:more |remaining |available )?credits"
    r"|credit limit exceeded|spend(?:ing)? limit|usage limits|budget has been exceeded|余额不足|额度不足|欠费",
    re.IGNORECASE,
)
_RATE_WORDS = re.compile(
    r"rate.?limit|too many requests|per[ -](?:second|minute|min|hour|day)|(?:try again|retry|retry your request) in\b",
    re.IGNORECASE,
)
_FLAGGED = re.compile(
    r"content[_ -]filter|content[_ ](?:management )?policy|(?:input|prompt|request) was (?:flagged|blocked)"
    r"|requires moderation|responsibleaipolicy|data_?inspection_?failed",
    re.IGNORECASE,
)


def kind_of_end(word: str | None) -> End:
    """How a text ended, from an endpoint's word for it, in capitals or not (`finish_reason`, `stop_reason`)."""
    return ENDS.get(str(word).lower(), "unknown")


def text_of(content: Any) -> str:
    """The text of a message's content, a string or a list of parts; thinking is left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = (part if isinstance(part, str) else _part(part) for part in parts)
    return "".join(texts)


def _part(part: Any) -> str:
    if not isinstance(part, Mapping) or part.get("type", "text") not in ("text", "output_text"):
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else ""


def refusal_of(message: Mapping[str, Any]) -> str:
    """Why a message refuses to answer, in a field or a part of its own; empty where it does not."""
    parts = message.get("content")
    parts = [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    refusals = [one.get("refusal") for one in (message, *(part for part in parts if part.get("type") == "refusal"))]
    return " ".join(str(one) for one in refusals if one)


def has_reasoning(message: Mapping[str, Any]) -> bool:
    """Whether a message has the thinking of its model beside, or instead of, its text."""
    parts = message.get("content")
    kinds = {str(part.get("type")) for part in parts if isinstance(part, Mapping)} if isinstance(parts, list) else set()
    beside = (message.get(key) for key in ("reasoning_content", "reasoning", "reasoning_details", "thinking"))
    return any(beside) or any("think" in kind or "reason" in kind for kind in kinds)


def model_of(payload: Any) -> str | None:
    """The model that wrote a reply, as the endpoint says; None where it does not."""
    model = payload.get("model") if isinstance(payload, Mapping) else None
    return valid_unicode(model)[:200] if isinstance(model, str) and model else None


def valid_unicode(text: str) -> str:
    """The text with lone surrogates, which JSON can express and UTF-8 cannot, replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_whole_json(text: str) -> bool:
    """Whether a text is a JSON object or list from its first character to its last, in a fence or not."""
    inside = re.fullmatch(r"\s*(?:```\w*\s*)?([{\[].*?)\s*(?:```)?\s*", text, re.DOTALL)
    try:
        return inside is not None and isinstance(json.loads(inside[1]), dict | list)
    except (ValueError, RecursionError):
        return False


def fields_of(payload: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Names (in lower case, with dashes) and values of all texts and numbers in a payload."""
    inside: Iterable[Any] = ()
    if isinstance(payload, list):
        inside = payload
    elif isinstance(payload, Mapping):
        inside = payload.values()
        for key, value in payload.items():
            if isinstance(value, str | int | float):
                yield str(key).lower().replace("_", "-"), str(value)
    if depth < 8:
        for value in inside:
            yield from fields_of(value, depth + 1)


def error_in(payload: Any) -> tuple[int, Any] | None:
    """The error in a reply with status 200: the status that fits it, and what it says; None where there is none.

    An error in a choice is one of the provider behind a router: 429 or 500, as its other codes (401, 404) say nothing
    about this client.
    """
    if not isinstance(payload, Mapping):
        return None
    if payload.get("type") == "error" or _is_error(payload.get("error")):
        error = payload.get("error")
        return _status(error if isinstance(error, Mapping) else payload), payload
    choices = payload.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    error, end = choice.get("error"), choice.get("finish_reason", payload.get("stop_reason"))
    if _is_error(error):
        return (429 if isinstance(error, Mapping) and _status(error) == 429 else 500), error
    return (500, f"the reply ended with {end!r}") if kind_of_end(end) == "error" else None


def _is_error(error: Any) -> bool:
    return any(error.values()) if isinstance(error, Mapping) else bool(error)


def _status(error: Mapping[str, Any]) -> int:
    named = [str(error.get(key)) for key in ("code", "status", "status_code", "type")]
    number = next((int(one) for one in named if re.fullmatch(r"[45]\d\d", one)), None)
    if number is not None:
        return number
    words = " ".join(named).lower()
    known = {"rate_limit": 429, "authentication": 401, "permission_error": 403, "not_found": 404, "quota": 429,
             "invalid_request": 400}  # fmt: skip
    return next((status for word, status in known.items() if word in words), 500)


def is_spent(status: int, payload: Any, asked: float | None) -> bool:
    """Whether an error says that a quota or a credit is used up, so that retries cannot succeed.

    Args:
        status: of the reply.
        payload: of the reply.
        asked: seconds that it asks to wait: a limit of requests per minute is often called a quota, too.
    """
    if status == 402:
        return True
    names = " ".join(value for name, value in fields_of(payload) if name in ("code", "type", "status", "error"))
    if status not in (400, 403, 412, 429):
        return False
    said = error_message(payload, 2000)
    return bool(_SPENT.search(names)) or bool(
        asked is None and _SPENT_WORDS.search(said) and not _RATE_WORDS.search(said)
    )


def is_flagged(status: int, payload: Any) -> bool:
    """Whether an error says that the request was refused for what it contains."""
    codes = " ".join(value for name, value in fields_of(payload) if name in ("code", "type"))
    return status in (400, 403) and bool(_FLAGGED.search(f"{error_message(payload, 2000)} {codes}"))


def read_payload(data: bytes) -> Any:
    """The JSON of a body; that of a stream of events is put together from its pieces.

    Raises:
        ValueError: it is neither.
    """
    if not _STREAMED.match(data):
        return json.loads(data)
    events = _events(data.decode("utf-8-sig"))
    if not events or not all(isinstance(event, dict) for event in events):
        raise ValueError("a stream without events")
    failed = next((event for event in events if _is_error(event.get("error"))), None)
    try:
        chat = any("choices" in event for event in events)
        return failed or (_openai_stream(events) if chat else _anthropic_stream(events))
    except (AttributeError, TypeError) as error:
        raise ValueError("a stream of unknown events") from error


def _events(stream: str) -> list[Any]:
    """The JSON of the events of a stream."""
    events = []
    for block in re.split(r"(?:\r\n|\n|\r){2,}", stream):
        lines = re.split(r"\r\n|\n|\r", block)
        text = "\n".join(line[5:].removeprefix(" ") for line in lines if line.startswith("data:")).strip()
        if text and text != "[DONE]":
            events.append(json.loads(text))
    return events


def _openai_stream(events: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The payload of chat completions whose pieces these are."""
    whole: dict[str, Any] = {}
    choice: dict[str, Any] = {"message": {"content": ""}, "finish_reason": None}
    for event in events:
        whole |= {key: value for key, value in event.items() if key != "choices" and value is not None}
        for one in event.get("choices") or ():
            if one.get("index", 0) == 0:
                _add_piece(choice, one)
    return {**whole, "choices": [choice]}


def _add_piece(choice: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Append a piece of a stream to the choice that it is of."""
    message = choice["message"]
    delta = piece.get("delta") or piece.get("message") or {}
    message["content"] += text_of(delta.get("content"))
    for key in ("refusal", "reasoning_content", "reasoning"):
        if isinstance(delta.get(key), str):
            message[key] = message.get(key, "") + delta[key]
    if (piece.get("logprobs") or {}).get("content"):
        choice.setdefault("logprobs", {"content": []})["content"] += piece["logprobs"]["content"]
    choice |= {key: piece[key] for key in ("finish_reason", "error") if piece.get(key) is not None}


def _anthropic_stream(events: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The payload of the Messages API whose pieces these are."""
    whole: dict[str, Any] = {"content": [], "stop_reason": None}
    usage: dict[str, Any] = {}
    text = ""
    for event in events:
        start, delta = event.get("message") or {}, event.get("delta") or {}
        whole |= {key: start[key] for key in ("model",) if key in start}
        usage |= {**(start.get("usage") or {}), **(event.get("usage") or {})}
        text += text_of(event.get("content_block")) if event.get("content_block") else ""
        text += delta.get("text", "") if delta.get("type") == "text_delta" else ""
        whole["stop_reason"] = delta.get("stop_reason") or whole["stop_reason"]
    return {**whole, "content": [{"type": "text", "text": text}], "usage": usage}
