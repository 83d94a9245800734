"""Adam for small policies as one tensor, and for large ones tensor by tensor, with clipping and skipped steps.

optimizer = FlatAdam(policy, 1e-3)
optimizer.zero_grad()
loss.backward()
norm = optimizer.step(float(loss.detach()), max_norm=0.5)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from guerdon.compute import distributed
from guerdon.compute.finite import SkippedSteps
from guerdon.errors import CheckpointError

_OTHER = "the optimiser state is for {} parameters, this policy has {}"


def flatten(parameters: Sequence[nn.Parameter]) -> Tensor:
    """One tensor with all of these parameters, which become windows into it."""
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    offset = 0
    for p in parameters:
        p.data = flat[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    return flat


@contextmanager
def _flushed() -> Iterator[None]:
    """Denormal numbers are zero: the mean of a gradient that stays 0 becomes one, and slows a CPU down 30 times."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class FlatAdam:
    """Adam (Kingma & Ba 2015, 1412.6980) on all parameters of a small module as one tensor.

    The module's parameters become windows into `flat`; gradients are gathered into `flat.grad`, so that clipping and
    Adam are a handful of operations instead of one per layer.
    """

    def __init__(self, module: nn.Module, learning_rate: float, *, eps: float = 1e-5) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self.flat = flatten(self._parameters)
        self.flat.grad = torch.zeros_like(self.flat)
        offset = 0
        for p in self._parameters:
            p.grad = self.flat.grad[offset : offset + p.numel()].view_as(p)
            offset += p.numel()
        self.learning_rate, self._eps = learning_rate, eps
        self._moments = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(self.flat)}
        self._moments["exp_avg_sq"] = torch.zeros_like(self.flat)
        self.skipped = SkippedSteps("the policy", "algorithm.learning_rate")

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.flat.device

    def zero_grad(self) -> None:
        """Set gradients to zero, in place."""
        assert self.flat.grad is not None
        self.flat.grad.zero_()

    def step(self, loss: float, max_norm: float, learning_rate: float | None = None) -> float | None:
        """Clip gradients to a norm and step; the norm before clipping, None where a step is skipped as not finite.

        Args:
            loss: that the gradients are of.
            max_norm: of all gradients together.
            learning_rate: from now on; None: as it is.

        Raises:
            NonFiniteError: too many in a row were skipped.
        """
        grad = self.flat.grad
        assert grad is not None
        distributed.total(grad)
        norm = float(torch.linalg.vector_norm(grad))
        if not self.skipped.takes(loss, norm):
            return None
        if norm > max_norm:
            grad.mul_(max_norm / (norm + 1e-6))
        if learning_rate is not None:
            self.learning_rate = learning_rate
        steps, mean, square = self._moments.values()
        with torch.no_grad(), _flushed():  # `torch.optim.Adam.step` takes longer than what it calls
            steps.add_(1)
            torch._fused_adam_(
                [self.flat], [grad], [mean], [square], [], [steps], amsgrad=False, beta1=0.9, beta2=0.999,
                lr=self.learning_rate, weight_decay=0.0, eps=self._eps, maximize=False,
            )  # fmt: skip
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """Adam's moments and step count."""
        return {k: v.clone() for k, v in self._moments.items()} if self._moments["step"] else {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Return to stored moments.

        Raises:
            CheckpointError: they are of another policy.
        """
        if not tensors:
            return
        if tensors["exp_avg"].numel() != self.flat.numel():
            raise CheckpointError(_OTHER.format(tensors["exp_avg"].numel(), self.flat.numel()))
        for name, value in self._moments.items():
            value.copy_(tensors[name])


class AdamW:
    """AdamW (Loshchilov & Hutter 2019, 1711.05101) on the tensors that a large policy trains, each by itself.

    Args:
        parameters: what is trained.
        learning_rate: until `step` sets another.
        weight_decay: per step, times the learning rate.
        eps: added to the root of the second moment.
        flat: store the state as `FlatAdam` does, for one process that continues with it.
        what: what is trained, in words.
        key: the setting to change where training diverges.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        learning_rate: float,
        weight_decay: float = 0.0,
        *,
        eps: float = 1e-8,
        flat: bool = False,
        what: str = "the policy",
        key: str = "algorithm.learning_rate",
    ) -> None:
        self.optimizer = torch.optim.AdamW(
            distributed.alike(parameters), lr=learning_rate, weight_decay=weight_decay, eps=eps, fused=True
        )
        self._flat = flat
        distributed.keeps_whole_state(self.optimizer)
        self.skipped = SkippedSteps(what, key)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        first: Tensor = self.optimizer.param_groups[0]["params"][0]
        return first.device

    def zero_grad(self) -> None:
        """Drop gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, loss: float, max_norm: float, learning_rate: float | None = None) -> float | None:
        """As `FlatAdam.step`."""
        if learning_rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
        if self._flat:  # there, all weights have a gradient and the same number of steps
            for parameter in self._parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        with _flushed():
            return self.skipped.clipped_step(self.optimizer, loss, max_norm)

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors: `adam.<parameter>.<slot>`, or those of `FlatAdam`."""
        found = adam_tensors(self.optimizer)
        if not self._flat or not found:
            return found
        count = len(self._parameters)
        joined = {
            slot: torch.cat([found[f"adam.{i}.{slot}"].reshape(-1) for i in range(count)])
            for slot in ("exp_avg", "exp_avg_sq")
        }
        return {"step": found["adam.0.step"]} | joined

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Return to what `tensors` gave; names that are not of Adam are passed over.

        Raises:
            CheckpointError: they are of another policy.
        """
        if self._flat and tensors:
            sizes = [p.numel() for p in self._parameters]
            if tensors["exp_avg"].numel() != sum(sizes):
                raise CheckpointError(_OTHER.format(tensors["exp_avg"].numel(), sum(sizes)))
            parts = {slot: torch.split(tensors[slot], sizes) for slot in ("exp_avg", "exp_avg_sq")}
            tensors = {
                f"adam.{i}.{slot}": part[i].view(p.shape)
                for i, p in enumerate(self._parameters) for slot, part in parts.items()
            } | {f"adam.{i}.step": tensors["step"] for i in range(len(sizes))}  # fmt: skip
        load_adam(self.optimizer, tensors)

    @property
    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]


Optimizer = FlatAdam | AdamW


def adam_tensors(optimizer: torch.optim.Optimizer, prefix: str = "adam.") -> dict[str, Tensor]:
    """Copies of the state of AdamW: `<prefix><parameter>.<slot>`."""
    state = optimizer.state_dict()["state"]
    return {
        f"{prefix}{i}.{slot}": torch.as_tensor(value).detach().cpu().clone(memory_format=torch.contiguous_format)
        for i, slots in state.items()
        for slot, value in slots.items()
    }


def load_adam(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str = "adam.") -> None:
    """Restore what `adam_tensors` returned; other tensors are ignored."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            index, slot = name.removeprefix(prefix).split(".", 1)
            like = parameters[int(index)]
            # the fused optimiser walks moments and parameter as flat memory, so both need one layout
            whole = value.shape != like.shape or distributed.peers() > 1  # among several, the optimiser lays it out
            state.setdefault(int(index), {})[slot] = value.clone() if whole else torch.empty_like(like).copy_(value)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix.`, without it."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
