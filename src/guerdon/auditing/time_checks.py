"""Checks of the reward over a run and against the truth: what rises, drifts, jumps, or belongs to another row."""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtr

from guerdon.auditing.association import associate, strata, stratum_ends, stratum_means
from guerdon.auditing.finding import Severity
from guerdon.auditing.log_view import (
    SPREADS,
    SURE,
    THE_TRUTH,
    Checked,
    Undecided,
    View,
    classes,
    copied,
    enough,
    found,
    needed,
    truth_doubt,
)
from guerdon.auditing.rows import Codes, Numbers
from guerdon.statistics.proportion import wilson_bounds

# practical minima, set on the first half of benchmarks/audit_sets.py
UNEXPLAINED = 0.25  # standard deviations of the reward, over the run
BEYOND = 1.25  # times the rise of the truth, each in its standard deviations; of episodes
JUMP = 0.55  # standard deviations of the reward between neighbouring steps, beyond the trend
SHARP = 0.6  # share of a change between wide windows that is between the narrowest ones
RESCALED = 1.6  # ratio of standard deviations
AGREEMENT = 0.65  # probability that a right response has a higher reward than a wrong one
SCALED = (0.15, 0.3, 0.5, 0.7, 0.85)  # quantiles of the deviations that a change of scale moves
LAGGED = 0.25  # correlation with the truth of another row above that with its own
FEWEST_STEPS = 4
FEWEST_IN_WINDOW = 5  # groups, or rows, on either side of a jump
FEWEST_GROUPS = 30  # groups, or rows without groups, whose reward is compared over the run
TRUTH = "truth, or reference answers"


def check_truth(view: View) -> Checked:
    """The reward rises by more than the truth, or a second reward that agreed with it at first, explains."""
    steps, references = _progress(view), references_of(view)
    return _moved(view, steps, needed(references or None, "truth, reference answers or a second reward"), "truth")


def check_drift(view: View) -> Checked:
    """What right and wrong responses get falls over the run."""
    return _moved(view, _progress(view), {view.truth_name: _truth(view)}, "drift")


def check_truth_copy(view: View) -> Checked:
    """The logged truth follows from the reward: it is no evidence for or against it."""
    truth = needed(view.of(view.rows.truth_N), "truth")
    known = np.isfinite(truth)
    enough(int(known.sum()), 20, "rows with a truth")
    how = copied(view.rows)
    if not how and truth_doubt(view.rows):
        raise Undecided(truth_doubt(view.rows))
    clean = f"the reward and the truth of {known.sum():,} rows are two measurements"
    if not how:
        return Checked(None, clean)
    title = f"the truth {how} in all {known.sum():,} rows that have one: it is no evidence for or against the reward"
    return found(
        view, "truth_copy", known, title, clean, say=lambda i: f"reward {view.reward_M[i]:g}, truth {truth[i]:g}"
    )


def _truth(view: View) -> Numbers:
    """A truth that tells right responses from wrong ones, and is evidence."""
    if view.doubt:
        raise Undecided(view.doubt)
    truth: Numbers = needed(view.truth_M, TRUTH)
    if not view.has_truth:
        known = int(np.isfinite(truth).sum())
        raise Undecided(f"needs right and wrong responses; the truth of all {known:,} rows that have one is equal")
    return truth


def _progress(view: View) -> Numbers:
    """How far the run is at each row, 0 to 1 by the order of its steps, four or more."""
    order = np.unique(needed(view.of(view.rows.step_N), "step"), return_inverse=True)[1]
    enough(int(order.max()) + 1, FEWEST_STEPS, "steps")
    return np.asarray(order / order.max())


