"""Encodes camera frames as PNG and decodes PNG, JPEG and WebP, with limits for foreign files.

PNG is lossless, so frames come back bit for bit. Only PNG, JPEG and WebP are decoded, whatever the bytes claim to be,
and never more pixels than `MAX_PIXELS`. Pictures are turned upright as their EXIF tag says; transparent ones are
refused, because their background is unknown.

    blobs = encode_png(frames_T_H_W_C)
    frames_T_H_W_C = decode_images(blobs)
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from guerdon.errors import DataError, boundary
from guerdon.types import ByteArray

MAX_PIXELS = 4096 * 4096
"""The largest single frame that is decoded."""
MAX_EPISODE_BYTES = 4 * 2**30
"""The most memory that the frames of one episode may take."""
_PNG_LEVEL = 3
_FORMATS = ("PNG", "JPEG", "WEBP")
_COLOURS = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")  # Pillow's modes of these formats with 8 bits a channel
_PNG = b"\x89PNG\r\n\x1a\n"
_TURNING = (b"Raw profile type", b"XML:com.adobe.xmp")  # texts in a PNG that may hold an orientation, as eXIf does
_ORIENTED = {"exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"}  # keys of `Image.info` with an orientation
_TYPES = (
    (0, b"GIF8", "a GIF picture"), (0, b"II*\0", "a TIFF picture"), (0, b"MM\0*", "a TIFF picture"),
    (0, b"BM", "a BMP picture"), (4, b"jP  ", "a JPEG 2000 picture"), (4, b"JXL ", "a JPEG XL picture"),
    (0, b"\xff\x0a", "a JPEG XL picture"), (0, b"%PDF", "a PDF document"), (0, b"<svg", "an SVG picture"),
    (8, b"AVI ", "an AVI video"), (0, b"\x1a\x45\xdf\xa3", "a WebM or Matroska video"),
    *((8, b"avi" + c, "an AVIF picture") for c in (b"f", b"s")),
    *((8, b"he" + c, "a HEIC picture") for c in (b"ic", b"ix", b"im", b"is", b"vc", b"vx", b"vm", b"vs")),
    *((8, c + b"f1", "a HEIF picture (HEIC or AVIF)") for c in (b"mi", b"ms")),
    (0, _PNG, "a PNG picture"), (0, b"\xff\xd8\xff", "a JPEG picture"), (8, b"WEBP", "a WebP picture"),
    (0, b"\x93NUMPY", "an NPY array"), (4, b"ftyp", "an MP4 video"),
)  # fmt: skip
_ACCEPTED = ("a PNG picture", "a JPEG picture", "a WebP picture")
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


def file_type(head: bytes) -> str:
    """Name of the type of a file with these first 12 bytes, such as `a HEIC picture`; "" if unknown."""
    return next((name for at, mark, name in _TYPES if head[at : at + len(mark)] == mark), "")


def decode_images(blobs: Sequence[bytes | None]) -> ByteArray:
    """Frames of one episode from PNG, JPEG or WebP bytes.

    Args:
        blobs: T encoded images of one size.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: an image is missing, or `read_pictures` refuses it.
    """
    return read_pictures(_present(blobs), "image of row", allocate)


def read_pictures(blobs: Sequence[bytes], what: str, room: Callable[[int, int, int], ByteArray]) -> ByteArray:
    """Encoded pictures as RGB bytes, turned upright. All picture files are read here.

    The first picture of an MPO file (a JPEG with several, as phones write) is read. CMYK is converted without its
    colour profile.

    Args:
        blobs: T pictures whose upright sizes are equal.
        what: name of a picture in messages, before its number.
        room: an uninitialised array for (count, height, width), or a `DataError` if that breaks a limit.

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        DataError: another type, animated, transparent, of more than 8 bits, of several sizes, too large, or corrupt.
    """
    frames: ByteArray | None = None
    for t, blob in enumerate(blobs):
        with boundary(DataError, f"{what} {t} cannot be decoded"):
            image = _open(blob, f"{what} {t}")
            if frames is None:
                frames = room(len(blobs), image.height, image.width)
            elif {image.height, image.width} != set(frames.shape[1:3]):  # do not decode what will not fit
                raise _other_size(f"{what} {t}", (image.height, image.width), frames.shape[1:3])
            upright = _upright(image, f"{what} {t}")
            pixels = np.asarray(upright if upright.mode == "RGB" else upright.convert("RGB"))
            if t == 0:
                frames = frames.reshape(len(blobs), *pixels.shape)
            if pixels.shape != frames.shape[1:]:
                raise _other_size(f"{what} {t}", pixels.shape, frames.shape[1:3])
            frames[t] = pixels
    if frames is None:
        raise DataError("there is no picture")
    return frames


def check_images(blobs: Sequence[bytes | None]) -> None:
    """Refuse what `decode_images` refuses; a PNG with correct checksums is not decoded.

    Args:
        blobs: T encoded images of one episode.

    Raises:
        DataError: as `decode_images`.
    """
    first: tuple[int, ...] = ()
    for t, blob in enumerate(_present(blobs)):
        where = f"image of row {t}"
        with boundary(DataError, f"{where} cannot be decoded"):
            image = _open(blob, where)
            size: tuple[int, ...] = (image.height, image.width)
            allocate(len(blobs), *size)
            if image.format != "PNG" or image.has_transparency_data or not _intact_upright(blob):
                upright = _upright(image, where)
                size = (upright.height, upright.width)
        first = first or size
        if size != first:
            raise _other_size(where, size, first)


def grey_depth(blob: bytes) -> bool:
    """Whether an encoded image has grey values of more than 8 bits, as depth has; False where it cannot be opened."""
    try:
        return Image.open(io.BytesIO(blob), formats=_FORMATS).mode not in _COLOURS
    except (SyntaxError, OSError, ValueError, struct.error):
        return False


def _present(blobs: Sequence[bytes | None]) -> list[bytes]:
    if not len(blobs):
        raise DataError("the episode has no rows")
    for t, blob in enumerate(blobs):
        if not blob:
            raise DataError(f"row {t} has no image bytes: embed the images in the Parquet file")
    return [blob for blob in blobs if blob]


def _intact_upright(blob: bytes) -> bool:
    """Whether every chunk of a PNG has its checksum, and none may hold an orientation."""
    at, kind, kinds, view = len(_PNG), b"", set(), memoryview(blob)
    while kind != b"IEND":
        if len(blob) < at + 12:
            return False
        size, kind = struct.unpack_from(">I4s", blob, at)
        end = at + 8 + size
        if kind == b"eXIf" or blob.startswith(_TURNING, at + 8):
            return False
        if view[end : end + 4] != zlib.crc32(view[at + 4 : end]).to_bytes(4):
            return False
        at = end + 4
        kinds.add(kind)
    return b"IDAT" in kinds


def _open(blob: bytes, where: str) -> Image.Image:
    """A picture of an accepted type, with its header read."""
    if blob.startswith(_PNG) and blob[24:25] == b"\x10":  # Pillow would drop half of them
        raise DataError(
            f"{where} is a PNG of 16 bits a value; more than 8 bits hold depth or raw data, not a picture: write 8-bit "
            "RGB"
        )
    try:
        image = Image.open(io.BytesIO(blob), formats=_FORMATS)
    except UnidentifiedImageError as error:  # its own words hold an address in memory
        kind = file_type(blob[:12])
        if kind in _ACCEPTED:
            raise DataError(f"{where} cannot be decoded: it is {kind}, but cut off or corrupt") from error
        kind = kind or "not a PNG, JPEG or WebP picture"
        raise DataError(f"{where} is {kind}: convert it to PNG, JPEG or WebP") from error
    if image.mode not in _COLOURS:
        raise DataError(f"{where} is of mode {image.mode}: convert it to 8-bit RGB")
    count = getattr(image, "n_frames", 1)
    if count != 1 and image.format != "MPO":
        animated = {"PNG": "PNG (APNG)", "WEBP": "WebP"}.get(str(image.format), image.format)
        raise DataError(
            f"{where} is an animated {animated} of {count} pictures: send its pictures one by one, or an MP4"
        )
    return image


def _upright(image: Image.Image, where: str) -> Image.Image:
    """An opened picture, decoded and turned upright; one with transparent pixels is refused."""
    image.load()
    if not _ORIENTED.isdisjoint(image.info):
        with suppress(SyntaxError):  # unreadable EXIF data are ignored
            ImageOps.exif_transpose(image, in_place=True)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if np.asarray(image.getchannel("A")).min() != 255:
            raise DataError(f"{where} has transparency: blend it over a background first")
    return image


def _other_size(where: str, size: Sequence[int], first: Sequence[int]) -> DataError:
    return DataError(f"{where} is {size[0]}x{size[1]}, the first one is {first[0]}x{first[1]}")


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
    """Pictures in any of the usual layouts as RGB bytes. All arrays of pictures are converted here.

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
        raise DataError(f"pictures must be uint8 or floats in [0, 1], not {found.dtype}; depth is not a picture")
    found = np.repeat(found, 3, axis=-1) if found.shape[-1] == 1 else found[..., :3]
    return np.ascontiguousarray(found)


