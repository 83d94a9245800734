"""A gradient step of SAC with plain networks on a CPU: matrix products by torch, what is small by numpy.

Of arrays with some hundred numbers an operation of torch takes several times as long as one of numpy, and a gradient
step has a hundred of them. What is computed is what `SACLearner` computes with torch, to rounding. Networks keep the
memory of their layers from step to step.

    networks = PlainNetworks(actor.fixed(512, 256), critic.fixed(256, 256), target.fixed(256, 256))
    found = gradient_step(networks, batch, noise, weights_H, gammas_H, act=True, update_critics=step_of_adam)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from guerdon.policies.robots.heads import LOG_STD_MAX, LOG_STD_MIN
from guerdon.rl.sampling import Transitions
from guerdon.types import FloatArray

Numbers = TypeVar("Numbers", FloatArray, Tensor)
_LOG_2, _LOG_ROOT = math.log(2.0), 0.5 * math.log(2 * math.pi)


class SeenParameter(NamedTuple):
    """A parameter (M, I, O) or (M, 1, O) of M networks, and what its gradient is written to."""

    value: Tensor
    grad: Tensor


class _Layer(NamedTuple):
    """A linear layer for batches of a fixed size; arrays are the memory of tensors.

    Attributes:
        x, out: (M, N, I), (M, N, O) what goes in and comes out, after the activation.
        learning: x transposed, of the rows that learn.
        weight, turned: (M, I, O) and its transpose.
        by_weight, by_bias: their gradients.
        bias, numbers: arrays of the bias and of `out`.
        kept: `out` of the rows that learn.
        by_out: (M, n, O) gradient of `kept`.
    """

    x: Tensor
    out: Tensor
    learning: Tensor
    weight: Tensor
    turned: Tensor
    by_weight: Tensor
    by_bias: Tensor
    bias: np.ndarray
    numbers: np.ndarray
    kept: Tensor
    by_out: Tensor


class FixedNetwork:
    """M networks of linear layers with ReLU or tanh between them, for batches of a fixed size.

    Args:
        weights, biases: of each layer.
        tanh: between the layers; False: ReLU.
        rows: N.
        learning: the first so many rows have gradients.

    Attributes:
        inputs: (N, I) what all networks get; written by the caller.
        gradient: (M, learning, O) that of the outputs; written by the caller.
    """

    def __init__(
        self, weights: Sequence[SeenParameter], biases: Sequence[SeenParameter], *, tanh: bool, rows: int, learning: int
    ) -> None:
        self._tanh, self._layers = tanh, list[_Layer]()
        count, size = weights[0].value.shape[:2]
        given = torch.zeros(rows, size)
        self.inputs: FloatArray = given.numpy()
        x = given.expand(count, -1, -1)
        for weight, bias in zip(weights, biases, strict=True):
            out = torch.zeros(count, rows, weight.value.shape[2])
            by_out = torch.zeros(count, learning, weight.value.shape[2])
            self._layers.append(
                _Layer(
                    x, out, x[:, :learning].mT, weight.value, weight.value.mT, weight.grad, bias.grad,
                    bias.value.numpy(), out.numpy(), out[:, :learning], by_out,
                )
            )  # fmt: skip
            x = out
        self.gradient: FloatArray = self._layers[-1].by_out.numpy()

    def forward(self) -> FloatArray:
        """(M, N, O) outputs for `inputs`; they hold until the next call."""
        last = self._layers[-1]
        for layer in self._layers:
            torch.bmm(layer.x, layer.weight, out=layer.out)
            np.add(layer.numbers, layer.bias, out=layer.numbers)
            if layer is last:
                break
            if self._tanh:
                layer.out.tanh_()
            else:
                np.maximum(layer.numbers, 0.0, out=layer.numbers)
        return last.numbers

    def backward(self) -> None:
        """Write the gradients of the parameters, those of the outputs being `gradient`."""
        for k in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[k]
            torch.bmm(layer.learning, layer.by_out, out=layer.by_weight)
            torch.sum(layer.by_out, 1, keepdim=True, out=layer.by_bias)
            if k:
                self._through(k)

    def by_inputs(self, start: int) -> FloatArray:
        """(learning, I - start) gradient of the inputs from `start` on, over all networks."""
        for k in range(len(self._layers) - 1, 0, -1):
            self._through(k)
        first = self._layers[0]
        found: FloatArray = torch.bmm(first.by_out, first.weight[:, start:].mT).numpy().sum(axis=0)
        return found

    def _through(self, k: int) -> None:
        """The gradient of the layer before, from that of layer k."""
        layer, before = self._layers[k], self._layers[k - 1]
        torch.bmm(layer.by_out, layer.turned, out=before.by_out)
        if self._tanh:
            torch.ops.aten.tanh_backward.grad_input(before.by_out, before.kept, grad_input=before.by_out)
        else:
            torch.ops.aten.threshold_backward.grad_input(before.by_out, before.kept, 0, grad_input=before.by_out)


class PlainNetworks(NamedTuple):
    """Networks of SAC: the actor at both observations of N transitions, critics and their targets."""

    actor: FixedNetwork
    critic: FixedNetwork
    target: FixedNetwork


class SampledActions(NamedTuple):
    """Squashed normal actions (N, A), and what their gradient needs.

    Attributes:
        actions: in [-1, 1].
        log_probs: (N,).
        inside: where the logarithm of the deviation is within its bounds.
        spread: deviation times noise.
    """

    actions: FloatArray
    log_probs: FloatArray
    inside: np.ndarray
    spread: FloatArray


class Cloning(NamedTuple):
    """The cloning term of the policy's loss: `algorithm.bc_weight` and `bc_q_filter`."""

    weight: float
    q_filter: bool


