"""`guerdon score`: every format, what cannot be scored, and resuming."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from child import environment
from forked import forked
from guerdon.errors import ConfigError, DataError
from guerdon.evaluation.scoring.score_file import score_file
from length_model import Length
from raisers import WAYS, Raises

ROWS = [{"prompt": "p", "response": "four"}, {"prompt": "p", "response": "bad"}, {"prompt": "p", "response": "sixsix"}]
ADDED = [(4.0, None), (None, "late: 30 s"), (6.0, None)]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_keep_their_columns_and_format(tmp_path):
    out = tmp_path / "out.jsonl"
    line = score_file(jsonl(tmp_path / "in.jsonl", ROWS), Length("bad"), out, name="m")
    wanted = [{**row, "reward": v, "reward_failure": why} for row, (v, why) in zip(ROWS, ADDED, strict=True)]
    assert lines(out) == wanted
    assert "3 of 3 rows scored, 1 with a missing reward (1 late)" in line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    (tmp_path / "in.json").write_text(json.dumps(ROWS))
    score_file(tmp_path / "in.json", Length("bad"), tmp_path / "out.json", name="m")
    assert json.loads((tmp_path / "out.json").read_text()) == wanted
    table = pa.table(
        {"prompt": ["p"] * 3, "response": [r["response"] for r in ROWS], "n": pa.array([1, 2, 3], pa.int8())}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    score_file(tmp_path / "in.parquet", Length("bad"), tmp_path / "out.parquet", name="m")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.schema.field("n").type == pa.int8()
    assert found["reward"].to_pylist() == [4.0, None, 6.0]
    assert found["reward_failure"].to_pylist() == [None, "late: 30 s", None]
    (tmp_path / "in.csv").write_text("prompt,response\np,four\np,bad\n")
    score_file(tmp_path / "in.csv", Length("bad"), tmp_path / "out.csv", name="m")
    assert (tmp_path / "out.csv").read_text() == (
        "prompt,response,reward,reward_failure\np,four,4.0,\np,bad,,late: 30 s\n"
    )


@pytest.mark.parametrize(
    ("row", "added"),
    [
        ({"prompt": "p", "chosen": "four", "rejected": "sixsix"}, {"reward_chosen": 4.0, "reward_rejected": 6.0}),
        ({"prompt": "p", "chosen": "four", "rejected": "bad"}, {"reward_chosen": 4.0, "reward_rejected": None}),
        ({"prompt": "p", "chosen": ["a"], "rejected": ["bb", "ccc"]},
         {"reward_chosen": 1.0, "reward_rejected": [2.0, 3.0]}),
        ({"prompt": "p", "responses": ["a", "bb"]}, {"rewards": [1.0, 2.0]}),
        ({"prompt": "p", "responses": ["a", "bb"], "scores": [2, 1]}, {"rewards": [1.0, 2.0]}),
        ({"question": "p", "response_A": "a", "response_B": "bb", "label": "B>A"}, {"rewards": [1.0, 2.0]}),
        ({"prompt": "p", "completion": "four", "label": True}, {"reward": 4.0}),
        ({"messages": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "four"}]}, {"reward": 4.0}),
        ({"question": "q", "steps": ["ab", "cd"]}, {"reward": 5.0}),
    ],
)  # fmt: skip
def test_what_is_scored_of_a_row(tmp_path, row, added):
    out = tmp_path / "out.jsonl"
    score_file(jsonl(tmp_path / "in.jsonl", [row]), Length("bad"), out, name="m")
    failure = "late: 30 s" if None in added.values() else None
    assert lines(out) == [{**row, **added, "reward_failure": failure}]


@pytest.mark.hostile("files")
def test_a_row_that_cannot_be_read_is_a_failure_and_the_others_are_scored(tmp_path):
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    rows = [{"chosen": "x", "rejected": "y"}, {"chosen": "The sky is up", "rejected": "The sky is far"}]
    score_file(jsonl(tmp_path / "pairs.jsonl", rows), Length("bad"), tmp_path / "scored.jsonl", name="m")
    first, second = lines(tmp_path / "scored.jsonl")
    assert (first["reward_chosen"], first["reward_rejected"]) == (None, None)
    assert first["reward_failure"].startswith("no_prompt")
    assert (second["reward_chosen"], second["reward_rejected"]) == (2.0, 3.0)
    rows = [{"prompt": picture, "response": "a"}, {"prompt": "p", "response": "a"}]
    score_file(jsonl(tmp_path / "in.jsonl", rows), Length("bad"), tmp_path / "out.jsonl", name="m")
    first, second = lines(tmp_path / "out.jsonl")
    assert first["reward"] is None
    assert first["reward_failure"].startswith("unreadable_chat")
    assert second["reward"] == 1.0


@pytest.mark.hostile("kills")
def test_a_killed_start_continues_and_scores_nothing_twice(tmp_path):
    source, out = jsonl(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    first = Length("bad", dies_after=2)
    with pytest.raises(KeyboardInterrupt):
        score_file(source, first, out, name="m", batch_size=1)
    assert not out.exists()
    with pytest.raises(DataError, match="another file, model"):
        score_file(source, Length("bad"), out, name="other")
    second = Length("bad")
    score_file(source, second, out, name="m", batch_size=1)
    assert first.seen == ["four", "bad"]
    assert second.seen == ["sixsix"]
    assert [row["reward"] for row in lines(out)] == [4.0, None, 6.0]


def test_only_failed_rows_are_scored_again(tmp_path):
    source, out = jsonl(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    with pytest.raises(DataError, match="does not exist"):
        score_file(source, Length("bad"), out, name="m", only_failed=True)
    score_file(source, Length("bad"), out, name="m")
    with pytest.raises(DataError, match="--only-failed"):
        score_file(source, Length("bad"), out, name="m")
    again = Length()
    score_file(source, again, out, name="m", only_failed=True)
    assert again.seen == ["bad"]
    assert [(row["reward"], row["reward_failure"]) for row in lines(out)] == [(4.0, None), (3.0, None), (6.0, None)]


@pytest.mark.parametrize(
    ("rows", "rewards"),
    [
        ([{"prompt": "p", "response": "abcd"}, {"prompt": "p", "response": None}, {"prompt": None, "response": "abc"}],
         [{"reward": 4.0}, {"reward": None}, {"reward": None}]),
        ([{"prompt": "p", "chosen": "abcde", "rejected": "a"}, {"prompt": "p", "chosen": "abcde", "rejected": None}],
         [{"reward_chosen": 5.0, "reward_rejected": 1.0}, {"reward_chosen": None, "reward_rejected": None}]),
        ([{"messages": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "ab"}]}, {"messages": None}],
         [{"reward": 2.0}, {"reward": None}]),
        ([{"system": "s", "instruction": "p", "input": "q", "output": "abcdef"}, {"instruction": "p", "output": None}],
         [{"reward": 6.0}, {"reward": None}]),
        ([{"prompt": "p", "responses": ["a", "bb"]}, {"prompt": "p", "responses": None}],
         [{"rewards": [1.0, 2.0]}, {"rewards": None}]),
    ],
)  # fmt: skip
def test_a_null_is_a_missing_reward_and_no_row_is_lost(tmp_path, rows, rewards):
    score_file(jsonl(tmp_path / "in.jsonl", rows), Length("bad"), tmp_path / "out.jsonl", name="m")
    found = lines(tmp_path / "out.jsonl")
    failures = [str(row.pop("reward_failure")).partition(":")[0] for row in found]
    assert failures == ["None", *["no_value"] * (len(rows) - 1)]
    assert found == [{**row, **new} for row, new in zip(rows, rewards, strict=True)]


@pytest.mark.hostile("files")
def test_a_wrong_file_is_one_line(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        score_file(tmp_path / "absent.jsonl", Length("bad"), tmp_path / "out.jsonl", name="m")
    with pytest.raises(DataError, match=r"in\.jsonl: nothing to score, found prompt, text.*--columns response=text"):
        score_file(
            jsonl(tmp_path / "in.jsonl", [{"prompt": "p", "text": "x"}]), Length("bad"), tmp_path / "o.jsonl", name="m"
        )
    with pytest.raises(DataError, match=r"end it in \.jsonl"):
        score_file(tmp_path / "in.jsonl", Length("bad"), tmp_path / "out.csv", name="m")
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


POISONED = [{"prompt": "p", "response": text} for text in ("four", "poison", "sixsix", "a", "b" * 10)]
REASONS = {
    "panic": "model_error: PanicException: Onig: Regex search error: retry-limit-in-match over",
    "odd": "model_error: Odd: of a library",
    "interrupt": "model_error: KeyboardInterrupt",
    "cancel": "model_error: CancelledError",
    "exit": "model_error: SystemExit: 0",
    "generator": "model_error: GeneratorExit",
    "mute": "model_error: Mute",
    "value": "model_error: ValueError: wrong",
}


def score_command(folder, *words):
    """`guerdon score` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "guerdon", "score", "in.jsonl", "-o", "out.jsonl", *words],
        cwd=folder, env=environment(Path(__file__).parents[1]), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("way", WAYS)
