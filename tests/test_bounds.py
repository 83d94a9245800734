"""Limits of files of strangers: JSON, lines, tables and archives; Parquet has a file of its own."""

import csv
import io
import json
import struct
import sys
import zipfile
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.errors import DataError
from guerdon.files import bounds
from guerdon.files.bounds import (
    BadRecord,
    TooLarge,
    Unpacked,
    Unparsed,
    bounded_lines,
    json_bytes,
    json_of,
    json_of_text,
    read_json,
    table_rows,
    zip_members,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def small(monkeypatch):
    """Every text of JSON counts as long."""
    monkeypatch.setattr(bounds, "_SMALL", 0)


@given(values)
def test_json_is_read_as_python_reads_it(value):
    text = json.dumps(value)
    assert json_of(text.encode()) == json_of_text(text) == value
    assert json_of(b"\xef\xbb\xbf" + json.dumps(value, ensure_ascii=False).encode()) == value


def nested(levels):
    return b"[" * levels + b"]" * levels


@pytest.mark.hostile("files")
@pytest.mark.parametrize("end", [b"", b'"\\ud800"'], ids=["whole", "half a surrogate pair"])
@pytest.mark.parametrize(("levels", "read"), [(200, True), (202, False), (900, False), (100_000, False)])
def test_levels_of_json(levels, read, end):
    text = b"[" * levels + end + b"]" * levels  # with half of a pair, the other parser reads it
    if read:
        assert json_of(text) == json_of_text(text.decode())
    else:
        for parse in (lambda: json_of(text), lambda: json_of_text(text.decode())):
            with pytest.raises(Unparsed, match=r"^nested deeper than 200 levels$"):
                parse()


@pytest.mark.hostile("files")
def test_values_of_json_are_counted_before_they_are_built(small, monkeypatch):
    monkeypatch.setattr(bounds, "VALUES", 10)
    fits, over = b"[" + b"[]," * 4 + b"0]", b"[" + b"[]," * 5 + b"0]"
    assert json_of(fits) == json_of_text(fits.decode()) == [[], [], [], [], 0]
    for parse in (lambda: json_of(over), lambda: json_of_text(over.decode())):
        with pytest.raises(Unparsed, match="more than 10 values"):
            parse()
    assert json_of(over, most=20) == [[]] * 5 + [0]


def size_of(value):
    """Bytes of a value and all in it."""
    inside = value.items() if isinstance(value, dict) else [(one,) for one in value] if isinstance(value, list) else []
    return sys.getsizeof(value) + sum(size_of(one) for pair in inside for one in pair)


@pytest.mark.parametrize("unit", ["[],", "{},", "[[[0]]],", '{"a":0},', '{"":{}},', '"\U0001f600\u00e9",', "123456.5,"])
def test_values_take_no_more_memory_than_is_counted(unit):
    text = f"[{unit * 1000}0]"
    assert json_bytes(text.encode()) >= size_of(json.loads(text))


@pytest.mark.hostile("files")
def test_the_whole_of_a_json_file(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1}]')

    def read(file):
        with file.open("rb") as opened:
            return read_json(opened, file)

    assert read(path) == [{"a": 1}]
    path.write_bytes(nested(100_000))
    with pytest.raises(DataError, match=r"rows\.json: nested deeper than 200 levels \(one row per line needs"):
        read(path)
    monkeypatch.setattr(bounds, "WHOLE", 9)
    with pytest.raises(TooLarge, match=r"write one row per line \(\.jsonl\), a log of inspect_ai as \.eval"):
        read(path)


a_line = st.binary(max_size=8).map(lambda data: data.replace(b"\n", b""))


@pytest.mark.hostile("files")
@given(st.lists(a_line, max_size=12), st.integers(1, 9), st.booleans())
def test_lines_are_those_of_the_file_and_long_ones_are_left_out(lines, most, ended):
    data = b"\n".join(lines) + b"\n" * ended
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "RECORD", most)
        patch.setattr(bounds, "_PIECE", 2)
        found = list(bounded_lines(io.BytesIO(data)))
    assert [None if isinstance(one, Unparsed) else one for one in found] == [
        line if len(line) <= most else None for line in io.BytesIO(data)
    ]


