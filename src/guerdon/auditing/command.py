"""The words of the command `guerdon audit`. Nothing heavy is imported before a log is read.

guerdon audit rollouts/ --fail-on length:error
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guerdon.errors import ConfigError, DataError, HarmError, did_you_mean
from guerdon.processes.process import how_to_fetch, shown
from guerdon.processes.progress import log_line
from guerdon.secrets import hide

if TYPE_CHECKING:
    from guerdon.auditing.against import Against
    from guerdon.auditing.audited import Audited
    from guerdon.auditing.finding import Finding
    from guerdon.auditing.logs import LogReader
    from guerdon.auditing.rows import Rows
    from guerdon.auditing.second import SecondReward

ANY, UNDECIDED = "any", "undecided"
_HTML = (".html", ".htm")
WAIT_S = 2.0  # between two looks at a live log, at least
SHARE = 0.02  # of a core that watching takes on average, once a log was read
RELOAD_S = 15.0  # between two looks of a browser at the page of a live log, at least


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
    against: Annotated[
        Path | None, typer.Option(help="The log of another run: what differs in truth, reward, length and phrases.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="A model, see `guerdon score`, whose marks of a sample are a second reward.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="A folder of guerdon annotate, whose labels stand for a truth that the log lacks."),
    ] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Rows that the judge marks, at most; default 400.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write findings, clean, undecided and unchecked as JSON.")
    ] = False,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(help="FINDING[:SEVERITY], any or undecided[:CHECK]: exit with status 5 if so (repeatable)."),
    ] = None,
    accepted: Annotated[
        Path | None, typer.Option(help="File of findings, one in a line, that --fail-on passes over.")
    ] = None,
    save: Annotated[
        tuple[str, Path] | None,
        typer.Option("--save-rows", help="Write the rows of a finding as JSON lines.", metavar="FINDING FILE"),
    ] = None,
    no_texts: Annotated[
        bool, typer.Option("--no-texts", help="No prompts and responses on the page and in saved rows.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Read a live log again whenever it has grown.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Page; default NAME.audit.html here.")] = None,
    seed: Annotated[int, typer.Option(help="Of samples and permutations.")] = 0,
) -> None:
    """Find what is wrong with the rewards of a run that is already there, of any trainer, and write one page."""
    from guerdon.auditing.audited import Wanted, audit_path, check_saved, save_rows
    from guerdon.auditing.logs import LogReader
    from guerdon.config.tree import Tree, apply_overrides
    from guerdon.reading.columns import said_columns
    from guerdon.reading.reader import USUAL_NAMES

    conditions = [_condition(given) for given in fail_on or ()]
    said_columns(columns, usual=USUAL_NAMES)
    keys = apply_overrides(Tree(), options or []).data
    if judge is None:
        _check_no_judge(options, sample)
    else:
        _check_judge(judge, second, watch=watch)
    if labels is not None:
        _check_labels(labels, {"--second": second is not None, "--judge": judge is not None, "--watch": watch})
    if accepted is not None and not fail_on:
        raise ConfigError(
            f"--accepted {accepted}: of --fail-on, and there is none; add --fail-on any, or remove it", key="--accepted"
        )
    if save is not None:
        check_saved(*save)
    if watch and against is not None:
        raise ConfigError(
            f"--against {against}: the log that is watched is compared when it is done; leave out --watch",
            key="--against",
        )
    page = page_of(path, output)
    wanted = Wanted(
        path, page, columns, second, judge, keys, sample, against, seed, accepted, texts=not no_texts, labels=labels
    )
    said_before: list[str] = []

    def once(log: LogReader | None = None, every: float | None = None) -> None:
        runs = audit_path(replace(wanted, every=every), log)
        _say_how_read(runs, path.name, said_before)
        for done in runs:
            if save is not None:
                log_line(save_rows(done, *save))
            said = done.as_json() if as_json else shown("\n".join(lines(done)))
            sys.stdout.write(hide(said) + "\n")
        if len(runs) > 1 and not as_json:
            sys.stdout.write(f"page of all runs: {shown(str(page))}\n")
        if not watch and (how := how_to_fetch(page)):
            log_line(how)
        sys.stdout.flush()
        failed = [one for done in runs for one in _failed(done, conditions)]
        if failed:
            raise HarmError(f"--fail-on: {'; '.join(failed)}, see {page}")

    if watch:
        log = LogReader(path, columns=columns, seed=seed)
        _whenever_changed(path, page, partial(once, log))
    else:
        once()


def _check_no_judge(options: list[str] | None, sample: int | None) -> None:
    """Refuse what is of a judge, where there is none."""
    if options or sample:
        words = " ".join(options or [f"--sample {sample}"])
        key = options[0].partition("=")[0] if options else "--sample"
        raise ConfigError(f"{words}: of a judge, and there is none; add --judge MODEL, or remove it", key=key)


def _check_judge(judge: str, second: Path | None, *, watch: bool) -> None:
    """Refuse what a judge cannot be together with."""
    if watch:
        raise ConfigError(
            f"--judge {judge}: --watch would call it at each change; leave out one of them", key="--judge"
        )
    if second is not None:
        raise ConfigError(f"--judge {judge}: --second is the one second reward; leave out one of them", key="--judge")


def _check_labels(labels: Path, beside: dict[str, bool]) -> None:
    """Refuse options that labels cannot be together with; `beside` says of each whether it is given."""
    for option, is_given in beside.items():
        if is_given:
            why = "labels are the one second reward; leave out one of them"
            raise ConfigError(f"--labels {labels} and {option}: {why}", key="--labels")


def page_of(path: Path, output: Path | None) -> Path:
    """The page of a log: `output`, or NAME.audit.html in the working directory.

    Raises:
        ConfigError: its name does not end in .html.
    """
    page = output or Path(f"{path.resolve().name}.audit.html")
    if page.suffix.lower() not in _HTML:
        raise ConfigError(f"--output {page}: the page is HTML; end its name in .html", key="--output")
    return page


def lines(done: Audited) -> Iterator[str]:
    """What the command prints: all counts, findings, the worst first, and what was not decided or not checked."""
    rows, result = done.rows, done.audit
    front = f"run {done.run}: " if done.run else ""
    yield f"{front}{len(rows):,} rows, {rows.layout}: {result.counted}"
    if result.course is not None:
        truth = f" Truth: {result.course.truth_from}." if result.course.truth_from else ""
        yield f"{result.course.sentence}{truth}"
    for one in result.findings:
        yield f"{one.severity}: {one.name}: {one.title} ({_where_found(one, of_curves=not len(rows))})"
    for name, why in result.undecided.items():
        yield f"undecided: {name}: {why}"
    for why, names in _by_reason(result.unchecked).items():
        yield f"not checked: {', '.join(names)}: {why}"
    if done.second is not None:
        yield from second_lines(done.second)
    if done.against is not None:
        yield from against_lines(done.against)
    yield f"page: {done.page}"


def _where_found(one: Finding, *, of_curves: bool) -> str:
    """The rows of a finding or the points of its curve, what it is joined to, and whether it is accepted."""
    said = f"{one.total:,} points of a curve" if of_curves else f"{one.count:,} of {one.total:,} rows"
    if one.joined_to:
        said += f", mostly those of {one.joined_to}"
    return f"{said}, accepted" if one.accepted else said


def _by_reason(unchecked: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of checks that were not made, by why."""
    found: dict[str, list[str]] = {}
    for name, why in unchecked.items():
        found.setdefault(why, []).append(name)
    return found


