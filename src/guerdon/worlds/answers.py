r"""Find the final answer in a response, and compare answers as strings or as exact numbers.

Numbers are read by a strict grammar into fractions (see `numbers_of`): what is not in it is no number, nothing is
skipped. Symbolic comparison is the verifier's (`verifier.py`).

    final_answer(r"so 6*7 = \boxed{42}.")                  # "42"
    same_number("3/4", "0.75")                              # True
"""

from __future__ import annotations

import ast
import operator
import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

_BRACES = re.compile(r"(?P<box>\\f?box(?:ed)?\s*\{)|(?P<open>\{)|(?P<close>\})|\\.", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*")
_ANSWER_IS = re.compile(r"(?i)\banswer(?:\s+is\b|\s*[:=])\s*:?\s*")
_OPEN = re.compile(  # "I doubt that the answer is"
    r"(?i)(?:\b(?:doubt|whether|if|unlikely|unsure|unclear)"
    r"|(?:\bnot|n['\u2019]t) (?:sure|certain|think|believe|know|say|claim))"
    r"(?: that| if| whether)?(?: the| my| our)?(?: final| correct)?\s*\Z"
)
_LONGEST = 200  # characters of a number worth reading


def last_boxed(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}` whose braces balance; escaped braces do not count."""
    open_at: list[int | None] = []  # where the contents of each open box start; None for other braces
    last: tuple[int, int] | None = None
    for found in _BRACES.finditer(text):
        if found["box"] or found["open"]:
            open_at.append(found.end() if found["box"] else None)
        elif found["close"] and open_at:
            start = open_at.pop()
            if start is not None and (last is None or start > last[0]):
                last = (start, found.start())
    return None if last is None else text[slice(*last)].strip()


def final_answer(text: str) -> str | None:
    r"""The answer that a response states, or None where it states none.

    In this order, the last of each kind: `\boxed{...}`, `#### ...` (to the end of the line), `the answer is ...`
    (to the end of the sentence; none where the last one is doubted: `not sure that the answer is ...`).
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed or None
    for pattern in (_HASHES, _ANSWER_IS):
        marks = list(pattern.finditer(text))
        if marks:
            if _OPEN.search(text[: marks[-1].start()]):
                return None
            line = text[marks[-1].end() :].partition("\n")[0]
            return _undecorated(line if pattern is _HASHES else re.split(r"\.(?:\s|$)", line)[0]) or None
    return None


def _undecorated(text: str) -> str:
    """Without the dollar signs of maths, emphasis and the final stop around an answer."""
    text = text.strip().strip("*").strip().removesuffix(".").strip()
    maths = re.fullmatch(r"\$\$?([^$]*)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]", text)
    return next(group for group in maths.groups() if group is not None).strip() if maths else text


_MINUS = "\u2212\ufe63\uff0d\u2010\u2011"
_DASH = re.compile(
    r"(^|[=(\[{,;:$^+*/<>])(\s*)[\u2012\u2013](?=\s*[0-9.$\\])"
)  # with something else before it: a range


def typographic(text: str) -> str:
    """The same text in plain characters.

    Full-width and mathematical forms, fractions (`5\u00bd` is `5 1/2`), superscripts (`5\u00b2` is `5^{2}`),
    subscripts, spaces, minus signs; an en dash is a minus sign where a number starts. Invisible characters go.
    """
    found: list[str] = []
    for char in text:
        tag, _, codes = unicodedata.decomposition(char).partition(" ")
        if char in _MINUS:
            found.append("-")
        elif char in "\u2044\u2215":
            found.append("/")
        elif tag in ("<super>", "<sub>"):
            inner = typographic("".join(chr(int(code, 16)) for code in codes.split()))
            mark = "^" if tag == "<super>" else "_"
            joins = found and found[-1].startswith(mark + "{")
            found.append(f"{found.pop()[:-1]}{inner}}}" if joins else f"{mark}{{{inner}}}")
        elif tag == "<fraction>":
            before = " " if found and found[-1].isdigit() else ""
            found.append(before + unicodedata.normalize("NFKC", char).replace("\u2044", "/"))
        elif tag in ("<wide>", "<narrow>", "<font>"):
            found.append(unicodedata.normalize("NFKC", char))
        elif unicodedata.category(char) == "Zs":
            found.append(" ")
        elif unicodedata.category(char) != "Cf":
            found.append(char)
    return _DASH.sub(r"\1\2-", "".join(found))


def normalized(text: str) -> str:
    r"""A string to compare by: plain characters, no case, single spaces, no `\text{}`, quotes or final stop."""
    text = unicodedata.normalize("NFKC", typographic(_undecorated(text)))
    text = _TEXT.sub(r"\1", text)
    return " ".join(text.split()).casefold().strip("\"'` ").removesuffix(".").strip()


_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|textit|operatorname)\s*\{([^{}]*)\}")
_UNITS = {
    name: names.split()[0]
    for names in (
        "dollar dollars usd", "euro euros eur", "pound pounds lb lbs", "yen", "rupee rupees", "yuan", "peso pesos",
        "cent cents", "second seconds sec secs", "minute minutes min mins", "hour hours hr hrs", "day days",
        "week weeks", "month months", "year years yr yrs", "millimeter millimeters millimetre millimetres mm",
        "centimeter centimeters centimetre centimetres cm", "meter meters metre metres",
        "kilometer kilometers kilometre kilometres km", "inch inches", "foot feet ft", "yard yards", "mile miles mi",
        "mph", "acre acres", "gram grams", "milligram milligrams mg", "kilogram kilograms kg", "ounce ounces oz",
        "ton tons tonne tonnes", "liter liters litre litres", "milliliter milliliters millilitre millilitres ml",
        "gallon gallons", "quart quarts", "pint pints", "cup cups", "degree degrees", "radian radians", "unit units",
        "point points", "people", "person persons", "item items", "piece pieces", "time times",
    )
    for name in names.split()
}  # fmt: skip
_COUPLES = {"per", "of", "square", "cubic", "sq", "a", "each"}  # stand before or between units, never alone
_NO_UNITS = {
    "hundred", "thousand", "million", "billion", "trillion", "dozen", "score", "gross", "lakh", "crore", "mil", "bn",
    "half", "halves", "third", "thirds", "quarter", "quarters", "fourth", "fifth", "tenth", "tenths", "hundredth",
    "hundredths", "thousandth", "thousandths", "twice", "double", "triple", "percent", "percentage", "squared",
    "cubed", "square", "cubic", "root", "power", "factorial", "mod", "modulo", "plus", "minus", "divided",
    "over", "less", "more", "fewer", "than", "least", "most", "not", "negative", "about", "almost", "nearly",
    "under", "between", "and", "but", "the", "with", "without", "base", "remainder", "zero", "one", "two", "three",
    "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "twenty", "thirty", "forty", "fifty",
    "sixty", "seventy", "eighty", "ninety", "below", "above", "ago", "off", "out", "another", "other", "others",
    "greater", "smaller", "larger", "equal", "equals", "approximately", "around", "roughly", "to", "per",
    "never", "no", "wrong", "incorrect", "false", "if",
}  # fmt: skip
_INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(
    rf"(?P<money>[$\u20ac\u00a3\u00a5\u20b9])?\s?(?P<sign>[-+])?\s?(?P<coin>[$\u20ac\u00a3\u00a5\u20b9])?\s?"
    rf"(?:(?P<whole>[0-9]+)\s+(?P<num>[0-9]+)\s?/\s?(?P<den>[0-9]+)|(?P<top>{_DECIMAL})\s?/\s?(?P<bottom>{_DECIMAL})"
    rf"|(?P<plain>{_DECIMAL})(?:[eE](?P<power>[-+]?[0-9]{{1,2}}))?)"
    r"(?:\s?(?P<percent>%)|(?P<unit>\s?[A-Za-z][A-Za-z ^23/-]*))?",
    re.ASCII,
)
_REWRITES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\{,\}", ","),
        (r"(?<=[0-9,])\\[,!;: ]|~(?=[A-Za-z\\])|\\[!]", " "),
        (r"\\([%$])", r"\1"),
        (r"\\[dt]?frac\s*\{\s*(-?)([0-9., ]+?)\s*\}\s*\{\s*([0-9., ]+?)\s*\}", r" \1\2/\3"),
        (r"\\[dt]?frac\s*([0-9])\s*([0-9])", r" \1/\2"),
        (r"\s*(?:\\times|\\cdot|\u00d7|\*|\bx)\s*10\s*\^\s*(?:\{([-+]?[0-9]{1,2})\}|([-+]?[0-9]{1,2}))", r"e\1\2"),
        (r"(?i)\s*\bper\s?cent\b", "%"),
        (r"\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|\\deg\b|\u00b0)", " degrees"),
        (r"\^\{([23])\}", r"^\1"),
    )
)


