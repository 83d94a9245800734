"""All checks of an audit: which of them can be made on a log, and Holm's correction over those that test something.

rows = read_log(Path("rollouts/"))
found, second = audit_log(rows, columns={})
for finding in found.findings:
    print(finding.severity, finding.title)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.auditing.course import course_of
from guerdon.auditing.drift import CHECKS, with_drift
from guerdon.auditing.evidence import with_evidence
from guerdon.auditing.finding import REMEDIES, SEVERITIES, Audit, Finding
from guerdon.auditing.labels import read_marks
from guerdon.auditing.log_view import Checked, MissingColumn, Undecided, View, found, needed
from guerdon.auditing.robot_checks import is_of_episodes
from guerdon.auditing.rows import Flags, Rows
from guerdon.auditing.run_files import NO_EPISODE
from guerdon.auditing.second import SecondReward, judge_sample, read_second, with_second
from guerdon.auditing.text_rows import CUT
from guerdon.reading.containers import HALF_WRITTEN
from guerdon.statistics.proportion import wilson_bounds
from guerdon.statistics.training_runs import holm

MOST_UNREAD = 0.01  # share of rows from which on it is an error
ALPHA = 0.01  # after Holm's correction
MARKED = 400  # rows of a judge's sample
GROWING = (HALF_WRITTEN, NO_EPISODE)  # what is wrong with the last line of a log that is being written
BY_TRUTH = ("truth", "drift", "agreement")
Check = Callable[[View], Checked]


def _checks(*names: str) -> dict[str, Check]:
    """The functions `check_NAME` of these modules by name, in their order."""
    modules = [import_module(f"guerdon.auditing.{name}") for name in names]
    return {
        name.removeprefix("check_"): function
        for module in modules
        for name, function in vars(module).items()
        if name.startswith("check_")
    }


OF_RESPONSES = _checks(
    "time_checks",
    "value_checks",
    "verifier_checks",
    "part_checks",
    "text_checks",
    "call_checks",
    "paid",
    "program_checks",
)
OF_ROBOTS = _checks("robot_checks")
OF_SCALARS: dict[str, Callable[[Rows], Checked]] = _checks("scalar_checks")  # type: ignore[assignment]
NAMES = tuple(dict.fromkeys(("nan", "unread", *OF_RESPONSES, *OF_ROBOTS, *OF_SCALARS, *CHECKS)))
"""Names that a finding can have."""
OF_EPISODES = ("success_reward", "constant_success")  # those of robots that need no single steps


@dataclass
class _Made:
    """What each check says: it was made, or could not be, or had too little to look at."""

    made: dict[str, Checked] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)

    def make(self, name: str, check: Callable[[], Checked], *, has_rows: int) -> None:
        """Make a check; of a log without rows none is made."""
        try:
            needed(has_rows or None, "reward")
            self.made[name] = check()
        except MissingColumn as missing:
            self.unchecked[name] = f"needs {missing}"
        except Undecided as too_few:
            self.undecided[name] = str(too_few)

    def make_again(self, name: str, check: Callable[[], Checked]) -> None:
        """Make a check by other means, where it could not be made."""
        if name not in self.made:
            self.unchecked.pop(name, None)
            self.undecided.pop(name, None)
            self.make(name, check, has_rows=1)

    def findings(self) -> list[Finding]:
        """The findings that Holm's correction leaves, the worst first; those that may be chance are undecided."""
        found = []
        for (name, one), p in zip(self.made.items(), holm([one.p for one in self.made.values()]), strict=True):
            if one.finding is None:
                continue
            if p is None or p < ALPHA:
                found.append(replace(one.finding, p=p))
            else:
                why = f"needs p below {ALPHA:g} over all checks, and has {p:.2g}: {one.finding.title}"
                self.undecided[name] = why
        return sorted(found, key=lambda one: (SEVERITIES.index(one.severity), -one.count / max(one.total, 1)))

    @property
    def clean(self) -> dict[str, str]:
        """What was looked at by the checks that found nothing."""
        return {name: one.clean for name, one in self.made.items() if one.finding is None}


def audit(rows: Rows, *, seed: int = 0, marks: SecondReward | None = None) -> Audit:
    """What is wrong with the rewards of a log, what is clean, what is undecided, and what could not be checked.

    Args:
        rows: of the log.
        seed: of the permutations.
        marks: of a judge or of people, which stand for the truth in the checks `BY_TRUTH` where the log has none.
    """
    view = marked = View.whole(rows, seed)
    if marks is not None and marks.reward_N is not None and (view.truth_M is None or view.doubt):
        marked = view.marked(marks.name, marks.reward_N)
    all_of = _Made()
    all_of.make("nan", partial(missing_rewards, rows), has_rows=len(rows))
    if rows.steps is None:
        all_of.make("unread", partial(unread_rows, rows), has_rows=len(rows))
    for name, check in _checks_of(rows).items():
        all_of.make(name, partial(check, marked if name in BY_TRUTH else view), has_rows=len(view))
    for name, of_scalars in OF_SCALARS.items() if rows.curves else ():
        all_of.make_again(name, partial(of_scalars, rows))
    findings = with_evidence(view, all_of.findings())
    return Audit(findings, all_of.clean, all_of.unchecked, all_of.undecided, course_of(marked))


