"""What a file of a stranger may take: named limits, and readers that count while they read.

Sizes that a file declares are used to refuse it early and are never believed: a member of an archive, a line and a row
are read in pieces until they end or cross their limit. What is too large by itself (a line, a member, a cell, a row) is
a `BadRecord` in its place, and the rest of the file is read; a file that is too large as a whole is `TooLarge`.
Columns of Parquet have a module of their own, `parquet_bounds`.

    with path.open("rb") as file:
        for line in bounded_lines(file):                     # bytes, or the reason why there are none
            ...
    for name, found in zip_members(path, wanted=is_sample):  # bytes, or the error of this member
        ...
"""

from __future__ import annotations

import csv
import gc
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO, cast

import numpy as np
from pydantic_core import from_json

from guerdon.errors import DataError, boundary, said_by

_MIB = 1 << 20

RECORD = 64 * _MIB
"""Bytes of a line of JSON, of a member of an archive, and of a row of a table in memory. The longest conversations with
tools take a few MiB; a reader holds two or three copies of a record, together less than 256 MiB."""
CELL = 16 * _MIB
"""Bytes of a cell of CSV or Parquet: 4 million tokens of text. A reader of CSV takes 12 bytes for each."""
VALUES = 3_000_000
"""Commas, colons and opening brackets of a record of JSON, and half of those of a `.json` file. Python takes up to 90
bytes for each: 270 MB for a record, of which a reader holds the last one while it reads the next."""
NESTED = 200
"""Levels of lists and maps in JSON, as many as the parser of pydantic reads; functions that call themselves for each
level stay far from Python's limit of 1,000 calls."""
WHOLE = 128 * _MIB
"""Bytes of a `.json` file, which is read whole."""
COLUMNS = 4096
"""Columns of a table, and keys of a row of JSON. Every column takes memory before its first cell is read."""
DIRECTORY = 16 * _MIB
"""Bytes of the directory of an archive and of the footer of a Parquet file, which are read whole: 200,000 members."""
STREAMED = 4096 * _MIB
"""Bytes that a file of any size may unpack to where its rows are read one after the other."""
KEPT = 512 * _MIB
"""Bytes that a file of any size may unpack to where all its rows are kept in memory."""
TIMES = 100
"""Larger files may unpack to this many times their own size. Text shrinks to a fifth or a tenth, and prompts that are
repeated for every response of a group to less; an archive made to fill the memory shrinks to a thousandth."""

_PIECE = _MIB  # bytes that are read at a time
_SMALL = _MIB  # bytes of a text of JSON that needs no look at `VALUES`
_MARKS, _MARK = (b",", b":", b"[", b"{"), 90  # marks between values of JSON, and bytes of what stands behind one
_TABLE_ROW = 32 * _MIB  # characters of a row of a table; Python takes up to four bytes for one, and holds two copies
_STORED, _DEFLATED, _ZSTANDARD = 0, 8, 93  # `zipfile` knows the last from Python 3.14 on
_HEADER = 30  # bytes of the header of a member without its name


class TooLarge(DataError):
    """A file that would take more than is allowed; none of it is used, since a part would look like the whole."""


class BadRecord(DataError):
    """A row of a file, or a member of an archive, that cannot be read; the others can.

    Args:
        said: the message.
        why: the reason in a few words, by which such rows are counted.
        where: see `DataError`.

    Attributes:
        why: as given.
    """

    def __init__(self, said: str, why: str, *, where: str | None = None) -> None:
        super().__init__(said, where=where)
        self.why = why


class Unparsed(ValueError):
    """A text that is not JSON, or a record beyond the limits.

    Args:
        why: the reason in a few words.
        more: what the parser says.

    Attributes:
        why: as given.
        more: as given.
    """

    def __init__(self, why: str, more: str = "") -> None:
        super().__init__(": ".join(filter(None, (why, more))))
        self.why = why
        self.more = more


def too_long(most: int) -> str:
    """The reason of a record with more bytes than `most`."""
    return f"longer than {most >> 20} MiB" if most >= _MIB else f"longer than {most} bytes"


