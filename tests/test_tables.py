"""A table of cases is one test that runs every row."""

import inspect

import pytest

from tables import cases, first, sample


def test_all_rows_run_and_all_misses_are_listed():
    seen = []

    @cases("text, wanted", [("a", 1), ("b", 2), ("c", 1)])
    def check(text, wanted):
        seen.append(text)
        assert wanted == 2, "not two"

    with pytest.raises(AssertionError) as caught:
        check()
    assert seen == ["a", "b", "c"]
    first, *lines = str(caught.value).splitlines()
    assert first == "2 of 3 rows:"
    starts = [line.partition(": ")[0] for line in lines if "assert wanted == 2" in line]
    assert starts == ["('a', 1)", "('c', 1)"]
    assert "not two" in str(caught.value)


def test_rows_that_hold_say_nothing_and_other_arguments_are_fixtures():
    seen = []

    @cases("value", [1, 2])
    def check(value, tmp_path):
        seen.append((value, tmp_path))

    assert list(inspect.signature(check).parameters) == ["tmp_path"]
    check(tmp_path="here")
    assert seen == [(1, "here"), (2, "here")]


def test_tables_multiply():
    seen = []

    @cases("a", [1, 2])
    @cases("b", "xy")
    def check(a, b):
        seen.append(f"{a}{b}")
        raise OSError(f"no {a}{b}")

    with pytest.raises(AssertionError, match=r"(?s)2 of 2 rows:.*2 of 2 rows:.*no 1x.*no 1y.*2 of 2 rows:.*no 2y"):
        check()
    assert seen == ["1x", "1y", "2x", "2y"]


def test_rows_are_called_by_their_names():
    @cases("value", [1, 2], ids=["one", "two"])
    def check(value):
        assert not value

    with pytest.raises(AssertionError, match=r"(?s)^2 of 2 rows:\none: .*\ntwo: "):
        check()

    @cases("value", [pytest.param(1, id="first"), pytest.param(0, id="second")])
    def named(value):
        assert not value

    with pytest.raises(AssertionError, match=r"(?s)^1 of 2 rows:\nfirst: "):
        named()
    with pytest.raises(ValueError, match="no marks"):
        cases("value", [pytest.param(1, marks=pytest.mark.slow)])


def test_a_missing_failure_counts_as_a_miss_and_skips_do_not_hide_it():
    @cases("value", [0, 1])
    def check(value):
        if not value:
            pytest.skip("nothing here")
        with pytest.raises(ValueError, match="never"):
            pass

    with pytest.raises(AssertionError, match=r"1 of 2 rows:\n1: .*DID NOT RAISE"):
        check()


def test_a_table_whose_rows_all_skip_is_skipped_and_one_without_rows_refused():
    @cases("value", [0, 1])
    def check(value):
        pytest.skip("nothing here")

    with pytest.raises(pytest.skip.Exception, match="nothing here"):
        check()
    with pytest.raises(ValueError, match="without rows"):
        cases("value", [])


def test_a_sample_keeps_every_row_and_marks_the_rest_slow():
    first, second, third = sample(["a", "b", "c"], "b")
    assert second == "b"
    assert [row.values for row in (first, third)] == [("a",), ("c",)]
    assert all(mark.name == "slow" for row in (first, third) for mark in row.marks)
    with pytest.raises(ValueError, match="not among the rows: \\['d'\\]"):
        sample(["a"], "d")


def test_the_first_rows_of_a_matrix_are_kept_and_rows_keep_their_values_marks_and_names():
    kept, pair, named = first([(1, 2), (3, 4), pytest.param(5, 6, marks=pytest.mark.browser, id="x")], 1, several=True)
    assert kept == (1, 2)
    assert pair.values == (3, 4)
    assert (named.values, named.id) == ((5, 6), "x")
    assert [mark.name for mark in named.marks] == ["browser", "slow"]
