"""Guerdon's reward models in OpenEnv, as rubrics of single answers and of whole trajectories.

A rubric returns a float, so a measurement that failed raises `RewardFailure`; `RetriedModel` tries it again first.

    rubric = ResponseRubric(scorer, question=lambda a, o: o.metadata["question"], response=lambda a, o: a.message)
    rubric = StepsRubric(scorer, question=lambda a, o: o.metadata["question"], step=lambda a, o: a.message)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openenv.core.rubrics import Rubric, TrajectoryRubric

from guerdon.errors import ConfigError, RewardFailure
from guerdon.integrations.text import Text, TextScorer, as_prompt, exchange, numbers
from guerdon.processes.call_queue import in_thread
from guerdon.serve.wires.wire_text import CutError
from guerdon.types import Episode, Score

Read = Callable[[Any, Any], Text]
"""A text, from an action and the observation after it."""


class ResponseRubric(Rubric):  # type: ignore[misc]
    """The reward of an answer.

    Args:
        scorer: a reward model, and how answers are read for it.
        question: what was asked.
        response: the answer.
    """

    def __init__(self, scorer: TextScorer, *, question: Read, response: Read) -> None:
        super().__init__()
        self.scorer, self.question, self.response = scorer, question, response

    def forward(self, action: Any, observation: Any) -> float:
        """The reward.

        Raises:
            RewardFailure: it could not be measured.
        """
        return self.scorer.numbers([self.question(action, observation)], [self.response(action, observation)])[0]


class AsyncResponseRubric(ResponseRubric):
    """As `ResponseRubric`, scored in a thread."""

    async def forward(self, action: Any, observation: Any) -> float:  # type: ignore[override]
        """The reward.

        Raises:
            RewardFailure: it could not be measured.
        """
        return await in_thread(super().forward, action, observation)


class StepsRubric(TrajectoryRubric):  # type: ignore[misc]
    """The reward of a trajectory whose actions are the steps of a solution; 0 is returned before its end.

    Args:
        scorer: a reward model of steps; its aggregation makes one value of them.
        question: what was asked.
        step: the text of a step.

    Raises:
        ConfigError: the model judges whole responses only.
    """

    def __init__(self, scorer: TextScorer, *, question: Read, step: Read) -> None:
        super().__init__()
        if scorer.aggregation is None:
            raise ConfigError(f"{scorer.model.info.name} judges whole responses: take ResponseRubric")
        self.scorer, self.question, self.step = scorer, question, step

    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> float:
        """One value of all steps.

        Raises:
            RewardFailure: it could not be measured.
        """
        return numbers([self.scorer.reward(self._score(trajectory))])[0]

    def compute_step_rewards(self) -> list[float]:
        """The model's value of each step so far.

        Raises:
            RewardFailure: they could not be measured.
        """
        if not self._trajectory:
            return []
        score = self._score(self._trajectory)
        if score.steps is None:
            reason = str(score.failure or "no_step_values: the model scored the whole response only")
            missing = [float("nan")] * len(self._trajectory)
            raise RewardFailure("the steps of a trajectory", {0: reason}, result=missing)
        return [float(value) for value in score.steps]

    def _score(self, trajectory: list[tuple[Any, Any]]) -> Score:
        question, texts = self.question(*trajectory[0]), list[str]()
        try:
            asked = as_prompt(question)
            for pair in trajectory:
                answered, text = exchange(question, self.step(*pair))
                if answered.messages != asked.messages:
                    raise CutError("a step is one message; this one has calls of tools before it")
                texts.append(text)
        except CutError as error:
            return Score(failure=error.failure)
        episode = Episode(id="0", task=asked.question, texts=tuple(texts), context=asked.context)
        return self.scorer.score_episodes([episode])[0]
