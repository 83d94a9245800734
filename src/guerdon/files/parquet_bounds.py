"""Parquet files of strangers in batches whose memory is known before they are read.

A file of 3 KiB may hold a text of 60 MB once and name it in a thousand rows, and a page of 5 KiB may unpack to 60 MB.
pyarrow does not show its pages, so their headers are read here: what a page unpacks to and how many values it has, from
the bytes that pyarrow takes it from. From these follows how many rows can be read at once; the footer is not believed.
Columns whose long texts are repeated are read as a dictionary, which holds each text once.

    for row in BoundedParquet(path).rows(kept=False):        # a map, or the error of this row
        ...
    table = BoundedParquet(path).table(columns=["index"])

References: `parquet.thrift` and Encodings.md of Parquet 2.11; Thrift's compact protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from guerdon.errors import DataError, boundary
from guerdon.files.bounds import CELL, COLUMNS, DIRECTORY, RECORD, BadRecord, TooLarge, Unpacked, too_long

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS = 1024
"""Rows of a batch, at most."""
BATCH = 576 << 20
"""Bytes in memory while a batch is read: dictionary and largest page of each column, pages of the batch. pyarrow writes
pages of 1,024 texts, however long these are: 100 MB for texts of 100 kB."""
SHARED = 128 << 20
"""Bytes of repeated texts in a batch from which a column is read as a dictionary, which is slower for short texts."""
PAGES = 200_000
"""Pages of a row group. Their headers are read one by one, 40,000 in a second."""
CHUNKS = 500_000
"""Columns of all row groups of a file. pyarrow takes 700 bytes for each, which may have three in the file."""
RUNS = 4_000_000
"""Rows of a row group with nested columns, and runs of the levels that say where they begin: these are read one by one.
pyarrow writes runs of 504 values, and a million rows together."""

_BUFFER = 1 << 16  # bytes of a column that are read from the disk at a time
_STEPS = ((ROWS, 3), (256, 3), (64, 3), (16, 3), (4, 2), (1, 2))
"""Rows of a batch that are tried, and by how much memory exceeds their bytes: pyarrow doubles a buffer that is full and
holds both while it copies."""
_TOGETHER = 32 << 20  # bytes of row groups that are read as one, and of rows that become Python objects together
_HEADERS = (1 << 12, 1 << 16, 1 << 24)  # bytes of the header of a page; there may be long statistics in it
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3  # types of pages
_PLAIN, _PREFIXES = 0, 7  # encodings: texts with their lengths; texts that continue the one before
_NAMED = (2, 8)  # encodings: numbers of entries of the dictionary
_LARGE = 16 << 20  # bytes of a page whose texts are looked at, to know how long the longest is
_WIDTHS = (1, 8, 8, 12, 8, 8, 0)  # bytes in memory of a value, by its type
_TEXTS, _FIXED = 6, 7  # types of values without a width of their own
_VALUE = 16  # bytes of a value besides its content: where it begins, whether it is null, its levels
_NESTED = 48  # the same of a value in a list, and what `python_bytes` takes for it
_LOOKED_UP = 500_000  # entries of a dictionary whose lengths are looked at one by one, at most
_LONGEST_RUN = 8 << 20  # bytes of levels in a run, which take eight times as much
_CODECS = {0: "", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_Counts = NDArray[np.int64]


class BoundedParquet:
    """A Parquet file that is read within limits.

    Args:
        path: the file.

    Attributes:
        path: as given.
        schema: Arrow's, of the columns.
        groups: the row groups, as the footer describes them.

    Raises:
        TooLarge: its footer is larger than `DIRECTORY`, or it has more than `COLUMNS` columns.
        OSError: it cannot be opened.
        Exception: of pyarrow or of another kind, here and in the methods: it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._footer = _read_footer(path)
        if len(self._footer.columns) > COLUMNS:
            count = f"{len(self._footer.columns):,}"
            raise TooLarge(f"{path}: it has {count} columns, and at most {COLUMNS:,} are read; keep those you need")
        self._opened: dict[frozenset[str], pq.ParquetFile] = {}  # by the columns that are read as dictionaries
        self._plans: dict[tuple[int, tuple[str, ...] | None], _Plan] = {}
        self.schema = self._open(frozenset()).schema_arrow
        self.groups = self._footer.groups
        self._as_dictionary = tuple(field.name for field in self.schema if "dictionary<" in str(field.type))

    def rows(
        self, *, kept: bool, columns: Sequence[str] | None = None, together: int = ROWS
    ) -> Iterator[dict[str, Any] | BadRecord]:
        """The rows as Python objects, in order; of one that is too large the error.

        Args:
            kept: whether the caller keeps all of them in memory.
            columns: names of those that are read; None: all.
            together: rows that are read at once, at most.

        Raises:
            TooLarge: the file cannot be read within the limits.
            DataError: its footer does not fit its pages, or they are damaged.
        """
        count = Unpacked(self.path, kept=kept)
        number = 0
        batches = self._batches(Unpacked(self.path, kept=False), columns, None, together)
        while (batch := next(batches, None)) is not None:
            yield from batch_rows(batch, count, self.path, number)
            number += batch.num_rows
            del batch  # before the next one is read

    def table(self, *, columns: Sequence[str] | None = None, row_groups: Iterable[int] | None = None) -> pa.Table:
        """The rows as one table with the columns in the order that is asked for.

        Args:
            columns: names of those that are read; None: all.
            row_groups: numbers of those that are read; None: all.

        Raises:
            TooLarge: the file cannot be read within the limits.
            DataError: its footer does not fit its pages, or they are damaged.
            KeyError: it has no such column.
        """
        import pyarrow as pa

        fields = [self.schema.field(name) for name in (self.schema.names if columns is None else columns)]
        schema = pa.schema(fields, metadata=self.schema.metadata)
        found = list[pa.RecordBatch]()
        count = Unpacked(self.path, kept=True)
        for batch in self._batches(count, columns, row_groups, ROWS):
            arrays = [batch.column(field.name) for field in fields]
            changed = [array for array, field in zip(arrays, fields, strict=True) if array.type != field.type]
            count.add(sum(int(python_bytes(array).sum()) for array in changed))
            as_said = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, fields, strict=True)]
            found.append(pa.record_batch(as_said, schema=schema))
        return pa.Table.from_batches(found, schema=schema)

    def _batches(
        self, count: Unpacked, columns: Sequence[str] | None, row_groups: Iterable[int] | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Batches that take at most `BATCH` bytes to read, counted.

        A column of texts that is read as a dictionary has that type, at any depth.
        """
        import pyarrow as pa

        numbers = range(len(self.groups)) if row_groups is None else row_groups
        names = None if columns is None else tuple(columns)
        for plan in self._joined(numbers, names):
            missing = sum(self.groups[number].rows for number in plan.row_groups)
            batches = self._open(plan.shared).iter_batches(
                min(plan.rows, rows), row_groups=plan.row_groups, columns=columns and list(columns)
            )
            while (batch := next(batches, None)) is not None:
                size = batch.nbytes
                count.add(size)
                missing -= batch.num_rows
                yield batch
                del batch  # before the next one is read
                if size > _LARGE:
                    pa.default_memory_pool().release_unused()
            if missing:  # `iter_batches` ends where a column does
                raise DataError(
                    f"{missing} rows of the footer are not in the pages; write the file again", where=self.path
                )

    def _open(self, shared: frozenset[str]) -> pq.ParquetFile:
        """The file with these columns read as dictionaries."""
        import pyarrow.parquet as pq

        if shared not in self._opened:
            self._opened[shared] = pq.ParquetFile(
                self.path,
                read_dictionary=sorted(shared),
                pre_buffer=False,
                buffer_size=_BUFFER,
                page_checksum_verification=True,
            )
        return self._opened[shared]

    def _joined(self, numbers: Iterable[int], names: tuple[str, ...] | None) -> Iterator[_Plan]:
        """How row groups are read; small ones that follow each other together."""
        joined = _Plan([], 0, ROWS, frozenset())
        with self.path.open("rb") as file:
            for number in numbers:
                if (number, names) not in self._plans:
                    self._plans[number, names] = self._plan(file, number, names)
                plan = self._plans[number, names]
                if joined.row_groups and joined.bytes + plan.bytes > _TOGETHER:
                    yield joined
                    joined = _Plan([], 0, ROWS, frozenset())
                if plan.bytes > _TOGETHER:
                    yield plan
                else:
                    joined = joined._replace(row_groups=[*joined.row_groups, number], bytes=joined.bytes + plan.bytes)
        if joined.row_groups:
            yield joined

    def _plan(self, file: BinaryIO, number: int, names: tuple[str, ...] | None) -> _Plan:
        """How a row group is read: as many rows at once as `BATCH` allows."""
        where = f"{self.path}: row group {number}"
        columns = self._columns(where, file, number, names)
        size = sum(column.total() for column in columns)
        if size <= _TOGETHER:
            return _Plan([number], size, ROWS, frozenset())
        shared = frozenset(column.path for column in columns if column.shared)
        fixed = least = sum(column.page_bytes for column in columns)
        for of_rows in (False, True) if fixed <= BATCH else ():
            for column in columns if of_rows else ():
                column.find_rows()
            for rows, growth in _STEPS:
                least = fixed + growth * sum(column.most(rows) for column in columns)
                if least <= BATCH:
                    return _Plan([number], size, rows, shared)
        raise TooLarge(
            f"{where}: to read a row may take {least >> 20} MiB, and the limit is {BATCH >> 20} MiB; write the file "
            "with fewer rows in a row group (pyarrow: row_group_size=64)"
        )

    def _columns(self, where: str, file: BinaryIO, number: int, names: tuple[str, ...] | None) -> list[_Column]:
        """The columns of a row group that are read."""
        group = self.groups[number]
        found = list[_Column]()
        pages = 0
        for described, chunk in zip(self._footer.columns, group.chunks, strict=True):
            path = described.path
            if names is not None and not _is_in(path, names):
                continue
            place = f"{where}, column {path[:80]}"
            shared = _is_in(path, self._as_dictionary)
            column = _Column(place, file, described, _Chunk(*chunk.tolist()), shared=shared)
            pages += len(column.pages)
            if pages > PAGES:
                raise TooLarge(f"{where}: it has more than {PAGES:,} pages; write larger pages")
            if column.flat and column.values != group.rows:
                raise DataError(
                    f"the footer says {group.rows} rows, and the pages of {path[:80]} have {column.values}; "
                    "write the file again",
                    where=where,
                    field=path,
                )
            found.append(column)
        return found


def _is_in(path: str, names: Iterable[str]) -> bool:
    """Whether a column of values is one of these columns, or a part of one, by the rule of pyarrow."""
    return any(path == name or path.startswith(f"{name}.") for name in names)


class _Part(NamedTuple):
    """Rows of a batch that follow each other, and what they take as Python objects."""

    begin: int
    rows: int
    bytes: int


def batch_rows(batch: pa.RecordBatch, count: Unpacked, path: Path, first: int) -> Iterator[dict[str, Any] | BadRecord]:
    """The rows of a batch as Python objects, a part at a time; of one that is too large the error.

    Args:
        batch: of a table.
        count: of what its file unpacks to.
        path: of the file, for messages.
        first: number of its first row.

    Raises:
        TooLarge: the file unpacks to too much.
    """
    number = first
    for part in _parts(batch):
        if isinstance(part, str):
            yield BadRecord(part, part, where=f"{path}: row {number}")
            number += 1
            continue
        count.add(part.bytes)
        yield from batch.slice(part.begin, part.rows).to_pylist()
        number += part.rows


def _parts(batch: pa.RecordBatch) -> Iterator[_Part | str]:
    """The rows of a batch in parts of at most `_TOGETHER` bytes, or one row; of a row that is too large the reason."""
    sizes_N, long_N = np.zeros(batch.num_rows, np.int64), np.zeros(batch.num_rows, bool)
    for column in batch.columns:
        cells_N = python_bytes(column)
        sizes_N += cells_N
        long_N |= cells_N > CELL
    bad = np.flatnonzero(long_N | (sizes_N > RECORD)).tolist()
    before_N = np.concatenate([[0], np.cumsum(sizes_N)])
    begin = 0
    for stop in [*bad, batch.num_rows]:
        while begin < stop:
            most = int(np.searchsorted(before_N, before_N[begin] + _TOGETHER, side="right")) - 1
            end = min(max(most, begin + 1), stop)
            yield _Part(begin, end - begin, int(before_N[end] - before_N[begin]))
            begin = end
        if stop < batch.num_rows:
            yield f"a cell {too_long(CELL)}" if long_N[stop] else too_long(RECORD)
        begin = stop + 1


def python_bytes(array: pa.Array) -> _Counts:
    """(N,) about how many bytes each value of an Arrow array takes as a Python object."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, is_ = array.type, pa.types
    if isinstance(array, pa.ExtensionArray):
        return python_bytes(array.storage)
    found = np.full(len(array), 80, np.int64)  # of an object itself, and of the pointer to it
    if is_.is_dictionary(kind):
        entries = np.append(python_bytes(array.dictionary), 0)
        numbers = pc.fill_null(array.indices.cast(pa.int64()), len(entries) - 1).to_numpy()
        found = entries[numbers]
    elif is_.is_struct(kind):
        found += 136 + 100 * kind.num_fields  # the names of its fields are shared
        for k in range(kind.num_fields):
            found += python_bytes(array.field(k))
    elif is_.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        found += python_bytes(values).reshape(len(array), kind.list_size).sum(axis=1) + 40
    elif is_.is_list(kind) or is_.is_large_list(kind) or is_.is_map(kind):
        ends = array.offsets.to_numpy().astype(np.int64)
        values = python_bytes(array.values.slice(int(ends[0]), int(ends[-1] - ends[0])))
        before = np.concatenate([[0], np.cumsum(values)])[ends - ends[0]]
        found += np.diff(before) + 40
    elif is_.is_fixed_size_binary(kind):
        found += kind.byte_width
    elif is_.is_string(kind) or is_.is_binary(kind) or is_.is_large_string(kind) or is_.is_large_binary(kind):
        found += pc.fill_null(pc.binary_length(array), 0).to_numpy()
    elif is_.is_string_view(kind) or is_.is_binary_view(kind):
        found += array.nbytes  # for want of a function for their lengths: as if each had all
    else:
        found[:] = 40
    return found


# How many rows are read at once.


class _Plan(NamedTuple):
    """How row groups are read.

    Attributes:
        row_groups: their numbers; they are read one behind the other.
        bytes: what all of them take, at most.
        rows: of a batch, at most.
        shared: paths of the columns that are read as dictionaries.
    """

    row_groups: list[int]
    bytes: int
    rows: int
    shared: frozenset[str]


class _Page(NamedTuple):
    """A page of a column.

    Attributes:
        kind: its type.
        values: how many it has, nulls with them; of a dictionary, entries.
        encoding: of its values.
        size: bytes that it unpacks to.
        at: where its content begins in the file.
        packed: bytes of its content in the file.
        levels: bytes of its content that say where rows begin, which are not compressed; None: they are, and their
            number stands in front of them.
        in_runs: whether its levels are in the encoding of today.
    """

    kind: int
    values: int
    encoding: int
    size: int
    at: int
    packed: int
    levels: int | None
    in_runs: bool

    @property
    def memory(self) -> int:
        """Bytes that it takes while it is read: what is not compressed has as many as in the file."""
        return max(self.size, self.packed)


class _Column:
    """What is to know of a column of a row group before it is read.

    Args:
        where: file, row group and column, for messages.
        file: open for reading.
        described: the column.
        chunk: where it stands.
        shared: whether its type in Arrow is a dictionary.

    Attributes:
        path: its name, with those of the columns that it is part of.
        flat: whether every value is a row.
        values: number of its values.
        pages: with values.
        page_bytes: what its pages take while they are read: the dictionary and the largest other one.
        shared: whether it is read as a dictionary.
        own_P: (P,) bytes of a value of each page, at most, where pages do not hold the values as they are.
        content_P: (P,) bytes of the values of each page, at most, besides.
        first_P: (P + 1,) values before each page.
        starts_R: (R,) values before each row; None: not known.
    """

    def __init__(self, where: str, file: BinaryIO, described: _Described, chunk: _Chunk, *, shared: bool) -> None:
        self.where = where
        self.file = file
        self.codec = chunk.codec
        self.path = described.path
        self.flat = described.lists == 0
        self.lists = described.lists
        self.nullable = described.nullable
        entries, self.pages = _pages(where, file, chunk)
        dictionary = sum(page.memory for page in entries)
        values_P = np.array([page.values for page in self.pages], np.int64)
        self.values = int(values_P.sum())
        self.page_bytes = dictionary + max((page.memory for page in self.pages), default=0)
        texts = described.kind == _TEXTS
        named = self._named_at_once()
        longest = dictionary
        if texts and entries and not shared and dictionary * named > SHARED:
            longest = self._longest(entries[0])
        self.shared = texts and (shared or named * longest > SHARED)
        if self.shared:
            longest = 4
            self.page_bytes += 2 * dictionary  # with that of the batch, and the index of its texts
        if texts:
            found = [self._bytes_of(page, longest) for page in self.pages]
        else:
            width = described.width if described.kind == _FIXED else _WIDTHS[described.kind]
            found = [(width, 0)] * len(self.pages)
        self.own_P, self.content_P = np.array(found, np.float64).reshape(-1, 2).T  # products may exceed 64 bits
        self.own_P = self.own_P + (_VALUE if self.flat else _NESTED)
        self.first_P = np.concatenate([[0], np.cumsum(values_P)])
        self.starts_R: _Counts | None = None

    def _named_at_once(self) -> int:
        """How many values of a dictionary are in memory at once, at most."""
        named = max((page.values for page in self.pages if page.encoding in _NAMED), default=0)
        return min(named, ROWS) if self.flat else named

    def total(self) -> int:
        """Bytes that the whole column takes, at most."""
        return self.page_bytes + int((self.content_P + self.own_P * np.diff(self.first_P)).sum())

    def most(self, rows: int) -> int:
        """Bytes of so many rows that are read at once, at most; all of a column whose rows are not known."""
        if self.flat:
            # batches in which a page begins, or the one before; others lie in a page that begins in one of these
            batch_K = np.unique(np.concatenate([[0], self.first_P // rows, self.first_P // rows - 1]).clip(0))
            begin_K, end_K = batch_K * rows, np.minimum((batch_K + 1) * rows, self.values)
            begin_K, end_K = begin_K[begin_K < end_K], end_K[begin_K < end_K]
        elif self.starts_R is not None:
            begin_K = self.starts_R[::rows]
            end_K = np.append(begin_K[1:], self.values)
        else:
            begin_K, end_K = np.zeros(1, np.int64), np.full(1, self.values)
        if not self.values:
            return 0
        from_K = np.searchsorted(self.first_P, begin_K, side="right") - 1
        to_K = np.searchsorted(self.first_P, end_K, side="left")
        before_P = np.concatenate([[0], np.cumsum(self.content_P)])
        return int((before_P[to_K] - before_P[from_K] + (end_K - begin_K) * self.own_P.max()).max())

    def find_rows(self) -> None:
        """Find out where rows begin, where a row is not a value."""
        known = self.codec in _CODECS and all(page.in_runs for page in self.pages)
        if self.flat or self.starts_R is not None or not known:
            return
        runs, found = RUNS, [np.zeros(0, np.int64)]
        for page, before in zip(self.pages, self.first_P, strict=False):
            for first, more in _zeros(self._levels(page), self.lists.bit_length(), page.values):
                runs -= 1 + len(more)
                if runs < 0:
                    raise TooLarge(f"{self.where}: it has more than {RUNS:,} rows; write smaller row groups")
                found.append(before + first + more)
        self.starts_R = np.concatenate(found)

    def _levels(self, page: _Page) -> bytes:
        """The levels of a page that say where rows begin."""
        if page.levels is not None:
            self.file.seek(page.at)
            return self.file.read(min(page.levels, page.packed))
        content = self._content(page)
        (size,) = struct.unpack_from("<I", content)
        return bytes(content[4 : 4 + size])

    def _content(self, page: _Page) -> memoryview:
        """What a page holds, unpacked."""
        import pyarrow as pa

        self.file.seek(page.at)
        packed = self.file.read(page.packed)
        name = _CODECS[self.codec]
        return memoryview(pa.Codec(name).decompress(packed, page.size) if name else packed)

    def _bytes_of(self, page: _Page, longest: int) -> tuple[int, int]:
        """What a text of a page takes at most, and what all of them take besides; `longest` is of the dictionary."""
        if page.encoding in _NAMED:
            return longest, 0
        if page.encoding == _PREFIXES:
            return page.memory, 0
        if page.memory > _LARGE and page.encoding == _PLAIN and page.kind == _DATA:
            return self._longest(page), 0
        return 0, page.memory

    def _longest(self, page: _Page) -> int:
        """Bytes of the longest text of a page or dictionary; all of them where that would take long to find out."""
        known = self.codec in _CODECS and page.in_runs
        if page.memory > BATCH // 3 or page.values > _LOOKED_UP or not known:
            return page.memory
        content = self._content(page)
        at = 0
        longest = 0
        if page.kind == _DATA:  # levels stand before the texts
            for _ in range((not self.flat) + self.nullable):
                (length,) = struct.unpack_from("<I", content, at)
                at += 4 + length
        while at < len(content):
            (length,) = struct.unpack_from("<I", content, at)
            longest = max(longest, length)
            at += 4 + length
        return longest


def _zeros(levels: bytes, width: int, values: int) -> Iterator[tuple[int, _Counts]]:
    """The places of the levels of a page that are 0, at which rows begin: of each run its place, and those in it.

    A run is a level that is repeated, or groups of eight levels in bits.

    Raises:
        ValueError: they are no levels.
    """
    seen = at = 0
    while seen < values:
        header, at = _number(levels, at, 32)
        if header & 1:
            size = (header >> 1) * width
            if size > _LONGEST_RUN:
                raise ValueError("a run of levels is too long; write the file with smaller row groups")
            bits = np.unpackbits(np.frombuffer(levels, np.uint8, size, at), bitorder="little")
            run = bits.reshape(-1, width)[: values - seen]
            count = len(run)
            yield seen, np.flatnonzero(~run.any(axis=1))
        else:
            size = -(-width // 8)
            count = min(header >> 1, values - seen)
            yield seen, np.arange(0 if any(levels[at : at + size]) else min(count, RUNS))
        if not count:
            raise ValueError("a run of no levels")
        seen += count
        at += size


# The footer and the headers of pages, in Thrift's compact protocol. pyarrow reads the footer, too, but it aborts the
# process where it is asked for the columns of a damaged one.


class _Described(NamedTuple):
    """A column of values, as it is in all row groups.

    Attributes:
        path: its name, with those of the columns that it is part of.
        kind: type of its values.
        width: bytes of its values, of the type `_FIXED`.
        lists: how many lists are around a value.
        nullable: whether a value or a list may be missing.
    """

    path: str
    kind: int
    width: int
    lists: int
    nullable: bool


class _Chunk(NamedTuple):
    """Where a column of a row group stands in the file: compression, number of values, bytes, first pages."""

    codec: int
    values: int
    size: int
    data_at: int
    dictionary_at: int


class _Group(NamedTuple):
    """A row group: its rows, the bytes that they should unpack to, and (C, 5) what `_Chunk` has of each column."""

    rows: int
    bytes: int
    chunks: _Counts


class _Footer(NamedTuple):
    """What the footer of a file says."""

    columns: list[_Described]
    groups: list[_Group]


def _read_footer(path: Path) -> _Footer:
    """The footer of a file; an empty one where there is none, of which pyarrow says why.

    Raises:
        TooLarge: it is larger than `DIRECTORY`, or has more than `CHUNKS` columns of row groups.
        DataError: it is damaged.
    """
    with path.open("rb") as file:
        end = file.seek(0, 2) - 8
        file.seek(max(end, 0))
        size = int.from_bytes(file.read(4), "little")
        if size > end:
            return _Footer([], [])
        if size > DIRECTORY:
            raise TooLarge(
                f"{path}: its footer has {size >> 20} MiB, at most {DIRECTORY >> 20} are read; write larger row groups"
            )
        file.seek(end - size)
        data = file.read(size)
    with boundary(DataError, "its footer is damaged; write the file again", where=str(path)):
        footer, left = _parsed_footer(data)
    if left < 0:
        raise TooLarge(f"{path}: more than {CHUNKS:,} columns in all row groups; write larger row groups")
    return footer


def _parsed_footer(data: bytes) -> tuple[_Footer, int]:
    """The footer, and how many more columns of row groups it might have; negative: it has too many."""
    columns, groups, left = list[_Described](), list[_Group](), CHUNKS
    number, kind, at = _field(data, 0, 0)
    while kind and left >= 0:
        if (number, kind) == (2, _LIST):
            count, at = _structs(data, at)
            elements = []
            for _ in range(count):
                element, at = _struct(data, at, 0)
                elements.append(element)
            columns = _described(iter(elements))
        elif (number, kind) == (4, _LIST):
            if groups:
                raise ValueError("two lists of row groups")
            count, at = _structs(data, at)
            while count and left >= 0:
                group, at = _group(data, at, left)
                groups.append(group)
                left -= len(group.chunks)
                count -= 1
        else:
            _, at = _value(data, at, kind, 0)
        if left >= 0:
            number, kind, at = _field(data, at, number)
    return _Footer(columns, groups), left


def _described(elements: Iterator[dict[tuple[int, int], Any]]) -> list[_Described]:
    """The columns of values from the elements of a schema, in which those inside another follow it."""
    found = list[_Described]()
    root = next(elements, {})
    above = [[root.get((5, _I32), 0), "", 0, False]]  # elements that go on: how many follow, path, lists, nullable
    for element in elements:
        while above and not above[-1][0]:
            above.pop()
        if not above:
            break
        above[-1][0] -= 1
        name, repetition = element[4, _TEXT], element.get((3, _I32), 0)
        if len(name) == _NAME:
            raise ValueError("a name that is too long")
        path = f"{above[-1][1]}{name.decode()}"
        lists = above[-1][2] + (repetition == 2)
        nullable = above[-1][3] or repetition != 0
        if element.get((5, _I32)):
            above.append([element[5, _I32], f"{path}.", lists, nullable])
        else:
            width = element.get((2, _I32), 0)
            found.append(_Described(path, element[1, _I32], width, lists, nullable))
    return found


def _group(data: bytes, at: int, most: int) -> tuple[_Group, int]:
    """A row group, of whose columns at most one more than `most` are read, and where it ends."""
    found, chunks = dict[tuple[int, int], Any](), list[list[int]]()
    number, kind, at = _field(data, at, 0)
    while kind:
        if (number, kind) == (1, _LIST):
            count, at = _structs(data, at)
            if chunks:
                raise ValueError("two lists of columns")
            if count > most:
                return _Group(0, 0, np.zeros((most + 1, 5), np.int64)), at
            for _ in range(count):
                chunk, at = _struct(data, at, 0)
                own = chunk[3, _STRUCT]
                chunks.append([own.get(field, 0) for field in _OF_A_CHUNK])
        else:
            found[number, kind], at = _value(data, at, kind, 0)
        number, kind, at = _field(data, at, number)
    rows = found.get((3, _I64), 0)
    size = found.get((2, _I64), 0)
    return _Group(rows, size, np.array(chunks, np.int64).reshape(-1, 5)), at


def _pages(where: str, file: BinaryIO, chunk: _Chunk) -> tuple[list[_Page], list[_Page]]:
    """The dictionary of a column of a row group, if any, and the pages with its values, as pyarrow finds them."""
    at = chunk.dictionary_at if 0 < chunk.dictionary_at < chunk.data_at else chunk.data_at
    end, seen = at + chunk.size, 0
    entries, found = list[_Page](), list[_Page]()
    while at < end and seen < chunk.values:
        page = _page(file, at)
        numbers = () if page is None else (page.size, page.packed, page.values)
        if page is None or not all(0 <= number < 1 << 31 for number in numbers) or len(found) > PAGES:
            raise DataError(f"page {len(found)} is damaged, or there are more than {PAGES:,}", where=where)
        at = page.at + page.packed
        if page.kind == _DICTIONARY:
            entries.append(page)
        elif page.kind in (_DATA, _DATA_2):
            found.append(page)
            seen += page.values
    return entries, found


def _page(file: BinaryIO, at: int) -> _Page | None:
    """The page at a place of the file; None where there is none."""
    for size in _HEADERS:
        file.seek(at)
        data = file.read(size)
        try:
            header, length = _struct(data, 0, 0)
        except IndexError:  # it is longer
            continue
        break
    else:
        return None
    kind = header[1, _I32]
    values = 0
    encoding = _PLAIN
    levels = None
    in_runs = True
    if kind == _DATA:
        own = header[5, _STRUCT]
        values = own[1, _I32]
        encoding = own[2, _I32]
        in_runs = (own[3, _I32], own[4, _I32]) == (_IN_RUNS, _IN_RUNS)
    elif kind == _DICTIONARY:
        values = header[7, _STRUCT][1, _I32]
    elif kind == _DATA_2:
        own = header[8, _STRUCT]
        values = own[1, _I32]
        encoding = own[4, _I32]
        levels = own[6, _I32]
    return _Page(
        kind,
        values,
        encoding,
        size=header[2, _I32],
        at=at + length,
        packed=header[3, _I32],
        levels=levels,
        in_runs=in_runs,
    )


_IN_RUNS = 3  # encoding of levels
_TRUE, _FALSE = 1, 2  # types of Thrift's compact protocol
_I16, _I32, _I64 = 4, 5, 6
_TEXT = 8
_LIST = 9
_STRUCT = 12
_LISTS = (_LIST, 10)
_BYTES_OF = {3: 1, 7: 8}  # of types of one length
_OF_A_CHUNK = ((4, _I32), (5, _I64), (7, _I64), (9, _I64), (11, _I64))  # as the fields of `_Chunk`
_NAME = 10_000  # bytes of a text that are kept
_DEEPEST = 8  # structs in a struct; headers of pages have three


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[tuple[int, int], Any], int]:
    """The fields of a struct by their number and type, and where it ends.

    Readers that Thrift made leave out a field of another type than they know, and take the last that stands twice; so a
    field is looked up by both, and none may stand twice.

    Raises:
        IndexError: it goes on behind the data.
        ValueError: it is none.
    """
    found: dict[tuple[int, int], Any] = {}
    number, kind, at = _field(data, at, 0)
    while kind:
        if (number, kind) in found:
            raise ValueError("a field stands twice")
        found[number, kind], at = _value(data, at, kind, depth)
        number, kind, at = _field(data, at, number)
    return found, at


def _field(data: bytes, at: int, before: int) -> tuple[int, int, int]:
    """Number and type of the field behind that with the number `before`, and where it begins; type 0: there is none."""
    head = data[at]
    at += 1
    if head & 15 == 0:
        return 0, 0, at
    number = before + (head >> 4)
    if not head >> 4:
        number, at = _integer(data, at, 16)
    if not 0 <= number < 1 << 15:
        raise ValueError("there is no such field")
    return number, head & 15, at


def _structs(data: bytes, at: int) -> tuple[int, int]:
    """How many structs a list has, and where the first begins."""
    head = data[at]
    at += 1
    if head & 15 != _STRUCT:
        raise ValueError("no list of structs")
    return (head >> 4, at) if head >> 4 < 15 else _number(data, at, 31)


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    """A value of a struct, and where it ends; of lists only the latter."""
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind in (_I16, _I32, _I64):
        return _integer(data, at, {_I16: 16, _I32: 32, _I64: 64}[kind])
    if kind in _BYTES_OF:
        return None, at + _BYTES_OF[kind]
    if kind == _TEXT:
        length, at = _number(data, at, 31)
        if at + length > len(data):
            raise IndexError
        return data[at : at + min(length, _NAME)], at + length
    if depth > _DEEPEST:
        raise ValueError("structs in structs without end")
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in _LISTS:
        head = data[at]
        at += 1
        count = head >> 4
        if count == 15:
            count, at = _number(data, at, 31)
        for _ in range(count):
            if head & 15 in (_TRUE, _FALSE):
                at += 1
            else:
                _, at = _value(data, at, head & 15, depth + 1)
            if at > len(data):
                raise IndexError
        return None, at
    raise ValueError(f"there is no type {kind}")


def _integer(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """An integer with a sign, which is its last bit, and where it ends."""
    number, at = _number(data, at, bits)
    return (number >> 1) ^ -(number & 1), at


def _number(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """A number of as many bytes as it needs, seven bits in each, and where it ends.

    Raises:
        IndexError: the data end before.
        ValueError: it has more bits, of which readers would leave some out.
    """
    found = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            if found >> bits:
                break
            return found, at
        shift += 7
    raise ValueError(f"a number of more than {bits} bits")
