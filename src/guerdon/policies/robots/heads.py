"""Distributions of actions: what the outputs of a policy's network mean.

A head draws actions with numpy and gives log-probabilities with torch. `record` of an `Action` is what `log_prob` needs
of it.

    head = Categorical((4, 2))                               # of MultiDiscrete([4, 2]), from 6 outputs
    action = head.act(logits_B_6, rng, allowed=allowed_B_6)
    head.log_prob(logits_N_6, records_N_2, allowed_N_6)      # (N,)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from guerdon.errors import ConfigError
from guerdon.policies.robots.robot import Action
from guerdon.processes.progress import log_once
from guerdon.types import BoolArray, FloatArray

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0  # of `Squashed`


class ActionUnits(NamedTuple):
    """The units of actions whose bounds are finite: -1 is the lower bound, 1 the upper one.

    Attributes:
        centre_A: float32, the middle of the bounds; 0 where there are none.
        half_A: float32, half their distance; 1 where there are none, or where they leave no room.
    """

    centre_A: FloatArray
    half_A: FloatArray

    def executed(self, actions_B_A: np.ndarray) -> FloatArray:
        """Actions of the environment, of those in these units."""
        return np.asarray(self.centre_A + self.half_A * actions_B_A)

    def within(self, actions_B_A: np.ndarray) -> FloatArray:
        """In these units, actions of the environment."""
        return np.asarray((actions_B_A - self.centre_A) / self.half_A, dtype=np.float32)


def action_units(space: gymnasium.Space) -> ActionUnits | None:
    """The units of a Box; None where they are those of the environment: bounds of -1 and 1, or none at all.

    A bound at the end of float32 is none.
    """
    low, high = (np.asarray(getattr(space, name), np.float64).reshape(-1) for name in ("low", "high"))
    finite = (np.maximum(abs(low), abs(high)) < np.finfo(np.float32).max) & (low < high)
    low, high = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
    units = ActionUnits(((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32))
    return None if (units.centre_A == 0).all() and (units.half_A == 1).all() else units


def check_bounds(space: gymnasium.Space) -> None:
    """Refuse actions with a lower or an upper bound alone: a tanh policy needs both, or is limited to [-1, 1].

    Raises:
        ConfigError: as it says.
    """
    largest = np.finfo(np.float32).max
    low, high = (abs(np.asarray(getattr(space, name), np.float64)).reshape(-1) < largest for name in ("low", "high"))
    if (low != high).any():
        place = int(np.flatnonzero(low != high)[0])
        raise ConfigError.about(
            "algorithm.type",
            f"sac: action {place} has one bound alone, and actions of a tanh need both: declare both, "
            "for example by gymnasium.wrappers.TransformAction(env, lambda a: a, Box(low, high))",
        )
    if not low.all():
        log_once("[policy] actions without bounds are limited to [-1, 1]")


Draw = Callable[[np.ndarray, np.random.Generator, bool, BoolArray | None], Action]
"""Draws the actions of B copies from (B, O) outputs of a network: sampled, or (True) the most likely ones. The last
argument, (B, O) bool, says which values of discrete actions are allowed; None: all."""


class Gaussian:
    """Independent normal distributions of A numbers, with the same deviations everywhere.

    Args:
        log_std: (A,) logarithm of the standard deviations, a parameter of the policy.
        units: of the actions; None: those of the environment.
    """

    def __init__(self, log_std: nn.Parameter, units: ActionUnits | None = None) -> None:
        self.log_std, self.units = log_std, units
        self.outputs = len(log_std)

    def act(
        self, outputs: np.ndarray, rng: np.random.Generator, greedy: bool = False, allowed: BoolArray | None = None
    ) -> Action:
        """See `Draw`; the record has the actions in the head's units."""
        return self._drawn(self.log_std.detach().exp().cpu().numpy(), outputs, rng, greedy, allowed)

    def frozen(self) -> Draw:
        """`act` with the deviations as they are now."""
        return partial(self._drawn, np.exp(self.log_std.detach().cpu().numpy()).astype(np.float32))

    def _drawn(
        self, std_A: np.ndarray, mean: np.ndarray, rng: np.random.Generator, greedy: bool, allowed: BoolArray | None
    ) -> Action:
        sample = mean
        if not greedy:
            sample = np.asarray(mean + std_A * rng.standard_normal(mean.shape, dtype=np.float32))
        return Action(sample) if self.units is None else Action(self.units.executed(sample), sample)

    def log_prob(self, outputs_N_O: Tensor, records_N_A: Tensor, allowed_N_O: Tensor | None = None) -> Tensor:
        """(N,) log-density of actions in the head's units."""
        z = (records_N_A - outputs_N_O) * (-self.log_std).exp()
        constant = 0.5 * self.outputs * math.log(2 * math.pi)
        return -0.5 * (z * z).sum(-1) - self.log_std.sum() - constant

    def entropy(self, outputs_N_O: Tensor, allowed_N_O: Tensor | None = None) -> Tensor:
        """A scalar, the same at every state."""
        return self.log_std.sum() + 0.5 * self.outputs * (1 + math.log(2 * math.pi))


