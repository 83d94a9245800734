"""Findings that the user has accepted, so that `--fail-on` ends only with those that are new.

# accepted.txt
length              # the task rewards long proofs
truncated:warning   # as an error it is new
format 0.3          # and so is an effect above 0.3

findings = with_accepted(found.findings, read_accepted(Path("accepted.txt")))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from guerdon.auditing.finding import SEVERITIES, Finding
from guerdon.errors import ConfigError, did_you_mean


class Accepted(NamedTuple):
    """A line of the file: a finding, the severity up to which it is accepted, and the largest effect, if any."""

    name: str
    severity: str
    most: float | None

    def covers(self, finding: Finding) -> bool:
        """Whether a finding is this one, and neither more severe nor larger."""
        severe = SEVERITIES.index(finding.severity) < SEVERITIES.index(self.severity)
        larger = self.most is not None and not abs(finding.effect) <= self.most
        return finding.name == self.name and not severe and not larger


def read_accepted(path: Path, known: Collection[str]) -> tuple[Accepted, ...]:
    """The findings of a file, `NAME[:SEVERITY] [LARGEST_EFFECT]` a line; what follows a # is a remark.

    Args:
        path: the file.
        known: names of all checks.

    Raises:
        ConfigError: the file cannot be read, or a line is something else; it names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--accepted {path}: cannot be read ({error}); write a name of a finding in each line", key="--accepted"
        ) from (error)
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            found.append(_accepted(words, known, f"{path}:{number}"))
    return tuple(found)


def _accepted(words: Sequence[str], known: Collection[str], where: str) -> Accepted:
    name, _, severity = words[0].partition(":")
    if name not in known:
        raise ConfigError(f"{where}: no check is called {name}{did_you_mean(name, known)}", key="--accepted")
    if severity and severity not in SEVERITIES:
        raise ConfigError(f"{where}: the severity {severity} is none of {', '.join(SEVERITIES)}", key="--accepted")
    if len(words) > 2:
        raise ConfigError(f"{where}: NAME[:SEVERITY] [LARGEST_EFFECT], and a remark only after a #", key="--accepted")
    try:
        most = float(words[1]) if len(words) == 2 else None
    except ValueError:
        raise ConfigError(
            f"{where}: {words[1]} is no number: it is the largest effect that is accepted", key="--accepted"
        ) from None
    return Accepted(name, severity or "error", most)


def with_accepted(findings: Iterable[Finding], accepted: Iterable[Accepted]) -> tuple[Finding, ...]:
    """The findings, those marked that are accepted."""
    lines = tuple(accepted)
    return tuple(replace(one, accepted=any(line.covers(one) for line in lines)) for one in findings)


def left_over(findings: Sequence[Finding], accepted: Iterable[Accepted]) -> list[str]:
    """Names that are accepted and were not found: their lines can go."""
    found = {one.name for one in findings}
    return [line.name for line in accepted if line.name not in found]
