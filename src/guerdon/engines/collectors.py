"""The collector and the reward models of a run on its engine: in this process, or as actors of a Ray cluster.

collector = run_collector(study, ControlCollector, [dict(env=..., seed=0), ...], join_control)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from guerdon.collect.ahead import AheadCollector
from guerdon.collect.shards import Join, ShardedCollector, Share
from guerdon.engines.reward_models import Load, RewardModels
from guerdon.episodes.write import EpisodeWriter
from guerdon.settings.reward import SourceSettings
from guerdon.settings.study import Study


def run_collector(
    study: Study,
    make: Callable[..., Any],
    shards: Sequence[Mapping[str, Any]],
    join: Join,
    share: Share | None = None,
    writer: EpisodeWriter | None = None,
) -> Any:
    """What collects the rollouts of a run, ahead of the learner with `runner.max_staleness`.

    Args:
        study: the resolved configuration.
        make: from plain arguments to the collector of one shard.
        shards: its arguments, by name, for every shard.
        join: makes one rollout of those of all shards.
        share: what shards learn from each other before a rollout.
        writer: of the episodes that shards record for this process.

    Raises:
        ConfigError: the cluster cannot be reached or has no room; or what `make` refuses.
        MissingDependencyError: Ray is not installed.
    """
    if study.engine == "ray":
        from guerdon.engines.ray_collector import RayCollector

        placed = RayCollector(
            study.cluster, make, shards, join, share, writer,
            threads=study.runner.threads,
        )  # fmt: skip
        return _ahead(study, lambda: placed)
    return _ahead(study, lambda: _local([make(**one) for one in shards], join, share, writer))


def run_reward_models(study: Study, load: Load, sources: Mapping[str, SourceSettings]) -> RewardModels:
    """What loads the reward models of a run, and scores with them.

    Args:
        study: the resolved configuration.
        load: loads the model of a source; importable on every node.
        sources: of the run, by name.

    Raises:
        ConfigError: the cluster cannot be reached or has no room.
        MissingDependencyError: Ray is not installed.
    """
    if study.engine == "ray" and study.cluster.reward_workers:
        from guerdon.engines.ray_scoring import RayRewardModels

        return RayRewardModels(study, load, sources)
    return RewardModels(load, study.reward.scoring_shards)


def _local(collectors: list[Any], join: Join, share: Share | None, writer: EpisodeWriter | None) -> Any:
    return collectors[0] if len(collectors) == 1 else ShardedCollector(collectors, join, share, writer)


def _ahead(study: Study, build: Callable[[], Any]) -> Any:
    staleness = study.runner.max_staleness
    return AheadCollector(build, staleness=staleness) if staleness else build()
