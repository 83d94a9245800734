"""Every layout of steps: what was asked, each step and its label, in any container, any order and under any name."""

import json
import random
from collections import Counter

import pytest
from layout_files import written
from layout_rows import STEPPED, STEPS

from guerdon.episodes.solution_files import published_solutions, read_solutions
from guerdon.errors import DataError
from tables import refuses

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
    with refuses("step_labels"):
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


def signed(*turns):
    """Turns of RLHFlow: what the user says, and a sign for each."""
    said = [({"role": "user", "content": text}, {"role": "assistant", "content": sign}) for text, sign in turns]
    return {"conversations": [one for two in said for one in two]}


MARKED = [  # how a first turn is divided, and what stands in front of the further steps
    ("Add {k} and 1. Step 1: It is so.", "Step 2: Then 4."),
    ("Add {k} and 1. Schritt 1: It is so.", "Schritt 2: Then 4."),
    ("Add {k} and 1. 第1步: It is so.", "第2步: Then 4."),
    ("Add {k} and 1.\n\nIt is so.", "Then 4."),
    ("Add {k} and 1.\nTake 1.\n\nIt is so.\nYes.", "Then 4.\nYes."),
    ("Add {k} and 1.\nIt is so.", "Then 4."),
]


@pytest.mark.parametrize(("first", "second"), MARKED)
def test_turns_with_signs_are_divided_by_what_all_of_them_have(tmp_path, first, second):
    rows = [signed((first.format(k=k), "+"), (second, "-")) for k in range(30)]
    rows.append(signed((first.format(k=30), "+")))  # with one step alone
    found = understood(written(tmp_path, "rows.jsonl", rows))
    at = first.index("It is so.")
    for k, (question, steps, labels) in enumerate(found):
        assert (first[:at].format(k=k) + first[at:]).startswith(question)
        assert question.endswith("1.")
        assert steps[0].endswith(first[at:])
        assert steps[1:] == [second][: 1 if k < 30 else 0]
        assert labels == [1.0, 0.0][: 2 if k < 30 else 1]
    assert (
        understood(written(tmp_path, "rows.csv", [{k: json.dumps(v) for k, v in row.items()} for row in rows])) == found
    )


def test_turns_that_are_not_divided_like_the_others_are_left_out_and_counted(tmp_path):
    rows = [signed((f"Add {k}. Step 1: So.", "+"), ("Step 2: Yes.", "+")) for k in range(30)]
    rows.insert(3, signed(("Add them. So.", "+"), ("Step 2: Yes.", "+")))
    left_out = Counter()
    assert len(published_solutions([written(tmp_path, "rows.jsonl", rows)], left_out)) == 30
    assert left_out == {"no_first_step": 1}


def test_a_conversation_without_a_first_step_is_no_solution(tmp_path):
    row = {"conversations": [{"role": "user", "content": "2+2? It is 4."}, {"role": "assistant", "content": "+"}]}
    with pytest.raises(DataError, match="where does the solution start"):
        read_solutions(written(tmp_path, "rows.jsonl", [row]))
