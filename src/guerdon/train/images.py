"""Fit an image reward model offline: read episodes, train, write a checkpoint with everything scoring needs.

Also runs under `torchrun`, one process per device. It does not know simulators or RL.

    settings = ResNetTrainSettings(data_path="data/window", save_dir="runs/rm", image_size=64)
    result = train_image_model(settings)
    result.metrics["auroc"]     # on held-out episodes
    load_reward_model("resnet", result.save_dir)
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from guerdon.atomic import write_json
from guerdon.errors import DataError
from guerdon.models.backbone import ImageScorer
from guerdon.models.checkpoint import ImageModelConfig, save_checkpoint
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.train.frames import LABELS, NEARNESS, LabelledFrames, labelled_frames, split_by_episode
from guerdon.train.record import finished_metrics
from guerdon.train.trainer import best_checkpoint_epoch, build_trainer, newest_checkpoint, read_history
from guerdon.types import Episode

Settings = ResNetTrainSettings | ProgressTrainSettings

# What may differ between a training and its continuation.
_FREE = {
    "save_dir",
    "resume",
    "max_epochs",
    "max_steps",
    "early_stopping_patience",
    "log_every",
    "tensorboard",
}


class TrainResult(NamedTuple):
    """Where a trained reward model lies, and how good it was on held-out episodes.

    Attributes:
        save_dir: pass it as `checkpoint_path`.
        metrics: `loss`, `accuracy` and `auroc` (or `mae`) on the validation frames, None where undefined;
            counts of frames and episodes; `seconds`.
    """

    save_dir: Path
    metrics: dict[str, Any]


def train_image_model(settings: Settings, *, resume: bool = False) -> TrainResult:
    """Train on the data sets of `settings.data_path`.

    Args:
        settings: everything; see `guerdon.settings.train`.
        resume: continue from the newest complete checkpoint in `save_dir`, like `settings.resume`.

    Raises:
        DataError: no usable episodes, or no example of success.
        ConfigError: resuming with other settings or data than the training started with.
        CheckpointError: `pretrained_path` does not fit.
    """
    from guerdon.episodes.read import dataset_hash, read_episodes

    def episodes() -> Iterator[Episode]:
        for path in settings.data_paths:
            yield from read_episodes(path, camera=settings.camera, with_frames=True)

    hashes = [dataset_hash(path) for path in settings.data_paths]
    combined = hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return train_on_episodes(settings, episodes(), data_hash=combined, resume=resume)


def train_on_episodes(
    settings: Settings, episodes: Iterable[Episode], *, data_hash: str = "", resume: bool = False
) -> TrainResult:
    """Train on episodes from anywhere; `settings.data_path` is not read.

    Args:
        settings: everything else.
        episodes: consumed one by one; only their resized frames are kept.
        data_hash: recorded in the checkpoint.
        resume: as for `train_image_model`.

    Raises:
        DataError: no usable episodes, or no example of success.
        ConfigError: resuming with other settings or data than the training started with.
        CheckpointError: `pretrained_path` does not fit.
    """
    start = time.perf_counter()
    frames = labelled_frames(
        episodes,
        settings.type,
        settings.image_size,
        horizon=settings.horizon if isinstance(settings, ProgressTrainSettings) else None,
        num_samples_per_episode=settings.num_samples_per_episode,
        seed=settings.seed,
    )
    train, val = split_by_episode(frames, settings.val_split, settings.seed)
    _check_split(train, val, settings)
    save_dir = Path(settings.save_dir)
    folder = save_dir / "trainer"
    resume = resume or settings.resume
    record = {"settings": settings.model_dump(mode="json", exclude=_FREE), "data_hash": data_hash}
    finished = finished_metrics(save_dir, record) if resume else None
    if finished is not None:
        return TrainResult(save_dir, finished)
    resumed_from = newest_checkpoint(folder) if resume else None
    if resumed_from is None and int(os.environ.get("RANK", "0")) == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_json(save_dir / "training.json", record | {"finished": False})
    scorer = _seeded_scorer(settings)
    trainer = build_trainer(settings, scorer, train, val, folder)
    trainer.train(resume_from_checkpoint=None if resumed_from is None else str(resumed_from))
    metrics = _final_metrics(settings.type, trainer, frames, train, val) | {"seconds": time.perf_counter() - start}
    if trainer.is_fsdp_enabled:
        scorer = _gathered(trainer, settings)
    if trainer.is_world_process_zero():
        save_checkpoint(save_dir / "model", scorer, _config(settings, data_hash))
        write_json(save_dir / "metrics.json", metrics | {"history": read_history(trainer)})
        write_json(save_dir / "training.json", record | {"finished": True})
        shutil.rmtree(folder, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return TrainResult(save_dir, metrics)


def _seeded_scorer(settings: Settings) -> ImageScorer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return ImageScorer(
            settings.arch,
            hidden_dim=settings.hidden_dim,
            dropout=settings.dropout,
            pretrained_path=settings.pretrained_path,
        )


def _gathered(trainer: Any, settings: Settings) -> ImageScorer:
    """The network with the weights that FSDP spread over the processes; whole in process 0 only."""
    weights = trainer.accelerator.get_state_dict(trainer.model)
    scorer = _seeded_scorer(settings)
    if trainer.is_world_process_zero():
        scorer.load_state_dict({name.removeprefix("scorer."): tensor for name, tensor in weights.items()})
    return scorer


def _check_split(train: LabelledFrames, val: LabelledFrames, settings: Settings) -> None:
    if settings.val_split > 0 and not len(val):
        raise DataError(
            f"{len(train.episode_ids)} episodes are too few to hold some out: collect more, or set val_split: 0"
        )
    if not train.positive.any():
        raise DataError("no success frame is left for training after the split: collect more successful episodes")


def _config(settings: Settings, data_hash: str) -> ImageModelConfig:
    horizon = settings.horizon if isinstance(settings, ProgressTrainSettings) else None
    return ImageModelConfig(
        type=settings.type,
        arch=settings.arch,
        hidden_dim=settings.hidden_dim,
        dropout=settings.dropout,
        image_size=settings.image_size,
        normalize=settings.normalize,
        threshold=settings.reward_threshold if isinstance(settings, ResNetTrainSettings) else None,
        label=LABELS[settings.type] if horizon is None else NEARNESS.format(horizon=horizon),
        data_hash=data_hash,
        horizon=horizon,
    )


def _final_metrics(
    kind: str, trainer: Any, frames: LabelledFrames, train: LabelledFrames, val: LabelledFrames
) -> dict[str, Any]:
    names = ("loss", "accuracy", "auroc") if kind == "resnet" else ("loss", "mae")
    if len(val):
        found = trainer.evaluate()
    else:
        trainer.calibrate_batch_norm()
        found = {}
    return {name: found.get(f"eval_{name}") for name in names} | {
        "best_epoch": best_checkpoint_epoch(trainer),
        "steps": trainer.state.global_step,
        "train_frames": len(train),
        "train_positive": int(train.positive.sum()),
        "val_frames": len(val),
        "val_positive": int(val.positive.sum()),
        "episodes": len(frames.episode_ids),
        "val_episodes": len(np.unique(val.episode)),
        "skipped_episodes": frames.skipped,
    }
