"""Gradient steps on a rollout with advantages: one function for all policies.

Rows are what a gradient step is made of: the steps of a control policy (K = 1 decision each), the responses of a
language model (K tokens), the chunks of a policy with action tokens. Losses of micro-batches add up to exactly the
loss of the gradient step they belong to.

    batch = make_batch(inputs, rollout.mask, advantages, old=rollout.log_probs, values=rollout.values)
    metrics = update_policy(policy, FlatAdam(policy, 1e-3), batch, settings, rng, learning_rate=1e-3)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, cast

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.optimizers import FlatAdam, Optimizer
from guerdon.policies.batches.passes import slices
from guerdon.policies.robots.control import ControlPolicy, StateInputs
from guerdon.policies.robots.heads import Categorical, Gaussian
from guerdon.rl.losses import (
    PolicyLoss,
    aggregation_weights,
    kl_terms,
    logged_name,
    old_kl_terms,
    policy_loss,
    sum_parts,
    value_errors,
)
from guerdon.settings.algorithm import AlgorithmSettings
from guerdon.settings.policy import MLPPolicySettings
from guerdon.types import Advantages, BoolArray, Evaluated, Evaluates, FloatArray, Inputs, Metrics

# ---------------------------------------------------------------------------------------------------------------------
# Gradient of the loss of a policy of small networks on states, in closed form, without autograd.
#
# With networks this small autograd spends more time on its records than on products. What is computed here is what
# `update` computes with autograd, to rounding. It is used where the policy loss offers its slope by the log-
# probability;
# other policies, losses and columns go through autograd.
#
#     loss = policy_loss(settings)
#     if applies(policy, batch.columns(), loss, settings):
#         numbers = add_gradients(policy, inputs, columns, divisor, count, head_counts, loss, settings)
# ---------------------------------------------------------------------------------------------------------------------


_COLUMNS = {"mask", "advantages", "old_log_probs", "values", "returns", "value_mask"}
_ONE = torch.ones(())


def applies(policy: Any, columns: Mapping[str, Tensor], loss: PolicyLoss, settings: AlgorithmSettings) -> bool:
    """Whether this policy, these columns of a batch and this loss have a gradient in closed form here.

    Its parameters must have gradients to add to, as those of `FlatAdam` do.
    """
    if type(policy) is not ControlPolicy or type(policy.settings) is not MLPPolicySettings:
        return False
    return (
        loss.offers_slope
        and settings.loss_agg == "token"
        and settings.clip_range_value is None
        and columns.keys() <= _COLUMNS
        and ("returns" in columns) == (policy.vf is not None)
        and all(_known(network) for network in (policy.pi, policy.vf) if network is not None)
        and policy.aux is None
        and policy.device.type == "cpu"
        and all(p.requires_grad and p.grad is not None for p in policy.parameters())
    )


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
    loss: PolicyLoss,
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
        loss: of the policy, with a slope.
        settings: coefficients.

    Returns:
        The parts of the loss as plain numbers: those of these rows.
    """
    given = {name: column.numpy() for name, column in columns.items()}
    mask = given["mask"]
    weights = given["weights"] / np.float32(divisor)
    assert isinstance(inputs.observations, Tensor)
    into, mean = _forward(policy.pi, inputs.observations)
    head = policy.head
    assert isinstance(head, Gaussian | Categorical)
    at = _Normal(head, mean.numpy(), inputs) if isinstance(head, Gaussian) else _Choices(head, mean, inputs)
    new = at.log_prob
    old = given.get("old_log_probs", new)
    log_ratio = new - old
    found = loss.sloped(new, old, given["advantages"], mask)
    decisions = float(count)
    numbers = {
        "policy_loss": _dot(found.terms, weights),
        "approx_kl": _dot(np.exp(log_ratio) - np.float32(1.0) - log_ratio, mask) / decisions,
    }
    for name, measured in found.numbers.items():
        numbers[logged_name(name)] = _dot(measured, mask) / decisions
    if isinstance(at.entropy, float):
        numbers["entropy"] = at.entropy * (float(mask.sum()) / decisions)
    else:
        numbers["entropy"] = _dot(at.entropy, mask) / decisions
    by_output = at.backward(found.slope * weights, np.float32(settings.entropy_coef), weights)
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


