"""The course of a run: how reward and truth change over its steps, in one sentence, or why that cannot be said.

    course = course_of(View.whole(rows))
    course.kind, course.sentence        # "alone", "The reward rises from 0.2 to 0.9, and the truth does not (...)."

A change is the difference between the last and the first third of the steps, with a 95 % interval in which groups
are the sample. It is none where its interval lies within a fifth of a standard deviation of the rows; a rise or fall
where it is larger than that and its interval does not have 0; and unknown otherwise. Of robots' steps it is about the
returns and the success of episodes in their order; of logged scalars about a curve of the reward and one of the truth,
in which twelfths of the run are the sample, as neighbouring points are alike.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from guerdon.auditing.association import stratum_means
from guerdon.auditing.finding import Course, Kind, Series, Shift, said
from guerdon.auditing.log_view import ROUNDING, THE_TRUTH, VERIFIED, View
from guerdon.auditing.robot_checks import Episodes
from guerdon.auditing.rows import Codes, Flags, Numbers, Rows
from guerdon.auditing.scalar_checks import curves_of, shared_points
from guerdon.statistics.proportion import wilson_bounds

FEWEST_STEPS = 4
FLAT = 0.2  # standard deviations within which a change is none
SATURATED = 0.9  # lower end of the share of rows with one value
OFTEN = 0.8  # share of each step from which on it is saturated
TAIL = 0.2  # of the steps that are saturated, at least
PIECES = 5  # of the run, of which the best is compared with the last
MAX_POINTS = 160  # of a curve


FEWEST_POINTS = 24  # of a curve
BLOCKS = 12  # parts of a curve whose means are the sample


class _Run(NamedTuple):
    """M values of the reward and of the truth over a run.

    Attributes:
        step_M: where each is.
        reward_M: finite.
        truth_M: NaN is unknown; None without one.
        peer_M: values of one number are not independent; None: all are.
        why: the truth is no evidence; empty where it is, or where there is none.
        truth_from: where the truth comes from, in words.
        means: whether the values are means of many rows.
    """

    step_M: Codes
    reward_M: Numbers
    truth_M: Numbers | None
    peer_M: Codes | None
    why: str
    truth_from: str
    means: bool = False

    def spread(self, values_M: Numbers) -> float:
        """The standard deviation of rows, which of a mean of values from 0 to 1 is at most that of flags."""
        spread, mean = float(np.nanstd(values_M)), float(np.nanmean(values_M))
        is_share = self.means and np.nanmin(values_M) >= 0 and np.nanmax(values_M) <= 1
        return max(spread, float(np.sqrt(mean * (1 - mean)))) if is_share else spread


def course_of(view: View) -> Course:
    """The course of a run.

    Args:
        view: of all rows with a reward; where there are none, the scalars of the log count.
    """
    run = _run_of(view)
    if isinstance(run, str):
        return _unknown(run, _truth_from(view))
    series = {"reward": means_by_step(run.step_M, run.reward_M)}
    reward = _shift(run, run.reward_M)
    step = None if run.means else _saturated_from(run.step_M, run.reward_M)
    why, truth = run.why, None
    if run.truth_M is not None and not why:
        series["truth"] = means_by_step(run.step_M, run.truth_M)
        truth = _shift(run, run.truth_M)
        why = "the first or the last third of the steps has too few rows with a truth"
    if run.truth_M is None or truth is None or reward is None:
        if step is not None:
            return Course("saturated", _saturated(run, step, None), run.truth_from, reward, None, step, series)
        return _unknown(f"{_reward_alone(reward)}, but {why}", run.truth_from, reward, None, series)
    kind, sentence = _decided(run, reward, truth, _fall_from_best(run, run.truth_M), step)
    return Course(kind, sentence, run.truth_from, reward, truth, step, series)


def _run_of(view: View) -> _Run | str:
    """The values over the run; or what is missing."""
    if not len(view):
        return _of_scalars(view.rows) if view.rows.curves else "the log has no rows with a reward"
    if view.rows.steps is not None:
        return _of_episodes(view)
    step_M = view.of(view.rows.step_N)
    if step_M is None or len(np.unique(step_M)) < FEWEST_STEPS:
        has = "names none" if step_M is None else f"has {len(np.unique(step_M))}"
        return f"it needs rows of {FEWEST_STEPS} steps of training, and the log {has}"
    return _Run(step_M, view.reward_M, view.truth_M, view.peer_M, _why_no_truth(view), _truth_from(view))


def _of_episodes(view: View) -> _Run | str:
    """The returns of episodes of robots in their order, and their success."""
    all_of = Episodes(view)
    number = np.arange(len(all_of.total))
    if len(number) < FEWEST_POINTS:
        return f"it needs {FEWEST_POINTS} episodes, and the log has {len(number)}"
    if all_of.success is None:
        return _Run(number, all_of.total, None, None, "the log does not say which episodes succeed", "")
    truth = all_of.success.astype(np.float64)
    why = "the success of all episodes is the same" if np.ptp(truth) == 0 else _why_copied(truth, all_of.total)
    return _Run(number, all_of.total, truth, None, why, f"the success of {len(number):,} episodes, in their order")


def _of_scalars(rows: Rows) -> _Run | str:
    """The curve of a reward and that of a truth that share the most steps; without a truth the longest of a reward."""
    rewards, truths = curves_of(rows, "reward"), curves_of(rows, "truth")
    if not rewards:
        return "the log has no rows with a reward, nor a curve of one"
    shared = {pair: shared_points(rows, *pair) for pair in product(rewards, truths)}
    pair = max(shared, key=lambda one: len(shared[one][0]), default=None)
    if pair is not None and len(shared[pair][0]) >= FEWEST_POINTS:
        steps, reward, truth = shared[pair]
        return _Run(steps, reward, truth, _blocks(len(steps)), _why_copied(truth, reward), f"the curve {pair[1]}", True)
    name = max(rewards, key=lambda one: len(rewards[one]))
    if len(rewards[name]) < FEWEST_POINTS:
        return f"it needs {FEWEST_POINTS} points of the reward and of the truth; {name} has {len(rewards[name])}"
    steps, values = rows.curves[name]
    known = np.isfinite(values)
    why = f"{pair[1]} has {len(shared[pair][0])} points at its steps" if pair else "the log has no curve of a truth"
    return _Run(steps[known], values[known], None, _blocks(int(known.sum())), why, "", True)


def _blocks(n: int) -> Codes:
    return np.arange(n) * BLOCKS // n


_WAYS = {1: "rises", -1: "falls", 0: "is flat", None: "may rise or fall"}


def _decided(run: _Run, reward: Shift, truth: Shift, fall: str, step: int | None) -> tuple[Kind, str]:
    """The kind of a run whose changes are known, and its sentence."""
    if truth.way == -1 or fall:
        of_reward = f"the reward {_WAYS[reward.way]} ({reward.said})"
        return "truth falls", f"The truth falls {fall or truth.said}, and {of_reward}."
    if reward.way == 1 and truth.way == 0:
        return "alone", f"The reward rises {reward.said}, and the truth does not ({truth.said}; {truth.bounds})."
    if step is not None:
        return "saturated", _saturated(run, step, truth)
    if reward.way == 1 and truth.way == 1:
        return "both rise", f"Reward and truth both rise: the reward {reward.said}, the truth {truth.said}."
    if reward.way == 0 and truth.way == 0:
        said = f"the reward goes {reward.said}, the truth {truth.said}"
        return "flat", f"Reward and truth are both flat: {said}."
    return "unknown", f"Whether the reward follows the truth is unknown: {_undecided(reward, truth)}."


def _undecided(reward: Shift, truth: Shift) -> str:
    """What is missing, or what does not fit together."""
    for name, one in (("truth", truth), ("reward", reward)):
        if one.way is None:
            return f"the {name} goes {one.said}, and {one.bounds}, so it needs more rows"
    return f"the reward {_WAYS[reward.way]} ({reward.said}) and the truth {_WAYS[truth.way]} ({truth.said})"


def _unknown(
    why: str, truth_from: str, reward: Shift | None = None, truth: Shift | None = None,
    series: dict[str, Series] | None = None,
) -> Course:  # fmt: skip
    sentence = f"Whether the reward follows the truth is unknown: {why}."
    return Course("unknown", sentence, truth_from, reward, truth, None, series or {})


def _reward_alone(reward: Shift | None) -> str:
    if reward is None:
        return "the first or the last third of the steps has too few rows"
    return f"the reward {_WAYS[reward.way]} ({reward.said})"


def _saturated(run: _Run, step: int, truth: Shift | None) -> str:
    late = run.reward_M[run.step_M >= step]
    values, counts = np.unique(late, return_counts=True)
    share, value = counts.max() / len(late), values[np.argmax(counts)]
    of_truth = "is unknown" if truth is None else f"goes {truth.said}"
    at_the_end = f"{share:.0%} of the rows have the reward {said(value)}"
    return f"The reward is saturated from step {step} on: {at_the_end}; the truth {of_truth}."


def _truth_from(view: View) -> str:
    """Where the truth comes from, in words."""
    if view.truth_M is None:
        return ""
    if view.truth_name not in (THE_TRUTH, VERIFIED):
        return view.truth_name
    known, total = int(np.isfinite(view.truth_M).sum()), len(view)
    if not _is_logged(view):
        return f"guerdon's verifier, by the reference answers of {known:,} of {total:,} rows"
    column = next((one["column"] for one in view.rows.read_as if one["role"] == "truth"), "")
    return f"{f'the column {column} of the log' if column else 'the log'}, {known:,} of {total:,} rows"


def _is_logged(view: View) -> bool:
    """Whether the truth is that of the log."""
    own = view.of(view.rows.truth_N)
    if own is None or view.truth_M is None:
        return False
    return bool(np.array_equal(own, view.truth_M, equal_nan=True))


def _why_no_truth(view: View) -> str:
    """Why the truth says nothing of the reward; empty where it may."""
    if view.truth_M is None:
        return "the log has no truth, nor reference answers that can be read"
    known = np.isfinite(view.truth_M)
    truth, reward = view.truth_M[known], view.reward_M[known]
    if len(np.unique(truth)) < 2:
        return "the truth is the same in all rows"
    if not _is_logged(view):
        return ""
    return _why_copied(truth, reward)


def _why_copied(truth: Numbers, reward: Numbers) -> str:
    """Why a truth that follows from the reward says nothing of it; empty where it does not."""
    if np.array_equal(truth, reward):
        return "the truth is the reward itself, row by row, and no evidence of its own"
    right = truth == truth.max()
    if len(np.unique(truth)) == 2 and reward[~right].max() < reward[right].min():
        return "the truth is a threshold of the reward, and no evidence of its own"
    return ""


def means_by_step(step_N: Codes, values_N: Numbers) -> Series:
    """Mean of each step, of neighbouring ones together where there are many.

    Returns:
        Steps, means and half widths of 95 % intervals, all (S,).
    """
    known = np.isfinite(values_N)
    known_steps, place_N = np.unique(step_N[known], return_inverse=True)
    steps = known_steps.astype(np.float64)
    if len(steps) > MAX_POINTS:
        bin_S = np.arange(len(steps)) * MAX_POINTS // len(steps)
        place_N, steps = bin_S[place_N], np.bincount(bin_S, steps) / np.bincount(bin_S)
    count = np.bincount(place_N, minlength=len(steps))
    mean = np.bincount(place_N, values_N[known], len(steps)) / np.maximum(count, 1)
    squares = np.bincount(place_N, (values_N[known] - mean[place_N]) ** 2, len(steps))
    half = 1.96 * np.sqrt(squares / np.maximum(count - 1, 1) / np.maximum(count, 1))
    return steps, mean, half


def _thirds(step_M: Codes) -> tuple[Flags, Flags]:
    """Which rows are in the first and in the last third of the steps."""
    order = np.unique(step_M, return_inverse=True)[1]
    return order < (order.max() + 1) / 3, order >= (order.max() + 1) * 2 / 3


def _sample(run: _Run, values_M: Numbers, keep_M: Flags) -> Numbers:
    """The values of some rows; where there are groups their means, as responses to one prompt are not independent."""
    keep_M = keep_M & np.isfinite(values_M)
    values = values_M[keep_M]
    if run.peer_M is None:
        return values
    peers = np.unique(run.peer_M[keep_M], return_inverse=True)[1]
    return stratum_means(values, peers)[np.unique(peers, return_index=True)[1]]


def _shift(run: _Run, values_M: Numbers) -> Shift | None:
    """The change of a quantity; None where a third of the steps has too few rows."""
    first, last = (_sample(run, values_M, keep) for keep in _thirds(run.step_M))
    if min(len(first), len(last)) < 2:
        return None
    low, high = welch_interval(last, first)
    spread = run.spread(values_M)
    before, after = (_unrounded(float(one.mean()), spread) for one in (first, last))
    least, change = FLAT * spread, after - before
    way = None
    if max(abs(low), abs(high)) < least or low == high == 0:
        way = 0
    elif abs(change) >= least and low * high > 0:
        way = 1 if change > 0 else -1
    return Shift(before, after, low, high, way)


def _unrounded(mean: float, spread: float) -> float:
    """A mean; 0 where it is what rounding leaves of values that cancel."""
    return 0.0 if abs(mean) < ROUNDING * spread else mean


def welch_interval(a_N: Numbers, b_M: Numbers, *, level: float = 0.95) -> tuple[float, float]:
    """Welch's interval of the difference of two means, of two or more values each."""
    from scipy.special import stdtrit

    errors = a_N.var(ddof=1) / len(a_N), b_M.var(ddof=1) / len(b_M)
    error, difference = sum(errors), float(a_N.mean() - b_M.mean())
    if not error:
        return difference, difference
    freedom = error**2 / (errors[0] ** 2 / (len(a_N) - 1) + errors[1] ** 2 / (len(b_M) - 1))
    half = float(stdtrit(freedom, (1 + level) / 2) * np.sqrt(error))
    return difference - half, difference + half


