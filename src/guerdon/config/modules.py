"""Modules of the user: where commands look for them. Nothing heavy is imported.

with users_modules(): found = import_module("my_rewards")
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MODULES_FOLDER = "GUERDON_MODULES"
"""The variable that names the folder of a command, for the command and the processes that it starts; with `also_in`
further ones, one a line."""


class _ModulesIn:
    """Finds modules in folders, for the thread that made this finder."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders, self._thread = folders, threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of this name in the folders. A module inside a package (`path`) is found by its package."""
        if path is not None or threading.get_ident() != self._thread:
            return None
        return PathFinder.find_spec(name, self._folders, target)


@contextmanager
def users_modules() -> Iterator[None]:
    """Inside the block this thread can import modules from the folder where the command was started.

    Installed packages come first. Outside of the block that folder is not searched: it may be a downloaded model, with
    a `brotli.py` that some library would otherwise import. Without a command (in a notebook) Python's own path counts.
    """
    folders = os.environ.get(MODULES_FOLDER)
    if folders is None:
        yield
        return
    finder = _ModulesIn(folders.split("\n"))
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def also_in(folder: str | None) -> Iterator[None]:
    """Inside the block `users_modules` finds modules in a further folder: the one of an earlier command; None: none."""
    before = os.environ.get(MODULES_FOLDER)
    if folder is None or folder in (before or "").split("\n"):
        yield
        return
    os.environ[MODULES_FOLDER] = folder if before is None else f"{before}\n{folder}"
    try:
        yield
    finally:
        os.environ.pop(MODULES_FOLDER, None)
        if before is not None:
            os.environ[MODULES_FOLDER] = before
