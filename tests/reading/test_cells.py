"""Lists and maps as texts in cells: a layout written as a table is read as in JSON lines, and no text is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_files import written
from layout_rows import GROUPS, LABELS, LOGS, PAIRS, PROMPTS, STEPS, UNNUMBERED, talk

from guerdon.auditing.logs import read_log
from guerdon.episodes.preferences import read_preferences
from guerdon.episodes.solution_files import read_solutions
from guerdon.reading.data_sets import held_part
from guerdon.reading.reader import DataReading, read
from guerdon.tasks.prompt_files import read_prompts

CASES = [(case, rows) for cases, rows in GROUPS for case in cases if isinstance(case.make(*rows[0]), dict)]


def pairs(path):
    found = read_preferences(path).comparisons
    return [
        (one.prompt, [r.text for r in one.responses], one.ranks, one.margin, one.label, dict(one.attributes))
        for one in found
    ]


def steps(path):
    return [(one.question, one.steps, one.labels, one.is_correct, one.ground_truth) for one in read_solutions(path)]


def prompts(path, *, answered):
    return [(p.messages, p.ground_truth, p.solution, p.tools) for p in read_prompts(path, answered=answered)]


def logged(path):
    rows = read_log(Path(path))
    texts = rows.texts
    return rows.layout, rows.reward_N.tolist(), texts.prompts, texts.responses, texts.messages, texts.truths, rows.bad


def understood(case, path):
    """What the reader of a case's kind takes a file for."""
    if case in LOGS:
        return logged(path)
    if case in (*STEPS, *UNNUMBERED):
        return steps(path)
    return pairs(path) if case in (*PAIRS, *LABELS) else prompts(path, answered=case in PROMPTS)


def as_cells(rows, write):
    """Rows of a table of text: lists and maps are written in it."""
    return [{k: write(v) if isinstance(v, list | dict) else v for k, v in row.items()} for row in rows]


@pytest.mark.parametrize(("case", "given"), CASES, ids=[case.name for case, _ in CASES])
def test_a_layout_is_read_alike_in_tables_and_in_json_lines(tmp_path, case, given):
    rows = [row for row in (case.make(*one) for one in given) if row is not None]
    if case.name in ("reasoning-gym",):
        pytest.skip("its rows stand in an object alone")
    wanted = understood(case, written(tmp_path / "lines", "rows.jsonl", rows))
    assert wanted
    for name, write in (("json", json.dumps), ("python", repr)):
        cells = as_cells(rows, write)
        assert understood(case, written(tmp_path / name, "rows.csv", cells)) == wanted, name
        assert understood(case, written(tmp_path / name, "rows.tsv", cells)) == wanted, name
        assert understood(case, written(tmp_path / name, "rows.parquet", cells)) == wanted, name


TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["[1]", '{"a": 1}', "[]", "['x']", '["a", "b"]', "007", "NA", "null", "true", "{", "[1] is one"]),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=6))
def test_no_text_is_changed_however_much_it_looks_like_a_list(rows):
    lines = [
        (f"rows:{k}", {"prompt": q, "response_a": a, "response_b": b, "winner": "ab"[k % 2]})
        for k, (q, a, b) in enumerate(rows)
    ]
    records = list(DataReading("rows", [held_part(lines, "rows", "row")]).records())
    said = [(one.row["prompt"], one.row["response_a"], one.row["response_b"]) for one in records]
    assert said == rows


@pytest.mark.parametrize("late", [0, 150])
def test_a_column_is_decoded_by_all_of_its_cells(tmp_path, late):
    none = [{"instruction": f"q{k}", "generations": None, "ratings": None} for k in range(late)]
    rows = [*none, *({"instruction": f"q{k}", "generations": '["a", "b"]', "ratings": "[5, 2]"} for k in range(40))]
    found = read_preferences(written(tmp_path, "rows.csv", rows))
    assert [[r.text for r in one.responses] for one in found.comparisons] == [["a", "b"]] * 40
    chats = [{"question": json.dumps(talk(f"q{k}")), "answer": str(k)} for k in range(200)]
    assert read_prompts(written(tmp_path, "chats.csv", chats))[0].question == "q0"
    chats[150]["question"] = "2+2?"  # after the first hundred, by which layouts are recognised
    reading = read(written(tmp_path, "chats.csv", chats))
    assert [record.roles["prompt"] for record in reading.records()] == [row["question"] for row in chats]


def test_a_cell_that_cannot_be_decoded_among_many_is_a_row_left_out(tmp_path):
    rows = [{"instruction": f"q{k}", "generations": '["a", "b"]', "ratings": "[5, 2]"} for k in range(40)]
    rows[7]["ratings"] = "[5, "
    found = read_preferences(written(tmp_path, "rows.csv", rows))
    assert len(found.comparisons) == 39
    assert sum(found.left_out.values()) == 1


def test_a_passage_in_json_stays_as_it_is_written_and_a_list_of_passages_is_read(tmp_path):
    rows = [{"question": "How many?", "context": json.dumps({"n": k, "of": True}), "answer": str(k)} for k in range(4)]
    found = read_prompts(written(tmp_path, "rows.csv", rows))
    assert [p.question for p in found] == [f"{row['context']}\n\nHow many?" for row in rows]
    lists = [{**row, "context": json.dumps([f"{k}.", "Two."])} for k, row in enumerate(rows)]
    found = read_prompts(written(tmp_path, "rows.csv", lists))
    assert [p.question for p in found] == [f"{k}.\n\nTwo.\n\nHow many?" for k in range(4)]
