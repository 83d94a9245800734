"""Checkpoints in their published layouts: OpenVLA and OpenVLA-OFT (Prismatic), SmolVLA (LeRobot).

Every weight must be there and have its shape, and nothing else may be: a checkpoint is read whole or refused. Weights
that are published but take no part in acting (the last block and the pooling of a vision tower, the words' rows of the
output embedding) are checked by name and left out. Nothing is fetched from a hub.

    network, encode, statistics = read_openvla(settings, actions=7, proprio_size=8)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.finite import refuse_to_read
from guerdon.hub import check_folder
from guerdon.policies.text_files import read_tokenizer, reading
from guerdon.policies.vla.policy import BOS, Statistics
from guerdon.policies.vla.prismatic import PrismaticNetwork
from guerdon.policies.vla.smolvla import ExpertSize, SmolVLANetwork
from guerdon.policies.vla.vision import DinoSiglipTowers, ViTSize
from guerdon.settings.vla_policy import VLAPolicySettings

TOWERS = {
    "vit_large_patch14_reg4_dinov2.lvd142m": ViTSize(224, 14, 1024, 24, 16, 4096, prefix=5, scaled=True),
    "vit_so400m_patch14_siglip_224": ViTSize(224, 14, 1152, 27, 16, 4304),
}
"""The vision towers of OpenVLA by their names in timm."""
PROMPT = "In: What action should the robot take to {task}?\nOut:"
_EMPTY = "▁"  # OpenVLA's prompts end with this token of Llama's
_PROPRIO = "proprio_projector.safetensors"
_SMOLVLA = {
    "vlm_with_expert.vlm.model.text_model.": "text.",
    "vlm_with_expert.vlm.model.vision_model.": "see.vision_model.",
    "vlm_with_expert.vlm.model.connector.": "see.connector.",
    "vlm_with_expert.lm_expert.": "expert.",
}
_ADAPTER = "base_model.model."  # before the published names of weights in an adapter's file
_PLAIN = {"peft_type": "LORA", "bias": "none"}  # of adapters that are read; other kinds of them have these keys, too:
_OTHER = ("use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "modules_to_save", "layer_replication")
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
    return _json(file)


def read_openvla(settings: VLAPolicySettings, *, actions: int, proprio_size: int) -> Published:
    """An OpenVLA or OpenVLA-OFT checkpoint with action tokens.

    Args:
        settings: the `policy` section, with `vla_path`.
        actions: numbers of an action of the environment.
        proprio_size: measurements that the model is to see; 0: none.

    Raises:
        CheckpointError: it lacks weights, has others, or is of another kind.
        ConfigError: it does not fit the environment or the settings.
    """
    from transformers import LlamaConfig

    folder = Path(str(settings.vla_path))
    config = read_config(folder)
    for kind, why in (
        (
            "action_head",
            "was trained with a regression or diffusion head, which has no action tokens to learn from by RL",
        ),
        ("vision_backbone", "was trained with FiLM, which is not supported"),
    ):
        if any(folder.glob(f"{kind}--*_checkpoint.pt")):
            raise CheckpointError(f"{folder} {why}; take one that was trained with discrete action tokens")
    names = config.get("timm_model_ids") or []
    if not names or any(name not in TOWERS for name in names):
        raise CheckpointError(f"{folder}: vision towers {names} are not supported; known are {', '.join(TOWERS)}")
    sizes = [replace(TOWERS[name], image=size) for name, size in zip(names, config["image_sizes"], strict=True)]
    stored = _weights(settings)
    if proprio_size:
        stored |= _proprio_tensors(folder)
    vocabulary = int(config["text_config"]["vocab_size"]) - int(config["pad_to_multiple_of"])
    bins = int(config["n_action_bins"])
    with _without_weights():
        network = PrismaticNetwork(
            DinoSiglipTowers(sizes), LlamaConfig(**config["text_config"]), vocabulary=vocabulary, bins=bins,
            image_size=sizes[0].image, proprio_size=proprio_size, fused=bool(config["use_fused_vision_backbone"]),
        )  # fmt: skip
    renamed = {name.replace("language_model.model.", "language_model.", 1): t for name, t in stored.items()}
    head = renamed.pop("language_model.lm_head.weight", None)
    if head is not None and len(head) == config["text_config"]["vocab_size"]:
        renamed["action_head.weight"] = head[vocabulary - bins : vocabulary].flip(0)
    _load(network, renamed, openvla_unused(network), folder)
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

    return Published(network, encode, _openvla_statistics(settings, config, actions, proprio_size))


def openvla_unused(network: PrismaticNetwork) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what an OpenVLA checkpoint holds beyond its network, but for the output embedding."""
    towers = network.vision_backbone
    assert isinstance(towers, DinoSiglipTowers)
    both = {"featurizer": towers.featurizer, "fused_featurizer": towers.fused_featurizer}
    return {
        f"vision_backbone.{name}.{key}": shape
        for name, tower in both.items() if tower is not None for key, shape in tower.unused().items()
    }  # fmt: skip


