"""Append-only files of JSON lines: a line that was written survives a kill, one that a kill cut off is dropped.

One process at a time: the file is locked while it is open.

    with contextlib.closing(Cache(folder / "replies.jsonl")) as cache:
        cache.put({content_key("question"): {"text": "answer"}})
        cache.get(content_key("question"))
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guerdon.errors import DataError


def content_key(*parts: Any) -> str:
    """SHA-256 of plain JSON values."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class AppendLog:
    """JSON lines on disk, each flushed before `append` returns. Usable from any thread.

    Attributes:
        rows: what was there when the file was opened.

    Args:
        path: the file; its folder is made.

    Raises:
        DataError: another process has it open, or a line before the last is not JSON.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = threading.Lock()
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise DataError(
                f"{path} is in use by another guerdon label; wait for it, or choose another save_dir"
            ) from error
        self.rows = self._read()

    def _read(self) -> list[dict[str, Any]]:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        whole = sum(len(line) + 1 for line in lines[:-1])
        self._file.truncate(whole)  # a line without an end was cut off while it was written
        rows = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{self.path}:{number}: not a line of JSON: {error}; remove that line") from error
        return rows

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one line; it is on the disk when this returns.

        Raises:
            DataError: it cannot be written; the file is as it was.
        """
        data = json.dumps(row, ensure_ascii=True, allow_nan=False).encode() + b"\n"
        with self._lock:
            size = os.fstat(self._file.fileno()).st_size
            try:
                while data:
                    data = data[os.write(self._file.fileno(), data) :]
                os.fsync(self._file.fileno())
            except OSError as error:
                os.ftruncate(self._file.fileno(), size)  # half a line would spoil the next one
                raise DataError(f"{self.path}: {error.strerror}; the same command goes on once it can write") from error

    def close(self) -> None:
        """Close and unlock the file."""
        self._file.close()


class Cache(AppendLog):
    """Values by content key, on disk.

    Args:
        path: the file.

    Raises:
        DataError: as `AppendLog`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._values: dict[str, Any] = {k: v for row in self.rows for k, v in row.items()}
        self.rows = []

    def get(self, key: str) -> Any:
        """The value of a key, None where there is none."""
        return self._values.get(key)

    def put(self, values: Mapping[str, Any]) -> None:
        """Keep values, all of them or none, whatever happens."""
        self.append(values)
        self._values.update(values)
