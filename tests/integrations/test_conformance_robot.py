"""The same 200 episodes through every host of robots give the same rewards, and the same 20 failures."""

from functools import cache

import gymnasium
import numpy as np
import pytest
import robot_episodes as robot
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from guerdon.collect.observed_frames import ObservedRow, cut_into_segments
from guerdon.errors import RewardFailure
from guerdon.integrations.gymnasium import KeepTerminalFrame, RewardModelVectorWrapper, RewardModelWrapper
from guerdon.rewards.control_sources import ControlReward
from guerdon.rewards.source import SourceTerms
from guerdon.settings.reward_source import RobotSource
from tables import cases

COPIES = 4
TRIES = 2
expected = cache(robot.expected)


class Ledger:
    """What was paid after each row of each episode; every row of the 200 once."""

    def __init__(self):
        self.paid, self.native, self.reasons = {}, {}, {}

    def add(self, episode, row, reward, native, reason=None):
        assert (episode, row) not in self.paid, "a moment was paid twice"
        self.paid[episode, row], self.native[episode, row] = reward, native
        if reason is not None:
            assert np.isnan(reward)
            self.paid[episode, row], self.reasons[episode, row] = None, reason


def attempt(step):
    """What a host's step gives, and the reasons of the rewards that it could not give."""
    try:
        return step(), {}
    except RewardFailure as failure:
        return failure.result, failure.reasons


def in_a_run(model, settings):
    """The rewards of guerdon's own runs: one stream of all episodes."""
    gamma = settings.get("gamma", 0.99)
    source = ControlReward(
        SourceTerms("rm", gamma), model, RobotSource(model={"model_type": "constant"}, **settings), num_envs=1
    )
    rows, frames, ends = [], [], []
    for episode in range(robot.EPISODES):
        for row in range(robot.LENGTHS[episode] + 1):
            last = row == robot.LENGTHS[episode]
            rows.append(ObservedRow(0, len(ends) + row - 1, episode, row, last, None))
            frames.append(robot.frame(episode, row))
        ends += [False] * (int(robot.LENGTHS[episode]) - 1) + [True]
    done = np.array([ends])
    terminated = done.copy()
    terminated[done] = robot.BY_TASK[: robot.EPISODES]
    tasks = [[""]] * (done.shape[1] + 1)
    segments = cut_into_segments(rows, np.stack(frames), tasks, np.ones_like(done), terminated, done)
    found = source.rewards_of(segments, done.shape)
    ledger = Ledger()
    for step, (episode, row) in enumerate(expected("raw")):
        missing = bool(found.failed[0, step])
        reward = np.nan if missing else float(found.values[0, step])
        ledger.add(episode, row, reward, float(row), "failed" if missing else None)
    return ledger


def gymnasium_wrapper(model, settings, autoreset=False, **frames):
    env = robot.Playback()
    env = RewardModelWrapper(
        gymnasium.wrappers.Autoreset(env) if autoreset else env, model, tries=TRIES, **frames, **settings
    )
    ledger = Ledger()
    for episode in range(robot.EPISODES):
        if not autoreset or not episode:
            env.reset()
        else:
            (_, reward, terminated, truncated, _), reasons = attempt(lambda: env.step(np.zeros(1, np.float32)))
            assert (reward, terminated, truncated, reasons) == (0.0, False, False, {}), "a reset is paid nothing"
        for row in range(1, robot.LENGTHS[episode] + 1):
            (_, reward, terminated, truncated, info), reasons = attempt(lambda: env.step(np.zeros(1, np.float32)))
            assert isinstance(reward, float)
            assert (terminated or truncated) == (row == robot.LENGTHS[episode])
            ledger.add(episode, row, reward, info["env_reward"], reasons.get(0))
    return ledger


def vector_wrapper(model, settings, mode, keep=True, **frames):
    def make(i):
        env = robot.Playback(first=i, stride=COPIES)
        return KeepTerminalFrame(env) if keep else env

    env = SyncVectorEnv([lambda i=i: make(i) for i in range(COPIES)], autoreset_mode=mode)
    env = RewardModelVectorWrapper(env, model, tries=TRIES, **frames, **settings)
    ledger = Ledger()
    env.reset()
    episodes, rows = np.arange(COPIES), np.zeros(COPIES, np.int64)
    over = np.zeros(COPIES, np.bool_)
    while len(ledger.paid) < len(expected("raw")):
        if mode is AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})
        (_, rewards, terminated, truncated, infos), reasons = attempt(
            lambda: env.step(np.zeros((COPIES, 1), np.float32))
        )
        resetting = over if mode is AutoresetMode.NEXT_STEP else np.zeros(COPIES, np.bool_)
        if mode is not AutoresetMode.SAME_STEP:
            episodes, rows = np.where(over, episodes + COPIES, episodes), np.where(over, 0, rows)
        rows = rows + ~resetting
        assert not (rewards[resetting] != 0).any()
        for i in np.flatnonzero(~resetting & (episodes < robot.EPISODES)):
            ledger.add(int(episodes[i]), int(rows[i]), rewards[i], infos["env_reward"][i], reasons.get(int(i)))
        over = terminated | truncated
        if mode is AutoresetMode.SAME_STEP:
            episodes, rows = np.where(over, episodes + COPIES, episodes), np.where(over, 0, rows)
    env.close()
    return ledger


