"""Actions as discrete tokens: OpenVLA (Kim et al. 2024, 2406.09246) and OpenVLA-OFT (Kim et al. 2025, 2502.19645).

Each number of an action is one of 256 bins between -1 and 1, which are the last 256 tokens of the language model's
vocabulary, so a chunk of C actions with D numbers is C * D tokens. Log-probabilities are over these 256 tokens, not
over the whole vocabulary: nothing else is an action, and sampling takes nothing else. RLinf and SimpleVLA-RL do the
same; OpenVLA's own evaluation takes the most likely token of all, which is another one only where a model prefers a
word to every action.

    tokens = bins_of(np.array([[0.1, -1.0]]), 256)          # [[140, 0]]
    values_of(tokens, 256)                                  # [[0.1, -0.996]]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from guerdon.policies.robots.robot import Action
from guerdon.policies.vla.policy import VLAInputs, VLAPolicy
from guerdon.policies.vla.prismatic import PrismaticNetwork
from guerdon.settings.vla_policy import TokenDecodingSettings, VLAPolicySettings
from guerdon.types import BoolArray, FloatArray, IntArray


def bins_of(normalised: np.ndarray, bins: int) -> IntArray:
    """The bin of each number, 0 to `bins` - 1, as OpenVLA's tokenizer counts them: token = vocabulary - 1 - bin.

    Numbers are cut off at -1 and 1. `bins` edges make one interval less, so the last bin is that of 1 alone.
    """
    edges = np.linspace(-1, 1, bins)
    return np.asarray(np.digitize(np.clip(normalised, -1, 1), edges) - 1, dtype=np.int64)


def values_of(tokens: Tensor, bins: int) -> Tensor:
    """The middle of each bin; that of the last bin is the middle of the interval before it."""
    edges = torch.linspace(-1, 1, bins, dtype=torch.float64)
    centres = ((edges[:-1] + edges[1:]) / 2).float().to(tokens.device)
    return centres[tokens.clamp(max=bins - 2)]


class TokenVLA(VLAPolicy):
    """A model of action tokens.

    Records of decisions are bins (B, C * D), the numbers of the first action first.
    """

    model: PrismaticNetwork
    decoding: TokenDecodingSettings
    clip_proprio = True
    normalization = "QUANTILES"  # `bounds_q99`
    heads_left_alone = ("action_head",)

    def __init__(self, settings: VLAPolicySettings, network: PrismaticNetwork, *rest: Any) -> None:
        super().__init__(settings, network, *rest)
        self.tokens_per_action, self.bins = self.action_size, network.bins

    @torch.no_grad()
    def act(self, observations: np.ndarray, rng: np.random.Generator, *, greedy: bool = False) -> Action:
        """Sampled bins, by Gumbel noise on the logits; greedy: at `temperature_eval`, the most likely ones if 0."""
        inputs = self.inputs(observations).to(self.device)
        temperature = self.decoding.temperature_eval if greedy else self.decoding.temperature

        def pick(logits: Tensor) -> Tensor:
            if not temperature:
                return logits.argmax(-1)
            noise = torch.from_numpy(rng.gumbel(size=tuple(logits.shape)).astype(np.float32)).to(self.device)
            return (logits.float() / temperature + noise).argmax(-1)

        with self.computing():
            if self.decoding.parallel_decoding:
                tokens = pick(self.model.logits(self._hidden(inputs, None)))
            else:
                tokens = self.model.decode(self.pixels(inputs), inputs, self._tokens, pick)
        values = values_of(tokens, self.bins).view(-1, self.chunk, self.action_size)
        return Action(self.executed(values), record=tokens.cpu().numpy())

    def evaluated(self, inputs: VLAInputs, *, entropy: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Log-probabilities (N, C * D) of the bins at the sampling temperature, entropies, hidden states (N, h)."""
        assert inputs.record is not None
        with self.computing():
            hidden = self._hidden(inputs, inputs.record)
            logits = self.model.logits(hidden).float() / self.decoding.temperature
        log_probs = functional.log_softmax(logits, dim=-1)
        spread = -(log_probs.exp() * log_probs).sum(-1) if entropy else None
        return log_probs.gather(-1, inputs.record[..., None]).squeeze(-1), spread, hidden[:, 0]

    def summary(self, inputs: VLAInputs) -> Tensor:
        """(N, h) that the first action token is predicted from."""
        with self.computing():
            if self.decoding.parallel_decoding:
                return self._hidden(inputs, None)[:, 0]
            none = torch.zeros(len(inputs), 1, dtype=torch.int64, device=self.device)
            found: Tensor = self.model(self.pixels(inputs), inputs, 1, none)
            return found[:, 0]

    def imitation_loss(self, observations: np.ndarray, actions_N_C_A: FloatArray, mask_N_C: BoolArray) -> Tensor:
        """(N,) mean cross-entropy of the bins of the actions that there are."""
        inputs = self.inputs(observations).to(self.device)
        tokens = torch.from_numpy(bins_of(self.normalise(actions_N_C_A).cpu().numpy(), self.bins)).flatten(1)
        mask = torch.from_numpy(mask_N_C).repeat_interleave(self.action_size, dim=1).to(self.device)
        tokens = tokens.to(self.device)
        with self.computing(dropout=True):
            logits = self.model.logits(self._hidden(inputs, tokens, augment=torch.is_grad_enabled()))
        losses = functional.cross_entropy(logits.float().transpose(1, 2), tokens, reduction="none")
        return (losses * mask).sum(1) / mask.sum(1).clamp_min(1)

    @property
    def _tokens(self) -> int:
        return self.chunk * self.action_size

    def _hidden(self, inputs: VLAInputs, tokens_N_K: Tensor | None, *, augment: bool = False) -> Tensor:
        """(N, K, h) that the tokens are predicted from."""
        given = None if self.decoding.parallel_decoding else tokens_N_K
        hidden: Tensor = self.model(self.pixels(inputs, augment=augment), inputs, self._tokens, given)
        return hidden
