"""Published benchmarks from a local path or a hub id: rows by split.

Reads JSONL, JSON lists and Parquet itself; anything that is no path here is looked for on the hub with the `datasets`
library. This module does not know what the rows mean.

    rows_by_split("data/gsm8k.jsonl")           # {"gsm8k": [...]}
    rows_by_split("Qwen/ProcessBench")          # {"gsm8k": [...], "math": [...], ...}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from guerdon.episodes.row_files import ENDINGS, good_rows
from guerdon.episodes.solution_files import read_solutions, solutions_from_rows
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError, MissingDependencyError, boundary


def rows_by_split(source: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of a file (named by its stem), of the files of a folder, or of every split of a hub data set.

    Raises:
        DataError: it cannot be read, or holds no row.
        MissingDependencyError: a hub id without the package `datasets`.
    """
    path = Path(source)
    files = sorted(p for p in path.iterdir() if p.suffix in ENDINGS) if path.is_dir() else [path]
    if path.exists():
        found = {file.stem: _file(file) for file in files}
    elif path.suffix in ENDINGS:
        raise DataError(f"{source}: there is no such file")
    else:
        found = _hub(source)
    if not any(found.values()):
        raise DataError(f"{source}: there is no row in it")
    return found


def published_solutions(sources: Sequence[str]) -> list[Solution]:
    """Solutions of several files, folders or hub data sets; `meta["subset"]` is the file's stem or the split.

    Raises:
        DataError: a source cannot be read, or a row cannot be understood.
    """
    solutions: list[Solution] = []
    for source in sources:
        path = Path(source)
        if path.is_file():
            solutions += [_in_subset(s, path.stem) for s in read_solutions(path)]
            continue
        for split, rows in rows_by_split(source).items():
            places = [(f"{source}: {split} row {k + 1}", row) for k, row in enumerate(rows)]
            for _, one in solutions_from_rows(places, split):
                if isinstance(one, DataError):
                    raise one
                solutions.append(_in_subset(one, split))
    return solutions


def _in_subset(solution: Solution, subset: str) -> Solution:
    return replace(solution, meta={"subset": subset, **solution.meta})


def _file(path: Path) -> list[dict[str, Any]]:
    rows = [row for _, row in good_rows(path)]
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected rows that are maps of keys")
    return rows


def _hub(name: str) -> dict[str, list[dict[str, Any]]]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{name}: no such file here, and reading the hub needs the package datasets: pip install 'guerdon[text]'"
        ) from error
    with boundary(DataError, f"{name}: no such file here, and the hub data set of this name cannot be loaded"):
        return {str(split): list(rows) for split, rows in datasets.load_dataset(name).items()}
