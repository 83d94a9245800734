"""Chat templates of tokenizers, rendered once in a process of their own before they are used.

A template is a program written by the publisher of the model. transformers runs it in a sandbox without files and
network, but no limit on time or memory either. Here every template of a tokenizer is rendered with a few short
conversations, one long message and many messages, in a process that is killed when it takes too long; one that passed
is not rendered there again. A template that cannot write a single question is refused as well, before every item fails
for it. Afterwards a template may write a multiple of a conversation at most, and compute for a limited time.

    check_templates({"default": "{{ messages[0].content }}"}, "runs/model")
    render(tokenizer, [{"role": "user", "content": "1 + 1?"}], add_generation_prompt=True)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from guerdon.errors import CheckpointError, ConfigError, GuerdonError, boundary
from guerdon.processes.subprocess_worker import (
    SubprocessPool,
    WorkerDiedError,
    WorkerTimeoutError,
    answer_requests,
    limit_memory,
)
from guerdon.reading.chats import ChatError

SECONDS = 3.0  # of processor time, for all short or long conversations of a template
PATIENCE = 10  # times as long, while other programs need the processor
MEMORY = 512 << 20  # bytes, beyond those of the process itself
LONGEST = 1_000_000  # characters of a short conversation
MOST = 20  # characters of output for one of a conversation, in addition

_SET = "{# chat_template_kwargs #}{{ '' }}"  # ends the arguments in front of a template
_USER = {"role": "user", "content": "1 + 1?"}
_PARTS = {"role": "user", "content": [{"type": "text", "text": _USER["content"]}]}
_PICTURE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
_TURNS = [{"role": "system", "content": "Be brief."}, _USER, {"role": "assistant", "content": "2"}]
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = ([_USER], [_PARTS], [*_TURNS, _USER], _TURNS, [_PICTURE])
_SHORT = "for a conversation of three short messages at most"
_LINE = "3 + 5 = 8, so the answer isn't 7.\n"
_TURN = [{"role": "user", "content": _LINE * 30}, {"role": "assistant", "content": _LINE * 30}]
LONG: tuple[list[dict[str, Any]], ...] = ([{"role": "user", "content": _LINE * 3000}], [*_TURN * 50, _USER])
_LONG = "for 100,000 characters in one message, or in 100 messages"
_ROOM: ContextVar[tuple[int, float]] = ContextVar("room", default=(sys.maxsize, float("inf")))  # and a deadline


def render(tokenizer: Any, messages: Sequence[Any], tools: Sequence[Any] | None = None, **how: Any) -> str:
    """What the chat template of a tokenizer makes of a conversation, within limits of output and time.

    Args:
        tokenizer: of transformers, with a chat template that `check_templates` let pass.
        messages: of the conversation.
        tools: functions that can be called.
        **how: see `apply_chat_template`.

    Raises:
        ChatError: the template refuses the conversation, writes more than `LONGEST` characters and `MOST` for each of
            the conversation, or computes for more than `SECONDS` while it writes.
    """
    room = LONGEST + MOST * len(json.dumps([messages, tools], ensure_ascii=False, default=str))
    template = tokenizer.get_chat_template(None, tools)
    with boundary(ChatError, "the chat template refuses this conversation"), _limited(template, room):
        return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **how))


@contextmanager
def _limited(template: str, room: int) -> Iterator[None]:
    """Limit the characters that a template writes, and how long it takes, in this block.

    Raises:
        _NoRoomError: it breaks a limit.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    _compile_jinja_template(template).environment.concat = _joined  # by which it puts its output together
    before = _ROOM.set((room, time.thread_time() + SECONDS))
    try:
        yield
    finally:
        _ROOM.reset(before)


class _NoRoomError(Exception):
    """There is no room, or time, for what a template writes."""


def _joined(parts: Iterable[str]) -> str:
    """The parts as one text, unless they have no room."""
    room, deadline = _ROOM.get()
    left, found = room, []
    for part in parts:
        left -= len(part)
        if left < 0:
            raise _NoRoomError(f"writes more than {room:,} characters")
        if time.thread_time() > deadline:
            raise _NoRoomError(f"takes more than {SECONDS:g} s")
        found.append(part)
    return "".join(found)


def templates_of(tokenizer: Any) -> dict[str, str]:
    """The chat templates of a tokenizer by name, none where it has none.

    Raises:
        TypeError: it has something else in their place.
    """
    found = getattr(tokenizer, "chat_template", None) or {}
    found = {"default": found} if isinstance(found, str) else found
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise TypeError(f"chat_template is {str(found)[:80]!r}, which is neither a string nor a map of strings")
    return dict(found)


