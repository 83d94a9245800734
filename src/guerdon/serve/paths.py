"""Open a file that a client names, only if it is under the folder that the operator gave.

The path is walked folder by folder from an open descriptor, without following links, so that nothing can be replaced
between a check and its use. Every refusal is the same error, so that a client learns nothing about the disk.

    root = MediaRoot("/data/videos")
    with root.open("libero/episode_0.mp4", suffixes=(".mp4",), most_bytes=32 << 20) as file:
        first = file.read(12)
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from guerdon.errors import ConfigError, DataError

_LONGEST = 1024  # bytes of a name; below the limit of any file system
_SCHEME = re.compile(r"\A\s*[A-Za-z][A-Za-z0-9+.\-]*:")  # http: file: data: C:
_STRANGE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


class ForbiddenPathError(DataError):
    """There is no such file, or it may not be read; the error does not say which."""


def looks_like_url(name: str) -> bool:
    """Whether a name has a scheme (`http:`, `file:`, `data:`, a drive letter), or names a network share."""
    return bool(_SCHEME.match(name)) or name.lstrip().startswith(("//", "\\\\"))


class MediaRoot:
    """The folder whose files clients may name.

    Args:
        folder: of the operator; its own path may contain links.

    Raises:
        ConfigError: the folder does not exist.
    """

    def __init__(self, folder: str | Path) -> None:
        given = os.path.abspath(folder)
        self.folder = os.path.realpath(given)
        if not os.path.isdir(self.folder):
            raise ConfigError(f"media_root: {str(folder)!r} is not a folder; create it or name another")
        self._prefixes = {given, self.folder}

    def open(self, name: str, *, suffixes: Sequence[str], most_bytes: int) -> BinaryIO:
        """The file, opened for reading.

        Args:
            name: relative to the folder, or absolute and starting with its path. `..`, links (soft or hard), devices,
                pipes, and names with a scheme are refused.
            suffixes: allowed endings of the name, in lower case.
            most_bytes: a larger file is refused.

        Raises:
            ForbiddenPathError: always with the same message.
        """
        try:
            parts = self._parts(name, suffixes)
            handle = self._walk(parts, most_bytes)
        except (OSError, ValueError) as error:
            raise ForbiddenPathError("video_path does not exist or may not be read") from error
        return os.fdopen(handle, "rb")

    def _parts(self, name: str, suffixes: Sequence[str]) -> list[str]:
        if looks_like_url(name) or _STRANGE.search(name) or len(os.fsencode(name)) > _LONGEST:
            raise ValueError(name)
        for prefix in self._prefixes if name.startswith("/") else ():
            if name.startswith(prefix.rstrip("/") + "/"):
                name = name[len(prefix.rstrip("/")) + 1 :]
                break
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts) or not name.lower().endswith(tuple(suffixes)):
            raise ValueError(name)
        return parts

    def _walk(self, parts: Sequence[str], most_bytes: int) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        at = os.open(self.folder, flags | os.O_DIRECTORY)
        try:
            for part in parts[:-1]:
                if not stat.S_ISDIR(os.stat(part, dir_fd=at, follow_symlinks=False).st_mode):
                    raise ValueError("not a folder")
                below = os.open(part, flags | os.O_DIRECTORY, dir_fd=at)
                os.close(at)
                at = below
            _check(
                os.stat(parts[-1], dir_fd=at, follow_symlinks=False), most_bytes
            )  # opening a device can have side effects
            handle = os.open(parts[-1], flags | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=at)
        finally:
            os.close(at)
        try:
            _check(os.fstat(handle), most_bytes)
        except ValueError:
            os.close(handle)
            raise
        return handle


def _check(found: os.stat_result, most_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > most_bytes:
        raise ValueError("not a plain file with one name, or too large")
