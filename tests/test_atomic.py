"""Writing files and folders in one piece."""

import json
import os

import pytest

from guerdon.errors import CheckpointError
from guerdon.files.atomic import COMPLETE, seal_folder, verify_folder, write_bytes, write_json, write_text


def test_writes_make_folders_and_replace(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_json(path, {"x": [1, None, "é"]})
    write_json(path, {"x": 2})
    assert json.loads(path.read_text(encoding="utf-8")) == {"x": 2}
    assert os.listdir(path.parent) == ["b.json"]
    write_text(path, "one\r\ntwo\n")
    assert path.read_bytes() == b"one\r\ntwo\n"


@pytest.mark.hostile("disk")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_what_is_not_json_leaves_the_old_file(tmp_path, bad):
    path = tmp_path / "m.json"
    write_json(path, {"ok": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json(path, {"bad": bad})
    assert json.loads(path.read_text()) == {"ok": 1}
    assert os.listdir(tmp_path) == ["m.json"]


@pytest.mark.hostile("disk")
def test_a_failure_midway_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "w.bin"
    write_bytes(path, b"old")

    def broken(_handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"


def sealed(folder, content=b"1"):
    temporary = folder.with_name("building")
    write_bytes(temporary / "deep" / "w.bin", content)
    seal_folder(temporary, folder)
    return folder


def test_a_sealed_folder_verifies_and_replaces_the_old_one(tmp_path):
    folder = sealed(tmp_path / "step_1")
    verify_folder(folder)
    sealed(folder, b"2")
    verify_folder(folder)
    assert (folder / "deep" / "w.bin").read_bytes() == b"2"
    assert os.listdir(tmp_path) == ["step_1"]


@pytest.mark.hostile("disk")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "deep" / "w.bin").write_bytes(b"x"), "corrupt"),
        (lambda f: (f / "deep" / "w.bin").unlink(), "missing"),
        (lambda f: (f / COMPLETE).unlink(), "incomplete"),
    ],
)
def test_damage_is_named(tmp_path, damage, words):
    folder = sealed(tmp_path / "step_1")
    damage(folder)
    with pytest.raises(CheckpointError, match=words):
        verify_folder(folder)
