"""Checks of the rewards' values: missing ones, groups without variance, saturation, clipping, failures as numbers."""

from __future__ import annotations

import numpy as np
from scipy.special import bdtrc

from guerdon.audit.association import stratum_means
from guerdon.audit.finding import Finding
from guerdon.audit.log_view import Checked, Missing, View, explained, flags_finding
from guerdon.audit.rows import Flags, Rows
from guerdon.audit.text_features import repeated_M, unanswered_M
from guerdon.proportion import wilson_bounds

# practical minima, set on the first half of benchmarks/audit_sets.py
NO_VARIANCE = 0.75  # share of groups
NO_VARIANCE_OF_TWO = 0.8  # groups of two or three
SATURATED = 0.87  # share of the last third of the run
CLIPPED = 0.03  # share of a continuous reward
SPIKE = 0.012  # share of a continuous reward that has one value
PAID_LIES = 0.05  # share of the responses that should not be paid, which are
INDIFFERENT = 0.15  # share of groups with right and wrong responses whose rewards are all equal
ROUND = (0.0, -1.0, 0.5, -0.5, 1.0, -10.0, 10.0, -100.0)


def check_nan(rows: Rows) -> Checked | Missing:
    """Rewards that are no finite number and that the log does not call failed."""
    bad = ~np.isfinite(rows.reward_N)
    failed = np.zeros(len(rows), bool) if rows.failed_N is None else rows.failed_N
    silent = bad & ~failed
    said = np.isfinite(rows.reward_N) & failed
    if not (silent | said).any():
        return Checked(None, f"{len(rows):,} rewards are finite, or the log says that they failed")
    view = View(rows, np.arange(len(rows)), rows.reward_N)
    finding = flags_finding(
        view,
        "nan",
        silent | said,
        "{count} rewards ({share}) are missing, NaN or infinite, or a number although the log calls them failed",
        "guerdon keeps a failed measurement as a Failure with its reason, masks it out of the gradient and stops when "
        "there are too many: docs/failures.md",
        severity="error",
        say=lambda i: f"the reward is {rows.reward_N[i]}" + (" and the log says that it failed" if failed[i] else ""),
    )
    return Checked(finding, "")


def check_no_variance(view: View) -> Checked | Missing:
    """Groups in which all rewards are equal: they give no gradient to estimators that compare within groups."""
    if view.peer_M is None:
        return Missing("group, or several responses to a prompt")
    size_S, constant_S = _constant_groups(view)
    several = size_S > 1
    total, count = int(several.sum()), int((constant_S & several).sum())
    share, typical = count / total, float(np.median(size_S[several]))
    if share < (NO_VARIANCE if typical > 3 else NO_VARIANCE_OF_TWO) or total < 20:
        return Checked(None, f"{share:.0%} of {total:,} groups have one reward")
    concerned = (constant_S & several)[view.peer_M]
    rows, examples = _first_rows(view, concerned)
    finding = Finding(
        "no_variance",
        "warning",
        f"{share:.0%} of {total:,} groups have a single reward and give no gradient",
        share,
        wilson_bounds(count, total),
        "share of the groups",
        None,
        rows,
        examples,
        "choose prompts by success rate (docs/curriculum.md) or use a graded or step reward (docs/process_reward.md)",
        count,
        total,
    )
    return Checked(finding, "")


def _constant_groups(view: View) -> tuple[np.ndarray, np.ndarray]:
    """Size of each group, and whether its rewards are equal."""
    peers = view.peer_M
    assert peers is not None  # noqa: S101 - the callers looked
    off = np.abs(view.reward_M - stratum_means(view.reward_M, peers)) > 1e-9 * (np.abs(view.reward_M) + 1)
    return np.bincount(peers), np.bincount(peers, off) == 0


def _first_rows(view: View, flag_M: Flags) -> tuple[tuple[int, ...], tuple[tuple[int, str], ...]]:
    """One row of each group concerned, and five of them with their reward."""
    places = np.flatnonzero(flag_M)
    assert view.peer_M is not None  # noqa: S101
    places = places[np.unique(view.peer_M[places], return_index=True)[1]]
    return tuple(view.row_M[places[:1000]].tolist()), tuple(
        (int(view.row_M[i]), f"every response of its group has the reward {view.reward_M[i]:g}") for i in places[:5]
    )