class _Number(NamedTuple):
    value: Fraction
    percent: bool
    unit: str


def numbers_of(text: str, question: str = "") -> tuple[Fraction, ...]:
    r"""What number a short text states: none, one, or for a percentage two readings (50 % is 1/2, or 50).

    The grammar, after `typographic` and without `$`, `\text{}` or a final stop around it:

        answer  = [name "=" | sum "="] [money] [sign] [money] number ["%" | unit]
        number  = decimal ["e" exponent] | decimal "/" decimal | whole proper-fraction (also `\frac`, `\times 10^{n}`)
        decimal = digits, or groups of three with commas or spaces, then optionally "." digits
        unit    = words: units of measure, and the words of the question; in all at most six

    A sum in front of `=` must have the value after it. Words that change a number (thousand, half, not, more, ...)
    are no units, and neither is a letter (5k, 5m, 5x). Everything else states no number: `5!`, `5^2`, `>5`, `5 or 6`.

    Args:
        text: an answer, as `final_answer` finds it.
        question: whose words count as units.
    """
    number = _read(text, question)
    if number is None:
        return ()
    return (number.value / 100, number.value) if number.percent else (number.value,)


def _read(text: str, question: str) -> _Number | None:
    if len(text) > _LONGEST:
        return None
    text = _TEXT.sub(r" \1 ", typographic(_undecorated(text)))
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    name, equals, text = " ".join(text.split()).rpartition("=")
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match["money"] and match["coin"]):
        return None
    value, unit = _value(match), _unit(match, question)
    if value is None or unit is None:
        return None
    if equals and not _is_name(name) and arithmetic(name) != value:
        return None
    return _Number(value, bool(match["percent"]), unit)