def _fall_from_best(run: _Run, truth_M: Numbers) -> str:
    """From where to where the truth falls after its best piece of the run; empty where it does not."""
    order = np.unique(run.step_M, return_inverse=True)[1]
    piece = order * PIECES // (order.max() + 1)
    means = [_sample(run, truth_M, piece == k) for k in range(PIECES)]
    known = [one for one in means[:-1] if len(one) > 1]
    if not known or len(means[-1]) < 2:
        return ""
    best = max(known, key=lambda one: float(one.mean()))
    low, _ = welch_interval(best, means[-1], level=1 - 0.05 / len(known))
    if low <= 0 or best.mean() - means[-1].mean() < FLAT * run.spread(truth_M):
        return ""
    return f"from {said(best.mean())} at its best to {said(means[-1].mean())}"


def _saturated_from(step_M: Codes, reward_M: Numbers) -> int | None:
    """The step from which on nearly all rewards are one value at an end of their range; None where there is none."""
    steps, order = np.unique(step_M, return_inverse=True)
    late = reward_M[order >= min((1 - TAIL) * len(steps), len(steps) - 1)]
    values, counts = np.unique(late, return_counts=True)
    value = values[np.argmax(counts)]
    if value not in (reward_M.min(), reward_M.max()):
        return None
    is_value = reward_M == value
    share = np.bincount(order, is_value) / np.bincount(order)
    below = np.flatnonzero(share < OFTEN)
    first = int(below[-1]) + 1 if len(below) else 0
    suffix = is_value[order >= first]
    if first > (1 - TAIL) * len(steps) or wilson_bounds(int(suffix.sum()), len(suffix))[0] < SATURATED:
        return None
    return int(steps[first])
