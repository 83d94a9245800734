"""The hostile corpus: tests with the mark `hostile(kind)`, counted by kind for docs/security.md.

    python tests/hostile.py            the table: kind, what is tried, attempts tried, held
    python tests/hostile.py --write    the same, written into docs/security.md between its two markers
    pytest -m hostile                  runs them

An attempt is a test; of a table (`tables.cases`) each row is one, of a property test all examples together are one. A
test must pass, so it counts as held; one that is marked as a strict expected failure counts as tried and not held.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "security.md"
START, END = "<!-- hostile corpus: python tests/hostile.py --write -->", "<!-- end of the hostile corpus -->"
KINDS = {
    "http": "broken, huge, slow, cut and pipelined heads and bodies; foreign hosts and pages; tokens",
    "media": "pictures, videos, arrays and base64 that claim too much or are damaged; names of files",
    "texts": "half characters, forged turns, texts that a chat template changes, texts made to be slow",
    "files": "damaged, huge, nested and mixed rows, tables, logs, archives and LeRobot data sets; paths out of them",
    "models": "folders with code, pickles, links, hostile templates, damaged or misfitting weights and adapters",
    "programs": "programs that fake a verdict, leave the sandbox, hang, or write to the process that judges",
    "verdicts": "responses that contain judgements; ambiguous and endless replies and answers, and slow ones to read",
    "endpoints": "servers and judges that reply with nonsense, partly, late, without end, or with a wrong bill",
    "parts": "models, environments and parts of a user that raise, hang, die, or return what is no number",
    "modules": "a folder with modules named as those of libraries, in which a command is started",
    "configuration": "absurd numbers, names that lead out of a folder, texts that YAML misreads, references that grow",
    "secrets": "keys in texts, replies, addresses, tracebacks, logs, configurations and environments",
    "pages": "markup, scripts, broken texts and huge numbers of rows in reports",
    "disk": "a disk or a folder that takes no more, at every write; a failure in the middle of a file",
    "kills": "SIGKILL at random and at every step, a stop between two renames, two writers on one folder",
}
"""Kinds of hostile input, and what is tried of each."""


class Corpus:
    """Plugin of pytest that counts attempts as tests are collected."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.open: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Count the tests that have the mark.

        Raises:
            pytest.UsageError: a kind is not in KINDS.
        """
        for item in items:
            mark = item.get_closest_marker("hostile")
            if mark is None:
                continue
            if len(mark.args) != 1 or mark.args[0] not in KINDS:
                raise pytest.UsageError(f"{item.nodeid}: hostile{mark.args}: the kind is one of {', '.join(KINDS)}")
            count = getattr(getattr(item, "function", None), "rows", 1)
            self.tried[mark.args[0]] += count
            if expects_failure(item.iter_markers("xfail")):
                self.open[mark.args[0]] += count


def expects_failure(marks: Iterable[Any]) -> bool:
    """Whether a test has the mark of a strict expected failure."""
    return any(mark.kwargs.get("strict") for mark in marks)


def marked_files(folder: Path) -> list[Path]:
    """Test files that mention the mark: only these are imported."""
    return [path for path in sorted(folder.rglob("test_*.py")) if "mark.hostile(" in path.read_text(encoding="utf-8")]


def collect(files: Iterable[Path]) -> Corpus:
    """Count the attempts in test files, without running them.

    Raises:
        RuntimeError: pytest could not collect them; with what it printed.
    """
    corpus = Corpus()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = pytest.main(
            ["--collect-only", "-qq", "--assert=plain", "-p", "no:cacheprovider", *map(str, files)], plugins=[corpus]
        )
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest ended with {status!r}:\n{printed.getvalue()[-3000:]}")
    return corpus


def table(corpus: Corpus) -> str:
    """Rows of Markdown."""
    lines = ["| kind | what is tried | tried | held |", "|---|---|---|---|"]
    for kind, words in KINDS.items():
        tried = corpus.tried[kind]
        lines.append(f"| {kind} | {words} | {tried} | {tried - corpus.open[kind]} |")
    total = corpus.tried.total()
    lines.append(f"| all | | {total} | {total - corpus.open.total()} |")
    return "\n".join(lines)


def replaced(page: str, rows: str) -> str:
    """A page with other rows between its two markers.

    Raises:
        ValueError: it does not have both markers.
    """
    found = re.search(f"(?s){re.escape(START)}.*?{re.escape(END)}", page)
    if found is None:
        raise ValueError(f"{PAGE.name} has no lines {START!r} and {END!r}")
    return f"{page[: found.start()]}{START}\n\n{rows}\n\n{END}{page[found.end() :]}"


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description="Count the hostile corpus by kind.")
    parser.add_argument("--write", action="store_true", help="write the table into docs/security.md")
    options = parser.parse_args()
    rows = table(collect(marked_files(TESTS)))
    if options.write:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
        return
    sys.stdout.write(f"{rows}\n")


if __name__ == "__main__":
    main()
