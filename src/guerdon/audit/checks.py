"""All checks of an audit: which of them can be made on a log, and Holm's correction over those that test something.

found = audit(read_log(Path("rollouts/")))
for finding in found.findings:
    print(finding.severity, finding.title)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from guerdon.audit import curve_checks, program_checks, robot_checks, text_checks, time_checks, value_checks
from guerdon.audit.finding import Audit
from guerdon.audit.log_view import Checked, Missing, View
from guerdon.audit.rows import Rows
from guerdon.audit.second import SecondReward
from guerdon.evaluate.statistics import holm

ALPHA = 0.03  # after Holm's correction
_ORDER = {"error": 0, "warning": 1, "info": 2}
BY_TRUTH = ("truth", "drift", "agreement")
Check = Callable[[View], Checked | Missing]

OF_RESPONSES: dict[str, Check] = {
    "truth": time_checks.check_truth,
    "drift": time_checks.check_drift,
    "jump": time_checks.check_jump,
    "shift": time_checks.check_shift,
    "agreement": time_checks.check_agreement,
    "no_variance": value_checks.check_no_variance,
    "same_reward": value_checks.check_same_reward,
    "saturation": value_checks.check_saturation,
    "clipping": value_checks.check_clipping,
    "failures": value_checks.check_failures,
    "truncated": value_checks.check_truncated,
    "length": text_checks.check_length,
    "format": text_checks.check_format,
    "language": text_checks.check_language,
    "repetition": text_checks.check_repetition,
    "refusal": text_checks.check_refusal,
    "flattery": text_checks.check_flattery,
    "position": text_checks.check_position,
    "duplicates": text_checks.check_duplicates,
    "inconsistent": text_checks.check_inconsistent,
    "tail": text_checks.check_tail,
    "edited_tests": program_checks.check_edited_tests,
    "hard_coded": program_checks.check_hard_coded,
    "early_exit": program_checks.check_early_exit,
}
OF_ROBOTS: dict[str, Check] = {
    "motionless": robot_checks.check_motionless,
    "first_frame": robot_checks.check_first_frame,
    "early_end": robot_checks.check_early_end,
}


def audit(rows: Rows, *, seed: int = 0, marks: SecondReward | None = None) -> Audit:
    """What is wrong with the rewards of a log, what is clean, and what could not be checked.

    Args:
        rows: of the log.
        seed: of the permutations.
        marks: of a judge, which stand for the truth in the checks `BY_TRUTH` where the log has none.
    """
    results: dict[str, Checked | Missing] = {"nan": value_checks.check_nan(rows) if len(rows) else Missing("reward")}
    view = View.whole(rows, seed)
    checks = OF_ROBOTS if rows.steps is not None else OF_RESPONSES | {"early_end": robot_checks.check_early_end}
    marked = view
    if marks is not None and marks.reward_N is not None and view.truth_M is None:
        marked = view.marked(marks.name, marks.reward_N)
    for name, check in checks.items():
        results[name] = check(marked if name in BY_TRUTH else view) if len(view) else Missing("reward")
    if isinstance(results["truth" if "truth" in results else "nan"], Missing) and rows.curves:
        results["truth"] = curve_checks.check_curves(rows)
    made = {name: one for name, one in results.items() if isinstance(one, Checked)}
    adjusted = dict(zip(made, holm([one.p for one in made.values()]), strict=True))
    findings, clean = [], {}
    for name, one in made.items():
        p = adjusted[name]
        if one.finding is not None and (p is None or p < ALPHA):
            findings.append(replace(one.finding, p=p))
        else:
            clean[name] = one.clean
    findings.sort(key=lambda one: (_ORDER[one.severity], -one.count / max(one.total, 1)))
    missing = {name: f"needs {one.column}" for name, one in results.items() if isinstance(one, Missing)}
    return Audit(tuple(findings), clean, missing)
