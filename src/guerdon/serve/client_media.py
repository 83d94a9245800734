"""Frames on their way to a reward server: few enough, and as NPY, JPEG or MP4 bytes, or as a file that it can read.

NPY arrives as it was sent; JPEG and MP4 are smaller and close. This module does not know servers or requests.

    frames_T_H_W_3 = chosen_frames(frames_T_H_W_3, 16)         # the first and the last among them
    npy_bytes(frames_T_H_W_3)
"""

from __future__ import annotations

import io
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from guerdon.models.vlm_frames import sample_frames
from guerdon.types import ByteArray

JPEG_QUALITY = 95


def chosen_frames(frames_T_H_W_3: ByteArray, nframes: int) -> ByteArray:
    """At most `nframes` frames, the first and the last among them.

    Raises:
        DataError: there is no frame.
    """
    return frames_T_H_W_3[sample_frames(len(frames_T_H_W_3), nframes)]


def npy_bytes(frames_T_H_W_3: ByteArray) -> bytes:
    """An NPY file."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(frames_T_H_W_3), allow_pickle=False)
    return buffer.getvalue()


def jpeg_bytes(frame_H_W_3: ByteArray) -> bytes:
    """A JPEG file of one frame, colours at full resolution."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(frame_H_W_3)).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def write_mp4(frames_T_H_W_3: ByteArray, path: Path, fps: int) -> None:
    """An MP4 file; a single frame is written twice, because readers of videos want two.

    Raises:
        MissingDependencyError: PyAV is not installed.
    """
    from guerdon.episodes.video import VideoWriter

    frames = frames_T_H_W_3 if len(frames_T_H_W_3) > 1 else np.repeat(frames_T_H_W_3, 2, axis=0)
    with VideoWriter(path, height=frames.shape[1], width=frames.shape[2], fps=fps) as video:
        video.add(frames)


def mp4_bytes(frames_T_H_W_3: ByteArray, fps: int, keep_in: str | None = None) -> bytes:
    """An MP4 file; with `keep_in`, a copy stays in that folder."""
    with video_file(frames_T_H_W_3, keep_in, fps, keep=keep_in is not None) as path:
        return path.read_bytes()


@contextmanager
def video_file(frames_T_H_W_3: ByteArray, folder: str | None, fps: int, *, keep: bool) -> Iterator[Path]:
    """A video in a folder (null: a temporary one), removed afterwards unless kept."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="guerdon-") as temporary:
            path = Path(temporary) / "episode.mp4"
            write_mp4(frames_T_H_W_3, path, fps)
            yield path
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"guerdon-{uuid.uuid4().hex}.mp4"
    try:
        write_mp4(frames_T_H_W_3, path, fps)
        yield path
    finally:
        if not keep:
            path.unlink(missing_ok=True)
