r"""Find the final answer in a response, and compare answers as strings or as exact numbers.

Nothing here evaluates what a model wrote: numbers are read by patterns into fractions. Symbolic comparison is the
verifier's (`verifier.py`). This module does not know prompts or rewards.

    final_answer(r"so 6*7 = \boxed{42}.")                  # "42"
    same_number("3/4", "0.75")                              # True
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

_BRACES = re.compile(r"(?P<box>\\f?box(?:ed)?\s*\{)|(?P<open>\{)|(?P<close>\})|\\.", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*")
_ANSWER_IS = re.compile(r"(?i)\banswer(?:\s+is\b|\s*[:=])\s*:?\s*")
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
    (to the end of the sentence).
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed or None
    for pattern in (_HASHES, _ANSWER_IS):
        marks = list(pattern.finditer(text))
        if marks:
            line = text[marks[-1].end() :].partition("\n")[0]
            return _undecorated(line if pattern is _HASHES else re.split(r"\.(?:\s|$)", line)[0]) or None
    return None


def _undecorated(text: str) -> str:
    """Without the dollar signs of maths, emphasis and the final stop around an answer."""
    text = text.strip().strip("*").strip().removesuffix(".").strip()
    maths = re.fullmatch(r"\$\$?([^$]*)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]", text)
    return next(group for group in maths.groups() if group is not None).strip() if maths else text


def normalized(text: str) -> str:
    r"""A string to compare by: one form of Unicode, no case, single spaces, no `\text{}`, quotes or final stop."""
    text = unicodedata.normalize("NFKC", _undecorated(text))
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}", r"\1", text)
    return " ".join(text.split()).casefold().strip("\"'` ").removesuffix(".").strip()


_PLAIN = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
_WORDS = r"(?:[^0-9+*/^<>\\_=-]|(?<=[A-Za-z])-(?=[A-Za-z]))*"
_NUMBER = re.compile(
    rf"(?!.*\b(?:minus|negative)\b){_WORDS}(?<![A-Za-z.,])(?P<sign>-?)\s*"
    rf"(?:(?:(?P<whole>[0-9]+)\s+)?(?P<top>{_PLAIN})\s*/\s*(?P<bottom>{_PLAIN})"
    rf"|(?P<plain>{_PLAIN})(?:\s*e(?P<power>[-+]?[0-9]{{1,2}}))?)"
    rf"(?P<percent>\s*%)?(?!\s*[xyzn]\b){_WORDS}",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_SIGNS = str.maketrans({"\u2212": "-", "\u2044": "/", "\uff05": "%", "\u00a0": " ", "\u2009": " ", "\u202f": " "})
_REWRITES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\{,\}", ","),
        (r"\\[,!;: ]", ""),
        (r"\\([%$])", r"\1"),
        (r"\\(?:text|mathrm)\{([^{}]*)\}", r" \1"),
        (r"\\[dt]?frac\s*\{\s*([0-9.,]+)\s*\}\s*\{\s*([0-9.,]+)\s*\}", r" \1/\2"),
        (r"\\[dt]?frac\s*([0-9])\s*([0-9])", r" \1/\2"),
        (r"\s*(?:\\times|\\cdot|\u00d7|\*)\s*10\s*\^\s*\{?([-+]?[0-9]{1,2})\}?", r"e\1"),
        (r"(?i)\s*\bper\s?cent\b", "%"),
        (r"[$\u20ac\u00a3\u00a5]\s*", ""),
    )
)


def numbers_of(text: str) -> tuple[Fraction, ...]:
    r"""What number a short text states: none, one, or for a percentage two readings (50 % is 1/2, or 50).

    Read are integers and decimals with thousands separators, fractions (also mixed and `\frac`), powers of ten, a
    sign, a currency, and words around the number such as a unit. Of a text with `=` the last part counts; one with
    several numbers, an expression or a variable states none. Nothing is evaluated.
    """
    if len(text) > _LONGEST:
        return ()
    text = _undecorated(text).translate(_SIGNS)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    match = _NUMBER.fullmatch(text.rpartition("=")[2].strip())
    value = None if match is None else _value(match)
    if match is None or value is None:
        return ()
    return (value / 100, value) if match["percent"] else (value,)


def _value(match: re.Match[str]) -> Fraction | None:
    def plain(name: str) -> Fraction:
        return Fraction((match[name] or "0").replace(",", "").rstrip("."))

    if match["top"] is not None:
        if plain("bottom") == 0:
            return None
        value = plain("whole") + plain("top") / plain("bottom")
    else:
        value = plain("plain") * Fraction(10) ** int(match["power"] or 0)
    return -value if match["sign"] else value


def close(left: Fraction, right: Fraction, tolerance: float) -> bool:
    """Whether two numbers differ by at most `tolerance` times the larger magnitude; 0 asks for equality."""
    if left == right:
        return True
    return tolerance > 0 and abs(left - right) <= Fraction(tolerance) * max(abs(left), abs(right))


def same_number(gold: str, answer: str, tolerance: float = 0.0) -> bool | None:
    """Whether two texts state the same number; None where one of them states none.

    A percentage equals both its readings: `50%` is `0.5`, and where the question asked for per cent it is `50`.
    """
    left, right = numbers_of(gold), numbers_of(answer)
    if not left or not right:
        return None
    return any(close(a, b, tolerance) for a in left for b in right)
