r"""Conversations of several calls of a language model: prompts that go on from each other, calls of tools in replies.

A prompt is the ids so far and what the chat template adds, whenever the new messages begin with the earlier ones and
the reply as it was delivered. So the model goes on from the very tokens that it sampled. Otherwise (a program rewrites
its history, a template drops reasoning) the messages are written anew: a context of its own.

Where a chat template knows no tools, guerdon writes them into the system turn, calls as `<tool_call>` and results as
`<tool_response>`.

    form = tool_form(tokenizer)
    transcript = Transcript(tokenizer, form)
    ids, goes_on = transcript.prompt([{"role": "user", "content": "12 * 12?"}], tools)
    reply = read_reply(tokenizer, form, sampled, tools=True, first_call=0, prompt=ids, shown=tools)
    transcript.answer(sampled, reply.message)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from guerdon.errors import DataError
from guerdon.policies.batches.tokens import (
    added_ids,
    chat_text,
    conversation_ids,
    decode,
    prompt_ids,
    sequence,
    stop_ids,
    token_ends,
)
from guerdon.policies.pretrained.response_template import check_response_template, read_by_template
from guerdon.reading.chats import ChatError, LoneSurrogateError, check_characters, turn_text
from guerdon.types import IntArray, Message, Tool

Grammar = Literal["hermes", "llama"]
_BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_THOUGHTS = ("thinking", "reasoning_content", "reasoning")  # fields of response templates
_LLAMA = re.compile(r"\s*(?:<\|python_tag\|>)?\s*(\{.*\})\s*\Z", re.DOTALL)
_TOOLS_OF_SYSTEM = """You can call functions. For each call write a JSON object between <tool_call> and </tool_call>:
<tool_call>
{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}
</tool_call>
The results follow between <tool_response> and </tool_response>. The functions, as JSON schemas:
"""


@dataclass(frozen=True)
class ToolForm:
    """How a tokenizer's chat template shows tools, and how a reply calls them.

    Attributes:
        own: the template shows neither tools nor calls, so that guerdon writes them.
        grammar: of calls in replies: JSON in `<tool_call>` (Qwen, Hermes and guerdon), or a reply that is JSON with
            `name` and `parameters` (Llama 3).
        appends: whether the template only adds behind a conversation with tools and reasoning; where it does not, some
            prompts are contexts of their own. None: not known, as the tokenizer lacks characters of the trial.
        template: replies are read by the tokenizer's response template, and by `grammar` where that cannot read one.
    """

    own: bool
    grammar: Grammar
    appends: bool | None = True
    template: bool = False

    def shown(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
        """Messages and tools as the chat template is given them."""
        if not self.own:
            return tuple(messages), tuple(tools)
        return _in_own_form(messages, tools), ()


_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find a page.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string", "description": "words"}}},
    },
}
_CALL = {"type": "function", "id": "call_0", "function": {"name": "search", "arguments": {"query": "moon"}}}
_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "How far is it?"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "384,400 km", "tool_call_id": "call_0", "name": "search"},
)
_THOUGHT: Message = {"role": "assistant", "content": "<think>\nI add.\n</think>\n\nIt is far."}


def tool_form(tokenizer: Any) -> ToolForm:
    """What the chat template of a tokenizer does with tools, tried with a short conversation.

    Raises:
        ConfigError: the tokenizer has no chat template.
        CheckpointError: its response template cannot be used (`check_response_template`).
    """
    own = has_template = False
    try:
        prompt = chat_text(tokenizer, _PROBE, (_TOOL,), answered=False)
    except ChatError:
        own = True
    if not own and getattr(tokenizer, "response_template", None) is not None:
        check_response_template(tokenizer, prompt, (_TOOL,))
        has_template = True
    template = str(tokenizer.get_chat_template(None, None if own else [dict(_TOOL)]))
    grammar: Grammar = "hermes"
    if not own and "<tool_call>" not in template and "<|start_header_id|>" in template:
        grammar = "llama"
    form = ToolForm(own, grammar)
    return ToolForm(own, grammar, _appends(tokenizer, form), has_template)


def _appends(tokenizer: Any, form: ToolForm) -> bool | None:
    """Whether a conversation with a call, reasoning and a further question is one context; None: it cannot be tried."""
    try:
        return _is_one_context(tokenizer, form)
    except ChatError:
        return False
    except DataError:
        return None


def _is_one_context(tokenizer: Any, form: ToolForm) -> bool:
    transcript = Transcript(tokenizer, form)
    said: list[Message] = [_PROBE[0]]
    end = stop_ids(tokenizer)[:1]
    for reply, more in ((_PROBE[1], _PROBE[2]), (_THOUGHT, {"role": "user", "content": "And back?"})):
        _, goes_on = transcript.prompt(said, (_TOOL,))
        if len(said) > 1 and not goes_on:
            return False
        transcript.answer(end, reply)
        said += [reply, more]
    return transcript.prompt(said, (_TOOL,))[1]


class Transcript:
    """The token ids of one conversation with a model.

    Args:
        tokenizer: a transformers tokenizer.
        form: of its chat template.
        stops: ids that end a reply; None: those of the tokenizer.
    """

    def __init__(self, tokenizer: Any, form: ToolForm, stops: IntArray | None = None) -> None:
        self._tokenizer, self._form = tokenizer, form
        self._stops = set((stop_ids(tokenizer) if stops is None else stops).tolist())
        self._said: list[Message] = []
        self._tools: tuple[Tool, ...] = ()
        self._replies: dict[int, bool] = {}
        self._ids: IntArray = np.zeros(0, dtype=np.int64)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[IntArray, bool]:
        """Ids of a prompt, and whether it goes on from the reply before.

        Raises:
            ChatError: the template refuses the chat, or leaves something of it out.
            DataError: a character that the tokenizer does not know; or the tokenizer raised.
        """
        more = self.more(messages, tools)
        if more is None:
            self._replies = {}
            self._ids = prompt_ids(self._tokenizer, *self._form.shown(messages, tools))
        else:
            self._ids = sequence(self._ids, more)
        self._said, self._tools = list(messages), tuple(tools)
        return self._ids, more is not None

    def answer(self, ids: IntArray, message: Message) -> None:
        """Take in a reply: the ids that were sampled, and the message that was delivered."""
        self._ids = sequence(self._ids, ids)
        self._replies[len(self._said)] = "</think>" in message["content"]
        self._said.append(message)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The last prompt, and the reply to it."""
        return tuple(self._said)

    def more(self, messages: Sequence[Message], tools: Sequence[Tool]) -> IntArray | None:
        """What a prompt adds behind the ids so far; None where it has to be written anew.

        Raises:
            DataError: a character that the tokenizer does not know; or the tokenizer raised.
        """
        known = len(self._said)
        if known - 1 not in self._replies or len(messages) <= known or tuple(tools) != self._tools:
            return None
        if not all(same_message(a, b) for a, b in zip(messages, self._said, strict=False)):
            return None
        shown, functions = self._form.shown(messages, tools)
        places, count = self._replies, known
        if self._form.own:  # several results in a row are one turn, and there may be a new system turn
            places, count = self._places(messages, known)
        added = added_ids(self._tokenizer, shown, functions, count, places)
        if added is None or int(self._ids[-1]) not in self._stops:
            return added
        return added[1:] if len(added) and int(added[0]) in self._stops else None

    def _places(self, messages: Sequence[Message], known: int) -> tuple[dict[int, bool], int]:
        """Places of replies, and the number of known messages, among those in guerdon's own form."""
        tools = self._tools

        def place(number: int) -> int:
            return len(_in_own_form(messages[:number], tools))

        return {place(k): reasoning for k, reasoning in self._replies.items()}, place(known)


