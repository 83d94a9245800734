"""Data sets as other tools write them: no terminal row, several cameras, one row group, images as arrays."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from guerdon.episodes.index import load_index
from guerdon.episodes.layout import load_info
from guerdon.episodes.read import dataset_hash, frames_of, read_episodes, summarize
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from guerdon.settings.train import ProgressTrainSettings, ResNetTrainSettings
from guerdon.train.images import labelled_frames

LENGTHS = (3, 2, 4)
SETTINGS = ResNetTrainSettings(data_path="recordings", save_dir="rm", image_size=8)


def png(value):
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def write_foreign(root, columns, features, *, tasks=True, lengths=LENGTHS):
    """One data shard with one row group, as a converter would leave it; `columns` holds all rows' values."""
    total = sum(lengths)
    starts = np.cumsum([0, *lengths])
    owner = np.repeat(np.arange(len(lengths)), lengths)
    rows = {
        "episode_index": owner.tolist(),
        "frame_index": (np.arange(total) - starts[owner]).tolist(),
        "timestamp": ((np.arange(total) - starts[owner]) / 10).tolist(),
        "index": list(range(total)),
        "task_index": [0] * total,
        **columns,
    }
    declared = {name: {"dtype": "int64", "shape": [1], "names": None} for name in rows if name not in features}
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "features": declared | features,
        "total_episodes": len(lengths),
    }
    for folder in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / folder).mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(pa.table(rows), root / "data/chunk-000/file-000.parquet")
    index = {
        "episode_index": list(range(len(lengths))),
        "length": list(lengths),
        "data/chunk_index": [0] * len(lengths),
        "data/file_index": [0] * len(lengths),
        "dataset_from_index": starts[:-1].tolist(),
        "dataset_to_index": starts[1:].tolist(),
    }
    if tasks:
        index["tasks"] = [["pour the tea"]] * len(lengths)
    pq.write_table(pa.table(index), root / "meta/episodes/chunk-000/file-000.parquet")
    return root


def vector(size, dtype="float32"):
    return {"dtype": dtype, "shape": [size], "names": None}


IMAGE = {"dtype": "image", "shape": [4, 6, 3], "names": ["height", "width", "channels"]}
ACTIONS = {"action": ([[float(t), -float(t)] for t in range(9)], vector(2))}
SUCCESS = {"next.success": ([False, False, True, False, False, False, False, False, True], vector(1, "bool"))}


def foreign(root, *parts, **options):
    merged = {name: pair for part in parts for name, pair in part.items()}
    columns = {name: values for name, (values, _) in merged.items()}
    return write_foreign(root, columns, {name: feature for name, (_, feature) in merged.items()}, **options)


def test_rows_and_outcomes(tmp_path):
    foreign(tmp_path, ACTIONS, SUCCESS)
    first, second, third = read_episodes(tmp_path)
    assert [first.id, second.id, third.id] == ["0", "1", "2"]
    assert first.task == "pour the tea"
    assert first.actions[:, 0].tolist() == [0, 0, 1]
    assert third.actions[:, 0].tolist() == [0, 5, 6, 7]
    assert first.actions.dtype == np.float32
    assert first.success.tolist() == [False, False, True]
    assert [first.outcome, second.outcome, third.outcome] == [True, False, True]
    assert first.rewards is None
    assert first.states is None
    assert len(list(read_episodes(tmp_path, only_success=True))) == 2
    assert summarize(tmp_path).successes == 2
    assert len(dataset_hash(tmp_path)) == 64


def test_outcomes_are_unknown_without_success(tmp_path):
    foreign(tmp_path, ACTIONS)
    assert [episode.outcome for episode in read_episodes(tmp_path)] == [None, None, None]
    assert list(read_episodes(tmp_path, only_success=True)) == []


def test_other_number_types_and_scalar_columns(tmp_path):
    foreign(
        tmp_path,
        {"action": ([t / 2 for t in range(9)], vector(1, "float64"))},
        {"observation.state": ([[t, t] for t in range(9)], vector(2, "int64"))},
    )
    episode = next(read_episodes(tmp_path))
    assert episode.actions.tolist() == [[0], [0], [0.5]]
    assert episode.states.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert episode.actions.dtype == episode.states.dtype == np.float32