class Categorical:
    """Independent choices, of which some may not be allowed at a state.

    Args:
        counts: values of each of the A choices; the outputs are their logits, one choice after the other.
    """

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts, self.outputs = counts, sum(counts)
        self._starts = np.cumsum([0, *counts[:-1]])

    def act(
        self, outputs: np.ndarray, rng: np.random.Generator, greedy: bool = False, allowed: BoolArray | None = None
    ) -> Action:
        """See `Draw`; (B, A) int64, drawn as the largest of logits with Gumbel noise."""
        logits = outputs if greedy else outputs + rng.gumbel(size=outputs.shape)
        if allowed is not None:
            logits = np.where(self._usable(allowed), logits, -np.inf)
        places = zip(self._starts, self.counts, strict=True)
        chosen = np.stack([logits[:, start : start + n].argmax(axis=1) for start, n in places], axis=1)
        lost = np.isnan(outputs).any(axis=1)  # the world refuses the action of a network that gives no numbers
        return Action(np.where(lost[:, None], np.nan, chosen), chosen) if lost.any() else Action(chosen)

    def frozen(self) -> Draw:
        """`act`, which has no parameters."""
        return self.act

    def log_prob(self, outputs_N_O: Tensor, records_N_A: Tensor, allowed_N_O: Tensor | None = None) -> Tensor:
        """(N,) log-probability of choices."""
        logits = self.log_probs(outputs_N_O, allowed_N_O)
        index = records_N_A.long() + torch.from_numpy(self._starts).to(logits.device)
        return logits.gather(1, index).sum(1)

    def entropy(self, outputs_N_O: Tensor, allowed_N_O: Tensor | None = None) -> Tensor:
        """(N,) entropy, of all choices together."""
        logits = self.log_probs(outputs_N_O, allowed_N_O)
        return -(logits.exp() * logits.clamp(min=torch.finfo(logits.dtype).min)).sum(1)

    def log_probs(self, outputs_N_O: Tensor, allowed_N_O: Tensor | None = None) -> Tensor:
        """(N, O) normalised logits; -inf where a value is not allowed."""
        if allowed_N_O is not None:
            usable = torch.from_numpy(self._usable(allowed_N_O.cpu().numpy())).to(outputs_N_O.device)
            outputs_N_O = outputs_N_O.masked_fill(~usable, -torch.inf)
        if len(self.counts) == 1:
            return F.log_softmax(outputs_N_O, 1)
        places = zip(self._starts.tolist(), self.counts, strict=True)
        return torch.cat([F.log_softmax(outputs_N_O[:, start : start + n], 1) for start, n in places], 1)

    def _usable(self, allowed: BoolArray) -> BoolArray:
        """Values that are allowed; all of a choice where none is, as after the last action of an episode."""
        some = np.logical_or.reduceat(allowed, self._starts, axis=1)
        return np.asarray(allowed | ~np.repeat(some, self.counts, axis=1))


