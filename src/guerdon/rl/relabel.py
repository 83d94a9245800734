"""Rewards of a replay by reward models that learn: what is sampled is measured again, if an older version measured it.

Values are kept per row with the version of the model that measured them. A reward is a function of values of its
episode (`ControlReward.shape`), so before a row is used, the values that its reward depends on are made current, each
once, and the rewards of the episodes that they are in are computed anew. A failed measurement stays missing until the
model has another version.

    remember(replay, source, rollout, rewards["resnet"], after, first)
    metrics = relabel(replay, source, rows)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from guerdon.rewards.control_sources import Carry
from guerdon.rewards.refit import RefittedReward
from guerdon.rl.replay import Replay
from guerdon.types import IntArray, Metrics, Rewards, Rollout, Segment


def remember(
    replay: Replay, source: RefittedReward, rollout: Rollout[Any], found: Rewards, after: IntArray, first: IntArray
) -> None:
    """Keep the values that a source measured in a rollout, and what it needs to measure them again.

    Args:
        replay: that has the rollout.
        source: which measured it.
        rollout: with its segments.
        found: what it measured.
        after, first: of `Replay.add`.
    """
    scores = found.scores
    assert scores is not None
    assert scores.last_N is not None
    keys = zip(scores.rows_N.tolist(), scores.steps_N.tolist(), scores.last_N.tolist(), strict=True)
    values = dict(zip(keys, scores.values_N.tolist(), strict=True))  # a first moment is not at a step that goes on
    paid = replay.paid[source.name]
    for segment, rows in zip(rollout.segments, rows_of_segments(rollout.segments, after, first), strict=True):
        chosen = np.flatnonzero(source.observes.selects(segment.rows_F, segment.last_F) & (rows >= 0))
        if len(chosen):
            replay.put({f"{source.name}.rows": rows[chosen], f"{source.name}.seen": source.seen(segment)[chosen]})
        paid["version"][rows[chosen]] = source.version
        for n in chosen:
            value = values.get((segment.stream, int(segment.steps_F[n]), bool(segment.last_F[n])))
            if value is not None:
                paid["value"][rows[n]], paid["known"][rows[n]] = value, True


def rows_of_segments(segments: Sequence[Segment], after: IntArray, first: IntArray) -> list[IntArray]:
    """Rows of the replay of every segment's rows; -1 where it has none."""
    return [
        np.where(one.rows_F == 0, first[one.stream, one.steps_F + 1], after[one.stream, np.maximum(one.steps_F, 0)])
        for one in segments
    ]


def relabel(replay: Replay, source: RefittedReward, rows: IntArray) -> Metrics:
    """Make the rewards of these rows those of the model as it is.

    Args:
        replay: whose rewards are written.
        source: whose model measures.
        rows: that are sampled; any may be named more than once.

    Returns:
        `relabelled`: rows that were measured again, and `relabel_failed`: how many of them failed.
    """
    paid, version = replay.paid[source.name], source.version
    scored, failed, touched = 0, 0, np.zeros(0, np.int64)
    wanted = np.unique(rows)
    while True:  # where a baseline fails, the one before it is needed
        needed = _needed(replay, source, wanted)
        stale = needed[paid["version"][needed] != version]
        if not len(stale):
            break
        places = np.searchsorted(replay.rows(f"{source.name}.rows"), stale)
        values = source.values_of(replay.rows("moment")[stale], replay.rows(f"{source.name}.seen")[places])
        paid["version"][stale] = version
        paid["known"][stale], paid["value"][stale] = np.isfinite(values), np.nan_to_num(values)
        scored, failed = scored + len(stale), failed + int((~np.isfinite(values)).sum())
        touched = np.union1d(touched, replay.rows("episode")[stale])
    order, starts = replay.episodes() if len(touched) else (touched, touched)
    for episode in touched.tolist():
        _pay(replay, source, order[starts[episode] : starts[episode + 1]])
    return {"relabelled": float(scored), "relabel_failed": float(failed)}


def _needed(replay: Replay, source: RefittedReward, rows: IntArray) -> IntArray:
    """Rows whose values decide the rewards of these rows, as far as it is known by now.

    The own value; with shapings that compare with an earlier value, the last one that is known or not current, too;
    with a bonus, which is paid once, all before it.
    """
    paid, before, shaping = replay.paid[source.name], replay.rows("before"), source.settings.shaping
    looked, current = paid["version"] >= 0, paid["version"] == source.version
    usable = looked & ~(current & ~paid["known"])  # a failed value is passed over
    own = rows[looked[rows]]
    found, at = [own], before[own] if shaping in ("relative", "bonus") else rows[:0]
    if shaping == "potential":  # it is held from the last value on, also at steps without one
        at = np.concatenate([before[rows], rows])
    at = np.unique(at[at >= 0])
    while len(at):
        here = usable[at]
        found.append(at[here])
        at = np.unique(before[at if shaping == "bonus" else at[~here]])
        at = at[at >= 0]
    return np.unique(np.concatenate(found))


def _pay(replay: Replay, source: RefittedReward, rows: IntArray) -> None:
    """Compute the rewards of an episode from its values."""
    paid = replay.paid[source.name]
    values = np.where(paid["known"][rows], paid["value"][rows], np.nan).astype(np.float64)
    scored = np.flatnonzero(paid["version"][rows] >= 0)
    rewards, (failed, ends) = np.zeros(len(rows) - 1, np.float32), np.zeros((2, len(rows) - 1), np.bool_)
    source.shape(Carry(), _segment(replay, rows), scored.tolist(), values[scored], rewards, failed, ends)
    rewards[failed] = 0.0
    paid["reward"][rows[1:]] = rewards * np.float32(source.settings.reward_coef)
    paid["failed"][rows[1:]] = failed
    paid["ends"][rows[1:]] = ends & source.settings.ends


def _segment(replay: Replay, rows: IntArray) -> Segment:
    """An episode as a stretch of a rollout, without what is seen of it."""
    moments, ended = replay.rows("moment")[rows], replay.rows("ended")[rows]
    return Segment(
        stream=0,
        number=None,
        task="",
        start=0,
        end=int(moments[-1]) - 1,
        terminated=bool(replay.rows("terminated")[rows[-1]]),
        finished=bool(ended[-1]),
        steps_F=moments - 1,
        rows_F=moments,
        last_F=ended,
        success_F=(None,) * len(rows),
        frames_F=np.zeros((len(rows), 1, 1, 3), np.uint8),
        states_F=np.zeros((len(rows), 0), np.float32),
    )