@pytest.mark.parametrize(("arch", "missing"), [("resnet18", "frames"), ("mlp", "states")])
def test_what_no_episode_shows_is_not_a_matter_of_labels(tmp_path, arch, missing):
    foreign(tmp_path, ACTIONS, SUCCESS, {"observation.environment_state": ([[0.0, 1.0]] * 9, vector(2))})
    size = {} if arch == "mlp" else {"image_size": 8}
    settings = ResNetTrainSettings(data_path="recordings", save_dir="rm", arch=arch, **size)
    with pytest.raises(DataError, match=f"none of 3 episodes has {missing}: they are read from"):
        labelled_frames(read_episodes(tmp_path), settings)


def test_several_cameras_need_a_choice(tmp_path):
    tops = {"observation.images.top": ([png(t) for t in range(9)], IMAGE)}
    wrists = {"observation.images.wrist": ([png(100 + t) for t in range(9)], IMAGE)}
    foreign(tmp_path, ACTIONS, tops, wrists)
    with pytest.raises(DataError, match=r"several cameras: pass camera= one of top, wrist"):
        read_episodes(tmp_path)
    third = list(read_episodes(tmp_path, camera="wrist"))[2]
    assert third.frames[:, 0, 0, 0].tolist() == [105, 106, 107, 108]
    both = list(read_episodes(tmp_path, camera="top", views=["wrist"]))[2]
    assert both.frames[:, 0, 0, 0].tolist() == [5, 6, 7, 8]
    assert np.array_equal(both.views["wrist"], third.frames)
    assert next(read_episodes(tmp_path, with_frames=False)).frames is None
    assert summarize(tmp_path).cameras == ("top", "wrist")


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_stored_as_arrays(tmp_path, layout, dtype):
    frames = np.random.default_rng(0).integers(0, 256, (9, 4, 6, 3), dtype=np.uint8)
    stored = frames if dtype == "uint8" else (frames / 255).astype(np.float32)
    stored = stored if layout == "HWC" else np.moveaxis(stored, -1, 1)
    feature = {"dtype": dtype, "shape": list(stored.shape[1:]), "names": None}
    nested = pa.array(stored.tolist(), pa.list_(pa.list_(pa.list_(pa.type_for_alias(dtype)))))
    foreign(tmp_path, ACTIONS, {"observation.image": (nested, feature)})
    read = np.concatenate([episode.frames for episode in read_episodes(tmp_path)])
    np.testing.assert_array_equal(read, frames)
    last = load_index(tmp_path, load_info(tmp_path))[0][2]
    np.testing.assert_array_equal(list(frames_of(tmp_path, last, "observation.image", start=1)), frames[6:])
    assert summarize(tmp_path).skipped == ()


@pytest.mark.hostile("files")
def test_floats_out_of_range_are_no_image(tmp_path):
    nested = (np.ones((9, 4, 6, 3)) * 255).tolist()
    feature = {"dtype": "float32", "shape": [4, 6, 3], "names": None}
    foreign(tmp_path, ACTIONS, {"observation.image": (nested, feature)})
    with pytest.raises(DataError, match="nothing in"):
        list(read_episodes(tmp_path))


@pytest.mark.hostile("files")
def test_a_column_of_another_shape_than_declared_is_reported(tmp_path):
    foreign(tmp_path, {"action": (ACTIONS["action"][0], vector(4))})
    skipped = []
    with pytest.raises(DataError, match="nothing in"):
        list(read_episodes(tmp_path, on_skip=skipped.append))
    assert "not of the declared shape" in skipped[0].reason


@pytest.mark.hostile("files")
def test_a_column_that_is_not_declared_is_not_read(tmp_path):
    foreign(tmp_path, ACTIONS, SUCCESS)
    path = tmp_path / "meta/info.json"
    info = json.loads(path.read_text())
    del info["features"]["next.success"]
    path.write_text(json.dumps(info))
    assert [episode.outcome for episode in read_episodes(tmp_path)] == [None] * 3
    assert summarize(tmp_path).successes == 0


@pytest.mark.hostile("files")
def test_the_hash_of_pictures_that_are_none_is_that_of_their_values(tmp_path):
    names = {"a": "x", "b": "y"}
    for folder, text in names.items():
        foreign(tmp_path / folder, ACTIONS, {"observation.image": ([{"path": text}] * 9, IMAGE)})
    assert len({dataset_hash(tmp_path / folder) for folder in names}) == 2


