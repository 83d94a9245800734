from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.collect.observed_frames import ObservedRow, cut_into_segments
from guerdon.errors import TooManyFailuresError
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.failures import FailureCounter, failure_rows, refuse_failures
from guerdon.rewards.source import SourceTerms
from guerdon.rl.learner import source_advantages
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.reward_source import RobotSource
from guerdon.types import Failure, RewardInfo, Rewards, Rollout, Score

GAMMA = 0.9
FAILED = 255


class Bytes:
    """The value of a frame is its first byte / 100; the byte 255 cannot be measured."""

    info = RewardInfo(name="bytes", range=(0, 1), success_threshold=0.5)

    def __init__(self):
        self.calls = 0

    def score(self, episodes):
        self.calls += 1
        scores = []
        for episode in episodes:
            values = episode.frames[:, 0, 0, 0]
            if (values == FAILED).any():
                scores.append(Score(failure=Failure("broken", "byte 255")))
            else:
                scores.append(Score.from_values(values / 100))
        return scores


def make(envs=1, **given):
    given = {"model": {"model_type": "constant"}, "reward_mode": "per_step", "shaping": "raw", **given}
    settings = RobotSource(**given)
    return ControlReward(SourceTerms("rm", GAMMA, on_failure=settings.on_failure), Bytes(), settings, num_envs=envs)


def rollout_of(segments, mask, success=None):
    """What a source reads of a rollout."""
    return SimpleNamespace(segments=segments, mask=mask, success=np.zeros_like(mask) if success is None else success)


def episodes_to_stream(episodes):
    """Moments of one copy: [first, after step 0, ...] per episode, as rows and bytes, plus done flags."""
    rows, values, done, terminated = [], [], [], []
    t = -1
    for number, (moments, by_task) in enumerate(episodes):
        rows.append(ObservedRow(0, t, number, 0, False, False))
        values.append(moments[0])
        for row, value in enumerate(moments[1:], start=1):
            t += 1
            last = row == len(moments) - 1
            rows.append(ObservedRow(0, t, number, row, last, False))
            values.append(value)
            done.append(last)
            terminated.append(last and by_task)
    return rows, values, np.array([done]), np.array([terminated])


def measure_in_parts(source, episodes, cuts=()):
    """Rewards and failed marks of the whole stream, measured rollout by rollout."""
    rows, values, done, terminated = episodes_to_stream(episodes)
    steps = done.shape[1]
    rewards, failed, failures = [], [], []
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < steps), steps]
    for start, end in pairwise(edges):
        if start == end:
            continue
        earliest = -1 if start == 0 else start  # a first moment stands in the rollout of the step before it
        mine = [
            (s._replace(step=s.step - start), v) for s, v in zip(rows, values, strict=True) if earliest <= s.step < end
        ]
        wanted = source.observes.selects(np.array([s.row for s, _ in mine]), np.array([s.last for s, _ in mine], bool))
        seen = [pair for pair, chosen in zip(mine, wanted, strict=True) if chosen]
        frames = np.array([v for _, v in seen], np.uint8).reshape(-1, 1, 1, 1) * np.ones((1, 1, 1, 3), np.uint8)
        part = slice(start, end)
        mask = np.ones((1, end - start), dtype=np.bool_)
        segments = cut_into_segments(
            [s for s, _ in seen], frames, [["task"]] * 99, mask, terminated[:, part], done[:, part]
        )
        measured = source.measure(rollout_of(segments, mask))
        rewards.append(measured.values[0])
        failed.append(measured.failed[0])
        failures += measured.failures
    return np.concatenate(rewards), np.concatenate(failed), failures


MOMENTS = st.lists(st.integers(0, 100), min_size=2, max_size=8)
EPISODES = st.lists(st.tuples(MOMENTS, st.booleans()), min_size=1, max_size=4)
KINDS = st.sampled_from(["raw", "threshold", "relative", "potential", "bonus"])


