"""The written files against the documented LeRobotDataset v3.0 layout, without guerdon's reader."""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from episode_samples import sample
from PIL import Image

from guerdon.episodes import layout
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from tables import refuses

KEY = "observation.images.main"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    with EpisodeWriter(folder, fps=10, flush_every=2, robot_type="sawyer") as writer:
        for number, length in enumerate((4, 2, 3)):
            writer.add(sample(number, length=length))
    return folder


def test_files(root):
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert files == [
        "data/chunk-000/file-000.parquet",
        "data/chunk-000/file-001.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-001.parquet",
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
    ]


def test_info(root):
    info = json.loads((root / "meta/info.json").read_text())
    scalar = {"shape": [1], "names": None}
    assert info == {
        "codebase_version": "v3.0",
        "robot_type": "sawyer",
        "total_episodes": 3,
        "total_frames": 9,
        "total_tasks": 2,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": 10,
        "splits": {"train": "0:3"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": {
            KEY: {"dtype": "image", "shape": [8, 10, 3], "names": ["height", "width", "channels"]},
            "observation.state": {"dtype": "float32", "shape": [3], "names": None},
            "action": {"dtype": "float32", "shape": [4], "names": None},
            "next.reward": {"dtype": "float32", **scalar},
            "next.success": {"dtype": "bool", **scalar},
            "next.done": {"dtype": "bool", **scalar},
            "timestamp": {"dtype": "float32", **scalar},
            "frame_index": {"dtype": "int64", **scalar},
            "episode_index": {"dtype": "int64", **scalar},
            "index": {"dtype": "int64", **scalar},
            "task_index": {"dtype": "int64", **scalar},
        },
    }


def test_data_shards(root):
    table = pq.read_table(root / "data/chunk-000/file-001.parquet")
    assert {field.name: field.type for field in table.schema} == {
        KEY: pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        "observation.state": pa.list_(pa.float32(), 3),
        "action": pa.list_(pa.float32(), 4),
        "next.reward": pa.float32(),
        "next.success": pa.bool_(),
        "next.done": pa.bool_(),
        "timestamp": pa.float32(),
        "frame_index": pa.int64(),
        "episode_index": pa.int64(),
        "index": pa.int64(),
        "task_index": pa.int64(),
    }
    assert table["index"].to_pylist() == [6, 7, 8]
    assert table["frame_index"].to_pylist() == [0, 1, 2]
    assert table["episode_index"].to_pylist() == [2, 2, 2]
    assert table["task_index"].to_pylist() == [0, 0, 0]
    np.testing.assert_allclose(table["timestamp"].to_numpy(), [0, 0.1, 0.2], atol=1e-6)
    png = table[KEY][1].as_py()["bytes"]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png))), sample(2, length=3).frames[1])
    assert pq.ParquetFile(root / "data/chunk-000/file-000.parquet").num_row_groups == 2  # one per episode


def test_datasets_library_is_told_the_features(root):
    metadata = pq.read_schema(root / "data/chunk-000/file-000.parquet").metadata
    features = json.loads(metadata[b"huggingface"])["info"]["features"]
    assert features[KEY] == {"_type": "Image"}
    assert features["action"]["length"] == 4
    assert features["action"]["feature"] == {"dtype": "float32", "_type": "Value"}
    assert features["next.success"] == {"dtype": "bool", "_type": "Value"}


def test_episode_index(root):
    tables = [pq.read_table(path) for path in sorted(root.glob("meta/episodes/*/*.parquet"))]
    assert tables[0].schema == tables[1].schema  # `datasets` joins the shards
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["episode_index"] for row in rows] == [0, 1, 2]
    assert [row["length"] for row in rows] == [4, 2, 3]
    assert [(row["dataset_from_index"], row["dataset_to_index"]) for row in rows] == [(0, 4), (4, 6), (6, 9)]
    assert [row["data/chunk_index"] for row in rows] == [0, 0, 0]
    assert [row["data/file_index"] for row in rows] == [0, 0, 1]
    assert [row["meta/episodes/file_index"] for row in rows] == [0, 0, 1]
    assert rows[1]["tasks"] == ["press the button"]
    np.testing.assert_allclose(rows[0]["stats/observation.state/mean"], sample(0).states.mean(0), rtol=1e-5)
    assert np.shape(rows[0][f"stats/{KEY}/q50"]) == (3, 1, 1)
    assert rows[0][f"stats/{KEY}/count"] == [4]
    assert [row["guerdon/outcome"] for row in rows] == [False, True, False]
    assert json.loads(rows[2]["guerdon/meta"]) == {"seed": 2}


