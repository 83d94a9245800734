"""Chat messages and tools as data sets and requests hold them, in one form for every chat template.

A message has a `role` (system, user, assistant, tool) and text as its `content`; an assistant's may have `tool_calls`,
whose arguments are a map, as chat templates expect them. What is not text (pictures, sound, calls in an older form)
is refused, because nothing here could read it. Tools are JSON schemas of functions.

    messages = chat_messages([{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                              {"role": "user", "content": "3+5=?"}])
    question_of(messages), context_of(messages)     # "3+5=?", both messages: the first is a system turn
    split_answer([*messages, {"role": "assistant", "content": "8"}])[1]      # "8"
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from guerdon.errors import DataError
from guerdon.files.bounds import Unparsed, json_of_text
from guerdon.types import Episode, Failure, Message, Tool

ROLES = ("system", "user", "assistant", "tool")
_ALIASES = {  # other names of these roles; human and gpt are those of ShareGPT
    "developer": "system", "model": "assistant", "ipython": "tool", "human": "user", "gpt": "assistant",
}  # fmt: skip
_KEPT = ("name", "tool_call_id", "reasoning_content", "reasoning", "thinking")  # texts that chat templates know
_TEXTS = ("text", "input_text", "output_text")  # parts of a content: of Chat Completions, and of the Responses API
EMPTY_TURN = Failure("empty_turn", "the turn has neither text nor calls")
_UNREADABLE = ("function_call", "refusal", "audio", "images", "image", "videos", "video")  # said, but not as text


class ChatError(DataError):
    """A conversation that cannot be read, or that a model cannot be given in full.

    Attributes:
        reason: of the `Failure` that it is for one item.
    """

    reason = "unreadable_chat"

    @property
    def failure(self) -> Failure:
        """Why the item has no value."""
        return Failure(self.reason, str(self))


class NoResponseError(ChatError):
    """What should be scored is not an answer in text."""

    reason = "no_response"


class ChangedTextError(ChatError):
    """A chat template changes the text of a message."""

    reason = "changed_by_template"


class LoneSurrogateError(DataError):
    """A text has half of a surrogate pair: JSON can express it, but tokenizers cannot read it."""

    reason = "lone_surrogate"


def check_characters(text: str) -> None:
    """Make sure that a text consists of characters.

    Raises:
        LoneSurrogateError: it has half of a surrogate pair.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 20) : error.start + 20]
        raise LoneSurrogateError(
            f"there is half of a surrogate pair ({text[error.start]!a}) at character {error.start}, in {around!a}"
        ) from error


def unreadable(episode: Episode, *, task_only: bool = False) -> Failure | None:
    """The failure of an episode whose text has half of a surrogate pair, which no model can read; else None.

    Args:
        episode: its task, its texts, and the conversation with its tools are checked.
        task_only: check the task alone (episodes of frames have no other text).
    """
    texts = [episode.task, *(() if task_only else episode.texts or ())]
    if not task_only and (episode.context or episode.tools):
        texts.append(json.dumps([episode.context, episode.tools], ensure_ascii=False))
    try:
        for text in texts:
            check_characters(text)
    except LoneSurrogateError as error:
        return Failure(error.reason, str(error))
    return None


def unreadable_texts(episodes: Sequence[Episode]) -> dict[int, Failure]:
    """Indices of the episodes of text that no model can read, and why."""
    found = {i: unreadable(one) for i, one in enumerate(episodes) if one.texts is not None}
    return {i: why for i, why in found.items() if why is not None}


def chat_messages(given: Any) -> tuple[Message, ...]:
    """Chat messages with a role, text, and what else chat templates know; keys without a value are left out.

    Args:
        given: a list of maps with `role` and `content` (text, or parts of type `text`).

    Raises:
        ChatError: it is none, a role is unknown, or a message holds something else than text.
    """
    if not isinstance(given, list | tuple) or not given:
        raise ChatError(f"a chat is a list of messages with role and content, this is {str(given)[:80]!r}")
    one_each = [one for message in given for one in _plain_messages(message)]
    return tuple(_message(message, f"message {k + 1}") for k, message in enumerate(one_each))


def _plain_messages(given: Any) -> list[Any]:
    """A message of Chat Completions as it is; those of the Responses API and of Anthropic in its names."""
    if not isinstance(given, Mapping):
        return [given]
    kind = given.get("type")
    if kind == "function_call":
        function = {"name": given.get("name"), "arguments": given.get("arguments")}
        call = {"id": given.get("call_id"), "function": function}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}]
    if kind == "function_call_output":
        return [{"role": "tool", "content": given.get("output"), "tool_call_id": given.get("call_id")}]
    content = given.get("content")
    blocks = content if isinstance(content, list | tuple) else []
    if any(isinstance(one, Mapping) and one.get("type") in _BLOCKS for one in blocks):
        return _of_blocks(given, blocks)
    return [given]


