"""What the values of a column say: which response won, whether one is good, how good on a scale.

A coding is decided for a whole column by its `Sketch`, or said by the user: `1/2`, `yes/no`, `model_a/model_b/tie`,
`1..5`. Where a column has two codings with other results, both are named and none is used.

    found = winner_codings(sketch, ("response_1", "response_2"))
    if len(found) == 1: sign = found[0].read("2", {})          # 1.0: the second; -1.0 the first, 0.0 a tie
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from guerdon.errors import ConfigError, DataError
from guerdon.reading.roles import plain_name
from guerdon.reading.values import FALSE, MISSING, MOST_FIT, TRUE, Sketch, canonical, number_of

Row = Mapping[str, Any]
TIES = frozenset((
    "tie", "tie (bothbad)", "tie (both bad)", "both_bad", "bothbad", "both bad", "both good", "both", "equal", "same",
    "a=b", "a==b", "b=a", "=", "draw", "neither", "0.5",
))  # fmt: skip
_NOUN = (
    "model|response|assistant|answer|option|output|completion|candidate|conversation|generation|system|text|chat|agent"
)
_POSITION = re.compile(
    rf"(?:(?:{_NOUN}) ?)?(a|b|first|second|left|right|1st|2nd|one|two)(?: is better| better| wins?)?"
)
_NUMBERED = re.compile(rf"(?:{_NOUN}) ?([012])")
_COMPARED = re.compile(r"(a|b)(>{1,3}|<{1,3})(a|b)")
_FIRST = frozenset(("a", "first", "left", "1st", "one"))
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
RANK = Coding("rank", lambda cell, row: None if (number := number_of(cell)) is None else -number, is_scale=True)
"""A number of which the lower one is better."""
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
    """The codings that a column about two responses may have: none, one, or several with other results.

    Args:
        sketch: of the column.
        responses: names of the columns of the two.
    """
    own = canonical(responses[0]), canonical(responses[1])
    ends = _end(own[0]), _end(own[1])
    by_name = Coding("/".join(responses), lambda cell, row: _sign_of_word(canonical(cell), own, ends))
    if fits(by_name, sketch):
        return [by_name._replace(name=_name_in(sketch, by_name))]
    numbers = {value for value in sketch.values or () if value not in TIES and value not in MISSING}
    if sketch.values is not None and numbers <= {"0", "1"}:
        return _of_positions(ends, numbers)
    if numbers and numbers <= {"true", "false"}:
        return [pair("true", "false"), pair("false", "true")]
    if numbers and numbers <= {"1", "2"}:
        return [pair("1", "2")] if ends == ("1", "2") or numbers != {"2"} else [pair("1", "2"), pair("2", "1")]
    return _scales(sketch, numbers)


def _scales(sketch: Sketch, numbers: Collection[str]) -> list[Coding]:
    """The codings of a column of numbers about two responses.

    Args:
        sketch: of the column.
        numbers: its values, where these are few.
    """
    if sketch.numbers < MOST_FIT * sketch.filled or not sketch.filled:
        return []
    if sketch.low < 0:
        return [SIGNED]
    low, high = sketch.low, sketch.high
    if low == high:  # one number, which says nothing of the ends: those of a usual scale with it in it
        low, high = float(high > 1), max(high, 2.0 if high > 1 else 1.0)
    scales = [scale(low, high), scale(high, low)]
    tie = next((tie for tie in ("0", "3") if numbers == {"1", "2", tie}), "")
    return [said(f"1/2/{tie}", "winner"), *scales] if tie else scales


@lru_cache(maxsize=4096)
def _sign_of_word(word: str, own: tuple[str, str], ends: tuple[str, str]) -> float | None:
    """What a word says of two responses, whose columns are called `own`: -1 the first is better, 1 the second."""
    plain = " ".join(word.strip("[](){}\"'.").replace("_", " ").replace("-", " ").split())
    tight = plain.replace(" ", "")
    for value, two in ((word, own), (plain, ends)):
        if value in two and not value.isdigit():
            return -1.0 if value == two[0] else 1.0
    if TIES & {word, plain, tight}:
        return 0.0
    is_first = _first_of(plain, tight, "0" if ends == ("0", "1") else "1")
    return {True: -1.0, False: 1.0, None: None}[is_first]


def _first_of(plain: str, tight: str, number: str) -> bool | None:
    """Whether a word calls the first of two better: as a comparison, by its number, or by its place.

    Args:
        plain: the word without brackets and `_`.
        tight: the same without blanks.
        number: of the first response; that of the second is higher by one.
    """
    compared = _COMPARED.fullmatch(tight)
    if compared is not None and compared[1] != compared[3]:
        return (compared[1] == "a") == (compared[2][0] == ">")
    numbered = _NUMBERED.fullmatch(plain)
    if numbered is not None:
        return {number: True, str(int(number) + 1): False}.get(numbered[1])
    position = _POSITION.fullmatch(plain)
    return None if position is None else position[1] in _FIRST


def of_two_words(sketch: Sketch) -> list[Coding]:
    """The two codings of two words that say nothing by themselves; none of others, or of what cannot be said."""
    values = {value for value in sketch.values or () if value not in TIES and value not in MISSING}
    if len(values) != 2 or any(set(value) & set("/,:=") for value in values):
        return []
    a, b = sorted(values)
    return [pair(a, b), pair(b, a)]


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


def _name_in(sketch: Sketch, coding: Coding) -> str:
    """A coding by the words that are most frequent in the column, where it has both."""
    seen = [word for word, _ in sorted((sketch.values or Counter()).items(), key=lambda one: (-one[1], one[0]))]
    found = [next((word for word in seen if coding.read(word, {}) == sign), "") for sign in (-1.0, 1.0)]
    return "/".join(found) if all(found) else coding.name


def measured_coding(sketch: Sketch) -> Coding:
    """How labels are read that may be any number: as good or bad where all of them are 0 and 1."""
    values = [value for value in sketch.values or () if value not in MISSING]
    return TRUTH if values and all(TRUTH.read(value, {}) is not None for value in values) else MEASURED


def has_one_side(sketch: Sketch) -> bool:
    """Whether a column has words for true and none for false, or the other way, and they may be of a longer scale.

    Without a second value nothing says whether `good` is the best: true and false are the only words without a third.
    """
    found = {value: TRUTH.read(value, {}) for value in sketch.values or ()}
    known = {value: truth for value, truth in found.items() if truth is not None}
    return len({*known.values()}) == 1 and not known.keys() & _ALONE


_ALONE = {"true", "false", "0", "thumbs_up", "thumbs up", "thumbs_down", "thumbs down"}


def one_sided(sketch: Sketch, role: str) -> list[Coding]:
    """The two codings of a column that `has_one_side`."""
    word = next(value for value in sketch.values or () if TRUTH.read(value, {}) is not None)
    other = ("0", "2") if word == "1" else ("other", "other")
    return [said(f"{word}/{other[0]}", role), said(f"{other[1]}/{word}", role)]


def check_words(data: str, role: str, column: str, sketch: Sketch) -> None:
    """Refuse numbers that are one word, such as good: nothing says whether there is a better one.

    Raises:
        DataError: with both readings.
    """
    if sketch.words <= sketch.numbers or not has_one_side(sketch):
        return
    choices = " or ".join(f"--columns {role}={column}:{one.name}" for one in one_sided(sketch, role))
    raise DataError(
        f"{column} holds {sketch.shown_values()}, and no second word to compare it with; say what it means, as "
        f"BEST/WORST: {choices}",
        where=data,
        field=column,
    )


def label_codings(sketch: Sketch, name: str = "") -> list[Coding]:
    """The codings that a column may have which says whether a response is good: none, one, or two opposite ones.

    Args:
        sketch: of the column.
        name: of the column; that of one that `is_good` says what a single value means.
    """
    named = plain_name(name).startswith("is") or name.strip().casefold() in TRUE
    if fits(TRUTH, sketch):
        return [TRUTH] if named or not has_one_side(sketch) else one_sided(sketch, "label")
    if fits(MINUS, sketch):
        return [MINUS]
    numbers = sorted(value for value in sketch.values or () if value not in MISSING)
    if numbers == ["2"]:
        numbers = ["1", "2"]
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
    if text in _NAMED and (role != "winner" or _NAMED[text].is_scale):
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
            return _said_winner(first, second, names[2:], text)
        values = {first: 1.0, second: 0.0}
        return Coding(text, lambda cell, row: values.get(canonical(cell)))
    raise ConfigError(
        f"the coding {text!r} is none; write FIRST/SECOND or FIRST/SECOND/TIE of a winner, BEST/WORST of a label, or "
        "LOW..HIGH of numbers",
        key="columns",
    )


def _said_winner(first: str, second: str, ties: Sequence[str], text: str) -> Coding:
    """Two words and those for a tie; words that mean the same as they do by themselves are read, too: A>B, A>>B."""
    own, ends = (first, second), (_end(first), _end(second))
    exact = words((first,), (second,), ties or TIES, text)
    as_usual = not ties and (_usual(first), _usual(second)) == (-1.0, 1.0)
    if not as_usual:
        return exact
    return Coding(text, lambda cell, row: _sign_of_word(canonical(cell), own, ends))


def _usual(word: str) -> float | None:
    """What a word says of two responses whatever they are called."""
    return _sign_of_word(word, ("", ""), ("", ""))


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