def test_tasks_have_the_sentence_as_pandas_index(root):
    table = pq.read_table(root / "meta/tasks.parquet")
    assert table.to_pylist() == [
        {"task_index": 0, "task": "close the window"},
        {"task_index": 1, "task": "press the button"},
    ]
    assert json.loads(table.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_stats(root):
    stats = json.loads((root / "meta/stats.json").read_text())
    states = np.concatenate([sample(n, length=t).states for n, t in enumerate((4, 2, 3))])
    np.testing.assert_allclose(stats["observation.state"]["mean"], states.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats["observation.state"]["std"], states.std(0), rtol=1e-5)
    assert stats["observation.state"]["count"] == [9]
    assert stats["index"]["max"] == [8]


def test_a_size_of_one_is_a_scalar_column():
    features = {"action": {"dtype": "float32", "shape": [1], "names": None}}
    assert layout.data_schema(features).field("action").type == pa.float32()


def test_shard_numbers_roll_over_into_chunks(tmp_path):
    assert layout.place(1001) == (1, 1)
    path = layout.shard_path(tmp_path, layout.VIDEO_PATH, (1, 1), video_key="observation.images.top")
    assert path == tmp_path / "videos/observation.images.top/chunk-001/file-001.mp4"


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    "template", ["../{chunk_index:03d}.parquet", "/etc/passwd", "{other}.parquet", "data/../../x{file_index}"]
)
def test_path_templates_cannot_leave_the_root(tmp_path, template):
    with pytest.raises(DataError, match="path template"):
        layout.shard_path(tmp_path, template, (0, 0))


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"codebase_version": None}, "codebase_version", "version is not known"),
        ({"codebase_version": "v4.0"}, "codebase_version", "version is not known"),
        ({"fps": 0}, "fps", "fps must be a positive number"),
        ({"fps": "20"}, "fps", "fps must be a positive number"),
        ({"features": {"action": {}}}, "action", "needs a dtype and a shape"),
        ({"features": None}, None, "has no valid"),
    ],
)
def test_a_wrong_info_is_refused(root, tmp_path, change, field, message):
    info = json.loads((root / "meta/info.json").read_text()) | change
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").write_text(json.dumps(info))
    with refuses(field, message):
        layout.load_info(tmp_path)


CHAIN = (
    "lerobot.datasets.v2.convert_dataset_v1_to_v2",
    "lerobot.datasets.v21.convert_dataset_v20_to_v21",
    "lerobot.datasets.v30.convert_dataset_v21_to_v30",
)


@pytest.mark.parametrize(("version", "steps"), [("v1.6", 3), ("v2.0", 2), ("v2.1", 1)])
def test_an_old_version_names_every_converter_on_the_way(root, tmp_path, version, steps):
    info = json.loads((root / "meta/info.json").read_text()) | {"codebase_version": version}
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").write_text(json.dumps(info))
    with refuses("codebase_version") as error:
        layout.load_info(tmp_path)
    said = str(error.value)
    assert "\n" not in said
    places = [said.find(module) for module in CHAIN]
    assert places[: 3 - steps] == [-1] * (3 - steps)
    assert all(place > 0 for place in places[3 - steps :])
    assert places == sorted(places), "in the order in which they are run"


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("low_dim_v15.hdf5", "HDF5"),
        ("task/demo_0/episode_0.h5", "HDF5"),
        ("bridge/1.0.0/bridge-train.tfrecord-00000-of-00002", "RLDS"),
        ("1.0.0/features.json", "RLDS"),
        ("pusht.zarr/data/.zgroup", "Zarr"),
        ("day1.mcap", "ROS"),
    ],
)
def test_other_formats_are_named_with_the_way_to_v3(tmp_path, file, what):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(b"x")
    given = [tmp_path, tmp_path / file] if what == "HDF5" else [tmp_path]
    for path in given:  # the folder, or the file itself
        with pytest.raises(DataError, match=rf"is not a LeRobot data set.*{what}.*EpisodeWriter"):
            layout.load_info(path)


def test_a_path_without_data_is_not_called_another_format(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        layout.load_info(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"info\.json is missing"):
        layout.load_info(tmp_path)
    with pytest.raises(DataError, match=r"info\.json is missing"):
        layout.load_info(tmp_path / "notes.txt")
    (tmp_path / "meta_data").mkdir()
    (tmp_path / "meta_data/info.json").write_text("{}")
    with pytest.raises(DataError, match=r"LeRobot v1.*v1_to_v2.*v20_to_v21.*v21_to_v30"):
        layout.load_info(tmp_path)


@pytest.mark.hostile("files")
def test_a_missing_or_broken_info_is_refused(tmp_path):
    with pytest.raises(DataError, match="is not a LeRobot data set"):
        layout.load_info(tmp_path)
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        layout.load_info(tmp_path)
    (tmp_path / "meta/info.json").write_text("[]")
    with refuses("codebase_version"):
        layout.load_info(tmp_path)


def test_depth_maps_are_no_cameras(root):
    info = layout.load_info(root)
    features = dict(info.features) | {
        "observation.images.depth": {"dtype": "video", "shape": [8, 8, 1], "info": {"is_depth_map": True}},
        "observation.images.old": {
            "dtype": "video",
            "shape": [8, 8, 1],
            "video_info": {"video.is_depth_map": True},
        },
        "observation.image": {"dtype": "video", "shape": [8, 8, 3]},
    }
    cameras = layout.Info(10, features, "r", layout.DATA_PATH, None, 0).cameras()
    assert cameras == {"main": KEY, "observation.image": "observation.image"}
