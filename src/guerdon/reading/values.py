"""What the cells of one column are, and numbers, truth values and JSON made of cells.

A `Sketch` is of a whole column: a million rows are looked at one by one, and a few counts are kept. What a cell becomes
is decided from it for the column, never for a single cell.

    sketch = Sketch()
    for cell in cells: sketch.add(cell)
    sketch.numbers == sketch.filled          # whether every cell is a number or is written as one
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from guerdon.files.bounds import Unparsed, json_of_text

TRUE = frozenset(("true", "yes", "y", "t", "correct", "pass", "passed", "good", "right", "thumbs_up", "thumbs up", "up",
                  "positive", "desirable", "safe", "success", "+"))  # fmt: skip
FALSE = frozenset(("false", "no", "n", "f", "incorrect", "fail", "failed", "bad", "wrong", "thumbs_down", "thumbs down",
                   "down", "negative", "undesirable", "unsafe", "failure", "-"))  # fmt: skip
MISSING = frozenset(("", "nan", "null", "none", "n/a", "na"))
"""Words for a missing value, in columns whose other cells are numbers or truth values; in texts they are text."""
MOST_FIT = 0.95
"""Share of the filled cells of a column from which the others are rows left out, and not another kind of column."""

Kind = Literal["chat", "list", "map"]

_SHORT = 40  # characters of a text that may be a number or a word of a coding
_ODD = 20  # texts that begin like a list or a map and are none, after which no more are tried
_DISTINCT = 64  # different short cells that are kept
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*%?", re.IGNORECASE)
_EXAMPLE = 80  # characters of an example


class Sketch:
    """What is known of a column after each of its cells was added.

    Attributes:
        rows: cells.
        missing: of these, null ones.
        kinds: cells by their type: bool, int, float, str, list, dict.
        values: how often each short cell occurs, by `canonical`; None: there are more than 64 different ones.
        numbers: cells that are finite numbers, or are written as one.
        words: texts that are a word for a truth value.
        low, high: of these numbers.
        texts_of_lists: texts that are JSON, or Python's way to write it, of a list or a map.
        chats: cells that are chat messages, or one alone.
        kinds_of_texts: what the lists and maps in these texts are.
        item_keys: keys of the maps in lists, of the first in each.
        example: the first filled cell.
    """

    def __init__(self) -> None:
        self.rows = self.missing = self.numbers = self.words = self.texts_of_lists = self.chats = 0
        self.kinds: Counter[str] = Counter()
        self.values: Counter[str] | None = Counter()
        self.low, self.high = float("inf"), float("-inf")
        self.example: Any = None
        self.item_keys: set[str] = set()
        self.kinds_of_texts: set[Kind] = set()
        self._odd_texts = 0  # that begin like a list or a map and are none

    @property
    def filled(self) -> int:
        """Cells that are not null."""
        return self.rows - self.missing

    def add(self, cell: Any) -> None:
        """Count a cell."""
        self.rows += 1
        if cell is None or cell != cell:
            self.missing += 1
            return
        kind = type(cell).__name__
        self.kinds[kind] += 1
        if self.example is None:
            self.example = cell
        if kind == "str":
            self._add_text(cell)
        elif kind in ("bool", "int", "float"):
            self._add_number(cell)
        else:
            self.values = None
            self.chats += _kind_of(cell) == "chat"
            if kind == "list" and len(self.item_keys) < _DISTINCT:
                self.item_keys.update(next((one for one in cell if isinstance(one, Mapping)), ()))

    def _add_number(self, cell: float) -> None:
        number = finite(cell)
        if number is not None:
            self.numbers += 1
            self.low, self.high = min(self.low, number), max(self.high, number)
        if self.values is not None:
            self._add_value(canonical(cell))

    def _add_text(self, cell: str) -> None:
        if len(cell) > _SHORT:
            self.values = None
        elif self.values is not None:
            self._add_value(canonical(cell))
        if len(cell) <= _SHORT and (number := number_of(cell)) is not None:
            self.numbers += 1
            self.low, self.high = min(self.low, number), max(self.high, number)
        elif len(cell) <= _SHORT and truth_of(cell) is not None:
            self.words += 1
        elif cell[:1] in ("[", "{") and self._odd_texts <= _ODD + (1 - MOST_FIT) * self.texts_of_lists:
            found = nested(cell)
            if found is cell:
                self._odd_texts += 1
            else:
                self.texts_of_lists += 1
                self.kinds_of_texts.add(_kind_of(found))

    def _add_value(self, value: str) -> None:
        assert self.values is not None
        self.values[value] += 1
        if len(self.values) > _DISTINCT:
            self.values = None

    @property
    def is_nested_text(self) -> bool:
        """Whether nearly every filled cell is a text of a list or a map."""
        return self.texts_of_lists >= MOST_FIT * self.filled > 0

    @property
    def kind(self) -> Kind | None:
        """Of lists and maps, or texts of these, what nearly all cells are, of chats all; None: something else."""
        all_chats = self.kinds_of_texts == {"chat"} and self.texts_of_lists == self.filled
        if all_chats or 0 < self.filled == self.chats:
            return "chat"
        if self.is_nested_text:
            return "map" if "map" in self.kinds_of_texts else "list"
        lists, maps = self.kinds["list"] + self.kinds["tuple"], self.kinds["dict"]
        if lists + maps < MOST_FIT * self.filled or not self.filled:
            return None
        return "map" if maps else "list"

    @property
    def is_chat(self) -> bool:
        """Whether every filled cell is a list of chat messages."""
        return 0 < self.filled == self.chats and not self.kinds["dict"]

    @property
    def is_number(self) -> bool:
        """Whether every filled cell is a number that is not written as text."""
        return 0 < self.filled == self.kinds["int"] + self.kinds["float"] + self.kinds["bool"]

    @property
    def is_list(self) -> bool:
        """Whether nearly every filled cell is a list."""
        return self.kinds["list"] >= MOST_FIT * self.filled > 0

    def shown_values(self) -> str:
        """The values of the column, or its smallest and largest number, in few words."""
        if self.values:
            seen = sorted(self.values)
            return ", ".join(seen[:8]) + (", ..." if len(seen) > 8 else "")
        return f"numbers from {self.low:g} to {self.high:g}" if self.numbers else self.shown()

    def shown(self) -> str:
        """The first filled cell in few characters."""
        return shortened(self.example)


def shortened(value: Any) -> str:
    """A cell in at most 80 characters, on one line."""
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= _EXAMPLE else f"{text[: _EXAMPLE - 3]}..."


def is_null(cell: Any) -> bool:
    """Whether a cell is null, or not a number, as pandas writes a null."""
    return cell is None or cell != cell


def is_empty(cell: Any) -> bool:
    """Whether nothing is in a cell: it is null, or a text of blanks."""
    return is_null(cell) or (isinstance(cell, str) and not cell.strip())


def canonical(cell: Any) -> str:
    """A short cell as text by which equal ones are known: `1`, `1.0`, `True` in numbers as they are, words folded."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, int | float):
        number = finite(cell)
        return str(cell) if number is None or number % 1 else str(int(number))
    text = str(cell).strip().casefold()
    number = number_of(text)
    return text if number is None or text.endswith("%") else canonical(number)


