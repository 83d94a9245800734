"""Chat templates of tokenizers, rendered once in a process of their own before they are used.

A template is a program written by the publisher of the model. transformers runs it in a sandbox without files and
network, but no limit on time or memory either. Here every template of a tokenizer is rendered with a few short
conversations in a process that is killed when it takes too long; one that passed is not rendered again. A template
that cannot write a single question is refused as well, before every item fails for it.

    check_templates({"default": "{{ messages[0].content }}"}, "runs/model")
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from guerdon.errors import CheckpointError, ConfigError, GuerdonError, boundary
from guerdon.processes.subprocess_worker import SubprocessPool, WorkerDiedError, WorkerTimeoutError, answer_requests

SECONDS = 10.0  # for all conversations of a template
MEMORY = 512 << 20  # bytes, beyond those of the process itself
LONGEST = 1_000_000  # characters of a short conversation

_SET = "{# chat_template_kwargs #}{{ '' }}"  # ends the arguments in front of a template
_USER = {"role": "user", "content": "1 + 1?"}
_PARTS = {"role": "user", "content": [{"type": "text", "text": _USER["content"]}]}
_PICTURE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
_TURNS = [{"role": "system", "content": "Be brief."}, _USER, {"role": "assistant", "content": "2"}]
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = ([_USER], [_PARTS], [*_TURNS, _USER], _TURNS, [_PICTURE])
_SHORT = "for a conversation of three short messages at most"


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
            raise ConfigError(f"{key}: the chat template has no argument {name!r}; remove it")
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
    """Render templates with short conversations, within limits of time, memory and output.

    A template that raises for a conversation, as some do for a system message, passes: it raises for its user as well.
    But the default one must write a user's single message, as text or as a part of type text.

    Args:
        templates: by name.
        where: they are from, for the message.
        files: where to correct them, for the message.

    Raises:
        CheckpointError: a template is not valid Jinja, needs more than `SECONDS`, `MEMORY`, or writes more than
            `LONGEST` characters; or the default one cannot write a user's message.
        MissingDependencyError: the process does not start.
    """
    for name, why in _problems(tuple(templates.items())):
        raise CheckpointError(f"the chat template {name!r} of {where!r} {why}; correct {files}")


@cache
def _problems(templates: tuple[tuple[str, str], ...]) -> Sequence[tuple[str, str]]:
    """The first template that breaks a limit, with what it does; nothing where none does."""
    if not templates:
        return ()
    command = [sys.executable, "-m", "guerdon.policies.pretrained.chat_template", str(2 * SECONDS)]
    with SubprocessPool(command, workers=1, start_seconds=120, description="process for chat templates") as pool:
        for name, template in templates:
            try:
                asked = {"template": template, "needed": name == "default"}
                problem = str(pool.request(asked, SECONDS).get("problem", ""))
            except WorkerTimeoutError:
                problem = f"takes more than {SECONDS:g} s {_SHORT}"
            except WorkerDiedError:
                problem = f"ends the process that renders it {_SHORT}"
            if problem:
                return ((name, problem),)
    return ()


def _render(request: dict[str, Any]) -> dict[str, Any]:
    """What is wrong with a template, in the process."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    texts, why = [], ""
    for messages in CONVERSATIONS:
        try:
            with boundary(GuerdonError, "raises for a single message of a user"):
                found, _ = render_jinja_template(
                    [messages], chat_template=request["template"], add_generation_prompt=True, **tokens
                )
        except GuerdonError as error:
            if isinstance(error.__cause__, MemoryError):
                return {"problem": f"needs more than {MEMORY >> 20} MiB of memory {_SHORT}"}
            if isinstance(cause := error.__cause__, TemplateSyntaxError):
                said = " ".join(str(cause.message).split())[:200].rstrip(".")
                return {"problem": f"is not valid Jinja, line {cause.lineno}: {said}"}
            why = why or str(error)[:300]  # of the conversation before all others
            found = [""]
        if len(found[0]) > LONGEST:
            return {"problem": f"writes more than {LONGEST:,} characters {_SHORT}"}
        texts.append(found[0])
    if request["needed"] and not any(_USER["content"] in text for text in texts[:2]):
        return {"problem": why if not texts[0] and why else "leaves out a user's message"}
    return {}


def _limit_memory() -> None:
    """Import what rendering needs, then allow so much more address space."""
    import resource

    _render({"template": "{{ messages }}", "needed": True})
    if sys.platform == "linux":  # elsewhere the limit on address space is not kept
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


if __name__ == "__main__":
    answer_requests(_render, alarm=float(sys.argv[1]), prepare=_limit_memory)
