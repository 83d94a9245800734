"""Untrusted bytes to frames, under limits: the functions, and a process that runs them and can be killed.

What a file claims (its type, its size, its length) is checked before anything is decoded. Only PNG, JPEG, WebP, NPY and
MP4 are read, whatever else the libraries could do.

The process gets two descriptors with each request, one to read from and one to write the frames to, and replies with
their shape. It can open no file and no socket of its own: the kernel bounds its memory, the size of what it writes and
the number of its descriptors, so that a library that a file exploits finds nothing to open. Its arguments are the
limits as JSON and the descriptor of the socket.

    frames_T_H_W_C = decode_pictures([png_bytes], limits)
    frames_T_H_W_C = decode_video(file, nframes=16, limits=limits)
    python -m guerdon.serve.decode '{"max_frames": 64}' 5
"""

from __future__ import annotations

import binascii
import importlib.util
import io
import math
import os
import re
import resource
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, BinaryIO
from urllib.parse import unquote_to_bytes

import numpy as np
from PIL import ExifTags, Image

from guerdon.episodes.images import allocate, file_type, read_pictures
from guerdon.episodes.video import BEGINNING, UprightFrames, is_frame, keep_frame, require_av
from guerdon.errors import DataError, GuerdonError, boundary
from guerdon.models.frames import sample_frames, to_rgb_uint8
from guerdon.processes.subprocess_worker import answer_requests
from guerdon.settings.serve import MediaSettings
from guerdon.types import ByteArray, IntArray

_MOST_FILES = 64
_MEMORY = 256 << 20  # bytes of address space for decoding, besides three times what the frames take
_MOST_PACKETS = 20_000
_KINDS = {
    "a PNG picture": "png", "a JPEG picture": "jpeg", "a WebP picture": "webp", "an NPY array": "npy",
    "an MP4 video": "mp4",
}  # fmt: skip
_READ = " an MP4, NPY, PNG, JPEG or WebP file"
_DATA_URL = re.compile(rb"\s*data:[^,;]*(?:;[^,;]*)*;\s*base64\s*,", re.IGNORECASE)
_PLAIN_ALPHABET = bytes.maketrans(b"-_", b"+/")
_CODECS = ("h264", "hevc", "mpeg4", "av1", "libdav1d", "vp9", "libvpx-vp9", "mjpeg")


def sniff(head: bytes) -> str | None:
    """The type that the first 12 bytes show: `png`, `jpeg`, `webp`, `npy`, `mp4`, or None."""
    return _KINDS.get(file_type(head))


def not_read(head: bytes) -> str:
    """The reason for refusing a file, by its first 12 bytes, of which `sniff` knows no type."""
    kind = file_type(head)
    return f"it is {kind}, not" + _READ if kind else "it is not" + _READ


def decode_text(text: bytes) -> bytes:
    """The bytes of a base64 text, or of a `data:` URL with one.

    White space, the URL-safe alphabet (`-_`), percent-encoding in a URL, and missing padding are accepted.

    Raises:
        DataError: it is not base64.
    """
    head = _DATA_URL.match(text)
    if head:
        text = text[head.end() :]
        if b"%" in text:
            text = unquote_to_bytes(text)
    elif text[:5].lower() == b"data:":
        raise DataError("the data URL is not base64: write data:image/png;base64,...")
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        text = text.translate(_PLAIN_ALPHABET, b" \t\r\n\f")
    if not text.endswith(b"="):
        text += b"=" * (-len(text) % 4)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise DataError(f"it is not a base64 text: {error}") from error


def room(count: int, height: int, width: int, limits: MediaSettings) -> ByteArray:
    """An uninitialised (count, height, width, 3) uint8 array, if the limits allow it.

    Raises:
        DataError: they do not.
    """
    check_room(count, height, width, limits)
    return allocate(count, height, width)


def check_room(count: int, height: int, width: int, limits: MediaSettings) -> None:
    """Refuse what is over a limit.

    Raises:
        DataError: it is, or it is empty.
    """
    if height < 1 or width < 1 or count < 1:
        raise DataError(f"{count} frames of {height}x{width} hold no pixel")
    if height * width > limits.max_frame_pixels:
        raise DataError(f"a frame of {height}x{width} is over {limits.max_frame_pixels} pixels")
    if count > limits.max_frames:
        raise DataError(f"{count} frames are over {limits.max_frames}")
    if count * height * width * 3 > limits.max_decoded_bytes:
        raise DataError(f"{count} frames of {height}x{width} are over {limits.max_decoded_bytes >> 20} MB together")


