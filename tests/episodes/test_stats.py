from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from guerdon.episodes.index import image_stats, merge, vector_stats

finite = st.floats(-1e6, 1e6, width=32)
matrices = st.integers(1, 8).flatmap(lambda length: arrays(np.float32, (length, 2), elements=finite))


def test_vector_stats_against_hand_computed_values():
    stats = vector_stats(np.array([[0.0, 1.0], [2.0, 1.0]]))
    assert stats["min"].tolist() == [0, 1]
    assert stats["max"].tolist() == [2, 1]
    assert stats["mean"].tolist() == [1, 1]
    assert stats["std"].tolist() == [1, 0]
    assert stats["q50"].tolist() == [1, 1]
    assert stats["count"].tolist() == [2]


def test_values_that_are_not_finite_are_left_out():
    stats = vector_stats(np.array([[1.0, np.nan], [np.inf, np.nan], [3.0, np.nan]]))
    assert stats["mean"][0] == 2
    assert stats["max"][0] == 3
    assert np.isnan(stats["mean"][1])
    merged = merge([{"a": stats}, {"a": vector_stats(np.array([[4.0, 5.0]]))}])["a"]
    assert merged["mean"][1] == 5
    assert merged["min"].tolist() == [1, 5]


def test_bools_are_counted_as_zero_and_one():
    assert vector_stats(np.array([True, False, True, True]))["mean"].tolist() == [0.75]


def test_image_stats_against_numpy():
    frames = np.random.default_rng(0).integers(0, 256, (5, 12, 9, 3), dtype=np.uint8)
    stats = image_stats(frames)
    for c in range(3):
        pixels = frames[..., c].reshape(-1) / 255.0
        for name, value in {
            "min": pixels.min(),
            "max": pixels.max(),
            "mean": pixels.mean(),
            "std": pixels.std(),
            "q50": np.quantile(pixels, 0.5, method="inverted_cdf"),
        }.items():
            np.testing.assert_allclose(stats[name][c, 0, 0], value, atol=1e-12)
    assert stats["mean"].shape == (3, 1, 1)
    assert stats["count"].tolist() == [5]


def test_large_images_are_sampled():
    frames = np.zeros((300, 2, 320, 3), np.uint8)
    assert image_stats(frames)["count"].tolist() == [100]


@given(st.lists(matrices, min_size=1, max_size=5))
def test_merged_parts_equal_the_whole(parts):
    merged = merge([{"a": vector_stats(part)} for part in parts])["a"]
    whole = vector_stats(np.concatenate(parts))
    for name in ("min", "max", "count"):
        np.testing.assert_array_equal(merged[name], whole[name])
    scale = max(1.0, float(np.abs(np.concatenate(parts)).max()))
    np.testing.assert_allclose(merged["mean"], whole["mean"], atol=1e-9 * scale)
    np.testing.assert_allclose(merged["std"], whole["std"], atol=1e-6 * scale)


def test_merge_takes_the_union_of_features():
    one = vector_stats(np.ones(2))
    assert merge([{}, {"a": one}, {"b": one}]).keys() == {"a", "b"}
