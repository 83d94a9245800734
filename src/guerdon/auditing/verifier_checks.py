"""Checks of a reward that judges answers against guerdon's verifier, where the log has reference answers.

A reward is compared only where it says right or wrong: it has two values, or two groups of values with a gap. A right
answer that is not paid may be one that breaks a rule of the format or of the length, and a wrong one that is paid may
be within a tolerance, in another unit, or another name of the same thing; such rows are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from guerdon.auditing.association import strata
from guerdon.auditing.finding import Finding
from guerdon.auditing.log_view import FEW_LEVELS, Checked, MissingColumn, View, braced, enough, found
from guerdon.auditing.references import References
from guerdon.auditing.rows import Flags, Numbers
from guerdon.statistics.proportion import wilson_bounds

ALLOWED = 0.04  # share of the right, or wrong, answers: verifiers are wrong now and then
SEVERE = 0.1  # lower end of the share from which on it is an error
FEWEST = 30  # answers
FEWEST_PROMPTS = 5  # with a fault
FEWEST_FULL = 10  # right answers that are paid, where the rewards for right answers differ
FULL = 0.1  # quantile of their rewards from which on a reward is a full one
GAP = 0.9  # share of the variance of the reward between its two groups of values; 0.64 of a normal distribution
SMALL = 0.03  # share of the rows in a group of values
USUAL = 0.3  # share of the right answers, at least, that have the reward for right ones
ALWAYS = 0.98  # share of the paid answers with a mark that is a rule of the format
COPIED = 0.995  # share of the rows in which a truth says what the reward says
_BEHIND = "; the reward is "  # what is quoted
_MARKS = ("\\boxed", "####", "<answer>", "</think>", "</answer>", "Answer:", "answer is")


@dataclass(frozen=True)
class _Judged:
    """K rows that are known to be right or wrong, and have a reward.

    Attributes:
        one: the view of them.
        right_K: whether they are right by their reference.
        paid_K: whether the reward says right.
        unpaid_K: whether it says wrong.
        near_K: see `References`.
        sure_K: see `References`.
        responses: their texts.
        said: what the response states, and the reference.
        prompt_K: equal numbers are equal prompts.
    """

    one: View
    right_K: Flags
    paid_K: Flags
    unpaid_K: Flags
    near_K: Flags
    sure_K: Flags
    responses: list[str]
    said: list[str]
    prompt_K: np.ndarray
    references: References

    def describe(self, k: int) -> str:
        return f"{self.said[k]}{_BEHIND}{self.one.reward_M[k]:g}"


def check_unpaid_right(view: View) -> Checked:
    """Right answers that are not paid: the verifier of the run rejects them."""
    all_of = _judged(view)
    looked = all_of.right_K & ~_cut(all_of.one) & ~_too_long(all_of)
    rule = _rule(all_of, looked)
    against_rule = np.zeros(len(looked), bool)
    if rule:
        against_rule = looked & np.array([rule not in text for text in all_of.responses])
    left_out = f"; {against_rule.sum():,} without {rule}, which paid ones have, are left out" if rule else ""
    return _rate(
        all_of, "unpaid_right", looked & ~against_rule, all_of.unpaid_K, "right answers", "are not paid", left_out
    )


def check_paid_wrong(view: View) -> Checked:
    """Wrong answers that are paid: the verifier of the run accepts them."""
    all_of = _judged(view)
    unsure = ~all_of.right_K & (all_of.near_K | ~all_of.sure_K)
    looked = ~all_of.right_K & ~unsure & ~_right_by_truth(all_of)
    left_out = f"; {unsure.sum():,} that a tolerance, a unit or another name may allow are left out"
    return _rate(all_of, "paid_wrong", looked, _paid_in_full(all_of), "wrong answers", "are paid", left_out)


def unquoted(finding: Finding) -> Finding:
    """A finding without the answers and references that those of this file quote."""
    if finding.name not in ("unpaid_right", "paid_wrong"):
        return finding
    lines = [(row, line[line.rindex(_BEHIND) + 2 :]) for row, line in finding.examples]
    return replace(finding, title=finding.title.partition(": ")[0], examples=tuple(lines))


def _paid_in_full(all_of: _Judged) -> Flags:
    """Which rewards are as high as those of right answers: where these differ, less may be partial credit.

    Raises:
        Undecided: rewards that say right differ, and too few right answers have one.
    """
    paid = all_of.one.reward_M[all_of.paid_K]
    if len(np.unique(paid)) <= 1:
        return all_of.paid_K
    of_right = all_of.one.reward_M[all_of.paid_K & all_of.right_K]
    enough(len(of_right), FEWEST_FULL, "right answers that are paid, which tell a full reward from partial credit")
    return all_of.paid_K & (all_of.one.reward_M >= np.quantile(of_right, FULL))


def _rate(all_of: _Judged, name: str, looked_K: Flags, bad_K: Flags, answers: str, what: str, left_out: str) -> Checked:
    """The share of some answers that the reward judges otherwise, with an interval by prompts."""
    references = all_of.references
    kinds = " and ".join(references.kinds)
    enough(int(looked_K.sum()), FEWEST, f"{answers} by the reference answers")
    flag = looked_K & bad_K
    count, total = int(flag.sum()), int(looked_K.sum())
    low, high = _bounds(flag[looked_K], all_of.prompt_K[looked_K])
    unread = f"; references that are there and unread: {references.left_out}" if references.left_out else ""
    clean = f"{count:,} of {total:,} {answers} {what}, by the reference answers ({kinds}): {low:.1%} to {high:.1%}; "
    clean += f"a finding from {ALLOWED:.0%} on{left_out}{unread}"
    prompts, of = (len(np.unique(all_of.prompt_K[some])) for some in (flag, looked_K))
    if low <= ALLOWED or prompts < min(FEWEST_PROMPTS, max(2, of / 2)):
        return Checked(None, clean)
    example = all_of.said[int(np.flatnonzero(flag)[0])]
    title = f"{{share}} of {total:,} {answers} {what}, by the reference answers ({kinds}): {braced(example)}"
    return found(
        all_of.one, name, flag, title, clean, effect=(count / total, low, high), of=total, say=all_of.describe,
        unit=f"share of the {answers}", severity=None if low > SEVERE else "warning",
    )  # fmt: skip


def _bounds(bad: Flags, prompt: np.ndarray) -> tuple[float, float]:
    """The wider of Wilson's interval and one in which the answers to a prompt are not independent."""
    low, high = wilson_bounds(int(bad.sum()), len(bad))
    share, codes = float(bad.mean()), strata(prompt)
    size = np.bincount(codes)
    off = np.bincount(codes, bad) - share * size
    error = 1.96 * float(np.sqrt((off**2).sum())) / len(bad)
    return max(0.0, min(low, share - error)), min(1.0, max(high, share + error))


