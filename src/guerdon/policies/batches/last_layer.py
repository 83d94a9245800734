"""The last layer of a network at the tokens that are read, and nowhere else.

A classifier reads its head at one token of each sequence. Below the last layer every token is needed, for what others
take from it; in the last layer only the keys and values are. Queries, the output of the attention and what follows it
are computed at the tokens that are read; at all others the result is not that of the network, and nobody reads it.

    last = LastLayer.of(model)
    with last.only(places):
        hidden = model.base_model(...).last_hidden_state[0, places]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class LastLayer:
    """The parts of a layer that work on each token by itself.

    Args:
        index: of the layer.
        parts: modules that take (1, N, H) and give (1, N, ...).
    """

    def __init__(self, index: int, parts: list[nn.Module]) -> None:
        self.index, self._parts = index, parts

    @classmethod
    def of(cls, model: Any) -> LastLayer | None:
        """That of a network of transformers; None where it has other parts than most."""
        layers = getattr(model.base_model, "layers", None)
        if not isinstance(layers, nn.ModuleList) or not len(layers):
            return None
        attention, mlp = getattr(layers[-1], "self_attn", None), getattr(layers[-1], "mlp", None)
        output, query = getattr(attention, "o_proj", None), getattr(attention, "q_proj", None)
        if not isinstance(output, nn.Linear) or not isinstance(mlp, nn.Module):
            return None
        if getattr(attention, "layer_idx", None) != len(layers) - 1:
            return None
        parts: list[nn.Module] = [output, mlp]
        if isinstance(query, nn.Linear):
            parts.append(query)
        return cls(len(layers) - 1, parts)

    @contextmanager
    def only(self, places_M: Tensor) -> Iterator[None]:
        """Inside the block the layer is computed at these tokens of a row alone.

        Args:
            places_M: of the row without padding.
        """
        try:
            for part in self._parts:
                part.forward = _at(part.forward, places_M)
            yield
        finally:
            for part in self._parts:
                part.__dict__.pop("forward", None)


def _at(whole: Callable[..., Any], places_M: Tensor) -> Callable[..., Any]:
    """A module's forward pass at some tokens, with zeros at the others."""

    def forward(x: Tensor, *args: Any, **keys: Any) -> Any:
        found = whole(x[:, places_M], *args, **keys)
        if not isinstance(found, Tensor):
            return whole(x, *args, **keys)
        full = found.new_zeros(*x.shape[:2], *found.shape[2:])
        full[:, places_M] = found
        return full

    return forward
