"""Pictures as environments and data sets hand them over."""

import contextlib
import io
import struct

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from guerdon.episodes.images import (
    check_images,
    decode_images,
    file_type,
    grey_depth,
    read_pictures,
    refuse_one_or_several,
    rgb_frames,
    rgb_picture,
)
from guerdon.errors import DataError
from tables import cases

RGB = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
GREY = RGB[..., :1]
THREE = np.repeat(GREY, 3, axis=-1)


@cases(
    ("given", "expected"),
    [
        (RGB, RGB),
        (np.moveaxis(RGB, -1, 1), RGB),
        (RGB / np.float32(255), RGB),
        (RGB / 255 * 1.0009, RGB),  # a rounding above 1
        (np.moveaxis((RGB / 255).astype(np.float16), -1, 1), RGB),
        (np.concatenate([RGB, 0 * GREY], axis=-1), RGB),  # whatever alpha says
        (np.moveaxis(np.concatenate([RGB, GREY], axis=-1), -1, 1), RGB),
        (GREY, THREE),
        (GREY[..., 0], THREE),
        (np.moveaxis(GREY, -1, 1), THREE),
        (RGB[:, :3, :4], RGB[:, :3, :4]),
        (np.moveaxis(RGB[:, :4, :4], -1, 1), RGB[:, :4, :4]),
    ],
)
def test_every_usual_layout_is_the_same_picture(given, expected):
    found = rgb_frames(given)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    assert found.flags.writeable
    assert np.abs(found.astype(int) - expected).max() <= (1 if given.dtype == np.float16 else 0)


@pytest.mark.hostile("media")
@cases(
    ("given", "message"),
    [
        (RGB.astype(np.uint16), "uint16"),
        (GREY.astype(np.int32) * 100, "depth is not a picture"),
        (RGB.astype(np.float32), r"from \S+ to 2\d\d"),
        (RGB / 255 - 0.2, "before they are normalised"),
        (np.full((1, 4, 4, 3), np.nan), "from nan to nan"),
        (RGB > 9, "bool"),
        (RGB[..., :2], r"shape \(5, 7, 2\)"),
        (RGB[0, 0], r"shape"),
        (np.zeros((1, 2, 5, 7, 3), np.uint8), r"shape \(2, 5, 7, 3\)"),
    ],
)
def test_what_is_no_picture_is_refused(given, message):
    with pytest.raises(DataError, match=message):
        rgb_frames(given)


def test_pictures_of_an_episode_have_one_size_and_are_there():
    turned = [png(RGB[0]), png(np.ascontiguousarray(RGB[0].swapaxes(0, 1)))]
    for read in (decode_images, check_images):
        with pytest.raises(DataError, match="row 1 is 7x5, the first one is 5x7"):
            read(turned)
        with pytest.raises(DataError, match="the episode has no rows"):
            read([])
        with pytest.raises(DataError, match="row 1 has no image bytes"):
            read([turned[0], b""])
    with pytest.raises(DataError, match="there is no picture"):
        read_pictures([], "picture", np.empty)


def test_grey_values_of_more_than_8_bits_are_depth():
    deep = file_of(np.full((4, 4), 800, np.uint16))
    assert [grey_depth(blob) for blob in (deep, png(RGB[0]), b"no picture")] == [True, False, False]


@cases(
    ("shape", "refused"),
    [((3, 8, 9), True), ((8, 9, 4), True), ((3, 8, 2), False), ((5, 8, 9), False), ((1, 3, 8, 9), False)],
)
def test_what_may_be_one_picture_or_several_is_refused(shape, refused):
    with pytest.raises(DataError, match="give four axes") if refused else contextlib.nullcontext():
        refuse_one_or_several(shape)


def test_what_render_gives():
    assert np.array_equal(rgb_picture(RGB[0].tolist()), RGB[0])
    assert np.array_equal(rgb_picture([RGB[0], RGB[1]]), RGB[1])
    assert np.array_equal(rgb_picture(RGB[0].astype(np.int32)), RGB[0])
    assert np.array_equal(rgb_picture(RGB[0] / 255), RGB[0])
    assert np.array_equal(rgb_picture(GREY[0, ..., 0]), THREE[0])
    for one in (RGB[:1], RGB[:1].tolist(), RGB[:1].astype(np.int64), RGB[:1] / 255, RGB[:1].swapaxes(1, 3)):
        expected = RGB[0].swapaxes(0, 1) if np.shape(one)[1] == 3 else RGB[0]
        assert np.array_equal(rgb_picture(one), expected)
    for several in (RGB[:2], RGB[:0], RGB[None]):
        with pytest.raises(DataError, match="shape"):
            rgb_picture(several)
    for nothing in (None, [], "picture", [[1, 2], [3]], RGB[0].astype(np.int32) - 1, GREY[0, ..., 0].astype(np.uint16)):
        with pytest.raises(DataError, match=r"no picture|not an array|shape|must be uint8"):
            rgb_picture(nothing)