def _judged(view: View) -> _Judged:
    """The rows that are known to be right or wrong, and whether the reward says that they are right.

    Raises:
        MissingColumn: there are no references, none that is read, or the reward does not say right or wrong.
        Undecided: too few answers are read.
    """
    references = view.references
    if references is None:
        raise MissingColumn("reference answers")
    if not len(references.row_K):
        raise MissingColumn(f"reference answers that can be read; there and unread: {references.left_out}")
    known = np.isfinite(references.right_K)
    one, responses = view.sub(np.isin(view.row_M, references.row_K[known])).texts()
    place = np.searchsorted(references.row_K, one.row_M)
    said = [_pair(references.stated[k], references.truths[k]) for k in place]
    enough(len(one), FEWEST, "answers that can be compared with their reference")
    prompts = one.of(view.rows.prompt_N)
    right = references.right_K[place] == 1
    says_wrong, says_right = _ends_of(view.reward_M, one.reward_M, right)
    return _Judged(
        one, right, one.reward_M >= says_right, one.reward_M <= says_wrong, references.near_K[place],
        references.sure_K[place], responses, said, np.arange(len(one)) if prompts is None else prompts, references,
    )  # fmt: skip


def _pair(stated: str, truth: str) -> str:
    what = f'answer "{stated[:80]}"' if stated else "no answer"
    return f'{what} for the reference "{truth[:80]}"'


