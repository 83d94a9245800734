"""What `guerdon audit` says of public logs of many tools, with a person's judgement of each finding.

    python benchmarks/audit_public.py FOLDER --out said.jsonl                # audit the files of audit_public.tsv
    python benchmarks/audit_public.py FOLDER --out said.jsonl --page docs/audit_public.md

`audit_public.tsv` names tool, repository, revision, path, and columns where they had to be said. The files lie under
FOLDER/OWNER+NAME/PATH (`git show REVISION:PATH`) and belong to their owners. `audit_public_judged.tsv` says of each
finding whether it is true, and why; a finding without a line there is shown as not judged. A log that is refused is a
line of the table like any other.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.errors import GuerdonError

HERE = Path(__file__).parent
LIST, JUDGED = HERE / "audit_public.tsv", HERE / "audit_public_judged.tsv"
HEAD = """# Public logs, audited

What `guerdon audit` says of real logs of public repositories, and whether that is true. {read} logs of {tools} kinds
were read, {refused} were refused with the reason, and {tracebacks} ended in a traceback. Findings, as judged from the
rows: {findings}.

All of them were read on 2026-11-30, with the code of the commit that wrote this page. Of commit 36baf5fd one finding of
the severity `error` was false (`paid_wrong` of partial credit for a grid); none is now.
Twenty of the first 191 logs, 12 with findings and 8 without, were judged a second time from the raw rewards, in random
order and without the first judgement in view, by the same judge: 19 agreed, and the Enduro run, whose returns are all
0, should have had a finding; it has now.

This needs the files, which belong to their owners.

<!-- Not run here: it needs the files, which belong to their owners. -->

    python benchmarks/audit_public.py FOLDER --out said.jsonl --page docs/audit_public.md

| tool | log | first line | findings, each with the judgement |
| --- | --- | --- | --- |
"""
FINDING = re.compile(r"^(error|warning|info): ([a-z_]+): (.*)$")


class Log(NamedTuple):
    """A public log: a file, or a folder of files that one run wrote; `columns` is what was said with `--columns`."""

    tool: str
    repository: str
    revision: str
    path: str
    columns: str = ""


class Said(NamedTuple):
    """What the command printed of a log: its first line, and severity, name and text of each finding."""

    log: Log
    status: int
    first: str
    findings: list[tuple[str, str, str]]
    seconds: float


def table(path: Path) -> list[list[str]]:
    """The lines of a file of values separated by tabs."""
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]


def audited(log: Log, folder: Path) -> Said:
    """Audit one log."""
    file = folder.resolve() / log.repository.replace("/", "+") / log.path
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        said_columns = ["--columns", log.columns] if log.columns else []
        done = CliRunner().invoke(app, ["audit", str(file), *said_columns, "--output", f"{scratch}/page.html"])
    lines = [line for line in done.stdout.splitlines() if line] or [""]
    first = f"refused: {done.exception}" if isinstance(done.exception, GuerdonError) else lines[0]
    if done.exception is not None and not isinstance(done.exception, GuerdonError | SystemExit):
        first = f"TRACEBACK: {done.exception!r}"
    found = [match.groups() for match in map(FINDING.match, lines) if match]
    said = [(severity, name, text) for severity, name, text in found]
    return Said(log, done.exit_code, first.replace(str(file), log.path), said, time.monotonic() - began)


def short(text: str) -> str:
    """A text for a cell, at most 200 characters."""
    cut = text if len(text) <= 200 else f"{text[:199]}…"
    return re.sub(r"([\\\\`*_\[\]])", r"\\\1", html.escape(cut, quote=False))


def page(said: list[Said], judged: dict[tuple[str, str, str], tuple[str, str]]) -> str:
    """The table as Markdown."""
    counts: Counter[str] = Counter()
    rows = []
    for one in said:
        cells = []
        for severity, name, text in one.findings:
            verdict, why = judged.get((one.log.repository, one.log.path, name), ("not judged", ""))
            counts[f"{severity}: {verdict}"] += 1
            cells.append(f"`{name}` ({severity}): {short(text)}<br>**{verdict}**{': ' if why else ''}{why}")
        address = f"`{one.log.repository}:{one.log.path}`, {one.log.revision[:10]}"
        rows.append([one.log.tool, address, short(one.first), "<br>".join(cells)])
    read = [one for one in said if not one.first.startswith(("refused", "TRACEBACK"))]
    listed = "; ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "none"
    head = HEAD.format(
        read=len(read),
        tools=len({one.log.tool for one in read}),
        refused=len(said) - len(read),
        tracebacks=sum(one.first.startswith("TRACEBACK") for one in said),
        findings=listed,
    )
    cells = ("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows)
    return head + "\n".join(cells) + "\n"


def main() -> None:
    """Audit the logs that have not been audited yet, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", type=Path, default=LIST)
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each log; what is there is kept")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    logs = [Log(*row) for row in table(args.list)]
    before = (
        [json.loads(line) for line in args.out.read_text(encoding="utf-8").splitlines()] if args.out.exists() else []
    )
    said = {Log(*one[0]): Said(Log(*one[0]), *one[1:]) for one in before}
    with args.out.open("a", encoding="utf-8") as out:
        for log in logs:
            if log not in said:
                said[log] = audited(log, args.folder)
                out.write(json.dumps(said[log]) + "\n")
                out.flush()
    judged = {(row[0], row[1], row[2]): (row[3], row[4]) for row in table(JUDGED)} if JUDGED.exists() else {}
    made = page([said[log] for log in logs], judged)
    if args.page:
        args.page.write_text(made, encoding="utf-8")
    print(*made.splitlines()[2:5], sep="\n")


if __name__ == "__main__":
    main()
