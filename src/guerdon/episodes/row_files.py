"""Rows of data files and data sets: JSON lines, a JSON list, Parquet, CSV, TSV, folders of them, hub data sets.

Files are read here; folders that the `datasets` library saved, and names that are not local paths, with that library.
Every row of a file comes with its place (`file:line`) for error messages.

    for where, row in good_rows(Path("train.jsonl")): ...     # the first bad line is an error
    for where, row in file_rows(Path("train.jsonl")): ...     # a bad line is yielded as its error
    rows_by_split("Qwen/ProcessBench")                        # {"gsm8k": [...], "math": [...], ...}
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.episodes.chats import ChatError, chat_messages, context_of, question_of, tool_schemas
from guerdon.errors import DataError, boundary, needs
from guerdon.files.atomic import write_bytes
from guerdon.files.bounds import (
    COLUMNS,
    BadRecord,
    TooLarge,
    Unparsed,
    bounded_lines,
    json_of,
    json_of_text,
    read_json,
    table_rows,
)
from guerdon.files.parquet_bounds import BoundedParquet
from guerdon.network.hub import check_data_set
from guerdon.processes.progress import log_once
from guerdon.types import Message, Tool

if TYPE_CHECKING:
    import pyarrow as pa

_TABLES = {".csv": ",", ".tsv": "\t"}
ENDINGS = (".jsonl", ".ndjson", ".json", ".parquet", *_TABLES)
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file, each with its place; a row that cannot be read is a `DataError` in its place.

    It is for callers that keep all rows in memory: `Unpacked` allows them less than those that do not.

    Raises:
        DataError: there is no such file, it has another ending, or it cannot be read as a whole.
    """
    lines = path.suffix.lower() in (".jsonl", ".ndjson")
    for number, row in numbered_rows(path, kept=True):
        yield (f"{path}:{number}" if lines else f"{path}: row {number}"), row


def numbered_rows(path: Path, *, kept: bool = False) -> Iterator[tuple[int, Any]]:
    """As `file_rows`: lines of JSON with their line numbers, other rows counted from 0; no more in memory than needed.

    Args:
        path: the file.
        kept: whether the caller keeps all rows in memory.

    Raises:
        DataError: as `file_rows`.
    """
    ending = path.suffix.lower()
    if not ending and not path.exists():
        raise DataError("there is no such file or folder; make it first, or check the path", where=path)
    if ending not in ENDINGS:
        raise DataError(f"rows are read from {', '.join(ENDINGS)}; convert the file to one of these", where=path)
    if not path.is_file():
        raise DataError("there is no such file", where=path)
    if ending in (".jsonl", ".ndjson"):
        yield from _lines(path)
    elif ending in _TABLES:
        yield from _table(path, _TABLES[ending])
    elif ending == ".parquet":
        yield from enumerate(_parquet(path, kept=kept))
    else:
        rows = read_json(path)
        if not isinstance(rows, list):
            raise DataError(
                f"a .json file holds one list of rows, this holds {type(rows).__name__}; one row per line "
                "needs the ending .jsonl",
                where=path,
            )
        yield from enumerate(rows)


def _parquet(path: Path, *, kept: bool) -> Iterator[Any]:
    with boundary(DataError, f"{path}: cannot be read as Parquet"):
        yield from BoundedParquet(path).rows(kept=kept)


def good_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """As `file_rows`, for files in which every row must be readable.

    Raises:
        DataError: as `file_rows`, and for the first line that cannot be read.
    """
    for where, row in file_rows(path):
        if isinstance(row, DataError):
            raise row
        yield where, row


