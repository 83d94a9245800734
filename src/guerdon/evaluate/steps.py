"""How well values of steps tell right steps from wrong ones, and where a model sees the first error.

Labels come from the solution itself, or from its published first error: steps before it are right, it is wrong, and
what follows is not judged by anybody. Steps of one question resemble one another, so intervals resample questions.
This module does not know models or files.

    table = step_table(solutions, scores)
    metrics = step_metrics(table, reps=1000, seed=0)              # auroc, auprc, brier, ece
    first = first_errors(solutions, scores, threshold=0.5)        # exact, early, late, missed, false alarm
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from guerdon.episodes.solutions import Solution
from guerdon.evaluate.aggregate import paired
from guerdon.evaluate.classification import ReliabilityBin, reliability_bins
from guerdon.evaluate.intervals import wilson_interval
from guerdon.evaluate.metrics import Metric, Table, classification_metrics
from guerdon.types import Score

ERRONEOUS = ("exact", "early", "late", "missed", "failed")
CORRECT = ("clean", "false_alarm", "failed")


def first_below(steps_T: ArrayLike, threshold: float) -> int:
    """Index of the first step with a value below the threshold, -1 where there is none."""
    below = np.flatnonzero(np.asarray(steps_T, dtype=np.float64) < threshold)
    return int(below[0]) if below.size else -1


def true_first_error(solution: Solution) -> int | None:
    """The published first error (`meta["first_error"]`), else what the labels say; None where nobody knows."""
    published = solution.meta.get("first_error")
    return solution.first_error if published is None else int(published)


def step_labels(solution: Solution) -> list[bool | None]:
    """Is each step right? From `meta["error_steps"]`, else labels, else what a first error implies."""
    n = len(solution.steps)
    if "error_steps" in solution.meta:
        wrong = {int(k) for k in solution.meta["error_steps"]}
        return [k not in wrong for k in range(n)]
    if solution.labels:
        return [None if label is None else label >= 0.5 for label in solution.labels]
    first = true_first_error(solution)
    if first is None:
        return [None] * n
    return [True] * n if first < 0 else [True] * first + [False] + [None] * (n - first - 1)


def step_table(solutions: Sequence[Solution], scores: Sequence[Score]) -> Table:
    """Every labelled and scored step; groups are questions, `missing` counts the other steps.

    Raises:
        DataError: there is no solution, or another number of scores.
    """
    labels: list[bool] = []
    values: list[float] = []
    groups: list[int] = []
    missing = 0
    questions: dict[str, int] = {}
    for solution, score in paired(solutions, scores):
        truth = step_labels(solution)
        group = questions.setdefault(solution.question, len(questions))
        for k, label in enumerate(truth):
            if label is None or score.steps is None:
                missing += 1
                continue
            labels.append(label)
            values.append(float(score.steps[k]))
            groups.append(group)
    return Table(
        np.array(labels, dtype=np.bool_), np.array(values, dtype=np.float64), np.array(groups, dtype=np.int64), missing
    )


def step_metrics(table: Table, *, reps: int, seed: int) -> dict[str, Metric]:
    """AUROC, AUPRC, Brier and ECE of right steps against wrong ones, with intervals over questions.

    Brier and ECE are undefined where values lie outside [0, 1].
    """
    return classification_metrics(table, threshold=None, probabilities=True, reps=reps, seed=seed)


def calibration(table: Table) -> list[ReliabilityBin]:
    """The bins of a reliability diagram of steps; none where values lie outside [0, 1]."""
    return reliability_bins(table.labels, table.scores) if table.within(0, 1) else []


@dataclass(frozen=True)
class FirstErrors:
    """What a model says of where solutions go wrong first.

    Attributes:
        erroneous: solutions with an error by what was said: `exact`, `early`, `late`, `missed`, `failed`.
        correct: solutions without one: `clean`, `false_alarm`, `failed`.
        unknown: solutions whose first error nobody knows.
    """

    erroneous: dict[str, int]
    correct: dict[str, int]
    unknown: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: counts, and shares with Wilson intervals."""
        record: dict[str, Any] = {"unknown": self.unknown}
        for name, counts in (("erroneous", self.erroneous), ("correct", self.correct)):
            n = sum(counts.values())
            record[name] = {
                what: {"count": count, "share": Metric(wilson_interval(count, n)).to_dict()}
                for what, count in counts.items()
            }
        return record


def first_errors(solutions: Sequence[Solution], scores: Sequence[Score], threshold: float) -> FirstErrors:
    """Compare the first step below the threshold with the true first error.

    Raises:
        DataError: there is no solution, or another number of scores.
    """
    erroneous, correct, unknown = Counter[str](), Counter[str](), 0
    for solution, score in paired(solutions, scores):
        truth = true_first_error(solution)
        said = None if score.steps is None else first_below(score.steps, threshold)
        if truth is None:
            unknown += 1
        elif truth < 0:
            correct["failed" if said is None else "clean" if said < 0 else "false_alarm"] += 1
        elif said is None:
            erroneous["failed"] += 1
        elif said < 0:
            erroneous["missed"] += 1
        else:
            erroneous["exact" if said == truth else "early" if said < truth else "late"] += 1
    return FirstErrors({k: erroneous[k] for k in ERRONEOUS}, {k: correct[k] for k in CORRECT}, unknown)
