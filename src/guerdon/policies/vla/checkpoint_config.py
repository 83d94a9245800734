"""The `config.json` of published checkpoints: the keys that change what a model does, with LeRobot's defaults.

A key that is missing or has a value of another type is named, as are settings that are not supported and inputs that
the study does not give.

    config = checked(SmolVLAConfig, json_object(file), file)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.policies.vla.policy import Normalization

STATE, PROPRIO = "observation.state", "proprio"  # what SmolVLA and OpenVLA-OFT call what the robot measures of itself
Count = Annotated[int, Field(gt=0, le=100_000)]  # of what takes memory: numbers of a state, steps, bins
Edge = Annotated[int, Field(gt=0, le=8192)]  # pixels that pictures are resized to
_Form = TypeVar("_Form", bound=BaseModel)
_EMPTY_CAMERA = re.compile(r"observation\.images\.empty_camera_(\d+)")


class _LanguageConfig(BaseModel):
    model_config = ConfigDict(extra="allow")

    vocab_size: PositiveInt


class OpenVLAConfig(BaseModel):
    """What is read of OpenVLA's and OpenVLA-OFT's."""

    timm_model_ids: list[str]
    timm_override_act_layers: list[str | None] = []
    image_sizes: list[Edge]
    image_resize_strategy: str = "resize-naive"
    use_fused_vision_backbone: bool
    pad_to_multiple_of: NonNegativeInt
    n_action_bins: Count
    text_config: _LanguageConfig
    norm_stats: dict[str, Any] | None = None

    def refuse_others(self, file: Path) -> None:
        """Refuse by name what is not supported.

        Raises:
            CheckpointError: as it says.
        """
        if self.image_resize_strategy != "resize-naive":
            raise CheckpointError(
                f"{file}: image_resize_strategy {self.image_resize_strategy} is not supported; take a checkpoint that "
                "was trained with resize-naive"
            )
        if act := [name for name in self.timm_override_act_layers if name]:
            raise CheckpointError(f"{file}: timm_override_act_layers {act} are not supported; take another checkpoint")
        if len(self.image_sizes) != len(self.timm_model_ids):
            raise CheckpointError(
                f"{file}: image_sizes has {len(self.image_sizes)} numbers for {len(self.timm_model_ids)} towers in "
                "timm_model_ids; copy the file from the checkpoint again"
            )


class _Feature(BaseModel):
    type: str
    shape: list[int] = []


class LeRobotConfig(BaseModel):
    """What is read of models with an action expert; the defaults are LeRobot's."""

    refused: ClassVar[tuple[str, ...]]

    chunk_size: Count = 50
    max_state_dim: Count = 32
    max_action_dim: Count = 32
    empty_cameras: NonNegativeInt = 0
    tokenizer_max_length: PositiveInt = 48
    freeze_vision_encoder: bool = False
    train_expert_only: bool = False
    min_period: PositiveFloat = 4e-3
    max_period: PositiveFloat = 4.0
    normalization_mapping: dict[str, Normalization] = {
        "VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"
    }  # fmt: skip
    input_features: dict[str, _Feature] | None = None
    output_features: dict[str, _Feature] | None = None

    def refuse_others(self, file: Path) -> None:
        """Refuse by name what is not supported.

        Raises:
            CheckpointError: as it says.
        """
        if strange := [*(f"{key} true" for key in self.refused if getattr(self, key)), *self._strange()]:
            raise CheckpointError(f"{file}: {strange[0]} is not supported; take a checkpoint that was trained without")

    def _strange(self) -> list[str]:
        """What else is not supported."""
        return []

    def check_numbers(self, file: Path, *, actions: int, proprio_size: int, other_data: bool = False) -> None:
        """Refuse another environment than the one that the features describe.

        Raises:
            ConfigError: as it says; of `other_data` only what is wider than the padding.
        """
        for limit, size in (("max_action_dim", actions), ("max_state_dim", proprio_size)):
            if size > getattr(self, limit):
                raise ConfigError(f"{file} has {limit} {getattr(self, limit)}, the environment has {size}")
        for name, (has, size) in self.changes(actions, proprio_size).items() if not other_data else ():
            raise ConfigError(f"{file}: {name} has the shape [{has}], the environment has [{size}]")

    def changes(self, actions: int, proprio_size: int) -> dict[str, tuple[int, int]]:
        """Features whose numbers are others than those of an environment: how many it has, and the environment has."""
        found = {}
        for features, name, size in (
            (self.output_features, "action", actions), (self.input_features, STATE, proprio_size),
        ):  # fmt: skip
            feature = (features or {}).get(name)
            if feature is not None and feature.shape and feature.shape != [size]:
                found[name] = (feature.shape[0], size)
        return found

    def inputs(self) -> tuple[list[str], list[str]]:
        """Names of cameras, without those that `empty_cameras` leaves black and masked, and of all other inputs."""
        cameras, others = [], []
        for name, feature in (self.input_features or {}).items():
            if feature.type == "VISUAL":
                empty = _EMPTY_CAMERA.fullmatch(name)
                cameras += [] if empty and int(empty[1]) < self.empty_cameras else [name]
            elif feature.type != "LANGUAGE":
                others.append(name)
        return cameras, others


