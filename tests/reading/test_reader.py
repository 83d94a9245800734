"""Whole files: splits, rows that stand twice, turns, passages, pictures, counts, and the words for what was read."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_files import written
from layout_rows import assistant, talk, user

from guerdon import cli
from guerdon.episodes.preferences import read_preferences
from guerdon.errors import DataError
from guerdon.reading.data_sets import held_part
from guerdon.reading.reader import DataReading, read
from guerdon.reading.shown import record_lines, shown_record
from guerdon.tasks.prompt_files import read_prompts
from tables import refuses


def pair(prompt, **more):
    return {"prompt": prompt, "chosen": f"good {prompt}", "rejected": f"bad {prompt}", **more}


def prompts(path, **how):
    return [one.responses[0].question for one in read_preferences(path, **how).comparisons]


def test_training_obeys_a_column_split(tmp_path):
    rows = [pair("a", split="train"), pair("b", split="validation"), pair("c", split="extra"), pair("d", split="Test")]
    path = written(tmp_path, "rows.jsonl", rows)
    assert prompts(path) == ["a", "b", "c", "d"]
    assert prompts(path, train=True) == ["a"]
    rest = written(tmp_path / "rest", "rows.jsonl", rows[1:])
    assert prompts(rest, train=True) == ["c"]  # no row of a known other split


def test_rows_in_several_files_count_once_in_training_and_rows_said_twice_do_not(tmp_path):
    written(tmp_path, "a.jsonl", [pair("a"), pair("a"), pair("b")])
    written(tmp_path, "b.parquet", [pair("b"), pair("c")])
    assert prompts(str(tmp_path), train=True) == ["a", "a", "b", "c"]
    assert prompts(str(tmp_path)) == ["a", "a", "b", "b", "c"]


def context(row, **how):
    """The conversation of the one comparison in a row, as role and text."""
    reading = DataReading("file", [held_part([("file:1", row)], "file", "row")])
    record = next(reading.records())
    from guerdon.episodes.preferences import comparison

    found = comparison(record, reading.plan)
    return found if isinstance(found, str) else [(m["role"], m["content"]) for m in found.responses[0].context]


EARLIER = [("user", "Name a colour?"), ("assistant", "Blue."), ("user", "And now?")]


@pytest.mark.parametrize(
    "more",
    [
        {"history": [["Name a colour?", "Blue."]]}, {"history": talk("Name a colour?", "Blue.")},
        {"history": ["Name a colour?", "Blue."]}, {"history": json.dumps([["Name a colour?", "Blue."]])},
        {"messages": talk("Name a colour?", "Blue.")},
        {"history": "\n\nHuman: Name a colour?\n\nAssistant: Blue."},
    ],
)  # fmt: skip
def test_earlier_turns_are_part_of_what_was_asked(more):
    assert context({"instruction": "And now?", "chosen": "Red.", "rejected": "Seven.", **more}) == EARLIER


def test_passages_and_system_prompts_are_part_of_what_was_asked():
    row = {"instruction": "Who wrote it?", "context": "Ann wrote it.", "chosen": "Ann.", "rejected": "Bob."}
    reading = DataReading("file", [held_part([("file:1", row)], "file", "row")])
    assert reading.plan.uses["passage"].column == "context"
    assert context({**row, "system": "Be brief."}) == [
        ("system", "Be brief."),
        ("user", "Ann wrote it.\n\nWho wrote it?"),
    ]


@pytest.mark.parametrize(("turn", "turns"), [(1, 1), (2, 3), (3, 3)])
def test_a_turn_cuts_both_conversations(turn, turns):
    talks = {"conversation_a": talk("q", "good", "again?", "one"), "conversation_b": talk("q", "bad", "again?", "two")}
    found = context({**talks, "winner": "model_a", "turn": turn})
    assert len(found) == (0 if turns == 1 else turns)


@pytest.mark.parametrize(
    ("column", "reason"), [("images", "has_images"), ("video", "has_videos"), ("audio", "has_audio")]
)
def test_what_is_seen_or_heard_is_left_out_of_what_reads_text(column, reason):
    assert context({**pair("q"), column: ["a.png"]}) == reason
    assert context({**pair("q"), column: []}) == []


def test_messages_of_a_question_and_of_its_answers():
    row = {"prompt": [user("q")], "chosen": [assistant("a")], "rejected": [assistant("b")]}
    assert context(row) == []


CELLS = st.one_of(
    st.none(), st.text(max_size=20), st.integers(-5, 5), st.booleans(), st.lists(st.text(max_size=5), max_size=2)
)
ROWS = st.lists(
    st.fixed_dictionaries({"prompt": CELLS, "chosen": CELLS, "rejected": CELLS, "id": st.none()}),
    min_size=1,
    max_size=20,
)


@given(ROWS)
def test_read_used_and_left_out_add_up_and_no_text_is_changed(rows):
    from guerdon.episodes.preferences import comparison
    from guerdon.errors import DataError

    lines = [(f"file:{k + 1}", row) for k, row in enumerate(rows)]
    reading = DataReading("file", [held_part(lines, "file", "row")])
    used = left_out = refused = 0
    for record in reading.records():
        try:
            found = comparison(record, reading.plan)
        except DataError:
            refused += 1
            continue
        left_out += isinstance(found, str)
        used += not isinstance(found, str)
        if (
            not isinstance(found, str)
            and isinstance(record.row["chosen"], str)
            and isinstance(record.row["prompt"], str)
        ):
            text = found.responses[0].text
            assert record.row["chosen"].endswith(text)
            assert text == record.row["chosen"] or record.row["chosen"] == record.row["prompt"] + text
    assert used + left_out + refused + sum(reading.bad.values()) == len(rows) == reading.rows


def run(capsys, *words):
    """What `guerdon WORDS` prints, and its status."""
    import sys

    sys.argv = ["guerdon", *words]
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_the_command_shows_what_a_file_is_taken_for(tmp_path, capsys):
    rows = [
        {"question": f"q{k}", "response_1": "a", "response_2": "b", "vote": 1 + k % 2, "note": "x"} for k in range(6)
    ]
    path = written(tmp_path, "votes.csv", rows)
    status, out, _ = run(capsys, "read", path)
    assert status == 0
    for line in ("question is the prompt (for example 'q0')", "vote is the winner (1/2, for example '1')",
                 "not used: note", "6 rows read", "guerdon train: preferences"):  # fmt: skip
        assert line in out
    status, out, _ = run(capsys, "read", path, "--json", "--columns", "winner=vote:2/1")
    found = json.loads(out)
    winner = next(one for one in found["columns"] if one["role"] == "winner")
    assert (winner["column"], winner["coding"], winner["from"]) == ("vote", "2/1", "given")
    assert found["commands"]["evaluate"] == "preferences"
    status, _, err = run(capsys, "read", path, "--columns", "winner=votes")
    assert status == 2
    assert "did you mean vote" in err


def test_a_further_column_of_a_reference_is_shown_as_used(tmp_path, capsys):
    rows = [
        {"question": "1+1?", "ground_truth": "2", "answer": "1+1=2\n#### 2"},
        {"question": "2+2?", "ground_truth": None, "answer": "4"},
    ]
    path = written(tmp_path, "rows.jsonl", [{**row, "response": "r"} for row in rows])
    reading = read(path)
    assert [record.roles["reference"] for record in reading.records()] == ["2", "4"]
    further = next(one for one in reading.read_as() if one["column"] == "answer")
    assert (further["role"], further["where_empty"]) == ("reference", "ground_truth")
    _, out, _ = run(capsys, "read", path)
    assert "answer is the reference (for example '1+1=2 #### 2'), where ground_truth is empty" in out
    assert "not used" not in out


ASKED = [("1+1?", "2"), ("2+2?", "4"), ("3+3?", "6")]
TWICE = [  # role, and a row with two columns for it from question and answer
    ("reference", lambda q, a: {"prompt": q, "response": "r", "ground_truth": a, "answer": f"1{a}"}),
    ("system", lambda q, a: {"prompt": q, "response": "r", "system": "Be brief.", "system_prompt": "Be long."}),
    ("passage", lambda q, a: {"prompt": q, "response": "r", "passage": q, "document": a}),
    ("response", lambda q, a: {"prompt": q, "response": a, "completion": f"{a}."}),
    ("chosen", lambda q, a: {"prompt": q, "chosen": a, "preferred": f"{a}.", "rejected": "no"}),
    ("winner", lambda q, a: {"prompt": q, "response_a": a, "response_b": "no", "winner": "a", "vote": "b"}),
    ("label", lambda q, a: {"prompt": q, "response": a, "is_good": True, "desirable": False}),
    ("rubric", lambda q, a: {"prompt": q, "response": a, "rubric": "x", "rubrics": "y"}),
]  # fmt: skip


@pytest.mark.parametrize(("role", "row"), TWICE, ids=[role for role, _ in TWICE])
def test_two_columns_of_a_role_that_differ_are_refused_with_both_and_equal_ones_are_one(tmp_path, role, row):
    rows = [row(q, a) for q, a in ASKED]
    reading = read(written(tmp_path, "rows.jsonl", rows))
    said = reading.plan.unclear[role]
    first = reading.plan.uses[role].column
    second = next(name for name in rows[0] if f"--columns {role}={name}" in said and name != first)
    assert f"could be {first} ({str(rows[0][first])!r}) or {second} ({str(rows[0][second])!r})" in said
    assert f"--columns {role}={first} or --columns {role}={second}" in said
    equal = read(written(tmp_path / "equal", "rows.jsonl", [{**one, second: one[first]} for one in rows]))
    assert role not in equal.plan.unclear
    assert equal.plan.instead[role] == (second,)
    apart = [{**one, (first, second)[k % 2]: None} for k, one in enumerate(rows)]
    found = read(written(tmp_path / "apart", "rows.jsonl", apart))
    assert role not in found.plan.unclear
    assert all(record.roles[role] is not None for record in found.records())
    chosen = read(written(tmp_path, "rows.jsonl", rows), columns=f"{role}={second}")
    assert role not in chosen.plan.unclear
    assert chosen.plan.uses[role].column == second


def test_two_pairs_of_responses_are_refused_with_both(tmp_path):
    rows = [
        {"prompt": q, "response_a": a, "response_b": "x", "output_1": "y", "output_2": a, "vote": "a"} for q, a in ASKED
    ]
    path = written(tmp_path, "rows.jsonl", rows)
    with pytest.raises(
        DataError, match="--columns first=response_a,second=response_b or --columns first=output_1,sec"
    ) as refused:
        read_preferences(path)
    assert refused.value.field == "first"
    found = read_preferences(path, columns="first=output_1,second=output_2").comparisons
    assert [one.responses[0].text for one in found] == ["y"] * 3


def test_a_reference_that_ends_a_worked_solution_is_the_same_answer(tmp_path):
    rows = [{"question": q, "final_answer": a, "answer": f"So it is.\n#### {a}"} for q, a in ASKED]
    found = read_prompts(written(tmp_path, "rows.jsonl", rows))
    assert [(p.ground_truth, p.solution) for p in found] == [(a, f"So it is.\n#### {a}") for _, a in ASKED]
    other = [{**row, "final_answer": "-" + row["final_answer"]} for row in rows]
    with refuses("reference"):
        read_prompts(written(tmp_path / "other", "rows.jsonl", other))


def test_a_picture_in_any_column_of_pictures_leaves_a_row_out(tmp_path):
    rows = [pair("a", images=["x.png"], image=None), pair("b", images=None, image="y.png"), pair("c")]
    assert prompts(written(tmp_path, "rows.jsonl", rows)) == ["c"]


def test_the_input_to_an_instruction_that_was_said_is_part_of_what_was_asked(tmp_path):
    rows = [{"instruction": "Add.", "input": q, "chosen": a, "rejected": "no"} for q, a in ASKED]
    path = written(tmp_path, "rows.jsonl", rows)
    assert prompts(path) == prompts(path, columns="prompt=instruction") == [f"Add.\n{q}" for q, _ in ASKED]


def test_the_command_says_what_has_to_be_said_first(tmp_path, capsys):
    rows = [{"prompt": f"q{k}", "response_a": "a", "response_b": "b", "winner": k % 2} for k in range(6)]
    _, out, _ = run(capsys, "read", written(tmp_path, "rows.jsonl", rows))
    assert re.search(r"^not for .*\btrain\b.*: --json says why$", out, re.MULTILINE)
    assert "guerdon run: its prompts" in out
    assert "--columns winner=winner:0/1 or --columns winner=winner:1/0" in out


def test_what_a_model_was_trained_on_is_used_where_its_columns_are_there(tmp_path):
    rows = [{"prompt": f"q{k}", "response_a": "a", "response_b": "b", "winner": k % 2} for k in range(6)]
    path = written(tmp_path, "rows.jsonl", rows)
    reading = read(path, stored={"winner": "winner:1/0", "subset": "part"})
    assert (reading.plan.uses["winner"].coding.name, reading.plan.uses["winner"].source) == ("1/0", "model")
    assert "subset" not in reading.plan.uses
    assert "as in the data that the model was trained on" in "\n".join(
        record_lines(shown_record(reading, used=6, left_out={}))
    )
    said = read(path, columns="winner=winner:0/1", stored={"winner": "winner:1/0"})
    assert said.plan.uses["winner"].coding.name == "0/1"


@pytest.mark.parametrize(
    ("row", "role"),
    [
        ({"output": ["a", "b"], "scores": [1.0, 0.0]}, "responses"),
        ({"response": ["a"], "label": True}, "response"),  # one response in a list
        ({"completion": ["step 1", "step 2"], "labels": [True, False]}, "response"),  # steps of one
    ],
)
def test_a_list_of_texts_is_several_responses_where_nothing_says_otherwise(tmp_path, row, role):
    path = written(tmp_path, "rows.jsonl", [{"prompt": f"q{k}", **row} for k in range(4)])
    uses = read(path).plan.uses
    assert uses[role].column == next(iter(row))


def test_a_list_of_texts_beside_a_response_is_not_read_in_its_place(tmp_path):
    rows = [{"prompt": f"q{k}", "prediction": ["42", "43"], "response": f"it is {k}", "label": k % 2} for k in range(4)]
    plan = read(written(tmp_path, "rows.jsonl", rows)).plan
    assert "responses" not in plan.uses
    assert "prediction" in plan.unclear["response"]
