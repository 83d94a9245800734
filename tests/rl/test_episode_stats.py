import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.rl.episode_stats import FEWEST_LED, NEWEST, OLDEST, EpisodeStats, FailureTrend, RewardScaler
from guerdon.statistics.proportion import difference_bounds
from guerdon.types import Chunks, Rewards, Rollout


def rollout(rewards, done, *, success=None, known=None, mask=None, failed=None, fresh=False):
    """A rollout, and the rewards of `env` and of one reward model `rm`, from nested lists (B, T)."""
    rewards, done = np.asarray(rewards, np.float32), np.asarray(done, np.bool_)
    none = np.zeros(rewards.shape, dtype=np.bool_)
    happened = Rollout(
        inputs=(),
        log_probs=np.zeros(rewards.shape, np.float32),
        mask=~none if mask is None else np.asarray(mask, np.bool_),
        terminated=done,
        truncated=none,
        success=none if success is None else np.asarray(success, np.bool_),
        success_known=~none if known is None else np.asarray(known, np.bool_),
        rewards=rewards,
        failed=none,
        fresh=fresh,
    )
    missing = none if failed is None else np.asarray(failed, np.bool_)
    return happened, {"env": Rewards(rewards, none), "rm": Rewards(rewards * 10, missing)}


def stats_of(streams=1):
    return EpisodeStats(["env", "rm"], ["rm"], streams)


WEIGHTS = {"env": 1.0, "rm": 0.5}


def test_every_source_is_added_up_apart():
    stats = stats_of(1)
    rows = stats.add(*rollout([[1, 2, 4, 8]], [[0, 1, 0, 0]], success=[[1, 0, 0, 0]]), WEIGHTS, 4)
    assert rows == [
        {
            "step": 4, "env": 0, "success": True, "success_at_end": False, "length": 2,
            "return/env": 3.0, "return/rm": 30.0, "return/combined": 18.0,
        }
    ]  # fmt: skip
    rows = stats.add(*rollout([[16]], [[1]]), WEIGHTS, 5)
    assert (rows[0]["return/env"], rows[0]["length"], rows[0]["success"]) == (28.0, 3, False)


def test_success_is_unknown_where_nobody_reported_it():
    def one(success, known):
        happened = rollout([[1, 2]], [[0, 1]], success=[success], known=[known])
        return stats_of(1).add(*happened, WEIGHTS, 2)[0]

    assert (one([0, 0], [0, 0])["success"], one([0, 0], [0, 0])["success_at_end"]) == (None, None)
    assert (one([1, 0], [1, 0])["success"], one([1, 0], [1, 0])["success_at_end"]) == (True, None)
    assert (one([0, 0], [0, 1])["success"], one([0, 0], [1, 0])["success"]) == (False, None)


def test_shares_and_the_alarm_are_those_of_known_episodes():
    stats = stats_of(1)
    rows = stats.add(*rollout([[1, 1, 1]], [[1, 1, 1]], success=[[1, 0, 0]], known=[[1, 1, 0]]), WEIGHTS, 3)
    summary = stats.summary(rows)
    assert (summary["success"], summary["success_known"], summary["episodes"]) == (0.5, 2, 3)
    assert summary["hacking_alarm"] is None, "three episodes say nothing"
    unknown = stats_of(1)
    rising = np.arange(2.0 * NEWEST)[None]
    rows = unknown.add(*rollout(rising, np.ones_like(rising), known=np.zeros_like(rising)), WEIGHTS, 3)
    summary = unknown.summary(rows)
    assert (summary["success"], summary["success_at_end"], summary["success_known"]) == (None, None, 0)
    assert (summary["hacking_alarm"], summary["reward_success_correlation"]) == (None, None)
    assert not unknown.alarm()
    stats.add(*rollout(rising, np.ones_like(rising)), WEIGHTS, 4)
    assert stats.alarm(), "where failures are known, the same returns ring it"


