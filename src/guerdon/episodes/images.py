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
from PIL import Image, UnidentifiedImageError

from guerdon.errors import DataError, boundary
from guerdon.types import ByteArray

MAX_PIXELS = 4096 * 4096
"""The largest single frame that is decoded."""
MAX_EPISODE_BYTES = 4 * 2**30
"""The most memory that the frames of one episode may take."""
_PNG_LEVEL = 3
# Pillow's modes of 8 bits a channel
_COLOURS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
_ROUNDING = 1e-3  # by how much a float may leave 0..1


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


def grey_depth(blob: bytes) -> bool:
    """Whether an encoded image has grey values of more than 8 bits, as depth has; False where it cannot be opened."""
    try:
        return Image.open(io.BytesIO(blob), formats=("PNG", "JPEG")).mode not in _COLOURS
    except (SyntaxError, OSError, ValueError, struct.error):
        return False


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
        if image.mode not in _COLOURS:
            raise DataError(
                f"image of row {t} has grey values of more than 8 bits ({image.mode}), such as depth: it is no picture"
            )
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


def rgb_frames(values_T: Any) -> ByteArray:
    """Pictures in any of the usual layouts as RGB bytes; the one place where pictures of others come in.

    Args:
        values_T: T pictures of shape (H, W), or (H, W, C) or (C, H, W) with one (grey), three or four channels, of
            which the fourth is left out; uint8, or floats from 0 to 1.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: another shape or kind of number, or values out of range.
    """
    found = np.asarray(values_T)
    if found.ndim == 3:
        found = found[..., None]
    if (
        found.ndim == 4
        and found.shape[-1] != 3
        and found.shape[1] in ((3,) if found.shape[-1] in (1, 4) else (1, 3, 4))
    ):
        found = np.moveaxis(found, 1, -1)
    if found.ndim != 4 or found.shape[-1] not in (1, 3, 4):
        raise DataError(
            f"pictures have shape {found.shape[1:]}; they are (H, W), or (H, W, C) or (C, H, W) with 1, 3 or 4 channels"
        )
    allocate(0, *found.shape[1:3])
    if found.dtype.kind == "f":
        low, high = (float(found.min()), float(found.max())) if found.size else (0.0, 0.0)
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            raise DataError(
                f"pictures of floats must lie in [0, 1], these go from {low:.3g} to {high:.3g}: hand them over before "
                "they are normalised, divide by 255, or pass uint8"
            )
        found = np.rint(np.clip(found.astype(np.result_type(found, np.float32)), 0, 1) * 255).astype(np.uint8)
    elif found.dtype != np.uint8:
        raise DataError(f"pictures must be uint8 or floats in [0, 1], not {found.dtype} (depth is no picture)")
    found = np.repeat(found, 3, axis=-1) if found.shape[-1] == 1 else found[..., :3]
    return np.ascontiguousarray(found)


def rgb_picture(picture: Any) -> ByteArray:
    """(H, W, 3) uint8 of one picture, as `render()` gives it; see `rgb_frames`.

    Lists are read, of a list of pictures the last, and colours of any type of integers.

    Raises:
        DataError: there is none, or `rgb_frames` refuses it.
    """
    if picture is None or (isinstance(picture, list | tuple) and not picture):
        raise DataError("there is no picture: it needs render_mode='rgb_array'")
    with boundary(DataError, "the picture is no array"):
        found = np.asarray(picture[-1] if isinstance(picture, list | tuple) and np.ndim(picture[-1]) == 3 else picture)
    if found.dtype.kind in "iu" and found.ndim == 3 and found.size and 0 <= found.min() <= found.max() <= 255:
        found = found.astype(np.uint8)
    shown: ByteArray = rgb_frames(found[None])[0]
    return shown
