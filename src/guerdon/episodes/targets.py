"""Targets of reward models from the ground truth of an episode: success labels and progress.

Training and evaluation use the same functions. They read `success` and `outcome`, and return None where the truth is
unknown.

    labels_T = success_labels(episode)
    targets_T = progress_targets(episode)   # 0 .. 1 up to the first success, then 1; all 0 when failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.episodes.layout import INFO_PATH
from guerdon.errors import DataError
from guerdon.types import BoolArray, Episode, FloatArray


def success_labels(episode: Episode) -> BoolArray | None:
    """(T,) bool, ground-truth success of each row; None where the episode has no success column."""
    return None if episode.success is None else np.asarray(episode.success, dtype=np.bool_)


def episode_success(episode: Episode) -> bool | None:
    """Whether the episode succeeded: its outcome; without one, whether any row did; None: unknown."""
    if episode.outcome is not None:
        return bool(episode.outcome)
    return None if episode.success is None else bool(episode.success.any())


def no_labels(skipped: int, needs: str, unseen: str = "", *, outcomes: bool = False) -> str:
    """The message for a data set of which no episode has what a trainer needs.

    Args:
        skipped: episodes.
        needs: such as `frames and success labels`.
        unseen: `frames` or `states`, where no episode has those; labels are then another matter.
        outcomes: a file says which episodes succeeded, but not in which row.
    """
    if unseen:
        where = "observation.state" if unseen == "states" else "a feature of the dtype video or image"
        return (
            f"none of {skipped} episodes has {unseen}: they are read from {where} ({INFO_PATH} of the data set), which "
            "is not there, or empty; docs/data.md has the columns"
        )
    if outcomes:
        return (
            f"none of {skipped} episodes has {needs}: the file of outcomes says which episodes succeeded, not in which "
            "row; where it is the last row of each, set success_at_end: true beside outcomes "
            "(train.NAME.success_at_end=true); a model of progress needs no success labels"
        )
    return (
        f"none of {skipped} episodes has {needs}: recordings of your own need to say which of them succeeded; "
        "guerdon annotate lets people say it in the browser, and --outcomes FILE of train and evaluate reads a table "
        '("Outcomes for your own recordings" in docs/data.md; for a classifier of rows with success_at_end)'
    )


def no_marks(apart: Sequence[int], episodes: int) -> str:
    """The message for a data set that marks no row of its successful episodes as a success.

    Args:
        apart: steps between two rows of each of them.
        episodes: of the data set.
    """
    unmarked = f"{len(apart)} of {episodes} episodes succeeded, but next.success marks none of their rows: "
    if max(apart) > 1:
        return (
            f"{unmarked}they have every {max(apart)}th step, and success lasted less; collect again with "
            "collect.frame_every=1 (env.data_collection.frame_every=1 in a run)"
        )
    return f'{unmarked}mark them as "Outcomes for your own recordings" in docs/data.md shows'


def outcome_of(success: Sequence[bool | None]) -> bool | None:
    """The outcome of an episode with this success of its rows, None: unknown.

    True once any row succeeded, else the success of the last row.
    """
    return True if any(success) else success[-1]


def first_success(episode: Episode) -> int | None:
    """The first row that is a success; the last row of a success without labelled rows; else None."""
    if episode.success is None:
        return len(episode) - 1 if episode.outcome else None
    return int(episode.success.argmax()) if episode.success.any() else None


def by_demonstrator(meta: Mapping[str, Any]) -> bool:
    """Whether a person or a scripted expert acted, as far as `meta` says.

    What policies in training (`mode`, of a run), checkpoints and random actions (`policy`, of `guerdon collect`) did is
    no demonstration.
    """
    return meta.get("policy", "expert") in ("expert", "noisy") and "mode" not in meta


def demonstrates(episode: Episode) -> bool:
    """Whether an episode that succeeded shows the task done from its first success on, also where success ended again.

    It does where a demonstrator acted, who was done and did nothing else after it. A policy in training may have left
    the success again, and an episode that counts as a failure has lost it: what follows its last success is not known.
    """
    return by_demonstrator(episode.meta) and episode.outcome is not False


def after_success(episode: Episode) -> BoolArray:
    """(T,) bool, the rows that come after the last success of an episode; none of one without success."""
    rows_T: BoolArray = np.zeros(len(episode), dtype=np.bool_)
    if episode.success is not None and episode.success.any():
        rows_T[int(np.flatnonzero(episode.success)[-1]) + 1 :] = True
    return rows_T


def row_steps(episode: Episode) -> NDArray[np.float64]:
    """(T,) environment steps since the episode began, of each row.

    From `meta["steps"]`; else rows are `meta["frame_every"]` steps apart (default 1).
    """
    if "steps" in episode.meta:
        return np.asarray(episode.meta["steps"], dtype=np.float64)
    return np.arange(len(episode), dtype=np.float64) * np.float64(episode.meta.get("frame_every", 1))


def check_every_row(episode: Episode) -> None:
    """Refuse an episode that keeps only some of its rows, for uses that need the action between each two states.

    Raises:
        DataError: it does.
    """
    apart = np.diff(row_steps(episode))
    if (apart != 1).any():
        raise DataError(
            f"episode {episode.id!r} keeps every {int(apart.max())}th row, so its actions do not belong to its states: "
            "collect again with collect.frame_every=1 (env.data_collection.frame_every=1 in a run)"
        )


def continuation_steps(episode: Episode) -> NDArray[np.float64] | None:
    """(T,) steps that an expert needed from each row, infinite where it failed, NaN where it was not tried.

    Read from `meta["steps_left"]`; None where the episode has none, or lost rows since.
    """
    left = episode.meta.get("steps_left")
    if left is None or len(left) != len(episode):
        return None
    steps = np.array([np.nan if n is None else n for n in left], dtype=np.float64)
    steps[steps < 0] = np.inf
    return steps


def dense_rewards(episodes: Sequence[Episode]) -> list[NDArray[np.float64] | None]:
    """(T,) of each episode: the environment's own dense reward per step; that of row 0, the reset, has no meaning.

    Read from `meta["dense_rewards"]`, which `guerdon collect` writes where `rewards` are success; else it is `rewards`,
    summed over the steps of a row, divided by their number. None where there is neither, or rows were lost since; None
    for all episodes where all of them are whole numbers, which say no more than success.
    """
    found = list[NDArray[np.float64] | None]()
    whole = True
    for episode in episodes:
        kept = episode.meta.get("dense_rewards")
        given = episode.rewards if kept is None else kept
        if given is None or len(given) != len(episode):
            found.append(None)
            continue
        rewards_T = np.asarray(given, dtype=np.float64)
        whole = whole and bool((rewards_T == np.round(rewards_T)).all())
        found.append(rewards_T if kept else rewards_T / np.maximum(np.diff(row_steps(episode), prepend=0.0), 1.0))
    return [None] * len(found) if whole else found


def nearness(left_T: NDArray[np.float64], horizon: float) -> FloatArray:
    """(T,) float32 max(0, 1 - steps left / horizon): 1 at success, 0 from `horizon` (or infinity) on; NaN stays."""
    near_T: FloatArray = np.maximum(1.0 - left_T / horizon, 0.0).astype(np.float32)
    return near_T


def progress_targets(episode: Episode, *, horizon: float | None = None) -> FloatArray | None:
    """(T,) float32 progress of each row; all 0 for a failed episode.

    Without a horizon it is the share of the way to the first success: step / (step of the first success), then 1.
    With one it is nearness in time, max(0, 1 - steps left until the first success / horizon): a row's target then
    depends on what the row shows and not on where the episode happened to start. A success without labelled rows
    reaches 1 at its last row; a success at row 0 is 1 throughout. Rows after a success that a policy in training lost
    again are NaN, see `demonstrates`. Where an expert continued from the rows (`continuation_steps`), its steps are the
    steps left, also in failed episodes; rows without a continuation are NaN.

    Args:
        episode: with `success` or an outcome.
        horizon: environment steps before success at which progress starts to rise.

    Returns:
        None where the outcome is unknown, or where outcome and success rows contradict each other (an
        early slice of a successful episode, or a success that was lost again and counted as a failure).
    """
    tried_T = None if horizon is None else continuation_steps(episode)
    if tried_T is not None and horizon is not None:
        return nearness(tried_T, horizon)
    succeeded = episode_success(episode)
    if succeeded is None:
        return None
    k = first_success(episode)
    if succeeded != (k is not None):
        return None
    if k is None:
        return np.zeros(len(episode), dtype=np.float32)
    targets_T = _progress_to(k, row_steps(episode), horizon)
    if not demonstrates(episode):
        targets_T[after_success(episode)] = np.nan
    return targets_T


def _progress_to(k: int, steps_T: NDArray[np.float64], horizon: float | None) -> FloatArray:
    """(T,) progress of rows on the way to the first success in row k."""
    if horizon is not None:
        return nearness(np.maximum(steps_T[k] - steps_T, 0.0), horizon)
    span = steps_T[k] - steps_T[0]
    if span <= 0:
        return np.ones(len(steps_T), np.float32)
    share_T: FloatArray = np.clip((steps_T - steps_T[0]) / span, 0.0, 1.0).astype(np.float32)
    return share_T


def success_within(episode: Episode, steps: int) -> FloatArray | None:
    """(T,) float32, 1 where a success lies at most so many environment steps ahead of the row, or in it; else 0.

    A demonstration (`demonstrates`) stays 1 from its first success on: it has done the task, and what it shows then is
    no example of a task that is not done, also where success lasted for some steps alone.

    NaN where the future is not known: where the episode ends before that time without a success, and after a success
    that a policy in training lost again.

    Args:
        episode: with success of its rows.
        steps: environment steps.

    Returns:
        None where the episode has no success column, and where it succeeded and no row says when: success lasted less
        than the time from row to row.
    """
    labels = success_labels(episode)
    if labels is None or (episode.outcome and not labels.any()):
        return None
    at_T = row_steps(episode)
    following = np.append(at_T[labels], np.inf)
    left_T = following[np.searchsorted(following, at_T)] - at_T
    targets_T: FloatArray = (left_T <= steps).astype(np.float32)
    targets_T[(at_T[-1] - at_T < steps) & np.isinf(left_T)] = np.nan
    if demonstrates(episode):
        targets_T[np.logical_or.accumulate(labels)] = 1.0
    else:
        targets_T[after_success(episode)] = np.nan
    return targets_T


def within_labels(episode: Episode, steps: int) -> Episode | None:
    """The rows of which `success_within` is known, with it as their success; None where there is none.

    They are the first rows of the episode: only its end is not known.
    """
    targets = success_within(episode, steps)
    if targets is None or not np.isfinite(targets).any():
        return None
    return replace(episode[: int(np.isfinite(targets).sum())], success=targets[np.isfinite(targets)] > 0.5)


def frame_targets(
    episode: Episode, kind: str, horizon: float | None, within_steps: int | None = None
) -> FloatArray | None:
    """(T,) float32 targets of an image reward model: progress for kind `progress`, else success of each row.

    Args:
        episode: with its truth.
        kind: of the model.
        horizon: see `progress_targets`.
        within_steps: success within so many steps instead of success of the row; see `success_within`.

    Returns:
        None where they are unknown; see `progress_targets` and `success_labels`.
    """
    if kind == "progress":
        return progress_targets(episode, horizon=horizon)
    if within_steps is not None:
        return success_within(episode, within_steps)
    labels = success_labels(episode)
    return None if labels is None else labels.astype(np.float32)
