"""Checks of the rewards' values: missing ones, groups without variance, saturation, clipping, failures as numbers."""

from __future__ import annotations

import numpy as np
from scipy.special import bdtrc

from guerdon.auditing.association import stratum_means
from guerdon.auditing.log_view import Checked, MissingColumn, View, enough, found, needed
from guerdon.auditing.rows import Codes, Numbers
from guerdon.auditing.text_features import unanswered_M

# practical minima, set on the first half of benchmarks/audit_sets.py
NO_VARIANCE = 0.75  # share of groups
NO_VARIANCE_OF_THREE = 0.8  # of groups of two or three
SATURATED = 0.87  # share of the last third of the run
CLIPPED = 0.03  # share of a continuous reward
SPIKE = 0.012  # share of a continuous reward that has one value
PAID_LIES = 0.05  # share of the responses without a claim to a reward that have one
INDIFFERENT = 0.15  # share of groups with right and wrong responses whose rewards are all equal
ROUND = (0.0, -1.0, 0.5, -0.5, 1.0, -10.0, 10.0, -100.0)
GROUPS = "group, or several responses to a prompt"


def _groups(view: View) -> tuple[Codes, np.ndarray, np.ndarray]:
    """The groups, the size of each, and whether its rewards are equal."""
    peers = needed(view.peer_M, GROUPS)
    off = np.abs(view.reward_M - stratum_means(view.reward_M, peers)) > 1e-9 * (np.abs(view.reward_M) + 1)
    return peers, np.bincount(peers), np.bincount(peers, off) == 0


def _of_groups(view: View, name: str, peers: Codes, flag_S: np.ndarray, total: int, title: str, clean: str) -> Checked:
    """A finding about groups with a flag, each shown by its first row."""
    flag = np.zeros(len(view), bool)
    flag[np.unique(peers, return_index=True)[1][flag_S]] = True
    return found(view, name, flag, title, clean, of=total, unit="share of the groups")


def check_no_variance(view: View) -> Checked:
    """Groups in which all rewards are equal: they give no gradient to estimators that compare within groups."""
    peers, size_S, constant_S = _groups(view)
    several = size_S > 1
    total = int(several.sum())
    enough(total, 20, "groups of two or more")
    share = float((constant_S & several).sum() / total)
    limit = NO_VARIANCE if np.median(size_S[several]) > 3 else NO_VARIANCE_OF_THREE
    clean = f"{share:.0%} of {total:,} groups have one reward; {limit:.0%} would be a finding"
    if share < limit:
        return Checked(None, clean)
    title = f"{{share}} of {total:,} groups have a single reward and give no gradient"
    return _of_groups(view, "no_variance", peers, constant_S & several, total, title, clean)


def check_same_reward(view: View) -> Checked:
    """Groups whose responses differ, also in their truth, and whose rewards are all equal."""
    peers, size_S, constant_S = _groups(view)
    if view.levels is None:  # continuous: equal rewards of different responses are no chance
        looked_S = size_S - np.bincount(peers, view.copy_M) > 1
        limit, what = 0.05, "groups of different responses"
    else:
        truth = needed(view.truth_class_M, "truth, or reference answers")
        right_S, known_S = np.bincount(peers, truth == truth.max()), np.bincount(peers, truth >= 0)
        looked_S = (right_S > 0) & (right_S < known_S)
        limit, what = INDIFFERENT, "groups with right and wrong responses"
    total, count = int(looked_S.sum()), int((looked_S & constant_S).sum())
    enough(total, 10, what)
    clean = f"{count:,} of {total:,} {what} have one reward; {limit:.0%} would be a finding"
    if count < max(5, limit * total):
        return Checked(None, clean)
    title = f"{{share}} of {total:,} {what} have a single reward: it may not be the response that is rewarded"
    return _of_groups(view, "same_reward", peers, looked_S & constant_S, total, title, clean)


def check_saturation(view: View) -> Checked:
    """Nearly all rewards of the last third of the run are one value."""
    step = view.of(view.rows.step_N)
    late = np.ones(len(view), bool) if step is None else step >= np.quantile(step, 2 / 3)
    enough(int(late.sum()), 30, "rows in the last third of the run" if step is not None else "rows")
    common, counts = np.unique(view.reward_M[late], return_counts=True)
    edge, share = common[np.argmax(counts)], counts.max() / late.sum()
    when = "of the last third of the run" if step is not None else "of the rows"
    clean = f"{share:.0%} {when} have the reward {edge:g}, the most common one; {SATURATED:.0%} would be a finding"
    if share < SATURATED or np.ptp(view.reward_M) == 0:
        return Checked(None, clean)
    title = f"{{share}} {when} have one and the same reward, {edge:g}: little is left to learn from it"
    flag = late & (view.reward_M == edge)
    return found(view, "saturation", flag, title, clean, of=int(late.sum()), unit=f"share {when}")


