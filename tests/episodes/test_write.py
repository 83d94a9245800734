from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from episode_samples import TASKS, assert_equal, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from guerdon.episodes.layout import load_info
from guerdon.episodes.read import dataset_hash, read_episodes, summarize
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from guerdon.types import Episode
from tables import refuses
from tables import sample as rows_of


def write(root, episodes, **options):
    with EpisodeWriter(root, **options) as writer:
        for episode in episodes:
            writer.add(episode)
    return writer


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
words = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


@st.composite
def episode_lists(draw):
    """Data sets of episodes with the same columns and any content."""
    names = draw(st.sets(st.sampled_from(["frames", "states", "actions", "rewards", "success"]), min_size=1))
    states, size = draw(st.integers(1, 3)), draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    numbers = st.floats(width=32)

    def episode(index):
        length = draw(st.integers(1, 5))
        shapes = {
            "frames": (np.uint8, (length, *size, 3), st.integers(0, 255)),
            "states": (np.float32, (length, states), numbers),
            "actions": (np.float32, (length, 2), numbers),
            "rewards": (np.float32, (length,), st.floats(width=32, allow_nan=False)),  # NaN is unknown
            "success": (np.bool_, (length,), st.booleans()),
        }
        columns = {name: draw(arrays(d, s, elements=e)) for name, (d, s, e) in shapes.items() if name in names}
        for name in {"actions", "rewards"} & names:
            columns[name][0] = 0
        return Episode(
            id=f"{index}{draw(words)}",
            task=draw(words),
            outcome=draw(st.none() | st.booleans()),
            meta=draw(st.dictionaries(st.text(max_size=3), json_values, max_size=3)),
            **columns,
        )

    return [episode(index) for index in range(draw(st.integers(1, 4)))]


