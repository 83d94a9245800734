"""Guerdon: the whole life of a reward model, for language models that reason and for robots that move.

    import guerdon

    guerdon.audit("rollouts/")                                  # what is wrong with the reward of a run
    model = guerdon.load_reward_model("progress", "runs/quickstart/models/MountainCarContinuous-v0/progress")
    guerdon.score(model, guerdon.read_episodes("runs/quickstart/data"))
    guerdon.compare("study.yaml").arms.to_pandas()              # reward settings, with intervals

Names are imported when they are used. Every name in `__all__` stays, or is warned about for one minor version before it
goes; everything else is internal (docs/releasing.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from guerdon.api import audit, compare, evaluate, load_reward_model, load_study, run, score
    from guerdon.comparison.play import load_policy
    from guerdon.episodes.read import read_episodes
    from guerdon.episodes.solutions import Solution
    from guerdon.episodes.write import EpisodeWriter
    from guerdon.serve.client import RewardClient
    from guerdon.types import Episode, Failure, RewardInfo, RewardModel, Score
    from guerdon.worlds.messages import WorldStep

_PLACES = {
    "Episode": "guerdon.types",
    "Score": "guerdon.types",
    "Failure": "guerdon.types",
    "RewardInfo": "guerdon.types",
    "RewardModel": "guerdon.types",
    "Solution": "guerdon.episodes.solutions",
    "load_reward_model": "guerdon.api",
    "read_episodes": "guerdon.episodes.read",
    "EpisodeWriter": "guerdon.episodes.write",
    "evaluate": "guerdon.api",
    "score": "guerdon.api",
    "audit": "guerdon.api",
    "RewardClient": "guerdon.serve.client",
    "load_study": "guerdon.api",
    "load_policy": "guerdon.comparison.play",
    "run": "guerdon.api",
    "compare": "guerdon.api",
    "WorldStep": "guerdon.worlds.messages",
}

__all__ = [
    "Episode",
    "EpisodeWriter",
    "Failure",
    "RewardClient",
    "RewardInfo",
    "RewardModel",
    "Score",
    "Solution",
    "WorldStep",
    "audit",
    "compare",
    "evaluate",
    "load_policy",
    "load_reward_model",
    "load_study",
    "read_episodes",
    "run",
    "score",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'guerdon' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