@pytest.mark.hostile("files")
def test_a_wrong_length_in_the_index_is_reported(tmp_path):
    foreign(tmp_path, ACTIONS)
    path = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "length", pa.array([3, 5, 4])), path)
    skipped = []
    assert [e.id for e in read_episodes(tmp_path, on_skip=skipped.append)] == ["0", "2"]
    assert "holds 2 rows of episode 1, its index says 5" in skipped[0].reason


def test_only_images_need_frames(tmp_path):
    foreign(tmp_path, {"observation.image": ([png(t) for t in range(9)], IMAGE)})
    assert next(read_episodes(tmp_path)).frames.shape == (3, 4, 6, 3)
    with pytest.raises(DataError, match="nothing but images"):
        read_episodes(tmp_path, with_frames=False)


def test_an_index_without_tasks_is_reported(tmp_path):
    foreign(tmp_path, ACTIONS, tasks=False)
    skipped = []
    with pytest.raises(DataError, match="nothing in"):
        read_episodes(tmp_path, on_skip=skipped.append)
    assert [part.reason for part in skipped] == ["has no tasks in the index"] * 3


def test_a_foreign_set_becomes_ours(tmp_path):
    foreign(tmp_path / "theirs", ACTIONS, SUCCESS)
    episodes = list(read_episodes(tmp_path / "theirs"))
    with EpisodeWriter(tmp_path / "ours", fps=10) as writer:
        for episode in episodes:
            writer.add(episode)
    for left, right in zip(read_episodes(tmp_path / "ours"), episodes, strict=True):
        np.testing.assert_array_equal(left.actions, right.actions)
        np.testing.assert_array_equal(left.success, right.success)
        assert left.outcome == right.outcome
    with pytest.raises(DataError, match="another tool"):
        EpisodeWriter(tmp_path / "theirs", fps=10)


def images(values, size=(4, 6)):
    """A column of encoded images, one grey value and one size for each row."""
    blobs = []
    for value, shape in zip(values, size if isinstance(size, list) else [size] * len(values), strict=True):
        buffer = io.BytesIO()
        Image.fromarray(np.full((*shape, 3), value, np.uint8)).save(buffer, "PNG")
        blobs.append({"bytes": buffer.getvalue(), "path": None})
    return blobs


IMAGE = {"dtype": "image", "shape": [4, 6, 3], "names": None}


def damaged(kind):
    """The camera column of nine rows in which the second episode, rows 3 and 4, cannot be read."""
    column = images(range(9))
    if kind == "size":
        column[4] = images([4], (5, 6))[0]
    elif kind == "missing":
        column[4] = {"bytes": None, "path": "image.png"}
    elif kind == "format":
        column[4] = {"bytes": b"GIF89a" + bytes(40), "path": None}
    elif kind == "cut off":
        column[4] = {"bytes": column[4]["bytes"][:-30], "path": None}
    elif kind == "last chunk":
        column[4] = {"bytes": column[4]["bytes"][:-12], "path": None}  # all pixels are there
    return column


@pytest.mark.parametrize("kind", ["whole", "size", "missing", "format", "cut off", "last chunk"])
def test_a_summary_counts_what_reading_gives(tmp_path, kind):
    foreign(tmp_path, ACTIONS, SUCCESS, {"observation.images.top": (damaged(kind), IMAGE)})
    skipped = []
    read = list(read_episodes(tmp_path, on_skip=skipped.append))
    summary = summarize(tmp_path)
    assert len(read) == (3 if kind in ("whole", "last chunk") else 2)
    assert (summary.episodes, summary.frames) == (len(read), sum(map(len, read)))
    assert summary.successes == sum(episode.outcome is True for episode in read)
    assert [s.episode for s in summary.skipped] == [s.episode for s in skipped]
    assert [str(s) for s in summary.skipped] == [str(s) for s in skipped]


def test_a_summary_and_reading_agree_about_a_column_of_another_shape(tmp_path):
    foreign(
        tmp_path, {"action": (ACTIONS["action"][0], vector(4))}, {"observation.images.top": (images(range(9)), IMAGE)}
    )
    for count in (lambda: list(read_episodes(tmp_path)), lambda: summarize(tmp_path)):
        with pytest.raises(DataError, match="nothing in"):
            count()