class StepFacts(NamedTuple):
    """What a gradient step says.

    Attributes:
        loss: of the critics.
        values: (M, N, H) of the critics.
        entropy: of the policy; None where it takes no step.
        cloned: `cloning_facts`.
    """

    loss: float
    values: FloatArray
    entropy: float | None
    cloned: dict[str, float] = {}


def sampled(outputs_N_O: FloatArray, noise_N_A: FloatArray) -> SampledActions:
    """Actions of `guerdon.policies.robots.heads.Squashed`, as its `sample` draws them."""
    size = noise_N_A.shape[1]
    raw = outputs_N_O[:, size:]
    log_std = np.clip(raw, LOG_STD_MIN, LOG_STD_MAX)
    spread = np.exp(log_std) * noise_N_A
    before = outputs_N_O[:, :size] + spread
    # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)), which is exact where tanh(x) rounds to 1
    slope = 2.0 * (_LOG_2 - before - np.logaddexp(0.0, -2.0 * before, dtype=np.float32))
    log_probs = (-0.5 * noise_N_A * noise_N_A - log_std - _LOG_ROOT - slope).sum(axis=1)
    return SampledActions(np.tanh(before), log_probs, log_std == raw, spread)


def cloning_gradient(greedy_n_A: Numbers, shown_n_A: Numbers, kept_n: Numbers, weight: float) -> Numbers:
    """(n, A) gradient by the means of squashed actions of `weight` times their mean squared distance to shown ones.

    Args:
        greedy_n_A: tanh of the means.
        shown_n_A: what was demonstrated at these observations.
        kept_n: 0 for rows that do not count; the mean is over all rows.
        weight: of the term.
    """
    n, size = greedy_n_A.shape
    apart = (greedy_n_A - shown_n_A) * kept_n[:, None]
    gradient: Numbers = apart * (1.0 - greedy_n_A * greedy_n_A) * (2.0 * weight / (n * size))
    return gradient


def cloning_facts(greedy_n_A: Numbers, shown_n_A: Numbers, kept_n: Numbers, *, q_filter: bool) -> dict[str, float]:
    """`bc_loss`, the mean squared distance over all shown rows, and `bc_kept`, the share of them that counts."""
    apart = greedy_n_A - shown_n_A
    facts = {"bc_loss": float((apart * apart).mean())}
    return facts | ({"bc_kept": float(kept_n.mean())} if q_filter else {})


