"""Checks of the rewards' values: missing ones, groups without variance, saturation, clipping, failures as numbers."""

from __future__ import annotations

import numpy as np
from scipy.special import bdtrc

from guerdon.auditing.association import stratum_means
from guerdon.auditing.finding import Severity
from guerdon.auditing.log_view import Checked, MissingColumn, Undecided, View, enough, found, needed
from guerdon.auditing.rows import Codes, Flags, Numbers
from guerdon.statistics.proportion import wilson_bounds

# practical minima, set on the first half of benchmarks/audit_sets.py
NO_VARIANCE = 0.65  # share of groups, the lower end of its interval
NO_VARIANCE_OF_THREE = 0.75  # of groups of two or three
SATURATED = 0.85  # share of the last third of the run, the lower end of its interval
CLIPPED = 0.02  # share of a continuous reward
SPIKE = 0.012  # share of a continuous reward that has one value
FEWEST_TRUNCATED = 5  # responses
STANDS_OUT = 4  # times as often as other values of a continuous reward
FEWEST_FAILED = 5  # rows with the value of a failure
MOST_SUSPECTS = 8  # values that are looked at
UNREAD = 0.4  # share of the rows with the value whose response cannot be read, the lower end of its interval
FAR_OFF = 2.0  # standard deviations of the other rewards, between a value and the next one
UNREADABLE = "failed, are truncated or have no answer"
PAID_LIES = 0.05  # share of the responses without a claim to a reward that have one
INDIFFERENT = 0.15  # share of groups with right and wrong responses whose rewards are all equal
SHARED = 0.05  # share of groups of different responses with one value of a continuous reward
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
    equal = int((constant_S & several).sum())
    share = equal / total
    limit = NO_VARIANCE if np.median(size_S[several]) > 3 else NO_VARIANCE_OF_THREE
    clean = f"{share:.0%} of {total:,} groups have one reward; {limit:.0%} would be a finding"
    if wilson_bounds(equal, total)[0] < limit:
        return Checked(None, clean)
    title = f"{{share}} of {total:,} groups have a single reward and give no gradient"
    return _of_groups(view, "no_variance", peers, constant_S & several, total, title, clean)


def check_same_reward(view: View) -> Checked:
    """Groups whose responses differ, also in their truth, and whose rewards are all equal."""
    peers, size_S, constant_S = _groups(view)
    if view.levels is None:  # a value that hardly any row of another group has is no chance
        looked_S = size_S - np.bincount(peers, view.copy_M) > 1
        constant_S &= _rare_elsewhere(view, peers)
        limit, what = SHARED, "groups of different responses"
    else:
        if view.doubt:
            raise Undecided(view.doubt)
        right = needed(view.right_M, "truth, or reference answers")
        truth = needed(view.truth_M, "truth, or reference answers")
        right_S, known_S = np.bincount(peers, right), np.bincount(peers, np.isfinite(truth))
        looked_S = (right_S > 0) & (right_S < known_S)
        limit, what = INDIFFERENT, "groups with right and wrong responses"
    total, count = int(looked_S.sum()), int((looked_S & constant_S).sum())
    enough(total, 10, what)
    clean = f"{count:,} of {total:,} {what} have one reward; {limit:.0%} would be a finding"
    if count < 5 or wilson_bounds(count, total)[0] < limit:
        return Checked(None, clean)
    title = f"{{share}} of {total:,} {what} have a single reward: it may not be the response that is rewarded"
    return _of_groups(view, "same_reward", peers, looked_S & constant_S, total, title, clean)


def _rare_elsewhere(view: View, peers: Codes) -> np.ndarray:
    """Of each group, whether hardly any row of other groups has the reward of its first row, copies apart."""
    first_S = np.unique(peers, return_index=True)[1]
    values, code = np.unique(view.reward_M, return_inverse=True)
    everywhere = np.bincount(code, ~view.copy_M, len(values))
    inside = np.bincount(peers, (code == code[first_S][peers]) & ~view.copy_M)
    return np.asarray(everywhere[code[first_S]] - inside <= 0.002 * len(view))


def check_saturation(view: View) -> Checked:
    """Nearly all rewards of the last third of the run are one value."""
    step = view.of(view.rows.step_N)
    late = np.ones(len(view), bool) if step is None else step >= np.quantile(step, 2 / 3)
    enough(int(late.sum()), 30, "rows in the last third of the run" if step is not None else "rows")
    common, counts = np.unique(view.reward_M[late], return_counts=True)
    edge, share = common[np.argmax(counts)], counts.max() / late.sum()
    when = "of the last third of the run" if step is not None else "of the rows"
    clean = f"{share:.0%} {when} have the reward {edge:g}, the most common one; {SATURATED:.0%} would be a finding"
    if wilson_bounds(int(counts.max()), int(late.sum()))[0] < SATURATED:
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
        count = int((values == edge).sum())
        if count >= max(8, CLIPPED * len(values)) and wilson_bounds(count, len(values))[0] > CLIPPED / 2:
            flag |= view.reward_M == edge
    clean = (
        f"fewer than {CLIPPED:.0%} of {len(values):,} rewards are at either end of their range; more would be a finding"
    )
    if not flag.any():
        return Checked(None, clean)
    title = "{share} of the rewards are at an end of their range: they are clipped, and do not differ there"
    return found(view, "clipping", flag, title, clean, say=lambda i: f"the reward is {view.reward_M[i]:g}")


