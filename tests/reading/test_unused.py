"""What is shown as not used is what no command reads: changing its cells changes nothing, that of others does."""

import json
from collections import Counter
from pathlib import Path

import pytest
from layout_files import written
from layout_meanings import BY_NAME

from frozen_reading import plain
from guerdon.auditing.logs import read_log
from guerdon.episodes.preferences import read_preferences
from guerdon.episodes.solution_files import published_solutions
from guerdon.errors import GuerdonError
from guerdon.evaluation.benchmarks.labelled import read_labelled
from guerdon.evaluation.benchmarks.reward_bench import read_choices
from guerdon.evaluation.scoring.responses import scored_responses
from guerdon.reading.containers import good_rows
from guerdon.reading.reader import read
from guerdon.tasks.prompt_files import read_prompts
from tables import sample

FOR_SOME = ("turn", "winner_tie", "stop_reason", "stop_condition", "answer", "answer_index", "canonical_solution",
            "metrics", "output")  # fmt: skip
"""Columns that are read for the sake of other values than those of the rows: a second turn, an end by length, a tie."""
IN_ROWS = [name for name, layout in BY_NAME.items() if layout.case.whole is None or layout.name == "OASST"]


def scored(path):
    rows = list(good_rows(Path(path)))
    responses_of = scored_responses(read(path))
    return [responses_of(row, where, str(k)) for k, (where, row) in enumerate(rows)]


def labelled(path):
    found = read_labelled(path)
    return [found.labels_N, found.prompts, found.judged() if found.reading.plan.has("reward") else None]


READERS = {
    "log": lambda path: read_log(Path(path)), "score": scored, "pairs": read_preferences, "labels": labelled,
    "choices": lambda path: read_choices(path)._replace(read_as=None),
    "trained": lambda path: read_preferences(path, train=True),
    "steps": lambda path: published_solutions([path], Counter()),
    "answered": read_prompts, "asked": lambda path: read_prompts(path, answered=False),
}  # fmt: skip
SHOWN = ("read_as", "notes", "failure")  # what says the name of a column


def readings(path, of):
    """What each reader makes of a file; an error is its kind."""
    found = {}
    for name in of:
        try:
            found[name] = json.dumps(plain(READERS[name](path)), sort_keys=True)
        except GuerdonError as error:
            found[name] = type(error).__name__
    return found


def changed(cell):
    """Another value of the same kind."""
    if cell is None or isinstance(cell, bool):
        return None if cell is None else not cell
    if isinstance(cell, int | float):
        return -cell - 1
    if isinstance(cell, str):
        return f"{cell} zz"
    if isinstance(cell, list):
        return [changed(one) for one in cell] or ["zz"]
    return {key: changed(one) for key, one in cell.items()} if isinstance(cell, dict) else cell


def unread(folder, layout, rows, of):
    """Columns whose cells change nothing that a reader gives: not all of them, and not every second one."""
    whole = readings(written(folder, "rows.jsonl", rows), of)
    names = dict.fromkeys(key for row in rows for key in row)
    names = [name for name in names if any(row.get(name) not in (None, [], {}, "") for row in rows)]

    def differs(name):
        others = [{**row, name: changed(row[name])} if name in row else row for row in rows]
        some = [other if k % 2 else row for k, (row, other) in enumerate(zip(rows, others, strict=True))]
        return any(readings(written(folder, "rows.jsonl", those), of) != whole for those in (others, some))

    return {name for name in names if not differs(name)}


@pytest.mark.parametrize("name", sample(IN_ROWS, *IN_ROWS[::5]))
def test_what_is_not_used_is_read_by_no_command(tmp_path, name):
    layout = BY_NAME[name]
    made = layout.rows()
    made = layout.case.whole(made) if layout.case.whole else made
    rows = [{**row, "zz_note": f"n{k}"} for k, row in enumerate(made)]
    reading = read(written(tmp_path, "rows.jsonl", rows))
    filled = {key for row in rows for key, cell in row.items() if cell not in (None, [], {}, "")} - {*FOR_SOME}
    assert unread(tmp_path, layout, rows, READERS) & filled == set(reading.plan.unused) & filled


LOGS = [name for name in IN_ROWS if BY_NAME[name].kind == "logs"]


@pytest.mark.parametrize("name", LOGS)
def test_what_an_audit_does_not_use_changes_no_audit(tmp_path, name):
    layout = BY_NAME[name]
    rows = [{**row, "zz_note": f"n{k}"} for k, row in enumerate(layout.rows())]
    found = read_log(Path(written(tmp_path, "rows.jsonl", rows)))
    filled = {key for row in rows for key, cell in row.items() if cell not in (None, [], {}, "")} - {*FOR_SOME}
    unused = {one["column"] for one in found.read_as if one["role"] is None}
    assert unread(tmp_path, layout, rows, ["log"]) & filled == unused & filled