@settings(deadline=None, max_examples=150)
@given(EPISODES, KINDS, st.integers(1, 4), st.data())
def test_rewards_do_not_depend_on_where_rollouts_are_cut(episodes, kind, every, data):
    steps = sum(len(m) - 1 for m, _ in episodes)
    cuts = data.draw(st.lists(st.integers(0, steps), max_size=4))
    whole = measure_in_parts(make(shaping=kind, score_every=every), episodes)
    parts = measure_in_parts(make(shaping=kind, score_every=every), episodes, cuts)
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])


@settings(deadline=None, max_examples=60)
@given(EPISODES, st.integers(1, 4))
def test_relative_rewards_telescope_over_every_episode(episodes, every):
    rewards, failed, _ = measure_in_parts(make(shaping="relative", score_every=every, reward_coef=2.0), episodes)
    start = 0
    for moments, _ in episodes:
        end = start + len(moments) - 1
        assert rewards[start:end].sum() == pytest.approx(2 * (moments[-1] - moments[0]) / 100, abs=1e-5)
        start = end
    assert not failed.any()


@settings(deadline=None, max_examples=60)
@given(EPISODES, st.integers(1, 4))
def test_potential_rewards_sum_to_their_ends(episodes, every):
    rewards, _, _ = measure_in_parts(make(shaping="potential", score_every=every), episodes)
    start = 0
    for moments, by_task in episodes:
        n = len(moments) - 1
        total = (rewards[start : start + n] * GAMMA ** np.arange(n)).sum()
        last = 0.0 if by_task else GAMMA**n * moments[-1] / 100
        assert total == pytest.approx(last - moments[0] / 100, abs=1e-5)
        start += n


@settings(deadline=None, max_examples=60)
@given(EPISODES, st.integers(1, 3), st.integers(1, 3))
def test_a_bonus_is_paid_at_most_once_an_episode(episodes, every, frames):
    source = make(shaping="bonus", score_every=every, confirm_frames=frames, success_reward=5.0)
    rewards, _, _ = measure_in_parts(source, episodes, cuts=range(1, 30, 2))
    start = 0
    for moments, _ in episodes:
        part = rewards[start : start + len(moments) - 1]
        assert part.sum() in (0.0, 5.0)
        start += len(moments) - 1


def test_one_call_of_the_model_for_all_episodes():
    source = make()
    measure_in_parts(source, [([1, 2, 3], True), ([4, 5], False)])
    assert source.model.calls == 1


def test_terminal_mode_pays_at_the_last_step_alone():
    source = make(reward_mode="terminal", shaping="threshold", success_reward=1.0, fail_reward=-0.5)
    rewards, failed, _ = measure_in_parts(source, [([99, 99, 60], True), ([99, 99, 99, 10], False), ([5, 90], True)])
    assert rewards.tolist() == [0, 1, 0, 0, -0.5, 1]
    assert not failed.any()


def test_a_model_of_states_gets_what_the_policy_observed_and_no_pictures():
    class States:
        info = RewardInfo(name="states", range=(0, 9), modality="state")

        def score(self, episodes):
            assert all(episode.frames is None for episode in episodes)
            return [Score.from_values(episode.states[:, 1]) for episode in episodes]

    settings = RobotSource(model={"model_type": "constant"}, reward_mode="per_step", shaping="relative")
    source = ControlReward(SourceTerms("rm", GAMMA), States(), settings, num_envs=1)
    assert not source.observes.frames
    seen = [np.array([7, value], np.float32) for value in (1, 4, 2)]
    rows = [ObservedRow(0, t - 1, 0, t, t == 2, False, state=state) for t, state in enumerate(seen)]
    done = np.array([[False, True]])
    blank = np.zeros((3, 1, 1, 3), np.uint8)
    segments = cut_into_segments(rows, blank, [["task"]] * 3, np.ones((1, 2), np.bool_), done, done)
    np.testing.assert_array_equal(source.measure(rollout_of(segments, np.ones((1, 2)))).values, [[3, -2]])


def test_every_kth_step_of_an_episode_and_its_last():
    rewards, _, _ = measure_in_parts(make(score_every=3), [([9] * 9, True), ([7, 7], True)])
    assert np.flatnonzero(rewards).tolist() == [2, 5, 7, 8]


# Failures. The model fails for whole stretches, so one rollout per step singles a moment out.


