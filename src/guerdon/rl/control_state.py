"""The whole state of the robots' side as tensors and plain values, and back: a resumed run goes on to the same bytes.

This module does not know what the parts do or when they are stored.

    tensors, values = take_state(side)
    restore_state(side, tensors, values)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from guerdon.rl.checkpoint import under

if TYPE_CHECKING:
    from guerdon.rl.control_side import ControlSide


def take_state(side: ControlSide) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON-able values of everything that decides what comes next."""
    tensors = {f"policy.{k}": v for k, v in side.policy.tensors().items()} | {
        f"optimizer.{k}": v for k, v in side.optimizer.tensors().items()
    }
    sources = {}
    for name, source in side.sources.items():
        more, sources[name] = source.state()
        tensors |= {f"source.{name}.{k}": v for k, v in more.items()}
    more, collector = side.collector.state()
    tensors |= {f"collector.{k}": v for k, v in more.items()}
    return tensors, {
        "collector": collector,
        "sources": list(side.policy.sources),
        "learning_rng": side.learning_rng.bit_generator.state,
        "book": side.book.state_dict(),
        "scaler": side.scaler.state_dict(),
        "source_values": sources,
    }


def restore_state(side: ControlSide, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Put a stored state into the parts of a side."""
    side.policy.load_tensors(under("policy", tensors))
    side.optimizer.load_tensors(under("optimizer", tensors))
    side.learning_rng.bit_generator.state = values["learning_rng"]
    side.book.load_state_dict(values["book"])
    side.scaler.load_state_dict(values["scaler"])
    for name, source in side.sources.items():
        source.restore(under(f"source.{name}", tensors), values["source_values"][name])
    side.collector.restore(under("collector", tensors), values["collector"])
