"""Splits and subsets by names of files and folders, and which parts are trained on."""

import json

import datasets
import pytest

from guerdon.errors import DataError
from guerdon.reading.data_sets import data_parts, split_and_subset

NAMES = {  # name: split and the rest
    "train": ("train", ""), "training": ("train", ""), "Train": ("train", ""),
    "train-00000-of-00002": ("train", ""), "train_prefs-00001-of-00003": ("train", "prefs"),
    "test_gen": ("test", "gen"), "gsm8k_test": ("test", "gsm8k"), "eval": ("test", ""), "evaluation": ("test", ""),
    "validation": ("validation", ""), "valid": ("validation", ""), "val": ("validation", ""), "dev": ("validation", ""),
    "rows.dev.2024": ("validation", "rows_2024"),
    "constrained": (None, "constrained"), "latest": (None, "latest"), "pretrain": (None, "pretrain"),
    "devil": (None, "devil"), "protest": (None, "protest"), "retraining": (None, "retraining"),
}  # fmt: skip


def test_splits_by_the_words_of_names():
    wrong = {name: (split_and_subset(name), want) for name, want in NAMES.items() if split_and_subset(name) != want}
    assert not wrong


def write(folder, **files):
    for name, texts in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".jsonl").write_text("".join(json.dumps({"x": text}) + "\n" for text in texts))
    return str(folder)


def found(data, **how):
    return {(part.split, part.subset): [row["x"] for _, row in part.good_rows()] for part in data_parts(data, **how)}


def test_of_a_folder_of_shards_train_is_trained_on(tmp_path):
    names = {"data__train-00000-of-00002": "a", "data__train-00001-of-00002": "b", "data__test-00000-of-00001": "c"}
    data = write(tmp_path, **names)
    assert [part.split for part in data_parts(data)] == ["test", "train", "train"]
    assert [row["x"] for part in data_parts(data, train=True) for _, row in part.good_rows()] == ["a", "b"]
    assert found(f"{data}:test") == {("test", "test"): ["c"]}
    assert found(f"{data}:eval") == {("test", "test"): ["c"]}


def test_folders_say_split_and_subset(tmp_path):
    data = write(tmp_path, main__train="a", main__test="b", socratic__train="c", valid__part="d")
    assert found(data) == {
        ("train", "main/train"): ["a"], ("test", "main/test"): ["b"], ("train", "socratic/train"): ["c"],
        ("validation", "part"): ["d"],
    }  # fmt: skip
    assert found(data, train=True) == {("train", "main/train"): ["a"], ("train", "socratic/train"): ["c"]}


def test_subsets_without_a_split_are_all_used(tmp_path):
    assert found(write(tmp_path / "a", chat="a", code="b"), train=True) == {
        (None, "chat"): ["a"],
        (None, "code"): ["b"],
    }
    assert found(write(tmp_path / "b", chat="a", test="b"), train=True) == {(None, "chat"): ["a"]}


def test_other_splits_are_never_trained_on_unless_they_are_named(tmp_path):
    data = write(tmp_path, test="a", dev="b")
    with pytest.raises(DataError, match="no split to train on, only dev, test"):
        data_parts(data, train=True)
    assert found(f"{data}:test", train=True) == {("test", "test"): ["a"]}
    assert found(f"{tmp_path}/test.jsonl", train=True) == {("test", "test"): ["a"]}


def test_a_saved_folder_is_read_as_datasets_reads_it(tmp_path):
    """`datasets` is the oracle; it is not needed for the reading."""
    rows = [{"x": f"{k}", "chat": [{"role": "user", "content": "a"}], "n": k or None} for k in range(5)]
    whole = datasets.Dataset.from_list(rows)
    saved = datasets.DatasetDict({"train_sft": whole.select(range(3)), "test": whole.select([4, 3])})
    saved.save_to_disk(str(tmp_path / "two"))
    whole.save_to_disk(str(tmp_path / "one"), num_shards=2)
    for path in ("one", "two"):
        loaded = datasets.load_from_disk(str(tmp_path / path))
        wanted = {name: list(part) for name, part in loaded.items()} if path == "two" else {"train": list(loaded)}
        parts = data_parts(str(tmp_path / path))
        assert {part.name: [row for _, row in part.good_rows()] for part in parts} == wanted
    assert [part.name for part in data_parts(str(tmp_path / "two"), train=True)] == ["train_sft"]


@pytest.mark.hostile("files")
def test_a_saved_folder_cannot_name_files_elsewhere(tmp_path):
    (tmp_path / "secret.arrow").write_bytes(b"x")
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("../secret.arrow", "/etc/passwd", ".."):
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(DataError, match="names no data files"):
            data_parts(str(folder))
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["../x"]}))
    with pytest.raises(DataError, match="which is a path"):
        data_parts(str(folder))
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    with pytest.raises(DataError, match=r"train/state.json: there is no such file, and a folder of `save_to_disk` has"):
        data_parts(str(folder))
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": []}))
    with pytest.raises(DataError, match="names no splits; save it again"):
        data_parts(str(folder))


def test_a_folder_without_rows_and_rows_that_are_no_maps_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"there is no file with rows in it \(.*\.jsonl"):
        data_parts(str(tmp_path))
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n[2]\n')
    (part,) = data_parts(str(tmp_path))
    with pytest.raises(DataError, match=r"expected rows that are maps of keys"):
        part.good_rows()
