"""The frozen reward models of a run, whose batches are scored in parts.

A batch is scored in `reward.scoring_shards` parts, in order. That number decides the numbers of a run in their last
digits, because a forward pass of other episodes pads and rounds otherwise; who scores the parts does not.

    models = RewardModels(load_model, shards=4)
    sources["progress"] = ControlReward(terms, models.model("progress", settings), settings, num_envs=8)
    models.close()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from guerdon.errors import DataError
from guerdon.settings.reward import SourceSettings
from guerdon.types import Episode, RewardInfo, RewardModel, Score

Load = Callable[[SourceSettings], RewardModel]
"""From an entry of `reward.sources` to its model."""


class RewardModels:
    """Reward models in this process.

    Args:
        load: loads one.
        shards: parts in which a batch is scored (`reward.scoring_shards`).
    """

    def __init__(self, load: Load, shards: int = 1) -> None:
        self._load, self._shards = load, shards

    def model(self, name: str, settings: SourceSettings) -> RewardModel:
        """The model of a source.

        Args:
            name: of the source.
            settings: of the source.
        """
        model = self._load(settings)
        if self._shards == 1 or settings.stays_with_learner:
            return model
        return ShardedModel(model.info, self._shards, lambda parts: [model.score(part) for part in parts])

    @property
    def replaced(self) -> int:
        """Reward workers that were lost and replaced up to now."""
        return 0

    def close(self) -> None:
        """End the reward workers."""


class ShardedModel:
    """A reward model whose batches are scored in parts.

    Args:
        info: of the model.
        shards: how many parts; fewer where there are fewer episodes.
        score: the scores of each part.
    """

    def __init__(
        self, info: RewardInfo, shards: int, score: Callable[[list[Sequence[Episode]]], list[list[Score]]]
    ) -> None:
        self._info, self._shards, self._score = info, shards, score

    @property
    def info(self) -> RewardInfo:
        """That of the model."""
        return self._info

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order.

        Raises:
            DataError: the model gave another number of scores than there are episodes.
        """
        places = np.array_split(np.arange(len(episodes)), min(self._shards, max(len(episodes), 1)))
        parts: list[Sequence[Episode]] = [[episodes[i] for i in place] for place in places if len(place)]
        found = self._score(parts)
        for part, scores in zip(parts, found, strict=True):
            if len(part) != len(scores):
                raise DataError(
                    f"reward model {self.info.name!r} gave {len(scores)} scores for {len(part)} episodes; `score` must "
                    "give one per episode, in order"
                )
        return [score for scores in found for score in scores]
