"""Weights spread over the processes of `guerdon.compute.distributed` by FSDP2, and activations that are computed again.

Each process holds an equal part of every tensor, with its gradient and its moments. The blocks of a model are gathered
one after the other while they compute; the rest of its weights are whole as long as `Shards.run` lasts.

    shards = Shards(model)                      # in every process, with the same values
    loss = shards.run(lambda: model(x).sum())
    with shards.whole():                        # in the first process: plain tensors
        model(x)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from guerdon.compute import distributed
from guerdon.processes.clock import counted

T = TypeVar("T")
Module = TypeVar("Module", bound=nn.Module)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The layers that a model of transformers, or a part of it, says are not to be split, in their order."""
    kinds = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [m for m in model.modules() if kinds & {kind.__name__ for kind in type(m).__mro__}]  # FSDP derives classes


def recompute(blocks: Sequence[nn.Module]) -> None:
    """Keep only what goes into these layers for the backward pass, and compute the rest there again."""
    for block in blocks:
        block.forward = partial(_recomputed, block, block.forward)


def _recomputed(block: nn.Module, forward: Callable[..., Any], *given: Any, **options: Any) -> Any:
    read = (one for one in tree_leaves((given, options)) if isinstance(one, Tensor))
    if not torch.is_grad_enabled() or not any(one.requires_grad for one in (*block.parameters(), *read)):
        return forward(*given, **options)
    return checkpoint(forward, *given, use_reentrant=False, **options)


def _add_up_gradients(blocks: Sequence[Any]) -> None:
    """Let FSDP add up gradients over the processes, as each is of a part of one loss."""
    for block in blocks:
        block.set_gradient_divide_factor(1.0)
        block.set_force_sum_reduction_for_comms(True)
        if distributed.mesh().device_type == "cpu":
            block.set_custom_reduce_scatter(_Exchange())
            block._set_unshard_async_op(True)  # gathered while the block after it goes backward


class Shards:
    """The weights of a model, sharded over the processes by FSDP2: each holds an equal part of every tensor.

    Weights that are added later (adapters, heads) stay whole in every process; `distributed.sum_gradients` is theirs.

    Args:
        model: with the same values in all processes, or on torch's device `meta`; changed in place.
        weights: of a model on `meta`, by name; a block of them is in memory at a time where they are mapped files.
        dtype: of those weights in the model.
        half: gather the blocks in bfloat16, in which they compute; gradients are added up in float32.
        offload: weights, gradients and moments stay in memory of the CPU; blocks that compute are on the GPU.

    Attributes:
        device: where it computes.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weights: Mapping[str, Tensor] | None = None,
        dtype: torch.dtype = torch.float32,
        half: bool = False,
        offload: bool = False,
    ) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # which nothing changes in place
        options: dict[str, Any] = {"mesh": distributed.mesh(), "reshard_after_forward": True}
        if offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        of_blocks = dict(options)
        if half:
            of_blocks["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        places = {} if weights is None else _places(model)
        self._root: Any = _Root(model)
        for block in reversed(blocks_of(model)):  # what is inside another one comes before it
            _fill(block, places, weights, dtype)
            for norm in (part for part in block.modules() if half and isinstance(part, nn.LayerNorm)):
                norm.forward = partial(_normalised, norm)  # type: ignore[method-assign]
            fully_shard(block, **of_blocks)
        _fill(model, places, weights, dtype)
        for name, buffer in model.named_buffers():
            if weights is not None and name in weights:
                buffer.copy_(weights[name])
        fully_shard(self._root, **options)
        self._blocks: list[Any] = [m for m in self._root.modules() if isinstance(m, FSDPModule)]
        _add_up_gradients(self._blocks)
        self._running = self._whole = 0
        self.device = torch.empty(0, device=distributed.mesh().device_type).device
        self.run(lambda: None)  # FSDP finds out which module is the outermost one
        distributed.register(self)

    def run(self, call: Callable[[], T]) -> T:
        """What `call` computes with the weights; all processes call it alike, or one of them inside `whole`.

        Its result has its tensors in tuples, lists and dicts, in which FSDP finds them.
        """
        if self._running or self._whole:
            return call()
        self._running += 1
        try:
            return self._root(call)  # type: ignore[no-any-return]
        finally:
            self._running -= 1

    @property
    def gathered(self) -> bool:
        """Whether all weights are plain tensors now."""
        return self._whole > 0

    def with_rest_on(self, module: Module, device: torch.device) -> Module:
        """A module with this model in it, whose other weights and buffers are moved to a device."""
        for parameter in module.parameters():
            if not distributed.is_sharded(parameter):
                parameter.data = parameter.data.to(device)
        for part in module.modules():
            part._buffers = {name: None if b is None else b.to(device) for name, b in part._buffers.items()}
        return module

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All weights are plain tensors inside the block, which computes nothing with gradients.

        Every process holds all weights inside the block.
        """
        if not self._whole:
            with torch.inference_mode(False), torch.no_grad():
                self._gather()
        self._whole += 1
        try:
            yield
        finally:
            self._whole -= 1
            if not self._whole:
                self.let_go()

    @distributed.collective
    @counted("weights")
    def _gather(self) -> None:
        self.let_go()
        for block in self._blocks:
            block.set_reshard_after_forward(False, recurse=False)
            block.unshard()

    def let_go(self) -> None:
        """Keep this process's part of the weights alone: at the end of `whole`, in the others at the next call."""
        for block in self._blocks:
            block.set_reshard_after_forward(True, recurse=False)
        self._root.reset_iter_state()  # gives the gathered weights up and forgets what was computed with them


class _Root(nn.Module):
    """Gives FSDP a forward pass to attach to, whatever is computed in it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, call: Callable[[], Any]) -> Any:
        return call()


class _Exchange:
    """Adds up gradients over the processes: each sends the parts of the others.

    Gloo's own reduce-scatter sends every process all of the sum.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is sent or received."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Put the sum of the own part, over all processes, into `output_tensor`."""
        received = torch.empty_like(input_tensor)
        torch.distributed.all_to_all_single(received, input_tensor, group=group)
        torch.sum(received.view(group.size(), -1), 0, out=output_tensor)


def _normalised(norm: nn.LayerNorm, states: Tensor) -> Tensor:
    """What a layer norm gives, whose weights were gathered in bfloat16; a CPU refuses them on float32 states."""
    weight, bias = (None if one is None else one.to(states.dtype) for one in (norm.weight, norm.bias))
    return nn.functional.layer_norm(states, norm.normalized_shape, weight, bias, norm.eps)


def _places(model: nn.Module) -> dict[int, list[tuple[nn.Module, str, str]]]:
    """By parameter: the modules that have it, its name there, and its name in the model; several where it is shared."""
    found: dict[int, list[tuple[nn.Module, str, str]]] = {}
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            found.setdefault(id(parameter), []).append((module, leaf, f"{path}.{leaf}" if path else leaf))
    return found


def _fill(
    module: nn.Module,
    places: Mapping[int, list[tuple[nn.Module, str, str]]],
    weights: Mapping[str, Tensor] | None,
    dtype: torch.dtype,
) -> None:
    """Give the parameters of a module that are on `meta` their values."""
    for parameter in list(module.parameters()):
        if weights is None or parameter.device.type != "meta":
            continue
        names = [name for _, _, name in places[id(parameter)]]
        value = next(weights[name] for name in names if name in weights)
        value = value.to(dtype, copy=True, memory_format=torch.contiguous_format)
        filled = nn.Parameter(value, requires_grad=parameter.requires_grad)
        for owner, leaf, _ in places[id(parameter)]:
            setattr(owner, leaf, filled)