def same_message(one: Message, other: Message) -> bool:
    """Whether two messages say the same: role, text, and calls as JSON."""

    def said(message: Message) -> tuple[Any, ...]:
        calls = [
            (call["function"]["name"], json.dumps(call["function"]["arguments"], sort_keys=True))
            for call in message.get("tool_calls") or ()
        ]
        return message["role"], (message["content"] or "").strip(), calls

    return said(one) == said(other)


def _in_own_form(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
    """The messages with tools in the system turn, and calls and results as text."""
    found: list[Message] = []
    results: list[str] = []

    def close() -> None:
        if results:
            found.append({"role": "user", "content": "\n".join(results)})
            results.clear()

    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        close()
        found.append({"role": message["role"], "content": turn_text(message)})
    close()
    if tools:
        functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        system = _TOOLS_OF_SYSTEM + functions
        if found and found[0]["role"] == "system":
            found[0] = {"role": "system", "content": f"{found[0]['content']}\n\n{system}"}
        else:
            found.insert(0, {"role": "system", "content": system})
    return tuple(found)


def turn_ids(
    tokenizer: Any,
    form: ToolForm,
    messages: Sequence[Message],
    reply: Message,
    tools: Sequence[Tool],
    stops: IntArray | None = None,
) -> tuple[IntArray, IntArray]:
    """Ids of a prompt, and of the assistant's turn that follows as the chat template writes it, with its end of turn.

    Args:
        tokenizer: of the model.
        form: of tools.
        messages: of the prompt.
        reply: the assistant's turn.
        tools: that the prompt shows.
        stops: ids that end a turn; None: those of the tokenizer.

    Raises:
        ChatError: the template refuses the chat, or leaves something of it out.
        DataError: a finished turn begins with other tokens than the generation prompt; or see `prompt_ids`.
    """
    prompt = prompt_ids(tokenizer, *form.shown(messages, tools))
    whole = conversation_ids(tokenizer, *form.shown((*messages, reply), tools))
    if not np.array_equal(whole[: len(prompt)], prompt):
        raise DataError(
            "the chat template begins a finished turn of the assistant with other tokens than its generation prompt; "
            "no tokens can be trained on; use another template"
        )
    said = whole[len(prompt) :]
    ends = np.flatnonzero(np.isin(said, stop_ids(tokenizer) if stops is None else stops))
    if len(ends):
        return prompt, said[: ends[0] + 1]
    return prompt, np.append(said, np.int64(tokenizer.eos_token_id))


class Reply(NamedTuple):
    """A reply of the model as an agent reads it.

    Attributes:
        message: of the assistant, with `tool_calls` where it calls functions.
        bad: what is wrong with calls that cannot be read, by their place among all calls of the reply.
        finished: it ended by itself, not by a limit.
        tokens: of its prompt and of itself.
    """

    message: Message
    bad: Mapping[int, str]
    finished: bool = True
    tokens: tuple[int, int] = (0, 0)


def read_reply(
    tokenizer: Any,
    form: ToolForm,
    ids: IntArray,
    *,
    tools: bool,
    first_call: int,
    text: str | None = None,
    prompt: IntArray | None = None,
    shown: Sequence[Tool] = (),
) -> Reply:
    """The message that sampled ids say, with its calls of tools.

    Args:
        tokenizer: a transformers tokenizer.
        form: of its chat template.
        ids: of the reply.
        tools: whether functions can be called; without any, all is text.
        first_call: number of its first call in the conversation, for the names of calls.
        text: of the reply, where it is not all that the ids say.
        prompt: ids of the prompt, which may open the reasoning; a response template needs them. None: an empty one.
        shown: schemas of the functions, by which a response template gives arguments their types.

    Raises:
        CheckpointError: the tokenizer's response template takes too long or too much memory.
    """
    said = decode(tokenizer, ids) if text is None else text
    if not tools:
        return Reply({"role": "assistant", "content": said.strip()}, {})
    if form.template:
        whole = _marked_text(tokenizer, ids, text)
        before = "" if prompt is None else _marked_text(tokenizer, prompt)
        content, calls = _template_calls(tokenizer, form, said, whole, before, shown)
    else:
        content, calls = _table_calls(form, said)
    bad = {place: call for place, call in enumerate(calls) if isinstance(call, str)}
    message: dict[str, Any] = {"role": "assistant", "content": content.strip()}
    good = [call for call in calls if not isinstance(call, str)]
    if good:
        message["tool_calls"] = [
            {"id": f"call_{first_call + number}", "type": "function", "function": call}
            for number, call in enumerate(good)
        ]
    return Reply(message, bad)


def _marked_text(tokenizer: Any, ids: IntArray, text: str | None = None) -> str:
    """The text of ids with special tokens; as far as their text without these is `text`, if given."""
    if text is None:
        return str(tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))
    ends = token_ends(tokenizer, ids)
    count = int(np.searchsorted(ends, len(text), side="right"))
    begun = int(ends[count - 1]) if count else 0
    return _marked_text(tokenizer, ids[:count]).removesuffix("\ufffd") + text[begun:]  # half of a character is cut