def set_arguments(tokenizer: Any, arguments: Mapping[str, Any], key: str) -> None:
    """Write arguments into the chat templates of a tokenizer, where they hold for every reader and are stored with it.

    Args:
        tokenizer: is changed.
        arguments: by name; they are added to those of earlier calls, and replace those of the same name.
        key: of the configuration, for the message.

    Raises:
        ConfigError: no template uses an argument of this name.
    """
    templates = templates_of(tokenizer) if arguments else {}
    known = set().union(*map(_arguments_of, templates.values()))
    for name in arguments:
        if name not in known:
            raise ConfigError(f"{key}: the chat template has no argument {name!r}; remove it", key=key)
    sets = "".join(f"{{% set {name} = {value!r} %}}" for name, value in arguments.items())
    for kind, text in templates.items():
        templates[kind] = text.replace(_SET, sets + _SET, 1) if _SET in text else sets + _SET + text
    if templates:
        tokenizer.chat_template = templates["default"] if isinstance(tokenizer.chat_template, str) else templates


def _arguments_of(template: str) -> set[str]:
    """The variables that a template reads and does not set first."""
    from jinja2 import meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    own = template.partition(_SET)[2] or template
    with boundary(ConfigError, "the chat template is not valid Jinja"):
        return meta.find_undeclared_variables(_compile_jinja_template(own).environment.parse(own))


def check_templates(
    templates: Mapping[str, str],
    where: str,
    *,
    files: str = "chat_template.jinja, or chat_template in tokenizer_config.json",
) -> None:
    """Render templates with short and long conversations, within limits of time, memory and output.

    A template that raises for a conversation, as some do for a system message, passes: it raises for its user as well.
    But the default one must write a user's single message, as text or as a part of type text.

    Args:
        templates: by name.
        where: they are from, for the message.
        files: where to correct them, for the message.

    Raises:
        CheckpointError: a template is not valid Jinja, needs more than `SECONDS` or `MEMORY`, or writes more than
            `LONGEST` characters and `MOST` for each of a long conversation; or the default one cannot write a user's
            message.
        MissingDependencyError: the process does not start.
    """
    for name, why in _problems(tuple(templates.items())):
        raise CheckpointError(f"the chat template {name!r} of {where!r} {why}; correct {files}")


@cache
def _problems(templates: tuple[tuple[str, str], ...]) -> Sequence[tuple[str, str]]:
    """The first template that breaks a limit, with what it does; nothing where none does."""
    if not templates:
        return ()
    command = [sys.executable, "-m", "guerdon.policies.pretrained.chat_template", str(SECONDS)]
    with SubprocessPool(command, workers=1, start_seconds=120, description="process for chat templates") as pool:
        for name, template in templates:
            for long in (False, True):
                if problem := _problem(pool, {"template": template, "needed": name == "default", "long": long}):
                    return ((name, problem),)
    return ()


def _problem(pool: SubprocessPool, asked: dict[str, Any]) -> str:
    """What a template does wrong with the short or the long conversations; nothing where it does not."""
    what = _LONG if asked["long"] else _SHORT
    try:
        return str(pool.request(asked, PATIENCE * SECONDS).get("problem", ""))
    except WorkerTimeoutError:
        return f"takes more than {SECONDS:g} s {what}"
    except WorkerDiedError:
        return f"ends the process that renders it {what}"


def _render(request: dict[str, Any]) -> dict[str, Any]:
    """What is wrong with a template, in the process."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    texts, why = [], ""
    what, room = (_LONG, LONGEST + MOST * 100_000) if request["long"] else (_SHORT, LONGEST)
    for messages in LONG if request["long"] else CONVERSATIONS:
        try:
            with boundary(GuerdonError, "raises for a single message of a user"), _limited(request["template"], room):
                found, _ = render_jinja_template(
                    [messages], chat_template=request["template"], add_generation_prompt=True, **tokens
                )
        except GuerdonError as error:
            if isinstance(error.__cause__, MemoryError):
                return {"problem": f"needs more than {MEMORY >> 20} MiB of memory {what}"}
            if isinstance(error.__cause__, _NoRoomError):
                return {"problem": f"{error.__cause__} {what}"}
            if isinstance(cause := error.__cause__, TemplateSyntaxError):
                said = " ".join(str(cause.message).split())[:200].rstrip(".")
                return {"problem": f"is not valid Jinja, line {cause.lineno}: {said}"}
            why = why or str(error)[:300]  # of the conversation before all others
            found = [""]
        texts.append(found[0])
    if request["long"] or not request["needed"] or any(_USER["content"] in text for text in texts[:2]):
        return {}
    return {"problem": why if not texts[0] and why else "leaves out a user's message"}


def _prepare() -> None:
    """Import what rendering needs, and bound the memory of what follows."""
    _render({"template": "{{ messages }}", "needed": True, "long": False})
    limit_memory(MEMORY)


if __name__ == "__main__":
    seconds = float(sys.argv[1])
    answer_requests(_render, alarm=2 * PATIENCE * seconds, processor=seconds, prepare=_prepare)
