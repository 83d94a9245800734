"""The words of the command `guerdon audit`. Nothing heavy is imported before a log is read.

guerdon audit rollouts/ --fail-on length:error
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic_core import to_jsonable_python

from guerdon.auditing.finding import SEVERITIES
from guerdon.errors import ConfigError, DataError, HarmError, did_you_mean
from guerdon.processes.process import shown
from guerdon.processes.progress import log_line
from guerdon.secrets import hide

if TYPE_CHECKING:
    from guerdon.auditing.finding import Audit, Finding
    from guerdon.auditing.rows import Rows
    from guerdon.auditing.second import SecondReward

ANY, UNDECIDED = "any", "undecided"
_HTML = (".html", ".htm")
WAIT_S = 2.0  # between two looks at a live log, and at least as long as reading it took


def audit(
    path: Annotated[Path, typer.Argument(help="A log of a run: a file or a folder.", show_default=False)],
    options: Annotated[
        list[str] | None, typer.Argument(help="Options of the judge: judge.model=NAME max_usd=5.", show_default=False)
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="What columns are for, where it is not seen: ROLE=NAME[:CODING],... (reward=score)."),
    ] = None,
    second: Annotated[
        Path | None, typer.Option(help="Another reward of the same rows to compare, or reference data: drift.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="A model, see `guerdon score`, whose marks of a sample are a second reward.")
    ] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Rows that the judge marks, at most; default 400.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write findings, clean, undecided and unchecked as JSON.")
    ] = False,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(help="FINDING[:SEVERITY], any or undecided[:CHECK]: exit with status 5 if so (repeatable)."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Read a live log again whenever it has grown.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Page; default NAME.audit.html here.")] = None,
    seed: Annotated[int, typer.Option(help="Of samples and permutations.")] = 0,
) -> None:
    """Find what is wrong with the rewards of a run that is already there, of any trainer, and write one page."""
    from guerdon.auditing.page import write_page
    from guerdon.config.tree import Tree, apply_overrides
    from guerdon.reading.columns import said_columns
    from guerdon.reading.reader import USUAL_NAMES

    wanted = [_condition(given) for given in fail_on or ()]
    said_columns(columns, usual=USUAL_NAMES)
    keys = apply_overrides(Tree(), options or []).data
    if judge is None and (options or sample):
        words = " ".join(options or [f"--sample {sample}"])
        raise ConfigError(f"{words}: of a judge, and there is none; add --judge MODEL, or remove it")
    if judge is not None and (watch or second is not None):
        other = "--watch would call it at each change" if watch else "--second is the one second reward"
        raise ConfigError(f"--judge {judge}: {other}; leave out one of them")
    page = page_of(path, output)
    said_before: list[str] = []

    def once() -> None:
        from guerdon.auditing.checks import audit_log

        rows, result, compared = audit_log(
            path, columns=columns, second=second, judge=judge, options=keys, sample=sample, seed=seed
        )
        understood = read_as_lines(rows, path.name)
        if understood != said_before:  # again only where a live log is read in another way
            said_before[:] = understood
            for line in understood:
                log_line(shown(line))
        write_page(page, rows, result, compared, log=path, live=watch)
        said = as_line(rows, result, compared) if as_json else "\n".join([*lines(rows, result), f"page: {page}"])
        sys.stdout.write(hide(said if as_json else shown(said)) + "\n")
        sys.stdout.flush()
        failed = _failed(result, wanted)
        if failed:
            raise HarmError(f"--fail-on: {'; '.join(failed)}, see {page}")

    if watch:
        _whenever_changed(path, page, once)
    else:
        once()


def page_of(path: Path, output: Path | None) -> Path:
    """The page of a log: `output`, or NAME.audit.html in the working directory.

    Raises:
        ConfigError: its name does not end in .html.
    """
    page = output or Path(f"{path.resolve().name}.audit.html")
    if page.suffix.lower() not in _HTML:
        raise ConfigError(f"--output {page}: the page is HTML; end its name in .html")
    return page


def lines(rows: Rows, result: Audit) -> Iterator[str]:
    """What the command prints: all counts, findings, the worst first, and what was not decided or not checked."""
    yield f"{len(rows):,} rows, {rows.layout}: {result.counted}"
    for one in result.findings:
        yield f"{one.severity}: {one.name}: {one.title} ({one.count:,} of {one.total:,} rows)"
    for name, why in result.undecided.items():
        yield f"undecided: {name}: {why}"
    for name, why in result.unchecked.items():
        yield f"not checked: {name}: {why}"


def read_as_lines(rows: Rows, name: str) -> list[str]:
    """What each column was taken for, a line each, and how many rows were read; of logs whose columns are known none.

    Args:
        rows: of the log.
        name: of the log.
    """
    from guerdon.reading.shown import record_lines

    count = len(rows) + sum(rows.bad.values())
    record = {"data": name, "columns": rows.read_as, "rows": count, "used": len(rows), "left_out": rows.bad}
    return record_lines(record) if rows.read_as else []


def as_line(rows: Rows, result: Audit, second: SecondReward | None) -> str:
    """An audit as a JSON object in one line."""
    found = vars(result) | {"counts": result.counts, "rows": len(rows), "layout": rows.layout, "read_as": rows.read_as}
    if second is not None:
        found["second"] = {name: value for name, value in vars(second).items() if name != "reward_N"}
    plain = to_jsonable_python(found, inf_nan_mode="null", fallback=lambda number: number.item())  # of numpy
    return json.dumps(plain, allow_nan=False)


def _condition(given: str) -> tuple[str, str]:
    """The name of a finding and the lowest severity that counts; or `UNDECIDED` and a check, `ANY` for all."""
    from guerdon.auditing.checks import OF_RESPONSES, OF_ROBOTS
    from guerdon.auditing.drift import CHECKS

    name, _, severity = given.partition(":")
    checks = ("nan", "unread", *OF_RESPONSES, *OF_ROBOTS, *CHECKS)
    if name == UNDECIDED:
        if severity and severity not in checks:
            near = did_you_mean(severity, checks) or f"; there are {', '.join(checks)}"
            raise ConfigError(f"--fail-on {given}: no check has the name {severity}{near}")
        return name, severity or ANY
    known = (ANY, UNDECIDED, *checks)
    if name not in known:
        near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"--fail-on {given}: no check has this name{near}")
    if severity and severity not in SEVERITIES:
        near = did_you_mean(severity, SEVERITIES)
        raise ConfigError(f"--fail-on {given}: the severity is one of {', '.join(SEVERITIES)}{near}")
    return name, severity or "info"


def _failed(result: Audit, wanted: list[tuple[str, str]]) -> list[str]:
    """The findings and the undecided checks that fulfil one of the conditions, in words."""
    of_findings = [condition for condition in wanted if condition[0] != UNDECIDED]
    failed = [f"{f.name} ({f.severity})" for f in result.findings if any(_fits(f, *one) for one in of_findings)]
    asked = {check for name, check in wanted if name == UNDECIDED}
    return failed + [f"{name} (undecided)" for name in result.undecided if asked & {ANY, name}]


def _fits(finding: Finding, name: str, severity: str) -> bool:
    return name in (ANY, finding.name) and SEVERITIES.index(finding.severity) <= SEVERITIES.index(severity)


def _whenever_changed(path: Path, page: Path, once: Callable[[], None]) -> None:
    """Call now and after each change of the log's files, until the process is interrupted.

    A log that cannot be read yet is waited for, and why is said.
    """
    before: dict[Path, tuple[int, int] | None] | None = None
    log_line(f"watching {path}; Ctrl-C ends it")
    try:
        while True:
            files = path.rglob("*") if path.is_dir() else [path]
            now = {file: _state(file) for file in files if file.suffix.lower() not in _HTML}
            began = time.monotonic()
            if now != before:
                before = now
                try:
                    once()
                except DataError as error:
                    log_line(f"waiting: {error}")
            time.sleep(max(WAIT_S, time.monotonic() - began))
    except KeyboardInterrupt:
        log_line(f"ended; the page is {page}" if page.exists() else "ended")


def _state(file: Path) -> tuple[int, int] | None:
    """Size and time of a file, None for anything else, or where it was removed meanwhile."""
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if file.is_file() else None
