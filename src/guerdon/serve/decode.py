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
import resource
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from guerdon.episodes.images import allocate
from guerdon.episodes.video import require_av
from guerdon.errors import DataError, GuerdonError, boundary
from guerdon.models.vlm_frames import sample_frames, to_rgb_uint8
from guerdon.settings.serve import MediaSettings
from guerdon.subprocess_worker import answer_requests
from guerdon.types import ByteArray, IntArray

_MOST_FILES = 64
_MEMORY = 256 << 20  # bytes of address space for decoding, besides three times what the frames take
_MODES = ("1", "L", "P", "RGB", "RGBA")  # converted to RGB without a loss of bits
_MOST_PACKETS = 20_000
_PNG = b"\x89PNG\r\n\x1a\n"
_CODECS = ("h264", "hevc", "mpeg4", "av1", "libdav1d", "vp9", "libvpx-vp9", "mjpeg")


def sniff(head: bytes) -> str | None:
    """The type that the first 12 bytes show: `png`, `jpeg`, `webp`, `npy`, `mp4`, or None."""
    if head.startswith(_PNG):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    return "mp4" if head[4:8] == b"ftyp" else None


def decode_text(text: bytes) -> bytes:
    """The bytes of a base64 text.

    Raises:
        DataError: it is not base64.
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise DataError(f"it is no base64 text: {error}") from error


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
    """One frame per PNG, JPEG or WebP picture; all of one size.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: another type, animated, of several sizes, over a limit, or corrupt.
    """
    frames: ByteArray | None = None
    for t, blob in enumerate(blobs):
        if sniff(blob[:12]) not in ("png", "jpeg", "webp"):
            raise DataError(f"frame {t} is no PNG, JPEG or WebP picture")
        if blob.startswith(_PNG) and blob[24:25] == b"\x10":  # the library would drop half of its bits
            raise DataError(f"frame {t} is a PNG of 16 bits: send 8-bit RGB")
        with boundary(DataError, f"frame {t} cannot be decoded"), warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            try:
                picture = Image.open(io.BytesIO(blob), formats=("PNG", "JPEG", "WEBP"))
            except UnidentifiedImageError as error:  # its text names an address in memory
                raise DataError(
                    f"frame {t} cannot be decoded: it is no PNG, JPEG or WebP picture, or it is cut off"
                ) from error
            width, height = picture.size
            if frames is None:
                frames = room(len(blobs), height, width, limits)
            if frames.shape[1:3] != (height, width):
                raise DataError(f"frame {t} is {height}x{width}, frame 0 is {frames.shape[1]}x{frames.shape[2]}")
            if picture.mode not in _MODES or getattr(picture, "n_frames", 1) != 1:
                raise DataError(f"frame {t} is animated or of mode {picture.mode}: send 8-bit RGB, one picture a frame")
            seen_through = picture.mode == "RGBA" or "transparency" in picture.info
            frames[t] = to_rgb_uint8(np.asarray(picture.convert("RGBA" if seen_through else "RGB")))[0]
    if frames is None:
        raise DataError("there is no frame")
    return frames


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
        count = sum(1 for packet in container.demux(stream) if packet.size)
        if count > _MOST_PACKETS or stream.frames > _MOST_PACKETS:
            raise DataError(f"the video claims {max(count, stream.frames)} frames, over {_MOST_PACKETS}")
        kept = count if nframes is None else min(count, nframes)
        frames = room(kept, stream.height, stream.width, limits)
        container.seek(0, stream=stream)
        _keep(container.decode(stream), frames, sample_frames(count, kept))
    return frames


def _keep(pictures: Any, frames_T_H_W_C: ByteArray, wanted_T: IntArray) -> None:
    done = 0
    for index, picture in enumerate(pictures):
        if picture.is_corrupt or (picture.height, picture.width) != frames_T_H_W_C.shape[1:3]:
            raise DataError(f"picture {index} of the video is corrupt, or of another size than the first")
        if done < len(wanted_T) and index == wanted_T[done]:
            frames_T_H_W_C[done] = picture.to_ndarray(format="rgb24")
            done += 1
    if done < len(wanted_T):
        raise DataError(f"the video is cut off: {done} of {len(wanted_T)} frames could be decoded")


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
        raise DataError("the file is no MP4 video")
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
    _, (source, target, *_), _, _ = socket.recv_fds(channel, 1, 2)
    try:
        with boundary(DataError, "it cannot be decoded"):
            frames = np.ascontiguousarray(_decode(request, source, limits))
        left = memoryview(frames.reshape(-1).data)
        while left:
            left = left[os.write(target, left) :]
        return {"shape": list(frames.shape)}
    except GuerdonError as error:
        return {"refused": str(error)[:300]}
    finally:
        os.close(source)
        os.close(target)


def _decode(request: dict[str, Any], source: int, limits: MediaSettings) -> ByteArray:
    with os.fdopen(source, "rb", closefd=False) as file:
        file.seek(0)  # the parent may have read from the same descriptor, whose position is shared
        if request["kind"] == "pictures":
            blobs = [file.read(int(size)) for size in request["sizes"]]
            return decode_pictures([decode_text(blob) for blob in blobs] if request["encoded"] else blobs, limits)
        plain: BinaryIO = io.BytesIO(decode_text(file.read())) if request["encoded"] else file
        kind = sniff(plain.read(12))
        plain.seek(0)
        if kind == "npy":
            return decode_array(plain, limits)
        if kind == "mp4":
            return decode_video(plain, nframes=request["nframes"], limits=limits)
        if kind is not None:
            return decode_pictures([plain.read()], limits)
    raise DataError("it is not an MP4, NPY, PNG, JPEG or WebP file")


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
    for name in ("PNG", "JPEG", "WEBP"):
        Image.fromarray(black[0]).save(picture := io.BytesIO(), name)
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