@np.errstate(over="ignore", invalid="ignore")  # a step that is not finite is skipped
def gradient_step(
    networks: PlainNetworks,
    batch: Transitions,
    noise: FloatArray,
    weights_H: FloatArray,
    gammas_H: FloatArray,
    *,
    temperature: np.float32,
    act: bool,
    update_critics: Callable[[float], None],
    cloning: Cloning | None = None,
) -> StepFacts:
    """A step of the critics, and the gradients of the actor's parameters.

    Args:
        networks: for as many rows as the batch has.
        batch: N transitions, on the CPU.
        noise: (2 N, A), standard normal.
        weights_H: of the outputs of a critic; the last is of the entropy from the next step on.
        gammas_H: discounts.
        temperature: weight of the entropy at this step.
        act: write the gradients of the actor.
        update_critics: takes their step, given the loss; their gradients are written.
        cloning: of the rows that were demonstrated; None: there is no such term.
    """
    actor, critic, target = networks
    x, next_x, taken = batch.x.numpy(), batch.next_x.numpy(), batch.actions.numpy()
    count, features = x.shape
    rows = np.arange(count)
    actor.inputs[:count], actor.inputs[count:] = x, next_x
    outputs = actor.forward()[0]
    drawn = sampled(outputs, noise)
    target.inputs[:, :features], target.inputs[:, features:] = next_x, drawn.actions[count:]
    following = target.forward()
    later = following[_lowest(following, weights_H), rows]
    later[:, -1] -= drawn.log_probs[count:]
    targets = batch.rewards.numpy() + gammas_H * batch.goes_on.numpy() * later
    critic.inputs[:, :features], critic.inputs[:, features:] = x, taken
    values = critic.forward().copy()
    errors = values - targets
    share = batch.share.numpy().copy()
    share[:, -1] *= weights_H[-1] * weights_H[-1]  # an error of the entropy counts as it does in the sum
    np.multiply(errors, share, out=critic.gradient)
    loss = 0.5 * float(np.vdot(critic.gradient, errors))
    critic.backward()
    update_critics(loss)
    if not act:
        return StepFacts(loss, values, None)
    chosen_actions = drawn.actions[:count]
    of_taken = of_chosen = None
    if cloning is not None and cloning.q_filter:
        of_taken = (critic.forward() @ weights_H).min(axis=0)
    critic.inputs[:, features:] = chosen_actions
    followed = critic.forward()
    if cloning is not None:
        of_chosen = (followed @ weights_H).min(axis=0)
    critic.gradient[:] = 0.0
    critic.gradient[_lowest(followed, weights_H), rows] = weights_H / np.float32(-count)
    along, each = critic.by_inputs(features), temperature / np.float32(count)
    # with b = mean + deviation * noise the log-probability changes by 2 tanh(b) with b, and by -1 with log(deviation)
    by_before = 2.0 * each * chosen_actions + along * (1.0 - chosen_actions * chosen_actions)
    size = taken.shape[1]
    actor.gradient[0, :, :size] = by_before
    actor.gradient[0, :, size:] = np.where(drawn.inside[:count], by_before * drawn.spread[:count] - each, 0.0)
    cloned: dict[str, float] = {}
    if cloning is not None and of_chosen is not None:
        shown_rows = slice(batch.own, count)
        greedy, shown = np.tanh(outputs[shown_rows, :size]), taken[shown_rows]
        kept = np.ones(len(greedy), np.float32)
        if of_taken is not None:
            kept = (of_taken > of_chosen)[shown_rows].astype(np.float32)
        weight = cloning.weight * float(np.abs(of_chosen).mean())
        actor.gradient[0, shown_rows, :size] += cloning_gradient(greedy, shown, kept, weight)
        cloned = cloning_facts(greedy, shown, kept, q_filter=cloning.q_filter)
    actor.backward()
    return StepFacts(loss, values, -float(drawn.log_probs[:count].mean()), cloned)


def _lowest(values_M_N_H: FloatArray, weights_H: FloatArray) -> np.ndarray:
    """(N,) the critic with the smallest weighted sum."""
    return np.asarray((values_M_N_H @ weights_H).argmin(axis=0))
