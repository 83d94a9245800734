"""Cases of a table as one test, which runs all rows and lists those that miss: thousands of tests would take minutes.

@cases(("text", "wanted"), [("1/2", 0.5), ("50 %", 0.5)])
def test_numbers_are_read(text, wanted):
    assert read(text) == wanted

@cases(("changes", "key"), [({"gamma": 2}, "algorithm.gamma")])
def test_wrong_values_are_refused(changes, key):
    with refuses(key):
        study(**changes)
"""

import contextlib
import functools
import inspect
import itertools
import traceback

import pytest
from pydantic import ValidationError

from guerdon.errors import ConfigError, DataError


def cases(names, rows, ids=None):
    """Call a test with every row of a table: `pytest.mark.parametrize` for rows that are quick and need no fixture.

    Args:
        names: of the arguments, as texts or separated by commas.
        rows: a value for each name; values alone where there is one name.
        ids: what a message calls the rows, in their order, or a function of a value; the values where not given.

    The test's attribute `rows` is how many there are, in all tables together.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = list(rows)
    if rows and all(hasattr(row, "values") and hasattr(row, "marks") for row in rows):  # of pytest.param
        if any(row.marks for row in rows):
            raise ValueError("rows of one test have no marks of their own")
        ids = [row.id for row in rows]
        rows = [row.values for row in rows]
    else:
        rows = [tuple(row) if len(names) > 1 else (row,) for row in rows]
    if not rows:
        raise ValueError("a table without rows would test nothing")

    def decorate(test):
        @functools.wraps(test)
        def all_rows(**fixtures):
            misses, skipped = [], []
            for number, row in enumerate(rows):
                try:
                    test(**fixtures, **dict(zip(names, row, strict=True)))
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  (a row that misses may raise anything)
                    misses.append((called(number, row, ids), error))
            if misses:
                texts = [f"{name}: {described(error)}" for name, error in misses]
                raise AssertionError("\n".join([f"{len(misses)} of {len(rows)} rows:", *texts])) from misses[0][1]
            if len(skipped) == len(rows):
                raise skipped[0]

        kept = [p for p in inspect.signature(test).parameters.values() if p.name not in names]
        all_rows.__signature__ = inspect.Signature(kept)  # pytest reads the fixtures from it
        all_rows.rows = len(rows) * getattr(test, "rows", 1)
        return all_rows

    return decorate


@contextlib.contextmanager
def refuses(name, words=None):
    """Expect an error about a key of a configuration, or about a column of data.

    Args:
        name: the key, dotted (of settings that are made without the loader, within their section); or the column.
            None: the error is about no single one.
        words: a pattern of its words; None: they do not matter. One test of each kind of refusal keeps them.
    """
    with pytest.raises((ConfigError, DataError, ValidationError), match=words) as refused:
        yield refused
    assert refused_name(refused.value) == name, str(refused.value)


def refused_name(error):
    """The key or the column that an error is about."""
    if isinstance(error, ConfigError):
        return error.key
    if isinstance(error, DataError):
        return error.field
    first = error.errors()[0]
    check = first.get("ctx", {}).get("error")
    named = check.key if isinstance(check, ConfigError) else None
    places = [part for part in first["loc"] if part != "[key]"]  # as pydantic marks a key of a map that is wrong itself
    return named or str(places[-1])


def sample(rows, *kept, several=False):
    """Rows of a matrix of models and settings, for `pytest.mark.parametrize`: `make test` runs those in `kept`.

    The rest has the mark `slow`, so that `make test-all` runs every row. For tests that take the same way through the
    code with every row, and seconds for each.

    Args:
        rows: of the matrix.
        kept: those of them that `make test` runs.
        several: whether a row holds the values of several arguments.
    """
    rows = list(rows)
    missing = [row for row in kept if row not in rows]
    if missing:
        raise ValueError(f"not among the rows: {missing}")
    return [row if row in kept else slow_row(row, several) for row in rows]


def first(rows, count, *, several=False):
    """`sample` of the first rows of a matrix: `make test` runs so many of them."""
    return [row if k < count else slow_row(row, several) for k, row in enumerate(rows)]


def slow_row(row, several):
    """A row of a matrix with the mark `slow`."""
    if hasattr(row, "values") and hasattr(row, "marks"):  # of pytest.param
        return pytest.param(*row.values, marks=[*row.marks, pytest.mark.slow], id=row.id)
    return pytest.param(*(row if several else [row]), marks=pytest.mark.slow)


def called(number, row, ids):
    """The name of a row in a message."""
    if ids is None:
        return repr(row if len(row) > 1 else row[0])
    return ", ".join(str(ids(value)) for value in row) if callable(ids) else str(list(ids)[number])


def described(error):
    """The last line of a test that an error passed, and what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/tests/" in frame.filename and frame.filename != __file__]
    place = f"line {own[-1].lineno}, {own[-1].line}: " if own else ""
    text = "\n".join(itertools.islice(f"{type(error).__name__}: {error}".splitlines(), 12))
    return f"{place}{text}"
