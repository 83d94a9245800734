"""The network of pi0 (Black et al. 2024, 2410.24164) and pi0.5 (2504.16054): PaliGemma reads, a Gemma expert acts.

The prefix is pictures of each camera and the instruction, where everything attends to everything. Layer by layer the
expert attends to the keys and values of the prefix and of its own tokens. Those of pi0 are the measured state, which
sees no action, and the noisy actions, each joined with the time. Those of pi0.5 are the noisy actions alone: the time
scales, shifts and gates what its norms give (AdaRMS), and the state is part of the instruction, as whole numbers.
Actions attend to each other, so the whole chunk is denoised, however many of its actions are executed.

    network = Pi0Network(siglip_config, gemma_config, expert_config, sizes, horizon=50, image_size=224, proprio_size=8)
    prefix = network.read(pixels_N_3_H_W, inputs)
    velocity_N_C_A, hidden_N_C_h = network.velocity(prefix, x_N_C_A, time_N)
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from guerdon.policies.vla.policy import VLAInputs
from guerdon.policies.vla.smolvla import ExpertNetwork, ExpertSize, Prefix, rotation, turned

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
