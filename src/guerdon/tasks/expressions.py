r"""Read an expression in LaTeX or plain notation into exact sympy, with bounds on the size of its numbers.

Numbers are exact (`0.25` is 1/4), juxtaposition is a product (`2(3)` is 6, `2\frac{1}{2}` a mixed number), names are
kept apart by case, and what the grammar does not have is refused. Sums, integrals, limits and determinants are read
by math-verify's parser.

    expression(r"2\sqrt{3} + 0.5")        # 1/2 + 2*sqrt(3)
    expression("9^{9^{9}}")               # TooLargeError, before it is computed
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache, lru_cache

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, latex2sympy
from sympy import Expr, I, Integer, Rational, S, Symbol

from guerdon.errors import DataError, boundary

MOST_BITS = 400_000  # of a number that is computed
_DEEPEST = 60  # brackets, signs and exponents inside each other
DEGREE = Symbol("degree", positive=True)  # pi/180 inside a trigonometric function, 1 elsewhere


class UnreadableError(DataError):
    """The text is not an expression of the grammar."""


class UndefinedError(UnreadableError):
    """A division by zero: no value at all."""


class TooLargeError(DataError):
    """A number would have more than `MOST_BITS` bits."""


def power(base: Expr, exponent: Expr) -> Expr:
    """`base ** exponent`, where the result has a bounded size.

    Raises:
        TooLargeError: it has not.
    """
    if base.free_symbols:
        if exponent.is_Rational and abs(exponent) > MOST_BITS:
            raise TooLargeError(f"an exponent above {MOST_BITS}")
    elif not exponent.free_symbols and base not in (1, -1, 0, I):
        size = exponent if exponent.is_Rational else exponent.evalf(5, maxn=30)
        if not size.has(S.Infinity, S.NegativeInfinity) and abs(size) * _bits(base) > MOST_BITS:
            raise TooLargeError(f"a power with more than {MOST_BITS} bits")
    result: Expr = sympy.Pow(base, exponent)
    return result


def _bits(number: Expr) -> int:
    """Bits of the largest number in an expression."""
    sizes = (max(int(abs(part.p)).bit_length(), int(part.q).bit_length()) for part in number.atoms(Rational))
    return sum(sizes) + 2


def factorial(number: Expr) -> Expr:
    """`number!`, where it has a bounded size.

    Raises:
        TooLargeError: it has not.
    """
    if number.is_Integer and number > 1 and number * math.log2(number) > MOST_BITS:
        raise TooLargeError(f"a factorial with more than {MOST_BITS} bits")
    result: Expr = sympy.factorial(number)
    return result


def _binomial(n: Expr, k: Expr) -> Expr:
    if n.is_Integer and k.is_Integer and min(abs(n), abs(k), abs(n - k)) * (_bits(n) + 1) > MOST_BITS:
        raise TooLargeError(f"a binomial coefficient with more than {MOST_BITS} bits")
    result: Expr = sympy.binomial(n, k)
    return result


def rebuilt(expr: Expr, values: dict[Expr, Expr], *, real: bool = False) -> Expr:
    """The same expression with symbols replaced, computed from the leaves up with bounded sizes.

    Args:
        expr: what is rebuilt.
        values: of symbols.
        real: whether intermediate results must be real.

    Raises:
        TooLargeError: a number becomes too large.
        ZeroDivisionError: an intermediate result is infinite, undefined or (with `real`) not real.
    """
    if expr in values:
        return values[expr]
    if not expr.args or expr.is_Number:
        return expr
    args = [rebuilt(arg, values, real=real) if isinstance(arg, Expr) else arg for arg in expr.args]
    if expr.is_Pow:
        result = power(*args)
    elif isinstance(expr, sympy.exp):
        result = power(S.Exp1, args[0])
    elif isinstance(expr, sympy.factorial):
        result = factorial(args[0])
    elif isinstance(expr, sympy.binomial):
        result = _binomial(*args)
    else:
        result = expr.func(*args)
    if not isinstance(result, Expr) or result.has(S.ComplexInfinity, S.NaN) or (real and result.has(I)):
        raise ZeroDivisionError
    return result


_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "arccot": sympy.acot, "arcsec": sympy.asec,
    "arccsc": sympy.acsc, "asin": sympy.asin, "acos": sympy.acos, "atan": sympy.atan, "sinh": sympy.sinh,
    "cosh": sympy.cosh, "tanh": sympy.tanh, "arsinh": sympy.asinh, "arcosh": sympy.acosh, "artanh": sympy.atanh,
    "exp": lambda x: power(S.Exp1, x), "ln": sympy.log, "log": lambda x, base=10: sympy.log(x, base),
    "lg": lambda x: sympy.log(x, 10), "abs": sympy.Abs, "floor": sympy.floor, "ceil": sympy.ceiling,
    "sgn": sympy.sign, "Re": sympy.re, "Im": sympy.im,
}  # fmt: skip
_INVERSES = {name: _FUNCTIONS[f"arc{name}"] for name in ("sin", "cos", "tan", "cot", "sec", "csc")}
_SEVERAL: dict[str, Callable[..., Expr]] = {
    "max": sympy.Max, "min": sympy.Min, "gcd": lambda *n: sympy.igcd(*n), "lcm": lambda *n: sympy.ilcm(*n),
}  # fmt: skip
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon"
    " phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar angle triangle square circ"
    " star nabla partial"
)
_LETTERS = frozenset(_GREEK.split(" "))
_ACCENTS = {"overline", "bar", "vec", "hat", "tilde", "overrightarrow", "widehat", "widetilde", "dot", "underline"}
_FONTS = {"mathbf", "mathrm", "mathit", "mathsf", "text", "textbf", "textit", "mathcal", "boldsymbol", "operatorname",
          "mathbb", "mbox", "bm", "rm"}  # fmt: skip
_TIMES = {"*", "\\cdot", "\\times", "\\ast", "\\bullet"}
_OVER = {"/", "\\div"}
_GROUPS = {"(": ")", "[": "]", "{": "}"}
_UNDEFINED = frozenset("fghFGH")  # f(x) is a value of a function, x(x + 1) a product
_PLAIN_NAMES = "|".join(sorted((*_FUNCTIONS, *_SEVERAL, "sqrt", "pi", "infty"), key=len, reverse=True))
_TOKEN = re.compile(
    rf"(?P<space>\s+)|(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][0-9]+)?)|(?P<command>\\[A-Za-z]+|\\.)"
    rf"|(?P<name>(?:{_PLAIN_NAMES})(?![A-Za-z]))|(?P<other>.)",
    re.DOTALL,
)
_LIBRARY = re.compile(r"\\(?:sum|prod|int|lim|det)(?![A-Za-z])|\\begin\b")
_LIBRARY_FORM = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
_BEFORE_BRACKET = re.compile(r"(?<![_0-9])([0-9]+|\))\s*(?=\()")


@lru_cache(maxsize=4096)
def expression(text: str) -> Expr:
    """The expression that a text states.

    Args:
        text: LaTeX, or plain maths with `*` and `^`.

    Raises:
        UnreadableError: it states none; `UndefinedError` where it divides by zero.
        TooLargeError: one of its numbers is too large.
    """
    if _LIBRARY.search(text):
        return _by_library(text)
    parser = _Parser(text)
    try:
        value = parser.sum()
    except RecursionError:
        raise UnreadableError("brackets too deep") from None
    if parser.piece:
        raise UnreadableError(f"{parser.piece!r} in an expression")
    return _finished(value)


def _finished(value: Expr) -> Expr:
    value = value.xreplace({DEGREE: S.One}) if value.has(DEGREE) else value
    if value.has(S.ComplexInfinity, S.NaN):
        raise UndefinedError("division by zero")
    return value


@cache
def symbol(name: str) -> Symbol:
    """A real variable."""
    return Symbol(name, real=True)


def _by_library(text: str) -> Expr:
    """Sums, integrals and matrices, as math-verify's parser reads them."""
    text = _BEFORE_BRACKET.sub(r"\1 \\cdot ", text)
    with boundary(UnreadableError, "not readable"):
        found = latex2sympy(
            text,
            is_real=True,
            normalization_config=_LIBRARY_FORM,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
    if isinstance(found, sympy.MatrixBase | sympy.MatrixExpr):
        return found  # compared entry by entry
    if not isinstance(found, Expr):
        raise UnreadableError("no expression")
    found = found.xreplace({f: sympy.nsimplify(f, rational=True) for f in found.atoms(sympy.Float)})
    try:
        return _finished(rebuilt(found, {}).doit())
    except ZeroDivisionError:
        raise UndefinedError("division by zero") from None


class _Parser:
    """Recursive descent over the tokens of one text; `piece` is the next one, "" at the end."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []  # and whether a space is in front
        space = False
        for found in _TOKEN.finditer(text):
            if found.lastgroup == "space" or found[0] in ("\\,", "\\;", "\\:", "\\!", "\\ "):
                space = True
                continue
            self._tokens.append((found[0], space))
            space = False
        self._at, self._depth = 0, 0

    @property
    def piece(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _ahead(self, n: int) -> str:
        return self._tokens[self._at + n][0] if self._at + n < len(self._tokens) else ""

    def _take(self, *expected: str) -> str:
        piece = self.piece
        if not piece or (expected and piece not in expected):
            raise UnreadableError(f"{piece!r} where {expected[0]!r} is expected" if expected else "it ends too early")
        self._at += 1
        return piece

    def sum(self) -> Expr:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnreadableError("brackets too deep")
        terms = [self._quotient()]
        while self.piece in ("+", "-"):
            sign = self._take()
            terms.append(self._quotient() if sign == "+" else -self._quotient())
        self._depth -= 1
        total: Expr = sympy.Add(*terms)
        return total

    def _quotient(self) -> Expr:
        value = self._signed()
        while self.piece in _TIMES or self.piece in _OVER or self.piece in ("\\bmod", "\\mod"):
            operator = self._take()
            other = self._signed()
            if operator in _TIMES:
                value = value * other
            elif operator in _OVER:
                if other.is_zero:
                    raise UndefinedError("division by zero")
                value = value / other
            else:
                value = sympy.Mod(value, other)
        return value

    def _signed(self) -> Expr:
        if self.piece in ("+", "-"):
            sign = self._take()
            self._depth += 1
            if self._depth > _DEEPEST:
                raise UnreadableError("too many signs")
            value = self._signed()
            self._depth -= 1
            return value if sign == "+" else -value
        return self._product()

    def _product(self, *, argument: bool = False) -> Expr:
        """Factors side by side; as an argument without brackets it ends before the next function."""
        value = self._power()
        while self._starts_factor() and not (argument and self._is_function()):
            piece, space = self._tokens[self._at]
            if piece[0].isdigit() and space and self._tokens[self._at - 1][0][-1:].isdigit():
                raise UnreadableError("two numbers side by side")
            value = value * self._power()
        return value

    def _starts_factor(self) -> bool:
        piece = self.piece
        if not piece or piece in "+-*/^_!%:;,=<>)]}|&'\"?\\":
            return False
        if piece[0] != "\\":
            return piece[0].isalnum() or piece[0] in "([{."
        return piece not in _TIMES | _OVER and piece not in (
            "\\bmod", "\\mod", "\\right", "\\rfloor", "\\rceil", "\\rvert", "\\vert", "\\%", "\\}",
        )  # fmt: skip

    def _is_function(self) -> bool:
        name = self.piece.removeprefix("\\")
        if name == "operatorname":
            name = self._ahead(2) if self._ahead(1) == "{" else ""
        return name in _FUNCTIONS or name in _SEVERAL

    def _power(self) -> Expr:
        value = self._atom()
        while self.piece in ("^", "!", "%", "\\%", "**", "\\degree"):
            mark = self._take()
            if mark == "!":
                value = factorial(value)
            elif mark in ("%", "\\%"):
                value = value / 100
            elif mark == "\\degree" or self._circle():
                value = value * DEGREE
            elif self.piece == "'":
                raise UnreadableError("a derivative")
            else:
                value = power(value, self._exponent())
        return value

    def _circle(self) -> bool:
        """Whether an exponent is the mark of degrees; it is taken if so."""
        for shape in (("\\circ",), ("{", "\\circ", "}")):
            if all(self._ahead(i) == part for i, part in enumerate(shape)):
                self._at += len(shape)
                return True
        return False

    def _exponent(self) -> Expr:
        if self.piece in ("+", "-"):
            sign = self._take()
            return -self._exponent() if sign == "-" else self._exponent()
        value = self._argument(digits=True)
        if self.piece == "^":  # 2^3^4 is 2^(3^4)
            self._take()
            value = power(value, self._exponent())
        return value

    def _argument(self, *, digits: bool = False) -> Expr:
        r"""A group in braces, or what LaTeX takes without them: one digit (`\frac12`), letter or command.

        Args:
            digits: all digits of a number, as in plain notation (`2^10`).
        """
        if self.piece == "{":
            return self._group()
        piece, space = self._tokens[self._at] if self.piece else ("", False)
        if piece[:1].isdigit() and not digits and len(piece) > 1:
            if not piece.isdigit():
                raise UnreadableError("a decimal without braces")
            self._tokens[self._at] = (piece[1:], space)
            return Integer(int(piece[0]))
        return self._atom()

    def _group(self) -> Expr:
        opened = self._take("(", "[", "{")
        value = self.sum()
        self._take(_GROUPS[opened])
        return value

    def _atom(self) -> Expr:
        piece = self.piece
        if piece[:1].isdigit() or (piece[:1] == "." and len(piece) > 1):
            return self._number()
        if piece in _GROUPS:
            return self._group()
        if piece in ("|", "\\vert", "\\lvert", "\\lfloor", "\\lceil"):
            return self._fenced()
        name = piece.removeprefix("\\")
        if name in _FONTS:
            return self._styled()
        if name in _FUNCTIONS or name in _SEVERAL:
            self._take()
            return self._function(name)
        if piece.startswith("\\") or len(piece) > 1:
            return self._command(self._take().removeprefix("\\"))
        if piece.isalpha():
            return self._letter(self._take())
        raise UnreadableError(f"{piece!r} in an expression" if piece else "it ends too early")

    def _number(self) -> Expr:
        piece = self._take()
        digits, _, exponent = piece.lower().partition("e")
        value: Expr = Rational(digits.removesuffix("."))
        if exponent:  # 1.5e3
            return value * power(Integer(10), Integer(int(exponent)))
        if not piece.isdigit():
            return value
        fraction = self._fraction_behind_integer()
        return value if fraction is None else value + fraction

    def _fraction_behind_integer(self) -> Expr | None:
        r"""The fraction of a mixed number such as `2\frac{1}{2}` or `2 1/2`; None: there is none, nothing is taken."""
        if self.piece in ("\\frac", "\\dfrac", "\\tfrac", "\\cfrac"):
            start = self._at
            self._take()
            top, bottom = self._argument(), self._argument()
            integers = top.is_Integer and bottom.is_Integer
            if integers and 0 < top < bottom and self.piece != "^":
                return top / bottom
            self._at = start
            if integers and self._tokens[start + 1][0] != "{":
                raise UnreadableError("a number in front of a fraction")  # its digits were split
        following, space = self._tokens[self._at] if self.piece else ("", False)
        if space and following.isdigit() and self._ahead(1) == "/" and self._ahead(2).isdigit():
            top, bottom = int(following), int(self._ahead(2))
            if 0 < top < bottom:
                self._at += 3
                return Rational(top, bottom)
        return None

    def _fenced(self) -> Expr:
        opened = self._take()
        closed = {"\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "\\lvert": "\\rvert"}.get(opened, opened)
        value = self.sum()
        self._take(closed)
        return {"\\lfloor": sympy.floor, "\\lceil": sympy.ceiling}.get(opened, sympy.Abs)(value)

    def _styled(self) -> Expr:
        r"""`\mathrm{e}`, `\operatorname{lcm}`, `\text{B}`: letters, or the name of a function."""
        self._take()
        if self.piece != "{":
            return self._atom()
        letters = self._braces()
        name = letters.replace("\\", "")
        if name in _FUNCTIONS or name in _SEVERAL:
            return self._function(name)
        if letters.isdigit():
            return Integer(int(letters))
        if not letters.isalpha():
            raise UnreadableError(f"{letters[:40]!r} in an expression")
        if name in ("pi", "sqrt"):
            return self._command(name)
        value: Expr = S.One
        for letter in letters[:-1]:
            value = value * (S.Exp1 if letter == "e" else symbol(letter))
        return value * self._letter(letters[-1])

    def _letter(self, letter: str) -> Expr:
        subscript = self._subscript()
        if not subscript and self.piece != "'":
            if letter == "e":
                return S.Exp1
            if letter == "i":
                return I
            if letter == "I" and self.piece != "(":
                return I
            if letter in _UNDEFINED and self.piece == "(":
                self._take()
                value = self.sum()
                self._take(")")
                return sympy.Function(letter, real=True)(value)
        while self.piece == "'":
            subscript += self._take()
        return symbol(letter + subscript)

    def _subscript(self) -> str:
        if self.piece != "_":
            return ""
        self._take()
        if self.piece != "{":
            return f"_{self._take()}"
        return f"_{self._braces()}"

    def _braces(self) -> str:
        """The contents of braces as text."""
        self._take("{")
        found, depth = "", 1
        while depth:
            piece = self._take()
            depth += (piece == "{") - (piece == "}")
            found += piece if depth else ""
        return found

    def _function(self, name: str) -> Expr:
        base, exponent = self._base_and_exponent(name)
        if name in _SEVERAL:
            values = self._several()
            if name in ("gcd", "lcm") and not all(value.is_Integer for value in values):
                raise UnreadableError(f"{name} of what is not an integer")
            return sympy.sympify(_SEVERAL[name](*values))
        value = self._function_argument()
        if value.has(DEGREE):
            value = value.xreplace({DEGREE: sympy.pi / 180})
        if exponent == -1 and name in _INVERSES:
            return _INVERSES[name](value)
        found = _FUNCTIONS[name](value) if base is None else _FUNCTIONS[name](value, base)
        return found if exponent is None else power(found, exponent)

    def _base_and_exponent(self, name: str) -> tuple[Expr | None, Expr | None]:
        """What stands between the name of a function and its argument, in any order, as in `log_2^3 x`."""
        base: Expr | None = None
        exponent: Expr | None = None
        for _ in range(2):
            if self.piece == "_" and name == "log":
                self._take()
                base = self._argument()
            elif self.piece == "^":
                self._take()
                exponent = self._exponent()
        return base, exponent

    def _function_argument(self) -> Expr:
        """The argument of a function: in brackets, or a product without them; a sign may stand before it."""
        if self.piece in ("-", "+"):
            sign = self._take()
            product = self._product(argument=True)
            return -product if sign == "-" else product
        if self.piece in _GROUPS or self.piece in ("|", "\\lvert", "\\vert", "\\lfloor", "\\lceil"):
            return self._atom()
        return self._product(argument=True)

    def _several(self) -> list[Expr]:
        opened = self._take("(", "{", "[", "\\{")
        values = [self.sum()]
        while self.piece == ",":
            self._take()
            values.append(self.sum())
        self._take({"\\{": "\\}"}.get(opened, _GROUPS.get(opened, "")))
        return values

    def _command(self, name: str) -> Expr:
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            top, bottom = self._argument(), self._argument()
            if bottom.is_zero:
                raise UndefinedError("division by zero")
            return top / bottom
        if name == "sqrt":
            return self._root()
        if name in ("binom", "dbinom", "tbinom"):
            return _binomial(self._argument(), self._argument())
        if name == "pi":
            return sympy.pi
        if name in ("infty", "infinity"):
            return S.Infinity
        if name == "imath":
            return I
        if name in _LETTERS:
            return symbol(f"\\{name}{self._subscript()}")
        if name in _ACCENTS:
            return symbol(f"\\{name} {self._braces()}")
        raise UnreadableError(f"\\{name} in an expression")

    def _root(self) -> Expr:
        index: Expr = Integer(2)
        if self.piece == "[":
            index = self._group()
            if not index.is_Integer or index <= 0 or index > 1000:
                raise UnreadableError("the index of a root")
        value = self._group() if self.piece == "(" else self._argument(digits=True)
        if index % 2 and index > 1 and value.is_extended_negative:  # the real root, as in \sqrt[3]{-8} = -2
            return -power(-value, 1 / index)
        return power(value, 1 / index)
