"""Rows as they lie in the data files of a LeRobot data set."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from guerdon.episodes.data_files import DataFiles
from guerdon.errors import DataError


def write(folder, columns, name="file-000.parquet"):
    path = folder / "data" / "chunk-000" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def test_columns_are_matrices_and_missing_values_are_nan(tmp_path):
    columns = {
        "episode_index": pa.array([0, 0, 1], pa.int64()),
        "next.reward": pa.array([0.5, None, 1.0], pa.float32()),
        "next.done": pa.array([False, None, True], pa.bool_()),
        "half": pa.array(np.array([1, 2, 3], np.float16)),
        "observation.state": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
        "action": pa.array([[1.0], [None], [3.0]], pa.list_(pa.float64())),
        "task": pa.array(["a", "b", "c"]),
    }
    path = write(tmp_path, columns)
    files = DataFiles(tmp_path)
    assert files.names == list(columns)
    assert files.numbers == [name for name in columns if name != "task"]
    assert (files.paths, files.pictures, list(files.pictures_of(path))) == ([path], None, [])
    found = files.numbers_of(path, files.numbers)
    assert all(values.dtype == np.float64 for values in found.values())
    expected = {
        "episode_index": [[0], [0], [1]],
        "next.reward": [[0.5], [np.nan], [1]],
        "next.done": [[0], [np.nan], [1]],
        "half": [[1], [2], [3]],
        "observation.state": [[1, 2], [3, 4], [5, 6]],
        "action": [[1], [np.nan], [3]],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_pictures_are_bytes_or_the_path_where_they_lie(tmp_path):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pictures = [{"bytes": b"png", "path": None}, {"bytes": None, "path": "a.png"}, None]
    path = write(tmp_path, {"index": [0, 1, 2], "observation.images.top": pa.array(pictures, kind)})
    files = DataFiles(tmp_path)
    assert (files.pictures, files.numbers) == ("observation.images.top", ["index"])
    assert list(files.pictures_of(path)) == [b"png", b"a.png", b"None"]


def test_a_file_without_rows_has_no_columns(tmp_path):
    path = write(tmp_path, {"index": pa.array([], pa.int64())})
    assert DataFiles(tmp_path).numbers_of(path, ["index"]) == {}


@pytest.mark.hostile("files")
def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"without data/\*\.parquet"):
        DataFiles(tmp_path)
    whole = write(tmp_path, {"index": list(range(9)), "ragged": [[1.0]] * 8 + [[1.0, 2.0]]})
    cut = whole.with_name("file-001.parquet")
    cut.write_bytes(whole.read_bytes()[:-20])
    files = DataFiles(tmp_path)
    for path, names in ((cut, ["index"]), (whole, ["ragged"])):
        with pytest.raises(DataError, match=f"{path.name} cannot be read"):
            files.numbers_of(path, names)
    whole.write_bytes(cut.read_bytes())
    with pytest.raises(DataError, match=r"file-000\.parquet: cannot be read as Parquet"):
        DataFiles(tmp_path)
