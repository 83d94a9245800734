"""`build_vla`: from the `policy` section to a vision-language-action model.

policy = build_vla(settings, action_space, heads=("env",), proprioception_size=4)
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
import torch

from guerdon.errors import ConfigError
from guerdon.policies.vla.flow import FlowVLA
from guerdon.policies.vla.policy import VLAPolicy, bounds_as_statistics, hashed_words
from guerdon.policies.vla.tiny import tiny_flow_network, tiny_token_network
from guerdon.policies.vla.token import TokenVLA
from guerdon.settings.vla_policy import VLAPolicySettings


def build_vla(
    settings: VLAPolicySettings, action_space: gymnasium.Space, *, heads: Sequence[str], proprioception_size: int = 0
) -> VLAPolicy:
    """A fresh policy, with weights from its checkpoint or drawn from torch's generator.

    Args:
        settings: the `policy` section.
        action_space: a Box.
        heads: names of the value heads.
        proprioception_size: measurements that the world gives; 0: it does not say which they are.

    Raises:
        ConfigError: the settings do not fit the world or the checkpoint.
        CheckpointError: the checkpoint cannot be read, or is not of this kind.
        MissingDependencyError: adapters or a vision tower need a package that is not installed.
    """
    if settings.use_proprio and not proprioception_size:
        raise ConfigError(
            "policy.use_proprio: this environment does not say which of its observation is proprioception; give it an "
            "attribute `proprioception` with the indices, or set use_proprio to false"
        )
    proprio = proprioception_size if settings.use_proprio else 0
    assert settings.tiny is not None
    encode, statistics = hashed_words(settings.tiny.words), bounds_as_statistics(action_space)
    policy: VLAPolicy
    if settings.decoding.family == "token":
        policy = TokenVLA(settings, tiny_token_network(settings.tiny, proprio), encode, statistics, heads)
    else:
        actions = int(np.prod(action_space.shape or ()))
        policy = FlowVLA(settings, tiny_flow_network(settings.tiny, actions, proprio), encode, statistics, heads)
    return policy.to("cuda" if torch.cuda.is_available() else "cpu")
