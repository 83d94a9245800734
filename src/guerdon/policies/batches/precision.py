"""Where to compute in bfloat16, which weights are kept in it, and a convolution that is right in it on the CPU.

uses_bf16("auto", torch.device("cpu"))
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def uses_bf16(choice: bool | Literal["auto"], device: torch.device) -> bool:
    """Whether to compute in bfloat16: as configured, or where the hardware multiplies it natively."""
    if choice != "auto":
        return choice
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def halve_linear(model: nn.Module) -> bool:
    """Keep the float32 matrices of linear layers that nobody trains in bfloat16, in place; the rest stays float32.

    Autocast rounds them to bfloat16 in every product anyway, so that what the network computes stays the same to the
    bit, in half of the memory and without the casts. Embeddings, an output matrix that is one with them, and
    normalisations stay float32, and with them the sums between layers.

    Returns:
        Whether there was one.
    """
    tied = {id(p) for layer in model.modules() if isinstance(layer, nn.Embedding) for p in layer.parameters()}
    found = False
    for layer in model.modules():
        if not isinstance(layer, nn.Linear) or layer.weight.dtype != torch.float32 or layer.weight.requires_grad:
            continue
        if id(layer.weight) not in tied:
            layer.weight.data = layer.weight.data.to(torch.bfloat16)
            found = True
    return found


class PaddedConv2d(nn.Conv2d):
    """A convolution that is right on maps that are narrower than its kernel, also in bfloat16.

    On such maps oneDNN's bfloat16 results hold memory that nobody wrote, numbers up to 1e38: gradients of the weight
    where the stride is larger than the map, and with AMX whole results where the map is one row or column behind it. So
    they are computed in float32 there; and padded before, where the stride is larger.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C', H', W')."""
        narrow = x.shape[-1] < self.kernel_size[1] or x.shape[-2] < self.kernel_size[0]
        if narrow and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return self._padded(x.float()).to(torch.get_autocast_dtype("cpu"))
        return self._padded(x)

    def _padded(self, x: Tensor) -> Tensor:
        if x.shape[-1] >= self.stride[1] and x.shape[-2] >= self.stride[0]:
            return super().forward(x)
        padded = F.pad(x, self._reversed_padding_repeated_twice)
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class _ProductOfCast(torch.autograd.Function):
    """hidden @ cast.T in bfloat16, with the gradient of the float32 weight that `cast` was made from."""

    @staticmethod
    def forward(ctx: Any, hidden_N_H: Tensor, weight_V_H: Tensor, cast_V_H: Tensor) -> Tensor:
        half = hidden_N_H.to(torch.bfloat16)
        ctx.save_for_backward(half, cast_V_H)
        ctx.dtypes = hidden_N_H.dtype, weight_V_H.dtype
        return F.linear(half, cast_V_H)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        half, cast = ctx.saved_tensors
        (gradient_N_V,) = gradients
        own, weights = ctx.dtypes
        to_hidden = (gradient_N_V @ cast).to(own) if ctx.needs_input_grad[0] else None
        to_weight = (gradient_N_V.t() @ half).to(weights) if ctx.needs_input_grad[1] else None
        return to_hidden, to_weight, None


def product_of_cast(hidden_N_H: Tensor, weight_V_H: Tensor, cast_V_H: Tensor) -> Tensor:
    """(N, V) what autocast makes of `hidden @ weight.T`, with a bfloat16 copy of the weight made before.

    Args:
        hidden_N_H: in any dtype.
        weight_V_H: gets the gradient.
        cast_V_H: the copy.
    """
    found: Tensor = _ProductOfCast.apply(hidden_N_H, weight_V_H, cast_V_H)  # type: ignore[no-untyped-call]
    return found