class Unpacked:
    """How much a file unpacks to, counted while it is read.

    Args:
        path: the file.
        kept: whether all its rows stay in memory.

    Attributes:
        bytes: so far.
        most: bytes that are allowed.
    """

    def __init__(self, path: Path, *, kept: bool) -> None:
        self.path = path
        self.bytes = 0
        size = path.stat().st_size
        self.most = max(KEPT if kept else STREAMED, TIMES * size)
        self._said = f"{path} has {size} bytes and unpacks to more than {self.most >> 20} MiB"

    def add(self, size: int) -> None:
        """Count what was unpacked.

        Raises:
            TooLarge: it is more than the file may unpack to.
        """
        self.bytes += size
        if self.bytes > self.most:
            raise TooLarge(f"{self._said}, the limit for a file of this size; split it, or write its rows as .jsonl")


# JSON.


def json_of(data: bytes, *, most: int | None = None) -> Any:
    """The value of a text of JSON in UTF-8.

    Args:
        data: the text.
        most: commas, colons and opening brackets that it may have; None: `VALUES`.

    Raises:
        Unparsed: it is not JSON, is nested deeper than `NESTED`, or has too many values.
    """
    if len(data) <= _SMALL:
        return _parsed(data)
    _check_values(data, VALUES if most is None else most)
    with _without_collector():
        return _parsed(data)


def json_of_text(text: str) -> Any:
    """The value of a text of JSON that stands in a cell.

    Raises:
        Unparsed: as `json_of`.
    """
    if len(text) > _SMALL:
        _check_values(text.encode("utf-8", "surrogatepass"), VALUES)
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise Unparsed("not JSON", str(error)) from error
    if _deeper(found, NESTED):
        raise _too_deep()
    return found


def json_bytes(data: bytes) -> int:
    """Bytes that a text of JSON and its values take in Python, at most."""
    return len(data) + _MARK * sum(map(data.count, _MARKS))


def _check_values(data: bytes, most: int) -> None:
    if sum(map(data.count, _MARKS)) > most:
        raise Unparsed(f"more than {most:,} values")


def _too_deep() -> Unparsed:
    return Unparsed(f"nested deeper than {NESTED} levels")


def read_json(file: Readable, where: Path | str) -> Any:
    """What a file of JSON holds.

    Args:
        file: open for reading bytes, or a stream that unpacks it.
        where: what messages call it.

    Raises:
        TooLarge: it is larger than `WHOLE`.
        DataError: it is not JSON within the limits.
    """
    data = first_bytes(file, WHOLE + 1)
    if len(data) > WHOLE:
        raise TooLarge(
            f"{where}: a .json file of more than {WHOLE >> 20} MiB would be read whole; write one row per line "
            "(.jsonl), a log of inspect_ai as .eval"
        )
    try:
        return json_of(data, most=2 * VALUES)
    except Unparsed as error:
        raise DataError(f"{error} (one row per line needs the ending .jsonl)", where=where) from error


def _parsed(data: bytes) -> Any:
    try:
        return from_json(data)  # twice as fast as `json`, which also reads half of a surrogate pair
    except ValueError as error:
        if "recursion limit" in str(error):
            raise _too_deep() from error
    try:
        found = json.loads(data.decode("utf-8-sig"))
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise Unparsed("not JSON", str(error)) from error
    if _deeper(found, NESTED):
        raise _too_deep()
    return found


def _deeper(value: Any, most: int) -> bool:
    """Whether a value of JSON has more than so many lists and maps inside each other."""
    level = [value]
    for _ in range(most + 1):
        level = [one for one in level if isinstance(one, dict | list) and one]
        if not level:
            return False
        level = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]
    return True


