"""Solutions in one forward pass of a family's own network: packed into one row, or side by side.

Packed, every layer but attention works on real tokens only. That needs a network which reads packed solutions as it
reads each alone (`policies.packing.packs`); others are padded on the right, where a causal model never looks. This
module does not know what is read from the hidden states.

    lay = layer(model, tokenizer)
    laid = lay(marked)
    hidden = model(**laid.inputs).last_hidden_state.flatten(0, 1)[laid.places_M]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.models.adapters.steps import Marked
from guerdon.policies import packing
from guerdon.policies.packing import PACKED_ATTENTION, Packing
from guerdon.policies.tokens import pad_id, pad_right
from guerdon.types import FloatArray


@dataclass(frozen=True, eq=False)
class Laid:
    """Solutions as a network takes them.

    Attributes:
        inputs: what it is called with.
        places_M: for all steps, solution by solution, their place in the flattened output.
        counts: steps of each solution.
    """

    inputs: dict[str, Any]
    places_M: Tensor
    counts: tuple[int, ...]

    def split(self, values_M: Tensor) -> list[FloatArray]:
        """Values of all steps, by solution."""
        values = values_M.float().cpu().numpy()
        return [np.asarray(v, dtype=np.float32) for v in np.split(values, np.cumsum(self.counts)[:-1])]


def layer(model: Any, tokenizer: Any) -> Callable[[Sequence[Marked]], Laid]:
    """How this network reads several solutions at once; it is told which attention to use from now on.

    Args:
        model: a network of transformers, for reading only.
        tokenizer: of the model.
    """
    if not packing.packs(model):
        return lambda batch: pad(batch, tokenizer, model.device)
    model.set_attn_implementation(PACKED_ATTENTION)
    return lambda batch: pack(batch, model.device)


def pad(batch: Sequence[Marked], tokenizer: Any, device: torch.device) -> Laid:
    """Side by side, filled up on the right."""
    ids, mask = pad_right([m.ids for m in batch], pad_id(tokenizer))
    inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
    return _laid(batch, np.arange(len(batch)) * ids.shape[1], inputs, device)


def pack(batch: Sequence[Marked], device: torch.device) -> Laid:
    """One behind the other in a single row; attention keeps them apart."""
    lengths = [len(m.ids) for m in batch]
    longest, starts = max(lengths), np.cumsum([0, *lengths[:-1]])
    positions = np.concatenate([np.arange(n) for n in lengths])
    rows = np.repeat(np.arange(len(batch)) * longest, lengths) + positions
    inputs = {
        "input_ids": torch.from_numpy(np.concatenate([m.ids for m in batch]))[None],
        "position_ids": torch.from_numpy(positions)[None],
    }
    laid = _laid(batch, starts, inputs, device)
    laid.inputs["packing"] = Packing(torch.from_numpy(rows).to(device), len(batch), longest, eager=False)
    return laid


def _laid(batch: Sequence[Marked], starts_B: np.ndarray, inputs: dict[str, Tensor], device: torch.device) -> Laid:
    places = np.concatenate([start + m.places for start, m in zip(starts_B, batch, strict=True)])
    placed: dict[str, Any] = {name: tensor.to(device) for name, tensor in inputs.items()}
    return Laid(placed, torch.from_numpy(places).to(device), tuple(len(m.places) for m in batch))