cells = st.text(st.sampled_from('ab,"\n\u00e9\U0001f600'), max_size=12)


@pytest.mark.hostile("files")
@given(st.lists(st.lists(cells, min_size=2, max_size=2), max_size=8), st.integers(10, 25))
def test_rows_of_a_table_are_those_of_csv_and_long_ones_are_left_out(rows, most):
    text = io.StringIO(newline="")
    ends = []
    for row in rows:
        csv.writer(text, lineterminator="\n").writerow(row)
        ends.append(text.tell())
    written = [text.getvalue()[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "_TABLE_ROW", most)
        patch.setattr(bounds, "CELL", 8)
        patch.setattr(bounds, "_PIECE", 3)
        found = list(table_rows(io.StringIO(text.getvalue(), newline=""), ","))
    fits = [len(line) <= most and max(map(len, row)) <= 8 for line, row in zip(written, rows, strict=True)]
    assert [None if isinstance(one, Unparsed) else one for one in found] == [
        row if fit else None for row, fit in zip(rows, fits, strict=True)
    ]
    csv.field_size_limit(bounds.CELL)


# Archives.

STORED, DEFLATED, BZIP2 = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2


def archive(path, members, method=DEFLATED):
    with zipfile.ZipFile(path, "w", method) as out:
        for name, data in members:
            out.writestr(name, data)
    return path


def read(path, *, kept=False):
    """Contents of members, or why they cannot be read, by name."""
    found = zip_members(path, Unpacked(path, kept=kept))
    return {name: data.why if isinstance(data, BadRecord) else data for name, data in found}


def records(data, mark):
    """Where the headers of members begin: in the directory (`PK\\1\\2`) or in front of them (`PK\\3\\4`)."""
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + 4)


def declare(path, number, **changes):
    """Change what the directory and the header of a member declare."""
    data = bytearray(path.read_bytes())
    entry, local = list(records(data, b"PK\1\2"))[number], list(records(data, b"PK\3\4"))[number]
    for what, value in changes.items():
        kind, there, here = {
            "crc": ("<I", 16, 14), "packed": ("<I", 20, 18), "size": ("<I", 24, 22), "flags": ("<H", 8, 6),
            "method": ("<H", 10, 8), "offset": ("<I", 42, None),
        }[what]  # fmt: skip
        struct.pack_into(kind, data, entry + there, value)
        if here is not None:
            struct.pack_into(kind, data, local + here, value)
    path.write_bytes(data)


@given(
    st.lists(st.tuples(st.text("ab/.", min_size=1, max_size=4).map("m{}".format), st.binary(max_size=40)), max_size=6),
    st.sampled_from([STORED, DEFLATED]),
)
def test_members_are_those_of_zipfile_and_the_last_of_a_name_counts(tmp_path_factory, members, method):
    path = tmp_path_factory.getbasetemp() / "members.zip"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **more: None)  # a name that stands twice
        archive(path, members, method)
    inside = {name: data for name, data in members if ".." not in name.split("/")}
    assert {k: v for k, v in read(path).items() if isinstance(v, bytes)} == inside


def test_a_member_of_zstandard(tmp_path):
    data = b"content " * 1000
    packed = pa.Codec("zstd").compress(data, asbytes=True)
    path = archive(tmp_path / "a.zip", [("one", packed), ("two", data)], STORED)
    declare(path, 0, method=93, size=len(data), crc=zlib.crc32(data))
    assert read(path) == {"one": data, "two": data}
    declare(path, 0, packed=len(packed) - 5)
    assert read(path) == {"one": "damaged", "two": data}


