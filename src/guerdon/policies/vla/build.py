"""`build_vla`: from the `policy` section to a vision-language-action model.

policy = build_vla(settings, action_space, heads=("env",), proprioception_size=4)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import gymnasium
import numpy as np
import torch

from guerdon.devices import resolve_device
from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.vla.flow import FlowVLA
from guerdon.policies.vla.policy import VLAPolicy, bounds_as_statistics, computes_in_bf16, hashed_words, quantize
from guerdon.policies.vla.published import Published, read_config, read_openvla, read_smolvla
from guerdon.policies.vla.tiny import tiny_flow_network, tiny_token_network
from guerdon.policies.vla.token import TokenVLA
from guerdon.settings.vla_policy import VLAPolicySettings


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
    proprio = proprioception_size if settings.use_proprio else 0
    actions = int(np.prod(action_space.shape or ()))
    tokens = settings.decoding.family == "token"
    if settings.vla_path is not None:
        network, encode, statistics = _read(settings, tokens)(settings, actions=actions, proprio_size=proprio)
    else:
        assert settings.tiny is not None
        encode, statistics = hashed_words(settings.tiny.words), bounds_as_statistics(action_space)
        network = (
            tiny_token_network(settings.tiny, proprio) if tokens else tiny_flow_network(settings.tiny, actions, proprio)
        )
    family: type[VLAPolicy] = TokenVLA if tokens else FlowVLA
    device = resolve_device(settings.device)
    bf16 = computes_in_bf16(settings, device)
    if settings.use_quantization:
        if device.type != "cuda":
            raise ConfigError(f"policy.use_quantization needs a GPU, and policy.device is {device} here; leave it out")
        quantize(network, family.heads_left_alone, torch.bfloat16 if bf16 else torch.float32)
    policy = family(settings, network, encode, statistics, heads, auxiliary)
    if settings.vla_path is not None and bf16:
        for parameter in policy.parameters():
            if not parameter.requires_grad:  # it is read from the checkpoint again, never stored
                parameter.data = parameter.data.bfloat16()
    return policy.to(device)


def _read(settings: VLAPolicySettings, tokens: bool) -> Callable[..., Published]:
    """What reads the checkpoint of `vla_path`."""
    folder = Path(str(settings.vla_path))
    config = read_config(folder)
    kind = str(config.get("model_type") or config.get("type"))
    readers = {"openvla": (True, read_openvla), "smolvla": (False, read_smolvla)}
    if kind not in readers:
        raise CheckpointError(f"{folder} is a checkpoint of {kind!r}; known are {', '.join(readers)}")
    wanted, reader = readers[kind]
    if wanted != tokens:
        raise ConfigError(f"{folder} is a checkpoint of {kind}: set policy.family to {'token' if wanted else 'flow'}")
    return reader
