"""The index of a folder: its studies, runs, audits, evaluations and label sets, each with its conclusion in a line.

path = write_index(Path("runs"))        # runs/index.html, with links that stay right where the folder is moved
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from guerdon.comparison.first_screen import run_sentence, study_sentences
from guerdon.comparison.report import TEMPLATES, read_single
from guerdon.comparison.report_cards import card_views
from guerdon.comparison.results import RewardModelCard, RunRecord, read_study, summarise
from guerdon.errors import ConfigError, DataError, boundary
from guerdon.files import atomic
from guerdon.files.json_files import read_json
from guerdon.labels.data_set import CARD, LabelledDataSet
from guerdon.models.scores import RECORD
from guerdon.pages import formats as fmt
from guerdon.pages.html_page import render
from guerdon.processes.progress import doing

INDEX, REPORT = "index.html", "report.html"
KINDS = ("Studies", "Runs", "Audits", "Evaluations", "Label sets")
_NOT_OURS = frozenset({"node_modules", "__pycache__", "site-packages"})
_HEAD = 16_384  # bytes of a page in which its maker and its description stand
_AUDIT = '<meta name="generator" content="guerdon audit">'
_DESCRIPTION = re.compile(r'<meta name="description" content="(.*?)">', re.DOTALL)


@dataclass(frozen=True)
class IndexEntry:
    """One thing that a folder holds.

    Attributes:
        kind: one of `KINDS`.
        name: its path from the folder.
        address: of its page or its file, from the folder; empty: there is none yet.
        conclusion: in a line.
        changed: when its page or its results were written.
        command: writes the page that is not there; else empty.
    """

    kind: str
    name: str
    address: str
    conclusion: str
    changed: datetime
    command: str = ""


@doing("writing the index")
def write_index(folder: Path) -> Path:
    """Write `index.html` of a folder.

    Returns:
        The path written.

    Raises:
        ConfigError: it holds none of what an index lists.
        OSError: it cannot be written.
    """
    found = list(entries(folder))
    if not found:
        raise ConfigError(
            f"{folder} holds no study (study.json), no run (metrics.jsonl), no audit (*.audit.html), no evaluation "
            "(evaluation.json) and no label set (card.json): name a folder that holds some"
        )
    groups = {kind: [one for one in found if one.kind == kind] for kind in KINDS}
    newest = {kind: sorted(some, key=lambda one: one.changed, reverse=True) for kind, some in groups.items() if some}
    title = folder.resolve().name
    counts = ", ".join(f"{len(some)} {kind.lower()}" for kind, some in newest.items())
    context = {"title": title, "groups": newest, "description": counts, "written": datetime.now(UTC)}
    path = folder / INDEX
    atomic.write_text(path, render("index.html.j2", context, TEMPLATES, ("report.js",)))
    return path


def entries(folder: Path) -> Iterator[IndexEntry]:
    """What a folder holds, below it, too; what lies inside of a study or a run belongs to that."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_OURS)
        yield from (entry for name in sorted(files) if (entry := _audit(folder, here / name)) is not None)
        if "study.json" in files:
            yield _reported("Studies", folder, here, _of_study, "study.json")
            folders.clear()
        elif "metrics.jsonl" in files:
            yield _reported("Runs", folder, here, _of_run, "metrics.jsonl")
            folders.clear()
        elif RECORD in files:
            page = here / "evaluation.txt"
            yield _entry("Evaluations", folder, here, page if page.is_file() else here / RECORD, _of_evaluation)
        elif CARD in files and "steps" in (read_json(here / CARD) or {}):
            yield _entry("Label sets", folder, here, here / CARD, _of_labels)


def _reported(kind: str, folder: Path, here: Path, said: Callable[[Path], str], record: str) -> IndexEntry:
    """A study or a run, whose page may not be there yet."""
    page = here / REPORT
    if page.is_file():
        return _entry(kind, folder, here, page, said)
    entry = _entry(kind, folder, here, here / record, said)
    return IndexEntry(kind, entry.name, "", entry.conclusion, entry.changed, f"guerdon report {here}")


def _entry(kind: str, folder: Path, here: Path, page: Path, said: Callable[[Path], str]) -> IndexEntry:
    try:
        with boundary(DataError, "it cannot be read"):
            conclusion = said(here)
    except DataError as error:
        conclusion = f"{error}."
    return IndexEntry(kind, _name(folder, here), _address(folder, page), conclusion, _changed(page))


def _audit(folder: Path, page: Path) -> IndexEntry | None:
    """The page of an audit; None for other files."""
    if page.suffix.lower() not in (".html", ".htm"):
        return None
    with page.open("rb") as file:
        head = file.read(_HEAD).decode("utf-8", "replace")
    if _AUDIT not in head:
        return None
    said = _DESCRIPTION.search(head)
    conclusion = "" if said is None else html.unescape(said[1])
    return IndexEntry("Audits", _name(folder, page), _address(folder, page), conclusion, _changed(page))


def _name(folder: Path, path: Path) -> str:
    return os.path.relpath(path, folder) if path != folder else folder.resolve().name


def _address(folder: Path, page: Path) -> str:
    return quote(os.path.relpath(page, folder))


def _changed(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _of_study(here: Path) -> str:
    study = read_study(here)
    sentences = " ".join(one.text for one in study_sentences(study, summarise(study, study.tasks)))
    return f"{sentences} {_not_complete(study.runs)}".strip()


def _not_complete(runs: Sequence[RunRecord]) -> str:
    """How many runs are complete, where not all are."""
    complete = sum(run.status == "complete" for run in runs)
    return "" if complete == len(runs) else f"{complete} of {fmt.plural(len(runs), 'run')} complete."


def _of_run(here: Path) -> str:
    run = read_single(here)
    states = {"failed": f"It failed: {run.error}", "unfinished": "It is not complete."}
    return f"{run_sentence(run)} {states.get(run.status, '')}".strip()


def _of_evaluation(here: Path) -> str:
    """The forecast or the worst finding of a card, and its first metric."""
    content: dict[str, Any] = read_json(here / RECORD) or {}
    (card,), _ = card_views([RewardModelCard("", here.name, content, {})], budget=0)
    parts = [*card.forecast[:1], *card.findings[:1]]
    for name, interval in card.metrics[:1]:
        parts.append(
            f"{name} {fmt.decimal(interval.estimate, 3)} {fmt.bounds(interval, 3)}".strip() + f", n {interval.n}"
        )
    return "; ".join(parts)


def _of_labels(here: Path) -> str:
    return LabelledDataSet(here, read_json(here / CARD) or {}).summary
