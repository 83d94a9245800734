"""`adapter.json`: what a folder says about itself where its configuration cannot.

A token classifier does not store what ended its steps, and an implicit model does not store what it is compared with.
A folder may say so in a file of its own; whatever does not fit the family is refused. This module does not load models.

    {"adapter": "implicit", "ref_path": "Qwen/Qwen2.5-Math-7B-Instruct", "beta": 0.05}

    notes = read_notes("models/prm", "implicit", {"ref_path", "beta"})
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from pydantic import Field, ValidationError

from guerdon.errors import CheckpointError
from guerdon.settings.base import Settings

NOTES = "adapter.json"


class AdapterNotes(Settings):
    """The content of `adapter.json`."""

    adapter: str | None = Field(None, description="name of the family; null: what the configuration shows")
    separator: str | None = Field(None, min_length=1, description="trl: what ends a step; null: a new line")
    ref_path: str | None = Field(None, min_length=1, description="implicit: folder or hub id of the reference model")
    beta: float | None = Field(None, gt=0, description="implicit: factor of the log-ratio; null: 0.001")


def notes_of(path: str) -> AdapterNotes:
    """What `adapter.json` says; nothing where there is none, as for a model on the hub.

    Raises:
        CheckpointError: it cannot be read, or has a key that nobody knows.
    """
    file = Path(path) / NOTES
    if not file.is_file():
        return AdapterNotes()
    try:
        return AdapterNotes.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or NOTES
        raise CheckpointError(f"{file}: {where}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def adapter_of(path: str) -> str | None:
    """The family that a folder itself names, None where it names none."""
    return notes_of(path).adapter


def read_notes(path: str, family: str, known: Collection[str] = ()) -> AdapterNotes:
    """What `adapter.json` says to one family.

    Args:
        path: folder or hub id.
        family: the adapter that reads it.
        known: keys that this family has a use for.

    Raises:
        CheckpointError: it says something else, or something that would do nothing here.
    """
    notes = notes_of(path)
    if notes.adapter not in (None, family):
        raise CheckpointError(f"{Path(path) / NOTES} says that this is a model for the adapter {notes.adapter!r}")
    idle = sorted(notes.model_fields_set - set(known) - {"adapter"})
    if idle:
        raise CheckpointError(f"{Path(path) / NOTES}: the adapter {family} has no use for {', '.join(idle)}: remove it")
    return notes
