from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.episodes.targets import dense_rewards, episode_success, first_success, progress_targets, success_labels
from guerdon.types import Episode


def episode(success=None, outcome=None, rows=5):
    states = np.zeros((rows if success is None else len(success), 1), np.float32)
    column = None if success is None else np.array(success, dtype=bool)
    return Episode(id="0", task="t", states=states, success=column, outcome=outcome)


def test_success_rises_to_one_at_the_first_success_and_stays():
    targets = progress_targets(episode([0, 0, 0, 0, 1, 0, 1], outcome=True))
    assert targets is not None
    assert targets.dtype == np.float32
    np.testing.assert_allclose(targets, [0, 0.25, 0.5, 0.75, 1, 1, 1])


def test_a_success_without_labelled_rows_reaches_one_at_its_end():
    np.testing.assert_allclose(progress_targets(episode(outcome=True)), [0, 0.25, 0.5, 0.75, 1])


def test_failures_stay_at_zero():
    assert not progress_targets(episode([0, 0, 0], outcome=False)).any()
    assert not progress_targets(episode([0, 0, 0])).any()
    assert not progress_targets(episode(outcome=False)).any()


@pytest.mark.parametrize(
    "unknown",
    [episode(), episode([0, 0, 0], outcome=True), episode([0, 1, 0], outcome=False)],
    ids=["nobody knows", "success without a success row", "failure with a success row"],
)
def test_unknown_or_contradictory_truth_has_no_target(unknown):
    assert progress_targets(unknown) is None


def test_success_at_once_and_single_rows():
    np.testing.assert_array_equal(progress_targets(episode([1, 0, 1])), [1, 1, 1])
    np.testing.assert_array_equal(progress_targets(episode(outcome=True, rows=1)), [1])


@pytest.mark.parametrize("horizon", [None, 4.0])
def test_what_follows_a_success_that_a_policy_lost_again_is_unknown(horizon):
    won = episode([0, 0, 1, 0, 1, 0, 0], outcome=True)
    stays = progress_targets(won, horizon=horizon)
    np.testing.assert_array_equal(stays[2:], 1)
    for meta in ({"mode": "train"}, {"mode": "eval"}, {"policy": "random"}, {"policy": "checkpoint"}):
        found = progress_targets(replace(won, meta=meta), horizon=horizon)
        np.testing.assert_array_equal(found[:5], stays[:5])
        assert np.isnan(found[5:]).all()
    for actor in ("expert", "noisy"):
        shown = replace(won, meta={"policy": actor})
        np.testing.assert_array_equal(progress_targets(shown, horizon=horizon), stays)


def test_labels_and_outcomes():
    np.testing.assert_array_equal(success_labels(episode([0, 1])), [False, True])
    assert success_labels(episode(outcome=True)) is None
    assert episode_success(episode([0, 1])) is True
    assert episode_success(episode([0, 1], outcome=False)) is False
    assert episode_success(episode()) is None
    assert first_success(episode([0, 1, 1])) == 1
    assert first_success(episode([0, 0])) is None
    assert first_success(episode()) is None


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_targets_are_monotone_between_zero_and_one(success):
    targets = progress_targets(episode(success))
    assert len(targets) == len(success)
    assert (np.diff(targets) >= 0).all()
    assert targets.min() >= 0
    assert targets.max() == (1 if any(success) else 0)


def test_dense_rewards_are_those_that_say_more_than_success():
    shaped, sums = np.array([0, 0.25, 1.5], np.float32), np.array([0, 0, 2], np.float32)
    whole = Episode(id="0", task="t", states=np.zeros((3, 1), np.float32), rewards=sums)
    assert dense_rewards([whole, replace(whole, rewards=None)]) == [None, None]
    np.testing.assert_array_equal(dense_rewards([replace(whole, rewards=shaped)]), [shaped])
    kept = replace(whole, meta={"dense_rewards": shaped.tolist()})
    also = replace(whole, meta={"dense_rewards": sums.tolist()})  # whole numbers by chance
    np.testing.assert_array_equal(dense_rewards([kept, also]), [shaped, sums])
    assert dense_rewards([kept[:2]]) == [None]  # whose rewards would these be?
    sparser = replace(whole, rewards=shaped, meta={"frame_every": 5})
    np.testing.assert_allclose(dense_rewards([sparser]), [shaped / 5])
    uneven = replace(whole, rewards=shaped, meta={"steps": [0, 5, 7]})
    np.testing.assert_allclose(dense_rewards([uneven]), [[0, 0.05, 0.75]])


def test_where_an_expert_went_on_its_steps_are_the_steps_left():
    tried = Episode(
        id="0",
        task="t",
        states=np.zeros((5, 1), np.float32),
        success=np.zeros(5, dtype=bool),
        meta={"steps_left": [150, 40, -1, None, 0]},
    )
    np.testing.assert_allclose(progress_targets(tried, horizon=100), [0, 0.6, 0, np.nan, 1], rtol=1e-6)
    assert not progress_targets(tried).any()  # without a horizon the outcome decides
    assert not progress_targets(tried[1:3], horizon=100).any()  # rows were lost: whose steps would these be?
