"""Rows of episodes out of the data shards, one episode at a time, whatever wrote them.

A shard is opened once; only the row groups that an episode touches are read, with page checksums where the
file has them. A shard that cannot be read costs its episodes, which are reported. This module decodes no
image.

    for entry, table in open_tables(root, info, entries, ["action"], print):
        actions_T_A = to_columns(table, info, ["action"])["action"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from guerdon.episodes.images import MAX_EPISODE_BYTES
from guerdon.episodes.index import Entry, Skipped
from guerdon.episodes.layout import Info, shard_path
from guerdon.episodes.rows import Columns
from guerdon.errors import DataError, boundary

_EPISODE = "episode_index"


class ShardReader:
    """One data shard, open for reading."""

    def __init__(self, path: Path) -> None:
        """Open the shard and find its episodes.

        Raises:
            DataError: it is missing, truncated or corrupt.
        """
        self.path = path
        with boundary(DataError, "cannot be read"):
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            self._names = set(self._file.schema_arrow.names)
            self._owners = self._file.read(columns=[_EPISODE])[_EPISODE].to_numpy()
            metadata = self._file.metadata
            self._groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            self._ends = np.cumsum([group.num_rows for group in self._groups])

    def read(self, entry: Entry, names: Iterable[str]) -> pa.Table:
        """The rows of one episode, with those of the columns that the shard has.

        Raises:
            DataError: the rows are corrupt, not as many as the index says, or too large.
        """
        rows = np.flatnonzero(self._owners == entry.index)
        if len(rows) != entry.length or rows[-1] - rows[0] + 1 != len(rows):
            raise DataError(f"holds {len(rows)} rows of episode {entry.index}, its index says {entry.length}")
        first, last = (int(np.searchsorted(self._ends, row, side="right")) for row in (rows[0], rows[-1]))
        size = sum(group.total_byte_size for group in self._groups[first : last + 1])
        if size > MAX_EPISODE_BYTES:
            raise DataError(f"row groups of episode {entry.index} take {size} bytes, limit {MAX_EPISODE_BYTES}")
        wanted = [name for name in names if name in self._names]
        with boundary(DataError, f"episode {entry.index} cannot be read"):
            table = self._file.read_row_groups(list(range(first, last + 1)), columns=wanted)
            start = int(rows[0]) - (int(self._ends[first - 1]) if first else 0)
            return table.slice(start, len(rows)).combine_chunks()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_tables(
    root: Path, info: Info, entries: Iterable[Entry], names: Iterable[str], skip: Callable[[Skipped], None]
) -> Iterator[tuple[Entry, pa.Table]]:
    """Each episode's rows as an Arrow table, in the order of `entries`.

    Args:
        root: of the data set.
        info: of the data set.
        entries: which episodes.
        names: which columns, as far as they exist.
        skip: is told of each episode whose rows cannot be read.
    """
    columns = list(names)
    reader: ShardReader | None = None
    broken: dict[Path, str] = {}
    try:
        for entry in entries:
            path = shard_path(root, info.data_path, entry.data)
            try:
                if reader is None or reader.path != path:
                    if reader is not None:
                        reader.close()
                        reader = None
                    reader = _open(path, broken)
                table = reader.read(entry, columns)
            except DataError as exc:
                skip(Skipped(path, str(exc), entry.index))
                continue
            yield entry, table
    finally:
        if reader is not None:
            reader.close()


def _open(path: Path, broken: dict[Path, str]) -> ShardReader:
    if path in broken:
        raise DataError(broken[path])
    try:
        return ShardReader(path)
    except DataError as exc:
        broken[path] = str(exc)
        raise


def to_columns(table: pa.Table, info: Info, names: Iterable[str]) -> Columns:
    """Numeric columns of a table as arrays.

    Args:
        table: T rows.
        info: says the shape of each feature.
        names: which columns, as far as the table has them; none of them encoded images.

    Returns:
        Name to array of shape (T,) for features of shape [1] and none, else (T, *shape).

    Raises:
        DataError: a column does not have the shape that `info.json` declares.
    """
    columns: Columns = {}
    for name in names:
        if name in table.column_names:
            shape = tuple(info.features[name]["shape"])
            with boundary(DataError, f"column {name} is not of the declared shape {shape}"):
                flat = _flat(table[name])
                columns[name] = flat.reshape(len(table), *(() if shape in ((), (1,)) else shape))
    return columns


def _flat(column: Any) -> NDArray[Any]:
    """All numbers of an Arrow column of scalars or nested lists, in order."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    while pa.types.is_nested(array.type):
        array = array.flatten()
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values
