r"""Values of answers: exact numbers by a strict grammar, and pairs of answers in one unit.

Numbers are read into fractions (see `numbers_of`): what is not in the grammar is not a number, nothing is skipped.
Symbolic comparison is the verifier's (`verifier.py`).

    same_number("3/4", "0.75")                              # True
    same_number("25 cm", "250 mm")                          # True
    same_number("7 miles", "7 km")                          # None: not the same unit
"""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from guerdon.tasks import units
from guerdon.tasks.answer_text import MATHS, outside_brackets, typographic, undecorated
from guerdon.tasks.units import Unit

_LONGEST = 200  # characters of a number worth reading
_LONGEST_TEXT = 2000  # of a value with its unit
_INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+])?\s?(?:(?P<whole>[0-9]+) (?P<num>[0-9]+) ?/ ?(?P<den>[0-9]+)"
    rf"|(?P<top>{_DECIMAL}) ?/ ?(?P<bottom>{_DECIMAL})"
    rf"|(?P<plain>{_DECIMAL})(?:[eE](?P<power>[-+]?[0-9]{{1,2}}))?)",
    re.ASCII,
)
_MONEY_BEFORE = re.compile(r"([-+]?) ?([$\u20ac\u00a3\u00a5\u20b9]) ?(?=[-+.0-9\\(])([-+]?) ?")
_MONEY_BEHIND = re.compile(r"(?<=[0-9.)}]) ?([$\u20ac\u00a3\u00a5\u20b9])\Z")
_PERCENT = re.compile(r" ?(?:%|\b(?:per ?cent|pct|percentage)\b\ue000?)\Z", re.IGNORECASE)
_REWRITES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\{,\}", ","),
        (r"\\!", ""),
        (r" ?\\[dtc]?frac ?\{ ?(-?)([0-9][0-9.,]*|\.[0-9]+) ?\} ?\{ ?([0-9][0-9.,]*|\.[0-9]+) ?\}", r" \1\2/\3"),
        (r" ?\\[dtc]?frac ?([0-9]) ?([0-9])", r" \1/\2"),
        (r" ?(?:\\times|\\cdot|\u00d7|\*|\bx) ?10 ?\^ ?(?:\{([-+]?[0-9]{1,2})\}|([-+]?[0-9]{1,2}))", r"e\1\2"),
    )
)


class Quantity(NamedTuple):
    """What one answer states.

    Attributes:
        text: the value, without its unit where that was recognised.
        number: the value, where it is one number of the grammar; of a percentage 50 for 50 %.
        percent: whether it is a percentage.
        unit: what stands behind it (or, for money, in front), None without one.
        mixed: whether it was written in several units (`4 h 15 min`).
    """

    text: str
    number: Fraction | None = None
    percent: bool = False
    unit: Unit | None = None
    mixed: bool = False


class Pair(NamedTuple):
    """A true and a stated answer, each without its unit.

    Attributes:
        gold: the true one.
        answer: the stated one.
        ratio: what the stated value is multiplied by to be in the true answer's unit.
        conflict: why the two cannot be compared; "" where they can.
    """

    gold: Quantity
    answer: Quantity
    ratio: Fraction
    conflict: str

    def same_number(self, tolerance: float = 0.0) -> bool | None:
        """Whether both are the same number; None where one of them is none, or their units differ.

        A percentage equals both its readings: `50%` is `0.5`, and where the question asked for per cent it is `50`.
        """
        gold, answer = self.gold, self.answer
        if gold.number is None or answer.number is None or self.conflict:
            return None
        left, right = gold.number, answer.number * self.ratio
        if left != right and units.is_rounded(self.ratio):
            return None
        readings = [(left, right)]
        if gold.percent != answer.percent:
            readings.append((left / (100 if gold.percent else 1), right / (100 if answer.percent else 1)))
        same = any(close(a, b, tolerance) for a, b in readings)
        return None if gold.mixed != answer.mixed and not (same or (gold.unit and answer.unit)) else same


