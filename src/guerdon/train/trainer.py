"""transformers' `Trainer` fitted to frames: whole-batch gathering, balanced epochs, calibrated evaluation.

It knows arrays and a network with one logit, not episodes or files of reward models. While a training runs,
its resumable state (Trainer's own checkpoints, read back with `weights_only`) lies in `<save_dir>/trainer`.

    trainer = build_trainer(settings, network, train, val)
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Sampler
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.integrations import TensorBoardCallback
from transformers.utils import SAFE_WEIGHTS_NAME

from guerdon.errors import ConfigError, NonFiniteError
from guerdon.finite import save_weights
from guerdon.models.backbone import ImageScorer, calibrating, resolve_device
from guerdon.models.preprocess import random_shift, to_input
from guerdon.models.quality import classifier_quality, progress_quality
from guerdon.policies.precision import uses_bf16
from guerdon.settings.text_policy import SFTSettings
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.settings.train_text import TextTrainSettings
from guerdon.train.frames import LabelledFrames, balanced_counts, epoch_order
from guerdon.train.watch import COMPLETE, MarkComplete
from guerdon.types import BoolArray, IntArray

MIN_STEPS_BETWEEN_EVALUATIONS = 20
CALIBRATION_FRAMES = 512


class FrameNetwork(nn.Module):
    """What Trainer trains: bytes in, binary cross-entropy (with soft targets) and logits out.

    Args:
        scorer: the network.
        normalize: see `to_input`.
        augment: shift training frames randomly.
    """

    def __init__(self, scorer: ImageScorer, normalize: Any, augment: bool) -> None:
        super().__init__()
        self.scorer = scorer
        self.normalize = normalize
        self.augment = augment

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss (a scalar) and logits (N,) for pixels (N, H, W, 3) uint8 and labels (N,) in [0, 1]."""
        if self.training and self.augment:
            pixels = random_shift(pixels)
        logits = self.scorer(to_input(pixels, self.normalize))
        return {"loss": F.binary_cross_entropy_with_logits(logits.float(), labels), "logits": logits}


class _Rows(Dataset[int]):
    """A data set of row numbers; the collator gathers a whole batch at once."""

    def __init__(self, frames: LabelledFrames) -> None:
        self.frames = frames

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, row: int) -> int:
        return row


def _gather(frames: LabelledFrames, rows: Sequence[int] | IntArray) -> dict[str, Tensor]:
    index = np.asarray(rows)
    return {
        "pixels": torch.from_numpy(frames.pixels[index]),
        "labels": torch.from_numpy(frames.targets[index]),
    }


class BalancedSampler(Sampler[int]):
    """All positive frames and a fresh draw of the others each epoch; a function of the seed and the epoch."""

    def __init__(self, positive_N: BoolArray, fail_success_ratio: float | None, seed: int) -> None:
        self.positive = positive_N
        self.ratio = fail_success_ratio
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose draw comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(balanced_counts(self.positive, self.ratio))

    def __iter__(self) -> Iterator[int]:
        return iter(epoch_order(self.positive, self.ratio, seed=self.seed, epoch=self.epoch).tolist())


class _FrameTrainer(Trainer):  # type: ignore[misc]
    """Trainer whose training sampler is a `BalancedSampler` and whose collator follows the data set."""

    def __init__(self, *, sampler: BalancedSampler, **options: Any) -> None:
        super().__init__(**options)
        self._sampler = sampler

    def _get_train_sampler(self, train_dataset: Any = None) -> BalancedSampler:
        return self._sampler

    def _get_dataloader(self, dataset: _Rows, *args: Any, **options: Any) -> Any:
        self.data_collator = partial(_gather, dataset.frames)
        return super()._get_dataloader(dataset, *args, **options)

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        """Trainer's own, with a loss that must be finite."""
        loss: Tensor = super().training_step(*args, **options)
        if not torch.isfinite(loss):
            raise NonFiniteError(f"the training loss is {float(loss)}: lower train.<name>.learning_rate")
        return loss

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Calibrate batch normalisation, then evaluate."""
        self.calibrate_batch_norm()
        metrics: dict[str, float] = super().evaluate(*args, **options)
        return metrics

    def calibrate_batch_norm(self) -> None:
        """Give batch normalisation its statistics on training frames; the same weights give the same ones."""
        network = self.accelerator.unwrap_model(self.model)
        frames, size = self.train_dataset.frames, self.args.per_device_train_batch_size
        rows = epoch_order(frames.positive, self._sampler.ratio, seed=self.args.seed, epoch=0)[:CALIBRATION_FRAMES]
        augment, network.augment = network.augment, False
        with calibrating(self.model_wrapped), self.compute_loss_context_manager():
            for start in range(0, max(len(rows) - size // 2, 1), size):
                self.model_wrapped(**self._prepare_inputs(_gather(frames, rows[start : start + size])))
        network.augment = augment

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        # Trainer's own refuses channels-last tensors, and adds its arguments as a pickle.
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            tensors = self.model.state_dict() if state_dict is None else state_dict
            save_weights(tensors, folder / SAFE_WEIGHTS_NAME)


class _PlainLines(TrainerCallback):  # type: ignore[misc]
    """One line per evaluation, for logs that are not a terminal."""

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **_: Any) -> None:
        if state.is_world_process_zero:
            names = [k for k in metrics if not k.endswith(("_runtime", "_per_second", "epoch"))]
            values = "  ".join(f"{k.removeprefix('eval_')} {metrics[k]:.4f}" for k in names)
            sys.stderr.write(f"epoch {state.epoch:.1f}  step {state.global_step}/{state.max_steps}  {values}\n")
            sys.stderr.flush()


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest completely written checkpoint in `folder`, or None."""
    marked = [f.parent for f in folder.glob(f"checkpoint-*/{COMPLETE}")]
    return max(marked, key=lambda path: int(path.name.split("-")[1]), default=None)


