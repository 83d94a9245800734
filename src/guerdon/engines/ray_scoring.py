"""Reward workers: frozen reward models as actors of a Ray cluster, which may die.

Every worker holds all models that are scored on the cluster. The parts of a batch (`reward.scoring_shards`) are shared
out to the workers; the part of a lost worker is scored again by another one, with the same scores.

    models = RayRewardModels(study, load, study.reward.sources)
    models.model("progress", settings).score(episodes)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from guerdon.engines.ray_cluster import Actors, ActorSettings, ClusterWorker
from guerdon.engines.reward_models import Load, RewardModels, ShardedModel
from guerdon.settings.reward import SourceSettings
from guerdon.settings.study import Study
from guerdon.types import Episode, RewardInfo, RewardModel, Score


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
        return self._model(name).score(episodes)

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
        study: the resolved configuration.
        load: from a source to its model; importable on every node.
        sources: of the run, by name.

    Raises:
        ConfigError: the cluster cannot be reached, or has no room.
        MissingDependencyError: Ray is not installed.
    """

    def __init__(self, study: Study, load: Load, sources: Mapping[str, SourceSettings]) -> None:
        super().__init__(load, study.reward.scoring_shards)
        cluster = study.cluster
        placed = {name: one for name, one in sources.items() if not one.stays_with_learner}
        wanted = ActorSettings(
            "reward worker", "cluster.reward_workers", cluster.reward_workers, cluster.reward_worker_cpus,
            cluster.reward_worker_gpus, cluster.reward_worker_resources, packed=True,
        )  # fmt: skip
        self._actors = Actors(ScoringWorker, (load, placed), wanted, cluster, study.runner.threads)

    @property
    def replaced(self) -> int:
        """Reward workers that were lost and replaced up to now."""
        return self._actors.replaced

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
        """End the reward workers, and the cluster where they started it."""
        self._actors.close()
