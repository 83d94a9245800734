"""Rows of a LeRobot data set as they lie in its data files: of version 2 or 3, without the index and without episodes.

`read` gives the episodes of version 3, checked. An audit looks at every row that is there, and says in which line of
which file it is.

    files = DataFiles(Path("data/episodes"))
    rows = files.numbers_of(files.paths[0], ["episode_index", "next.reward"])
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from guerdon.episodes.read import flat_numbers
from guerdon.errors import DataError, boundary
from guerdon.files.parquet_bounds import BoundedParquet

_NUMBERS = re.compile(r"^(fixed_size_|large_)?(list<\w+: )?(u?int|float|double|halffloat|bool)")
_PICTURES_TOGETHER = 256  # in memory at a time


class DataFiles:
    """The data files of a data set, with the columns of the first.

    Args:
        root: folder with `data/`.

    Attributes:
        paths: of the files, in order.
        names: of all columns.
        numbers: names of the columns with numbers, flags, or lists of them.
        pictures: name of the first column with encoded pictures; None: they are in videos, or there are none.

    Raises:
        DataError: there is no file, or the first cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self.paths = sorted((root / "data").rglob("*.parquet"))
        if not self.paths:
            raise DataError("a LeRobot data set without data/*.parquet", where=root)
        with boundary(DataError, "cannot be read as Parquet", where=str(self.paths[0])):
            schema = BoundedParquet(self.paths[0]).schema
        kinds = {field.name: str(field.type) for field in schema}
        self.names = list(kinds)
        self.numbers = [name for name, kind in kinds.items() if _NUMBERS.search(kind)]
        self.pictures = next((name for name, kind in kinds.items() if "bytes" in kind), None)

    def numbers_of(self, path: Path, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Columns of a file as (N, D) arrays; missing values are NaN, and a file without rows has no columns.

        Raises:
            DataError: it cannot be read, or a column holds lists of several lengths.
        """
        with boundary(DataError, f"{path.name} cannot be read"):
            table = BoundedParquet(path).table(columns=names)
            if not len(table):
                return {}
            return {name: _matrix(table[name]) for name in names}

    def pictures_of(self, path: Path) -> Iterator[bytes]:
        """The encoded pictures of a file, row by row; of one that lies elsewhere its path.

        Raises:
            DataError: it cannot be read.
        """
        if self.pictures is None:
            return
        with boundary(DataError, f"{path.name} cannot be read"):
            rows = BoundedParquet(path).rows(kept=False, columns=[self.pictures], together=_PICTURES_TOGETHER)
            for row in rows:
                if isinstance(row, DataError):
                    raise row
                held: dict[str, Any] = row[self.pictures] or {}
                yield held.get("bytes") or str(held.get("path")).encode()


def _matrix(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column of numbers, flags or equally long lists as (N, D)."""
    return flat_numbers(column).astype(np.float64).reshape(len(column), -1)
