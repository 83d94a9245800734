"""What attackers send to a real server: nothing is opened, nothing is connected to, little memory is taken."""

import itertools
import os
import re
import socket
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from foreign import b64, grey, npy, picture
from processes import start_server
from test_media import png_that_claims

from guerdon.episodes.video import VideoWriter

pytestmark = pytest.mark.hostile("http")

MIB = 1 << 20
SECRET = "outside.mp4"


def movie(path, levels=(10, 200), size=32):
    with VideoWriter(path, height=size, width=size, fps=10) as video:
        video.add(grey(levels, size, size))


@pytest.fixture(scope="module")
def canary():
    """A listener of this machine that must never hear from the server."""
    heard = []
    listening = socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            heard.append(connection)

    threading.Thread(target=accept, daemon=True).start()
    yield listening.getsockname()[1], heard
    listening.close()
    assert not heard


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("hostile")
    root = base / "root"
    (root / "libero").mkdir(parents=True)
    movie(root / "libero" / "good.mp4")
    movie(base / SECRET)
    (root / "link.mp4").symlink_to(base / SECRET)
    (root / "libero" / "inner.mp4").symlink_to(root / "libero" / "good.mp4")
    (root / "up").symlink_to(base)
    (root / "slash").symlink_to("/")
    (root / "zero.mp4").symlink_to("/dev/zero")
    os.link(base / SECRET, root / "hard.mp4")
    os.mkfifo(root / "pipe.mp4")
    (root / "folder.mp4").mkdir()
    (root / "text.mp4").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "gif.mp4").write_bytes(b"GIF89a" + (base / SECRET).read_bytes())
    (root / "movie.txt").write_bytes((base / SECRET).read_bytes())
    with (root / "huge.mp4").open("wb") as file:
        file.write((base / SECRET).read_bytes())
        file.truncate(33 * MIB)
    return base


@pytest.fixture(scope="module")
def running(folder):
    journal = folder / "journal"
    journal.touch()
    found = start_server(
        folder,
        models={"m": {"custom_backend": "audited:make", "options": {"journal": str(journal)}}},
        media={"root": str(folder / "root"), "workers": 1},
    )
    good = {"task_text": "t", "video_path": "libero/good.mp4"}
    assert found.post("/score", good).status_code == 200  # the decoding process is there now, and all is imported
    form = {"video": ("x", (folder / "root" / "libero" / "good.mp4").read_bytes())}
    assert found.post("/score", data={"task_text": "t"}, files=form).status_code == 200
    assert found.post("/score", {**good, "video_path": "none.mp4"}).status_code == 400
    assert (
        found.post("/v1/chat/completions", chat("data:image/png;base64," + b64(picture(grey([9])[0])))).status_code
        == 200
    )
    assert found.post("/v1/rewards", {"items": [{"task": "t", "video_path": "none.mp4"}]}).status_code == 400
    yield found
    assert found.stop() == 0


def chat(url):
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "t"}]
    return {"messages": [{"role": "user", "content": content}]}


def paths(folder, port):
    """Names that must open nothing."""
    outside = str(folder / SECRET)
    targets = ["etc/passwd", "etc/shadow", "proc/self/environ", "dev/zero", "dev/stdin", outside.lstrip("/")]
    ups = [
        "../",
        "..//",
        "./../",
        "a/../../",
        "libero/../../",
        "%2e%2e/",
        "..%2f",
        "....//",
        "..\\",
        "..;/",
        "．．/",
        "..\u2215",
    ]
    yield from (up * n + target for up, n, target in itertools.product(ups, (1, 6), targets))
    yield from (f"/{target}" for target in targets)
    yield from (f"//{target}" for target in targets)
    yield from (f"{target}\0.mp4" for target in targets)
    yield from (f"slash/{target}" for target in targets)
    schemes = [
        "http",
        "HTTPS",
        "ftp",
        "file",
        "gopher",
        "rtsp",
        "rtmp",
        "tcp",
        "udp",
        "concat",
        "subfile",
        "crypto",
        "hls",
        "data",
    ]
    yield from (f"{scheme}://127.0.0.1:{port}/x.mp4" for scheme in schemes)
    yield from (f" {scheme}:x.mp4" for scheme in schemes)
    yield from (
        f"file://{folder}/{SECRET}",
        f"file:{outside}",
        f"concat:{outside}|x.mp4",
        f"\\\\127.0.0.1@{port}\\x.mp4",
    )
    inside = [
        "link.mp4", "libero/inner.mp4", f"up/{SECRET}", "zero.mp4", "hard.mp4", "pipe.mp4", "folder.mp4", "text.mp4",
        "gif.mp4", "movie.txt", "huge.mp4", "up/root/libero/good.mp4", "libero/../libero/good.mp4", "./libero/good.mp4",
        "libero//good.mp4", "libero/./good.mp4", "libero/good.mp4/", "libero/good.mp4/.", "libero", "/", ".", "..", "~",
        "~root/x.mp4", "$HOME/x.mp4", "`id`.mp4", ";id;.mp4", "|id|.mp4", "*.mp4", "libero/*.mp4", "con.mp4",
        "a" * 5000, "a/" * 500 + "x.mp4",
        "libero/good.mp4\n", "libero/good.mp4\r\nX: y", "libero\\good.mp4", "libero/good.mp4%00", "libero/good.mp4#t=1",
        "libero/good.mp4?x", "LIBERO/GOOD.MP4 ", "\u202elibero/good.mp4", "libero/g\u043e\u043ed.mp4",
    ]  # fmt: skip
    yield from inside
    yield from (
        str(folder / "root" / name) for name in ("link.mp4", "pipe.mp4", "hard.mp4", "../outside.mp4", "up/outside.mp4")
    )
    yield str(folder / "root") + "less/x.mp4"