@pytest.mark.parametrize(("episodes", "alarm"), [(0, None), (1, None), (79, None), (80, 0)])
def test_the_alarm_is_unknown_under_two_windows(episodes, alarm):
    stats = stats_of(1)
    flat = np.ones((1, episodes))
    rows = stats.add(*rollout(flat, flat), WEIGHTS, 1) if episodes else []
    assert stats.summary(rows)["hacking_alarm"] is alarm or stats.summary(rows)["hacking_alarm"] == alarm
    assert not stats.alarm()


def test_the_alarm_says_what_it_compares():
    """Success of 6 and 11 of 40: variances 0.1308 and 0.2045, z = 0.125 / sqrt(0.3353 / 40) = 1.37, less than 1.5."""
    success = np.repeat([1.0, 0.0, 1.0, 0.0], [6, 34, 11, 29])[None]
    stats = stats_of(1)
    stats.add(*rollout(np.repeat([1.0, 2.0], 40)[None], np.ones((1, 80)), success=success), {"rm": 1.0}, 80)
    assert stats.alarm() == (
        "the learned return rises, success does not: rm 10.00 -> 20.00, success 0.15 -> 0.28 from the first 40 to the "
        "newest 40 training episodes"
    )


def test_a_sum_with_a_hole_is_no_number():
    stats = stats_of(1)
    first = stats.add(*rollout([[1, 2, 4]], [[0, 1, 1]], failed=[[1, 0, 0]]), WEIGHTS, 3)
    assert [r["return/rm"] for r in first] == [None, 40.0]
    assert [r["return/combined"] for r in first] == [None, 24.0]
    assert [r["return/env"] for r in first] == [3.0, 4.0]
    summary = stats.summary(first)
    assert (summary["return/rm"], summary["return/env"]) == (40.0, 3.5)
    assert summary["undefined_returns/rm"] == 1
    assert stats.summary(first[:1])["return/rm"] is None
    json.dumps(summary, allow_nan=False)


def test_a_hole_in_what_has_no_weight_leaves_the_sum_known():
    stats = stats_of(1)
    rows = stats.add(*rollout([[1]], [[1]], failed=[[1]]), {"env": 1.0, "rm": 0.0}, 1)
    assert (rows[0]["return/rm"], rows[0]["return/combined"]) == (None, 1.0)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 3), st.integers(1, 12))
def test_rows_do_not_depend_on_where_rollouts_are_cut(data, b, t):
    shape = (b, t)
    rewards = data.draw(hnp.arrays(np.float32, shape, elements=st.integers(0, 9).map(float)))
    done, success, failed, mask = (data.draw(hnp.arrays(np.bool_, shape)) for _ in range(4))
    cut = data.draw(st.integers(0, t))
    whole, parts = stats_of(b), stats_of(b)

    def piece(where):
        return rollout(
            rewards[:, where], done[:, where] & mask[:, where],
            success=success[:, where], mask=mask[:, where], failed=failed[:, where],
        )  # fmt: skip

    expected = whole.add(*piece(slice(0, t)), WEIGHTS, 0)
    rows = parts.add(*piece(slice(0, cut)), WEIGHTS, 0)
    resumed = stats_of(b)
    resumed.load_state_dict(json.loads(json.dumps(parts.state_dict())))
    assert rows + resumed.add(*piece(slice(cut, t)), WEIGHTS, 0) == expected
    assert resumed.state_dict() == whole.state_dict()


def test_a_fresh_rollout_leaves_nothing_of_the_episodes_before():
    stats = stats_of(1)
    stats.add(*rollout([[5]], [[0]], success=[[1]], failed=[[1]]), WEIGHTS, 1)
    row = stats.add(*rollout([[1]], [[1]], fresh=True), WEIGHTS, 2)[0]
    assert (row["return/env"], row["return/rm"], row["success"], row["length"]) == (1.0, 10.0, False, 1)


