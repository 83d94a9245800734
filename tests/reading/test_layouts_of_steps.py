"""Every layout of steps: what was asked, each step and its label, in any container, any order and under any name."""

import random

import pytest
from layout_files import written
from layout_rows import STEPPED, STEPS

from guerdon.episodes.solution_files import read_solutions
from guerdon.errors import DataError

NAMES = [case.name for case in STEPS]
CONTAINERS = (".jsonl", ".jsonl.gz", ".json", ".parquet", ".csv")


def case_of(name):
    return next(one for one in STEPS if one.name == name)


def examples(case):
    return [one for one in STEPPED if case.nulls or None not in one[2]]


def understood(path, **how):
    """Question, steps and labels, as the examples have them."""
    return [(s.question, [step.strip() for step in s.steps], list(s.labels)) for s in read_solutions(path, **how)]


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_read_as_they_are_meant_in_every_container(tmp_path, name):
    case = case_of(name)
    given = examples(case)
    rows = [case.make(*one) for one in given]
    for ending in CONTAINERS:
        assert understood(written(tmp_path, f"rows{ending}", rows)) == given, ending


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_rows_and_columns_beside_them_change_nothing(tmp_path, name):
    case = case_of(name)
    given = examples(case)
    rows = [case.make(*one) | {"notes": f"n{k}", "zz": k} for k, one in enumerate(given)]
    order = random.Random(0).sample(range(len(rows)), len(rows))
    found = understood(written(tmp_path, "rows.jsonl", [rows[k] for k in order]))
    assert found == [given[k] for k in order]


@pytest.mark.parametrize("name", [case.name for case in STEPS if case.columns])
@pytest.mark.parametrize("as_text", [True, False])
def test_steps_under_other_names_are_read_once_they_are_said(tmp_path, name, as_text):
    case = case_of(name)
    given = examples(case)
    rows = [case.make(*one) for one in given]
    own = {column: f"c{k}" for k, column in enumerate(rows[0])}
    path = written(tmp_path, "rows.jsonl", [{own[column]: cell for column, cell in row.items()} for row in rows])
    said = {role: own[column] for role, _, column in (one.partition("=") for one in case.columns.split(","))}
    columns = ",".join(f"{role}={column}" for role, column in said.items()) if as_text else said
    assert understood(path, columns=columns) == given


def test_labels_in_two_codings_are_refused_with_both(tmp_path):
    rows = [{"problem": q, "steps": steps, "marks": [1 + one for one in labels]}
            for q, steps, labels in STEPPED if None not in labels]  # fmt: skip
    path = written(tmp_path, "rows.jsonl", rows)
    with pytest.raises(DataError, match=r"--columns step_labels=marks:2/1 or --columns step_labels=marks:1/2"):
        read_solutions(path, columns="step_labels=marks")
    found = understood(path, columns="step_labels=marks:2/1")
    assert found == [one for one in STEPPED if None not in one[2]]
    mirrored = understood(path, columns="step_labels=marks:1/2")
    assert [labels for *_, labels in mirrored] == [[1 - one for one in labels] for *_, labels in found]


def test_probabilities_and_signs_of_steps_are_labels(tmp_path):
    soft = [{"problem": "q", "steps": ["a", "b"], "step_labels": [0.25, 1]}]
    assert understood(written(tmp_path, "soft.jsonl", soft))[0][2] == [0.25, 1.0]
    signs = [{"problem": "q", "steps": ["a", "b"], "step_labels": [1, -1]}]
    assert understood(written(tmp_path, "signs.jsonl", signs))[0][2] == [1.0, 0.0]


def test_a_conversation_without_a_first_step_is_no_solution(tmp_path):
    row = {"conversations": [{"role": "user", "content": "2+2? It is 4."}, {"role": "assistant", "content": "+"}]}
    with pytest.raises(DataError, match="where does the solution start"):
        read_solutions(written(tmp_path, "rows.jsonl", [row]))
