"""Reward models as sources of reward: score what was seen, shape it, keep what spans two rollouts.

A `Source` remembers, for each copy of the environment, the last value of the episode under way, so that rewards
telescope across rollouts and nothing leaks into the next episode. A measurement that failed marks its step;
no number takes its place. This module does not know how frames were rendered or how a policy learns.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from guerdon.errors import TooManyFailuresError
from guerdon.rl import shape
from guerdon.rl.sightings import Segment, Sighting
from guerdon.settings.reward import SourceSettings
from guerdon.types import BoolArray, Episode, Failure, FloatArray, RewardModel


@dataclass
class Carry:
    """What one copy's episode under way leaves for the next rollout."""

    previous: float | None = None
    streak: int = 0
    paid: bool = False


@dataclass(frozen=True)
class Measured:
    """What one source says about a rollout.

    Attributes:
        rewards: (B, T) float32.
        failed: (B, T) bool.
        values: for each segment, one value per sighting, NaN-free, None where not scored or failed.
        failures: the reasons, with copy and step.
        scored: measurements tried.
    """

    rewards: FloatArray
    failed: BoolArray
    values: list[list[float | None]]
    failures: list[tuple[int, int, Failure]]
    scored: int


@dataclass
class Source:
    """One reward model with its settings and its memory of the episodes under way."""

    name: str
    model: RewardModel
    settings: SourceSettings
    gamma: float
    num_envs: int
    carries: list[Carry] = field(init=False)

    def __post_init__(self) -> None:
        self.carries = [Carry() for _ in range(self.num_envs)]

    @property
    def threshold(self) -> float:
        """The one threshold: the configuration's, else the one stored with the model."""
        if self.settings.reward_threshold is not None:
            return self.settings.reward_threshold
        stored = self.model.info.success_threshold
        return 0.5 if stored is None else stored

    @property
    def needs_first(self) -> bool:
        """Whether the first moment of an episode must be seen (the baseline of a change)."""
        return self.settings.shaping in ("relative", "potential")

    def wants_row(self, row: int) -> bool:
        """Whether the moment after the `row`-th action is scored even if the episode goes on."""
        return self.settings.reward_mode == "per_step" and row % self.settings.score_every == 0

    def wants(self, sighting: Sighting) -> bool:
        """Whether this source scores the sighting."""
        if sighting.first:
            return self.needs_first
        return sighting.last or self.wants_row(sighting.row)

    def measure(self, segments: Sequence[Segment], tasks: Sequence[str], shape_B_T: tuple[int, int]) -> Measured:
        """Score all segments in one call of the model and turn the values into rewards."""
        rewards = np.zeros(shape_B_T, dtype=np.float32)
        failed = np.zeros(shape_B_T, dtype=np.bool_)
        failures: list[tuple[int, int, Failure]] = []
        chosen = [[n for n, s in enumerate(segment.sightings) if self.wants(s)] for segment in segments]
        episodes = [
            Episode(id=f"{seg.env}-{seg.episode}", task=tasks[seg.env], frames=seg.frames[rows])
            for seg, rows in zip(segments, chosen, strict=True)
            if rows
        ]
        scores = iter(self.model.score(episodes) if episodes else [])
        values: list[list[float | None]] = []
        for segment, rows in zip(segments, chosen, strict=True):
            column: list[float | None] = [None] * len(segment.sightings)
            if rows:
                score = next(scores)
                if score.failure is not None or score.steps is None:
                    failure = score.failure or Failure("no_steps", "the model gives no value per row")
                    failures += [(segment.env, segment.sightings[n].t, failure) for n in rows]
                else:
                    for n, value in zip(rows, score.steps, strict=True):
                        column[n] = float(value)
            values.append(column)
            self._shape(segment, rows, column, rewards, failed)
        if failures and self.settings.on_failure == "raise":
            raise TooManyFailuresError(f"reward source {self.name!r} failed ({failures[0][2]}) and on_failure is raise")
        if self.settings.on_failure == "neutral":
            failed[:] = False
        scored = sum(map(len, chosen))
        return Measured(rewards * np.float32(self.settings.reward_coef), failed, values, failures, scored)

    def _shape(
        self,
        segment: Segment,
        rows: list[int],
        column: list[float | None],
        rewards: FloatArray,
        failed: BoolArray,
    ) -> None:
        """Write the rewards of one segment and update the copy's carry."""
        carry = self.carries[segment.env]
        if segment.sightings and segment.sightings[0].first:
            carry.previous, carry.streak, carry.paid = None, 0, False
        good: list[tuple[int, float]] = []
        for n in rows:
            sighting, value = segment.sightings[n], column[n]
            if sighting.first:
                carry.previous = value
            elif value is None or (self.needs_first and carry.previous is None):
                failed[segment.env, sighting.t] = True
                carry.previous = value if carry.previous is None else carry.previous
            else:
                good.append((sighting.t, value))
        if good or self.settings.shaping == "potential":
            self._shape_good(segment, carry, good, rewards)
        if segment.finished:
            self.carries[segment.env] = Carry()

    def _shape_good(self, segment: Segment, carry: Carry, good: list[tuple[int, float]], rewards: FloatArray) -> None:
        steps = np.array([t for t, _ in good], dtype=np.int64)
        values = np.array([v for _, v in good], dtype=np.float64)
        row = rewards[segment.env]
        kind, s = self.settings.shaping, self.settings
        if kind == "raw":
            row[steps] = values
        elif kind == "threshold":
            row[steps] = shape.threshold_reward(
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
            row[steps] = paid
        elif carry.previous is not None and kind == "relative":
            row[steps] = shape.relative_reward(values, previous=carry.previous)
            carry.previous = float(values[-1])
        elif carry.previous is not None and segment.end >= segment.start:
            held = np.full(segment.end - segment.start + 1, carry.previous)
            for t, value in good:
                held[t - segment.start :] = value
            row[segment.start : segment.end + 1] = shape.potential_reward(
                held, previous=carry.previous, gamma=self.gamma, terminated=segment.terminated
            )
            carry.previous = float(held[-1])

    def state_dict(self) -> list[dict[str, Any]]:
        """The carries as plain values."""
        return [vars(c).copy() for c in self.carries]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Return to stored carries."""
        self.carries = [Carry(**c) for c in state]


class FailureCounter:
    """Counts failed measurements and says when there are too many.

    Args:
        max_rate: the largest share of failures in the window that is tolerated.
        window: the most recent measurements that count.
    """

    def __init__(self, max_rate: float, window: int) -> None:
        self.max_rate = max_rate
        self.recent: deque[bool] = deque(maxlen=window)
        self.reasons: Counter[str] = Counter()
        self.scored = 0

    def add(self, scored: int, failures: Sequence[tuple[int, int, Failure]]) -> None:
        """Take in the outcome of `scored` measurements."""
        self.scored += scored
        self.reasons.update(f.reason for _, _, f in failures)
        self.recent.extend([True] * len(failures) + [False] * (scored - len(failures)))

    @property
    def rate(self) -> float:
        """Share of failures in the window; 0 before the first measurement."""
        return sum(self.recent) / len(self.recent) if self.recent else 0.0

    @property
    def total(self) -> int:
        """Failures since the run began."""
        return sum(self.reasons.values())

    def too_many(self) -> bool:
        """The window is full (or a third of it failed outright) and its rate is over the limit."""
        enough = len(self.recent) == self.recent.maxlen or sum(self.recent) * 3 >= (self.recent.maxlen or 1)
        return enough and self.rate > self.max_rate

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"recent": [int(x) for x in self.recent], "reasons": dict(self.reasons), "scored": self.scored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self.recent.clear()
        self.recent.extend(bool(x) for x in state["recent"])
        self.reasons = Counter(state["reasons"])
        self.scored = int(state["scored"])
