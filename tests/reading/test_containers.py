"""Rows of every container: the same rows are read the same, and what is too large or damaged is one line."""

import bz2
import contextlib
import csv
import gzip
import io
import json
import struct
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.auditing.logs import read_log
from guerdon.errors import DataError
from guerdon.evaluation.scoring.rewritten import write_rows
from guerdon.files import arrow_bounds
from guerdon.files.bounds import COLUMNS, TooLarge
from guerdon.reading.containers import Part, file_rows, good_rows, parts_of
from guerdon.reading.data_sets import data_parts

ROWS = [{"prompt": "q", "n": 1, "chat": [{"role": "user", "content": "a"}]}, {"prompt": "r", "n": None, "chat": []}]
TEXTS = [{"a": "007", "b": "x,y"}, {"a": None, "b": "NA"}]  # what a table of text can hold


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parquet(rows):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def arrow(rows, writer=pa.ipc.new_stream, compression=None):
    table, sink = pa.Table.from_pylist(rows), io.BytesIO()
    with writer(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as out:
        out.write_table(table)
    return sink.getvalue()


def table(rows, delimiter):
    quoted = [[f'"{v}"' if v and delimiter in v else v or "" for v in row.values()] for row in rows]
    return "".join(delimiter.join(cells) + "\n" for cells in [list(rows[0]), *quoted]).encode()


CONTAINERS = {
    "rows.jsonl": lines, "rows.ndjson": lines,
    "rows.json": lambda rows: json.dumps(rows).encode(),
    "object.json": lambda rows: json.dumps({"run": "x", "deep": {"er": rows}, "empty": []}).encode(),
    "wandb.json": lambda rows: json.dumps(
        {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}
    ).encode(),
    "rows.parquet": parquet, "stream.arrow": arrow,
    "file.arrow": lambda rows: arrow(rows, pa.ipc.new_file),
    "zstd.arrow": lambda rows: arrow(rows, pa.ipc.new_file, "zstd"),
    "lz4.arrow": lambda rows: arrow(rows, compression="lz4"),
}  # fmt: skip
PACKED = {
    "": lambda data: data, ".gz": gzip.compress, ".bz2": bz2.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}  # fmt: skip


def archive(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in members.items():
            out.writestr(name, data)
    return path


@pytest.mark.parametrize("packing", PACKED)
def test_the_same_rows_in_every_container(tmp_path, packing):
    wrong = {}
    for name, written in CONTAINERS.items():
        path = tmp_path / f"{name}{packing}"
        path.write_bytes(PACKED[packing](written(ROWS)))
        for rows in (
            list(good_rows(path)),
            list(good_rows(archive(tmp_path / f"{name}.zip", {path.name: path.read_bytes()}))),
        ):
            if [row for _, row in rows] != ROWS:
                wrong[path.name] = rows
    for ending, delimiter in ((".csv", ","), (".tsv", "\t")):
        path = tmp_path / f"table{ending}{packing}"
        path.write_bytes(PACKED[packing](table(TEXTS, delimiter)))
        if [row for _, row in good_rows(path)] != TEXTS:
            wrong[path.name] = list(good_rows(path))
    assert not wrong


def test_places_name_the_line_or_the_row_and_the_member(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\n{"x": 1}\n')
    (tmp_path / "b.json").write_bytes(b'[{"x": 1}]')
    packed = archive(
        tmp_path / "c.zip", {"in/a.jsonl": b'{"x": 1}\n', "in/": b"", "notes.txt": b"", "__MACOSX/a.jsonl": b"no"}
    )
    assert [where for where, _ in good_rows(tmp_path / "a.jsonl")] == [f"{tmp_path}/a.jsonl:2"]
    assert [where for where, _ in good_rows(tmp_path / "b.json")] == [f"{tmp_path}/b.json: row 0"]
    assert [where for where, _ in good_rows(packed)] == [f"{tmp_path}/c.zip/in/a.jsonl:1"]


def test_a_member_is_called_by_its_folder(tmp_path):
    part = Part(tmp_path / "x" / "c.zip", "in/train.jsonl.gz")
    assert (part.name, part.stem, part.ending, part.by_line) == ("train.jsonl.gz", "train", ".jsonl", True)
    assert part.relative_to(tmp_path) == "x/c.zip/in/train.jsonl.gz"
    assert part.relative_to(part.path) == "c.zip/in/train.jsonl.gz"


def refused(path):
    with pytest.raises(DataError) as error:
        list(good_rows(path))
    said = str(error.value)
    assert "\n" not in said
    return said


def test_an_object_with_several_lists_names_them(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"a": [{"x": 1}], "b": {"c": [{"y": 1}, {"y": 2}]}}))
    assert "a (1 rows); b.c (2 rows)" in refused(path)
    path.write_text(json.dumps({"simulations": [{"x": 1}], "tasks": [{"y": 2}]}))  # of tau2-bench, which is known
    assert [row for _, row in good_rows(path)] == [{"x": 1}]
    path.write_text(json.dumps({"a": 1, "b": ["x"]}))
    assert "without a list of rows, found a, b" in refused(path)


@pytest.mark.hostile("files")
def test_files_that_unpack_to_gigabytes_end_early(tmp_path):
    """Ten gigabytes of zeros in three ways; one line each, which says what to do."""
    piece = bytes(1 << 24)
    packed = gzip.compress(piece, compresslevel=9)
    (tmp_path / "zeros.jsonl.gz").write_bytes(packed * 640)
    with (
        zipfile.ZipFile(tmp_path / "zeros.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out,
        out.open("rows.jsonl", "w", force_zip64=True) as member,
    ):
        for _ in range(40):
            member.write(piece)
    wide = pa.table({"x": pa.nulls(80_000_000, pa.int64()).fill_null(0)})
    with pa.ipc.new_file(
        tmp_path / "zeros.arrow", wide.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as out:
        out.write_table(wide)
    for name in ("zeros.jsonl.gz", "zeros.zip"):
        with pytest.raises(DataError, match="unpacks to more than"):
            list(file_rows(tmp_path / name))
    assert "a batch unpacks to more than 576 MiB" in refused(tmp_path / "zeros.arrow")


def test_texts_that_an_arrow_file_repeats_are_read_and_counted(tmp_path, monkeypatch):
    texts = pa.array(["x" * 50_000, "b", None, "b"]).dictionary_encode()
    with pa.ipc.new_file(
        tmp_path / "a.arrow", pa.schema({"t": texts.type}), options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as out:
        out.write_table(pa.table({"t": texts}))
    assert [row["t"] for _, row in good_rows(tmp_path / "a.arrow")] == texts.to_pylist()
    monkeypatch.setattr(arrow_bounds, "BATCH", 40_000)
    assert "a batch unpacks to more than" in refused(tmp_path / "a.arrow")


def test_an_arrow_file_with_too_many_columns_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.arrow"
    path.write_bytes(arrow(ROWS))
    monkeypatch.setattr(arrow_bounds, "COLUMNS", len(ROWS[0]) - 1)
    assert f"it has {len(ROWS[0])} columns, and at most {len(ROWS[0]) - 1} are read" in refused(path)


def test_a_buffer_outside_of_its_batch_is_refused(tmp_path):
    path, size = tmp_path / "a.arrow", struct.pack("<q", 4000)
    data = arrow([{"n": k} for k in range(500)])
    at = data.rindex(size)  # its length in the batch; the message has it, too
    path.write_bytes(data[:at] + struct.pack("<q", 4001 << 8) + data[at + 8 :])
    assert "a buffer lies outside of its batch" in refused(path)


@pytest.mark.hostile("files")
def test_names_of_members_lead_nowhere_else(tmp_path):
    for name in ("../out.jsonl", "/out.jsonl", "a/../../out.jsonl", "..\\out.jsonl"):
        said = refused(archive(tmp_path / "odd.zip", {name: b'{"x": 1}\n'}))
        assert "leads out of the archive" in said
    assert not list(tmp_path.parent.glob("out.jsonl"))


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.csv.bz2", "a.jsonl.zst", "a.arrow", "a.zip", "a.parquet.gz", "a.eval"]
)
def test_damaged_files_are_one_line(tmp_path, name):
    path = tmp_path / name
    whole = {"a.jsonl.gz": gzip.compress(lines(ROWS * 99)), "a.csv.bz2": bz2.compress(table(TEXTS * 99, ",")),
             "a.jsonl.zst": PACKED[".zst"](lines(ROWS * 99)), "a.arrow": arrow(ROWS * 99),
             "a.parquet.gz": gzip.compress(parquet(ROWS * 99))}.get(name, b"PK\x03\x04" * 99)  # fmt: skip
    path.write_bytes(whole[: len(whole) // 2])
    assert str(path) in refused(path)


@given(st.binary(max_size=300), st.sampled_from(["a.arrow", "a.zip", "a.jsonl.gz", "a.jsonl.zst", "a.json.bz2"]))
def test_any_bytes_are_rows_or_one_line(tmp_path_factory, data, name):
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(data)
    with contextlib.suppress(DataError):
        assert all(where.startswith(str(path)) for where, _ in file_rows(path))


def test_what_is_no_file_of_rows_is_said(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"")
    assert "rows are read from .jsonl" in refused(tmp_path / "a.xlsx")
    assert "there is no such file" in refused(tmp_path / "none.jsonl.gz")
    assert "there is no such file or folder; make it first" in refused(tmp_path / "none")
    assert "no file with rows" in refused(archive(tmp_path / "model.zip", {"policy.pth": b"x"}))
    two = archive(tmp_path / "two.zip", {"b.csv": b"x\n1\n", "a.jsonl": b"{}"})
    assert [part.member for part in parts_of(two)] == ["b.csv", "a.jsonl"]


def test_rows_and_tables_of_too_many_columns_are_not_read(tmp_path):
    wide = {str(k): k for k in range(COLUMNS + 1)}
    (tmp_path / "rows.jsonl").write_text(json.dumps(wide) + "\n" + json.dumps({"a": 1}) + "\n")
    first, second = (row for _, row in Part(tmp_path / "rows.jsonl").rows())
    assert (first.why, second) == ("too many keys", {"a": 1})
    (tmp_path / "table.csv").write_text(",".join(wide) + "\n")
    with pytest.raises(TooLarge, match="it has 4,097 columns, and at most 4,096 are read"):
        list(Part(tmp_path / "table.csv").rows())


NAMED = [{"prompt": "q;1", "response": "a,b"}, {"prompt": "r", "response": "x\ty"}]


def delimited(sign, encoding="utf-8", front=""):
    text = io.StringIO()
    out = csv.DictWriter(text, ["prompt", "response"], delimiter=sign)
    out.writeheader()
    out.writerows(NAMED)
    return f"{front}{text.getvalue()}".encode(encoding)


TABLES = {
    "semicolons.csv": delimited(";"), "tabs.csv": delimited("\t"), "bars.csv": delimited("|"),
    "commas.tsv": delimited(","), "sheet.csv": delimited(";", front="sep=;\r\n"),
    "wide.csv": delimited(";", "utf-16"), "wide.tsv": delimited("\t", "utf-16"),
    "marked.csv": delimited(",", "utf-8-sig"), "packed.csv.gz": gzip.compress(delimited(";")),
    "packed.csv.bz2": bz2.compress(delimited("|", "utf-16")),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_by_the_delimiter_and_the_encoding_of_its_first_line(tmp_path, name):
    (tmp_path / name).write_bytes(TABLES[name])
    assert [row for _, row in good_rows(tmp_path / name)] == NAMED


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("a.csv", "a,b\nü,1\n".encode("latin-1"), "its bytes are no UTF-8"),
     ("a.jsonl", lines(ROWS).decode().encode("utf-16"), "its text is UTF-16; write it in UTF-8"),
     ("b.csv", b"\xff\xfea", "its bytes are no UTF-16")],
)  # fmt: skip
def test_text_in_another_encoding_is_refused_with_what_to_do(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        list(good_rows(tmp_path / name))


def frames(rows):
    """The ways in which pandas writes a table as JSON, and the hub's viewer shows it."""
    names = list(rows[0])
    return {
        "split": {"columns": names, "index": [0, 1], "data": [list(row.values()) for row in rows]},
        "columns": {name: {str(k): row[name] for k, row in enumerate(rows)} for name in names},
        "index": {str(k): row for k, row in enumerate(rows)},
        "table": {"schema": {"fields": [{"name": name, "type": "string"} for name in names]}, "data": rows},
        "viewer": {"features": [{"name": name} for name in names], "num_rows_total": 2,
                   "rows": [{"row_idx": k, "row": row, "truncated_cells": []} for k, row in enumerate(rows)]},
        "instances": {"task": "x", "instances": rows, "sizes": [1, 2]},
    }  # fmt: skip


@pytest.mark.parametrize("kind", frames(NAMED))
def test_tables_of_pandas_and_of_the_viewer_are_rows_and_are_written_as_such(tmp_path, kind):
    (tmp_path / "rows.json").write_text(json.dumps(frames(NAMED)[kind]))
    assert [row for _, row in good_rows(tmp_path / "rows.json")] == NAMED
    scored = [{**row, "reward": 0.5} for row in NAMED]
    write_rows(tmp_path / "scored.json", tmp_path / "rows.json", scored, [2], ["reward"])
    assert [row for _, row in good_rows(tmp_path / "scored.json")] == scored
    assert json.loads((tmp_path / "scored.json").read_text()).keys() == (
        {*frames(NAMED)[kind], "reward"} if kind == "columns" else frames(NAMED)[kind].keys()
    )


@pytest.mark.parametrize(
    "found", [{}, {"a": {}}, {"a": {"b": 1}, "c": {"d": 2}}, {"model": {"name": "x"}, "data": {"path": "y"}}]
)
def test_an_object_that_is_a_configuration_has_no_rows(tmp_path, found):
    (tmp_path / "config.json").write_text(json.dumps(found))
    with pytest.raises(DataError, match="without a list of rows"):
        list(good_rows(tmp_path / "config.json"))


@pytest.mark.parametrize("name", ["demo.hdf5", "main_data.h5", "x.tfrecord-00000-of-00001"])
def test_episodes_of_other_tools_are_refused_with_what_to_do(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    for call in (
        lambda: list(good_rows(tmp_path / name)),
        lambda: data_parts(str(tmp_path)),
        lambda: read_log(tmp_path),
    ):
        with pytest.raises(DataError, match="write them as a LeRobot data set"):
            call()


def test_a_file_is_called_packed_only_where_it_is(tmp_path):
    open_quote = b'prompt,response\n1,"two'
    (tmp_path / "rows.csv").write_bytes(open_quote)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(open_quote)[:-9])
    for name, said in (("rows.csv", "cannot be read"), ("rows.csv.gz", "cannot be unpacked")):
        with pytest.raises(DataError, match=said):
            list(good_rows(tmp_path / name))
