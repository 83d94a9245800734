"""PRMBench (Song et al. 2025, 2501.03124): which steps are wrong, over kinds of errors.

A step is called right when its value is above the threshold (0.5). In the categories about redundancy a model that
also says how redundant a step is (ReasonEval does) is asked that instead: a step is wrong when its redundancy is above
0.15. Right steps are the positive class; F1 of either class is computed from the pooled counts of all categories
but `correct`, and PRMScore = (F1 + F1 of wrong steps) / 2. Failed measurements are left out, or every step of them is
counted as misjudged; both are given. Intervals resample solutions. This module does not know models or files.

    bench = prm_bench(solutions, score_solutions(model, solutions), seed=0)
    print(bench.measured["prm_score"].estimate)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluate.aggregate import need_steps, paired
from guerdon.evaluate.intervals import Float64, Interval, percentile_interval
from guerdon.evaluate.metrics import Metric
from guerdon.evaluate.scoring import failure_counts
from guerdon.evaluate.steps import step_labels
from guerdon.types import Score

VALIDITY, REDUNDANCY = 0.5, 0.15
CORRECT = "correct"
REDUNDANT = ("redundency", "redundancy", "circular")  # the published files spell it with an e
_FIGURES = ("prm_score", "f1", "f1_wrong", "accuracy_right", "accuracy_wrong")


@dataclass(frozen=True)
class PRMBench:
    """Everything PRMBench says about a model.

    Attributes:
        measured: `prm_score`, `f1`, `f1_wrong`, `accuracy_right` and `accuracy_wrong` pooled over categories.
        failures_wrong: the same with failed solutions counted as misjudged in every step.
        categories: the measured figures of each category, `correct` too.
        failures: failed measurements by reason.
        thresholds: validity and redundancy; the latter None where the model says no redundancy.
    """

    measured: Mapping[str, Interval]
    failures_wrong: Mapping[str, Interval]
    categories: Mapping[str, Mapping[str, Interval]]
    failures: Mapping[str, int]
    thresholds: tuple[float, float | None]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""

        def plain(figures: Mapping[str, Interval]) -> dict[str, Any]:
            return {name: Metric(interval).to_dict() for name, interval in figures.items()}

        return {
            "thresholds": {"validity": self.thresholds[0], "redundancy": self.thresholds[1]},
            "failures": dict(self.failures),
            "measured": plain(self.measured),
            "failures_wrong": plain(self.failures_wrong),
            "categories": {name: plain(figures) for name, figures in self.categories.items()},
        }


def prm_bench(
    solutions: Sequence[Solution],
    scores: Sequence[Score],
    redundancy: Sequence[Score] | None = None,
    *,
    validity_threshold: float = VALIDITY,
    redundancy_threshold: float = REDUNDANCY,
    reps: int = 1000,
    seed: int,
) -> PRMBench:
    """Evaluate values of steps on solutions with known wrong steps.

    Args:
        solutions: with a truth per step (labels, or `meta["error_steps"]` from 0) and a category (see `category_of`).
        scores: how valid each step is.
        redundancy: how redundant each step is, from a model that says so; used in the categories about redundancy.
        validity_threshold: a step above it is called right.
        redundancy_threshold: a step above it is called redundant, which is wrong there.
        reps: bootstrap resamples.
        seed: of the bootstrap.

    Raises:
        DataError: a solution lacks its category or wrong steps, or no category but `correct` is there.
    """
    rows: list[tuple[str, tuple[int, int, int, int], bool]] = []
    other = need_steps(redundancy) if redundancy is not None else [None] * len(solutions)
    used: list[Score] = []
    for (solution, score), second in zip(paired(solutions, need_steps(scores)), other, strict=True):
        category, truth = category_of(solution), step_labels(solution)
        if category is None or not truth or None in truth:
            raise DataError(f"solution {solution.id} lacks its category or the truth of a step: is this PRMBench?")
        wrong_T = ~np.array(truth, dtype=np.bool_)
        asked = second if second is not None and category in REDUNDANT else score
        used.append(asked)
        if asked.steps is None:
            rows.append((category, (0, int(wrong_T.sum()), 0, int((~wrong_T).sum())), True))
            continue
        right_T = asked.steps <= redundancy_threshold if asked is second else asked.steps > validity_threshold
        cells = (right_T & ~wrong_T, right_T & wrong_T, ~right_T & wrong_T, ~right_T & ~wrong_T)
        tp, fp, tn, fn = (int(cell.sum()) for cell in cells)
        rows.append((category, (tp, fp, tn, fn), False))
    pooled = [(counts, failed) for category, counts, failed in rows if category != CORRECT]
    if not pooled:
        raise DataError("PRMBench needs solutions of a category other than correct")
    rng = np.random.default_rng(seed)
    n_failed = sum(failed for _, failed in pooled)
    measured = _figures([c for c, failed in pooled if not failed], n_failed, reps=reps, rng=rng)
    return PRMBench(
        measured=measured,
        failures_wrong=_figures([c for c, _ in pooled], 0, reps=reps, rng=rng) if n_failed else measured,
        categories={
            name: _figures(
                [c for category, c, failed in rows if category == name and not failed],
                sum(failed for category, _, failed in rows if category == name),
                reps=reps,
                rng=rng,
            )
            for name in sorted({category for category, _, _ in rows})
        },
        failures=failure_counts(used),
        thresholds=(validity_threshold, None if redundancy is None else redundancy_threshold),
    )


def category_of(solution: Solution) -> str | None:
    """The kind of error: `meta["category"]`, or `meta["classification"]` as the published files call it."""
    found = solution.meta.get("category", solution.meta.get("classification"))
    return None if found is None else str(found)


def _figures(
    counts: Sequence[tuple[int, int, int, int]], n_failed: int, *, reps: int, rng: np.random.Generator
) -> dict[str, Interval]:
    """The figures from (TP, FP, TN, FN) of each solution, pooled; the positive class is right steps."""
    n = len(counts)
    cells_N_4 = np.array(counts, dtype=np.float64).reshape(n, 4)
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=reps) if n else np.zeros((reps, 0))
    tp, fp, tn, fn = (np.concatenate([np.ones((1, n)), drawn]) @ cells_N_4).T
    f1 = np.where(tp + fn > 0, _ratio(2 * tp, 2 * tp + fp + fn), np.nan)
    f1_wrong = np.where(tn + fp > 0, _ratio(2 * tn, 2 * tn + fp + fn), np.nan)
    columns = ((f1 + f1_wrong) / 2, f1, f1_wrong, _ratio(tp, tp + fn), _ratio(tn, tn + fp))
    return {
        name: percentile_interval(x[0], x[1:], level=0.95, n=n, n_undefined=n_failed, can_vary=n > 1)
        for name, x in zip(_FIGURES, columns, strict=True)
    }


def _ratio(top: Float64, bottom: Float64) -> Float64:
    return np.asarray(np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0))