_BLOCKS = ("thinking", "redacted_thinking", "tool_use", "tool_result")


def _of_blocks(given: Mapping[str, Any], blocks: Sequence[Any]) -> list[Any]:
    """A message of Anthropic's API: results of tools are messages of their own, before what the user says."""

    def of(kind: str) -> list[Mapping[str, Any]]:
        return [one for one in blocks if isinstance(one, Mapping) and one.get("type") == kind]

    rest = [one for one in blocks if not (isinstance(one, Mapping) and one.get("type") in _BLOCKS)]
    results = [
        {"role": "tool", "content": one.get("content") or "", "tool_call_id": one.get("tool_use_id")}
        for one in of("tool_result")
    ]
    thought = "".join(str(one.get("thinking") or "") for one in of("thinking"))
    calls = [
        {"id": one.get("id"), "function": {"name": one.get("name"), "arguments": one.get("input")}}
        for one in of("tool_use")
    ]
    if not (rest or calls or thought):
        return results
    more = {**({"thinking": thought} if thought else {}), **({"tool_calls": calls} if calls else {})}
    return [*results, {**given, "content": rest or "", **more}]


def _message(given: Any, where: str) -> Message:
    if isinstance(given, Mapping) and "role" not in given and "from" in given:  # ShareGPT
        given = {**given, "role": given["from"], "content": given.get("value")}
    role = _checked_role(given, where)
    calls, content = given.get("tool_calls"), given.get("content")
    if calls and role != "assistant":
        raise ChatError(f"{where} has tool_calls, and its role is {role}; only the assistant calls tools")
    if content is None and not calls:
        raise ChatError(f"{where}: a chat message needs role and content, this is {str(given)[:80]!r}")
    text = "" if calls and content in (None, []) else text_of(content, where)
    more: dict[str, Any] = {key: given[key] for key in _KEPT if isinstance(given.get(key), str) and given[key]}
    return {"role": role, "content": text, **more, **({"tool_calls": _calls(calls, where)} if calls else {})}


def _checked_role(given: Any, where: str) -> str:
    """The role of a message.

    Raises:
        ChatError: it is no message, its role is unknown, or it says something else than text.
    """
    named = given.get("role") if isinstance(given, Mapping) else None
    if not isinstance(named, str):
        raise ChatError(f"{where}: a chat message needs role and content, this is {str(given)[:80]!r}")
    role = _ALIASES.get(named, named)
    if role not in ROLES:
        raise ChatError(f"{where}: a chat message has one of the roles {', '.join(ROLES)}, this has {role[:40]!r}")
    unread = next((key for key in _UNREADABLE if given.get(key)), None)
    if unread is not None:
        raise ChatError(f"{where} has {unread}, which cannot be read as text")
    return role


