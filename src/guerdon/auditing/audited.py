"""An audit from the path of a log to its page: what `guerdon audit` and `guerdon.audit` do.

done = audit_path(Wanted(Path("rollouts/"), page=Path("rollouts.audit.html")))
done.audit.findings, done.page
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from guerdon.auditing.accepted import Accepted, left_over, read_accepted, with_accepted
from guerdon.auditing.against import Against, compare_runs
from guerdon.auditing.checks import NAMES, audit_log
from guerdon.auditing.evidence import remedy_of
from guerdon.auditing.finding import Audit, Finding
from guerdon.auditing.logs import LogReader, read_log
from guerdon.auditing.page import write_page, write_runs
from guerdon.auditing.rows import Rows
from guerdon.auditing.runs import runs_in, runs_of
from guerdon.auditing.second import SecondReward
from guerdon.auditing.verifier_checks import unquoted
from guerdon.errors import ConfigError, DataError, did_you_mean
from guerdon.files import atomic
from guerdon.processes.progress import log_line
from guerdon.secrets import hide

SAVED = ".jsonl"  # ending of files with the rows of a finding
_NO_WORD = re.compile(r"[^\w.-]+")


@dataclass(frozen=True)
class Wanted:
    """What to audit, and with what.

    Attributes:
        path: a log: a file or a folder.
        page: the HTML page to write.
        columns: what columns are for, see `read_log`.
        second: another reward of the same rows, or reference data.
        judge: a model whose marks of a sample are the second reward.
        options: more keys of the judge.
        sample: rows that the judge marks, at most; None: the default.
        against: the log of another run.
        seed: of samples and permutations.
        accepted: a file of findings that `--fail-on` passes over.
        texts: whether the page and the rows that are saved have the texts of the log.
        every: seconds after which the page of a log that is still being written is looked at again; None: it is done.
        labels: a folder of `guerdon annotate`, whose labels are the second reward.
    """

    path: Path
    page: Path
    columns: str | Mapping[str, str] | None = None
    second: Path | None = None
    judge: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sample: int | None = None
    against: Path | None = None
    seed: int = 0
    accepted: Path | None = None
    texts: bool = True
    every: float | None = None
    labels: Path | None = None


@dataclass(frozen=True)
class Audited:
    """A log that was audited.

    Attributes:
        rows: of the log, without texts where none were wanted.
        audit: what was found.
        second: another reward of the same rows.
        page: that was written.
        against: another run that it was compared with.
        run: its name, where the log holds several; else empty.
    """

    rows: Rows
    audit: Audit
    second: SecondReward | None
    page: Path
    against: Against | None = None
    run: str = ""

    def as_json(self) -> str:
        """The audit as a JSON object in one line; a number that is undefined is null."""
        findings = [_plain_finding(one) for one in self.audit.findings]
        rows = self.rows
        found = {**vars(self.audit), "findings": findings}
        found |= {"counts": self.audit.counts, "rows": len(rows), "layout": rows.layout, "read_as": rows.read_as}
        if self.audit.course is not None:
            found["course"] = {name: value for name, value in vars(self.audit.course).items() if name != "series"}
        if self.second is not None:
            found["second"] = {name: value for name, value in vars(self.second).items() if name != "reward_N"}
        if self.against is not None:
            found["against"] = self.against
        if self.run:
            found["run"] = self.run
        plain = to_jsonable_python(found, inf_nan_mode="null", fallback=lambda number: number.item())  # of numpy
        return json.dumps(plain, allow_nan=False)


def _plain_finding(finding: Finding) -> dict[str, Any]:
    return {name: value for name, value in vars(finding).items() if name != "marked"}


def audit_path(wanted: Wanted, log: LogReader | None = None) -> list[Audited]:
    """Read a log, make all checks, and write the page; of several runs one after the other, with a page of all.

    Args:
        wanted: what to audit.
        log: reads `wanted.path`, where it is read more than once.

    Raises:
        CheckpointError: the judge cannot be loaded.
        ConfigError: as `read_log`, `read_accepted` and `judge_sample`, or what is wanted is for one run.
        DataError: the log cannot be read.
        OSError: a page cannot be written.
    """
    accepted = () if wanted.accepted is None else read_accepted(wanted.accepted, NAMES)
    folders = runs_in(wanted.path)
    if folders:
        _check_one_run(wanted, list(folders))
        runs = {name: (folder, _read(folder, wanted)) for name, folder in folders.items()}
    else:
        rows = _read(wanted.path, wanted) if log is None else log.read()
        by_column = runs_of(rows)
        if by_column:
            _check_one_run(wanted, list(by_column))
        runs = {name: (wanted.path, some) for name, some in (by_column or {"": rows}).items()}
    done = [_audit_run(wanted, name, *run, accepted) for name, run in runs.items()]
    if len(done) > 1:
        write_runs(wanted.page, [(one.run, one.rows, one.audit, one.page) for one in done], wanted.path)
    return done


def _read(path: Path, wanted: Wanted) -> Rows:
    return read_log(path, columns=wanted.columns, seed=wanted.seed)


def _check_one_run(wanted: Wanted, names: Sequence[str]) -> None:
    """Refuse what makes sense for one run only.

    Raises:
        ConfigError: it is wanted, and the log holds several.
    """
    given = {
        "second": wanted.second, "judge": wanted.judge, "against": wanted.against, "labels": wanted.labels,
        "watch": wanted.every,
    }  # fmt: skip
    for option, value in given.items():
        if value is not None:
            listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise ConfigError(
                f"--{option}: {wanted.path} holds {len(names)} runs ({listed}); pass one of them", key=f"--{option}"
            )


def _audit_run(wanted: Wanted, name: str, path: Path, rows: Rows, accepted: Sequence[Accepted]) -> Audited:
    """One run of a log; `name` is empty where it is the only one."""
    found, second = audit_log(
        rows, columns=wanted.columns, second=wanted.second, judge=wanted.judge, options=wanted.options,
        sample=wanted.sample, labels=wanted.labels, seed=wanted.seed,
    )  # fmt: skip
    findings = [replace(one, remedy=remedy_of(one, path)) for one in found.findings]
    if not wanted.texts:
        findings = [replace(unquoted(one), excerpts=()) for one in findings]
    found = replace(found, findings=with_accepted(findings, accepted))
    for gone in left_over(found.findings, accepted):
        log_line(f"{wanted.accepted}: {gone} is accepted and was not found; its line can go")
    against = None
    if wanted.against is not None:
        against = compare_runs(rows, _read_other(wanted), str(wanted.against), seed=wanted.seed)
    shown = rows if wanted.texts else rows.without_texts()
    page = wanted.page.with_name(f"{wanted.page.stem}.{_NO_WORD.sub('-', name)}.html") if name else wanted.page
    write_page(page, shown, found, second, against, log=path, every=wanted.every, run=name)
    return Audited(shown, found, second, page, against, name)


def _read_other(wanted: Wanted) -> Rows:
    """The rows of the run to compare with.

    Raises:
        DataError: it is several runs, or has no rows.
    """
    assert wanted.against is not None
    names = list(runs_in(wanted.against))
    rows = None if names else _read(wanted.against, wanted)
    if rows is not None:
        names = list(runs_of(rows))
    if rows is None or names:
        raise DataError(f"it holds {len(names)} runs ({', '.join(names[:5])}); pass one of them", where=wanted.against)
    if not len(rows):
        raise DataError("it has no rows to compare with", where=wanted.against)
    return rows


def check_saved(name: str, file: Path) -> None:
    """Refuse a name that no finding has, or a file that is no JSON lines.

    Raises:
        ConfigError: it is one of these.
    """
    if name not in NAMES:
        near = did_you_mean(name, NAMES) or f"; there are {', '.join(NAMES)}"
        raise ConfigError(f"--save-rows {name}: no check has this name{near}", key="--save-rows")
    if file.suffix != SAVED:
        raise ConfigError(
            f"--save-rows {name} {file}: rows are written as JSON lines; end the name in {SAVED}", key="--save-rows"
        )


def save_rows(done: Audited, name: str, file: Path) -> str:
    """Write all rows of a finding, the most telling first, as `Rows.records`.

    Returns:
        What was done, in words: nothing is written where the finding is not there, or is about no rows.

    Raises:
        OSError: the file cannot be written.
    """
    finding = next((one for one in done.audit.findings if one.name == name), None)
    if finding is None:
        return f"--save-rows {name}: not found, so {file} is not written"
    if finding.marked is None or not len(finding.marked):
        return f"--save-rows {name}: the finding is about no rows, so {file} is not written"
    lines = [json.dumps(one, ensure_ascii=False) for one in done.rows.records(finding.marked)]
    atomic.write_text(file, hide("\n".join(lines) + "\n"))
    return f"{file}: the {len(lines):,} rows of {name}"
