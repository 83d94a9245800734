"""Atomic writes."""

import json
import os

import pytest

from guerdon.files import write_bytes_atomic, write_json_atomic, write_text_atomic


def test_writes_make_folders_and_replace(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_json_atomic(path, {"x": [1, None, "é"]})
    write_json_atomic(path, {"x": 2})
    assert json.loads(path.read_text(encoding="utf-8")) == {"x": 2}
    assert os.listdir(path.parent) == ["b.json"]
    write_text_atomic(path, "one\r\ntwo\n")
    assert path.read_bytes() == b"one\r\ntwo\n"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_what_is_not_json_leaves_the_old_file(tmp_path, bad):
    path = tmp_path / "m.json"
    write_json_atomic(path, {"ok": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json_atomic(path, {"bad": bad})
    assert json.loads(path.read_text()) == {"ok": 1}
    assert os.listdir(tmp_path) == ["m.json"]


def test_a_failure_midway_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "w.bin"
    write_bytes_atomic(path, b"old")

    def broken(_handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_bytes_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["w.bin"]


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        write_bytes_atomic(tmp_path / "f", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o644


def test_long_names_fit(tmp_path):
    path = tmp_path / ("n" * 240)
    write_bytes_atomic(path, b"x")
    assert path.read_bytes() == b"x"
