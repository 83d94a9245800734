r"""Prompt and response from what trainers send: one text, a text and its prompt, or chat messages.

Reward models here get a question and a response and apply their own chat template, so a text that was made by a
template has to be parsed. If the format has the prompt separately, that decides; otherwise the marks of the template
do; without either the item is refused, never guessed.

    pair = cut("<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n")
    pair.task, pair.response                            # "3+5=?", "8"
    marked_steps("3+5=8<extra_0>so 8<extra_0>")         # ("3+5=8", "so 8")
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guerdon.errors import DataError
from guerdon.types import Failure

Turn = tuple[str, str]

_HEADERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"<\|im_start\|>(system|user|assistant|tool)\n",  # ChatML: Qwen, Yi, SmolLM
        r"<\|start_header_id\|>(system|user|assistant|ipython|tool)<\|end_header_id\|>\n\n",  # Llama 3
        r"<start_of_turn>(system|user|model)\n",  # Gemma
        r"<｜(User|Assistant)｜>",  # DeepSeek
        r"<\|(system|user|assistant)\|>\n?",  # Zephyr, Phi
    )
)
_SYSTEM = re.compile(r"\A\s*<<SYS>>.*?<</SYS>>\s*", re.S)
_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<|return|>", "</s>",
    "<eos>", "<end_of_turn>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
_OPENING = re.compile(r"(?:<s>|<bos>|<\|begin_of_text\|>|<\|endoftext\|>|<｜begin▁of▁sentence｜>|\s)*\Z")
_MARKS = re.compile(r"<extra_0>|[ \n]ки(?![^\W\d_])")  # Qwen2.5-Math-PRM, Math-Shepherd
_ROLES = {"model": "assistant", "ipython": "tool"}


class CutError(DataError):
    """Prompt and response cannot be told apart."""


@dataclass(frozen=True)
class PromptResponse:
    """A question and the response to it."""

    task: str
    response: str


def cut(text: str, prompt: str | None = None) -> PromptResponse:
    """Prompt and response of a text that contains both.

    Args:
        text: both, special tokens included.
        prompt: beginning of the text, if it is known; a beginning-of-text token may precede it.

    Raises:
        CutError: the text does not begin with the prompt, or there is none and no template is recognised.
    """
    if prompt is not None:
        at = text.find(prompt)
        if at < 0 or not _OPENING.match(text[:at]):
            raise CutError("the text does not begin with its prompt")
        head, response = prompt, text[at + len(prompt) :]
        turns = read_template(head)
        if turns is None:
            return PromptResponse(head, without_end(response))
        if turns[-1][0] == "assistant":  # the template opened the answer, perhaps with a first word such as <think>
            response, turns = turns[-1][1] + response, turns[:-1]
        return PromptResponse(as_task(turns), without_end(response))
    turns = read_template(text)
    if turns is None:
        raise CutError("no chat template is recognised, so prompt and response cannot be told apart; send messages")
    if turns[-1][0] != "assistant" or len(turns) < 2:
        raise CutError("the last turn is not the assistant's: there is no response")
    return PromptResponse(as_task(turns[:-1]), without_end(turns[-1][1]))


def cut_or_failure(text: str, prompt: str | None = None) -> PromptResponse | Failure:
    """As `cut`; a text that cannot be cut is a `Failure("no_prompt")`."""
    try:
        return cut(text, prompt)
    except CutError as error:
        return Failure("no_prompt", str(error))


def from_messages(messages: Sequence[Mapping[str, Any]]) -> PromptResponse:
    """Prompt and response of chat messages that end with the assistant's.

    Raises:
        CutError: they do not, or contain something else than text.
    """
    turns = [(str(message.get("role")), text_of(message.get("content"))) for message in messages]
    if len(turns) < 2 or turns[-1][0] != "assistant":
        raise CutError("messages must end with a question and the assistant's answer to it")
    return PromptResponse(as_task(turns[:-1]), turns[-1][1])


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or parts of type `text`.

    Raises:
        CutError: something else.
    """
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if not texts or len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise CutError("content must be a string, or parts of type text")
    return "".join(map(str, texts))


def read_template(text: str) -> list[Turn] | None:
    """Turns (role and content) of a text made by a chat template; None: no template is recognised."""
    for pattern in _HEADERS:
        found = list(pattern.finditer(text))
        if found:
            ends = [match.start() for match in found[1:]] + [len(text)]
            roles = [_ROLES.get(match[1].lower(), match[1].lower()) for match in found]
            last = len(found) - 1
            return [
                (role, text[match.end() : end] if k == last else without_end(text[match.end() : end]))
                for k, (role, match, end) in enumerate(zip(roles, found, ends, strict=True))
            ]
    return _read_inst(text)


def _read_inst(text: str) -> list[Turn] | None:
    """Turns in the form of Mistral and Llama 2: [INST] question [/INST] answer."""
    turns: list[Turn] = []
    at = 0
    while (start := text.find("[INST]", at)) >= 0 and (end := text.find("[/INST]", start)) >= 0:
        if turns:
            turns.append(("assistant", without_end(text[at:start]).strip()))
        turns.append(("user", _SYSTEM.sub("", text[start + len("[INST]") : end]).strip()))
        at = end + len("[/INST]")
    return [*turns, ("assistant", text[at:].removeprefix(" "))] if turns else None


def as_task(turns: Sequence[Turn]) -> str:
    """The task of an episode: the one question, or all turns with their roles, without the system's turn.

    Raises:
        CutError: there is no turn of a user.
    """
    rest = [(role, content) for role, content in turns if role != "system"]
    if not any(role == "user" for role, _ in rest):
        raise CutError("there is no turn of a user")
    if len(rest) == 1:
        return rest[0][1]
    return "\n\n".join(f"{role.capitalize()}: {content}" for role, content in rest)


def without_end(text: str) -> str:
    """The text without the tokens that end a turn and the white space after them."""
    end = kept = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        token = next((token for token in _ENDS if text.endswith(token, 0, end)), None)
        if token is None:
            return text[:kept]
        end = kept = end - len(token)


def marked_steps(response: str) -> tuple[str, ...] | None:
    """Steps of a response with step marks (`<extra_0>` or ` ки`), without the marks; None: it has none.

    Raises:
        CutError: there is text after the last mark, which would not be scored.
    """
    pieces = _MARKS.split(response)
    if len(pieces) == 1:
        return None
    if pieces[-1].strip():
        raise CutError("there is text after the last step mark; close every step with a mark")
    return tuple(pieces[:-1])