def decode_pictures(blobs: Sequence[bytes], limits: MediaSettings) -> ByteArray:
    """One frame per PNG, JPEG or WebP picture; see `read_pictures`.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: over a limit, or `read_pictures` refuses it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return read_pictures(blobs, "frame", partial(room, limits=limits))


def decode_array(file: BinaryIO, limits: MediaSettings) -> ByteArray:
    """Frames of an NPY file, of any kind that `to_rgb_uint8` takes; the header is checked first.

    Raises:
        DataError: another type or shape, over a limit, or cut off.
    """
    npy = np.lib.format
    with boundary(DataError, "the NPY file cannot be read"):
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise DataError(f"NPY version {version} is not read; write it with numpy.save")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject or dtype not in (np.uint8, np.float16, np.float32, np.float64):
            raise DataError(f"frames are stored as {dtype}; write uint8, or floats between 0 and 1")
        if fortran or not 2 <= len(shape) <= 4:
            raise DataError(f"frames have shape {shape}; write (T, H, W, 3) in C order")
        size = math.prod(shape) * dtype.itemsize
        data = file.read()
        if len(data) != size:
            raise DataError(f"the NPY file holds other than the {size} bytes that its header claims")
        frames = to_rgb_uint8(np.frombuffer(data, dtype).reshape(shape))
        check_room(len(frames), frames.shape[1], frames.shape[2], limits)
    return frames


def decode_video(file: BinaryIO, *, nframes: int | None, limits: MediaSettings) -> ByteArray:
    """Frames of an MP4 video, evenly spaced, the first and the last among them.

    Args:
        file: seekable, at its start.
        nframes: how many, where the video holds more (see `sample_frames`); None: all.
        limits: of the frames that are kept; the video itself may be longer than `max_frames`.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: another container, over a limit, cut off or corrupt.
        MissingDependencyError: PyAV is not installed.
    """
    av = require_av()
    check_boxes(file)
    with boundary(DataError, "the video cannot be decoded"), av.open(file, mode="r", format="mp4") as container:
        if len(container.streams.video) != 1:
            raise DataError(f"the file has {len(container.streams.video)} video streams instead of one")
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        if stream.codec_context.name not in _CODECS:
            raise DataError(f"videos of the codec {stream.codec_context.name} are not read; write H.264")
        seconds = max(_seconds(stream.duration, stream.time_base), _seconds(container.duration, 1e-6))
        if seconds > limits.max_video_s:
            raise DataError(f"the video claims {seconds:.0f} s, over {limits.max_video_s:g} s")
        times, key = _times(container, stream)
        most = len(times) if nframes is None else nframes
        check_room(min(len(times), most), stream.height, stream.width, limits)
        container.seek(BEGINNING, stream=stream)
        pictures = container.decode(stream)
        first = next(pictures, None)
        # where a cut begins with an open group, the frames shown before its key frame refer to ones that were left out
        begin = None if first is None or key is None else min(first.pts, key)
        count = len(times) if begin is None else sum(time >= begin for time in times)
        frames = room(min(count, most), stream.height, stream.width, limits)
        return _keep(chain([first] if first else [], pictures), frames, sample_frames(count, len(frames)))


def _times(container: Any, stream: Any) -> tuple[list[int], int | None]:
    """The times of all frames, without decoding them, and that of the first key frame.

    Raises:
        DataError: there are too many, or the stream claims too many.
    """
    times: list[int] = []
    key = None
    for packet in container.demux(stream):
        if key is None and packet.is_keyframe:
            key = packet.pts
        if is_frame(packet):
            times.append(packet.pts)
        claimed = max(len(times), stream.frames)
        if claimed > _MOST_PACKETS:
            raise DataError(f"the video claims {claimed} frames, over {_MOST_PACKETS}")
    return times, key


def _keep(pictures: Iterable[Any], frames_T_H_W_C: ByteArray, wanted_T: IntArray) -> ByteArray:
    """The wanted pictures, turned upright, written into the given array of the stream's size."""
    done, size, upright = 0, frames_T_H_W_C.shape[1:3], UprightFrames()
    for index, picture in enumerate(pictures):
        if picture.is_corrupt or (picture.height, picture.width) != size:
            raise DataError(f"picture {index} of the video is corrupt, or of another size than the first")
        if done < len(wanted_T) and index == wanted_T[done]:
            frames_T_H_W_C = keep_frame(frames_T_H_W_C, done, upright(picture))
            done += 1
    if done < len(wanted_T):
        raise DataError(f"the video is cut off: {done} of {len(wanted_T)} frames could be decoded")
    return frames_T_H_W_C


def _seconds(duration: Any, unit: Any) -> float:
    return 0.0 if duration is None else float(duration * unit)