@contextmanager
def _without_collector() -> Iterator[None]:
    """Without Python's search for cycles, which would look at millions of new lists again and again."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()


# Lines.


def bounded_lines(file: BinaryIO) -> Iterator[bytes | Unparsed]:
    """The lines of a file, each with its end; in the place of one that is longer than `RECORD` the reason.

    Args:
        file: open for reading bytes, or a stream that unpacks it.
    """
    while line := file.readline(RECORD + 1):
        if len(line) <= RECORD:
            yield line
            continue
        yield Unparsed(too_long(RECORD))
        while line and not line.endswith(b"\n"):
            line = file.readline(_PIECE)


def table_rows(file: TextIO, delimiter: str, *, strict: bool = True) -> Iterator[list[str] | Unparsed]:
    """The rows of a table of text; in the place of one that is too long, or has such a cell, the reason.

    Args:
        file: open for reading text, with `newline=""`.
        delimiter: between cells.
        strict: whether quotes in wrong places are an error.

    Raises:
        csv.Error: of the file as a whole.
    """
    csv.field_size_limit(CELL)
    lines = _TableLines(file)
    reader = csv.reader(lines, delimiter=delimiter, strict=strict)
    while True:
        lines.start_row()
        try:
            yield next(reader)
        except StopIteration:
            return
        except Unparsed as error:
            yield error
        except csv.Error as error:
            if "field limit" not in str(error):
                raise
            lines.skip_row()
            yield Unparsed(f"a cell {too_long(CELL)}")


class _TableLines:
    """Lines for `csv.reader`; a row that has too many characters, in one line or several, is read to its end."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.rest = file, io.StringIO()  # what was read behind a row that was too long
        self.line, self.size, self.quotes = "", 0, 0  # the last line; characters and quotes of the row so far

    def start_row(self) -> None:
        """Count from here."""
        self.size = self.quotes = 0

    def skip_row(self) -> None:
        """Read to the end of the row: to the first end of a line that is not between quotes."""
        piece = self.line[-1:]
        inside = self.quotes % 2
        if piece in ("\n", "\r") and not inside:
            return
        while piece := self.rest.read(_PIECE) or self.file.read(_PIECE):
            letters_N = np.frombuffer(piece.encode("utf-32-le", "surrogatepass"), np.uint32)
            quotes_N = np.cumsum(letters_N == ord('"')) + inside
            ends = np.flatnonzero((letters_N == ord("\n")) & (quotes_N % 2 == 0))
            if len(ends):
                self.rest = io.StringIO(piece[ends[0] + 1 :] + self.rest.read(), newline="")
                return
            inside = int(quotes_N[-1]) % 2

    def __iter__(self) -> _TableLines:
        return self

    def __next__(self) -> str:
        line = self.rest.readline(_TABLE_ROW + 1)
        if not line.endswith("\n"):
            line += self.file.readline(_TABLE_ROW + 1 - len(line))
        self.line = line
        if not line:
            raise StopIteration
        self.size += len(line)
        self.quotes += line.count('"')
        if self.size > _TABLE_ROW:
            self.skip_row()
            raise Unparsed(f"longer than {_TABLE_ROW:,} characters")
        return line


# Archives.


def zip_members(
    path: Path, count: Unpacked, *, wanted: Callable[[str], bool] = lambda name: True, kind: str = "an archive"
) -> Iterator[tuple[str, bytes | BadRecord]]:
    """Names and contents of the members of a ZIP archive, in their order; of one that cannot be read the error.

    Of a name that stands twice the last member counts. Members are stored, deflated or compressed by Zstandard.

    Args:
        path: the archive.
        count: of what it unpacks to.
        wanted: which members are unpacked and yielded, by their names.
        kind: what the file should be, for messages.

    Raises:
        TooLarge: its directory is larger than `DIRECTORY`, or it unpacks to too much.
        DataError: it is no archive, or its members overlap.
    """
    with boundary(DataError, f"cannot be read as {kind}", where=str(path)):
        with _Measured(path) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
        _refuse_overlaps(path, infos)
        with path.open("rb") as raw:
            for name, info in {info.filename: info for info in infos}.items():
                if wanted(name):
                    yield name, _member(raw, path, info, count)


def zip_names(path: Path) -> list[str]:
    """The names of the members of a ZIP archive, in their order, without folders.

    Raises:
        TooLarge: its directory is larger than `DIRECTORY`.
        DataError: it is no archive, its members overlap, or a name leads out of it.
    """
    with boundary(DataError, "cannot be read as an archive", where=str(path)):
        with _Measured(path) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
        _refuse_overlaps(path, infos)
    names = list(dict.fromkeys(info.filename for info in infos if not info.is_dir()))
    outside = next(filter(_leads_out, names), None)
    if outside is not None:
        raise DataError(f"the name {outside[:80]!r} leads out of the archive; write it again", where=path)
    return names


