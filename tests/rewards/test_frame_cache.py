"""Values of frames that look alike: hits, their marks, the error that is measured of them, and resuming."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.rewards.control_sources import HASH_SIZE, FrameCache, difference_hash
from guerdon.settings.reward_source import CacheSettings, RobotSource
from guerdon.types import Episode, Failure, Score
from rl_clock import Reader, clock_study, interrupted, lines, reader_reward, result, start
from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

SIZE = HASH_SIZE


def picture(bits):
    """A picture whose hash has these bits: from left to right a cell is brighter where the bit is set."""
    steps = np.where(np.asarray(bits, bool), 7, -7)
    cells = np.cumsum(np.concatenate([np.full((SIZE, 1), 128), steps], axis=1), axis=1)
    return np.repeat(np.repeat(cells, 4, axis=0), 4, axis=1)[..., None].repeat(3, -1).astype(np.uint8)


def bits_of(number):
    return np.array([(number >> i) & 1 for i in range(SIZE * SIZE)]).reshape(SIZE, SIZE)


def episode(number, task="close"):
    return Episode(id=str(number), task=task, frames=picture(bits_of(number))[None])


class Model:
    """The value of a picture is its first cell's successor; pictures in `broken` cannot be measured."""

    def __init__(self, drift=0.0, broken=()):
        self.calls, self.drift, self.broken = [], drift, set(broken)

    def score(self, episodes):
        self.calls.append([one.id for one in episodes])
        values = [float(len(one.id)) + self.drift * sum(map(len, self.calls)) for one in episodes]
        return [
            Score(failure=Failure("broken")) if one.id in self.broken else Score(steps=np.array([v], np.float32))
            for one, v in zip(episodes, values, strict=True)
        ]


class Unchecked(np.random.Generator):
    """Draws no frame that is scored anyway."""

    def random(self):
        return 1.0


def cache(draws=Unchecked, **given):
    return FrameCache(CacheSettings(**given), draws(np.random.PCG64(0)))


BITS = st.integers(0, 2 ** (SIZE * SIZE) - 1)


@given(BITS, BITS)
def test_the_hash_is_the_signs_of_brightness_differences(a, b):
    first, second = (difference_hash(picture(bits_of(n)), SIZE) for n in (a, b))
    apart = np.unpackbits((first ^ second).view(np.uint8)).sum()
    assert apart == bin(a ^ b).count("1")


def test_only_frames_within_the_tolerance_are_alike():
    model, known = Model(), cache(tolerance=2)
    scores, reused = known.score([episode(0), episode(3), episode(7), episode(0)], model.score)
    assert model.calls == [["0", "7"]]  # 3 differs from 0 in two bits, 7 in three; all in one call
    assert reused.tolist() == [False, True, False, True]
    assert [s.steps[0] for s in scores] == [1.0] * 4
    scores, reused = known.score([episode(1), episode(0, task="open")], model.score)
    assert model.calls[1:] == [["0"]], "another task is another question"
    assert reused.tolist() == [True, False]
    assert known.metrics == {
        "cache_hits": 1.0, "cache_hit_share": 0.5, "cache_checked": 0.0, "cache_error": None, "cache_error_max": None,
    }  # fmt: skip


def test_a_failure_is_not_used_again():
    model, known = Model(broken=["0"]), cache()
    scores, reused = known.score([episode(0), Episode("x", "close", picture(bits_of(0))[None])], model.score)
    assert model.calls == [["0"], ["x"]]
    assert scores[0].failure.reason == "broken"
    assert scores[1].steps[0] == 1.0
    assert not reused.any()
    known.score([episode(0)], model.score)
    assert model.calls[2:] == [["0"]]


def test_the_oldest_leaves_first():
    model, known = Model(), cache(size=2)
    for number in (0, 1, 0, 3, 0, 1):
        known.score([episode(number)], model.score)
    assert model.calls == [["0"], ["1"], ["3"], ["0"], ["1"]]


