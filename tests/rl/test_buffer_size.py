"""A replay with a limit: which episodes leave, what stays, files, resumes; pictures that are stored once."""

import json
import os
import shutil

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replay import ENV, played

from guerdon.collect.control import ControlCollector
from guerdon.rewards.source import GroundTruth, SourceTerms
from guerdon.rl import replay_room
from guerdon.rl.replay import MAPPED, PAID, Replay, SegmentedColumn, _of_runs, _runs
from guerdon.rl.replay_room import ReplaySizes, check_room
from guerdon.rl.run import run_folder
from guerdon.settings.policy import CNNPolicySettings
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.spaces import ObservedColumn
from rl_clock import clock_study, interrupted, lines, result, start
from tables import first, refuses

SAC = {"type": "sac", "rollout_steps": 10, "batch_size": 8, "online_step_before_learning": 12}


def add(replay, rollout):
    replay.add(rollout, rollout.actions, {"env": ENV.measure(rollout)})


def transitions(replay):
    """What there is to learn from, in order: episode, moment, both observations, action, reward, whether it ended."""
    rows = replay.transitions
    shown, before = replay.observations(rows), replay.observations(replay.rows("before")[rows])
    columns = [replay.rows(name)[rows] for name in ("episode", "moment", "actions", "terminated", "intervened")]
    paid = replay.paid["env"]["reward"][rows]
    return [
        tuple(np.asarray(part).tobytes() for part in row) for row in zip(shown, before, *columns, paid, strict=True)
    ]


def expected(whole, limit, left):
    """Transitions that stay of a replay without a limit, where the episodes `left` have gone before."""
    rows, episode = whole.transitions, whole.rows("episode")
    helped = set(episode[whole.rows("intervened")].tolist())
    under_way = {int(episode[row]) for row in whole._open.values()}
    for one in sorted(set(episode[rows].tolist()) - helped - under_way):
        counted = [row for row in rows if episode[row] not in left and episode[row] not in helped]
        if len(counted) <= limit:
            break
        if one not in left:
            left.add(one)
    return [one for row, one in zip(rows, transitions(whole), strict=True) if episode[row] not in left]


def with_help(rollout, rng, share):
    helped = rollout.mask & (rng.random(rollout.mask.shape) < share)
    return type(rollout)(**{**vars(rollout), "intervened": helped})


@pytest.mark.parametrize("share", [0.0, 0.02])
@pytest.mark.parametrize("limit", [13, 40])
def test_whole_episodes_leave_the_oldest_first(tmp_path, limit, share):
    rng = np.random.default_rng(limit)
    rollouts = [with_help(one, rng, share) for one in played(tmp_path, rollouts=14, steps=9)]
    whole, kept = Replay(tmp_path / "whole", ["env"]), Replay(tmp_path / "kept", ["env"], limit=limit)
    left = set()
    for n, rollout in enumerate(rollouts):
        add(whole, rollout)
        add(kept, rollout)
        kept.leave()
        assert transitions(kept) == expected(whole, limit, left)
        assert np.array_equal(kept.rows("intervened")[kept.interventions], np.ones(len(kept.interventions), bool))
        assert len(kept) <= limit + limit // 8 + 2 * 10 + len(kept.interventions) * 10 + 60
        if n % 4 == 2:  # as a run that is resumed
            tensors, values = kept.state()
            kept = Replay(tmp_path / "kept", ["env"], limit=limit)
            kept.restore(tensors, json.loads(json.dumps(values)))
            kept.saved(1)
    assert left


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1), st.booleans()), max_size=8), st.integers(1, 9))
def test_large_rows_in_several_files_are_those_that_were_kept(tmp_path_factory, parts, each):
    path = tmp_path_factory.mktemp("column") / "pictures.bin"
    rng, number = np.random.default_rng(each), 0
    column, rows = SegmentedColumn((MAPPED,), np.dtype(np.uint8), path, each), np.empty((0, MAPPED), np.uint8)
    for count, share, again in parts:
        new = rng.integers(0, 256, (count, MAPPED), np.uint8)
        column.extend(new)
        rows = np.concatenate([rows, new])
        kept = rng.random(len(rows)) < share
        column.keep(kept)
        rows = rows[kept]
        if again:
            stored = json.loads(json.dumps(column.write()))
            column.extend(new)  # lost by the resume
            column = SegmentedColumn.read(path, stored)
        number += count
        assert np.array_equal(column[:], rows)
        picked = rng.integers(0, max(len(rows), 1), (2, 3)) if len(rows) else np.zeros((2, 0), int)
        assert np.array_equal(column[picked], rows[picked])


