"""Chat templates of tokenizers, rendered once in a process of their own before they are used.

A template is a program written by the publisher of the model. transformers runs it in a sandbox without files and
network, but no limit on time or memory either. Here every template of a tokenizer is rendered with a few short
conversations in a process that is killed when it takes too long; one that passed is not rendered again.

    check_templates({"default": "{{ messages[0].content }}"}, "runs/model")
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from guerdon.errors import CheckpointError, GuerdonError, boundary
from guerdon.subprocess_worker import SubprocessPool, WorkerDiedError, WorkerTimeoutError, answer_requests

SECONDS = 10.0  # for all conversations of a template
MEMORY = 512 << 20  # bytes, beyond those of the process itself
LONGEST = 1_000_000  # characters of a short conversation

_USER = {"role": "user", "content": "1 + 1?"}
_PICTURE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
_TURNS = [{"role": "system", "content": "Be brief."}, _USER, {"role": "assistant", "content": "2"}]
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = ([_USER], [*_TURNS, _USER], _TURNS, [_PICTURE])


def templates_of(tokenizer: Any) -> dict[str, str]:
    """The chat templates of a tokenizer by name, none where it has none."""
    found = getattr(tokenizer, "chat_template", None) or {}
    return {"default": found} if isinstance(found, str) else dict(found)


def check_templates(templates: Mapping[str, str], where: str) -> None:
    """Render templates with short conversations, within limits of time, memory and output.

    A template that raises for a conversation, as some do for a system message, passes: it raises for its user as well.

    Args:
        templates: by name.
        where: they are from, for the message.

    Raises:
        CheckpointError: a template needs more than `SECONDS`, `MEMORY`, or writes more than `LONGEST` characters.
        MissingDependencyError: the process does not start.
    """
    for name, why in _problems(tuple(templates.items())):
        raise CheckpointError(
            f"the chat template {name!r} of {where!r} {why} for a conversation of three short messages at most; "
            "correct chat_template.jinja, or chat_template in tokenizer_config.json"
        )


@cache
def _problems(templates: tuple[tuple[str, str], ...]) -> Sequence[tuple[str, str]]:
    """The first template that breaks a limit, with what it does; nothing where none does."""
    if not templates:
        return ()
    command = [sys.executable, "-m", "guerdon.policies.chat_template", str(2 * SECONDS)]
    with SubprocessPool(command, workers=1, start_seconds=120, description="process for chat templates") as pool:
        for name, template in templates:
            try:
                problem = str(pool.request({"template": template}, SECONDS).get("problem", ""))
            except WorkerTimeoutError:
                problem = f"takes more than {SECONDS:g} s"
            except WorkerDiedError:
                problem = "ends the process that renders it"
            if problem:
                return ((name, problem),)
    return ()


def _render(request: dict[str, Any]) -> dict[str, Any]:
    """What is wrong with a template, in the process."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    for messages in CONVERSATIONS:
        try:
            with boundary(GuerdonError, "it raises"):
                found, _ = render_jinja_template(
                    [messages], chat_template=request["template"], add_generation_prompt=True, **tokens
                )
        except GuerdonError as error:
            if isinstance(error.__cause__, MemoryError):
                return {"problem": f"needs more than {MEMORY >> 20} MiB of memory"}
            continue
        if len(found[0]) > LONGEST:
            return {"problem": f"writes more than {LONGEST:,} characters"}
    return {}


def _limit_memory() -> None:
    """Import what rendering needs, then allow so much more address space."""
    import resource

    _render({"template": "{{ messages }}"})
    if sys.platform == "linux":  # elsewhere the limit on address space is not kept
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


if __name__ == "__main__":
    answer_requests(_render, alarm=float(sys.argv[1]), prepare=_limit_memory)
