"""Failed measurements are tried again, and what still fails says why."""

import numpy as np
import pytest

from guerdon.errors import ConfigError, RewardFailure
from guerdon.integrations.retries import RetriedModel
from guerdon.types import Episode, Failure, RewardInfo, Score


class Flaky:
    """Fails on the first `times[id]` tries of an episode."""

    info = RewardInfo(name="flaky", range=(0.0, 1.0), granularity="total", modality="state", frames_needed=0)

    def __init__(self, times):
        self.times, self.calls = dict(times), []

    def score(self, episodes):
        self.calls.append([episode.id for episode in episodes])
        return [self._one(episode) for episode in episodes]

    def _one(self, episode):
        if self.times.get(episode.id, 0):
            self.times[episode.id] -= 1
            return Score(failure=Failure("timeout", f"{self.times[episode.id]} left"))
        return Score(total=float(episode.id))


def test_only_failed_episodes_are_scored_again():
    model = Flaky({"1": 1, "2": 5})
    episodes = [Episode(id=str(i), task="", states=np.zeros((1, 1), np.float32)) for i in range(3)]
    scores = RetriedModel(model, tries=3).score(episodes)
    assert model.calls == [["0", "1", "2"], ["1", "2"], ["2"]]
    assert [score.total for score in scores] == [0.0, 1.0, None]
    assert scores[2].failure == Failure("timeout", "2 left")
    assert RetriedModel(model).score([]) == []
    assert len(model.calls) == 3


def test_a_number_of_tries_below_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1") as refused:
        RetriedModel(Flaky({}), tries=0)
    assert refused.value.key == "tries"


def test_a_reward_failure_names_places_and_reasons():
    error = RewardFailure("the rewards of 4 copies", {0: "timeout", 2: "parse", 3: "parse", 7: "crash"}, result=(1,))
    assert "0: timeout; 2: parse; 3: parse; and 1 more" in str(error)
    assert error.reasons[7] == "crash"
    assert error.result == (1,)