def test_a_row_at_which_the_model_raises_is_a_failure_and_the_others_are_scored(tmp_path, way):
    jsonl(tmp_path / "in.jsonl", POISONED)
    status, said = forked(
        "score", "in.jsonl", "-o", "out.jsonl", "--model", "raisers:make", f"way={way}", folder=tmp_path
    )
    assert status == 0, said
    found = lines(tmp_path / "out.jsonl")
    assert [row["reward"] for row in found] == [4.0, None, 6.0, 1.0, 10.0]
    assert [row["reward_failure"] is None for row in found] == [True, False, True, True, True]
    assert found[1]["reward_failure"].startswith(f"{REASONS[way]} (raisers.py, line ")
    assert said.count("guerdon: ") == 0
    assert said.count("the reward model raises raised") == 1


@pytest.mark.hostile("parts")
def test_a_model_that_raises_is_halved_to_the_row_that_does_it(tmp_path):
    model = Raises("value")
    score_file(jsonl(tmp_path / "in.jsonl", POISONED), model, tmp_path / "out.jsonl", name="m")
    assert model.calls == [5, 2, 1, 1, 3]


@pytest.mark.hostile("parts")
def test_a_model_that_compares_fails_as_a_whole(tmp_path):
    class Compares(Raises):
        info = Raises.info.__class__(**{**vars(Raises.info), "compares": True})

    model = Compares("value")
    rows = [{"prompt": "p", "response": "one"}, {"prompt": "p", "response": "poison"}, {"prompt": "q", "response": "a"}]
    score_file(jsonl(tmp_path / "in.jsonl", rows), model, tmp_path / "out.jsonl", name="m", batch_size=2)
    assert model.calls == [2, 1]
    assert [row["reward"] for row in lines(tmp_path / "out.jsonl")] == [None, None, 1.0]


