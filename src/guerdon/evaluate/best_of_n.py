"""Does choosing among n samples with a reward model beat voting, and how far is it from the best possible?

Curves over n of pass@n (the ceiling), majority, best-of-n and weighted majority, each an unbiased average over all
subsets of size n of a question's N samples (`votes`), with 95 % intervals over questions and paired differences to
majority. A sample that the model could not measure is never chosen and casts no weighted vote; where nothing in a
subset was measured, the choice is wrong. Beside that, the same over measured samples alone. Samples whose truth nobody
knows are left out and counted. This module does not know models or files.

    curves = best_of_n(solutions, scores, same_number_or_text, aggregations=("min",), seed=0)
    print(curves.failures_wrong["bon_min"].intervals[-1], curves.failures_wrong["bon_min"].minus_majority[-1])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluate.aggregate import AGGREGATIONS, paired, solution_value
from guerdon.evaluate.answers import Same, answer_classes
from guerdon.evaluate.intervals import Float64, Interval, bootstrap_ci, mean, widen_at_edge
from guerdon.evaluate.metrics import Metric
from guerdon.evaluate.scoring import failure_counts
from guerdon.evaluate.votes import best_of, majority, pass_at, weighted_majority
from guerdon.settings.evaluate_text import Aggregation
from guerdon.types import Failure, Score

MOST_EXACT = 64  # samples up to which majority is counted out; above, random subsets


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples of one question.

    Attributes:
        question: in words.
        correct_N: whether each is right.
        classes_N: answer class of each, -1 for no answer.
        right_K: share of right samples of each class (0 or 1 where checker and classes agree).
        values: aggregation to (N,) values, NaN where the measurement failed.
    """

    question: str
    correct_N: NDArray[np.bool_]
    classes_N: NDArray[np.int64]
    right_K: Float64
    values: Mapping[Aggregation, Float64]

    def take(self, keep_N: NDArray[np.bool_]) -> Samples:
        """Only these samples."""
        values = {how: v[keep_N] for how, v in self.values.items()}
        return Samples(self.question, self.correct_N[keep_N], self.classes_N[keep_N], self.right_K, values)


@dataclass(frozen=True, eq=False)
class Curve:
    """One way to choose, over n.

    Attributes:
        per_question_Q_P: accuracy per question and n; NaN where a question has fewer than n samples.
        intervals: mean over questions at each n.
        minus_majority: the paired difference to majority at each n; empty for majority itself.
    """

    per_question_Q_P: Float64
    intervals: tuple[Interval, ...]
    minus_majority: tuple[Interval, ...] = ()


@dataclass(frozen=True, eq=False)
class BestOfN:
    """All curves.

    Attributes:
        ns: numbers of samples to choose from.
        measured: name to curve over samples that were measured: `pass`, `majority`, `bon_<how>`, `weighted_<how>`.
        failures_wrong: the same over all samples, those without a measurement never chosen.
        questions: how many.
        samples: smallest and largest number of samples per question.
        failures: failed measurements by reason.
        unknown: samples left out because nobody knows whether they are right.
        not_weighted: aggregations without a weighted vote, because values were negative.
    """

    ns: tuple[int, ...]
    measured: Mapping[str, Curve]
    failures_wrong: Mapping[str, Curve]
    questions: int
    samples: tuple[int, int]
    failures: Mapping[str, int]
    unknown: int
    not_weighted: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""

        def plain(curves: Mapping[str, Curve]) -> dict[str, Any]:
            return {
                name: {
                    "accuracy": [Metric(i).to_dict() for i in curve.intervals],
                    "minus_majority": [Metric(i, 0.0).to_dict() for i in curve.minus_majority],
                }
                for name, curve in curves.items()
            }

        return {
            "n": list(self.ns),
            "questions": self.questions,
            "samples_per_question": list(self.samples),
            "failures": dict(self.failures),
            "unknown": self.unknown,
            "not_weighted": list(self.not_weighted),
            "measured": plain(self.measured),
            "failures_wrong": plain(self.failures_wrong),
        }


def best_of_n(
    solutions: Sequence[Solution],
    scores: Sequence[Score],
    same: Same,
    *,
    aggregations: Sequence[Aggregation] = AGGREGATIONS,
    ns: Sequence[int] | None = None,
    draws: int = 500,
    reps: int = 1000,
    seed: int,
) -> BestOfN:
    """Curves over n of every way to choose.

    Args:
        solutions: several per question, with `answer` and `is_correct`.
        scores: one each, in order.
        same: whether two answers are the same.
        aggregations: how values of steps become one of a sample.
        ns: numbers of samples; None: powers of two up to the smallest number of samples of a question.
        draws: subsets looked at per question and n where listing all takes more (weighted votes; majority above 64).
        reps: bootstrap resamples of questions.
        seed: of random subsets and the bootstrap.

    Raises:
        DataError: no sample has a known truth, or n is larger than every question's number of samples.
    """
    pools, unknown = group_samples(solutions, scores, same, aggregations)
    sizes = [len(pool.correct_N) for pool in pools]
    chosen = tuple(sorted(set(ns))) if ns is not None else tuple(2**k for k in range(min(sizes).bit_length()))
    if chosen[-1] > max(sizes):
        raise DataError(f"best-of-{chosen[-1]} needs so many samples of a question; at most {max(sizes)} are there")
    weighted = [how for how in aggregations if not any((pool.values[how] < 0).any() for pool in pools)]

    def curves(drop: bool) -> dict[str, Curve]:
        found = _per_question(pools, chosen, aggregations, weighted, drop=drop, draws=draws, seed=seed)
        return {name: _curve(part, found["majority"], name, reps=reps, seed=seed) for name, part in found.items()}

    failed = failure_counts(scores)
    wrong = curves(drop=False)
    some_failed = any(np.isnan(v).any() for pool in pools for v in pool.values.values())
    return BestOfN(
        ns=chosen,
        measured=curves(drop=True) if some_failed else wrong,
        failures_wrong=wrong,
        questions=len(pools),
        samples=(min(sizes), max(sizes)),
        failures=failed,
        unknown=unknown,
        not_weighted=tuple(how for how in aggregations if how not in weighted),
    )