def refuse_one_or_several(shape: tuple[int, ...]) -> None:
    """Refuse an array of three axes that may be one picture in colour, or several grey ones.

    Raises:
        DataError: with what tells them apart.
    """
    for axis, sides in ((0, shape[1:]), (2, shape[:2])):
        if len(shape) == 3 and shape[axis] in (3, 4) and min(sides) > shape[axis]:
            raise DataError(
                f"shape {shape} may be one picture with {shape[axis]} channels or {shape[0]} grey pictures: "
                "give four axes, (N, C, H, W) or (N, H, W, C)"
            )


def rgb_picture(picture: Any) -> ByteArray:
    """(H, W, 3) uint8 of one picture, as `render()` gives it; see `rgb_frames`.

    Lists are read, of a list of pictures the last, a batch of one picture, and colours of any type of integers.

    Raises:
        DataError: there is none, or `rgb_frames` refuses it.
    """
    if picture is None or (isinstance(picture, list | tuple) and not picture):
        raise DataError("there is no picture: it needs render_mode='rgb_array'")
    with boundary(DataError, "the picture is not an array"):
        found = np.asarray(picture[-1] if isinstance(picture, list | tuple) and np.ndim(picture[-1]) == 3 else picture)
    found = found[0] if found.ndim == 4 and len(found) == 1 else found
    if found.dtype.kind in "iu" and found.ndim == 3 and found.size and 0 <= found.min() <= found.max() <= 255:
        found = found.astype(np.uint8)
    shown: ByteArray = rgb_frames(found[None])[0]
    return shown
