"""What every labeler is: written solutions in, a label per step out, or the reason why there is none.

    labels = labeler.label([Written(solution, prompt)])[0]
    if isinstance(labels, StepLabels): labels.values              # (1.0, 1.0, 0.0, None)

Here also is the simplest of them: `ExactLabeler` computes the truth of generated tasks. This module asks nobody and
samples nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from guerdon.episodes.solutions import Solution
from guerdon.types import Failure
from guerdon.worlds.prompts import Prompt
from guerdon.worlds.reasoning import is_generated, step_truth

NO_CONSENSUS = "no_consensus"  # two labelers disagree: left out on purpose, not a failed measurement


@dataclass(frozen=True)
class Written:
    """A solution and the prompt that it answers."""

    solution: Solution
    prompt: Prompt


@dataclass(frozen=True)
class StepLabels:
    """What a labeler found.

    Attributes:
        values: per step the probability that it is right; None where the labeler cannot tell.
        meta: how it was found; plain JSON values.
    """

    values: tuple[float | None, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_error(self) -> int | None:
        """As `Solution.first_error`."""
        return Solution("", "", ("",) * len(self.values), self.values).first_error


class Labeler(Protocol):
    """Anything that labels steps."""

    @property
    def name(self) -> str:
        """How data sets call it."""
        ...

    @property
    def at_a_time(self) -> int:
        """Solutions that are best asked about together."""
        ...

    def label(self, written: Sequence[Written]) -> list[StepLabels | Failure]:
        """Labels of each solution, in order."""
        ...


def in_groups(labeler: Labeler, written: Sequence[Written]) -> Generator[tuple[int, StepLabels | Failure]]:
    """Labels of some solutions after the other, each with the place of its solution."""
    for start in range(0, len(written), labeler.at_a_time):
        yield from enumerate(labeler.label(written[start : start + labeler.at_a_time]), start)


def until_first_error(right: Sequence[bool]) -> tuple[float | None, ...]:
    """Hard labels up to and with the first wrong step; unknown behind it."""
    first = list(right).index(False) if False in right else len(right)
    return tuple(1.0 if k < first else 0.0 if k == first else None for k in range(len(right)))


class ExactLabeler:
    """The truth of generated tasks: right is the true line at its place, up to and with the first wrong line.

    Lines behind it have no label: whether a line is good that follows well from a wrong one is a matter of taste,
    and benchmarks (ProcessBench, 2412.06559) do not ask about it.
    """

    name = "exact"
    at_a_time = 10_000

    def label(self, written: Sequence[Written]) -> list[StepLabels | Failure]:
        """Labels of each solution; a `Failure` where the task is not generated, or steps end inside its lines."""
        return [self._one(w) for w in written]

    def _one(self, written: Written) -> StepLabels | Failure:
        if not is_generated(written.prompt):
            return Failure("not_generated", "the truth of steps is known for generated tasks only")
        truth = step_truth(written.prompt, written.solution.text)
        ends = list(accumulate(map(len, written.solution.steps)))
        lines = [end for _, end in truth.spans]
        if not set(ends) <= set(lines):
            return Failure("steps_do_not_fit", "steps end inside the task's lines; use the splitter separator")
        right = [
            all(ok for ok, line in zip(truth.correct, lines, strict=True) if start < line <= end)
            for start, end in zip([0, *ends], ends, strict=False)
        ]
        return StepLabels(until_first_error(right), {"rule": "correct until the first error"})
