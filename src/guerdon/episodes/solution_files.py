"""Files of step-labelled solutions, in the formats of `solution_formats` or with columns that are named.

A bad row is an error with its line and the reason, or is collected in a list. Of a folder that `guerdon label` wrote
its records are read.

    solutions = read_solutions("data/prm_dataset_method1_HE")
    solutions = read_solutions("mine.csv", columns="prompt=task,steps=parts,step_labels=marks")
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
from typing import Any, Literal

from guerdon.episodes import solution_formats as formats
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.files.atomic import write_bytes, write_parquet
from guerdon.files.json_files import json_line
from guerdon.reading.layouts import PLAIN, RowLayout, columns_of, layout_of
from guerdon.reading.plan import Plan
from guerdon.reading.reader import DataReading, Record, read
from guerdon.reading.roles import ROLES, Role
from guerdon.reading.shown import ReadAs, log_reading
from guerdon.reading.values import is_empty, is_null, number_of

Format = Literal["seed", "training", "trl", "prm800k", "math_shepherd", "process_bench", "prmbench"]


_WRITERS: Mapping[Format, Callable[[Solution], Any] | None] = {
    "seed": formats.to_record, "training": formats.to_training, "trl": formats.to_trl, "prm800k": formats.to_prm800k,
    "math_shepherd": formats.to_math_shepherd, "process_bench": formats.to_process_bench, "prmbench": None,
}  # fmt: skip
_TRAINING, _OWN, _SIGNED = "training rows of guerdon", "solutions of guerdon", "RLHFlow, steps"
"""Layouts; of the first several rows are a solution."""
_READERS: Mapping[str, Callable[[Any, str, str], Solution]] = {  # by layout
    _OWN: formats.from_record, "TRL, steps": formats.from_trl, "PRMBench": formats.from_prmbench,
    "Math-Shepherd": formats.from_math_shepherd, "ProcessBench": formats.from_process_bench,
    "PRM800K": formats.from_prm800k,
}  # fmt: skip
_NEEDED: tuple[Role, ...] = ("prompt", "steps", "step_labels")


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


def solution_of(record: Record, plan: Plan, *, labelled: bool = True) -> Solution:
    """A row as a solution: by its own layout, else by the roles of its columns.

    Args:
        record: of a reading.
        plan: of the same.
        labelled: whether its labels are wanted, where the roles of columns say what they are.

    Raises:
        NoLabelsError: nothing is in a column that it needs; the row is left out and counted.
        DataError: it is none, or its columns could be two things.
    """
    labels = plan.uses["step_labels"].column if "step_labels" in plan.uses else ""
    may_be_null = labels if "step_labels" not in plan.layout.roles else ""  # else no label may mean that all are right
    null = [name for name, cell in _needed(record, plan) if is_null(cell) and name != may_be_null]
    if null:
        raise formats.NoLabelsError(record.where, "no_value", f"{', '.join(null)} is null")
    try:
        return _solution_in(record, plan, labelled=labelled)
    except formats.LeftOutError:
        raise
    except DataError as error:
        empty = [name for name, cell in _needed(record, plan) if is_empty(cell)]
        if not empty:
            raise
        raise formats.NoLabelsError(record.where, "no_value", f"{', '.join(empty)} is empty") from error


def _needed(record: Record, plan: Plan) -> list[tuple[str, Any]]:
    """The columns that a solution needs and that a row has, with their cells; a row of another format has others."""
    columns = {plan.uses[role].column.partition(".")[0] for role in _NEEDED if role in plan.uses}
    return [(name, record.row[name]) for name in sorted(columns) if name in record.row]


def _solution_in(record: Record, plan: Plan, *, labelled: bool) -> Solution:
    """As `solution_of`, of a row in which something is in every column."""
    layout = _layout_of(record)
    if layout is PLAIN and record.roles.get("steps") is not None:
        wanted = [role for role in _NEEDED if labelled or role != "step_labels"]
        plan.need(record.where, *wanted)
        roles = record.roles if labelled else {**record.roles, "step_labels": None}
        return formats.from_roles(roles, record.where, record.name)
    if layout.name == _SIGNED:
        return formats.from_signed_turns(record.row, record.where, record.name, plan.step_mark)
    read_row = _READERS.get(layout.name)
    if read_row is None:
        found, known = ", ".join(map(str, record.row))[:200], "; ".join((_TRAINING, *_READERS, _SIGNED))
        raise DataError(
            f"a row of no known format, found {found}; known are {known}; name other columns by columns: "
            "prompt=...,steps=...,step_labels=...",
            where=record.where,
        )
    return read_row(_with_lists(record, plan) | _said(record, plan, layout), record.where, record.name)


def is_solution(record: Record | None) -> bool:
    """Whether a row is a solution in steps, by its columns."""
    return record is not None and (_layout_of(record) is not PLAIN or record.roles.get("steps") is not None)


def _layout_of(record: Record) -> RowLayout:
    return layout_of(columns_of([record.row]), [record.row], kind="steps")


_TRUTHS = {"True": True, "False": False, "true": True, "false": False}  # as tables of text have them


def _said(record: Record, plan: Plan, layout: RowLayout) -> dict[str, Any]:
    """Columns that the user said, by the names that they have in a layout."""
    given = [role for role, use in plan.uses.items() if use.source == "given"]
    return {layout.roles.get(role, ROLES[role][0]): record.roles[role] for role in given}


def _with_lists(record: Record, plan: Plan) -> dict[str, Any]:
    """A row whose steps and labels are no texts of lists and numbers, as tables of text have them."""
    row = dict(record.row)
    for role in ("steps", "step_labels"):
        column = plan.uses[role].column if role in plan.uses else ""
        if isinstance(row.get(column), str):
            number = number_of(row[column])
            row[column] = row[column] if number is None or number % 1 else int(number)
    truth = plan.uses["truth"].column if "truth" in plan.uses else ""
    if isinstance(row.get(truth), str) and row[truth] in _TRUTHS:
        row[truth] = _TRUTHS[row[truth]]
    return row


def solutions_in(reading: DataReading) -> Iterator[tuple[Record, Solution | DataError]]:
    """The rows of a data set as solutions, bad ones as errors, each with its row.

    Rows of the training form that follow each other and grow are one solution, and come with the last of them.
    """
    waiting: list[Record] = []
    for record in reading.records(bad=True):
        if waiting and waiting[-1].part is not record.part:
            yield from _joined(waiting)
            waiting = []
        try:
            if record.error is not None:
                raise record.error
            if _layout_of(record).name == _TRAINING:
                waiting.append(record)
                continue
            yield from _joined(waiting)
            waiting = []
            yield record, solution_of(record, reading.plan)
        except DataError as error:
            yield record, error
    yield from _joined(waiting)


def _joined(waiting: Sequence[Record]) -> Iterator[tuple[Record, Solution | DataError]]:
    """Rows of the training form as solutions."""
    if waiting:
        rows = [(record.where, record.row) for record in waiting]
        name = waiting[0].name.rpartition("-")[0]
        yield from ((waiting[-1], found) for _, found in formats.from_training(rows, name))


def read_solutions(
    path: Path | str, *, columns: str | Mapping[str, str] | None = None, bad: list[str] | None = None
) -> tuple[Solution, ...]:
    """The solutions of a file, or of a folder that `guerdon label` wrote.

    Args:
        path: a file of rows.
        columns: see `guerdon.reading.reader.read`.
        bad: receives a line per bad row, with its place and the reason; without it the first one is an error.

    Raises:
        DataError: there is no such file, it is of another kind, a row is bad, or no row is good.
    """
    solutions: list[Solution] = []
    errors = 0
    for _, found in solutions_in(read(str(path), columns=columns)):
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
    write = _WRITERS[form]
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


def published_solutions(
    paths: Sequence[str],
    left_out: Counter[str],
    *,
    train: bool = False,
    columns: str | Mapping[str, str] | None = None,
    stored: Mapping[str, str] | None = None,
    read_as: list[ReadAs] | None = None,
) -> list[Solution]:
    """Solutions of several files, folders or data sets; `meta["subset"]` is the file's stem or the split.

    Of a folder that `guerdon label` wrote, its records are read, unchanged.

    Args:
        paths: files and folders in any format that is read, and hub ids.
        left_out: counts the rows that have no label for any step, by reason (`bad_problem`, for instance).
        train: of several splits, only `train`.
        columns: see `guerdon.reading.reader.read`.
        stored: as of the same.
        read_as: receives what each path was read as.

    Raises:
        DataError: one of them cannot be read, or has no solution, or a row cannot be understood.
    """
    solutions: list[Solution] = []
    for given in paths:
        before, unlabelled = len(solutions), Counter[str]()
        reading = read(given, columns=columns, stored=stored, train=train)
        for record, one in solutions_in(reading):
            if isinstance(one, formats.NoLabelsError):
                unlabelled[one.reason] += 1
            elif isinstance(one, DataError):
                raise one
            else:
                subset = _subset(record, reading.plan)
                solutions.append(one if subset is None else replace(one, meta={"subset": subset, **one.meta}))
        left_out.update(unlabelled)
        known = log_reading(reading, used=len(solutions) - before, left_out=unlabelled)
        if read_as is not None:
            read_as.append(known)
        if len(solutions) == before:
            why = f"; left out: {', '.join(f'{n} {r}' for r, n in left_out.items())}" if left_out else ""
            raise DataError(f"there is no solution in it{why}", where=given)
    return solutions


def _subset(record: Record, plan: Plan) -> str | None:
    """The part of the data that a row is in, or what its column says where the user named one."""
    if "subset" in plan.uses and plan.uses["subset"].source == "given":
        return record.subset
    return None if record.part is None else record.part.subset


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
