r"""The form of an answer (lists, tuples, intervals, sets, relations, matrices), and whether two answers are the same.

same(read("(2, 5]"), read(r"2 < x \le 5"))                     # True
same(read("k = 45, n = 2"), read("n = 2, k = 45"))             # True
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import sympy
from sympy import Expr, S, Symbol

from guerdon.errors import boundary
from guerdon.tasks.equality import named_values
from guerdon.tasks.expressions import DEGREE, UnreadableError, expression, symbol

MOST_PARTS = 200  # of a list, a set or a matrix


class Scalar(NamedTuple):
    """A number or an expression; `places` are the digits after the point of a plain decimal."""

    value: Expr
    places: int | None = None


class Group(NamedTuple):
    """Parts in order; `brackets` are "" (a bare list), "()", "[]", "(]", "[)", "{}" (a set) or "<>"."""

    brackets: str
    parts: tuple[Form, ...]


class Matrix(NamedTuple):
    """Rows of expressions."""

    rows: tuple[tuple[Scalar, ...], ...]


class Region(NamedTuple):
    """A set of real numbers, and the name of the variable in it, "" where it has none.

    `doubtful` where it was written with `and`, and no number fulfils both parts: their union, or nothing.
    """

    points: sympy.Set
    name: str = ""
    doubtful: bool = False


class NamedValue(NamedTuple):
    """What stands behind `name =`."""

    name: str
    value: Form


class Relation(NamedTuple):
    """An equation or inequality that does not name a value: `difference` (=, <=, <, !=) 0; its right side."""

    sign: str
    difference: Expr
    right: Form | None = None


class Based(NamedTuple):
    """An integer with its base, `204_5`."""

    digits: str
    base: int


class Ratio(NamedTuple):
    """`3:4`, `1:2:3`."""

    parts: tuple[Scalar, ...]


Form = Scalar | Based | Group | Matrix | Region | NamedValue | Relation | Ratio

_REPLACED = (
    (re.compile(r"(?<=[0-9])\s*(?:\{\s*,\s*\}|,\\!)\s*(?=[0-9]{3}(?![0-9]))"), ""),
    (
        re.compile(r"\\(?:left|right|big+[lrm]?|Big+[lrm]?|displaystyle|textstyle|limits|mathstrut|strut)(?![A-Za-z])"),
        "",
    ),
    (re.compile(r"\\q?quad(?![A-Za-z])|(?<!\\)\\[,;:! ]|(?<=[^\s=(,<>])~"), " "),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\lbrack(?![A-Za-z])"), "["),
    (re.compile(r"\\rbrack(?![A-Za-z])"), "]"),
    (re.compile(r"\\l?vert(?![A-Za-z])|\\rvert(?![A-Za-z])|\\mid(?![A-Za-z])"), "|"),
    (re.compile(r"\\(?:text|mathrm|textrm|mbox|textnormal)\s*\{\s*(,?\s*)(and|or)\s*\}"), r" \1\2 "),
    (re.compile(r"\\(?:leq|leqslant)(?![A-Za-z])|\\le(?![A-Za-z])|<=|\u2264|\u2a7d"), r" \\le "),
    (re.compile(r"\\(?:geq|geqslant)(?![A-Za-z])|\\ge(?![A-Za-z])|>=|\u2265|\u2a7e"), r" \\ge "),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\(?:neq|ne)(?![A-Za-z])|!=|\u2260|\\not\s*="), r" \\ne "),
    (re.compile(r"\\(?:varnothing|emptyset)(?![A-Za-z])|\u2205|\u00d8"), r"\\{\\}"),
    (re.compile(r"\\(?:lor|vee)(?![A-Za-z])|\u2228"), " or "),
    (re.compile(r"\\(?:land|wedge)(?![A-Za-z])|\u2227"), " and "),
    (re.compile(r"\\mathbf\s*\{?R\}?|\\mathbb\s*\{?R\}?|\u211d"), r"\\R"),
    (re.compile(r"\\(?:operatorname|mathrm|text)\s*\{\s*([ei])\s*\}"), r" \1 "),
    (re.compile(r"(?<=[0-9)}])(and|or)(?=[A-Z0-9(\\])"), r" \1 "),
)
_PLAIN = str.maketrans(
    {
        "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in ",
        "\u00b1": r"\pm ", "\u2213": r"\mp ", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ",
        "\u00f7": r"\div ", "\u00b0": r"^{\circ}", "\u27e8": r"\langle ", "\u27e9": r"\rangle ",
        "\u2216": r"\setminus ",
        "\u03b8": r"\theta ", "\u03b1": r"\alpha ", "\u03b2": r"\beta ", "\u03bb": r"\lambda ", "\u221a": r"\sqrt ",
    }
)  # fmt: skip
_UNIT = re.compile(
    r"\\(?:text|mbox|mathrm|textrm|textnormal|textbf|textit)\s*\{[^{}]*\}\s*(?:\^\s*(?:\{?[23]\}?))?\s*\Z"
)
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
_REPEATING = re.compile(
    r"(?<![0-9])([0-9]*)\.([0-9]*)(?:\\(?:overline|bar)\s*\{\s*([0-9]+)\s*\}|\\(?:overline|bar)\s*([0-9])|\(([0-9]+)\)"
    r"|((?:\\dot\s*\{?[0-9]\}?)(?:[0-9]*\\dot\s*\{?[0-9]\}?)?))"
)
_DECIMAL = re.compile(r"([-+]?)\s*[0-9]*\.([0-9]+)\s*")
_MARK = re.compile(  # what ends a part, outside of brackets
    r"(?P<open>\\\{|\\langle(?![A-Za-z])|\\lfloor|\\lceil|[(\[{]|\\begin\s*\{)|(?P<close>\\\}|\\rangle(?![A-Za-z])|\\rfloor|\\rceil|[)\]}]"
    r"|\\end\s*\{)|(?P<mark>\\(?:le|ge|ne|in|notin|cup|cap|setminus|backslash|pm|mp|iff|Rightarrow|to)(?![A-Za-z])"
    r"|[=<>,;:]|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))|\\.",
    re.DOTALL,
)
_SIGNS = {"=": "=", "<": "<", "\\le": "<=", ">": ">", "\\ge": ">=", "\\ne": "!="}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_NAME = re.compile(  # x, AB, x_1, f(x), |AB|, \vec{v}, \angle ABC, and several of them
    r"(?:[A-Za-z](?:_\w)?'*\s*\([^()=<>]*\)|(?:\\[A-Za-z]++(?!\s*\{)|[A-Za-z])(?:_(?:\{[^{}]*\}|\w))?'*"
    r"|\\(?:overline|vec|hat|bar|mathbf|mathrm|mathcal|text|textbf|overrightarrow)\s*\{[^{}]*\}|\|\s*[A-Z]{2}\s*\||[\s,:/])++"
)
_MATRIX = re.compile(
    r"\s*[(\[]?\s*\\begin\s*\{([pbBvV]?matrix\*?|smallmatrix|array)\}(?:\s*\{[lcr| ]*\}|\s*\[[lcr]\])?"
    r"(.*)\\end\s*\{\1\}\s*[)\]]?\s*",
    re.DOTALL,
)
_NO_NAMES = re.compile(
    r"\\(?:sqrt|sin|cos|tan|log|ln|frac\s*\{\s*[^A-Za-z\\]|pi)(?![A-Za-z])|[0-9]\s*[A-Za-z\\]|\^|\+|-"
)


def tidied(text: str) -> str:
    """An answer in the notation that is read here: one spelling of each sign, no sizes, spaces, dollars or units."""
    text = text.replace("\\$", "").replace("$", "").translate(_PLAIN).strip()
    text = re.sub(r"\APoly\(([^,]*),[^()]*\)\Z", r"\1", text).replace("**", "^")  # Python's text of a polynomial
    if "\\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)  # escaped twice
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    text = _REPEATING.sub(_repeating, text)
    unit = _UNIT.search(text)
    if unit and re.search(r"[A-Za-z]{2}|\s[A-Za-z]", unit[0][unit[0].index("{") :]) and text[: unit.start()].strip():
        text = text[: unit.start()]
    return text.strip().removesuffix(".").strip()


def _repeating(match: re.Match[str]) -> str:
    whole, fixed = match[1] or "0", match[2]
    period = match[3] or match[4] or match[5] or "".join(re.findall("[0-9]", match[6]))
    top = int(whole + fixed + period) - int(whole + fixed)
    return rf"(\frac{{{top}}}{{{'9' * len(period) + '0' * len(fixed)}}})"


@lru_cache(maxsize=1024)
def read(text: str) -> Form:
    """The form of an answer.

    Raises:
        UnreadableError: it has none that is known.
        TooLargeError: one of its numbers is too large.
    """
    text = tidied(text)
    if not text:
        raise UnreadableError("no mathematics in it")
    whole = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    return _read(whole if "," not in whole else text)


def _split(text: str, *marks: str) -> tuple[list[str], list[str]]:
    """The parts of a text between some marks outside of brackets, and the marks."""
    parts, found, depth, start = [], [], 0, 0
    for match in _MARK.finditer(text):
        if match["open"]:
            depth += 1
        elif match["close"]:
            depth -= 1
        elif match["mark"] and depth == 0 and match["mark"] in marks:
            parts.append(text[start : match.start()])
            found.append(match["mark"])
            start = match.end()
    parts.append(text[start:])
    if len(parts) > MOST_PARTS:
        raise UnreadableError(f"more than {MOST_PARTS} parts")
    return parts, found


def _read(text: str, depth: int = 0) -> Form:
    text = text.strip()
    if depth > 20:
        raise UnreadableError("brackets too deep")
    matrix = _MATRIX.fullmatch(text)
    if matrix and "\\begin" not in matrix[2]:
        return _matrix(matrix[1], matrix[2])
    for marks in ((";",), (",", "and", "or")):
        parts, found = _split(text, *marks)
        if found:
            return _list(parts, found, depth)
    parts, found = _split(text, *_SIGNS, "\\in", "\\notin")
    if found:
        return _relation(parts, found, depth)
    inner = _bracketed(text)
    if inner is not None:
        return _group(*inner, depth)
    parts, found = _split(text, "\\cup", "\\cap", "\\setminus", "\\backslash")
    if found:
        return _combined([region(_read(part, depth + 1)) for part in parts], found)
    if text == "\\R":
        return Region(S.Reals)
    return _ratio(text) or _based(text) or _both_signs(text, depth) or _scalar(text)


def _ratio(text: str) -> Ratio | None:
    parts, found = _split(text, ":")
    if not found or not all(part.strip() for part in parts):
        return None
    return Ratio(tuple(_scalar(part) for part in parts))


def _based(text: str) -> Based | None:
    """Digits in another base, such as `101_2`."""
    found = re.fullmatch(r"([0-9A-F]+)\s*_\s*\{?\s*([0-9]{1,2})\s*\}?", text)
    if not found or not 2 <= int(found[2]) <= 16:
        return None
    if any(int(digit, 16) >= int(found[2]) for digit in found[1]):
        return None
    return Based(found[1], int(found[2]))


def _both_signs(text: str, depth: int) -> Group | None:
    r"""The two values of a text with `\pm` or `\mp`."""
    if "\\pm" not in text and "\\mp" not in text:
        return None
    both = []
    for plus, minus in (("pm", "mp"), ("mp", "pm")):
        signed = re.sub(rf"\\{minus}(?![A-Za-z])", " - ", re.sub(rf"\\{plus}(?![A-Za-z])", " + ", text))
        both.append(_read(re.sub(r"^\s*\+", "", signed), depth + 1))
    return Group("{}", tuple(both))


def _scalar(text: str) -> Scalar:
    decimal = _DECIMAL.fullmatch(text.strip())
    return Scalar(expression(text.strip()), len(decimal[2]) if decimal else None)


_PAIRS = (("\\{", "\\}", "{}"), ("\\langle", "\\rangle", "<>"), ("{", "}", ""))  # brackets, and their kind
_REVERSED = {"]]": "(]", "[[": "[)", "][": "()"}  # of intervals such as ]2, 5[
_STRAIGHT = ("()", "(]", "[)", "[]")


def _bracketed(text: str) -> tuple[str, str] | None:
    """The brackets and contents where one pair of brackets with a list in it is the whole text."""
    for opened, closed, kind in _PAIRS:
        if text.startswith(opened) and text.endswith(closed) and not text.endswith("\\" + closed):
            inner = text[len(opened) : -len(closed)]
            return (kind, inner) if _balanced(inner) else None
    ends, inner = text[:1] + text[-1:], text[1:-1]
    if ends in _REVERSED and re.search("[,;]", text):
        return _REVERSED[ends], inner
    if ends not in _STRAIGHT:
        return None
    if _balanced(inner) and (_split(inner, ",", ";")[1] or ends == "[]"):
        return ends, inner
    if _balanced(inner) and _split(inner, *_SIGNS, "\\cup", "\\cap")[1]:
        return "", inner
    return ("", inner) if _MATRIX.fullmatch(inner) else None


def _balanced(text: str) -> bool:
    depth = 0
    for match in _MARK.finditer(text):
        depth += bool(match["open"]) - bool(match["close"])
        if depth < 0:
            return False
    return depth == 0


def _group(brackets: str, inner: str, depth: int) -> Form:
    if brackets == "{}":
        parts, found = _split(inner.replace("|", ":", 1) if inner.count("|") == 1 else inner, ":")
        if len(found) == 1 and _split(parts[1], *_SIGNS)[1]:  # {x : x > 2}
            return _read(parts[1], depth + 1)
        if not inner.strip():
            return Region(S.EmptySet)
    if brackets == "":
        return _read(inner, depth + 1)
    parts, _ = _split(inner, ",", ";")
    forms = tuple(_read(part, depth + 1) for part in parts)
    if brackets == "{}":
        forms = _flat(forms)
    return forms[0] if brackets == "[]" and len(forms) == 1 else Group(brackets, forms)


def _flat(forms: Sequence[Form]) -> tuple[Form, ...]:
    r"""The same with the values of each `\pm` on their own."""
    return tuple(
        p for form in forms for p in (form.parts if isinstance(form, Group) and form.brackets == "{}" else (form,))
    )


_OF_INTEGERS = re.compile(r"\s*[a-zA-Z]\s*\\in\s*\\?(?:mathbb\s*\{?)?[ZN]\}?\s*")  # n \in Z


def _list(parts: list[str], marks: list[str], depth: int) -> Form:
    kept = [part for part in parts if part.strip() and not _OF_INTEGERS.fullmatch(part)]
    if not kept:
        raise UnreadableError("an empty list")
    forms = [_read(part, depth + 1) for part in kept]
    if len(forms) == 1:
        return forms[0]
    regions = [form for form in forms if isinstance(form, Region)]
    if len(regions) == len(forms):
        return _joined(regions, marks)
    return _under_one_name(forms) or _as_list(forms)


def _under_one_name(forms: list[Form]) -> NamedValue | None:
    """A list whose first value alone has a name, which is that of all, or whose values all have the same."""
    named = [form for form in forms if isinstance(form, NamedValue)]
    if len(named) == 1 and named[0] is forms[0]:
        return NamedValue(named[0].name, _as_list((named[0].value, *forms[1:])))
    names = {form.name for form in named}
    if len(named) == len(forms) and "" not in names and len(names) == 1:
        return NamedValue(names.pop(), _as_list([form.value for form in named]))
    return None


def _as_list(forms: Sequence[Form]) -> Group:
    return Group("", _flat(forms))


def _joined(regions: list[Region], marks: Sequence[str]) -> Region:
    """Relations of a list: all hold, but where no number fulfils them all, one does."""
    name = regions[0].name if all(region.name == regions[0].name for region in regions) else "?"
    if name == "?":
        raise UnreadableError("relations of several variables")
    sets = [region.points for region in regions]
    both = sympy.Intersection(*sets)
    if "or" not in marks and both is not S.EmptySet:
        return Region(both, name)
    return Region(sympy.Union(*sets), name, doubtful="or" not in marks and "and" in marks)


def _combined(regions: list[Region], marks: list[str]) -> Region:
    points = regions[0].points
    for mark, other in zip(marks, regions[1:], strict=True):
        operation = {"\\cup": sympy.Union, "\\cap": sympy.Intersection}.get(mark, sympy.Complement)
        points = operation(points, other.points)
    return Region(points, regions[0].name)


def _matrix(kind: str, body: str) -> Form:
    rows = [row for row in re.split(r"\\\\|\\cr(?![A-Za-z])", body.replace("\\hline", "")) if row.strip()]
    cells = tuple(tuple(_scalar(cell) for cell in row.split("&")) for row in rows)
    if not cells or len({len(row) for row in cells}) > 1 or sum(map(len, cells)) > MOST_PARTS:
        raise UnreadableError("a matrix with rows of different lengths")
    if kind[0] in "vV":
        with boundary(UnreadableError, "no determinant"):
            return Scalar(sympy.Matrix([[cell.value for cell in row] for row in cells]).det())
    return Matrix(cells)


def _name_of(text: str) -> str | None:
    """A name in one spelling, or None where the text is none."""
    plain = re.sub(r"\\frac\s*\{([A-Za-z ]+)\}\s*\{([A-Za-z ]+)\}", r"\1/\2", text.strip())
    inner = plain[1:-1] if plain[:1] == "(" and plain[-1:] == ")" and "," in plain else plain
    if not inner or _NO_NAMES.search(re.sub(r"_(?:\{[^{}]*\}|\w)|\([^()]*\)", "", inner)) or not _NAME.fullmatch(inner):
        return None
    plain = re.sub(r"_\{(\w)\}", r"_\1", re.sub(r"\s", "", inner))
    return re.sub(r"\A([A-Za-z](?:_\w)?)\([A-Za-z]\)\Z", r"\1()", plain)


def _relation(parts: list[str], marks: list[str], depth: int) -> Form:
    if any(not part.strip() for part in parts):
        raise UnreadableError("a relation without a side")
    signs = [_SIGNS.get(mark, mark) for mark in marks]
    if signs == ["\\in"]:
        value = _read(parts[1], depth + 1)
        return Region(value.points, parts[0].strip()) if isinstance(value, Region) else value
    if signs == ["\\notin"]:
        return Region(sympy.Complement(S.Reals, region(_read(parts[1], depth + 1)).points), parts[0].strip())
    if all(sign == "=" for sign in signs):
        name = _name_of(parts[0])
        if name is not None:
            return _named(name, _argument_renamed(parts[0], _read(parts[-1], depth + 1)))
        return _equation(parts)
    values = (re.sub(r"\A\s*([A-Za-z])\s*\(\s*[A-Za-z]\s*\)\s*\Z", r"\1", part) for part in parts)  # f(x) as a variable
    sides = named_values(*map(expression, values))
    chain = _chain(sides, signs) if "=" not in signs else None
    if chain is not None:
        return chain
    relations = tuple(_between(sides[i], sign, sides[i + 1]) for i, sign in enumerate(signs))
    return relations[0] if len(signs) == 1 else Group("{}", relations)


def _between(left: Expr, sign: str, right: Expr) -> Relation:
    """A relation of a difference to 0, by `<`, `<=`, `=` or `!=`."""
    if sign[0] == ">":
        return Relation(_TURNED[sign], right - left)
    return Relation(sign, left - right)


def _named(name: str, value: Form) -> Form:
    """A value with its name; a tuple of names has a value for each."""
    names = name.split(",")
    if (
        len(names) > 1
        and isinstance(value, Group)
        and value.brackets in ("()", "<>")
        and len(value.parts) == len(names)
    ):
        return Group("()", tuple(NamedValue(*pair) for pair in zip(names, value.parts, strict=True)))
    return NamedValue(name, value)


def _equation(parts: list[str]) -> Form:
    left, right = (_read(part) for part in (parts[0], parts[-1]))
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        if not (left.value.free_symbols or right.value.free_symbols):
            return NamedValue("", right)  # a sum and its value
        return Relation("=", left.value - right.value, right)
    if isinstance(left, Scalar | Ratio):
        return NamedValue("", right)
    raise UnreadableError("an equation of lists")


def _argument_renamed(left: str, value: Form) -> Form:
    """The value of `f(t) =` with its argument called x."""
    found = re.fullmatch(r"\s*[A-Za-z](?:_\w)?\s*\(\s*([A-Za-z])\s*\)\s*", left)
    if not found or not isinstance(value, Scalar) or found[1] == "x" or value.value.has(symbol("x")):
        return value
    return Scalar(value.value.xreplace({symbol(found[1]): symbol("x")}), value.places)


def _chain(sides: list[Expr], signs: list[str]) -> Region | None:
    """The numbers that fulfil a chain of relations of one variable; None where it has several."""
    variable = _variable_of(sides)
    if variable is None:
        return None
    if len(sides) > 2 and sum(side.has(variable) for side in sides) != 1:
        return None
    sets = [_solved(sides[i], sign, sides[i + 1], variable) for i, sign in enumerate(signs)]
    return Region(sympy.Intersection(*sets) if len(sets) > 1 else sets[0], str(variable))


def _variable_of(sides: list[Expr]) -> Symbol | None:
    """The variable of relations: the only one, or the one that stands alone; None where several do."""
    names = set().union(*(side.free_symbols for side in sides)) - {DEGREE}
    alone = [side for side in sides if isinstance(side, Symbol)]
    if len(names) > 1 and (not alone or (len(alone) > 1 and len(sides) > 2)):
        return None
    if not names and not alone:
        raise UnreadableError("a relation of numbers")
    return names.pop() if len(names) == 1 else max(alone, key=str)


def _solved(left: Expr, sign: str, right: Expr, variable: Symbol) -> sympy.Set:
    if right == variable:
        left, sign, right = right, _TURNED[sign], left
    if left == variable and not right.has(variable):
        if sign == "!=":
            return sympy.Complement(S.Reals, sympy.FiniteSet(right))
        low, high = (S.NegativeInfinity, right) if sign[0] == "<" else (right, S.Infinity)
        return sympy.Interval(
            low, high, left_open=low.is_infinite or sign == ">", right_open=high.is_infinite or sign == "<"
        )
    relation = {"<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge, "!=": sympy.Ne}[sign](left, right)
    if relation in (True, False):
        return S.Reals if relation else S.EmptySet
    with boundary(UnreadableError, "not solved"):
        return sympy.solve_univariate_inequality(relation, variable, relational=False)


def region(form: Form) -> Region:
    """A form as a set of real numbers.

    Raises:
        UnreadableError: it is none.
    """
    if isinstance(form, Region):
        return form
    if isinstance(form, NamedValue):
        found = region(form.value)
        return Region(found.points, form.name)
    if isinstance(form, Scalar):
        return Region(sympy.FiniteSet(form.value))
    if isinstance(form, Group) and all(isinstance(part, Scalar) for part in form.parts):
        values = [part.value for part in form.parts if isinstance(part, Scalar)]
        if form.brackets in ("()", "[]", "(]", "[)") and len(values) == 2:
            with boundary(UnreadableError, "no interval"):
                points = sympy.Interval(*values, left_open=form.brackets[0] == "(", right_open=form.brackets[1] == ")")
            if points is not S.EmptySet:  # (5, 2) is a pair
                return Region(points)
        elif form.brackets in ("", "{}"):
            return Region(sympy.FiniteSet(*values))
    raise UnreadableError("not a set of real numbers")
