"""The network of SmolVLA (Shukor et al. 2025, 2506.01844): a language model that reads, an action expert that acts.

The prefix is pictures of each camera, instruction, and one token of the measured state, which alone sees itself. Layer
by layer the action expert attends to the keys and values of the prefix: in every `self_attn_every_n_layers`-th layer
together with its own, of the actions up to each action, elsewhere to the prefix alone, through projections of its own.
So an action never depends on the ones after it, and the first C actions of a longer chunk are those of a chunk of C.

    network = SmolVLANetwork(see, text_config, sizes, actions=4, proprio_size=4)
    prefix = network.read(pixels_N_3_H_W, inputs)
    velocity_N_C_A, hidden_N_C_h = network.velocity(prefix, x_N_C_A, time_N)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from guerdon.policies.vla.policy import VLAInputs

_WAVELENGTH = 10_000.0  # of the rotary positions, whatever the language model's own is


@dataclass(frozen=True)
class ExpertSize:
    """The action expert and what surrounds it, under the names of SmolVLA's configuration.

    Attributes:
        max_state_dim, max_action_dim: measurements and actions are padded to so many numbers with zeros.
        expert_width_multiplier: width of the expert as a share of the language model's.
        self_attn_every_n_layers: of the expert; the layers between attend to the prefix alone. 0: none does.
        num_expert_layers: of the expert; 0: as many as the language model has.
        min_period, max_period: of the sines and cosines that tell the time.
    """

    max_state_dim: int = 32
    max_action_dim: int = 32
    expert_width_multiplier: float = 0.75
    self_attn_every_n_layers: int = 2
    num_expert_layers: int = 0
    min_period: float = 4e-3
    max_period: float = 4.0


@dataclass(frozen=True, eq=False)
class Prefix:
    """What the expert attends to.

    Attributes:
        keys, values: per layer (N, S, heads, size), keys with their positions.
        mask: (N, S) bool.
        hidden: (N, h) mean over what is there.
        state: (N, 1, h) token of the measured state, of a network whose expert reads it.
    """

    keys: list[Tensor]
    values: list[Tensor]
    mask: Tensor
    hidden: Tensor
    state: Tensor | None = None


class ExpertNetwork(nn.Module):
    """What networks with an action expert share: attention over keys and values of the prefix, and the time.

    Attributes:
        width: of the hidden states of the prefix.
        expert_width: of the hidden states of the expert.
        max_action_dim: numbers of an action, padding included.
        horizon: actions of a chunk that attend to each other, so that all are denoised; 0: any number, each action
            depends on those before it alone.
        text: the language model, which reads the prefix.
        prompt: what the language model reads of an instruction and the normalised state (P,); None: the instruction.
        drawn: names of projections that were not in the checkpoint, and are trained whatever else is.
    """

    width: int
    expert_width: int
    max_action_dim: int
    horizon = 0
    prompt: Callable[[str, np.ndarray], str] | None = None
    drawn: tuple[str, ...] = ()
    head_dim: int
    groups: int
    size: ExpertSize
    text: Any

    def read(self, pixels: Tensor, inputs: VLAInputs) -> Prefix:
        """Run the language model over the prefix; pixels are (N * cameras, 3, H, W) in [0, 1]."""
        raise NotImplementedError

    def velocity(self, prefix: Prefix, x_N_C_A: Tensor, time_N: Tensor) -> tuple[Tensor, Tensor]:
        """The velocity (N, C, A) of noisy actions at times in [0, 1], and the expert's hidden states (N, C, h)."""
        raise NotImplementedError

    def _times(self, time_N: Tensor) -> Tensor:
        """(N, expert_width) sines and cosines of times."""
        size = self.size
        periods = size.min_period * (size.max_period / size.min_period) ** torch.linspace(
            0, 1, self.expert_width // 2, dtype=torch.float64, device=time_N.device
        )
        angles = time_N.double()[:, None] * (2 * math.pi / periods)
        return torch.cat([angles.sin(), angles.cos()], dim=-1).to(time_N.dtype)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)

    def _qkv(self, layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention = layer.self_attn
        return self._heads(attention.q_proj(x)), self._heads(attention.k_proj(x)), self._heads(attention.v_proj(x))

    def _computed_within(self, *models: Any) -> None:
        """Let the layers of these models carry out a function that they are called with: `layer(compute, x)`.

        Attention of the prefix and of the expert is not that of the layers; what is attached to their calls, such as
        the gathering of their weights, takes place nevertheless.
        """
        for model in models:
            for layer in model.layers:
                layer.forward = partial(_forward, layer.forward)

    def _prefix(self, x: Tensor, mask_N_S: Tensor, attend_N_S_S: Tensor, state: Tensor | None = None) -> Prefix:
        """What the language model makes of embeddings (N, S, h), of which each attends to some."""
        turn = rotation(mask_N_S.cumsum(1) - 1, self.head_dim)
        keys, values = [], []

        def layered(layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = self._qkv(layer, layer.input_layernorm(x))
            q, k = turned(q, turn), turned(k, turn)
            return self._after(layer, x, self._attention(q, k, v, attend_N_S_S)), k, v

        for layer in self.text.layers:
            x, k, v = layer(partial(layered, layer), x)
            keys.append(k)
            values.append(v)
        x = self.text.norm(x).float() * mask_N_S[..., None]
        return Prefix(keys, values, mask_N_S, x.sum(1) / mask_N_S.sum(1, keepdim=True), state)

    def _after(self, layer: Any, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + layer.self_attn.o_proj(mixed)
        found: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return found

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, attend_N_Q_S: Tensor) -> Tensor:
        """(N, Q, heads * size) of (N, ., heads, size)."""
        k, v = (x.repeat_interleave(self.groups, dim=2).to(q.dtype) for x in (k, v))
        mixed = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=attend_N_Q_S[:, None]
        )
        return mixed.transpose(1, 2).flatten(2)


def _forward(own: Callable[..., Any], given: Any, *tensors: Any, **options: Any) -> Any:
    return own(given, *tensors, **options) if isinstance(given, Tensor) else given(*tensors)


class SmolVLANetwork(ExpertNetwork):
    """Pictures, an instruction and proprioception to the velocity of noisy actions.

    Args:
        see: (M, 3, H, W) pictures in [0, 1] to (M, P, h) embeddings of the language model's width.
        text_config: of transformers' Llama.
        size: of the expert.
        image_size: height and width of a picture, in pixels.
        proprio_size: measurements; 0: there is no token of the state.
        padded: pictures keep their ratio, with black above and left of them.
    """

    def __init__(
        self, see: nn.Module, text_config: Any, size: ExpertSize, *, image_size: int, proprio_size: int = 0,
        padded: bool = False,
    ) -> None:  # fmt: skip
        from transformers import LlamaModel

        super().__init__()
        self.size, self.image_size, self.proprio_size, self.padded = size, image_size, proprio_size, padded
        self.max_action_dim = size.max_action_dim
        self.see = see
        self.text = LlamaModel(text_config)
        self.width = int(text_config.hidden_size)
        expert = copy.deepcopy(text_config)
        self.expert_width = expert.hidden_size = int(self.width * size.expert_width_multiplier)
        expert.intermediate_size = _feed_forward(expert.hidden_size)
        expert.num_hidden_layers = size.num_expert_layers or text_config.num_hidden_layers
        if text_config.num_hidden_layers % expert.num_hidden_layers:
            raise ValueError("the language model's layers must be a multiple of the expert's")
        self._every = text_config.num_hidden_layers // expert.num_hidden_layers
        self.expert = LlamaModel(expert)
        del self.expert.embed_tokens
        inside = expert.num_key_value_heads * expert.head_dim
        for i, layer in enumerate(self.expert.layers):
            if not self._attends_itself(i):
                layer.self_attn.k_proj = nn.Linear(inside, inside, bias=expert.attention_bias)
                layer.self_attn.v_proj = nn.Linear(inside, inside, bias=expert.attention_bias)
        self.groups = expert.num_attention_heads // expert.num_key_value_heads
        self.head_dim = int(expert.head_dim)
        self._computed_within(self.text, self.expert)
        self.state_proj = nn.Linear(size.max_state_dim, self.width) if proprio_size else None
        self.action_in_proj = nn.Linear(size.max_action_dim, self.expert_width)
        self.action_out_proj = nn.Linear(self.expert_width, size.max_action_dim)
        self.action_time_mlp_in = nn.Linear(2 * self.expert_width, self.expert_width)
        self.action_time_mlp_out = nn.Linear(self.expert_width, self.expert_width)

    def read(self, pixels: Tensor, inputs: VLAInputs) -> Prefix:
        """Run the language model over the prefix; pixels are (N * cameras, 3, H, W) in [0, 1]."""
        x = self.see(pixels).reshape(len(inputs), -1, self.width) * math.sqrt(self.width)
        words = self.text.get_input_embeddings()(inputs.ids) * math.sqrt(self.width)
        parts, mask = [x, words], [inputs.mask.new_ones(x.shape[:2]), inputs.mask]
        if self.state_proj is not None:
            padded = functional.pad(inputs.proprio, (0, self.size.max_state_dim - inputs.proprio.shape[1]))
            parts.append(self.state_proj(padded)[:, None])
            mask.append(inputs.mask.new_ones(len(padded), 1))
        x, mask_N_S = torch.cat([part.to(x.dtype) for part in parts], dim=1), torch.cat(mask, dim=1)
        attend = mask_N_S[:, None, :].expand(-1, mask_N_S.shape[1], -1).clone()
        if self.state_proj is not None:
            attend[:, :-1, -1] = False
        return self._prefix(x, mask_N_S, attend)

    def velocity(self, prefix: Prefix, x_N_C_A: Tensor, time_N: Tensor) -> tuple[Tensor, Tensor]:
        """The velocity (N, C, A) of noisy actions at times in [0, 1], and the expert's hidden states (N, C, h)."""
        n, count, _ = x_N_C_A.shape
        times = self._times(time_N)[:, None].expand(-1, count, -1)
        x = self.action_time_mlp_in(torch.cat([self.action_in_proj(x_N_C_A), times], dim=-1))
        x = self.action_time_mlp_out(functional.silu(x))
        before = prefix.mask[:, None, :].expand(-1, count, -1)
        earlier = torch.ones(count, count, dtype=torch.bool, device=x.device).tril().expand(n, -1, -1)
        steps = torch.arange(count, device=x.device).expand(n, -1)
        from_start, after = (
            rotation(steps, self.head_dim), rotation(steps + prefix.mask.sum(1, keepdim=True), self.head_dim)
        )  # fmt: skip

        def layered(i: int, layer: Any, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            normed = layer.input_layernorm(x)
            if self._attends_itself(i):
                q, k, v = self._qkv(layer, normed)
                q, k = turned(q, after), turned(k, after)
                k, v, attend = torch.cat([keys, k], 1), torch.cat([values, v], 1), torch.cat([before, earlier], 2)
            else:
                q = turned(self._heads(layer.self_attn.q_proj(normed)), from_start)
                k, v, attend = (
                    self._heads(layer.self_attn.k_proj(keys.flatten(2))),
                    self._heads(layer.self_attn.v_proj(values.flatten(2))), before,
                )  # fmt: skip
            return self._after(layer, x, self._attention(q, k, v, attend))

        for i, layer in enumerate(self.expert.layers):
            x = layer(partial(layered, i, layer), x, prefix.keys[i * self._every], prefix.values[i * self._every])
        hidden = self.expert.norm(x).float()
        return self.action_out_proj(hidden).float(), hidden

    def _attends_itself(self, layer: int) -> bool:
        every = self.size.self_attn_every_n_layers
        return every > 0 and layer * self._every % every == 0


def _feed_forward(width: int) -> int:
    """Width inside the expert's feed-forward layers: 8/3 of its own, rounded up to a multiple of 256."""
    return 256 * math.ceil(4 * int(2 * width / 3) / 256)


def rotation(positions_N_S: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (N, S, 1, size / 2) of rotary positions."""
    exponents = torch.arange(size // 2, dtype=torch.float32, device=positions_N_S.device) * 2 / size
    angles = positions_N_S[..., None].float() / _WAVELENGTH**exponents
    return angles.cos()[..., None, :], angles.sin()[..., None, :]


def turned(x_N_S_h_d: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys (N, S, heads, size) at their rotary positions."""
    cos, sin = by
    first, second = x_N_S_h_d.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x_N_S_h_d.dtype)
