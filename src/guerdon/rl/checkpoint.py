"""Checkpoints of a run: tensors in safetensors, everything else in JSON, sealed with hashes, newest verified first.

This module does not know what the tensors mean.

    save_checkpoint(folder, 2000, tensors, values, keep=2)
    tensors, values = load_checkpoint(latest_checkpoint(folder))
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.errors import CheckpointError, boundary
from guerdon.files.atomic import verify_folder
from guerdon.models.checkpoint import save_state

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 5  # of the state; 4 kept the state of refits apart from that of their source


def save_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], values: dict[str, Any], *, keep: int) -> Path:
    """Write `folder/step_<step>`, then remove all but the newest `keep` sealed checkpoints.

    Args:
        folder: the run's `checkpoints`.
        step: environment steps so far.
        tensors: by name.
        values: JSON-able.
        keep: how many to keep; the one just written always stays.

    Raises:
        NonFiniteError: a tensor is not finite; what was there before stays.
    """
    for remains in folder.glob(".step_*"):  # of a writer that was killed
        shutil.rmtree(remains)
    final = folder / f"step_{step:012d}"
    save_state(final, tensors, {**values, "version": VERSION})
    for old in sorted(folder.glob("step_*"))[: -max(keep, 1)]:
        shutil.rmtree(old)
    return final


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose hashes hold; None where there is none.

    Raises:
        CheckpointError: there are checkpoints, and none of them is whole.
    """
    problems = []
    for path in sorted(folder.glob("step_*"), reverse=True):
        try:
            with boundary(CheckpointError, f"{path} cannot be verified"):
                verify_folder(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        return path
    if problems:
        raise CheckpointError("no usable checkpoint: " + "; ".join(problems))
    return None


def find_checkpoint(path: Path) -> Path:
    """A checkpoint from its own folder, or the newest of a run's folder.

    Raises:
        CheckpointError: neither.
    """
    if (path / "state.json").is_file():
        verify_folder(path)
        return path
    found = latest_checkpoint(path / "checkpoints")
    if found is None:
        raise CheckpointError(f"{path} is neither a checkpoint nor a run with one: it has no checkpoints/step_*")
    return found


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and values of a verified checkpoint.

    Raises:
        CheckpointError: a tensor is not finite.
    """
    from guerdon.compute.finite import load_weights  # imports torch

    values: dict[str, Any] = json.loads((path / "state.json").read_bytes())
    return load_weights(path / "state.safetensors", states=True), values


def cut_back(path: Path, size: int, *, what: str = "lines") -> None:
    """Cut a file to which a run appends back to what it was at a checkpoint.

    Args:
        path: of the file.
        size: bytes that it had then.
        what: it holds, for the message.

    Raises:
        CheckpointError: some of them are gone.
    """
    have = path.stat().st_size if path.exists() else 0
    if have < size:
        raise CheckpointError(f"{path} has {have} bytes, but the checkpoint knows {size}: {what} were lost since")
    if path.exists():
        os.truncate(path, size)


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and values of a verified checkpoint from which a run is resumed.

    Raises:
        CheckpointError: its state has another version, or a tensor is not finite.
    """
    tensors, values = load_checkpoint(path)
    version = values.get("version", 1)
    if version != VERSION:
        raise CheckpointError(
            f"{path} has checkpoint version {version}, this guerdon resumes version {VERSION}: resume the run with the "
            "guerdon that wrote it, or start another run from its policy (runner.resume_dir)"
        )
    return tensors, values
