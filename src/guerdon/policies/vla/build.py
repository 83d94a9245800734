"""`build_vla`: from the `policy` section to a vision-language-action model.

policy = build_vla(settings, action_space, heads=("env",), proprioception_size=4)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.devices import resolve_device
from guerdon.compute.sharding import Shards
from guerdon.errors import CheckpointError, ConfigError
from guerdon.plan.stages import loaded
from guerdon.policies.pretrained.deferred import deferred
from guerdon.policies.vla.policy import (
    VLAPolicy,
    bounds_as_statistics,
    computes_in_bf16,
    hashed_words,
    quantize,
    sharding,
)
from guerdon.policies.vla.prismatic import PrismaticNetwork
from guerdon.policies.vla.published import Published, config_of, is_openpi
from guerdon.policies.vla.smolvla import ExpertSize, SmolVLANetwork
from guerdon.policies.vla.vision import ConvTower, DinoSiglipTowers, EfficientNetTower, ViTSize
from guerdon.settings.vla_policy import TinyVLASettings, VLAPolicySettings

# ---------------------------------------------------------------------------------------------------------------------
# Small vision-language-action networks made in code, with the interface of the large ones: seconds on a CPU.
#
# They are the networks of the published models at another size, and may look through convolutions, which learn from
# far fewer pictures than a vision transformer.
#
#     network = tiny_token_network(TinyVLASettings(), proprio_size=4)
# ---------------------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------------


OPENPI = "openpi"
READERS = {
    "openvla": (("token", "regression"), "guerdon.policies.vla.published:read_openvla"),
    "smolvla": (("flow",), "guerdon.policies.vla.published:read_smolvla"),
    "pi0": (("flow",), "guerdon.policies.vla.published_pi0:read_pi0"),
    "pi05": (("flow",), "guerdon.policies.vla.published_pi0:read_pi0"),
    OPENPI: (("flow",), "guerdon.policies.vla.published_pi0:read_pi0"),
}
"""By the kind in a checkpoint's `config.json`: the families that it may have, and what reads it."""


def build_vla(
    settings: VLAPolicySettings, action_space: gymnasium.Space, *, heads: Sequence[str],
    auxiliary: Sequence[str] = (), proprioception_size: int = 0, other_data: bool = False,
) -> VLAPolicy:  # fmt: skip
    """A fresh policy, with weights from its checkpoint or drawn from torch's generator.

    Args:
        settings: the `policy` section.
        action_space: a Box.
        heads: names of the value heads.
        auxiliary: names of the auxiliary heads.
        proprioception_size: measurements that the world gives; 0: it does not say which they are.
        other_data: statistics, joints and cameras of the checkpoint may be those of another data set: the policy is
            cloned, or what was cloned is loaded into it. So it is where `checkpoint` is set.

    Raises:
        ConfigError: the settings do not fit the world or the checkpoint.
        CheckpointError: the checkpoint cannot be read, or is not of this kind.
        MissingDependencyError: adapters, 4 bits or a vision tower need a package that is not installed.
    """
    if settings.use_proprio and not proprioception_size:
        raise ConfigError.about(
            "policy.use_proprio",
            ": this environment does not say which of its observation is proprioception; give it an "
            "attribute `proprioception` with the indices, or set use_proprio to false",
        )
    device = resolve_device(settings.device)
    distributed.check_device(device)
    proprio = proprioception_size if settings.use_proprio else 0
    actions = int(np.prod(action_space.shape or ()))
    if settings.vla_path is not None:
        other = other_data or settings.checkpoint is not None
        network, encode, statistics = _reader(settings)(
            settings, actions=actions, proprio_size=proprio, other_data=other
        )
    else:
        assert settings.tiny is not None
        encode, statistics = hashed_words(settings.tiny.words), bounds_as_statistics(action_space)
        network = _tiny_network(settings, settings.tiny, actions, proprio)
    family: type[VLAPolicy] = loaded(settings.decoding.policy)
    bf16 = computes_in_bf16(settings, device)
    if settings.use_quantization:
        _check_quantization(device)
        quantize(network, family.heads_left_alone, torch.bfloat16 if bf16 else torch.float32)
    policy = family(settings, network, encode, statistics, heads, auxiliary)
    if policy.shards is not None:  # its parts are where they are to be
        return policy.shards.with_rest_on(policy, device)
    if settings.vla_path is not None and bf16:
        for parameter in policy.parameters():
            if not parameter.requires_grad:  # it is read from the checkpoint again, never stored
                parameter.data = parameter.data.bfloat16()
    return policy.to(device)


def _tiny_network(settings: VLAPolicySettings, tiny: TinyVLASettings, actions: int, proprio_size: int) -> nn.Module:
    """A small network of the family with fresh weights, in shards where several processes learn."""
    make: Callable[[], PrismaticNetwork | SmolVLANetwork]
    if settings.family == "flow":
        make = partial(tiny_flow_network, tiny, actions, proprio_size)
    else:
        numbers = actions if settings.family == "regression" else 0
        make = partial(tiny_token_network, tiny, proprio_size, numbers)
    if distributed.peers() == 1:
        return make()
    network, weights = deferred(make)
    network.shards = Shards(network, weights=weights, **sharding(settings))  # type: ignore[assignment]
    return network


def _check_quantization(device: torch.device) -> None:
    """Refuse weights of 4 bits where they cannot be."""
    if distributed.peers() > 1:
        raise ConfigError.about("policy.use_quantization", ": weights of 4 bits cannot be sharded; leave it out")
    if device.type != "cuda":
        raise ConfigError.about(
            "policy.use_quantization", f"needs a GPU, and policy.device is {device} here; leave it out"
        )


def _reader(settings: VLAPolicySettings) -> Callable[..., Published]:
    """What reads the checkpoint of `vla_path`."""
    folder = Path(str(settings.vla_path))
    config = config_of(settings)
    kind = OPENPI if is_openpi(config) else str(config.get("model_type") or config.get("type"))
    if kind not in READERS:
        raise CheckpointError(f"{folder} is a checkpoint of {kind!r}; known are {', '.join(READERS)}")
    families, reader = READERS[kind]
    if settings.family not in families:
        raise ConfigError(
            f"{folder} is a checkpoint of {kind}: set policy.family to {' or '.join(families)}", key="policy.family"
        )
    read: Callable[..., Published] = loaded(reader)
    return read
