"""An ensemble of critics with one output per source of reward, computed as batched matrix products.

Gradients are in closed form: at these sizes autograd takes as long as the products.

layers = Critics(43, (128, 128), outputs=2, members=2).layers()
q_M_N_H, kept = layers.forward(x_N_43)
gradient_N_43 = layers.backward(kept, gradient_M_N_H, parameters=True, inputs=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from guerdon.rl.sac_step import FixedNetwork, SeenParameter

_EPS = 1e-5  # of the layer norm of critics


class Kept(NamedTuple):
    """What the gradient of a layer needs: its input, its output, and the normalised values and 1 / deviation."""

    input: Tensor
    output: Tensor
    normal: Tensor | None
    scale: Tensor | None

    def rows(self, rows: slice) -> Kept:
        """Of these rows alone; not with a layer norm."""
        return Kept(self.input[:, rows], self.output[:, rows], None, None)


class Layers:
    """Linear layers of M networks, with gradients in closed form. It holds no parameters: it sees those of modules.

    Args:
        weights: (M, I, O) of each layer; `grads` is what their gradients are written to.
        biases: (M, 1, O).
        norms: gains and shifts (M, 1, O) of the layer norm before each activation; empty: there is none.
        tanh: between the layers; False: ReLU.

    Attributes:
        plain: there is no layer norm, and they are on the CPU.
    """

    def __init__(
        self,
        weights: Sequence[SeenParameter],
        biases: Sequence[SeenParameter],
        norms: Sequence[tuple[SeenParameter, SeenParameter]],
        *,
        tanh: bool,
    ) -> None:
        self._weights, self._biases, self._norms, self._tanh = weights, biases, norms, tanh
        self.plain = not norms and weights[0].value.device.type == "cpu"

    def forward(self, x_N_I: Tensor, members: Tensor | None = None) -> tuple[Tensor, list[Kept]]:
        """(M, N, O) outputs, and what the gradients need.

        Args:
            x_N_I: the input of all networks.
            members: (m,) places of the networks that are wanted; None: all.
        """

        def of(seen: SeenParameter) -> Tensor:
            return seen.value if members is None else seen.value.index_select(0, members)

        count = len(self._weights[0].value) if members is None else len(members)
        x, kept, last = x_N_I.detach().expand(count, -1, -1), [], len(self._weights) - 1
        for layer in range(last + 1):
            out = torch.baddbmm(of(self._biases[layer]), x, of(self._weights[layer]))
            normal = scale = None
            if layer < last:
                if self._norms:
                    normal, _, scale = torch.native_layer_norm(out, out.shape[-1:], None, None, _EPS)
                    gain, shift = self._norms[layer]
                    out = torch.addcmul(of(shift), normal, of(gain))
                out = out.tanh_() if self._tanh else out.relu_()
            kept.append(Kept(x, out, normal, scale))
            x = out
        return x, kept

    @torch.no_grad()
    def backward(
        self, kept: Sequence[Kept], gradient_M_N_O: Tensor, *, parameters: bool, inputs: bool
    ) -> Tensor | None:
        """The gradients of a loss with this gradient of the outputs.

        Args:
            kept: of `forward` with all networks.
            gradient_M_N_O: of the outputs.
            parameters: write those of the parameters.
            inputs: return (N, I) that of the input, over all networks.
        """
        gradient = gradient_M_N_O
        for layer in range(len(self._weights) - 1, -1, -1):
            one = kept[layer]
            if layer < len(self._weights) - 1:
                gradient = _before_activation(one.output, gradient, tanh=self._tanh)
                if one.normal is not None and one.scale is not None:
                    gain, shift = self._norms[layer]
                    if parameters:
                        gain.grad.copy_((gradient * one.normal).sum(1, keepdim=True))
                        torch.sum(gradient, 1, keepdim=True, out=shift.grad)
                    inner = gradient * gain.value
                    mean, along = inner.mean(-1, keepdim=True), (inner * one.normal).mean(-1, keepdim=True)
                    gradient = (inner - mean - one.normal * along) * one.scale
            if parameters:
                torch.bmm(one.input.mT, gradient, out=self._weights[layer].grad)
                torch.sum(gradient, 1, keepdim=True, out=self._biases[layer].grad)
            if layer:
                gradient = torch.bmm(gradient, self._weights[layer].value.mT)
            elif inputs:
                return torch.bmm(gradient, self._weights[0].value.mT).sum(0)
        return None

    def fixed(self, rows: int, learning: int) -> FixedNetwork:
        """The same for batches of a fixed size, of which the first `learning` rows have gradients."""
        return FixedNetwork(self._weights, self._biases, tanh=self._tanh, rows=rows, learning=learning)


def _see(parameter: Tensor, *, turned: bool = False) -> SeenParameter:
    """A parameter; of a linear layer as one of one network, its weights turned."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.ndim == 3:
        return SeenParameter(parameter.detach(), parameter.grad)
    value, grad = parameter.detach(), parameter.grad
    return (
        SeenParameter(value.t()[None], grad.t()[None]) if turned else SeenParameter(value[None, None], grad[None, None])
    )


def layers_of(network: nn.Module) -> Layers | None:
    """The layers of a plain network; None where it has others than linear ones with one kind of activation between.

    Parameters must stay where they are from then on.
    """
    parts = list(network) if isinstance(network, nn.Sequential) else []
    between = {type(part) for part in parts[1::2]}
    if not parts or not all(isinstance(part, nn.Linear) for part in parts[::2]) or len(between) > 1:
        return None
    if not between <= {nn.Tanh, nn.ReLU}:
        return None
    linear: list[Any] = parts[::2]
    weights, biases = [_see(one.weight, turned=True) for one in linear], [_see(one.bias) for one in linear]
    return Layers(weights, biases, [], tanh=between == {nn.Tanh})


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

    def layers(self) -> Layers:
        """Their layers; parameters must stay where they are from then on."""
        norms = [(_see(gain), _see(shift)) for gain, shift in zip(self.gains, self.shifts, strict=True)]
        weights, biases = [_see(one) for one in self.weights], [_see(one) for one in self.biases]
        return Layers(weights, biases, norms, tanh=self.tanh)


def _before_activation(output: Tensor, gradient: Tensor, *, tanh: bool) -> Tensor:
    """The gradient before an activation, in place of the one after it."""
    if tanh:
        return gradient.mul_(1 - output * output)
    found: Tensor = torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)
    return found