def test_recordings_without_outcomes_train_once_the_documented_lines_have_added_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bright = images([0, 0, 200, 0, 0, 0, 0, 0, 200], (8, 8))
    top = {"observation.images.top": (bright, {**IMAGE, "shape": [8, 8, 3]})}
    foreign(tmp_path / "recordings", ACTIONS, top)
    with pytest.raises(DataError, match=r"none of 3 episodes has frames and success labels.*docs/data\.md"):
        labelled_frames(read_episodes("recordings"), SETTINGS)
    text = (Path(__file__).parents[2] / "docs/data.md").read_text()
    _, _, section = text.partition("### Outcomes for your own recordings")
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], {})
    assert [e.outcome for e in read_episodes("labelled")] == [True, False, True]
    frames = labelled_frames(read_episodes("labelled"), SETTINGS)
    assert frames.skipped == 0
    assert frames.positive.tolist() == [True] * 3 + [False] * 3 + [True] * 3  # the last three rows of both
    assert summarize("labelled").successes == 2


def change_index(root, **columns):
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path).to_pydict()
    pq.write_table(pa.table({**table, **columns}), path)


TRAINED = {"next.success": vector(1, "bool"), "next.reward": vector(1)}


UNKNOWN = {"bool": None, "float": None, "int": None, "nan": np.nan, "negative": -1, "lists": None, "list": [None]}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_is_null_is_unknown(tmp_path, kind):
    """Episode 0 has no labels, episode 1 all of them, episode 2 only that of its last row."""
    values = [None, None, None, False, True, None, None, None, True]
    known = {"float": float, "int": int, "nan": float, "negative": int, "lists": lambda v: [v], "list": lambda v: [v]}
    column = [UNKNOWN[kind] if v is None else known.get(kind, bool)(v) for v in values]
    rewards = [1.0, np.nan if kind == "nan" else None, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, None]
    foreign(
        tmp_path, ACTIONS,
        {"next.success": (column, TRAINED["next.success"]), "next.reward": (rewards, TRAINED["next.reward"])},
    )  # fmt: skip
    first, second, third = read_episodes(tmp_path)
    assert [e.outcome for e in (first, second, third)] == [None, True, True]
    assert (first.success, third.success) == (None, None)
    assert second.success.tolist() == [False, True]
    assert first.rewards is None
    assert second.rewards.tolist() == [0, 4 + 5], "the reward of its last action is kept"
    assert third.rewards.tolist() == [0, 6, 7, 8]
    assert [e.id for e in read_episodes(tmp_path, only_success=True)] == ["1", "2"]
    assert summarize(tmp_path).successes == 2


@pytest.mark.hostile("files")
@pytest.mark.parametrize("share", [0.2, 2.0])
def test_a_success_that_is_neither_yes_nor_no_is_named(tmp_path, share):
    column = [0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, share]
    foreign(tmp_path, ACTIONS, {"next.success": (column, vector(1))})
    skipped = []
    assert [e.outcome for e in read_episodes(tmp_path, on_skip=lambda one: skipped.append(one.reason))] == [True, None]
    assert f"its next.success is {share:g} in a row" in skipped[0]
    assert [part.episode for part in summarize(tmp_path).skipped] == [2]


def test_an_episode_with_several_tasks_has_that_of_its_first_row(tmp_path, capsys):
    """LeRobot lists the tasks of an episode in no order, and gives each row its own."""
    foreign(tmp_path, ACTIONS, {"task_index": ([1, 0, 0, 0, 0, 2, 2, 1, 0], vector(1, "int64"))})
    names = ["close it", "open it", "lift it"]
    pq.write_table(
        pa.table({"task_index": [2, 0, 1], "task": ["lift it", *names[:2]]}), tmp_path / "meta/tasks.parquet"
    )
    change_index(tmp_path, tasks=[["close it", "open it"], ["close it"], ["close it", "lift it", "open it"]])
    assert [e.task for e in read_episodes(tmp_path)] == ["open it", "close it", "lift it"]
    assert [e.task for e in read_episodes(tmp_path, task="lift it")] == ["lift it"]
    assert capsys.readouterr().err.count("2 episodes have several tasks: that of the first row counts") == 1
    (tmp_path / "meta/tasks.parquet").unlink()
    assert next(read_episodes(tmp_path)).task == "close it"


