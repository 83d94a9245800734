r"""Prompt and response from what trainers send: one text, a text and its prompt, or chat messages.

Reward models here get a conversation and a response and apply their own chat template, so a text that was made by a
template has to be parsed. If the format has the prompt separately, that decides; otherwise the marks of the template
do; without either the item is refused, never guessed.

    pair = cut("<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n")
    pair.task, pair.response                            # "3+5=?", "8"
    marked_steps("3+5=8<extra_0>so 8<extra_0>")         # ("3+5=8", "so 8")
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from guerdon.reading import chats
from guerdon.types import Failure, Message, Tool

Turn = tuple[str, str]

_HEADERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"<\|im_start\|>(system|user|assistant|tool)\n",  # ChatML: Qwen, Yi, SmolLM
        r"<\|start_header_id\|>(system|user|assistant|ipython|tool)<\|end_header_id\|>\n\n",  # Llama 3
        r"<start_of_turn>(system|user|model)\n",  # Gemma
        r"<｜(User|Assistant)｜>",  # DeepSeek
        r"<\|(system|user|assistant)\|>\n?",  # Zephyr, Phi, OLMo
        r"<\|start_of_role\|>(system|user|assistant|tool)<\|end_of_role\|>",  # Granite
        r"<\|START_OF_TURN_TOKEN\|><\|(SYSTEM|USER|CHATBOT)_TOKEN\|>",  # Command
    )
)
_SYSTEM = re.compile(r"\s*<<SYS>>(.*?)<</SYS>>\s*", re.S)
_SYSTEM_BEFORE = re.compile(r"\[SYSTEM_PROMPT\](.*?)\[/SYSTEM_PROMPT\]", re.S)  # Mistral
_INSERTED = (  # system turns that a template writes where a conversation has none
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",  # Qwen2.5
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",  # SmolLM2
)
_DATES = re.compile(r"Cutting Knowledge Date: [^\n]*\nToday Date: [^\n]*(?:\n\n|\Z)")  # Llama 3, before any system turn
_UNKNOWN = re.compile(r"\s*<[|｜]\w")  # a control token, where no template is known
_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<|return|>", "</s>",
    "<eos>", "<end_of_turn>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>",
)  # fmt: skip
_OPENING = re.compile(
    r"(?:<s>|\[CLS\]|<bos>|<BOS_TOKEN>|<\|begin_of_text\|>|<\|endoftext\|>|<\|end_of_text\|>|<｜begin▁of▁sentence｜>|\s)*"
)
_MARKS = re.compile(r"<extra_0>|[ \n]ки(?![^\W\d_])")  # Qwen2.5-Math-PRM, Math-Shepherd
_SURE = 32  # characters of the end of a prompt (`_folded`) that identify it where its beginning was cut off
_TRIES = 64  # most places of a prompt that are compared with the text
_ROLES = {"model": "assistant", "chatbot": "assistant", "ipython": "tool"}


class CutError(chats.ChatError):
    """Prompt and response cannot be told apart, or read."""

    reason = "no_prompt"


@dataclass(frozen=True)
class PromptResponse:
    """A question and the response to it, with the conversation around the question as in an `Episode`."""

    task: str
    response: str
    context: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation that is answered."""
        return self.context or ({"role": "user", "content": self.task},)

    @property
    def size(self) -> int:
        """Characters of all that a model is given."""
        return len(self.response) + conversation_size(self.task, self.context, self.tools)


def conversation_size(task: str, context: Sequence[Message], tools: Sequence[Tool]) -> int:
    """Characters of a question, or of all messages and tools where there is more than that."""
    return len(json.dumps([*context, *tools], ensure_ascii=False)) if context or tools else len(task)