def references_of(view: View) -> dict[str, Numbers]:
    """The truth; without it second rewards that are no parts of the reward and agreed with it in the first third."""
    if view.doubt:
        raise Undecided(view.doubt)
    if view.truth_M is not None and np.isfinite(view.truth_M).any():
        return {view.truth_name: view.truth_M}
    parts = {name: np.asarray(view.of(values), dtype=np.float64) for name, values in view.rows.rewards.items()}
    parts = {name: values for name, values in parts.items() if np.isfinite(values).mean() > 0.5}
    columns = np.column_stack([*parts.values(), np.ones(len(view))])
    known = np.isfinite(columns).all(axis=1)
    if known.sum() > columns.shape[1]:  # a weighted sum of the parts says nothing that they do not say
        x, y = columns[known], view.reward_M[known]
        if np.std(y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) <= 1e-3 * (y.std() or 1.0):
            return {}
    early, agreeing = np.arange(len(view)) < len(view) / 3, {}
    for name, values in parts.items():
        both = early & np.isfinite(values)
        if both.sum() > 20 and _correlation(values[both], view.reward_M[both]) >= 0.3:
            agreeing[name] = values
    return agreeing


def _moved(view: View, steps: Numbers, references: dict[str, Numbers], check: str) -> Checked:
    """The rise (`truth`) or fall (`drift`) of the reward over the run that a reference does not explain."""
    said, sign, p = "", 1 if check == "truth" else -1, None
    for name, reference in references.items():
        known = np.isfinite(reference) & ~view.copy_M  # copies have the reward of before: they show no change
        one, x = view.sub(known), steps[known]
        spread = one.reward_M.std() or 1.0
        rise, gained = _slope(x, one.reward_M) / spread, _slope(x, reference[known]) / (reference[known].std() or 1.0)
        level = _equally_good(one, classes(reference[known]), x, falls=check == "drift")
        x, excess = x - stratum_means(x, level), one.reward_M - stratum_means(one.reward_M, level)
        x_G, excess_G = _of_groups(one, x), _of_groups(one, excess)
        enough(len(x_G), FEWEST_GROUPS, f"{_grouped(one)} with {name}")
        within = associate(x_G, excess_G, np.zeros(len(x_G), np.int64), seed=view.seed)
        moved, p = within.difference / spread, within.p
        way = "rise" if check == "truth" else "fall"
        said = f"given {name} the reward {way}s by {sign * moved:.2f} standard deviations over the run"
        said = said if sign * moved > 0 else f"given {name} the reward does not {way} over the run"
        partial = BEYOND * max(gained, 0.0) if view.rows.texts is None else 0.0  # returns rise within failures, too
        error = (within.high - within.low) / 3.92 * abs(moved / (within.r or 1.0))
        said += f"; {max(UNEXPLAINED, SURE * error):.2f} would be a finding"
        if sign * moved < UNEXPLAINED or (check == "truth" and rise < partial + UNEXPLAINED / 2):
            continue
        scale = moved / within.r
        title = f"what equally good responses get falls by {-moved:.2f} standard deviations over the run"
        if check == "truth":
            title = f"the reward rises by {rise:.2f} standard deviations over the run, {name} by {gained:.2f}: "
            title += f"{moved:.2f} of it is not explained"
        lines = [f"reward {a:g}, {name} {b:g}" for a, b in zip(one.reward_M, reference[known], strict=True)]
        return found(
            one, check, (steps[known] > 2 / 3) & (sign * excess > 0), title, said,
            effect=(moved, within.low * scale, within.high * scale), unit=SPREADS, p=p, order_M=sign * excess,
            say=lines.__getitem__,
        )  # fmt: skip
    return Checked(None, said, p)


def _equally_good(view: View, level_M: Codes, x_M: Numbers, *, falls: bool) -> Codes:
    """Which rows can be compared over the run: those of one truth, and of one prompt where prompts come again.

    Raises:
        Undecided: harder prompts, which earn less, may come later: they do not come again.
    """
    prompts = view.of(view.rows.prompt_N)
    if prompts is None or view.levels is not None:
        return level_M
    within = strata(prompts, level_M)
    first, last = stratum_ends(x_M, within)
    again = int((first < last)[within].sum())
    if again >= max(FEWEST_GROUPS, len(view) // 4):
        return within
    if falls and len(np.unique(prompts)) > 1:
        raise Undecided(
            f"needs {max(FEWEST_GROUPS, len(view) // 4):,} rows of prompts that come again at other steps; "
            f"the log has {again:,}"
        )
    return level_M


def _slope(x: Numbers, y: Numbers) -> float:
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))