@pytest.mark.hostile("files")
def test_rows_of_an_episode_that_are_not_together_are_named(tmp_path):
    foreign(tmp_path, ACTIONS, {"episode_index": ([0, 1, 0, 1, 0, 2, 2, 2, 2], vector(1, "int64"))})
    skipped = []
    assert [e.id for e in read_episodes(tmp_path, on_skip=lambda one: skipped.append(one.reason))] == ["2"]
    assert "holds 3 rows of episode 0, with others between them" in skipped[0]


def test_success_in_words_is_named(tmp_path):
    foreign(tmp_path, ACTIONS, {"next.success": (["yes"] * 9, TRAINED["next.success"])})
    skipped = []
    with pytest.raises(DataError, match="nothing in"):
        list(read_episodes(tmp_path, on_skip=lambda one: skipped.append(one.reason)))
    assert "column next.success holds text, such as 'yes'" in skipped[0]


def test_a_state_or_action_with_a_missing_value_is_absent_in_its_episode(tmp_path):
    states = [[float(t), None if t == 3 else 0.0] for t in range(9)]
    foreign(tmp_path, ACTIONS, {"observation.state": (states, vector(2))})
    assert [e.states is None for e in read_episodes(tmp_path)] == [False, True, False]
    assert all(e.actions is not None for e in read_episodes(tmp_path))


def depth(value):
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 6), value, np.uint16)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def test_depth_beside_a_camera_is_no_camera_and_said_once(tmp_path, caplog):
    top = {"observation.images.top": ([png(t) for t in range(9)], IMAGE)}
    far = {"observation.images.far": ([depth(700 + t) for t in range(9)], {**IMAGE, "shape": [4, 6, 1]})}
    grey = {"observation.images.side": ([png(t) for t in range(9)], {**IMAGE, "shape": [4, 6, 1]})}
    foreign(tmp_path / "a", ACTIONS, SUCCESS, far, top)
    for _ in range(2):
        assert [e.frames[0, 0, 0].tolist() for e in read_episodes(tmp_path / "a")] == [[0] * 3, [3] * 3, [5] * 3]
    assert summarize(tmp_path / "a").cameras == ("top",)
    assert [record.getMessage().count("observation.images.far") for record in caplog.records] == [1]
    foreign(tmp_path / "b", ACTIONS, SUCCESS, top, grey)
    assert summarize(tmp_path / "b").cameras == ("top", "side")
    depth_of_metres = {
        "observation.images.far": ((np.ones((9, 4, 6, 1)) * 2).tolist(), {"dtype": "float32", "shape": [4, 6, 1]})
    }
    foreign(tmp_path / "c", ACTIONS, SUCCESS, top, depth_of_metres)
    assert summarize(tmp_path / "c").cameras == ("top",)


def test_the_last_action_of_an_episode_may_be_null(tmp_path):
    actions = [None if t in (2, 4, 7) else [float(t), 1.0] for t in range(9)]
    foreign(tmp_path, SUCCESS, {"action": (actions, vector(2))})
    first, second, third = read_episodes(tmp_path)
    assert first.actions.tolist() == [[0, 0], [0, 1], [1, 1]]
    assert second.actions.tolist() == [[0, 0], [3, 1]]
    assert third.actions is None


def test_a_reward_in_the_last_row_alone_is_paid(tmp_path):
    """LeRobot's recorder writes a row per action and none for what the last one led to."""
    foreign(tmp_path, ACTIONS, {"next.reward": ([0, 0, 1, 0.5, 0.25, -1, 2, 0, 0], vector(1))}, lengths=[3, 3, 3])
    found = [episode.rewards.tolist() for episode in read_episodes(tmp_path)]
    assert found == [[0, 0, 1], [0, 0.5, -0.75], [0, 2, 0]]


