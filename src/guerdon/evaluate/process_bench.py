"""ProcessBench (Zheng et al. 2024, 2412.06559): does a model find the first wrong step, and clear what is right?

A prediction is the first step with a value below the threshold, else -1. Per subset: accuracy on solutions with an
error, accuracy on those without, and F1, their harmonic mean; the average is over subsets, unweighted. The threshold is
given, or chosen on one subset and used on all (as published for models with continuous values); either way it is
recorded. Every number comes twice: over what could be measured, and with failed measurements counted as wrong.
Intervals resample solutions within their subset. This module does not know models or files.

    bench = process_bench(solutions, score_solutions(model, solutions), threshold=0.5, seed=0)
    print(bench.average.estimate, bench.threshold, bench.subsets["gsm8k"].measured["f1"].estimate)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluate.aggregate import need_steps, paired, subset_of
from guerdon.evaluate.intervals import Float64, Interval, percentile_interval, widen_at_edge
from guerdon.evaluate.metrics import Metric
from guerdon.evaluate.scoring import failure_counts
from guerdon.evaluate.steps import first_below, true_first_error
from guerdon.types import Score

_FIGURES = ("accuracy_erroneous", "accuracy_correct", "f1")


@dataclass(frozen=True)
class SubsetResult:
    """One subset.

    Attributes:
        measured: `accuracy_erroneous`, `accuracy_correct` and `f1` over what could be measured.
        failures_wrong: the same with failed measurements counted as wrong.
        failures: failed measurements by reason.
        n: solutions, failed ones included.
    """

    measured: Mapping[str, Interval]
    failures_wrong: Mapping[str, Interval]
    failures: Mapping[str, int]
    n: int


@dataclass(frozen=True)
class ProcessBench:
    """Everything ProcessBench says about a model.

    Attributes:
        threshold: a step below it is judged wrong.
        tuned_on: the subset that chose it; None where it was given.
        subsets: by name.
        average: mean F1 over subsets; undefined where the F1 of a subset is.
        average_failures_wrong: the same with failures counted as wrong.
        average_untuned: mean F1 over the subsets that did not choose the threshold; None where it was given.
        unknown: solutions left out because nobody knows their first error.
    """

    threshold: float
    tuned_on: str | None
    subsets: Mapping[str, SubsetResult]
    average: Interval
    average_failures_wrong: Interval
    average_untuned: Interval | None
    unknown: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "threshold": self.threshold,
            "threshold_source": "fixed" if self.tuned_on is None else f"best F1 on {self.tuned_on}",
            "unknown": self.unknown,
            "average_f1": {
                "measured": Metric(self.average, 0.0).to_dict(),
                "failures_wrong": Metric(self.average_failures_wrong, 0.0).to_dict(),
                "measured_without_tuned": None
                if self.average_untuned is None
                else Metric(self.average_untuned, 0.0).to_dict(),
            },
            "subsets": {
                name: {
                    "n": one.n,
                    "failures": dict(one.failures),
                    "measured": {k: Metric(v).to_dict() for k, v in one.measured.items()},
                    "failures_wrong": {k: Metric(v).to_dict() for k, v in one.failures_wrong.items()},
                }
                for name, one in self.subsets.items()
            },
        }


def process_bench(
    solutions: Sequence[Solution],
    scores: Sequence[Score],
    *,
    threshold: float | None = None,
    tune_on: str | None = None,
    reps: int = 1000,
    seed: int,
) -> ProcessBench:
    """Evaluate scores of steps on solutions with a known first error.

    Args:
        solutions: with `meta["first_error"]` (or labels) and `meta["subset"]`.
        scores: one each, in order.
        threshold: a step with a value below it is judged wrong; None: 0.5, unless `tune_on` is given.
        tune_on: the subset whose F1 chooses the threshold; the bootstrap does not choose it anew.
        reps: bootstrap resamples.
        seed: of the bootstrap.

    Raises:
        DataError: no solution has a known first error; `tune_on` is no subset, or has no F1.
        ValueError: both `threshold` and `tune_on` are given.
    """
    if threshold is not None and tune_on is not None:
        raise ValueError("give a threshold, or a subset to choose it on, not both")
    pairs = paired(solutions, need_steps(scores))
    known = [(s, score, first) for s, score in pairs if (first := true_first_error(s)) is not None]
    if not known:
        raise DataError("no solution says where its first error is: meta['first_error'], or labels of its steps")
    names = dict.fromkeys(subset_of(s) for s, _, _ in known)
    parts = {name: [(score, first) for s, score, first in known if subset_of(s) == name] for name in names}
    if tune_on is not None:
        if tune_on not in parts:
            raise DataError(f"tune_on {tune_on!r} is no subset; there are {', '.join(parts)}")
        threshold = best_threshold(
            [score for score, _ in parts[tune_on]], [first for _, first in parts[tune_on]], subset=tune_on
        )
    at = 0.5 if threshold is None else threshold
    rng = np.random.default_rng(seed)
    subsets, measured, wrong = {}, {}, {}
    for name, part in parts.items():
        found = [None if score.steps is None else first_below(score.steps, at) for score, _ in part]
        truth_N = np.array([first for _, first in part])
        hit_N = np.array([p == t for p, (_, t) in zip(found, part, strict=True)])
        keep_N = np.array([p is not None for p in found])
        wrong[name] = _figures(hit_N, truth_N >= 0, reps=reps, rng=rng, n_failed=0)
        measured[name] = wrong[name]
        if not keep_N.all():
            measured[name] = _figures(
                hit_N[keep_N], truth_N[keep_N] >= 0, reps=reps, rng=rng, n_failed=int((~keep_N).sum())
            )
        subsets[name] = SubsetResult(
            measured[name].intervals, wrong[name].intervals, failure_counts(s for s, _ in part), len(part)
        )
    rest = [measured[name] for name in parts if name != tune_on]
    return ProcessBench(
        threshold=at,
        tuned_on=tune_on,
        subsets=subsets,
        average=_average(list(measured.values())),
        average_failures_wrong=_average(list(wrong.values())),
        average_untuned=None if tune_on is None else _average(rest),
        unknown=len(solutions) - len(known),
    )


def best_threshold(scores: Sequence[Score], firsts: Sequence[int], *, subset: str = "it") -> float:
    """The threshold with the best F1: halfway between two neighbouring values; of equally good ones that nearest 0.5.

    Failed measurements are left out.

    Args:
        scores: with values of steps.
        firsts: the true first error of each, -1 where there is none.
        subset: how messages call the data.

    Raises:
        DataError: nothing was measured, or solutions with or without an error are missing.
    """
    lows = [np.minimum.accumulate(score.steps.astype(np.float64)) for score in scores if score.steps is not None]
    truth_N = np.array([first for score, first in zip(scores, firsts, strict=True) if score.steps is not None])
    wrong_N = truth_N >= 0
    if not wrong_N.any() or wrong_N.all():
        raise DataError(f"the threshold cannot be chosen on {subset}: it needs solutions with and without an error")
    values = np.unique(np.concatenate(lows))
    candidates_C = np.concatenate([[values[0]], (values[1:] + values[:-1]) / 2, [np.nextafter(values[-1], np.inf)]])
    hits_2_C = np.zeros((2, len(candidates_C)))  # of solutions with an error, and of those without
    for low_T, truth in zip(lows, truth_N, strict=True):
        said_C = np.searchsorted(-low_T, -candidates_C, side="right")  # steps before the first one below
        hits_2_C[int(truth < 0)] += said_C == (len(low_T) if truth < 0 else truth)
    f1_C = harmonic(hits_2_C[0] / wrong_N.sum(), hits_2_C[1] / (~wrong_N).sum())
    best = candidates_C[f1_C >= f1_C.max() - 1e-12]
    return float(best[np.abs(best - 0.5).argmin()])


def harmonic(left: Float64, right: Float64) -> Float64:
    """2ab / (a + b), 0 where both are 0, NaN where one is undefined."""
    total = left + right
    return np.asarray(np.divide(2 * left * right, total, out=np.where(np.isnan(total), np.nan, 0.0), where=total > 0))


@dataclass(frozen=True, eq=False)
class _Figures:
    intervals: dict[str, Interval]
    replicates_R: Float64  # of the F1
    trials: int  # solutions of the smaller class


def _figures(
    hit_N: NDArray[np.bool_], wrong_N: NDArray[np.bool_], *, reps: int, rng: np.random.Generator, n_failed: int
) -> _Figures:
    n = len(hit_N)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=reps) if n else np.zeros((reps, 0))
    weights = np.concatenate([np.ones((1, n)), counts])  # the first row is the data itself
    shares = []
    for kind in (wrong_N, ~wrong_N):
        of = weights @ kind.astype(np.float64)
        shares.append(np.divide(weights @ (hit_N & kind), of, out=np.full(reps + 1, np.nan), where=of > 0))
    n_wrong, n_ok = int(wrong_N.sum()), int((~wrong_N).sum())
    columns = (*shares, harmonic(*shares))
    sizes, trials = (n_wrong, n_ok, n), (n_wrong, n_ok, min(n_wrong, n_ok))
    intervals = {
        name: widen_at_edge(
            percentile_interval(x[0], x[1:], level=0.95, n=size, n_undefined=n_failed, can_vary=n > 1), of
        )
        for name, x, size, of in zip(_FIGURES, columns, sizes, trials, strict=True)
    }
    return _Figures(intervals, columns[2][1:], trials[2])


def _average(parts: Sequence[_Figures]) -> Interval:
    """Mean F1 over subsets; each was resampled by itself."""
    intervals = [part.intervals["f1"] for part in parts]
    n, failed = sum(i.n for i in intervals), sum(i.n_undefined for i in intervals)
    points = [i.estimate for i in intervals if i.estimate is not None]
    if not parts or len(points) < len(parts):
        return Interval(None, None, None, n, failed)
    replicates = np.mean([part.replicates_R for part in parts], axis=0)
    found = percentile_interval(float(np.mean(points)), replicates, level=0.95, n=n, n_undefined=failed)
    return widen_at_edge(found, sum(part.trials for part in parts))
