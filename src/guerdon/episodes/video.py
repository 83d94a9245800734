"""Writes and reads camera frames as MP4 through PyAV, with limits for foreign files.

Written as H.264 with a key frame every second frame, so that any row is reached fast; this is lossy, so
frames come back close but not equal. Read from any codec that PyAV knows, but only from an MP4 container and
only from the file itself: no playlist, no network. Needs the `video` extra.

    with VideoWriter(path, height=128, width=128, fps=20) as video:
        start_s, end_s = video.add(frames_T_H_W_C)
    frames_T_H_W_C = decode_video(path, times_T, fps=20)
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.episodes.images import MAX_PIXELS, allocate
from guerdon.episodes.layout import pixel_format
from guerdon.errors import DataError, boundary, needs
from guerdon.types import ByteArray

# Without mbtree, which looks ahead for what later frames copy: between key frames of two it finds nothing, and with
# AVX-512 it adds memory that nobody wrote, so that equal frames gave other bytes now and then. Sizes and errors are
# about those of crf 18 with it.
_ENCODER = {"crf": "20", "g": "2", "bf": "0", "preset": "veryfast", "mbtree": "0"}

BEGINNING = -(1 << 40)
"""Where to seek for the first picture: an edit list may repeat or reorder a file, with times before 0."""
_STRAIGHT = 1e-2  # share of a display matrix that may lie off its axes


class VideoWriter:
    """One growing MP4 file that holds the frames of several episodes after each other."""

    def __init__(self, path: Path, *, height: int, width: int, fps: int) -> None:
        """Start the file.

        Args:
            path: where to write, under any name.
            height: of every frame, in pixels.
            width: of every frame, in pixels.
            fps: frames per second.

        Raises:
            MissingDependencyError: PyAV is not installed.
        """
        self._av = require_av()
        self._fps = fps
        self._count = 0
        self._container = self._av.open(str(path), mode="w", format="mp4")
        self._stream = self._container.add_stream("libx264", rate=fps, options=dict(_ENCODER))
        self._stream.height, self._stream.width = height, width
        self._stream.pix_fmt = pixel_format(height, width)
        self._stream.codec_context.thread_count = 1

    def add(self, frames_T_H_W_C: ByteArray) -> tuple[float, float]:
        """Append frames; returns their first time stamp and the one after their last, in seconds."""
        start = self._count
        for frame in frames_T_H_W_C:
            picture = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture.pts = self._count
            self._container.mux(self._stream.encode(picture))
            self._count += 1
        return start / self._fps, self._count / self._fps

    def close(self) -> None:
        """Finish the file. It is unreadable before."""
        self._container.mux(self._stream.encode())
        self._container.close()

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self._container.close()  # FFmpeg crashes where frames follow a header that it could not write


def decode_video(path: Path, times_T: NDArray[Any], *, fps: float) -> ByteArray:
    """The frames nearest to these times.

    Args:
        path: an MP4 file.
        times_T: (T,) seconds since the first frame of the file, ascending.
        fps: rows per second of the data set; a frame further away than 0.4 rows is not taken.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: the file is truncated, corrupt or too large, or has no frame at one of the times.
        MissingDependencyError: PyAV is not installed.
    """
    pictures = iterate_video(path, times_T, fps=fps)
    first = next(pictures)
    frames = allocate(len(times_T), *first.shape[:2])
    frames[0] = first
    for t, pixels in enumerate(pictures, start=1):
        frames[t] = pixels
    return frames


def iterate_video(path: Path, times_T: NDArray[Any], *, fps: float) -> Iterator[ByteArray]:
    """The frames of `decode_video` one by one, each when it is decoded.

    Yields:
        (H, W, 3) uint8 for each time.

    Raises:
        DataError: as `decode_video`.
        MissingDependencyError: as `decode_video`.
    """
    with _opened(path) as (container, stream):
        times = np.asarray(times_T, dtype=np.float64) + float((stream.start_time or 0) * stream.time_base)
        size, upright = (stream.height, stream.width), UprightFrames()
        budget = 16 * len(times) + 2000
        done, previous = 0, None
        for picture in _from_time(container, stream, float(times[0]) + 0.05 / fps):
            budget -= 1
            if picture.is_corrupt:
                raise DataError(
                    f"the frame at {picture.time:.3f} s is corrupt; restore or download the file again", where=path
                )
            if (picture.height, picture.width) != size or budget < 0:
                raise DataError("frames change their size or come too densely", where=path)
            while done < len(times) and picture.time >= times[done]:
                yield upright(_nearest(path, float(times[done]), fps, previous, picture))
                done += 1
            previous = picture
            if done == len(times):
                break
        for t in range(done, len(times)):
            yield upright(_nearest(path, float(times[t]), fps, previous))


def keep_frame(frames_T_H_W_C: ByteArray, t: int, pixels: ByteArray) -> ByteArray:
    """Write frame t into the array and return it, reshaped in place to the frame's (H, W, 3) when t is 0."""
    frames = frames_T_H_W_C.reshape(-1, *pixels.shape) if t == 0 else frames_T_H_W_C
    frames[t] = pixels
    return frames


