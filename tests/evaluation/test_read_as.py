"""`guerdon score` and `guerdon evaluate` on strangers' files: what the model was given, and what was written.

Expected values are written by hand. The commands run as they are called, with a model that writes down what it gets.
"""

import bz2
import csv
import gzip
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_models import Scripted

from guerdon import cli
from guerdon.evaluation import by_path
from guerdon.evaluation.benchmarks.reward_bench import read_choices
from guerdon.evaluation.scoring.score_file import score_file
from guerdon.reading import containers
from guerdon.reading.containers import file_rows
from guerdon.types import RewardInfo, Score
from length_model import Length
from tables import sample

INFO = RewardInfo("writes", (-np.inf, np.inf), granularity="total", modality="text", frames_needed=0)
GIVEN = Path("given.jsonl")
REPS = "evaluate.reps=100"


def writes():
    """The length of a response; what was asked, said and true stands in a file."""

    def score(episode):
        before = [message["content"] for message in episode.context]
        row = [before or [episode.task], "".join(episode.texts), episode.meta.get("ground_truth")]
        with GIVEN.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return Score(total=float(len(row[1])))

    return Scripted(score, INFO)


def perfect():
    """Good responses begin with `good`."""
    return Scripted(lambda episode: Score(total=float("".join(episode.texts).startswith("good"))), INFO)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["guerdon", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return run


def as_jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv(rows):
    """The rows as CSV, lists and maps as JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    for row in rows:
        writer.writerow({key: json.dumps(one) if isinstance(one, list | dict) else one for key, one in row.items()})
    return text.getvalue().encode()


def as_parquet(rows):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def as_arrow(rows):
    table, sink = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return sink.getvalue()


def as_zip(rows):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("part/a.jsonl", as_jsonl(rows[:1]))
        archive.writestr("notes.txt", "not rows")
        archive.writestr("part/b.jsonl", as_jsonl(rows[1:]))
    return sink.getvalue()


CONTAINERS = {
    ".jsonl": as_jsonl, ".json": lambda rows: json.dumps(rows).encode(), ".csv": as_csv, ".parquet": as_parquet,
    ".arrow": as_arrow, ".jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    ".jsonl.bz2": lambda rows: bz2.compress(as_jsonl(rows)), ".zip": as_zip,
    ".jsonl.zst": lambda rows: bytes(pa.Codec("zstd").compress(as_jsonl(rows), asbytes=True)),
}  # fmt: skip
TEXT = (".jsonl", ".csv", ".jsonl.gz")  # cells of every kind
NESTED = (".jsonl", ".json", ".jsonl.gz")


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def asked(prompt, text, truth=None):
    return [prompt if isinstance(prompt, list) else [prompt], text, truth]


SCORED = {  # name: rows, what the model is given of each, columns of each row, containers
    "one": (
        [{"prompt": "p", "response": "ab"}, {"prompt": "q", "response": "c"}, {"prompt": "q", "response": None}],
        [[asked("p", "ab")], [asked("q", "c")], []],
        [{"reward": 2.0}, {"reward": 1.0}, {"reward": None}],
        CONTAINERS,
    ),
    "the true answer is not the response": (
        [{"question": "p", "answer": "7", "prediction": "it is 8"},
         {"question": "q", "answer": "9", "prediction": "9"}],
        [[asked("p", "it is 8", "7")], [asked("q", "9", "9")]],
        [{"reward": 7.0}, {"reward": 1.0}],
        TEXT,
    ),
    "a passage is part of the question": (
        [{"instruction": "who?", "context": "Ann ran.", "response": "Ann"},
         {"instruction": "why?", "context": "Bo sat.", "response": "No."}],
        [[asked("Ann ran.\n\nwho?", "Ann")], [asked("Bo sat.\n\nwhy?", "No.")]],
        [{"reward": 3.0}, {"reward": 3.0}],
        TEXT,
    ),
    "a better and a worse one": (
        [{"prompt": "p", "chosen": "abc", "rejected": "d"}, {"prompt": "q", "chosen": "e", "rejected": "fg"},
         {"prompt": "q", "chosen": "e", "rejected": None}],
        [[asked("p", "abc"), asked("p", "d")], [asked("q", "e"), asked("q", "fg")], []],
        [{"reward_chosen": 3.0, "reward_rejected": 1.0}, {"reward_chosen": 1.0, "reward_rejected": 2.0},
         {"reward_chosen": None, "reward_rejected": None}],
        TEXT,
    ),
    "two and a vote, which does not matter": (
        [{"question": "p", "response_a": "abc", "response_b": "d", "winner": "model_a"},
         {"question": "q", "response_a": "e", "response_b": "fg", "winner": "tie"},
         {"question": "r", "response_a": "h", "response_b": "ij", "winner": None}],
        [[asked("p", "abc"), asked("p", "d")], [asked("q", "e"), asked("q", "fg")],
         [asked("r", "h"), asked("r", "ij")]],
        [{"rewards": [3.0, 1.0]}, {"rewards": [1.0, 2.0]}, {"rewards": [1.0, 2.0]}],
        NESTED,
    ),
    "conversations up to the turn that was judged": (
        [{"conversation_a": [user("p"), said("a"), user("more"), said("b")], "turn": 1, "winner": "model_a",
          "conversation_b": [user("p"), said("ccc"), user("more"), said("d")]},
         {"conversation_a": [user("p"), said("a"), user("more"), said("b")], "turn": 2, "winner": "model_b",
          "conversation_b": [user("p"), said("a"), user("more"), said("dd")]}],
        [[asked("p", "a"), asked("p", "ccc")], [asked(["p", "a", "more"], "b"), asked(["p", "a", "more"], "dd")]],
        [{"rewards": [1.0, 3.0]}, {"rewards": [1.0, 2.0]}],
        NESTED,
    ),
    "several with scores": (
        [{"prompt": "p", "responses": ["a", "bb"], "scores": [1, 2]},
         {"prompt": "q", "responses": ["c"], "scores": [1]}],
        [[asked("p", "a"), asked("p", "bb")], [asked("q", "c")]],
        [{"rewards": [1.0, 2.0]}, {"rewards": [1.0]}],
        NESTED,
    ),
    "best of K of PPE": (
        [{"prompt": "p", "response_1": "a", "response_2": "bb", "scores": [True, False], "question_id": "1"}],
        [[asked("p", "a"), asked("p", "bb")]],
        [{"rewards": [1.0, 2.0]}],
        NESTED,
    ),
    "a chat in each cell": (
        [{"messages": [user("p"), said("a"), user("q"), said("bb")], "label": True},
         {"messages": [user("p"), said("ccc")], "label": False}],
        [[asked(["p", "a", "q"], "bb")], [asked("p", "ccc")]],
        [{"reward": 2.0}, {"reward": 3.0}],
        TEXT,
    ),
    "answers in JSON are texts": (
        [{"prompt": "p", "response": '{"a": 1}'}, {"prompt": "q", "response": "[2]"}],
        [[asked("p", '{"a": 1}')], [asked("q", "[2]")]],
        [{"reward": 8.0}, {"reward": 3.0}],
        TEXT,
    ),
    "steps with the answer that they come to": (
        [{"question": "p", "steps": ["ab", "c"], "answer": "c"}, {"question": "p", "steps": ["d"], "answer": "d"}],
        [[asked("p", "ab\nc")], [asked("p", "d")]],
        [{"reward": 4.0}, {"reward": 1.0}],
        NESTED,
    ),
    "a log with a reward": (
        [{"prompt": "p", "completion": "abc", "reward": 0.5, "ground_truth": "x"},
         {"prompt": "q", "completion": "d", "reward": None, "ground_truth": "y"}],
        [[asked("p", "abc", "x")], [asked("q", "d", "y")]],
        [{"guerdon_reward": 3.0}, {"guerdon_reward": 1.0}],
        NESTED,
    ),
    "a log with a list of completions": (
        [{"prompt": "p", "completions": ["a", "bb"], "rewards": [1.0, 0.0]},
         {"prompt": "q", "completions": ["c"], "rewards": [0.5]}],
        [[asked("p", "a"), asked("p", "bb")], [asked("q", "c")]],
        [{"guerdon_reward": [1.0, 2.0]}, {"guerdon_reward": [1.0]}],
        NESTED,
    ),
    "messages of the trees of OASST": (
        [{"message_id": "1", "parent_id": None, "role": "prompter", "text": "p", "rank": None},
         {"message_id": "2", "parent_id": "1", "role": "assistant", "text": "ab", "rank": 1},
         {"message_id": "3", "parent_id": "1", "role": "assistant", "text": "c", "rank": 0},
         {"message_id": "4", "parent_id": "2", "role": "prompter", "text": "q", "rank": None},
         {"message_id": "5", "parent_id": "4", "role": "assistant", "text": "def", "rank": None}],
        [[], [asked("p", "ab")], [asked("p", "c")], [], [asked(["p", "ab", "q"], "def")]],
        [{"reward": None}, {"reward": 2.0}, {"reward": 1.0}, {"reward": None}, {"reward": 3.0}],
        NESTED,
    ),
    "groups of Atropos": (
        [{"tokens": [], "masks": [], "scores": [1.0, 0.0],
          "messages": [[user("p"), said("a")], [user("p"), said("bb")]]}],
        [[asked("p", "a"), asked("p", "bb")]],
        [{"guerdon_reward": [1.0, 2.0]}],
        NESTED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sample(SCORED, *list(SCORED)[::2]))
def test_the_model_is_given_what_a_row_means_and_the_file_gets_its_rewards(call, name):
    rows, given, rewards, containers = SCORED[name]
    order = list(range(len(rows)))
    for number, ending in enumerate(containers):
        GIVEN.unlink(missing_ok=True)
        chosen = order[::-1] if number % 2 else order  # also the other way round
        source, out = Path(f"in{number}{ending}"), Path(f"out{number}{ending}")
        source.write_bytes(CONTAINERS[ending]([rows[k] for k in chosen]))
        status, _, err = call("score", source, "--model", "test_read_as:writes", "-o", out)
        assert status == 0, err
        seen = [json.loads(line) for line in GIVEN.read_text().splitlines()]
        assert seen == [one for k in chosen for one in given[k]], ending
        found = [row for _, row in file_rows(out)]
        before = [row for _, row in file_rows(source)]
        for k, old, new in zip(chosen, before, found, strict=True):
            values = {key: _value(new.get(key)) for key in rewards[k]}
            assert values == rewards[k], ending
            assert {key: new[key] for key in old if key not in rewards[k]} == {
                key: one for key, one in old.items() if key not in rewards[k]
            }
        assert f"{len(rows)} rows read" in err


def _value(cell):
    """A cell of CSV as the number that it is."""
    return float(cell) if isinstance(cell, str) else cell


def test_other_members_of_an_archive_stay_as_they_are(call):
    rows = SCORED["one"][0]
    Path("in.zip").write_bytes(as_zip(rows))
    status, _, err = call("score", "in.zip", "--model", "test_read_as:writes", "-o", "out.zip")
    assert status == 0, err
    with zipfile.ZipFile("out.zip") as archive:
        assert archive.namelist() == ["part/a.jsonl", "notes.txt", "part/b.jsonl"]
        assert archive.read("notes.txt") == b"not rows"
        assert archive.read("part/a.jsonl") == as_jsonl([{**rows[0], "reward": 2.0, "reward_failure": None}])


def test_rows_around_in_an_object_of_json_stay_as_they_are(call):
    rows = [{"prompt": "p", "response": "ab"}, {"prompt": "q", "response": "c"}]
    Path("in.json").write_text(json.dumps({"version": 3, "results": {"rows": rows, "n": 2}}))
    assert call("score", "in.json", "--model", "test_read_as:writes", "-o", "out.json")[0] == 0
    scored = [{**row, "reward": n, "reward_failure": None} for row, n in zip(rows, (2.0, 1.0), strict=True)]
    assert json.loads(Path("out.json").read_text()) == {"version": 3, "results": {"rows": scored, "n": 2}}


def test_rows_with_pictures_are_left_out_with_the_reason(call):
    rows = [{"prompt": "p", "response": "ab", "images": ["a.png"]}, {"prompt": "q", "response": "c", "images": []}]
    Path("in.jsonl").write_bytes(as_jsonl(rows))
    status, _, err = call("score", "in.jsonl", "--model", "test_read_as:writes", "-o", "out.jsonl")
    assert status == 0, err
    first, second = [row for _, row in file_rows(Path("out.jsonl"))]
    assert (first["reward"], second["reward"]) == (None, 1.0)
    assert first["reward_failure"] == "has_images: the row has images, and a model of text reads text alone"
    assert "2 rows read, 1 used, 1 left out (1 has_images)" in err


def test_columns_are_said_and_stored_ones_are_used(call):
    rows = [{"frage": "p", "antwort": "ab", "x": 1}, {"frage": "q", "antwort": "c", "x": 2}]
    Path("in.jsonl").write_bytes(as_jsonl(rows))
    status, _, err = call("score", "in.jsonl", "--model", "test_read_as:writes", "-o", "out.jsonl")
    assert (status, err.count("\n")) == (2, 1)
    assert "nothing to score, found frage, antwort, x" in err
    words = ("score", "in.jsonl", "--model", "test_read_as:writes", "-o", "out.jsonl")
    status, _, err = call(*words, "--columns", "prompt=frage,response=antwort")
    assert status == 0, err
    assert "in.jsonl: antwort is the response (for example 'ab'), as you said" in err
    assert "in.jsonl: not used: x" in err
    assert [json.loads(line) for line in GIVEN.read_text().splitlines()] == [asked("p", "ab"), asked("q", "c")]
    status, _, err = call(*words[:-1], "more.jsonl", "--columns", "prompt=frage,response=antwrt")
    assert status == 2
    assert "antwort" in err


class Trained(Length):
    """A model that guerdon trained on data with these columns."""

    class card:
        training = {"columns": {"prompt": "frage", "response": "antwort", "winner": "wahl:L/R"}}


def test_columns_of_the_training_are_used_where_they_are_there(tmp_path, capsys):
    rows = [{"frage": "p", "antwort": "ab"}, {"frage": "q", "antwort": "c"}]
    (tmp_path / "in.jsonl").write_bytes(as_jsonl(rows))
    score_file(tmp_path / "in.jsonl", Trained(), tmp_path / "out.jsonl", name="m")
    assert [row["reward"] for _, row in file_rows(tmp_path / "out.jsonl")] == [2.0, 1.0]
    line = "antwort is the response (for example 'ab'), as in the data that the model was trained on"
    assert line in capsys.readouterr().err
    (tmp_path / "other.jsonl").write_bytes(as_jsonl([{"prompt": "p", "response": "abc"}]))
    score_file(tmp_path / "other.jsonl", Trained(), tmp_path / "scored.jsonl", name="m")
    assert [row["reward"] for _, row in file_rows(tmp_path / "scored.jsonl")] == [3.0]
    sides = [{"frage": f"p{k}", "response_1": a, "response_2": b, "wahl": "LR"[s]} for k, (s, a, b) in enumerate(SIDES)]
    (tmp_path / "votes.jsonl").write_bytes(as_jsonl(sides))
    found = read_choices(str(tmp_path / "votes.jsonl"), stored=Trained.card.training["columns"])
    assert all(choice.chosen[0].text.startswith("good") for choice in found.choices)
    assert {one["column"]: one["from"] for one in found.read_as["columns"]}["wahl"] == "model"


def test_a_file_with_true_answers_alone_is_refused_with_the_columns_to_name(call):
    rows = [{"question": "p", "answer": "7"}, {"question": "q", "answer": "9"}]
    Path("in.jsonl").write_bytes(as_jsonl(rows))
    words = ("score", "in.jsonl", "--model", "test_read_as:writes", "-o", "out.jsonl")
    status, _, err = call(*words)
    assert (status, err.count("\n")) == (2, 1)
    assert "--columns response=answer" in err
    assert call(*words, "--columns", "response=answer")[0] == 0
    assert [json.loads(line) for line in GIVEN.read_text().splitlines()] == [asked("p", "7"), asked("q", "9")]


def test_two_columns_for_one_role_are_refused_with_both(call):
    Path("in.jsonl").write_bytes(as_jsonl([{"prompt": "p", "response": "ab", "completion": "c"}]))
    words = ("score", "in.jsonl", "--model", "test_read_as:writes", "-o", "out.jsonl")
    status, _, err = call(*words)
    assert status == 2
    assert "--columns response=response or --columns response=completion" in err
    assert call(*words, "--columns", "response=completion")[0] == 0
    assert [json.loads(line) for line in GIVEN.read_text().splitlines()] == [asked("p", "c")]


# Votes: a perfect judge has an accuracy of 1, or the file is refused and is read right as it says.

SIDES = [(0, "good a", "bad b"), (1, "bad c", "good d"), (1, "bad e", "good f"), (0, "good g", "bad h")] * 2
VOTES = {  # name: columns of the responses, column of the vote, its value for the first and the second, and for a tie
    "1 and 2": (("response_1", "response_2"), "winner", 1, 2, None, ""),
    "letters": (("response_a", "response_b"), "winner", "A", "B", "tie", ""),
    "names of columns": (("answer_a", "answer_b"), "preferred", "answer_a", "answer_b", None, ""),
    "signed": (("response1", "response2"), "preference", -3, 2, 0, ""),
    "0 and 1": (("response_a", "response_b"), "winner", 0, 1, None, "winner=winner:0/1"),
    "1 and 0": (("response_a", "response_b"), "winner", 1, 0, None, "winner=winner:1/0"),
    "numbered from 0": (("response_0", "response_1"), "winner", 0, 1, None, ""),
    "1 to 5": (("response_a", "response_b"), "preference", 1, 5, 3, "winner=preference:1..5"),
    "AlpacaFarm": (("output_1", "output_2"), "preference", 1, 2, None, ""),
}  # fmt: skip


@pytest.mark.parametrize("ending", sample([".jsonl", ".csv"], ".csv"))
@pytest.mark.parametrize("name", sample(VOTES, *list(VOTES)[::2]))
def test_a_perfect_judge_agrees_with_votes_in_every_coding(call, name, ending):
    (first, second), column, one, other, tie, needed = VOTES[name]
    more = {"raw_preference": 1, "instruction": ""} if name == "AlpacaFarm" else {}
    asks = "instruction" if name == "AlpacaFarm" else "prompt"
    rows = [
        {**more, asks: f"p{k}", first: a, second: b, column: (one, other)[side]} for k, (side, a, b) in enumerate(SIDES)
    ]
    rows += [{**rows[0], asks: "nothing said", column: None}]
    rows += [] if tie is None else [{**rows[0], asks: "a tie", column: tie}]
    Path(f"votes{ending}").write_bytes(CONTAINERS[ending](rows))
    words = ("evaluate", "--model", "test_read_as:perfect", "--data", f"votes{ending}", "-o", "card", REPS)
    status, _, err = call(*words)
    if needed:
        assert status == 2
        assert f"--columns {needed}" in err
        status, _, err = call(*words, "--columns", needed)
    assert status == 0, err
    record = json.loads(Path("card/evaluation.json").read_text())
    assert record["pairs"]["overall"]["measured"]["estimate"] == 1.0
    assert record["pairs"]["overall"]["measured"]["n"] == len(SIDES)
    assert record["pairs"]["left_out"] == {"no_value": 1, **({} if tie is None else {"tie": 1})}
    read_as = record["read_as"]["pairs"]
    assert (read_as["rows"], read_as["used"]) == (len(rows), len(SIDES))
    assert {one["role"]: one["column"] for one in read_as["columns"]}["winner"] == column
    assert f"{len(rows)} rows read, {len(SIDES)} used" in Path("card/evaluation.txt").read_text()


LABELS = {  # name: column, values for good and bad, labels
    "words of KTO": ("label", "thumbs_up", "thumbs_down"),
    "truth values": ("label", True, False),
    "1 and -1": ("label", 1, -1),
    "BeaverTails": ("is_safe", True, False),
    "CJE": ("oracle_label", 1.0, 0.0),
}


@pytest.mark.parametrize("ending", sample([".jsonl", ".csv", ".jsonl.gz"], ".csv"))
@pytest.mark.parametrize("name", LABELS)
def test_labels_of_people_are_1_and_0(call, name, ending):
    column, good, bad = LABELS[name]
    rows = [
        {"prompt": f"p{k}", "response": ("good", "bad")[k % 2], column: (good, bad)[k % 2] if k < 8 else None}
        for k in range(12)
    ]
    Path(f"rows{ending}").write_bytes(CONTAINERS[ending](rows))
    words = ("evaluate", "--model", "test_read_as:perfect", "--data", f"rows{ending}", "-o", "card", REPS)
    status, _, err = call(*words)
    assert status == 0, err
    found = json.loads(Path("card/evaluation.json").read_text())["labels"]
    assert (found["rows"], found["labelled"]) == (12, 8)
    assert found["metrics"]["auroc"]["estimate"] == 1.0
    assert found["mean"]["labelled"]["estimate"] == 0.5


def test_ratings_and_said_labels_are_numbers_and_1_and_2_are_refused(call):
    rows = [{"prompt": f"p{k}", "response": "x" * (k % 5), "helpfulness": k % 5, "verbosity": 1} for k in range(10)]
    Path("rated.jsonl").write_bytes(as_jsonl(rows))
    words = ("evaluate", "--model", "test_read_as:writes", "-o", "card", REPS, "--data")
    assert call(*words, "rated.jsonl")[0] == 0
    found = json.loads(Path("card/evaluation.json").read_text())["labels"]
    assert found["metrics"]["spearman"]["estimate"] == pytest.approx(1.0)
    rows = [{"prompt": f"p{k}", "completion": ("good", "bad")[k % 2], "label": 1 + k % 2} for k in range(8)]
    Path("coded.jsonl").write_bytes(as_jsonl(rows))
    status, _, err = call(*words, "coded.jsonl")
    assert status == 2
    assert "--columns label=label:2/1 or --columns label=label:1/2" in err
    for coding, auroc in (("1/2", 1.0), ("2/1", 0.0)):
        words = ("evaluate", "--model", "test_read_as:perfect", "-o", "card", REPS)
        assert call(*words, "--data", "coded.jsonl", "--columns", f"label=label:{coding}")[0] == 0
        found = json.loads(Path("card/evaluation.json").read_text())["labels"]
        assert found["metrics"]["auroc"]["estimate"] == auroc


def test_a_study_names_columns_as_the_command_does(call):
    rows = [{"frage": f"p{k}", "links": a, "rechts": b, "wahl": "LR"[side]} for k, (side, a, b) in enumerate(SIDES)]
    Path("votes.csv").write_bytes(as_csv(rows))
    Path("study.yaml").write_text(
        "evaluate:\n  aggregation: min\n  reps: 100\n  save_dir: out\n  models: {rm: 'test_read_as:perfect'}\n"
        "  pairs: votes.csv\n  columns: {prompt: frage, first: links, second: rechts, winner: 'wahl:L/R'}\n"
    )
    status, _, err = call("evaluate", "study.yaml")
    assert status == 0, err
    record = json.loads(Path("out/rm/evaluation.json").read_text())
    assert record["pairs"]["overall"]["measured"]["estimate"] == 1.0
    mirrored = ("evaluate", "study.yaml", "--columns", "prompt=frage,first=links,second=rechts,winner=wahl:R/L")
    assert call(*mirrored)[0] == 0
    record = json.loads(Path("out/rm/evaluation.json").read_text())
    assert record["pairs"]["overall"]["measured"]["estimate"] == 0.0
    status, _, err = call("evaluate", "study.yaml", "evaluate.pairs=null", "evaluate.process_bench=[votes.csv]")
    assert status == 2
    assert "a row of no known format, found frage" in err


def test_columns_of_several_data_are_said_by_the_key_of_each(call):
    rows = [{"frage": f"p{k}", "links": a, "rechts": b, "wahl": "LR"[side]} for k, (side, a, b) in enumerate(SIDES)]
    Path("votes.csv").write_bytes(as_csv(rows))
    labels = [{"frage": f"p{k}", "links": a, "wahl": int(side == 0)} for k, (side, a, _) in enumerate(SIDES)]
    Path("labels.csv").write_bytes(as_csv(labels))
    study = (
        "evaluate:\n  aggregation: min\n  reps: 100\n  save_dir: out\n  models: {rm: 'test_read_as:perfect'}\n"
        "  pairs: votes.csv\n  labels: labels.csv\n  columns: "
    )
    Path("study.yaml").write_text(
        study + "{pairs: {prompt: frage, first: links, second: rechts, winner: 'wahl:L/R'},"
        " labels: 'prompt=frage,response=links,label=wahl'}\n"
    )
    status, _, err = call("evaluate", "study.yaml")
    assert status == 0, err
    read_as = json.loads(Path("out/rm/evaluation.json").read_text())["read_as"]
    roles = {data: {one["role"] for one in read_as[data]["columns"]} for data in ("pairs", "labels")}
    assert roles == {"pairs": {"prompt", "first", "second", "winner"}, "labels": {"prompt", "response", "label"}}
    Path("study.yaml").write_text(study + "{prompt: frage}\n")
    status, _, err = call("evaluate", "study.yaml")
    assert status == 2
    assert "write columns: {pairs: {ROLE: NAME}, labels: {ROLE: NAME}}" in err
    words = ("evaluate", "--model", "test_read_as:perfect", "--data", "votes.csv", "--labels", "labels.csv")
    status, _, err = call(*words, "--columns", "prompt=frage")
    assert status == 2
    assert "--columns is for one file" in err


def test_the_first_rows_say_what_a_file_holds_and_all_of_them_where_they_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(by_path, "FIRST_ROWS", 50)
    pairs = [{"prompt": f"p{k}", "chosen": "a", "rejected": "b"} for k in range(5000)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in pairs))
    seen = []
    rows_of = containers.Part.rows

    def counted(part, **options):
        for one in rows_of(part, **options):
            seen.append(one)
            yield one

    monkeypatch.setattr(containers.Part, "rows", counted)
    assert by_path.kind_of(str(path)) == "pairs"
    assert len(seen) < 500
    late = [{"prompt": f"p{k}", "chosen": None, "rejected": None} for k in range(100)]
    path.write_text("".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in late))
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in pairs))
    assert by_path.kind_of(str(path)) == "pairs"
