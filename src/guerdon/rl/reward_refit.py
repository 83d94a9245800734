"""Refits of an image reward model during a run, so that the policy cannot exploit it for long.

Observed frames are kept until their episode ends; then ground truth (success of each frame, or progress along the
episode) labels them, and failed episodes become hard negatives. Or an expert continues from observed moments, and
the steps that it needs label them at once. The image twin of PRIME's online update (Cui et al. 2025, 2502.01456).

    refit = build_refit("resnet", model, settings, num_envs=8, seed=0)
    metrics = refit.learn(rollout.segments)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.episodes.read import read_episodes
from guerdon.episodes.targets import frame_targets, nearness, no_labels, outcome_of
from guerdon.errors import ConfigError, DataError
from guerdon.models.image import ImageModelConfig, ImageRewardModel
from guerdon.models.online import OnlineImageModel
from guerdon.rl.checkpoint import under
from guerdon.settings.reward_models import RefittedModelSettings
from guerdon.types import ByteArray, Episode, Metrics, Observes, RewardModel, Segment

_UNKNOWN = -1  # stands for an unknown success in a checkpoint


@dataclass
class _OpenEpisode:
    """What was observed of the open episode of a stream."""

    frames: list[ByteArray] = field(default_factory=list)
    success: list[bool | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


def build_refit(
    name: str, model: RewardModel, settings: RefittedModelSettings, *, num_envs: int, seed: int
) -> RewardRefit:
    """The refits of a source, as `update_params` asks for them.

    Args:
        name: of the source.
        model: changed in place.
        settings: of the model.
        num_envs: streams of a rollout.
        seed: of the draws.

    Raises:
        ConfigError: the model cannot be refitted, or not with these labels.
        DataError: there are no labelled episodes at `replay_path`.
    """
    if not isinstance(model, ImageRewardModel):
        raise ConfigError(f"reward.sources.{name}: a {settings.model_type} model cannot be refitted")
    params, continuation = settings.update_params, settings.labeler == "continuation"
    frames, targets = _replay(settings, model.config, params.replay_size)
    trainer = OnlineImageModel(
        model,
        frames,
        targets,
        learning_rate=params.learning_rate,
        weight_decay=params.weight_decay,
        batch_size=params.batch_size,
        replay_size=params.replay_size,
        replay_ratio=params.replay_ratio,
        seed=seed,
    )
    if continuation and model.config.horizon is None:
        raise ConfigError(
            f"reward.sources.{name}: labeler continuation counts steps to success, so the progress model needs a "
            "horizon: set train.<name>.horizon and train it again"
        )
    return RewardRefit(
        trainer,
        steps=params.steps,
        every=params.every,
        num_envs=num_envs,
        label_every=params.continuation_every if continuation else 0,
    )


class RewardRefit:
    """Labels finished episodes and refits the model on them.

    Args:
        trainer: holds the model, its optimizer and its replay. A `resnet` model gets success as labels, a
            `progress` model progress, by the definition that travels with it.
        steps: gradient steps per refit.
        every: rollouts between refits.
        num_envs: streams of a rollout.
        label_every: label every k-th scored row by the steps that an expert needs from there, at once, instead of
            all rows by how the episode ends; 0: the latter.
    """

    def __init__(
        self,
        trainer: OnlineImageModel,
        *,
        steps: int,
        every: int,
        num_envs: int,
        label_every: int = 0,
    ) -> None:
        self.trainer = trainer
        self._steps = steps
        self._every = every
        self._rollouts = 0
        self._label_every = label_every
        self._open = [_OpenEpisode() for _ in range(num_envs)]
        self._ready: list[tuple[ByteArray, np.ndarray]] = []
        self._skipped = 0  # finished episodes since the last refit whose labels are unknown

    def observes(self, source: Observes) -> Observes:
        """What its source observes, with the labels that the refit needs."""
        return replace(source, label_every=self._label_every, label_limit=int(self.trainer.model.config.horizon or 0))

    def learn(self, segments: Sequence[Segment]) -> Metrics:
        """Label what a rollout shows, and refit if it is time and there are labels since the last refit.

        Returns:
            Of `OnlineImageModel.update`, and `episodes_without_labels`: episodes since the last refit that could not be
            labelled; empty where the model was not refitted.
        """
        if self._label_every:
            self._take_labels(segments)
        else:
            self._label_episodes(segments)
        self._rollouts += 1
        if self._rollouts % self._every:
            return {}
        skipped: Metrics = {"episodes_without_labels": self._skipped} if self._skipped else {}
        self._skipped = 0
        if not self._ready:
            return skipped
        frames = np.concatenate([f for f, _ in self._ready])
        targets = np.concatenate([t for _, t in self._ready])
        self._ready = []
        return {**self.trainer.update(frames, targets, steps=self._steps), **skipped}

    def _label_episodes(self, segments: Sequence[Segment]) -> None:
        """Keep the frames of open episodes; label those of episodes that ended."""
        for segment in segments:
            episode = self._open[segment.stream]
            episode.frames.extend(segment.frames_F)
            episode.success.extend(segment.success_F)
            episode.steps.extend(segment.rows_F.tolist())
            if segment.finished:
                self._label(episode)
                self._open[segment.stream] = _OpenEpisode()

    def _take_labels(self, segments: Sequence[Segment]) -> None:
        """Turn the steps that an expert needs into targets."""
        horizon = self.trainer.model.config.horizon
        assert horizon is not None
        for segment in segments:
            if segment.steps_left_F is None:
                continue
            for frame, left in zip(segment.frames_F, segment.steps_left_F.astype(np.float64), strict=True):
                if not np.isnan(left):  # an expert that another model gave more steps had given up by then
                    steps_1 = np.array([left if left < int(horizon) else np.inf])
                    self._ready.append((frame[None], nearness(steps_1, horizon)))

    def _label(self, observed: _OpenEpisode) -> None:
        """Turn a finished episode into frames and targets; one whose true success is unknown is skipped and counted."""
        if not observed.frames:
            return
        episode = Episode(
            id="online",
            task="",
            frames=np.stack(observed.frames),
            success=None if None in observed.success else np.array(observed.success, dtype=np.bool_),
            outcome=outcome_of(observed.success),
            meta={"steps": observed.steps},
        )
        config = self.trainer.model.config
        targets = frame_targets(episode, config.type, config.horizon)
        if targets is None or episode.frames is None:
            self._skipped += 1
        else:
            self._ready.append((episode.frames, targets))

    def reset_streams(self) -> None:
        """Drop the open episodes: the world begins new ones."""
        self._open = [_OpenEpisode() for _ in self._open]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values: model, optimizer, replay, open episodes and labelled frames."""
        online, online_values = self.trainer.state()
        tensors = {f"online.{k}": v for k, v in online.items()}
        for i, episode in enumerate(self._open):
            if episode.frames:
                success = [_UNKNOWN if s is None else int(s) for s in episode.success]
                tensors[f"open.{i}.frames"] = torch.from_numpy(np.stack(episode.frames))
                tensors[f"open.{i}.success"] = torch.tensor(success, dtype=torch.int8)
                tensors[f"open.{i}.steps"] = torch.tensor(episode.steps, dtype=torch.int64)
        for i, (frames, targets) in enumerate(self._ready):
            tensors[f"ready.{i}.frames"] = torch.from_numpy(frames.copy())
            tensors[f"ready.{i}.targets"] = torch.from_numpy(targets.copy())
        counts = {"rollouts": self._rollouts, "ready": len(self._ready), "skipped": self._skipped}
        return tensors, {"online": online_values, **counts}

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self.trainer.load_state(under("online", tensors), values["online"])
        self._rollouts, self._skipped = int(values["rollouts"]), int(values["skipped"])
        self.reset_streams()
        for i, episode in enumerate(self._open):
            if (frames := tensors.get(f"open.{i}.frames")) is not None:
                episode.frames = list(frames.numpy())
                episode.success = [None if s == _UNKNOWN else bool(s) for s in tensors[f"open.{i}.success"].tolist()]
                episode.steps = tensors[f"open.{i}.steps"].tolist()
        self._ready = [
            (tensors[f"ready.{i}.frames"].numpy(), tensors[f"ready.{i}.targets"].numpy())
            for i in range(int(values["ready"]))
        ]


def _replay(settings: RefittedModelSettings, config: ImageModelConfig, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Labelled frames of the episodes that the model was trained on, at most a few times `size`."""
    frames, targets, count, skipped = [], [], 0, 0
    for episode in read_episodes(Path(settings.replay_path or "")):
        labels = frame_targets(episode, config.type, config.horizon)
        if labels is None or episode.frames is None:
            skipped += 1
            continue
        known = np.isfinite(labels)
        frames.append(episode.frames[known])
        targets.append(labels[known])
        count += int(known.sum())
        if count > 4 * size:
            break
    if not frames:
        raise DataError(f"replay_path {settings.replay_path}: {no_labels(skipped, 'frames and success labels')}")
    return np.concatenate(frames), np.concatenate(targets)