def test_a_success_in_the_last_row_alone_is_an_example_of_success(tmp_path):
    top = {"observation.images.top": (images(range(9), (8, 8)), {**IMAGE, "shape": [8, 8, 3]})}
    foreign(tmp_path, ACTIONS, SUCCESS, top)
    frames = labelled_frames(read_episodes(tmp_path), SETTINGS)
    assert frames.positive.tolist() == [False, False, True, False, False, False, False, False, True]
    progress = ProgressTrainSettings(data_path="recordings", save_dir="rm", image_size=8)
    targets = labelled_frames(read_episodes(tmp_path), progress)
    assert targets.skipped == 0
    assert targets.targets.tolist() == pytest.approx([0, 0.5, 1, 0, 0, 0, 1 / 3, 2 / 3, 1])


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"length": [3, 0, 4]}, "has no rows"),
        ({"length": [3, None, 4]}, "has no length in the index"),
        ({"tasks": [["a"], [], ["a"]]}, "has no task in the index"),
        ({"tasks": [["a"], None, ["a"]]}, "has no tasks in the index"),
        ({"data/chunk_index": [0, None, 0]}, "has no data/chunk_index in the index"),
        ({"guerdon/meta": ["{}", "{", "{}"]}, "its row of the index cannot be read: JSONDecodeError"),
    ],
)
def test_a_bad_row_of_the_index_costs_its_episode_only(tmp_path, change, reason):
    foreign(tmp_path, ACTIONS, SUCCESS)
    change_index(tmp_path, **change)
    skipped = []
    assert [e.id for e in read_episodes(tmp_path, on_skip=skipped.append)] == ["0", "2"]
    assert [(part.episode, part.reason[: len(reason)]) for part in skipped] == [(1, reason)]
    assert [part.episode for part in summarize(tmp_path).skipped] == [1]
    assert len(dataset_hash(tmp_path)) == 64


def test_a_camera_that_an_episode_does_not_have_is_absent_there(tmp_path):
    column = images(range(9))
    column[3:5] = [None, None]
    foreign(tmp_path, ACTIONS, SUCCESS, {"observation.images.top": (column, IMAGE)})
    first, second, third = read_episodes(tmp_path)
    assert second.frames is None
    assert (len(first.frames), len(third.frames)) == (3, 4)
    assert second.actions is not None
    assert summarize(tmp_path).skipped == ()


@pytest.mark.parametrize(
    "column",
    [
        [None, True, False, None, True, True, None, False, True],
        [[1.0], [1.0, 2.0], [], None, [3.0], [4.0], [5.0], [6.0, 7.0, 8.0], [9.0]],
        [None if t == 4 else f"note {t}" for t in range(9)],
        [None if t == 2 else t for t in range(9)],
        [None if t == 2 else [float(t)] * 2 for t in range(9)],
    ],
)
def test_the_hash_of_an_unused_column_is_that_of_its_values(tmp_path, column):
    """In another process, too: a pointer would differ there."""
    kind = "string" if isinstance(column[0], str) else "float32"
    extra = {"annotation": (column, vector(2 if isinstance(column[0], list) else 1, kind))}
    foreign(tmp_path / "a", ACTIONS, SUCCESS, extra)
    code = f"from guerdon.episodes.read import dataset_hash; print(dataset_hash({str(tmp_path / 'a')!r}))"
    outputs = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}
    assert outputs == {dataset_hash(tmp_path / "a") + "\n"}
    changed = [column[1], column[0], *column[2:]]
    foreign(tmp_path / "b", ACTIONS, SUCCESS, {"annotation": (changed, extra["annotation"][1])})
    assert dataset_hash(tmp_path / "b") != dataset_hash(tmp_path / "a")
    assert len(list(read_episodes(tmp_path / "a"))) == 3


@pytest.mark.hostile("files")
def test_rows_of_the_index_with_one_number_are_skipped(tmp_path):
    foreign(tmp_path, ACTIONS, SUCCESS)
    change_index(tmp_path, episode_index=[0, 1, 1])
    skipped = []
    assert [e.id for e in read_episodes(tmp_path, on_skip=skipped.append)] == ["0"]
    assert any("another row of the index has the episode_index 1, too" in one.reason for one in skipped)


def test_a_folder_above_or_below_a_data_set_names_it(tmp_path):
    foreign(tmp_path / "sets" / "one", ACTIONS, SUCCESS)
    for path in ("sets", "sets/one/meta", "sets/one/data/chunk-000"):
        with pytest.raises(DataError, match=f"did you mean {tmp_path}/sets/one[?]"):
            list(read_episodes(tmp_path / path))
