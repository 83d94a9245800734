"""The frozen reward models of a run, whose batches are scored in parts.

A batch is scored in `reward.scoring_shards` parts, in order; a model that compares gets whole groups. That number
decides the numbers of a run in their last digits, because a forward pass of other episodes pads and rounds otherwise;
who scores the parts does not.

With reward workers, frozen models are actors of a Ray cluster, which may die: every worker holds all models that are
scored there, and the part of a lost one is scored again by another one, with the same scores.

    models = RewardModels(load_model, shards=4)
    sources["progress"] = ControlReward(terms, models.model("progress", settings), settings, num_envs=8)
    models.close()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from guerdon.engines.ray_cluster import Actors, ClusterWorker
from guerdon.errors import DataError
from guerdon.models.scores import score_episodes
from guerdon.settings.cluster import ClusterSettings
from guerdon.settings.reward_source import SourceSettings
from guerdon.types import Episode, RewardInfo, RewardModel, Score

Load = Callable[[Any], RewardModel]
"""From an entry of `reward.sources`, of a form that it knows, to its model."""


class RewardModels:
    """Reward models in this process.

    Args:
        load: loads one.
        shards: parts in which a batch is scored (`reward.scoring_shards`).
    """

    def __init__(self, load: Load, shards: int = 1) -> None:
        self._load, self._shards = load, shards
        self._loaded: list[RewardModel] = []

    def model(self, name: str, settings: SourceSettings) -> RewardModel:
        """The model of a source.

        Args:
            name: of the source.
            settings: of the source.
        """
        model = self._load(settings)
        self._loaded.append(model)
        if self._shards == 1 or settings.stays_with_learner:
            return model
        return ShardedModel(model.info, self._shards, lambda parts: [score_episodes(model, part) for part in parts])

    def close(self) -> None:
        """Close the models that keep files open; end the reward workers."""
        for model in self._loaded:
            if close := getattr(model, "close", None):
                close()


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
        together: dict[Any, list[int]] = {}  # what may not be in different parts
        for i, episode in enumerate(episodes):
            together.setdefault(episode.group if self._info.compares else i, []).append(i)
        units = list(together.values())
        places: list[list[int]] = []
        parts: list[Sequence[Episode]] = []
        for share in np.array_split(np.arange(len(units)), min(self._shards, max(len(units), 1))):
            place = [i for unit in share for i in units[unit]]
            if place:
                places.append(place)
                parts.append([episodes[i] for i in place])
        by_place: dict[int, Score] = {}
        for place, scores in zip(places, self._score(parts), strict=True):
            if len(place) != len(scores):
                raise DataError(
                    f"reward model {self.info.name!r} gave {len(scores)} scores for {len(place)} episodes; "
                    "`score` must give one per episode, in order"
                )
            by_place.update(zip(place, scores, strict=True))
        return [by_place[i] for i in range(len(episodes))]


class ScoringWorker(ClusterWorker):
    """What runs in an actor: reward models, each loaded when it is first needed.

    Args:
        load: from a source to its model.
        sources: whose models it may be asked for.
    """

    def __init__(self, load: Load, sources: Mapping[str, SourceSettings]) -> None:
        self._load, self._sources = load, sources
        self._models: dict[str, RewardModel] = {}

    def info(self, name: str) -> RewardInfo:
        """What the model of a source promises."""
        return self._model(name).info

    def score(self, name: str, episodes: Sequence[Episode]) -> list[Score]:
        """Scores of episodes by the model of a source."""
        return score_episodes(self._model(name), episodes)

    def close(self) -> None:
        """Forget the models."""
        self._models.clear()

    def _model(self, name: str) -> RewardModel:
        if name not in self._models:
            self._models[name] = self._load(self._sources[name])
        return self._models[name]


class RayRewardModels(RewardModels):
    """Reward models on reward workers; those that stay with the learner are in this process.

    Args:
        load: from a source to its model; importable on every node.
        shards: see `RewardModels`.
        sources: of the run, by name.
        cluster: the `cluster` section.
        threads: `runner.threads`.

    Raises:
        ConfigError: the cluster cannot be reached, or has no room.
        MissingDependencyError: Ray is not installed.
    """

    def __init__(
        self, load: Load, shards: int, sources: Mapping[str, SourceSettings], cluster: ClusterSettings, threads: int
    ) -> None:
        super().__init__(load, shards)
        placed = {name: one for name, one in sources.items() if not one.stays_with_learner}
        self._actors = Actors(ScoringWorker, (load, placed), "reward_worker", cluster, threads)

    def model(self, name: str, settings: SourceSettings) -> RewardModel:
        """The model of a source: that of the workers, unless it stays with the learner."""
        if settings.stays_with_learner:
            return super().model(name, settings)
        ((_, info),) = self._actors.results([name], lambda worker, name: worker.info.remote(name))

        def score(parts: list[Sequence[Episode]]) -> list[list[Score]]:
            found = dict(self._actors.results(parts, lambda worker, part: worker.score.remote(name, part)))
            return [found[k] for k in range(len(parts))]

        return ShardedModel(info, self._shards, score)

    def close(self) -> None:
        """As `RewardModels.close`; and end the cluster where they started it."""
        super().close()
        self._actors.close()
