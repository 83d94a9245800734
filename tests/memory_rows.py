"""Rows in memory as a data set, for tests of what reads them."""

from guerdon.reading.data_sets import held_part
from guerdon.reading.reader import read
from guerdon.tasks.prompt_files import prompt_of


def reading_of(rows, name="x", *, columns=None, where="{name}:{number}"):
    """The reading of rows, whose places count from 1.

    Args:
        rows: maps, or what else stands in their place.
        name: of the data.
        columns: see `guerdon.reading.reader.read`.
        where: of a row.
    """

    placed = [(where.format(name=name, number=number), row) for number, row in enumerate(rows, start=1)]
    return read(name, columns=columns, parts=[held_part(placed, name, name, name)])


def prompt_from_row(row, where, source, ability="", *, answered=True, columns=None):
    """One row as a prompt."""
    reading = reading_of([row], where, columns=columns, where=where)
    reading.need("prompt", "messages")
    (record,) = reading.records(bad=True)
    if record.error is not None:
        raise record.error
    return prompt_of(record, reading.plan, source, ability, answered=answered)
