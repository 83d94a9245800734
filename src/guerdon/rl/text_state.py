"""The whole state of the language models' side as tensors and plain values, and back; and a start from another run.

A resumed run goes on to the same bytes. This module does not know what the parts do or when they are stored.

    tensors, values = take_state(side)
    restore_state(side, tensors, values)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from guerdon.errors import CheckpointError
from guerdon.rl import checkpoint as ckpt

if TYPE_CHECKING:
    from guerdon.rl.text_side import TextSide

_HEAD = "value_head."
_START = "kl_start"


def take_state(side: TextSide) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Policy, reward models, optimisers, random numbers, place in the data."""
    tensors = {f"policy.{k}": v for k, v in side.policy.tensors().items()}
    tensors |= {f"optimizer.{k}": v for k, v in side.optimizer.tensors().items()}
    sources: dict[str, Any] = {}
    for name, source in side.sources.items():
        more, sources[name] = source.state()
        tensors |= {f"source.{name}.{k}": v for k, v in more.items()}
    if _start_is_stored(side):
        assert side.kl_ref is not None
        tensors |= {f"{_START}.{k}": v for k, v in side.kl_ref.tensors().items()}
    tensors["rng.cpu"] = torch.get_rng_state()  # dropout draws from it
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    return tensors, {
        "sources": list(side.heads),
        "learning_rng": side.learning_rng.bit_generator.state,
        "collector": side.collector.state()[1],
        "source_values": sources,
        "book": side.book.state_dict(),
    }


def restore_state(side: TextSide, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Put a stored state into the parts of a side.

    Raises:
        CheckpointError: it does not fit, or lacks what the run started from.
    """
    if _start_is_stored(side):
        assert side.kl_ref is not None
        start = ckpt.under(_START, tensors)
        if not start:
            raise CheckpointError(
                "this checkpoint does not hold the policy that its run started from (runner.resume_dir), from which "
                "algorithm.kl_coef measures: it was written by an older guerdon; start the run anew in another folder"
            )
        side.kl_ref.load_tensors(start)
    side.policy.load_tensors(ckpt.under("policy", tensors))
    side.optimizer.load_tensors(ckpt.under("optimizer", tensors))
    for name, source in side.sources.items():
        source.restore(ckpt.under(f"source.{name}", tensors), values["source_values"][name])
    side.learning_rng.bit_generator.state = values["learning_rng"]
    side.collector.restore({}, values["collector"])
    side.book.load_state_dict(values["book"])
    torch.set_rng_state(tensors["rng.cpu"])
    if torch.cuda.is_available() and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"])


def _start_is_stored(side: TextSide) -> bool:
    """Whether the reference of the KL is the end of another run, which may be gone when this one is resumed."""
    return side.kl_ref is not None and bool(side.study.runner.resume_dir)


def start_from_run(side: TextSide, folder: Path) -> list[str]:
    """Second stage: take over the policy and its optimiser of another run; counters start at 0.

    Where the sources of reward differ from the first stage's, value heads and the optimiser start fresh: their
    numbers are about another reward.

    Returns:
        Lines that say what was done.

    Raises:
        CheckpointError: there is no whole checkpoint, or it does not fit.
    """
    path = ckpt.find_checkpoint(folder)
    tensors, values = ckpt.load_checkpoint(path)
    stored = ckpt.under("policy", tensors)
    own = side.policy.tensors()
    same = values["sources"] == list(side.heads) and stored.keys() == own.keys()
    if same:
        side.optimizer.load_tensors(ckpt.under("optimizer", tensors))
    else:
        stored = {k: v for k, v in stored.items() if not k.startswith(_HEAD)}
        stored |= {k: v for k, v in own.items() if k.startswith(_HEAD)}
    side.policy.load_tensors(stored)
    what = "policy and optimiser" if same else "policy; the sources of reward changed, so the optimiser starts fresh"
    return [f"stage 2 starts from {path}: {what}"]