def _ends_of(all_rewards: Numbers, reward_K: Numbers, right_K: Flags) -> tuple[float, float]:
    """The highest reward that says wrong, and the lowest that says right.

    Raises:
        MissingColumn: the reward says neither.
    """
    gap = _gap(all_rewards)
    if gap is not None:
        return gap
    values = np.unique(all_rewards)
    if len(values) <= FEW_LEVELS and right_K.sum() >= FEWEST and (~right_K).sum() >= FEWEST:
        common, counts = np.unique(reward_K[right_K], return_counts=True)
        usual = common[counts >= USUAL * right_K.sum()]
        of_wrong = float(np.median(reward_K[~right_K]))
        if len(usual) and of_wrong < usual[-1]:
            return of_wrong, float(usual[-1])
    raise MissingColumn(
        "a reward that says right or wrong: two values, two groups of values, or one that right ones have"
    )


def _gap(reward: Numbers) -> tuple[float, float] | None:
    """The ends of the gap between the two groups of values of a reward; None where it has none."""
    values, counts = np.unique(reward, return_counts=True)
    if len(values) <= 2:
        return (float(values[0]), float(values[1])) if len(values) == 2 else None
    below = np.cumsum(counts)[:-1]
    total, sums = len(reward), np.cumsum(counts * values)
    mean_below = sums[:-1] / below
    mean_above = (sums[-1] - sums[:-1]) / (total - below)
    between = below * (total - below) / total**2 * (mean_above - mean_below) ** 2
    between[np.minimum(below, total - below) < SMALL * total] = 0.0
    best = int(np.argmax(between))
    return (float(values[best]), float(values[best + 1])) if between[best] >= GAP * reward.var() else None


def _cut(one: View) -> Flags:
    """Which responses were cut off, or have a reward that failed."""
    cut = np.zeros(len(one), bool)
    for column in (one.rows.truncated_N, one.rows.failed_N):
        if column is not None:
            cut |= one.of(column)
    return cut


def _too_long(all_of: _Judged) -> Flags:
    """Which responses are longer than nearly all right ones that are paid: they may break a limit."""
    length = all_of.one.of(all_of.one.rows.length_N)
    paid = all_of.right_K & all_of.paid_K
    if length is None or not paid.any():
        return np.zeros(len(all_of.one), bool)
    return np.asarray(length > np.quantile(length[paid], 0.995))


def _rule(all_of: _Judged, looked_K: Flags) -> str:
    """A mark that all paid right answers have and many unpaid ones lack; empty where there is none."""
    paid, unpaid = looked_K & all_of.paid_K, looked_K & ~all_of.paid_K
    if paid.sum() < FEWEST // 2 or not unpaid.any():
        return ""
    best, most = "", 0.3
    for mark in _MARKS:
        has = np.array([mark in text for text in all_of.responses])
        lacking = 1 - has[unpaid].mean()
        if has[paid].mean() >= ALWAYS and lacking > most:
            best, most = mark, lacking
    return best


def _right_by_truth(all_of: _Judged) -> Flags:
    """Which answers a truth of the log calls right, where it is not a copy of the reward."""
    truth = all_of.one.of(all_of.one.rows.truth_N)
    none = np.zeros(len(all_of.one), bool)
    if truth is None:
        return none
    known = np.isfinite(truth)
    right = known & (np.nan_to_num(truth) >= np.nanmax(truth, initial=0.0)) & (np.nan_to_num(truth) > 0)
    if not known.any() or (right == all_of.paid_K)[known].mean() >= COPIED:
        return none
    return np.asarray(right, bool)