def _template_calls(
    tokenizer: Any, form: ToolForm, text: str, whole: str, prompt: str, tools: Sequence[Tool]
) -> tuple[str, list[Any]]:
    """Text and calls by the response template; by the table where it cannot read the reply.

    Args:
        tokenizer: with a response template.
        form: of its chat template.
        text: of the reply.
        whole: the same with special tokens.
        prompt: with special tokens.
        tools: that it shows.
    """
    read = read_by_template(tokenizer, whole, prompt=prompt, tools=tools)
    found = read.message or {}
    content = found.get("content") or ""
    thought = next((found[name] for name in _THOUGHTS if found.get(name)), "")
    if read.message is None or not isinstance(content, str) or not isinstance(thought, str):
        content, calls = _table_calls(form, text)
        return content, calls or ([f"a call cannot be read: {read.why}"] if read.calls else [])
    called = found.get("tool_calls") or []
    listed = called if isinstance(called, list) else [called]
    calls = [_checked_call(one.get("function", one) if isinstance(one, dict) else one) for one in listed]
    if any(isinstance(call, str) for call in calls):
        return text, calls  # what cannot be read stays text
    content = content.removesuffix(tokenizer.eos_token or "")
    return f"<think>\n{thought.strip()}\n</think>\n\n{content}" if thought else content, calls