def apart(source, episodes, **kwargs):
    steps = sum(len(m) - 1 for m, _ in episodes)
    return measure_in_parts(source, episodes, cuts=range(1, steps), **kwargs)


def test_a_failed_measurement_is_a_mark_and_no_number():
    rewards, failed, failures = apart(make(), [([10, 20, FAILED, 40], False)])
    assert rewards.tolist() == pytest.approx([0.2, 0, 0.4])
    assert failed.tolist() == [False, True, False]
    assert [f.reason for _, _, f in failures] == ["broken"]


def test_relative_rewards_telescope_past_a_hole():
    rewards, failed, _ = apart(make(shaping="relative"), [([10, 20, FAILED, 40], False)])
    assert rewards.tolist() == pytest.approx([0.1, 0, 0.2])
    assert failed.tolist() == [False, True, False]


def test_without_its_first_frame_the_first_value_becomes_the_baseline():
    episodes = [([10, 20], False), ([FAILED, 30, 50, 60], False)]
    sources = [make(shaping="relative"), make(shaping="potential")]
    for source in sources:
        # cut after the first episode: its rollout holds the failing first moment, so that part fails as a whole
        rewards, failed, _ = measure_in_parts(source, episodes, cuts=[1, 2, 3])
        assert failed[1]
        assert rewards[1] == 0
        assert not failed[2:].any()
        expected = 0.2 if source.settings.shaping == "relative" else GAMMA * 0.5 - 0.3
        assert rewards[2] == pytest.approx(expected)


def test_an_unknown_potential_leaves_unscored_steps_failed_too():
    source = make(shaping="potential", score_every=2)
    episodes = [([10, 20], False), ([FAILED, 30, 50, 60, 70], False)]
    rewards, failed, _ = measure_in_parts(source, episodes, cuts=[1, 2, 3, 4])
    assert failed.tolist() == [False, True, True, False, False]  # row 1 is not scored, row 2 is the first known
    assert rewards[3] == pytest.approx(GAMMA * 0.5 - 0.5)
    assert rewards[4] == pytest.approx(GAMMA * 0.7 - 0.5)


def test_a_failure_pays_nothing_and_counts_whatever_it_means():
    for on_failure in ("drop", "neutral", "raise"):
        rewards, failed, failures = apart(make(on_failure=on_failure), [([10, 20, FAILED, 40], False)])
        assert rewards.tolist() == pytest.approx([0.2, 0, 0.4])
        assert failed.tolist() == [False, True, False]
        assert len(failures) == 1


def test_neutral_is_a_reward_of_nothing_to_the_estimator():
    found = {}
    for on_failure in ("drop", "neutral"):
        terms = {"rm": SourceTerms("rm", GAMMA, on_failure=on_failure)}
        values, failed = np.array([[0.2, 0.0, 0.4]], np.float32), np.array([[False, True, False]])
        mask, none = np.ones((1, 3), np.bool_), np.zeros((1, 3), np.bool_)
        rollout = Rollout(
            inputs=(), log_probs=values, mask=mask, terminated=none, truncated=none, success=none, success_known=none,
            rewards=values, failed=none, values={"rm": values + 0.3}, next_values={"rm": values},
        )  # fmt: skip
        rewards = {"rm": Rewards(values, failed)}
        found[on_failure] = source_advantages(rollout, rewards, terms, {"rm": 1.0}, ControlAlgorithmSettings())
    assert found["drop"].known["rm"].tolist() == [[True, False, True]]
    assert found["neutral"].known["rm"].all()
    assert found["neutral"].per_source["rm"][0, 1] != found["drop"].per_source["rm"][0, 1]


def test_a_failed_episode_leaves_nothing_to_the_next():
    for kind in ("relative", "potential", "bonus"):
        source = make(shaping=kind)
        _, failed, _ = apart(source, [([FAILED, FAILED, FAILED], False), ([10, 60, 70], False)])
        alone, _, _ = apart(make(shaping=kind), [([10, 60, 70], False)])
        again, _, _ = apart(source, [([10, 60, 70], False)])
        assert failed[:2].all()
        assert not failed[3:].any()
        np.testing.assert_array_equal(again, alone)


