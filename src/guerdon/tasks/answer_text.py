r"""Text of answers: plain characters, a string to compare by, and the words that are not mathematics.

typographic("5½")                                       # "5 1/2"
normalized(r"\text{ Paris }.")                          # "paris"
prose(r"5 \text{ or more}")                             # "more"
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from guerdon.tasks.units import COUPLES, TEXT, UNIT_WORDS

MATHS = frozenset(
    {
        "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "exp",
        "sqrt", "abs", "max", "min", "gcd", "lcm", "det", "inf", "infty", "oo", "and", "poly", "domain", "alpha",
        "beta", "gamma", "delta", "epsilon", "eta", "theta", "iota", "kappa", "lambda", "omega", "sigma", "tau",
    }
)  # fmt: skip
_MINUS = "\u2212\ufe63\uff0d\u2010\u2011"
_DASH = re.compile(
    r"(^|[=(\[{,;:$^+*/<>])(\s*)[\u2012\u2013](?=\s*[0-9.$\\])"
)  # with something else before it: a range
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s?\{[^{}]*\}(?:\{[clr|]*\})?|\\[A-Za-z]+")
_SHORT = {"no", "of", "is", "if", "at", "up", "to", "by"}


def undecorated(text: str) -> str:
    """Without the dollar signs of maths, emphasis, backticks and the final stop around an answer."""
    text = text.strip()
    for _ in range(4):
        before = text
        text = text.strip("*`").strip().removesuffix(".").strip()
        maths = re.fullmatch(r"\$\$?([^$]*)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]", text, re.DOTALL)
        if maths:
            text = next(group for group in maths.groups() if group is not None).strip()
        if text == before:
            break
    return text


def typographic(text: str) -> str:
    """The same text in plain characters.

    Full-width and mathematical forms, fractions (`5\u00bd` is `5 1/2`), superscripts (`5\u00b2` is `5^{2}`),
    subscripts, spaces, minus signs; an en dash is a minus sign where a number starts. Invisible characters go.
    """
    if text.isascii():
        return text
    found: list[str] = []
    open_mark = ""  # of the superscripts or subscripts that go on
    for char in text:
        tag, _, codes = unicodedata.decomposition(char).partition(" ")
        mark = {"<super>": "^", "<sub>": "_"}.get(tag, "")
        if open_mark and mark != open_mark:
            found.append("}")
        if mark:
            inner = typographic("".join(chr(int(code, 16)) for code in codes.split()))
            found.append(inner if mark == open_mark else f"{mark}{{{inner}")
        else:
            after_digit = bool(found) and found[-1].isdigit()
            plain = _plain(char, tag, after_digit=after_digit)
            found += [plain] if plain else []
        open_mark = mark
    return _DASH.sub(r"\1\2-", "".join(found) + ("}" if open_mark else ""))


def _plain(char: str, tag: str, *, after_digit: bool) -> str:
    """One character in plain ones; empty for one that cannot be seen.

    Args:
        char: neither a superscript nor a subscript.
        tag: of its decomposition in Unicode.
        after_digit: whether a digit stands before it, which a fraction must not continue.
    """
    if char in _MINUS:
        return "-"
    if char in "\u2044\u2215":
        return "/"
    if tag == "<fraction>":
        before = " " if after_digit else ""
        return before + unicodedata.normalize("NFKC", char).replace("\u2044", "/")
    if tag in ("<wide>", "<narrow>", "<font>"):
        return unicodedata.normalize("NFKC", char)
    category = unicodedata.category(char)
    if category == "Zs":
        return " "
    return "" if category == "Cf" else char


def outside_brackets(text: str) -> Iterator[tuple[int, str]]:
    """The characters of a text outside all brackets, with their places; brackets that end one count."""
    depth = 0
    for place, char in enumerate(text):
        depth += (char in "({[") - (char in ")}]")
        if depth == 0:
            yield place, char


def as_read(text: str) -> str:
    """The same text in plain characters, without what sets parts of it as text."""
    return " ".join(TEXT.sub(r"\1", typographic(undecorated(text))).split())


def normalized(text: str) -> str:
    r"""A string to compare by: plain characters, no case, single spaces, no `\text{}`, quotes or final stop."""
    text = unicodedata.normalize("NFKC", typographic(undecorated(text)))
    text = TEXT.sub(r"\1", text)
    return " ".join(text.split()).casefold().strip("\"'` ").removesuffix(".").strip()


def prose(text: str) -> str:
    r"""The words of an answer that are neither mathematics nor units; "" where it has none.

    A run of letters is a word from three letters on if it has a vowel; `xyz` is a product.
    """
    plain = _ENVIRONMENT.sub(" ", TEXT.sub(r" \1 ", typographic(text)))
    known = MATHS | UNIT_WORDS | (COUPLES - {"of"})
    return " ".join(run for run in re.findall(r"[^\W\d_]+", plain) if is_word(run) and run.lower() not in known)


def is_word(run: str) -> bool:
    """Whether a run of letters is a word of a language, and no product of variables."""
    return run.lower() in _SHORT or (len(run) > 2 and re.search("[aeiouAEIOU]|[^A-Za-z]", run) is not None)