def check_clipping(view: View) -> Checked:
    """Values at the ends of a continuous reward that many different responses have."""
    values = view.reward_M[~view.copy_M]
    enough(len(values), 100, "different rows")
    if view.levels is not None or len(np.unique(values)) < 0.25 * len(values):
        raise MissingColumn(f"a continuous reward; this one has {len(np.unique(values)):,} values")
    flag = np.zeros(len(view), bool)
    for edge in (values.min(), values.max()):
        if (values == edge).sum() >= max(8, CLIPPED * len(values)) and not _is_failure(values, float(edge)):
            flag |= view.reward_M == edge
    clean = (
        f"fewer than {CLIPPED:.0%} of {len(values):,} rewards are at either end of their range; more would be a finding"
    )
    if not flag.any():
        return Checked(None, clean)
    title = "{share} of the rewards are at an end of their range: they are clipped, and do not differ there"
    return found(view, "clipping", flag, title, clean, say=lambda i: f"the reward is {view.reward_M[i]:g}")


def _is_failure(values: Numbers, value: float) -> bool:
    """Whether a value that comes often is a round number or lies far from the others."""
    others = values[values != value]
    return len(others) > 0 and (value in ROUND or bool(np.abs(others - value).min() > 0.5 * others.std()))


def check_failures(view: View) -> Checked:
    """A value that many rewards have and that goes with parse errors, truncation, or nothing at all."""
    enough(len(view), 60, "rows")
    if view.levels is None:
        return _spike(view)
    unread, what = unanswered_M(view)
    truth = view.truth_class_M
    right = None if truth is None or truth.max() < 1 else truth == truth.max()
    clean = f"{len(view.levels)} values of the reward; none goes with responses that {what}, of five rows or more"
    for value in view.levels[:-1] if len(view.levels) > 2 else ():
        flag = view.reward_M == value
        if not 5 <= flag.sum() <= 0.4 * len(view):
            continue
        rate, other = (0.0, 0.0) if unread is None else (unread[flag].mean(), unread[~flag].mean())
        title = f"{{share}} of the rewards are {value:g}"
        if rate >= 0.3 and rate >= other + 0.25:
            title += f"; {rate:.0%} of these {what}, {other:.0%} of the others"
        elif right is not None and flag.sum() >= 8 and right[flag].mean() >= max(0.6 * right.mean(), 4 / flag.sum()):
            title += f", and {right[flag].mean():.0%} of these responses are right"
        else:
            continue
        return found(view, "failures", flag, title, clean, say=f"the reward is {value:g}")
    return Checked(None, clean)


def _spike(view: View) -> Checked:
    """A value inside a continuous reward, a round one, or one far off, that many different responses have."""
    single = view.reward_M[~view.copy_M]
    values, counts = np.unique(single, return_counts=True)
    clean = "no value of the reward comes more often than copies of responses explain; "
    clean += f"{max(5, round(SPIKE * len(single))):,} of {len(single):,} rows would be a finding"
    for k in np.argsort(-counts)[:3]:
        inside = 0 < k < len(values) - 1
        if counts[k] < max(5, SPIKE * len(single)) or len(values) < 0.25 * len(single):
            break
        if inside or _is_failure(single, float(values[k])):
            title = f"{{share}} of a continuous reward have the value {values[k]:g}, as failures do"
            flag = view.reward_M == values[k]
            return found(view, "failures", flag, title, clean, say=f"the reward is {values[k]:g}")
    return Checked(None, clean)


def check_truncated(view: View) -> Checked:
    """Responses that the limit cut off, and that are rewarded."""
    cut = needed(view.of(view.rows.truncated_N), "truncated")
    truth, paid = view.truth_class_M, view.reward_M > view.paid_level
    wrong = np.ones(len(view), bool) if truth is None else truth == 0
    looked, rest = cut & wrong, wrong & ~cut
    count, total = int((looked & paid).sum()), int(looked.sum())
    of_wrong = "" if truth is None else " without a right answer"
    enough(total, 5, f"truncated responses{of_wrong}")
    base = PAID_LIES
    if rest.any() and truth is not None:
        base = max(float(paid[rest].mean()), 0.02)
    elif rest.any() and not view.binary:
        base = 0.5 * float(paid[rest].mean())
    clean = f"{count:,} of {total:,} truncated responses{of_wrong} are rewarded; {base + 0.15:.0%} would be a finding"
    if count < 3 or count / total < base + 0.15:
        return Checked(None, clean)
    p = float(bdtrc(count - 1, total, min(base, 0.99)))
    title = "{share} of the truncated responses are rewarded as if they had been finished"
    return found(view, "truncated", looked & paid, title, clean, of=total, unit="share of the truncated responses", p=p)