@pytest.mark.hostile("files")
@pytest.mark.parametrize("method", [STORED, DEFLATED])
def test_a_member_that_is_too_long_is_left_out_whatever_it_declares(tmp_path, monkeypatch, method):
    monkeypatch.setattr(bounds, "RECORD", 1000)
    path = archive(tmp_path / "a.zip", [("a", b"x" * 1000), ("b", b"x" * 1001), ("c", b"ok")], method)
    wanted = {"a": b"x" * 1000, "b": "longer than 1000 bytes", "c": b"ok"}
    assert read(path) == wanted
    if method == DEFLATED:
        declare(path, 1, size=10)
        assert read(path) == wanted


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"crc": 1}, "damaged"),
        ({"size": 3}, "damaged"),
        ({"size": 300}, "damaged"),
        ({"flags": 1}, "damaged"),
        ({"method": 12}, "damaged"),
        ({"method": 0}, "damaged"),
        ({"packed": 3}, "damaged"),
        ({"packed": 2**31}, "longer than 64 MiB"),
    ],
    ids=str,
)
def test_one_damaged_member_leaves_the_others(tmp_path, changes, why):
    path = archive(tmp_path / "a.zip", [(f"m{k}", b"content %d" % k * 20) for k in range(30)])
    declare(path, 29, **changes)  # the last: a length over that of others is an overlap
    assert read(path) == {**{f"m{k}": b"content %d" % k * 20 for k in range(29)}, "m29": why}


@pytest.mark.hostile("files")
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "a/..", "..\\evil"])
def test_names_that_lead_out_of_the_archive(tmp_path, name):
    path = archive(tmp_path / "a.zip", [(name.replace("\\", "/"), b"x"), ("a..b/..c", b"y")])
    path.write_bytes(path.read_bytes().replace(name.replace("\\", "/").encode(), name.encode()))
    found = read(path)
    assert found.pop("a..b/..c") == b"y"
    assert list(found.values()) == ["a name that leads out of the archive"]


@pytest.mark.hostile("files")
def test_members_that_share_bytes_are_refused(tmp_path):
    path = archive(tmp_path / "a.zip", [("a", b"x" * 5000), ("b", b"y" * 5000)], STORED)
    declare(path, 1, offset=0)
    with pytest.raises(DataError, match=r"a\.zip: the member \w overlaps another one; write the archive again"):
        read(path)


@pytest.mark.hostile("files")
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "STREAMED", 100_000)
    monkeypatch.setattr(bounds, "KEPT", 50_000)
    monkeypatch.setattr(bounds, "TIMES", 1)
    path = archive(tmp_path / "a.zip", [(f"m{k}", b"x" * 10_000) for k in range(10)])
    assert len(read(path)) == 10
    with pytest.raises(
        TooLarge, match=r"bytes and unpacks to more than 0 MiB, .*; split it, or write its rows as \.jsonl"
    ):
        read(path, kept=True)
    assert not list(zip_members(path, Unpacked(path, kept=True), wanted=lambda name: name == "n"))
    archive(path, [(f"m{k}", b"x" * 10_000) for k in range(11)])
    with pytest.raises(TooLarge, match="unpacks to more than"):
        read(path)
    monkeypatch.setattr(bounds, "TIMES", 1000)  # of a larger file more is allowed
    assert len(read(path, kept=True)) == 11


@pytest.mark.hostile("files")
def test_a_directory_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "DIRECTORY", 5000)
    path = archive(tmp_path / "a.zip", [(f"m{k:03d}", b"") for k in range(90)])
    assert len(read(path)) == 90
    archive(path, [(f"m{k:03d}", b"") for k in range(101)])
    with pytest.raises(TooLarge, match=r"a\.zip: the directory of the archive has 0 MiB, .*; split it"):
        read(path)


@pytest.mark.hostile("files")
def test_what_is_no_archive_says_what_it_should_be(tmp_path):
    path = tmp_path / "a.eval"
    path.write_bytes(b"PK half")
    with pytest.raises(DataError, match=r"a\.eval: cannot be read as a log: BadZipFile"):
        list(zip_members(path, Unpacked(path, kept=False), kind="a log"))
