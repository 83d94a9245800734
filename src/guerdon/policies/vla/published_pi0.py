"""Checkpoints of pi0 and pi0.5 in the layouts of LeRobot and of openpi (converted to PyTorch by its own script).

network, encode, statistics = read_pi0(settings, actions=7, proprio_size=8)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.policies.vla.checkpoint_config import OpenPiConfig, Pi0Config, Pi05Config, checked
from guerdon.policies.vla.policy import VLAInputs
from guerdon.policies.vla.published import (
    Published,
    check_lerobot,
    config_of,
    drawn_anew,
    fill_exactly,
    folders,
    is_openpi,
    published_weights,
    without_weights,
)
from guerdon.policies.vla.smolvla import ExpertNetwork, ExpertSize, Prefix, rotation, turned
from guerdon.policies.vla.statistics import instruction_length, lerobot_statistics, openpi_statistics, unmeasured
from guerdon.settings.vla_policy import VLAPolicySettings

# ---------------------------------------------------------------------------------------------------------------------
# The network of pi0 (Black et al. 2024, 2410.24164) and pi0.5 (2504.16054): PaliGemma reads, a Gemma expert acts.
#
# The prefix is pictures of each camera and the instruction, where everything attends to everything. Layer by layer the
# expert attends to the keys and values of the prefix and of its own tokens. Those of pi0 are the measured state, which
# sees no action, and the noisy actions, each joined with the time. Those of pi0.5 are the noisy actions alone: the
# time scales, shifts and gates what its norms give (AdaRMS), and the state is part of the instruction, as whole
# numbers. Actions attend to each other, so the whole chunk is denoised, however many of its actions are executed.
#
#     network = Pi0Network(siglip_config, gemma_config, expert_config, sizes, horizon=50, image_size=224,
#     proprio_size=8)
#     prefix = network.read(pixels_N_3_H_W, inputs)
#     velocity_N_C_A, hidden_N_C_h = network.velocity(prefix, x_N_C_A, time_N)
# ---------------------------------------------------------------------------------------------------------------------


_BINS = np.linspace(-1, 1, 257)[:-1]  # lower edges of the 256 whole numbers that pi0.5 reads a state as


def cleaned(task: str) -> str:
    """An instruction in one line without underscores, as openpi writes all and LeRobot those of pi0.5."""
    return task.strip().replace("_", " ").replace("\n", " ")


def state_prompt(task: str, state_P: np.ndarray) -> str:
    """What pi0.5 reads: the instruction, and the normalised state as numbers from 0 to 255 (-1 below -1)."""
    numbers = " ".join(map(str, np.digitize(state_P, _BINS) - 1))
    return f"Task: {cleaned(task)}, State: {numbers};\nAction: "


class AdaptiveNorm(nn.Module):
    """A root mean square norm whose scale, shift and gate are linear in a condition.

    Args:
        width: of what is normalised, and of the condition.
        eps: added to the mean square.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.dense, self.eps = nn.Linear(width, 3 * width), eps

    def forward(self, x_N_S_h: Tensor, condition_N_h: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised (N, S, h), and the gate (N, 1, h) of what is computed from it."""
        scale, shift, gate = self.dense(condition_N_h)[:, None].float().chunk(3, dim=-1)
        x = functional.rms_norm(x_N_S_h.float(), x_N_S_h.shape[-1:], eps=self.eps)
        return (x * (1 + scale) + shift).to(x_N_S_h.dtype), gate.to(x_N_S_h.dtype)


class Siglip(nn.Module):
    """PaliGemma's vision transformer and the layer that projects its features to the language model's width."""

    def __init__(self, config: Any, width: int) -> None:
        from transformers import SiglipVisionModel

        super().__init__()
        tower = SiglipVisionModel(config)
        self.tower = getattr(tower, "vision_model", tower)  # of older versions of transformers
        self.projector = nn.Linear(config.hidden_size, width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(M, P, h) of pictures (M, 3, H, W) in [0, 1]."""
        found: Tensor = self.projector(self.tower(pixel_values=pixels * 2 - 1).last_hidden_state)
        return found


class Pi0Network(ExpertNetwork):
    """Pictures, an instruction and proprioception to the velocity of noisy actions.

    Args:
        vision: configuration of transformers' SigLIP.
        text: of transformers' Gemma, which reads.
        expert: of the Gemma that acts, with as many layers and heads.
        size: numbers of states and actions with padding, and periods of the time.
        horizon: actions of a chunk.
        image_size: height and width of a picture, in pixels.
        proprio_size: measurements.
        adaptive: pi0.5 instead of pi0.
    """

    padded = "centre"

    def __init__(
        self, vision: Any, text: Any, expert: Any, size: ExpertSize, *, horizon: int, image_size: int,
        proprio_size: int, adaptive: bool,
    ) -> None:  # fmt: skip
        from transformers import GemmaModel

        super().__init__()
        self.size, self.horizon, self.image_size, self.proprio_size = size, horizon, image_size, proprio_size
        self.max_action_dim, self.adaptive = size.max_action_dim, adaptive
        self.width, self.expert_width = int(text.hidden_size), int(expert.hidden_size)
        self.head_dim, self.groups = int(text.head_dim), text.num_attention_heads // text.num_key_value_heads
        self.see, self.text, self.expert = Siglip(vision, self.width), GemmaModel(text), GemmaModel(expert)
        del self.expert.embed_tokens
        self._computed_within(self.text, self.expert)
        wide = self.expert_width
        if adaptive:
            for layer in self.expert.layers:
                layer.input_layernorm = AdaptiveNorm(wide, expert.rms_norm_eps)
                layer.post_attention_layernorm = AdaptiveNorm(wide, expert.rms_norm_eps)
            self.expert.norm = AdaptiveNorm(wide, expert.rms_norm_eps)
        else:
            self.state_proj = nn.Linear(size.max_state_dim, wide)
        self.action_in_proj, self.action_out_proj = (
            nn.Linear(size.max_action_dim, wide), nn.Linear(wide, size.max_action_dim)
        )  # fmt: skip
        self.time_mlp_in, self.time_mlp_out = nn.Linear(wide if adaptive else 2 * wide, wide), nn.Linear(wide, wide)

    def read(self, pixels: Tensor, inputs: VLAInputs) -> Prefix:
        """Run the language model over the prefix; pixels are (N * cameras, 3, H, W) in [0, 1]."""
        x = self.see(pixels).reshape(len(inputs), -1, self.width)
        words = self.text.get_input_embeddings()(inputs.ids)  # scaled by transformers' Gemma
        mask_N_S = torch.cat([inputs.mask.new_ones(x.shape[:2]), inputs.mask], dim=1)
        x = torch.cat([x, words.to(x.dtype)], dim=1)
        attend = mask_N_S[:, None, :].expand(-1, mask_N_S.shape[1], -1)
        state = None
        if not self.adaptive:
            padded = functional.pad(inputs.proprio, (0, self.size.max_state_dim - inputs.proprio.shape[1]))
            state = self.state_proj(padded)[:, None]
        return self._prefix(x, mask_N_S, attend, state)

    def velocity(self, prefix: Prefix, x_N_C_A: Tensor, time_N: Tensor) -> tuple[Tensor, Tensor]:
        """The velocity (N, C, A) of noisy actions at times in [0, 1], and the expert's hidden states (N, C, h)."""
        n, count, _ = x_N_C_A.shape
        x, times = self.action_in_proj(x_N_C_A), self._times(time_N)
        condition = None
        if prefix.state is None:
            condition = functional.silu(self.time_mlp_out(functional.silu(self.time_mlp_in(times))))
        else:
            joined = torch.cat([x, times[:, None].expand(-1, count, -1).to(x.dtype)], dim=-1)
            x = self.time_mlp_out(functional.silu(self.time_mlp_in(joined)))
            x = torch.cat([prefix.state.to(x.dtype), x], dim=1)
        length = x.shape[1]
        attend = torch.cat([prefix.mask[:, None].expand(-1, length, -1), prefix.mask.new_ones(n, length, length)], 2)
        attend[:, : length - count, -count:] = False
        turn = rotation(torch.arange(length, device=x.device) + prefix.mask.sum(1, keepdim=True), self.head_dim)

        def layered(layer: Any, x: Tensor, keys: Tensor, values: Tensor, condition: Tensor | None) -> Tensor:
            normed, gate = _normed(layer.input_layernorm, x, condition)
            q, k, v = self._qkv(layer, normed)
            k, v = torch.cat([keys, turned(k, turn)], dim=1), torch.cat([values, v], dim=1)
            x = x + gate * layer.self_attn.o_proj(self._attention(turned(q, turn), k, v, attend))
            normed, gate = _normed(layer.post_attention_layernorm, x, condition)
            found: Tensor = x + gate * layer.mlp(normed)
            return found

        for layer, keys, values in zip(self.expert.layers, prefix.keys, prefix.values, strict=True):
            x = layer(partial(layered, layer), x, keys, values, condition)
        hidden = _normed(self.expert.norm, x, condition)[0][:, -count:].float()
        return self.action_out_proj(hidden).float(), hidden


def _normed(norm: nn.Module, x: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor | float]:
    """What a norm makes of hidden states, and the gate of what is computed from it."""
    return (norm(x), 1.0) if condition is None else norm(x, condition)


# ---------------------------------------------------------------------------------------------------------------------


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


def read_pi0(settings: VLAPolicySettings, *, actions: int, proprio_size: int, other_data: bool = False) -> Published:
    """A pi0 or pi0.5 checkpoint as LeRobot writes it, or openpi.

    Args:
        settings: the `policy` section, with `vla_path` and `vlm_path`, the folder of PaliGemma's tokenizer.
        actions: numbers of an action of the environment.
        proprio_size: measurements that the model is to see; 0, with pi0.5 of openpi: the instruction has no state.
        other_data: see `build_vla`.

    Raises:
        CheckpointError: it lacks weights, has others, or is of another kind.
        ConfigError: it does not fit the environment or the settings.
    """
    folder = Path(str(settings.vla_path))
    file, given = folder / "config.json", config_of(settings)
    openpi = is_openpi(given)
    if settings.vlm_path is None:
        raise ConfigError(
            f"{folder} has no tokenizer: put that of {_TOKENIZER} into a folder and set policy.vlm_path",
            key="policy.vlm_path",
        )
    kind: type[Pi0Config] = Pi0Config
    if openpi:  # says which it is by its weights alone
        stored = _weights(settings)
        if _ADAPTIVE in stored:
            kind = Pi05Config
        config = checked(OpenPiConfig, given, file).as_lerobot(kind)
        _check_openpi(config, file, settings, actions=actions, proprio_size=proprio_size)
        mode = config.normalization_mapping["ACTION"]
        if other_data:
            statistics = unmeasured((mode, mode), actions=actions, proprio_size=proprio_size)
        else:
            statistics = openpi_statistics(folder, mode, actions=actions, proprio_size=proprio_size)
    else:
        if given["type"] == "pi05":
            kind = Pi05Config
        config = checked(kind, given, file)
        check_lerobot(config, file, settings, actions=actions, proprio_size=proprio_size, other_data=other_data)
        stored = _weights(settings)
        statistics = lerobot_statistics(
            folders(settings), config, stored, actions=actions, proprio_size=proprio_size, other_data=other_data
        )
    adaptive = isinstance(config, Pi05Config)
    head = f"{_PALIGEMMA}lm_head.weight"
    if _WORDS not in stored:  # they are one tensor, of which a file of safetensors has one name
        if head not in stored:
            raise CheckpointError(f"{folder} does not have the published layout: it lacks {head}")
        stored[_WORDS] = stored[head]
    words = len(stored[_WORDS])
    network = _network(folder, config, words, proprio_size, adaptive=adaptive)
    unused = {head: (words, network.width), f"{_EXPERT}lm_head.weight": (words, network.expert_width)}
    network.drawn = drawn_anew(stored, config.changes(actions, proprio_size), file) if other_data else ()
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
        raise ConfigError(
            f"{file.parent} reads the state of the robot: set policy.use_proprio to true", key="policy.use_proprio"
        )
    if settings.num_action_chunks > config.chunk_size:
        raise ConfigError.about(
            "policy.num_action_chunks", f": {file.parent} was trained on chunks of {config.chunk_size}"
        )
    if settings.num_images_in_input > len(_VIEWS):
        raise ConfigError.about(
            "policy.num_images_in_input",
            f"is {settings.num_images_in_input}, {file.parent} has the cameras "
            f"{', '.join(_VIEWS)}: set it to at most {len(_VIEWS)}",
        )
    if settings.ignored_inputs:
        raise ConfigError.about("policy.ignored_inputs", f": {file} names no inputs; leave the list out")
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


def _weights(settings: VLAPolicySettings) -> dict[str, Tensor]:
    """The published weights by their names in `Pi0Network`."""
    return {_renamed(name.removeprefix("model.")): tensor for name, tensor in published_weights(settings).items()}


def _renamed(name: str) -> str:
    """The name of a published weight in `Pi0Network`."""
    old = next((prefix for prefix in _NAMES if name.startswith(prefix)), "")
    return _NAMES.get(old, "") + name.removeprefix(old)
