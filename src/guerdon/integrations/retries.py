"""A reward model that measures again what failed, for libraries that cannot carry a failure.

model = RetriedModel(load_reward_model("remote", remote={"url": url}), tries=3)
scores = model.score(episodes)
"""

from __future__ import annotations

from collections.abc import Sequence

from guerdon.errors import ConfigError
from guerdon.models.scores import score_episodes
from guerdon.processes.call_queue import concurrent
from guerdon.types import Episode, RewardInfo, RewardModel, Score


class RetriedModel:
    """A model whose failed measurements are tried again, and only those.

    Args:
        model: it is called again with the episodes that it failed to score.
        tries: in all, at least 1. A model on a server has pauses of its own between its requests (`remote.tries`).

    Raises:
        ConfigError: `tries` is below 1.
    """

    def __init__(self, model: RewardModel, tries: int = 3) -> None:
        if tries < 1:
            raise ConfigError(f"tries counts the first one too, so it is at least 1, got {tries}", key="tries")
        self.model, self.tries = model, tries

    @property
    def info(self) -> RewardInfo:
        """The model's."""
        return self.model.info

    @concurrent
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode; a failure is that of the last try."""
        scores = score_episodes(self.model, episodes)  # values of a wrong number are failures from here on
        for _ in range(self.tries - 1):
            failed = [i for i, score in enumerate(scores) if score.failure is not None]
            if not failed:
                break
            for i, score in zip(failed, score_episodes(self.model, [episodes[i] for i in failed]), strict=True):
                scores[i] = score
        return scores
