"""Gradient of the PPO loss of a policy of small networks on states, in closed form, without autograd.

With networks this small autograd spends more time on its records than on products. What is computed here is what
`update` computes with autograd, to rounding; other policies and losses go through autograd.

    if applies(policy, batch.columns(), settings):
        numbers = add_gradients(policy, inputs, columns, divisor, count, head_counts, settings)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.policies.control import ControlPolicy, StateInputs
from guerdon.policies.heads import Categorical, Gaussian
from guerdon.settings.algorithm import AlgorithmSettings, ControlAlgorithmSettings
from guerdon.settings.base import Settings
from guerdon.settings.policy import MLPPolicySettings

_COLUMNS = {"mask", "advantages", "old_log_probs", "values", "returns", "value_mask"}
# Keys of the settings that may have any value: those of the loss that are computed here, and those that decide what a
# gradient step is made of, or what follows from its gradient. Every other one must have its default value.
_COMPUTED = {"clip_range", "clip_range_high", "entropy_coef", "value_coef"}
_OUTSIDE = {
    "type", "adv_estimator", "estimator_params", "rollout_steps", "gamma", "gae_lambda", "normalize_advantages",
    "normalize_rewards", "group_size", "grpo_std", "filter_rewards", "rewards_lower_bound", "rewards_upper_bound",
    "value_init_steps", "reward_type", "num_epochs", "minibatch_size", "micro_batch_size", "learning_rate",
    "lr_schedule", "max_grad_norm", "target_kl", "ema_decay",
}  # fmt: skip
_OF_POLICY = {"type", "hidden", "activation", "log_std_init", "normalize_observations", "device", "checkpoint", "keys"}
_ONE = torch.ones(())


def applies(policy: Any, columns: Mapping[str, Tensor], settings: AlgorithmSettings) -> bool:
    """Whether this policy, these columns of a batch and this loss have a gradient in closed form here.

    Its parameters must have gradients to add to, as those of `FlatAdam` do.
    """
    if type(policy) is not ControlPolicy or type(policy.settings) is not MLPPolicySettings:
        return False
    return (
        type(settings) is ControlAlgorithmSettings
        and _changed(settings) <= _COMPUTED | _OUTSIDE
        and _changed(policy.settings) <= _OF_POLICY
        and columns.keys() <= _COLUMNS
        and ("returns" in columns) == (policy.vf is not None)
        and all(_known(network) for network in (policy.pi, policy.vf) if network is not None)
        and policy.aux is None
        and policy.device.type == "cpu"
        and all(p.requires_grad and p.grad is not None for p in policy.parameters())
    )


def _changed(settings: Settings) -> set[str]:
    """Keys that have another value than by default."""
    fields = type(settings).model_fields.items()
    return {k for k, one in fields if getattr(settings, k) != one.get_default(call_default_factory=True)}


def _known(network: nn.Module) -> bool:
    """Whether `_forward` and `_backward` know every layer: linear ones, with an activation between each two."""
    if not isinstance(network, nn.Sequential):
        return False
    return all(type(layer) in ((nn.Tanh, nn.ReLU) if k % 2 else (nn.Linear,)) for k, layer in enumerate(network))


@torch.no_grad()
def add_gradients(
    policy: ControlPolicy,
    inputs: StateInputs,
    columns: Mapping[str, Tensor],
    divisor: Tensor | float,
    count: Tensor,
    head_counts: Mapping[str, Tensor],
    settings: AlgorithmSettings,
) -> dict[str, float]:
    """Add the gradient of these rows' part of a gradient step's loss to the parameters' own.

    Args:
        policy: what is trained.
        inputs: N rows.
        columns: of these rows, and the `weights` of their terms of the policy loss, each (N, 1) or (N, 1, H).
        divisor: of the weighted sum of terms.
        count: decisions of the gradient step.
        head_counts: `value_mask`: known targets of each value head in the gradient step.
        settings: loss and coefficients.

    Returns:
        The parts of the loss as plain numbers: those of these rows.
    """
    given = {name: column.numpy() for name, column in columns.items()}
    mask, advantages = given["mask"], given["advantages"]
    weights = given["weights"] / np.float32(divisor)
    high = settings.clip_range if settings.clip_range_high is None else settings.clip_range_high
    lowest, highest = np.float32(1.0 - settings.clip_range), np.float32(1.0 + high)
    assert isinstance(inputs.observations, Tensor)
    into, mean = _forward(policy.pi, inputs.observations)
    head = policy.head
    assert isinstance(head, Gaussian | Categorical)
    at = _Normal(head, mean.numpy(), inputs) if isinstance(head, Gaussian) else _Choices(head, mean, inputs)
    new = at.log_prob
    log_ratio = new - given.get("old_log_probs", new)
    ratio = np.exp(log_ratio)
    gain = ratio * advantages  # the surrogate, and its derivative by the log-probability
    clipped = np.minimum(np.maximum(ratio, lowest), highest)
    limit = clipped * advantages
    share = float(mask.sum()) / float(count)
    numbers = {
        "policy_loss": -_dot(np.minimum(gain, limit), weights),
        "clip_fraction": _dot(clipped != ratio, mask) / float(count),
        "approx_kl": _dot(ratio - np.float32(1.0) - log_ratio, mask) / float(count),
        "entropy": at.entropy * share if isinstance(at.entropy, float) else _dot(at.entropy, mask) / float(count),
    }
    by_log_prob = -(gain * (gain <= limit) * weights)
    by_output = at.backward(by_log_prob, np.float32(settings.entropy_coef), weights)
    _backward(policy.pi, into, torch.from_numpy(by_output))
    if policy.vf is not None:
        into, values = _forward(policy.vf, inputs.observations)
        error = values.numpy() - given["returns"][:, 0]
        by_value = error * given["value_mask"][:, 0] * (1.0 / head_counts["value_mask"].numpy())
        numbers["value_loss"] = 0.5 * _dot(error, by_value)
        _backward(policy.vf, into, torch.from_numpy(by_value * np.float32(settings.value_coef)))
    return numbers


class _Normal:
    """Log-probabilities (N, 1) of a Gaussian at its means, the entropy, and their gradients."""

    def __init__(self, head: Gaussian, mean: np.ndarray, inputs: StateInputs) -> None:
        self._log_std = head.log_std
        log_std = head.log_std.detach().numpy()
        self._scale = np.exp(-log_std)
        self._z = (inputs.actions.numpy() - mean) * self._scale
        self._squares = self._z * self._z
        constant = np.float32(0.5 * head.outputs * math.log(2 * math.pi))
        self.log_prob = np.float32(-0.5) * self._squares.sum(1, keepdims=True) - (log_std.sum() + constant)
        self.entropy = float(log_std.sum() + constant + np.float32(0.5 * head.outputs))

    def backward(self, by_log_prob: np.ndarray, coef: np.float32, weights: np.ndarray) -> np.ndarray:
        """(N, A) gradient of the means; that of the deviations is added to the parameter's own."""
        by_log_std = ((self._squares - np.float32(1.0)) * by_log_prob).sum(0)
        if coef:
            by_log_std -= coef * weights.sum()
        cast("Tensor", self._log_std.grad).add_(torch.from_numpy(by_log_std))
        return np.asarray(self._z * self._scale * by_log_prob)


