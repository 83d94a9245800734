"""Converts guerdon's rows to LeRobot's and back: a shift by one.

In an `Episode`, row t is the moment after action t (row 0 is the reset). LeRobot's row t holds observation t
and the action taken *at* t, with its result in `next.*`. So

    action[t] = actions[t+1]    next.reward[t] = rewards[t+1]    next.success[t] = success[t+1]

and the last LeRobot row of an episode is its terminal observation: a zero action, reward 0, the last success
again, and `next.done` true there and on the row before. Recordings of other tools may lack that terminal row;
they are read with the same formula, the result of their last action is unknown, and a success that only their last row
has is that row's.

    columns = to_rows(episode)
    episode = from_rows(columns, id="0", task="close the window")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.episodes.layout import ACTION, DONE, REWARD, STATE, SUCCESS
from guerdon.errors import DataError
from guerdon.types import BoolArray, ByteArray, Episode, FloatArray

Columns = dict[str, NDArray[Any]]


def to_rows(episode: Episode) -> Columns:
    """The LeRobot columns of an episode, without images and indices.

    Returns:
        Arrays of length T: `observation.state` (T, S), `action` (T, A), `next.reward`, `next.success`,
        `next.done` (T,); those absent in the episode are absent, except `next.done`.

    Raises:
        DataError: there is no row, or row 0 is not a reset (its action or reward is not zero).
    """
    length = len(episode)
    if length == 0:
        raise DataError(f"episode {episode.id!r} has no rows")
    columns: Columns = {}
    if episode.states is not None:
        columns[STATE] = episode.states.astype(np.float32, copy=False)
    for name, column in ((ACTION, episode.actions), (REWARD, episode.rewards)):
        if column is None:
            continue
        if np.any(column[0] != 0):
            raise DataError(f"episode {episode.id!r}: row 0 must be the reset, but its {name} is {column[0]}")
        columns[name] = _earlier(column.astype(np.float32, copy=False))
    if episode.success is not None:
        columns[SUCCESS] = np.append(episode.success[1:], episode.success[-1]).astype(np.bool_)
    columns[DONE] = np.arange(length) >= length - 2
    return columns


def from_rows(
    columns: Mapping[str, NDArray[Any]],
    *,
    id: str,
    task: str,
    frames: ByteArray | None = None,
    outcome: bool | None = None,
    success_at_reset: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> Episode:
    """The episode that these LeRobot columns describe; the inverse of `to_rows`.

    Args:
        columns: LeRobot columns of length T as `to_rows` gives them; unknown ones are ignored.
        id: of the episode.
        task: in words.
        frames: (T, H, W, 3) uint8.
        outcome: of the whole episode.
        success_at_reset: `success[0]`, which LeRobot's rows do not hold.
        meta: where the episode came from.

    Raises:
        ValueError: no column that an episode has is present, or their lengths differ.
    """
    states = columns.get(STATE)
    return Episode(
        id=id,
        task=task,
        frames=frames,
        states=None if states is None else _matrix(states),
        actions=_later(_matrix(columns[ACTION])) if ACTION in columns else None,
        rewards=_later(columns[REWARD].reshape(-1)) if REWARD in columns else None,
        success=_success(columns[SUCCESS], success_at_reset) if SUCCESS in columns else None,
        outcome=outcome,
        meta=dict(meta or {}),
    )


def last_success(columns: Mapping[str, NDArray[Any]]) -> bool | None:
    """The outcome by the rows: `next.success` of the last row, None where it was not recorded (null, NaN, negative)."""
    column = columns.get(SUCCESS)
    last = None if column is None or len(column) == 0 else column.reshape(-1)[-1]
    return None if last is None or last != last or last < 0 else bool(last)


def _earlier(column: FloatArray) -> FloatArray:
    """Row t gets what row t+1 had; the last row gets zeros."""
    return np.concatenate([column[1:], np.zeros_like(column[:1])])


def _later(column: NDArray[Any]) -> FloatArray:
    """Row t+1 gets what row t had; row 0 gets zeros, and the last row's value is dropped."""
    column = column.astype(np.float32, copy=False)
    return np.concatenate([np.zeros_like(column[:1]), column[:-1]])


def _success(column: NDArray[Any], at_reset: bool) -> BoolArray | None:
    """Success of each row; None where it is missing (null, NaN, negative) in one of them."""
    if column.dtype != np.bool_ and not (column.astype(np.float64) >= 0).all():
        return None
    flat = column.reshape(-1).astype(np.bool_)
    shifted = np.roll(flat, 1)
    shifted[0] = at_reset
    shifted[-1] |= flat[-1]
    return shifted


def _matrix(column: NDArray[Any]) -> FloatArray:
    return column.reshape(len(column), -1).astype(np.float32, copy=False)
