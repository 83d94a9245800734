"""A reward model that gives every row the same value: the control arm of a study.

ConstantModel(0.0).score([episode])[0].total   # 0.0
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from guerdon.errors import ConfigError
from guerdon.processes.call_queue import concurrent
from guerdon.types import Episode, RewardInfo, Score


class ConstantModel:
    """Gives `value` to every row of every episode.

    Raises:
        ConfigError: `value` is not finite.
    """

    def __init__(self, value: float = 0.0) -> None:
        if not np.isfinite(value):
            raise ConfigError(f"the constant reward must be finite, got {value}", key="value")
        self.value = float(value)

    @property
    def info(self) -> RewardInfo:
        """A range of one value, no frames needed."""
        return RewardInfo(name="constant", range=(self.value, self.value), modality="state", frames_needed=0)

    @concurrent
    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode: `value` at every row and in total."""
        return [Score(steps=np.full(len(e), self.value, np.float32), total=self.value) for e in episodes]
