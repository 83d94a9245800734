"""Refits of an image reward model during a run, so that the policy cannot exploit it for long.

Observed frames are kept until their episode ends; then ground truth (success of each frame, or progress along the
episode) labels them, and failed episodes become hard negatives. Or an expert continues from observed moments, and
the steps that it needs label them at once. The image twin of PRIME's online update (Cui et al. 2025, 2502.01456).

    model = online_model("resnet", load_source_model(settings.model), settings.model, seed=0)
    metrics = RefittedReward(SourceTerms("resnet"), model, settings, num_envs=8).learn(rollout)
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
from guerdon.models.image import ImageModelConfig, ImageRewardModel, save_checkpoint
from guerdon.models.online import OnlineImageModel
from guerdon.policies.control import StateInputs
from guerdon.rl.checkpoint import under
from guerdon.rl.control_sources import ControlReward
from guerdon.rl.reward_source import SourceTerms
from guerdon.settings.reward import SourceSettings
from guerdon.settings.reward_models import RefittedModelSettings
from guerdon.types import ByteArray, Episode, Metrics, Observes, RewardModel, Rollout, Segment

_UNKNOWN = -1  # stands for an unknown success in a checkpoint


@dataclass
class _OpenEpisode:
    """What was observed of the open episode of a stream."""

    frames: list[ByteArray] = field(default_factory=list)
    success: list[bool | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


def online_model(name: str, model: RewardModel, settings: RefittedModelSettings, *, seed: int) -> OnlineImageModel:
    """The reward model of a source with its optimizer and its replay, as `update_params` asks for them.

    Args:
        name: of the source.
        model: changed in place.
        settings: of the model.
        seed: of the draws.

    Raises:
        ConfigError: the model cannot be refitted, or not with these labels.
        DataError: there are no labelled episodes at `replay_path`.
    """
    if not isinstance(model, ImageRewardModel):
        raise ConfigError(f"reward.sources.{name}: a {settings.model_type} model cannot be refitted")
    if settings.labeler == "continuation" and model.config.horizon is None:
        raise ConfigError(
            f"reward.sources.{name}: labeler continuation counts steps to success, so the progress model needs a "
            "horizon: set train.<name>.horizon and train it again"
        )
    params = settings.update_params
    frames, targets = _replay(settings, model.config, params.replay_size)
    return OnlineImageModel(
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


class RefittedReward(ControlReward):
    """An image reward model that is refitted on finished episodes of the run.

    A `resnet` model gets success as labels, a `progress` model progress, by the definition that travels with it.

    Args:
        terms: how it counts.
        model: with its optimizer and its replay.
        settings: how its values become rewards, and when it is refitted.
        num_envs: streams of a rollout.
    """

    model: OnlineImageModel

    def __init__(self, terms: SourceTerms, model: OnlineImageModel, settings: SourceSettings, *, num_envs: int) -> None:
        assert settings.refitted is not None
        super().__init__(terms, model, settings, num_envs=num_envs)
        self.refits = settings.refitted.update_params
        self.learn_before = settings.refitted.update == "before"
        self._label_every = self.refits.continuation_every if settings.refitted.labeler == "continuation" else 0
        self._rollouts = 0
        self._ready: list[tuple[ByteArray, np.ndarray]] = []
        self._skipped = 0  # finished episodes since the last refit whose labels are unknown

    @property
    def observes(self) -> Observes:
        """With the labels that the refits need."""
        limit = int(self.model.model.config.horizon or 0)
        return replace(super().observes, label_every=self._label_every, label_limit=limit)

    @property
    def skipped_in_a_row(self) -> int:
        """Gradient steps of the refits."""
        return self.model.skipped.in_a_row

    def learn(self, rollout: Rollout[StateInputs]) -> Metrics:
        """Label what a rollout shows, and refit if it is time and there are labels since the last refit.

        Returns:
            Of `OnlineImageModel.update`, and `episodes_without_labels`: episodes since the last refit that could not be
            labelled; empty where the model was not refitted.
        """
        if self._label_every:
            self._take_labels(rollout.segments)
        else:
            self._label_episodes(rollout.segments)
        self._rollouts += 1
        if self._rollouts % self.refits.every:
            return {}
        skipped: Metrics = {"episodes_without_labels": self._skipped} if self._skipped else {}
        self._skipped = 0
        if not self._ready:
            return skipped
        frames = np.concatenate([f for f, _ in self._ready])
        targets = np.concatenate([t for _, t in self._ready])
        self._ready = []
        return {**self.model.update(frames, targets, steps=self.refits.steps), **skipped}

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
        horizon = self.model.model.config.horizon
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
        config = self.model.model.config
        targets = frame_targets(episode, config.type, config.horizon)
        if targets is None or episode.frames is None:
            self._skipped += 1
        else:
            self._ready.append((episode.frames, targets))

    def reset_streams(self) -> None:
        """Drop the open episodes: the world begins new ones."""
        super().reset_streams()
        self._open = [_OpenEpisode() for _ in range(self._num_envs)]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """With model, optimizer, replay, open episodes and labelled frames."""
        tensors, values = super().state()
        online, values["online"] = self.model.state()
        tensors |= {f"online.{k}": v for k, v in online.items()}
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
        return tensors, {**values, **counts}

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self.reset_streams()
        super().restore(tensors, values)
        self.model.load_state(under("online", tensors), values["online"])
        self._rollouts, self._skipped = int(values["rollouts"]), int(values["skipped"])
        for i, episode in enumerate(self._open):
            if (frames := tensors.get(f"open.{i}.frames")) is not None:
                episode.frames = list(frames.numpy())
                episode.success = [None if s == _UNKNOWN else bool(s) for s in tensors[f"open.{i}.success"].tolist()]
                episode.steps = tensors[f"open.{i}.steps"].tolist()
        self._ready = [
            (tensors[f"ready.{i}.frames"].numpy(), tensors[f"ready.{i}.targets"].numpy())
            for i in range(int(values["ready"]))
        ]

    def save(self, folder: Path) -> None:
        """Write the model, so that it can be evaluated and used again."""
        save_checkpoint(folder, self.model.model.scorer, self.model.model.config)


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
