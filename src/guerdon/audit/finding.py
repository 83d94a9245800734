"""What an audit says: one finding, and all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")  # the worst first


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


@dataclass(frozen=True)
class Audit:
    """All that was looked for: what was found, what is clean, and what the log lacks columns for.

    Attributes:
        findings: the worst first.
        clean: names of checks that found nothing, each with what was looked at.
        unchecked: names of checks that could not be made, each with the column that is missing.
    """

    findings: tuple[Finding, ...] = ()
    clean: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
