"""The recorder beside a run: ids that are unique and the same after a kill, and shares of episodes."""

import numpy as np
import pytest

from corridor import ID
from guerdon.collect.episode_capture import Recorder, episode_number
from guerdon.episodes.read import dataset_hash, read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.build import build_world
from tables import sample

EVERYTHING = np.ones(3, np.bool_)
SETTINGS = GymnasiumSettings(task=ID, num_envs=3, max_episode_steps=6, frame_size=8)
ACTIONS = np.random.default_rng(0).uniform(-0.3, 1, (60, 3, 1)).astype(np.float32)


class Run:
    """A world with a recorder, as the RL loop uses them."""

    def __init__(self, root, **options):
        self.world = build_world(SETTINGS, seed=4)
        self.writer = EpisodeWriter(root)
        self.recorder = Recorder(self.world, self.writer, meta={"seed": 0}, prefix="train", **options)

    def begin(self):
        transition = self.world.reset()
        for i, look in transition.first_looks.items():
            self.recorder.begin(i, transition, look)

    def go(self, actions_T_B_A):
        kept = 0
        for actions in actions_T_B_A:
            rows = self.world.steps_in_episode + 1
            capture = self.recorder.wants(rows)
            transition = self.world.step(actions, capture=capture, capture_ends=True)
            kept += len(self.recorder.watch(rows, actions, transition))
            for i, look in transition.first_looks.items():
                self.recorder.begin(i, transition, look)
        return kept

    def close(self):
        self.writer.close()
        self.world.close()


def ids(root):
    return [e.id for e in read_episodes(root, with_frames=False)]


def test_a_killed_and_resumed_run_records_each_episode_once(tmp_path):
    whole = Run(tmp_path / "whole")
    whole.begin()
    whole.go(ACTIONS)
    whole.close()

    first = Run(tmp_path / "parts")
    first.begin()
    first.go(ACTIONS[:20])
    saved = first.world.state_dict(), first.recorder.state_dict()
    first.go(ACTIONS[20:35])  # written, but after the checkpoint: the resumed run plays it again
    first.close()
    again = Run(tmp_path / "parts")
    again.world.load_state_dict(saved[0])
    again.recorder.load_state_dict(saved[1])
    again.go(ACTIONS[20:])
    again.close()

    assert sorted(ids(tmp_path / "parts")) == sorted(ids(tmp_path / "whole"))
    parts = {e.id: e for e in read_episodes(tmp_path / "parts")}
    for episode in read_episodes(tmp_path / "whole"):
        assert np.array_equal(episode.states, parts[episode.id].states)
        assert np.array_equal(episode.frames, parts[episode.id].frames)


def test_episodes_with_the_same_start_but_another_policy_are_others(tmp_path):
    """GRPO rewinds the world, and a fresh run may add to an old data set: nothing is overwritten or refused."""
    run = Run(tmp_path)
    for turn in range(2):
        run.world.rewind(0)
        run.begin()
        run.go(ACTIONS[turn * 10 : turn * 10 + 10])
    run.close()
    other = Run(tmp_path)
    other.begin()
    other.go(ACTIONS[30:40])
    other.close()
    names = ids(tmp_path)
    assert len(names) == len(set(names)) > 8
    same = Run(tmp_path)
    same.begin()
    same.go(ACTIONS[30:40])
    same.close()
    assert ids(tmp_path) == names, "a run that is repeated adds nothing"


def test_numbers_are_read_back_from_ids(tmp_path):
    run = Run(tmp_path)
    run.begin()
    run.go(ACTIONS[:20])
    run.close()
    names = ids(tmp_path)
    assert sorted(episode_number(name, "train") for name in names) == list(range(len(names)))
    assert episode_number(names[0], "trai") is None
    assert episode_number("train-1-000000-00000000", "train") is None


@pytest.mark.parametrize(("success", "fail"), sample([(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)], (0.5, 0.5), several=True))
def test_shares_of_episodes_are_kept(tmp_path, success, fail):
    run = Run(tmp_path / "all")
    run.begin()
    run.go(ACTIONS)
    run.close()
    every = {e.id: e.outcome for e in read_episodes(tmp_path / "all", with_frames=False)}
    some = Run(tmp_path / "some", keep_success=success, keep_fail=fail)
    some.begin()
    kept = some.go(ACTIONS)
    some.close()
    names = ids(tmp_path / "some")
    assert kept == len(names)
    if success + fail == 1 and success != fail:
        assert names == [name for name, outcome in every.items() if outcome == (success == 1)]
    else:
        assert set(names) < set(every)
        assert 0.2 < len(names) / len(every) < 0.8


def test_held_episodes_are_written_in_the_order_of_copies(tmp_path):
    run = Run(tmp_path / "d", hold=True, limit=2)
    run.begin()
    run.go(ACTIONS[:6])
    assert run.writer.num_episodes == 0
    assert run.recorder.release() == 2
    run.close()
    assert [episode_number(name, "train") for name in ids(tmp_path / "d")] == [0, 1]


def test_what_is_recorded_does_not_depend_on_when(tmp_path):
    for name, every in (("a", 1), ("b", 1), ("c", 2)):
        run = Run(tmp_path / name, frame_every=every)
        run.begin()
        run.go(ACTIONS[:30])
        run.close()
    a, b, c = (dataset_hash(tmp_path / name) for name in "abc")
    assert a == b != c