@lru_cache(maxsize=64)  # responses to one question often state the same
def pair(gold: str, answer: str, question: str = "") -> Pair:
    """Two answers without their units, and how these are related.

    A unit that only one of them names does not count. A bare letter (`5 m`) is a unit unless the question uses it as a
    variable; behind a stated number, a bare m may be millions where nothing else names metres.

    Args:
        gold: the true answer.
        answer: the stated one.
        question: whose words count as units (see `numbers_of`).
    """
    true, stated = quantity(gold, question), quantity(answer, question)
    if true.unit is None and _may_be_millions(stated, question):
        stated = quantity(answer, question, letters=False)
    doubt = ""
    named = [side.unit for side in (true, stated) if side.unit is not None]
    if len(named) == 1 and named[0].name in units.VARIABLES and named[0].letters:  # `3t` against `3`
        if true.number is not None and true.number == stated.number:
            doubt = f"{named[0].name!r} is a unit or a variable"
        true, stated = quantity(gold, question, letters=False), quantity(answer, question, letters=False)
    if true.unit is None or stated.unit is None:
        return Pair(true, stated, Fraction(1), _conflict_without_unit(gold, true, answer, stated) or doubt)
    ratio = units.ratio(true.unit, stated.unit)
    if ratio is None:
        conflict = f"{stated.unit.name!r} is not the true answer's {true.unit.name!r}"
        return Pair(true, stated, Fraction(1), conflict)
    return Pair(true, stated, ratio, "")


def _conflict_without_unit(gold: str, true: Quantity, answer: str, stated: Quantity) -> str:
    """Why two answers, of which one has no unit, cannot be compared; "" where they can."""
    if _angles(true, stated) or _angles(stated, true):
        return "degrees and radians"
    if (true.percent and stated.unit) or (stated.percent and true.unit):
        return "a percentage and a unit"
    if _is_clock(true, stated) or _is_clock(stated, true):
        return "a time of day or a ratio, and a duration"
    named, other = (units.named(typographic(text)) for text in (gold, answer))
    both_numbers = true.number is not None and stated.number is not None
    if named and other and named != other and not both_numbers:
        return "the two name different units"
    return ""


def in_unit(text: str, ratio: Fraction) -> str | None:
    """A value times a ratio, in LaTeX; None where it is not a single value."""
    if ratio == 1:
        return text
    if re.search(r"[=<>,;]|\\(?:le|ge|lt|gt|neq?|in|pm|text)(?![A-Za-z])", text):
        return None
    return rf"\frac{{{ratio.numerator}}}{{{ratio.denominator}}} \cdot \left( {text} \right)"


def _angles(one: Quantity, other: Quantity) -> bool:
    """Whether one is in degrees and the other a multiple of pi without a unit."""
    in_degrees = one.unit is not None and units.has_base(one.unit, "degree")
    return in_degrees and other.unit is None and re.search(r"\\pi(?![A-Za-z])|\u03c0|\bpi\b", other.text) is not None


def _is_clock(one: Quantity, other: Quantity) -> bool:
    """Whether one is a time without a unit and the other has a unit of time."""
    timed = other.unit is not None and units.has_base(other.unit, "s")
    return timed and one.unit is None and re.fullmatch(r"[0-9]{1,3}(?::[0-5][0-9]){1,2}", one.text) is not None


def same_number(gold: str, answer: str, tolerance: float = 0.0, question: str = "") -> bool | None:
    """Whether two texts state the same number; None where one of them states none, or their units differ.

    A percentage equals both its readings: `50%` is `0.5`, and where the question asked for per cent it is `50`. A
    unit that only one of them names does not count; units with a fixed ratio are converted (see `units.py`).

    Args:
        gold: the true answer.
        answer: the stated one.
        tolerance: relative difference at which two numbers count as equal.
        question: whose words count as units (see `numbers_of`).
    """
    return pair(gold, answer, question).same_number(tolerance)


def numbers_of(text: str, question: str = "") -> tuple[Fraction, ...]:
    r"""What number a short text states: none, one, or for a percentage two readings (50 % is 1/2, or 50).

    The grammar, after `typographic` and without `$`, `\text{}` or a final stop around it:

        answer  = [name "=" | sum "="] [money] [sign] [money] number ["%" | unit]
        number  = decimal ["e" exponent] | decimal "/" decimal | whole proper-fraction (also `\frac`, `\times 10^{n}`)
        decimal = digits, or groups of three with commas or spaces, then optionally "." digits
        unit    = words: units of measure, and the words of the question; in all at most six

    A sum in front of `=` must have the value after it. Words that change a number (thousand, half, not, more, ...)
    are not units. Everything else states no number: `5!`, `5^2`, `>5`, `5 or 6`, `5k`, `5x`.

    Args:
        text: an answer, as `final_answer` finds it.
        question: whose words count as units.
    """
    found = quantity(text, question)
    if found.number is None or (found.unit and found.unit.letters):
        return ()
    return (found.number / 100, found.number) if found.percent else (found.number,)


