"""Files that are either the old version or the new one, whatever happens in between.

Each writer puts a temporary file beside the target, flushes it to the disk and renames it over the target.
It does not know what the bytes mean.

    write_json_atomic(run / "result.json", {"success": 0.5})
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_LONGEST_STEM = 200  # leaves room for the suffix within the 255 bytes that file systems allow


def write_bytes_atomic(path: Path | str, data: bytes) -> None:
    """Write a file so that a reader, or a kill, never meets half of it. Missing folders are created.

    Raises:
        OSError: the file cannot be written; the old version, if any, is intact.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name[:_LONGEST_STEM]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:  # also on Ctrl-C: no temporary file stays behind, and the cause goes on upwards
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def write_text_atomic(path: Path | str, text: str) -> None:
    """`write_bytes_atomic` of UTF-8 text; line ends stay as they are."""
    write_bytes_atomic(path, text.encode("utf-8"))


def write_json_atomic(path: Path | str, obj: Any) -> None:
    """`write_bytes_atomic` of indented JSON.

    Raises:
        ValueError: a number is NaN or infinite (write null and a count instead); nothing is written.
        TypeError: something is not a plain JSON value; nothing is written.
    """
    write_text_atomic(path, json.dumps(obj, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where folders can be synced (POSIX)."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