def test_raise_is_for_the_caller_after_everything_is_written_down():
    source = make(on_failure="raise")
    rows = [ObservedRow(0, 1, 0, 2, False, False)]
    frames = np.full((1, 1, 1, 3), FAILED, np.uint8)
    none = np.zeros((1, 3), dtype=np.bool_)
    measured = source.measure(rollout_of(cut_into_segments(rows, frames, [["task"]] * 99, ~none, none, none), ~none))
    assert list(failure_rows({"rm": measured}, 7)) == [
        {"step": 7, "source": "rm", "env": 0, "t": 1, "reason": "broken", "detail": "byte 255"}
    ]
    with pytest.raises(TooManyFailuresError, match=r"rm.*broken.*raise"):
        refuse_failures({"rm": "raise"}, {"rm": measured})
    refuse_failures({"rm": make().terms.on_failure}, {"rm": measured})


def test_carries_survive_a_checkpoint():
    episodes = [([10, 60, 70, 20, 90, 95], False)]
    for kind in ("relative", "potential", "bonus"):
        whole, _, _ = measure_in_parts(make(shaping=kind), episodes)
        first, second = make(shaping=kind), make(shaping=kind)
        measure_in_parts(first, episodes, cuts=[2])
        second.restore(*first.state())
        assert second.carries == first.carries
        first.reset_streams()
        assert first.carries == make().carries
        assert len(whole) == 5


# Counting.


def fails(n):
    return [(0, 0, Failure("broken"))] * n


def test_the_counter_waits_for_a_window():
    counter = FailureCounter(0.1, 20)
    counter.add("rm", 10, fails(2))
    assert counter.rate == 0.2
    assert not counter.too_many()
    assert counter.too_many(at_end=True) == ["rm"]
    counter.add("rm", 10, fails(1))
    assert counter.too_many() == ["rm"]  # 3 of 20
    counter.add("rm", 20, [])
    assert not counter.too_many()
    assert (counter.total, counter.scored) == (3, 40)


def test_outright_failure_is_seen_before_the_window_fills():
    counter = FailureCounter(0.1, 30)
    counter.add("rm", 9, fails(9))
    assert not counter.too_many()
    counter.add("rm", 1, fails(1))
    assert counter.too_many()
    assert "100%" in counter.message()
    assert "--resume" in counter.message()
    counter.forgive()
    assert not counter.too_many(at_end=True)
    assert counter.total == 10


def test_a_source_that_always_works_hides_none_that_fails():
    counter = FailureCounter(0.5, 200)
    late = [(0, 0, Failure("timeout"))] * 90 + [(0, 0, Failure("non_finite"))] * 6
    counter.add("verifier", 96, [])
    counter.add("prm", 96, late)
    assert counter.rates == {"verifier": 0.0, "prm": 1.0}
    assert counter.rate == 1.0
    assert counter.too_many() == ["prm"]
    assert counter.message() == (
        "reward source 'prm': 100% of its last 96 measurements failed (timeout 90, non_finite 6; each is in "
        "failures.jsonl); reward.max_failure_rate is 50%. Fix it and go on with --resume"
    )
    both = FailureCounter(0.5, 200)
    both.add("verifier", 96, [(0, 0, Failure("answer_unparsable"))] * 72)
    both.add("prm", 96, late)
    assert both.too_many() == ["verifier", "prm"]
    assert "'verifier': 75% of its last 96 measurements failed (answer_unparsable 72; each is in" in both.message()
    assert "; reward source 'prm'" in both.message()


def test_sources_of_different_pace_have_a_window_each():
    counter = FailureCounter(0.1, 10)
    for _ in range(10):
        counter.add("fast", 100, [])
        counter.add("slow", 1, fails(1))
    assert counter.too_many() == ["slow"]
    assert counter.rates == {"fast": 0.0, "slow": 1.0}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.integers(0, 5)), max_size=20))
def test_the_counter_survives_a_checkpoint(batches):
    first, second = FailureCounter(0.2, 12), FailureCounter(0.2, 12)
    for source, scored, failed in batches:
        first.add(source, scored, fails(min(scored, failed)))
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert second.too_many() == first.too_many()
    assert second.rates == first.rates
