"""Actions by regression with log-probabilities: the L1 head of OpenVLA-OFT (Kim et al. 2025, 2502.19645).

The head predicts the numbers of a whole chunk. A number is drawn from a Laplace distribution around what is predicted,
with a scale per number of an action that is a parameter of the policy: of that distribution with a constant scale, L1
regression is the fit of highest likelihood. Evaluation takes the prediction itself, as OpenVLA-OFT does.

    log_probs = laplace_log_prob(actions_N_C_A, mean_N_C_A, log_scale_A)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.policies.robots.robot import Action
from guerdon.policies.vla.policy import VLAInputs, VLAPolicy
from guerdon.policies.vla.prismatic import PrismaticNetwork
from guerdon.settings.vla_policy import RegressionDecodingSettings, VLAPolicySettings
from guerdon.types import BoolArray, FloatArray


def laplace_log_prob(x: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """Log-density of every number, -|x - mean| / scale - log(2 scale)."""
    return -(x - mean).abs() * (-log_scale).exp() - log_scale - math.log(2)


class RegressionVLA(VLAPolicy):
    """A model with an `L1Head`.

    Records of decisions are normalised actions (B, C * A), the numbers of the first action first.
    """

    model: PrismaticNetwork
    decoding: RegressionDecodingSettings
    clip_proprio = True
    normalization = "QUANTILES"
    heads_left_alone = ("action_head.fc2",)

    def __init__(self, settings: VLAPolicySettings, network: PrismaticNetwork, *rest: Any) -> None:
        super().__init__(settings, network, *rest)
        self.tokens_per_action = self.action_size
        self.log_scale = nn.Parameter(torch.full((self.action_size,), math.log(self.decoding.initial_scale)))

    @torch.no_grad()
    def act(self, observations: np.ndarray, rng: np.random.Generator, *, greedy: bool = False) -> Action:
        """Actions drawn around the prediction; greedy: the prediction."""
        x, _ = self._predicted(self.inputs(observations).to(self.device))
        if not greedy:
            noise = torch.from_numpy(rng.laplace(size=tuple(x.shape)).astype(np.float32)).to(self.device)
            x = x + self.log_scale.exp() * noise
        return Action(self.executed(x), record=x.flatten(1).cpu().numpy())

    def evaluated(self, inputs: VLAInputs, *, entropy: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Log-probabilities (N, C * A) of the numbers, their entropies, hidden states (N, h)."""
        assert inputs.record is not None
        mean, hidden = self._predicted(inputs)
        log_probs = laplace_log_prob(inputs.record.view_as(mean), mean, self.log_scale).flatten(1)
        spread = (1 + math.log(2) + self.log_scale).expand_as(mean).flatten(1) if entropy else None
        return log_probs, spread, hidden

    def summary(self, inputs: VLAInputs) -> Tensor:
        """(N, h) of the first number of the first action."""
        return self._predicted(inputs)[1]

    def imitation_loss(self, observations: np.ndarray, actions_N_C_A: FloatArray, mask_N_C: BoolArray) -> Tensor:
        """(N,) mean absolute error of the actions that there are; it leaves the scale as it is."""
        inputs = self.inputs(observations).to(self.device)
        predicted, _ = self._predicted(inputs, cloning=True)
        errors = (predicted - self.normalise(actions_N_C_A)).abs().mean(-1)
        mask = torch.from_numpy(mask_N_C).to(self.device)
        return (errors * mask).sum(1) / mask.sum(1).clamp_min(1)

    def _predicted(self, inputs: VLAInputs, *, cloning: bool = False) -> tuple[Tensor, Tensor]:
        """Normalised actions (N, C, A), and the hidden state (N, h) of their first number."""
        with self.computing(dropout=cloning):
            pixels = self.pixels(inputs, augment=cloning and torch.is_grad_enabled())
            hidden = self.model(pixels, inputs, self.chunk * self.action_size)
            return self.model.logits(hidden).float(), hidden[:, 0]