def sb3(model, settings, workers="dummy", **frames):
    vec = pytest.importorskip("stable_baselines3.common.vec_env", reason="stable-baselines3 is not installed")
    from guerdon.integrations.sb3 import RewardModelVecEnv

    def make(i):
        return KeepTerminalFrame(robot.Playback(first=i, stride=COPIES))

    kind = vec.DummyVecEnv if workers == "dummy" else vec.SubprocVecEnv
    venv = RewardModelVecEnv(
        kind([lambda i=i: make(i) for i in range(COPIES)]), model, tries=TRIES, **frames, **settings
    )
    ledger = Ledger()
    venv.reset()
    episodes, rows = np.arange(COPIES), np.zeros(COPIES, np.int64)
    while len(ledger.paid) < len(expected("raw")):
        (_, rewards, dones, infos), reasons = attempt(lambda: venv.step(np.zeros((COPIES, 1), np.float32)))
        assert rewards.dtype == np.float32
        rows += 1
        for i in np.flatnonzero(episodes < robot.EPISODES):
            ledger.add(int(episodes[i]), int(rows[i]), rewards[i], infos[i]["env_reward"], reasons.get(int(i)))
        episodes, rows = np.where(dones, episodes + COPIES, episodes), np.where(dones, 0, rows)
    venv.close()
    return ledger


HOSTS = {
    "guerdon run": in_a_run,
    "Wrapper": gymnasium_wrapper,
    "Wrapper, frames by key": lambda m, s: gymnasium_wrapper(m, s, frames="image"),
    "Wrapper over Autoreset": lambda m, s: gymnasium_wrapper(m, s, autoreset=True),
    "VectorWrapper, next step": lambda m, s: vector_wrapper(m, s, AutoresetMode.NEXT_STEP),
    "VectorWrapper, same step": lambda m, s: vector_wrapper(m, s, AutoresetMode.SAME_STEP),
    "VectorWrapper, same step, frames by key": lambda m, s: vector_wrapper(
        m, s, AutoresetMode.SAME_STEP, keep=False, frames="image"
    ),
    "VectorWrapper, disabled": lambda m, s: vector_wrapper(m, s, AutoresetMode.DISABLED),
    "SB3": sb3,
    "SB3, frames by function": lambda m, s: sb3(m, s, frames=lambda observation: observation["image"]),
}


CALLS = [(host, source) for host in HOSTS for source in robot.SOURCES if "frames" not in host or source == "relative"]
USUAL = [(host, source) for host, source in CALLS if source == "relative" or host == "VectorWrapper, next step"]


@pytest.mark.parametrize("calls", [USUAL, pytest.param(CALLS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_rewards_and_masks_are_the_same(calls):
    cases(("host", "source"), calls)(check_rewards_and_masks)()


def check_rewards_and_masks(host, source):
    model = robot.Injected()
    ledger = HOSTS[host](model, robot.SOURCES[source])
    wanted = expected(source)
    assert ledger.paid.keys() == wanted.keys()
    assert {place for place, reward in ledger.paid.items() if reward is None} == {
        place for place, reward in wanted.items() if reward is None
    }
    known = [place for place, reward in wanted.items() if reward is not None]
    paid, right = (np.array([one[place] for place in known], np.float32) for one in (ledger.paid, wanted))
    np.testing.assert_array_equal(paid, right)
    assert all(ledger.native[place] == place[1] for place in known), "the environment's own reward is kept"


@pytest.mark.parametrize(
    "hosts",
    [["Wrapper", "VectorWrapper, next step", "SB3"], pytest.param(list(HOSTS)[1:], marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_failures_come_at_the_injected_frames_with_their_reasons_after_the_tries(hosts):
    cases("host", hosts)(check_failures)()


def check_failures(host):
    model = robot.Injected()
    ledger = HOSTS[host](model, robot.SOURCES["raw"])
    injected = {place: kind for place, kind in robot.FAILURES.items() if place[1]}
    assert {place: reason.split(":")[0] for place, reason in ledger.reasons.items()} == injected
    for place in expected("raw"):
        assert model.looks[place] == (TRIES if place in injected else 1), "scored twice, or not at all"


def test_what_is_injected():
    kinds = list(robot.FAILURES.values())
    assert len(kinds) == 20
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(robot.KINDS, 4)
    rows = [row == robot.LENGTHS[episode] for episode, row in robot.FAILURES]
    assert any(rows), "terminal rows are among them"
    assert sum(reward is None for reward in expected("relative").values()) >= 20