def text_of(content: Any, where: str = "a message") -> str:
    """The text of a message's content: a string, or parts of type `text`, `input_text` or `output_text`.

    Raises:
        ChatError: something else.
    """
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else []
    kinds = [part.get("type") if isinstance(part, Mapping) else type(part).__name__ for part in parts]
    other = next((f", not of type {str(kind)[:40]!r}" for kind in kinds if kind not in _TEXTS), "")
    texts = [] if other else [part.get("text") for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ChatError(f"{where}: content must be a string, or parts of type text{other}")
    return "".join(texts)


def _calls(given: Any, where: str) -> list[dict[str, Any]]:
    """Calls of tools; arguments in JSON, as OpenAI's API has them, become maps."""
    found = []
    for call in given if isinstance(given, list | tuple) else [None]:
        function = _function(call, f"{where}: a call of a tool")
        arguments = function.get("arguments")
        arguments = {} if arguments in (None, "") else _decoded(arguments)
        if not isinstance(arguments, Mapping):
            called = function["name"][:40]
            raise ChatError(f"{where}: the arguments of {called!r} are not a map: {str(arguments)[:80]!r}")
        name = call.get("id") if isinstance(call, Mapping) else None
        own = {"id": name} if isinstance(name, str) and name else {}
        found.append({"type": "function", **own, "function": {"name": function["name"], "arguments": dict(arguments)}})
    return found


def tool_schemas(given: Any) -> tuple[Tool, ...]:
    """Tools as `{"type": "function", "function": {"name": ..., ...}}`; none where there are none.

    Args:
        given: a list of such maps, or of the functions themselves, or either in JSON (as data sets hold them).

    Raises:
        ChatError: it is none, or a tool has no name.
    """
    given = _decoded(given)
    if given is None or (isinstance(given, str | list | tuple) and not given):
        return ()
    if not isinstance(given, list | tuple):
        raise ChatError(f"tools are a list of functions, this is {str(given)[:80]!r}")
    found = []
    for tool in map(_decoded, given):
        function = _function(tool, "a tool")
        described = {key: value for key, value in function.items() if value is not None and key != "type"}
        found.append({"type": "function", "function": described})
    return tuple(found)


def _function(given: Any, what: str) -> Mapping[str, Any]:
    """The function of a tool or of a call."""
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ChatError(f"{what} needs a function with a name, this is {str(given)[:80]!r}")
    return function


def _decoded(value: Any) -> Any:
    """The value of a JSON text; anything else, and other text, as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json_of_text(value)
    except Unparsed:
        return value


def question_of(messages: Sequence[Message]) -> str:
    """The last user's turn: what an episode calls its task.

    Raises:
        ChatError: there is none, or the conversation does not end with a turn that an answer can follow.
    """
    if messages and messages[-1]["role"] not in ("user", "tool"):
        last = messages[-1]["role"]
        raise ChatError(f"the messages of a question end with the user's turn or a tool's, these with the {last}'s")
    for message in reversed(messages):
        if message["role"] == "user":
            return str(message["content"])
    raise ChatError("there is no turn of a user")


_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")


def turns_of(text: Any) -> Any:
    """Messages of a text with the turns of HH-RLHF (Human: and Assistant: after a blank line); anything else as it is.

    The open turn of the assistant at the end of a prompt (Nectar) is not a message.
    """
    if not isinstance(text, str):
        return text
    parts = _TURN.split(text)
    if parts[0] or len(parts) < 4:
        return text
    roles = {"Human": "user", "Assistant": "assistant"}
    found = [{"role": roles[who], "content": said} for who, said in zip(parts[1::2], parts[2::2], strict=True)]
    return found[:-1] if not found[-1]["content"].strip() else found


def asked_of(roles: Mapping[str, Any]) -> Any:
    """What was asked, by roles: a text, messages, or None; earlier turns, a passage and an input are part of it.

    Args:
        roles: `prompt`, `input`, `passage`, `messages`, `history`.

    Raises:
        ChatError: turns before the question cannot be read.
    """
    asked, messages = roles.get("prompt"), roles.get("messages")
    before = [*earlier_turns(roles.get("history")), *(messages if isinstance(messages, list | tuple) else ())]
    if asked is None:
        lacks_the_question = not messages and is_answered(before)
        return None if lacks_the_question else before or None
    if not isinstance(asked, str):
        return [*before, *asked] if before else asked
    asked = _with_context(asked, roles.get("input"), roles.get("passage"))
    place = _place_of(asked, before)
    if place is not None:
        return before[: place + 1]  # the turns have the question, too
    return [*before, {"role": "user", "content": asked}] if before else asked


def _with_context(question: str, more: Any, passage: Any) -> str:
    """A question with the input below it and the passage above it, where there are any."""
    if isinstance(more, str) and more.strip():
        question = f"{question}\n{more}"
    return f"{_passage(passage)}\n\n{question}" if passage else question


def _place_of(question: str, messages: Sequence[Any]) -> int | None:
    """The last of these messages that is a question of a user."""
    wanted = question.strip()
    for place in range(len(messages) - 1, -1, -1):
        one = messages[place]
        said = one.get("content", one.get("value")) if isinstance(one, Mapping) else None
        if isinstance(said, str) and said.strip() == wanted and _role_of(one) == "user":
            return place
    return None


def is_answered(messages: Any) -> bool:
    """Whether something is chat messages that end with a turn of the assistant."""
    is_chat = isinstance(messages, list | tuple) and bool(messages) and isinstance(messages[-1], Mapping)
    return is_chat and _role_of(messages[-1]) == "assistant"


def _passage(given: Any) -> str:
    """A passage, or several as retrieval gives them, as one text."""
    texts = given if isinstance(given, list | tuple) else [given]
    return "\n\n".join(str(one.get("text", one)) if isinstance(one, Mapping) else str(one) for one in texts)


def earlier_turns(history: Any) -> list[dict[str, Any]]:
    """Turns before a question as messages: pairs of question and answer, messages, or texts in turn.

    Raises:
        ChatError: it is something else.
    """
    if not history:
        return []
    if isinstance(history, str):
        found = turns_of(history)
        return found if isinstance(found, list) else [{"role": "user", "content": history}]
    turns = history if isinstance(history, list | tuple) else [history]
    if all(isinstance(one, Mapping) for one in turns):
        return list(turns)
    if all(isinstance(one, list | tuple) and len(one) == 2 for one in turns):
        return [{"role": role, "content": str(text)} for pair in turns
                for role, text in zip(("user", "assistant"), pair, strict=True)]  # fmt: skip
    if all(isinstance(one, str) for one in turns):
        return [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(turns)]
    raise ChatError(f"history holds earlier turns as pairs, messages or texts, this is {str(history)[:80]!r}")


def cut_after(messages: Sequence[Any], turn: int) -> list[Any]:
    """A conversation up to the assistant's answer with this number, counted from 1."""
    answers = [k for k, one in enumerate(messages) if isinstance(one, Mapping) and _role_of(one) == "assistant"]
    return list(messages) if not 0 < turn <= len(answers) else list(messages[: answers[turn - 1] + 1])


def _role_of(message: Mapping[str, Any]) -> str:
    named = str(message.get("role", message.get("from")))
    return _ALIASES.get(named, named)


def context_of(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What `Episode.context` is of this conversation: nothing for one user's turn, which the task says already."""
    alone = [{"role": "user", "content": messages[0]["content"]}] if messages else []
    return () if list(messages) == alone else tuple(messages)


def asked_key(question: str, context: Sequence[Message] = (), tools: Sequence[Tool] = ()) -> str:
    """A text that is equal for equal conversations only: a lone question itself, else all that there is as JSON."""
    if not context and not tools:
        return question
    return json.dumps([question, list(context), list(tools)], sort_keys=True)


def split_answer(messages: Sequence[Message]) -> tuple[tuple[Message, ...], str]:
    """A conversation, and the assistant's answer that ends it.

    Raises:
        ChatError: it does not end with an answer, the answer is not text alone, or there is no turn of a user.
    """
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise NoResponseError("messages must end with a question and the assistant's answer to it")
    question_of(messages[:-1])
    return tuple(messages[:-1]), answer_text(messages[-1])


def turn_text(message: Message) -> str:
    """What a turn says, calls of tools included, which are JSON in `<tool_call>`."""
    calls = [
        "<tool_call>\n" + json.dumps(call["function"], ensure_ascii=False) + "\n</tool_call>"
        for call in message.get("tool_calls") or ()
    ]
    return "\n".join([*([message["content"]] if message["content"] or not calls else []), *calls])


def answer_text(message: Message) -> str:
    """The text of an answer; reasoning in a field of its own is not part of it.

    Raises:
        NoResponseError: it is a call of tools, or not the assistant's.
    """
    if message["role"] != "assistant":
        raise NoResponseError(f"a response is a message of the assistant, this one's role is {message['role']}")
    if message.get("tool_calls"):
        raise NoResponseError("the response has tool_calls, and a response is scored as text: score the answer to them")
    return str(message["content"])


_MEDIA = ("image", "video", "audio")


def media_in(roles: Mapping[str, Any]) -> str:
    """What a row has besides text: `images`, `videos` or `audio`, in a column or in its messages; empty: nothing."""
    seen = next((role for role in ("images", "videos", "audio") if roles.get(role)), "")
    return seen or _media_of(roles.get("prompt")) or _media_of(roles.get("messages"))


def _media_of(messages: Any) -> str:
    """What messages have besides text, in the words of `media_in`."""
    turns = messages if isinstance(messages, list | tuple) else ()
    contents = [turn.get("content") for turn in turns if isinstance(turn, Mapping)]
    parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
    kinds = " ".join(str(part.get("type")) for part in parts if isinstance(part, Mapping))
    found = next((medium for medium in _MEDIA if medium in kinds), "")
    return f"{found}s" if found in ("image", "video") else found


def beyond_question(context: Sequence[Message], tools: Sequence[Tool]) -> str:
    """What there is besides one user's turn, in words; empty where there is nothing."""
    kinds = [m["role"] for m in context if m["role"] != "system" or m["content"].strip()]
    counts = {
        "system turn": kinds.count("system"), "other turn": len(kinds) - kinds.count("system") - 1, "tool": len(tools),
    }  # fmt: skip
    return " and ".join(f"{n} {what}{'s' * (n > 1)}" for what, n in counts.items() if n > 0)