def check_failures(view: View) -> Checked:
    """A value of the reward that says that it could not be measured, by what the responses with it are.

    The best value is success, the lowest is what wrong responses get, and a value that many have is no failure as such:
    right responses have it, or those that cannot be read while others have less, or it is far from all others.
    """
    enough(len(view), 60, "rows")
    needed(
        view.rows.texts if view.has_texts or view.unanswered_M is not None else None, "response, truncated or failed"
    )
    values = _suspects(view)
    clean = "no value below the best goes with right responses, or with those that cannot be read; "
    clean += f"{max(FEWEST_FAILED, round(SPIKE * len(view))):,} of {len(view):,} rows would be a finding"
    for value in values:
        flag = view.reward_M == value
        why, severity = _evidence(view, flag, float(value))
        if why:
            title = f"{{share}} of the rewards are {value:g}: {why}"
            return found(view, "failures", flag, title, clean, say=f"the reward is {value:g}", severity=severity)
    return Checked(None, clean)


def _suspects(view: View) -> Numbers:
    """Values below the best that different responses have, the most frequent first."""
    values, counts = np.unique(view.reward_M[~view.copy_M], return_counts=True)
    least = float(FEWEST_FAILED)
    if view.levels is None:  # rewards that are rounded repeat, too
        least = max(least, SPIKE * len(view), STANDS_OUT * float(np.quantile(counts, 0.99)))
    below = values < values[-1]
    if view.levels is None and len(values) > 2:
        below[-1] = values[-1] - values[-2] > FAR_OFF * view.reward_M[view.reward_M < values[-1]].std()
    often = (counts >= least) & below
    order = np.argsort(-counts[often], kind="stable")
    found: Numbers = values[often][order][:MOST_SUSPECTS]
    return found


def _evidence(view: View, flag: np.ndarray, value: float) -> tuple[str, Severity]:
    """What shows that the rows with a value were not measured, and how severe it is; empty where nothing does."""
    right = view.right_M
    if right is not None and _right_below(view, flag, right, value):
        return f"{right[flag].mean():.0%} of these responses are right", "error"
    others = view.reward_M[~flag]
    if not 0 < others.min() - value < np.ptp(others):  # the lowest is what no answer should get
        for sign, has in _signs(view).items():
            share, other = float(has[flag].mean()), float(has[~flag].mean())
            low = wilson_bounds(int(has[flag].sum()), int(flag.sum()))[0]
            if low >= max(UNREAD, other + 0.2):
                return f"{share:.0%} of these {sign}, {other:.0%} of the others", "info"
    if view.levels is None and np.abs(others - value).min() > FAR_OFF * others.std():
        return f"all others are {np.abs(others - value).min():.3g} or more away", "warning"
    return "", "info"


def _signs(view: View) -> dict[str, Flags]:
    """What shows that responses were not measured, by what is said of them: any of all, and each that many have."""
    signs = {} if view.unanswered_M is None else {UNREADABLE: view.unanswered_M}
    texts = view.rows.texts
    if texts is None or not np.isin(view.row_M, texts.row_M).all():
        return signs
    place = np.searchsorted(texts.row_M, view.row_M)
    return signs | {name: flag[place] for name, flag in view.signs.items()}


def _right_below(view: View, flag: np.ndarray, right: np.ndarray, value: float) -> bool:
    """Whether right responses have a value that wrong ones with other values exceed, or that alone mixes both."""
    known = np.zeros(len(view), bool) if view.truth_M is None else np.isfinite(view.truth_M)
    low, high = wilson_bounds(int(right[flag & known].sum()), max(int((flag & known).sum()), 1))
    above, others = known & (view.reward_M > value), known & ~flag
    if above.sum() < 20 or (flag & known).sum() < 8:
        return False
    if view.levels is None:  # one value of different responses, right and wrong
        return bool(low > 0.1 and high < 0.9)
    shares = []
    for level in view.levels:
        of = others & (view.reward_M == level)
        if of.sum() >= 8:
            shares.append((level, *wilson_bounds(int(right[of].sum()), int(of.sum())), float(right[of].mean())))
    worse_above = any(level > value and top + 0.1 < low for level, _, top, _ in shares)
    pure = all(share <= 0.1 or share >= 0.9 for *_, share in shares)
    return worse_above or (pure and low > 0.15 and high < 0.85)


def check_truncated(view: View) -> Checked:
    """Responses that the limit cut off, and that are rewarded."""
    cut = needed(view.of(view.rows.truncated_N), "truncated")
    if view.doubt and view.has_truth:
        raise Undecided(view.doubt)
    right, paid = view.right_M, view.reward_M > view.paid_level
    wrong = np.ones(len(view), bool) if right is None else ~right
    looked, rest = cut & wrong, wrong & ~cut
    count, total = int((looked & paid).sum()), int(looked.sum())
    of_wrong = "" if right is None else " without a right answer"
    enough(total, FEWEST_TRUNCATED, f"truncated responses{of_wrong}")
    base = PAID_LIES
    if rest.any() and right is not None:
        base = max(float(paid[rest].mean()), 0.02)
    elif rest.any() and not view.binary:
        base = 0.5 * float(paid[rest].mean())
    clean = f"{count:,} of {total:,} truncated responses{of_wrong} are rewarded; {base + 0.15:.0%} would be a finding"
    if count < 3 or count / total < base + 0.15:
        return Checked(None, clean)
    p = float(bdtrc(count - 1, total, min(base, 0.99)))
    title = "{share} of the truncated responses are rewarded as if they had been finished"
    return found(
        view, "truncated", looked & paid, title, clean, of=total, unit="share of the truncated responses", p=p,
        severity="info" if right is None else None,
    )  # fmt: skip
