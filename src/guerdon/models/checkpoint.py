"""Reward models on disk: a card in JSON next to the weights, and the state of a model that goes on learning.

A card is a dataclass of plain values. A state is tensors and JSON values in one sealed folder; optimisers are tensors.

    write_card(folder / "vlm.json", card, type="qwen_vl")
    card = read_card(folder / "vlm.json", VLMCard)
    save_state(folder, model.tensors() | adam_tensors(optimizer), {"updates": 3})
    tensors, values = load_state(folder)
    load_adam(optimizer, tensors)
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from guerdon import __version__
from guerdon.errors import CheckpointError, boundary
from guerdon.files.atomic import sealed_folder, verify_folder, write_json

if TYPE_CHECKING:
    from torch import Tensor

_TENSORS, _VALUES = "state.safetensors", "state.json"

Card = TypeVar("Card")


def write_card(file: Path, card: Any, **more: Any) -> None:
    """Write a card, the version of guerdon, and more values."""
    write_json(file, asdict(card) | {"guerdon_version": __version__} | more)


def read_card(file: Path, kind: type[Card]) -> Card:
    """The card in a file.

    Args:
        file: in JSON.
        kind: the dataclass.

    Raises:
        CheckpointError: it cannot be read, or lacks fields.
    """
    with boundary(CheckpointError, f"{file} cannot be read"):
        record = json.loads(file.read_text(encoding="utf-8"))
        known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
        absent = sorted(known - record.keys())
        if absent:
            raise CheckpointError(f"{file} lacks {', '.join(absent)}: it was not written by `guerdon train`")
        return kind(**{name: record[name] for name in known})


def save_state(folder: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Write tensors and values in one piece; an older folder of that name is replaced.

    Raises:
        NonFiniteError: a tensor is not finite; the older folder stays.
    """
    from guerdon.compute.finite import save_weights  # imports torch

    with sealed_folder(folder) as temporary:
        save_weights(tensors, temporary / _TENSORS)
        write_json(temporary / _VALUES, values)


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_state` wrote.

    Raises:
        CheckpointError: it is incomplete, was altered, or a tensor is not finite.
    """
    from guerdon.compute.finite import load_weights  # imports torch

    verify_folder(folder)
    with boundary(CheckpointError, f"{folder} cannot be read"):
        return load_weights(folder / _TENSORS, states=True), json.loads((folder / _VALUES).read_text(encoding="utf-8"))
