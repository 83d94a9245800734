r"""Whether two answers, read as forms, state the same.

same(read("(2, 5]"), read(r"2 < x \le 5"))                     # True
same(read("k = 45, n = 2"), read("n = 2, k = 45"))             # True
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import sympy
from sympy import Expr, Rational, S

from guerdon.errors import boundary
from guerdon.tasks.equality import UndecidedError, equal, near, rounds_to
from guerdon.tasks.expressions import UnreadableError, expression
from guerdon.tasks.forms import Based, Form, Group, Matrix, NamedValue, Ratio, Region, Relation, Scalar, region
from guerdon.tasks.rounding import Rounding

_MATRICES = (sympy.MatrixBase, sympy.MatrixExpr)
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
    if isinstance(gold.value, _MATRICES) or isinstance(answer.value, _MATRICES):
        return _same_matrix(gold, answer, allowance)
    if equal(gold.value, answer.value) or (
        allowance.tolerance > 0 and near(gold.value, answer.value, allowance.tolerance)
    ):
        return True
    stated = answer.places
    if stated is None and answer.value.is_Integer and _asks_for_integers(allowance.rounding):
        stated = 0
    if gold.places is None and stated is not None:
        return allowance.rounding is not None and rounds_to(gold.value, answer.value, stated, allowance.rounding)
    if gold.places is not None and stated is None:
        return _rounds_to_decimal(answer.value, gold.value, gold.places, allowance.rounding)
    return False


def _rounds_to_decimal(exact: Expr, decimal: Expr, places: int, rounding: Rounding | None) -> bool:
    """Whether an exact answer rounds to a true one that is a decimal.

    Raises:
        UnreadableError: it does, but the question does not ask for rounding, and the decimal has few digits.
    """
    if exact.is_Rational and not rounding:
        return False
    if not rounds_to(exact, decimal, places, rounding):
        return False
    if rounding or len(str(abs(int(decimal * 10**places)))) >= _LONG:
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
    left, right = _as_group(gold), _as_group(answer)
    if _holds_one_group(left) and right.brackets != "{}":  # {(1, 2)} is (1, 2)
        return same(left.parts[0], right, allowance)
    if _holds_one_group(right) and left.brackets != "{}":
        return same(left, right.parts[0], allowance)
    brackets = {left.brackets, right.brackets}
    ordered = [_is_ordered(group) for group in (left, right)]
    if all(ordered) and len(brackets) > 1 and brackets != {"()", "<>"}:
        return False
    named = [_is_named(group) for group in (left, right)]
    if all(named):
        return _matched(left.parts, right.parts, allowance) and len(left.parts) == len(right.parts)
    if any(ordered) or any(named):
        return _same_in_order(left, right, allowance)
    return _same_in_any_order(left, right, allowance)


def _as_group(form: Form) -> Group:
    return form if isinstance(form, Group) else Group("{}", (form,))


def _holds_one_group(group: Group) -> bool:
    return group.brackets == "{}" and len(group.parts) == 1 and isinstance(group.parts[0], Group)


def _is_ordered(group: Group) -> bool:
    return group.brackets not in ("", "{}")


def _is_named(group: Group) -> bool:
    return all(isinstance(part, NamedValue) for part in group.parts)


def _same_in_any_order(left: Group, right: Group, allowance: Allowance) -> bool:
    """Whether each part of either group is in the other.

    Raises:
        UnreadableError: two lists of numbers, of which one has a number more often.
    """
    if not _matched(left.parts, right.parts, allowance):
        return False
    scalars = all(isinstance(part, Scalar) for part in (*left.parts, *right.parts))
    if len(left.parts) != len(right.parts) and scalars and "{}" not in (left.brackets, right.brackets):
        raise UnreadableError("the true answer with some values more or less often")
    return True


def _same_in_order(left: Group, right: Group, allowance: Allowance) -> bool:
    """Whether two groups, of which one is ordered or has names, have the same parts in the same order.

    Raises:
        UnreadableError: one is a set, or they have the same parts in another order, without their names.
    """
    if len(left.parts) != len(right.parts):
        return False
    agree = all(same(g, a, allowance) for g, a in zip(left.parts, right.parts, strict=True))
    one_is_ordered = _is_ordered(left) or _is_ordered(right)
    one_is_a_set = one_is_ordered and "{}" in (left.brackets, right.brackets)
    if one_is_a_set and (agree or (not _is_ordered(left) and _matched(left.parts, right.parts, allowance))):
        raise UnreadableError("a tuple or an interval for a set, or a set for one of these")
    if agree:
        return True
    if not one_is_ordered and _matched(left.parts, right.parts, allowance):
        raise UnreadableError("the values of the true answer in another order, without their names")
    return False


def _matched(left: Sequence[Form], right: Sequence[Form], allowance: Allowance) -> bool:
    """Whether each part of either has one that is the same in the other."""
    found = [[same(g, a, allowance) for a in right] for g in left]
    return all(map(any, found)) and all(any(row[i] for row in found) for i in range(len(right)))


def _same_matrix(gold: Form, answer: Form, allowance: Allowance) -> bool:
    left = _cells(gold)
    right = None if left is None else _cells(answer)
    if left is None or right is None:
        return False
    if _is_vector(gold) or _is_vector(answer):  # a row and a column are the same vector
        if not all(1 in (len(matrix), len(matrix[0])) for matrix in (left, right)):
            return False
        left, right = [list(chain.from_iterable(left))], [list(chain.from_iterable(right))]
    if len(left) != len(right) or len(left[0]) != len(right[0]):
        return False
    for true_row, stated_row in zip(left, right, strict=True):
        if not all(same(g, a, allowance) for g, a in zip(true_row, stated_row, strict=True)):
            return False
    return True


def _cells(form: Form) -> list[list[Scalar]] | None:
    """The rows of a matrix, however it is written; None where it is none."""
    if isinstance(form, Scalar) and isinstance(form.value, _MATRICES):
        with boundary(UnreadableError, "no matrix"):
            return [list(map(Scalar, row)) for row in form.value.doit().tolist()]
    if isinstance(form, Matrix):
        return [list(row) for row in form.rows]
    if not isinstance(form, Group):
        return None
    rows = [part for part in form.parts if isinstance(part, Group) and part.brackets == "[]"]
    if len(rows) == len(form.parts):  # [[1, 2], [3, 4]]
        rectangular = len({len(row.parts) for row in rows}) <= 1
        return [_scalars(row) for row in rows] if rectangular else None
    return [_scalars(form)] if form.brackets in ("()", "<>", "[]") else None


def _scalars(group: Group) -> list[Scalar]:
    return [part for part in group.parts if isinstance(part, Scalar)]


def _is_vector(form: Form) -> bool:
    return isinstance(form, Group) and not isinstance(form.parts[0], Group)


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
