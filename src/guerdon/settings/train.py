"""Settings for fitting image reward models offline.

For example:

    settings = ResNetTrainSettings(type="resnet", data_path="data/window", save_dir="runs/rm", image_size=64)
    settings.image_size   # (3, 64, 64)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from guerdon.settings.base import Bf16, Schedule, Settings, as_tuple

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
    """What both image reward models share."""

    data_path: str | tuple[str, ...] = Field(description="one or several LeRobot data sets")
    save_dir: str = Field(description="receives `model/`, `metrics.json`, TensorBoard logs and resumable state")
    camera: str | None = Field(default=None, description="which camera to look through; null: the only one")
    arch: Arch = Field(default="resnet18", description="depth of the residual network")
    hidden_dim: int | None = Field(256, ge=1, description="width of the head's hidden layer; null: none")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="in the head, before the last layer")
    image_size: ImageSize = Field((3, 128, 128), description="frames are resized to (3, H, W); also 128 or [128, 128]")
    pretrained_path: str | None = Field(None, description="transformers ResNet, folder or hub id; null: random weights")
    normalize: Normalize = Field("none", description="`imagenet`: by ImageNet's channel statistics")
    bf16: Bf16 = Field("auto", description="bfloat16; `auto`: where the hardware has it")
    fsdp: bool = Field(default=False, description="shard the model over several GPUs (start it with torchrun)")
    learning_rate: float = Field(default=1e-4, gt=0, description="of AdamW")
    lr_scheduler: Schedule = Field("constant", description="what the learning rate does after the warm-up")
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps over which the learning rate rises")
    weight_decay: float = Field(default=1e-5, ge=0, description="of AdamW")
    batch_size: int = Field(default=64, ge=2, description="frames per optimiser step and process")
    max_epochs: int = Field(default=100, ge=1, description="passes over the (sub-sampled) training frames")
    max_steps: int | None = Field(None, ge=1, description="stop after so many gradient steps; null: max_epochs alone")
    val_split: float = Field(0.2, ge=0, lt=1, description="share of the episodes held out; 0: none")
    fail_success_ratio: float | None = Field(2.0, gt=0, description="failures per success and epoch at most; null: all")
    num_samples_per_episode: int = Field(0, ge=0, description="frames per episode, the last always; 0: all")
    augment: bool = Field(default=True, description="shift every training frame randomly by up to 4 pixels")
    eval_every: int | None = Field(
        default=None,
        ge=1,
        description="epochs between evaluations and checkpoints; null: the fewest that take 20 optimiser steps",
    )
    early_stopping_patience: int | None = Field(
        default=5, ge=1, description="evaluations without an improvement before stopping; null: never stop early"
    )
    min_delta: float = Field(1e-3, ge=0, description="smallest improvement of the validation loss that counts")
    log_every: int = Field(default=10, ge=1, description="optimiser steps between logged losses")
    tensorboard: bool = Field(default=True, description="write TensorBoard logs")
    resume: bool = Field(False, description="continue from the newest checkpoint in save_dir, if any")
    seed: int = Field(default=42, ge=0, description="of the split, the weights, the batches and the augmentation")

    @model_validator(mode="after")
    def _nothing_idle(self) -> _ImageTrainSettings:
        asked = "early_stopping_patience" in self.model_fields_set and self.early_stopping_patience is not None
        if self.val_split == 0 and asked:
            raise ValueError("val_split 0 leaves nothing to stop early on: set early_stopping_patience: null")
        return self

    @property
    def data_paths(self) -> tuple[str, ...]:
        """`data_path` as a tuple."""
        return as_tuple(self.data_path)


class ResNetTrainSettings(_ImageTrainSettings):
    """Fit a success classifier: the probability that a frame shows the task done."""

    type: Literal["resnet"] = "resnet"
    reward_threshold: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="the probability above which a frame counts as success; stored in the checkpoint",
    )


class ProgressTrainSettings(_ImageTrainSettings):
    """Fit a progress regressor: how much of the task a frame shows done, from 0 to 1."""

    type: Literal["progress"] = "progress"
    horizon: float | None = Field(
        default=None,
        gt=0,
        description="null: regress the share of the way to the first success; a number: nearness in time, rising "
        "from 0 at so many environment steps before success to 1 (better when episodes start from many states)",
    )


ImageTrainSettings = Annotated[ResNetTrainSettings | ProgressTrainSettings, Field(discriminator="type")]
