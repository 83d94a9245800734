"""What a run is made of, whatever its policy is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.engines.reward_models import RewardModels
from guerdon.rewards.source import RewardSource, SourceTerms
from guerdon.rl.episode_stats import EpisodeStats
from guerdon.rl.learner import Learner
from guerdon.rl.videos import EpisodeVideos
from guerdon.types import Collector


class Parts(NamedTuple):
    """What a loop is made of.

    Attributes:
        collector: acts.
        sources: of reward, by name, ground truth first.
        terms: how each source counts, of those that the policy learns from.
        learner: learns.
        stats: of episodes.
        unit: what `runner.total_steps` counts, in words.
        film: writes a film of the policy as it is into a folder, for a step of the run.
        save_policy: writes the policy as it is into a folder.
        notes: lines for the start of the log.
        videos: of training episodes; None: none are written.
        reward_models: scores with the models of the sources.
    """

    collector: Collector[Any, Any]
    sources: Mapping[str, RewardSource[Any]]
    terms: Mapping[str, SourceTerms]
    learner: Learner[Any, Any]
    stats: EpisodeStats
    unit: str
    film: Callable[[Path, int], None]
    save_policy: Callable[[Path], object]
    notes: list[str]
    videos: EpisodeVideos | None
    reward_models: RewardModels

    def close(self) -> None:
        """Close worlds, files, and connections to where the parts work."""
        if self.videos is not None:
            self.videos.close()
        for source in self.sources.values():
            source.close()
        self.collector.close()
        self.reward_models.close()
