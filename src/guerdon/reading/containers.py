"""Files of rows in any container, row by row, each row with its place.

| ending | rows |
|---|---|
| `.jsonl`, `.ndjson` | lines of JSON |
| `.json` | a list of rows, or an object with one list of maps in it at any depth |
| `.csv`, `.tsv` | lines of cells, which stay the text that they are |
| `.parquet`, `.arrow` | rows of a table; `.arrow` as a file or as a stream |
| `.eval` | the samples of an archive of inspect_ai |

Each also as `.gz`, `.zst` or `.bz2`, or inside a `.zip`.

    for part in parts_of(Path("rows.zip")):
        for number, row in part.rows(): ...          # a row that cannot be read is a `DataError` in its place
        print(part.place(number))                    # rows.zip/train.jsonl:3
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from guerdon.errors import DataError, boundary
from guerdon.files.arrow_bounds import arrow_rows
from guerdon.files.bounds import (
    COLUMNS,
    BadRecord,
    Counted,
    TooLarge,
    Unpacked,
    Unparsed,
    bounded_lines,
    json_bytes,
    json_of,
    open_member,
    read_json,
    table_rows,
    zip_members,
    zip_names,
)
from guerdon.files.parquet_bounds import BoundedParquet

if TYPE_CHECKING:
    from collections.abc import Callable

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # how text in UTF-16 begins
_HEAD = 1 << 16  # bytes by which the form of a table is seen
_DELIMITERS = (",", "\t", ";", "|")
_SAID_DELIMITER = re.compile(r"sep=(.)", re.IGNORECASE)
_LINES = (".jsonl", ".ndjson")
_TABLES = {".csv": ",", ".tsv": "\t"}
ROWS = (*_LINES, ".json", *_TABLES, ".parquet", ".arrow", ".eval")
"""Endings of files with rows."""
PACKED = (".gz", ".zst", ".bz2")
"""Endings behind those, of files that hold one of them."""
ARCHIVE = ".zip"
SAVED = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
"""Endings of the files of a folder that belong to a data set; tables of text next to them are often notes."""
_KNOWN_LISTS = (("samples",), ("simulations",), ("results", "results"), ("rows",), ("responses",))
"""Lists of maps in objects of JSON that hold the rows, where there are further lists: of inspect_ai, tau2-bench,
promptfoo, the viewer of the hub, and responses that guerdon shows."""
HALF_WRITTEN = "half-written last line"
"""What is wrong with the last line of a file that is still being written."""
_END = 100  # bytes by which a file is known again
_PIECE = 1 << 20  # bytes that are unpacked at a time
_OTHERS = {"HDF5 files of robomimic or Minari": (".hdf5", ".h5"), "records of RLDS": (".tfrecord",)}
_DEEP = 6  # maps inside each other in which a list of rows is looked for


class NoRowsError(DataError):
    """An object of JSON without a list of rows, such as a configuration."""


@dataclass(frozen=True)
class Part:
    """The rows of one file, or of one member of an archive.

    Attributes:
        path: the file.
        member: name in the archive; empty: the file itself.
    """

    path: Path
    member: str = ""

    @property
    def name(self) -> str:
        """The file's own name, without folders."""
        return Path(self.member or self.path).name

    @property
    def ending(self) -> str:
        """The ending of what is inside: `.jsonl` of `rows.jsonl.gz`."""
        return row_ending(self.name)

    @property
    def stem(self) -> str:
        """The name without endings."""
        whole = self.name
        if Path(whole).suffix.lower() in PACKED:
            whole = Path(whole).stem
        return Path(whole).stem

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"{self.path}/{self.member}" if self.member else str(self.path)

    def relative_to(self, root: Path) -> str:
        """What it is called within a folder, or within the file itself."""
        own = self.path.name if self.path == root else str(self.path.relative_to(root))
        return f"{own}/{self.member}" if self.member else own

    @property
    def by_line(self) -> bool:
        """Whether its rows are lines with numbers of their own."""
        return self.ending in _LINES

    @property
    def place_of_rows(self) -> str:
        """What stands in front of the number of a row in messages."""
        return f"{self.where}:" if self.by_line else f"{self.where}: row "

    @property
    def is_table(self) -> bool:
        """Whether its cells are text, numbers too."""
        return self.ending in _TABLES

    def place(self, number: int) -> str:
        """The place of a row in messages."""
        return f"{self.place_of_rows}{number}"

    def rows(self, *, kept: bool = False) -> Iterator[tuple[int, Any]]:
        """The rows with their numbers: lines are counted from 1, other rows from 0.

        A row that cannot be read is a `DataError` in its place. It can be read again from its start.

        Args:
            kept: whether the caller keeps all rows in memory, of which `Unpacked` allows less.

        Raises:
            DataError: the file cannot be read as a whole.
        """
        return _ROWS[self.ending](self, kept)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The bytes of what is inside, as a stream that counts what it unpacks to.

        Raises:
            DataError: it cannot be opened, or is damaged.
            TooLarge: it unpacks to too much.
        """
        ending = Path(self.name).suffix.lower()
        packed = bool(self.member) or ending in PACKED
        said = "cannot be unpacked" if packed else "cannot be read"
        with ExitStack() as stack, boundary(DataError, said, where=self.where):
            raw: BinaryIO
            if self.member:
                raw = stack.enter_context(open_member(self.path, self.member))
            else:
                raw = stack.enter_context(self.path.open("rb"))
            if packed:
                unpacked = stack.enter_context(_unpacked(raw, ending))
                counted = Counted(unpacked, Unpacked(self.path, kept=True))
                raw = stack.enter_context(io.BufferedReader(counted, _PIECE))
            yield raw

    @contextmanager
    def as_file(self) -> Iterator[Path]:
        """A file that can be read anywhere: itself, or a temporary one with what it unpacks to."""
        if not self.member and Path(self.name).suffix.lower() not in PACKED:
            yield self.path
            return
        with tempfile.TemporaryDirectory() as folder, self.opened() as stream:
            copy = Path(folder) / self.stem
            with copy.open("wb") as out:
                while piece := stream.read(_PIECE):
                    out.write(piece)
            yield copy


def row_ending(name: str) -> str:
    """The ending of a name that says how its rows are written, without `.gz` and the like; empty: none that is read."""
    path = Path(name)
    if path.suffix.lower() in PACKED:
        path = path.with_suffix("")
    ending = path.suffix.lower()
    return ending if ending in ROWS else ""


def endings(name: str) -> str:
    """The ending of a name with that of what is packed in it: `.jsonl.gz`."""
    path = Path(name)
    packed = path.suffix.lower()
    return path.with_suffix("").suffix.lower() + packed if packed in PACKED else packed


def has_rows(path: Path) -> bool:
    """Whether a file is one that is read, by its name."""
    return bool(row_ending(path.name)) or path.suffix.lower() == ARCHIVE


def other_format(path: Path) -> str:
    """What files of robots' episodes are that are known and not read, by the ending of a name; empty: none of these."""
    return next((name for name, ends in _OTHERS.items() if any(end in path.name for end in ends)), "")


