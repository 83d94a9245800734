"""Files of step-labelled solutions: JSONL and Parquet, in the formats of the field.

| format | rows | written |
|---|---|---|
| `seed` | question, solution, steps, step_rewards, is_correct, ground_truth_answer | without loss |
| `training` | input_text, target_text, reward_value: one per step | question, steps, verdicts, rewards |
| `trl` | prompt, completions, labels | without loss |
| `prm800k` | question, label.steps with ratings -1, 0, 1, null | hard labels, without loss |
| `math_shepherd` | input with ` ки`, label with + and - | hard labels, without loss |
| `process_bench` | problem, steps, label: first error from 0, or -1 | first error |
| `prmbench` | modified_process, error_steps from 1 | read only |

A bad row is an error with its line and the reason, or is collected in a list. A folder that `guerdon label` wrote is
read by its name. This module does not know what labels mean.

    solutions = read_solutions("data/prm_dataset_method1_HE")
    written = write_solutions(Path("trl.parquet"), solutions, "trl")
    written.left_out                    # {"unlabelled": 3}
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guerdon.atomic import write_bytes
from guerdon.episodes import solution_foreign as foreign
from guerdon.episodes import solution_rows as own
from guerdon.episodes.row_files import file_rows
from guerdon.episodes.solution_rows import CannotSayError
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError

Format = Literal["seed", "training", "trl", "prm800k", "math_shepherd", "process_bench", "prmbench"]

RECORDS = "records.jsonl"  # the file of a folder that holds everything

_READ: dict[str, Callable[[Any, str, str], Solution]] = {
    "seed": own.from_record,
    "trl": own.from_trl,
    "prm800k": foreign.from_prm800k,
    "math_shepherd": foreign.from_math_shepherd,
    "process_bench": foreign.from_process_bench,
    "prmbench": foreign.from_prmbench,
}
_WRITE: dict[str, Callable[[Solution], dict[str, Any]]] = {
    "seed": own.to_record,
    "trl": own.to_trl,
    "prm800k": foreign.to_prm800k,
    "math_shepherd": foreign.to_math_shepherd,
    "process_bench": foreign.to_process_bench,
}
_KEYS: dict[Format, tuple[str, ...]] = {  # what tells the formats apart, most telling first
    "training": ("input_text", "target_text"),
    "trl": ("prompt", "completions"),
    "prmbench": ("modified_process", "error_steps"),
    "math_shepherd": ("input", "label"),
    "process_bench": ("problem", "steps", "label"),
    "prm800k": ("question", "label"),
    "seed": ("question", "steps"),
}


@dataclass(frozen=True)
class Written:
    """What a file got.

    Attributes:
        path: the file.
        rows: rows in it.
        solutions: solutions in it.
        left_out: why others are not in it, and how many.
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
        for name, keys in _KEYS.items():
            if all(row.get(key) is not None for key in keys):
                return name
    found = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
    known = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in _KEYS.items())
    raise DataError(f"{where}: a row of no known format, found {found[:200]}; known are {known}")


def solution_from_row(row: Any, where: str, name: str, form: Format | None = None) -> Solution:
    """One row as a solution; not of the training form, which takes several rows to a solution.

    Args:
        row: a map of keys.
        where: file and line, for errors.
        name: id of a solution that has none.
        form: its format; None: by its keys.

    Raises:
        DataError: the row cannot be understood.
    """
    form = form or format_of(row, where)
    if form == "training":
        raise DataError(f"{where}: rows of the training form belong together; read them with solutions_from_rows")
    return _READ[form](row, where, name)


def solutions_from_rows(
    rows: Iterable[tuple[str, Any]], name: str, form: Format | None = None
) -> Iterator[tuple[str, Solution | DataError]]:
    """Rows as solutions, bad ones as errors.

    Args:
        rows: where each row stands, and the row, or the error that kept it from being read.
        name: in front of the id of a solution that has none.
        form: the format of all rows; None: by their keys.

    Yields:
        Where a solution stands, and it, or why there is none.
    """
    waiting: list[tuple[str, Any]] = []  # rows of the training form
    for number, (where, row) in enumerate(rows):
        try:
            if isinstance(row, DataError):
                raise row
            kind = form or format_of(row, where)
            if kind == "training":
                waiting.append((where, row))
                continue
            yield from own.from_training(waiting, name)
            waiting = []
            yield where, _READ[kind](row, where, f"{name}-{number}")
        except DataError as error:
            yield where, error
    yield from own.from_training(waiting, name)


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
        raise DataError(f"{path}: there is no solution in it{more}")
    return tuple(solutions)


def write_solutions(path: Path, solutions: Iterable[Solution], form: Format = "seed") -> Written:
    """Write solutions in one piece; `path` ends in `.jsonl` or `.parquet`.

    A solution that the format cannot express is left out and counted.

    Raises:
        DataError: the ending is another one, the format is only read, or it can express none of them.
    """
    if path.suffix not in (".jsonl", ".parquet") or form == "prmbench":
        raise DataError(f"{path}: solutions are written as .jsonl or .parquet, in a format other than prmbench")
    rows: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    count, example = 0, ""
    for solution in solutions:
        try:
            rows += own.to_training(solution) if form == "training" else [_WRITE[form](solution)]
            count += 1
        except CannotSayError as error:
            left_out[error.reason] += 1
            example = str(error)
    if left_out and not rows:
        raise DataError(f"{path}: the format {form} can express none of the solutions; {example}")
    write_bytes(path, _parquet(rows) if path.suffix == ".parquet" else _json_lines(rows))
    return Written(path, len(rows), count, dict(left_out))


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    lines = []
    for row in rows:
        try:
            lines.append(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8"))
        except UnicodeEncodeError:  # half a character, which JSON can say and UTF-8 cannot
            lines.append(json.dumps(row, allow_nan=False).encode("utf-8"))
    return b"".join(line + b"\n" for line in lines)


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    """Rows as Parquet: every row has every key, `meta` is JSON, labels are all booleans or all numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = [{key: row.get(key) for key in keys} for row in rows]
    soft = any(isinstance(v, float) for row in rows for v in row.get("labels") or ())
    for row in table:
        labels = row.get("labels")
        if row.get("meta") is not None:
            row["meta"] = json.dumps(row["meta"], ensure_ascii=False, allow_nan=False)
        if soft and labels is not None:
            row["labels"] = [None if v is None else float(v) for v in labels]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table), sink, write_page_checksum=True)
    return sink.getvalue()