def cut(text: str, prompt: str | None = None) -> PromptResponse:
    """Prompt and response of a text that contains both.

    Args:
        text: both, special tokens included.
        prompt: beginning of the text, if it is known; a beginning-of-text token may precede it. White space, case
            and compatibility forms may differ (a tokenizer's decoding need not be the inverse of its encoding), and the
            text may begin within the prompt (a trainer cut it on the left).

    Raises:
        CutError: the text does not begin with the prompt, or there is none and no template is recognised.
    """
    if prompt is not None:
        response = _behind(text, prompt)
        turns = read_prompt(prompt)
        if turns is None:
            return PromptResponse(prompt, without_end(response))
        if turns[-1][0] == "assistant":  # the template opened the answer, perhaps with a first word such as <think>
            response, turns = turns[-1][1] + response, turns[:-1]
        return answered(turns_as_messages(turns), without_end(response))
    turns = read_template(text)
    if turns is None:
        raise CutError("no chat template is recognised, so prompt and response cannot be told apart; send messages")
    if turns[-1][0] != "assistant" or len(turns) < 2:
        raise CutError("the last turn is not the assistant's: there is no response")
    return answered(turns_as_messages(turns[:-1]), without_end(turns[-1][1]))


def _behind(text: str, prompt: str) -> str:
    """The rest of a text after the prompt that it begins with, or after the end of that prompt.

    Raises:
        CutError: the text begins with neither, with too few characters of the prompt, or the place is ambiguous.
    """
    at = text.find(prompt)
    if at >= 0 and _OPENING.fullmatch(text[:at]):
        return text[at + len(prompt) :]
    opening, own = (_OPENING.match(one).end() for one in (text, prompt))  # type: ignore[union-attr]
    shown, asked = ("".join(map(_folded, one)) for one in (text[opening:], prompt[own:]))
    places = _places(shown, asked)
    if places is None or len(places) > 1:
        raise CutError(
            "the text begins with the end of its prompt in several ways, so the response cannot be told apart"
        )
    if not places:
        raise CutError("the text does not begin with its prompt, nor with its end")
    left, end = len(asked) - places[0], opening
    while left > 0:
        left, end = left - len(_folded(text[end])), end + 1
    if left < 0:
        raise CutError("the prompt ends within a character of the text")
    return text[end:].lstrip()


def _places(shown: str, asked: str) -> list[int] | None:
    """Where in a prompt a text begins, so that the rest of the prompt follows: two at most; None: too many to try.

    Args:
        shown: the text, folded.
        asked: the prompt, folded.
    """
    if asked and shown.startswith(asked):
        return [0]
    found: list[int] = []
    tries = 0
    at = asked.find(shown[:_SURE], 1)
    while at > 0 and len(asked) - at >= _SURE and len(found) < 2 and tries <= _TRIES:
        if shown.startswith(asked[at:]):
            found.append(at)
        at, tries = asked.find(shown[:_SURE], at + 1), tries + 1
    return None if tries > _TRIES else found


@lru_cache(4096)
def _folded(character: str) -> str:
    """What remains of a character without white space, case and compatibility forms, which tokenizers may change."""
    return "".join(unicodedata.normalize("NFKD", character).casefold().split())


def cut_or_failure(text: str, prompt: str | None = None) -> PromptResponse | Failure:
    """As `cut`; a text that cannot be cut is a `Failure("no_prompt")`."""
    try:
        return cut(text, prompt)
    except CutError as error:
        return error.failure


def from_messages(messages: Any, tools: Any = None) -> PromptResponse:
    """Prompt and response of chat messages that end with the assistant's.

    Raises:
        CutError: they do not, or contain something that cannot be read as text.
    """
    with cutting():
        conversation, response = chats.split_answer(chats.chat_messages(messages))
        return answered(conversation, response, chats.tool_schemas(tools))


def answered(conversation: Sequence[Message], response: str, tools: tuple[Tool, ...] = ()) -> PromptResponse:
    """A conversation and the response to it.

    Raises:
        CutError: it has no turn of a user, or does not end with a turn that is answered.
    """
    with cutting():
        return PromptResponse(chats.question_of(conversation), response, chats.context_of(conversation), tools)


