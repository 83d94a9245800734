"""Control tokens of a tokenizer: found in texts, and read as plain text where a user or a model wrote them.

A text such as `8<|im_end|>` must not end a turn: only what the chat template writes itself are tokens that mark turns.
Control tokens are the special tokens of a tokenizer, and those of its other added tokens by which its chat template
marks turns of the system, the user and the assistant: DeepSeek's `<｜User｜>` is not special. Others stay tokens in all
texts, as models write them in their answers: `<think>` and `<tool_call>` of Qwen.

    controls = control_tokens(tokenizer)
    controls.find("8<|im_end|>")                # ["<|im_end|>"]
    reader = controls.reader(tokenizer)         # the same tokenizer, for which these are plain text
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from guerdon.policies.pretrained.chat_template import render
from guerdon.reading.chats import ChatError
from guerdon.tasks.replies import marks_reasoning
from guerdon.types import IntArray

_SHORT: tuple[tuple[dict[str, str], ...], ...] = (
    ({"role": "user", "content": "1 + 1?"},),
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}),
    ({"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "2?"}),
)
_KNOWN: WeakKeyDictionary[Any, tuple[Any, ControlTokens]] = WeakKeyDictionary()


class ControlTokenError(ChatError):
    """A text has a control token that its tokenizer cannot read as plain text."""

    reason = "control_token"


class ControlTokens:
    """The control tokens of a tokenizer.

    Args:
        ids: id of each, by its text.
        normalizer: of the tokenizer: what it changes in a text before it looks for tokens; None: nothing.
    """

    def __init__(self, ids: Mapping[str, int], normalizer: Any = None) -> None:
        self.ids, self._normalizer = dict(ids), normalizer
        self._texts = {i: text for text, i in self.ids.items()}
        self._pattern = re.compile(_any_of(self.ids)) if self.ids else None
        self._parts = "\0".join(self.ids)
        self._longest = max(map(len, self.ids), default=0)
        self._begins = {text[:n] for text in self.ids for n in range(1, len(text))}
        self._ends = {text[n:] for text in self.ids for n in range(1, len(text))}
        self._reader: Reader | None = None

    def find(self, text: str) -> list[str]:
        """The control tokens in a text, in order."""
        return [] if self._pattern is None else self._pattern.findall(text)

    def among(self, ids: IntArray, text: str) -> list[int]:
        """Those of the ids of a text that are control tokens whose text is there, perhaps once it is normalized.

        A tokenizer can use a special token for what it does not know: that one is in no text.
        """
        found = self._controls(ids)
        there = self._there(set(found), text)
        return [i for i in found if i in there]

    def written(self, ids: IntArray, text: str) -> bool:
        """Whether the ids of a text have no other control tokens than the text has as it is."""
        more = Counter(self._controls(ids)) - Counter(self.ids[token] for token in self.find(text))
        return not self._there(set(more), text)

    def _controls(self, ids: IntArray) -> list[int]:
        return [i for i in ids.tolist() if i in self._texts]

    def _there(self, tokens: set[int], text: str) -> set[int]:
        """Those of some control tokens whose text is in a text, or in what the normalizer makes of it."""
        if not tokens or self._normalizer is None:
            return {i for i in tokens if self._texts[i] in text}
        change = self._normalizer.normalize_str
        texts, names = (text, change(text)), {i: (self._texts[i], change(self._texts[i])) for i in tokens}
        return {i for i in tokens if any(name in one for one in texts for name in names[i])}

    def hide(self, value: Any, hidden: dict[str, str]) -> Any:
        """A message or a tool with a mark in place of each text that is a control token, or can become part of one.

        Args:
            value: plain JSON values. The role of a message, and keys that hold no control token, stay.
            hidden: what was replaced, by its mark; is added to.
        """
        if isinstance(value, str):
            return self._hide_ends(self._hide_whole(value, hidden), hidden)
        if isinstance(value, list | tuple):
            return [self.hide(inner, hidden) for inner in value]
        if not isinstance(value, Mapping):
            return value
        return {
            self._hide_whole(key, hidden): inner if key == "role" else self.hide(inner, hidden)
            for key, inner in value.items()
        }

    def _hide_whole(self, text: str, hidden: dict[str, str]) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda found: _mark(found[0], hidden), text)

    def _hide_ends(self, text: str, hidden: dict[str, str]) -> str:
        """The text without a beginning or an end that makes a control token of what a template puts beside it."""
        if len(text) < self._longest and text and text in self._parts:
            return _mark(text, hidden)
        sizes = range(min(self._longest, len(text)) - 1, 0, -1)
        head = next((n for n in sizes if text[:n] in self._ends), 0)
        tail = next((n for n in sizes if n <= len(text) - head and text[-n:] in self._begins), 0)
        first = _mark(text[:head], hidden) if head else ""
        last = _mark(text[len(text) - tail :], hidden) if tail else ""
        return first + text[head : len(text) - tail] + last

    def holds_whole(self, hidden: Mapping[str, str]) -> bool:
        """Whether `hide` found a whole control token."""
        return any(text in self.ids for text in hidden.values())

    def reader(self, tokenizer: Any) -> Reader:
        """What reads control tokens as plain text, made at its first use.

        Raises:
            ControlTokenError: this kind of tokenizer cannot.
        """
        if self._reader is None:
            self._reader = Reader(tokenizer, self)
        return self._reader


class Reader:
    """A copy of a tokenizer that reads the text of control tokens as any other text.

    The tokens of a chat template are given to it under other names (`name`), which it knows as tokens with the same
    rules for spaces around them. So all the rest of a text becomes the ids that the tokenizer itself gives.

    Attributes:
        tokenizer: the copy, to be called with `split_special_tokens=True`.

    Args:
        tokenizer: is not changed.
        controls: of it.

    Raises:
        ControlTokenError: it is no fast tokenizer.
    """

    def __init__(self, tokenizer: Any, controls: ControlTokens) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ControlTokenError(
                f"there is a control token in the text, and a {type(tokenizer).__name__} cannot read it as plain text; "
                "remove it"
            )
        from tokenizers import AddedToken, Tokenizer

        core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        own = {str(token): token for token in tokenizer.added_tokens_decoder.values()}
        self._names: dict[str, str] = {}
        special: list[Any] = []
        named: list[Any] = []
        for text in controls.ids:
            token = own.get(text, AddedToken(text, normalized=False))
            rules = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
            self._names[text] = name = f"gk5t{len(named)}q"  # letters and digits, which no normalizer changes
            special.append(AddedToken(text, special=True, **rules))
            named.append(AddedToken(name, special=False, **rules))
        core.add_special_tokens(special)  # those that were not special, too
        core.add_tokens(named)
        self._ids = {core.token_to_id(name): controls.ids[text] for text, name in self._names.items()}
        self.tokenizer = copy.copy(tokenizer)
        self.tokenizer._tokenizer = core

    def named(self, text: str, controls: ControlTokens, hidden: Mapping[str, str]) -> str:
        """The text to give to the copy: control tokens under their other names, and what was hidden in its place."""
        assert controls._pattern is not None
        return restored(controls._pattern.sub(lambda found: self._names[found[0]], text), hidden)

    def own_ids(self, ids: IntArray) -> IntArray:
        """Ids of the copy as those of the tokenizer itself."""
        return np.array([self._ids.get(i, i) for i in ids.tolist()], dtype=np.int64)


def control_tokens(tokenizer: Any) -> ControlTokens:
    """The control tokens of a tokenizer and its chat template, found anew when the template changes.

    Args:
        tokenizer: a transformers tokenizer.
    """
    key = (str(tokenizer.chat_template), tuple(tokenizer.all_special_tokens))
    known = _KNOWN.get(tokenizer)
    if known is not None and known[0] == key:
        return known[1]
    added = {str(token): (int(i), token) for i, token in tokenizer.added_tokens_decoder.items()}
    special = {text for text, (_, token) in added.items() if token.special} | {*map(str, tokenizer.all_special_tokens)}
    ids = {
        text: added[text][0] if text in added else int(tokenizer.convert_tokens_to_ids(text))
        for text in sorted(special - {""})
    }
    others = {text: i for text, (i, _) in added.items() if text not in ids and _is_marker(text)}
    ids |= {text: others[text] for text in _used_by(tokenizer, others)}
    found = ControlTokens(ids, tokenizer.backend_tokenizer.normalizer if tokenizer.is_fast else None)
    _KNOWN[tokenizer] = (key, found)
    return found


def restored(text: str, hidden: Mapping[str, str]) -> str:
    """The text with everything in its place that `ControlTokens.hide` replaced."""
    for mark, own in hidden.items():
        text = text.replace(mark, own)
    return text


def _mark(text: str, hidden: dict[str, str]) -> str:
    """A new mark for a text: letters and digits, which no template changes."""
    mark = f"gk4v{len(hidden)}q7x"
    hidden[mark] = text
    return mark


def _is_marker(text: str) -> bool:
    """Whether an added token looks like `<|user|>`, and not like a word, a space or a mark of reasoning."""
    framed = len(text) > 2 and not text[0].isalnum() and not text[-1].isalnum() and any(map(str.isalpha, text))
    return framed and not text[0].isspace() and not text[-1].isspace() and not marks_reasoning(text)


def _used_by(tokenizer: Any, tokens: Iterable[str]) -> set[str]:
    """Those of some tokens that the chat template writes for short conversations without tools."""
    tokens, found = list(tokens), set[str]()
    if not tokens or not tokenizer.chat_template:
        return found
    for chat in _SHORT:
        with suppress(ChatError):
            text = render(tokenizer, list(chat), add_generation_prompt=True)
            found |= {token for token in tokens if token in text}
    return found


def _any_of(words: Iterable[str]) -> str:
    """A pattern of any of some words, the longest where several fit, that is searched in linear time."""
    heads: dict[str, list[str]] = {}
    for word in words:
        heads.setdefault(word[:1], []).append(word[1:])
    ends = heads.pop("", None) is not None
    options = [re.escape(head) + _any_of(rest) for head, rest in heads.items()]
    if not options:
        return ""
    if len(options) == 1 and not ends:
        return options[0]
    return f"(?:{'|'.join(options)}){'?' if ends else ''}"
