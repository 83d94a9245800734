from __future__ import annotations

import io
import json
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from episode_samples import TASKS, assert_equal, sample
from PIL import Image

from guerdon.episodes import images
from guerdon.episodes.index import load_index
from guerdon.episodes.layout import load_info
from guerdon.episodes.read import dataset_hash, frames_of, read_episodes, summarize
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from tables import refuses

KEY = "observation.images.main"


@pytest.fixture
def root(tmp_path):
    with EpisodeWriter(tmp_path, flush_every=2) as writer:
        for number in range(6):
            writer.add(sample(number))
    return tmp_path


def ids(root, **options):
    return [episode.id for episode in read_episodes(root, **options)]


def test_filters(root):
    assert ids(root, only_success=True) == ["episode-1", "episode-3", "episode-5"]
    assert ids(root, task=TASKS[0]) == ["episode-0", "episode-2", "episode-4"]
    assert ids(root, limit=2) == ["episode-0", "episode-1"]
    assert ids(root, limit=0) == []
    assert ids(root, task="other") == []
    assert ids(root, task=TASKS[1], only_success=True, limit=1) == ["episode-1"]


def test_without_frames(root):
    episode = next(read_episodes(root, with_frames=False))
    assert episode.frames is None
    np.testing.assert_array_equal(episode.states, sample(0).states)


def entries(root):
    """What the index says of each episode."""
    return load_index(root, load_info(root))[0]


def test_frames_of_one_episode_come_one_by_one_from_any_row(root):
    for number, entry in enumerate(entries(root)):
        np.testing.assert_array_equal(list(frames_of(root, entry, KEY)), sample(number).frames)
    np.testing.assert_array_equal(list(frames_of(root, entry, KEY, start=3)), sample(5).frames[3:])


def test_frames_of_an_episode_that_has_none_and_of_one_that_cannot_be_read(root):
    path, first = root / "data/chunk-000/file-000.parquet", entries(root)[0]
    whole = pq.read_table(path)
    at = whole.schema.get_field_index(KEY)
    pq.write_table(whole.set_column(at, KEY, pa.nulls(len(whole), whole.schema.field(KEY).type)), path)
    assert list(frames_of(root, first, KEY)) == []
    pq.write_table(whole.drop_columns([KEY]), path)
    with refuses(KEY, "has no column"):
        list(frames_of(root, first, KEY))
    truncate(path)
    with pytest.raises(DataError, match="file-000"):
        list(frames_of(root, first, KEY))


def test_rows_that_lie_together_are_limited(root, monkeypatch):
    monkeypatch.setattr("guerdon.episodes.read.MAX_EPISODE_BYTES", 100)
    skipped = []
    with pytest.raises(DataError):
        ids(root, on_skip=skipped.append)
    assert [part.episode for part in skipped] == list(range(6))
    assert all("bytes, limit 100" in part.reason for part in skipped)


def test_a_camera_is_named_by_name_or_key(root):
    assert len(ids(root, camera="main")) == len(ids(root, camera=KEY)) == 6
    with pytest.raises(DataError, match="no camera 'top'; it has main"):
        read_episodes(root, camera="top")


def test_summary(root):
    summary = summarize(root)
    assert (summary.episodes, summary.frames, summary.successes) == (6, 24, 3)
    assert (summary.tasks, summary.cameras, summary.fps, summary.skipped) == (TASKS, ("main",), 20, ())


def truncate(path, cut=30):
    path.write_bytes(path.read_bytes()[:-cut])


def flip_a_byte(path, cut=None):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(bytes(content))


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


@pytest.mark.hostile("files")
@pytest.mark.parametrize("damage", [truncate, empty, remove])
def test_a_broken_data_shard_costs_its_episodes_only(root, damage):
    path = root / "data/chunk-000/file-001.parquet"
    damage(path)
    skipped = []
    assert ids(root, on_skip=skipped.append) == ["episode-0", "episode-1", "episode-4", "episode-5"]
    assert [(part.path, part.episode) for part in skipped] == [(path, 2), (path, 3)]
    summary = summarize(root)
    assert summary.episodes == 4
    assert list(summary.skipped) == skipped
    assert dataset_hash(root)


