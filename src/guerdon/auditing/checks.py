"""All checks of an audit: which of them can be made on a log, and Holm's correction over those that test something.

found = audit(read_log(Path("rollouts/")))
for finding in found.findings:
    print(finding.severity, finding.title)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module

from guerdon.auditing.finding import SEVERITIES, Audit
from guerdon.auditing.log_view import Checked, MissingColumn, View, needed
from guerdon.auditing.rows import Rows
from guerdon.auditing.second import SecondReward
from guerdon.auditing.value_checks import curves_disagree, missing_rewards
from guerdon.statistics.training_runs import holm

ALPHA = 0.03  # after Holm's correction
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


OF_RESPONSES = _checks("time_checks", "value_checks", "text_checks", "program_checks")
OF_ROBOTS = _checks("robot_checks")


def audit(rows: Rows, *, seed: int = 0, marks: SecondReward | None = None) -> Audit:
    """What is wrong with the rewards of a log, what is clean, and what could not be checked.

    Args:
        rows: of the log.
        seed: of the permutations.
        marks: of a judge, which stand for the truth in the checks `BY_TRUTH` where the log has none.
    """
    made, unchecked = dict[str, Checked](), dict[str, str]()

    def make(name: str, check: Callable[[], Checked], *, has_rows: int) -> None:
        try:
            needed(has_rows or None, "reward")
            made[name] = check()
        except MissingColumn as missing:
            unchecked[name] = f"needs {missing}"

    view = marked = View.whole(rows, seed)
    if marks is not None and marks.reward_N is not None and view.truth_M is None:
        marked = view.marked(marks.name, marks.reward_N)
    make("nan", partial(missing_rewards, rows), has_rows=len(rows))
    checks = OF_ROBOTS if rows.steps is not None else OF_RESPONSES | {"early_end": OF_ROBOTS["early_end"]}
    for name, check in checks.items():
        make(name, partial(check, marked if name in BY_TRUTH else view), has_rows=len(view))
    if rows.curves and unchecked.pop("truth", ""):
        make("truth", partial(curves_disagree, rows), has_rows=1)
    findings, clean = [], {}
    for (name, one), p in zip(made.items(), holm([one.p for one in made.values()]), strict=True):
        if one.finding is not None and (p is None or p < ALPHA):
            findings.append(replace(one.finding, p=p))
        else:
            clean[name] = one.clean
    findings.sort(key=lambda one: (SEVERITIES.index(one.severity), -one.count / max(one.total, 1)))
    return Audit(tuple(findings), clean, unchecked)