def check_boxes(file: BinaryIO) -> None:
    """Refuse an MP4 whose outermost boxes claim more bytes than there are; leaves the file at its start.

    Raises:
        DataError: it is none, it is cut off, or it claims more than it holds.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    if sniff(file.read(12)) != "mp4":
        raise DataError("the file is not an MP4 video")
    at, found = 0, set()
    while at < end:
        file.seek(at)
        head = file.read(16)
        if len(head) < 8:
            raise DataError("the MP4 file is cut off")
        size, kind = struct.unpack(">I4s", head[:8])
        if size == 1 and len(head) == 16:
            size = struct.unpack(">Q", head[8:])[0]
        elif size == 0:
            size = end - at
        if size < 8 or size > end - at:
            raise DataError(f"a part of the MP4 file claims {size} bytes, where {end - at} are left")
        found.add(kind)
        at += size
        if len(found) > 64:
            break
    if b"moov" not in found:
        raise DataError("the MP4 file has no index: it is cut off, or its writer did not finish")
    file.seek(0)


def answer(channel: socket.socket, limits: MediaSettings, request: dict[str, Any]) -> dict[str, Any]:
    """Reply to a request of the parent: the shape of the frames, or why there are none.

    Args:
        channel: sends a descriptor to read from, and one to write raw (T, H, W, 3) uint8 to.
        limits: of the frames.
        request: `kind` (`pictures`, or `file` of a type that its first bytes show), `sizes` of the pictures, `nframes`
            of a video, and whether the bytes are `encoded`, base64 text.
    """
    _, (given, target, *_), _, _ = socket.recv_fds(channel, 1, 2)
    try:
        with boundary(DataError, "it cannot be decoded"):
            frames = np.ascontiguousarray(_decode(request, given, limits))
        left = memoryview(frames.reshape(-1).data)
        while left:
            left = left[os.write(target, left) :]
        return {"shape": list(frames.shape)}
    except GuerdonError as error:
        return {"refused": str(error)[:300]}
    finally:
        os.close(given)
        os.close(target)


def _decode(request: dict[str, Any], given: int, limits: MediaSettings) -> ByteArray:
    with os.fdopen(given, "rb", closefd=False) as file:
        file.seek(0)  # the parent may have read from the same descriptor, whose position is shared
        if request["kind"] == "pictures":
            blobs = [file.read(int(size)) for size in request["sizes"]]
            return decode_pictures(_decoded(blobs, limits) if request["encoded"] else blobs, limits)
        plain: BinaryIO = io.BytesIO(_decoded([file.read()], limits)[0]) if request["encoded"] else file
        head = plain.read(12)
        kind = sniff(head)
        plain.seek(0)
        if kind == "npy":
            return decode_array(plain, limits)
        if kind == "mp4":
            return decode_video(plain, nframes=request["nframes"], limits=limits)
        if kind is not None:
            return decode_pictures([plain.read()], limits)
        raise DataError(not_read(head))


def _decoded(texts: Sequence[bytes], limits: MediaSettings) -> list[bytes]:
    blobs = [decode_text(text) for text in texts]
    if sum(map(len, blobs)) > limits.max_file_bytes:
        raise DataError(f"more than {limits.max_file_bytes} bytes")
    return blobs


def _lock_down(settings: MediaSettings) -> None:
    """Limit memory, written bytes and descriptors; no core dumps (they would contain a client's pictures).

    All descriptors that the kernel would still give are taken, except the two that come with a request.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing too much is an error, not a signal
    most_bytes = settings.max_decoded_bytes
    limits = {resource.RLIMIT_FSIZE: most_bytes, resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: _MOST_FILES}
    if sys.platform == "linux":  # elsewhere the present size is unknown
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
            limits[resource.RLIMIT_AS] = now + 3 * most_bytes + _MEMORY
    for what, limit in limits.items():
        resource.setrlimit(what, (limit, limit))
    taken: list[int] = []
    while len(taken) <= _MOST_FILES:
        try:
            taken.append(os.dup(0))
        except OSError:
            break
    for handle in taken[-2:]:
        os.close(handle)


def _warm_up(limits: MediaSettings) -> None:
    """Decode one file of each kind: afterwards no module has to be opened."""
    black = np.zeros((2, 16, 16, 3), np.uint8)
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    for name in ("PNG", "JPEG", "WEBP", "MPO"):
        more = {"save_all": True, "append_images": [Image.fromarray(black[1])]} if name == "MPO" else {}
        Image.fromarray(black[0]).save(picture := io.BytesIO(), name, exif=turned, **more)
        decode_pictures([picture.getvalue()], limits)
    np.save(array := io.BytesIO(), black)
    array.seek(0)
    decode_array(array, limits)
    if importlib.util.find_spec("av") is None:
        return
    import av
    import av.logging

    av.logging.set_level(None)
    with av.open(video := io.BytesIO(), "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 16
        for frame in [*(av.VideoFrame.from_ndarray(f, format="rgb24") for f in black), None]:
            container.mux(stream.encode(frame))
    video.seek(0)
    decode_video(video, nframes=None, limits=limits)


def main() -> None:
    """Answer requests from standard input until it ends."""
    limits, channel = MediaSettings.model_validate_json(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))

    def prepare() -> None:
        _warm_up(limits)
        _lock_down(limits)

    answer_requests(partial(answer, channel, limits), alarm=2 * limits.decode_timeout_s + 5, prepare=prepare)


if __name__ == "__main__":
    main()
