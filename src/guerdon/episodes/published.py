"""Data sets of the field from a local path or a hub id: rows by split, and solutions.

Reads JSONL, JSON lists and Parquet itself; folders that the `datasets` library saved, and anything that is no path
here, with that library. This module does not know what the rows mean.

    rows_by_split("data/gsm8k.jsonl")           # {"gsm8k": [...]}
    rows_by_split("Qwen/ProcessBench")          # {"gsm8k": [...], "math": [...], ...}
    published_solutions(["data/prm800k/phase2_train.jsonl"], left_out := Counter())
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from guerdon.episodes.row_files import ENDINGS, file_rows, good_rows
from guerdon.episodes.solution_files import RECORDS, solutions_from_rows
from guerdon.episodes.solution_rows import NothingToReadError
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError, MissingDependencyError, boundary
from guerdon.hub import check_data_set

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def rows_by_split(source: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of a file (named by its stem), of the files of a folder, or of every split of a data set.

    Args:
        source: a file, a folder of files, a folder that `datasets` saved, or a hub id.

    Raises:
        DataError: it cannot be read, or holds no row.
        MissingDependencyError: a folder of `datasets` or a hub id without that package.
    """
    path = Path(source)
    files = sorted(p for p in path.iterdir() if p.suffix in ENDINGS and p.name[0] != ".") if path.is_dir() else [path]
    if _saved(path) or (path.is_dir() and not files) or not path.exists():
        found = _datasets(source)
    else:
        found = {file.stem: _file(file) for file in files}
    if not any(found.values()):
        raise DataError(f"{source}: there is no row in it")
    return found


def published_solutions(sources: Sequence[str], left_out: Counter[str]) -> list[Solution]:
    """Solutions of several files, folders or data sets; `meta["subset"]` is the file's stem or the split.

    Of a folder that `guerdon label` wrote, its records are read, as they are.

    Args:
        sources: files and folders in any format that is read, and hub ids.
        left_out: counts the rows that say nothing about any step, by reason (`bad_problem`, for instance).

    Raises:
        DataError: a source cannot be read, a row cannot be understood, or a source holds no solution.
    """
    solutions: list[Solution] = []
    for source in sources:
        before = len(solutions)
        for subset, name, rows in _parts(source):
            for _, one in solutions_from_rows(rows, name):
                if isinstance(one, NothingToReadError):
                    left_out[one.reason] += 1
                elif isinstance(one, DataError):
                    raise one
                else:
                    solutions.append(one if subset is None else replace(one, meta={"subset": subset, **one.meta}))
        if len(solutions) == before:
            why = f"; left out: {', '.join(f'{n} {r}' for r, n in left_out.items())}" if left_out else ""
            raise DataError(f"{source}: there is no solution in it{why}")
    return solutions


def _parts(source: str) -> Iterator[tuple[str | None, str, Iterable[tuple[str, Any]]]]:
    """Subset, name and rows with their places of each part of a source."""
    path = Path(source)
    if path.is_file():
        yield path.stem, path.stem, file_rows(path)
    elif (path / RECORDS).is_file():
        yield None, Path(RECORDS).stem, file_rows(path / RECORDS)
    else:
        for split, rows in rows_by_split(source).items():
            yield split, split, [(f"{source}: {split} row {k + 1}", row) for k, row in enumerate(rows)]


def _file(path: Path) -> list[dict[str, Any]]:
    rows = [row for _, row in good_rows(path)]
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected rows that are maps of keys")
    return rows


def _saved(folder: Path) -> bool:
    """Whether `save_to_disk` of `datasets` wrote a folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _datasets(source: str) -> dict[str, list[dict[str, Any]]]:
    """Rows by split of a folder or a hub id, by the `datasets` library."""
    path = Path(source)
    first = path.parts[0] if path.parts else ""
    if not path.exists() and (not _HUB_ID.fullmatch(source) or path.suffix in ENDINGS or Path(first).exists()):
        raise DataError(f"{source}: there is no such file or folder; make it first, or check the path")
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{source} is read with the package datasets (it is no file here): pip install 'guerdon[text]'"
        ) from error
    check_data_set(DataError, "the data set", source)
    with boundary(DataError, f"{source}: cannot be read with datasets"):
        found = datasets.load_from_disk(source) if _saved(path) else datasets.load_dataset(source)
        if not isinstance(found, dict):
            found = {"train": found}
        return {str(split): list(rows) for split, rows in found.items()}