def quantity(text: str, question: str = "", *, letters: bool = True) -> Quantity:
    """The value and the unit of one answer.

    Args:
        text: an answer, as `final_answer` finds it.
        question: whose words count as units.
        letters: whether a bare letter may be a unit.
    """
    if len(text) > _LONGEST_TEXT:
        return Quantity(text)
    text = typographic(undecorated(text))
    if text.isascii() and text.isdigit() and len(text) <= _LONGEST:
        return Quantity(text, Fraction(int(text)))
    plain = units.flat(text)
    mixed = units.mixed_number(plain) if plain[:1].isdigit() and len(plain) <= _LONGEST else None
    if mixed is not None:
        return Quantity(text, mixed[0], unit=mixed[1], mixed=True)
    percent = _PERCENT.search(plain[-20:]) is not None
    body, unit = (_PERCENT.sub("", plain), None) if percent else _split(plain, question, letters=letters)
    priced = _without_money(body, unit)
    if priced is None:
        return Quantity(text)
    body, unit = priced
    number = _number(units.unmarked(body))
    if percent and number is None:
        return Quantity(text)
    recognised = percent or unit is not None
    return Quantity(units.unmarked(body) if recognised else text, number, percent, unit)


def _without_money(body: str, unit: Unit | None) -> tuple[str, Unit | None] | None:
    """A value without its sign of money, and its unit with that; None where they are not certain."""
    front, behind = _MONEY_BEFORE.match(body), _MONEY_BEHIND.search(body[-3:])
    if front is None:
        if behind and unit is None:
            return _MONEY_BEHIND.sub("", body), units.money(behind[1])
        return body, unit
    if front[1] and front[3]:
        return None
    if unit is not None and unit.name == "mm":  # $5mm: millions
        return None
    value, sign = f"{front[1]}{front[3]}{body[front.end() :]}", units.money(front[2])
    if unit is not None and unit.name.startswith(("per", "/")):
        return value, units.product(sign, unit)
    return value, unit or sign


def _split(text: str, question: str, *, letters: bool) -> tuple[str, Unit | None]:
    """Value and unit, also of a list; the whole text and None where no unit ends it, or none that is behind a value."""
    body, unit = _split_one(text, question, letters=letters)
    if unit is None and "," in text:
        return _split_list(text, question, letters=letters)
    return body, unit


def _split_one(text: str, question: str, *, letters: bool) -> tuple[str, Unit | None]:
    body, unit = units.split_unit(text, question)
    return (text, None) if unit is not None and not _is_value(body, unit, question, letters=letters) else (body, unit)


def _split_list(text: str, question: str, *, letters: bool) -> tuple[str, Unit | None]:
    """Value and unit of a list whose parts have one unit (`3 cm, 4 cm`)."""
    parts = [_split_one(part.strip(), question, letters=letters) for part in text.split(",")]
    first = parts[0][1]
    if first is None or any(unit is None or units.ratio(first, unit) != 1 for _, unit in parts):
        return text, None
    return ", ".join(value for value, _ in parts), first


def _is_value(body: str, unit: Unit, question: str, *, letters: bool) -> bool:
    """Whether a text in front of a unit is a value: not words, not half of an expression."""
    value = units.unmarked(body).rpartition("=")[2].strip()
    if not value or value[-1] in "+-*/^_(,=<>|&:;" or value.endswith(("\\cdot", "\\times", "\\pm", "\\div")):
        return False
    bare = re.sub(r"\\[A-Za-z]+|[0-9]e[-+]?[0-9]", " ", value)
    if any(len(run) > 1 and run.lower() not in MATHS | {"pi"} for run in re.findall("[A-Za-z]+", bare)):
        return False
    if units.has_base(unit, "degree") and re.search(
        r"\\(?!(?:[dtc]?frac|sqrt|pi|cdot|times|left|right)(?![A-Za-z]))|[A-Za-z]", re.sub(_CONSTANTS, "", value)
    ):
        return False
    if not unit.letters:
        return True
    single = not re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+|\bpi\b|\bsqrt\b|(?<=[0-9])e(?=[-+]?[0-9])", "", value))
    has_sum = any(char in "+-" and place > 0 for place, char in outside_brackets(value))
    return letters and single and not has_sum and not variables(question) & set(unit.letters)


