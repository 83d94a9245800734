"""Settings for fitting image reward models offline.

They do not know how the training is done, only what a user may choose.

    settings = ResNetTrainSettings(type="resnet", data_path="data/window", save_dir="runs/rm", image_size=64)
    settings.image_size   # (3, 64, 64)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from guerdon.settings.base import Settings

Arch = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
Normalize = Literal["none", "imagenet"]


def parse_image_size(value: Any) -> tuple[int, int, int]:
    """Normalise 128, [128, 128] or [3, 128, 128] to (3, H, W).

    Raises:
        ValueError: for any other shape, sizes below 8 pixels, or another number of channels than 3.
    """
    sizes = [value] if isinstance(value, int) else list(value) if isinstance(value, list | tuple) else []
    if len(sizes) == 1:
        sizes = [sizes[0], sizes[0]]
    if len(sizes) == 2:
        sizes = [3, *sizes]
    whole = all(isinstance(s, int) and not isinstance(s, bool) for s in sizes)
    if len(sizes) != 3 or not whole or sizes[0] != 3 or min(sizes[1:]) < 8:
        raise ValueError(f"image_size must be 128, [128, 128] or [3, 128, 128] (at least 8 pixels), got {value!r}")
    return (sizes[0], sizes[1], sizes[2])


ImageSize = Annotated[tuple[int, int, int], BeforeValidator(parse_image_size)]


class _ImageTrainSettings(Settings):
    """What both image reward models share.

    Attributes:
        data_path: one or several LeRobot data sets.
        save_dir: receives the final checkpoint (`model/`), `metrics.json`, TensorBoard logs and, while the
            training runs, its resumable state.
        camera: which camera to look through; None for the only one.
        arch: depth of the residual network.
        hidden_dim: width of the head's hidden layer; None for a head of one linear layer.
        dropout: in the head, before the last layer.
        image_size: (3, H, W) that frames are resized to; 128 and [128, 128] are accepted too.
        pretrained_path: backbone weights (a transformers ResNet folder or hub id); None for random weights.
        normalize: `imagenet` subtracts and divides by ImageNet's channel statistics.
        bf16: `auto` where the hardware has it.
        learning_rate: of AdamW.
        lr_scheduler: what the learning rate does after the warm-up.
        warmup: fraction of the optimiser's steps over which the learning rate rises.
        weight_decay: of AdamW.
        batch_size: frames per optimiser step and process.
        max_epochs: passes over the (sub-sampled) training frames.
        max_steps: stop after this many optimiser steps; None for no limit but `max_epochs`.
        val_split: fraction of the episodes held out; 0 trains on everything, without early stopping.
        fail_success_ratio: per epoch, at most this many failure frames for each success frame; None uses all.
        num_samples_per_episode: frames drawn from each episode (the last one always); 0 uses all.
        augment: shift every training frame randomly by up to 4 pixels.
        eval_every: epochs between evaluations, and between resumable checkpoints; None for the fewest that
            take at least 20 optimiser steps.
        early_stopping_patience: evaluations without an improvement before stopping; None never stops early.
        min_delta: the smallest decrease of the validation loss that counts as an improvement.
        log_every: optimiser steps between logged losses.
        tensorboard: write TensorBoard logs.
        resume: continue from the newest checkpoint in `save_dir`, when there is one.
        seed: of the split, the weights, the batches and the augmentation.
    """

    data_path: str | tuple[str, ...]
    save_dir: str
    camera: str | None = None
    arch: Arch = "resnet18"
    hidden_dim: int | None = Field(default=256, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    image_size: ImageSize = (3, 128, 128)
    pretrained_path: str | None = None
    normalize: Normalize = "none"
    bf16: bool | Literal["auto"] = "auto"
    learning_rate: float = Field(default=1e-4, gt=0)
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=1e-5, ge=0)
    batch_size: int = Field(default=64, ge=2)
    max_epochs: int = Field(default=100, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    val_split: float = Field(default=0.2, ge=0, lt=1)
    fail_success_ratio: float | None = Field(default=2.0, gt=0)
    num_samples_per_episode: int = Field(default=0, ge=0)
    augment: bool = True
    eval_every: int | None = Field(default=None, ge=1)
    early_stopping_patience: int | None = Field(default=5, ge=1)
    min_delta: float = Field(default=1e-3, ge=0)
    log_every: int = Field(default=10, ge=1)
    tensorboard: bool = True
    resume: bool = False
    seed: int = Field(default=42, ge=0)

    @model_validator(mode="after")
    def _no_dead_knob(self) -> _ImageTrainSettings:
        asked = "early_stopping_patience" in self.model_fields_set and self.early_stopping_patience is not None
        if self.val_split == 0 and asked:
            raise ValueError("val_split 0 leaves nothing to stop early on: set early_stopping_patience: null")
        return self

    @property
    def data_paths(self) -> tuple[str, ...]:
        """`data_path` as a tuple."""
        return (self.data_path,) if isinstance(self.data_path, str) else self.data_path


class ResNetTrainSettings(_ImageTrainSettings):
    """Fit a success classifier: the probability that a frame shows the task done.

    Attributes:
        reward_threshold: the probability above which a frame counts as success; stored in the checkpoint.
    """

    type: Literal["resnet"] = "resnet"
    reward_threshold: float = Field(default=0.5, gt=0, lt=1)


class ProgressTrainSettings(_ImageTrainSettings):
    """Fit a progress regressor: how much of the task a frame shows done, from 0 to 1.

    Attributes:
        horizon: None regresses the share of the way to the first success. A number regresses nearness in time
            instead, rising from 0 at that many environment steps before success to 1: the better target when
            episodes start from many states.
    """

    type: Literal["progress"] = "progress"
    horizon: float | None = Field(default=None, gt=0)


ImageTrainSettings = Annotated[ResNetTrainSettings | ProgressTrainSettings, Field(discriminator="type")]