def _checks_of(rows: Rows) -> dict[str, Check]:
    """The checks of the rows of a log: of responses, of steps of robots, or of episodes."""
    checks = OF_ROBOTS if rows.steps is not None else OF_RESPONSES | {"early_end": OF_ROBOTS["early_end"]}
    if is_of_episodes(rows):
        checks = checks | {name: OF_ROBOTS[name] for name in OF_EPISODES}
    return checks


def audit_log(
    rows: Rows,
    *,
    columns: str | Mapping[str, str] | None,
    second: Path | None = None,
    judge: str | None = None,
    options: Mapping[str, Any] | None = None,
    sample: int | None = None,
    labels: Path | None = None,
    seed: int = 0,
) -> tuple[Audit, SecondReward | None]:
    """Make all checks of a log, with another reward where one is given.

    Args:
        rows: of the log.
        columns: what columns are for, see `read_log`; they hold for `second`, too.
        second: another reward of the same rows, or reference data.
        judge: a model whose marks of a sample are the second reward.
        options: more keys of the judge.
        sample: rows that the judge marks, at most; None: `MARKED`.
        labels: a folder of `guerdon annotate`, whose labels are the second reward.
        seed: of samples and permutations.

    Returns:
        What was found, and the second reward where there is one.

    Raises:
        CheckpointError: as `judge_sample`.
        ConfigError: as `read_log` and `judge_sample`.
        DataError: as `read_second`, `read_marks` and `judge_sample`.
    """
    if labels is not None:
        said = read_marks(rows, labels, seed=seed)
        return audit(rows, seed=seed, marks=said), said
    if judge is not None:
        marks = judge_sample(rows, judge, options or {}, most=sample or MARKED, seed=seed)
        return audit(rows, seed=seed, marks=marks), marks
    if second is not None:
        other = read_second(rows, second, columns=columns, seed=seed)
        result = audit(with_second(rows, other), seed=seed)
        return with_drift(result, other.drift, second.name), other
    return audit(rows, seed=seed), None


# Checks of a whole log: the others look at the rows that have a reward.


def missing_rewards(rows: Rows) -> Checked:
    """Rewards that are no finite number and that the log does not call failed, and numbers that it calls failed."""
    failed = np.zeros(len(rows), bool) if rows.failed_N is None else rows.failed_N
    wrong = np.isfinite(rows.reward_N) == failed
    clean = f"{len(rows):,} rewards are finite, or the log says that they failed"
    outside = _outside_history(rows)
    if outside.any():
        wrong &= ~outside
        clean = f"{clean}; {outside.sum():,} rows before the first one or of a summary have none"
    if not wrong.any():
        return Checked(None, clean)
    view = View(rows, np.arange(len(rows)), rows.reward_N, None, None, wrong)
    title = "{count} rewards ({share}) are missing, NaN or infinite, or a number although the log calls them failed"
    return found(view, "nan", wrong, title, clean, say=lambda i: f"the reward is {rows.reward_N[i]}")


def _outside_history(rows: Rows) -> Flags:
    """Of a log without texts: rows before the first reward, and those after the last one that repeat its step.

    A mean of episodes is NaN until one has ended, and the summary of a trainer has no reward.
    """
    known = np.flatnonzero(np.isfinite(rows.reward_N))
    if not len(known) or rows.texts is not None or rows.steps is not None:
        return np.zeros(len(rows), bool)
    place = np.arange(len(rows))
    before, after = place < known[0], place > known[-1]
    repeats = np.zeros(len(rows), bool) if rows.step_N is None else rows.step_N == rows.step_N[known[-1]]
    outside = np.isnan(rows.reward_N) & (before | (after & repeats))
    is_rare = outside.sum() <= 0.1 * len(rows)
    return outside if is_rare else np.zeros(len(rows), bool)


def unread_rows(rows: Rows) -> Checked:
    """Rows that are left out because they, or their rewards, could not be read; a last line may be half-written."""
    why = {reason: count for reason, count in rows.bad.items() if reason not in GROWING}
    count, total = sum(why.values()), len(rows) + sum(rows.bad.values())
    clean = f"{len(rows):,} rows were read, and none was left out"
    if not count:
        return Checked(None, clean)
    reasons = ", ".join(f"{n:,} {reason}" for reason, n in why.items())
    title = f"{count:,} rows ({count / total:.1%}) could not be read and are left out: {reasons}"
    severe = count > MOST_UNREAD * total or any(CUT in reason for reason in why)
    effect, interval = count / total, wilson_bounds(count, total)
    finding = Finding(
        "unread", "error" if severe else "warning", title, effect, interval, "share of the rows", None, (), (),
        REMEDIES["unread"][1], count, total,
    )  # fmt: skip
    return Checked(finding, clean)
