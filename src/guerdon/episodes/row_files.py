"""Files of rows as the field keeps them: JSON lines, a JSON list, Parquet.

Every row comes with the place where it stands, for errors that a person can act on. This module does not know what
rows mean.

    for where, row in good_rows(Path("train.jsonl")): ...     # the first bad line is an error
    for where, row in file_rows(Path("train.jsonl")): ...     # a bad line comes as the error itself
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guerdon.errors import DataError, boundary

ENDINGS = (".jsonl", ".ndjson", ".json", ".parquet")


def file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file, each with its place; a line that cannot be read is a `DataError` in place of its row.

    Raises:
        DataError: there is no such file, it ends otherwise, or it cannot be read as a whole.
    """
    ending = path.suffix.lower()
    if not ending and not path.exists():
        raise DataError(f"{path}: there is no such file or folder; make it first, or check the path")
    if ending not in ENDINGS:
        raise DataError(f"{path}: rows are read from {', '.join(ENDINGS)}; convert the file to one of these")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if ending == ".parquet":
        import pyarrow.parquet as pq

        with boundary(DataError, f"{path}: cannot be read as Parquet"):
            rows = pq.ParquetFile(path, page_checksum_verification=True).read().to_pylist()
        yield from ((f"{path}: row {number}", row) for number, row in enumerate(rows))
    elif ending == ".json":
        rows = _json(path.read_bytes(), f"{path}: not JSON (one row per line needs the ending .jsonl)")
        if not isinstance(rows, list):
            raise DataError(
                f"{path}: a .json file holds one list of rows, this holds {type(rows).__name__}; one row per line "
                "needs the ending .jsonl"
            )
        yield from ((f"{path}: row {number}", row) for number, row in enumerate(rows))
    else:
        yield from _lines(path)


def good_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """As `file_rows`, for files in which every row must be readable.

    Raises:
        DataError: as there, and for the first line that cannot be read.
    """
    for where, row in file_rows(path):
        if isinstance(row, DataError):
            raise row
        yield where, row


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}:{number}"
                try:
                    yield where, _json(line, f"{where}: not JSON")
                except DataError as error:
                    yield where, error


def _json(data: bytes, trouble: str) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested a thousand times
        raise DataError(f"{trouble}: {error}") from error