@pytest.mark.hostile("files")
def test_a_flipped_byte_costs_one_episode(root):
    flip_a_byte(root / "data/chunk-000/file-001.parquet")
    skipped = []
    read = list(read_episodes(root, on_skip=skipped.append))
    assert len(read) == 5
    assert len(skipped) == len(summarize(root).skipped) == 1
    for episode in read:
        assert_equal(episode, sample(int(episode.id.removeprefix("episode-"))))


@pytest.mark.hostile("files")
def test_a_broken_index_shard_is_reported(root):
    path = root / "meta/episodes/chunk-000/file-002.parquet"
    truncate(path)
    skipped = []
    assert len(ids(root, on_skip=skipped.append)) == 4
    assert [(part.path, part.episode) for part in skipped] == [(path, None)]
    assert "unknown number of episodes" in str(skipped[0])
    assert len(summarize(root).skipped) == 1


def test_skipped_parts_are_logged_by_default(root, caplog):
    truncate(root / "data/chunk-000/file-000.parquet")
    with caplog.at_level(logging.WARNING):
        assert len(ids(root)) == 4
    assert caplog.text.count("skipped episode") == 1  # one cause, though it costs two episodes
    assert "file-000.parquet" in caplog.text


@pytest.mark.hostile("files")
def test_nothing_readable_is_an_error(root):
    for path in root.glob("data/*/*.parquet"):
        truncate(path)
    for read in (ids, summarize, dataset_hash):
        with pytest.raises(DataError, match=r"nothing in .* can be read: restore"):
            read(root)
    for path in root.glob("meta/episodes/*/*.parquet"):
        truncate(path)
    with pytest.raises(DataError, match=r"nothing in .* can be read"):
        ids(root)


def test_no_data_set_is_an_error_at_once(tmp_path):
    with pytest.raises(DataError, match="is not a LeRobot data set"):
        read_episodes(tmp_path / "none")
    with EpisodeWriter(tmp_path):
        pass
    with pytest.raises(DataError, match="is not a LeRobot data set"):
        summarize(tmp_path)


def replace_images(root, blobs):
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    column = table[KEY].combine_chunks()
    old = column.field("bytes").to_pylist()
    new = pa.array([blobs.get(i, old[i]) for i in range(len(old))], pa.binary())
    struct = pa.StructArray.from_arrays([new, column.field("path")], names=["bytes", "path"])
    pq.write_table(table.set_column(table.column_names.index(KEY), KEY, struct), path)


def encoded(array, kind):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.hostile("media")
@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"\x89PNG nonsense", "row 2"),
        (b"", "no image bytes"),
        (None, "no image bytes"),
        (encoded(np.zeros((8, 10, 3), np.uint8), "BMP"), "is a BMP picture"),
        (encoded(np.zeros((9, 10, 3), np.uint8), "PNG"), "9x10"),
        (encoded(np.zeros((8, 10, 3), np.uint8), "PNG")[:-30], "row 2"),
    ],
    ids=["nonsense", "empty", "null", "bmp", "size", "truncated"],
)
def test_a_broken_image_costs_its_episode(root, blob, reason):
    replace_images(root, {2: blob})
    skipped = []
    assert ids(root, on_skip=skipped.append)[0] == "episode-1"
    assert reason in skipped[0].reason
    assert skipped[0].episode == 0


def test_jpeg_is_read(root):
    replace_images(root, {i: encoded(np.full((8, 10, 3), 120, np.uint8), "JPEG") for i in range(4)})
    frames = next(read_episodes(root)).frames
    assert np.abs(frames.astype(int) - 120).max() <= 2


@pytest.mark.hostile("media")
def test_oversized_images_are_not_decoded(root, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 79)
    with pytest.raises(DataError, match="nothing in"):
        ids(root)
    monkeypatch.setattr(images, "MAX_PIXELS", 80)
    assert len(ids(root)) == 6
    monkeypatch.setattr(images, "MAX_EPISODE_BYTES", 4 * 80 * 3 - 1)
    with pytest.raises(DataError, match="over the limit"):
        images.allocate(4, 8, 10)


@pytest.mark.hostile("files")
def test_paths_out_of_the_root_are_refused(root, tmp_path):
    info = json.loads((root / "meta/info.json").read_text())
    info["data_path"] = "../{chunk_index:03d}-{file_index:03d}.parquet"
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(DataError, match="leads out of the data set"):
        ids(root)
