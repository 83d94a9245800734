"""Reward sources of control policies: reward models that score observed rows of episodes.

A `ControlReward` remembers, for each stream, the last value of its open episode, so that rewards telescope across
rollouts and nothing reaches the next episode; where whole episodes are scored, it remembers their frames. A failed
measurement marks its step; no number takes its place, unless `fallback: native` asks for true success by name, and it
counts as failed then too. A model that is refitted during the run learns by its `RewardRefit`.

    sources = build_control_sources(study)
    rewards = {name: source.measure(rollout) for name, source in sources.items()}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import ConfigError
from guerdon.models.image import ImageRewardModel, save_checkpoint
from guerdon.models.load import load_source_model
from guerdon.models.vlm_prm import log_computed, log_weighted
from guerdon.policies.control import StateInputs
from guerdon.rl import shaping
from guerdon.rl.checkpoint import under
from guerdon.rl.reward_refit import RewardRefit, build_refit
from guerdon.rl.reward_source import RewardSource, SourceTerms, raw_scores
from guerdon.settings.reward import SourceSettings
from guerdon.settings.study import Study
from guerdon.types import (
    BoolArray,
    ByteArray,
    Episode,
    Failure,
    FloatArray,
    Metrics,
    Observes,
    RewardModel,
    Rewards,
    Rollout,
    Score,
    Segment,
)

LOGGED_AS_PRM = ("QwenProcessRM", "DummyRM")  # the VLA guide's names of models, which come with its log lines


def build_control_sources(study: Study) -> dict[str, ControlReward]:
    """Load every reward model of the `reward` section.

    Raises:
        CheckpointError: a model is missing or not the one asked for.
        ConfigError: the model cannot score what this world shows, or cannot be refitted.
        DataError: there are no labelled episodes to refit it with.
    """
    if not study.reward.use_reward_model:
        return {}
    sources = {}
    for index, (name, settings) in enumerate(study.reward.sources.items()):
        model = load_source_model(settings.model)
        _check(name, model, settings)
        if settings.reward_threshold is not None and isinstance(model, ImageRewardModel):
            model.sort_pictures_at(settings.reward_threshold)
        gamma = study.algorithm.gamma if settings.gamma is None else settings.gamma
        terms = SourceTerms(name, gamma, settings.reward_weight, on_failure=settings.on_failure)
        refit = None
        if settings.refitted is not None:
            seed = study.runner.seed * 1000 + index
            refit = build_refit(name, model, settings.refitted, num_envs=study.env.num_envs, seed=seed)
        sources[name] = ControlReward(terms, model, settings, num_envs=study.env.num_envs, refit=refit)
    return sources


def _check(name: str, model: RewardModel, settings: SourceSettings) -> None:
    """Refuse a model that cannot give the values that a source asks for."""
    info = model.info
    if info.granularity == "total" and settings.reward_mode != "episode":
        raise ConfigError(
            f"reward.sources.{name}: the model {info.name!r} judges whole episodes, so it needs reward_mode: episode"
        )
    if info.modality == "text":
        raise ConfigError(f"reward.sources.{name}: the model {info.name!r} judges text, not frames")
    if settings.native_fallback and (info.range[0] < 0 or info.range[1] > 1):
        raise ConfigError(
            f"reward.sources.{name}: fallback native gives 0 or 1, and the values of {info.name!r} are from "
            f"{info.range[0]:g} to {info.range[1]:g}"
        )
    if settings.shaping == "bonus" and info.success_threshold is None and settings.reward_threshold is None:
        raise ConfigError(
            f"reward.sources.{name}: shaping bonus needs a threshold; this model stores none, so set reward_threshold"
        )


@dataclass
class Carry:
    """What the open episode of a stream leaves for the next rollout."""

    previous: float | None = None
    streak: int = 0
    paid: bool = False


class ControlReward(RewardSource[Rollout[StateInputs]]):
    """One entry of `reward.sources`.

    Args:
        terms: how it counts.
        model: scores frames or whole episodes.
        settings: how its values become rewards.
        num_envs: streams of a rollout.
        refit: lets the model learn from rollouts; None: it stays as it is.

    Attributes:
        carries: of each stream.
    """

    def __init__(
        self,
        terms: SourceTerms,
        model: RewardModel,
        settings: SourceSettings,
        *,
        num_envs: int,
        refit: RewardRefit | None = None,
    ) -> None:
        super().__init__(terms)
        self.model, self.settings, self.refit = model, settings, refit
        self.learn_before = settings.refitted is not None and settings.refitted.update == "before"
        self._num_envs = num_envs
        self.reset_streams()

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
    def _whole(self) -> bool:
        """Whether an episode is scored once, at its end, from all that was observed of it."""
        return self.settings.reward_mode == "episode"

    @property
    def observes(self) -> Observes:
        """The rows it looks at; the first moment is the baseline of a change, or the start of a video."""
        own = Observes(
            every=self.settings.score_every if self.settings.reward_mode in ("per_step", "episode") else 0,
            first=self._whole or self.settings.shaping in ("relative", "potential"),
            frames=bool(self.model.info.frames_needed),
        )
        return own if self.refit is None else self.refit.observes(own)

    # Rewards.

    def measure(self, rollout: Rollout[StateInputs], *, learn: bool = True) -> Rewards:
        """Score all segments in one call of the model and turn the values into rewards."""
        rewards = np.zeros(rollout.mask.shape, dtype=np.float32)
        failed = np.zeros(rollout.mask.shape, dtype=np.bool_)
        failures: list[tuple[int, int, Failure]] = []
        found: list[tuple[int, int, float]] = []
        measured = 0
        for segment, rows, score in self._scores(rollout.segments):
            values = [] if score is None else self._values(segment, rows, score, failures)
            measured += len(values)
            steps = segment.steps_F[rows].tolist()
            found += [(segment.stream, t, v) for t, v in zip(steps, values, strict=True) if v is not None]
            self._shape(segment, rows, values, rewards[segment.stream], failed[segment.stream])
        rewards[failed] = 0.0
        if self.terms.on_failure == "neutral":
            failed[:] = False
        paid = Rewards(
            rewards * np.float32(self.settings.reward_coef),
            failed,
            failures=tuple(failures),
            measured=measured,
            scores=raw_scores(found, self.threshold),
        )
        if self.settings.model.model_type in LOGGED_AS_PRM:
            _log_as_prm(paid, self.terms.coefficient)
        return paid

    def _scores(self, segments: Sequence[Segment]) -> list[tuple[Segment, list[int], Score | None]]:
        """Of every segment the rows that are scored, and their score; None where there are none."""
        observes = self.observes
        chosen = [np.flatnonzero(observes.selects(s.rows_F, s.last_F)).tolist() for s in segments]
        frames = [segment.frames_F[rows] for segment, rows in zip(segments, chosen, strict=True)]
        if self._whole:
            frames = [self._whole_episode(*one) for one in zip(segments, chosen, frames, strict=True)]
            chosen = [rows[-1:] if len(stack) else [] for rows, stack in zip(chosen, frames, strict=True)]
        scored = list(zip(segments, chosen, frames, strict=True))
        episodes = [
            Episode(id=f"{segment.stream}-{segment.number}", task=segment.task, frames=stack)
            for segment, rows, stack in scored
            if rows
        ]
        scores = iter(self.model.score(episodes) if episodes else [])
        return [(segment, rows, next(scores) if rows else None) for segment, rows, _ in scored]

    def _whole_episode(self, segment: Segment, rows: list[int], frames: ByteArray) -> ByteArray:
        """All frames of an episode that ended with a scored row; of another none, they are kept for later."""
        if len(segment) and segment.rows_F[0] == 0:
            self._frames[segment.stream] = []
        kept = self._frames[segment.stream]
        kept += list(frames)
        if segment.finished:
            self._frames[segment.stream] = []
        return np.stack(kept) if segment.finished and rows and segment.last_F[rows[-1]] else frames[:0]

    def _values(
        self, segment: Segment, rows: list[int], score: Score, failures: list[tuple[int, int, Failure]]
    ) -> list[float | None]:
        """A value per scored row; None where it failed, which is noted.

        With `fallback: native` true success takes the place of a failed one where it is known.
        """
        if self._whole and score.total is not None:
            return [score.total]
        if not self._whole and score.steps is not None:
            return [float(value) for value in score.steps]
        missing = Failure("no_total", "the model gives no value for a whole episode")
        if not self._whole:
            missing = Failure("no_steps", "the model gives no value per row")
        failures += [(segment.stream, int(segment.steps_F[n]), score.failure or missing) for n in rows]
        if not self.settings.native_fallback:
            return [None] * len(rows)
        success = [segment.success_F[n] for n in rows]
        return [None if known is None else float(known) for known in success]

    def _shape(
        self,
        segment: Segment,
        rows: list[int],
        values: list[float | None],
        rewards_T: FloatArray,
        failed_T: BoolArray,
    ) -> None:
        """Write the rewards of one segment and update the stream's carry."""
        carry = self.carries[segment.stream]
        if len(segment) and segment.rows_F[0] == 0:
            carry.previous, carry.streak, carry.paid = None, 0, False
        good: list[tuple[int, float]] = []
        for n, value in zip(rows, values, strict=True):
            step = int(segment.steps_F[n])
            if segment.rows_F[n] == 0:
                carry.previous = value
            elif value is None:
                failed_T[step] = True
            else:
                good.append((step, value))
        if self.settings.shaping == "potential":
            self._shape_potential(segment, carry, good, rewards_T, failed_T)
        elif good:
            self._shape_rows(carry, good, rewards_T, failed_T)
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
            rewards_T[steps] = shaping.threshold_reward(
                values, threshold=self.threshold, success=s.success_reward, fail=s.effective_fail_reward
            )
        elif kind == "bonus":
            paid, carry.streak, carry.paid = shaping.confirmed_bonus(
                values,
                threshold=self.threshold,
                frames=s.confirm_frames,
                bonus=s.success_reward,
                streak=carry.streak,
                paid=carry.paid,
            )
            rewards_T[steps] = paid
        elif len(good) and carry.previous is not None:
            rewards_T[steps] = shaping.relative_reward(values, previous=carry.previous)
            carry.previous = float(values[-1])

    def _shape_potential(
        self,
        segment: Segment,
        carry: Carry,
        good: list[tuple[int, float]],
        rewards_T: FloatArray,
        failed_T: BoolArray,
    ) -> None:
        """Rewards at every step of the segment: the potential is held between scored rows.

        Until a first value is known, the potential is not, and those steps fail.
        """
        if segment.end < segment.start:
            return
        steps = slice(segment.start, segment.end + 1)
        before = np.nan if carry.previous is None else carry.previous
        held = np.full(segment.end - segment.start + 1, before)
        for t, value in good:
            held[t - segment.start :] = value
        shaped = shaping.potential_reward(held, previous=before, gamma=self.terms.gamma, terminated=segment.terminated)
        unknown = np.isnan(shaped)
        rewards_T[steps] = np.where(unknown, 0.0, shaped)
        failed_T[steps] |= unknown
        carry.previous = None if np.isnan(held[-1]) else float(held[-1])

    # Learning and state.

    def learn(self, rollout: Rollout[StateInputs]) -> Metrics:
        """Refit the model where it is time for it."""
        return {} if self.refit is None else self.refit.learn(rollout.segments)

    @property
    def skipped_in_a_row(self) -> int:
        """Gradient steps of the refits."""
        return 0 if self.refit is None else self.refit.trainer.skipped.in_a_row

    def reset_streams(self) -> None:
        """Drop the open episodes: the world begins new ones."""
        self.carries = [Carry() for _ in range(self._num_envs)]
        self._frames: list[list[ByteArray]] = [[] for _ in range(self._num_envs)]
        if self.refit is not None:
            self.refit.reset_streams()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What open episodes leave for the next rollout, and the state of the refit."""
        tensors = {f"frames.{i}": torch.from_numpy(np.stack(kept)) for i, kept in enumerate(self._frames) if kept}
        values: dict[str, Any] = {"carries": [vars(carry).copy() for carry in self.carries]}
        if self.refit is not None:
            more, values["refit"] = self.refit.state()
            tensors |= {f"refit.{k}": v for k, v in more.items()}
        return tensors, values

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self.carries = [Carry(**carry) for carry in values["carries"]]
        frames = under("frames", tensors)
        self._frames = [list(frames[str(i)].numpy()) if str(i) in frames else [] for i in range(self._num_envs)]
        if self.refit is not None:
            self.refit.restore(under("refit", tensors), values["refit"])

    def save(self, folder: Path) -> None:
        """Write a refitted model, so that it can be evaluated and used again."""
        if self.refit is not None and isinstance(self.model, ImageRewardModel):
            save_checkpoint(folder, self.model.scorer, self.model.config)


def _log_as_prm(rewards: Rewards, weight: float) -> None:
    """The VLA guide's two log lines: what was measured in a rollout, and what of it is paid."""
    scores = rewards.scores
    if scores is None or not (inside := scores.steps_N >= 0).any():
        return
    log_computed(scores.values_N[inside].tolist())
    log_weighted(rewards.values[scores.rows_N[inside], scores.steps_N[inside]].tolist(), weight)