def test_a_share_of_the_hits_is_scored_and_its_error_is_logged():
    model, known = Model(drift=0.001), cache(np.random.Generator)
    known.score([episode(0)], model.score)
    for _ in range(2000):
        known.score([episode(0)], model.score)
    found = known.metrics
    calls = [call for call in model.calls if call]
    checked = len(calls) - 1
    assert 60 < checked < 140  # 100 in the mean
    assert found["cache_checked"] == checked
    drifts = 0.001 * np.arange(1, checked + 1)
    assert found["cache_error"] == pytest.approx(drifts.mean(), rel=1e-3)
    assert found["cache_error_max"] == pytest.approx(drifts.max(), rel=1e-3)


@given(st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=6), st.integers(0, 3), st.integers(1, 12))
def test_state_is_whole_and_every_frame_has_a_value(batches, tolerance, size):
    a, b = (cache(np.random.Generator, tolerance=tolerance, size=size) for _ in range(2))
    first, second = Model(), Model()
    for numbers in batches:
        tensors, values = a.state()
        b = cache(np.random.Generator, tolerance=tolerance, size=size)
        b.restore(tensors, json.loads(json.dumps(values)))
        second.calls = list(first.calls)
        episodes = [episode(n) for n in numbers]
        (here, hits), (there, same) = a.score(episodes, first.score), b.score(episodes, second.score)
        assert first.calls == second.calls
        assert hits.tolist() == same.tolist()
        assert len(here) == len(numbers)
        assert [s.steps.tolist() for s in here] == [s.steps.tolist() for s in there]
        assert a.metrics == b.metrics


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"reward_mode": "episode", "shaping": "raw"}, "cache"),
        ({"reward_mode": "per_step", "cache": {"tolerance": 200}}, "tolerance"),
        (
            {"model": {"model_type": "resnet", "checkpoint_path": "x", "update": "after", "replay_path": "y"}},
            "cache",
        ),
    ],
)
def test_where_values_are_not_of_frames_it_is_refused(given, key):
    with refuses(key):
        RobotSource(**{"model": {"model_type": "constant"}, "cache": {}, **given})


def cached_study(folder, name):
    reward = reader_reward(cache={"tolerance": 3, "size": 40}, combine_mode="add")
    return clock_study(folder, name=name, reward=reward)


def test_a_model_that_looks_at_no_frame_is_refused(tmp_path):
    with refuses("reward.sources.constant.cache", "does not look at single frames"):
        start(cached_study(tmp_path, "run"))


def test_a_run_with_a_cache_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("guerdon.rl.build_control.load_source_model", lambda settings: Reader())
    studies = [cached_study(tmp_path, name) for name in "ab"]
    start(studies[0]).run()
    interrupted(studies[1], "update", 5)
    start(studies[1], resume=True).run()
    assert result(studies[0]) == result(studies[1])
    rows = [row for row in lines(studies[0]) if row["kind"] == "train"]
    assert any(row["reward_model/constant/cache_hits"] for row in rows)
    assert rows[-1]["reward_model/constant/cache_checked"] > 0
    assert rows[-1]["reward_model/constant/cache_error"] > 0, "moments of the clock look alike and differ in value"


def test_hits_are_marked_and_are_no_measurements(tmp_path, monkeypatch):
    monkeypatch.setattr("guerdon.rl.build_control.load_source_model", lambda settings: Reader())
    loop = start(cached_study(tmp_path, "run"), reader=(reader := Reader()))
    rollout = loop.collector.collect(loop.learner.policy)
    found = loop.sources["constant"].measure(rollout)
    frames = len(found.scores.values_N)
    assert frames == rollout.mask.sum()
    assert found.measured == frames - found.scores.reused_N.sum()
    assert len(reader.seen) >= found.measured
    assert found.metrics["cache_hits"] == found.scores.reused_N.sum() > 0
    loop.close()
