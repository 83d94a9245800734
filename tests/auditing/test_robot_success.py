"""Robots: the reward against success, a success that never varies, and early ends of dense rewards."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from guerdon.auditing.checks import audit
from guerdon.auditing.rows import RobotSteps, Rows


def robots(*, count=40, length=30, kind="sparse", success=None, seed=0):
    """Episodes of which half succeed in their last frame; the reward is honest."""
    rng = np.random.default_rng(seed)
    good = rng.random(count) < 0.5 if success is None else success
    frame = np.tile(np.arange(length), count)
    episode = np.repeat(np.arange(count), length)
    last = frame == length - 1
    succeeded = last & good[episode]
    progress = frame / length * np.where(good, 1.0, 0.4)[episode]
    reward = {"sparse": succeeded * 1.0, "cost": succeeded - 1.0, "dense": progress, "distance": progress - 1}[kind]
    return Rows(
        layout="test",
        files=("a.parquet",),
        file_N=np.zeros(len(frame), np.int64),
        line_N=np.arange(1, len(frame) + 1),
        reward_N=reward.astype(float),
        truth_N=succeeded.astype(float),
        steps=RobotSteps(episode, frame, state_N_D=np.cumsum(rng.standard_normal((len(frame), 2)), axis=0)),
    )


def found(rows):
    return {one.name: one for one in audit(rows).findings}


@pytest.mark.parametrize("kind", ["sparse", "cost", "dense", "distance"])
def test_rewards_that_fit_success_are_clean(kind):
    result = audit(robots(kind=kind))
    assert not result.findings
    assert {"success_reward", "constant_success", "early_end"} <= set(result.clean)


@pytest.mark.parametrize("kind", ["sparse", "cost", "dense", "distance"])
def test_a_wrong_sign(kind):
    rows = robots(kind=kind)
    one = found(replace(rows, reward_N=-rows.reward_N))
    assert "the sign may be wrong" in one["success_reward"].title
    assert one["success_reward"].severity == "error"


def test_rewards_without_success_and_success_without_reward():
    rows = robots()
    where = np.flatnonzero(rows.truth_N)[:6]
    unpaid = rows.reward_N.copy()
    unpaid[where] = 0
    assert "6 of 40 episodes succeed without reward" in found(replace(rows, reward_N=unpaid))["success_reward"].title
    forgotten = rows.truth_N.copy()
    forgotten[where] = 0
    assert "are rewarded without success" in found(replace(rows, truth_N=forgotten))["success_reward"].title


def test_rewards_that_come_some_frames_before_success():
    rows = robots()
    early = np.roll(rows.reward_N, -3)
    assert "3 frames before" in found(replace(rows, reward_N=early))["success_reward"].title
    held = rows.truth_N.copy()  # success is a fact of the episode in every row
    held[:] = np.repeat(rows.truth_N.reshape(40, 30).max(axis=1), 30)
    assert "success_reward" not in found(replace(rows, truth_N=held))


@pytest.mark.parametrize("kind", ["sparse", "cost", "dense"])
def test_a_success_that_never_varies(kind):
    every = found(robots(kind=kind, success=np.ones(40, bool)))
    assert every["constant_success"].severity == "info"
    rows = robots(kind=kind)
    said = np.zeros(len(rows.truth_N))
    said[29::30] = 1
    one = found(replace(rows, truth_N=said))["constant_success"]
    assert one.severity == ("info" if kind == "dense" else "error")
    assert "all of 40" in one.title
    none = found(replace(rows, truth_N=0 * said))["constant_success"]
    assert "none of 40" in none.title


def test_too_few_episodes_decide_nothing():
    result = audit(robots(count=6))
    assert "the log has 6" in result.undecided["constant_success"]
    assert "success_reward" in result.undecided
    unknown = audit(replace(robots(), truth_N=None))
    assert {"success_reward", "constant_success"} <= set(unknown.unchecked)


def test_an_early_end_of_a_dense_reward_that_looks_like_a_good_one():
    rows = robots(kind="dense")
    keep = ~((rows.steps.episode_N < 4) & (rows.steps.frame_N > 3))
    reward = np.where((rows.steps.episode_N < 4) & (rows.steps.frame_N == 3), 1.0, rows.reward_N)
    steps = replace(
        rows.steps, episode_N=rows.steps.episode_N[keep], frame_N=rows.steps.frame_N[keep],
        state_N_D=rows.steps.state_N_D[keep],
    )  # fmt: skip
    cut = replace(
        rows, file_N=rows.file_N[keep], line_N=rows.line_N[keep], reward_N=reward[keep], truth_N=None, steps=steps
    )
    assert found(cut)["early_end"].count == 4
    assert "early_end" not in found(replace(cut, reward_N=rows.reward_N[keep]))


def test_episodes_without_steps_are_compared_with_their_success():
    rng = np.random.default_rng(0)
    good = rng.random(200) < 0.5
    none = np.zeros(200, np.int64)
    rows = Rows("a monitor's file", ("monitor.csv",), none, none + 1, np.where(good, -100.0, 100.0)
                + rng.standard_normal(200), truth_N=good.astype(float), length_N=np.full(200, 50.0))  # fmt: skip
    assert "the sign may be wrong" in found(rows)["success_reward"].title
    assert "constant_success" in found(replace(rows, truth_N=np.ones(200)))


def lasting(*, count=40, length=30, success=15, seed=0):
    """Episodes that succeed at a frame near `success` and stay there; the reward is noise around 0."""
    rng = np.random.default_rng(seed)
    rows = robots(count=count, length=length, seed=seed)
    first = rng.integers(success - 3, success + 4, count)[rows.steps.episode_N]
    at = (rows.steps.frame_N >= first) * 1.0
    return replace(rows, reward_N=rng.normal(0, 1, len(at)), truth_N=at), at


@pytest.mark.parametrize(("lift", "is_found"), [(-1.0, True), (-0.3, True), (0.0, False), (1.0, False)])
def test_a_reward_that_falls_at_success(lift, is_found):
    """With noise of one the probability is that of a normal difference: Phi(lift / sqrt(2)), 0.24 for -1."""
    rows, at = lasting(count=80)
    result = audit(replace(rows, reward_N=rows.reward_N + lift * at))
    assert ("inversion" in {one.name for one in result.findings}) == is_found
    if not is_found:
        assert "an interval below 0.5 would be a finding" in result.clean["inversion"]
        return
    one = next(one for one in result.findings if one.name == "inversion")
    assert (one.severity, one.unit) == ("warning", "probability")
    assert one.interval[0] < norm.cdf(lift / np.sqrt(2)) < one.interval[1] < 0.5
    assert all(at[row] for row in one.rows)
    assert "over 80 episodes" in one.title


def test_what_is_needed_to_see_that_a_reward_falls_at_success():
    rows, at = lasting(count=8)
    assert audit(rows).undecided["inversion"] == (
        "needs 10 episodes with frames before their first success and from it on; the log has 8"
    )
    rows, at = lasting()
    held = np.repeat(at.reshape(40, 30).max(axis=1), 30)  # success is a fact of the episode in every row
    assert "the log has 0" in audit(replace(rows, truth_N=held)).undecided["inversion"]
    assert audit(replace(rows, truth_N=None)).unchecked["inversion"] == "needs success of each frame"
    steps = np.tile(np.arange(30), 40)
    alike = replace(rows, truth_N=(steps >= 15) * 1.0, reward_N=np.where(steps == 20, -1.0, 0.0))
    assert "in each of 40 the probability is 0.47" in audit(alike).undecided["inversion"]
    assert "inversion" in found(replace(alike, reward_N=-alike.truth_N)), "Wilson's interval, where all are 0"


def test_frames_before_which_success_may_have_been_are_left_out():
    """The reward falls at frame 10, and success is not logged from there to its first report: that may be no fault."""
    rows, at = lasting(count=80)
    frame = rows.steps.frame_N
    fell = replace(rows, reward_N=rows.reward_N - 2.0 * (frame >= 10))
    assert "inversion" in found(fell)
    silent = np.where((frame == 10) & (at == 0), np.nan, at)
    before = found(replace(fell, truth_N=silent))["inversion"].interval
    whole = found(fell)["inversion"].interval
    assert before[1] < whole[0], "frames from 10 on are not among those before success"
    assert "the log has 0" in audit(replace(fell, truth_N=np.where(at == 0, np.nan, at))).undecided["inversion"]
    reset = replace(fell, truth_N=np.where(frame == 0, np.nan, at))
    assert found(reset)["inversion"].interval[1] < 0.5, "what the reset shows is no report that is missing"
