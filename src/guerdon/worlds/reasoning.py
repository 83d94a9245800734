"""Generated, seeded tasks in several steps, with exact answers and the exact truth of every step.

The test bed for process rewards: what a reward model can only guess (which line went wrong first) is computed
here from the question alone. Truth is total: any text is a list of right and wrong steps, never an error. This
module does not know models, tokens or rewards.

    family = Family(ChainSettings(steps=2))
    prompt = family.sample(np.random.default_rng(0))       # 3+5=?;?*2=?;
    truth = step_truth(prompt, "3+5=9;9*2=8;")             # correct (False, False), follows (False, True)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from pydantic import TypeAdapter, ValidationError

from guerdon.errors import DataError
from guerdon.settings.data import TaskSettings
from guerdon.worlds.families import SEPARATOR, Problem, Rules, rules_of
from guerdon.worlds.prompts import Prompt, question_hash

_TASK: TypeAdapter[TaskSettings] = TypeAdapter(TaskSettings)
_TRIES_PER_PROBLEM = 50


@dataclass(frozen=True)
class StepTruth:
    """What is true about a response, step by step.

    A step is the text up to and with the next separator; what stands behind the last one is a step of its own,
    unless it is blank. Spans follow each other without a gap and cover the whole text.

    Attributes:
        correct: per step, whether it is the true line at its place.
        follows: per step, whether it follows from the lines that this response wrote before it: after one slip
            the later steps may still reason well. False where those lines cannot be read.
        spans: per step, start and end in characters.
        first_error: the first step that is not correct, from 0; -1 where none is wrong.
        answer: what the last step states as its result; None where it is malformed or there is none.
        outcome: whether the answer is the true one, however it was reached.
        expected: steps of the true solution.
    """

    correct: tuple[bool, ...]
    follows: tuple[bool, ...]
    spans: tuple[tuple[int, int], ...]
    first_error: int
    answer: str | None
    outcome: bool
    expected: int

    @property
    def complete(self) -> bool:
        """Whether the response is the true solution, from the first line to the last."""
        return len(self.correct) == self.expected and all(self.correct)


def step_spans(text: str, separator: str = SEPARATOR) -> tuple[tuple[int, int], ...]:
    """Start and end of every step in characters: a partition of the text, separators belong to the step they end."""
    spans: list[tuple[int, int]] = []
    start = 0
    while (end := text.find(separator, start)) >= 0:
        spans.append((start, end + len(separator)))
        start = end + len(separator)
    if start < len(text):
        if spans and not text[start:].strip():
            spans[-1] = (spans[-1][0], len(text))
        else:
            spans.append((start, len(text)))
    return tuple(spans)


@dataclass(frozen=True)
class Family:
    """A kind of problem at one difficulty.

    Attributes:
        settings: which kind, how hard.
    """

    settings: TaskSettings

    @property
    def name(self) -> str:
        """The family's name."""
        return self.settings.family

    @property
    def separator(self) -> str:
        """What ends a step."""
        return SEPARATOR

    @property
    def rules(self) -> Rules:
        """How problems are drawn and solved."""
        return rules_of(self.settings)

    def alphabet(self) -> str:
        """Every character of questions and solutions, sorted: the vocabulary of a tiny character tokenizer."""
        return self.rules.alphabet()

    def sample(self, rng: np.random.Generator) -> Prompt:
        """Draw a problem, solved."""
        return self.prompt(self.rules.question(rng))

    def prompt(self, question: str) -> Prompt:
        """The prompt that asks this question.

        Raises:
            DataError: it is no question of this family.
        """
        problem = self.rules.solve(question)
        messages = ({"role": "user", "content": question},)
        return Prompt(
            id=f"{self.name}-{question_hash(messages)}",
            messages=messages,
            ground_truth=problem.value(problem.lines[-1]) or "",
            data_source=f"guerdon/{self.name}",
            ability="reasoning",
            extra_info={
                "family": self.name,
                "parameters": self.settings.model_dump(mode="json", exclude={"family", "seed"}),
            },
            solution="".join(line + self.separator for line in problem.lines),
        )

    def check_steps(self, prompt: Prompt, response: str) -> StepTruth:
        """The truth of every step of a response.

        Raises:
            DataError: the prompt's question is none of this family; no response raises.
        """
        return judge(self.rules.solve(prompt.question), response, self.separator)


def judge(problem: Problem, text: str, separator: str = SEPARATOR) -> StepTruth:
    """Compare a text with the truth about a problem; blanks around a line do not count."""
    spans = step_spans(text, separator)
    lines = [text[start:end].strip().removesuffix(separator).strip() for start, end in spans]
    correct = tuple(k < len(problem.lines) and line == problem.lines[k] for k, line in enumerate(lines))
    follows = tuple(line == problem.follow(k, lines[:k]) for k, line in enumerate(lines[: len(problem.lines)]))
    written = [line for line in lines if line]
    answer = problem.value(written[-1]) if written else None
    return StepTruth(
        correct=correct,
        follows=follows + (False,) * (len(lines) - len(follows)),
        spans=spans,
        first_error=correct.index(False) if False in correct else -1,
        answer=answer,
        outcome=answer is not None and answer == problem.value(problem.lines[-1]),
        expected=len(problem.lines),
    )


def is_generated(prompt: Prompt) -> bool:
    """Whether a prompt says how to recompute its truth."""
    return "family" in prompt.extra_info


def family_of(prompt: Prompt) -> Family:
    """The family that a prompt was drawn from, by what its `extra_info` says.

    Raises:
        DataError: it is not a generated prompt, or its parameters are not those of its family.
    """
    if not is_generated(prompt):
        raise DataError(f"prompt {prompt.id} is not a generated problem: the truth of its steps is not known")
    given = {"family": prompt.extra_info["family"], **prompt.extra_info.get("parameters", {})}
    return _family(json.dumps(given, sort_keys=True))


@lru_cache(maxsize=256)
def _family(given: str) -> Family:
    try:
        return Family(_TASK.validate_json(given))
    except ValidationError as error:
        raise DataError(f"extra_info describes no family of this version: {given}: {error}") from error


def step_truth(prompt: Prompt, text: str) -> StepTruth:
    """The truth of every step of a response, recomputed from the prompt alone.

    Raises:
        DataError: the prompt is not a generated problem, or its question was changed.
    """
    return family_of(prompt).check_steps(prompt, text)


def generate(settings: TaskSettings, train_size: int, val_size: int) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Different problems to train on and to validate on; no question is in both.

    Validation problems are drawn first and from a stream of their own: they stay the same for any `train_size`.

    Raises:
        DataError: the family has too few different problems at this difficulty.
    """
    family = Family(settings)
    validation = _draw(family, val_size, np.random.default_rng([settings.seed, 1]), taken=())
    train = _draw(family, train_size, np.random.default_rng([settings.seed, 0]), taken=validation)
    return train, validation


def _draw(family: Family, size: int, rng: np.random.Generator, taken: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """`size` different problems, none of them among those taken."""
    rules = family.rules
    seen = {prompt.question for prompt in taken}
    questions: list[str] = []
    for _ in range(_TRIES_PER_PROBLEM * size):
        if len(questions) == size:
            break
        question = rules.question(rng)
        if question not in seen:
            seen.add(question)
            questions.append(question)
    if len(questions) < size:
        raise DataError(
            f"the family {family.name} has hardly more than {len(seen)} different problems at this difficulty; lower "
            "data.train_size or data.val_size, or make the task larger"
        )
    return tuple(family.prompt(question) for question in questions)
