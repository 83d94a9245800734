"""Encodes camera frames as PNG and decodes PNG and JPEG, with limits for foreign files.

PNG is lossless, so frames come back bit for bit. Only PNG and JPEG are decoded, whatever the bytes claim to
be, and never more pixels than `MAX_PIXELS`.

    blobs = encode_png(frames_T_H_W_C)
    frames_T_H_W_C = decode_images(blobs)
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from guerdon.errors import DataError, boundary
from guerdon.types import ByteArray

MAX_PIXELS = 4096 * 4096
"""The largest single frame that is decoded."""
MAX_EPISODE_BYTES = 4 * 2**30
"""The most memory that the frames of one episode may take."""
_PNG_LEVEL = 3


def encode_png(frames_T_H_W_C: ByteArray) -> list[bytes]:
    """Each frame as a PNG.

    Args:
        frames_T_H_W_C: (T, H, W, 3) uint8.
    """
    blobs = []
    for frame in frames_T_H_W_C:
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(frame)).save(buffer, "PNG", compress_level=_PNG_LEVEL)
        blobs.append(buffer.getvalue())
    return blobs


def decode_images(blobs: Sequence[bytes | None]) -> ByteArray:
    """Frames of one episode from PNG or JPEG bytes.

    Args:
        blobs: T encoded images of one size.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: an image is missing, of another format or size, corrupt, or too large.
    """
    frames: ByteArray | None = None
    for t, image in _opened(blobs):
        if frames is None:
            frames = allocate(len(blobs), image.height, image.width)
        with boundary(DataError, f"image of row {t}"):
            frames[t] = np.asarray(image.convert("RGB"))
    if frames is None:
        raise DataError("the episode has no rows")
    return frames


def check_images(blobs: Sequence[bytes | None]) -> None:
    """Refuse what `decode_images` refuses; a PNG whose checksums are right is not decoded for that.

    Args:
        blobs: T encoded images of one episode.

    Raises:
        DataError: as `decode_images`.
    """
    for t, image in _opened(blobs):
        if t == 0:
            allocate(len(blobs), image.height, image.width)
        with boundary(DataError, f"image of row {t}"):
            if image.format != "PNG" or not _verified(blobs[t]):
                image.load()
    if not len(blobs):
        raise DataError("the episode has no rows")


def _verified(blob: bytes | None) -> bool:
    """Whether every chunk of a PNG has its checksum."""
    try:
        Image.open(io.BytesIO(blob or b""), formats=("PNG",)).verify()
    except (SyntaxError, OSError, ValueError, struct.error):
        return False
    return True


def _opened(blobs: Sequence[bytes | None]) -> Iterator[tuple[int, Image.Image]]:
    """Row and image of each blob, header read, all of one size."""
    size = (0, 0)
    for t, blob in enumerate(blobs):
        if not blob:
            raise DataError(f"row {t} has no image bytes: embed the images in the Parquet file")
        with boundary(DataError, f"image of row {t}"):
            try:
                image = Image.open(io.BytesIO(blob), formats=("PNG", "JPEG"))
            except UnidentifiedImageError as exc:  # its own words hold an address in memory
                raise DataError(f"image of row {t} is neither PNG nor JPEG") from exc
        if t and image.size != size:
            raise DataError(f"image of row {t} is {image.height}x{image.width}, row 0 is {size[1]}x{size[0]}")
        size = image.size
        yield t, image


def allocate(count: int, height: int, width: int) -> ByteArray:
    """An uninitialised (count, height, width, 3) uint8 array.

    Raises:
        DataError: it would break `MAX_PIXELS` or `MAX_EPISODE_BYTES`.
    """
    size = count * height * width * 3
    if height * width > MAX_PIXELS or size > MAX_EPISODE_BYTES:
        raise DataError(
            f"{count} frames of {height}x{width} are over the limit of {MAX_PIXELS} pixels a frame "
            f"and {MAX_EPISODE_BYTES >> 30} GiB an episode: write smaller images or shorter episodes"
        )
    return np.empty((count, height, width, 3), dtype=np.uint8)


def from_array(values_T: NDArray[Any]) -> ByteArray:
    """Frames from images that were stored as plain arrays.

    Args:
        values_T: (T, H, W, 3) or (T, 3, H, W), uint8 in 0..255 or floats in 0..1.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: another shape, or floats outside 0..1.
    """
    if values_T.ndim == 4 and values_T.shape[-1] != 3 and values_T.shape[1] == 3:
        values_T = np.moveaxis(values_T, 1, -1)
    if values_T.ndim != 4 or values_T.shape[-1] != 3:
        raise DataError(f"images must have three channels first or last, got shape {values_T.shape}")
    allocate(0, *values_T.shape[1:3])
    if values_T.dtype == np.uint8:
        return np.ascontiguousarray(values_T)
    if not np.issubdtype(values_T.dtype, np.floating) or not ((values_T >= 0) & (values_T <= 1)).all():
        raise DataError(f"images stored as {values_T.dtype} must be uint8, or floats between 0 and 1")
    frames: ByteArray = np.rint(values_T * 255).astype(np.uint8)
    return frames