def _table_calls(form: ToolForm, text: str) -> tuple[str, list[Any]]:
    """Text and calls by the table: JSON in `<tool_call>`, or a reply that is JSON."""
    return _llama_calls(text) if form.grammar == "llama" else _hermes_calls(text)


def _hermes_calls(text: str) -> tuple[str, list[Any]]:
    """Text without its blocks `<tool_call>`, and the calls in these, or why one cannot be read."""
    start = text.rfind("</think>") + 1
    calls: list[Any] = []
    pieces, done = [text[:start]], start
    for block in _BLOCK.finditer(text, start):
        pieces.append(text[done : block.start()])
        done = block.end()
        calls.append(_call_of(block[1]) if block[2] else "a call does not end with </tool_call>")
        if isinstance(calls[-1], str):
            pieces.append(block[0])  # what cannot be read stays text
    return "".join([*pieces, text[done:]]), calls


def _llama_calls(text: str) -> tuple[str, list[Any]]:
    """Calls of a reply that is nothing but JSON with a `name`; another reply is text."""
    whole = _LLAMA.fullmatch(text)
    if whole is None or '"name"' not in text:
        return text, []
    calls = [_call_of(part) for part in re.split(r"(?<=\})\s*;\s*(?=\{)", whole[1])]
    return text if any(isinstance(call, str) for call in calls) else "", calls


def _call_of(text: str) -> dict[str, Any] | str:
    """A call in JSON, or why it cannot be read."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"a call is not JSON: {error}"
    return _checked_call(found)


def _checked_call(found: Any) -> dict[str, Any] | str:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return 'a call is a JSON object with "name" and "arguments"'
    arguments = found.get("arguments", found.get("parameters", {}))
    if not isinstance(arguments, dict):
        return f"the arguments of {found['name'][:40]!r} are not a JSON object"
    try:
        check_characters(json.dumps([found["name"], arguments], ensure_ascii=False))
    except LoneSurrogateError as error:  # which JSON can express, and no tokenizer reads
        return f"a call cannot be read: {error}"
    return {"name": found["name"], "arguments": arguments}
