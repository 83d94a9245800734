"""Reward models as sources of reward: score what was seen, shape it, keep what spans two rollouts.

A `Source` remembers, for each copy of the environment, the last value of the episode under way, so that rewards
telescope across rollouts and nothing leaks into the next episode; where whole episodes are judged, it remembers their
frames. A measurement that failed marks its step; no number takes its place, unless `fallback: native` asks for true
success by name, and it counts as failed then too. This module does not know how frames were rendered or how a policy
learns.

    measured = source.measure(segments, trace.mask.shape)
    measured.values, measured.failed, measured.failures
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from guerdon.rl import shape
from guerdon.rl.reward_source import raw_scores
from guerdon.settings.reward import SourceSettings
from guerdon.types import BoolArray, ByteArray, Episode, Failure, FloatArray, Observes, RewardModel, Rewards, Segment


@dataclass
class Carry:
    """What one copy's episode under way leaves for the next rollout."""

    previous: float | None = None
    streak: int = 0
    paid: bool = False


@dataclass
class Source:
    """One reward model with its settings and its memory of the episodes under way."""

    name: str
    model: RewardModel
    settings: SourceSettings
    gamma: float
    num_envs: int
    carries: list[Carry] = field(init=False)
    seen: list[list[ByteArray]] = field(init=False)

    def __post_init__(self) -> None:
        self.forget()

    @property
    def threshold(self) -> float:
        """The one threshold: the configuration's, else the one stored with the model."""
        least = self.settings.success_threshold
        if least is not None:  # at least so much, also in float32, where the others say more than
            return float(np.nextafter(min(least, float(np.float32(least))), -np.inf))
        if self.settings.reward_threshold is not None:
            return self.settings.reward_threshold
        stored = self.model.info.success_threshold
        return 0.5 if stored is None else stored

    @property
    def whole(self) -> bool:
        """Whether an episode is judged once, at its end, from all that was observed of it."""
        return self.settings.reward_mode == "episode"

    @property
    def observes(self) -> Observes:
        """The rows it looks at; the first moment is the baseline of a change, or the start of a video."""
        return Observes(
            every=self.settings.score_every if self.settings.reward_mode in ("per_step", "episode") else 0,
            first=self.whole or self.settings.shaping in ("relative", "potential"),
            frames=bool(self.model.info.frames_needed),
        )

    def measure(self, segments: Sequence[Segment], shape_B_T: tuple[int, int]) -> Rewards:
        """Score all segments in one call of the model and turn the values into rewards."""
        rewards = np.zeros(shape_B_T, dtype=np.float32)
        failed = np.zeros(shape_B_T, dtype=np.bool_)
        failures: list[tuple[int, int, Failure]] = []
        observes = self.observes
        chosen = [np.flatnonzero(observes.selects(s.rows_F, s.last_F)).tolist() for s in segments]
        if self.whole:
            chosen, values = self._score_whole(segments, chosen, failures)
        else:
            values = self._score(segments, chosen, failures)
        for segment, rows, column in zip(segments, chosen, values, strict=True):
            self._shape(segment, rows, column, rewards, failed)
        rewards[failed] = 0.0
        if self.settings.on_failure == "neutral":
            failed[:] = False
        raw = [
            (segment.stream, step, value)
            for segment, column in zip(segments, values, strict=True)
            for step, value in zip(segment.steps_F.tolist(), column, strict=True)
            if value is not None
        ]
        return Rewards(
            rewards * np.float32(self.settings.reward_coef),
            failed,
            failures=tuple(failures),
            measured=sum(map(len, chosen)),
            scores=raw_scores(raw, self.threshold),
        )

    def _score(
        self,
        segments: Sequence[Segment],
        chosen: Sequence[list[int]],
        failures: list[tuple[int, int, Failure]],
    ) -> list[list[float | None]]:
        """One value per row of every segment, None where not chosen or failed; failures are noted."""
        episodes = [
            Episode(id=f"{seg.stream}-{seg.number}", task=seg.task, frames=seg.frames_F[rows])
            for seg, rows in zip(segments, chosen, strict=True)
            if rows
        ]
        scores = iter(self.model.score(episodes) if episodes else [])
        values: list[list[float | None]] = []
        for segment, rows in zip(segments, chosen, strict=True):
            column: list[float | None] = [None] * len(segment)
            values.append(column)
            if not rows:
                continue
            score = next(scores)
            if score.failure is not None or score.steps is None:
                failure = score.failure or Failure("no_steps", "the model gives no value per row")
                self._fail(segment, rows, failure, column, failures)
            else:
                for n, value in zip(rows, score.steps, strict=True):
                    column[n] = float(value)
        return values

    def _score_whole(
        self,
        segments: Sequence[Segment],
        chosen: Sequence[list[int]],
        failures: list[tuple[int, int, Failure]],
    ) -> tuple[list[list[int]], list[list[float | None]]]:
        """One value at the last row of every episode that ended; the frames of the others are kept for later."""
        episodes: list[Episode] = []
        ends: list[list[int]] = []
        for segment, rows in zip(segments, chosen, strict=True):
            if len(segment) and segment.rows_F[0] == 0:
                self.seen[segment.stream] = []
            self.seen[segment.stream] += [segment.frames_F[n] for n in rows]
            last = rows[-1:] if segment.finished and rows and segment.last_F[rows[-1]] else []
            ends.append(last)
            if last:
                frames = np.stack(self.seen[segment.stream])
                name = f"{segment.stream}-{segment.number}"
                episodes.append(Episode(id=name, task=segment.task, frames=frames))
            if segment.finished:
                self.seen[segment.stream] = []
        scores = iter(self.model.score(episodes) if episodes else [])
        values: list[list[float | None]] = []
        for segment, rows in zip(segments, ends, strict=True):
            column: list[float | None] = [None] * len(segment)
            values.append(column)
            if rows:
                score = next(scores)
                if score.failure is not None or score.total is None:
                    failure = score.failure or Failure("no_total", "the model gives no value for a whole episode")
                    self._fail(segment, rows, failure, column, failures)
                else:
                    column[rows[0]] = score.total
        return ends, values

    def _fail(
        self,
        segment: Segment,
        rows: list[int],
        failure: Failure,
        column: list[float | None],
        failures: list[tuple[int, int, Failure]],
    ) -> None:
        """Note a measurement that failed; with `fallback: native` true success takes its place where it is known."""
        failures += [(segment.stream, int(segment.steps_F[n]), failure) for n in rows]
        if self.settings.native_fallback:
            for n in rows:
                success = segment.success_F[n]
                column[n] = None if success is None else float(success)

    def _shape(
        self,
        segment: Segment,
        rows: list[int],
        column: list[float | None],
        rewards: FloatArray,
        failed: BoolArray,
    ) -> None:
        """Write the rewards of one segment and update the copy's carry."""
        carry = self.carries[segment.stream]
        if len(segment) and segment.rows_F[0] == 0:
            carry.previous, carry.streak, carry.paid = None, 0, False
        good: list[tuple[int, float]] = []
        for n in rows:
            step, value = int(segment.steps_F[n]), column[n]
            if segment.rows_F[n] == 0:
                carry.previous = value
            elif value is None:
                failed[segment.stream, step] = True
            else:
                good.append((step, value))
        if self.settings.shaping == "potential":
            self._shape_potential(segment, carry, good, rewards[segment.stream], failed[segment.stream])
        elif good:
            self._shape_rows(carry, good, rewards[segment.stream], failed[segment.stream])
        if segment.finished:
            self.carries[segment.stream] = Carry()

    def _shape_rows(
        self, carry: Carry, good: list[tuple[int, float]], rewards_T: FloatArray, failed_T: BoolArray
    ) -> None:
        """Rewards at the scored rows alone."""
        kind, s = self.settings.shaping, self.settings
        if kind == "relative" and carry.previous is None:  # the baseline failed: the first value becomes it
            failed_T[good[0][0]] = True
            carry.previous = good.pop(0)[1]
        steps = np.array([t for t, _ in good], dtype=np.int64)
        values = np.array([v for _, v in good], dtype=np.float64)
        if kind == "raw":
            rewards_T[steps] = values
        elif kind == "threshold":
            rewards_T[steps] = shape.threshold_reward(
                values, threshold=self.threshold, success=s.success_reward, fail=s.effective_fail_reward
            )
        elif kind == "bonus":
            paid, carry.streak, carry.paid = shape.confirmed_bonus(
                values,
                threshold=self.threshold,
                frames=s.confirm_frames,
                bonus=s.success_reward,
                streak=carry.streak,
                paid=carry.paid,
            )
            rewards_T[steps] = paid
        elif len(good) and carry.previous is not None:
            rewards_T[steps] = shape.relative_reward(values, previous=carry.previous)
            carry.previous = float(values[-1])

    def _shape_potential(
        self,
        segment: Segment,
        carry: Carry,
        good: list[tuple[int, float]],
        rewards_T: FloatArray,
        failed_T: BoolArray,
    ) -> None:
        """Rewards at every step of the stretch: the potential is held between scored rows.

        Until a first value is known, the potential is not, and those steps fail.
        """
        if segment.end < segment.start:
            return
        stretch = slice(segment.start, segment.end + 1)
        before = np.nan if carry.previous is None else carry.previous
        held = np.full(segment.end - segment.start + 1, before)
        for t, value in good:
            held[t - segment.start :] = value
        shaped = shape.potential_reward(held, previous=before, gamma=self.gamma, terminated=segment.terminated)
        unknown = np.isnan(shaped)
        rewards_T[stretch] = np.where(unknown, 0.0, shaped)
        failed_T[stretch] |= unknown
        carry.previous = None if np.isnan(held[-1]) else float(held[-1])

    def forget(self) -> None:
        """Leave the episodes under way: the world begins new ones."""
        self.carries = [Carry() for _ in range(self.num_envs)]
        self.seen = [[] for _ in range(self.num_envs)]

    def state_dict(self) -> list[dict[str, Any]]:
        """The carries as plain values."""
        return [vars(c).copy() for c in self.carries]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Return to stored carries."""
        self.carries = [Carry(**c) for c in state]

    def seen_arrays(self) -> dict[str, ByteArray]:
        """The frames of the episodes under way, by copy, where there are any."""
        return {str(env): np.stack(frames) for env, frames in enumerate(self.seen) if frames}

    def load_seen(self, arrays: Mapping[str, ByteArray]) -> None:
        """Return to stored frames."""
        self.seen = [list(arrays.get(str(env), ())) for env in range(self.num_envs)]
