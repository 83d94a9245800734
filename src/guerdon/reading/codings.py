"""What the values of a column say: which response won, whether one is good, how good on a scale.

A coding is decided for a whole column by its `Sketch`, or said by the user: `1/2`, `yes/no`, `model_a/model_b/tie`,
`1..5`. Where a column has two codings with other results, both are named and none is used.

    found = winner_codings(sketch, ("response_1", "response_2"))
    if len(found) == 1: sign = found[0].read("2", {})          # 1.0: the second; -1.0 the first, 0.0 a tie
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from guerdon.errors import ConfigError
from guerdon.reading.values import FALSE, MISSING, MOST_FIT, TRUE, Sketch, canonical, number_of

Row = Mapping[str, Any]
TIES = frozenset((
    "tie", "tie (bothbad)", "both_bad", "bothbad", "both bad", "both", "equal", "same", "a=b", "=", "draw", "neither",
    "0.5",
))  # fmt: skip
_FIRST = (
    "a", "first", "left", "model_a", "model a", "response_a", "a>b", "a>>b", "response_1", "response 1", "option_a",
    "answer_a", "one",
)  # fmt: skip
_SECOND = (
    "b", "second", "right", "model_b", "model b", "response_b", "b>a", "b>>a", "response_2", "response 2", "option_b",
    "answer_b", "two",
)  # fmt: skip
_SCALE = re.compile(r"(?P<low>[+-]?[\d.]+?)\.\.(?P<high>[+-]?\d+(\.\d+)?)")


class Coding(NamedTuple):
    """How the cells of a column are read.

    Attributes:
        name: as it is shown and said.
        read: a cell of a row as a number; None: it is none of this coding. Of a winner below 0 for the first response,
            above 0 for the second, 0 for a tie.
        is_scale: whether the size of the number says something, too.
        of_row: whether other cells of the row are needed, so that the name alone does not say how.
    """

    name: str
    read: Callable[[Any, Row], float | None]
    is_scale: bool = False
    of_row: bool = False


def fits(coding: Coding, sketch: Sketch) -> bool:
    """Whether nearly all cells of a column are of a coding, by the values that the sketch kept."""
    if sketch.values is None:
        return coding.is_scale and sketch.numbers >= MOST_FIT * sketch.filled > 0
    known = {value: n for value, n in sketch.values.items() if value not in MISSING}
    total = sum(known.values())
    return total > 0 and sum(n for value, n in known.items() if coding.read(value, {}) is not None) >= MOST_FIT * total


def words(first: Sequence[str], second: Sequence[str], ties: Sequence[str] | frozenset[str], name: str) -> Coding:
    """The coding of two sets of words, and of words for a tie."""
    values = {**dict.fromkeys(ties, 0.0), **dict.fromkeys(first, -1.0), **dict.fromkeys(second, 1.0)}
    return Coding(name, lambda cell, row: values.get(canonical(cell)))


def sign_of(cell: Any, row: Row) -> float | None:
    """A number whose sign says who won: below 0 the first."""
    return number_of(cell)


SIGNED = Coding("below 0: first", sign_of, is_scale=True)
TRUTH = Coding("true/false", lambda cell, row: _truth(canonical(cell)))
TRUE_TIE = Coding("tie", lambda cell, row: 0.0 if (word := canonical(cell)) in TIES or _truth(word) else None)
"""A column that says of some rows that none of two responses is better."""
MINUS = Coding("1/-1", lambda cell, row: {"1": 1.0, "-1": 0.0}.get(canonical(cell)))
NUMBER = Coding("number", lambda cell, row: number_of(cell), is_scale=True)
MEASURED = Coding("number", lambda cell, row: _measured(cell), is_scale=True)
"""A number, or a word for 1 or 0."""
_NAMED = {coding.name: coding for coding in (SIGNED, TRUTH, MINUS, NUMBER)}


def _measured(cell: Any) -> float | None:
    number = number_of(cell)
    return _truth(canonical(cell)) if number is None else number


def _truth(word: str) -> float | None:
    if word == "1" or word in TRUE:
        return 1.0
    return 0.0 if word == "0" or word in FALSE else None


def _part(word: str) -> float | None:
    return 0.5 if word == "0.5" else _truth(word)


def pair(first: str, second: str) -> Coding:
    """The coding in which one value means the first response, and one the second."""
    return words((first,), (second,), TIES, f"{first}/{second}")


def scale(low: float, high: float) -> Coding:
    """A scale from the first response (`low`) to the second (`high`), or from bad to good; its middle is a tie."""
    name = f"{low:g}..{high:g}"

    def read(cell: Any, row: Row) -> float | None:
        number = number_of(cell)
        if number is None or not min(low, high) <= number <= max(low, high):
            return None
        return (number - (low + high) / 2) * (1 if high > low else -1)

    return Coding(name, read, is_scale=True)


def named_by_row(first: str, second: str) -> Coding:
    """The winner is called as a column of its row says: by the name of a model."""

    def read(cell: Any, row: Row) -> float | None:
        word = canonical(cell)
        names = [canonical(row.get(column)) for column in (first, second)]
        if word in TIES:
            return 0.0
        if names[0] == names[1] or word not in names:
            return None
        return -1.0 if word == names[0] else 1.0

    return Coding(f"value of {first}/{second}", read, of_row=True)


def by_columns(first: str, second: str) -> Coding:
    """Two columns of 0 and 1, one for each response, 0.5 in both for a tie; the cell itself is that of the first."""

    def read(cell: Any, row: Row) -> float | None:
        a, b = (_part(canonical(row.get(column))) for column in (first, second))
        return None if a is None or b is None else b - a

    return Coding(f"{first}, {second}", read, of_row=True)


def winner_codings(sketch: Sketch, responses: tuple[str, str]) -> list[Coding]:
    """The codings that a column about two responses may have: none, one, or two that say opposite things.

    Args:
        sketch: of the column.
        responses: names of the columns of the two.
    """
    own = tuple(canonical(name) for name in responses)
    ends = tuple(_end(name) for name in own)
    first = (own[0], *(() if ends[0] == own[0] or ends[0].isdigit() else (ends[0],)), *_FIRST)
    second = (own[1], *(() if ends[1] == own[1] or ends[1].isdigit() else (ends[1],)), *_SECOND)
    clash = {*first} & {*second}
    by_name = words(
        [w for w in first if w not in clash], [w for w in second if w not in clash], TIES, "/".join(responses)
    )
    if fits(by_name, sketch):
        return [by_name._replace(name=_name_in(sketch, first, second) or by_name.name)]
    numbers = {value for value in sketch.values or () if value not in TIES and value not in MISSING}
    if sketch.values is not None and numbers <= {"0", "1"}:
        return _of_positions(ends, numbers)
    if sketch.values is not None and numbers <= {"true", "false"}:
        return [pair("true", "false"), pair("false", "true")]
    if numbers and sketch.values is not None and numbers <= {"1", "2"}:
        return [pair("1", "2")]
    if sketch.numbers < MOST_FIT * sketch.filled or not sketch.filled:
        return []
    if sketch.low < 0:
        return [SIGNED]
    return [scale(sketch.low, sketch.high), scale(sketch.high, sketch.low)]


def _of_positions(ends: tuple[str, ...], values: set[str]) -> list[Coding]:
    """Codings of 0 and 1: one where the columns are numbered so, else both ways round."""
    if ends == ("0", "1"):
        return [pair("0", "1")]
    if values == {"1"} and ends == ("1", "2"):
        return [pair("1", "2")]
    return [pair("0", "1"), pair("1", "0")] if values else []


def _end(name: str) -> str:
    """The last part of a name, which tells two columns apart: `a` of `response_a`, `1` of `answer1`."""
    found = re.search(r"(?:[_\W]|(?<=[a-z]))(\d+|[a-z]|left|right|first|second)$", name)
    return found[1] if found else name


def _name_in(sketch: Sketch, first: Sequence[str], second: Sequence[str]) -> str:
    """A coding by the words that the column really has."""
    seen = sketch.values or Counter()
    found = [next((word for word in side if word in seen), "") for side in (first, second)]
    return "/".join(found) if all(found) else ""


def measured_coding(sketch: Sketch) -> Coding:
    """How labels are read that may be any number: as good or bad where all of them are 0 and 1."""
    values = [value for value in sketch.values or () if value not in MISSING]
    return TRUTH if values and all(TRUTH.read(value, {}) is not None for value in values) else MEASURED


def label_codings(sketch: Sketch) -> list[Coding]:
    """The codings that a column may have which says whether a response is good: none, one, or two opposite ones."""
    if fits(TRUTH, sketch):
        return [TRUTH]
    if fits(MINUS, sketch):
        return [MINUS]
    numbers = sorted(value for value in sketch.values or () if value not in MISSING)
    if len(numbers) == 2 and sketch.numbers >= MOST_FIT * sketch.filled:
        return [said(f"{numbers[1]}/{numbers[0]}", "label"), said(f"{numbers[0]}/{numbers[1]}", "label")]
    return []


def said(text: str, role: str) -> Coding:
    """The coding that a user writes: `BEST/WORST`, `FIRST/SECOND[/TIE]` or `LOW..HIGH`.

    Args:
        text: as written.
        role: `winner`, or one whose first value is the good one.

    Raises:
        ConfigError: it is neither.
    """
    if text in _NAMED:
        return MEASURED if text == NUMBER.name and role == "label" else _NAMED[text]
    scaled = _SCALE.fullmatch(text.strip())
    if scaled:
        low, high = float(scaled["low"]), float(scaled["high"])
        if low != high:
            return scale(low, high) if role == "winner" else _rating(low, high, text)
    names = [canonical(word) for word in text.split("/")]
    if len(names) in (2, 3) and all(names) and len(set(names)) == len(names):
        first, second = names[:2]
        if role == "winner":
            return words((first,), (second,), names[2:] or TIES, text)
        values = {first: 1.0, second: 0.0}
        return Coding(text, lambda cell, row: values.get(canonical(cell)))
    raise ConfigError(
        f"the coding {text!r} is none; write FIRST/SECOND or FIRST/SECOND/TIE of a winner, BEST/WORST of a label, or "
        "LOW..HIGH of numbers"
    )


def ends_of(coding: Coding | None) -> tuple[float, float] | None:
    """The lowest and the highest number that a column can have, where its coding says so (`1..5`)."""
    scaled = None if coding is None else _SCALE.fullmatch(coding.name)
    if scaled is None:
        return None
    low, high = sorted((float(scaled["low"]), float(scaled["high"])))
    return low, high


def _rating(low: float, high: float, text: str) -> Coding:
    """Numbers of a scale as they are; of one that falls, such as ranks, counted from its other end."""

    def read(cell: Any, row: Row) -> float | None:
        number = number_of(cell)
        if number is None or not min(low, high) <= number <= max(low, high):
            return None
        return number if high > low else low + high - number

    return Coding(text.strip(), read, is_scale=True)
