"""Checkpoints in their published layouts: OpenVLA and OpenVLA-OFT (Prismatic), SmolVLA (LeRobot).

Every weight must be there and have its shape, and nothing else may be: a checkpoint is read whole or refused. Weights
that are published but take no part in acting (the last block and the pooling of a vision tower, the words' rows of the
output embedding) are checked by name and left out. Nothing is fetched from a hub.

    network, encode, statistics = read_openvla(settings, actions=7, proprio_size=8)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.finite import load_weights, refuse_narrow
from guerdon.compute.sharding import Shards
from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.network.hub import OFT_PARTS, check_folder, reading
from guerdon.policies.pretrained.adapter_files import merged_weights
from guerdon.policies.pretrained.reading import ComputedWeight, read_tensors, read_tokenizer
from guerdon.policies.pretrained.unused import stored_shapes, weight_files
from guerdon.policies.vla.checkpoint_config import (
    PROPRIO,
    STATE,
    LeRobotConfig,
    OpenVLAConfig,
    SmolVLAConfig,
    check_inputs,
    checked,
    json_object,
)
from guerdon.policies.vla.policy import BOS, Normalization, Statistics, sharding
from guerdon.policies.vla.prismatic import PrismaticNetwork
from guerdon.policies.vla.smolvla import ExpertSize, SmolVLANetwork
from guerdon.policies.vla.statistics import instruction_length, lerobot_statistics, openvla_statistics
from guerdon.policies.vla.vision import DinoSiglipTowers, ViTSize
from guerdon.processes.progress import log_once
from guerdon.settings.vla_policy import VLAPolicySettings

TOWERS = {
    "vit_large_patch14_reg4_dinov2.lvd142m": ViTSize(224, 14, 1024, 24, 16, 4096, prefix=5, scaled=True),
    "vit_so400m_patch14_siglip_224": ViTSize(224, 14, 1152, 27, 16, 4304),
}
"""The vision towers of OpenVLA by their names in timm."""
_BOUNDS: dict[str, Normalization] = {"bounds_q99": "QUANTILES", "bounds": "MIN_MAX"}
PROMPT = "In: What action should the robot take to {task}?\nOut:"
_EMPTY = "▁"  # OpenVLA's prompts end with this token of Llama's
_DIFFUSION = (
    "was trained with a diffusion head, which is not supported; take one with an L1 regression head or discrete action "
    "tokens"
)
_SMOLVLA = {
    "vlm_with_expert.vlm.model.text_model.": "text.",
    "vlm_with_expert.vlm.model.vision_model.": "see.vision_model.",
    "vlm_with_expert.vlm.model.connector.": "see.connector.",
    "vlm_with_expert.lm_expert.": "expert.",
}
_OPENPI = ("paligemma_with_expert.", "model.paligemma_with_expert.")  # before the names of its weights
_PROJECTIONS = {"action": ("action_in_proj", "action_out_proj"), STATE: ("state_proj",)}
_SMOLVLA_UNUSED = "model.vlm_with_expert.vlm.lm_head.weight"


class Published(NamedTuple):
    """What a checkpoint's folder holds.

    Attributes:
        network: with the checkpoint's weights.
        encode: an instruction to ids.
        statistics: what normalised actions and measurements are.
    """

    network: nn.Module
    encode: Callable[[str], list[int]]
    statistics: Statistics


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a checkpoint.

    Raises:
        CheckpointError: there is none.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"policy.vla_path: {folder} has no config.json; name the folder of a checkpoint")
    return json_object(file)


def config_of(settings: VLAPolicySettings) -> dict[str, Any]:
    """The `config.json` of the checkpoint of `vla_path`; without one the shape of openpi's that `openpi` says.

    Raises:
        CheckpointError: there is neither.
        ConfigError: there are both.
    """
    folder = Path(str(settings.vla_path))
    there = (folder / "config.json").is_file()
    if settings.openpi is None:
        if not there and any(name.startswith(_OPENPI) for name in _names_in(folder)):
            raise CheckpointError(
                f"policy.vla_path: {folder} has weights of openpi and no config.json: say their shape by "
                "policy.openpi, such as policy.openpi.action_horizon=50"
            )
        return read_config(folder)
    if there:
        raise ConfigError.about(
            "policy.openpi", f" would do nothing: {folder / 'config.json'} says the shape; remove the key"
        )
    return settings.openpi.model_dump()


def _names_in(folder: Path) -> list[str]:
    """Names of the weights in a folder; none where there are no files of them."""
    return list(stored_shapes(folder)) if all(file.is_file() for file in weight_files(folder)) else []


def is_openpi(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is the one that openpi writes, which names no kind of model."""
    return {"action_horizon", "paligemma_variant"} <= config.keys() and not {"type", "model_type"} & config.keys()