def _grouped(view: View) -> str:
    return "rows" if view.peer_M is None else "groups"


def _of_groups(view: View, values: Numbers) -> Numbers:
    """The mean of each group: responses to one prompt are not independent. Without groups the values themselves."""
    return values if view.peer_M is None else np.bincount(view.peer_M, values) / np.bincount(view.peer_M)


class _Break(NamedTuple):
    """A change between neighbouring steps: before which step, how large, its interval, p, and what changed."""

    at: int
    effect: float
    low: float
    high: float
    p: float | None
    text: str = ""
    unit: str = SPREADS
    severity: Severity | None = None


def check_jump(view: View) -> Checked:
    """From one step to the next the values, the level or the scale of the reward change."""
    step = needed(view.of(view.rows.step_N), "step")
    names, order = np.unique(step, return_inverse=True)
    enough(len(names), FEWEST_STEPS, "steps")
    counted = len(view) if view.peer_M is None else int(view.peer_M.max()) + 1
    enough(counted, 4 * FEWEST_IN_WINDOW, _grouped(view))
    clean = f"no jump of values, or of the level by {JUMP:g} standard deviations, over {len(names):,} steps"
    again = _again(view, order)
    found_of = (_new_values(view, order), _level_jump(view, order, again), _scale_jump(view, order))
    breaks = [one for one in found_of if one is not None]
    if not breaks:
        return Checked(None, clean)
    one = min(breaks, key=lambda of: 0.0 if of.p is None else of.p)
    if one.p is not None:
        one = one._replace(p=min(1.0, 2 * one.p))  # level and scale are looked at
    near = np.abs(order - one.at + 0.5) < 1
    return found(
        view, "jump", near, f"at step {names[one.at]} {one.text}", clean, effect=(one.effect, one.low, one.high),
        unit=one.unit, p=one.p, order_M=-np.abs(order - one.at), severity=one.severity,
        say=lambda i: f"reward {view.reward_M[i]:g} at step {step[i]}",
    )  # fmt: skip


def _again(view: View, order: Codes) -> np.ndarray:
    """Which rows answer a prompt that comes at several steps."""
    prompts = view.of(view.rows.prompt_N)
    if prompts is None:
        return np.zeros(len(view), bool)
    prompt = strata(prompts)
    first, last = stratum_ends(order.astype(np.float64), prompt)
    return np.asarray((first < last)[prompt])


def _new_values(view: View, order: Codes) -> _Break | None:
    """The set of values of a reward with few values changes: what was common before never comes after."""
    values, codes, counts = np.unique(view.reward_M, return_inverse=True, return_counts=True)
    if len(values) > 24:
        return None
    first, last = stratum_ends(order.astype(np.float64), codes)
    for at in range(1, int(order.max()) + 1):
        before, after = (last < at) & (counts >= 5), (first >= at) & (counts >= 5)
        rows = int((order < at).sum()), int((order >= at).sum())
        gone, new = counts[before].sum() / rows[0], counts[after].sum() / rows[1]
        if min(gone, new) > 0.25 and min(rows) >= 40:
            lists = [", ".join(f"{value:.4g}" for value in values[one][:6]) for one in (before, after)]
            text = f"the values {lists[0]} give way to {lists[1]}"
            low, high = wilson_bounds(int(counts[after].sum()), rows[1])
            return _Break(at, float(new), low, high, None, text, "share of the rows after it")
    return None


