"""Choosing among n samples: best-of-n, majority votes and weighted votes of a reward model, against pass@n.

Curves over n of pass@n (the ceiling), majority, best-of-n and weighted majority, each an unbiased average over all
subsets of size n of a question's N samples, with 95 % intervals over questions and paired differences to majority.
Answers are grouped by equivalence, not by string. Ties are split evenly, which is what taking the first one amounts to
when samples come in random order. A sample without an answer casts no vote. A sample that the model could not measure
is never chosen and casts no weighted vote; where nothing in a subset was measured, the choice is wrong. The same curves
are given over measured samples alone. Samples whose truth is unknown are left out and counted.

    curves = best_of_n(solutions, scores, same_number_or_text, aggregations=("min",), seed=0)
    print(curves.failures_wrong["bon_min"].accuracy[-1], curves.failures_wrong["bon_min"].minus_majority[-1])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.models.scores import AGGREGATIONS, failure_counts, paired, solution_value
from guerdon.settings.evaluate import Aggregation
from guerdon.statistics.intervals import Float64, Interval, bootstrap_ci, mean, widen_at_edge
from guerdon.tasks.answer_words import same_text
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.verifier import Verifier
from guerdon.types import Failure, Score

MOST_EXACT = 64  # samples up to which majority is counted out; above, random subsets


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples of one question.

    Attributes:
        correct_N: whether each is right.
        classes_N: answer class of each, -1 for no answer.
        right_K: share of right samples of each class (0 or 1 where checker and classes agree).
        values: aggregation to (N,) values, NaN where the measurement failed.
    """

    correct_N: NDArray[np.bool_]
    classes_N: NDArray[np.int64]
    right_K: Float64
    values: Mapping[Aggregation, Float64]


@dataclass(frozen=True)
class AccuracyCurve:
    """Accuracy of one way to choose, over n.

    Attributes:
        accuracy: mean over questions at each n; questions with fewer than n samples are undefined.
        minus_majority: the paired difference to majority at each n; empty for majority itself.
    """

    accuracy: Sequence[Interval]
    minus_majority: Sequence[Interval] = field(default_factory=list)


@dataclass(frozen=True)
class BestOfN:
    """All curves.

    Attributes:
        n: numbers of samples to choose from.
        questions: how many.
        samples_per_question: the smallest and the largest number.
        failures: failed measurements by reason.
        unknown: samples left out because it is unknown whether they are right.
        not_weighted: aggregations without a weighted vote, because values were negative.
        measured: name to curve over samples that were measured: `pass`, `majority`, `bon_<how>`, `weighted_<how>`.
        failures_wrong: the same over all samples, those without a measurement never chosen.
    """

    n: list[int]
    questions: int
    samples_per_question: list[int]
    failures: Mapping[str, int]
    unknown: int
    not_weighted: list[str]
    measured: Mapping[str, AccuracyCurve]
    failures_wrong: Mapping[str, AccuracyCurve]


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
    check_samples(solutions, ns)
    pools, unknown = group_samples(solutions, scores, same, aggregations)
    sizes = [len(pool.correct_N) for pool in pools]
    chosen = sorted(set(ns)) if ns is not None else [2**k for k in range(min(sizes).bit_length())]
    weighted = [how for how in aggregations if not any((pool.values[how] < 0).any() for pool in pools)]

    def curves(drop: bool) -> dict[str, AccuracyCurve]:
        found = _per_question(pools, chosen, aggregations, weighted, drop=drop, draws=draws, seed=seed)
        return {name: _curve(part, found["majority"], name, reps=reps, seed=seed) for name, part in found.items()}

    wrong = curves(drop=False)
    some_failed = any(np.isnan(v).any() for pool in pools for v in pool.values.values())
    return BestOfN(
        n=chosen,
        questions=len(pools),
        samples_per_question=[min(sizes), max(sizes)],
        failures=failure_counts(scores),
        unknown=unknown,
        not_weighted=[how for how in aggregations if how not in weighted],
        measured=curves(drop=True) if some_failed else wrong,
        failures_wrong=wrong,
    )


