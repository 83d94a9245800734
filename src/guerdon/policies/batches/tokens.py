r"""The one place where text becomes token ids: for training, scoring, evaluation and serving alike.

A prompt is what the chat template makes of the messages, with the opening of the assistant's turn. Models of guerdon's
read a response that is tokenised by itself and closed by the end-of-sequence token, so that its ids never depend on
the prompt (`response_ids`). Published ones read a finished conversation as `apply_chat_template` writes it, with
whatever the template puts behind the answer (`conversation_ids`). A model scored on ids put together otherwise than it
was trained on loses several points (ProcessBench, pull request 12). A conversation of which a template would leave
something out, such as a system turn or tools, is refused. Steps are found in the text and mapped back to the tokens
that were there; nothing is tokenised a second time.

    prompt = prompt_ids(tokenizer, [{"role": "user", "content": "3+5=?"}])
    ids = sequence(prompt, response_ids(tokenizer, "3+5=8"))
    ids = conversation_ids(tokenizer, [{"role": "user", "content": "3+5=?"}, {"role": "assistant", "content": "8"}])
    ends_S = step_ends(token_ends(tokenizer, ids, text), text, separator="\n")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from guerdon.errors import ConfigError, DataError, boundary
from guerdon.policies.batches.control_tokens import ControlTokenError, ControlTokens, control_tokens, restored
from guerdon.policies.pretrained.chat_template import render
from guerdon.reading.chats import ChangedTextError, ChatError, check_characters
from guerdon.tasks.replies import opened_reasoning
from guerdon.types import BoolArray, IntArray, Message, Tool

AT_ONCE = 1024  # chats that are tokenised together
_BROKEN = "\ufffd"  # what a tokenizer shows for bytes that are not a whole character
_PIECES: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()  # tokenizer to the text of its tokens


class TokenizerError(DataError):
    """A tokenizer raised on a text; those of the library tokenizers can also panic, as on a regular expression.

    Attributes:
        reason: of the `Failure` that it is for one item.
    """

    reason = "tokenizer_error"


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """B prompts with a response each.

    Attributes:
        prompts: B ragged arrays of ids, chat template and the opening of the assistant's turn included.
        responses_B_T: (B, T) int64, padded on the right.
        mask_B_T: (B, T) bool, True at response tokens, the end-of-sequence token included.
        finished_B: (B,) bool, True where the response ended by itself, False where the length limit cut it.
        follows_B: (B,) the row whose prompt and response the prompt of a row begins with, -1 where there is none; None:
            nowhere.
    """

    prompts: tuple[IntArray, ...]
    responses_B_T: IntArray
    mask_B_T: BoolArray
    finished_B: BoolArray
    follows_B: IntArray | None = None

    def __post_init__(self) -> None:
        b, shape = len(self.prompts), self.responses_B_T.shape
        if self.mask_B_T.shape != shape or shape[0] != b or self.finished_B.shape != (b,):
            raise ValueError(
                f"a batch of {b} prompts has responses {shape}, mask {self.mask_B_T.shape}, "
                f"finished {self.finished_B.shape}"
            )
        if (self.mask_B_T[:, 1:] & ~self.mask_B_T[:, :-1]).any():
            raise ValueError("responses must be padded on the right: a mask is True, then False")

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths_B(self) -> IntArray:
        """(B,) tokens of each response."""
        return np.asarray(self.mask_B_T.sum(axis=1), dtype=np.int64)

    def responses(self) -> list[IntArray]:
        """The B responses without padding."""
        return [row[:n] for row, n in zip(self.responses_B_T, self.lengths_B, strict=True)]

    def sequences(self) -> list[IntArray]:
        """The B sequences, prompt and response, without padding."""
        return [sequence(p, r) for p, r in zip(self.prompts, self.responses(), strict=True)]

    def take(self, rows: Sequence[int] | np.ndarray) -> TokenBatch:
        """The rows of these indices or of this mask, in order; T shrinks to the longest of them."""
        index = np.asarray(rows)
        index = np.flatnonzero(index) if index.dtype == np.bool_ else index.astype(np.int64)
        mask = self.mask_B_T[index]
        width = int(mask.sum(axis=1).max(initial=0))
        return TokenBatch(
            tuple(self.prompts[i] for i in index), self.responses_B_T[index, :width], mask[:, :width],
            self.finished_B[index], self._followed(index),
        )  # fmt: skip

    def _followed(self, index: IntArray) -> IntArray | None:
        """`follows_B` of some rows."""
        if self.follows_B is None:
            return None
        place = np.full(len(self) + 1, -1, dtype=np.int64)  # the last one stays -1
        place[index] = np.arange(len(index))
        found = place[self.follows_B[index]]
        return found if (found >= 0).any() else None


def token_batch(
    prompts: Sequence[IntArray], responses: Sequence[IntArray], finished_B: BoolArray, *, pad_id: int
) -> TokenBatch:
    """A batch from ragged rows."""
    responses_B_T, mask_B_T = pad_right(responses, pad_id)
    return TokenBatch(tuple(prompts), responses_B_T, mask_B_T, np.asarray(finished_B, dtype=np.bool_))


def concatenate(batches: Sequence[TokenBatch], *, pad_id: int) -> TokenBatch:
    """Several batches as one, in order."""
    found = token_batch(
        [p for b in batches for p in b.prompts],
        [r for b in batches for r in b.responses()],
        np.concatenate([b.finished_B for b in batches]),
        pad_id=pad_id,
    )
    if all(b.follows_B is None for b in batches):
        return found
    starts = np.cumsum([0, *(len(b) for b in batches)])
    follows = [np.full(len(b), -1) if b.follows_B is None else b.follows_B for b in batches]
    placed = [np.where(own >= 0, own + start, -1) for own, start in zip(follows, starts, strict=False)]
    return replace(found, follows_B=np.concatenate(placed))


def joined_turns(batch: TokenBatch) -> tuple[TokenBatch, IntArray]:
    """Rows that follow each other as one row each, so that a network reads a conversation once.

    Args:
        batch: with `follows_B`.

    Returns:
        The rows; and for every response token of the batch, row by row, its place among the response tokens of these.
        What stands between the responses of a conversation is in the responses of the rows, too.
    """
    assert batch.follows_B is not None
    sequences, lengths_B = batch.sequences(), batch.lengths_B
    followed = set(batch.follows_B.tolist())
    whole_B = np.full(len(batch), -1, dtype=np.int64)
    first: list[int] = []
    last = [row for row in range(len(batch)) if row not in followed]
    for number, row in enumerate(last):
        first.append(row)
        while row >= 0 and whole_B[row] < 0:  # several rows may follow one: it is read with the first of them
            whole_B[row], first[-1] = number, row
            row = int(batch.follows_B[row])
    prompts = [batch.prompts[row] for row in first]
    responses = [sequences[end][len(prompt) :] for end, prompt in zip(last, prompts, strict=True)]
    starts = np.cumsum([0, *map(len, responses)])
    begins = [
        starts[whole] + len(own) - len(prompts[whole])
        for own, whole in zip(batch.prompts, whole_B.tolist(), strict=True)
    ]
    places = np.concatenate([begin + np.arange(n) for begin, n in zip(begins, lengths_B, strict=True)])
    joined = token_batch(prompts, responses, np.ones(len(last), dtype=np.bool_), pad_id=0)
    return joined, places.astype(np.int64)


def prompt_ids(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> IntArray:
    """Ids of a chat up to the opening of the assistant's turn.

    The template alone decides about a beginning-of-sequence token; the tokenizer adds none of its own, so there are
    never two.

    Args:
        tokenizer: a transformers tokenizer.
        messages: chat messages with `role` and `content`.
        tools: functions that can be called, as JSON schemas.

    Raises:
        ConfigError: the tokenizer has no chat template.
        ChatError: the template refuses the chat, or leaves something of it out.
        ControlTokenError: there is a control token in it that the tokenizer cannot read as plain text.
        DataError: a character the tokenizer does not know; or the tokenizer raised.
    """
    return _chat_ids(tokenizer, _written(tokenizer, messages, tools, answered=False))


def conversation_ids(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> IntArray:
    """Ids of a finished chat: those of `tokenizer.apply_chat_template(messages, tools=tools)`.

    What the template writes behind the last turn (an end of turn, a new line) is there, and nothing else. Control
    tokens in messages and tools are plain text, as everywhere here.

    Args:
        tokenizer: a transformers tokenizer.
        messages: chat messages, the last one the assistant's answer.
        tools: functions that can be called, as JSON schemas.

    Raises:
        ConfigError: the tokenizer has no chat template.
        ChatError: the template refuses the chat, or leaves something of it out.
        ControlTokenError: there is a control token in it that the tokenizer cannot read as plain text.
        DataError: a character the tokenizer does not know; or the tokenizer raised.
    """
    return _chat_ids(tokenizer, _written(tokenizer, messages, tools, answered=True))


def prompt_lengths(
    tokenizer: Any, chats: Sequence[Sequence[Message]], tools: Sequence[Sequence[Tool]] | None = None
) -> list[int]:
    """Tokens of many chats, as `prompt_ids` gives them; many at a time, which is faster.

    Args:
        tokenizer: a transformers tokenizer.
        chats: messages of each.
        tools: of each; None: none.

    Raises:
        ConfigError: the tokenizer has no chat template.
        ChatError: the template refuses a chat, or leaves something of it out.
        ControlTokenError: there is a control token in one that the tokenizer cannot read as plain text.
        DataError: a character the tokenizer does not know; or the tokenizer raised.
    """
    lengths: list[int] = []
    given = [()] * len(chats) if tools is None else tools
    controls = control_tokens(tokenizer)
    for start in range(0, len(chats), AT_ONCE):
        part = [
            _written(tokenizer, messages, own, answered=False)
            for messages, own in zip(chats[start : start + AT_ONCE], given[start : start + AT_ONCE], strict=True)
        ]
        for one in part:
            check_characters(one.text)
        try:
            found = tokenized(tokenizer, [one.text for one in part])["input_ids"]
        except TokenizerError:
            found = [_encode(tokenizer, one.text).tolist() for one in part]  # which says of which text
        for one, row in zip(part, found, strict=True):
            ids = np.asarray(row, dtype=np.int64)
            usual = not one.hidden and tokenizer.unk_token_id not in row and controls.written(ids, one.text)
            lengths.append(len(ids) if usual else len(_chat_ids(tokenizer, one)))
    return lengths


def tokenized(tokenizer: Any, texts: str | list[str], *, special: bool = False, **options: Any) -> Any:
    """What a tokenizer makes of a text or of several, as a call of it returns it.

    Args:
        tokenizer: a transformers tokenizer.
        texts: without half characters.
        special: whether the tokenizer adds its own beginning and end.
        **options: of the call.

    Raises:
        TokenizerError: it raised, or panicked.
    """
    with boundary(TokenizerError, "the tokenizer raised"):
        return tokenizer(texts, add_special_tokens=special, **options)


def response_ids(tokenizer: Any, text: str) -> IntArray:
    """Ids of a finished response: its text and the end-of-sequence token.

    Raises:
        ConfigError: the tokenizer has no end-of-sequence token.
        ControlTokenError: there is a control token in it that the tokenizer cannot read as plain text.
        DataError: a character the tokenizer does not know; or the tokenizer raised.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-sequence token: set tokenizer.eos_token and save it")
    return np.append(piece_ids(tokenizer, [text])[0], np.int64(tokenizer.eos_token_id))


