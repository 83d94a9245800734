r"""Response templates of tokenizers, by which replies are read, in a process of its own.

A template (`response_template` in `tokenizer_config.json`) says what in a reply is reasoning, text and calls of tools.
It is written by the publisher of the model and has regular expressions, for which transformers has no limit of time.
Here `parse_response` of transformers runs in a process that is killed when it takes too long.

    check_response_template(tokenizer, "<|im_start|>assistant\n", tools)
    found = read_by_template(tokenizer, "4<|im_end|>", prompt="<|im_start|>assistant\n", tools=tools)
    found.message                                                         # {"role": "assistant", "content": "4"}
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from guerdon.errors import CheckpointError, DataError, boundary
from guerdon.processes.subprocess_worker import (
    SubprocessPool,
    WorkerDiedError,
    WorkerTimeoutError,
    answer_requests,
    limit_memory,
)
from guerdon.types import Tool

SECONDS = 10.0  # of processor time, for a reply; usual templates need quadratic time, 0.5 s for 30,000 characters
PATIENCE = 10  # times as long, while other programs need the processor
MEMORY = 512 << 20  # bytes, beyond those of the process itself

_LONG = [(text * 3_000)[:3_000] for text in ("a", " ", "3 + 5 = 8, so the answer isn't 7.\n", "<|x|>\t", '{"a": ')]
_MARKS = ("open", "open_pattern", "close", "close_pattern")


class ReadReply(NamedTuple):
    """What `parse_response` makes of a reply.

    Attributes:
        message: with `content`, `tool_calls` and other fields of the template; None: the reply cannot be read.
        why: it cannot be read.
        calls: a reply that cannot be read has the marks of a call.
    """

    message: Mapping[str, Any] | None
    why: str = ""
    calls: bool = False


def read_by_template(tokenizer: Any, text: str, *, prompt: str, tools: Sequence[Tool]) -> ReadReply:
    """What `tokenizer.parse_response(text, prefix=prompt, tools=tools)` returns.

    Args:
        tokenizer: of transformers, with a `response_template`.
        text: of the reply, with special tokens.
        prompt: its text, with special tokens.
        tools: that the prompt shows; their schemas decide about the types of arguments.

    Raises:
        CheckpointError: the template is none that transformers reads, or needs more than `SECONDS` or `MEMORY`.
        MissingDependencyError: the process does not start.
    """
    asked = {"template": tokenizer.response_template, "text": text, "prompt": prompt, "tools": list(tools)}
    try:
        found = _pool(os.getpid(), SECONDS).request(asked, PATIENCE * SECONDS)
    except WorkerTimeoutError:
        found = {"problem": f"takes more than {SECONDS:g} s for a reply of {len(text):,} characters"}
    except WorkerDiedError:
        found = {"problem": f"ends the process that runs it, for a reply of {len(text):,} characters"}
    if "problem" in found:
        raise _refused(tokenizer, found["problem"])
    if "why" in found:
        return ReadReply(None, found["why"], found["calls"])
    try:
        return ReadReply(json.loads(found["message"]))
    except RecursionError as error:  # the process had more room for lists in lists
        return ReadReply(None, str(error))


def check_response_template(tokenizer: Any, prompt: str, tools: Sequence[Tool]) -> None:
    """Try a template with an empty reply and with long ones, once for each template and prompt.

    Args:
        tokenizer: of transformers, with a `response_template`.
        prompt: text of a conversation in which a tool was called before, up to the opening of the assistant's turn.
        tools: that the prompt shows.

    Raises:
        CheckpointError: see `read_by_template`; or it finds the call of the prompt.
        MissingDependencyError: the process does not start.
    """
    tried = json.dumps([tokenizer.response_template, prompt, list(tools)]), SECONDS
    if tried in _PASSED:
        return
    for text in ("", *_LONG):
        found = read_by_template(tokenizer, text, prompt=prompt, tools=tools).message
        if found is not None and found.get("tool_calls"):
            raise _refused(tokenizer, "takes the calls of the prompt for those of the reply (start_anchor)")
    _PASSED.add(tried)


_PASSED = set[tuple[str, float]]()


def _refused(tokenizer: Any, why: str) -> CheckpointError:
    return CheckpointError(
        f"the response template of {tokenizer.name_or_path!r} {why}; correct response_template in "
        "tokenizer_config.json, or remove it: replies are then read by guerdon's own table"
    )


@cache
def _pool(_owner: int, seconds: float) -> SubprocessPool:
    """The process that reads replies for this one, whose id `_owner` is: a fork of it gets its own."""
    command = [sys.executable, "-m", "guerdon.policies.pretrained.response_template", str(seconds)]
    return SubprocessPool(command, workers=1, start_seconds=120, description="process for response templates")


def _read(request: dict[str, Any]) -> dict[str, Any]:
    """Read a reply, in the process."""
    from transformers.utils.chat_parsing.response_templates import load_response_template

    try:
        with boundary(DataError, "is none that transformers reads"):
            load_response_template(request["template"])
    except DataError as error:
        return {"problem": " ".join(str(error).split())[:300]}
    try:
        with boundary(DataError, "the reply cannot be read"):
            return {"message": json.dumps(_parsed(request, request["template"]))}
    except DataError as error:
        cause = error.__cause__
        if isinstance(cause, MemoryError):
            return {"problem": f"needs more than {MEMORY >> 20} MiB of memory"}
        said = cause if cause is None or cause.__cause__ is None else cause.__cause__  # of the JSON of a call
        return {"why": str(said)[:300], "calls": _calls(request)}


def _parsed(request: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """What `parse_response` of a tokenizer calls."""
    from transformers.utils.chat_parsing import parse_response

    found: dict[str, Any] = parse_response(
        request["text"], dict(template), prefix=request["prompt"], tools=request["tools"]
    )
    return found


def _calls(request: Mapping[str, Any]) -> bool:
    """Whether a reply has the marks of a call: the template finds one when any text is a call."""
    fields = request["template"]["fields"]
    if "tool_calls" not in fields:
        return False
    own = fields["tool_calls"]
    any_text = {**{key: own[key] for key in _MARKS if key in own}, "transform": {"text": "{content}"}}
    try:
        with boundary(DataError, "the reply cannot be read"):
            found = _parsed(request, {**request["template"], "fields": {**fields, "tool_calls": any_text}})
    except DataError:
        return False
    return bool(found.get("tool_calls"))


def _prepare() -> None:
    """Import what is needed, and bound the memory of what follows."""
    _read({"template": {"start_anchor": ":", "fields": {"content": {}}}, "text": "", "prompt": "", "tools": []})
    limit_memory(MEMORY)


if __name__ == "__main__":
    seconds = float(sys.argv[1])
    answer_requests(_read, alarm=2 * PATIENCE * seconds, processor=seconds, prepare=_prepare)
