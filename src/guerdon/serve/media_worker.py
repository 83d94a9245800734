"""Body of a decoding process: open files in, frames out. It can open no file and no socket of its own.

It gets two descriptors with each request, one to read from and one to write the frames to, and says their shape. Its
memory is bounded by the kernel, and so are the size of what it writes and the number of its descriptors: a library
that was led astray by a file finds nothing to open. The parent watches the clock. Arguments: bytes of memory beyond
what it needs to start, bytes of frames at most, limits as JSON, seconds after which it ends itself (should the parent
be gone too), and the descriptor of the socket. This module does not know who asks.

    python -m guerdon.serve.media_worker 800000000 268435456 '{"max_frames": 64}' 25 5
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import resource
import signal
import socket
import sys
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from guerdon.errors import DataError, GuerdonError, boundary
from guerdon.serve.decode import Limits, decode_array, decode_pictures, decode_text, decode_video
from guerdon.subprocess_worker import end_with_parent
from guerdon.types import ByteArray

_MOST_FILES = 64


def answer(request: dict[str, Any], source: int, target: int, limits: Limits) -> dict[str, Any]:
    """Decode what lies in `source`, write the frames to `target`, and say their shape, or why there are none.

    Args:
        request: `kind` (`pictures`, `npy`, `mp4`), `sizes` of the pictures, `nframes` of a video, and whether what
            lies there is `encoded`, base64 text.
        source: descriptor to read from.
        target: descriptor to write raw (T, H, W, 3) uint8 to.
        limits: of the frames.
    """
    try:
        with boundary(DataError, "it cannot be decoded"):
            frames = np.ascontiguousarray(_decode(request, source, limits))
    except GuerdonError as error:
        return {"refused": str(error)[:300]}
    left = memoryview(frames.reshape(-1).data)
    while left:
        left = left[os.write(target, left) :]
    return {"shape": list(frames.shape)}


def _decode(request: dict[str, Any], source: int, limits: Limits) -> ByteArray:
    with os.fdopen(source, "rb", closefd=False) as file:
        if request["kind"] == "pictures":
            blobs = [file.read(int(size)) for size in request["sizes"]]
            return decode_pictures([decode_text(blob) for blob in blobs] if request["encoded"] else blobs, limits)
        plain: BinaryIO = io.BytesIO(decode_text(file.read())) if request["encoded"] else file
        if request["kind"] == "npy":
            return decode_array(plain, limits)
        if request["kind"] == "mp4":
            return decode_video(plain, nframes=request["nframes"], limits=limits)
    raise DataError(f"nothing decodes {request['kind']!r}")


def _lock_down(memory: int, most_bytes: int) -> None:
    """Bound memory, written bytes and descriptors; no core dumps (they would hold a client's pictures).

    Every descriptor that the kernel would still give is taken, except the two that come with a request.
    """
    limits = {resource.RLIMIT_FSIZE: most_bytes, resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: _MOST_FILES}
    if sys.platform == "linux":  # elsewhere nobody says how much there is already
        with open("/proc/self/statm", encoding="ascii") as file:
            limits[resource.RLIMIT_AS] = int(file.read().split()[0]) * resource.getpagesize() + memory
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


def _warm_up(limits: Limits) -> None:
    """Decode one of each kind: afterwards no module is left that would have to be opened."""
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
    memory, most_bytes, limits = int(sys.argv[1]), int(sys.argv[2]), Limits(**json.loads(sys.argv[3]))
    alarm, channel = float(sys.argv[4]), socket.socket(fileno=int(sys.argv[5]))
    end_with_parent()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not look like a reply
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle; its end closes the pipe
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing too much is an error, not a signal
    _warm_up(limits)
    _lock_down(memory, most_bytes)
    _say(replies, {"ready": True})
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, alarm)
        _, files, _, _ = socket.recv_fds(channel, 1, 2)
        try:
            reply = answer(json.loads(line), files[0], files[1], limits)
        finally:
            for handle in files:
                os.close(handle)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(replies, reply)


def _say(replies: Any, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
