"""GDPO: each source is normalised within its group, the weighted sum over the batch (2601.05242)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages
from guerdon.settings.algorithm import ControlAlgorithmSettings, TextAlgorithmSettings
from guerdon.types import last_valid
from tables import refuses


def as_trl(rewards_B_F, weights_F, size):
    """The advantages of TRL's `normalize_then_sum`: NaN is a reward that a function did not give."""
    grouped = rewards_B_F.reshape(-1, size, rewards_B_F.shape[1])
    counts = (~np.isnan(grouped)).sum(axis=1, keepdims=True)
    mean = np.nanmean(grouped, axis=1, keepdims=True)
    std = np.sqrt(np.nansum((grouped - mean) ** 2, axis=1, keepdims=True) / np.maximum(counts - 1, 1))
    each = ((grouped - mean) / (std + 1e-4)).reshape(rewards_B_F.shape)
    rewards = np.nansum(each * weights_F, axis=1)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)


def gdpo(rewards_B_F, weights_F, size, lengths=None):
    rows = len(rewards_B_F)
    lengths = np.full(rows, 3) if lengths is None else lengths
    mask = np.arange(lengths.max())[None] < lengths[:, None]
    last = last_valid(mask)
    sources = {
        str(f): SourceRewards(
            np.where(last, np.nan_to_num(rewards_B_F[:, f])[:, None], 0.0), weight=weight, paid_B_T=last,
            failed_B_T=last & np.isnan(rewards_B_F[:, f])[:, None],
        )
        for f, weight in enumerate(weights_F)
    }  # fmt: skip
    groups = np.repeat(np.arange(rows // size), size)
    found = estimate_advantages(sources, Steps(mask, groups_B=groups), estimator="gdpo", whitened=True)
    return found.advantages, mask


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(2, 4))
def test_equal_to_trl_whatever_the_lengths(seed, size, groups):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(groups * size, 2))
    weights = rng.uniform(0.1, 2, 2)
    found, mask = gdpo(rewards, weights, size, rng.integers(1, 6, groups * size))
    np.testing.assert_allclose(found, np.where(mask, as_trl(rewards, weights, size)[:, None], 0), atol=1e-4)


def test_failures_are_left_out_of_all_three_means():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(12, 2))
    rewards[[1, 6], 0] = np.nan
    rewards[7, 1] = np.nan
    found, _ = gdpo(rewards, np.array([1.0, 0.5]), 4)
    np.testing.assert_allclose(found[:, 0], as_trl(rewards, np.array([1.0, 0.5]), 4), atol=1e-4)
    rewards[:, 1] = 0.0
    rewards[3] = np.nan  # nothing was measured: no part of the batch either
    found, _ = gdpo(rewards, np.array([1.0, 0.5]), 4)
    assert found[3].tolist() == [0, 0, 0]
    assert found[np.arange(12) != 3, 0].mean() == pytest.approx(0, abs=1e-6)


def test_a_scale_of_one_reward_changes_nothing_unlike_grpo():
    rewards = np.random.default_rng(1).normal(size=(8, 2))
    plain, _ = gdpo(rewards, np.array([1.0, 1.0]), 4)
    scaled, _ = gdpo(rewards * [100.0, 1.0], np.array([1.0, 1.0]), 4)
    np.testing.assert_allclose(plain, scaled, atol=1e-3)


def test_its_paper_decides_other_keys():
    text = TextAlgorithmSettings(adv_estimator="gdpo")
    assert (text.normalize_advantages, text.whiten_batch, text.loss_agg) == (True, True, "sequence")
    assert ControlAlgorithmSettings(adv_estimator="gdpo", group_size=4).whiten_batch
    with refuses("adv_estimator"):
        TextAlgorithmSettings(adv_estimator="gdpo", normalize_advantages=False)
