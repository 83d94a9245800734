"""Whether a question allows a rounded answer, and whether a decimal is the correct rounding of a value."""

from __future__ import annotations

import re
from typing import NamedTuple

_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBERS = {name: i for i, name in enumerate(_WORDS)}
_COUNT = rf"(?P<n>[0-9]{{1,2}}|{'|'.join(_NUMBERS)})"
_PLACES = re.compile(rf"\b{_COUNT}[\s-]+(?:decimal|d\.p)|\b(?P<m>[0-9]{{1,2}})\s?dp\b")
_FIGURES = re.compile(rf"\b{_COUNT}[\s-]+(?:significant|sig\b|s\.f)|\b(?P<m>[0-9]{{1,2}})\s?sf\b")
_NEAREST = re.compile(r"\b(?:nearest|closest)\s+(?:\\?\$)?(?P<to>0?\.0*1|10*|[a-z]+(?:[\s-][a-z]+)?)")
_UNITS = {
    "tenth": 1, "hundredth": 2, "cent": 2, "penny": 2, "thousandth": 3, "ten-thousandth": 4, "ten thousandth": 4,
    "hundred-thousandth": 5, "millionth": 6, "ten": -1, "hundred": -2, "thousand": -3, "million": -6,
}  # fmt: skip
_ALLOWED = re.compile(
    r"\b(?:to (?:the )?(?:nearest|closest)"
    r"|(?:nearest|closest) (?:integer|whole|(?:ten|hundred|thousand)(?:th)?s?\b|0?\.|1|cent\b|dollar|degree|percent)"
    r"|round(?:ed|ing|s)?\b(?!\s+(?:table|trip|robin|number))|approximat\w*|estimat\w*"
    r"|decimal (?:places?|form|answer|value|number|approximation)|as a decimal|in decimal\w*|to \w+ decimals?"
    r"|significant (?:figures?|digits?)|sig(?:\.|nificant)? ?figs?|[0-9] ?d\.?p\b|[0-9] ?s\.?f\b)"
)


class Rounding(NamedTuple):
    """What a question asks for; None where it names no number.

    Attributes:
        places: digits after the point; negative in front of it.
        figures: significant digits.
    """

    places: int | None = None
    figures: int | None = None


def rounding_of(question: str) -> Rounding | None:
    """The rounding that a question allows, or None where it allows none.

    Args:
        question: a task in words ("to two decimal places", "nearest tenth", "3 significant figures", "approximate").
    """
    text = " ".join(question.lower().split())
    if not _ALLOWED.search(text):
        return None
    for pattern, field in ((_PLACES, "places"), (_FIGURES, "figures")):
        found = pattern.search(text)
        if found:
            word = found["n"] or found["m"]
            return Rounding(**{field: int(word) if word.isdigit() else _NUMBERS[word]})
    nearest = _NEAREST.search(text)
    return Rounding(_places_of(nearest["to"])) if nearest else Rounding()


def _places_of(unit: str) -> int:
    if unit[0] in ".0":
        return len(unit.partition(".")[2])
    if unit.isdigit():
        return 1 - len(unit)
    first = unit.split()[0]
    for name in (unit, first):
        if name.rstrip("s") in _UNITS:
            return _UNITS[name.rstrip("s")]
    return 0  # nearest integer, dollar, mile, ...
