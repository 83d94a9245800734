"""`build_vla`: from the `policy` section to a vision-language-action model.

policy = build_vla(settings, action_space, heads=("env",), proprioception_size=4)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch

from guerdon.compute import distributed
from guerdon.compute.devices import resolve_device
from guerdon.compute.sharding import Shards
from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.pretrained.deferred import deferred
from guerdon.policies.vla.flow import FlowVLA
from guerdon.policies.vla.policy import (
    VLAPolicy,
    bounds_as_statistics,
    computes_in_bf16,
    hashed_words,
    quantize,
    sharding,
)
from guerdon.policies.vla.prismatic import PrismaticNetwork
from guerdon.policies.vla.published import Published, read_config, read_openvla, read_smolvla
from guerdon.policies.vla.published_pi0 import OPENPI, is_openpi, read_pi0
from guerdon.policies.vla.regression import RegressionVLA
from guerdon.policies.vla.smolvla import SmolVLANetwork
from guerdon.policies.vla.tiny import tiny_flow_network, tiny_token_network
from guerdon.policies.vla.token import TokenVLA
from guerdon.settings.vla_policy import VLAPolicySettings

FAMILIES: dict[str, type[VLAPolicy]] = {"token": TokenVLA, "flow": FlowVLA, "regression": RegressionVLA}
READERS: dict[str, tuple[tuple[str, ...], Callable[..., Published]]] = {
    "openvla": (("token", "regression"), read_openvla),
    "smolvla": (("flow",), read_smolvla),
    "pi0": (("flow",), read_pi0),
    "pi05": (("flow",), read_pi0),
    OPENPI: (("flow",), read_pi0),
}
"""By the kind in a checkpoint's `config.json`: the families that it may have, and what reads it."""


def build_vla(
    settings: VLAPolicySettings, action_space: gymnasium.Space, *, heads: Sequence[str],
    auxiliary: Sequence[str] = (), proprioception_size: int = 0,
) -> VLAPolicy:  # fmt: skip
    """A fresh policy, with weights from its checkpoint or drawn from torch's generator.

    Args:
        settings: the `policy` section.
        action_space: a Box.
        heads: names of the value heads.
        auxiliary: names of the auxiliary heads.
        proprioception_size: measurements that the world gives; 0: it does not say which they are.

    Raises:
        ConfigError: the settings do not fit the world or the checkpoint.
        CheckpointError: the checkpoint cannot be read, or is not of this kind.
        MissingDependencyError: adapters, 4 bits or a vision tower need a package that is not installed.
    """
    if settings.use_proprio and not proprioception_size:
        raise ConfigError(
            "policy.use_proprio: this environment does not say which of its observation is proprioception; give it an "
            "attribute `proprioception` with the indices, or set use_proprio to false"
        )
    device = resolve_device(settings.device)
    distributed.check_device(device)
    proprio = proprioception_size if settings.use_proprio else 0
    actions = int(np.prod(action_space.shape or ()))
    if settings.vla_path is not None:
        network, encode, statistics = _reader(settings)(settings, actions=actions, proprio_size=proprio)
    else:
        assert settings.tiny is not None
        encode, statistics = hashed_words(settings.tiny.words), bounds_as_statistics(action_space)
        make: Callable[[], PrismaticNetwork | SmolVLANetwork]
        if settings.family == "flow":
            make = partial(tiny_flow_network, settings.tiny, actions, proprio)
        else:
            numbers = actions if settings.family == "regression" else 0
            make = partial(tiny_token_network, settings.tiny, proprio, numbers)
        if distributed.peers() == 1:
            network = make()
        else:
            network, weights = deferred(make)
            network.shards = Shards(network, weights=weights, **sharding(settings))  # type: ignore[assignment]
    family = FAMILIES[settings.family]
    bf16 = computes_in_bf16(settings, device)
    if settings.use_quantization:
        if distributed.peers() > 1:
            raise ConfigError("policy.use_quantization: weights of 4 bits cannot be sharded; leave it out")
        if device.type != "cuda":
            raise ConfigError(f"policy.use_quantization needs a GPU, and policy.device is {device} here; leave it out")
        quantize(network, family.heads_left_alone, torch.bfloat16 if bf16 else torch.float32)
    policy = family(settings, network, encode, statistics, heads, auxiliary)
    if policy.shards is not None:  # its parts are where they are to be
        return policy.shards.with_rest_on(policy, device)
    if settings.vla_path is not None and bf16:
        for parameter in policy.parameters():
            if not parameter.requires_grad:  # it is read from the checkpoint again, never stored
                parameter.data = parameter.data.bfloat16()
    return policy.to(device)


def _reader(settings: VLAPolicySettings) -> Callable[..., Published]:
    """What reads the checkpoint of `vla_path`."""
    folder = Path(str(settings.vla_path))
    config = read_config(folder)
    kind = OPENPI if is_openpi(config) else str(config.get("model_type") or config.get("type"))
    if kind not in READERS:
        raise CheckpointError(f"{folder} is a checkpoint of {kind!r}; known are {', '.join(READERS)}")
    families, reader = READERS[kind]
    if settings.family not in families:
        raise ConfigError(f"{folder} is a checkpoint of {kind}: set policy.family to {' or '.join(families)}")
    return reader