def read_smolvla(settings: VLAPolicySettings, *, actions: int, proprio_size: int) -> Published:
    """A SmolVLA checkpoint as LeRobot writes it.

    Args:
        settings: the `policy` section, with `vla_path` and, where the checkpoint names a hub model, `vlm_path`.
        actions: numbers of an action of the environment.
        proprio_size: measurements that the model is to see.

    Raises:
        CheckpointError: it lacks weights, has others, or is of another kind.
        ConfigError: it does not fit the environment or the settings.
    """
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector, SmolVLMVisionTransformer

    folder = Path(str(settings.vla_path))
    config = read_config(folder)
    if not settings.use_proprio:
        raise ConfigError("SmolVLA reads the state of the robot: set policy.use_proprio to true")
    if settings.num_action_chunks > config["chunk_size"]:
        raise ConfigError(f"policy.num_action_chunks: {folder} was trained on chunks of {config['chunk_size']}")
    for key, size in (("max_action_dim", actions), ("max_state_dim", proprio_size)):
        if size > config[key]:
            raise ConfigError(f"{folder} has {key} {config[key]}, the environment has {size}")
    if "cross" not in config["attention_mode"]:
        config["self_attn_every_n_layers"] = 1
    if config.get("add_image_special_tokens") or config.get("prefix_length", -1) > 0:
        raise CheckpointError(f"{folder}: add_image_special_tokens and prefix_length are not supported")
    height, width = config["resize_imgs_with_padding"]
    if height != width:
        raise CheckpointError(f"{folder}: pictures of {height} by {width}, which are not square, are not supported")
    name = settings.vlm_path or str(config["vlm_model_name"])
    vlm = _vlm_config(name)
    if config["num_vlm_layers"] > 0:
        vlm.text_config.num_hidden_layers = min(config["num_vlm_layers"], vlm.text_config.num_hidden_layers)
    known = {field.name for field in fields(ExpertSize)}
    expert = ExpertSize(**{key: value for key, value in config.items() if key in known})
    expert = replace(
        expert,
        num_expert_layers=max(expert.num_expert_layers, 0),
        self_attn_every_n_layers=max(expert.self_attn_every_n_layers, 0),
    )
    with _without_weights():
        see = _SmolVLMEyes(SmolVLMVisionTransformer(vlm.vision_config), SmolVLMConnector(vlm))
        network = SmolVLANetwork(see, vlm.text_config, expert, image_size=height, proprio_size=proprio_size)
    renamed = {_smolvla_name(key): tensor for key, tensor in _weights(settings).items()}
    unused = {_SMOLVLA_UNUSED: (vlm.text_config.vocab_size, vlm.text_config.hidden_size)}
    statistics = _smolvla_statistics(settings, renamed, actions, proprio_size)
    _load(network, renamed, unused, folder)
    if config["train_expert_only"]:
        network.see.requires_grad_(False)
        network.text.requires_grad_(False)
    elif config["freeze_vision_encoder"]:
        network.see.requires_grad_(False)
    tokenizer = read_tokenizer(name)
    return Published(network, lambda task: [int(i) for i in tokenizer(f"{task}\n").input_ids], statistics)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names.

    Raises:
        CheckpointError: there are none, or a shard is missing or cannot be read.
    """
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    names = sorted(set(_json(index)["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"policy.vla_path: {folder} has no {name}")
        with boundary(CheckpointError, f"{folder / name} cannot be read"):
            tensors |= load_file(folder / name)
    refuse_to_read(tensors.items(), folder)
    return tensors


def add_adapter(weights: dict[str, Tensor], folder: Path) -> None:
    """Add a LoRA adapter to weights: W + s B A with s = alpha / r, or alpha / sqrt(r) with `use_rslora`.

    Args:
        weights: by their published names; changed in place.
        folder: in PEFT's layout, with adapter_config.json and adapter_model.safetensors.

    Raises:
        CheckpointError: it cannot be read, is of another kind, or does not fit the weights.
    """
    from safetensors.torch import load_file

    files = [folder / name for name in ("adapter_config.json", "adapter_model.safetensors")]
    if lost := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"policy.load_adapter_checkpoint: {folder} has no {lost[0]}")
    config = _json(files[0])
    strange = [key for key, plain in _PLAIN.items() if config.get(key, plain) != plain]
    if strange := [*strange, *(key for key in _OTHER if config.get(key))]:
        raise CheckpointError(f"{folder} is not a plain LoRA adapter: its {strange[0]} is {config[strange[0]]}")
    with boundary(CheckpointError, f"{files[1]} cannot be read"):
        tensors = load_file(files[1])
        scale = config["lora_alpha"] / config["r"] ** (0.5 if config.get("use_rslora") else 1)
    refuse_to_read(tensors.items(), folder)
    while tensors:
        key = min(tensors)
        name, _, _ = key.removeprefix(_ADAPTER).partition(".lora_")
        a, b = (tensors.pop(f"{_ADAPTER}{name}.lora_{half}.weight", None) for half in "AB")
        weight = weights.get(f"{name}.weight")
        if a is None or b is None or weight is None:
            raise CheckpointError(f"{folder}: {key} has no other half, or belongs to no weight of policy.vla_path")
        if (len(b), *a.shape[1:]) != tuple(weight.shape) or b.flatten(1).shape[1] != len(a):
            raise CheckpointError(
                f"{folder}: the adapter of {name} has shapes {tuple(a.shape)} and {tuple(b.shape)}, the weight "
                f"{tuple(weight.shape)}"
            )
        added = b.float().flatten(1) @ a.float().flatten(1)
        weights[f"{name}.weight"] = weight.float() + scale * added.view_as(weight)


def _folders(settings: VLAPolicySettings) -> list[Path]:
    """The checkpoint's, and its adapter's."""
    return [Path(path) for path in (settings.vla_path, settings.load_adapter_checkpoint) if path is not None]


def _weights(settings: VLAPolicySettings) -> dict[str, Tensor]:
    """The published weights, with their adapter."""
    folder, *adapters = _folders(settings)
    for one in (folder, *adapters):
        check_folder(CheckpointError, "the checkpoint", one)
    weights = read_tensors(folder)
    for adapter in adapters:
        add_adapter(weights, adapter)
    return weights


class _SmolVLMEyes(nn.Module):
    """SmolVLM's vision transformer and its connector."""

    def __init__(self, vision_model: nn.Module, connector: nn.Module) -> None:
        super().__init__()
        self.vision_model, self.connector = vision_model, connector

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.connector(self.vision_model(pixel_values=pixels * 2 - 1).last_hidden_state)
        return found


