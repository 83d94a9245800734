"""Learning curves: bands, area, steps to a threshold, and how many times fewer steps an arm needs than its baseline.

Arrays of scores at P evaluation points in, numbers out. A point that was never measured is NaN; it is left out of the
band and counted, and makes an area undefined.

The ratio of steps of a pair of runs (same task, same seed) is

    steps to the first evaluation at which the baseline reaches its own final score
    / steps to the first evaluation at which the arm reaches that score

on the curves as measured, without smoothing or interpolation: 2 means half the steps. The baseline always reaches its
own final score and another run of the same kind need not, so noise works against the arm. Pairs are averaged as
logarithms (a geometric mean), tasks weigh the same, and the interval is the Student t of paired differences on which
all conclusions of this package rest.

An arm that never reaches the score (a censored pair) would need more steps than it was given. It counts with all the
steps it took, which is the largest ratio that agrees with what was measured. So with one censored pair the estimate
and the upper bound are "at most", there is no lower bound, and `fewer` is never claimed. A pair is undefined where a
run is missing, where the baseline ends at 0, and where either run reaches the score before its first step.

    band = curve_band(success_K_S_P, seed=0)
    print(StepsToThreshold(tuple(first_reach(steps_P, row, 0.5) for row in success_S_P)).reached)
    reach = pair_reach((0, 100, 200), (0.0, 0.4, 0.8), (0, 100, 200), (0.0, 0.8, 0.9))  # 200 against 100 steps
    print(steps_ratio([[reach.baseline]], [[reach.arm]], [[reach.censored]], seed=0).interval.estimate)  # 2.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from guerdon.statistics.intervals import Float64, Interval, defined
from guerdon.statistics.training_runs import Average, paired_difference, stratified_bootstrap


@dataclass(frozen=True)
class StepsToThreshold:
    """When each run's curve first reached a threshold.

    Attributes:
        steps: one entry per run, None where it never did.
    """

    steps: tuple[float | None, ...]

    @property
    def n(self) -> int:
        """How many runs there are."""
        return len(self.steps)

    @property
    def reached(self) -> int:
        """How many runs reached it."""
        return sum(step is not None for step in self.steps)

    @property
    def median(self) -> float | None:
        """Over all runs, "never" being later than any step; None where that is the median."""
        if not self.steps:
            return None
        ordered = sorted(np.inf if step is None else step for step in self.steps)
        lower = ordered[(self.n - 1) // 2]
        upper = ordered[self.n // 2]
        return defined((lower + upper) / 2)


def curve_band(scores_K_S_P: ArrayLike, *, average: Average = "mean", reps: int = 2000, seed: int) -> list[Interval]:
    """Pointwise stratified bootstrap band: one `Interval` per evaluation point.

    The same resampled runs are used at every point, so the band moves smoothly. For few seeds it is narrower
    than nominal (see `runs`): a picture, not a test.

    Args:
        scores_K_S_P: (tasks, seeds, points), NaN where a run has no value at a point.
        average: `mean` of the tasks' means, or `iqm` over all runs.
        reps: number of resamples.
        seed: of the generator.

    Raises:
        ValueError: the array is not of shape (tasks, seeds, points).
    """
    scores = np.asarray(scores_K_S_P, dtype=np.float64)
    if scores.ndim != 3:
        raise ValueError(f"curves must have shape (tasks, seeds, points), got {scores.shape}")
    return [
        stratified_bootstrap(scores[:, :, p], average=average, reps=reps, seed=seed) for p in range(scores.shape[2])
    ]


def area_under_curve(steps_P: ArrayLike, scores_P: ArrayLike) -> Float64:
    """Trapezoidal area divided by the range of steps: the mean height of the curve, in units of the score.

    Args:
        steps_P: (P,) strictly increasing.
        scores_P: (..., P) scores; a NaN makes its own curve's area NaN.

    Returns:
        (...) areas, NaN where undefined (a missing point, fewer than two points).

    Raises:
        ValueError: the lengths differ, or steps do not increase.
    """
    steps, scores = _curve(steps_P, scores_P)
    if len(steps) < 2:
        return np.full(scores.shape[:-1], np.nan)
    heights = (scores[..., 1:] + scores[..., :-1]) / 2
    area = heights @ np.diff(steps)
    return np.asarray(area / (steps[-1] - steps[0]))


def first_reach(steps_P: ArrayLike, scores_P: ArrayLike, threshold: float) -> float | None:
    """The step of the first evaluation at or above `threshold`, if any; a missing point (NaN) reaches nothing.

    Args:
        steps_P: (P,) strictly increasing.
        scores_P: (P,) the curve of one run.
        threshold: such as 0.5 for half of the episodes successful.

    Raises:
        ValueError: the lengths differ, or steps do not increase.
    """
    steps, scores = _curve(steps_P, scores_P)
    hits = np.flatnonzero(scores >= threshold)
    return float(steps[hits[0]]) if hits.size else None


def _curve(steps_P: ArrayLike, scores_P: ArrayLike) -> tuple[Float64, Float64]:
    steps = np.asarray(steps_P, dtype=np.float64)
    scores = np.asarray(scores_P, dtype=np.float64)
    if steps.ndim != 1 or scores.shape[-1:] != steps.shape:
        raise ValueError(f"a curve needs one score per step, got {steps.shape} steps and {scores.shape} scores")
    if (np.diff(steps) <= 0).any():
        raise ValueError("the steps of a curve must increase strictly")
    return steps, scores


Speed = Literal["fewer", "more", "no difference shown"]


class PairReach(NamedTuple):
    """Steps that a baseline's run and an arm's run took to the baseline's final score.

    Attributes:
        baseline: NaN where the pair is undefined.
        arm: the arm's last step where it never got there; NaN where the pair is undefined.
        censored: whether the arm never got there.
    """

    baseline: float
    arm: float
    censored: bool


@dataclass(frozen=True)
class StepsRatio:
    """Baseline's steps over the arm's: above 1 the arm needs fewer.

    Attributes:
        interval: geometric mean over pairs with its t interval; an upper limit, without a lower bound, where a pair
            is censored.
        censored: pairs in which the arm never reached the baseline's final score.
    """

    interval: Interval
    censored: int

    @property
    def conclusion(self) -> Speed:
        """`fewer` or `more` only if the interval excludes 1."""
        low = self.interval.low
        high = self.interval.high
        if low is not None and low > 1:
            return "fewer"
        if high is not None and high < 1:
            return "more"
        return "no difference shown"


UNDEFINED = PairReach(float("nan"), float("nan"), False)


def pair_reach(
    baseline_steps_P: Sequence[float],
    baseline_scores_P: Sequence[float],
    arm_steps_Q: Sequence[float],
    arm_scores_Q: Sequence[float],
) -> PairReach:
    """When two runs of one task and seed first reach the baseline's final score.

    Args:
        baseline_steps_P: (P,) strictly increasing.
        baseline_scores_P: (P,) scores of the baseline; the last one is the threshold.
        arm_steps_Q: (Q,) strictly increasing, not necessarily the same steps.
        arm_scores_Q: (Q,) scores of the arm.

    Raises:
        ValueError: a curve's lengths differ, or its steps do not increase.
    """
    if not len(baseline_scores_P) or not len(arm_scores_Q) or not baseline_scores_P[-1] > 0:
        return UNDEFINED
    final = float(baseline_scores_P[-1])
    own = first_reach(baseline_steps_P, baseline_scores_P, final)
    arm = first_reach(arm_steps_Q, arm_scores_Q, final)
    reached = float(arm_steps_Q[-1]) if arm is None else arm
    if own is None or own <= 0 or reached <= 0:
        return UNDEFINED
    return PairReach(own, reached, arm is None)


def steps_ratio(baseline_K_S: ArrayLike, arm_K_S: ArrayLike, censored_K_S: ArrayLike, *, seed: int) -> StepsRatio:
    """The ratio of steps over all pairs, with its interval.

    Args:
        baseline_K_S: (tasks, seeds) steps of the baseline's runs; NaN where a pair is undefined.
        arm_K_S: (tasks, seeds) steps of the arm's runs, the last step where it never got there.
        censored_K_S: (tasks, seeds) whether it never got there.
        seed: of the generator of the permutation test.

    Raises:
        ValueError: the shapes differ.
    """
    baseline = np.asarray(baseline_K_S, dtype=np.float64)
    arm = np.asarray(arm_K_S, dtype=np.float64)
    found = paired_difference(np.log(baseline), np.log(arm), seed=seed).interval
    defined_K_S = np.isfinite(baseline) & np.isfinite(arm)
    n_censored = int((np.asarray(censored_K_S, dtype=bool) & defined_K_S).sum())
    low = None if n_censored else _exp(found.low)
    interval = Interval(_exp(found.estimate), low, _exp(found.high), found.n, found.n_undefined)
    return StepsRatio(interval, n_censored)


def _exp(logarithm: float | None) -> float | None:
    """The ratio of a logarithm; a huge one stays finite."""
    return None if logarithm is None else float(np.exp(min(logarithm, 700.0)))
