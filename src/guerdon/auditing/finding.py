"""What an audit says: one finding, and all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from guerdon.auditing.rows import Codes, Numbers

# ---------------------------------------------------------------------------------------------------------------------
# How severe each finding is, and which part of guerdon would fix it.
# ---------------------------------------------------------------------------------------------------------------------


_SCORE = "`guerdon score` measures each response again"
_ATTACK = "`guerdon evaluate --attack`"
_VERSIONS = "with `guerdon audit --second`"
_PROBES = "measure it on pairs that differ in this alone: the probes of `guerdon evaluate` (docs/evaluation.md)"
_PARTS = "log the parts over the run, and give each a weight and a bound of its own (docs/rewards.md)"
_SANDBOX = "guerdon runs tests out of the program's reach and counts only what they report (docs/language_models.md)"
_ERRORS = {
    "truth": "compare rewards by true success: `guerdon compare`; `guerdon search` shows what a model accepts",
    "drift": f"{_SCORE}: compare the reward of both ends of the run {_VERSIONS}",
    "shift": f"join rewards and responses by an id instead of their position; {_SCORE}",
    "agreement": "`guerdon evaluate` measures a reward on labelled responses and forecasts its effect (docs/gate.md)",
    "unpaid_right": f"read the rejected answers, and correct how they are parsed (docs/language_models.md); {_SCORE}",
    "paid_wrong": f"read the answers that are accepted, and compare with what is stated alone; {_SCORE}",
    "nan": "keep a failed measurement as a Failure, which is masked and counted (docs/failures.md)",
    "unread": "write the rows again, or say with --columns ROLE=NAME:CODING how a column is read (docs/audit.md)",
    "failures": f"a failed measurement is a Failure, not a number (docs/failures.md); {_SCORE} and keeps reasons",
    "same_reward": f"look for a cache whose key is the prompt; {_SCORE}",
    "inconsistent": f"average several marks of a judge that samples (docs/judges.md); {_SCORE}",
    "tail": "`guerdon search` finds more of this kind; test a model with attacks (docs/attacks.md)",
    "edited_tests": _SANDBOX,
    "early_exit": _SANDBOX,
    "hard_coded": "hold back tests that the prompt does not show (docs/language_models.md)",
    "motionless": f"{_ATTACK} finds such episodes; train the reward on them as failures (docs/attacks.md)",
    "first_frame": "reward t belongs to row t + 1, and reset rows are masked (docs/data.md): look for an off-by-one",
    "success_reward": "compare reward and success row by row: a sign, a threshold or an offset of rows (docs/data.md)",
    "empty_paid": "an empty response has no claim to a reward: make it a Failure or 0 (docs/failures.md)",
    "early_end": "reward success only where an episode ends by itself (docs/rewards.md), and check what ends it",
}
_WARNINGS = {
    "jump": f"{_SCORE}: compare the reward's versions on both sides {_VERSIONS}",
    "truncated": "leave truncated responses out: `data.filter_truncated` (docs/language_models.md)",
    "length": "measure it: the probe `length` of `guerdon evaluate` (docs/evaluation.md)",
    "language": "evaluate the reward for each language on labelled pairs (docs/preferences.md)",
    "repetition": "the attack `repeated_step` of `guerdon evaluate` shows whether a model accepts it (docs/attacks.md)",
    "refusal": "add refusals to what the reward is evaluated on (docs/attacks.md), or declare them wrong",
    "paid": f"remove it from responses and see what the reward does; {_PROBES}",
    "calls": f"pay the outcome alone, or a bounded price of a call; {_PROBES}",
    "no_call": "make the verifier ask for what only the tool knows, or count a call as a part (docs/agents.md)",
    "needless_calls": "subtract a small price of each call, or allow fewer: `agent.max_turns` (docs/agents.md)",
    "rising_failures": "read the reasons; what the policy can cause is graded, and no failure (docs/agents.md)",
    "collapse": "go back to a checkpoint before it; a lower learning rate, or a KL term (docs/language_models.md); "
    "where the task became harder at that step, as in a curriculum, nothing is wrong",
    "divergence": "a KL term or a larger one, and fewer updates of a batch (docs/language_models.md)",
    "part_falls": _PARTS,
    "part_dominates": _PARTS,
    "part_opposite": "check the sign of the part and of its weight (docs/rewards.md)",
    "flattery": _PROBES,
    "inversion": "label rows from the first success on as successes; a reward that is a change falls there by design "
    "(docs/rewards.md)",
    "position": "a judge should see responses in both orders (docs/judges.md)",
}
_FACTS = {
    "truth_copy": "let the verifier find it (--columns reference=NAME), or a judge mark a sample (--judge MODEL)",
    "no_variance": "choose prompts by success rate (docs/curriculum.md) or reward steps (docs/process_reward.md)",
    "saturation": "harder prompts (docs/curriculum.md), or a graded reward (docs/rewards.md)",
    "clipping": "raise the limits, or divide by the running spread: `algorithm.normalize_rewards` (docs/rewards.md)",
    "format": "measure it: the probe `formatting` of `guerdon evaluate` (docs/evaluation.md)",
    "duplicates": "raise the temperature or the entropy bonus, or add a KL term (docs/language_models.md)",
    "entropy": "an entropy bonus, a higher temperature or clip-higher (docs/language_models.md)",
    "part_dead": "look whether what the part rewards can happen, and whether its function is called (docs/rewards.md)",
    "part_scaled": "add parts, or mask by a rule (docs/rewards.md): a product hides one part where the other is 0",
    "constant_success": "log what the world says at the end of each episode (docs/data.md), or leave the column out",
}
REMEDIES: dict[str, tuple[Severity, str]] = {
    **{name: ("error", remedy) for name, remedy in _ERRORS.items()},
    **{name: ("warning", remedy) for name, remedy in _WARNINGS.items()},
    **{name: ("info", remedy) for name, remedy in _FACTS.items()},
}


# ---------------------------------------------------------------------------------------------------------------------


Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")  # the worst first


class Excerpt(NamedTuple):
    """A part of a response: what was found, and some of what stands before and behind it."""

    before: str
    found: str
    behind: str


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with the reward, with its evidence.

    Attributes:
        name: what `--fail-on` calls it, such as `length`.
        severity: `error` where the reward is wrong, `warning` where it may be, `info` where it is a fact to know.
        title: the finding in one sentence with its numbers.
        effect: how large it is, in `unit`.
        interval: of the effect, at 95 %.
        unit: what the effect is measured in.
        p: permutation p-value within prompt and step, by Holm over all findings; None where nothing is random (a NaN).
        rows: numbers of the rows concerned, the most telling first; at most 1,000.
        examples: of these, up to five, each with a line that says what to see.
        remedy: which part of guerdon would fix it, with the command.
        count: rows concerned in all.
        total: rows looked at.
        phrases: words that a test on other prompts confirmed to be paid, where the finding is about such.
        excerpts: the part of the response of each example that the finding is about; empty where it is about no text.
        joined_to: name of a worse finding that is about nearly the same rows or the same phrase; empty: of none.
        accepted: the user has accepted it, and `--fail-on` passes it over.
        marked: numbers of all rows concerned; None where it is about no rows. It is not part of the JSON.
    """

    name: str
    severity: Severity
    title: str
    effect: float
    interval: tuple[float, float]
    unit: str
    p: float | None
    rows: tuple[int, ...]
    examples: tuple[tuple[int, str], ...]
    remedy: str
    count: int
    total: int
    phrases: tuple[str, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
    joined_to: str = ""
    accepted: bool = False
    marked: Codes | None = field(default=None, repr=False, compare=False)


Kind = Literal["both rise", "alone", "flat", "truth falls", "saturated", "unknown"]
Series = tuple[Numbers, Numbers, Numbers]
"""Steps, means and half widths of 95 % intervals."""


class Shift(NamedTuple):
    """How a quantity changes from the first to the last third of the steps.

    Attributes:
        first: mean of the first third.
        last: mean of the last third.
        low: end of the 95 % interval of the change.
        high: the other end.
        way: 1 a rise, -1 a fall, 0 none; None is unknown.
    """

    first: float
    last: float
    low: float
    high: float
    way: int | None

    @property
    def said(self) -> str:
        """From where to where."""
        return f"from {said(self.first)} to {said(self.last)}"

    @property
    def bounds(self) -> str:
        """The interval of the change."""
        return f"the change is between {said(self.low)} and {said(self.high)}"


@dataclass(frozen=True)
class Course:
    """How reward and truth change over a run.

    Attributes:
        kind: one of six.
        sentence: the same as a whole sentence, with its numbers, or with what is missing.
        truth_from: where the truth comes from, in words; empty without one.
        reward: its change; None where there are too few steps.
        truth: the same.
        step: from which on the reward is saturated.
        series: of reward and truth, as far as they are known; not part of the JSON.
    """

    kind: Kind
    sentence: str
    truth_from: str = ""
    reward: Shift | None = None
    truth: Shift | None = None
    step: int | None = None
    series: dict[str, Series] = field(default_factory=dict, repr=False, compare=False)


def said(value: float) -> str:
    """A number with three digits and a true minus sign."""
    return f"{value:.3g}".replace("-", "−")


@dataclass(frozen=True)
class Audit:
    """All that was looked for, each check in one of four places.

    Attributes:
        findings: the worst first.
        clean: names of checks that found nothing, each with what was looked at and would have been found.
        unchecked: names of checks that could not be made, each with what the log lacks.
        course: how reward and truth change over the run; None where it was not looked at.
        undecided: names of checks that had too little to look at, each with what they need and what the log has.
    """

    findings: tuple[Finding, ...] = ()
    clean: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)
    course: Course | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many findings there are, and how many checks are clean, undecided and not made."""
        return {
            "found": len(self.findings), "clean": len(self.clean), "undecided": len(self.undecided),
            "not made": len(self.unchecked),
        }  # fmt: skip

    @property
    def counted(self) -> str:
        """The counts in words."""
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())