def best_checkpoint_epoch(trainer: Any) -> float | None:
    """The epoch whose weights gave the lowest validation loss, or None without validation."""
    step = trainer.state.best_global_step
    epochs = [
        entry["epoch"] for entry in trainer.state.log_history if entry.get("step") == step and "eval_loss" in entry
    ]
    return float(epochs[0]) if epochs else None


def build_trainer(
    settings: ResNetTrainSettings | ProgressTrainSettings,
    scorer: ImageScorer,
    train: LabelledFrames,
    val: LabelledFrames,
    folder: Path,
) -> Any:
    """Set up Trainer: AdamW, balanced epochs, early stopping on the validation loss, best weights at the end.

    Args:
        settings: everything the user chose.
        scorer: the network, changed in place.
        train: training frames.
        val: validation frames; empty for none.
        folder: receives Trainer's checkpoints; TensorBoard's events go to `tensorboard/` beside it.

    Returns:
        The `transformers.Trainer`.
    """
    terminal = sys.stderr.isatty()
    device = resolve_device(None)
    validated = len(val) > 0
    sampler = BalancedSampler(train.positive, settings.fail_success_ratio, settings.seed)
    arguments = _arguments(settings, folder, len(sampler), validated, device, terminal)
    callbacks: list[TrainerCallback] = [MarkComplete()]
    if validated and settings.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(settings.early_stopping_patience, settings.min_delta))
    if settings.tensorboard:
        callbacks.append(TensorBoardCallback())
        callbacks[-1].logging_dir = str(folder.parent / "tensorboard")
    trainer = _FrameTrainer(
        sampler=sampler,
        model=FrameNetwork(scorer, settings.normalize, settings.augment),
        args=arguments,
        train_dataset=_Rows(train),
        eval_dataset=_Rows(val) if validated else None,
        compute_metrics=_quality_of(settings),
        callbacks=callbacks,
    )
    if not terminal:
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(_PlainLines())
    return trainer


def _arguments(
    settings: ResNetTrainSettings | ProgressTrainSettings,
    folder: Path,
    frames_per_epoch: int,
    validated: bool,
    device: torch.device,
    terminal: bool,
) -> TrainingArguments:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if settings.fsdp and (device.type != "cuda" or processes < 2):
        raise ConfigError(
            f"fsdp: true needs torchrun with several GPUs, here are {processes} process(es) on {device.type}: "
            "start it as `torchrun --nproc_per_node GPUS -m guerdon train ...`, or leave fsdp out"
        )
    steps_per_epoch = math.ceil(math.ceil(frames_per_epoch / settings.batch_size) / processes)
    total = steps_per_epoch * settings.max_epochs
    total = total if settings.max_steps is None else min(total, settings.max_steps)
    epochs_between = settings.eval_every or math.ceil(MIN_STEPS_BETWEEN_EVALUATIONS / steps_per_epoch)
    every = min(epochs_between * steps_per_epoch, total)
    return TrainingArguments(
        **common_arguments(settings, folder, total=total, every=every, validated=validated, device=device),
        bf16=uses_bf16(settings.bf16, device),
        disable_tqdm=not terminal,
        label_names=["labels"],
        dataloader_pin_memory=device.type == "cuda",
        fsdp=True if settings.fsdp else None,
    )


def common_arguments(
    settings: ResNetTrainSettings | ProgressTrainSettings | SFTSettings | TextTrainSettings,
    folder: Path,
    *,
    total: int,
    every: int,
    validated: bool,
    device: torch.device,
) -> dict[str, Any]:
    """What every training with transformers' `Trainer` has in common here.

    Args:
        settings: batch, learning rate and its schedule, logging, seed.
        folder: receives Trainer's checkpoints.
        total: gradient steps.
        every: gradient steps between evaluations and checkpoints.
        validated: whether something is held out; then the best checkpoint is taken at the end.
        device: where it runs.
    """
    return {
        "output_dir": str(folder),
        "max_steps": total,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "lr_scheduler_type": "constant_with_warmup" if settings.lr_scheduler == "constant" else settings.lr_scheduler,
        "warmup_steps": round(settings.warmup * total),
        "optim": "adamw_torch_fused",
        "use_cpu": device.type == "cpu",
        "eval_strategy": "steps" if validated else "no",
        "eval_steps": every,
        "save_strategy": "steps",
        "save_steps": every,
        "save_total_limit": 2,
        "load_best_model_at_end": validated,
        "metric_for_best_model": "loss" if validated else None,
        "greater_is_better": False if validated else None,
        "logging_steps": settings.log_every,
        "logging_nan_inf_filter": False,
        "report_to": [],
        "log_level": "error",
        "seed": settings.seed,
        "remove_unused_columns": False,
        "dataloader_num_workers": 0,
        "push_to_hub": False,
    }


def _quality_of(settings: ResNetTrainSettings | ProgressTrainSettings) -> Any:
    def quality(prediction: EvalPrediction) -> dict[str, float]:
        logits = np.asarray(prediction.predictions, np.float64).reshape(-1)
        values = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
        targets = np.asarray(prediction.label_ids).reshape(-1)
        if isinstance(settings, ResNetTrainSettings):
            found = classifier_quality(values, targets, settings.reward_threshold)
        else:
            found = progress_quality(values, targets)
        return {name: value for name, value in found.items() if value is not None}

    return quality


def read_history(trainer: Any) -> list[dict[str, float]]:
    """The evaluations of a training, oldest first, as plain JSON values."""
    history: list[dict[str, float]] = json.loads(json.dumps(trainer.state.log_history))
    return [entry for entry in history if "eval_loss" in entry]
