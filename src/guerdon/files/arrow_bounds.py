"""Arrow files and streams of strangers, whose memory is known before their batches are read.

A batch may be compressed: each of its buffers then begins with the number of bytes that it unpacks to, which stands
before anything is unpacked. pyarrow does not show these, so the description of a batch is read here.

    for row in arrow_rows(path, kept=False):        # a map, or the error of this row
        ...

References: Message.fbs of Arrow 21 (format 1.5); the encoding of FlatBuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from guerdon.errors import DataError
from guerdon.files.bounds import COLUMNS, BadRecord, TooLarge, Unpacked
from guerdon.files.parquet_bounds import BATCH, batch_rows

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"ARROW1\0\0"  # in front of the stream that an Arrow file holds
_DICTIONARY, _BATCH = 2, 3  # types of messages


def arrow_rows(path: Path, *, kept: bool) -> Iterator[dict[str, Any] | BadRecord]:
    """The rows of a file or a stream of Arrow as Python objects, in order; of one that is too large the error.

    Args:
        path: the file.
        kept: whether the caller keeps all of them in memory.

    Raises:
        TooLarge: it has more than `COLUMNS` columns, or cannot be read within the limits.
        Exception: of pyarrow or of another kind: it is damaged.
    """
    count = Unpacked(path, kept=kept)
    number = 0
    with _opened(path) as reader:
        for batch in reader:
            yield from batch_rows(batch, count, path, number)
            number += batch.num_rows


def arrow_table(path: Path) -> pa.Table:
    """The rows as one table.

    Raises:
        TooLarge: as `arrow_rows`.
        Exception: as `arrow_rows`.
    """
    with _opened(path) as reader:
        return reader.read_all()


def is_stream(path: Path) -> bool:
    """Whether it is a stream, and not a file with an index at its end."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) != _MAGIC


def _opened(path: Path) -> pa.RecordBatchStreamReader:
    """A reader of batches, whose sizes were checked."""
    import pyarrow as pa

    data = pa.memory_map(str(path)).read_buffer()
    if not is_stream(path):
        data = data.slice(len(_MAGIC))
    _check_sizes(path, data)
    reader = pa.ipc.open_stream(data)
    if len(reader.schema) > COLUMNS:
        found = f"{len(reader.schema):,}"
        raise TooLarge(f"{path}: it has {found} columns, and at most {COLUMNS:,} are read; keep those you need")
    return reader


def _check_sizes(path: Path, data: pa.Buffer) -> None:
    """Refuse batches that unpack to too much.

    Raises:
        TooLarge: a batch unpacks to more than `BATCH`, or all of them to more than the file may.
        DataError: a buffer lies outside of its message.
    """
    import pyarrow as pa

    count = Unpacked(path, kept=False)
    for message in pa.ipc.MessageReader.open_stream(data):
        batch = _described(message.metadata.to_pybytes())
        if batch is None:
            continue
        sizes = [_size(path, message.body, at, length, packed=batch.packed) for at, length in batch.buffers]
        if batch.packed and sum(sizes) > BATCH:
            raise TooLarge(f"{path}: a batch unpacks to more than {BATCH >> 20} MiB; write smaller ones")
        count.add(sum(sizes))


def _size(path: Path, body: pa.Buffer, at: int, length: int, *, packed: bool) -> int:
    """Bytes that a buffer takes in memory."""
    if at < 0 or length < 0 or at + length > len(body):
        raise DataError("a buffer lies outside of its batch; write the file again", where=path)
    if not packed or length < 8:
        return length
    size = int.from_bytes(body.slice(at, 8).to_pybytes(), "little", signed=True)
    return max(size, length - 8)  # -1: stored as it is


class _Batch(NamedTuple):
    """What a message says of a batch: where its buffers lie, and whether they are compressed."""

    buffers: list[tuple[int, int]]
    packed: bool


def _described(message: bytes) -> _Batch | None:
    """The batch of a message, or of a dictionary; None: it is something else."""
    (root,) = struct.unpack_from("<I", message)
    kind_at = _field(message, root, 1)
    header_at = _field(message, root, 2)
    if not kind_at or not header_at or message[kind_at] not in (_DICTIONARY, _BATCH):
        return None
    batch = _target(message, header_at)
    if message[kind_at] == _DICTIONARY:
        batch = _target(message, _field(message, batch, 1))
    listed = _field(message, batch, 2)
    if not listed:
        return _Batch([], packed=False)
    at = _target(message, listed)
    (n,) = struct.unpack_from("<I", message, at)
    buffers = [struct.unpack_from("<qq", message, at + 4 + 16 * k) for k in range(n)]
    return _Batch(buffers, packed=bool(_field(message, batch, 3)))


def _target(message: bytes, at: int) -> int:
    """Where an offset leads to."""
    return at + int(struct.unpack_from("<I", message, at)[0])


def _field(message: bytes, table: int, number: int) -> int:
    """Where a field of a table stands; 0: it has its default."""
    (back,) = struct.unpack_from("<i", message, table)
    slots = table - back
    (size,) = struct.unpack_from("<H", message, slots)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", message, slots + 4 + 2 * number)
    return table + offset if offset else 0
