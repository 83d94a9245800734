import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.comparison.results import measure_curve, number, read_run
from guerdon.files.json_files import read_lines


@pytest.mark.hostile("files")
def test_a_truncated_last_line_is_skipped_and_counted(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "eval", "step": 0}\n\n[1]\n{"kind": "eval", "st')
    assert read_lines(path) == ([{"kind": "eval", "step": 0}], 2)
    assert read_lines(tmp_path / "absent.jsonl") == ([], 0)


@pytest.mark.hostile("files")
def test_a_line_nested_without_end_and_success_out_of_its_range_are_left_out(tmp_path):
    values = ("0.5", "-3", "5", "1", "[" * 50_000)
    lines = [f'{{"kind": "eval", "step": {step}, "success": {value}}}\n' for step, value in enumerate(values)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    run = read_run(tmp_path, task="t", arm="A", seed=0)
    assert measure_curve(run) == ([0.0, 3.0], [0.5, 1.0])
    assert read_lines(tmp_path / "metrics.jsonl")[1] == 1


@pytest.mark.hostile("files")
@given(st.integers(0, 200))
def test_any_cut_of_a_file_loses_at_most_one_line(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "m.jsonl"
    lines = [json.dumps({"kind": "eval", "step": i, "success": 0.5}).encode() for i in range(4)]
    whole = b"\n".join(lines) + b"\n"
    path.write_bytes(whole[:cut])
    rows, skipped = read_lines(path)
    assert skipped <= 1
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert len(rows) >= whole[:cut].count(b"\n")


def test_numbers_that_are_not_finite_are_none(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": NaN, "b": 1e999, "c": "0.5", "d": null, "e": true, "f": 2}\n')
    (row,), skipped = read_lines(path)
    assert skipped == 0
    assert [number(row, key) for key in "abcdefg"] == [None, None, None, None, 1.0, 2.0, None]


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({}, "unfinished"),
        ({"COMPLETE": "{}"}, "complete"),
        ({"FAILED.json": '{"error": "boom"}'}, "failed"),
        ({"FAILED.json": "{", "COMPLETE": "{}"}, "complete"),
        ({"FAILED.json": "{"}, "failed"),
    ],
)
def test_status(tmp_path, files, status):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    run = read_run(tmp_path, task="t", arm="A", seed=0)
    assert run.status == status
    assert run.wall_seconds is None
    assert read_run(tmp_path / "absent", task="t", arm="A", seed=0).status == "missing"


@pytest.mark.parametrize(
    ("files", "unit"),
    [
        ({}, "environment steps"),
        ({"config.yaml": "policy: {type: text}"}, "responses"),
        ({"config.yaml": "policy: {type: text}", "COMPLETE": "{}"}, "responses"),
        ({"config.yaml": "policy: {type: text}", "COMPLETE": '{"unit": "environment steps"}'}, "environment steps"),
        ({"config.yaml": "policy: {type: control}", "COMPLETE": '{"unit": "responses"}'}, "responses"),
        ({"config.yaml": "policy: [", "COMPLETE": "{"}, "environment steps"),
        ({"config.yaml": "policy: text"}, "environment steps"),
    ],
)
def test_what_a_step_counts(tmp_path, files, unit):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert read_run(tmp_path, task="t", arm="A", seed=0).unit == unit


def test_a_step_that_occurs_twice_counts_once_and_order_is_by_step(tmp_path):
    rows = [(20, 0.2), (0, 0.0), (20, 0.3), (10, 0.1)]
    text = "".join(json.dumps({"kind": "eval", "step": s, "success": v}) + "\n" for s, v in rows)
    (tmp_path / "metrics.jsonl").write_text(text)
    run = read_run(tmp_path, task="t", arm="A", seed=3)
    assert [(row["step"], row["success"]) for row in run.evals] == [(0, 0.0), (10, 0.1), (20, 0.3)]
    assert run.name == "t/A/seed3"