def parts_of(path: Path) -> list[Part]:
    """The parts of a file: itself, or the members of a `.zip` that have rows.

    Raises:
        DataError: there is no such file, its ending is none that is read, or the archive has no rows.
    """
    if not path.suffix and not path.exists():
        raise DataError("there is no such file or folder; make it first, or check the path", where=path)
    if other := other_format(path):
        raise DataError(
            f"{other} are not read: write them as a LeRobot data set, which guerdon audit reads", where=path
        )
    if not has_rows(path):
        ends = f"{', '.join(ROWS)}, each also as {', '.join(PACKED)} or in a .zip"
        raise DataError(f"rows are read from {ends}; convert the file to one of these", where=path)
    if not path.is_file():
        raise DataError("there is no such file", where=path)
    if path.suffix.lower() != ARCHIVE:
        return [Part(path)]
    members = [name for name in zip_names(path) if row_ending(name) and not is_hidden(Path(name).parts)]
    if not members:
        raise DataError(f"the archive has no file with rows ({', '.join(ROWS)})", where=path)
    return [Part(path, member) for member in members]


def file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file, each with its place, for callers that keep all of them in memory.

    A row that cannot be read is a `DataError` in its place.

    Raises:
        DataError: as `parts_of`, or the file cannot be read as a whole.
    """
    for part in parts_of(path):
        front = part.place_of_rows
        for number, row in part.rows(kept=True):
            yield f"{front}{number}", row


def good_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """As `file_rows`, for files in which every row must be readable.

    Raises:
        DataError: as `file_rows`, and for the first row that cannot be read.
    """
    for where, row in file_rows(path):
        if isinstance(row, DataError):
            raise row
        yield where, row


def is_hidden(names: Sequence[str]) -> bool:
    """Whether one of the names of a path is that of a file or folder that no user wrote."""
    return any(name.startswith((".", "__")) for name in names)


@contextmanager
def _unpacked(raw: BinaryIO, ending: str) -> Iterator[Any]:
    if ending == ".gz":
        with gzip.open(raw) as stream:
            yield stream
    elif ending == ".bz2":
        with bz2.open(raw) as stream:
            yield stream
    elif ending == ".zst":
        import pyarrow as pa

        with pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd") as stream:
            yield stream
    else:
        yield raw


def _json_lines(part: Part, kept: bool) -> Iterator[tuple[int, Any]]:
    with part.opened() as file:
        if cast(io.BufferedReader, file).peek(2)[:2] in _UTF_16:
            raise DataError("its text is UTF-16; write it in UTF-8", where=part.where)
        for number, line in enumerate(bounded_lines(file), start=1):
            if isinstance(line, Unparsed):
                yield number, BadRecord(str(line), line.why, where=part.place(number))
            elif line.strip():
                yield number, _row_of(line, part, number)


@dataclass
class LinesRead:
    """How far a file of lines that grows was read.

    Attributes:
        offset: bytes.
        lines: of which so many.
        end: the last of these bytes, which a file that only grew still has there.
        is_open: the last line has been read, and its end is not there yet.
        is_half: behind these bytes is the beginning of a line.
    """

    offset: int = 0
    lines: int = 0
    end: bytes = b""
    is_open: bool = False
    is_half: bool = False

    def still_holds(self, path: Path) -> bool:
        """Whether the file begins with what was read."""
        with path.open("rb") as file:
            file.seek(self.offset - len(self.end))
            return file.read(len(self.end)) == self.end


def grown_rows(part: Part, read: LinesRead) -> Iterator[tuple[int, Any]]:
    """The rows behind what was read of a file of JSON lines that is not packed, as `Part.rows`.

    `read` moves on with them. A last line that is half-written is not read yet.
    """
    with boundary(DataError, "cannot be read", where=part.where), part.path.open("rb") as file:
        file.seek(read.offset)
        read.is_half = False
        for line in bounded_lines(file):
            is_end = read.is_open and isinstance(line, bytes) and not line.strip()  # of the line before
            number = read.lines + (not is_end)
            row = None
            if isinstance(line, Unparsed):
                row = BadRecord(str(line), line.why, where=part.place(number))
            elif line.strip():
                row = _row_of(line, part, number)
            if isinstance(row, BadRecord) and row.why == HALF_WRITTEN:
                read.is_half = True
                return
            read.lines, read.offset = number, file.tell()
            read.is_open = isinstance(line, bytes) and not line.endswith(b"\n")
            if isinstance(line, bytes):
                read.end = line[-_END:]
            if row is not None:
                yield number, row


def _row_of(line: bytes, part: Part, number: int) -> Any:
    """The row of a line of JSON, or what is wrong with it."""
    try:
        row = json_of(line)
    except Unparsed as error:
        if error.why == "not JSON" and not line.endswith(b"\n"):
            said = f"not JSON, a half-written last line: {error.more}"
            return BadRecord(said, HALF_WRITTEN, where=part.place(number))
        return BadRecord(str(error), error.why, where=part.place(number))
    if isinstance(row, dict) and len(row) > COLUMNS:
        said = f"it has {len(row):,} keys, at most {COLUMNS:,} are read"
        return BadRecord(said, "too many keys", where=part.place(number))
    return row


def _table(part: Part, kept: bool) -> Iterator[tuple[int, Any]]:
    """Rows of a table whose first line names the columns; a cell is the text that it is, and an empty one None."""
    kind = part.ending[1:].upper()
    with boundary(DataError, f"cannot be read as {kind}", where=part.where), part.opened() as stream:
        form = _form_of(stream, part)
        file = io.TextIOWrapper(stream, encoding=form.encoding, newline="")
        rows = _decoded_rows(table_rows(file, form.delimiter), part.where, form.encoding)
        if form.says_delimiter:
            next(rows)
        names = _names(next(rows, []), part.where)
        for number, cells in enumerate(rows):
            where = f"{part.where}: row {number}"
            if isinstance(cells, Unparsed):
                yield number, BadRecord(str(cells), cells.why, where=where)
            elif len(cells) > len(names):
                more = f"{len(cells)} cells under {len(names)} columns; put quotes around commas"
                yield number, BadRecord(more, "more cells than columns", where=where)
            elif any(cells):
                yield number, {name: cell or None for name, cell in zip(names, cells, strict=False)}


class TableForm(NamedTuple):
    """How a table of text is written.

    Attributes:
        encoding: of its text.
        delimiter: between cells.
        says_delimiter: whether the line in front of the names says it, as spreadsheets write it: `sep=;`.
    """

    encoding: str
    delimiter: str
    says_delimiter: bool = False


def table_form(part: Part) -> TableForm:
    """How a table of text is written, by its first line."""
    with part.opened() as stream:
        return _form_of(stream, part)


def _form_of(stream: BinaryIO, part: Part) -> TableForm:
    """As `table_form`; the delimiter is that of the ending, if there are several names between such."""
    head = cast(io.BufferedReader, stream).peek(_HEAD)[:_HEAD]
    encoding = "utf-16" if head[:2] in _UTF_16 else "utf-8-sig"
    line = head.decode(encoding, "replace").partition("\n")[0].rstrip("\r")
    said = _SAID_DELIMITER.fullmatch(line)
    if said is not None:
        return TableForm(encoding, said[1], says_delimiter=True)
    usual = _TABLES[part.ending]
    counts = {sign: len(next(csv.reader([line], delimiter=sign), [])) for sign in (usual, *_DELIMITERS)}
    return TableForm(encoding, usual if counts[usual] > 1 else max(counts, key=lambda sign: counts[sign]))


def _decoded_rows(rows: Iterator[Any], where: str, encoding: str) -> Iterator[Any]:
    """The rows of a table.

    Raises:
        DataError: its bytes are no text of the encoding.
    """
    try:
        yield from rows
    except UnicodeDecodeError as error:
        usual = encoding.removesuffix("-sig").upper()
        raise DataError(f"its bytes are no {usual} ({error.reason}); write it in UTF-8", where=where) from error


def _names(names: list[str] | Unparsed, where: str) -> list[str]:
    """The names of the columns, which the first line of a table has.

    Raises:
        DataError: it does not name every column once.
    """
    if isinstance(names, Unparsed):
        raise DataError(f"the line with the names of the columns is {names}", where=where)
    if len(set(names)) < len(names) or not all(names):
        found = ", ".join(names)[:200]
        raise DataError(f"the first line must name every column once, it has {found!r}", where=where)
    if len(names) > COLUMNS:
        raise TooLarge(f"{where}: it has {len(names):,} columns, and at most {COLUMNS:,} are read; keep those you need")
    return names


def _parquet(part: Part, kept: bool) -> Iterator[tuple[int, Any]]:
    with part.as_file() as path, boundary(DataError, "cannot be read as Parquet", where=part.where):
        yield from enumerate(BoundedParquet(path).rows(kept=kept))


def _arrow(part: Part, kept: bool) -> Iterator[tuple[int, Any]]:
    with part.as_file() as path, boundary(DataError, "cannot be read as Arrow", where=part.where):
        yield from enumerate(arrow_rows(path, kept=kept))


# Objects of JSON.


def _json(part: Part, kept: bool) -> Iterator[tuple[int, Any]]:
    with part.opened() as file:
        found = read_json(file, part.where)
    yield from enumerate(found if isinstance(found, list) else rows_inside(found, part.where))


def rows_inside(found: Any, where: str) -> Sequence[Any]:
    """The rows of an object of JSON: its one list of maps, or a table with `columns` and `data`.

    Raises:
        DataError: there is no such list, or several.
    """
    if not isinstance(found, Mapping):
        raise DataError(
            f"a .json file holds rows, this holds {type(found).__name__}; one row per line needs the ending .jsonl",
            where=where,
        )
    if _is_split(found):
        return [dict(zip(map(str, found["columns"]), row, strict=False)) for row in found["data"]]
    if is_frame(found):
        by_column = _is_numbered(next(iter(found.values())))
        if not by_column:
            return list(found.values())
        return [{name: cells[key] for name, cells in found.items()} for key in next(iter(found.values()))]
    place = list_inside(found, where)
    rows: Any = found
    for key in place:
        rows = rows[key]
    if is_of_viewer(rows):
        return [one["row"] for one in rows]
    if place == ("responses",) and "step" in found:  # responses that guerdon shows
        return [{**row, "step": found["step"]} for row in rows]
    return list(rows)


def _is_split(found: Mapping[str, Any]) -> bool:
    """Whether an object of JSON is a table of names beside lists of cells."""
    return isinstance(found.get("columns"), list) and isinstance(found.get("data"), list)


def is_frame(found: Mapping[str, Any]) -> bool:
    """Whether an object of JSON is a table as pandas writes it: columns of numbered cells, or numbered rows."""
    maps = list(found.values())
    if not maps or not all(isinstance(one, Mapping) and one for one in maps):
        return False
    alike = all(one.keys() == maps[0].keys() for one in maps)
    return alike and _is_numbered(found) != _is_numbered(maps[0])


def _is_numbered(found: Mapping[str, Any]) -> bool:
    """Whether the keys of a map are whole numbers."""
    return all(str(key).isdecimal() for key in found)


def is_of_viewer(rows: Any) -> bool:
    """Whether rows are those of the hub's viewer, each of which holds its row below `row`."""
    if not isinstance(rows, list) or not rows:
        return False
    return all("row_idx" in one and isinstance(one.get("row"), dict) for one in rows)


