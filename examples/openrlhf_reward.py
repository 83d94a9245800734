"""A function file for OpenRLHF: --reward.remote_url examples/openrlhf_reward.py.

It holds `reward_func`. Replace the model by yours, for instance `load_reward_model("runs/prm")`.
"""

import numpy as np

from guerdon import Episode, RewardInfo, Score
from guerdon.integrations.openrlhf import reward_function
from guerdon.integrations.retries import RetriedModel
from guerdon.integrations.text import TextScorer


class Lengths:
    """A value for each step: short ones are good."""

    info = RewardInfo("lengths", (0.0, 1.0), granularity="step", modality="text", frames_needed=0)

    def score(self, episodes: list[Episode]) -> list[Score]:
        """One Score per answer; an empty step has no length to divide by, and is a failure (`non_finite`)."""
        with np.errstate(divide="ignore"):
            return [Score.from_values(1 / np.array([len(text.strip()) for text in e.texts])) for e in episodes]


reward_func = reward_function(TextScorer(RetriedModel(Lengths(), tries=3), aggregation="min"))