@given(episodes=episode_lists(), flush_every=st.integers(1, 3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_written_reads_back_exactly(episodes, flush_every):
    with tempfile.TemporaryDirectory() as folder:
        write(folder, episodes, flush_every=flush_every)
        read = list(read_episodes(folder))
        assert len(read) == len(episodes)
        for left, right in zip(read, episodes, strict=True):
            assert_equal(left, right)


def test_reopening_appends_and_keeps_the_hash(tmp_path):
    episodes = [sample(i, length=3 + i) for i in range(5)]
    write(tmp_path / "once", episodes, flush_every=10)
    write(tmp_path / "twice", episodes[:2], flush_every=1)
    writer = write(tmp_path / "twice", episodes[2:], flush_every=2)
    assert (writer.num_episodes, writer.num_frames) == (5, sum(map(len, episodes)))
    for left, right in zip(read_episodes(tmp_path / "twice"), episodes, strict=True):
        assert_equal(left, right)
    assert dataset_hash(tmp_path / "once") == dataset_hash(tmp_path / "twice")
    write(tmp_path / "twice", [sample(9)])
    assert dataset_hash(tmp_path / "once") != dataset_hash(tmp_path / "twice")
    assert (tmp_path / "once/meta/stats.json").exists()


@pytest.mark.parametrize(
    "change",
    [{"outcome": None}, {"task": "other"}, {"id": "x"}, {"meta": {"seed": 1}}],
    ids=lambda c: next(iter(c)),
)
def test_the_hash_sees_every_field(tmp_path, change):
    write(tmp_path / "a", [sample(0)])
    write(tmp_path / "b", [sample(0, **change)])
    assert dataset_hash(tmp_path / "a") != dataset_hash(tmp_path / "b")


def test_the_hash_sees_one_pixel(tmp_path):
    episode = sample(0)
    write(tmp_path / "a", [episode])
    frames = episode.frames.copy()
    frames[-1, 0, 0, 0] ^= 1
    write(tmp_path / "b", [replace(episode, frames=frames)])
    assert dataset_hash(tmp_path / "a") != dataset_hash(tmp_path / "b")


def test_only_success_keeps_known_successes(tmp_path):
    episodes = [sample(0), sample(1), sample(2, outcome=None), sample(3)]
    writer = write(tmp_path, episodes, only_success=True)
    assert writer.num_episodes == 2
    assert [episode.id for episode in read_episodes(tmp_path)] == ["episode-1", "episode-3"]


def test_flush_makes_everything_added_visible(tmp_path):
    with EpisodeWriter(tmp_path, flush_every=100) as writer:
        writer.add(sample(0))
        writer.flush()
        assert summarize(tmp_path).episodes == 1
        writer.flush()
        writer.add(sample(1))
        assert writer.num_episodes == 2
    assert summarize(tmp_path).episodes == 2


@pytest.mark.hostile("kills")
def test_an_exception_in_the_block_still_saves_whole_episodes(tmp_path):
    def interrupted():
        with EpisodeWriter(tmp_path) as writer:
            writer.add(sample(0))
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert summarize(tmp_path).episodes == 1


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        (
            lambda: sample(1, height=9),
            "observation.images.main",
            r"observation.images.main: \('image', \[8, 10, 3\]\) there",
        ),
        (lambda: sample(1, rewards=None), "next.reward", "None here"),
        (lambda: sample(1, id="episode-0"), "id", "is already in"),
        (lambda: sample(1, meta={"policy": object()}), None, "plain JSON"),
        (lambda: sample(1, task="\ud800"), None, "Unicode"),
        (lambda: sample(1, texts=("a",) * 4), "texts", "has texts"),
        (lambda: sample(1, states=np.zeros(4, np.float32)), "observation.state", r"must have shape \(T, size\)"),
        (lambda: sample(1)[1:], "action", "row 0 must be the reset"),
    ],
)
def test_an_episode_that_does_not_fit_is_refused_at_once(tmp_path, wrong, field, message):
    with EpisodeWriter(tmp_path) as writer:
        writer.add(sample(0))
        with refuses(field, message):
            writer.add(wrong())
        assert writer.num_episodes == 1
    assert [episode.id for episode in read_episodes(tmp_path)] == ["episode-0"]


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"fps": 10}, "fps", "pass fps=20"),
        ({"robot_type": "panda"}, "robot_type", "asked for 'panda'"),
        ({"flush_every": 0}, None, "at least 1"),
        ({"camera": "../up"}, None, "camera name"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, field, message):
    write(tmp_path, [sample(0)])
    with refuses(field, message):
        EpisodeWriter(tmp_path, **options)


def test_robot_type_survives_reopening(tmp_path):
    write(tmp_path, [sample(0)], robot_type="sawyer")
    write(tmp_path, [sample(1)])
    assert load_info(tmp_path).robot_type == "sawyer"


@pytest.mark.hostile("kills")
def test_two_writers_on_one_root_are_refused(tmp_path):
    with EpisodeWriter(tmp_path), pytest.raises(DataError, match="another writer"):
        EpisodeWriter(tmp_path)
    EpisodeWriter(tmp_path).close()


def test_a_closed_writer_refuses_episodes(tmp_path):
    writer = EpisodeWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.add(sample(0))


def test_a_set_of_another_tool_is_not_appended_to(tmp_path):
    write(tmp_path, [sample(0)])
    path = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["guerdon/id"]), path)
    with pytest.raises(DataError, match="another tool"):
        EpisodeWriter(tmp_path)


