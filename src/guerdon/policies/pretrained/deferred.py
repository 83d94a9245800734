"""Models made in code on torch's device `meta`, whose random weights are drawn when they are read, one at a time.

    with seeded(0):
        model, weights = deferred(lambda: nn.Linear(4096, 4096))
    weights["weight"].to(torch.float32, copy=True)      # what nn.Linear would have drawn, to the bit

What was written to a weight is recorded with the state of the random numbers before it, and repeated at each reading.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from guerdon.policies.pretrained.reading import ComputedWeight

Model = TypeVar("Model", bound=nn.Module)
_IS_META = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]
Operation = tuple[Any, Any, Any, Tensor | None]  # function, arguments, options, state of random numbers before it


def deferred(make: Callable[[], Model]) -> tuple[Model, dict[str, Tensor]]:
    """A model whose large weights are on `meta`, and their values by name, each computed when an operation reads it.

    Global random state ends where it would after `make`, which draws one tensor at a time.

    Args:
        make: makes a model in float32 on the CPU.

    Raises:
        AssertionError: it writes to places of a weight that another tensor names (`weight[rows] = 0`), or draws from a
            generator of its own.
    """
    with _Deferring() as records, _Drawn():
        model = make()
    for module in model.modules():
        module._buffers = {name: one if one is None else records.value(one) for name, one in module._buffers.items()}
    weights = {name: ComputedWeight(own.shape, partial(records.value, own.detach()))
               for name, own in model.named_parameters(remove_duplicate=False) if own.is_meta}  # fmt: skip
    return model, weights  # type: ignore[return-value]


class _Deferring(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts what `torch.empty` makes on `meta` and records what is written there; other operations read its values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._written: dict[int, tuple[Any, list[Operation]]] = {}  # by storage, which is kept so that its id is

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What an operation gives."""
        options = kwargs or {}
        if func is torch.ops.aten.empty.memory_format and _is_weight(options):
            made: Tensor = func(*args, **{**options, "device": "meta", "pin_memory": None})
            storage = made.untyped_storage()
            self._written[storage._cdata] = (storage, [])
            return made
        known = [one for one in tree_leaves((args, options)) if isinstance(one, Tensor) and self._known(one)]
        if not known or func.is_view:
            return func(*args, **options)
        if not func._schema.is_mutable:
            there = {**options, "device": torch.device("cpu")} if "device" in options else options
            return func(*self._read(args), **self._read(there))
        assert self._known(args[0]), f"{func} writes to more than its first argument"
        assert options.get("generator") is None, "deferred weights are drawn from the global random state"
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        steps, state = self._written[args[0].untyped_storage()._cdata][1], torch.get_rng_state() if drawn else None
        written = args[0].detach()
        rest, options = tree_map_only(Tensor, lambda one: self.value(one).clone(), (args[1:], options))
        if drawn:
            func(self.value(written), *rest, **options)  # moves the random numbers on
        steps.append((func, (written, *rest), options, state))
        return args[0]

    def _known(self, tensor: Tensor) -> bool:
        return tensor.device.type == "meta" and tensor.untyped_storage()._cdata in self._written

    def _read(self, tree: Any) -> Any:
        return tree_map_only(Tensor, self.value, tree)

    def value(self, tensor: Tensor) -> Tensor:
        """The values of a tensor: itself, where it is not one of those on `meta`."""
        if not self._known(tensor):
            assert tensor.device.type != "meta", "places of a deferred weight that a tensor names cannot be written to"
            return tensor
        storage, steps = self._written[tensor.untyped_storage()._cdata]
        whole = torch.empty(storage.nbytes() // tensor.element_size(), dtype=tensor.dtype)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for func, (written, *rest), options, state in steps:
                if state is not None:
                    torch.set_rng_state(state)
                func(_seen(whole, written), *rest, **options)
        return _seen(whole, tensor)


class _Drawn(TorchFunctionMode):
    """Makes the functions of `torch.nn.init`, some of which leave out what is on `meta`, draw it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What a function gives."""
        return False if func == _IS_META else func(*args, **(kwargs or {}))


def _is_weight(options: dict[str, Any]) -> bool:
    device, dtype = options.get("device"), options.get("dtype") or torch.get_default_dtype()
    return (device is None or device.type == "cpu") and dtype == torch.float32


def _seen(whole: Tensor, part: Tensor) -> Tensor:
    return whole.as_strided(part.shape, part.stride(), part.storage_offset())
