"""Checkpoints of pi0 and pi0.5 in the layouts of LeRobot and of openpi (converted to PyTorch by its own script).

network, encode, statistics = read_pi0(settings, actions=7, proprio_size=8)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.pretrained import read_tokenizer
from guerdon.policies.vla.checkpoint_config import OpenPiConfig, Pi0Config, Pi05Config, checked
from guerdon.policies.vla.pi0 import Pi0Network, cleaned, state_prompt
from guerdon.policies.vla.published import (
    Published,
    check_lerobot,
    fill_exactly,
    folders,
    published_weights,
    read_config,
    without_weights,
)
from guerdon.policies.vla.smolvla import ExpertSize
from guerdon.policies.vla.statistics import instruction_length, lerobot_statistics, openpi_statistics
from guerdon.settings.vla_policy import VLAPolicySettings


class GemmaSize(NamedTuple):
    """Width, layers, inner width, heads, heads of keys, and size of a head of a Gemma."""

    width: int
    layers: int
    inside: int
    heads: int
    keys: int
    head: int


GEMMAS = {
    "gemma_2b": GemmaSize(2048, 18, 16384, 8, 1, 256),
    "gemma_300m": GemmaSize(1024, 18, 4096, 8, 1, 256),
}
"""The language models and experts of pi0 by their names in openpi."""
SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "patch_size": 14,
}  # fmt: skip
"""PaliGemma's vision transformer."""
OPENPI = "openpi"
_TOKENIZER = "google/paligemma-3b-pt-224"
_VIEWS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")  # of openpi; those that are missing are masked
_PALIGEMMA, _EXPERT = "paligemma_with_expert.paligemma.", "paligemma_with_expert.gemma_expert."
_NAMES = {
    f"{_PALIGEMMA}model.vision_tower.vision_model.": "see.tower.",
    f"{_PALIGEMMA}model.vision_tower.": "see.tower.",
    f"{_PALIGEMMA}model.multi_modal_projector.linear.": "see.projector.",
    f"{_PALIGEMMA}model.language_model.": "text.",
    f"{_EXPERT}model.": "expert.",
    "action_time_mlp_": "time_mlp_",
}
_WORDS, _ADAPTIVE = "text.embed_tokens.weight", "expert.norm.dense.weight"  # the latter of pi0.5 alone