def check_samples(solutions: Iterable[Solution], ns: Sequence[int] | None) -> None:
    """Refuse samples that are too few to choose from; no scores are needed.

    Args:
        solutions: see `best_of_n`.
        ns: see `best_of_n`.

    Raises:
        DataError: no sample has a known truth, or n is larger than every question's number of samples.
    """
    most = max(Counter(s.asked for s in solutions if s.is_correct is not None).values(), default=0)
    if not most:
        raise DataError(
            "no sample has a checked answer (is_correct): check answers before best-of-N", field="is_correct"
        )
    if ns and max(ns) > most:
        raise DataError(
            f"best-of-{max(ns)} needs {max(ns)} samples of a question; the largest number is {most}", field="ns"
        )


def group_samples(
    solutions: Sequence[Solution], scores: Sequence[Score], same: Same, aggregations: Sequence[Aggregation]
) -> tuple[list[Samples], int]:
    """Samples by question, in order of first appearance, and how many were left out for want of truth.

    Raises:
        DataError: the number of scores is not that of solutions.
    """
    groups: dict[str, list[tuple[Solution, Score]]] = {}
    unknown = 0
    for solution, score in paired(solutions, scores):
        if solution.is_correct is None:
            unknown += 1
            continue
        groups.setdefault(solution.asked, []).append((solution, score))
    pools = []
    for rows in groups.values():
        correct = np.array([s.is_correct is True for s, _ in rows])
        classes = np.array(answer_classes([s.answer for s, _ in rows], same), dtype=np.int64)
        number = int(classes.max(initial=-1)) + 1
        right = np.array([correct[classes == k].mean() for k in range(number)])
        values = {
            how: np.array([np.nan if isinstance(v := solution_value(score, how), Failure) else v for _, score in rows])
            for how in aggregations
        }
        pools.append(Samples(correct, classes, right, values))
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

    def vote(q: int, n: int, classes_N: NDArray[np.int64], weights_N: Float64) -> float:
        rng = np.random.default_rng([seed, q, n])
        return weighted_majority(classes_N, pools[q].right_K, weights_N, n, draws=draws, rng=rng)

    for q, pool in enumerate(pools):
        size = len(pool.correct_N)
        exact = majority(pool.classes_N, pool.right_K, min(max(ns), size)) if size <= MOST_EXACT else None
        for p, n in enumerate(ns):
            if n > size:
                continue
            found["pass"][q, p] = pass_at(pool.correct_N, n)
            found["majority"][q, p] = vote(q, n, pool.classes_N, np.ones(size)) if exact is None else exact[n - 1]
        for how in aggregations:
            keep_N = np.isfinite(pool.values[how]) | (not drop)
            values_N = pool.values[how][keep_N]
            lost_N = ~np.isfinite(values_N)
            correct_N = pool.correct_N[keep_N] & ~lost_N  # chosen only where nothing was measured, and wrong then
            for p, n in enumerate(ns):
                if n > len(values_N):
                    continue
                found[f"bon_{how}"][q, p] = best_of(np.where(lost_N, -np.inf, values_N), correct_N, n)
                if how in weighted:
                    classes_N = np.where(lost_N, NO_ANSWER, pool.classes_N[keep_N])
                    found[f"weighted_{how}"][q, p] = vote(q, n, classes_N, np.where(lost_N, 0.0, values_N))
    return found


def _curve(part_Q_P: Float64, majority_Q_P: Float64, name: str, *, reps: int, seed: int) -> AccuracyCurve:
    found = [bootstrap_ci(column, mean, reps=reps, seed=seed) for column in part_Q_P.T]
    accuracy = [widen_at_edge(i, i.n) for i in found]
    if name == "majority":
        return AccuracyCurve(accuracy)
    differences = [bootstrap_ci(d, mean, reps=reps, seed=seed) for d in (part_Q_P - majority_Q_P).T]
    return AccuracyCurve(accuracy, [replace(i, baseline=0.0) for i in differences])


