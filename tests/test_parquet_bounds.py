"""Parquet files of strangers: what is read is what pyarrow reads, and what it will take is known before."""

import sys
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.errors import DataError
from guerdon.files import bounds, parquet_bounds
from guerdon.files.bounds import BadRecord, TooLarge
from guerdon.files.parquet_bounds import ROWS, BoundedParquet, python_bytes
from guerdon.reading.containers import file_rows
from tables import cases, refuses

texts = st.text(max_size=6) | st.sampled_from(["a text that is repeated", "another one"])
SCHEMA = pa.schema(
    {
        "text": pa.string(), "number": pa.float64(), "flag": pa.bool_(), "next.reward": pa.int32(),
        "numbers": pa.list_(pa.float32()), "texts": pa.large_list(pa.string()), "deep": pa.list_(pa.list_(pa.string())),
        "chat": pa.list_(pa.struct({"role": pa.string(), "content": pa.large_string()})), "raw": pa.binary(),
        "pair": pa.list_(pa.int64(), 2), "map": pa.map_(pa.string(), pa.int16()), "fixed": pa.binary(3),
    }
)  # fmt: skip


def lists(inner):
    return st.none() | st.lists(st.none() | inner, max_size=3)


rows = st.fixed_dictionaries(
    {
        "text": st.none() | texts, "number": st.none() | st.floats(allow_nan=False), "flag": st.none() | st.booleans(),
        "next.reward": st.none() | st.integers(-5, 5), "numbers": lists(st.floats(width=32, allow_nan=False)),
        "texts": lists(texts), "deep": lists(lists(texts)),
        "chat": lists(st.fixed_dictionaries({"role": texts, "content": st.none() | texts})),
        "raw": st.none() | st.binary(max_size=5), "pair": st.lists(st.integers(0, 9), min_size=2, max_size=2),
        "map": st.none() | st.dictionaries(texts, st.integers(0, 9), max_size=2).map(lambda d: list(d.items())),
        "fixed": st.none() | st.binary(min_size=3, max_size=3),
    }
)  # fmt: skip
tables = st.lists(rows, max_size=40).map(lambda found: pa.Table.from_pylist(found * 3, SCHEMA))
ways = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["snappy", "zstd", "gzip", "brotli", "lz4", "none"]),
        "use_dictionary": st.booleans(), "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([40, 1 << 20]), "write_batch_size": st.sampled_from([1, 7, 1024]),
        "row_group_size": st.sampled_from([1, 10, 1000]), "dictionary_pagesize_limit": st.sampled_from([20, 1 << 20]),
    }
)  # fmt: skip
limits = st.fixed_dictionaries(
    {"_TOGETHER": st.sampled_from([0, 3000, 1 << 25]), "SHARED": st.sampled_from([0, 300, 1 << 27]),
     "_LARGE": st.sampled_from([0, 1 << 24]), "ROWS": st.just(8)}
)  # fmt: skip


@contextmanager
def changed(**values):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(parquet_bounds, name, value)
        yield


@given(tables, ways, limits)
def test_rows_and_tables_are_those_of_pyarrow(tmp_path_factory, table, ways, limits):
    path = tmp_path_factory.getbasetemp() / "rows.parquet"
    pq.write_table(table, path, **ways)
    with changed(**limits):
        assert list(BoundedParquet(path).rows(kept=True)) == table.to_pylist()
        assert (
            list(BoundedParquet(path).rows(kept=False, columns=["texts", "next.reward"]))
            == table.select(["next.reward", "texts"]).to_pylist()
        )
        assert BoundedParquet(path).table().equals(table)
        names = ["chat", "text"]
        last = len(BoundedParquet(path).groups) - 1
        of_last = pq.ParquetFile(path).read_row_groups([last][: last + 1], columns=names).select(names)
        assert BoundedParquet(path).table(columns=names, row_groups=[last][: last + 1]).equals(of_last)