def as_conversation(prompt: str | Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """A conversation from chat messages, from what a chat template made of them, or from a question alone.

    Raises:
        CutError: it has no turn of a user, or something else than text.
    """
    if isinstance(prompt, str):
        messages = turns_as_messages(read_prompt(prompt) or [("user", prompt)])
        if messages[-1]["role"] == "assistant":  # opened by the template for the response
            messages = messages[:-1]
    else:
        with cutting():
            messages = chats.chat_messages(prompt)
        last = messages[-1]
        if last["role"] == "assistant" and not last["content"].strip() and not last.get("tool_calls"):
            messages = messages[:-1]
    with cutting():
        chats.question_of(messages)
    return messages


def turns_as_messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Turns of a template as chat messages."""
    return tuple({"role": role, "content": content} for role, content in turns)


@contextmanager
def cutting() -> Iterator[None]:
    """Makes what is wrong with a conversation a `CutError`; one without an answer keeps its reason."""
    try:
        yield
    except CutError:
        raise
    except chats.ChatError as error:
        cut_error = CutError(str(error))
        cut_error.reason = error.reason if isinstance(error, chats.NoResponseError) else cut_error.reason
        raise cut_error from error


def read_prompt(text: str) -> list[Turn] | None:
    """As `read_template`; None: it is a question as it was written.

    Raises:
        CutError: it begins with a control token of a template that is not known here.
    """
    turns = read_template(text)
    if turns is None and (token := _UNKNOWN.match(text, _OPENING.match(text).end())):  # type: ignore[union-attr]
        said = text[token.start() : token.start() + 40].strip()
        raise CutError(f"the prompt begins with {said!r}, and the chat template is not known here; send messages")
    return turns


def read_template(text: str) -> list[Turn] | None:
    """Turns (role and content) of a text made by a chat template; None: no template is recognised.

    Raises:
        CutError: there is text before the first turn that is not its system turn.
    """
    for pattern in _HEADERS:
        found = list(pattern.finditer(text))
        if found:
            unmarked = "｜" in found[0][0]  # DeepSeek's puts nothing behind a user's turn
            closing = "" if unmarked else "\n"
            ends = [match.start() for match in found[1:]] + [len(text)]
            roles = [_ROLES.get(match[1].lower(), match[1].lower()) for match in found]
            last = len(found) - 1
            return _given([
                *_system_before(text[: found[0].start()], unmarked=unmarked),
                *(
                    (role, text[match.end() : end] if k == last else without_end(text[match.end() : end], closing))
                    for k, (role, match, end) in enumerate(zip(roles, found, ends, strict=True))
                ),
            ])  # fmt: skip
    return _read_inst(text)


def _given(turns: list[Turn]) -> list[Turn]:
    """The turns without the system text that a known template inserts in front of a conversation."""
    role, said = turns[0]
    if role != "system" or len(turns) == 1:
        return turns
    own = _DATES.sub("", said, count=1) if said.startswith("Cutting") else said
    return turns[1:] if not own.strip() or own.strip() in _INSERTED else [(role, own), *turns[1:]]


def _system_before(text: str, *, unmarked: bool) -> list[Turn]:
    """The system turn in front of the first other one, if there is one.

    Args:
        text: before the first mark of a turn.
        unmarked: the template puts no mark around a system turn (DeepSeek).

    Raises:
        CutError: the text is not a system turn.
    """
    said = text[_OPENING.match(text).end() :]  # type: ignore[union-attr]
    if system := _SYSTEM_BEFORE.fullmatch(said.strip()):
        return [("system", system[1])]
    if said.strip() and not unmarked:
        raise CutError(
            f"there is text before the first turn, {said.strip()[:40]!r}, which is of no turn; send messages"
        )
    return [("system", said)] if said.strip() else []


def _read_inst(text: str) -> list[Turn] | None:
    """Turns in the form of Mistral and Llama 2: [INST] question [/INST] answer."""
    turns: list[Turn] = []
    at = 0
    while (start := text.find("[INST]", at)) >= 0 and (end := text.find("[/INST]", start)) >= 0:
        if at:
            turns.append(("assistant", without_end(text[at:start]).strip()))
        else:
            turns += _system_before(text[:start], unmarked=False)
        said = text[start + len("[INST]") : end]
        if system := _SYSTEM.match(said):
            turns.append(("system", system[1].strip()))
            said = said[system.end() :]
        turns.append(("user", said.strip()))
        at = end + len("[/INST]")
    return [*turns, ("assistant", text[at:].removeprefix(" "))] if turns else None


def without_end(text: str, otherwise: str = "") -> str:
    """The text without the tokens that end a turn and the white space after them; without such, without `otherwise`."""
    end = kept = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        token = next((token for token in _ENDS if text.endswith(token, 0, end)), None)
        if token is None:
            return text[:kept] if kept < len(text) else text.removesuffix(otherwise)
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