def with_rows(found: dict[str, Any], rows: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """An object of JSON with other rows in the place of its own, as `rows_inside` finds them.

    The object may be changed in place.

    Raises:
        DataError: as `rows_inside`.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    if _is_split(found):
        return {**found, "columns": names, "data": [[row.get(name) for name in names] for row in rows]}
    if is_frame(found):
        return _frame_with_rows(found, rows, names)
    *outer, last = list_inside(found, where)
    holder = found  # of the list
    for key in outer:
        holder = holder[key]
    own = holder[last]
    holder[last] = list(rows)
    if is_of_viewer(own):
        holder[last] = [{**one, "row": row} for one, row in zip(own, rows, strict=True)]
    return found


def _frame_with_rows(
    found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, Any]:
    """A frame of pandas, by column or by row as it was, with other rows of these names."""
    first = next(iter(found.values()))
    if not _is_numbered(first):
        return dict(zip(found, rows, strict=True))
    numbered = dict(zip(first, rows, strict=True))
    return {name: {number: row.get(name) for number, row in numbered.items()} for name in names}


def list_inside(found: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The keys that lead to the list of rows of an object of JSON.

    Raises:
        NoRowsError: there is no list of maps.
        DataError: there are several, of which none is known.
    """
    if _is_list(found, ("schema", "fields")) and _is_list(found, ("data",)):  # a table of pandas
        return ("data",)
    known = next((keys for keys in _KNOWN_LISTS if _is_list(found, keys)), None)
    if known is not None:
        return known
    lists = dict(_lists(found, (), _DEEP))
    if len(lists) == 1:
        return next(iter(lists))
    if not lists:
        raise NoRowsError(
            f"a JSON object without a list of rows, found {', '.join(map(str, found))[:200]}", where=where
        )
    several = "; ".join(f"{'.'.join(keys)} ({len(rows)} rows)" for keys, rows in lists.items())
    raise DataError(f"a JSON object with several lists of rows: {several[:300]}; write one of them alone", where=where)


def _is_list(found: Any, keys: tuple[str, ...]) -> bool:
    """Whether these keys lead to a list of maps, which may be empty."""
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return isinstance(found, list) and all(isinstance(one, Mapping) for one in found)


def _lists(value: Mapping[str, Any], keys: tuple[str, ...], deep: int) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Lists of maps in a map and in the maps inside it, with the keys that lead to them."""
    for key, one in value.items():
        if isinstance(one, list) and one and all(isinstance(row, Mapping) for row in one):
            yield (*keys, key), one
        elif isinstance(one, Mapping) and deep:
            yield from _lists(one, (*keys, key), deep - 1)


# Archives of inspect_ai.

_SAMPLES = "a log of inspect_ai"


def is_sample(name: str) -> bool:
    """Whether a file of an `.eval` archive is a sample."""
    return name.startswith("samples/") and name.endswith(".json")


def _samples(part: Part, kept: bool) -> Iterator[tuple[int, Any]]:
    with part.as_file() as path:
        memory = Unpacked(path, kept=True)
        members = zip_members(path, Unpacked(path, kept=kept), wanted=is_sample, kind=_SAMPLES)
        for number, (name, data) in enumerate(members):
            if isinstance(data, BadRecord):
                yield number, data
                continue
            if kept:
                memory.add(json_bytes(data))
            try:
                yield number, json_of(data)
            except Unparsed as error:
                yield number, BadRecord(str(error), error.why, where=f"{part.where}: {name[:200]}")


def eval_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files in an `.eval` archive, in their order.

    Raises:
        DataError: it is not one, or one of them cannot be read.
    """
    for name, data in zip_members(path, Unpacked(path, kept=True), kind=_SAMPLES):
        if isinstance(data, BadRecord):
            raise data
        yield name, data


_ROWS: dict[str, Callable[[Part, bool], Iterator[tuple[int, Any]]]] = {
    ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".csv": _table, ".tsv": _table,
    ".parquet": _parquet, ".arrow": _arrow, ".eval": _samples,
}  # fmt: skip
