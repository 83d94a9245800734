"""Weights that are finite: gradient steps that are skipped, and files that are refused.

A gradient that is not finite is skipped; several in a row mean that the weights are lost, and training stops. Weights
that are not finite, or so large that their norm is not, are neither written nor read. This module does not know whose
weights they are.

    save_weights({"weight": tensor}, folder / "model.safetensors")
    tensors = load_weights(folder / "model.safetensors")
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from guerdon.compute import distributed
from guerdon.errors import CheckpointError, NonFiniteError, naming
from guerdon.network.hub import check_links

MAX_SKIPPED = 10  # gradient steps in a row
EXTREME = "or look for inputs and rewards of extreme size"  # the second cause of all messages
DIVERGED = f"Lower the learning rate, {EXTREME}"


class SkippedSteps:
    """Counts gradient steps in a row whose loss or gradient was not finite.

    Args:
        what: what is trained, in words.
        key: the setting to change, in words.
    """

    def __init__(self, what: str, key: str) -> None:
        self._what, self._key = what, key
        self.in_a_row = 0

    def takes(self, *numbers: float) -> bool:
        """Whether a step with this loss and gradient norm is to be taken.

        Raises:
            NonFiniteError: it is not, and neither were those before it.
        """
        if all(map(math.isfinite, numbers)):
            self.in_a_row = 0
            return True
        self.in_a_row += 1
        if self.in_a_row >= MAX_SKIPPED:
            raise NonFiniteError(
                f"the last {self.in_a_row} updates of {self._what} were skipped, because the loss or its gradient is "
                f"not finite: lower {self._key}, {EXTREME}"
            )
        return False

    def clipped_step(self, optimizer: torch.optim.Optimizer, loss: float, max_norm: float) -> float | None:
        """Clip gradients to a norm and take the step; the norm before clipping, None where the step is skipped.

        Raises:
            NonFiniteError: too many in a row were.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        distributed.sum_gradients(parameters)
        if distributed.peers() > 1:
            norm = distributed.clip_gradients(parameters, max_norm)
        else:
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
        if not self.takes(loss, norm):
            return None
        optimizer.step()
        return norm


def first_non_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds NaN or an infinity, or whose norm overflows float32; None: no such."""
    for name, tensor in tensors:
        if not tensor.is_floating_point():
            continue
        values = tensor.detach()
        if name.endswith(".var"):  # of running statistics: as large as what is observed, squared
            values = values.sqrt()
        if values.element_size() in (1, 8):  # float8 and float64, which the norm does not take as they are
            values = values.float()
        if not torch.isfinite(torch.linalg.vector_norm(values, dtype=torch.float32)):
            return name
    return None


def refuse_to_write(tensors: Mapping[str, Tensor], where: Path) -> None:
    """Refuse to store weights that are not finite.

    Raises:
        NonFiniteError: some tensor is not.
    """
    name = first_non_finite(tensors.items())
    if name is not None:
        raise NonFiniteError(f"{where} is not written: {name} is not finite, so the training diverged. {DIVERGED}")


def refuse_to_read(tensors: Iterable[tuple[str, Tensor]], where: object) -> None:
    """Refuse stored weights that are not finite.

    Raises:
        CheckpointError: some tensor is not.
    """
    name = first_non_finite(tensors)
    if name is not None:
        raise CheckpointError(f"{where} cannot be used: its {name} is not finite; train it again, or use another one")


def save_weights(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        NonFiniteError: a tensor is not finite; nothing is written.
        OSError: the disk is full or not writable.
    """
    refuse_to_write(tensors, path)
    with naming(path):
        save_file({name: t.contiguous() for name, t in tensors.items()}, path, metadata={"format": "pt"})
    path.chmod(0o644)


def refuse_narrow(tensors: Mapping[str, Tensor], where: object) -> None:
    """Refuse weights that are stored in 8 bits or fewer: without the scale of their quantisation they mean nothing.

    Raises:
        CheckpointError: some tensor is so stored.
    """
    narrow = {name: one.dtype for name, one in tensors.items() if one.element_size() == 1 and one.dtype != torch.bool}
    if narrow:
        name, dtype = next(iter(narrow.items()))
        raise CheckpointError(stored_narrow(where, len(narrow), name, str(dtype).removeprefix("torch.")))


def stored_narrow(where: object, count: int, name: str, dtype: str) -> str:
    """The message about weights that are stored in a form whose scale is not known."""
    return (
        f"{where} cannot be used: {count} of its weights, such as {name}, are stored as {dtype}, and nothing says by "
        "which scale they become floats; store them in bfloat16 or float32"
    )


def load_weights(path: Path, *, states: bool = False) -> dict[str, Tensor]:
    """Read a safetensors file.

    Args:
        path: of the file.
        states: it also holds what is no weight, in bytes: states of random generators, or the kind of an activation.

    Raises:
        CheckpointError: a tensor is not finite or, without `states`, is stored in 8 bits; or a link leads out of the
            file's folder.
    """
    check_links(CheckpointError, "the weights of", path.parent)
    tensors: dict[str, Tensor] = load_file(path)
    if not states:
        refuse_narrow(tensors, path)
    refuse_to_read(tensors.items(), path)
    return tensors
