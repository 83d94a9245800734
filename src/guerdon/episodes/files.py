"""Write files so that a kill at any moment leaves the old bytes or the new ones, never a mixture.

Everything is first written under a name that no reader looks at (`*.partial`), flushed to the disk, then
renamed over its final name. This module knows nothing about episodes.

    write_json(root / "meta" / "info.json", {"fps": 20})
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from guerdon.errors import naming

PARTIAL = ".partial"


def partial(path: Path) -> Path:
    """Where `path` is written before it is complete; creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(path.name + PARTIAL)


def publish(path: Path) -> None:
    """Rename the finished `partial(path)` to `path`, with data and directory entry on the disk.

    Raises:
        OSError: the disk is full or not writable.
    """
    temporary = partial(path)
    _fsync(temporary, os.O_RDWR)
    os.replace(temporary, path)
    _fsync(path.parent, os.O_RDONLY)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with naming(path):
        partial(path).write_text(json.dumps(value, indent=4, ensure_ascii=False), encoding="utf-8")
    publish(path)


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow table as one Parquet file with page checksums, atomically."""
    with naming(path):
        pq.write_table(table, partial(path), compression="snappy", write_page_checksum=True)
    publish(path)


def _fsync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)