def piece_ids(tokenizer: Any, texts: Sequence[str]) -> list[IntArray]:
    """Ids of pieces of text, each by itself, with nothing before or after it; control tokens in them are plain text.

    Raises:
        ControlTokenError: there is a control token in one that the tokenizer cannot read as plain text.
        DataError: a character the tokenizer does not know; or the tokenizer raised.
    """
    if not texts:
        return []
    for text in texts:
        check_characters(text)
    found = tokenized(tokenizer, list(texts), return_attention_mask=False)["input_ids"]
    pieces = [np.array(ids, dtype=np.int64) for ids in found]
    controls, unknown = control_tokens(tokenizer), tokenizer.unk_token_id
    for k, (text, ids) in enumerate(zip(texts, pieces, strict=True)):
        if controls.among(ids, text):
            pieces[k] = _plain_ids(tokenizer, controls, text, {})
        elif unknown is not None and (ids == unknown).any():
            pieces[k] = _encode(tokenizer, text)  # which says what is unknown, or that it is not
    return pieces


def sequence(prompt: IntArray, response: IntArray) -> IntArray:
    """A prompt and its response as the model reads them."""
    return np.concatenate([prompt, response])


def pad_id(tokenizer: Any) -> int:
    """The id that fills up rows: the tokenizer's own, else its end-of-sequence token (a mask tells them apart)."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)


def check_vocabulary(tokenizer: Any, embeddings: int) -> None:
    """Make sure that a model has an embedding for every token.

    Args:
        tokenizer: with the tokens that were added to it.
        embeddings: that the model has.

    Raises:
        ConfigError: it has fewer.
    """
    if len(tokenizer) > embeddings:
        raise ConfigError(
            f"the tokenizer has {len(tokenizer)} tokens, the model only {embeddings}: call the model's "
            "resize_token_embeddings(len(tokenizer)) and save it again, or take the added tokens (a padding token, "
            "often) out of the tokenizer"
        )


def stop_ids(tokenizer: Any, generation_config: Any = None) -> IntArray:
    """Ids that end a response: the tokenizer's end of sequence and those of the model's generation config."""
    given = getattr(generation_config, "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(given if isinstance(given, list | tuple) else [given])} - {None}
    return np.array(sorted(ids), dtype=np.int64)


def pad_right(rows: Sequence[IntArray], value: int) -> tuple[IntArray, BoolArray]:
    """(B, T) ids filled up on the right, and the mask of those that are real."""
    lengths = np.array([len(r) for r in rows], dtype=np.int64)
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    padded = np.full(mask.shape, value, dtype=np.int64)
    if mask.any():
        padded[mask] = np.concatenate(rows)
    return padded, mask


def pad_left(rows: Sequence[IntArray], value: int) -> tuple[IntArray, BoolArray]:
    """(B, T) ids filled up on the left, and the mask of those that are real."""
    padded, mask = pad_right([r[::-1] for r in rows], value)
    return padded[:, ::-1].copy(), mask[:, ::-1].copy()


def response_texts(tokenizer: Any, batch: TokenBatch) -> list[str]:
    """The text of each response, without special tokens."""
    return [decode(tokenizer, r) for r in batch.responses()]


def judged_texts(tokenizer: Any, batch: TokenBatch, texts: Sequence[str]) -> list[str]:
    """The text of each response for a verifier, after the reasoning tag that the chat template opened, if any.

    Args:
        tokenizer: a transformers tokenizer.
        batch: prompts and responses.
        texts: `response_texts` of it.
    """
    tails = [tuple(p[-40:].tolist()) for p in batch.prompts]  # several responses have the same prompt
    found = {t: opened_reasoning(tokenizer.decode(list(t), clean_up_tokenization_spaces=False)) for t in set(tails)}
    begun = [found[tail] for tail in tails]
    rows = zip(begun, batch.responses(), texts, strict=True)
    end = tokenizer.eos_token or "\0"  # marks of reasoning may be special tokens
    return [start + tokenizer.decode(ids.tolist()).removesuffix(end) if start else text for start, ids, text in rows]


def token_ends(tokenizer: Any, ids_T: IntArray, text: str | None = None) -> IntArray:
    """(T,) how much of the response's text is there after each token, in characters.

    A token that ends inside a character counts up to the last whole one.

    Args:
        tokenizer: a transformers tokenizer.
        ids_T: a response.
        text: its text, where the caller has it.
    """
    text = decode(tokenizer, ids_T) if text is None else text
    pieces = _pieces(tokenizer, ids_T)
    if "".join(pieces) == text and _BROKEN not in text:
        return np.cumsum(np.array([len(p) for p in pieces], dtype=np.int64))
    return _ends_in_context(tokenizer, ids_T, len(text))


def _pieces(tokenizer: Any, ids_T: IntArray) -> list[str]:
    """The text of each token by itself, decoded once per tokenizer.

    A piece that a tokenizer changed meanwhile is harmless: pieces count only where they add up to the text.
    """
    known = _PIECES.setdefault(tokenizer, {})
    ids = ids_T.tolist()
    for i in set(ids) - known.keys():
        known[i] = decode(tokenizer, [i])
    return [known[i] for i in ids]


def _ends_in_context(tokenizer: Any, ids_T: IntArray, length: int) -> IntArray:
    """`token_ends` for pieces that depend on their neighbours: a character in several tokens, a swallowed space."""
    ends = np.zeros(len(ids_T), dtype=np.int64)
    before = done = reached = 0  # tokens before:done are the context of the next ones
    for t in range(len(ids_T)):
        longer = decode(tokenizer, ids_T[before : t + 1])
        if not longer.endswith(_BROKEN):
            reached += len(longer) - len(decode(tokenizer, ids_T[before:done]))
            before, done = done, t + 1
        ends[t] = reached
    return np.minimum(ends, length)


def split_steps(text: str, separator: str) -> list[str]:
    """The steps of a solution, each with the separator that closes it; joined, they are the text again.

    A piece of nothing but spaces and separators is not a step of its own: it belongs to the one before it (at the
    start, to the one after it). An empty text is one empty step.
    """
    *closed, last = text.split(separator)
    steps: list[list[str]] = []
    blank = False  # whether the step so far holds nothing but spaces and separators
    for piece, empty in [*((p + separator, not p.strip()) for p in closed), (last, not last.strip())]:
        if steps and (blank or empty):
            steps[-1].append(piece)
            blank = blank and empty
        else:
            steps.append([piece])
            blank = empty
    return ["".join(step) for step in steps]


def step_ends(ends_T: IntArray, text: str, separator: str) -> IntArray:
    r"""(S,) index of the last token of each step; the last token ends the last step.

    A token that straddles the end of a step (such as `.\n` or `\n\nSo`) ends it. Two steps inside one token have
    the same index, so that there is exactly one index per step of `split_steps`.

    Args:
        ends_T: of `token_ends`.
        text: the response's text.
        separator: closes a step.
    """
    if len(ends_T) == 0:
        return np.zeros(0, dtype=np.int64)
    closes_S = np.cumsum([len(s) for s in split_steps(text, separator)])
    found_S = np.minimum(np.searchsorted(ends_T, closes_S, side="left"), len(ends_T) - 1)
    found_S[-1] = len(ends_T) - 1
    return np.asarray(found_S, dtype=np.int64)


def added_ids(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool], known: int, replies: Mapping[int, bool]
) -> IntArray | None:
    """What the chat template adds behind the last reply of a conversation, up to the opening of the next turn.

    Replies stand as marks in the conversation, so that the template has no say in how they are written: the ids that
    the model sampled stay as they are.

    Args:
        tokenizer: a transformers tokenizer.
        messages: of the conversation.
        tools: functions that can be called.
        known: messages that the ids so far hold; the last of them is a reply.
        replies: place of each reply of the model, and whether it begins with reasoning.

    Returns:
        Ids from the end of that reply on; None where the template writes the known messages otherwise than before.

    Raises:
        ControlTokenError: a control token in a message cannot be read as plain text.
        DataError: a character that the tokenizer does not know; or the tokenizer raised.
    """
    marks = {place: (f"gk6r{place}q7x", f"gk6v{place}q7x") for place in replies}
    chat = [*messages]
    for place, reasons in replies.items():
        reasoning, said = marks[place]
        content = f"<think>\n{reasoning}\n</think>\n\n{said}" if reasons else said
        chat[place] = {"role": "assistant", "content": content}
    controls, hidden = control_tokens(tokenizer), dict[str, str]()
    chat, functions = controls.hide(chat, hidden), controls.hide(tools, hidden)
    try:
        before = _rendered(tokenizer, chat[: known - 1], functions, answered=False)
        after = _rendered(tokenizer, chat, functions, answered=False)
    except ChatError:
        return None
    reasoning, said = marks[known - 1]
    begun, found, added = after.removeprefix(before).partition(said)
    kept = not replies[known - 1] or reasoning in begun
    if not after.startswith(before) or not found or not kept or len(begun) > len(reasoning) + _MOST_MARKS:
        return None
    for message in chat[known:]:
        text = message["content"].strip()
        if text not in added and json.dumps(text)[1:-1] not in added and message["role"] != "assistant":
            return None
    return _plain_ids(tokenizer, controls, added, hidden) if hidden else _encode(tokenizer, added)


_MOST_MARKS = 40  # characters of the marks of reasoning around a text


def chat_text(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool] = (), *, answered: bool) -> str:
    """The text that the chat template makes of a chat.

    Args:
        tokenizer: a transformers tokenizer.
        messages: chat messages.
        tools: functions that can be called, as JSON schemas.
        answered: the last message is the answer; otherwise the assistant's turn is opened.

    Raises:
        ConfigError: the tokenizer has no chat template.
        ChatError: the template refuses the chat, or leaves something of it out.
        ChangedTextError: it changes the text of a message.
    """
    if not tokenizer.chat_template:
        raise ConfigError(
            "the tokenizer has no chat template: name one (policy.chat_template), or use an instruct model",
            key="policy.chat_template",
        )
    text = _rendered(tokenizer, messages, tools, answered=answered)
    usual = [m["role"] for m in messages] in (["user"], ["user", "assistant"])
    if tools or not usual or any(m["content"].strip() not in text for m in messages):
        chat, functions, marks = _marked(messages, tools)
        again = _rendered(tokenizer, chat, functions, answered=answered)
        lost = next((what for mark, what in marks.items() if mark not in again), None)
        if lost is not None:
            raise ChatError(f"the chat template leaves out {lost}, so the model cannot be given this conversation")
    check_unchanged(messages, text)
    return text


def _rendered(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool], *, answered: bool) -> str:
    chat, functions = [dict(m) for m in messages], [dict(t) for t in tools]
    return render(tokenizer, chat, functions or None, add_generation_prompt=not answered)


@dataclass(frozen=True)
class _Written:
    """A chat as its template writes it.

    Attributes:
        text: all of it.
        marked: where messages or tools bring control tokens: the same with marks in their place.
        hidden: what the marks stand for; empty where all control tokens are the template's.
    """

    text: str
    marked: str = ""
    hidden: Mapping[str, str] = field(default_factory=dict)


def _written(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool], *, answered: bool) -> _Written:
    """A chat as its template writes it, and the control tokens in it that are not the template's.

    Raises:
        ConfigError: see `chat_text`.
        ChatError: see `chat_text`.
        ControlTokenError: the template writes something else where a message has a control token.
    """
    text = chat_text(tokenizer, messages, tools, answered=answered)
    controls, hidden = control_tokens(tokenizer), dict[str, str]()
    chat, functions = controls.hide(messages, hidden), controls.hide(tools, hidden)
    if not hidden:
        return _Written(text)
    marked = _rendered(tokenizer, chat, functions, answered=answered)
    same = restored(marked, hidden) == text
    if not same and controls.holds_whole(hidden):
        raise ControlTokenError(
            "a message has a control token, and the chat template writes another conversation because of it: remove it"
        )
    if not same or controls.find(marked) == controls.find(text):
        return _Written(text)
    return _Written(text, marked, hidden)


def check_unchanged(messages: Sequence[Mapping[str, Any]], text: str) -> None:
    """Refuse the text that a chat template wrote if it changes the messages.

    Spaces around a message may be left out, and reasoning (up to `</think>`) of an assistant's turn before the last
    message. Messages must follow each other in the text, except system messages, which some templates move into the
    last turn.

    Args:
        messages: of the chat; of content in parts, only those of type text are compared.
        text: what the template made of them.

    Raises:
        ChangedTextError: a message of the system, the user or the assistant is not in the text unchanged.
    """
    done = 0
    for k, message in enumerate(messages):
        content = message["content"]
        parts = [content] if isinstance(content, str) else [p["text"] for p in content or () if p["type"] == "text"]
        if message["role"] not in ("system", "user", "assistant") or message.get("tool_calls"):
            continue  # functions and what they return are data, which templates write in forms of their own
        for part in parts:
            said = part if k == len(messages) - 1 or message["role"] != "assistant" else part.rpartition("</think>")[2]
            system = message["role"] == "system"
            found = text.find(said.strip(), 0 if system else done)
            done = done if system else found + len(said.strip())
            if found < 0:
                raise ChangedTextError(
                    f"the chat template changes message {k + 1} (role {message['role']}), for example by leaving out "
                    "the part before </think>: the model would read another text than was given"
                )


def _marked(
    messages: Sequence[Message], tools: Sequence[Tool]
) -> tuple[Sequence[Message], Sequence[Tool], dict[str, str]]:
    """A chat and tools with a mark in each part, and by mark what the part is."""
    marks: dict[str, str] = {}

    def marked(text: str, what: str) -> str:
        mark = f"gk3v{len(marks)}q7x"  # letters and digits, which no template changes
        marks[mark] = what
        return text + mark

    def called(function: Mapping[str, Any], what: str) -> dict[str, Any]:
        inner = function["function"]
        return {**function, "function": {**inner, "name": marked(inner["name"], what)}}

    chat: list[Message] = []
    for k, message in enumerate(messages):
        what = f"message {k + 1} (role {message['role']})"
        said = message["content"]
        own: dict[str, Any] = {**message, "content": marked(said, what) if said.strip() else said}
        if message.get("tool_calls"):
            own["tool_calls"] = [called(call, f"tool_calls of {what}") for call in message["tool_calls"]]
        chat.append(own)
    return chat, [called(tool, "the tools") for tool in tools], marks


def _chat_ids(tokenizer: Any, chat: _Written) -> IntArray:
    controls = control_tokens(tokenizer)
    if chat.hidden:
        return _plain_ids(tokenizer, controls, chat.marked, chat.hidden)
    ids = _encode(tokenizer, chat.text)
    if not controls.written(ids, chat.text):
        raise ControlTokenError("a text becomes a control token only when the tokenizer normalizes it: remove it")
    return ids


def _plain_ids(tokenizer: Any, controls: ControlTokens, text: str, hidden: Mapping[str, str]) -> IntArray:
    """Ids of a text in which the control tokens that were hidden are plain text.

    Args:
        tokenizer: a transformers tokenizer.
        controls: of it.
        text: what a template wrote, with marks; or, without any, a text of which nothing is a control token.
        hidden: what the marks stand for.

    Raises:
        ControlTokenError: the tokenizer cannot read them so.
        DataError: a character the tokenizer does not know.
    """
    reader = controls.reader(tokenizer)
    own = [controls.ids[token] for token in controls.find(text)] if hidden else []
    given, shown = reader.named(text, controls, hidden) if hidden else text, restored(text, hidden)
    ids = reader.own_ids(_encode(reader.tokenizer, given, shown=shown, split_special_tokens=True))
    if controls.among(ids, shown) != own:
        raise ControlTokenError("the tokenizer makes a control token of plain text: remove it from the text")
    return ids


def _encode(tokenizer: Any, text: str, *, shown: str | None = None, **how: Any) -> IntArray:
    check_characters(text)
    with boundary(TokenizerError, f"the tokenizer raised on {text[:80]!r}"):
        ids = np.array(tokenizer.encode(text, add_special_tokens=False, **how), dtype=np.int64)
    unknown = tokenizer.unk_token_id
    special = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
    if unknown is not None and unknown not in special and (ids == unknown).any():
        where = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, **how)["offset_mapping"]
        strange = dict.fromkeys(text[a:b] for (a, b), i in zip(where, ids, strict=True) if i == unknown)
        said = (text if shown is None else shown)[:80]
        raise DataError(f"the tokenizer does not know {', '.join(map(repr, strange))} in {said!r}")
    return ids


def decode(tokenizer: Any, ids: Sequence[int] | IntArray) -> str:
    """The text of token ids, without special tokens."""
    return str(tokenizer.decode(np.asarray(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