def _level_jump(view: View, order: Codes, again: np.ndarray) -> _Break | None:
    """The mean changes between neighbouring steps by far more than before and after.

    Within prompts where most rows answer prompts that come again; else other prompts may explain it: then it is a fact.
    """
    truth = view.truth_class_M
    level = np.zeros(len(view), np.int64) if truth is None else truth + 1
    same_prompts = len(view) > 0 and again.mean() >= 0.5
    if same_prompts:
        view, order = view.sub(again), order[again]
        level = strata(level[again], view.of(view.rows.prompt_N))
    fair = view.reward_M - _apart_from(view.reward_M, level, order)
    if view.peer_M is not None:
        fair, order = _of_groups(view, fair), order[np.unique(view.peer_M, return_index=True)[1]]
    spread = float(view.reward_M.std()) or 1.0
    one = _break(order, fair / spread, JUMP)
    if one is None or (one.effect > 0 and view.rows.texts is None):
        return None  # of episodes a jump upwards is how policies learn
    text = f"the level of the reward moves by {one.effect:+.2f} standard deviations"
    if view.rows.texts is None or same_prompts:
        return one._replace(text=f"{text} within prompts" if same_prompts else text)
    return one._replace(text=f"{text}; other prompts may be the reason", severity="info")


def _apart_from(reward_M: Numbers, level_M: Codes, order_M: Codes) -> Numbers:
    """What each row earns by its level (its truth, its prompt) apart from the step: means that are fitted in turn."""
    of_level, of_step = stratum_means(reward_M, level_M), np.zeros(len(reward_M))
    for _ in range(20):
        of_step = stratum_means(reward_M - of_level, order_M)
        of_level = stratum_means(reward_M - of_step, level_M)
    return of_level


def _scale_jump(view: View, order: Codes) -> _Break | None:
    """The spread within prompts changes between neighbouring steps; of a continuous reward."""
    if view.levels is not None or (view.peer_M is None and view.rows.texts is None):
        return None  # the returns of episodes grow alike when a policy converges
    peers = order if view.peer_M is None else view.peer_M
    size = np.bincount(peers)[peers]
    off = np.abs(view.reward_M - stratum_means(view.reward_M, peers)) * np.sqrt(size / np.maximum(size - 1, 1))
    usable = (size > 1) & (off > 1e-9 * view.spread)
    one = _break(order[usable], np.log(off[usable]), float(np.log(RESCALED))) if usable.sum() > 40 else None
    if one is None:
        return None
    ratio, low, high = (float(np.exp(value)) for value in (one.effect, one.low, one.high))
    if not _scales(off[usable], order[usable], one.at, ratio):
        return None
    text = f"the spread of the reward within prompts changes by a factor of {ratio:.2f}"
    return _Break(one.at, ratio, low, high, one.p, text, "ratio of standard deviations")


def _scales(off: Numbers, order: Codes, at: int, ratio: float) -> bool:
    """Whether small and large deviations change alike: more right responses change the spread of two levels, too."""
    before, after = off[order < at], off[order >= at]
    ratios = np.quantile(after, SCALED) / np.quantile(before, SCALED)
    limit = np.sqrt(RESCALED)
    return bool((ratios > limit).all() if ratio > 1 else (ratios < 1 / limit).all())


def _break(order: Codes, values: Numbers, limit: float) -> _Break | None:
    """The clearest change of the mean between neighbouring windows of steps that the changes around do not explain.

    Windows of three widths are tried. In wide ones a change counts that is as sharp in the narrowest.
    """
    steps = int(order.max()) + 1
    windows = _Windows.of(order, values, steps)
    narrow = _narrowest(steps, len(values))
    widths = [width for width in (narrow, 2 * narrow, 4 * narrow) if width == narrow or 3 * width <= steps]
    best, least = None, math.inf
    for width, at in product(widths, range(1, steps)):
        change = _change(windows, at, width, limit)
        if change is None:
            continue
        if width > narrow and not _is_sharp(windows, at, width, narrow, change):
            continue
        p = change.p * (steps - 1) * len(widths)
        if p < least:
            best, least = change, p
    if best is None:
        return None
    half = 1.96 * best.error
    return _Break(best.at, best.by, best.by - half, best.by + half, min(1.0, least))


