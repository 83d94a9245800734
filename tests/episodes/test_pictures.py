"""Pictures as environments and data sets hand them over."""

import io

import numpy as np
import pytest
from PIL import Image

from guerdon.episodes.images import decode_images, rgb_frames, rgb_picture
from guerdon.errors import DataError

RGB = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
GREY = RGB[..., :1]
THREE = np.repeat(GREY, 3, axis=-1)


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (RGB.astype(np.uint16), "uint16"),
        (GREY.astype(np.int32) * 100, "depth is no picture"),
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


def test_what_render_gives():
    assert np.array_equal(rgb_picture(RGB[0].tolist()), RGB[0])
    assert np.array_equal(rgb_picture([RGB[0], RGB[1]]), RGB[1])
    assert np.array_equal(rgb_picture(RGB[0].astype(np.int32)), RGB[0])
    assert np.array_equal(rgb_picture(RGB[0] / 255), RGB[0])
    assert np.array_equal(rgb_picture(GREY[0, ..., 0]), THREE[0])
    for nothing in (None, [], "picture", [[1, 2], [3]], RGB[0].astype(np.int32) - 1, GREY[0, ..., 0].astype(np.uint16)):
        with pytest.raises(DataError, match=r"no picture|no array|shape|must be uint8"):
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
