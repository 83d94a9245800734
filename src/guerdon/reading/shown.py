"""What a reading took for what, in lines for people and as values for JSON files.

for line in shown_lines(reading, used=98, left_out={"no_value": 2}): log_line(line)
# pairs.csv: vote is the winner (1/2, for example '2')
# pairs.csv: 100 rows read, 98 used, 2 left out (2 no_value)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from guerdon.processes.progress import log_once
from guerdon.reading.reader import DataReading

_SOURCES = {"given": ", as you said", "model": ", as in the data that the model was trained on"}


class ReadAs(NamedTuple):
    """What a command keeps of a data set.

    Attributes:
        columns: see `DataReading.mapping`.
        record: see `shown_record`.
    """

    columns: Mapping[str, str]
    record: Mapping[str, Any]


def log_reading(reading: DataReading, *, used: int, left_out: Mapping[str, int]) -> ReadAs:
    """What is kept of a reading, after its lines were written to standard error, each once."""
    kept = ReadAs(reading.mapping(), shown_record(reading, used=used, left_out=left_out))
    for line in record_lines(kept.record):
        log_once(line)
    return kept


def stored_columns(read_as: Iterable[ReadAs]) -> dict[str, str]:
    """What a model that was trained on data sets stores of their columns: the roles on which all agree."""
    mappings = [one.columns for one in read_as]
    every = {role: column for mapping in mappings for role, column in mapping.items()}
    return {role: column for role, column in every.items() if all(m.get(role, column) == column for m in mappings)}


def read_as_facts(read_as: Iterable[ReadAs]) -> dict[str, Any]:
    """What the card of a model says of its data sets: `columns`, which `read` takes as `stored`, and `read_as`."""
    known = tuple(read_as)
    return {"columns": stored_columns(known), "read_as": [dict(one.record) for one in known]}


def shown_record(
    reading: DataReading, *, used: int, left_out: Mapping[str, int], rows: int | None = None
) -> dict[str, Any]:
    """What a command keeps of its reading: `columns`, `rows`, `used`, and `left_out` by reason.

    Args:
        reading: of the data.
        used: rows that were used.
        left_out: rows that were not, by reason.
        rows: how many there are, where those that hold several responses are counted once; None: each response is one.
    """
    rows = reading.rows + reading.bad.total() if rows is None else rows
    return {
        "data": reading.data, "layout": reading.plan.layout.name, "columns": reading.read_as(), "rows": rows,
        "used": used, "left_out": dict(left_out),
    }  # fmt: skip


def record_lines(record: Mapping[str, Any]) -> list[str]:
    """A line for each column, and one for the rows, of `shown_record`."""
    data = record["data"]
    lines = [f"{data}: {_column_line(one)}" for one in record["columns"] if one["role"] is not None]
    unused = ", ".join(one["column"] for one in record["columns"] if one["role"] is None)
    lines += [f"{data}: not used: {unused}"] * bool(unused)
    reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(record["left_out"].items()))
    lost = f", {sum(record['left_out'].values()):,} left out ({reasons})" if reasons else ""
    return [*lines, f"{data}: {record['rows']:,} rows read, {record['used']:,} used{lost}"]


def _column_line(one: Mapping[str, Any]) -> str:
    coding = f"{one['coding']}, " if one["coding"] else ""
    source = _SOURCES.get(one["from"], "")
    if "where_empty" in one:
        source = f", where {one['where_empty']} is empty"
    return f"{one['column']} is the {one['role']} ({coding}for example {one['example']!r}){source}"


def shown_lines(reading: DataReading, *, used: int, left_out: Mapping[str, int], rows: int | None = None) -> list[str]:
    """The lines of `shown_record`, which a command writes to standard error."""
    return record_lines(shown_record(reading, used=used, left_out=left_out, rows=rows))