class SmolVLAConfig(LeRobotConfig):
    """What is read of SmolVLA's."""

    refused = ("adapt_to_pi_aloha", "use_delta_joint_actions_aloha", "add_image_special_tokens")

    resize_imgs_with_padding: tuple[Edge, Edge] | None = (512, 512)
    adapt_to_pi_aloha: bool = False
    use_delta_joint_actions_aloha: bool = False
    add_image_special_tokens: bool = False
    prefix_length: int = -1
    attention_mode: str = "cross_attn"
    vlm_model_name: str = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
    freeze_vision_encoder: bool = True
    train_expert_only: bool = True
    num_vlm_layers: int = 16
    num_expert_layers: int = -1
    self_attn_every_n_layers: int = 2
    expert_width_multiplier: PositiveFloat = 0.75

    def _strange(self) -> list[str]:
        strange = [f"prefix_length {self.prefix_length}"] if self.prefix_length > 0 else []
        size = self.resize_imgs_with_padding
        if size is None or size[0] != size[1]:
            strange.append(f"resize_imgs_with_padding {'null' if size is None else list(size)} (not square)")
        return strange


class Pi0Config(LeRobotConfig):
    """What is read of pi0's; the defaults are LeRobot's."""

    refused: ClassVar[tuple[str, ...]] = ("use_relative_actions",)

    paligemma_variant: Literal["gemma_2b", "gemma_300m"] = "gemma_2b"
    action_expert_variant: Literal["gemma_2b", "gemma_300m"] = "gemma_300m"
    image_resolution: tuple[Edge, Edge] = (224, 224)
    use_relative_actions: bool = False

    def _strange(self) -> list[str]:
        high, wide = self.image_resolution
        return [] if high == wide else [f"image_resolution [{high}, {wide}] (not square)"]


class Pi05Config(Pi0Config):
    """What is read of pi0.5's."""

    refused = ("use_relative_actions", "use_visual_memory", "use_proprioceptive_memory")

    tokenizer_max_length: PositiveInt = 200
    use_visual_memory: bool = False
    use_proprioceptive_memory: bool = False
    normalization_mapping: dict[str, Normalization] = {
        "VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"
    }  # fmt: skip


class OpenPiConfig(BaseModel):
    """What openpi writes beside the weights that it converts from JAX, and the names for the same in `Pi0Config`."""

    action_dim: Count
    action_horizon: Count
    paligemma_variant: Literal["gemma_2b", "gemma_300m"]
    action_expert_variant: Literal["gemma_2b", "gemma_300m"]

    def as_lerobot(self, form: type[Pi0Config]) -> Pi0Config:
        """The same configuration; what openpi does not write has the defaults."""
        return form(
            chunk_size=self.action_horizon, max_action_dim=self.action_dim, max_state_dim=self.action_dim,
            paligemma_variant=self.paligemma_variant, action_expert_variant=self.action_expert_variant,
        )  # fmt: skip


def check_inputs(
    file: Path, cameras: Sequence[str], others: Sequence[str], *, given: Sequence[str], images: int,
    ignored: Sequence[str],
) -> None:  # fmt: skip
    """Compare the inputs that a checkpoint names with those of the study.

    Args:
        file: that names them.
        cameras: names of its cameras; empty: it does not say.
        others: names of its other inputs.
        given: those of them that the study gives.
        images: cameras that the study gives.
        ignored: `policy.ignored_inputs`.

    Raises:
        ConfigError: an input is missing and not ignored, or an ignored one does not exist.
    """
    _check_ignored(file, [*cameras, *others], given, ignored)
    or_ignore = "or name what it is to go without in policy.ignored_inputs"
    wanted = [name for name in cameras if name not in ignored]
    if cameras and len(wanted) != images:
        raise ConfigError(
            f"{file} names {len(wanted)} camera(s) ({', '.join(wanted) or 'none'}), policy.num_images_in_input is "
            f"{images}: set it to their number, with as many env.cameras, {or_ignore}",
            key="policy.num_images_in_input",
        )
    missing = [name for name in others if name not in given and name not in ignored]
    if missing:
        switch = "set policy.use_proprio to true, " if missing[0] == PROPRIO else ""
        raise ConfigError(
            f"{file} names the input {missing[0]}, which the study does not give: {switch}{or_ignore}",
            key="policy.ignored_inputs",
        )


def _check_ignored(file: Path, known: Sequence[str], given: Sequence[str], ignored: Sequence[str]) -> None:
    """Refuse to ignore an input that the checkpoint does not have, or that the study gives."""
    strange = [name for name in ignored if name not in known]
    if strange:
        raise ConfigError.about(
            "policy.ignored_inputs", f": {strange[0]} is not an input of {file}; it names {', '.join(known) or 'none'}"
        )
    used = [name for name in ignored if name in given]
    if used:
        raise ConfigError.about(
            "policy.ignored_inputs", f": the policy always takes {used[0]}; leave it out of the list"
        )


def json_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    with boundary(CheckpointError, f"{file} cannot be read"):
        found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} holds no JSON object; copy it from the checkpoint again")
    return found


def checked(form: type[_Form], given: Mapping[str, Any], file: Path, inside: str = "") -> _Form:
    """The keys of a form, each with its type.

    Args:
        form: what is read.
        given: the object of the file.
        file: named in errors.
        inside: what comes before a key, in errors.

    Raises:
        CheckpointError: a key is missing or has another type.
    """
    try:
        return form.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = inside + ".".join(str(part) for part in first["loc"])
        value = "" if first["type"] == "missing" else f" (it is {first['input']!r})"
        raise CheckpointError(
            f"{file}: {key}: {first['msg']}{value}; copy the file from the checkpoint again, or take another one"
        ) from error