class Squashed:
    """The tanh of independent normal distributions whose means and deviations depend on the state (1801.01290).

    The outputs are A means and A logarithms of deviations, which are kept within bounds. `record` is the value before
    the tanh: taken from an action that reached a bound it would be infinite.

    Args:
        size: A.
        units: of the actions; None: those of the environment.
    """

    def __init__(self, size: int, units: ActionUnits | None = None) -> None:
        self.size, self.units, self.outputs = size, units, 2 * size

    def act(
        self, outputs: np.ndarray, rng: np.random.Generator, greedy: bool = False, allowed: BoolArray | None = None
    ) -> Action:
        """See `Draw`; the record has (B, A) values before the tanh."""
        mean, log_std = np.split(outputs, 2, axis=1)
        before = mean
        if not greedy:
            std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))
            before = mean + std * rng.standard_normal(mean.shape, dtype=np.float32)
        values = np.tanh(before)
        return Action(values if self.units is None else self.units.executed(values), before)

    def frozen(self) -> Draw:
        """`act`, which has no parameters."""
        return self.act

    def parameters_of(self, outputs_N_O: Tensor) -> tuple[Tensor, Tensor]:
        """(N, A) means and (N, A) logarithms of deviations before the tanh."""
        mean, log_std = outputs_N_O.chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample(self, outputs_N_O: Tensor, noise_N_A: Tensor) -> tuple[Tensor, Tensor]:
        """(N, A) actions in [-1, 1] with gradients (reparametrised), and their (N,) log-densities.

        Args:
            outputs_N_O: of the network.
            noise_N_A: standard normal.
        """
        mean, log_std = self.parameters_of(outputs_N_O)
        before = mean + log_std.exp() * noise_N_A
        return before.tanh(), self._density(-0.5 * noise_N_A**2, before, log_std)

    def log_prob(self, outputs_N_O: Tensor, records_N_A: Tensor, allowed_N_O: Tensor | None = None) -> Tensor:
        """(N,) log-density, in units of the bounds, of actions with these values before the tanh."""
        mean, log_std = self.parameters_of(outputs_N_O)
        return self._density(-0.5 * ((records_N_A - mean) * (-log_std).exp()) ** 2, records_N_A, log_std)

    def _density(self, kernel: Tensor, before: Tensor, log_std: Tensor) -> Tensor:
        # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)), which is exact where tanh(x) rounds to 1
        slope = 2.0 * (math.log(2.0) - before - F.softplus(-2.0 * before))
        return (kernel - log_std - 0.5 * math.log(2 * math.pi) - slope).sum(-1)


class QValues:
    """Values of the choices of one discrete action, one for each of H sources of reward.

    It acts by the largest weighted sum, but for a share of random actions. `record` is the choice.

    Args:
        counts: of the choices, in a tuple of one.
        weights: (H,) of the sources; it changes in a run.
        epsilon: share of random actions; it changes, too.
    """

    def __init__(self, counts: tuple[int, ...], weights: Tensor, epsilon: Tensor) -> None:
        if len(counts) != 1:
            raise ConfigError.about(
                "algorithm.type",
                f"dqn is for one discrete action, and the environment has {len(counts)}: take control, "
                "or make one Discrete of them with a gymnasium wrapper",
            )
        self.counts, self.weights, self.epsilon = counts, weights, epsilon
        self.outputs = counts[0] * len(weights)

    def values(self, outputs_N_O: Tensor) -> Tensor:
        """(N, choices, H) outputs of the network."""
        return outputs_N_O.reshape(*outputs_N_O.shape[:-1], self.counts[0], -1)

    def act(
        self, outputs: np.ndarray, rng: np.random.Generator, greedy: bool = False, allowed: BoolArray | None = None
    ) -> Action:
        """See `Draw`; (B, 1) int64."""
        return self.frozen()(outputs, rng, greedy, allowed)

    def frozen(self) -> Draw:
        """`act` with weights and share as they are now."""
        return partial(self._drawn, self.weights.cpu().numpy().copy(), float(self.epsilon))

    def _drawn(
        self,
        weights_H: np.ndarray,
        epsilon: float,
        outputs: np.ndarray,
        rng: np.random.Generator,
        greedy: bool,
        allowed: BoolArray | None,
    ) -> Action:
        scores = outputs.reshape(len(outputs), self.counts[0], -1) @ weights_H
        if not greedy:
            anywhere = rng.random(len(scores)) < epsilon
            scores = np.where(anywhere[:, None], rng.random(scores.shape), scores)
        if allowed is not None:
            scores = np.where(allowed | ~allowed.any(axis=1, keepdims=True), scores, -np.inf)
        chosen = scores.argmax(axis=1)[:, None]
        lost = np.isnan(outputs).any(axis=1)  # the world refuses the action of a network that gives no numbers
        return Action(np.where(lost[:, None], np.nan, chosen), chosen) if lost.any() else Action(chosen)

    def log_prob(self, outputs_N_O: Tensor, records_N_A: Tensor, allowed_N_O: Tensor | None = None) -> Tensor:
        """(N,) of zeros: who learns from values needs no probabilities."""
        return outputs_N_O.new_zeros(len(outputs_N_O))


Head = Gaussian | Categorical | Squashed | QValues
