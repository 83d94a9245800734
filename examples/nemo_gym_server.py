"""A guerdon reward model as a resources server of NeMo-Gym: python examples/nemo_gym_server.py.

Then resources_url is http://127.0.0.1:8000.
"""

import numpy as np
import uvicorn

from guerdon import Episode, RewardInfo, Score
from guerdon.integrations.nemo_gym import build_app
from guerdon.integrations.retries import RetriedModel
from guerdon.integrations.text import TextScorer


class Lengths:
    """A value for each step: short ones are good."""

    info = RewardInfo("lengths", (0.0, 1.0), granularity="step", modality="text", frames_needed=0)

    def score(self, episodes: list[Episode]) -> list[Score]:
        """One Score per answer; an empty step has no length to divide by, and is a failure (`non_finite`)."""
        with np.errstate(divide="ignore"):
            return [Score.from_values(1 / np.array([len(text.strip()) for text in e.texts])) for e in episodes]


app = build_app(TextScorer(RetriedModel(Lengths(), tries=3), aggregation="min"))

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=8000)
