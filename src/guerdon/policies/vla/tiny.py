"""Small vision-language-action networks made in code, with the interface of the large ones: seconds on a CPU.

They are the networks of the published models at another size, and may look through convolutions, which learn from far
fewer pictures than a vision transformer.

    network = tiny_token_network(TinyVLASettings(), proprio_size=4)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from guerdon.policies.vla.prismatic import PrismaticNetwork
from guerdon.policies.vla.smolvla import ExpertSize, SmolVLANetwork
from guerdon.policies.vla.vision import ConvTower, DinoSiglipTowers, EfficientNetTower, ViTSize
from guerdon.settings.vla_policy import TinyVLASettings

_PATCH = 8  # pixels of the small vision transformers


def tiny_tower(tiny: TinyVLASettings) -> nn.Module:
    """What a small model looks with."""
    if tiny.vision == "cnn":
        return ConvTower(tiny.image_size)
    if tiny.vision == "efficientnet_lite0":
        return EfficientNetTower()
    first = ViTSize(tiny.image_size, _PATCH, width=32, depth=3, heads=4, mlp=64, prefix=5, scaled=True)
    second = ViTSize(tiny.image_size, _PATCH, width=32, depth=3, heads=4, mlp=64)
    return DinoSiglipTowers((first, second))


def tiny_llama(tiny: TinyVLASettings, vocabulary: int) -> Any:
    """The configuration of a small Llama."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=tiny.hidden_size, intermediate_size=2 * tiny.hidden_size,
        num_hidden_layers=tiny.layers, num_attention_heads=tiny.heads, num_key_value_heads=tiny.heads,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def tiny_token_network(tiny: TinyVLASettings, proprio_size: int, numbers: int = 0) -> PrismaticNetwork:
    """A small network of action tokens, or with an `L1Head` for so many numbers of an action."""
    vocabulary = tiny.words + tiny.n_action_bins
    return PrismaticNetwork(
        tiny_tower(tiny), tiny_llama(tiny, vocabulary), vocabulary=vocabulary, bins=tiny.n_action_bins,
        image_size=tiny.image_size, proprio_size=proprio_size, fused=tiny.vision == "vit",
        numbers=numbers,
    )  # fmt: skip


def tiny_flow_network(tiny: TinyVLASettings, actions: int, proprio_size: int) -> SmolVLANetwork:
    """A small network with an action expert."""
    size = ExpertSize(max_state_dim=max(proprio_size, 1), max_action_dim=actions, expert_width_multiplier=1.0)
    see = _Projected(tiny_tower(tiny), tiny.hidden_size)
    config = tiny_llama(tiny, tiny.words)
    return SmolVLANetwork(see, config, size, image_size=tiny.image_size, proprio_size=proprio_size)


class _Projected(nn.Module):
    """Features of a tower in the width of a language model."""

    def __init__(self, tower: nn.Module, width: int) -> None:
        super().__init__()
        self.tower = tower
        self.projector = nn.Linear(int(tower.width), width)  # type: ignore[arg-type]

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.projector(self.tower(pixels))
        return found