def second_lines(found: SecondReward) -> Iterator[str]:
    """How far the second reward agrees with the first."""
    from guerdon.auditing.page import bounded

    yield f"second reward {found.name}, {found.matched}"
    for name, figure in found.figures.items():
        value = bounded(figure.value, figure.low, figure.high)
        yield f"{name}: {value} ({figure.n:,} {figure.unit})"


def against_lines(found: Against) -> Iterator[str]:
    """How a run differs from the other one."""
    from guerdon.auditing.page import bounded, number

    yield f"against {found.name}, {found.compared}"
    for one in found.changes:
        difference = bounded(one.difference, one.low, one.high)
        yield f"{one.what}: {number(one.here)} here, {number(one.there)} there: {difference} ({one.n:,} {one.unit})"
    if found.gained is not None:
        p = "" if found.p is None else f" (p {number(found.p)})"
        yield f"answers gained: {found.gained:,}, lost: {found.lost:,}{p}"
    for phrase in found.phrases:
        yield f'phrase "{phrase.phrase}": in {phrase.here:.0%} of the responses here, in {phrase.there:.0%} there'
    for what, why in found.missing.items():
        yield f"not compared: {what}: {why}"


def _say_how_read(runs: Sequence[Audited], name: str, said_before: list[str]) -> None:
    """Say what the columns of a log were taken for; of a live log again only where that has changed.

    Args:
        runs: of the log.
        name: of the log.
        said_before: the lines that were said last, which are replaced.
    """
    understood = [line for done in runs for line in read_as_lines(done.rows, done.run or name)]
    if understood == said_before:
        return
    said_before[:] = understood
    for line in understood:
        log_line(shown(line))


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


