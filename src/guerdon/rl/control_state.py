"""The whole state of the robots' side as tensors and plain values, and back: a resumed run goes on to the same bytes.

This module does not know what the parts do or when they are stored.

    tensors, values = take_state(side)
    restore_state(side, tensors, values)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
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
    world = side.world.state_dict()
    tensors["world.observations"] = torch.from_numpy(np.ascontiguousarray(world.pop("observations")))
    for i, past in enumerate(world.pop("actions")):
        tensors[f"world.actions.{i}"] = torch.from_numpy(np.ascontiguousarray(past))
    recorder = side.recorder
    if side.recording is not None:
        side.recording.writer.flush()
    return tensors, {
        "iteration": side.iteration,
        "sources": list(side.policy.sources),
        "acting_rng": side.acting_rng.bit_generator.state,
        "learning_rng": side.learning_rng.bit_generator.state,
        "world": {k: np.asarray(v).tolist() for k, v in world.items()},
        "book": side.book.state_dict(),
        "scaler": side.scaler.state_dict(),
        "carries": {name: source.state_dict() for name, source in side.sources.items()},
        "keep_ups": keep_ups,
        "recorder": None if recorder is None else recorder.state_dict(),
    }


def restore_state(side: ControlSide, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Put a stored state into the parts of a side; the environment is brought back by `restore_world`."""
    side.policy.load_tensors(under("policy", tensors))
    side.optimizer.load_tensors(under("optimizer", tensors))
    side.iteration = int(values["iteration"])
    side.acting_rng.bit_generator.state = values["acting_rng"]
    side.learning_rng.bit_generator.state = values["learning_rng"]
    side.book.load_state_dict(values["book"])
    side.scaler.load_state_dict(values["scaler"])
    for name, source in side.sources.items():
        source.load_state_dict(values["carries"][name])
        source.load_seen({env: frames.numpy() for env, frames in under(f"seen/{name}", tensors).items()})
    for name, keep_up in side.keep_ups.items():
        keep_up.load_state_dict(under(f"keep_up/{name}", tensors), values["keep_ups"][name])
    if side.recorder is not None:
        side.recorder.load_state_dict(values["recorder"])


def restore_world(side: ControlSide, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Bring every copy of the environment back to where it stood, by replaying its episode."""
    pasts = [tensors[f"world.actions.{i}"].numpy() for i in range(side.world.num_envs)]
    seen = tensors["world.observations"].numpy()
    side.world.load_state_dict({**values["world"], "actions": pasts, "observations": seen})
    side.observations = side.world.observations