def _is_name(text: str) -> bool:
    """Whether words in front of `=` name what the number is, and change nothing about it."""
    words = text.split()
    return bool(words) and all(re.fullmatch("[A-Za-z]+", w) and w.lower() not in _NO_UNITS | _MATHS for w in words)


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


def _unit(match: re.Match[str], question: str) -> str | None:
    """The unit after a number in one spelling, "" where there is none, None where a word is no unit."""
    words = re.findall(r"[A-Za-z]+|[^A-Za-z\s]+", match["unit"] or "")
    asked = {_singular(word) for word in re.findall(r"[a-z]{3,}", question.lower())} if words else set()
    found: list[str] = []
    for i, word in enumerate(words):
        small = word.lower()
        if word in ("^", "^2", "^3", "/", "-"):
            joins = bool(found) and (word.startswith("^") or i + 1 < len(words))
            name: str | None = word if joins else None
        elif small in _COUPLES and i + 1 < len(words):
            name = small
        elif small in _UNITS:
            name = _UNITS[small]
        else:
            name = _singular(small) if small not in _NO_UNITS and _singular(small) in asked else None
        if name is None:
            return None
        found.append(name)
    if len(found) > 6:
        return None
    money = match["money"] or match["coin"]
    if money and found == ["millimeter"] and words[0] == "mm":  # $5mm: millions
        return None
    return " ".join(found) or {"$": "dollar", "\u20ac": "euro", "\u00a3": "pound"}.get(money or "", money or "")


def _singular(word: str) -> str:
    return re.sub(r"(?<=[a-z]{2})(?:ies|y|es|s|e)$", "", word)


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def arithmetic(text: str) -> Fraction | None:
    """Value of an expression of numbers with + - * / and brackets; None where it is something else."""
    text = re.sub(r"\\times|\\cdot|\u00d7", "*", re.sub(r"\\div|\u00f7", "/", text))
    text = re.sub(r"(?<=[0-9]),(?=[0-9]{3})|[$]", "", text).strip()
    if not re.fullmatch(r"[-+*/(). 0-9]+", text) or "**" in text or "//" in text:
        return None
    text = re.sub(r"\b0+(?=[0-9])", "", text)
    try:
        return _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluated(node: ast.expr) -> Fraction | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluated(node.operand)
        return -value if value is not None and isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluated(node.left), _evaluated(node.right)
        return None if left is None or right is None else _OPERATORS[type(node.op)](left, right)
    return None


def close(left: Fraction, right: Fraction, tolerance: float) -> bool:
    """Whether two numbers differ by at most `tolerance` times the larger magnitude; 0 asks for equality."""
    if left == right:
        return True
    return tolerance > 0 and abs(left - right) <= Fraction(tolerance) * max(abs(left), abs(right))


def same_number(gold: str, answer: str, tolerance: float = 0.0, question: str = "") -> bool | None:
    """Whether two texts state the same number; None where one of them states none, or their units differ.

    A percentage equals both its readings: `50%` is `0.5`, and where the question asked for per cent it is `50`. A
    unit that only one of them names does not count, and none is converted.

    Args:
        gold: the true answer.
        answer: the stated one.
        tolerance: relative difference at which two numbers count as equal.
        question: whose words count as units (see `numbers_of`).
    """
    left, right = _read(gold, question), _read(answer, question)
    if left is None or right is None or (left.unit and right.unit and left.unit != right.unit):
        return None
    readings = [(left.value, right.value)]
    if left.percent != right.percent:
        readings += [(left.value / (100 if left.percent else 1), right.value / (100 if right.percent else 1))]
    return any(close(a, b, tolerance) for a, b in readings)


_MATHS = frozenset(
    {
        "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "exp",
        "sqrt", "abs", "max", "min", "gcd", "lcm", "det", "inf", "infty", "oo", "and", "poly", "domain", "alpha",
        "beta", "gamma", "delta", "epsilon", "eta", "theta", "iota", "kappa", "lambda", "omega", "sigma", "tau",
    }
)  # fmt: skip


_SHORT = {"no", "of", "is", "if", "at", "up", "to", "by"}


def prose(text: str) -> str:
    r"""The words of an answer that are neither mathematics nor units; "" where it has none.

    A run of letters is a word from three letters on if it has a vowel; `xyz` is a product.
    """
    plain = re.sub(r"\\[A-Za-z]+", " ", _TEXT.sub(r" \1 ", typographic(text)))
    known = _MATHS | _UNITS.keys() | (_COUPLES - {"of"})
    return " ".join(run for run in re.findall(r"[^\W\d_]+", plain) if _is_word(run) and run.lower() not in known)


def _is_word(run: str) -> bool:
    return run.lower() in _SHORT or (len(run) > 2 and re.search("[aeiouAEIOU]|[^A-Za-z]", run) is not None)