def _condition(given: str) -> tuple[str, str]:
    """The name of a finding and the lowest severity that counts; or `UNDECIDED` and a check, `ANY` for all."""
    from guerdon.auditing.checks import NAMES
    from guerdon.auditing.finding import SEVERITIES

    name, _, severity = given.partition(":")
    if name == UNDECIDED:
        if severity and severity not in NAMES:
            near = did_you_mean(severity, NAMES) or f"; there are {', '.join(NAMES)}"
            raise ConfigError(f"--fail-on {given}: no check has the name {severity}{near}", key="--fail-on")
        return name, severity or ANY
    known = (ANY, UNDECIDED, *NAMES)
    if name not in known:
        near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"--fail-on {given}: no check has this name{near}", key="--fail-on")
    if severity and severity not in SEVERITIES:
        near = did_you_mean(severity, SEVERITIES)
        raise ConfigError(f"--fail-on {given}: the severity is one of {', '.join(SEVERITIES)}{near}", key="--fail-on")
    return name, severity or "info"


def _failed(done: Audited, wanted: list[tuple[str, str]]) -> list[str]:
    """The findings and the undecided checks of a run that fulfil one of the conditions, in words."""
    of_findings = [condition for condition in wanted if condition[0] != UNDECIDED]
    asked = {check for name, check in wanted if name == UNDECIDED}
    front = f"{done.run}: " if done.run else ""
    failed = []
    for finding in done.audit.findings:
        if any(_fits(finding, *one) for one in of_findings):
            failed.append(f"{front}{finding.name} ({finding.severity})")
    for name in done.audit.undecided:
        if asked & {ANY, name}:
            failed.append(f"{front}{name} (undecided)")
    return failed


def _fits(finding: Finding, name: str, severity: str) -> bool:
    from guerdon.auditing.finding import SEVERITIES

    if finding.accepted:
        return False
    return name in (ANY, finding.name) and SEVERITIES.index(finding.severity) <= SEVERITIES.index(severity)


def _whenever_changed(path: Path, page: Path, once: Callable[[float], None]) -> None:
    """Call now and after each change of the log's files, until the process is interrupted.

    A log that cannot be read yet is waited for, and why is said. After each look it waits so long that looking takes at
    most `SHARE` of a core; the first reading does not count.

    Args:
        path: of the log.
        page: that is written, and is no part of the log.
        once: gets the seconds after which the page is to be looked at again.
    """
    before: dict[Path, tuple[int, int] | None] | None = None
    has_read, wait = False, WAIT_S
    log_line(f"watching {path}; Ctrl-C ends it")
    try:
        while True:
            began = time.process_time()
            files = path.rglob("*") if path.is_dir() else [path]
            now = {file: _state(file) for file in files if file.suffix.lower() not in _HTML}
            is_first = not has_read
            if now != before:
                before = now
                try:
                    once(max(wait, RELOAD_S))
                    has_read = True
                except DataError as error:
                    log_line(f"waiting: {error}")
            busy = time.process_time() - began
            wait = WAIT_S if is_first else max(WAIT_S, busy / SHARE - busy)
            time.sleep(wait)
    except KeyboardInterrupt:
        log_line(f"ended; the page is {page}" if page.exists() else "ended")


def _state(file: Path) -> tuple[int, int] | None:
    """Size and time of a file, None for anything else, or where it was removed meanwhile."""
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if file.is_file() else None