def rows_by_split(data: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of a file (named by its stem), of the files of a folder, or of every split of a data set.

    Args:
        data: a file, a folder of files, a folder that `datasets` saved, or a hub id; of a folder or a hub id also one
            split alone, `openai/gsm8k:test`.

    Raises:
        DataError: it cannot be read, has no rows, or no such split.
        MissingDependencyError: a folder of `datasets` or a hub id without that package.
    """
    name, colon, split = data.rpartition(":")
    if colon and not Path(data).exists() and (Path(name).is_dir() or _HUB_ID.fullmatch(name)):
        found = rows_by_split(name)
        if split not in found:
            raise DataError(f"{name} has no split {split!r}, only {', '.join(found)}")
        return {split: found[split]}
    path = Path(data)
    typed = set(ENDINGS) - _TABLES.keys()  # `datasets` reads folders of tables, and infers types
    files = sorted(p for p in path.iterdir() if p.suffix in typed and p.name[0] != ".") if path.is_dir() else [path]
    if _saved(path) or (path.is_dir() and not files) or not path.exists():
        found = _datasets(data)
    else:
        found = {}
        for file in files:
            found[file.stem] = [row for _, row in good_rows(file)]
            if not all(isinstance(row, dict) for row in found[file.stem]):
                raise DataError("expected rows that are maps of keys", where=file)
    if not any(found.values()):
        raise DataError("there is no row in it", where=data)
    return found


def rows_to_train_on(data: str) -> dict[str, list[dict[str, Any]]]:
    """As `rows_by_split`: the split `train` alone where there is one; a line names the others.

    Raises:
        DataError: as `rows_by_split`.
        MissingDependencyError: as `rows_by_split`.
    """
    found = rows_by_split(data)
    others = ", ".join(f"{split} ({len(rows)} rows)" for split, rows in found.items() if split != "train")
    if "train" not in found or not others:
        return found
    log_once(f"{data}: its split train is used, and not {others}; {data}:SPLIT names another one")
    return {"train": found["train"]}


class RowFields:
    """Reads the keys of a row; every error names the row's place.

    Args:
        row: a mapping; a null counts as absent.
        where: file and line.

    Raises:
        DataError: it is not a mapping; the methods raise it for a missing key or a value of another type.
    """

    def __init__(self, row: Any, where: str) -> None:
        if not isinstance(row, Mapping):
            raise DataError(f"a row must be a map of keys, this is {type(row).__name__}", where=where)
        self.row, self.where = row, where

    def get(self, key: str, kind: type | tuple[type, ...], wanted: str, default: Any = ...) -> Any:
        """The value of a key; without a default it must be there."""
        value = self.row.get(key)
        if value is None:
            if default is ...:
                raise DataError(f"no {key}; found {', '.join(map(str, self.row))}", where=self.where, field=key)
            return default
        numeric = kind in (int, (int, float))
        beyond = kind is not int and is_beyond_float(value)
        if not isinstance(value, kind) or (numeric and isinstance(value, bool)) or beyond:
            raise DataError(f"{key} must be {wanted}, this is {str(value)[:80]!r}", where=self.where, field=key)
        return value

    def text(self, key: str, default: Any = ...) -> Any:
        """A string."""
        return self.get(key, str, "text", default)

    def texts(self, key: str, default: Any = ...) -> Any:
        """A list of strings, as a tuple."""
        return self._items(key, "texts", lambda v: isinstance(v, str), default)

    def integers(self, key: str, default: Any = ...) -> Any:
        """A list of whole numbers, as a tuple."""
        return self._items(key, "whole numbers", lambda v: isinstance(v, int) and not isinstance(v, bool), default)

    def numbers(self, key: str, default: Any = ...) -> Any:
        """A list of numbers, booleans (as 1 and 0) and nulls, as a tuple of floats and None."""

        def fits(value: Any) -> bool:
            return value is None or (isinstance(value, int | float) and not is_beyond_float(value))

        values = self._items(key, "numbers, true and false", fits, default)
        return values if values is None else tuple(None if v is None else float(v) for v in values)

    def _items(self, key: str, what: str, fits: Callable[[Any], bool], default: Any) -> Any:
        values = self.get(key, (list, tuple), f"a list of {what}", default)
        if not all(map(fits, values or ())):
            raise DataError(f"{key} must hold {what} only, this is {str(values)[:80]}", where=self.where, field=key)
        return values if values is None else tuple(values)

    def meta(self) -> dict[str, Any]:
        """The `meta` of a row: a map, or a map in JSON (Parquet)."""
        self.get("meta", (Mapping, str), "a map", default={})
        found = self.from_json("meta") or {}
        if not isinstance(found, Mapping):
            raise DataError(f"meta must be a map, this is {str(found)[:80]!r}", where=self.where, field="meta")
        return dict(found)

    def from_json(self, key: str) -> Any:
        """The value of a key, or what it says in JSON."""
        value = self.row.get(key)
        if not isinstance(value, str):
            return value
        try:
            return json_of_text(value)
        except Unparsed as error:
            raise DataError(f"{key} is not JSON: {error.more or error}", where=self.where, field=key) from error

    def messages(self, key: str) -> tuple[Message, ...]:
        """Chat messages, or such in JSON (Parquet); none where the key is absent."""
        value = self.from_json(key)
        with self.reading(key):
            return chat_messages(value) if value else ()

    def tools(self) -> tuple[Tool, ...]:
        """The functions of the column `tools`, as JSON schemas."""
        with self.reading("tools"):
            return tool_schemas(self.row.get("tools"))

    def question(self, key: str) -> dict[str, Any]:
        """`question` of a solution, and its `context` where the value is chat messages that end with the question."""
        if not isinstance(self.row.get(key), list | tuple):
            return {"question": self.text(key)}
        messages = self.messages(key)
        with self.reading(key):
            return {"question": question_of(messages), "context": context_of(messages)}

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Puts the place in front of what is wrong with a conversation."""
        try:
            yield
        except ChatError as error:
            raise DataError(f"{key}: {error}", where=self.where, field=key) from error


def is_beyond_float(value: Any) -> bool:
    """Whether a value is a whole number that no float can hold; those of JSON may have any length."""
    return isinstance(value, int) and abs(value) > sys.float_info.max


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSON; half of a surrogate pair, which UTF-8 cannot encode, is written as an escape."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row, allow_nan=False).encode() + b"\n"


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write an Arrow table as one Parquet file with page checksums, atomically."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_checksum=True)
    write_bytes(path, sink.getvalue())


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(bounded_lines(file), start=1):
            if isinstance(line, Unparsed):
                yield number, BadRecord(str(line), line.why, where=f"{path}:{number}")
            elif line.strip():
                yield number, _row_of(line, path, number)


def _row_of(line: bytes, path: Path, number: int) -> Any:
    """The row of a line of JSON, or what is wrong with it."""
    where = f"{path}:{number}"
    try:
        row = json_of(line)
    except Unparsed as error:
        if error.why == "not JSON" and not line.endswith(b"\n"):
            said = f"not JSON, a half-written last line: {error.more}"
            return BadRecord(said, "half-written last line", where=where)
        return BadRecord(str(error), error.why, where=where)
    if isinstance(row, dict) and len(row) > COLUMNS:
        said = f"it has {len(row):,} keys, at most {COLUMNS:,} are read"
        return BadRecord(said, "too many keys", where=where)
    return row


def _table(path: Path, delimiter: str) -> Iterator[tuple[int, Any]]:
    """The rows of a file of columns with a header; all cells are text, and an empty one is None."""
    trouble = f"{path}: cannot be read as {path.suffix[1:].upper()} in UTF-8"
    with boundary(DataError, trouble), path.open(encoding="utf-8-sig", newline="") as file:
        rows = table_rows(file, delimiter)
        names = next(rows, [])
        if isinstance(names, Unparsed):
            raise DataError(f"{path}: the line with the names of the columns is {names}")
        if len(set(names)) < len(names) or not all(names):
            found = ", ".join(names)[:200]
            raise DataError(f"the first line must name every column once, it has {found!r}", where=path)
        if len(names) > COLUMNS:
            raise TooLarge(
                f"{path}: it has {len(names):,} columns, and at most {COLUMNS:,} are read; keep those you need"
            )
        for number, cells in enumerate(rows):
            where = f"{path}: row {number}"
            if isinstance(cells, Unparsed):
                yield number, BadRecord(str(cells), cells.why, where=where)
            elif len(cells) > len(names):
                more = f"{len(cells)} cells under {len(names)} columns; put quotes around commas"
                yield number, BadRecord(more, "more cells than columns", where=where)
            elif any(cells):
                yield number, {name: cell or None for name, cell in zip(names, cells, strict=False)}


def _saved(folder: Path) -> bool:
    """Whether `save_to_disk` of `datasets` wrote a folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _datasets(data: str) -> dict[str, list[dict[str, Any]]]:
    """Rows by split of a folder or a hub id, by the `datasets` library."""
    path = Path(data)
    first = path.parts[0] if path.parts else ""
    if not path.exists() and (not _HUB_ID.fullmatch(data) or path.suffix in ENDINGS or Path(first).exists()):
        raise DataError("there is no such file or folder; make it first, or check the path", where=data)
    with needs(f"{data} is read with the package datasets (it is not a file here): pip install 'guerdon[text]'"):
        import datasets
    check_data_set(DataError, "the data set", data)
    with boundary(DataError, f"{data}: cannot be read with datasets"):
        found = datasets.load_from_disk(data) if _saved(path) else datasets.load_dataset(data, trust_remote_code=False)
        if not isinstance(found, dict):
            found = {"train": found}
        return {str(split): list(rows) for split, rows in found.items()}
