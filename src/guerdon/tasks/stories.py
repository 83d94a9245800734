"""Word problems: a short story in plain sentences in which an amount changes, a calculation per change.

Every sentence of a story is one of a list of templates, so that the truth is read back from the question alone. The
lines of a solution are judged by what they calculate, not by their words: see `same_line` and `covers`.

    question = draw_story(StorySettings(steps=2), 2, np.random.default_rng(0))
    # Mia buys 3 boxes with 4 pears in each box. Mia gives 5 pears to Tom. How many pears does Mia have now?
    read_story(question).changes                            # (Change("Mia has", "*", 4, "pears"), ...)
    line_value("So Mia has 12 - 5 = 7 pears left.")         # 7
    covers("3 * 4 - 5 = 7 pears")                           # 2: two calculations in a line
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np

from guerdon.settings.data import StorySettings
from guerdon.tasks.answers import final_answer
from guerdon.tasks.quantities import arithmetic

_NAMES = ("Mia", "Tom", "Anna", "Ben", "Sara", "Leo", "Nina", "Max", "Emma", "Sam", "Lucy", "Paul")
_ITEMS = ("apples", "pears", "books", "coins", "stamps", "cards", "marbles", "shells", "pencils", "stickers")
_HOLDERS = {"boxes": "box", "bags": "bag", "baskets": "basket", "packs": "pack"}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_DOLLARS = "dollars"
_TRIES = 2000
_LARGEST = 10  # times the largest amount of the text: no result is larger

_HAS = "{name} has {n} {items}."
_PRODUCT = "{name} buys {m} {holders} with {n} {items} in each {holder}."
_SALE = "{name} sells all {items} for {n} dollars each."
_SHARES = "{name} shares all {items} equally among {n} friends."
_CHANGES = {
    "+": ("{name} finds {n} more {items}.", "{other} gives {name} {n} {items}.", "{name} buys {n} more {items}."),
    "-": ("{name} gives {n} {items} to {other}.", "{name} loses {n} {items}.", "{name} sells {n} {items}."),
    "*": ("A year later {name} has {n} times as many {items}.",),
    "/": ("{name} sorts all {items} into {n} equal piles and keeps only one pile.",),
}
_LAST = {"*": _SALE, "/": _SHARES}  # changes after which another amount is asked for
_ASKS = {
    _SALE: "How many dollars does {name} get?",
    _SHARES: "How many {items} does each friend get?",
    "": "How many {items} does {name} have now?",
}
_IDLE = ("{other} is {n} years old.", "It takes {name} {n} minutes to walk home.")  # numbers that do not matter
_OPS = {text: op for op, texts in _CHANGES.items() for text in texts} | {_SALE: "*", _SHARES: "/"}
_SAYS = {_SALE: "{name} gets", _SHARES: "Each friend gets"}  # how a line of the solution begins; else `_NOW`
_NOW = "{name} has"


class Change(NamedTuple):
    """One calculation: how its line begins, what is done to the amount, and the unit of the result."""

    words: str
    op: str
    number: int
    unit: str


class Story(NamedTuple):
    """What a question says: an amount, and its changes in order."""

    start: int
    changes: tuple[Change, ...]

    def line(self, amount: Fraction, k: int) -> str | None:
        """The true line of change k, made to this amount; None for a line whose result is undefined."""
        words, op, number, unit = self.changes[k]
        result = arithmetic(f"({amount}) {op} {number}")
        return None if result is None else f"{words} {_plain(amount)} {op} {number} = {_plain(result)} {unit}."


def draw_story(settings: StorySettings, steps: int, rng: np.random.Generator) -> str | None:
    """A question with so many calculations; None where these settings hardly allow one."""
    for _ in range(_TRIES):
        question = _try_story(settings, steps, rng)
        if question is not None:
            return question
    return None


def _try_story(settings: StorySettings, steps: int, rng: np.random.Generator) -> str | None:
    """A question, or None where the numbers that were drawn do not work out."""
    name, other = (str(one) for one in rng.choice(_NAMES, size=2, replace=False))
    holders = str(rng.choice(list(_HOLDERS)))
    words = {"name": name, "other": other, "items": str(rng.choice(_ITEMS)), "holders": holders,
             "holder": _HOLDERS[holders]}  # fmt: skip

    def say(text: str, **numbers: int) -> str:
        return text.format(**words, **numbers)

    amount = int(rng.integers(2, settings.high + 1))
    ops = [settings.ops[int(rng.integers(len(settings.ops)))] for _ in range(steps)]
    if ops[0] == "*" and rng.random() < 0.75:
        factor = int(rng.integers(2, settings.factor + 1))
        told, amount, first = [say(_PRODUCT, m=factor, n=amount)], factor * amount, 1
    else:
        told, first = [say(_HAS, n=amount)], 0
    asked = _ASKS[""]
    for k in range(first, steps):
        op = ops[k]
        number = int(rng.integers(2, (settings.high if op in "+-" else settings.factor) + 1))
        if (op == "-" and number > amount - 2) or (op == "/" and (amount % number or amount // number < 2)):
            return None
        amount = {"+": amount + number, "-": amount - number, "*": amount * number, "/": amount // number}[op]
        text = str(rng.choice(_CHANGES[op]))
        if k == steps - 1 and op in _LAST and rng.random() < 0.75:
            text, asked = _LAST[op], _ASKS[_LAST[op]]
        told.append(say(text, n=number))
    if amount > _LARGEST * settings.high:
        return None
    return " ".join([*told, say(asked)])


def read_story(question: str) -> Story | None:
    """What a question says; None where it is not a question of this kind."""
    sentences = re.split(r"(?<=[.?]) ", question)
    first = _matched(sentences[0], (_PRODUCT, _HAS))
    if first is None or len(sentences) < 3:
        return None
    text, said = first
    items = said["items"]
    changes = [_change(text, said, said["name"], items)] if text == _PRODUCT else []
    asked = ""
    for sentence in sentences[1:-1]:
        found = _matched(sentence, (*_OPS, *_IDLE))
        if found is None or found[1].get("items", items) != items:
            return None
        text = found[0]
        if text in _OPS and asked:
            return None
        if text in _OPS:
            asked = text if text in _LAST.values() else ""
            changes.append(_change(text, found[1], said["name"], _DOLLARS if text == _SALE else items))
    if not changes or _matched(sentences[-1], (_ASKS[asked],)) is None:
        return None
    return Story(_number(said["m" if first[0] == _PRODUCT else "n"]), tuple(changes))


def _change(text: str, said: dict[str, str], name: str, unit: str) -> Change:
    """The change that a sentence says."""
    return Change(_SAYS.get(text, _NOW).format(name=name), _OPS.get(text, "*"), _number(said["n"]), unit)


def _matched(sentence: str, texts: tuple[str, ...]) -> tuple[str, dict[str, str]] | None:
    """The template of a sentence and its words."""
    for text in texts:
        found = _pattern(text).fullmatch(sentence)
        if found:
            return text, found.groupdict()
    return None


@cache
def _pattern(text: str) -> re.Pattern[str]:
    kinds = {"n": rf"[0-9]{{1,7}}|{'|'.join(_NUMBERS)}", "name": "[A-Z][a-z]+", "other": "[A-Z][a-z]+"}
    kinds["m"] = kinds["n"]
    parts = re.split(r"\{(\w+)\}", text)
    groups = [f"(?P<{part}>{kinds.get(part, '[a-z]+')})" if k % 2 else re.escape(part) for k, part in enumerate(parts)]
    return re.compile("".join(groups))


def _number(text: str) -> int:
    return _NUMBERS.index(text) if text in _NUMBERS else int(text)


def _plain(number: Fraction) -> str:
    """A number as it is written: whole, with up to four decimals, else a fraction."""
    if number.denominator == 1:
        return str(number)
    decimal = f"{float(number):.4f}".rstrip("0")
    return decimal if Fraction(decimal) == number else str(number)


# written lines

_NUMBER = r"-?[0-9][0-9,]{0,19}(?:\.[0-9]{1,9})?(?:/[0-9]{1,9})?"
_LEFT = "-+*/(). 0123456789$,"
_RIGHT = re.compile(rf"=[ $]*(?:<<[^<>]*>>)?({_NUMBER})")


def _equation(line: str) -> tuple[str, str] | None:
    """Both sides of the last equation of a line; the left side is arithmetic."""
    line = re.sub(r"^\W*(?:[Ss]tep )?[0-9]+[.):] ", "", line)  # its number in a list
    plain = re.sub(r"(?<=[0-9)])( ?)[x\u00d7\u00b7]( ?)(?=[0-9(])", r"\1*\2", line).replace("\u00f7", "/")
    found, begin, at = None, 0, plain.find("=")
    while at >= 0:  # a pattern for both sides would need the square of a run's length
        left, right = plain[begin:at], _RIGHT.match(plain, at)
        left = left[len(left.rstrip(_LEFT)) :]
        if right and re.search(r"[0-9)]\Z", left.rstrip(" $")):
            found, begin = (left, right[1]), right.end()
        at = plain.find("=", max(begin, at + 1))
    return found


def line_value(line: str) -> Fraction | None:
    """The number that a line states: behind its last equals sign, else its last one; None where it has none."""
    equation = _equation(line)
    numbers = [equation[1]] if equation else re.findall(_NUMBER, line)
    return arithmetic(numbers[-1]) if numbers else None


def covers(line: str) -> int:
    """How many calculations a line states: the operators on the left of its equation; 0 without an equation."""
    equation = _equation(line)
    return len(re.findall(r"(?<=[0-9) ])[-+*/]", equation[0])) if equation else 0


def same_line(line: str, true: str) -> bool:
    """Whether a line states what the true one does, and its equation, if it has one, holds."""
    value, equation = line_value(line), _equation(line)
    return value is not None and value == line_value(true) and (equation is None or arithmetic(equation[0]) == value)


def stated_answer(text: str) -> Fraction | None:
    """The answer of a response: behind `####`, `the answer is` or in a box; else of its last line with a number."""
    explicit = final_answer(text)
    if explicit is not None:
        return line_value(explicit)
    return next((value for line in reversed(text.split("\n")) if (value := line_value(line)) is not None), None)