@contextmanager
def open_member(path: Path, name: str) -> Iterator[BinaryIO]:
    """A member of a ZIP archive as a stream; the caller counts what it unpacks to.

    Raises:
        Exception: of `zipfile`: the archive is damaged or encrypted.
    """
    with _Measured(path) as file, zipfile.ZipFile(file) as archive, archive.open(name) as member:
        yield cast(BinaryIO, member)


def _leads_out(name: str) -> bool:
    """Whether the name of a member is a path out of its archive."""
    return name.startswith("/") or "\\" in name or ".." in name.split("/")


class Counted(io.RawIOBase):
    """A stream that counts what is read from it.

    Args:
        stream: what unpacks a file.
        count: of what it unpacks to, which refuses too much.
    """

    def __init__(self, stream: Readable, count: Unpacked) -> None:
        self.stream = stream
        self.count = count

    def readable(self) -> bool:
        """Whether it can be read: it can."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer, at most `_PIECE` bytes.

        Raises:
            TooLarge: it is more than the file may unpack to.
        """
        data = self.stream.read(min(len(buffer), _PIECE))
        self.count.add(len(data))
        buffer[: len(data)] = data
        return len(data)


class _Measured(io.BufferedReader):
    """A file of which no more than `DIRECTORY` is read at a time; `zipfile` reads the directory in one piece."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self.path = path

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > DIRECTORY:
            raise TooLarge(
                f"{self.path}: the directory of the archive has {size >> 20} MiB, and at most {DIRECTORY >> 20} are "
                "read; split it"
            )
        return super().read(size)


def _refuse_overlaps(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive whose members share bytes, which would unpack to many times what it holds."""
    at = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < at:
            raise DataError(
                f"the member {info.filename[:80]} overlaps another one; write the archive again", where=path
            )
        at = info.header_offset + _HEADER + info.compress_size


def _member(raw: BinaryIO, path: Path, info: zipfile.ZipInfo, count: Unpacked) -> bytes | BadRecord:
    """The content of a member, or what is wrong with it."""
    name = info.filename
    where = f"{path}: {name[:200]}"

    def bad(why: str, more: str = "") -> BadRecord:
        return BadRecord(": ".join(filter(None, (why, more))), why, where=where)

    if _leads_out(name):
        return bad("a name that leads out of the archive")
    if max(info.file_size, info.compress_size) > RECORD:
        return bad(too_long(RECORD))
    try:
        data = _unpacked(raw, info)
    except (ValueError, OSError, zlib.error) as error:
        return bad("damaged", said_by(error))
    count.add(len(data))
    if len(data) > RECORD:
        return bad(too_long(RECORD))
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        return bad("damaged", "its bytes are not those that the archive describes")
    return data


def _unpacked(raw: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    """The content of a member; of one that is longer than `RECORD` its beginning, one byte more."""
    if info.flag_bits & 1:
        raise ValueError("it is encrypted")
    raw.seek(info.header_offset)
    header = raw.read(_HEADER)
    if not header.startswith(b"PK\x03\x04"):
        raise ValueError("there is no member where the directory says")
    name, more = struct.unpack("<HH", header[26:])  # lengths, which may be others than those in the directory
    raw.seek(name + more, io.SEEK_CUR)
    packed = raw.read(info.compress_size)
    if info.compress_type == _STORED:
        return packed
    if info.compress_type == _DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, RECORD + 1)
    if info.compress_type == _ZSTANDARD:
        import pyarrow as pa

        return first_bytes(pa.CompressedInputStream(pa.BufferReader(packed), "zstd"), RECORD + 1)
    raise ValueError(f"it is compressed by the method {info.compress_type}; 0, 8 and 93 are read")


class Readable(Protocol):
    """A file, or a stream that unpacks one."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many; none at the end."""
        ...


def first_bytes(file: Readable, most: int) -> bytes:
    """The first bytes of a stream, as many as there are up to `most`, read in pieces."""
    pieces = list[bytes]()
    size = 0
    while size < most and (piece := file.read(min(_PIECE, most - size))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