# ---------------------------------------------------------------------------------------------------------------------


_HEAD_MASKS = ("value_mask", "auxiliary_mask")
_COUNTED = ("mask", "weights", *_HEAD_MASKS)  # columns that are 0 where nothing counts


@dataclass(frozen=True, eq=False)
class Batch(Generic[Inputs]):
    """A rollout with advantages, ready for gradient steps: R rows of K decisions, H value heads.

    Attributes:
        inputs: R rows, for `Policy.evaluate`.
        mask: (R, K) float32, 1 where there is a decision.
        advantages: (R, K) float32, 0 where masked.
        old_log_probs: (R, K) of the policy that acted, as training computes them; None where one gradient step takes
            the whole batch, so that the policy that is trained is the one that acted.
        ref_log_probs: (R, K) of the KL's reference; None without a KL in the loss.
        behaviour: (R, K) log-probabilities as they were sampled, to measure how far training is from them.
        values: (R, K, H) before the update, for clipping its change.
        returns: (R, K, H) targets of the value heads; None without a critic.
        value_mask: (R, K, H) float32, 0 where a target is missing.
        parts: (R, K * P) float32, of a policy that gives P log-probabilities per decision: 0 where one does not count.
            Its values are one per row: (R, 1, H).
        auxiliary: (R, K, A) targets of the auxiliary heads; None without such heads.
        auxiliary_mask: (R, K, A) float32, 0 where a target is missing.
        streams: (R, 1) int64, the conversation that a row is a call of, rows of one next to each other; None: every
            row is one.
    """

    inputs: Inputs
    mask: Tensor
    advantages: Tensor
    old_log_probs: Tensor | None = None
    ref_log_probs: Tensor | None = None
    behaviour: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    value_mask: Tensor | None = None
    auxiliary: Tensor | None = None
    auxiliary_mask: Tensor | None = None
    parts: Tensor | None = None
    streams: Tensor | None = None

    def take(self, rows: np.ndarray) -> Batch[Inputs]:
        """These rows, in order."""
        index = torch.from_numpy(rows)
        columns: dict[str, Any] = {name: column.index_select(0, index) for name, column in self.columns().items()}
        return replace(self, inputs=self.inputs.take(rows), **columns)

    def columns(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        return {f.name: t for f in fields(self) if isinstance(t := getattr(self, f.name), Tensor)}


def make_batch(
    inputs: Inputs,
    mask_B_T: BoolArray,
    found: Advantages,
    *,
    old: FloatArray | None = None,
    ref: FloatArray | None = None,
    behaviour: FloatArray | None = None,
    values: Mapping[str, FloatArray] | None = None,
    parts: BoolArray | None = None,
    auxiliary: Mapping[str, tuple[FloatArray, BoolArray]] | None = None,
    streams: np.ndarray | None = None,
) -> Batch[Inputs]:
    """A rollout with its advantages as rows of decisions: as many as the inputs have.

    Args:
        inputs: of the policy.
        mask_B_T: where there is a decision.
        found: advantages and value targets; value heads are in the order of `values`.
        old, ref, behaviour: (B, T), see `Batch`.
        values: source to (B, T) values before the update, where there is a critic.
        parts: of decisions with several log-probabilities, see `Batch`.
        auxiliary: source to (B, T) targets of its auxiliary head, and where they are known; in the order of the heads.
        streams: (R,) of rows that are calls of conversations, see `Batch`.
    """
    rows = len(inputs)

    def column(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).reshape(rows, -1 if array.size else 0)

    def heads(arrays: Mapping[str, np.ndarray]) -> Tensor | None:
        """Of every value head; 0, which is not known, where its source was not measured."""
        if not values:
            return None
        each = [arrays[name] if name in arrays else np.zeros_like(before) for name, before in values.items()]
        return torch.stack([column(one) for one in each], dim=-1)

    def targets(part: int) -> Tensor | None:
        if not auxiliary:
            return None
        return torch.stack([column(one[part]) for one in auxiliary.values()], dim=-1)

    def column_of(array: np.ndarray | None) -> Tensor | None:
        return None if array is None else column(array)

    return Batch(
        inputs,
        column(mask_B_T),
        column(found.advantages),
        old_log_probs=column_of(old),
        ref_log_probs=column_of(ref),
        behaviour=column_of(behaviour),
        values=heads(values or {}),
        returns=heads(found.value_targets),
        value_mask=heads(found.known),
        auxiliary=targets(0),
        auxiliary_mask=targets(1),
        parts=column_of(parts),
        streams=None if streams is None else torch.from_numpy(streams.astype(np.int64))[:, None],
    )


class _Sums(dict[str, float]):
    """Sums by name."""

    def add(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self[name] = self.get(name, 0.0) + value


def update_policy(
    policy: Evaluates[Inputs],
    optimizer: Optimizer,
    batch: Batch[Inputs],
    settings: AlgorithmSettings,
    rng: np.random.Generator,
    *,
    learning_rate: float,
    max_length: int | None = None,
) -> Metrics:
    """Passes over a batch, a gradient step per mini-batch, stopped early where the policy moved beyond `target_kl`.

    Args:
        policy: what is trained; with value heads where the batch has returns.
        optimizer: of its parameters.
        batch: what to learn from.
        settings: loss, aggregation, sizes.
        rng: the order of rows, where an epoch has more than one mini-batch.
        learning_rate: for every step.
        max_length: the length limit of a response (`loss_agg: constant`).

    Returns:
        Means over the gradient steps that were taken, None where there was none; of a user-defined policy loss
        also the numbers that it gives (`policy_loss/<name>`); `rollout_gap_*`: how far the acting policy's
        log-probabilities are from those that were sampled with; the counts `updates` and `skipped_updates` (losses or
        gradients that were not finite).

    Raises:
        NonFiniteError: too many in a row were not.
        ConfigError: a user-defined policy loss does not return what it must.
    """
    total, largest_gap, taken, skipped = _Sums(), 0.0, 0, 0
    names = _metric_names(batch, settings)
    policy_terms = policy_loss(settings)
    closed = isinstance(optimizer, FlatAdam)
    closed = closed and applies(policy, batch.columns(), policy_terms, settings)
    for rows, part in _mini_batches(batch, settings, rng):
        optimizer.zero_grad()
        streams = part.pop("streams", None)
        weights, divisor = _aggregation(part["mask"], settings, max_length, streams)
        counts = {name: part[name].sum((0, 1)).clamp_min(1.0) for name in _HEAD_MASKS if name in part}
        count = part["mask"].sum().clamp_min(1.0)
        if settings.normalize_minibatches:
            part["advantages"] = _standardise(part["advantages"], part["mask"])
        facts = _Sums()
        micro = settings.micro_batch_size
        if distributed.peers() > 1:
            micro = distributed.even(len(rows), micro)
        passes = policy.passes(batch.inputs, rows, micro)
        for here, counts_here in distributed.dealt(passes):
            columns = part | {"weights": weights}
            if len(passes) > 1 or not isinstance(here, slice):  # else one part holds them all, in their order
                columns = {name: column[here] for name, column in columns.items()}
            if not counts_here:
                columns |= {name: torch.zeros_like(columns[name]) for name in _COUNTED if name in columns}
            inputs = batch.inputs.take(rows[here])
            given = policy, inputs, columns, divisor, count, counts, policy_terms, settings
            if closed:
                facts.add(add_gradients(*given))  # type: ignore[arg-type]
                continue
            loss, numbers, gap = _loss(*given)
            loss.backward()  # type: ignore[no-untyped-call]
            facts.add(numbers)
            largest_gap = max(largest_gap, gap)
        facts.update(distributed.summed(facts))
        largest_gap = distributed.largest(largest_gap)
        if settings.target_kl is not None and facts["approx_kl"] > 1.5 * settings.target_kl:
            break
        norm = optimizer.step(
            facts["policy_loss"] + facts.get("value_loss", 0.0), settings.max_grad_norm, learning_rate
        )
        if norm is None:
            skipped += 1
            continue
        taken += 1
        total.add({**facts, "grad_norm": norm})
    names += [name for name in total if name not in names]  # numbers of a user-defined loss
    metrics: Metrics = {name: total[name] / taken if name in total else None for name in names}
    if batch.behaviour is not None:
        metrics["rollout_gap_max"] = largest_gap
    return metrics | {"updates": taken, "skipped_updates": skipped}


def _metric_names(batch: Batch[Inputs], settings: AlgorithmSettings) -> list[str]:
    names = ["policy_loss", "grad_norm", "entropy", "clip_fraction", "approx_kl"]
    names += ["value_loss"] if batch.returns is not None else []
    names += [f"auxiliary_loss/{name}" for name in settings.auxiliary_losses]
    names += ["kl"] if batch.ref_log_probs is not None else []
    return names + (["rollout_gap_mean"] if batch.behaviour is not None else [])


def _mini_batches(
    batch: Batch[Inputs], settings: AlgorithmSettings, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """Rows and columns of each gradient step; in their own order where one step takes them all.

    Columns are put in order once per epoch, which is cheaper than picking from each for every part; inputs, which may
    be pictures, are picked part by part.
    """
    if batch.streams is not None:
        yield from _mini_batches_of_streams(batch, batch.streams[:, 0].numpy(), settings, rng)
        return
    n = len(batch.inputs)
    size = settings.minibatch_size or n
    for _ in range(settings.num_epochs):
        order = np.arange(n) if size >= n else rng.permutation(n)
        index = torch.from_numpy(order)
        ordered = {name: torch.split(column.index_select(0, index), size) for name, column in batch.columns().items()}
        for i, here in enumerate(slices(n, size)):
            yield order[here], {name: parts[i] for name, parts in ordered.items()}


def _mini_batches_of_streams(
    batch: Batch[Inputs], streams_R: np.ndarray, settings: AlgorithmSettings, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """The same of whole conversations, of which `minibatch_size` are a gradient step."""
    rows_of = [np.flatnonzero(streams_R == stream) for stream in np.unique(streams_R)]
    n = len(rows_of)
    size = settings.minibatch_size or n
    for _ in range(settings.num_epochs):
        order = np.arange(n) if size >= n else rng.permutation(n)
        for here in slices(n, size):
            rows = np.concatenate([rows_of[k] for k in order[here]])
            index = torch.from_numpy(rows)
            yield rows, {name: column.index_select(0, index) for name, column in batch.columns().items()}


def _aggregation(
    mask: Tensor, settings: AlgorithmSettings, max_length: int | None, streams: Tensor | None = None
) -> tuple[Tensor, Tensor | float]:
    """Weights of the decisions of a gradient step, and what their weighted sum is divided by."""
    if settings.loss_agg == "token":
        return mask, mask.sum().clamp_min(1.0)
    streams_R = None if streams is None else streams[:, 0]
    return aggregation_weights(mask, settings.loss_agg, max_length=max_length, streams_B=streams_R), 1.0


def _loss(
    policy: Evaluates[Inputs],
    inputs: Inputs,
    columns: Mapping[str, Tensor],
    divisor: Tensor | float,
    count: Tensor,
    head_counts: Mapping[str, Tensor],
    policy_terms: PolicyLoss,
    settings: AlgorithmSettings,
) -> tuple[Tensor, dict[str, float], float]:
    """These rows' part of a gradient step's loss, its parts as plain numbers, and the largest gap to the sampler."""
    found = policy.evaluate(inputs, entropy=True)
    new, entropy = found.log_probs, found.entropy
    if "parts" in columns:
        parts, decisions = columns["parts"].to(new.device), columns["mask"].shape[1]
        new = sum_parts(new, parts, decisions)
        entropy = sum_parts(entropy, parts, decisions) if entropy is not None and entropy.ndim else entropy
    here = {name: column[:, : new.shape[1]].to(new.device) for name, column in columns.items()}
    mask, weights = here["mask"], here["weights"]
    old = here.get("old_log_probs", new.detach())

    def share(values: Tensor) -> float:
        return float((values.detach() * mask).sum() / count)

    terms, measured = policy_terms(new, old, here["advantages"], mask)
    policy_loss = (terms * weights).sum() / divisor
    numbers = {"policy_loss": float(policy_loss.detach()), "approx_kl": share(old_kl_terms(new, old))}
    for name, values in measured.items():
        numbers[logged_name(name)] = share(values)
    total = policy_loss
    if entropy is not None:
        everywhere = entropy.ndim == 0  # the same at every decision: it counts once, over all parts of a gradient step
        bonus = entropy * (weights.sum() / divisor) if everywhere else (entropy * weights).sum() / divisor
        total = total - settings.entropy_coef * bonus if settings.entropy_coef else total
        numbers["entropy"] = float(entropy.detach()) * float(mask.sum() / count) if everywhere else share(entropy)
    if "ref_log_probs" in here:
        gap = kl_terms(new, here["ref_log_probs"], settings.kl_type)
        total = total + settings.kl_coef * ((gap * weights).sum() / divisor)
        numbers["kl"] = share(gap)
    for name, half in _auxiliary_losses(found, here, head_counts, settings).items():
        total = total + settings.auxiliary_losses[name] * half
        numbers[f"auxiliary_loss/{name}"] = float(half.detach())
    if "value_mask" in here:
        value_loss = _value_loss(found, here, weights, head_counts["value_mask"].to(new.device), settings)
        total = total + settings.value_coef * value_loss
        numbers["value_loss"] = float(value_loss.detach())
    largest = 0.0
    if "behaviour" in here and mask.numel():
        apart = (old - here["behaviour"]).abs() * mask
        numbers["rollout_gap_mean"], largest = float(apart.sum() / count), float(apart.max())
    return total, numbers, largest


def _value_loss(
    found: Evaluated,
    here: Mapping[str, Tensor],
    weights: Tensor,
    value_count: Tensor,
    settings: AlgorithmSettings,
) -> Tensor:
    """Half the squared error of each value head where its target is known, aggregated as the policy loss is."""
    assert found.values is not None
    values = found.values[:, : here["returns"].shape[1]]  # of a call of a conversation: that before its first token
    errors = value_errors(values, here["returns"], here.get("values"), settings.clip_range_value)
    if settings.loss_agg != "token":
        return 0.5 * (errors * weights[..., None] * here["value_mask"]).sum()
    return 0.5 * ((errors * here["value_mask"]).sum((0, 1)) / value_count).sum()


def _auxiliary_losses(
    found: Evaluated,
    here: Mapping[str, Tensor],
    head_counts: Mapping[str, Tensor],
    settings: AlgorithmSettings,
) -> dict[str, Tensor]:
    """Of each auxiliary head half the mean squared error over all decisions whose target is known."""
    if "auxiliary" not in here:
        return {}
    assert found.auxiliary is not None
    errors = (found.auxiliary - here["auxiliary"]) ** 2 * here["auxiliary_mask"]
    means = 0.5 * errors.sum((0, 1)) / head_counts["auxiliary_mask"].to(errors.device)
    return dict(zip(settings.auxiliary_losses, means.unbind(), strict=True))


def _standardise(a: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum().clamp_min(1.0)
    mean = (a * mask).sum() / count
    centred = (a - mean) * mask
    return centred / ((centred * centred).sum() / (count - 1).clamp_min(1.0)).sqrt().add(1e-8)


def steps_per_update(settings: AlgorithmSettings, rows: int) -> int:
    """Gradient steps that an update of so many rows takes."""
    return settings.num_epochs * -(-rows // (settings.minibatch_size or max(rows, 1)))