def test_shards_without_info_are_never_touched(tmp_path):
    write(tmp_path, [sample(0)])
    (tmp_path / "meta/info.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=r"no meta/info\.json"):
        EpisodeWriter(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.hostile("kills")
def test_a_lost_index_shard_refuses_to_append_and_deletes_nothing(tmp_path):
    write(tmp_path, [sample(0), sample(1)], flush_every=1)
    (tmp_path / "meta/episodes/chunk-000/file-001.parquet").unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="claims 2 episodes but its index holds 1"):
        EpisodeWriter(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_set_without_episodes_takes_any_shape(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", fail_at(1))
    with pytest.raises(DataError, match="stopped"):
        write(tmp_path, [sample(0)])
    monkeypatch.undo()
    write(tmp_path, [sample(0, height=12, states=None)])
    assert next(read_episodes(tmp_path)).frames.shape[1] == 12


@pytest.mark.hostile("kills")
def test_an_unreadable_index_refuses_to_append_and_deletes_nothing(tmp_path):
    write(tmp_path, [sample(0), sample(1)], flush_every=1)
    path = tmp_path / "meta/episodes/chunk-000/file-001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="choose another root"):
        EpisodeWriter(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_index_with_damaged_rows_refuses_to_append(tmp_path):
    write(tmp_path, [sample(0), sample(1)], flush_every=1)
    path = tmp_path / "meta/episodes/chunk-000/file-001.parquet"
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)  # the first page, which its footer does not show
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot append to .*file-001"):
        EpisodeWriter(tmp_path)


def test_a_background_error_reaches_the_caller(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    writer = EpisodeWriter(tmp_path, flush_every=1)
    monkeypatch.setattr(os, "replace", full)
    writer.add(sample(0))
    with pytest.raises(DataError, match="No space left"):
        writer.flush()
    for number in range(1, 20):  # more than the queue holds: a dead thread would block here
        with pytest.raises(DataError, match="No space left"):
            writer.add(sample(number))
    with pytest.raises(DataError, match="No space left"):
        writer.close()


def fail_at(renames):
    """`os.replace` that works this many times and then never again, like a process that is gone."""
    left = [renames]
    real = os.replace

    def replace_or_stop(source, target):
        if left[0] == 0:
            raise OSError("stopped")
        left[0] -= 1
        real(source, target)

    return replace_or_stop


@pytest.mark.hostile("kills")
@pytest.mark.parametrize("renames", rows_of(range(12), 0, 3, 4, 8, 9, 11))
def test_a_stop_between_any_two_renames_loses_only_unflushed_episodes(tmp_path, monkeypatch, renames):
    monkeypatch.setattr(os, "replace", fail_at(renames))
    with pytest.raises(DataError, match="stopped"):
        write(tmp_path, [sample(i) for i in range(6)], flush_every=2)
    monkeypatch.undo()

    # Renames: info; then per flush data, tasks, index, stats, info. The index makes the episodes count.
    survived = 0 if renames < 4 else 2 if renames < 9 else 4
    if survived:
        assert [episode.id for episode in read_episodes(tmp_path)] == [f"episode-{i}" for i in range(survived)]
    else:
        with pytest.raises(DataError, match=r"no episodes yet|not a LeRobot data set"):
            list(read_episodes(tmp_path))

    write(tmp_path, [sample(i) for i in range(survived, 6)], flush_every=2)
    for left, right in zip(read_episodes(tmp_path), map(sample, range(6)), strict=True):
        assert_equal(left, right)
    check_consistent(tmp_path, episodes=6)


def check_consistent(root: Path, *, episodes: int) -> None:
    """What `lerobot` relies on: no stray file, row t of all shards has index t, totals are right."""
    assert not list(root.rglob("*.partial"))
    rows = [pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet"))]
    index = np.concatenate([table["index"].to_numpy() for table in rows])
    assert index.tolist() == list(range(len(index)))
    assert load_info(root).total_episodes == episodes
    assert set(pq.read_table(root / "meta/tasks.parquet")["task"].to_pylist()) == set(TASKS)


def test_a_stale_info_is_put_right_on_opening(tmp_path):
    write(tmp_path, [sample(0)])
    text = (tmp_path / "meta/info.json").read_text()
    write(tmp_path, [sample(1)])
    (tmp_path / "meta/info.json").write_text(text)
    EpisodeWriter(tmp_path).close()
    check_consistent(tmp_path, episodes=2)
