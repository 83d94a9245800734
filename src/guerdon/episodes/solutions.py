"""`Solution`: a question, an answer in steps, and labels and rewards of the steps.

Labelers write solutions, reward models for text learn from them, benchmarks consist of them. Steps are a partition of
the text: joined they are the text again, separators included, so that training, scoring and serving use the same
characters.

    solution = Solution(id="q1-0", question="3+5=?", steps=("3+5=8;",), labels=(1.0,), is_correct=True)
    solution.first_error     # -1: nothing is wrong
    solution.as_episode()    # what a RewardModel scores: one row per step
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guerdon.errors import DataError
from guerdon.reading.chats import asked_key
from guerdon.types import Episode, Message, Tool


@dataclass(frozen=True)
class Solution:
    """A written solution.

    Attributes:
        id: unique within its data set.
        question: in words.
        steps: the text in pieces, each with the separator that ends it.
        labels: per step the probability that it is right, 0 to 1 (0 or 1 where the label is hard); None: unknown.
            Empty: not labelled.
        rewards: per step the reward of `--reward HE` or `SE`, -1 to 1; None without label. Empty: not computed.
        is_correct: whether its answer is the true one, None: unknown. From an answer check, not a judge.
        ground_truth: the true answer.
        answer: what the solution states as its answer; None where it states none.
        separator: text that ends a step, for formats that store steps without it; empty where there is no fixed text.
        meta: where it comes from (policy, labeler, splitter, data source, failures by step); plain JSON values.
        context: the conversation that it answers, the question in it; empty: the question alone, as a user's turn.
        tools: functions that could be called in it, as JSON schemas.
    """

    id: str
    question: str
    steps: tuple[str, ...]
    labels: tuple[float | None, ...] = ()
    rewards: tuple[float | None, ...] = ()
    is_correct: bool | None = None
    ground_truth: str | None = None
    answer: str | None = None
    separator: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    context: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        for name, values, low in (("labels", self.labels, 0.0), ("rewards", self.rewards, -1.0)):
            if values and len(values) != len(self.steps):
                raise DataError(f"solution {self.id}: {len(values)} {name} for {len(self.steps)} steps", field=name)
            for k, value in enumerate(values):
                if value is not None and not low <= value <= 1.0:  # NaN fails too
                    raise DataError(f"solution {self.id}: {name}[{k}] is {value}; allowed: {low:g} to 1", field=name)

    def __repr__(self) -> str:
        """One line: the question and how many steps, and not their text."""
        question = textwrap.shorten(self.question, 60, placeholder="…")
        given = [name for name in ("labels", "rewards", "context", "tools") if getattr(self, name)]
        parts = [repr(self.id), repr(question), f"{len(self.steps)} steps", *given, f"is_correct={self.is_correct}"]
        return f"Solution({', '.join(parts)})"

    @property
    def text(self) -> str:
        """The solution as it was written."""
        return "".join(self.steps)

    @property
    def asked(self) -> str:
        """What solutions to the same conversation have in common: the question, if there is no more than that."""
        return asked_key(self.question, self.context, self.tools)

    @property
    def first_error(self) -> int | None:
        """Index of the first step more likely wrong than right, -1 where none is; None where labels do not say."""
        for k, label in enumerate(self.labels):
            if label is None:
                return None
            if label < 0.5:
                return k
        return -1 if self.labels else None

    def as_episode(self, group: str | None = None) -> Episode:
        """What a reward model scores: the question as the task, a row per step; `group`, see `Episode`.

        Raises:
            DataError: there is no step.
        """
        if not self.steps:
            raise DataError(f"solution {self.id} has no step", field="steps")
        return Episode(
            id=self.id, task=self.question, texts=self.steps, outcome=self.is_correct, meta=self.meta,
            context=self.context, tools=self.tools, group=group,
        )  # fmt: skip


def until_first_error(first: int, steps: int) -> tuple[float | None, ...]:
    """Hard labels of so many steps up to and with the first wrong one (-1: none is wrong); unknown after it."""
    return ((1.0,) * (steps if first < 0 else first) + (0.0,) + (None,) * steps)[:steps]
