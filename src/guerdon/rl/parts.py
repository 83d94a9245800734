"""What a run is made of, whatever its policy is: its parts, and where those work that may leave the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from guerdon.collect.shards import AheadCollector, Join, ShardedCollector, Share
from guerdon.compute.devices import resolve_device
from guerdon.engines.reward_models import Load, RayRewardModels, RewardModels
from guerdon.episodes.write import EpisodeWriter
from guerdon.plan.stages import loaded
from guerdon.rewards.source import RewardSource, SourceTerms
from guerdon.rl.episode_stats import EpisodeStats
from guerdon.rl.videos import EpisodeVideos
from guerdon.settings.cluster import ClusterSettings
from guerdon.settings.reward_source import SourceSettings
from guerdon.settings.runner import RunnerSettings
from guerdon.types import Collected, Metrics, Rewards, Rollout

RAY_COLLECTOR = "guerdon.engines.ray_collector:RayCollector"

_Policy = TypeVar("_Policy", contravariant=True)
Conversations = Callable[
    [Rollout[Any], Mapping[str, Rewards], Sequence[Mapping[str, Any]], int], Iterable[dict[str, Any]]
]


class Collector(Protocol[_Policy, Collected]):
    """Lets a policy act, and measures ground truth."""

    def collect(self, policy: _Policy, *, version: int = 0, warm_up: bool = False) -> Rollout[Collected]:
        """The next rollout, with the `version` of the weights; after `warm_up` ones only reward models learn."""

    def evaluate(self, policy: _Policy, *, episodes: int, step: int = 0, fresh: bool = False) -> dict[str, float]:
        """True success of the policy as it is; nothing of the run changes by it.

        Args:
            policy: what acts.
            episodes: how many.
            step: of the run.
            fresh: robots: from starts that no other episode of the run has.
        """

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values of everything that decides later rollouts."""

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Return to a stored state."""

    def close(self) -> None:
        """Close worlds, files and processes."""


class Learner(Protocol):
    """What changes the policy; it alone writes the policy's weights.

    Attributes:
        policy: acts.
        version: updates so far.
        source_weights: of the last update.
        skipped_in_a_row: updates skipped in a row up to now, because they were not finite.
    """

    policy: Any
    version: int
    source_weights: dict[str, float]

    @property
    def skipped_in_a_row(self) -> int: ...  # noqa: D102

    def update(
        self,
        rollout: Rollout[Any],
        rewards: Mapping[str, Rewards],
        terms: Mapping[str, SourceTerms],
        *,
        progress: float,
    ) -> Metrics:
        """Learn from a rollout; `progress` is the share of the run that is over."""
        ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able values of everything that decides the next update."""
        ...

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        ...

    def start_from(self, folder: Path) -> str:
        """Take over the policy of another run; a line that says what was done."""
        ...


class Parts(NamedTuple):
    """What a loop is made of.

    Attributes:
        collector: acts.
        sources: of reward, by name, ground truth first.
        terms: how each source counts, of those that the policy learns from.
        learner: learns.
        stats: of episodes.
        unit: what `runner.total_steps` counts, in words.
        show: writes what the report shows of the policy as it is into a folder, for a step of the run.
        save_policy: writes the policy as it is into a folder.
        notes: lines for the start of the log.
        videos: of training episodes; None: none are written.
        reward_models: scores with the models of the sources.
        evaluate: what the policy achieves now, over so many episodes; None: the collector's own evaluation.
        conversations: rows of `conversations.jsonl`, of a rollout, its rewards and its episodes, at a step of the run;
            None: there is no agent.
    """

    collector: Collector[Any, Any]
    sources: Mapping[str, RewardSource[Any]]
    terms: Mapping[str, SourceTerms]
    learner: Learner
    stats: EpisodeStats
    unit: str
    show: Callable[[Path, int], None]
    save_policy: Callable[[Path], object]
    notes: list[str]
    videos: EpisodeVideos | None
    reward_models: RewardModels
    evaluate: Callable[[int], Mapping[str, float]] | None = None
    conversations: Conversations | None = None

    def close(self) -> None:
        """Close worlds, files, and connections to where the parts work."""
        if self.videos is not None:
            self.videos.close()
        for source in self.sources.values():
            source.close()
        self.collector.close()
        self.reward_models.close()


def run_collector(
    cluster: ClusterSettings | None,
    runner: RunnerSettings,
    make: Callable[..., Any],
    shards: Sequence[Mapping[str, Any]],
    join: Join,
    share: Share | None = None,
    writer: EpisodeWriter | None = None,
    *,
    device: str,
) -> Any:
    """What collects the rollouts of a run, ahead of the learner with `runner.max_staleness`.

    Args:
        cluster: the `cluster` section with `engine: ray`; None: it collects in this process.
        runner: the `runner` section.
        make: from plain arguments to the collector of one shard.
        shards: its arguments, by name, for every shard.
        join: makes one rollout of those of all shards.
        share: what shards learn from each other before a rollout.
        writer: of the episodes that shards record for this process.
        device: of the policy that learns.

    Raises:
        ConfigError: the cluster cannot be reached or has no room; or what `make` refuses.
        MissingDependencyError: Ray is not installed.
    """
    if cluster is not None:
        place = loaded(RAY_COLLECTOR)
        where = resolve_device(device)
        placed = place(cluster, make, shards, join, share, writer, threads=runner.threads, device=where)

    def build() -> Any:
        if cluster is not None:
            return placed
        collectors = [make(**one) for one in shards]
        return collectors[0] if len(collectors) == 1 else ShardedCollector(collectors, join, share, writer)

    return AheadCollector(build, staleness=runner.max_staleness) if runner.max_staleness else build()


def run_reward_models(
    cluster: ClusterSettings | None,
    runner: RunnerSettings,
    load: Load,
    shards: int,
    sources: Mapping[str, SourceSettings],
) -> RewardModels:
    """What loads the reward models of a run, and scores with them.

    Args:
        cluster, runner: see `run_collector`.
        load: loads the model of a source; importable on every node.
        shards: `reward.scoring_shards`.
        sources: of the run, by name.

    Raises:
        ConfigError: the cluster cannot be reached or has no room.
        MissingDependencyError: Ray is not installed.
    """
    if cluster is not None and cluster.reward_workers:
        return RayRewardModels(load, shards, sources, cluster, runner.threads)
    return RewardModels(load, shards)
