"""Files of step-labelled solutions: JSONL and Parquet, in the formats of `solution_formats`.

A bad row is an error with its line and the reason, or is collected in a list. Of a folder that `guerdon label` wrote
its records are read.

    solutions = read_solutions("data/prm_dataset_method1_HE")
    written = write_solutions(Path("trl.parquet"), solutions, "trl")
    written.left_out                    # {"unlabelled": 3}
    published_solutions(["data/prm800k/phase2_train.jsonl"], left_out := Counter())
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from guerdon.episodes import solution_formats as formats
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.files.atomic import write_bytes, write_parquet
from guerdon.files.json_files import json_line
from guerdon.reading.containers import file_rows
from guerdon.reading.data_sets import RECORDS, data_parts

Format = Literal["seed", "training", "trl", "prm800k", "math_shepherd", "process_bench", "prmbench"]


class _Codec(NamedTuple):
    """Keys that identify a format, and its functions from and to rows; None: has no such function."""

    keys: tuple[str, ...]
    read: Callable[[Any, str, str], Solution] | None
    write: Callable[[Solution], Any] | None


_CODECS: dict[Format, _Codec] = {  # the most specific keys first
    "training": _Codec(("input_text", "target_text"), None, formats.to_training),  # several rows to a solution
    "trl": _Codec(("prompt", "completions"), formats.from_trl, formats.to_trl),
    "prmbench": _Codec(("modified_process", "error_steps"), formats.from_prmbench, None),
    "math_shepherd": _Codec(("input", "label"), formats.from_math_shepherd, formats.to_math_shepherd),
    "process_bench": _Codec(("problem", "steps", "label"), formats.from_process_bench, formats.to_process_bench),
    "prm800k": _Codec(("question", "label"), formats.from_prm800k, formats.to_prm800k),
    "seed": _Codec(("question", "steps"), formats.from_record, formats.to_record),
}


@dataclass(frozen=True)
class WrittenSolutions:
    """What `write_solutions` wrote.

    Attributes:
        path: the file.
        rows: rows in it.
        solutions: solutions in it.
        left_out: number of solutions that are not in it, by reason.
    """

    path: Path
    rows: int
    solutions: int
    left_out: Mapping[str, int]


def format_of(row: Any, where: str) -> Format:
    """The format of a row, by its keys.

    Raises:
        DataError: it is none that is known.
    """
    if isinstance(row, Mapping):
        for name, codec in _CODECS.items():
            if all(row.get(key) is not None for key in codec.keys):
                return name
    found = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
    known = "; ".join(f"{name}: {', '.join(codec.keys)}" for name, codec in _CODECS.items())
    raise DataError(f"a row of no known format, found {found[:200]}; known are {known}", where=where)


def solutions_from_rows(
    rows: Iterable[tuple[str, Any]], name: str, form: Format | None = None
) -> Iterator[tuple[str, Solution | DataError]]:
    """Rows as solutions, bad ones as errors.

    Args:
        rows: place of each row, and the row or the error with which reading it failed.
        name: in front of the id of a solution that has none.
        form: the format of all rows; None: by their keys.

    Yields:
        Place of each solution, and the solution or its error.
    """
    waiting: list[tuple[str, Any]] = []  # rows of the training form
    for number, (where, row) in enumerate(rows):
        try:
            if isinstance(row, DataError):
                raise row
            read = _CODECS[form or format_of(row, where)].read
            if read is None:
                waiting.append((where, row))
                continue
            yield from formats.from_training(waiting, name)
            waiting = []
            yield where, read(row, where, f"{name}-{number}")
        except DataError as error:
            yield where, error
    yield from formats.from_training(waiting, name)


def read_solutions(
    path: Path | str, form: Format | None = None, *, bad: list[str] | None = None
) -> tuple[Solution, ...]:
    """The solutions of a file, or of a folder that `guerdon label` wrote.

    Args:
        path: JSONL, JSON (a list of rows) or Parquet.
        form: the format; None: by the keys of each row.
        bad: receives a line per bad row, with its place and the reason; without it the first one is an error.

    Raises:
        DataError: there is no such file, it is of another kind, a row is bad, or no row is good.
    """
    path = Path(path)
    path = path / RECORDS if path.is_dir() else path
    solutions: list[Solution] = []
    errors = 0
    for _, found in solutions_from_rows(file_rows(path), path.stem, form):
        if isinstance(found, Solution):
            solutions.append(found)
        elif bad is None:
            raise found
        else:
            errors += 1
            bad.append(str(found))
    if not solutions:
        more = f"; all of its {errors} rows are bad, the first: {bad[-errors]}" if bad and errors else ""
        raise DataError(f"there is no solution in it{more}", where=path)
    return tuple(solutions)


def write_solutions(path: Path, solutions: Iterable[Solution], form: Format = "seed") -> WrittenSolutions:
    """Write solutions in one piece; `path` ends in `.jsonl` or `.parquet`.

    A solution that the format cannot express is left out and counted.

    Raises:
        DataError: the ending is another one, the format is only read, or it can express none of them.
    """
    write = _CODECS[form].write
    if path.suffix not in (".jsonl", ".parquet") or write is None:
        raise DataError("solutions are written as .jsonl or .parquet, in a format other than prmbench", where=path)
    rows: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    count, example = 0, ""
    for solution in solutions:
        try:
            found = write(solution)
            rows += found if isinstance(found, list) else [found]
            count += 1
        except formats.NotExpressibleError as error:
            left_out[error.reason] += 1
            example = str(error)
    if left_out and not rows:
        raise DataError(f"the format {form} can express none of the solutions; {example}", where=path)
    if path.suffix == ".parquet":
        _write_parquet(path, rows)
    else:
        write_bytes(path, b"".join(map(json_line, rows)))
    return WrittenSolutions(path, len(rows), count, dict(left_out))


def published_solutions(paths: Sequence[str], left_out: Counter[str], *, train: bool = False) -> list[Solution]:
    """Solutions of several files, folders or data sets; `meta["subset"]` is the file's stem or the split.

    Of a folder that `guerdon label` wrote, its records are read, unchanged.

    Args:
        paths: files and folders in any format that is read, and hub ids.
        left_out: counts the rows that have no label for any step, by reason (`bad_problem`, for instance).
        train: of several splits, only `train`.

    Raises:
        DataError: one of them cannot be read, or has no solution, or a row cannot be understood.
    """
    solutions: list[Solution] = []
    for given in paths:
        before = len(solutions)
        for part in data_parts(given, train=train):
            for _, one in solutions_from_rows(part.rows(), part.name):
                if isinstance(one, formats.NoLabelsError):
                    left_out[one.reason] += 1
                elif isinstance(one, DataError):
                    raise one
                else:
                    solutions.append(
                        one if part.subset is None else replace(one, meta={"subset": part.subset, **one.meta})
                    )
        if len(solutions) == before:
            why = f"; left out: {', '.join(f'{n} {r}' for r, n in left_out.items())}" if left_out else ""
            raise DataError(f"there is no solution in it{why}", where=given)
    return solutions


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as Parquet: every row has every key, maps are JSON, labels are all booleans or all numbers."""
    import pyarrow as pa

    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = [{key: row.get(key) for key in keys} for row in rows]
    soft = any(isinstance(v, float) for row in rows for v in row.get("labels") or ())
    for row in table:
        labels = row.get("labels")
        for key in ("meta", "conversation", "tools"):  # maps of any keys
            if row.get(key) is not None:
                row[key] = json.dumps(row[key], ensure_ascii=False, allow_nan=False)
        if soft and labels is not None:
            row["labels"] = [None if v is None else float(v) for v in labels]
    write_parquet(path, pa.Table.from_pylist(table))
