"""Pictures of every kind become the same bytes, or are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.errors import DataError
from guerdon.models.frames import TOWERS, sample_frames, to_rgb_uint8
from tables import cases

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (2, 10, 12, 3), dtype=np.uint8)


def two_towers(rgb, towers="dinosiglip", dtype=np.float32):
    """(T, 6, H, W) as a policy with two vision towers gets it."""
    halves = [(rgb / 255.0 - np.array(mean)) / np.array(std) for mean, std in TOWERS[towers]]
    return np.moveaxis(np.concatenate(halves, axis=-1), -1, 1).astype(dtype)


@cases(
    "frames",
    [
        RGB,
        np.moveaxis(RGB, -1, 1),
        RGB / 255.0,
        np.moveaxis(RGB / 255.0, -1, 1).astype(np.float32),
        (RGB / 255.0).astype(np.float64),
        np.concatenate([RGB, np.full((2, 10, 12, 1), 255, np.uint8)], axis=-1),
        two_towers(RGB),
        np.moveaxis(two_towers(RGB), 1, -1),
    ],
    ids=["HWC", "CHW", "float", "float CHW", "float64", "RGBA", "six channels", "six channels last"],
)
def test_every_accepted_kind_gives_the_same_bytes(frames):
    found = to_rgb_uint8(frames)
    assert found.dtype == np.uint8
    assert found.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(found, RGB)


def test_grey_is_repeated_and_single_pictures_get_an_axis():
    grey = RGB[..., 0]
    for frames in (grey, grey[..., None], grey[:, None]):
        np.testing.assert_array_equal(to_rgb_uint8(frames), np.repeat(grey[..., None], 3, -1))
    np.testing.assert_array_equal(to_rgb_uint8(RGB[0]), RGB[:1])
    np.testing.assert_array_equal(to_rgb_uint8(grey[0]), np.repeat(grey[:1, ..., None], 3, -1))


def test_six_channels_survive_half_precision_and_name_their_towers():
    half = two_towers(RGB, dtype=np.float16)
    assert np.abs(to_rgb_uint8(half).astype(int) - RGB).max() <= 1
    np.testing.assert_array_equal(to_rgb_uint8(two_towers(RGB, "dinoclip"), towers="dinoclip"), RGB)
    with pytest.raises(DataError, match="not one picture"):
        to_rgb_uint8(two_towers(RGB, "dinoclip") * 1.5)
    with pytest.raises(DataError, match="not one picture"):
        to_rgb_uint8(np.concatenate([two_towers(RGB)[:, 3:], two_towers(RGB)[:, :3]], axis=1))  # the towers swapped
    with pytest.raises(DataError, match="unknown towers") as refused:
        to_rgb_uint8(RGB, towers="clip")
    assert refused.value.field == "towers"


@cases(
    ("frames", "why"),
    [
        (RGB.astype(np.int64), "uint8"),
        (RGB / 1.0, "must lie in"),
        (RGB / 255.0 - 0.1, "must lie in"),
        (np.full((1, 8, 8, 3), np.nan), "must lie in"),
        (np.zeros((2, 8, 8, 2), np.uint8), "channels"),
        (np.zeros((2, 3, 8, 3), np.uint8), "which axis"),
        (np.zeros((3, 8, 9), np.uint8), "four axes"),
        (np.zeros((0, 8, 8, 3), np.uint8), "no pictures"),
        (np.zeros((1, 1, 8, 8, 3), np.uint8), "got shape"),
        (np.zeros((1, 8, 8, 4), np.uint8), "transparency"),
        (np.zeros((1, 8, 8, 6), np.uint8), "floats"),
        (np.full((1, 8, 8, 6), np.inf), "finite"),
        (np.array("x"), "got shape"),
    ],
)  # fmt: skip
def test_everything_else_is_refused(frames, why):
    with pytest.raises(DataError, match=why):
        to_rgb_uint8(frames)


@given(st.integers(1, 500), st.integers(1, 130))
def test_samples_keep_the_first_and_the_last(count, nframes):
    rows = sample_frames(count, nframes)
    assert len(rows) == min(count, nframes)
    assert rows[-1] == count - 1
    assert (np.diff(rows) > 0).all()
    if nframes > 1:
        assert rows[0] == 0
        assert np.ptp(np.diff(rows)) <= 1 if len(rows) > 1 else True  # evenly spread


def test_samples_are_those_of_the_reward_clients():
    assert sample_frames(10, 4).tolist() == [0, 3, 6, 9]
    assert sample_frames(17, 5).tolist() == [0, 4, 8, 12, 16]
    assert sample_frames(7, 3).tolist() == [0, 3, 6]
    assert sample_frames(3, 16).tolist() == [0, 1, 2]
    for count, nframes in ((0, 4), (4, 0), (-1, 1)):
        with pytest.raises(DataError, match="at least 1"):
            sample_frames(count, nframes)