def check_same_reward(view: View) -> Checked | Missing:
    """Groups whose responses differ, also in their truth, and whose rewards are all equal."""
    if view.peer_M is None:
        return Missing("group, or several responses to a prompt")
    size_S, constant_S = _constant_groups(view)
    truth = view.truth_class_M
    if view.levels is None:  # continuous: equal rewards of different responses are no chance
        copy_M = repeated_M(view)
        looked_S = size_S - np.bincount(view.peer_M, copy_M) > 1
        limit, what = 0.05, "groups of different responses"
    elif truth is None:
        return Missing("truth, or reference answers")
    else:
        known = truth >= 0
        right_S = np.bincount(view.peer_M, (truth == truth.max()) & known)
        looked_S = (right_S > 0) & (right_S < np.bincount(view.peer_M, known))
        limit, what = INDIFFERENT, "groups with right and wrong responses"
    total, count = int(looked_S.sum()), int((looked_S & constant_S).sum())
    if total < 10 or count < 5 or count / total < limit:
        return Checked(None, f"{count:,} of {total:,} {what} have one reward")
    rows, examples = _first_rows(view, (looked_S & constant_S)[view.peer_M])
    finding = Finding(
        "same_reward",
        "error",
        f"{count / total:.0%} of {total:,} {what} have a single reward: what is rewarded may not be the response",
        count / total,
        wilson_bounds(count, total),
        "share of the groups",
        None,
        rows,
        examples,
        "look for a cache whose key is the prompt; `guerdon score` measures each response again (docs/commands)",
        count,
        total,
    )
    return Checked(finding, "")


def check_saturation(view: View) -> Checked | Missing:
    """Rewards of the last third of the run that are at the highest or the lowest value."""
    step = view.of(view.rows.step_N)
    late = np.ones(len(view), bool) if step is None else step >= np.quantile(step, 2 / 3)
    values = view.reward_M[late]
    top, bottom = float((values >= view.reward_M.max()).mean()), float((values <= view.reward_M.min()).mean())
    share, end = max((top, "highest"), (bottom if view.binary else 0.0, "lowest"))
    count, total = round(share * len(values)), len(values)
    low, high = wilson_bounds(count, total)
    if share < SATURATED or np.ptp(view.reward_M) == 0 or total < 30:
        when = "of the last third of the run" if step is not None else "of the rows"
        return Checked(None, f"{share:.0%} {when} have the {end} reward")
    edge = view.reward_M.max() if end == "highest" else view.reward_M.min()
    finding = flags_finding(
        view,
        "saturation",
        late & (view.reward_M == edge),
        f"{{share}} of the last third of the run have the {end} reward, {edge:g}: nothing is left to learn from it",
        "harder prompts (docs/curriculum.md), or a graded reward (docs/rewards.md)",
        unit="share of the last third",
        of=total,
        say=f"the reward is {edge:g}",
    )
    return Checked(finding, "", None) if low > 0 else Checked(None, f"{share:.0%} at {high:.0%}")


def check_clipping(view: View) -> Checked | Missing:
    """Values at the ends of a continuous reward that many different responses have."""
    if view.levels is not None:
        return Checked(None, f"the reward has {len(view.levels)} values and is not continuous")
    single = ~repeated_M(view)
    values = view.reward_M[single]
    if len(np.unique(values)) < 0.25 * len(values):
        return Checked(None, "the reward has few values")
    best, flag = 0.0, np.zeros(len(view), bool)
    for edge in (values.min(), values.max()):
        share = float((values == edge).mean())
        if share >= CLIPPED and (values == edge).sum() >= 8 and not _is_failure(values, float(edge)):
            best, flag = best + share, flag | (view.reward_M == edge)
    if not flag.any():
        return Checked(None, f"fewer than {CLIPPED:.0%} of the rewards are at either end")
    finding = flags_finding(
        view,
        "clipping",
        flag,
        "{share} of the rewards are at an end of their range: they are clipped, and order nothing there",
        "raise the limits, or `reward.normalize` (docs/rewards.md)",
        say=lambda i: f"the reward is {view.reward_M[i]:g}",
    )
    return Checked(finding, "")


