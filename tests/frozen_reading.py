"""How rows of files are read, frozen before a change of the readers and compared after it.

    FROZEN_READING=/tmp/before python -m pytest -p frozen_reading ...    # keeps each file that a test reads, and how
    python tests/frozen_reading.py record /tmp/before FILE ...           # the same of files, by every reader
    python tests/frozen_reading.py compare /tmp/before                   # reads them all again, and prints what differs

A reader is a function of a path (`READERS`); what it gave is kept as a digest with a short text of its first items, and
an error as its words. Files above a megabyte, and folders above fifty files, are left out and counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import importlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

READERS = {  # name: module and function of a path
    "preferences": ("guerdon.episodes.preferences", "read_preferences"),
    "solutions": ("guerdon.episodes.solution_files", "read_solutions"),
    "prompts": ("guerdon.tasks.prompt_files", "read_prompts"),
    "labelled": ("guerdon.evaluation.benchmarks.labelled", "read_labelled"),
    "log": ("guerdon.auditing.logs", "read_log"),
    "score": ("guerdon.evaluation.scoring.score_file", "score_file"),
}
MOST_BYTES, MOST_FILES, SHOWN = 1_000_000, 50, 2000
NEW = ("read_as",)  # fields that there were none of when readings were frozen
_ROOT = "{file}"  # stands for the path in what is kept


def plain(value: Any) -> Any:
    """A value as JSON can hold it; arrays are lists, numbers that are not finite are words."""
    if isinstance(value, float):
        return value if np.isfinite(value) else repr(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.name not in NEW]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path | Exception) else type(value).__name__


def kept(value: Any, path: str) -> dict[str, Any]:
    """What is kept of a reader's value or error: a digest and the beginning of its text."""
    if isinstance(value, BaseException):
        words = str(value).replace(path, _ROOT)
        return {"error": type(value).__name__, "words": words[:SHOWN]}
    text = json.dumps(plain(value), ensure_ascii=False, sort_keys=True).replace(path, _ROOT)
    return {"digest": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), "text": text[:SHOWN]}


def _size(path: Path) -> tuple[int, int]:
    """Files and bytes of a file or a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return len(files), sum(file.stat().st_size for file in files)


def _copy(path: Path, folder: Path) -> Path | None:
    """A copy of a file or folder under its own name, in a folder named by its content; None where it is too large."""
    files, size = _size(path)
    if not files or files > MOST_FILES or size > MOST_BYTES:
        return None
    digest = hashlib.sha256(path.name.encode())
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(str(file.relative_to(path)).encode() + file.read_bytes())
    copy = folder / "files" / digest.hexdigest()[:20] / path.name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, copy)
        else:
            shutil.copyfile(path, copy)
    return copy


def watched(name: str, reader: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """A reader that keeps what it read, and is otherwise the same."""

    @functools.wraps(reader)
    def read(path: Any, *args: Any, **options: Any) -> Any:
        plain_options = all(isinstance(v, str | int | float | bool | dict | None) for v in options.values())
        copy = _copy(Path(path), folder) if not args and plain_options and Path(path).exists() else None
        of = {"file": copy and str(copy.relative_to(folder)), "as_text": isinstance(path, str)}
        row = {"reader": name, "options": options, **of}
        try:
            found = reader(path, *args, **options)
        except Exception as error:
            _keep(folder, row, kept(error, str(path)))
            raise
        _keep(folder, row, kept(found, str(path)))
        return found

    return read


def _keep(folder: Path, row: dict[str, Any], found: dict[str, Any]) -> None:
    if row["file"] is None:
        return
    with (folder / f"rows-{os.getpid()}.jsonl").open("a", encoding="utf-8", errors="surrogateescape") as out:
        out.write(json.dumps({**row, **found}) + "\n")


def _watch(folder: Path) -> None:
    """Put watched functions in the place of those of a path alone, before other modules import them."""
    folder.mkdir(parents=True, exist_ok=True)
    containers = importlib.import_module("guerdon.reading.containers")
    rows = containers.Part.rows

    @functools.wraps(rows)
    def copied(part: Any, **options: Any) -> Any:
        if part.path.is_file():
            _copy(part.path, folder)
        return rows(part, **options)

    containers.Part.rows = copied
    for name, (module, function) in READERS.items():
        if name != "score":  # it reads rows alone, and what it writes depends on the model
            home = importlib.import_module(module)
            setattr(home, function, watched(name, getattr(home, function), folder))


def scored(path: str | Path) -> Any:
    """The rows that `guerdon score` writes with a model whose value is the length of what it was given, and that."""
    from guerdon.evaluation.scoring.score_file import score_file
    from guerdon.types import RewardInfo, Score

    given: list[Any] = []

    class Length:
        info = RewardInfo(name="length", range=(0.0, 1e9), granularity="total", modality="text", causal=True)

        def score(self, episodes: Any) -> list[Score]:
            given.extend([one.task, one.texts, one.context, one.tools] for one in episodes)
            return [Score(total=float(sum(map(len, one.texts)))) for one in episodes]

    file = Path(path)
    out = file.with_name(f"scored-{os.getpid()}{file.suffix}")
    try:
        score_file(file, Length(), out, name="length")
        return [given, out.read_bytes()]
    finally:
        out.unlink(missing_ok=True)
        out.with_name(f"{out.name}.part").unlink(missing_ok=True)


def read_again(row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a reader gives now of a file that was kept."""
    path = str(folder / row["file"])
    module, function = READERS[row["reader"]]
    reader = scored if row["reader"] == "score" else getattr(importlib.import_module(module), function)
    try:
        found = reader(path if row["as_text"] else Path(path), **row["options"])
    except Exception as error:  # noqa: BLE001  # whatever it raises is compared
        return kept(error, path)
    return kept(found, path)


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """All that is kept, each reading once."""
    seen = set()
    for file in sorted(folder.glob("rows-*.jsonl")):
        for line in file.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            row = json.loads(line)
            key = json.dumps([row["reader"], row["file"], row["options"], row["as_text"]], sort_keys=True)
            if key not in seen:
                seen.add(key)
                yield row


def record(folder: Path, files: list[Path]) -> None:
    """Keep how every reader reads these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        copy = _copy(file, folder)
        for name in READERS if copy else ():
            row = {"reader": name, "file": str(copy.relative_to(folder)), "options": {}, "as_text": name != "log"}
            if name != "score" or copy.is_file():
                _keep(folder, row, read_again(row, folder))


def compare(folder: Path) -> int:
    """Read all again, print what differs, and return how many do."""
    counts: Counter[str] = Counter()
    for row in rows_of(folder):
        now = read_again(row, folder)
        same = now.get("digest") == row.get("digest") and now.get("words") == row.get("words")
        counts[f"{row['reader']}: {'same' if same else 'different'}"] += 1
        if not same:
            print(f"--- {row['reader']} {row['file']} {row['options'] or ''}")
            print(f"  before: {row.get('words') or row.get('text')}"[:600])
            print(f"  now:    {now.get('words') or now.get('text')}"[:600])
    print(", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    return sum(n for name, n in counts.items() if name.endswith("different"))


if "FROZEN_READING" in os.environ and __name__ != "__main__":
    _watch(Path(os.environ["FROZEN_READING"]))

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    asked = parser.parse_args()
    if asked.action == "record":
        record(asked.folder, asked.files)
    else:
        sys.exit(1 if compare(asked.folder) else 0)
