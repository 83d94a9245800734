"""A file with other rows in the place of its own, in the same container.

write_rows(Path("scored.jsonl.gz"), Path("answers.jsonl.gz"), rows, ["reward"])
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guerdon.errors import DataError, boundary
from guerdon.files.arrow_bounds import arrow_table, is_stream
from guerdon.files.atomic import write_bytes
from guerdon.files.bounds import Unpacked, read_json, zip_members
from guerdon.files.json_files import json_line
from guerdon.files.parquet_bounds import BoundedParquet
from guerdon.reading.containers import ARCHIVE, Part, eval_members, is_sample, parts_of, table_form, with_rows
from guerdon.reading.nested import FAILURE

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Sequence[Mapping[str, Any]]
TEXTS = (FAILURE, "reward_failure")  # new columns of text; the others hold numbers, or lists of them


def write_rows(out: Path, given: Path, rows: Rows, counts: Sequence[int], new: Sequence[str]) -> None:
    """Write a copy of a file with other rows, in one piece.

    Args:
        out: the copy, with the ending of `given`.
        given: the file.
        rows: of all its parts, one behind the other.
        counts: how many of each part.
        new: names of the columns that are new in them.

    Raises:
        DataError: the file cannot be read.
    """
    parts, rest = parts_of(given), iter(rows)
    changed = {
        part.member: _packed(part.name, _as_bytes(part, list(islice(rest, count)), new))
        for part, count in zip(parts, counts, strict=True)
    }
    if given.suffix.lower() != ARCHIVE:
        write_bytes(out, changed[""])
        return
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in zip_members(given, Unpacked(given, kept=True)):
            if name not in changed and isinstance(data, DataError):
                raise data
            target.writestr(name, changed[name] if name in changed else cast(bytes, data))
    write_bytes(out, archive.getvalue())


def _packed(name: str, data: bytes) -> bytes:
    """Bytes as a name like `rows.jsonl.gz` promises them."""
    ending = Path(name).suffix.lower()
    if ending == ".gz":
        return gzip.compress(data, mtime=0)
    if ending == ".bz2":
        return bz2.compress(data)
    if ending == ".zst":
        import pyarrow as pa

        return bytes(pa.Codec("zstd").compress(data, asbytes=True))
    return data


def _as_bytes(part: Part, rows: Rows, new: Sequence[str]) -> bytes:
    """Rows as the file of a part holds them."""
    ending = part.ending
    if ending == ".eval":
        return _as_archive(part, rows)
    if ending == ".json":
        return _as_json(part, rows)
    if ending in (".csv", ".tsv"):
        return _as_table(rows, new, delimiter=table_form(part).delimiter).encode()
    if ending == ".parquet":
        return _as_parquet(part, rows, new)
    if ending == ".arrow":
        return _as_arrow(part, rows, new)
    return b"".join(map(json_line, rows))


def _as_archive(part: Part, rows: Rows) -> bytes:
    """An archive of inspect_ai with other samples; its other members stay."""
    changed, archive = iter(rows), io.BytesIO()
    with part.as_file() as path, zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in eval_members(path):
            out.writestr(name, json.dumps(next(changed), ensure_ascii=False) if is_sample(name) else data)
    return archive.getvalue()


def _as_json(part: Part, rows: Rows) -> bytes:
    """A list of rows, or the object that holds them with everything else that is in it."""
    with part.opened() as file:
        found = read_json(file, part.where)
    if isinstance(found, list):
        return (json.dumps(list(rows), ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()
    return json.dumps(with_rows(found, rows, part.where), ensure_ascii=False, indent=1).encode()


def _as_table(rows: Rows, new: Sequence[str], *, delimiter: str) -> str:
    """The rows as CSV or TSV, lists in them as JSON."""
    columns = [*dict.fromkeys(key for row in rows for key in row if key not in new), *new]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: json.dumps(value) if isinstance(value, list) else value for key, value in row.items()})
    return text.getvalue()


def _as_parquet(part: Part, rows: Rows, new: Sequence[str]) -> bytes:
    import pyarrow.parquet as pq

    with part.as_file() as path, boundary(DataError, "cannot be read as Parquet", where=part.where):
        table = BoundedParquet(path).table()
    sink = io.BytesIO()
    pq.write_table(_with_columns(table, rows, new), sink, write_page_checksum=True)
    return sink.getvalue()


def _as_arrow(part: Part, rows: Rows, new: Sequence[str]) -> bytes:
    import pyarrow as pa

    with part.as_file() as path, boundary(DataError, "cannot be read as Arrow", where=part.where):
        table = _with_columns(arrow_table(path), rows, new)
        writer = pa.ipc.new_stream if is_stream(path) else pa.ipc.new_file
    sink = io.BytesIO()
    with writer(sink, table.schema) as out:
        out.write_table(table)
    return sink.getvalue()


def _with_columns(table: pa.Table, rows: Rows, new: Sequence[str]) -> pa.Table:
    """A table with the new columns of its rows at its end; its other columns keep their types."""
    import pyarrow as pa

    table = table.drop_columns([name for name in new if name in table.column_names])
    for name in new:
        column = [row.get(name) for row in rows]
        if name in TEXTS:
            kind = pa.string()
        elif any(isinstance(value, list) for value in column):
            kind = pa.list_(pa.float64())
        else:
            kind = pa.float64()
        table = table.append_column(name, pa.array(column, kind))
    return table
