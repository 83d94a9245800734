"""Calls of users' parts, where an exception is a failure of one item."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.errors import DataError
from guerdon.processes.attempts import attempt, attempt_each
from guerdon.processes.progress import log_once
from guerdon.types import Failure
from raisers import Odd


def doubled(items):
    """Twice each; the whole call raises where any item is negative."""
    if min(items) < 0:
        raise Odd(f"{min(items)}")
    return [2 * item for item in items]


@pytest.mark.hostile("parts")
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_every_item_gets_what_it_gets_alone(items):
    found = attempt_each("the part", "broken", doubled, items)
    assert [one if item >= 0 else one.reason for item, one in zip(items, found, strict=True)] == [
        2 * item if item >= 0 else "broken" for item in items
    ]
    assert all(f"Odd: {item} (test_attempts.py, line " in one.detail for item, one in zip(items, found, strict=True)
               if item < 0)  # fmt: skip


@pytest.mark.hostile("parts")
def test_items_that_are_one_measurement_fail_together():
    found = attempt_each("the part", "broken", doubled, [1, -1, 2], together=True)
    assert [one.reason for one in found] == ["broken"] * 3


def test_an_error_of_guerdon_passes_and_so_does_one_of_the_machine():
    def refuses():
        raise DataError("the file is cut off")

    def fills():
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: not enough memory")

    with pytest.raises(DataError, match="cut off"):
        attempt("the part", "broken", refuses)
    with pytest.raises(RuntimeError, match="not enough memory"):
        attempt("the part", "broken", fills)


@pytest.mark.hostile("parts")
def test_each_place_that_raises_is_told_once(capsys):
    log_once.cache_clear()
    for item in (-1, -2):
        assert isinstance(attempt("the part", "broken", lambda item=item: doubled([item])), Failure)
    said = capsys.readouterr().err
    assert said.count("the part raised Odd (test_attempts.py, line ") == 1
    assert "what it was called for is a failure, broken" in said
