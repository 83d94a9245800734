"""The memory of off-policy learning: which rows follow which, ends, and files that only grow."""

import json
import mmap
import os

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guerdon.collect.control import ControlCollector
from guerdon.collect.shards import ShardedCollector, join_control
from guerdon.errors import CheckpointError
from guerdon.rewards.source import GroundTruth, SourceTerms
from guerdon.rl.replay import MAPPED, Replay, ReplayColumn
from rl_clock import clock_study, register_clock

ENV = GroundTruth(SourceTerms("env"))


def played(tmp_path, *, rollouts=4, steps=7, shards=1, **env):
    """Rollouts of the clock, whose observations say their step and the last action, and its rewards their episode."""
    register_clock()
    study = clock_study(tmp_path, env={"native_reward": "dense", "num_envs": 2, **env})
    parts = [
        ControlCollector(
            study.env, study.control_policy, seed=1, rollout_steps=steps, algorithm="sac", shard=k, shards=shards
        )
        for k in range(shards)
    ]
    collector = parts[0] if shards == 1 else ShardedCollector(parts, join_control)
    policy = parts[0].build_policy()
    return [collector.collect(policy) for _ in range(rollouts)]


def filled(folder, rollouts):
    replay = Replay(folder, ["env"])
    for rollout in rollouts:
        replay.add(rollout, rollout.actions, {"env": ENV.measure(rollout)})
    return replay


@pytest.mark.parametrize("mode", ["disabled", "next_step", "same_step"])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_transition_is_two_moments_of_one_episode(tmp_path, mode, shards):
    rollouts = played(tmp_path, shards=shards, autoreset_mode=mode)
    replay = filled(tmp_path / "replay", rollouts)
    rows, before = replay.transitions, replay.rows("before")[replay.transitions]
    shown = replay.rows("observations")
    assert len(rows) == sum(int(rollout.mask.sum()) for rollout in rollouts)
    assert np.array_equal(shown[rows, 0], shown[before, 0] + 1), "the next moment is of the same episode"
    assert np.array_equal(shown[rows, 1], replay.rows("actions")[rows, 0])
    assert np.array_equal(shown[rows, 0], replay.rows("moment")[rows])
    reward = replay.paid["env"]["reward"][rows]
    assert np.array_equal(np.floor(reward), shown[rows, 0])
    names = np.round((reward - np.floor(reward)) * 65536)
    episodes = replay.rows("episode")[rows]
    for episode in np.unique(episodes):
        own = names[episodes == episode]
        assert (np.abs(own - own[0]) <= 1).all(), "all rewards of an episode are of the environment's one episode"


def test_ends_are_terminal_only_where_the_task_ended(tmp_path):
    rollouts = played(tmp_path, rollouts=8)
    replay = filled(tmp_path / "replay", rollouts)
    rows = replay.transitions
    terminated, ended = replay.rows("terminated")[rows], replay.rows("ended")[rows]
    assert int(terminated.sum()) == sum(int(rollout.terminated.sum()) for rollout in rollouts)
    assert int(ended.sum()) == sum(int(rollout.done.sum()) for rollout in rollouts)
    truncated = rows[ended & ~terminated]
    assert len(truncated), "some episodes are cut off by a limit"
    assert (replay.rows("observations")[truncated, 0] > 0).all(), "not the first moment of the next episode"


def test_every_observation_is_kept_once(tmp_path):
    rollouts = played(tmp_path)
    replay = filled(tmp_path / "replay", rollouts)
    begun = int((replay.rows("before") < 0).sum())
    assert len(replay) == len(replay.transitions) + begun
    order, starts = replay.episodes()
    assert np.array_equal(replay.rows("moment")[order[starts[:-1]]], np.zeros(begun))
    assert (np.diff(replay.rows("episode")[order]) >= 0).all()


def test_features_are_computed_once_for_each_row(tmp_path):
    rollouts = played(tmp_path, rollouts=3)
    replay, seen = filled(tmp_path / "replay", rollouts[:2]), []

    def doubled(observations):
        seen.append(len(observations))
        return 2 * observations

    before = len(replay)
    np.testing.assert_array_equal(replay.features(doubled), 2 * replay.rows("observations"))
    replay.features(doubled)
    replay.add(rollouts[2], rollouts[2].actions, {"env": ENV.measure(rollouts[2])})
    np.testing.assert_array_equal(replay.features(doubled), 2 * replay.rows("observations"))
    assert seen == [before, len(replay) - before]


