"""Benchmarks of values of steps: ProcessBench, PRMBench, and right steps against wrong ones.

ProcessBench (Zheng et al. 2024, 2412.06559) asks for the first wrong step. A prediction is the first step with a value
below the threshold, else -1. Per subset: accuracy on solutions with an error, accuracy on those without, and F1, their
harmonic mean; the average is over subsets, unweighted. The threshold is given, or chosen on one subset and used on all
(as published for models with continuous values); either way it is recorded.

PRMBench (Song et al. 2025, 2501.03124) asks which steps are wrong, over kinds of errors. A step is called right when
its value is above the threshold (0.5). In the categories about redundancy a model that also scores how redundant a step
is (ReasonEval does) is judged by that: a step is wrong when its redundancy is above 0.15. Right steps are the positive
class; F1 of either class is computed from the pooled counts of all categories but `correct`, and PRMScore = (F1 + F1 of
wrong steps) / 2. In `multi_solutions`, whose solutions have no wrong step, the PRMScore is F1, as published.

Every number comes twice: over what could be measured, and with failed measurements counted as wrong. Intervals resample
solutions within their subset; for metrics of single steps they resample questions, because steps of one question
resemble one another.

    scores = score_solutions(model, solutions)
    bench = process_bench(solutions, scores, threshold=0.5, seed=0)
    print(bench.average_f1["measured"].estimate, bench.threshold, bench.subsets["gsm8k"].measured["f1"].estimate)
    print(prm_bench(solutions, scores, seed=0).measured["prm_score"].estimate)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError
from guerdon.evaluation.metrics import Table
from guerdon.models.scores import failure_counts, need_steps, paired, subset_of
from guerdon.settings.data import TaskSettings
from guerdon.statistics.classification import ratio
from guerdon.statistics.intervals import (
    Float64,
    Interval,
    percentile_interval,
    resampling_weights,
    widen_at_edge,
    wilson_interval,
)
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import TaskFamily, family_of, step_truth, task_family
from guerdon.types import Score

# ---------------------------------------------------------------------------------------------------------------------
# Generated benchmark in the shape of ProcessBench: worked solutions of generated problems, some with an error.
#
# An error is a line with a wrong result at a place drawn uniformly; every later line follows from what was written. So
# the first error, the truth of every step and of the answer are exact. There is a subset per family.
#
#     bench = generated_bench([ChainSettings(steps=6), SwapSettings(steps=6)], size=200, seed=0)
#     bench[0].meta["first_error"], bench[0].meta["subset"]
# ---------------------------------------------------------------------------------------------------------------------


STREAM = 0x62656E6368
_TRIES_PER_PROBLEM = 50


def generated_bench(
    families: Sequence[TaskSettings],
    size: int,
    seed: int,
    error_rate: float = 0.5,
    *,
    exclude: Collection[str] = (),
) -> list[Solution]:
    """Solutions with a known first error: a share of them with an error, the others fully right.

    Args:
        families: a subset each; one that occurs twice gets a number.
        size: solutions per family.
        seed: of problems, and of which solutions have an error and where.
        error_rate: share of the solutions with an error, rounded to a whole number of them.
        exclude: questions that must not occur, such as those trained on.

    Returns:
        `meta` holds subset, first_error, generator, family and parameters.

    Raises:
        ConfigError: sizes below 1 or an error rate outside [0, 1].
        DataError: a family has too few different problems.
    """
    if size < 1 or not 0 <= error_rate <= 1:
        raise ConfigError(
            "a generated bench needs a size of at least 1 and an error_rate between 0 and 1",
            key="size" if size < 1 else "error_rate",
        )
    solutions: list[Solution] = []
    for subset, prompts, rng in _subsets(families, size, seed, exclude):
        slips = np.arange(size) < round(size * error_rate)
        rng.shuffle(slips)
        solutions += [
            _solution(prompt, subset, str(k), rng if slip else None)
            for k, (prompt, slip) in enumerate(zip(prompts, slips, strict=True))
        ]
    return solutions


def right_and_wrong(
    families: Sequence[TaskSettings], size: int, seed: int, *, exclude: Collection[str] = ()
) -> list[Solution]:
    """Of every problem a right solution and one with an error, next to each other: the material of attacks.

    An error that leaves the answer right is kept, with a true `is_correct`.

    Args:
        families: a subset each.
        size: problems per family.
        seed: of problems and errors; the problems are those of `generated_bench`.
        exclude: questions that must not occur.

    Raises:
        DataError: a family has too few different problems.
    """
    return [
        _solution(prompt, subset, f"{k}-{kind}", rng if kind == "wrong" else None)
        for subset, prompts, rng in _subsets(families, size, seed, exclude)
        for k, prompt in enumerate(prompts)
        for kind in ("right", "wrong")
    ]


def _subsets(
    families: Sequence[TaskSettings], size: int, seed: int, exclude: Collection[str]
) -> Iterator[tuple[str, list[Prompt], np.random.Generator]]:
    """Name, problems and generator of each family."""
    names: dict[str, int] = {}
    for number, settings in enumerate(families):
        names[settings.family] = names.get(settings.family, 0) + 1
        subset = settings.family if names[settings.family] == 1 else f"{settings.family}-{names[settings.family]}"
        rng = np.random.default_rng([seed, number, STREAM])  # not the one that training problems are drawn from
        yield subset, _problems(task_family(settings), size, rng, set(exclude)), rng


def _solution(prompt: Prompt, subset: str, number: str, rng: np.random.Generator | None) -> Solution:
    """A worked solution, with an error where there is a generator."""
    family = family_of(prompt)
    steps = tuple(line + family.separator for line in solution_lines(prompt, rng))
    truth = step_truth(prompt, "".join(steps))
    return Solution(
        id=f"{subset}-{number}",
        question=prompt.question,
        steps=steps,
        labels=tuple(float(right) for right in truth.correct),
        is_correct=truth.outcome,
        ground_truth=prompt.ground_truth,
        answer=truth.answer,
        separator=family.separator,
        meta={
            "subset": subset,
            "first_error": truth.first_error,
            "generator": "guerdon",
            "data_source": prompt.data_source,
            **dict(prompt.extra_info),
        },
    )


def solution_lines(prompt: Prompt, rng: np.random.Generator | None) -> list[str]:
    """The lines of a worked solution, with a wrong result at a uniform place from which the later lines follow.

    Args:
        prompt: a generated problem.
        rng: decides where and how; None: no error.

    Raises:
        DataError: the prompt is not a generated problem.
    """
    family = family_of(prompt)
    problem = family.solve(prompt.question)
    place = -1 if rng is None else int(rng.integers(len(problem.lines)))
    lines: list[str] = []
    for k in range(len(problem.lines)):
        line = problem.follow(k, lines)
        if line is None:  # no rule of a family leaves a line open after a well-formed one
            raise AssertionError(f"line {k + 1} of {prompt.question!r} has no successor after {lines}")
        lines.append(family.mistaken(line, rng) if rng is not None and k == place else line)
    return lines


def _problems(family: TaskFamily[Any], size: int, rng: np.random.Generator, exclude: set[str]) -> list[Prompt]:
    """Different problems, none of them excluded."""
    prompts: list[Prompt] = []
    for _ in range(_TRIES_PER_PROBLEM * size):
        if len(prompts) == size:
            break
        prompt = family.sample(rng)
        if prompt.question not in exclude:
            exclude.add(prompt.question)
            prompts.append(prompt)
    if len(prompts) < size:
        raise DataError(
            f"the family {family.name} has little more than {len(exclude)} different problems at this difficulty; "
            "lower the size of the bench, or make the task larger"
        )
    return prompts


# ---------------------------------------------------------------------------------------------------------------------


_FIRST_ERROR_FIGURES = ("accuracy_erroneous", "accuracy_correct", "f1")


@dataclass(frozen=True)
class SubsetResult:
    """One subset of ProcessBench.

    Attributes:
        n: solutions, failed ones included.
        failures: failed measurements by reason.
        measured: `accuracy_erroneous`, `accuracy_correct` and `f1` over what could be measured.
        failures_wrong: the same with failed measurements counted as wrong.
    """

    n: int
    failures: Mapping[str, int]
    measured: Mapping[str, Interval]
    failures_wrong: Mapping[str, Interval]


@dataclass(frozen=True)
class ProcessBench:
    """The figures of ProcessBench.

    Attributes:
        threshold: a step below it is judged wrong.
        threshold_source: `fixed`, or on which subset it was chosen.
        unknown: solutions left out because their first error is unknown.
        average_f1: mean F1 over subsets, undefined where that of a subset is: `measured`, `failures_wrong`, and
            `measured_without_tuned` over the subsets that did not choose the threshold (None where it was given).
        subsets: by name.
    """

    threshold: float
    threshold_source: str
    unknown: int
    average_f1: Mapping[str, Interval | None]
    subsets: Mapping[str, SubsetResult]


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
        DataError: no solution has a known first error; `tune_on` is not a subset, or has no F1.
        ValueError: both `threshold` and `tune_on` are given.
    """
    if threshold is not None and tune_on is not None:
        raise ValueError("give a threshold, or a subset to choose it on, not both")
    parts: dict[str, list[tuple[Score, int]]] = {}
    for s, score in paired(solutions, need_steps(scores)):
        if (first := true_first_error(s)) is not None:
            parts.setdefault(subset_of(s), []).append((score, first))
    if not parts:
        raise DataError(
            "no solution has a known first error: meta['first_error'], or labels of its steps", field="first_error"
        )
    if tune_on is not None:
        if tune_on not in parts:
            raise DataError(f"tune_on {tune_on!r} is not a subset; there are {', '.join(parts)}", field="tune_on")
        threshold = best_threshold(*zip(*parts[tune_on], strict=True), subset=tune_on)
    at = 0.5 if threshold is None else threshold
    rng = np.random.default_rng(seed)
    subsets, measured, wrong = {}, {}, {}
    for name, part in parts.items():
        measured[name], wrong[name] = _subset_figures(part, at, reps=reps, rng=rng)
        failures = failure_counts(s for s, _ in part)
        subsets[name] = SubsetResult(len(part), failures, measured[name].intervals, wrong[name].intervals)
    rest = [measured[name] for name in parts if name != tune_on]
    return ProcessBench(
        threshold=at,
        threshold_source="fixed" if tune_on is None else f"best F1 on {tune_on}",
        unknown=len(solutions) - sum(map(len, parts.values())),
        average_f1={
            "measured": _average(list(measured.values())),
            "failures_wrong": _average(list(wrong.values())),
            "measured_without_tuned": None if tune_on is None else _average(rest),
        },
        subsets=subsets,
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


def _subset_figures(
    part: Sequence[tuple[Score, int]], at: float, *, reps: int, rng: np.random.Generator
) -> tuple[_Figures, _Figures]:
    """Figures of a subset without its failed measurements, and with them as wrong; `at` is the threshold."""
    found = [None if score.steps is None else first_below(score.steps, at) for score, _ in part]
    truth_N = np.array([first for _, first in part])
    hit_N = np.array([p == t for p, (_, t) in zip(found, part, strict=True)])
    keep_N = np.array([p is not None for p in found])
    wrong = _first_error_figures(hit_N, truth_N >= 0, reps=reps, rng=rng, n_failed=0)
    if keep_N.all():
        return wrong, wrong
    n_failed = int((~keep_N).sum())
    return _first_error_figures(hit_N[keep_N], truth_N[keep_N] >= 0, reps=reps, rng=rng, n_failed=n_failed), wrong


def _first_error_figures(
    hit_N: NDArray[np.bool_], wrong_N: NDArray[np.bool_], *, reps: int, rng: np.random.Generator, n_failed: int
) -> _Figures:
    n = len(hit_N)
    weights = resampling_weights(n, reps, rng)
    shares = [ratio(weights @ (hit_N & kind), weights @ kind.astype(np.float64)) for kind in (wrong_N, ~wrong_N)]
    n_wrong, n_ok = int(wrong_N.sum()), int((~wrong_N).sum())
    columns = (*shares, harmonic(*shares))
    sizes, trials = (n_wrong, n_ok, n), (n_wrong, n_ok, min(n_wrong, n_ok))
    intervals = {
        name: widen_at_edge(percentile_interval(x[0], x[1:], n=size, n_undefined=n_failed, can_vary=n > 1), of)
        for name, x, size, of in zip(_FIRST_ERROR_FIGURES, columns, sizes, trials, strict=True)
    }
    return _Figures(intervals, columns[2][1:], trials[2])


def _average(parts: Sequence[_Figures]) -> Interval:
    """Mean F1 over subsets; each was resampled by itself."""
    intervals = [part.intervals["f1"] for part in parts]
    n, failed = sum(i.n for i in intervals), sum(i.n_undefined for i in intervals)
    points = [i.estimate for i in intervals if i.estimate is not None]
    if not parts or len(points) < len(parts):
        return Interval(None, None, None, n, failed, baseline=0.0)
    replicates = np.mean([part.replicates_R for part in parts], axis=0)
    found = percentile_interval(float(np.mean(points)), replicates, n=n, n_undefined=failed)
    return replace(widen_at_edge(found, sum(part.trials for part in parts)), baseline=0.0)


VALIDITY, REDUNDANCY = 0.5, 0.15  # a step above them is called right, and redundant
CORRECT = "correct"
ONLY_RIGHT = "multi_solutions"  # several right solutions, none with a wrong step
REDUNDANT = ("redundency", "redundancy", "circular")  # the published files spell it with an e
_Row = tuple[str, tuple[int, int, int, int], bool]  # category, counts, whether the measurement failed
_STEP_FIGURES = ("prm_score", "f1", "f1_wrong", "accuracy_right", "accuracy_wrong")


@dataclass(frozen=True)
class PRMBench:
    """The figures of PRMBench.

    Attributes:
        thresholds: `validity` and `redundancy`; the latter None where the model scores no redundancy.
        failures: failed measurements by reason.
        measured: `prm_score`, `f1`, `f1_wrong`, `accuracy_right` and `accuracy_wrong` pooled over categories.
        failures_wrong: the same with failed solutions counted as misjudged in every step.
        categories: the measured figures of each category, `correct` too.
    """

    thresholds: Mapping[str, float | None]
    failures: Mapping[str, int]
    measured: Mapping[str, Interval]
    failures_wrong: Mapping[str, Interval]
    categories: Mapping[str, Mapping[str, Interval]]


def prm_bench(
    solutions: Sequence[Solution],
    scores: Sequence[Score],
    redundancy: Sequence[Score] | None = None,
    *,
    reps: int = 1000,
    seed: int,
) -> PRMBench:
    """Evaluate values of steps on solutions with known wrong steps.

    Args:
        solutions: with a truth per step (labels, or `meta["error_steps"]` from 0) and a category (see `category_of`).
        scores: how valid each step is.
        redundancy: how redundant each step is, from a model that scores it; used in the categories about redundancy.
        reps: bootstrap resamples.
        seed: of the bootstrap.

    Raises:
        DataError: a solution lacks its category or wrong steps, or no category but `correct` is there.
    """
    rows: list[_Row] = []
    other = need_steps(redundancy) if redundancy is not None else [None] * len(solutions)
    used: list[Score] = []
    for (solution, score), second in zip(paired(solutions, need_steps(scores)), other, strict=True):
        row, used_score = _judged(solution, score, second)
        rows.append(row)
        used.append(used_score)
    pooled = [row for row in rows if row[0] != CORRECT]
    if not pooled:
        raise DataError("PRMBench needs solutions of a category other than correct", field="category")
    rng = np.random.default_rng(seed)

    def figures(part: Sequence[_Row], wrong: bool = False) -> dict[str, Interval]:
        kept = [counts for _, counts, failed in part if wrong or not failed]
        only_right = all(category == ONLY_RIGHT for category, _, _ in part)
        return _step_figures(kept, len(part) - len(kept), only_right=only_right, reps=reps, rng=rng)

    by_category: dict[str, list[_Row]] = {}
    for row in rows:
        by_category.setdefault(row[0], []).append(row)
    measured = figures(pooled)
    some_failed = any(failed for _, _, failed in pooled)
    return PRMBench(
        measured=measured,
        failures_wrong=figures(pooled, wrong=True) if some_failed else measured,
        categories={name: figures(by_category[name]) for name in sorted(by_category)},
        failures=failure_counts(used),
        thresholds={"validity": VALIDITY, "redundancy": None if redundancy is None else REDUNDANCY},
    )


def _judged(solution: Solution, score: Score, redundancy: Score | None) -> tuple[_Row, Score]:
    """A solution's row, and the score that it comes from: in the categories about redundancy that of redundancy.

    A failed measurement misjudges every step.
    """
    category, truth = category_of(solution), step_labels(solution)
    if category is None or not truth or None in truth:
        raise DataError(f"solution {solution.id} lacks its category or the truth of a step: is this PRMBench?")
    wrong_T = ~np.array(truth, dtype=np.bool_)
    used = redundancy if redundancy is not None and category in REDUNDANT else score
    if used.steps is None:
        right_T = wrong_T
    elif used is redundancy:
        right_T = used.steps <= REDUNDANCY
    else:
        right_T = used.steps > VALIDITY
    cells = (right_T & ~wrong_T, right_T & wrong_T, ~right_T & wrong_T, ~right_T & ~wrong_T)
    tp, fp, tn, fn = (int(cell.sum()) for cell in cells)
    return (category, (tp, fp, tn, fn), used.steps is None), used


def category_of(solution: Solution) -> str | None:
    """The kind of error: `meta["category"]`, or `meta["classification"]` as the published files call it."""
    found = solution.meta.get("category", solution.meta.get("classification"))
    return None if found is None else str(found)


def _step_figures(
    counts: Sequence[tuple[int, int, int, int]],
    n_failed: int,
    *,
    only_right: bool,
    reps: int,
    rng: np.random.Generator,
) -> dict[str, Interval]:
    """The figures from (TP, FP, TN, FN) of each solution, pooled; the positive class is right steps.

    With `only_right` the PRMScore is F1, and there is no F1 of wrong steps.
    """
    n = len(counts)
    cells_N_4 = np.array(counts, dtype=np.float64).reshape(n, 4)
    tp, fp, tn, fn = (resampling_weights(n, reps, rng) @ cells_N_4).T
    f1 = np.where(tp + fn > 0, ratio(2 * tp, 2 * tp + fp + fn), np.nan)
    f1_wrong = np.where(tn + fp > 0, ratio(2 * tn, 2 * tn + fp + fn), np.nan)
    columns = (f1 if only_right else (f1 + f1_wrong) / 2, f1, f1_wrong, ratio(tp, tp + fn), ratio(tn, tn + fp))
    return {
        name: percentile_interval(x[0], x[1:], n=n, n_undefined=n_failed, can_vary=n > 1)
        for name, x in zip(_STEP_FIGURES, columns, strict=True)
    }


def first_below(steps_T: ArrayLike, threshold: float) -> int:
    """Index of the first step with a value below the threshold, -1 where there is none."""
    below = np.flatnonzero(np.asarray(steps_T, dtype=np.float64) < threshold)
    return int(below[0]) if below.size else -1


def true_first_error(solution: Solution) -> int | None:
    """The published first error (`meta["first_error"]`), else the first wrong label; None where it is unknown."""
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
    cases: list[tuple[bool, float, int]] = []
    missing = 0
    questions: dict[str, int] = {}
    for solution, score in paired(solutions, scores):
        group = questions.setdefault(solution.asked, len(questions))
        for k, label in enumerate(step_labels(solution)):
            if label is None or score.steps is None:
                missing += 1
            else:
                cases.append((label, float(score.steps[k]), group))
    return Table.of(cases, missing)


def first_errors(solutions: Sequence[Solution], scores: Sequence[Score], threshold: float) -> dict[str, Any]:
    """The first step below the threshold against the true first error, as plain JSON values.

    Returns:
        Counts and their shares with Wilson intervals, in `erroneous` (solutions with an error: `exact`, `early`,
        `late`, `missed`, `failed`) and `correct` (without one: `clean`, `false_alarm`, `failed`); and `unknown`, how
        many solutions have no known first error.

    Raises:
        DataError: there is no solution, or another number of scores.
    """
    counts = {
        "erroneous": dict.fromkeys(("exact", "early", "late", "missed", "failed"), 0),
        "correct": dict.fromkeys(("clean", "false_alarm", "failed"), 0),
    }
    unknown = 0
    for solution, score in paired(solutions, scores):
        truth = true_first_error(solution)
        if truth is None:
            unknown += 1
            continue
        found = "failed"
        if score.steps is not None:
            found = _against_truth(first_below(score.steps, threshold), truth)
        counts["correct" if truth < 0 else "erroneous"][found] += 1
    report: dict[str, Any] = {"unknown": unknown}
    for kind, part in counts.items():
        total = sum(part.values())
        report[kind] = {
            what: {"count": count, "share": asdict(wilson_interval(count, total))} for what, count in part.items()
        }
    return report


def _against_truth(predicted: int, truth: int) -> str:
    """What a predicted first error is; -1 is none."""
    if truth < 0:
        return "clean" if predicted < 0 else "false_alarm"
    if predicted < 0:
        return "missed"
    if predicted == truth:
        return "exact"
    return "early" if predicted < truth else "late"