def _load(network: nn.Module, stored: dict[str, Tensor], unused: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    """Give a network its weights, in float32; all of them and nothing else."""
    own = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    wanted = own | dict(unused)
    missing = sorted(own.keys() - stored.keys())
    unknown = sorted(stored.keys() - wanted.keys())
    wrong = sorted(name for name in wanted.keys() & stored.keys() if tuple(stored[name].shape) != wanted[name])
    if missing or unknown or wrong:
        said = [
            f"lacks {len(missing)} weights, such as {missing[0]}" if missing else "",
            f"has {len(unknown)} unknown weights, such as {unknown[0]}" if unknown else "",
            f"has {len(wrong)} weights of another shape, such as {wrong[0]} with {tuple(stored[wrong[0]].shape)} for "
            f"{wanted[wrong[0]]}" if wrong else "",
        ]  # fmt: skip
        raise CheckpointError(f"{folder} does not have the published layout: it {' and '.join(s for s in said if s)}")
    network.load_state_dict({name: stored[name].float() for name in own}, assign=True)
    for parameter in network.parameters():
        parameter.requires_grad_(True)


@contextmanager
def _without_weights() -> Iterator[None]:
    """Networks made inside have no weights yet, but their other buffers."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        yield


def _json(file: Path) -> dict[str, Any]:
    with boundary(CheckpointError, f"{file} cannot be read"):
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _vlm_config(name: str) -> Any:
    from transformers import AutoConfig

    if not Path(name).is_dir():
        raise CheckpointError(
            f"the checkpoint's language model is {name!r}, which is no folder here: put its config.json and its "
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


def _proprio_tensors(folder: Path) -> dict[str, Tensor]:
    """The projector of proprioception, which OpenVLA-OFT keeps in a file of its own."""
    from safetensors.torch import load_file

    file = folder / _PROPRIO
    if not file.is_file():
        found = next((one.name for one in folder.glob("proprio_projector--*_checkpoint.pt")), None)
        hint = f"write {found} as safetensors (docs/vla.md)" if found else "set policy.use_proprio to false"
        raise CheckpointError(f"policy.use_proprio: {folder} has no {_PROPRIO}; {hint}")
    with boundary(CheckpointError, f"{file} cannot be read"):
        tensors = load_file(file)
    return {f"proprio_projector.{name.removeprefix('module.')}": tensor for name, tensor in tensors.items()}


def _openvla_statistics(
    settings: VLAPolicySettings, config: Mapping[str, Any], actions: int, proprio_size: int
) -> Statistics:
    """Quantiles of the data set of `unnorm_key`; those of fine-tuning before those of the base model."""
    known, folder = dict(config.get("norm_stats") or {}), settings.vla_path
    for tuned in (one / "dataset_statistics.json" for one in _folders(settings)):
        known |= _json(tuned) if tuned.is_file() else {}
    key = settings.unnorm_key or (next(iter(known)) if len(known) == 1 else None)
    if key is not None and key not in known and f"{key}_no_noops" in known:
        key = f"{key}_no_noops"
    if key is None or key not in known:
        raise ConfigError(
            f"policy.unnorm_key: {'there are several' if key is None else f'{key!r} is none of the'} data sets in the "
            f"statistics of {folder}: name one of {', '.join(known) or 'none'}"
        )
    pairs = []
    for part, size in (("action", actions), ("proprio", proprio_size)):
        if not size:
            continue
        numbers = known[key].get(part)
        if numbers is None or len(numbers["q01"]) != size:
            have = "none" if numbers is None else str(len(numbers["q01"]))
            raise ConfigError(
                f"{folder}: the statistics of {key} have {have} {part} numbers, the environment has {size}"
            )
        low, high = (np.array(numbers[name], dtype=np.float64) for name in ("q01", "q99"))
        moved = np.array(numbers.get("mask", np.ones(size, dtype=np.bool_)))
        pairs.append((np.where(moved, (low + high) / 2, 0.0), np.where(moved, (high - low + 1e-8) / 2, 1.0)))
    return Statistics(*pairs)


def _smolvla_statistics(
    settings: VLAPolicySettings, stored: dict[str, Tensor], actions: int, proprio_size: int
) -> Statistics:
    """Mean and standard deviation: in files of LeRobot's processors, or of older checkpoints among the weights."""
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    pattern = "policy_p*processor_step_*normalizer_processor.safetensors"
    for file in [file for folder in _folders(settings) for file in sorted(folder.glob(pattern))]:
        with boundary(CheckpointError, f"{file} cannot be read"):
            found |= load_file(file)
    for name in [key for key in stored if key.startswith(("normalize_", "unnormalize_"))]:
        group, _, rest = name.partition(".buffer_")
        if group in ("normalize_inputs", "normalize_targets", "unnormalize_outputs"):
            feature, _, number = rest.rpartition(".")
            found.setdefault(f"{feature.replace('observation_state', 'observation.state')}.{number}", stored.pop(name))
    pairs = []
    for feature, size in (("action", actions), ("observation.state", proprio_size)):
        pair = [found.get(f"{feature}.{number}") for number in ("mean", "std")]
        if any(tensor is None or tuple(tensor.shape) != (size,) for tensor in pair):
            have = ["none" if tensor is None else tuple(tensor.shape) for tensor in pair]
            raise ConfigError(
                f"{settings.vla_path}: mean and standard deviation of {feature} are {have}, the environment has "
                f"({size},)"
            )
        mean, std = (tensor.float().numpy() for tensor in pair if tensor is not None)
        pairs.append((mean, std + np.float32(1e-8)))
    return Statistics(*pairs)
