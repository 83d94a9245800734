"""Keys of a row by their kind; every error names the place of the row and the key.

fields = RowFields(row, "train.jsonl:3")
fields.text("prompt"), fields.numbers("labels")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from guerdon.errors import DataError
from guerdon.files.bounds import Unparsed, json_of_text
from guerdon.reading.chats import ChatError, chat_messages, context_of, question_of, tool_schemas
from guerdon.types import Message, Tool


class RowFields:
    """Reads the keys of a row; every error names the row's place.

    Args:
        row: a mapping; a null counts as absent.
        where: file and line.

    Raises:
        DataError: it is not a mapping; the methods raise it for a missing key or a value of another type.
    """

    def __init__(self, row: Any, where: str) -> None:
        if not isinstance(row, Mapping):
            raise DataError(f"a row must be a map of keys, this is {type(row).__name__}", where=where)
        self.row, self.where = row, where

    def get(self, key: str, kind: type | tuple[type, ...], wanted: str, default: Any = ...) -> Any:
        """The value of a key; without a default it must be there."""
        value = self.row.get(key)
        if value is None:
            if default is ...:
                raise DataError(f"no {key}; found {', '.join(map(str, self.row))}", where=self.where, field=key)
            return default
        numeric = kind in (int, (int, float))
        beyond = kind is not int and is_beyond_float(value)
        if not isinstance(value, kind) or (numeric and isinstance(value, bool)) or beyond:
            raise DataError(f"{key} must be {wanted}, this is {str(value)[:80]!r}", where=self.where, field=key)
        return value

    def text(self, key: str, default: Any = ...) -> Any:
        """A string."""
        return self.get(key, str, "text", default)

    def texts(self, key: str, default: Any = ...) -> Any:
        """A list of strings, as a tuple."""
        return self._items(key, "texts", lambda v: isinstance(v, str), default)

    def integers(self, key: str, default: Any = ...) -> Any:
        """A list of whole numbers, as a tuple."""
        return self._items(key, "whole numbers", lambda v: isinstance(v, int) and not isinstance(v, bool), default)

    def numbers(self, key: str, default: Any = ...) -> Any:
        """A list of numbers, booleans (as 1 and 0) and nulls, as a tuple of floats and None."""

        def fits(value: Any) -> bool:
            return value is None or (isinstance(value, int | float) and not is_beyond_float(value))

        values = self._items(key, "numbers, true and false", fits, default)
        if values is None:
            return None
        return tuple(None if value is None else float(value) for value in values)

    def _items(self, key: str, what: str, fits: Callable[[Any], bool], default: Any) -> Any:
        values = self.get(key, (list, tuple), f"a list of {what}", default)
        if not all(map(fits, values or ())):
            raise DataError(f"{key} must hold {what} only, this is {str(values)[:80]}", where=self.where, field=key)
        return values if values is None else tuple(values)

    def meta(self) -> dict[str, Any]:
        """The `meta` of a row: a map, or a map in JSON (Parquet)."""
        self.get("meta", (Mapping, str), "a map", default={})
        found = self.from_json("meta") or {}
        if not isinstance(found, Mapping):
            raise DataError(f"meta must be a map, this is {str(found)[:80]!r}", where=self.where, field="meta")
        return dict(found)

    def from_json(self, key: str) -> Any:
        """The value of a key, or what it says in JSON."""
        value = self.row.get(key)
        if not isinstance(value, str):
            return value
        try:
            return json_of_text(value)
        except Unparsed as error:
            raise DataError(f"{key} is not JSON: {error.more or error}", where=self.where, field=key) from error

    def messages(self, key: str) -> tuple[Message, ...]:
        """Chat messages, or such in JSON (Parquet); none where the key is absent."""
        value = self.from_json(key)
        with self.reading(key):
            return chat_messages(value) if value else ()

    def tools(self) -> tuple[Tool, ...]:
        """The functions of the column `tools`, as JSON schemas."""
        with self.reading("tools"):
            return tool_schemas(self.row.get("tools"))

    def question(self, key: str) -> dict[str, Any]:
        """`question` of a solution, and its `context` where the value is chat messages that end with the question."""
        if not isinstance(self.row.get(key), list | tuple):
            return {"question": self.text(key)}
        messages = self.messages(key)
        with self.reading(key):
            return {"question": question_of(messages), "context": context_of(messages)}

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Puts the place in front of what is wrong with a conversation."""
        try:
            yield
        except ChatError as error:
            raise DataError(f"{key}: {error}", where=self.where, field=key) from error


def is_beyond_float(value: Any) -> bool:
    """Whether a value is a whole number that no float can hold; those of JSON may have any length."""
    return isinstance(value, int) and abs(value) > sys.float_info.max