def is_openpi(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is the one that openpi writes, which names no kind of model."""
    return {"action_horizon", "paligemma_variant"} <= config.keys() and not {"type", "model_type"} & config.keys()


def read_pi0(settings: VLAPolicySettings, *, actions: int, proprio_size: int) -> Published:
    """A pi0 or pi0.5 checkpoint as LeRobot writes it, or openpi.

    Args:
        settings: the `policy` section, with `vla_path` and `vlm_path`, the folder of PaliGemma's tokenizer.
        actions: numbers of an action of the environment.
        proprio_size: measurements that the model is to see; 0, with pi0.5 of openpi: the instruction has no state.

    Raises:
        CheckpointError: it lacks weights, has others, or is of another kind.
        ConfigError: it does not fit the environment or the settings.
    """
    folder = Path(str(settings.vla_path))
    file, given = folder / "config.json", read_config(folder)
    openpi = is_openpi(given)
    if settings.vlm_path is None:
        raise ConfigError(f"{folder} has no tokenizer: put that of {_TOKENIZER} into a folder and set policy.vlm_path")
    config = None if openpi else checked(Pi05Config if given["type"] == "pi05" else Pi0Config, given, file)
    if config is not None:
        check_lerobot(config, file, settings, actions=actions, proprio_size=proprio_size)
    stored = {_renamed(name.removeprefix("model.")): tensor for name, tensor in published_weights(settings).items()}
    if config is None:
        config = checked(OpenPiConfig, given, file).as_lerobot(Pi05Config if _ADAPTIVE in stored else Pi0Config)
    adaptive = isinstance(config, Pi05Config)
    if openpi:
        _check_openpi(config, file, settings, actions=actions, proprio_size=proprio_size)
        mode = config.normalization_mapping["ACTION"]
        statistics = openpi_statistics(folder, mode, actions=actions, proprio_size=proprio_size)
    else:
        statistics = lerobot_statistics(folders(settings), config, stored, actions=actions, proprio_size=proprio_size)
    head = f"{_PALIGEMMA}lm_head.weight"
    if _WORDS not in stored and head in stored:  # they are one tensor, of which a file of safetensors has one name
        stored[_WORDS] = stored[head]
    if _WORDS not in stored:
        raise CheckpointError(f"{folder} does not have the published layout: it lacks {_PALIGEMMA}lm_head.weight")
    words = len(stored[_WORDS])
    network = _network(folder, config, words, proprio_size, adaptive=adaptive)
    unused = {head: (words, network.width), f"{_EXPERT}lm_head.weight": (words, network.expert_width)}
    fill_exactly(network, stored, unused, folder, settings=settings)
    if config.train_expert_only:
        network.see.requires_grad_(False)
        network.text.requires_grad_(False)
    elif config.freeze_vision_encoder:
        network.see.tower.requires_grad_(False)
    if adaptive and proprio_size:
        network.prompt = state_prompt
    longest = config.tokenizer_max_length if openpi else instruction_length(folder, config)
    return Published(network, _encoder(settings.vlm_path, longest, network, clean=openpi), statistics)


def _network(folder: Path, config: Pi0Config, words: int, proprio_size: int, *, adaptive: bool) -> Pi0Network:
    """The network of a configuration, without weights."""
    from transformers import GemmaConfig, SiglipVisionConfig

    text, expert = (
        GemmaConfig(
            vocab_size=words, hidden_size=one.width, num_hidden_layers=one.layers, intermediate_size=one.inside,
            num_attention_heads=one.heads, num_key_value_heads=one.keys, head_dim=one.head,
            hidden_activation="gelu_pytorch_tanh",
        )
        for one in (GEMMAS[config.paligemma_variant], GEMMAS[config.action_expert_variant])
    )  # fmt: skip
    size = ExpertSize(
        max_state_dim=config.max_state_dim, max_action_dim=config.max_action_dim, min_period=config.min_period,
        max_period=config.max_period,
    )  # fmt: skip
    side = config.image_resolution[0]
    vision = SiglipVisionConfig(image_size=side, vision_use_head=False, **SIGLIP)
    with without_weights(folder):
        return Pi0Network(
            vision, text, expert, size, horizon=config.chunk_size, image_size=side, proprio_size=proprio_size,
            adaptive=adaptive,
        )  # fmt: skip


def _check_openpi(
    config: Pi0Config, file: Path, settings: VLAPolicySettings, *, actions: int, proprio_size: int
) -> None:
    """Refuse a study that does not fit a checkpoint of openpi."""
    if not isinstance(config, Pi05Config) and not proprio_size:
        raise ConfigError(f"{file.parent} reads the state of the robot: set policy.use_proprio to true")
    if settings.num_action_chunks > config.chunk_size:
        raise ConfigError(f"policy.num_action_chunks: {file.parent} was trained on chunks of {config.chunk_size}")
    if settings.num_images_in_input > len(_VIEWS):
        raise ConfigError(
            f"policy.num_images_in_input is {settings.num_images_in_input}, {file.parent} has the cameras "
            f"{', '.join(_VIEWS)}: set it to at most {len(_VIEWS)}"
        )
    if settings.ignored_inputs:
        raise ConfigError(f"policy.ignored_inputs: {file} names no inputs; leave the list out")
    config.check_numbers(file, actions=actions, proprio_size=proprio_size)


def _encoder(
    tokenizer_path: str, longest: int | None, network: Pi0Network, *, clean: bool
) -> Callable[[str], list[int]]:
    """From what the language model reads to ids; `clean`: instructions in one line without underscores."""
    tokenizer = read_tokenizer(tokenizer_path)

    def encode(text: str) -> list[int]:
        if network.prompt is None:
            text = cleaned(text) if clean else text
            text = text if text.endswith("\n") else f"{text}\n"
        ids = [int(i) for i in tokenizer(text, truncation=longest is not None, max_length=longest).input_ids]
        return ids if tokenizer.bos_token_id in (None, *ids[:1]) else [int(tokenizer.bos_token_id), *ids][:longest]

    return encode


def _renamed(name: str) -> str:
    """The name of a published weight in `Pi0Network`."""
    old = next((prefix for prefix in _NAMES if name.startswith(prefix)), "")
    return _NAMES.get(old, "") + name.removeprefix(old)