def group_samples(
    solutions: Sequence[Solution], scores: Sequence[Score], same: Same, aggregations: Sequence[Aggregation]
) -> tuple[list[Samples], int]:
    """Samples by question, in order of first appearance, and how many were left out for want of truth.

    Raises:
        DataError: none is left, or another number of scores than solutions.
    """
    groups: dict[str, list[tuple[Solution, Score]]] = {}
    unknown = 0
    for solution, score in paired(solutions, scores):
        if solution.is_correct is None:
            unknown += 1
            continue
        groups.setdefault(solution.question, []).append((solution, score))
    if not groups:
        raise DataError("no sample says whether its answer is right (is_correct): check answers before best-of-N")
    pools = []
    for question, rows in groups.items():
        correct = np.array([s.is_correct is True for s, _ in rows])
        classes = np.array(answer_classes([s.answer for s, _ in rows], same), dtype=np.int64)
        number = int(classes.max(initial=-1)) + 1
        right = np.array([correct[classes == k].mean() for k in range(number)])
        values = {
            how: np.array([np.nan if isinstance(v := solution_value(score, how), Failure) else v for _, score in rows])
            for how in aggregations
        }
        pools.append(Samples(question, correct, classes, right, values))
    return pools, unknown


def _per_question(
    pools: Sequence[Samples],
    ns: Sequence[int],
    aggregations: Sequence[Aggregation],
    weighted: Sequence[Aggregation],
    *,
    drop: bool,
    draws: int,
    seed: int,
) -> dict[str, Float64]:
    """Name to (Q, P) accuracy of each question at each n."""
    names = ["pass", "majority", *(f"bon_{how}" for how in aggregations), *(f"weighted_{how}" for how in weighted)]
    found = {name: np.full((len(pools), len(ns)), np.nan) for name in names}
    for q, pool in enumerate(pools):
        found["majority"][q] = _majority(pool, ns, draws, seed, q)
        found["pass"][q] = [pass_at(pool.correct_N, n) if n <= len(pool.correct_N) else np.nan for n in ns]
        for how in aggregations:
            known_N = np.isfinite(pool.values[how])
            own = pool.take(known_N) if drop else pool
            values_N = own.values[how]
            lost_N = ~np.isfinite(values_N)
            for p, n in enumerate(ns):
                if n > len(values_N):
                    continue
                correct_N = own.correct_N & ~lost_N  # chosen only where nothing was measured, and wrong then
                found[f"bon_{how}"][q, p] = best_of(np.where(lost_N, -np.inf, values_N), correct_N, n)
                if how in weighted:
                    found[f"weighted_{how}"][q, p] = weighted_majority(
                        np.where(lost_N, -1, own.classes_N),
                        own.right_K,
                        np.where(lost_N, 0.0, values_N),
                        n,
                        draws=draws,
                        rng=np.random.default_rng([seed, q, n]),
                    )
    return found


def _majority(pool: Samples, ns: Sequence[int], draws: int, seed: int, q: int) -> list[float]:
    size = len(pool.correct_N)
    fitting = [n for n in ns if n <= size]
    if not fitting or not len(pool.right_K):
        return [0.0 if n <= size else np.nan for n in ns]
    if size <= MOST_EXACT:
        every = majority(pool.classes_N, pool.right_K, max(fitting))
        return [float(every[n - 1]) if n <= size else np.nan for n in ns]
    ones = np.ones(size)
    return [
        weighted_majority(pool.classes_N, pool.right_K, ones, n, draws=draws, rng=np.random.default_rng([seed, q, n]))
        if n <= size
        else np.nan
        for n in ns
    ]


def _curve(part_Q_P: Float64, majority_Q_P: Float64, name: str, *, reps: int, seed: int) -> Curve:
    columns = part_Q_P.T
    found = [bootstrap_ci(column, mean, reps=reps, seed=seed) for column in columns]
    accuracy = tuple(widen_at_edge(i, i.n) for i in found)
    if name == "majority":
        return Curve(part_Q_P, accuracy)
    differences = (part_Q_P - majority_Q_P).T
    return Curve(part_Q_P, accuracy, tuple(bootstrap_ci(d, mean, reps=reps, seed=seed) for d in differences))
