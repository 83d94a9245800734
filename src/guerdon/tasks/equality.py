"""Whether two expressions are the same number or the same function: proven, or not known.

Rational numbers are compared as fractions. For roots there is a lower bound on how near two different values can be
(Burnikel, Fleischer, Mehlhorn and Schirra 2001), so that enough digits prove equality. Other constants (pi, e,
logarithms) are equal where algebra shows it and different where enough digits show it. Functions are compared at
random rational points of their common real domain.

    equal(sympy.sqrt(8), 2 * sympy.sqrt(2))                 # True
    equal(Rational(1, 2**91), Rational(2**90 + 1, 2**91))   # False
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import sympy
from sympy import Expr, I, Integer, Rational, S
from sympy.core.evalf import PrecisionExhausted
from sympy.core.function import AppliedUndef

from guerdon.errors import DataError
from guerdon.tasks.expressions import rebuilt
from guerdon.tasks.rounding import Rounding

_DIGITS = (15, 100, 1000)  # at which a difference is looked for
_MOST_ROOT_BITS = 30_000  # of the bound for roots
_POINTS = 6  # at which two functions must agree


class UndecidedError(DataError):
    """Neither equality nor a difference could be shown within the bounds on work."""


def equal(gold: Expr, answer: Expr) -> bool:
    """Whether two expressions are equal, as numbers or wherever both are real.

    Raises:
        UndecidedError: it could not be shown.
        TooLargeError: a number becomes too large.
    """
    if gold == answer:
        return True
    if gold.is_Rational and answer.is_Rational:
        return False
    if gold.is_infinite or answer.is_infinite:
        return False
    gold, answer = named_values(gold, answer)
    if not (gold.free_symbols or answer.free_symbols):
        return _equal_constants(gold, answer)
    return _equal_functions(gold, answer)


def named_values(*expressions: Expr) -> list[Expr]:
    """The same with a variable for each value of an undefined function, `f(x)`."""
    values = set().union(*(expr.atoms(AppliedUndef) for expr in expressions))
    names = {value: sympy.Symbol(f"{value}", real=True) for value in values}
    return [expr.xreplace(names) if names else expr for expr in expressions]


@lru_cache(maxsize=1024)
def _equal_constants(gold: Expr, answer: Expr, thorough: bool = True) -> bool:
    """Compare two numbers; not `thorough`: transcendental ones by their digits only."""
    difference = gold - answer
    if difference.is_Rational:
        return bool(difference == 0)
    if _differs(difference, _DIGITS[0]):
        return False
    bits = _separation(difference)
    if bits is not None and bits < _MOST_ROOT_BITS:
        return not _exceeds(difference, bits)
    if not thorough:
        raise UndecidedError("the same in their first digits")
    if bits is None and _vanishes(difference):
        return True
    if any(_differs(difference, digits) for digits in _DIGITS[1:]):
        return False
    raise UndecidedError(f"the same to {_DIGITS[-1]} digits, and not shown to be equal")


def _differs(difference: Expr, digits: int) -> bool:
    """Whether a difference has a significant digit when its terms are computed with this many."""
    try:
        value = difference.evalf(2, maxn=digits, strict=True)
    except PrecisionExhausted:
        return False
    except (ArithmeticError, NotImplementedError) as error:
        raise UndecidedError(f"not computable: {error}") from None
    if value.has(S.NaN, S.ComplexInfinity) or not value.is_number:
        raise UndecidedError("not computable")
    return bool(value != 0)


def _exceeds(difference: Expr, bits: float) -> bool:
    """Whether the absolute value is above 2^-bits."""
    return _differs(difference, int(bits * math.log10(2)) + 20)


def _separation(expr: Expr) -> float | None:
    """Bits b so that an algebraic number is 0 if its absolute value is below 2^-b; None where it may be none."""
    degrees: dict[object, int] = {}
    bound = _conjugates(expr, degrees)
    if bound is None:
        return None
    degree = math.prod(degrees.values())
    return (degree - 1) * max(bound[0], 0.0) + max(bound[1], 0.0) + 8


def _conjugates(expr: Expr, degrees: dict[object, int]) -> tuple[float, float] | None:
    """log2 of bounds on all conjugates of a numerator and a denominator that are algebraic integers."""
    if expr.is_Rational:
        return _log2(abs(int(expr.p))), _log2(int(expr.q))
    if expr is I:
        degrees[I] = 2
        return 0.0, 0.0
    if expr.is_Add or expr.is_Mul:
        return _conjugates_of_terms(expr, degrees)
    if expr.is_Pow and expr.exp.is_Rational:
        return _conjugates_of_power(expr, degrees)
    if isinstance(expr, sympy.exp) and (turns := expr.args[0] / (I * sympy.pi)).is_Rational:
        degrees["unity", int(turns.q)] = 4 * int(turns.q)
        return 0.0, 0.0
    if isinstance(expr, sympy.sin | sympy.cos | sympy.tan | sympy.cot | sympy.sec | sympy.csc):
        turns = expr.args[0] / sympy.pi
        if turns.is_Rational:  # a sum of two roots of unity over 2, or a quotient of such sums
            degrees["unity", int(turns.q)] = 4 * int(turns.q)
            return 2.0, 2.0
    return None


def _conjugates_of_terms(expr: Expr, degrees: dict[object, int]) -> tuple[float, float] | None:
    """The same of a sum or a product."""
    parts = [_conjugates(arg, degrees) for arg in expr.args]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    lower = sum(low for _, low in found)
    if expr.is_Mul:
        return sum(up for up, _ in found), lower
    return max(up - low for up, low in found) + lower + math.log2(len(found)), lower


def _conjugates_of_power(expr: Expr, degrees: dict[object, int]) -> tuple[float, float] | None:
    inner = _conjugates(expr.base, degrees)
    if inner is None:
        return None
    up, low = max(inner[0], 0.0), max(inner[1], 0.0)
    exponent, index = int(expr.exp.p), int(expr.exp.q)
    if index > 1:
        degrees[expr.base, index] = index
        if up >= low:
            up = (up + (index - 1) * low) / index
        else:
            low = ((index - 1) * up + low) / index
    if exponent < 0:
        up, low = low, up
    return abs(exponent) * up, abs(exponent) * low


def _log2(number: int) -> float:
    return math.log2(number) if 0 < number < 1 << 1000 else float(number.bit_length())


def _vanishes(difference: Expr) -> bool:
    """Whether algebra shows that a constant with pi, e, logarithms or the like is 0.

    Such numbers are taken as variables after logarithms and powers are expanded; what is left must be 0 in each
    coefficient. A sum of logarithms of algebraic numbers is 0 where it is small and their product is 1.
    """
    top = sympy.numer(sympy.together(sympy.expand_log(difference, force=True, factor=True)))
    top = sympy.expand(top, power_exp=True, log=False)
    atoms = [a for a in top.atoms(sympy.Function, sympy.NumberSymbol) if _separation(a) is None]
    powers = [p for p in top.atoms(sympy.Pow) if p.exp.is_Rational and p.base.has(*atoms)] if atoms else []
    if top == 0 or (not powers and all(_is_zero(part) for part in _coefficients(top, atoms))):
        return True
    return _logarithms_vanish(difference) or sympy.simplify(difference) == 0


def _coefficients(expr: Expr, atoms: list[Expr]) -> Iterator[Expr]:
    """Coefficients of an expanded expression as a polynomial in some of its constants."""
    parts: dict[Expr, list[Expr]] = {}
    for term in sympy.Add.make_args(expr):
        rest, monomial = term.as_independent(*atoms, as_Add=False) if atoms else (term, S.One)
        parts.setdefault(monomial, []).append(rest)
    for terms in parts.values():
        yield sympy.Add(*terms)


def _is_zero(number: Expr) -> bool:
    if number.is_Rational:
        return bool(number == 0)
    bits = _separation(number)
    return bits is not None and bits < _MOST_ROOT_BITS and not _exceeds(number, bits)


def _logarithms_vanish(difference: Expr) -> bool:
    """Whether a small sum of rational multiples of logarithms of algebraic numbers (and of pi*i) is 0."""
    terms = sympy.expand(difference.rewrite(sympy.log), log=False)
    product: Expr = S.One
    scale = 1
    found: list[tuple[Expr, Expr]] = []
    for term in sympy.Add.make_args(terms):
        factor, rest = term.as_independent(sympy.log, sympy.pi, as_Add=False)
        if rest == sympy.pi:
            factor, inner = factor / I, S.NegativeOne
        elif isinstance(rest, sympy.log):
            inner = rest.args[0]
        else:
            return False
        found.append((factor, inner))
    if any((factor / I).is_Rational for factor, _ in found):
        found = [(factor / I, inner) for factor, inner in found]
    if not all(factor.is_Rational for factor, _ in found):
        return False
    scale = math.lcm(*(int(factor.q) for factor, _ in found))
    for factor, inner in found:
        product = product * inner ** int(factor * scale)
    return _differs(difference, 100) is False and _is_zero(product - 1)


def _equal_functions(gold: Expr, answer: Expr) -> bool:
    """Compare at points where both are real; where there are none, at points where both are defined."""
    gold, answer = _same_case(gold, answer)
    if gold == answer:
        return True
    complex_valued = gold.has(I) or answer.has(I)
    for real in (True, False) if not complex_valued else (False,):
        agreed, unsure = _compare_at_points(gold, answer, real)
        if agreed is False:
            return False
        if agreed and not unsure:
            return True
        if unsure:
            break
    if _identical(gold, answer):
        return True
    raise UndecidedError("neither shown to be equal nor to be different")


def _compare_at_points(gold: Expr, answer: Expr, real: bool) -> tuple[bool | None, bool]:
    """Whether the two agree at enough points (None: not enough are defined), and whether that is unsure."""
    agreed, unsure = 0, 0
    for point in _points(gold, answer):
        try:
            left, right = rebuilt(gold, point, real=real), rebuilt(answer, point, real=real)
            if real and not (left.is_real and right.is_real):
                continue
            if left == right or _equal_constants(left, right, False):
                agreed += 1
            else:
                return False, False
        except ZeroDivisionError:
            continue
        except UndecidedError:
            unsure += 1
        if agreed + 2 * unsure >= _POINTS:
            break
    return (True if agreed >= _POINTS // 2 else None), unsure > 0


def _points(*expressions: Expr) -> Iterator[dict[Expr, Expr]]:
    """Rational values for the variables: positive ones first, then of any sign, then integers."""
    names = sorted(set().union(*(expr.free_symbols for expr in expressions)), key=str)
    rng = random.Random(0)
    for i in range(6 * _POINTS):
        low = 1 if i % 3 == 0 else -4000
        if i >= 4 * _POINTS:
            yield {name: Integer(rng.randint(2, 9)) for name in names}
        else:
            scale = (4000, 400, 40_000)[i % 3 if i % 2 else 0]
            yield {name: Rational(rng.randint(low, 4000) or 1, scale - rng.randint(0, 97)) for name in names}


def _same_case(gold: Expr, answer: Expr) -> tuple[Expr, Expr]:
    """Both in small letters, where no two names differ in case only within either."""
    cased = [{str(name) for name in expr.free_symbols} for expr in (gold, answer)]
    if cased[0] == cased[1] or any(len({name.lower() for name in names}) < len(names) for names in cased):
        return gold, answer
    names = {name: sympy.Symbol(str(name).lower(), real=True) for name in gold.free_symbols | answer.free_symbols}
    return gold.xreplace(names), answer.xreplace(names)


def _identical(gold: Expr, answer: Expr) -> bool:
    """Whether simplification shows that two functions are the same."""
    difference = gold - answer
    if sympy.simplify(difference) == 0:
        return True
    positive = {name: sympy.Symbol(f"{name}", positive=True) for name in difference.free_symbols}
    return bool(sympy.simplify(difference.xreplace(positive)) == 0)


def near(gold: Expr, answer: Expr, tolerance: float) -> bool:
    """Whether two numbers differ by at most `tolerance` times the larger magnitude."""
    if gold.free_symbols or answer.free_symbols or gold.is_infinite or answer.is_infinite:
        return False
    if gold.is_Rational and answer.is_Rational:
        return bool(abs(gold - answer) <= Rational(Fraction(tolerance)) * max(abs(gold), abs(answer)))
    a, b = (sympy.N(value, 40) for value in (gold, answer))
    return bool(sympy.Abs(a - b) <= Rational(Fraction(tolerance)) * sympy.Max(sympy.Abs(a), sympy.Abs(b)))


def rounds_to(exact: Expr, decimal: Rational, places: int, rounding: Rounding | None) -> bool:
    """Whether a decimal with so many places is a rounding of an exact value that a question allows.

    Args:
        exact: a real number.
        decimal: the stated one.
        places: digits after its point.
        rounding: what the question asks for; None asks for nothing in particular.

    Raises:
        UndecidedError: the value could not be computed.
    """
    if exact.free_symbols or not exact.is_real or exact.is_infinite:
        return False
    if rounding is None:
        return _within_half(exact, decimal, places)
    wanted = rounding.places
    if rounding.figures is not None:
        size = sympy.floor(sympy.log(sympy.Abs(exact), 10)) if exact != 0 else Integer(0)
        wanted = rounding.figures - 1 - int(size.evalf())
    if wanted is None:
        return places != 0 and _within_half(exact, decimal, places)  # an integer is not a decimal
    if wanted <= places and _within_half(exact, decimal, places):
        return True
    return _within_half(exact, decimal, wanted)


def _within_half(exact: Expr, decimal: Rational, places: int) -> bool:
    if not (decimal * Integer(10) ** places).is_Integer:
        return False
    half = Rational(1, 2) / Integer(10) ** places
    error = sympy.Abs(exact - decimal)
    if error.is_Rational:
        return bool(error <= half)
    value = (half - error).evalf(10, maxn=200)
    if not value.is_real:
        raise UndecidedError("not computable")
    return bool(value >= 0)