class _Choices:
    """The same of choices, whose entropy (N, 1) differs from state to state; gradients are of the logits."""

    def __init__(self, head: Categorical, logits: Tensor, inputs: StateInputs) -> None:
        logs = head.log_probs(logits, inputs.allowed).numpy()
        self._shares = np.exp(logs)
        self._logs = np.maximum(logs, np.finfo(np.float32).min)  # where a value is not allowed, its share is 0
        starts = np.cumsum([0, *head.counts[:-1]])
        self._counts = head.counts
        self._taken = np.zeros_like(logs)
        np.put_along_axis(self._taken, inputs.actions.numpy().astype(np.int64) + starts, np.float32(1), axis=1)
        self.log_prob = (self._logs * self._taken).sum(1, keepdims=True)
        self._own = np.add.reduceat(-self._shares * self._logs, starts, axis=1)  # entropy of each choice
        self.entropy = self._own.sum(1, keepdims=True)

    def backward(self, by_log_prob: np.ndarray, coef: np.float32, weights: np.ndarray) -> np.ndarray:
        """(N, O) gradient of the logits."""
        found = (self._taken - self._shares) * by_log_prob
        if coef:
            found += self._shares * (self._logs + np.repeat(self._own, self._counts, axis=1)) * (coef * weights)
        return np.asarray(found)


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.vdot(a, b))


def _forward(network: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """What goes into each linear layer, and what comes out of the last."""
    into: list[Tensor] = []
    for layer in cast("nn.Sequential", network):
        if isinstance(layer, nn.Linear):
            into.append(x)
            x = torch.addmm(layer.bias, x, layer.weight.t())
        else:
            x = x.tanh_() if isinstance(layer, nn.Tanh) else x.relu_()
    return into, x


def _backward(network: nn.Module, into: list[Tensor], by_output: Tensor) -> None:
    """Add the gradient to that of each weight and bias."""
    layers = cast("nn.Sequential", network)
    for k in reversed(range(len(into))):
        linear, x = cast("nn.Linear", layers[2 * k]), into[k]
        cast("Tensor", linear.weight.grad).addmm_(by_output.t(), x)
        cast("Tensor", linear.bias.grad).add_(by_output.sum(0))
        if k:
            by_output = by_output @ linear.weight
            slope = torch.addcmul(_ONE, x, x, value=-1.0) if isinstance(layers[2 * k - 1], nn.Tanh) else x > 0
            by_output.mul_(slope)
