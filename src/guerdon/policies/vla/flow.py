"""Actions by flow matching with log-probabilities: SmolVLA's and pi0's way to act, made random for policy gradients.

Time t runs from 1 (noise) to 0 (actions), x_t = t noise + (1 - t) action, and a network predicts the velocity
v = noise - action. From v, x_t tells an action x0 = x_t - t v and a noise x1 = x_t + (1 - t) v. A step by d from t to
t - d is Gaussian around

    (1 - (t - d)) x0 + w x1,    flow_ode, flow_noise: w = t - d;    flow_sde: w = (t - d) - s^2 d / (2 t)

with standard deviation 0 (flow_ode, Euler's method), of a head of the expert (flow_noise), or sqrt(d) s with
s = eta sqrt(t / (1 - t)) (flow_sde: the SDE with the same marginals as the ODE; at t = 1 the second step's t stands in
1 - t). The log-probability of a decision is the sum of its steps', as in the joint likelihood of piRL (Chen et al.
2025, 2510.25889); that of the first noise does not depend on the policy and is left out.

    path = [noise]
    for k in range(num_steps): path.append(mean + std * standard_normal)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from guerdon.errors import ConfigError
from guerdon.policies.robots.robot import Action
from guerdon.policies.vla.policy import VLAInputs, VLAPolicy
from guerdon.policies.vla.smolvla import ExpertNetwork, Prefix
from guerdon.settings.vla_policy import FlowDecodingSettings, VLAPolicySettings
from guerdon.types import BoolArray, FloatArray

_TIME = (1.5, 1.0, 0.999, 0.001)  # of training: Beta(1.5, 1) times 0.999 plus 0.001, as pi0 and SmolVLA draw it


def sde_sigma(step: int, steps: int, level: float) -> float:
    """Sigma of a step, eta sqrt(t / (1 - t)) at its start; at t = 1, with the 1 - t of the next step's start.

    Args:
        step: 0 is the first, at t = 1.
        steps: denoising steps, each of length 1 / steps.
        level: eta.
    """
    t = 1 - step / steps
    below = 1 / steps if step == 0 else 1 - t
    return level * math.sqrt(t / below)


def step_mean(x: Tensor, velocity: Tensor, step: int, steps: int, sigma: float = 0.0) -> Tensor:
    """The mean of x after a step, as the module says; sigma 0 is Euler's step x - d v."""
    t, d = 1 - step / steps, 1 / steps
    action, noise = x - t * velocity, x + (1 - t) * velocity
    return (1 - (t - d)) * action + ((t - d) - sigma**2 * d / (2 * t)) * noise


