"""Every moment is scored once and by its own episode alone, whichever way an environment resets."""

from itertools import pairwise

import numpy as np
import pytest

import rl_clock as tiny
from guerdon.collect.control import ControlCollector
from guerdon.policies.robots.robot import Action
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import SourceTerms
from guerdon.settings.policy import MLPPolicySettings
from guerdon.settings.reward_source import RobotSource
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.build import build_world
from tables import first

MODES = ("disabled", "next_step", "same_step")
COPIES, STEPS, PARTS = 3, 11, 5


class Still:
    """Acts by zeros."""

    def act(self, observations_B, rng):
        return Action(np.zeros((len(observations_B), 2), np.float32))


def clock_settings(mode, **kwargs):
    return GymnasiumSettings(
        task=tiny.ID,
        num_envs=COPIES,
        autoreset_mode=mode,
        frame_size=(tiny.SIZE, tiny.SIZE),
        max_episode_steps=50,
        native_reward="dense",
        kwargs=kwargs,
    )


def play(mode, reader=None, parts=(STEPS,) * PARTS, **given):
    """Per copy the list of (episode, row, reward of the model, failed, native reward, success) of every real step."""
    reader = reader or tiny.Reader()
    given = {"model": {"model_type": "constant"}, "reward_mode": "per_step", "shaping": "raw", **given}
    source = ControlReward(SourceTerms("rm", 0.9), reader, RobotSource(**given), num_envs=COPIES)
    collector = ControlCollector(
        clock_settings(mode, own_order=True), MLPPolicySettings(hidden=(4,)), seed=3, rollout_steps=STEPS,
        observes=[source.observes],
    )  # fmt: skip
    policy = collector.build_policy()
    policy.actor = Still
    steps = [[] for _ in range(COPIES)]
    episode = [0] * COPIES
    for length in parts:
        collector._steps = length
        rollout = collector.collect(policy)
        measured = source.measure(rollout)
        for i in range(COPIES):
            for t in np.flatnonzero(rollout.mask[i]):
                steps[i].append(
                    (
                        episode[i],
                        float(measured.values[i, t]),
                        bool(measured.failed[i, t]),
                        float(rollout.rewards[i, t]),
                        bool(rollout.success[i, t]),
                        bool(rollout.terminated[i, t]),
                    )
                )
                episode[i] += int(rollout.done[i, t])
    collector.close()
    return steps, reader


def common(a, b):
    """Both lists cut to the shorter one: conventions differ in how many real steps fit."""
    n = min(len(a), len(b))
    assert n > 12
    return a[:n], b[:n]


@pytest.mark.parametrize("mode", MODES)
def test_every_moment_is_scored_once_and_no_episode_sees_another(mode):
    _, reader = play(mode)
    moments = [m for seen in reader.seen for m in seen]
    assert len(moments) == len(set(moments))
    for seen in reader.seen:
        assert len({name for name, _, _ in seen}) == 1
        assert [count for _, count, _ in seen] == sorted(count for _, count, _ in seen)
        assert not any(last for _, _, last in seen[:-1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("every", [1, 3])
def test_the_scored_moments_are_exactly_the_wanted_ones(mode, every):
    _, reader = play(mode, score_every=every)
    by_episode = {}
    for name, count, last in (m for seen in reader.seen for m in seen):
        by_episode.setdefault(name, []).append((count, last))
    finished = [rows for rows in by_episode.values() if rows[-1][1]]
    assert len(finished) > 5
    for rows in finished:
        length = rows[-1][0]
        assert [c for c, _ in rows] == sorted({*range(every, length, every), length})
        assert sum(last for _, last in rows) == 1


@pytest.mark.parametrize("mode", MODES)
def test_terminal_mode_scores_the_terminal_moment_alone(mode):
    steps, reader = play(mode, reward_mode="terminal", shaping="threshold", success_reward=1.0, fail_reward=-1.0)
    moments = [m for seen in reader.seen for m in seen]
    assert moments
    assert all(last for _, _, last in moments)
    assert len(moments) == len(set(moments))
    ended = sum(1 for copy in steps for a, b in pairwise(copy) if a[0] != b[0])
    assert ended <= len(moments) <= ended + COPIES


@pytest.mark.parametrize(
    "given",
    first(
        [
            {},
            {"score_every": 3},
            {"reward_mode": "terminal", "shaping": "threshold"},
            {"shaping": "relative", "score_every": 2},
            {"shaping": "potential", "score_every": 4},
            {"shaping": "bonus", "confirm_frames": 1},
        ],
        3,
    ),
    ids=lambda given: "-".join(map(str, given.values())) or "raw",
)
def test_all_conventions_and_all_cuts_earn_the_same(given):
    reference, _ = play("disabled", **given)
    for mode in MODES:
        for parts in ((STEPS,) * PARTS, (1, 2) * 9, (STEPS * PARTS,)):
            steps, _ = play(mode, parts=parts, **given)
            for ours, theirs in zip(reference, steps, strict=True):
                assert common(ours, theirs)[0] == common(ours, theirs)[1]


@pytest.mark.parametrize("mode", MODES)
def test_rewards_are_those_of_the_moments(mode):
    steps, _ = play(mode)
    seeds = build_world(clock_settings("disabled"), seed=3)
    for i in range(COPIES):
        env = tiny.Clock(own_order=True)
        for episode in range(3):
            env.reset(seed=seeds.episode_seed(i))
            mine = [s for s in steps[i] if s[0] == episode]
            assert len(mine) == env.length
            for row, (_, reward, failed, native, success, terminated) in enumerate(mine, start=1):
                assert reward == pytest.approx(tiny.truth_of(env.name, row), abs=1e-6)
                assert native == pytest.approx(row + env.name / 65536, abs=1e-5)
                assert (failed, success) == (False, row % 3 == 0)
                assert terminated == (env.by_task and row == env.length)
    seeds.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_terminal_moment_stays_within_its_episode(mode):
    doomed = {}

    def fails(name, count):
        return doomed.setdefault(name, len(doomed) % 2 == 0)

    steps, reader = play(mode, tiny.Reader(fails), reward_mode="terminal", shaping="threshold", fail_reward=0.5)
    for copy in steps:
        last = [a for a, b in pairwise(copy) if a[0] != b[0]]
        assert all(reward == 0.0 if failed else reward in (0.5, 1.0) for _, reward, failed, *_ in last)
        inner = [a for a, b in pairwise(copy) if a[0] == b[0]]
        assert not any(failed or reward for _, reward, failed, *_ in inner)
    assert any(failed for copy in steps for _, _, failed, *_ in copy)
    assert any(not reader.fails(name, 0) for name in doomed)
