"""Whole files: splits, rows that stand twice, turns, passages, pictures, counts, and the words for what was read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_files import written
from layout_rows import assistant, talk, user

from guerdon import cli
from guerdon.episodes.preferences import read_preferences
from guerdon.reading.data_sets import held_part
from guerdon.reading.reader import DataReading, read
from guerdon.reading.shown import record_lines, shown_record


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
        {"question": "1+1?", "ground_truth": "2", "answer": "3"},
        {"question": "2+2?", "ground_truth": None, "answer": "4"},
    ]
    path = written(tmp_path, "rows.jsonl", [{**row, "response": "r"} for row in rows])
    reading = read(path)
    assert [record.roles["reference"] for record in reading.records()] == ["2", "4"]
    further = next(one for one in reading.read_as() if one["column"] == "answer")
    assert (further["role"], further["where_empty"]) == ("reference", "ground_truth")
    _, out, _ = run(capsys, "read", path)
    assert "answer is the reference (for example '3'), where ground_truth is empty" in out
    assert "not used" not in out


def test_the_command_says_what_has_to_be_said_first(tmp_path, capsys):
    rows = [{"prompt": f"q{k}", "response_a": "a", "response_b": "b", "winner": k % 2} for k in range(6)]
    _, out, _ = run(capsys, "read", written(tmp_path, "rows.jsonl", rows))
    assert "guerdon train: preferences, after --columns says what winner means" in out
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
