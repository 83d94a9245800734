"""Files under the media root, and nothing else."""

import os
import socket

import pytest

from guerdon.errors import ConfigError
from guerdon.serve.media import MediaRefused, MediaRoot

SMALL = {"suffixes": (".mp4",), "most_bytes": 100}


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "x.mp4").write_bytes(b"top")
    (folder / "a" / "b" / "y.MP4").write_bytes(b"deep")
    (tmp_path / "outside.mp4").write_bytes(b"secret")
    return folder


def test_what_lies_under_it_is_opened(root):
    media = MediaRoot(root)
    for name, content in (("x.mp4", b"top"), ("a/b/y.MP4", b"deep"), (str(root / "x.mp4"), b"top")):
        with media.open(name, **SMALL) as file:
            assert file.read() == content


def test_the_root_itself_may_be_a_link(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    media = MediaRoot(tmp_path / "link")
    for name in ("x.mp4", str(tmp_path / "link" / "x.mp4"), str(root / "x.mp4")):
        with media.open(name, **SMALL) as file:
            assert file.read() == b"top"


@pytest.mark.hostile("media")
def test_links_devices_pipes_and_sockets_are_not(root, tmp_path):
    outside = tmp_path / "outside.mp4"
    (root / "link.mp4").symlink_to(outside)
    (root / "inner.mp4").symlink_to(root / "x.mp4")
    (root / "folder").symlink_to(tmp_path)
    (root / "self").symlink_to(root)
    os.link(outside, root / "hard.mp4")
    os.mkfifo(root / "pipe.mp4")
    (root / "null.mp4").symlink_to("/dev/null")
    (root / "dir.mp4").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "s.mp4"))
        media = MediaRoot(root)
        for name in (
            "link.mp4", "inner.mp4", "folder/outside.mp4", "self/x.mp4", "hard.mp4", "pipe.mp4", "null.mp4", "dir.mp4",
            "s.mp4",
        ):  # fmt: skip
            with pytest.raises(MediaRefused):
                media.open(name, **SMALL)


@pytest.mark.hostile("media")
@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "/", "x", "../outside.mp4", "a/../x.mp4", "./x.mp4", "a//b/y.MP4", "x.mp4/", "/x.mp4", "//x.mp4",
        "x.mp4\0", "x\n.mp4", "a\\..\\x.mp4", "~/x.mp4", "file:x.mp4", "http://localhost/x.mp4",
        "C:x.mp4", "nothing.mp4",
        "x.MP3", "x.mp4.txt", "%2e%2e/outside.mp4", "..%2foutside.mp4", "\udcff.mp4",
        "x" * 5000 + ".mp4", "é" * 600 + ".mp4",
    ],
)  # fmt: skip
def test_names_that_are_refused(root, name):
    with pytest.raises(MediaRefused) as told:
        MediaRoot(root).open(name, **SMALL)
    assert str(told.value) == "video_path does not exist or may not be read"


@pytest.mark.hostile("media")
def test_a_root_whose_name_begins_like_another(root, tmp_path):
    (tmp_path / "rootless").mkdir()
    (tmp_path / "rootless" / "x.mp4").write_bytes(b"other")
    with pytest.raises(MediaRefused):
        MediaRoot(root).open(str(tmp_path / "rootless" / "x.mp4"), **SMALL)


@pytest.mark.hostile("media")
def test_a_file_that_is_too_large_or_unreadable(root):
    (root / "big.mp4").write_bytes(b"x" * 101)
    with pytest.raises(MediaRefused):
        MediaRoot(root).open("big.mp4", **SMALL)


@pytest.mark.hostile("media")
def test_no_descriptor_is_left_behind(root):
    media = MediaRoot(root)
    (root / "big.mp4").write_bytes(b"x" * 101)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("x.mp4", "a/b/y.MP4", "big.mp4", "a/b/none.mp4", "a/none/y.mp4", "../outside.mp4"):
        try:
            media.open(name, **SMALL).close()
        except MediaRefused:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_root_that_is_none(tmp_path):
    with pytest.raises(ConfigError, match="not a folder") as refused:
        MediaRoot(tmp_path / "nothing")
    assert refused.value.key == "media.root"