def png(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def test_depth_stored_as_png_is_refused_by_name():
    with pytest.raises(DataError, match=r"more than 8 bits.*depth"):
        decode_images([png(np.full((4, 4), 800, np.uint16))])


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1"])
def test_pictures_of_8_bits_or_less_are_read(mode):
    picture = Image.fromarray(RGB[0]).convert(mode)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    assert np.array_equal(decode_images([buffer.getvalue()])[0], np.asarray(picture.convert("RGB")))


def file_of(picture, kind="PNG", **options):
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(picture)
    picture.save(buffer := io.BytesIO(), kind, **options)
    return buffer.getvalue()


def stored(upright, orientation):
    """What a camera stores of a picture that is shown upright by this EXIF orientation; see the EXIF standard."""
    top = {1: 0, 2: 0, 3: 1, 4: 1}
    if orientation in top:
        return upright[:: -1 if top[orientation] else 1, :: -1 if orientation in (2, 3) else 1]
    turned = upright.swapaxes(0, 1)  # row 0 is the left side (5, 8) or the right one
    return turned[:: -1 if orientation in (6, 7) else 1, :: -1 if orientation in (7, 8) else 1]


def tagged(orientation):
    tags = Image.Exif()
    tags[274] = orientation
    return tags


@cases("kind", ["PNG", "JPEG", "WEBP", "MPO"])
@cases("orientation", range(10))
def test_pictures_are_turned_upright(kind, orientation):
    """A 4x6 block picture; the corner at the upper left is red, the one at the upper right green."""
    upright = np.full((32, 48, 3), 90, np.uint8)
    upright[:16, :16], upright[:16, 32:] = (200, 0, 0), (0, 200, 0)
    kept = stored(upright, orientation if 1 <= orientation <= 8 else 1)
    options = {"lossless": True} if kind == "WEBP" else {"quality": 95, "subsampling": 0} if kind != "PNG" else {}
    if kind == "MPO":
        options |= {"save_all": True, "append_images": [Image.new("RGB", (48, 32))]}
    blob = file_of(np.ascontiguousarray(kept), kind, exif=tagged(orientation), **options)
    found = decode_images([blob, file_of(upright)])  # as large as an upright one
    assert np.abs(found[0].astype(int) - upright).max() <= (40 if kind in ("JPEG", "MPO") else 0)
    assert np.abs(found[0].astype(int) - upright).mean() < 4
    check_images([blob, file_of(upright)])


@pytest.mark.hostile("media")
@pytest.mark.parametrize("lost", [b"IDAT", b"IEND"])
def test_a_check_refuses_what_reading_refuses(lost):
    whole = png(RGB[0])
    at = whole.index(lost) - 4
    (size,) = struct.unpack_from(">I", whole, at)
    found = []
    for blob in (whole[:at] + whole[at + 12 + size :], whole[:at], whole[: at + 6], whole + b"more"):
        for read in (check_images, decode_images):
            try:
                found.append(read([blob]) is None or "read")
            except DataError:
                found.append("refused")
    if lost == b"IDAT":
        assert found == ["refused"] * 6 + [True, "read"]
    assert [x is True for x in found[::2]] == [x == "read" for x in found[1::2]]


def test_the_orientation_of_a_png_may_follow_its_pixels():
    upright = RGB[0]
    blob = file_of(np.ascontiguousarray(stored(upright, 6)), exif=tagged(6))
    at, end = blob.index(b"eXIf") - 4, blob.index(b"IDAT") - 4
    late = blob[:at] + blob[end:-12] + blob[at:end] + blob[-12:]
    assert np.array_equal(decode_images([late])[0], upright)
    check_images([late, file_of(upright)])
    with pytest.raises(DataError, match="row 1 is 7x5, the first one is 5x7"):
        check_images([late, file_of(upright.swapaxes(0, 1))])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_the_orientation_may_be_xmp(kind):
    upright = np.full((32, 48, 3), 90, np.uint8)
    upright[:16, :16] = 200, 0, 0
    xmp = '<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    text = PngInfo()
    text.add_itxt("XML:com.adobe.xmp", xmp)
    options = {"pnginfo": text} if kind == "PNG" else {"xmp": xmp.encode()}
    blob = file_of(np.ascontiguousarray(stored(upright, 6)), kind, **options)
    assert np.abs(decode_images([blob])[0].astype(int) - upright).mean() < 4
    check_images([blob, file_of(upright)])


@pytest.mark.hostile("media")
def test_unreadable_exif_data_are_ignored():
    for kind in ("PNG", "WEBP"):
        assert decode_images([file_of(RGB[0], kind, exif=b"Exif\0\0garbage")]).shape == (1, 5, 7, 3)


def test_pictures_of_phones_and_of_print():
    assert np.array_equal(
        decode_images([file_of(THREE[0], "JPEG")]), decode_images([file_of(THREE[0], "MPO", save_all=True)])
    )
    grey = np.full((16, 16), 120, np.uint8)
    ink = np.dstack([np.zeros_like(grey), np.full_like(grey, 255), np.full_like(grey, 255), np.zeros_like(grey)])
    found = decode_images([file_of(Image.fromarray(ink, "CMYK"), "JPEG", quality=95)])
    assert np.abs(found.astype(int) - (255, 0, 0)).max() <= 4  # magenta and yellow are red
    opaque = np.dstack([grey, np.full_like(grey, 255)])
    for kind in ("PNG", "WEBP"):
        lossless = {"lossless": True} if kind == "WEBP" else {}
        picture = Image.fromarray(opaque, "LA").convert("LA" if kind == "PNG" else "RGBA")
        assert (decode_images([file_of(picture, kind, **lossless)]) == 120).all()
    palette = Image.fromarray(RGB[0]).quantize(8)
    seen = decode_images([file_of(palette, transparency=200)])  # no pixel has that colour
    assert np.array_equal(seen[0], np.asarray(palette.convert("RGB")))


CLEAR = np.dstack([RGB[0], np.full((5, 7), 255, np.uint8)])
CLEAR[2, 3, 3] = 254


@pytest.mark.hostile("media")
@cases(
    ("blob", "words"),
    [
        (file_of(CLEAR), "transparency: blend"),
        (file_of(CLEAR, "WEBP", lossless=True), "transparency: blend"),
        (file_of(Image.fromarray(CLEAR).convert("LA")), "transparency: blend"),
        (file_of(Image.fromarray(RGB[0]).quantize(8), transparency=0), "transparency: blend"),
        (file_of(np.full((4, 4), 800, np.uint16)), "16 bits a value"),
        (file_of(RGB[0], save_all=True, append_images=[Image.fromarray(RGB[1])]), r"animated PNG \(APNG\) of 2"),
        (file_of(RGB[0], "WEBP", save_all=True, append_images=[Image.fromarray(RGB[1])]), "animated WebP of 2"),
        (file_of(RGB[0], "GIF"), "is a GIF picture: convert it"),
        (file_of(RGB[0], "TIFF"), "is a TIFF picture: convert it"),
        (file_of(RGB[0], "BMP"), "is a BMP picture: convert it"),
        (b"\0\0\0\x18ftypheic" + bytes(40), "is a HEIC picture: convert it"),
        (b"\0\0\0\x18ftypmif1" + bytes(40), r"is a HEIF picture \(HEIC or AVIF\)"),
        (b"\0\0\0\x1cftypavif" + bytes(40), "is an AVIF picture: convert it"),
        (b"\0\0\0\x1cftypisom" + bytes(40), "is an MP4 video: convert it"),
        (b"hello" * 10, "is not a PNG, JPEG or WebP picture"),
        (file_of(RGB[0])[:-30], "cannot be decoded"),
        (b"\xff\xd8\xff" + bytes(50), "cannot be decoded: it is a JPEG picture, but cut off"),
    ],
)
def test_other_pictures_are_refused_by_name(blob, words):
    for read in (decode_images, check_images):
        with pytest.raises(DataError, match=f"image of row 1 .*{words}"):
            read([file_of(RGB[0]), blob])


def test_types_are_named():
    assert [file_type(file_of(RGB[0], kind)[:12]) for kind in ("PNG", "JPEG", "WEBP")] == [
        "a PNG picture", "a JPEG picture", "a WebP picture"
    ]  # fmt: skip
    assert file_type(b"\0\0\0\x18ftypqt  ") == "an MP4 video"
    assert file_type(b"") == file_type(b"RIFF1234WAVE") == ""
