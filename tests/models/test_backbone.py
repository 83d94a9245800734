import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.models.images.backbone import IMAGENET_MEAN, IMAGENET_STD, ImageScorer, random_shift, to_input, to_pixels
from guerdon.policies.batches.precision import PaddedConv2d
from tables import cases, sample


def picture(height=20, width=24, n=2, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


@settings(max_examples=20)
@given(st.integers(6, 40), st.integers(6, 40), st.integers(0, 10))
def test_bytes_floats_and_both_layouts_give_the_same_pixels(height, width, seed):
    frames = picture(height, width, seed=seed)
    expected = to_pixels(frames, (3, 16, 12))
    assert expected.shape == (2, 16, 12, 3)
    for other in (
        frames / np.float32(255),
        frames / 255.0,
        frames.transpose(0, 3, 1, 2),
        torch.from_numpy(frames),
        np.concatenate([frames, np.full((2, height, width, 1), 255, np.uint8)], axis=3),
    ):
        np.testing.assert_array_equal(to_pixels(other, (3, 16, 12)), expected)


def test_resizing_a_constant_keeps_it_and_halving_averages():
    assert (to_pixels(np.full((1, 32, 32, 3), 77, np.uint8), (3, 8, 8)) == 77).all()
    columns = np.zeros((1, 16, 16, 3), np.uint8)
    columns[:, :, 8:] = 200
    small = to_pixels(columns, (3, 8, 8))[0, 4, :, 0]
    assert (np.diff(small.astype(int)) >= 0).all()
    assert small[0] == 0
    assert small[-1] == 200


def test_a_batch_is_resized_like_its_members():
    frames = picture(40, 40, n=5)
    one_by_one = np.concatenate([to_pixels(f[None], (3, 16, 16)) for f in frames])
    np.testing.assert_array_equal(to_pixels(frames, (3, 16, 16)), one_by_one)


def test_grey_becomes_rgb():
    grey = picture()[..., :1]
    np.testing.assert_array_equal(to_pixels(grey, (3, 20, 24)), np.repeat(grey, 3, axis=3))
    np.testing.assert_array_equal(to_pixels(grey[..., 0], (3, 20, 24)), np.repeat(grey, 3, axis=3))


@cases(
    ("frames", "words"),
    [
        (picture().astype(np.float32), "must lie in"),
        (np.full((1, 8, 8, 3), np.nan), "must lie in"),
        (picture() / -255.0, "must lie in"),
        (picture().astype(np.int64), "uint8 or floats"),
        (np.zeros((1, 6, 20, 20), np.uint8), "1, 3 or 4 channels"),
        (np.zeros((8, 8), np.uint8), "got shape"),
        (np.zeros((1, 3, 8, 3), np.uint8), "cannot tell"),
        (np.zeros((1, 8, 8, 4), np.uint8), "transparency"),
    ],
)
def test_what_is_not_a_picture_is_refused(frames, words):
    with pytest.raises(ValueError, match=words):
        to_pixels(frames, (3, 16, 16))


def test_no_frames_are_no_pixels():
    assert to_pixels(np.zeros((0, 9, 9, 3), np.uint8), (3, 16, 16)).shape == (0, 16, 16, 3)


def test_input_is_scaled_and_normalised():
    pixels = torch.tensor([0, 255, 51], dtype=torch.uint8).expand(1, 8, 8, 3)
    plain = to_input(pixels, "none")
    torch.testing.assert_close(plain[0, :, 0, 0], torch.tensor([0.0, 1.0, 0.2]))
    assert plain.is_contiguous(memory_format=torch.channels_last)
    expected = [(v - m) / s for v, m, s in zip([0.0, 1.0, 0.2], IMAGENET_MEAN, IMAGENET_STD, strict=True)]
    torch.testing.assert_close(to_input(pixels, "imagenet")[0, :, 3, 3], torch.tensor(expected))


def test_a_shift_moves_the_whole_picture():
    ramp = torch.arange(16, dtype=torch.uint8)[None, :, None, None].expand(32, 16, 16, 3)
    moved = random_shift(ramp, pad=4)
    steps = moved[:, 8, 0, 0].int() - 8
    assert set(steps.tolist()) <= set(range(-4, 5))
    assert len(set(steps.tolist())) > 1
    expected = (torch.arange(16)[None] + steps[:, None]).clamp(0, 15)
    assert torch.equal(moved[:, :, 5, 1].int(), expected.int())


@pytest.mark.parametrize("height", [1, 3, 4])
def test_low_pictures_are_read_where_the_channels_are_known_to_be_last(height):
    frames = picture(height, 16)
    np.testing.assert_array_equal(to_pixels(frames, (3, height, 16), channels_last=True), frames)
    assert (to_pixels(np.full_like(frames, 9), (3, 6, 8), channels_last=True) == 9).all()


def dirtied(value):
    """Memory that torch gets next holds this value."""
    del_soon = [torch.full((n,), value) for n in (100, 1000, 10_000, 100_000, 1_000_000, 3_000_000) for _ in range(4)]
    del del_soon


@cases("groups", [1, 32])
@cases("size", [(1, 1), (4, 1), (1, 4), (2, 2), (3, 5)])
@cases(("kernel", "stride", "padding"), [(3, 2, 1), (7, 2, 3), (3, 3, 1), (1, 2, 0), (3, 1, 1)])
def test_a_convolution_in_bfloat16_has_the_gradient_of_its_formula(size, kernel, stride, padding, groups):
    torch.manual_seed(0)
    layer = PaddedConv2d(32, 64, kernel, stride, padding, groups=groups).to(memory_format=torch.channels_last)
    x = torch.randn(4, 32, *size)
    exact = torch.nn.Conv2d(32, 64, kernel, stride, padding, groups=groups).double()
    exact.load_state_dict(layer.state_dict())
    wanted = exact(x.double())
    along = torch.randn(wanted.shape)
    wanted.backward(along.double())
    for value in (0.0, 1e20, -3.0):
        dirtied(value)
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            found = layer(x.contiguous(memory_format=torch.channels_last))
        found.backward(along.to(found.dtype))
        torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.05)
        torch.testing.assert_close(layer.weight.grad.double(), exact.weight.grad, rtol=0.05, atol=0.2)


@pytest.mark.parametrize("size", sample([(8, 8), (16, 16), (64, 16), (16, 40)], (16, 40)))
def test_small_pictures_give_equal_and_bounded_gradients(size):
    pixels, labels = torch.from_numpy(picture(*size, n=8)), torch.arange(8) % 2

    def gradients(value):
        torch.manual_seed(0)
        scorer = ImageScorer("resnet18", hidden_dim=8, dropout=0.0)
        dirtied(value)
        with torch.autocast("cpu", torch.bfloat16):
            logits = scorer(to_input(pixels, "none"))
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float()).backward()
        return {name: p.grad for name, p in scorer.named_parameters()}

    first, again = gradients(0.0), gradients(1e20)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert max(float(g.abs().max()) for g in first.values()) < 100
