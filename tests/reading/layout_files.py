"""Files of rows in any container, for tests of reading."""

import bz2
import csv
import gzip
import io
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq


def as_bytes(rows, ending, whole=None):
    """Rows as a file with this ending holds them; `whole` makes other rows of them, or an object."""
    rows = whole(rows) if whole else rows
    if ending == ".gz":
        return gzip.compress(as_bytes(rows, ".jsonl"))
    if ending == ".bz2":
        return bz2.compress(as_bytes(rows, ".jsonl"))
    if ending in (".jsonl", ".ndjson"):
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if ending == ".json":
        return json.dumps(rows).encode()
    if ending in (".csv", ".tsv"):
        text = io.StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        out = csv.DictWriter(text, names, delimiter="," if ending == ".csv" else "\t")
        out.writeheader()
        out.writerows(rows)
        return text.getvalue().encode()
    if ending == ".eval":
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as archive:
            archive.writestr("header.json", json.dumps({"status": "success", "eval": {"task": "t"}}))
            for number, row in enumerate(rows):
                archive.writestr(f"samples/{number}_epoch_1.json", json.dumps(row))
        return sink.getvalue()
    table, sink = pa.Table.from_pylist(rows), io.BytesIO()
    if ending == ".parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    return sink.getvalue()


def written(folder, name, rows, whole=None):
    """A file of rows; its name decides how they are written."""
    folder.mkdir(parents=True, exist_ok=True)
    ending = name[name.rfind(".") :]
    (folder / name).write_bytes(as_bytes(rows, ending, whole))
    return str(folder / name)