def test_rows_in_several_files_have_fields(tmp_path):
    dtype = np.dtype([("state", np.float32, (2,)), ("picture", np.uint8, (MAPPED,))])
    column, rows = SegmentedColumn((), dtype, tmp_path / "column", 2), np.zeros(5, dtype)
    rows["state"] = np.arange(10).reshape(5, 2)
    column.extend(rows)
    assert (len(column), column.count, column.rows is column) == (5, 5, True)
    assert np.array_equal(column["state"], rows["state"])


@given(st.sets(st.integers(0, 60)))
def test_runs_of_numbers_are_them(numbers):
    given_numbers = np.array(sorted(numbers), np.int64)
    assert np.array_equal(_of_runs(json.loads(json.dumps(_runs(given_numbers)))), given_numbers)


class Coloured(gymnasium.Env):
    """Random pictures of `PICTURE`, and with `keys` numbers beside them."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None, shape=(48, 40, 3), keys=False):
        self.render_mode, self.keys = render_mode, keys
        picture = spaces.Box(0, 255, tuple(shape), np.uint8)
        self.observation_space = spaces.Dict(eye=picture, arm=spaces.Box(-9, 9, (2,), np.float32)) if keys else picture
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def shown(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 7))
        return self.shown(), {}

    def step(self, action):
        self.left -= 1
        return self.shown(), 1.0, self.left == 0, False, {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


gymnasium.register("guerdon-tests/Coloured-v0", Coloured, max_episode_steps=5, disable_env_checker=True)


def seen(moments=4, rollouts=3, steps=9, mode="disabled", **kwargs):
    env = GymnasiumSettings(
        task="guerdon-tests/Coloured-v0", num_envs=2, native_reward="dense", frame_stack=moments, kwargs=kwargs,
        autoreset_mode=mode,
    )  # fmt: skip
    policy = CNNPolicySettings(channels=(2,), hidden=(4,))
    collector = ControlCollector(env, policy, seed=0, rollout_steps=steps, algorithm="sac")
    mine = collector.build_policy()
    found = [collector.collect(mine) for _ in range(rollouts)]
    collector.close()
    return found


@pytest.mark.parametrize("mode", first(["disabled", "next_step", "same_step"], 1))
@pytest.mark.parametrize(
    "given",
    [{}, {"keys": True}, {"shape": (40, 48)}, {"shape": (3, 40, 48)}, {"moments": 1}],
)
def test_pictures_are_stored_once_and_are_those_of_gymnasiums_wrapper(tmp_path, given, mode):
    """The observations of a rollout are what `FrameStackObservation` showed; without moments they are kept whole."""
    rollouts = seen(mode=mode, **given)
    moments = given.get("moments", 4)
    whole, once = Replay(tmp_path / "whole", ["env"]), Replay(tmp_path / "once", ["env"], moments=moments)
    for n, rollout in enumerate(rollouts):
        add(whole, rollout)
        add(once, rollout)
        if n == 1:
            tensors, values = once.state()
            once = Replay(tmp_path / "once", ["env"], moments=moments)
            once.restore(tensors, json.loads(json.dumps(values)))
    rows = np.random.default_rng(0).integers(0, len(whole), (5, 7))
    assert whole.observations(rows).tobytes() == once.observations(rows).tobytes()
    assert whole.observations(slice(None)).tobytes() == once.observations(slice(None)).tobytes()
    assert once.observation_bytes == whole.rows("observations")[0].nbytes
    once.state(), whole.state()
    sizes = [os.path.getsize(tmp_path / name / "observations.bin") for name in ("whole", "once")]
    numbers = 32 * len(whole) if given.get("keys") else 0
    assert sizes[1] - numbers == (sizes[0] - numbers) // moments


def test_four_grey_pictures_of_84_take_seven_kilobytes_a_row(tmp_path):
    (rollout,) = seen(rollouts=1, steps=4, shape=(84, 84))
    replay = Replay(tmp_path / "once", ["env"], moments=4)
    add(replay, rollout)
    replay.state()
    assert os.path.getsize(tmp_path / "once" / "observations.bin") / len(replay) == 7056


def test_a_folder_with_whole_pictures_goes_on_as_it_is(tmp_path):
    rollouts = seen(rollouts=4)
    before, whole = Replay(tmp_path / "old", ["env"]), Replay(tmp_path / "whole", ["env"])
    for rollout in rollouts[:2]:
        add(before, rollout)
    tensors, values = before.state()
    again = Replay(tmp_path / "old", ["env"], moments=4)
    again.restore(tensors, json.loads(json.dumps(values)))
    for rollout in rollouts[2:]:
        add(again, rollout)
    for rollout in rollouts:
        add(whole, rollout)
    assert transitions(again) == transitions(whole)


def test_files_are_deleted_once_no_checkpoint_needs_them(tmp_path):
    replay, sizes = Replay(tmp_path / "kept", ["env"], limit=16, moments=4), []
    for rollout in seen(rollouts=12):
        add(replay, rollout)
        replay.leave()
        tensors, values = replay.state()
        needed = set(replay.files)
        assert needed <= {path.name for path in (tmp_path / "kept").iterdir()}
        replay.saved(2)
        there = {path.name for path in (tmp_path / "kept").iterdir()}
        assert needed <= there
        sizes.append(sum(path.stat().st_blocks * 512 for path in (tmp_path / "kept").glob("observations*")))
    assert max(sizes[4:]) <= 48 * 40 * 3 * (16 + 2 * 18 + 2 * 9)
    assert any(".s" in name for name in there)
    assert "observations.s0.bin" not in there
    again = Replay(tmp_path / "kept", ["env"], limit=16, moments=4)
    again.restore(tensors, json.loads(json.dumps(values)))
    assert transitions(again) == transitions(replay)


def test_a_killed_run_with_a_limit_goes_on_to_the_same_numbers(tmp_path):
    def study(name):
        env = {"native_reward": "dense"}
        return clock_study(tmp_path, name=name, env=env, algorithm={**SAC, "buffer_size": 40})

    whole, cut = study("whole"), study("cut")
    start(whole, reader="own").run()
    interrupted(cut, "update", 6, reader="own")
    start(cut, resume=True, reader="own").run()
    assert result(cut) == result(whole)
    assert all(row["updates"] > 0 for row in lines(whole)[3:] if "updates" in row)
    folder = run_folder(whole) / "checkpoints" / "replay"
    assert all(".g" in path.name for path in folder.iterdir())
    assert not (folder / "actions.bin").exists()


@pytest.mark.slow
def test_a_killed_run_on_pictures_goes_on_to_the_same_numbers_and_files(tmp_path):
    def study(name):
        env = {
            "task": "guerdon-tests/Coloured-v0", "native_reward": "dense", "frame_stack": 2, "kwargs": {"keys": True},
        }  # fmt: skip
        policy = {"type": "cnn", "channels": [2], "hidden": [4]}
        more = {"buffer_size": 24, "batch_size": 4}
        return clock_study(tmp_path, name=name, env=env, algorithm={**SAC, **more}, policy=policy)

    whole, cut = study("whole"), study("cut")
    start(whole).run()
    interrupted(cut, "update", 5)
    start(cut, resume=True).run()
    assert result(cut) == result(whole)
    folders = [run_folder(one) / "checkpoints" / "replay" for one in (whole, cut)]
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert files[0] == files[1]
    assert sum(".s" in name for name in files[0]) > 1


def test_a_limit_below_the_first_gradient_step_is_refused(tmp_path):
    with refuses("buffer_size"):
        clock_study(tmp_path, algorithm={**SAC, "buffer_size": 11})


def test_what_a_replay_takes_is_known_and_refused_where_there_is_no_room(tmp_path, monkeypatch):
    columns = [ObservedColumn("eye", "image", (84, 84, 4)), ObservedColumn("arm", "vector", (3,))]
    sizes = ReplaySizes.of(columns, moments=4, actions=2, sources=1)
    assert sizes.disk - sizes.memory == 84 * 84 + 12, "pictures are in files alone"
    assert sizes.memory < 100 + PAID.itemsize
    found = {"disk": 10**9, "memory": 10**9}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": found["disk"]}))
    monkeypatch.setattr(replay_room, "free_memory", lambda: found["memory"])
    line = check_room(steps=100_000, limit=None, sizes=sizes, folder=tmp_path / "replay")
    assert line.startswith(f"replay: 100,000 rows of {sizes.disk:,} bytes: at most 0.71 GB of disk (1.00 GB free)")
    with refuses("algorithm.buffer_size", r"1,000,000 rows would take 7.\d\d GB of disk"):
        check_room(steps=10**6, limit=None, sizes=sizes, folder=tmp_path / "replay")
    check_room(steps=10**6, limit=50_000, sizes=sizes, folder=tmp_path / "replay")
    found |= {"disk": 10**12, "memory": 10**6}
    with refuses("algorithm.buffer_size", "of memory, and 1.0 MB are free"):
        check_room(steps=10**6, limit=None, sizes=sizes, folder=tmp_path / "replay")


def test_a_row_takes_what_was_said(tmp_path):
    """The files of a replay with everything written, but for what sources pay, which is in the checkpoint."""
    (rollout,) = seen(rollouts=1, steps=40, keys=True)
    replay = Replay(tmp_path / "once", ["env"], moments=4)
    add(replay, rollout)
    replay.state()
    columns = [ObservedColumn("eye", "image", (48, 40, 12)), ObservedColumn("arm", "vector", (8,))]
    sizes = ReplaySizes.of(columns, moments=4, actions=1, sources=1)
    written = sum(path.stat().st_size for path in (tmp_path / "once").iterdir()) / len(replay)
    assert written <= sizes.disk <= written + PAID.itemsize + 24


def test_a_run_says_what_its_replay_takes(tmp_path):
    loop = start(clock_study(tmp_path, env={"native_reward": "dense"}, algorithm=SAC), reader="own")
    assert any(note.startswith("replay: 160 rows of ") for note in loop.parts.notes)
    loop.close()


def test_ground_truth_is_that_of_the_rows_after_many_left(tmp_path):
    """Rewards of the clock say their moment, so that rows that were numbered anew can be told."""
    replay = Replay(tmp_path / "kept", ["env"], limit=20)
    for rollout in played(tmp_path, rollouts=10, steps=9):
        replay.add(rollout, rollout.actions, {"env": GroundTruth(SourceTerms("env")).measure(rollout)})
        replay.leave()
    rows = replay.transitions
    assert np.array_equal(np.floor(replay.paid["env"]["reward"][rows]), replay.rows("moment")[rows])
    assert np.array_equal(replay.observations(rows)[:, 0], replay.rows("moment")[rows])
    assert np.array_equal(replay.observations(replay.rows("before")[rows])[:, 0] + 1, replay.rows("moment")[rows])
