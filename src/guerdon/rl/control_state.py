"""The whole state of the robots' side as tensors and plain values, and back: a resumed run goes on to the same bytes.

This module does not know what the parts do or when they are stored.

    tensors, values = take_state(side)
    restore_state(side, tensors, values)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from guerdon.rl.checkpoint import under

if TYPE_CHECKING:
    from guerdon.rl.control_side import ControlSide


def take_state(side: ControlSide) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON-able values of everything that decides what comes next."""
    tensors = {f"policy.{k}": v for k, v in side.policy.tensors().items()} | {
        f"optimizer.{k}": v for k, v in side.optimizer.tensors().items()
    }
    keep_ups = {}
    for name, keep_up in side.keep_ups.items():
        more, keep_ups[name] = keep_up.state_dict()
        tensors |= {f"keep_up/{name}.{k}": v for k, v in more.items()}
    for name, source in side.sources.items():
        tensors |= {f"seen/{name}.{env}": torch.from_numpy(v) for env, v in source.seen_arrays().items()}
    more, collector = side.collector.state()
    tensors |= {f"collector.{k}": v for k, v in more.items()}
    return tensors, {
        "collector": collector,
        "sources": list(side.policy.sources),
        "learning_rng": side.learning_rng.bit_generator.state,
        "book": side.book.state_dict(),
        "scaler": side.scaler.state_dict(),
        "carries": {name: source.state_dict() for name, source in side.sources.items()},
        "keep_ups": keep_ups,
    }


def restore_state(side: ControlSide, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Put a stored state into the parts of a side."""
    side.policy.load_tensors(under("policy", tensors))
    side.optimizer.load_tensors(under("optimizer", tensors))
    side.learning_rng.bit_generator.state = values["learning_rng"]
    side.book.load_state_dict(values["book"])
    side.scaler.load_state_dict(values["scaler"])
    for name, source in side.sources.items():
        source.load_state_dict(values["carries"][name])
        source.load_seen({env: frames.numpy() for env, frames in under(f"seen/{name}", tensors).items()})
    for name, keep_up in side.keep_ups.items():
        keep_up.load_state_dict(under(f"keep_up/{name}", tensors), values["keep_ups"][name])
    side.collector.restore(under("collector", tensors), values["collector"])