def gaussian_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of every number."""
    return -0.5 * ((x - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)


class FlowVLA(VLAPolicy):
    """A model with an action expert.

    Records of decisions are the noise and what each step left of it, (B, num_steps + 1, C, A) in normalised units. An
    action has one log-probability, the sum over steps and numbers. Numbers that only pad an action move along the
    straight line from their noise to 0, which is what they were trained on, and have no log-probability. Where actions
    of a chunk attend to each other (pi0), the record holds all of the network's horizon, and those beyond the C that
    are executed have no log-probability either, as in RLinf.
    """

    model: ExpertNetwork
    decoding: FlowDecodingSettings
    normalization = "MEAN_STD"

    def __init__(self, settings: VLAPolicySettings, network: ExpertNetwork, *rest: Any) -> None:
        super().__init__(settings, network, *rest)
        self.horizon = network.horizon or self.chunk
        self.noise_head: nn.Module | None = None
        if self.decoding.noise_method == "flow_noise":
            hidden = nn.Linear(network.expert_width, network.expert_width)
            self.noise_head = nn.Sequential(hidden, nn.Tanh(), nn.Linear(network.expert_width, self.action_size))

    @torch.no_grad()
    def act(self, observations: np.ndarray, rng: np.random.Generator, *, greedy: bool = False) -> Action:
        """A path from noise to actions; greedy: Euler's method from zeros, the most likely noise."""
        inputs, steps = self.inputs(observations).to(self.device), self.decoding.num_steps
        shape = (len(inputs), self.horizon, self.action_size)

        def noise() -> Tensor:
            return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(self.device)

        padding = self.model.max_action_dim - self.action_size
        loose = np.zeros((*shape[:2], padding)) if greedy else rng.standard_normal((*shape[:2], padding))
        pad = torch.from_numpy(loose.astype(np.float32)).to(self.device)
        x = torch.zeros(shape, device=self.device) if greedy else noise()
        path = [x]
        with self.computing():
            prefix = self.model.read(self.pixels(inputs), inputs)
            for step in range(steps):
                if greedy:
                    x = step_mean(x, self._velocity(prefix, x, pad, step)[0], step, steps)
                else:
                    mean, std = self._step(prefix, x, pad, step)
                    x = mean + std * noise()
                path.append(x)
        record = torch.stack(path, dim=1)
        if padding:
            record = torch.cat([record, pad[:, None].expand(-1, steps + 1, -1, -1)], dim=-1)
        return Action(self.executed(x[:, : self.chunk]), record=record.cpu().numpy())

    def evaluated(self, inputs: VLAInputs, *, entropy: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Log-probabilities (N, C) of the paths, the entropy (N, C) of their steps, and hidden states (N, h)."""
        assert inputs.record is not None
        path, pad = inputs.record[..., : self.action_size], inputs.record[:, 0, :, self.action_size :]
        log_probs, spread = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        with self.computing():
            prefix = self.model.read(self.pixels(inputs), inputs)
            for step in range(self.decoding.num_steps):
                mean, std = self._step(prefix, path[:, step], pad, step)
                mean, std, after = (x[:, : self.chunk] for x in (mean, std, path[:, step + 1]))
                log_probs = log_probs + gaussian_log_prob(after, mean, std).sum(-1)
                spread = spread + (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
        return log_probs, spread if entropy else None, prefix.hidden

    def summary(self, inputs: VLAInputs) -> Tensor:
        """(N, h) the mean hidden state of pictures, instruction and proprioception."""
        with self.computing():
            return self.model.read(self.pixels(inputs), inputs).hidden

    def imitation_loss(self, observations: np.ndarray, actions_N_C_A: FloatArray, mask_N_C: BoolArray) -> Tensor:
        """(N,) mean squared error of the velocity at random times; noise and times are of torch's generator.

        Raises:
            ConfigError: actions of the network's chunk attend to each other, and there are others than its horizon.
        """
        if self.horizon != self.chunk:
            raise ConfigError.about(
                "policy.num_action_chunks",
                f"is {self.chunk}: to clone a model whose actions attend to each other, set "
                f"it to the {self.horizon} actions of its chunk",
            )
        inputs, actions = self.inputs(observations).to(self.device), self.normalise(actions_N_C_A)
        actions = functional.pad(actions, (0, self.model.max_action_dim - self.action_size))
        alpha, beta, scale, offset = _TIME
        time = (torch.distributions.Beta(alpha, beta).sample((len(actions),)) * scale + offset).to(self.device)
        noise = torch.randn(actions.shape).to(self.device)
        x = time[:, None, None] * noise + (1 - time[:, None, None]) * actions
        with self.computing(dropout=True):
            prefix = self.model.read(self.pixels(inputs, augment=torch.is_grad_enabled()), inputs)
            velocity, _ = self.model.velocity(prefix, x, time)
        errors = (velocity - (noise - actions)) ** 2
        mask = torch.from_numpy(mask_N_C).to(self.device)
        return (errors[..., : self.action_size].mean(-1) * mask).sum(1) / mask.sum(1).clamp_min(1)

    def _velocity(self, prefix: Prefix, x: Tensor, pad: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Velocity of the numbers that are executed, and hidden states, at the start of a step."""
        t = 1 - step / self.decoding.num_steps
        time = torch.full((len(x),), t, device=x.device)
        velocity, hidden = self.model.velocity(prefix, torch.cat([x, t * pad], dim=-1), time)
        return velocity[..., : self.action_size], hidden

    def _step(self, prefix: Prefix, x: Tensor, pad: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (N, C, A) of x after a step."""
        decoding = self.decoding
        velocity, hidden = self._velocity(prefix, x, pad, step)
        if self.noise_head is None:
            sigma = sde_sigma(step, decoding.num_steps, decoding.noise_level)
            std = torch.full_like(x, math.sqrt(1 / decoding.num_steps) * sigma)
            return step_mean(x, velocity, step, decoding.num_steps, sigma), std
        low, high = (math.log(bound) for bound in decoding.noise_std_range)
        share = (torch.tanh(self.noise_head(hidden).float()) + 1) / 2
        return step_mean(x, velocity, step, decoding.num_steps), torch.exp(low + (high - low) * share)