NO_ANSWER = -1


def pass_at(correct_N: ArrayLike, n: int) -> float:
    """The chance that n of N samples, drawn without replacement, hold a right one.

    Raises:
        ValueError: n is not between 1 and N.
    """
    correct = np.asarray(correct_N, dtype=np.bool_)
    total, wrong = len(correct), int((~correct).sum())
    _check(n, total)
    return 1.0 - comb(wrong, n) / comb(total, n)


def best_of(values_N: ArrayLike, correct_N: ArrayLike, n: int) -> float:
    """The chance that the sample with the largest value among n of N is right; ties are split evenly.

    With g samples at one value, c of them right, and l samples below, that value is the largest with chance
    (C(l + g, n) - C(l, n)) / C(N, n), and then right with chance c / g.

    Args:
        values_N: (N,) values of the reward model; -inf where the measurement failed (chosen last).
        correct_N: (N,) whether each sample is right.
        n: samples to choose from.

    Raises:
        ValueError: n is not between 1 and N.
    """
    values, correct = np.asarray(values_N, dtype=np.float64), np.asarray(correct_N, dtype=np.float64)
    total = len(values)
    _check(n, total)
    _, level, sizes = np.unique(values, return_inverse=True, return_counts=True)
    right = np.bincount(level.reshape(-1), weights=correct, minlength=len(sizes))
    below, found, all_ways = 0, 0.0, comb(total, n)
    for size, rights in zip(sizes.tolist(), right.tolist(), strict=True):
        found += (comb(below + size, n) - comb(below, n)) / all_ways * rights / size
        below += size
    return found


