"""The whole state of a run as tensors and plain values, and back: what makes a resumed run go on to the same bytes.

This module does not know what the parts do or when they are stored.

    tensors, values = take_state(loop)
    offsets = restore_state(loop, tensors, values)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from guerdon.rl.checkpoint import under
from guerdon.rl.learner import optimizer_state

if TYPE_CHECKING:
    from guerdon.rl.loop import Loop


def take_state(loop: Loop) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON-able values of everything that decides what comes next, and how long the log files are."""
    tensors = {f"policy.{k}": v for k, v in loop.policy.tensors().items()} | optimizer_state(loop.optimizer)
    keep_ups = {}
    for name, keep_up in loop.keep_ups.items():
        more, keep_ups[name] = keep_up.state_dict()
        tensors |= {f"keep_up/{name}.{k}": v for k, v in more.items()}
    world = loop.world.state_dict()
    tensors["world.observations"] = torch.from_numpy(np.ascontiguousarray(world.pop("observations")))
    for i, past in enumerate(world.pop("actions")):
        tensors[f"world.actions.{i}"] = torch.from_numpy(np.ascontiguousarray(past))
    recorder = loop.recorder
    if loop.recording is not None:
        loop.recording.writer.flush()
    return tensors, {
        "step": loop.step,
        "iteration": loop.iteration,
        "wall_time": loop.wall_time,
        "sources": list(loop.policy.sources),
        "rng": loop.rng.bit_generator.state,
        "world": {k: np.asarray(v).tolist() for k, v in world.items()},
        "book": loop.book.state_dict(),
        "scaler": loop.scaler.state_dict(),
        "failures": loop.failures.state_dict(),
        "carries": {name: source.state_dict() for name, source in loop.sources.items()},
        "keep_ups": keep_ups,
        "recorder": None if recorder is None else recorder.state_dict(),
        "offsets": loop.log.offsets(),
    }


def restore_state(loop: Loop, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Put a stored state into the parts of a loop; the environment is brought back by `restore_world`."""
    loop.policy.load_tensors(under("policy", tensors))
    loop.optimizer.load_tensors(under("optimizer", tensors))
    loop.step, loop.iteration = int(values["step"]), int(values["iteration"])
    loop.rng.bit_generator.state = values["rng"]
    loop.book.load_state_dict(values["book"])
    loop.scaler.load_state_dict(values["scaler"])
    loop.failures.load_state_dict(values["failures"])
    for name, source in loop.sources.items():
        source.load_state_dict(values["carries"][name])
    for name, keep_up in loop.keep_ups.items():
        keep_up.load_state_dict(under(f"keep_up/{name}", tensors), values["keep_ups"][name])
    if loop.recorder is not None:
        loop.recorder.load_state_dict(values["recorder"])


def restore_world(loop: Loop, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Bring every copy of the environment back to where it stood, by replaying its episode."""
    pasts = [tensors[f"world.actions.{i}"].numpy() for i in range(loop.world.num_envs)]
    seen = tensors["world.observations"].numpy()
    loop.world.load_state_dict({**values["world"], "actions": pasts, "observations": seen})
    loop.observations = loop.world.observations