def uploads(folder):
    """Files that are not what they seem: as `video` of a form."""
    mp4 = (folder / "root" / "libero" / "good.mp4").read_bytes()
    png = picture(grey([9])[0])
    playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"
    yield from (
        b"", b"\0", playlist, b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<svg xmlns='x'><image href='/etc/passwd'/></svg>",
        b"%!PS-Adobe\n(/etc/passwd) run", b"GIF89a" + mp4, b"BM" + b"\0" * 60, b"\x1f\x8b" + zlib.compress(mp4),
        b"PK\x03\x04" + mp4,
        b"\x80\x04\x95cposix\nsystem\n", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff", b"\x93NUMPY\x09\x00" + b"\0" * 50,
        npy(np.zeros((1, 4, 4, 3), np.uint8)).replace(b"(1, 4, 4, 3)", b"(9, 9999999,)"),
        mp4[: len(mp4) // 2], mp4[:40],
        mp4.replace(b"moov", b"free"), mp4.replace(b"avc1", b"zzzz"), mp4.replace(b"ftyp", b"styp"),
        mp4.replace(b"mdia", b"free"),
        png[:60], png.replace(b"IDAT", b"IDAA"), png_that_claims(0, 0), png_that_claims(1, 2**31 - 1),
        png_that_claims(60_000, 60_000),
        b"\xff\xd8\xff\xe0" + b"\xff" * 500, b"RIFF\xff\xff\xff\xffWEBPVP8X" + b"\xff" * 30,
        b"\0\0\0\x18ftypisom" + playlist,
        b"\0\0\0\x08ftyp" + struct.pack(">I4sQ", 1, b"mdat", 10 << 30),
    )  # fmt: skip


def journal(folder):
    return (folder / "journal").read_text().splitlines()


def test_nothing_hostile_is_opened_and_nobody_is_called(folder, running, canary):
    port, heard = canary
    before = len(journal(folder))
    names, files = list(paths(folder, port)), list(uploads(folder))
    urls = [
        f"http://127.0.0.1:{port}/a.png",
        f"file://{folder}/{SECRET}",
        "data:text/plain;base64,AAAA",
        "data:,x",
        "x",
        "",
    ]
    assert len(names) + len(files) + len(urls) >= 250
    answers = [running.post("/score", {"task_text": "t", "video_path": name}) for name in names]
    opened = journal(folder)[before:]
    assert {(reply.status_code, reply.text) for reply in answers} == {
        (400, '{"error":{"message":"video_path does not exist or may not be read","type":"invalid_request_error",'
              '"param":null,"code":"no_such_video"}}'),
    }  # fmt: skip
    allowed = {f"open {str(folder / 'root')!r}", "open 'libero'", "open 'text.mp4'", "open 'gif.mp4'"}
    assert set(opened) <= allowed, "only folders under the root, and plain files in it whose content is then refused"
    before = len(journal(folder))
    replies = [running.post("/score", data={"task_text": "t"}, files={"video": ("x.mp4", blob)}) for blob in files]
    replies += [running.post("/v1/chat/completions", chat(url)) for url in urls]
    replies += [running.post("/score", {"task_text": "t", "frames_base64": [b64(blob)]}) for blob in files[:-10]]
    for name in names[::9]:
        replies.append(running.post("/v1/rewards", {"items": [{"task": "t", "video_path": name}]}))
    assert {reply.status_code for reply in replies} <= {400, 422}
    assert not [reply.text for reply in replies if " at 0x" in reply.text], "an address in memory"
    assert set(journal(folder)[before:]) <= allowed, running.log
    assert not heard
    assert running.post("/score", {"task_text": "t", "video_path": "libero/good.mp4"}).status_code == 200
    assert not re.search("Traceback", running.log)


def family(pid):
    """A process and its children."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from family(int(child))


def peaks(running):
    """Most memory that each process of the server has held, in bytes."""
    found = {}
    for pid in family(running.process.pid):
        status = Path(f"/proc/{pid}/status").read_text()
        found[pid] = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024
    return found


def bomb(side=14_000):
    """A PNG of 588 MB of zeros in 0.6 MB."""
    packed = zlib.compressobj(9)
    rows = b"\0" * (3 * side + 1) * 100
    data = b"".join(packed.compress(rows) for _ in range(side // 100)) + packed.flush()
    return png_that_claims(side, side).replace(
        struct.pack(">I", len(zlib.compress(b""))) + b"IDAT" + zlib.compress(b""),
        struct.pack(">I", len(data)) + b"IDAT" + data,
    )


def test_bombs_take_little_memory(running):
    png = bomb()
    assert len(png) > 500_000
    claim = b"\0\0\0\x18ftypisom\0\0\0\0isomiso2" + struct.pack(">I4sQ", 1, b"mdat", 10 << 30) + b"\0" * 1000
    before = peaks(running)
    for blob, words in ((png, "pixels"), (claim, "claims 10737418240 bytes")):
        reply = running.post("/score", data={"task_text": "t"}, files={"video": ("x", blob)})
        assert reply.status_code == 422
        assert words in reply.json()["error"]["message"]
    body = (b"x" * MIB for _ in range(100))
    reply = running.post("/score", content=body, headers={"Content-Length": str(100 * MIB)})
    assert reply.status_code == 413
    after = peaks(running)
    assert after.keys() == before.keys(), "no process was lost"
    assert sum(after.values()) - sum(before.values()) < 64 * MIB


def test_a_body_without_a_length_is_held_up_to_the_limit_alone(running):
    before = peaks(running)
    reply = running.post("/score", content=(b"x" * MIB for _ in range(100)))
    assert reply.status_code == 413
    after = peaks(running)
    assert sum(after.values()) - sum(before.values()) < (64 + 32) * MIB
