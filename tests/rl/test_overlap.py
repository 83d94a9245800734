"""Scoring during simulation: the same rewards, each moment once, failures kept, and a run that resumes."""

import threading

import numpy as np
import pytest
from test_broken_simulators import BROKEN, fragile_study
from test_loop import GRPO
from test_resume import kill_and_resume

from guerdon.rewards.control_sources import ScoresAhead
from guerdon.settings.reward import RewardSettings
from guerdon.types import Episode, RewardInfo, Score
from rl_clock import Reader, clock_study, interrupted, reader_reward, result, start
from rl_models import image_reward
from tables import refuses, sample


class Watched(Reader):
    """A reader, of frames or of whole episodes, that remembers the threads of its calls and their sizes."""

    def __init__(self, mode="per_step", **given):
        super().__init__(**given)
        self.granularity = "total" if mode == "episode" else "step"
        self.threads, self.sizes = [], []

    @property
    def info(self):
        return RewardInfo(name="reader", range=(0, 1), granularity=self.granularity)

    def score(self, episodes):
        self.threads.append(threading.current_thread().name.rpartition("_")[0])
        self.sizes.append(len(episodes))
        found = super().score(episodes)
        if self.granularity == "step":
            return found
        return [one if one.failure else Score(total=float(one.steps.mean())) for one in found]


MODES = {
    "per_step": {"shaping": "relative", "score_every": 2},
    "terminal": {"shaping": "raw"},
    "episode": {"shaping": "raw", "score_every": 2},
}


def ran(folder, mode, overlap, *, make=clock_study, **more):
    given = MODES[mode] | {"reward_mode": mode, "max_failure_rate": 1.0}
    given |= {} if overlap is None else {"overlap_steps": overlap}
    study = make(folder, name=f"{mode}-{overlap}", reward=reader_reward(**given), **more)
    reader = Watched(mode, fails=lambda name, count: (name + count) % 11 == 0)
    loop = start(study, reader=reader)
    loop.run()
    return result(study), reader


@pytest.mark.parametrize("mode", sample(MODES, "per_step", "episode"))
@pytest.mark.parametrize("estimator", sample(["gae", "grpo"], "grpo"))
def test_rewards_are_those_of_scoring_after_the_rollout(mode, estimator, tmp_path):
    more = {"algorithm": GRPO} if estimator == "grpo" else {}
    after, reader = ran(tmp_path, mode, None, **more)
    assert set(reader.threads) == {""}, "videos and rollouts, in the run's own thread"
    for overlap in (1, 5):
        beside, other = ran(tmp_path, mode, overlap, **more)
        assert beside == after
        assert sorted(map(str, other.seen)) == sorted(map(str, reader.seen)), "no moment twice, and none left out"
        assert "guerdon-score-ahead" in other.threads
        assert mode != "per_step" or len(other.sizes) > len(reader.sizes), "in parts"
    assert b"broken" in after["failures"]


def test_all_that_was_seen_in_a_part_is_one_call(tmp_path):
    env = {"num_envs": 4, "kwargs": {"fixed": 6}}
    _, reader = ran(tmp_path, "terminal", 6, env=env)
    assert max(reader.sizes) == 4, "four environments finished together"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_lost_episodes_are_not_paid(mode, tmp_path):
    makes = {"make": lambda folder, **given: fragile_study(folder, BROKEN, **given)}
    after, beside = (ran(tmp_path, mode, overlap, **makes)[0] for overlap in (None, 2))
    assert beside == after


@pytest.mark.parametrize("mode", sample(["per_step", "episode"], "episode"))
def test_a_run_that_was_interrupted_goes_on_to_the_same_bytes(mode, tmp_path):
    reward = reader_reward(**MODES[mode], reward_mode=mode, overlap_steps=3)
    whole, cut = (clock_study(tmp_path, name=name, reward=reward) for name in ("whole", "cut"))
    start(whole, reader=Watched(mode)).run()
    interrupted(cut, "_count_failures", 5, reader=Watched(mode))
    start(cut, resume=True, reader=Watched(mode)).run()
    assert result(cut) == result(whole)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    kill_and_resume(tmp_path, image_reward(tmp_path, overlap_steps=4))


def test_an_exception_of_the_model_is_raised_where_its_score_is_taken():
    def score(episodes):
        raise ValueError("the model is gone")

    ahead = ScoresAhead(score)
    asked = [((0, 0, (1,)), Episode(id="a", task="", frames=np.zeros((1, 2, 2, 3), np.uint8)))]
    ahead.ask(asked)
    with pytest.raises(ValueError, match="the model is gone"):
        ahead.take(asked)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("guerdon-score-ahead")]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"overlap_steps": 5}, "overlap_steps"),
        (reader_reward(overlap_steps=5, cache={}), "overlap_steps"),
        (reader_reward(overlap_steps=0), "overlap_steps"),
    ],
)
def test_what_would_do_nothing_is_refused(given, key):
    with refuses(key):
        RewardSettings.model_validate(given)
