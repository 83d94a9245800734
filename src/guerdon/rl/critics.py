"""An ensemble of critics with one output per source of reward, computed as batched matrix products.

Gradients are in closed form: at these sizes autograd takes as long as the products.

    critics = Critics(43, (128, 128), outputs=2, members=2)
    q_M_N_H, kept = critics.forward(x_N_43)
    critics.add_gradients(kept, gradient_M_N_H)                 # to the parameters
    gradient_N_43 = critics.input_gradient(kept, gradient_M_N_H)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

_EPS = 1e-5  # of the layer norm


class _Kept(NamedTuple):
    """What the gradient of a layer needs: its input, its output, and the normalised values and 1 / deviation."""

    input: Tensor
    output: Tensor
    normal: Tensor | None
    scale: Tensor | None


class Critics(nn.Module):
    """M networks with the same layers and weights of their own.

    Args:
        inputs: features and numbers of an action.
        hidden: widths of the hidden layers.
        outputs: sources.
        members: M.
        activation: `tanh` or `relu`.
        layer_norm: normalise before each activation.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        *,
        outputs: int,
        members: int,
        activation: str = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden, outputs]
        self.members, self.tanh, self.layer_norm = members, activation == "tanh", layer_norm
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.gains, self.shifts = nn.ParameterList(), nn.ParameterList()
        for before, after in pairwise(widths):
            bound = before**-0.5
            self.weights.append(nn.Parameter(torch.empty(members, before, after).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(members, 1, after).uniform_(-bound, bound)))
        for width in hidden if layer_norm else ():
            self.gains.append(nn.Parameter(torch.ones(members, 1, width)))
            self.shifts.append(nn.Parameter(torch.zeros(members, 1, width)))

    def forward(self, x_N_I: Tensor, members: Tensor | None = None) -> tuple[Tensor, list[_Kept]]:
        """(M, N, H) values, and what the gradients need.

        Args:
            x_N_I: features and actions side by side.
            members: (m,) places of the networks that are wanted; None: all.
        """

        def of(parameters: nn.ParameterList, layer: int) -> Tensor:
            whole: Tensor = parameters[layer].detach()
            return whole if members is None else whole.index_select(0, members)

        count = self.members if members is None else len(members)
        x, kept, last = x_N_I.detach().expand(count, -1, -1), [], len(self.weights) - 1
        for layer in range(last + 1):
            out = torch.baddbmm(of(self.biases, layer), x, of(self.weights, layer))
            normal = scale = None
            if layer < last:
                if self.layer_norm:
                    normal, _, scale = torch.native_layer_norm(out, out.shape[-1:], None, None, _EPS)
                    out = torch.addcmul(of(self.shifts, layer), normal, of(self.gains, layer))
                out = out.tanh_() if self.tanh else out.relu_()
            kept.append(_Kept(x, out, normal, scale))
            x = out
        return x, kept

    def add_gradients(self, kept: Sequence[_Kept], gradient_M_N_H: Tensor, *, inputs: bool = False) -> Tensor | None:
        """Write the gradients of the parameters, of a loss with this gradient of the values.

        Args:
            kept: of `forward` with all members.
            gradient_M_N_H: of the values.
            inputs: the gradient of the input is wanted, too.

        Returns:
            (N, I) the gradient of the input, over all members; None where it is not wanted.
        """
        return self._backward(kept, gradient_M_N_H, parameters=True, inputs=inputs)

    def input_gradient(self, kept: Sequence[_Kept], gradient_M_N_H: Tensor) -> Tensor:
        """(N, I) gradient of the input alone, over all members."""
        found = self._backward(kept, gradient_M_N_H, parameters=False, inputs=True)
        assert found is not None
        return found

    @torch.no_grad()
    def _backward(self, kept: Sequence[_Kept], gradient: Tensor, *, parameters: bool, inputs: bool) -> Tensor | None:
        for layer in range(len(self.weights) - 1, -1, -1):
            one = kept[layer]
            if layer < len(self.weights) - 1:
                gradient = gradient * (1 - one.output * one.output) if self.tanh else _where(one.output, gradient)
                if one.normal is not None and one.scale is not None:
                    if parameters:
                        _write(self.gains[layer], (gradient * one.normal).sum(1, keepdim=True))
                        _write(self.shifts[layer], gradient.sum(1, keepdim=True))
                    inner = gradient * self.gains[layer]
                    mean, along = inner.mean(-1, keepdim=True), (inner * one.normal).mean(-1, keepdim=True)
                    gradient = (inner - mean - one.normal * along) * one.scale
            if parameters:
                grad = _room(self.weights[layer])
                torch.bmm(one.input.mT, gradient, out=grad)
                torch.sum(gradient, 1, keepdim=True, out=_room(self.biases[layer]))
            if layer:
                gradient = torch.bmm(gradient, self.weights[layer].mT)
            elif inputs:
                return torch.bmm(gradient, self.weights[0].mT).sum(0)
        return None


def _where(output: Tensor, gradient: Tensor) -> Tensor:
    """The gradient before a ReLU."""
    return torch.ops.aten.threshold_backward(gradient, output, 0)  # type: ignore[no-any-return]


def _room(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
    return parameter.grad


def _write(parameter: Tensor, gradient: Tensor) -> None:
    _room(parameter).copy_(gradient)
