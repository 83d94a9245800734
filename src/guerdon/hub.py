"""Models by name: whether there is one, before a library looks for it again and again.

transformers tries for the better part of a minute, file by file, where a name is wrong or there is no network. Here
that is known after one request. This module downloads nothing.

    check_model(CheckpointError, "the language model", "Qwen/Qwen3-4B")
"""

from __future__ import annotations

from pathlib import Path

from guerdon.errors import GuerdonError, boundary

CONFIG = "config.json"


def check_model(error: type[GuerdonError], what: str, name: str) -> None:
    """Make sure that a folder, the cache or the hub has a model.

    Args:
        error: is raised where none has.
        what: it is, for the message.
        name: a folder or a hub id.

    Raises:
        GuerdonError: of the kind `error`: there is neither a folder of that name nor such a model on the hub.
    """
    if Path(name).exists():
        return
    nowhere = f"{what} {name!r} cannot be read: there is no such folder"
    if name.count("/") > 1 or name.startswith(("/", ".", "~")):  # no hub id
        raise error(f"{nowhere}; check the path")
    from huggingface_hub import file_exists, try_to_load_from_cache

    with boundary(error, f"{nowhere} here, and the hub does not have it or cannot be reached"):
        if isinstance(try_to_load_from_cache(name, CONFIG), str):
            return
        there = file_exists(name, CONFIG)
    if not there:
        raise error(f"{nowhere} here, and the hub has no model of that name; check the path")