def read_openvla(
    settings: VLAPolicySettings, *, actions: int, proprio_size: int, other_data: bool = False
) -> Published:
    """An OpenVLA or OpenVLA-OFT checkpoint: with action tokens or an L1 regression head, with or without FiLM.

    Args:
        settings: the `policy` section, with `vla_path`.
        actions: numbers of an action of the environment.
        proprio_size: measurements that the model is to see; 0: none.
        other_data: see `build_vla`. Statistics of any data set do that have the numbers of the environment, of which
            this family has no padding.

    Raises:
        CheckpointError: it lacks weights, has others, or is of another kind.
        ConfigError: it does not fit the environment or the settings.
    """
    from transformers import LlamaConfig

    folder = Path(str(settings.vla_path))
    file = folder / "config.json"
    config = checked(OpenVLAConfig, read_config(folder), file)
    names = config.timm_model_ids
    if not names or any(name not in TOWERS for name in names):
        raise CheckpointError(f"{folder}: vision towers {names} are not supported; known are {', '.join(TOWERS)}")
    config.refuse_others(file)
    _check_openvla_files(folder, settings, proprio_size)
    regression = settings.family == "regression"
    parts = {name: _part(folder, name) for name in OFT_PARTS if proprio_size or name != "proprio_projector"}
    _check_head(folder, parts["action_head"], regression)
    statistics = openvla_statistics(
        folders(settings), config.norm_stats, settings.unnorm_key, actions=actions, proprio_size=proprio_size,
        mode=_BOUNDS[settings.normalization], other_data=other_data,
    )  # fmt: skip
    language = LlamaConfig(**config.text_config.model_dump())
    modulated = bool(parts["vision_backbone"])  # OFT saves vision towers apart only where the task modulates them
    width = int(language.hidden_size) if modulated else 0
    sizes = [
        replace(TOWERS[name], image=size, words=width) for name, size in zip(names, config.image_sizes, strict=True)
    ]
    weights = _openvla_weights(settings, parts)
    rows, bins = config.text_config.vocab_size, config.n_action_bins
    vocabulary = rows - config.pad_to_multiple_of
    if bins > vocabulary:
        raise CheckpointError(
            f"{file}: n_action_bins is {bins}, the vocabulary has {vocabulary} tokens without padding"
        )
    with without_weights(folder):
        network = PrismaticNetwork(
            DinoSiglipTowers(sizes), language, vocabulary=vocabulary, bins=bins, image_size=sizes[0].image,
            proprio_size=proprio_size, fused=config.use_fused_vision_backbone,
            numbers=actions if regression else 0, modulated=modulated,
        )  # fmt: skip
    output_rows = weights.pop("language_model.lm_head.weight", None)
    if regression:
        weights |= {f"action_head.{name.removeprefix('model.')}": t for name, t in parts["action_head"].items()}
    elif output_rows is not None:
        if len(output_rows) != rows:
            raise CheckpointError(
                f"{folder}: language_model.lm_head.weight has {len(output_rows)} rows, and vocab_size is {rows}"
            )
        weights["action_head.weight"] = output_rows[vocabulary - bins : vocabulary].flip(0)  # bin k: vocabulary - 1 - k
    fill_exactly(network, weights, openvla_unused(network), folder, settings=settings)
    return Published(network, _openvla_encoder(folder), statistics)


def _check_openvla_files(folder: Path, settings: VLAPolicySettings, proprio_size: int) -> None:
    """Refuse a checkpoint without the projector of a state that is to be seen, or with a head of diffusion.

    Raises:
        CheckpointError: it is one.
        ConfigError: it wants inputs that the settings do not give.
    """
    has = [PROPRIO] if any(folder.glob("proprio_projector*")) else []
    given = [PROPRIO] if proprio_size else []
    images, ignored = settings.num_images_in_input, settings.ignored_inputs
    check_inputs(folder, (), has, given=given, images=images, ignored=ignored)
    if proprio_size and not has:
        raise CheckpointError(
            f"policy.use_proprio: {folder} has no proprio_projector.safetensors; set policy.use_proprio to false"
        )
    if any(folder.glob("noisy_action_projector*")):
        raise CheckpointError(f"{folder} {_DIFFUSION}")


