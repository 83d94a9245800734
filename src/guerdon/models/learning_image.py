"""An image reward model that goes on learning while it is in use, from episodes whose outcome is known.

`OnlineTrainer` does the learning; this puts labels on frames and keeps the state on disk. Rows of an episode that
says which of them succeeded are labelled by that. Where only the outcome is known, all frames of a failure are
failures, and of a success the last frame is one; what came before it nobody knows, so it teaches a classifier
nothing (a progress model learns from it the share of the way). It does not know where episodes come from.

    model = load_learning_image_model("runs/rm", kind="resnet", data_path="data/labelled")
    model.learn([episode_with_outcome])           # {"loss": 0.21, "fresh": 9.0, "replay": 120.0, ...}
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from guerdon.atomic import seal_folder, verify_folder, write_json
from guerdon.episodes.targets import episode_success, progress_targets, success_labels
from guerdon.errors import CheckpointError, DataError, boundary
from guerdon.finite import load_weights, save_weights
from guerdon.models.checkpoint import Kind
from guerdon.models.image import ImageRewardModel, load_image_model
from guerdon.models.online import OnlineState, OnlineTrainer
from guerdon.models.preprocess import to_pixels
from guerdon.types import ByteArray, Episode, FloatArray, RewardInfo, Score

_TENSORS, _VALUES = "state.safetensors", "state.json"


class LearningImageModel:
    """An image reward model with its online trainer; a `RewardModel` and a `Learnable`.

    Args:
        trainer: holds the model, its optimiser and its replay.
        steps: gradient steps per update.
        frames_per_episode: labelled frames taken of one episode at most, evenly spaced, the last among them.
    """

    def __init__(self, trainer: OnlineTrainer, *, steps: int = 20, frames_per_episode: int = 8) -> None:
        self.trainer, self.steps, self.frames_per_episode = trainer, steps, frames_per_episode

    @property
    def model(self) -> ImageRewardModel:
        """The model itself."""
        return self.trainer.model

    @property
    def info(self) -> RewardInfo:
        """As the model's."""
        return self.model.info

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """As the model's, with the weights of now."""
        return self.model.score(episodes)

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Fit the model to the labelled frames of these episodes and to its replay.

        Returns:
            What `OnlineTrainer.update` says, without what is undefined, and `skipped`: episodes without frames, or
            whose outcome nobody knows.
        """
        frames: list[ByteArray] = []
        targets: list[FloatArray] = []
        for episode in episodes:
            labelled = self._labelled(episode)
            if labelled is not None:
                frames.append(labelled[0])
                targets.append(labelled[1])
        skipped = {"skipped": float(len(episodes) - len(frames))}
        if not frames:
            return skipped
        metrics = self.trainer.update(self._one_size(frames), np.concatenate(targets), steps=self.steps)
        return {name: value for name, value in metrics.items() if value is not None} | skipped

    def remember(self, data_path: str) -> None:
        """Fill the replay with frames of labelled episodes, without learning from them.

        Raises:
            DataError: there are none.
        """
        from guerdon.episodes.read import read_episodes

        known = [found for episode in read_episodes(data_path) if (found := self._labelled(episode)) is not None]
        if not known:
            raise DataError(
                f"{data_path} has no episode with frames and a known outcome; name another, or leave it out"
            )
        frames, targets = self._one_size([pictures for pictures, _ in known]), np.concatenate([t for _, t in known])
        self.trainer.replay.add(frames, targets, self.trainer.rng)

    def save(self, folder: Path) -> None:
        """Write weights, optimiser, replay and random state in one piece."""
        state = self.trainer.state_dict()
        temporary = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_weights(state.tensors, temporary / _TENSORS)
        write_json(temporary / _VALUES, state.values)
        seal_folder(temporary, folder)

    def restore(self, folder: Path) -> None:
        """Return to what `save` wrote.

        Raises:
            CheckpointError: it was altered, or is of another model.
        """
        verify_folder(folder)
        with boundary(CheckpointError, f"{folder} cannot be read"):
            values = json.loads((folder / _VALUES).read_text(encoding="utf-8"))
            self.trainer.load_state_dict(OnlineState(load_weights(folder / _TENSORS), values))

    def _labelled(self, episode: Episode) -> tuple[ByteArray, FloatArray] | None:
        """Frames whose label is known, with their labels; None where there is none."""
        if episode.frames is None or not len(episode.frames):
            return None
        if self.model.config.type == "progress":
            found = progress_targets(episode, horizon=self.model.config.horizon)
            targets = None if found is None else np.asarray(found, dtype=np.float32)
        else:
            targets = _success_targets(episode)
        if targets is None:
            return None
        rows = np.flatnonzero(np.isfinite(targets))
        if not len(rows):
            return None
        spread = np.linspace(0, len(rows) - 1, min(self.frames_per_episode, len(rows)))
        rows = rows[np.unique(spread.round().astype(np.int64))] if self.frames_per_episode > 1 else rows[-1:]
        return episode.frames[rows], targets[rows]

    def _one_size(self, frames: Sequence[ByteArray]) -> ByteArray:
        """Frames at the size that the model looks at."""
        size = self.model.config.image_size
        return np.concatenate([to_pixels(pictures, size, channels_last=True) for pictures in frames])


def _success_targets(episode: Episode) -> FloatArray | None:
    """(T,) 1 where a row is a success, 0 where it is none, NaN where nobody knows."""
    labels = success_labels(episode)
    if labels is not None:
        return labels.astype(np.float32)
    succeeded = episode_success(episode)
    if succeeded is None:
        return None
    targets: NDArray[np.float32] = np.full(len(episode), np.nan if succeeded else 0.0, dtype=np.float32)
    targets[-1] = float(succeeded)
    return targets


def load_learning_image_model(
    checkpoint_path: str | Path,
    *,
    kind: Kind,
    data_path: str | None = None,
    device: str | torch.device | None = None,
    bf16: bool | Literal["auto"] = "auto",
    steps: int = 20,
    frames_per_episode: int = 8,
    learning_rate: float = 1e-4,
    weight_decay: float = 1e-5,
    batch_size: int = 64,
    replay_size: int = 2000,
    replay_ratio: float = 0.5,
    augment: bool = True,
    seed: int = 0,
) -> LearningImageModel:
    """Load a checkpoint and make it learn.

    Args:
        checkpoint_path: see `load_image_model`.
        kind: what it must be.
        data_path: a data set of labelled episodes, such as the one that it was trained on: its replay begins with
            frames of it, so that what it knew is not forgotten. None: an empty replay.
        device: see `ImageRewardModel`.
        bf16: see `ImageRewardModel`.
        steps: see `LearningImageModel`.
        frames_per_episode: see `LearningImageModel`; also of the episodes at `data_path`.
        learning_rate: see `OnlineTrainer`, as the rest.
        weight_decay: of AdamW.
        batch_size: frames per step.
        replay_size: frames remembered.
        replay_ratio: share of each batch drawn from the replay.
        augment: shift frames randomly.
        seed: of the draws.

    Raises:
        CheckpointError: missing, corrupt, or of another kind.
        DataError: there are no labelled episodes at `data_path`.
    """
    model = load_image_model(checkpoint_path, kind=kind, device=device, bf16=bf16)
    trainer = OnlineTrainer(
        model, learning_rate=learning_rate, weight_decay=weight_decay, batch_size=batch_size, replay_size=replay_size,
        replay_ratio=replay_ratio, augment=augment, seed=seed,
    )  # fmt: skip
    learning = LearningImageModel(trainer, steps=steps, frames_per_episode=frames_per_episode)
    if data_path is not None:
        learning.remember(data_path)
    return learning
