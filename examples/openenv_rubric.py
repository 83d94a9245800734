"""A guerdon reward model of steps as a rubric of OpenEnv: python examples/openenv_rubric.py."""

from types import SimpleNamespace

import numpy as np

from guerdon import Episode, RewardInfo, Score
from guerdon.integrations import RewardFailure
from guerdon.integrations.openenv import StepsRubric
from guerdon.integrations.retries import RetriedModel
from guerdon.integrations.text import TextScorer


class Lengths:
    """A value for each step: short ones are good."""

    info = RewardInfo("lengths", (0.0, 1.0), granularity="step", modality="text", frames_needed=0)

    def score(self, episodes: list[Episode]) -> list[Score]:
        """One Score per solution; an empty step has no length to divide by, and is a failure (`non_finite`)."""
        with np.errstate(divide="ignore"):
            return [Score.from_values(1 / np.array([len(text.strip()) for text in e.texts])) for e in episodes]


def main() -> list[list[float] | str]:
    """Two trajectories: rewards of their steps, or why there are none."""
    scorer = TextScorer(RetriedModel(Lengths(), tries=3), aggregation="min")
    rubric = StepsRubric(scorer, question=lambda action, seen: seen.question, step=lambda action, seen: action)
    found: list[list[float] | str] = []
    for steps in (["3+5=8", "so 8"], ["3+5=8", " "]):
        rubric.reset()
        try:
            for n, step in enumerate(steps):
                rubric(step, SimpleNamespace(question="3+5=?", done=n == len(steps) - 1))
            found.append(rubric.compute_step_rewards())
        except RewardFailure as failure:
            found.append(failure.reasons[0])
    return found


if __name__ == "__main__":
    print(main())