def _openvla_weights(settings: VLAPolicySettings, parts: Mapping[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """The published weights and those of the parts of OFT but the head, by their names in `PrismaticNetwork`."""
    stored = published_weights(settings)
    if parts["vision_backbone"]:
        stored = {name: tensor for name, tensor in stored.items() if not name.startswith("vision_backbone.")}
        stored |= _modulated_weights(parts["vision_backbone"])
    for name, tensor in parts.get("proprio_projector", {}).items():
        stored[f"proprio_projector.{name}"] = tensor
    return {name.replace("language_model.model.", "language_model.", 1): tensor for name, tensor in stored.items()}


def _openvla_encoder(folder: Path) -> Callable[[str], list[int]]:
    """From an instruction to the ids of OpenVLA's prompt."""
    tokenizer = read_tokenizer(str(folder))
    if tokenizer.bos_token_id != BOS:
        raise CheckpointError(
            f"{folder}: its tokenizer begins a text with {tokenizer.bos_token_id}, OpenVLA's with {BOS}"
        )
    empty = tokenizer.convert_tokens_to_ids(_EMPTY)

    def encode(task: str) -> list[int]:
        ids = [int(i) for i in tokenizer(PROMPT.format(task=task.lower())).input_ids]
        ids = ids[1:] if ids[0] == BOS else ids
        return ids if ids[-1] == empty else [*ids, int(empty)]

    return encode


def openvla_unused(network: PrismaticNetwork) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what an OpenVLA checkpoint holds beyond its network, but for the output embedding."""
    towers = network.vision_backbone
    assert isinstance(towers, DinoSiglipTowers)
    both = {"featurizer": towers.featurizer, "fused_featurizer": towers.fused_featurizer}
    return {
        f"vision_backbone.{name}.{key}": shape
        for name, tower in both.items() if tower is not None for key, shape in tower.unused().items()
    }  # fmt: skip


def read_smolvla(
    settings: VLAPolicySettings, *, actions: int, proprio_size: int, other_data: bool = False
) -> Published:
    """A SmolVLA checkpoint as LeRobot writes it.

    Args:
        settings: the `policy` section, with `vla_path` and, where the checkpoint names a hub model, `vlm_path`.
        actions: numbers of an action of the environment.
        proprio_size: measurements that the model is to see.
        other_data: see `build_vla`.

    Raises:
        CheckpointError: it lacks weights, has others, or is of another kind.
        ConfigError: it does not fit the environment or the settings.
    """
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector, SmolVLMVisionTransformer

    folder = Path(str(settings.vla_path))
    file = folder / "config.json"
    config = checked(SmolVLAConfig, read_config(folder), file)
    check_lerobot(config, file, settings, actions=actions, proprio_size=proprio_size, other_data=other_data)
    name = settings.vlm_path or config.vlm_model_name
    vlm = _vlm_config(name)
    if config.num_vlm_layers > 0:
        vlm.text_config.num_hidden_layers = min(config.num_vlm_layers, vlm.text_config.num_hidden_layers)
    expert = ExpertSize(**{field.name: getattr(config, field.name) for field in fields(ExpertSize)})
    expert = replace(
        expert,
        num_expert_layers=max(expert.num_expert_layers, 0),
        self_attn_every_n_layers=max(expert.self_attn_every_n_layers, 0) if "cross" in config.attention_mode else 1,
    )
    assert config.resize_imgs_with_padding is not None
    size = config.resize_imgs_with_padding[0]
    with without_weights(folder):
        see = _SmolVLMEyes(SmolVLMVisionTransformer(vlm.vision_config), SmolVLMConnector(vlm))
        network = SmolVLANetwork(see, vlm.text_config, expert, image_size=size, proprio_size=proprio_size, padded=True)
    renamed = {_smolvla_name(key): tensor for key, tensor in published_weights(settings).items()}
    unused = {_SMOLVLA_UNUSED: (vlm.text_config.vocab_size, vlm.text_config.hidden_size)}
    statistics = lerobot_statistics(
        folders(settings), config, renamed, actions=actions, proprio_size=proprio_size, other_data=other_data
    )
    network.drawn = drawn_anew(renamed, config.changes(actions, proprio_size), file) if other_data else ()
    fill_exactly(network, renamed, unused, folder, settings=settings)
    if config.train_expert_only:
        network.see.requires_grad_(False)
        network.text.requires_grad_(False)
    elif config.freeze_vision_encoder:
        network.see.requires_grad_(False)
    tokenizer = read_tokenizer(name)
    longest = instruction_length(folder, config)

    def encode(task: str) -> list[int]:
        line = task if task.endswith("\n") else f"{task}\n"
        return [int(i) for i in tokenizer(line, truncation=longest is not None, max_length=longest).input_ids]

    return Published(network, encode, statistics)


def check_lerobot(
    config: LeRobotConfig,
    file: Path,
    settings: VLAPolicySettings,
    *,
    actions: int,
    proprio_size: int,
    other_data: bool = False,
) -> None:
    """Refuse what LeRobot's configuration of a checkpoint does not support, and a study that does not fit it.

    Cameras and numbers of `other_data` may be others, within the width that the family pads to.

    Raises:
        CheckpointError: the checkpoint needs what is not supported.
        ConfigError: the settings or the environment do not fit the checkpoint.
    """
    config.refuse_others(file)
    if not settings.use_proprio:
        raise ConfigError(
            f"{file.parent} reads the state of the robot: set policy.use_proprio to true", key="policy.use_proprio"
        )
    if settings.num_action_chunks > config.chunk_size:
        raise ConfigError.about(
            "policy.num_action_chunks", f": {file.parent} was trained on chunks of {config.chunk_size}"
        )
    cameras, others = config.inputs()
    images = settings.num_images_in_input
    if other_data and not settings.ignored_inputs and len(cameras) != images:
        log_once(f"{file.parent}: was trained with the cameras {', '.join(cameras) or 'none'}; here it sees {images}")
        cameras = []
    check_inputs(file, cameras, others, given=[STATE], images=images, ignored=settings.ignored_inputs)
    config.check_numbers(file, actions=actions, proprio_size=proprio_size, other_data=other_data)


def drawn_anew(stored: dict[str, Tensor], changes: Mapping[str, tuple[int, int]], file: Path) -> tuple[str, ...]:
    """Draw the projections of numbers that are others than those of the training, and say so.

    Args:
        stored: weights by their names in the network; those of the projections are replaced.
        changes: see `LeRobotConfig.changes`.
        file: of the configuration, for the line.

    Returns:
        Names of the layers.
    """
    names = tuple(name for part in changes for name in _PROJECTIONS[part] if f"{name}.weight" in stored)
    for name in names:
        out, into = stored[f"{name}.weight"].shape
        layer = nn.Linear(into, out)
        stored |= {f"{name}.{leaf}": value.detach() for leaf, value in layer.named_parameters()}
    if changes:
        said = ", ".join(f"{part} of {had} numbers instead of {has}" for part, (has, had) in changes.items())
        fresh = f"; fresh weights: {', '.join(names)}" if names else ""
        log_once(f"{file.parent}: {said}{fresh}")
    return names


def folders(settings: VLAPolicySettings) -> list[Path]:
    """The checkpoint's, and its adapter's."""
    return [Path(path) for path in (settings.vla_path, settings.load_adapter_checkpoint) if path is not None]


def published_weights(settings: VLAPolicySettings) -> dict[str, Tensor]:
    """The published weights, with their adapter."""
    folder, *adapters = folders(settings)
    for one in (folder, *adapters):
        check_folder(CheckpointError, "the checkpoint", one)
    weights = read_tensors(folder)
    for adapter in adapters:
        weights = merged_weights(weights, adapter)
    return weights


class _SmolVLMEyes(nn.Module):
    """SmolVLM's vision transformer and its connector."""

    def __init__(self, vision_model: nn.Module, connector: nn.Module) -> None:
        super().__init__()
        self.vision_model, self.connector = vision_model, connector
        # transformers names the attention, so that most of a layer was neither computed again nor sharded as a block
        vision_model._no_split_modules = {"SmolVLMEncoderLayer"}  # type: ignore[assignment]

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.connector(self.vision_model(pixel_values=pixels * 2 - 1).last_hidden_state)
        return found


def fill_exactly(
    network: nn.Module, stored: dict[str, Tensor], unused: Mapping[str, tuple[int, ...]], folder: Path,
    dtype: torch.dtype = torch.float32, settings: VLAPolicySettings | None = None,
) -> None:  # fmt: skip
    """Give a network its weights; all of them and nothing else.

    Args:
        network: made inside `without_weights`.
        stored: of the checkpoint.
        unused: names and shapes of weights that may be there and are left out.
        folder: of the checkpoint, for the message.
        dtype: of the network.
        settings: of a policy that is sharded over several processes: each takes its part of every tensor, a block at a
            time; of frozen weights, in the precision that it computes in.

    Raises:
        CheckpointError: weights are missing, unknown, or have another shape.
    """
    own = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    _check_weights(own, own | dict(unused), stored, folder)
    refuse_narrow({name: stored[name] for name in own}, folder)
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    if distributed.peers() > 1 and settings is not None:
        options = sharding(settings)
        dtype = torch.bfloat16 if options["half"] and settings.use_lora else dtype
        network.shards = Shards(network, weights=stored, dtype=dtype, **options)  # type: ignore[assignment]
        return
    given = {name: stored[name].to(dtype, copy=isinstance(stored[name], ComputedWeight)) for name in own}
    network.load_state_dict(given, assign=True)


def _check_weights(
    needed: Mapping[str, tuple[int, ...]],
    known: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, Tensor],
    folder: Path,
) -> None:
    """Refuse weights that are missing, unknown or of another shape.

    Args:
        needed: names and shapes of those that must be there.
        known: of those that may be there.
        stored: of the checkpoint.
        folder: of the checkpoint.
    """
    said = []
    missing = sorted(needed.keys() - stored.keys())
    if missing:
        said.append(f"lacks {len(missing)} weights, such as {missing[0]}")
    unknown = sorted(stored.keys() - known.keys())
    if unknown:
        said.append(f"has {len(unknown)} unknown weights, such as {unknown[0]}")
    wrong = sorted(name for name in known.keys() & stored.keys() if tuple(stored[name].shape) != known[name])
    if wrong:
        name, has = wrong[0], tuple(stored[wrong[0]].shape)
        said.append(f"has {len(wrong)} weights of another shape, such as {name} with {has} for {known[name]}")
    if said:
        raise CheckpointError(f"{folder} does not have the published layout: it {' and '.join(said)}")


@contextmanager
def without_weights(folder: Path) -> Iterator[None]:
    """Networks made inside have no weights yet, but their other buffers.

    Raises:
        CheckpointError: there is no network of the sizes in the configuration in this folder.
    """
    from accelerate import init_empty_weights

    wrong = f"{folder}: its configuration describes no network (copy it from the checkpoint again)"
    with boundary(CheckpointError, wrong), init_empty_weights(include_buffers=False):
        yield


def _vlm_config(name: str) -> Any:
    from transformers import AutoConfig

    if not Path(name).is_dir():
        raise CheckpointError(
            f"the checkpoint's language model is {name!r}, which is not a folder here: put its config.json and its "
            "tokenizer into one and set policy.vlm_path"
        )
    with reading("the configuration of", name):
        return AutoConfig.from_pretrained(name, trust_remote_code=False)


def _smolvla_name(name: str) -> str:
    """The name of a published weight in `SmolVLANetwork`."""
    if name == _SMOLVLA_UNUSED or not name.startswith("model."):
        return name
    inside = name.removeprefix("model.")
    old = next((prefix for prefix in _SMOLVLA if inside.startswith(prefix)), "")
    return _SMOLVLA.get(old, "") + inside.removeprefix(old)


def _part(folder: Path, name: str) -> dict[str, Tensor]:
    """A part that OpenVLA-OFT keeps in a file of its own, without the prefix of data parallel training; empty: none."""
    file = folder / f"{name}.safetensors"
    if not file.is_file():
        if pickled := next(folder.glob(f"{name}--*.pt"), None):
            raise CheckpointError(
                f"{pickled} is a pickle, which can run code; write a folder with safetensors: guerdon import {folder} "
                "NEW_FOLDER"
            )
        return {}
    with boundary(CheckpointError, f"{file} cannot be read"):
        found = load_weights(file)
    return {key.removeprefix("module."): tensor for key, tensor in found.items()}


def _check_head(folder: Path, head: Mapping[str, Tensor], regression: bool) -> None:
    """Refuse a head that the family lacks, and a family whose head the checkpoint lacks."""
    if any(name.startswith("noise_predictor.") for name in head):
        raise CheckpointError(f"{folder} {_DIFFUSION}")
    if regression and not head:
        raise ConfigError(
            f"{folder} has no action_head.safetensors, the L1 regression head: set policy.family to token, or copy "
            "the file from the checkpoint",
            key="policy.family",
        )
    if head and not regression:
        raise ConfigError(
            f"{folder} was trained with an L1 regression head: set policy.family to regression", key="policy.family"
        )


def _modulated_weights(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The vision backbone saved with FiLM, its adapters merged: their alpha is their rank, at most 16."""
    found = {}
    for name, tensor in stored.items():
        if ".lora_" in name:
            continue
        path, layer, leaf = name.rpartition(".base_layer.")
        if layer and leaf == "weight":
            down, up = (stored.get(f"{path}.lora_{one}.default.weight") for one in "AB")
            if down is not None and up is not None:
                rank = len(down)
                change = (up.float().flatten(1) @ down.float().flatten(1)).view_as(tensor)
                tensor = tensor.float() + min(rank, 16) / rank * change
        found[f"{path}.{leaf}" if layer else name] = tensor
    return {name.replace(".block.", "."): tensor for name, tensor in found.items()}
