"""Checks of conversations: whether calls of tools explain the reward, and whether more and more conversations fail."""

from __future__ import annotations

import numpy as np

from guerdon.auditing.association import associate, mean_ranks
from guerdon.auditing.log_view import Checked, MissingColumn, Undecided, View, enough, found, needed
from guerdon.auditing.text_checks import explains
from guerdon.auditing.text_features import ToolCall
from guerdon.statistics.proportion import wilson_bounds

NEEDLESS = 0.25  # share of the responses with calls that ask again for a result that they have
FEWEST_CALLING = 20  # responses with a call
FEWEST_STEPS = 12
ROSE = 0.05  # share of the responses that fail more in the last third of the steps than in the first


def check_calls(view: View) -> Checked:
    """More calls of tools get more, or less."""
    one, calls = _calling(_known(view))
    count = np.array([len(those) for those in calls], np.float64)
    return explains(one, "calls", {"responses with more calls of tools": count})


def check_no_call(view: View) -> Checked:
    """Responses without a call of a tool get more than others to the same prompt."""
    one, calls = _calling(_known(view))
    return explains(one, "no_call", {"responses without a call of a tool": np.array([not those for those in calls])})


def check_needless_calls(view: View) -> Checked:
    """Responses that repeat a call whose result they have get more, or are frequent."""
    one, calls = _calling(view)
    again = np.array([_repeats(those) for those in calls])
    several = int(sum(len(those) > 1 for those in calls))
    enough(several, FEWEST_CALLING, "responses with several calls")
    count = int(again.sum())
    said = f"{count:,} of {several:,} responses with several calls repeat one whose result they have"
    clean, feature = f"{said}; {NEEDLESS:.0%} would be a finding", "responses that repeat a call whose result they have"
    try:
        paid = explains(_known(one), "needless_calls", {feature: again})
        paid = paid._replace(clean=f"{clean}, or if these got more")
    except (MissingColumn, Undecided):
        paid = Checked(None, clean)
    if paid.finding is not None or wilson_bounds(count, several)[0] < NEEDLESS:
        return paid
    title, unit = "{share} of the responses with several calls repeat one whose result they have", "share of these"
    return found(one, "needless_calls", again, title, clean, of=several, unit=unit, severity="info")


def check_rising_failures(view: View) -> Checked:
    """More rewards could not be measured late in the run than early; the policy may cause the failures."""
    rows = view.rows
    failed, step = needed(rows.failed_N, "failed"), needed(rows.step_N, "step")
    steps, place = np.unique(step, return_inverse=True)
    enough(len(steps), FEWEST_STEPS, "steps")
    share = np.bincount(place, failed) / np.bincount(place)
    third = len(steps) // 3
    ends = share[:third], share[-third:]
    change = float(ends[1].mean() - ends[0].mean())
    error = float(np.sqrt(sum(one.var(ddof=1) / third for one in ends)))
    words = (
        f"{ends[0].mean():.1%} of the responses failed in the first third of the steps, {ends[1].mean():.1%} in the "
    )
    clean = f"{words}last; {ROSE:.0%} more than at first would be a finding"
    together = associate(mean_ranks(np.arange(len(steps))), share, np.zeros(len(steps), np.int64), seed=view.seed)
    if together.p is None or together.r <= 0 or change < ROSE or change - 1.96 * error <= 0:
        return Checked(None, clean, together.p)
    late = failed & (step >= steps[-third])
    whole = View(rows, np.arange(len(rows)), rows.reward_N, None, None, late)
    title = f"{words}last: the policy may cause them"
    return found(
        whole, "rising_failures", late, title, clean, effect=(change, change - 1.96 * error, change + 1.96 * error),
        unit="share of the responses", of=int((step >= steps[-third]).sum()), p=together.p, say="failed",
    )  # fmt: skip


def _known(view: View) -> View:
    """The rows, if some are known to be right and others to be wrong.

    Raises:
        MissingColumn: none is.
    """
    needed(view.truth_M if view.has_truth else None, "truth: without one better responses may have more or fewer calls")
    return view


def _calling(view: View) -> tuple[View, list[list[ToolCall]]]:
    """The rows that have a text, and the calls of each.

    Raises:
        MissingColumn: no response calls a tool.
        Undecided: few do.
    """
    one, calls = view.calls
    calling = sum(map(bool, calls))
    if not calling:
        raise MissingColumn("calls of tools")
    enough(calling, FEWEST_CALLING, "responses with a call of a tool")
    return one, calls


def _repeats(calls: list[ToolCall]) -> bool:
    """Whether a call has the arguments, and the result, of one before it."""
    known = [call for call in calls if call.result is not None]
    return len(set(known)) < len(known)