@given(tables.filter(len), ways)
@settings(deadline=None)
def test_no_batch_takes_more_than_its_pages_say(tmp_path_factory, table, ways):
    path = tmp_path_factory.getbasetemp() / "most.parquet"
    pq.write_table(table, path, **ways)
    file = BoundedParquet(path)
    for number in range(len(file.groups)):
        with path.open("rb") as opened, changed(_LARGE=0, SHARED=0):
            columns = file._columns("", opened, number, None)
            shared = [column.path for column in columns if column.shared]
            for column in columns:
                whole = column.most(1)
                column.find_rows()
                rows = column.values if column.flat else len(column.starts_R)
                assert rows == file.groups[number].rows
                assert column.flat or column.most(10**6) <= whole
            named = {name: [c for c in columns if f"{c.path}.".startswith(f"{name}.")] for name in SCHEMA.names}
        for size in (1, 4, 16, 64):
            read = pq.ParquetFile(path, read_dictionary=shared)
            for batch in read.iter_batches(size, row_groups=[number]):
                for name, parts in named.items():
                    entries = sum(3 * page.page_bytes for page in parts)  # a dictionary comes with every batch
                    assert batch.column(name).nbytes <= sum(part.most(size) for part in parts) + entries + 64


@given(tables)
def test_python_objects_take_no_more_than_is_counted(table):
    for column in table.columns:
        for chunk in column.chunks:
            for value, counted in zip(chunk.to_pylist(), python_bytes(chunk).tolist(), strict=True):
                assert counted >= size_of(value)
            half = chunk.slice(len(chunk) // 2)
            assert python_bytes(half).tolist() == python_bytes(chunk)[len(chunk) // 2 :].tolist()
            if pa.types.is_string(chunk.type):
                assert python_bytes(chunk.dictionary_encode()).tolist() == [
                    counted if value is not None else 0
                    for value, counted in zip(chunk.to_pylist(), python_bytes(chunk).tolist(), strict=True)
                ]


def size_of(value):
    """Bytes of a value and all in it, but for the names of fields, which are shared; texts as UTF-8."""
    if isinstance(value, str):
        return 73 + len(value.encode())
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(size_of, value.values()))
    inside = value if isinstance(value, list | tuple) else ()
    return sys.getsizeof(value) + sum(map(size_of, inside))


def repeated(values, numbers):
    """A column in which few values are named by many rows."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(values))


def write_texts(table, path):
    """Write columns that name texts as columns of texts."""
    pq.write_table(table, path, compression="zstd", store_schema=False)


def whys(path, **how):
    found = BoundedParquet(path).rows(kept=False, **how)
    return [row.why if isinstance(row, BadRecord) else row for row in found]


@pytest.mark.hostile("files")
def test_rows_with_a_cell_or_a_sum_that_is_too_large_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_bounds, "CELL", 1000)
    monkeypatch.setattr(parquet_bounds, "RECORD", 1500)
    table = pa.table({"a": ["x", "x" * 900, "x" * 1001, "x" * 900, "x"], "b": ["y", "y", "y", "y" * 900, "y"]})
    pq.write_table(table, tmp_path / "a.parquet")
    good, cell, row = table.to_pylist(), "a cell longer than 1000 bytes", "longer than 1500 bytes"
    assert whys(tmp_path / "a.parquet") == [good[0], good[1], cell, row, good[4]]
    (bad,) = [one for one in BoundedParquet(tmp_path / "a.parquet").rows(kept=True) if isinstance(one, BadRecord)][:1]
    assert str(bad) == f"{tmp_path / 'a.parquet'}: row 2: {cell}"
    assert whys(tmp_path / "a.parquet", columns=["b"]) == [{"b": one["b"]} for one in good]


@pytest.mark.hostile("files")
@pytest.mark.parametrize("nested", [False, True])
def test_a_long_text_that_is_repeated_is_held_once(tmp_path, nested):
    text, n = "x" * 30_000_000, 1000
    column = repeated([text, "short"], [0] * n + [1])
    if nested:
        column = pa.ListArray.from_arrays(pa.array(range(n + 2), pa.int32()), column)
    path = tmp_path / "a.parquet"
    write_texts(pa.table({"a": column, "b": range(n + 1)}), path)
    assert path.stat().st_size < 10_000
    before = pa.total_allocated_bytes()
    file = BoundedParquet(path)
    batch = next(file._batches(bounds.Unpacked(path, kept=False), None, None, ROWS))
    assert len(batch) == n + 1
    assert pa.total_allocated_bytes() - before < 100_000_000
    assert whys(path) == [*["a cell longer than 16 MiB"] * n, {"a": ["short"] if nested else "short", "b": n}]
    with pytest.raises(TooLarge, match="unpacks to more than 512 MiB"):
        file.table()
    assert file.table(columns=["b"])["b"].to_pylist() == list(range(n + 1))


@pytest.mark.hostile("files")
def test_pages_that_unpack_to_much_are_read_a_few_rows_at_a_time(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"a": ["x" * 20_000_000] * 30})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_batch_size=1)
    file = BoundedParquet(path)
    sizes = [batch.nbytes for batch in file._batches(bounds.Unpacked(path, kept=False), None, None, ROWS)]
    assert sum(sizes) > 600_000_000
    assert max(sizes) < 200_000_000
    assert whys(path) == ["a cell longer than 16 MiB"] * 30


@pytest.mark.hostile("files")
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_row_that_would_fill_the_memory_refuses_the_file(tmp_path, version):
    numbers = pa.array(np.zeros(30_000_000, np.float32))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, len(numbers)], pa.int32()), numbers)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": lists, "b": [1, 2]}), path, compression="zstd", data_page_version=version)
    assert path.stat().st_size < 10_000
    with pytest.raises(TooLarge, match=r"row group 0: to read a row may take .* fewer rows in a row group") as error:
        whys(path)
    assert "\n" not in str(error.value)
    assert whys(path, columns=["b"]) == [{"b": 1}, {"b": 2}]


def test_many_rows_of_lists_are_no_row_that_is_too_large(tmp_path):
    numbers = pa.array(np.zeros(30_000_000, np.float32))
    lists = pa.ListArray.from_arrays(pa.array(range(0, len(numbers) + 1, 1000), pa.int32()), numbers)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": lists}), path, compression="zstd")
    file = BoundedParquet(path)
    assert sum(map(len, file._batches(bounds.Unpacked(path, kept=False), None, None, ROWS))) == 30_000


def varint(number):
    """A whole number as the footer writes it."""
    number, found = 2 * number, bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def in_footer(path, old, new):
    """Change a number wherever the footer has it; both have as many bytes."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    old, new = varint(old), varint(new)
    new = bytes([*(byte | 128 for byte in new), *[128] * (len(old) - len(new))][: len(old) - 1]) + (
        new[-1:] if len(new) == len(old) else b"\0"
    )
    assert len(new) == len(old)
    assert old in data[start:]
    path.write_bytes(data[:start] + data[start:].replace(old, new))


@pytest.mark.hostile("files")
def test_sizes_in_the_footer_are_not_believed(tmp_path):
    path = tmp_path / "a.parquet"
    write_texts(pa.table({"a": repeated(["x" * 30_000_000], [0] * 500)}), path)
    column = pq.read_metadata(path).row_group(0).column(0)
    assert column.total_uncompressed_size > 30_000_000
    in_footer(path, column.total_uncompressed_size, 100)
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 100
    assert whys(path) == ["a cell longer than 16 MiB"] * 500


@pytest.mark.hostile("files")
@pytest.mark.parametrize("said", [1, 900, 1100, 8000])
def test_rows_in_the_footer_are_compared_with_the_pages(tmp_path, said):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [k % 7 for k in range(1000)]}), path, row_group_size=1000)
    in_footer(path, 1000, said)
    with refuses("a", rf"the footer says {said} rows, and the pages of a have 1000; write the file"):
        whys(path)


