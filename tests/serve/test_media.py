"""Frames from strangers: decoded in bounded processes, or refused with a reason."""

import asyncio
import base64
import gc
import io
import os
import struct
import sys
import zlib
from urllib.parse import quote_from_bytes

import numpy as np
import pytest
from foreign import grey, npy, picture
from PIL import Image

from guerdon.episodes.video import VideoWriter
from guerdon.errors import DataError
from guerdon.serve.decode import check_boxes, decode_array, decode_pictures, decode_text, decode_video, sniff
from guerdon.serve.errors import Busy, NotReady
from guerdon.serve.media import Media, MediaRefused
from guerdon.serve.wires.client_wire import video_file
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.serve import MediaSettings, ServeSettings
from tables import cases

NOISE = np.random.default_rng(0).integers(0, 256, (6, 24, 40, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clips") / "clip.mp4"
    with VideoWriter(path, height=32, width=48, fps=10) as video:
        video.add(grey(np.linspace(0, 245, 36)))
    return path


@pytest.fixture(scope="module")
def media(clip):
    pool = Media(MediaSettings(root=str(clip.parent), max_frames=40, max_frame_pixels=10_000, max_video_s=5))
    yield pool
    pool.close()


def refusal(work):
    with pytest.raises(MediaRefused) as told:
        asyncio.run(work)
    return told.value


def png_that_claims(width, height, data=b""):
    """A PNG whose header promises more than it holds."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def test_lossless_pictures_and_arrays_arrive_bit_for_bit(media):
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        frames = asyncio.run(media.pictures([picture(frame, kind, **options) for frame in NOISE]))
        assert np.array_equal(frames, NOISE)
    assert np.array_equal(asyncio.run(media.upload(npy(NOISE))), NOISE)
    assert np.array_equal(asyncio.run(media.upload(npy(np.moveaxis(NOISE, -1, 1) / np.float32(255)))), NOISE)
    assert np.array_equal(asyncio.run(media.upload(picture(NOISE[0]))), NOISE[:1])
    jpeg = asyncio.run(media.pictures([picture(frame, "JPEG", quality=95) for frame in grey([7, 200])]))
    assert jpeg[:, 0, 0, 0].tolist() == [7, 200]


@pytest.mark.parametrize("nframes", [1, 2, 3, 16, 36, 40])
def test_frames_of_a_video_are_spread_with_first_and_last(media, clip, nframes):
    sampled = asyncio.run(media.upload(clip.read_bytes(), nframes=nframes))
    assert np.array_equal(sampled, asyncio.run(media.path("clip.mp4", nframes=nframes)))
    wanted = np.linspace(0, 245, 36)[np.linspace(0, 35, nframes).astype(int)] if 1 < nframes < 36 else None
    levels = sampled[:, 0, 0, 0].astype(float)
    if nframes == 1:
        assert levels == pytest.approx([245], abs=3)
    elif wanted is None:
        assert levels == pytest.approx(np.linspace(0, 245, 36), abs=3)
    else:
        assert levels == pytest.approx(wanted, abs=3)


def png_of_16_bits(kind):
    """A black PNG with 16 bits a value: grey (0), colour (2), and both with transparency (4, 6)."""
    size = {0: 2, 2: 6, 4: 4, 6: 8}[kind] * 8
    rows = zlib.compress((b"\0" + b"\0" * size) * 8)
    png = png_that_claims(8, 8).replace(struct.pack(">IIBB", 8, 8, 8, 2), struct.pack(">IIBB", 8, 8, 16, kind))
    return png.replace(
        struct.pack(">I", len(zlib.compress(b""))) + b"IDAT", struct.pack(">I", len(rows)) + b"IDAT" + rows
    )


def test_opaque_pictures_with_an_alpha_channel_are_read(media):
    opaque = io.BytesIO()
    Image.fromarray(NOISE[0]).convert("RGBA").save(opaque, "PNG")
    assert np.array_equal(asyncio.run(media.upload(opaque.getvalue())), NOISE[:1])


@pytest.mark.parametrize("frames", [64, 128])
def test_a_video_of_as_many_frames_as_a_client_may_ask_for_is_not_too_long(tmp_path, frames):
    slowest = RemoteSettings(upload="mp4", fps=1, nframes=frames)
    levels = np.linspace(0, 245, slowest.nframes)
    with video_file(grey(levels, 16, 16), None, slowest.fps, keep=False) as path:
        clip = path.read_bytes()
    pool = Media(MediaSettings())
    try:
        assert len(asyncio.run(pool.upload(clip, nframes=slowest.nframes))) == frames
    finally:
        pool.close()


def test_the_servers_limits_are_those_of_its_clients():
    server, client = ServeSettings(models={"m": {"backend": "constant"}}), RemoteSettings()
    assert server.limits.deadline_s >= client.timeout
    most = max(field.le for field in RemoteSettings.model_fields["nframes"].metadata if hasattr(field, "le"))
    assert most == 128
    assert server.media.max_frames >= 513  # every row of a LIBERO episode, for models that judge each


@pytest.mark.hostile("media")
def test_what_is_refused_and_why(media, clip):
    mp4 = clip.read_bytes()
    too_large = npy(np.zeros((2, 200, 200, 3), np.uint8))
    animated = io.BytesIO()
    Image.fromarray(NOISE[0]).save(animated, "PNG", save_all=True, append_images=[Image.fromarray(NOISE[1])])
    deep = io.BytesIO()
    Image.fromarray(NOISE[0, ..., 0].astype(np.uint16) * 257).save(deep, "PNG")
    clear, palette = io.BytesIO(), io.BytesIO()
    Image.fromarray(np.dstack([NOISE[0], NOISE[0, ..., 0]])).save(clear, "PNG")
    Image.fromarray(NOISE[0]).quantize(16).save(palette, "PNG", transparency=3)
    tiff = io.BytesIO()
    Image.fromarray(NOISE[0]).save(tiff, "TIFF")
    structured = npy(np.zeros(2, [("a", "u1")]))
    cases = {
        "not an MP4, NPY": [b"", b"x", b"GIF89a" + b"x" * 20, tiff.getvalue(), b"%PDF-1.7", b"<svg></svg>"],
        "pixels": [
            png_that_claims(14_000, 14_000),
            png_that_claims(101, 100),
            png_that_claims(2**31 - 1, 1),
            too_large,
        ],
        "cannot be decoded": [png_that_claims(64, 64), picture(NOISE[0])[:-40], b"\xff\xd8\xff" + b"\0" * 50],
        "animated": [animated.getvalue()],
        "16 bits": [deep.getvalue(), *(png_of_16_bits(kind) for kind in (0, 2, 4, 6))],
        "transparency": [clear.getvalue(), palette.getvalue()],
        "stored as": [structured, npy(np.array(["a"])), npy(np.zeros((1, 8, 8, 3), np.int64))],
        "bytes that its header claims": [npy(NOISE)[:-1], npy(NOISE) + b"x"],
        "40": [npy(np.zeros((41, 8, 8, 3), np.uint8))],
        "claims": [mp4[:-50], mp4 + b"\xff\xff\xff\xffmdat"],
    }
    for words, blobs in cases.items():
        for blob in blobs:
            told = refusal(media.upload(blob))
            assert words in str(told), (words, blob[:20])
            assert " at 0x" not in str(told), "an address in memory"
            assert told.status == 422
    assert "several sizes" not in str(refusal(media.pictures([picture(NOISE[0]), picture(NOISE[0, :9])])))
    assert "allowed are 1 to 40" in str(refusal(media.pictures([])))
    assert media.pool.restarts == 0


@pytest.mark.hostile("media")
def test_objects_in_arrays_are_never_loaded(media, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    buffer = io.BytesIO()
    np.save(buffer, np.array([Trap()], dtype=object), allow_pickle=True)
    assert "stored as object" in str(refusal(media.upload(buffer.getvalue())))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.hostile("media")
def test_a_long_video_is_refused_before_it_is_decoded(media, tmp_path):
    path = tmp_path / "long.mp4"
    with VideoWriter(path, height=16, width=16, fps=1) as video:
        video.add(grey([0] * 9, 16, 16))
    assert "claims 9 s, over 5 s" in str(refusal(media.upload(path.read_bytes(), nframes=2)))


@pytest.mark.hostile("media")
def test_a_decoder_that_hangs_or_dies_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, socket, sys\n"
        "channel = socket.socket(fileno=int(sys.argv[-1]))\n"
        "print(json.dumps({'ready': True}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    _, files, _, _ = socket.recv_fds(channel, 1, 2)\n"
        "    how = os.read(files[0], 1000)[8:]\n"
        "    if how == b'hang': sys.stdin.read()\n"
        "    if how == b'die': os._exit(1)\n"
        "    if how == b'once' and not os.path.exists('once'): open('once', 'w'); os._exit(1)\n"
        "    if how == b'lie': print(json.dumps({'shape': [9, 9, 9, 3]}), flush=True)\n"
        "    if how == b'chat': print('oops', flush=True)\n"
        "    if how in (b'work', b'once'): os.write(files[1], b'abc')\n"
        "    if how in (b'work', b'once'): print(json.dumps({'shape': [1, 1, 1, 3]}), flush=True)\n"
        "    for file in files: os.close(file)\n"
    )
    pool = Media(MediaSettings(decode_timeout_s=0.3, workers=1), command=[sys.executable, str(script)])

    def send(word):
        return pool.upload(b"\0\0\0\x08ftyp" + word)

    try:
        assert asyncio.run(send(b"work")).tolist() == [[[[97, 98, 99]]]]
        assert refusal(send(b"hang")).code == "decode_timeout"
        assert refusal(send(b"die")).code == "decoder_died"
        assert refusal(send(b"chat")).code == "decoder_died"
        assert refusal(send(b"lie")).code == "decoder_died"
        assert asyncio.run(send(b"once")).shape == (1, 1, 1, 3)  # something else killed it: sent once more
        assert pool.pool.restarts == 6
    finally:
        pool.close()


@pytest.mark.hostile("media")
def test_too_many_waiting_are_turned_away_and_closing_refuses_the_rest(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text("import sys\nprint('{\"ready\": true}', flush=True)\nsys.stdin.readline()\nsys.stdin.read()\n")
    pool = Media(MediaSettings(decode_timeout_s=60, workers=1), command=[sys.executable, str(script)])

    async def crowd():
        waiting = [asyncio.ensure_future(pool.upload(b"\0\0\0\x08ftyp")) for _ in range(65)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await pool.upload(b"\0\0\0\x08ftyp")
        await asyncio.to_thread(pool.close)
        return await asyncio.gather(*waiting, return_exceptions=True)

    endings = asyncio.run(crowd())
    assert len(endings) == 65
    assert all(isinstance(end, MediaRefused | NotReady | asyncio.CancelledError) for end in endings)


@pytest.mark.hostile("media")
def test_frames_that_are_still_held_count(tmp_path):
    """Small uploads of large frames, many at a time, must not fill the memory."""
    pool = Media(MediaSettings(max_decoded_bytes=10_000, workers=1))
    blob = picture(grey([7], 50, 60)[0])
    try:
        held = [asyncio.run(pool.upload(blob))[:, 1:] for _ in range(5)]  # views: 5 x 9000 bytes
        with pytest.raises(Busy, match="memory"):
            asyncio.run(pool.upload(blob))
        held.pop()
        gc.collect()  # closed event loops hold results in reference cycles
        assert asyncio.run(pool.upload(blob)).shape == (1, 50, 60, 3)
    finally:
        pool.close()


@pytest.mark.hostile("media")
def test_the_process_can_open_nothing(tmp_path, monkeypatch):
    """The kernel gives a decoding process no further descriptor: neither for a file nor for a socket."""
    probe = (
        "import sys, os, socket, json\n"
        "import guerdon.serve.decode as worker\n"
        "def look(request, source, limits):\n"
        "    found = {}\n"
        "    for name, attempt in {'file': lambda: open('/etc/hostname'), 'socket': lambda: socket.socket(),\n"
        "                          'pipe': os.pipe, 'write': lambda: open(sys.argv[0], 'w')}.items():\n"
        "        try: attempt(); found[name] = 'opened'\n"
        "        except OSError as error: found[name] = error.errno\n"
        "    try: bytearray(1 << 32); found['memory'] = 'given'\n"
        "    except MemoryError: found['memory'] = 'refused'\n"
        "    found['secrets'] = [value for value in os.environ.values() if value == 'a-long-secret']\n"
        "    raise worker.DataError(json.dumps(found))\n"
        "worker._decode = look\n"
        "worker.main()\n"
    )
    for name in ("GUERDON_TOKEN", "HF_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "a-long-secret")
    script = tmp_path / "probe.py"
    script.write_text(probe)
    pool = Media(MediaSettings(workers=1), command=[sys.executable, str(script)])
    try:
        told = str(refusal(pool.upload(b"\0\0\0\x08ftyp")))
    finally:
        pool.close()
    assert told == '{"file": 24, "socket": 24, "pipe": 24, "write": 24, "memory": "refused", "secrets": []}'


def test_the_pure_functions_know_their_limits(clip):
    limits = MediaSettings(max_frames=4, max_frame_pixels=2000, max_decoded_bytes=4000)
    with pytest.raises(DataError, match="over 4"):
        decode_video(io.BytesIO(clip.read_bytes()), nframes=5, limits=limits)
    with pytest.raises(DataError, match="MB together"):
        decode_video(io.BytesIO(clip.read_bytes()), nframes=2, limits=limits)
    with pytest.raises(DataError, match="over 2000 pixels"):
        decode_pictures([picture(grey([1], 50, 50)[0])], limits)
    with pytest.raises(DataError, match="no pictures"):
        decode_array(io.BytesIO(npy(np.zeros((0, 8, 8, 3), np.uint8))), limits)


@pytest.mark.hostile("media")
@cases(
    "blob",
    [
        b"", b"\0\0\0\x08ftyp", b"\0\0\0\x08ftyp\0\0\0\x04moov",
        b"\0\0\0\x08ftyp\0\0\0\x01mdat" + (10 << 30).to_bytes(8, "big"),
        b"\0\0\0\x08ftyp\0\0\0\x09moov", b"\0\0\0\x08ftyp\0\0\0\0mdat", b"\0\0\0\x08moov", b"\0\0\0\x08ftyp\0\0",
    ],
)  # fmt: skip
def test_boxes_that_claim_too_much(blob):
    with pytest.raises(DataError):
        check_boxes(io.BytesIO(blob))


@pytest.mark.hostile("media")
def test_types_are_told_by_what_is_in_a_file():
    assert [sniff(picture(NOISE[0], kind)[:12]) for kind in ("PNG", "JPEG", "WEBP")] == ["png", "jpeg", "webp"]
    assert sniff(npy(NOISE)[:12]) == "npy"
    assert [sniff(blob) for blob in (b"", b"GIF89a", b"RIFF1234WAVE")] == [None, None, None]


PLAIN = bytes(range(256))
TEXT = base64.b64encode(PLAIN)


@cases(
    "text",
    [
        TEXT,
        TEXT.rstrip(b"="),
        base64.urlsafe_b64encode(PLAIN),
        base64.urlsafe_b64encode(PLAIN).rstrip(b"="),
        base64.encodebytes(PLAIN),
        base64.encodebytes(PLAIN).replace(b"\n", b"\r\n"),
        b"data:image/png;base64," + TEXT,
        b"DATA:IMAGE/PNG;BASE64," + TEXT,
        b"data:image/jpeg;charset=utf-8;base64," + TEXT,
        b"data:image/jpeg;charset=utf-8;name=a.jpg; base64," + base64.encodebytes(PLAIN),
        b"data:;base64," + TEXT,
        b" data:image/png;base64," + quote_from_bytes(TEXT, safe="").encode(),
    ],
)
def test_every_usual_form_of_base64_is_read(text):
    assert decode_text(text) == PLAIN


@pytest.mark.hostile("media")
@cases(
    "text",
    [
        b"!!!!", TEXT[:-1] + b"!", TEXT + TEXT, TEXT + b"=", TEXT[:-1], b"A", b"data:image/png," + TEXT,
        b"data:image/png;base64" + TEXT, b"data:image/png;base64,%zz", b"http://127.0.0.1/a.png",
    ],
)  # fmt: skip
def test_what_is_no_base64_is_refused(text):
    with pytest.raises(DataError, match="base64"):
        decode_text(text)


def test_turned_pictures_and_those_of_phones_pass_the_process_that_opens_nothing(media):
    tags = Image.Exif()
    tags[274] = 6
    turned = picture(np.rot90(NOISE[0]), exif=tags)
    assert np.array_equal(asyncio.run(media.pictures([turned, picture(NOISE[1])])), NOISE[:2])
    phone = picture(grey([90])[0], "MPO", save_all=True, append_images=[Image.new("RGB", (16, 16))])
    assert asyncio.run(media.upload(phone))[0, 0, 0].tolist() == [90] * 3
    url = b"data:image/png;charset=utf-8;base64," + base64.encodebytes(turned)
    assert np.array_equal(asyncio.run(media.upload(url, encoded=True)), NOISE[:1])
    assert media.pool.restarts == 0


def test_files_of_phones_that_are_not_read_are_named(media):
    for brand, name in ((b"heic", "a HEIC"), (b"avif", "an AVIF"), (b"mif1", "a HEIF")):
        blob = b"\0\0\0\x18ftyp" + brand + bytes(60)
        assert f"it is {name}" in str(refusal(media.upload(blob)))
        assert f"it is {name}" in str(refusal(media.upload(base64.b64encode(blob), encoded=True)))


def test_the_bytes_of_a_text_count_as_decoded():
    blob = picture(NOISE[0])
    exact, less = (Media(MediaSettings(max_file_bytes=size, workers=1)) for size in (len(blob), len(blob) - 1))
    try:
        text = base64.encodebytes(blob)
        assert np.array_equal(asyncio.run(exact.upload(text, encoded=True)), NOISE[:1])
        assert "more than" in str(refusal(less.upload(text, encoded=True)))
        assert "more than" in str(refusal(less.upload(blob)))
    finally:
        exact.close()
        less.close()