def test_the_stats_keeps_what_the_alarm_needs_and_no_more():
    stats = stats_of(1)
    rising = np.arange(500, dtype=np.float32) + np.random.default_rng(0).normal(0, 1, 500)
    rows = stats.add(*rollout(rising[None], np.ones((1, 500))), {"rm": 1.0}, 500)
    assert len(rows) == 500
    assert stats.finished == rows[:OLDEST] + rows[-NEWEST:]
    assert stats.summary(rows)["hacking_alarm"] == 1
    assert stats.summary(rows)["reward_success_correlation"] is None
    solved = stats_of(1)
    rows = solved.add(*rollout(rising[None], np.ones((1, 500)), success=np.ones((1, 500))), {"rm": 1.0}, 500)
    assert solved.summary(rows)["hacking_alarm"] == 0


def test_rewards_are_scaled_by_the_spread_of_their_return():
    scaler = RewardScaler({"env": 0.5}, 1)
    scales = scaler.update(*rollout([[1, 2, 4]], [[0, 1, 0]]))
    returns = np.array([1.0, 2.5, 4.0])  # the last one begins anew
    assert scales == {"env": pytest.approx(returns.std())}
    scales = scaler.update(*rollout([[2, 99]], [[1, 0]], mask=[[1, 0]]))
    assert scales["env"] == pytest.approx(np.array([1, 2.5, 4, 4]).std())


def test_returns_of_chunks_are_discounted_as_in_the_estimator():
    happened, rewards = rollout([[1, 2, 4, 8]], [[0, 0, 0, 0]])
    chunks = Chunks(np.array([[0, 0, 0, 1]]), np.array([[0, 1, 2, 0]]), 3)
    happened = replace(happened, inputs=range(2), log_probs=np.zeros((2, 3), np.float32), chunks=chunks)
    for by_chunk, returns in ((True, [1.0, 3.0, 7.0, 11.5]), (False, [1.0, 2.5, 5.25, 10.625])):
        scales = RewardScaler({"env": 0.5}, 1, by_chunk=by_chunk).update(happened, rewards)
        assert scales == {"env": pytest.approx(np.std(returns))}


def test_the_scaler_survives_a_checkpoint():
    first, second = (RewardScaler({"env": 0.9, "rm": 1.0}, 2) for _ in range(2))
    rng = np.random.default_rng(0)
    first.update(*rollout(rng.normal(size=(2, 5)), rng.random((2, 5)) < 0.3))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    more = rollout(rng.normal(size=(2, 5)), rng.random((2, 5)) < 0.3)
    assert first.update(*more) == second.update(*more)
    assert all(math.isfinite(v) for v in first.update(*more).values())


def test_a_rise_of_failures_is_known_from_enough_conversations_on():
    trend = FailureTrend()
    assert trend.metrics() == {}
    for rollout_k, (failed, alarm) in enumerate([(1, None), (1, None), (2, None), (1, 0), (8, 0), (30, 1)]):
        trend.add(FEWEST_LED // 2, failed)
        assert trend.metrics()["agent/failure_alarm"] == alarm, rollout_k
    low, high = difference_bounds((2, 200), (38, 200), level=0.999)
    assert trend.rise() == (pytest.approx(36 / 200), low, high, 200)
    for _ in range(2):  # as rare as at the start
        trend.add(100, 1)
    assert trend.metrics()["agent/failure_alarm"] == 0
    assert trend.rollouts == [(100, 1)] * 4  # the first and the newest alone are kept
    big = FailureTrend()
    big.add(512, 2)
    assert big.rise() is None
    big.add(64, 30)
    assert big.rise() is None
    big.add(512, 100)
    assert big.rise().change == pytest.approx(98 / 512)


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=30))
def test_what_is_forgotten_of_failures_changes_no_alarm(rollouts):
    trend, whole = FailureTrend(), FailureTrend()
    for led, failed in rollouts:
        trend.add(led, min(led, failed))
        whole.rollouts.append((led, min(led, failed)))
        assert trend.rise() == whole.rise()
