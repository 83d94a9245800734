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

The level was crossed at a step that no evaluation saw: after the last evaluation below it and not after the first one
at or above it. So the lower end of the interval takes the earlier of these two steps of the baseline and the later one
of the arm, the upper end the other two; the estimate takes the first evaluations at or above the level. Where the first
evaluation of a run is there already, the crossing may be as early as its start, and the end that rests on it is open.

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

from collections.abc import Callable, Sequence
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
        baseline_after: step of the baseline's last evaluation before, which was below the score; 0 without any.
        arm_after: likewise of the arm; its last step where it never got there.
    """

    baseline: float
    arm: float
    censored: bool
    baseline_after: float
    arm_after: float


@dataclass(frozen=True)
class StepsRatio:
    """Baseline's steps over the arm's: above 1 the arm needs fewer.

    Attributes:
        interval: geometric mean over pairs with its t interval, widened by the steps between evaluations; an upper
            limit, without a lower bound, where a pair is censored; a bound is None where it is open.
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


UNDEFINED = PairReach(float("nan"), float("nan"), False, float("nan"), float("nan"))


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
    before = _last_before(baseline_steps_P, own)
    arm_before = reached if arm is None else _last_before(arm_steps_Q, arm)
    return PairReach(own, reached, arm is None, before, arm_before)


def _last_before(steps_P: Sequence[float], step: float) -> float:
    """The last of these steps before another one; 0, where the run starts, without any."""
    return float(max((one for one in steps_P if one < step), default=0.0))


def steps_ratio(
    baseline_K_S: ArrayLike,
    arm_K_S: ArrayLike,
    censored_K_S: ArrayLike,
    *,
    baseline_after_K_S: ArrayLike | None = None,
    arm_after_K_S: ArrayLike | None = None,
    seed: int,
) -> StepsRatio:
    """The ratio of steps over all pairs, with its interval.

    Args:
        baseline_K_S: (tasks, seeds) steps of the baseline's runs; NaN where a pair is undefined.
        arm_K_S: (tasks, seeds) steps of the arm's runs, the last step where it never got there.
        censored_K_S: (tasks, seeds) whether it never got there.
        baseline_after_K_S: (tasks, seeds) steps of the evaluations before those of `baseline_K_S`, 0 without any; None:
            the levels were crossed at the very steps.
        arm_after_K_S: (tasks, seeds) likewise of the arm.
        seed: of the generator of the permutation test.

    Raises:
        ValueError: the shapes differ.
    """
    baseline = np.asarray(baseline_K_S, dtype=np.float64)
    arm = np.asarray(arm_K_S, dtype=np.float64)
    baseline_after = baseline if baseline_after_K_S is None else np.asarray(baseline_after_K_S, dtype=np.float64)
    arm_after = arm if arm_after_K_S is None else np.asarray(arm_after_K_S, dtype=np.float64)
    found = paired_difference(np.log(baseline), np.log(arm), seed=seed).interval
    defined_K_S = np.isfinite(baseline) & np.isfinite(arm)
    n_censored = int((np.asarray(censored_K_S, dtype=bool) & defined_K_S).sum())
    low = high = None
    if not n_censored and (baseline_after[defined_K_S] > 0).all():
        earlier = paired_difference(np.log(baseline_after), np.log(arm), seed=seed).interval
        low = _farther(min, found.low, earlier.low)
    if (arm_after[defined_K_S] > 0).all():
        later = paired_difference(np.log(baseline), np.log(arm_after), seed=seed).interval
        high = _farther(max, found.high, later.high)
    interval = Interval(_exp(found.estimate), _exp(low), _exp(high), found.n, found.n_undefined)
    return StepsRatio(interval, n_censored)


def _farther(choose: Callable[[float, float], float], one: float | None, other: float | None) -> float | None:
    """The bound farther from the estimate; open where one of them is: their spreads differ, too."""
    return None if one is None or other is None else choose(one, other)


def _exp(logarithm: float | None) -> float | None:
    """The ratio of a logarithm; a huge one stays finite."""
    return None if logarithm is None else float(np.exp(min(logarithm, 700.0)))