def test_files_grow_and_are_cut_back(tmp_path):
    rollouts = played(tmp_path, rollouts=5)
    whole = filled(tmp_path / "whole", rollouts)
    state = whole.state()
    cut = filled(tmp_path / "cut", rollouts[:2])
    tensors, values = cut.state()
    stored = json.loads(json.dumps(values))
    path = tmp_path / "cut" / "observations.bin"
    first, node = path.read_bytes(), path.stat().st_ino
    for rollout in rollouts[2:4]:
        cut.add(rollout, rollout.actions, {"env": ENV.measure(rollout)})
    cut.state()
    assert path.read_bytes().startswith(first)
    assert path.stat().st_ino == node, "the file is appended to, not written again"
    again = Replay(tmp_path / "cut", ["env"])
    again.restore(tensors, stored)
    assert path.read_bytes() == first
    for rollout in rollouts[2:]:
        again.add(rollout, rollout.actions, {"env": ENV.measure(rollout)})
    found = again.state()
    assert found[1] == state[1]
    assert all(np.array_equal(found[0][name], tensor) for name, tensor in state[0].items())
    for column in (tmp_path / "whole").iterdir():
        assert column.read_bytes() == (tmp_path / "cut" / column.name).read_bytes()
    assert np.array_equal(again.transitions, whole.transitions)


def test_a_state_is_small(tmp_path):
    replay = filled(tmp_path / "replay", played(tmp_path))
    tensors, _ = replay.state()
    assert all(name.startswith("env.") for name in tensors), "columns are in files"


@pytest.mark.parametrize("what", ["shorter", "altered"])
def test_lost_and_altered_rows_are_found(tmp_path, what):
    replay = filled(tmp_path / "replay", played(tmp_path, rollouts=2))
    tensors, values = replay.state()
    path = tmp_path / "replay" / "actions.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-4] if what == "shorter" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"actions\.bin (has|was altered)"):
        Replay(tmp_path / "replay", ["env"]).restore(tensors, values)


def test_a_lost_episode_is_left_out_and_the_next_one_begins_anew(tmp_path):
    (first, _) = played(tmp_path, rollouts=2, kwargs={"fixed": 5})
    lost = np.zeros_like(first.mask)
    lost[0, :3] = True  # a simulator broke after three steps
    broken = type(first)(**{**vars(first), "failed": lost, "mask": first.mask & ~lost})
    replay = Replay(tmp_path / "replay", ["env"])
    after, _ = replay.add(broken, broken.actions, {"env": ENV.measure(broken)})
    assert (after[0, :3] < 0).all()
    assert replay.rows("before")[replay.rows("before")[after[0, 3]]] == -1, "what follows is another episode"


@pytest.mark.parametrize("width", [3, MAPPED])
@given(parts=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["", "write", "read"])), min_size=1, max_size=8))
@example(parts=[(0, "write"), (0, "read"), (2, "write"), (1, "read")])
def test_columns_in_memory_and_in_files_are_alike(tmp_path_factory, width, parts):
    path = tmp_path_factory.mktemp("column") / "pictures.bin"
    column, expected = ReplayColumn((width,), np.dtype(np.uint8), path), np.empty((0, width), np.uint8)
    stored = None
    for count, then in parts:
        new = np.arange(len(expected), len(expected) + count, dtype=np.uint8)[:, None].repeat(width, axis=1)
        column.extend(new)
        expected = np.concatenate([expected, new])
        assert np.array_equal(column.rows, expected)
        if then == "write":
            stored = column.write()
            assert path.read_bytes() == expected.tobytes()
        elif then == "read" and stored is not None:  # what came after the last `write` is lost
            column, expected = ReplayColumn.read(path, stored), expected[: stored["rows"]]
            assert np.array_equal(column.rows, expected)
            assert path.stat().st_size == expected.nbytes


def test_pictures_are_not_kept_in_memory(tmp_path):
    column = ReplayColumn((MAPPED,), np.dtype(np.uint8), tmp_path / "pictures.bin")
    column.extend(np.ones((5, MAPPED), np.uint8))
    kept = column.rows
    while isinstance(kept.base, np.ndarray):
        kept = kept.base
    assert isinstance(kept.base, mmap.mmap)
    assert os.stat(tmp_path / "pictures.bin").st_blocks * 512 < 100 * MAPPED, "room for more takes no space"