def is_frame(packet: Any) -> bool:
    """Whether a packet holds a displayed frame; frames outside the edit list are decoded and discarded."""
    return bool(packet.size) and not packet.is_discard


class UprightFrames:
    """Converts the frames of one stream to RGB, turned and mirrored as its display matrix says."""

    def __init__(self) -> None:
        self._reformatter = require_av().video.reformatter.VideoReformatter()  # reused: it has buffers and filters
        self._turn: tuple[bool, int, int] | None = None

    def __call__(self, picture: Any) -> ByteArray:
        """(H, W, 3) of an `av.VideoFrame`.

        Raises:
            DataError: the matrix rotates by an angle that is not a multiple of 90 degrees.
        """
        if self._turn is None:
            self._turn = _turn(picture)
        pixels: ByteArray = self._reformatter.reformat(picture, format="rgb24", threads=1).to_ndarray()
        swapped, down, right = self._turn
        return (pixels.swapaxes(0, 1) if swapped else pixels)[::down, ::right]


def _turn(picture: Any) -> tuple[bool, int, int]:
    """Whether the axes of a frame are swapped, and then the steps (1 or -1) through its rows and columns."""
    found = picture.side_data.get("DISPLAYMATRIX")
    matrix = None if found is None else np.frombuffer(bytes(found), np.int32).tolist()
    del found
    gc.collect(0)  # side data and frame refer to each other, which would keep the frame in memory
    if matrix is None:
        return False, 1, 1
    a, b, _, c, d, *_ = matrix  # a point (x, y), y downwards, is shown at (a x + c y, b x + d y)
    swapped = abs(a) + abs(d) < abs(b) + abs(c)
    if swapped:
        a, b, c, d = c, d, a, b
    if not a or not d or max(abs(b), abs(c)) > _STRAIGHT * min(abs(a), abs(d)):
        raise DataError(
            "its display matrix rotates by an angle that is not a multiple of 90 degrees: encode it upright"
        )
    return swapped, 1 if d > 0 else -1, 1 if a > 0 else -1


def _from_time(container: Any, stream: Any, time: float) -> Iterator[Any]:
    """The pictures of a stream, in order, from one at or before a time on, or from the first one of the file.

    A seek may end at a key picture whose own time is later, or whose following pictures need earlier ones (an open
    group): then a seek to an earlier place follows.

    Args:
        container: an open file.
        stream: of pictures.
        time: seconds.
    """
    back = 0.0
    while True:
        target = round((time - back) / stream.time_base) - 1
        container.seek(target if target > 0 else BEGINNING, stream=stream, backward=True)
        pictures = container.decode(stream)
        first = next(pictures, None)
        if target <= 0 or (first is not None and first.time <= time):
            break
        back = 2 * back + 1.0
    if first is not None:
        yield first
        yield from pictures


def declared(path: Path) -> tuple[int, float | None]:
    """How many frames the header of a file declares, 0 where it does not say, and their seconds.

    Raises:
        DataError: the file is truncated or corrupt.
        MissingDependencyError: PyAV is not installed.
    """
    with _opened(path) as (_, stream):
        return int(stream.frames), None if stream.duration is None else float(stream.duration * stream.time_base)


def count_frames(path: Path) -> int:
    """How many frames the file holds, without decoding them.

    Raises:
        DataError: the file is truncated or corrupt.
        MissingDependencyError: PyAV is not installed.
    """
    with _opened(path) as (container, stream):
        return sum(is_frame(packet) for packet in container.demux(stream))


def _nearest(path: Path, time: float, fps: float, *candidates: Any) -> Any:
    pictures = [picture for picture in candidates if picture is not None]
    best = min(pictures, key=lambda picture: abs(picture.time - time), default=None)
    if best is None or abs(best.time - time) > 0.4 / fps:
        raise DataError(f"no frame at {time:.3f} s; the file is cut off or belongs to other rows", where=path)
    return best


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    av = require_av()
    with (
        boundary(DataError, f"{path} cannot be decoded; restore or download the file again"),
        path.open("rb") as handle,
        av.open(handle, mode="r", format="mp4") as container,
    ):
        if not container.streams.video:
            raise DataError("has no video stream", where=path)
        stream = container.streams.video[0]
        if stream.height * stream.width > MAX_PIXELS:
            raise DataError(f"{stream.height}x{stream.width} is over {MAX_PIXELS} pixels", where=path)
        yield container, stream


def require_av() -> Any:
    """PyAV, or a `MissingDependencyError` that says how to install it."""
    with needs("MP4 video needs PyAV: pip install 'guerdon[video]'"):
        import av
    return av
