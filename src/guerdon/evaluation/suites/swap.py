"""The swap test of reward models that look at states: do they recognise success, or the episode?

A success row gets, from a row of another episode that is not at success, first the numbers that only tell episodes
apart (`column_roles`: they stay the same within an episode, and what moves at success does not depend on them), then
all the others. A model that knows success loses nothing by the first change and everything by the second.

    found = swap_test(model, demonstrations, held_out, seed=0, reps=1000)
    print(found.answer, found.by_episode, found.by_success)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from guerdon.episodes.state_columns import ColumnRoles, column_roles
from guerdon.episodes.targets import demonstrates, episode_success, first_success
from guerdon.models.scores import score_episodes
from guerdon.statistics.intervals import Interval, bootstrap_ci, mean
from guerdon.types import Episode, Failure, FloatArray, IntArray, RewardModel

Float64 = NDArray[np.float64]
ROWS = 4
"""Success rows of an episode that are changed, evenly spaced."""
SWAPS = 16
"""Rows of other episodes that each of them is mixed with."""
_EDGE = 1e-6  # log-odds of probabilities nearer to 0 and 1 are those of this distance


@dataclass(frozen=True)
class SwapResult:
    """What the swap test found.

    Attributes:
        answer: `found`: the model recognises the episode; `not found`; `unknown`: it could not be decided.
        why: in a sentence: the figures, or what it lacks.
        columns: numbers of the state that only tell episodes apart, by name or number.
        by_episode: mean loss of value of a success with these numbers of another episode; None: not measured.
        by_success: the same where all other numbers are those of a row that is not at success.
        difference: the first minus the second.
        n: successful episodes behind the figures.
    """

    answer: Literal["found", "not found", "unknown"]
    why: str
    columns: tuple[str, ...] = ()
    by_episode: Interval | None = None
    by_success: Interval | None = None
    difference: Interval | None = None
    n: int = 0


def swap_test(
    model: RewardModel, known: Sequence[Episode], others: Sequence[Episode], *, seed: int, reps: int
) -> SwapResult:
    """Exchange columns between success rows and rows of other episodes, and compare what the value loses.

    `found` where a success loses more by the numbers of another episode than by not being at success, `not found` where
    it loses less, each by a 95 % interval over episodes.

    Args:
        model: looks at states.
        known: episodes with true success of their rows that the model may know, such as those of its training.
        others: further ones. The numbers of another episode are taken from those that failed or show another policy
            than a demonstrator's, else from demonstrations here that are not in `known`.
        seed: of the draws and the resamples.
        reps: bootstrap resamples.
    """
    shown = [e for e in known if e.states is not None and e.success is not None and e.success.any()]
    roles = column_roles([_up_to_success(e) for e in shown], seed=seed)
    if isinstance(roles, Failure):
        return _unknown(f"{roles.detail}: collect more demonstrations")
    columns = _names(shown[0], roles.episode)
    if not columns:
        return _unknown(_why_no_columns(shown, roles))
    given, source = _givers(known, others)
    rows_N_S = _rows_of(given, [e.states for e in shown if e.states is not None], roles.episode)
    if not len(rows_N_S):
        return _unknown(
            "no episode of another policy, or demonstration that it was not trained on, has such numbers in the range "
            "of the demonstrations: name data with some as evaluate.data_path",
            columns,
        )
    rng = np.random.default_rng(seed)
    losses = [_losses(model, episode, rows_N_S, roles, rng) for episode in shown]
    measured_E_2 = np.array([one for one in losses if one is not None]).reshape(-1, 2)
    if not len(measured_E_2):
        return _unknown("no success of the demonstrations could be scored", columns)
    return _judged(measured_E_2, columns, source, _unit(model), seed=seed, reps=reps)


def _unknown(why: str, columns: tuple[str, ...] = ()) -> SwapResult:
    return SwapResult("unknown", f"could not be decided: {why}", columns)


def _up_to_success(episode: Episode) -> FloatArray:
    """States up to the first row at success."""
    assert episode.states is not None
    assert episode.success is not None
    return episode.states[: int(episode.success.argmax()) + 1]


def _why_no_columns(shown: Sequence[Episode], roles: ColumnRoles) -> str:
    """Why no number of the state is known to tell episodes apart, and nothing else."""
    if len(roles.undecided):
        named = ", ".join(_names(shown[0], roles.undecided))
        return f"{len(shown)} demonstrations do not tell whether success depends on {named}: collect more"
    return "no number of the state stays the same in an episode without saying where the goal is"


def _names(episode: Episode, columns: IntArray) -> tuple[str, ...]:
    """Columns of states by the name of their part, where states have parts, else by number."""
    parts = [name for name, size in episode.meta.get("state_keys", ()) for _ in range(size)]
    return tuple(dict.fromkeys(parts[i] if i < len(parts) else str(i) for i in columns.tolist()))


def _givers(known: Sequence[Episode], others: Sequence[Episode]) -> tuple[list[Episode], str]:
    """Episodes whose numbers are put into the demonstrations, and what they are."""
    foreign = [e for e in [*known, *others] if episode_success(e) is False or not demonstrates(e)]
    if foreign:
        return foreign, "another policy's episode"
    learned = {e.id for e in known}
    return [e for e in others if e.id not in learned], "a demonstration that it was not trained on"


def _rows_of(given: Sequence[Episode], shown: Sequence[FloatArray], columns: IntArray) -> FloatArray:
    """(N, S) rows that are not at success, whose `columns` lie in the range in which success was seen."""
    values = np.concatenate(shown)[:, columns]
    low, high = values.min(axis=0), values.max(axis=0)
    rows = [_before_success(e) for e in given if e.states is not None and e.states.shape[1] == shown[0].shape[1]]
    found = np.concatenate([*rows, np.empty((0, shown[0].shape[1]), np.float32)])
    inside: FloatArray = found[((found[:, columns] >= low) & (found[:, columns] <= high)).all(axis=1)]
    return inside


def _before_success(episode: Episode) -> FloatArray:
    """States of a failure, or of the first half of the way to success."""
    assert episode.states is not None
    first = first_success(episode)
    return episode.states if first is None else episode.states[: (first + 1) // 2]


def _losses(
    model: RewardModel, episode: Episode, rows_N_S: FloatArray, roles: ColumnRoles, rng: np.random.Generator
) -> tuple[float, float] | None:
    """Mean loss by the numbers of other episodes, and by not being at success; None where a score failed."""
    assert episode.states is not None
    assert episode.success is not None
    successes = np.flatnonzero(episode.success)
    picked = successes[np.unique(np.linspace(0, len(successes) - 1, ROWS).round().astype(np.int64))]
    base = episode.take(np.repeat(picked, SWAPS))
    assert base.states is not None
    other = rows_N_S[rng.integers(len(rows_N_S), size=len(base))]
    mixed, moved = base.states.copy(), other.copy()
    mixed[:, roles.episode] = other[:, roles.episode]
    moved[:, roles.episode] = base.states[:, roles.episode]
    parts = [
        replace(base, states=rows, success=None, rewards=None, outcome=None) for rows in (base.states, mixed, moved)
    ]
    scores = [score.steps for score in score_episodes(model, parts)]
    values = [_measured(model, steps) for steps in scores if steps is not None]
    if len(values) < len(parts):
        return None
    own, by_episode, by_success = (float(part.mean()) for part in values)
    return own - by_episode, own - by_success


def _unit(model: RewardModel) -> str:
    """Of the losses, in words."""
    return "log-odds" if _bounded(model) else "value"


def _bounded(model: RewardModel) -> bool:
    return model.info.range[0] >= 0 and model.info.range[1] <= 1


def _measured(model: RewardModel, values_N: NDArray[Any]) -> Float64:
    """(N,) values in the unit of the losses."""
    values = values_N.astype(np.float64)
    if not _bounded(model):
        return values
    p = np.clip(values, _EDGE, 1 - _EDGE)
    return np.asarray(np.log(p / (1 - p)))


def _judged(
    losses_E_2: Float64, columns: tuple[str, ...], source: str, unit: str, *, seed: int, reps: int
) -> SwapResult:
    """The answer by the losses of each demonstration."""
    by_episode, by_success = (bootstrap_ci(losses_E_2[:, i], mean, reps=reps, seed=seed) for i in (0, 1))
    difference = bootstrap_ci(losses_E_2[:, 0] - losses_E_2[:, 1], mean, reps=reps, seed=seed)
    named = ", ".join(columns[:6]) + (f" and {len(columns) - 6} more" if len(columns) > 6 else "")
    figures = (
        f"a success loses {_said(by_episode)} {unit} with the numbers of {source} that only tell episodes apart (of "
        f"the state: {named}), and {_said(by_success)} where it is not at success"
    )
    answer: Literal["found", "not found", "unknown"] = "unknown"
    why = f"could not be decided: {figures}; more demonstrations would narrow these bounds"
    if difference.low is not None and difference.low > 0 and by_episode.low is not None and by_episode.low > 0:
        answer, why = "found", f"it recognises the episode more than success: {figures}"
    elif difference.high is not None and difference.high < 0 and by_success.low is not None and by_success.low > 0:
        answer, why = "not found", f"it recognises success: {figures}"
    elif by_success.high is not None and by_success.high <= 0:
        why = f"could not be decided: it values success no higher than rows that are not at it: {figures}"
    return SwapResult(answer, why, columns, by_episode, by_success, difference, len(losses_E_2))


def _said(interval: Interval) -> str:
    if interval.estimate is None:
        return "an unknown number of"
    bounds = "" if interval.low is None else f" [{interval.low:z.2f}, {interval.high:z.2f}]"
    return f"{interval.estimate:z.2f}{bounds}"