def majority(classes_N: ArrayLike, right_K: ArrayLike, most: int) -> Float64:
    """(most,) chance that the most frequent answer among n of N is right, for n = 1 ... most; exact.

    Counts the ways to draw n samples with j votes for each of t answers and fewer for all others, for every j and t,
    with the sum over these ways of how many of the t are right.

    Args:
        classes_N: (N,) answer class of each sample, 0 ... K-1, or -1 for none.
        right_K: (K,) whether each answer is right (or how likely).
        most: largest n.

    Raises:
        ValueError: `most` is not between 1 and N.
    """
    classes, right = np.asarray(classes_N, dtype=np.int64), np.asarray(right_K, dtype=np.float64)
    total = len(classes)
    _check(most, total)
    sizes = np.bincount(classes[classes >= 0], minlength=len(right))
    silent = int((classes < 0).sum())
    found = np.zeros(most + 1)
    for j in range(1, min(most, int(sizes.max(initial=0))) + 1):
        ways = np.zeros((most + 1, most // j + 1))  # votes and silent samples so far, answers with j votes
        for i in range(min(silent, most) + 1):
            ways[i, 0] = comb(silent, i)
        share = np.zeros_like(ways)  # ways, weighted by how many of the answers with j votes are right
        for size, correct in zip(sizes.tolist(), right.tolist(), strict=True):
            more, gain = np.zeros_like(ways), np.zeros_like(ways)
            for i in range(min(size, j, most) + 1):
                times = comb(size, i)
                rows = slice(0, most + 1 - i)
                if i < j:
                    more[i:] += times * ways[rows]
                    gain[i:] += times * share[rows]
                else:
                    more[i:, 1:] += times * ways[rows, :-1]
                    gain[i:, 1:] += times * (share[rows, :-1] + correct * ways[rows, :-1])
            ways, share = more, gain
        found += (share[:, 1:] / np.arange(1, share.shape[1])).sum(axis=1)
    return np.array([found[n] / comb(total, n) for n in range(1, most + 1)])


def weighted_majority(
    classes_N: ArrayLike,
    right_K: ArrayLike,
    weights_N: ArrayLike,
    n: int,
    *,
    draws: int,
    rng: np.random.Generator,
) -> float:
    """The chance that the answer with the largest sum of weights among n of N is right.

    Averaged over all subsets where there are at most `draws` of them, else over `draws` random ones.

    Args:
        classes_N: (N,) answer class of each sample, 0 ... K-1, or -1 for none.
        right_K: (K,) whether each answer is right (or how likely).
        weights_N: (N,) not negative.
        n: samples to vote.
        draws: most subsets looked at.
        rng: of the random subsets.

    Raises:
        ValueError: n is not between 1 and N, or a weight is negative.
    """
    classes, right = np.asarray(classes_N, dtype=np.int64), np.asarray(right_K, dtype=np.float64)
    weights = np.asarray(weights_N, dtype=np.float64)
    total = len(classes)
    _check(n, total)
    if not (weights >= 0).all():
        raise ValueError("weights of votes must not be negative")
    if not len(right):
        return 0.0
    member_D_N = _subsets(total, n, draws, rng)
    votes_N_K = (classes[:, None] == np.arange(len(right))).astype(np.float64)
    sums_D_K = member_D_N @ (votes_N_K * weights[:, None])
    sums_D_K = np.where(member_D_N @ votes_N_K > 0, sums_D_K, -np.inf)
    top_D = sums_D_K.max(axis=1, keepdims=True)
    best_D_K = (sums_D_K >= top_D - 1e-9 * np.abs(np.where(np.isfinite(top_D), top_D, 0.0))) & np.isfinite(sums_D_K)
    number_D = best_D_K.sum(axis=1)
    return float(np.mean((best_D_K @ right) / np.maximum(number_D, 1)))


def _subsets(total: int, n: int, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(D, N) membership of all subsets of size n, or of `draws` random ones."""
    if comb(total, n) <= draws:
        picks = np.array(list(combinations(range(total), n)), dtype=np.int64)
    else:
        picks = rng.random((draws, total)).argsort(axis=1)[:, :n]
    member = np.zeros((len(picks), total))
    np.put_along_axis(member, picks, 1.0, axis=1)
    return member


def _check(n: int, total: int) -> None:
    if not 1 <= n <= total:
        raise ValueError(f"n must lie between 1 and the number of samples, got {n} of {total}")


Same = Callable[[str, str], bool]
_NO_QUESTION = ({"role": "user", "content": ""},)


same_number_or_text: Same = same_text


def same_by(verifier: Verifier) -> Same:
    """Equality by a verifier, in both directions (symbolic comparison is not symmetric); equal strings are equal.

    An answer that cannot be read, and a timeout, are `different` here: a class of its own costs a vote, and joining
    what may differ would make one up.
    """

    def same(left: str, right: str) -> bool:
        if same_number_or_text(left, right):
            return True

        def equal(gold: str, answer: str) -> bool:
            prompt = Prompt(id="answers", messages=_NO_QUESTION, ground_truth=gold, data_source="answers")
            return verifier.check(rf"\boxed{{{answer}}}", prompt).correct is True

        return equal(left, right) or equal(right, left)

    return same


def answer_classes(answers_N: Sequence[str | None], same: Same) -> list[int]:
    """(N,) class of each answer: that of the first earlier class whose first member it equals, else a new one.

    No answer is class -1.
    """
    firsts: list[str] = []
    known: dict[str, int] = {}
    classes = []
    for answer in answers_N:
        if answer is None or not answer.strip():
            classes.append(NO_ANSWER)
            continue
        if answer not in known:
            found = next((k for k, first in enumerate(firsts) if same(first, answer)), len(firsts))
            if found == len(firsts):
                firsts.append(answer)
            known[answer] = found
        classes.append(known[answer])
    return classes