def finite(cell: float) -> float | None:
    """A number as a float; None where it is not finite, or larger than any float."""
    if abs(cell) > sys.float_info.max:
        return None
    return float(cell)


def number_of(cell: Any) -> float | None:
    """The finite number that a cell is, or is written as (`0.5`, `50 %`); None: it is something else."""
    if isinstance(cell, bool | int | float):
        return finite(cell) if cell == cell else None
    if not isinstance(cell, str) or len(cell) > _SHORT:
        return None
    text = cell.strip()
    if not _NUMBER.fullmatch(text):
        return None
    return finite(float(text[:-1]) / 100) if text.endswith("%") else finite(float(text))


def truth_of(cell: Any) -> float | None:
    """1 or 0 of a truth value, of a word for one, or of a number that is one of these; None: it is something else."""
    word = canonical(cell) if isinstance(cell, bool | int | float | str) else ""
    if word in TRUE or word == "1":
        return 1.0
    if word in FALSE or word == "0":
        return 0.0
    return None


def nested(text: str) -> Any:
    """The list or map that a text is, in JSON or as Python writes it; the text itself where it is none."""
    if text[:1] not in ("[", "{") and text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        return json_of_text(text)
    except Unparsed:
        pass
    if len(text) > 1_000_000 or text.count("[") + text.count("{") > 100_000:
        return text
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return found if isinstance(found, list | dict) else text


def _kind_of(value: Any) -> Kind:
    """What a list or map is; a message alone is a chat."""
    if is_chat(value) or (isinstance(value, Mapping) and is_chat([value])):
        return "chat"
    return "map" if isinstance(value, Mapping) else "list"


def is_chat(cell: Any) -> bool:
    """Whether a cell is chat messages: a list of maps with a role and a content, in the names of any API."""
    return (
        isinstance(cell, list | tuple)
        and bool(cell)
        and all(isinstance(one, Mapping) and ("role" in one or {"from", "value"} <= one.keys()) for one in cell)
    )
