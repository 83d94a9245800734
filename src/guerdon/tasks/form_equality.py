r"""Whether two answers, read as forms, state the same.

same(read("(2, 5]"), read(r"2 < x \le 5"))                     # True
same(read("k = 45, n = 2"), read("n = 2, k = 45"))             # True
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sympy
from sympy import Expr, Rational, S

from guerdon.errors import boundary
from guerdon.tasks.equality import UndecidedError, equal, near, rounds_to
from guerdon.tasks.expressions import UnreadableError, expression
from guerdon.tasks.forms import Based, Form, Group, Matrix, NamedValue, Ratio, Region, Relation, Scalar, region
from guerdon.tasks.rounding import Rounding

_LONG = 10  # significant digits of a true answer that is a rounded value, whatever its question


class Allowance(NamedTuple):
    """What counts as equal beyond equality: a relative tolerance, or a rounding that the question allows."""

    tolerance: float = 0.0
    rounding: Rounding | None = None


EXACTLY = Allowance()


def same(gold: Form, answer: Form, allowance: Allowance = EXACTLY) -> bool:
    """Whether two forms state the same.

    Raises:
        UndecidedError: neither could be shown.
        UnreadableError: what the answer states is not certain.
        TooLargeError: a number becomes too large.
    """
    gold, answer = _unwrapped(gold, answer)
    if isinstance(gold, NamedValue) and isinstance(answer, NamedValue):
        if gold.name.lower() == answer.name.lower():
            return same(gold.value, answer.value, allowance)
        return _same_relation(gold, answer, allowance)
    for kind, compare in _COMPARISONS.items():
        if isinstance(gold, kind) or isinstance(answer, kind):
            return compare(gold, answer, allowance)
    raise TypeError(f"{gold!r} and {answer!r} are not forms")


def _unwrapped(gold: Form, answer: Form) -> tuple[Form, Form]:
    """Both without their names, where one has none."""
    if isinstance(answer, NamedValue) and not isinstance(gold, NamedValue | Relation):
        return _unwrapped(gold, answer.value)
    if isinstance(answer, Relation) and answer.right is not None and not isinstance(gold, NamedValue | Relation):
        return gold, answer.right
    if isinstance(gold, NamedValue) and not isinstance(answer, NamedValue | Relation):
        return _unwrapped(gold.value, answer)
    if isinstance(gold, NamedValue) and isinstance(answer, NamedValue) and not (gold.name and answer.name):
        return _unwrapped(gold.value, answer.value)
    return gold, answer


def _same_scalar(gold: Scalar, answer: Scalar, allowance: Allowance) -> bool:
    if isinstance(gold.value, sympy.MatrixBase | sympy.MatrixExpr) or isinstance(
        answer.value, sympy.MatrixBase | sympy.MatrixExpr
    ):
        return _same_matrix(gold, answer, allowance)
    if equal(gold.value, answer.value) or (
        allowance.tolerance > 0 and near(gold.value, answer.value, allowance.tolerance)
    ):
        return True
    stated = answer.places
    if stated is None and answer.value.is_Integer and _asks_for_integers(allowance.rounding):
        stated = 0
    if (gold.places is None) == (stated is None):
        return False
    if stated is not None:
        return allowance.rounding is not None and rounds_to(gold.value, answer.value, stated, allowance.rounding)
    assert gold.places is not None
    if answer.value.is_Rational and not allowance.rounding:
        return False
    if not rounds_to(answer.value, gold.value, gold.places, allowance.rounding):
        return False
    if allowance.rounding or len(str(abs(int(gold.value * 10**gold.places)))) >= _LONG:
        return True
    raise UnreadableError("it rounds to the true answer, a decimal; the question does not say that it is rounded")


def _asks_for_integers(rounding: Rounding | None) -> bool:
    """Whether a rounded answer may be an integer."""
    return rounding is not None and (
        rounding.figures is not None or (rounding.places is not None and rounding.places <= 0)
    )


def _same_based(gold: Form, answer: Form, _: Allowance) -> bool:
    """An integer without a base is in the one that the question names, or in base ten: certain where both agree."""
    forms = [f for f in (gold, answer) if isinstance(f, Based | Scalar)]
    if len(forms) < 2:
        return False
    values = [int(f.digits, f.base) if isinstance(f, Based) else f.value for f in forms]
    digits = [f.digits if isinstance(f, Based) else str(f.value) for f in forms]
    if isinstance(gold, Based) and isinstance(answer, Scalar):
        if digits[0] != digits[1] and values[0] == values[1]:
            raise UnreadableError("the true answer is in another base")
        return digits[0] == digits[1]
    return bool(values[0] == values[1])


def _same_group(gold: Form, answer: Form, allowance: Allowance) -> bool:
    left, right = (form if isinstance(form, Group) else Group("{}", (form,)) for form in (gold, answer))
    for one, other in ((left, right), (right, left)):  # {(1, 2)} is (1, 2)
        if one.brackets == "{}" and len(one.parts) == 1 and isinstance(one.parts[0], Group) and other.brackets != "{}":
            return same(one.parts[0], other, allowance) if one is left else same(other, one.parts[0], allowance)
    ordered = [group.brackets not in ("", "{}") for group in (left, right)]
    if all(ordered) and {left.brackets, right.brackets} not in ({"()", "<>"}, {left.brackets}):
        return False
    named = [all(isinstance(part, NamedValue) for part in group.parts) for group in (left, right)]
    if all(named):
        return _matched(left.parts, right.parts, allowance) and len(left.parts) == len(right.parts)
    if any(ordered) or any(named):
        if len(left.parts) != len(right.parts):
            return False
        agree = all(same(g, a, allowance) for g, a in zip(left.parts, right.parts, strict=True))
        a_set = any(ordered) and "{}" in (left.brackets, right.brackets)
        if a_set and (agree or (not ordered[0] and _matched(left.parts, right.parts, allowance))):
            raise UnreadableError("a tuple or an interval for a set, or a set for one of these")
        if agree:
            return True
        if any(named) and not any(ordered) and _matched(left.parts, right.parts, allowance):
            raise UnreadableError("the values of the true answer in another order, without their names")
        return False
    if not _matched(left.parts, right.parts, allowance):
        return False
    scalars = all(isinstance(part, Scalar) for part in (*left.parts, *right.parts))
    if len(left.parts) != len(right.parts) and scalars and "{}" not in (left.brackets, right.brackets):
        raise UnreadableError("the true answer with some values more or less often")
    return True


def _matched(left: Sequence[Form], right: Sequence[Form], allowance: Allowance) -> bool:
    """Whether each part of either has one that is the same in the other."""
    found = [[same(g, a, allowance) for a in right] for g in left]
    return all(map(any, found)) and all(any(row[i] for row in found) for i in range(len(right)))


def _same_matrix(gold: Form, answer: Form, allowance: Allowance) -> bool:
    rows = []
    for form in (gold, answer):
        if isinstance(form, Scalar) and isinstance(form.value, sympy.MatrixBase | sympy.MatrixExpr):
            with boundary(UnreadableError, "no matrix"):
                rows.append([[Scalar(cell) for cell in row] for row in form.value.doit().tolist()])
        elif isinstance(form, Matrix):
            rows.append([list(row) for row in form.rows])
        elif isinstance(form, Group) and all(isinstance(part, Group) and part.brackets == "[]" for part in form.parts):
            groups = [part.parts for part in form.parts if isinstance(part, Group)]  # [[1, 2], [3, 4]]
            if len({len(parts) for parts in groups}) > 1:
                return False
            rows.append([[part for part in parts if isinstance(part, Scalar)] for parts in groups])
        elif isinstance(form, Group) and form.brackets in ("()", "<>", "[]"):
            rows.append([[part for part in form.parts if isinstance(part, Scalar)]])
        else:
            return False
    vectors = [isinstance(form, Group) and not isinstance(form.parts[0], Group) for form in (gold, answer)]
    if any(vectors):
        rows = [[[cell for row in matrix for cell in row]] for matrix in rows if 1 in (len(matrix), len(matrix[0]))]
        if len(rows) < 2:
            return False
    left, right = rows
    if len(left) != len(right) or len(left[0]) != len(right[0]):
        return False
    return all(
        same(g, a, allowance) for row, other in zip(left, right, strict=True) for g, a in zip(row, other, strict=True)
    )


def _same_ratio(gold: Form, answer: Form, allowance: Allowance) -> bool:
    if not isinstance(gold, Ratio | Scalar) or not isinstance(answer, Ratio | Scalar):
        return False
    left, right = (
        [part.value for part in form.parts] if isinstance(form, Ratio) else [form.value, S.One]
        for form in (gold, answer)
    )
    if len(left) != len(right) or any(value.is_zero for value in (left[-1], right[-1])):
        return left == right
    return all(equal(g * right[-1], a * left[-1]) for g, a in zip(left, right, strict=True))


def _same_region(gold: Form, answer: Form, allowance: Allowance) -> bool:
    try:
        left, right = region(gold), region(answer)
    except UnreadableError:
        return False
    if left.name and right.name and left.name.lower() != right.name.lower():
        return False
    if right.doubtful and not left.doubtful:
        raise UnreadableError("no number fulfils both parts")
    if left.points == right.points:
        return True
    ours, theirs = _pieces(left.points), _pieces(right.points)
    return len(ours) == len(theirs) and all(
        g[1:3] == a[1:3] and _same_scalar(g[0], a[0], allowance) and _same_scalar(g[3], a[3], allowance)
        for g, a in zip(ours, theirs, strict=True)
    )


def _pieces(points: sympy.Set) -> list[tuple[Scalar, bool, bool, Scalar]]:
    """The intervals of a set in order: start, whether it is open, whether the end is, end."""
    if points is S.EmptySet:
        return []
    found: list[tuple[Expr, bool, bool, Expr]] = []
    for part in points.args if isinstance(points, sympy.Union) else (points,):
        if isinstance(part, sympy.FiniteSet):
            found += [(value, False, False, value) for value in part.args]
        elif part is S.Reals or isinstance(part, sympy.Interval):
            found.append((part.start, bool(part.left_open), bool(part.right_open), part.end))
        else:
            raise UndecidedError("a set that is not made of intervals")
    if len(found) > 1:
        if any(value.free_symbols for start, _, _, end in found for value in (start, end)):
            raise UndecidedError("intervals with variables")
        found.sort(key=lambda piece: (float(piece[0]), float(piece[3])))
    return [(Scalar(start), left, right, Scalar(end)) for start, left, right, end in found]


def _same_relation(gold: Form, answer: Form, _: Allowance) -> bool:
    sides = []
    for form in (gold, answer):
        if isinstance(form, NamedValue) and isinstance(form.value, Scalar) and re.fullmatch("[A-Za-z()]+", form.name):
            form = Relation("=", expression(form.name.replace("()", "")) - form.value.value)
        if not isinstance(form, Relation):
            return False
        sides.append(form)
    left, right = sides
    if left.sign != right.sign:
        return False
    g, a = (sympy.numer(sympy.together(side.difference)) if left.sign == "=" else side.difference for side in sides)
    ratio = _constant_ratio(g, a)
    if ratio is None:
        return False
    return bool(ratio.is_positive) if left.sign in ("<", "<=") else True


def _constant_ratio(left: Expr, right: Expr) -> Expr | None:
    """The constant c with left = c * right, or None where there is none."""
    ratio = sympy.cancel(left / right) if right != 0 else S.NaN
    if not ratio.free_symbols:
        return ratio if ratio.is_finite and ratio != 0 else None
    names = sorted(right.free_symbols | left.free_symbols, key=str)
    at = {name: Rational(3 + 2 * i, 7 + 3 * i) for i, name in enumerate(names)}
    constant = ratio.xreplace(at)
    if not constant.is_finite or constant == 0:
        return None
    return constant if equal(left, constant * right) else None


_COMPARISONS: dict[type, Callable[[Any, Any, Allowance], bool]] = {  # the first kind that either side has decides
    Relation: _same_relation,
    Region: _same_region,
    Matrix: _same_matrix,
    Ratio: _same_ratio,
    Group: _same_group,
    Based: _same_based,
    Scalar: _same_scalar,
}
