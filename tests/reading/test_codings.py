"""Codings of a column: by its values alone where they have one meaning, else both are named; what is said holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.errors import ConfigError, DataError
from guerdon.reading.codings import label_codings, named_by_row, said, winner_codings
from guerdon.reading.columns import said_columns
from guerdon.reading.data_sets import DataPart
from guerdon.reading.reader import DataReading
from guerdon.reading.values import Sketch, canonical, number_of, truth_of
from tables import cases, refuses


def sketch_of(cells):
    sketch = Sketch()
    for cell in cells:
        sketch.add(cell)
    return sketch


def signs(cells, names=("response_a", "response_b")):
    """The sign of each cell under the one coding of a winner; the names of the codings where there is not one."""
    found = winner_codings(sketch_of(cells), names)
    if len(found) != 1:
        return [one.name for one in found]
    read = [found[0].read(cell, {}) for cell in cells]
    return [None if value is None else (value > 0) - (value < 0) for value in read]


A, B = ("response_a", "response_b"), ("response_1", "response_2")


@cases(
    ("cells", "names", "wanted"),
    [
        ([1, 2, 2, 1], B, [-1, 1, 1, -1]), (["1", "2", "tie"], B, [-1, 1, 0]), ([1.0, 2.0], A, [-1, 1]),
        ([0, 1], ("response_0", "response_1"), [-1, 1]), (["0", "1"], ("answer_0", "answer_1"), [-1, 1]),
        ([0, 1], B, ["0/1", "1/0"]), ([True, False], A, ["true/false", "false/true"]), ([1, 1], B, [-1, -1]),
        ([1, 1], A, ["0/1", "1/0"]), ([0, 0], A, ["0/1", "1/0"]),
        (["A", "B", "tie"], A, [-1, 1, 0]), (["a", "b", "both"], B, [-1, 1, 0]), (["left", "right"], A, [-1, 1]),
        (["model_a", "model_b", "tie (bothbad)"], B, [-1, 1, 0]), (["response_1", "response_2"], B, [-1, 1]),
        (["A>B", "B>A", "A=B", "A>>B"], A, [-1, 1, 0, -1]), (["first", "second"], A, [-1, 1]),
        ([-3, -1, 0, 2], B, [-1, -1, 0, 1]), (["-1", "1", "0"], B, [-1, 1, 0]),
        ([1, 2, 3, 4, 5], B, ["1..5", "5..1"]), ([1.0, 1.4, 1.9], B, ["1..1.9", "1.9..1"]),
        ([2, 2], A, ["1/2", "2/1"]), ([2], B, [1]), ([4, 4], B, ["1..4", "4..1"]), ([1.5], B, ["1..2", "2..1"]),
        ([0.7], A, ["0..1", "1..0"]), ([-2], A, [-1]), (["A"], A, [-1]), (["B", "B"], B, [1, 1]), (["tie"], A, [0]),
        (["x", "y"], A, []), (["A", None, "B"], A, [-1, None, 1]), (["A", "B"] * 20 + ["?"], A, [-1, 1] * 20 + [None]),
        (["A", "B", "?"], A, []), (["answer1", "answer2"], ("answer1", "answer2"), [-1, 1]),
    ],
)  # fmt: skip
def test_winners(cells, names, wanted):
    assert signs(cells, names) == wanted


@cases(
    ("cells", "wanted"),
    [
        ([True, False], [1, 0]), ([1, 0, 1], [1, 0, 1]), ([1, -1], [1, 0]), (["yes", "no"], [1, 0]),
        (["True", "false"], [1, 0]), (["1", "0"], [1, 0]), (["good", "bad", None], [1, 0, None]),
        (["thumbs_up", "thumbs_down"], [1, 0]), ([1, 2], ["2/1", "1/2"]), (["1", "2"], ["2/1", "1/2"]),
        ([1, 1], ["1/0", "2/1"]), (["1"], ["1/0", "2/1"]), ([2], ["2/1", "1/2"]), ([0, 0], [0, 0]), ([True], [1]),
        (["true"], [1]), (["good"], ["good/other", "other/good"]), (["no"] * 3, ["no/other", "other/no"]), ([-1], [0]),
        ([3, 7], ["7/3", "3/7"]), ([1, 2, 3], []), (["red", "blue"], []), ([0.5, 0.7], ["0.7/0.5", "0.5/0.7"]),
    ],
)  # fmt: skip
def test_labels(cells, wanted):
    found = label_codings(sketch_of(cells))
    read = [found[0].read(cell, {}) if cell is not None else None for cell in cells] if len(found) == 1 else None
    assert (read or [one.name for one in found]) == wanted


@cases(
    ("text", "role", "cells", "wanted"),
    [
        ("1/2", "winner", [1, "2", 3, 2.0], [-1, 1, None, 1]), ("2/1", "winner", [1, 2], [1, -1]),
        ("x/y/z", "winner", ["X", "y", "z", "w"], [-1, 1, 0, None]), ("1..5", "winner", [1, 3, 5, 6], [-2, 0, 2, None]),
        ("5..1", "winner", [1, 3, 5], [2, 0, -2]), ("yes/no", "label", ["YES", "no", "?"], [1, 0, None]),
        ("1/2", "label", [1, 2], [1, 0]), ("1..5", "rating", [1, "5", 9], [1, 5, None]),
        ("5..1", "rating", [1, 5], [5, 1]), ("-1..1", "winner", [-1, 0, 1], [-1, 0, 1]),
    ],
)  # fmt: skip
def test_what_the_user_says(text, role, cells, wanted):
    coding = said(text, role)
    assert [coding.read(cell, {}) for cell in cells] == wanted


@pytest.mark.parametrize("text", ["", "1", "1/1", "a/b/c/d", "1..1", "5..", "/", "a/"])
def test_what_is_no_coding_is_refused(text):
    with refuses("columns"):
        said(text, "winner")


MIRRORS = st.sampled_from([("A", "B"), (1, 2), ("left", "right"), ("model_a", "model_b"), (-1, 1), (0, 1), (1, 5)])


@given(MIRRORS, st.lists(st.booleans(), min_size=4, max_size=30), st.booleans())
def test_a_coding_and_its_mirror_give_mirrored_results_or_a_refusal(values, votes, as_text):
    first, second = (str(value) for value in values) if as_text else values
    cells = [first if vote else second for vote in votes]
    mirrored = [second if vote else first for vote in votes]
    one, other = signs(cells, A), signs(mirrored, A)
    if all(isinstance(sign, int) for sign in one) and len({*votes}) == 2:
        assert other == [-sign for sign in one]
    else:
        assert not all(isinstance(sign, int) for sign in other) or len({*votes}) == 1


@given(st.lists(st.sampled_from(["A", "B", "tie"]), min_size=1, max_size=30), st.randoms())
def test_the_last_cell_counts_as_the_first(votes, random):
    other = random.sample(votes, len(votes))
    by_vote = dict(zip(votes, signs(votes), strict=True))
    assert dict(zip(other, signs(other), strict=True)) == by_vote


@given(
    st.one_of(st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False, width=32), st.booleans())
)
def test_a_number_and_its_text_are_one_value(value):
    text = canonical(value)
    if not isinstance(value, bool):
        assert number_of(str(value)) == number_of(value)
        assert canonical(str(value)) == text
    assert truth_of(value) in (0.0, 1.0, None)


def reading_of(rows, columns=None):
    def read(kept):
        return ((f"file:{k + 1}", row) for k, row in enumerate(rows))

    return DataReading("file", [DataPart("file", "row", None, "", read)], said_columns(columns))


def test_both_readings_are_named_with_what_to_say():
    rows = [{"prompt": "q", "response_a": "x", "response_b": "y", "winner": k % 2} for k in range(6)]
    with pytest.raises(DataError) as refused:
        reading_of(rows).need("winner")
    assert refused.value.field == "winner"
    words = str(refused.value)
    for text in ("0 for the first and 1 for the second or 1 for the first and 0 for the second",
                 "--columns winner=winner:0/1 or --columns winner=winner:1/0"):  # fmt: skip
        assert text in words
    for coding, sign in (("0/1", -1), ("1/0", 1)):
        reading = reading_of(rows, f"winner=winner:{coding}")
        reading.need("winner")
        assert next(reading.records()).roles["winner"] == sign


@cases(
    ("name", "cells", "wanted"),
    [("is_good", [1, 1], True), ("is_safe", [1], True), ("desirable", ["yes"], True), ("label", [1, 1], None),
     ("label", ["yes", "yes"], None), ("label", [True], True), ("feedback", ["thumbs_up"], True)],
)  # fmt: skip
def test_one_value_alone_is_a_label_where_the_name_or_the_word_says_which(name, cells, wanted):
    reading = reading_of([{"prompt": f"q{k}", "response": "r", name: cell} for k, cell in enumerate(cells)])
    if wanted is None:
        with pytest.raises(DataError, match=r"say which: --columns label=\S+ or --columns label=\S+") as refused:
            reading.need("label")
        assert refused.value.field == "label"
    else:
        assert all(record.roles["label"] == wanted for record in reading.records())


def test_labels_of_steps_that_are_all_one_are_refused_unless_they_are_said():
    rows = [{"problem": f"q{k}", "steps": ["a", "b"], "labels": [1, 1]} for k in range(3)]
    with pytest.raises(DataError, match="step_labels=labels:1/0 or --columns step_labels=labels:2/1") as refused:
        reading_of(rows).need("step_labels")
    assert refused.value.field == "step_labels"
    said = reading_of(rows, "step_labels=labels:2/1")
    assert [record.roles["step_labels"] for record in said.records()] == [[0, 0]] * 3


def test_two_columns_for_one_role_are_refused_and_one_that_holds_the_other_is_not():
    rows = [{"question": f"q{k}?", "prompt": f"Answer this: q{k}?", "response": "r"} for k in range(4)]
    assert reading_of(rows).plan.uses["prompt"].column == "prompt"
    reading = reading_of([{**row, "prompt": "another text"} for row in rows])
    with pytest.raises(DataError, match="--columns prompt=prompt or --columns prompt=question") as refused:
        reading.need("prompt")
    assert refused.value.field == "prompt"
    assert reading_of(rows, "prompt=question").plan.uses["prompt"].column == "question"


def test_the_gold_answer_is_the_reference_and_no_response():
    rows = [{"question": f"q{k // 2}", "answer": f"a{k // 2}", "completion": f"c{k}"} for k in range(6)]
    uses = reading_of(rows).plan.uses
    assert (uses["response"].column, uses["reference"].column) == ("completion", "answer")
    gold = [{"question": row["question"], "answer": row["answer"]} for row in rows]
    assert "response" not in reading_of(gold).plan.uses
    own = [{"question": row["question"], "answer": row["completion"]} for row in rows]
    assert reading_of(own).plan.uses["response"].column == "answer"


def test_a_function_of_the_user_gives_the_roles(monkeypatch, tmp_path):
    (tmp_path / "my_rows.py").write_text(
        "def roles(row):\n    return None if row['skip'] else {'prompt': row['ask'], 'response': row['say'].upper()}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = [{"ask": "q", "say": "a", "skip": False}, {"ask": "r", "say": "b", "skip": True}]
    found = [record.roles for record in reading_of(rows, "my_rows:roles").records()]
    assert found == [{"prompt": "q", "response": "A"}]
    with pytest.raises(ConfigError, match="did you mean roles"):
        said_columns("my_rows:rolls")


@cases(
    ("given", "words"),
    [("winner", "write what a column is for"), ("promt=x", "did you mean prompt"), ("prompt=a,prompt=b", "said twice"),
     ("=x", "write what a column is for"), ("winner=vote:1", "the coding '1' is none")],
)  # fmt: skip
def test_what_cannot_be_said(given, words):
    with refuses("columns") as refused:
        said_columns(given)
    assert words in str(refused.value)


def test_a_column_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(
        DataError, match=r"--columns prompt=promt: there is no such column; did you mean prompt"
    ) as refused:
        reading_of([{"prompt": "q", "response": "r"}], "prompt=promt")
    assert refused.value.field == "promt"


def test_a_column_that_no_command_reads_or_that_a_layout_lacks_is_refused():
    with refuses("w", "--columns weight=w: no command reads a weight; remove it"):
        reading_of([{"prompt": "q", "response": "r", "w": 1}], "weight=w")
    with refuses("respons", "columns: completion=respons: no such column; did you mean response"):
        reading_of([{"prompt": "q", "response": "r"}], "completion=respons")


def test_a_winner_named_by_a_row_is_none_where_both_responses_are_of_one_model():
    read = named_by_row("a", "b").read
    row = {"a": "Ann", "b": "Bob"}
    assert [read(cell, row) for cell in ("ann", "Bob", "tie", "Cid")] == [-1.0, 1.0, 0.0, None]
    assert read("Ann", {"a": "Ann", "b": "ann"}) is None
