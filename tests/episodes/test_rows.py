from __future__ import annotations

import numpy as np
import pytest
from episode_samples import assert_equal, sample
from hypothesis import given
from hypothesis import strategies as st

from guerdon.episodes.layout import from_rows, last_success, to_rows
from guerdon.errors import DataError
from guerdon.types import Episode
from tables import refuses


def episode(**columns) -> Episode:
    return Episode(id="e", task="t", **columns)


def test_rows_shift_by_one_against_hand_computed_values():
    rows = to_rows(
        episode(
            states=np.array([[1], [2], [3]], np.float32),
            actions=np.array([[0], [5], [6]], np.float32),
            rewards=np.array([0, 0.5, 1], np.float32),
            success=np.array([False, False, True]),
        )
    )
    assert rows["observation.state"].ravel().tolist() == [1, 2, 3]
    assert rows["action"].ravel().tolist() == [5, 6, 0]
    assert rows["next.reward"].tolist() == [0.5, 1, 0]
    assert rows["next.success"].tolist() == [False, True, True]
    assert rows["next.done"].tolist() == [False, True, True]


def test_rows_of_another_tool_have_no_terminal_row():
    columns = {
        "observation.state": np.zeros((3, 2)),
        "action": np.array([[1.0], [2.0], [3.0]]),
        "next.success": np.array([[False], [False], [True]]),
    }
    read = from_rows(columns, id="0", task="t", outcome=last_success(columns))
    assert read.actions.ravel().tolist() == [0, 1, 2]  # what action 3 led to was not recorded
    assert read.success.tolist() == [False, False, True]  # the row that says so
    assert read.outcome is True


def test_outcome_is_unknown_without_a_success_column():
    assert last_success({"action": np.zeros((2, 1))}) is None


@given(length=st.integers(1, 6), number=st.integers(0, 50), at_reset=st.booleans())
def test_from_rows_inverts_to_rows(length, number, at_reset):
    original = sample(number, length=length)
    original.success[0] = at_reset
    read = from_rows(
        to_rows(original),
        id=original.id,
        task=original.task,
        frames=original.frames,
        outcome=original.outcome,
        success_at_reset=at_reset,
        meta=original.meta,
    )
    assert_equal(read, original)


def test_absent_columns_stay_absent():
    rows = to_rows(episode(states=np.zeros((2, 1), np.float32)))
    assert rows.keys() == {"observation.state", "next.done"}


@pytest.mark.parametrize(("values", "column"), [("actions", "action"), ("rewards", "next.reward")])
def test_row_zero_must_be_a_reset(values, column):
    ones = np.ones((2, 1) if values == "actions" else 2, np.float32)
    with refuses(column):
        to_rows(episode(**{values: ones}))


def test_an_empty_episode_is_refused():
    with pytest.raises(DataError, match="no rows"):
        to_rows(episode(states=np.zeros((0, 2), np.float32)))