def _is_failure(values: np.ndarray, value: float) -> bool:
    """Whether a value that comes often is a round number or lies far from the others."""
    others = values[values != value]
    if not len(others):
        return False
    gap = np.abs(others - value).min()
    return any(value == one for one in ROUND) or bool(gap > 0.5 * others.std())


def check_failures(view: View) -> Checked | Missing:
    """A value that many rewards have and that goes with parse errors, truncation, or nothing at all."""
    unread_M, what = unanswered_M(view)
    remedy = (
        "a failed measurement should be a Failure, not a number (docs/failures.md); `guerdon score` measures the rows "
        "again and keeps the reasons"
    )
    if view.levels is None:
        single = ~repeated_M(view)
        values, counts = np.unique(view.reward_M[single], return_counts=True)
        order = np.argsort(-counts)[:3]
        inner = [k for k in order if _is_failure(view.reward_M[single], float(values[k]))]
        often = [k for k in order if k in inner or values[k] not in (values[0], values[-1])]
        share = float(counts[often[0]] / single.sum()) if often else 0.0
        if not often or share < SPIKE or counts[often[0]] < 5 or len(values) < 0.25 * single.sum():
            return Checked(None, "no value of the reward comes more often than chance and copies explain")
        value = float(values[often[0]])
        text = f"{{share}} of a continuous reward have the value {value:g}, as failures do"
        flag = view.reward_M == value
        finding = flags_finding(view, "failures", flag, text, remedy, severity="error", say=f"the reward is {value:g}")
        return Checked(finding, "")
    for value in view.levels if len(view.levels) > 2 else ():
        flag = view.reward_M == value
        if value == view.levels[-1] or not 5 <= flag.sum() <= 0.4 * len(view):
            continue
        if unread_M is not None and unread_M.any():
            stratum = np.zeros(len(view), np.int64) if view.peer_M is None else view.peer_M
            found = explained(view.sub(slice(None)), unread_M.astype(float), stratum)
            rate, other = unread_M[flag].mean(), unread_M[~flag].mean()
            if rate >= 0.3 and rate >= other + 0.25 and found.n:
                title = (
                    f"{{share}} of the rewards are {value:g}, and {rate:.0%} of these {what} ({other:.0%} elsewhere)"
                )
                return Checked(flags_finding(view, "failures", flag, title, remedy, severity="error", say=what), "")
        truth = view.truth_class_M
        if truth is not None and (truth >= 0).any():
            right = truth == truth.max()
            rate, base = right[flag].mean(), right.mean()
            if flag.sum() >= 8 and rate >= 0.6 * base and rate * flag.sum() >= 4:
                title = f"{{share}} of the rewards are {value:g}; {rate:.0%} of these responses are right"
                say = "the value is neither that of a right nor of a wrong response"
                return Checked(flags_finding(view, "failures", flag, title, remedy, severity="error", say=say), "")
    return Checked(None, f"{len(view.levels)} values; none goes with responses that {what}")


def check_truncated(view: View) -> Checked | Missing:
    """Responses that the limit cut off, and that are paid."""
    cut = view.of(view.rows.truncated_N)
    if cut is None:
        return Missing("truncated")
    if not cut.any():
        return Checked(None, f"none of {len(view):,} responses is truncated")
    truth = view.truth_class_M
    wrong = np.ones(len(view), bool) if truth is None else truth == 0
    looked, paid = cut & wrong, view.reward_M > view.paid_level
    count, total = int((looked & paid).sum()), int(looked.sum())
    rest = wrong & ~cut
    base = max(float(paid[rest].mean()), 0.02) if truth is not None and rest.any() else PAID_LIES
    if not view.binary and truth is None:
        base = 0.5 * float(paid[~cut].mean())
    if total < 5 or count / total < base + 0.15 or count < 3:
        return Checked(None, f"{count:,} of {total:,} truncated responses are paid")
    finding = flags_finding(
        view,
        "truncated",
        looked & paid,
        "{share} of the truncated responses are paid as if they had been finished",
        "`reward.truncated` masks them or pays them nothing (docs/language_models.md)",
        unit="share of the truncated responses",
        of=total,
        p=float(bdtrc(count - 1, total, min(base, 0.99))),
        say=lambda i: f"truncated, and the reward is {view.reward_M[i]:g}",
    )
    return Checked(finding, f"{count:,} of {total:,} truncated responses are paid", finding.p)