@pytest.mark.hostile("files")
def test_a_file_with_too_many_columns_pages_or_too_large_a_footer(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"c{k}": [k] for k in range(4096)}), path)
    assert whys(path) == [{f"c{k}": k for k in range(4096)}]
    pq.write_table(pa.table({f"c{k}": [k] for k in range(4097)}), path)
    with pytest.raises(TooLarge, match="it has 4,097 columns, and at most 4,096 are read; keep those you need"):
        whys(path)
    monkeypatch.setattr(parquet_bounds, "PAGES", 9)
    pq.write_table(pa.table({"a": ["x" * 100] * 5, "b": ["y" * 100] * 5}), path, data_page_size=1, write_batch_size=1,
                   use_dictionary=False)  # fmt: skip
    with pytest.raises(TooLarge, match="row group 0: it has more than 9 pages; write larger pages"):
        whys(path)
    assert len(whys(path, columns=["b"])) == 5
    monkeypatch.setattr(parquet_bounds, "DIRECTORY", 100)
    with pytest.raises(TooLarge, match="its footer has 0 MiB"):
        whys(path)


@pytest.mark.hostile("files")
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_damaged_file_is_one_error(tmp_path_factory, place, byte):
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    table = pa.table({"a": ["x" * k for k in range(50)], "b": [["y"] * k for k in range(50)]})
    pq.write_table(table, path, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[place % len(data)] = byte
    path.write_bytes(data)
    with changed(_TOGETHER=0):
        try:
            found = [row for _, row in file_rows(path)]
        except DataError:  # one of another kind is a crash
            return
    assert len(found) == 50


def fields(*parts):
    """Bytes of a struct as Thrift's compact protocol writes it, with its end."""
    return b"".join(parts) + b"\0"


ONE = b"\x15\x02"  # field 1, of 32 bits: 1
ROOT = fields(b"\x55\x02")  # of a schema, with one element in it
CHUNK = fields(b"\x3c\0")  # with an empty description
GROUP = fields(b"\x19\x1c", CHUNK)  # with one column


@cases(
    ("data", "error", "words"),
    [
        (fields(ONE, b"\x05\x02\x04"), ValueError, "a field stands twice"),
        (fields(b"\x18\x0aabc"), IndexError, None),
        (b"\x1c" * 20, ValueError, "structs in structs without end"),
        (fields(b"\x19\x71abc"), IndexError, None),
        (fields(b"\x1d"), ValueError, "there is no type 13"),
        (fields(b"\x15", b"\xff" * 4, b"\x7f"), ValueError, "a number of more than 32 bits"),
        (fields(b"\x16", b"\xff" * 12), ValueError, "a number of more than 64 bits"),
    ],
)
def test_structs_that_readers_would_understand_in_several_ways_are_none(data, error, words):
    with pytest.raises(error, match=words):
        parquet_bounds._struct(data, 0, 0)


def test_structs_are_read_by_number_and_type():
    data = fields(ONE, b"\x19\x31\1\2\1", b"\x18\x03abc", b"\x11", b"\x12")
    found, end = parquet_bounds._struct(data, 0, 0)
    assert found == {(1, 5): 1, (2, 9): None, (3, 8): b"abc", (4, 1): True, (5, 2): False}
    assert end == len(data)


@cases(
    ("footer", "words"),
    [
        (fields(b"\x49\x1c", GROUP, b"\x09\x08\x1c", GROUP), "two lists of row groups"),
        (fields(b"\x49\x1c", fields(b"\x19\x1c", CHUNK, b"\x09\x02\x1c", CHUNK)), "two lists of columns"),
        (fields(b"\x29\x2c", ROOT, fields(b"\x48\x90\x4e", b"a" * 10_000)), "a name that is too long"),
    ],
)
def test_footers_with_two_meanings_are_refused(footer, words):
    with pytest.raises(ValueError, match=words):
        parquet_bounds._parsed_footer(footer)


def test_elements_that_no_other_one_holds_are_no_columns():
    leaf = fields(b"\x15\x02\x38\x01b")  # a column of 32 bits, in which nothing is
    footer, _ = parquet_bounds._parsed_footer(fields(b"\x29\x3c", ROOT, fields(b"\x15\x02\x38\x01a"), leaf))
    assert [column.path for column in footer.columns] == ["a"]


def test_a_row_group_with_too_many_columns_ends_the_reading(monkeypatch):
    monkeypatch.setattr(parquet_bounds, "CHUNKS", 2)
    for count, left in ((1, 1), (2, 0), (3, -1), (9, -1)):
        group = fields(b"\x19", bytes([count << 4 | 12]), CHUNK * count)
        assert parquet_bounds._parsed_footer(fields(b"\x49\x1c", group))[1] == left


def test_values_of_extension_types_and_views_take_what_is_stored():
    storage = pa.array([b"0" * 16, None], pa.binary(16))
    own = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    assert python_bytes(own).tolist() == python_bytes(storage).tolist()
    texts = ["a", "a text that is long enough to be stored apart", None]
    views = python_bytes(pa.array(texts, pa.string_view()))
    assert all(counted >= size_of(value) for counted, value in zip(views.tolist(), texts, strict=True))