def test_a_machine_without_memory_ends_the_command(tmp_path):
    class Large:
        info = Raises.info

        def score(self, episodes):
            raise MemoryError

    with pytest.raises(MemoryError):
        score_file(jsonl(tmp_path / "in.jsonl", POISONED), Large(), tmp_path / "out.jsonl", name="m")


def test_ctrl_c_still_ends_the_command_while_the_model_scores(tmp_path):
    (tmp_path / "waits.py").write_text(
        "import sys, threading\nfrom raisers import Raises\n\nclass Waits(Raises):\n"
        "    def __init__(self):\n        super().__init__('value')\n"
        "    def score(self, episodes):\n"
        "        print('the model waits', file=sys.stderr, flush=True)\n        threading.Event().wait()\n"
    )
    jsonl(tmp_path / "in.jsonl", POISONED)
    command = score_command(tmp_path, "--model", "waits:Waits")
    try:
        assert any("the model waits" in line for line in command.stderr)
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=120)
    finally:
        command.kill()
    assert command.returncode == 130, said
    assert "interrupted" in said
    assert sorted(path.name for path in tmp_path.glob("*.jsonl*")) == ["in.jsonl", "out.jsonl.part"]


CALLING = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
TALK = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "", "tool_calls": [CALLING]},
    {"role": "tool", "content": "4"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "bad"},
]


def test_turns_of_a_conversation_are_scored_one_by_one(tmp_path):
    model, out = Length("bad"), tmp_path / "out.jsonl"
    rows = [{"messages": TALK, "n": 1}, {"messages": TALK[:1]}, {"messages": [*TALK[:4], TALK[4]]}]
    line = score_file(jsonl(tmp_path / "in.jsonl", rows), model, out, name="m", turns=True)
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert model.seen == [call, "four", "bad", call, "four"]
    found = lines(out)
    assert [row["rewards"] for row in found] == [[len(call), 4.0, None], None, [len(call), 4.0]]
    assert found[0]["n"] == 1
    assert "late" in str(found[0]["reward_failure"])
    assert "no_turn" in str(found[1]["reward_failure"])
    assert "3 of 3 rows scored" in line
    asked = {"prompt": TALK[:2] + TALK[2:3], "response": "four"}
    score_file(jsonl(tmp_path / "one.jsonl", [asked]), model, tmp_path / "one.out.jsonl", name="m", turns=True)
    assert lines(tmp_path / "one.out.jsonl")[0]["rewards"] == [4.0]  # of what was asked no turn counts
    empty = {"messages": [TALK[0], {"role": "assistant", "content": ""}, *TALK[-2:]]}
    score_file(jsonl(tmp_path / "empty.jsonl", [empty]), Length(), tmp_path / "empty.out.jsonl", name="m", turns=True)
    found = lines(tmp_path / "empty.out.jsonl")[0]
    assert found["rewards"] == [None, 3.0]
    assert "empty_turn" in str(found["reward_failure"])  # as POST /v1/rewards with turns


def test_conversations_of_a_run_are_scored_turn_by_turn(tmp_path):
    calls = [{"tokens": 1, "finished": True, "reward": None}] * 2
    row = {"step": 1, "id": "a", "group": 0, "messages": TALK[:4], "calls": calls, "reward": 1.0, "success": True,
           "failure": None, "truncated": False}  # fmt: skip
    model, out = Length(), tmp_path / "out.jsonl"
    score_file(jsonl(tmp_path / "conversations.jsonl", [row]), model, out, name="m", turns=True)
    assert lines(out)[0]["rewards"] == [len(model.seen[0]), 4.0]
    assert lines(out)[0]["messages"] == TALK[:4]


def test_turns_need_conversations_and_a_model_that_judges_alone(tmp_path):
    with pytest.raises(DataError, match="nothing to score"):
        score_file(jsonl(tmp_path / "in.jsonl", [{"n": 1}]), Length(), tmp_path / "a.jsonl", name="m", turns=True)
    model = Length()
    model.info = replace(model.info, compares=True)
    with pytest.raises(ConfigError, match="compares responses to one prompt") as refused:
        score_file(jsonl(tmp_path / "b.jsonl", ROWS), model, tmp_path / "c.jsonl", name="m", turns=True)
    assert refused.value.key == "--turns"