def _narrowest(steps: int, values: int) -> int:
    """The width of the narrowest window: few steps of a short log, and enough of them to hold `FEWEST_IN_WINDOW`."""
    width = 3
    if steps < 8:
        width = 1
    elif steps < 20:
        width = 2
    return max(width, -(-FEWEST_IN_WINDOW * steps // max(values, 1)))


class _Windows(NamedTuple):
    """Sums up to each step of the powers 0, 1 and 2 of values, whose differences are the sums of any window."""

    sums: list[Numbers]
    steps: int

    @classmethod
    def of(cls, order: Codes, values: Numbers, steps: int) -> _Windows:
        """Those of values that are at the steps `order`."""
        by_step = [np.bincount(order, values**power, minlength=steps) for power in (0, 1, 2)]
        return cls([np.concatenate([[0.0], np.cumsum(one)]) for one in by_step], steps)

    def at(self, first: int, width: int) -> tuple[float, float, float]:
        """Number, mean and variance of the mean of the values in a window of steps."""
        start, end = max(first, 0), min(first + width, self.steps)
        n, total, squares = (float(one[end] - one[start]) for one in self.sums)
        mean = total / max(n, 1)
        return n, mean, max(squares / max(n, 1) - mean**2, 0.0) / max(n - 1, 1)

    def mean(self, first: int, width: int) -> float:
        """The mean of the values in a window of steps."""
        return self.at(first, width)[1]


class _Change(NamedTuple):
    """A change of the mean before a step: by how much, its standard error, and the p-value of this one alone."""

    at: int
    by: float
    error: float
    p: float


def _change(windows: _Windows, at: int, width: int, limit: float) -> _Change | None:
    """The change between the windows before and behind a step; None where it is not larger than those around it."""
    n0, mean0, error0 = windows.at(at - width, width)
    n1, mean1, error1 = windows.at(at, width)
    by = mean1 - mean0
    around = [0.0]
    if at >= 2 * width:
        around.append(np.sign(by) * (mean0 - windows.mean(at - 2 * width, width)))
    if at + 2 * width <= windows.steps:
        around.append(np.sign(by) * (windows.mean(at + width, width) - mean1))
    fewest, beyond = min(n0, n1), abs(by) - max(around)
    if fewest < FEWEST_IN_WINDOW or beyond <= limit:
        return None
    error = np.sqrt(error0 + error1) or 1e-12
    return _Change(at, by, error, 2 * float(stdtr(fewest - 1, -beyond / error)))


def _is_sharp(windows: _Windows, at: int, width: int, narrow: int, change: _Change) -> bool:
    """Whether most of a change between wide windows, which has others around it, is between the narrowest ones."""
    if at < 2 * width and at + 2 * width > windows.steps:
        return False
    near = windows.mean(at, narrow) - windows.mean(at - narrow, narrow)
    return bool(np.sign(change.by) * near >= SHARP * abs(change.by))


def check_shift(view: View) -> Checked:
    """Rewards agree with the truth of another row better than with their own."""
    known = np.isfinite(_truth(view))
    one = view.sub(known)
    reward, step = one.reward_M, one.of(view.rows.step_N)
    truth: Numbers = needed(one.truth_M, TRUTH)
    enough(len(one), max(60, int(0.9 * len(view))), f"of its {len(view):,} rows with a known truth")
    sizes = [int(np.median(np.bincount(strata(column)))) for column in (step, one.peer_M) if column is not None]
    lags = sorted({1, -1, 2, -2} | {sign * size for size in sizes for sign in (1, -1)})
    if step is not None:  # what success is common at a step is no agreement of rows
        reward, truth = (values - stratum_means(values, strata(step)) for values in (reward, truth))
    tried = []
    for part in (np.arange(len(reward)), *np.array_split(np.arange(len(reward)), 4)):
        own = _correlation(reward[part], truth[part])
        for lag in lags:
            kept = part[(part - lag >= 0) & (part - lag < len(truth))]
            tried.append((_correlation(reward[kept], truth[kept - lag]), own, lag, part))
    other, own, lag, part = max(tried, key=lambda one: one[0] - one[1])
    clean = f"rewards agree best with the truth of their own row; {LAGGED:g} more with another would be a finding "
    clean += f"({len(lags)} shifts of {len(one):,} rows tried)"
    if other - own < LAGGED or other < LAGGED:
        return Checked(None, clean)
    where = f"{abs(lag)} {'before' if lag > 0 else 'after'}"
    title = f"rewards go with the truth of the row {where} (correlation {other:.2f}; with their own {own:.2f})"
    z = np.arctanh(min(other, 1 - 1e-9)) * np.sqrt(len(part) - 3)
    excess, half = other - own, 1.96 * np.sqrt(2 / len(part))
    return found(
        one, "shift", np.isin(np.arange(len(one)), part), title, clean, effect=(excess, excess - half, excess + half),
        unit="difference of correlations", p=min(1.0, 2 * float(ndtr(-z)) * len(tried)),
    )  # fmt: skip


def _correlation(x: Numbers, y: Numbers) -> float:
    spread = x.std() * y.std() if len(x) else 0.0
    return float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread > 1e-12 else 0.0


def check_agreement(view: View) -> Checked:
    """Right responses hardly get more than wrong ones to the same prompt."""
    known = np.isfinite(_truth(view))
    one, truth = view.sub(known), classes(_truth(view))
    right = truth[known] == truth.max()
    peers = np.zeros(len(one), np.int64) if one.peer_M is None else one.peer_M
    wins, pairs = _pairs(one.reward_M, right, peers)
    mixed = pairs > 0
    enough(int(mixed[peers].sum()), 40, "rows in prompts with right and wrong responses")
    share = float(wins.sum() / pairs.sum())
    error = 1.96 * float(np.sqrt(((wins - share * pairs) ** 2).sum()) / pairs.sum())
    clean = f"a right response has a higher reward than a wrong one with probability {share:.2f} +- {error:.2f} "
    clean += f"(ties half); less than {AGREEMENT:g} would be a finding"
    if share + error >= AGREEMENT:
        return Checked(None, clean)
    flag = ((one.reward_M > view.paid_level) != right) & mixed[peers]
    by = "" if view.truth_name == THE_TRUTH else f" (right by {view.truth_name})"
    title = f"a right response has a higher reward than a wrong one to the same prompt with probability {share:.2f} "
    title += f"only{by}"
    return found(
        one, "agreement", flag, title, clean, effect=(share, share - error, share + error), unit="probability",
        say=lambda i: f"reward {one.reward_M[i]:g}, {'right' if right[i] else 'wrong'}",
    )  # fmt: skip


def _pairs(reward: Numbers, right: np.ndarray, stratum: Codes) -> tuple[Numbers, Numbers]:
    """Pairs of a right and a wrong response of each stratum: those that the right one wins, ties half, and all."""
    value = strata(reward)
    order = np.lexsort((value, stratum))
    s, r = stratum[order], right[order].astype(float)
    cell = strata(s, value[order])
    right_C, wrong_C = np.bincount(cell, r), np.bincount(cell, 1 - r)
    of_C = s[np.unique(cell, return_index=True)[1]]
    below_C = np.cumsum(wrong_C) - wrong_C
    below_C -= below_C[np.searchsorted(of_C, of_C)]
    wins, pairs = right_C * (below_C + wrong_C / 2), np.bincount(of_C, right_C) * np.bincount(of_C, wrong_C)
    return np.bincount(of_C, wins).astype(np.float64), pairs.astype(np.float64)
