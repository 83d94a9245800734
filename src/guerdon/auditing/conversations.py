"""Prompts and responses of logs: which part of a row was asked and which was said, and both written out as text.

asked, said = asked_and_said({"prompt": "1+1=?", "response": "2"}, has_response=True)
written(asked), written(said)           # "1+1=?", "2"; of several messages each has its role in front

Nothing is refused here: what is no text and no messages is written as JSON, because an audit describes what a log has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from guerdon.reading.chats import asked_of
from guerdon.reading.nested import a_map

_ROLES = {"human": "user", "gpt": "assistant"}  # of ShareGPT


def asked_and_said(roles: Mapping[str, Any], *, has_response: bool) -> tuple[Any, Any]:
    """Prompt and response of a row, each text or messages.

    Args:
        roles: values of a row by role.
        has_response: whether the log has a column of responses; else a conversation ends with the response.

    Raises:
        ChatError: turns before the question cannot be read.
    """
    asked = _asked(roles, has_response=has_response)
    if isinstance(roles.get("system"), str) and roles["system"].strip():
        asked = _with_system(roles["system"], asked)
    if has_response:
        return asked, roles.get("response")
    turns = messages_of(asked)
    if turns and turns[-1]["role"] == "assistant":
        return asked[:-1], asked[-1:]
    return asked, None


def _asked(roles: Mapping[str, Any], *, has_response: bool) -> Any:
    """What was asked; messages beside a prompt are the conversation with it, or the turns before it."""
    prompt, messages = roles.get("prompt"), roles.get("messages")
    turns = messages_of(messages)
    if prompt is None and not turns:
        return asked_of(roles) or messages
    if prompt is not None and not _holds(turns, prompt):
        return asked_of(roles)
    before = list(messages or ())
    if has_response and turns[-1]["role"] == "assistant":  # the last turn is the response
        before.pop()
    return asked_of({"history": roles.get("history"), "messages": before})


def _holds(messages: Sequence[Mapping[str, str]], prompt: Any) -> bool:
    """Whether the prompt is one of the messages, or their beginning."""
    turns = messages_of(prompt)
    if turns:
        return list(messages[: len(turns)]) == turns
    return isinstance(prompt, str) and any(prompt.strip() in one["content"] for one in messages)


def _with_system(system: str, asked: Any) -> Any:
    """A prompt with the system's turn in front, where it has none."""
    turns = conversation_of(asked, "user")
    if not turns or turns[0]["role"] == "system":
        return asked
    return [{"role": "system", "content": system}, *turns]


def conversation_of(value: Any, role: str) -> list[dict[str, str]]:
    """Messages as they are, a text as the one of a role."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return messages_of(value)


def written(value: Any) -> str:
    """A prompt or response as one text: of several messages each with its role in front."""
    if isinstance(value, str):
        return value
    if messages := messages_of(value):
        if len(messages) == 1:
            return messages[0]["content"]
        return "\n\n".join(f"{m['role']}: {m['content']}" for m in messages)
    return "" if value is None or value == [] else json.dumps(value, ensure_ascii=False, default=str)


def messages_of(value: Any) -> list[dict[str, str]]:
    """Messages as role and text, calls of tools written out; none of something else."""
    if not isinstance(value, list | tuple) or not all(map(_is_message, value)):
        return []
    return [_message(m) for m in value]


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value.get("role") or value.get("from"))


def _message(given: Mapping[str, Any]) -> dict[str, str]:
    role = str(given.get("role") or given.get("from"))
    return {"role": _ROLES.get(role, role), "content": _content(given)}


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") if "content" in message else message.get("value")
    if isinstance(content, list | tuple):
        texts = [str(p.get("text") or "") if isinstance(p, Mapping) else str(p) for p in content]
        content = "\n".join(filter(None, texts))
    if content is not None and not isinstance(content, str):
        content = json.dumps(content, default=str)
    return "\n".join(filter(None, [content, *map(_call, message.get("tool_calls") or ())]))


def _call(call: Any) -> str:
    """A call of a tool, whose name stands in a map `function` (OpenAI) or in `name`."""
    known = a_map(a_map(call).get("function")) or a_map(call)
    return f"[{known.get('name')}({known.get('arguments')})]"