_CONSTANTS = re.compile(r"\\(?:[dtc]?frac|sqrt|pi|cdot|times|left|right)(?![A-Za-z])|\bpi\b|\bsqrt\b")


@lru_cache(maxsize=64)
def variables(question: str) -> frozenset[str]:
    """The letters that a question uses as variables: alone in its mathematics, not behind a number and a space."""
    text = units.TEXT.sub(" ", question.replace("\\$", " "))
    for mark in ("\\(", "\\)", "\\[", "\\]"):
        text = text.replace(mark, "$")
    found = set(re.findall(r"(?<![A-Za-z\\])([A-Za-z])\s*=", text))
    for maths in text.split("$")[1::2]:
        plain = re.sub(r"\\[A-Za-z]+|\\.|[{}]", " ", maths)
        found.update(
            letter
            for run in re.finditer(r"[A-Za-z]+", plain)
            if not re.search(r"[0-9]\s+\Z", plain[max(run.start() - 20, 0) : run.start()])
            for letter in run[0]
            if len(run[0]) <= 3
        )
    return frozenset(found)


def _may_be_millions(stated: Quantity, question: str) -> bool:
    """Whether there is a bare m behind a number, and nothing in the question names metres."""
    unit = stated.unit
    return unit is not None and unit.name == "m" and bool(unit.letters) and not _names_metres(question)


@lru_cache(maxsize=64)
def _names_metres(question: str) -> bool:
    metres = r"(?i)\b(?:meters?|metres?)\b|(?-i:\bin m\b|[0-9]\s?(?:\\[,; ])?(?:\\(?:text|mathrm)\{\s*)?m\b)"
    return re.search(metres, question) is not None


def _number(text: str) -> Fraction | None:
    if len(text) > _LONGEST:
        return None
    for pattern, new in _REWRITES if re.search(r"[\\{*\u00d7x]", text) else ():
        text = pattern.sub(new, text)
    name, equals, text = " ".join(text.split()).rpartition("=")
    match = _NUMBER.fullmatch(text.strip())
    value = _value(match) if match else None
    if value is None or (equals and not _is_name(name) and arithmetic(name) != value):
        return None
    return value


def _is_name(text: str) -> bool:
    """Whether words in front of `=` name what the number is, and change nothing about it."""
    words = text.split()
    return bool(words) and all(re.fullmatch("[A-Za-z]+", w) and w.lower() not in units.CHANGING | MATHS for w in words)


def _value(match: re.Match[str]) -> Fraction | None:
    def plain(name: str) -> Fraction:
        return Fraction(re.sub("[, ]", "", match[name]).rstrip(".") or "0")

    if match["top"] is not None:
        if plain("bottom") == 0:
            return None
        value = plain("top") / plain("bottom")
    elif match["whole"] is not None:
        if plain("num") >= plain("den"):
            return None
        value = plain("whole") + plain("num") / plain("den")
    else:
        value = plain("plain") * Fraction(10) ** int(match["power"] or 0)
    return -value if match["sign"] == "-" else value


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def arithmetic(text: str) -> Fraction | None:
    """Value of an expression of numbers with + - * / and brackets; None where it is something else, or long."""
    if len(text) > _LONGEST:
        return None
    text = re.sub(r"\\times|\\cdot|\u00d7", "*", re.sub(r"\\div|\u00f7", "/", text))
    text = re.sub(r"(?<=[0-9]),(?=[0-9]{3})|[$]", "", text).strip()
    if not re.fullmatch(r"[-+*/(). 0-9]+", text) or "**" in text or "//" in text:
        return None
    text = re.sub(r"\b0+(?=[0-9])", "", text)
    try:
        return _evaluated(ast.parse(text, mode="eval").body, text)
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluated(node: ast.expr, source: str) -> Fraction | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(source[node.col_offset : node.end_col_offset].rstrip("."))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluated(node.operand, source)
        return -value if value is not None and isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluated(node.left, source), _evaluated(node.right, source)
        return None if left is None or right is None else _OPERATORS[type(node.op)](left, right)
    return None


def close(left: Fraction, right: Fraction, tolerance: float) -> bool:
    """Whether two numbers differ by at most `tolerance` times the larger magnitude; 0 asks for equality."""
    if left == right:
        return True
    return tolerance > 0 and abs(left - right) <= Fraction(tolerance) * max(abs(left), abs(right))
