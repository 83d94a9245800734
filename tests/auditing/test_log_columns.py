"""What the columns of a log are taken for: rewards in parts, codings of a whole column, conversations, containers."""

import csv
import gzip
import json
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from guerdon.auditing import logs
from guerdon.auditing.checks import audit
from guerdon.auditing.command import read_as_lines
from guerdon.auditing.logs import read_log
from guerdon.auditing.second import read_second
from guerdon.errors import ConfigError, DataError
from tables import refuses

ROW = {"prompt": "p", "response": "r"}


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def table(path, rows):
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def roles(rows):
    """Role and coding by column, of the columns that have a role."""
    return {one["column"]: (one["role"], one["coding"]) for one in rows.read_as if one["role"]}


# Rewards in parts.


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv"])
def test_a_reward_in_parts_by_name_is_their_sum(tmp_path, form):
    given = [{"accuracy": 1, "format": 0}, {"accuracy": 0.5, "format": 0.25}, {"accuracy": 0, "format": 1}]
    log = [{**ROW, "rewards": one} for one in given]
    path = tmp_path / f"log.{form}"
    if form == "jsonl":
        jsonl(path, log)
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(log), path)
    else:
        table(path, [{**row, "rewards": json.dumps(row["rewards"])} for row in log])
    rows = read_log(path)
    assert rows.reward_N.tolist() == [1, 0.75, 1]
    assert {name: values.tolist() for name, values in rows.rewards.items()} == {
        "rewards.accuracy": [1, 0.5, 0], "rewards.format": [0, 0.25, 1],
    }  # fmt: skip
    assert any("the reward is the sum of rewards.accuracy, rewards.format" in note for note in rows.notes)
    one = read_log(path, columns="reward=rewards.accuracy")
    assert one.reward_N.tolist() == [1, 0.5, 0]
    assert roles(one)["rewards.accuracy"] == ("reward", "number")


def test_a_total_among_the_parts_is_the_reward(tmp_path):
    log = [{**ROW, "reward": {"total": t, "style": 5, "truth": 7}} for t in (0.5, 2, None)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    np.testing.assert_array_equal(rows.reward_N, [0.5, 2, np.nan])
    assert sorted(rows.rewards) == ["reward.style", "reward.truth"]
    assert rows.notes == ()


def test_a_list_of_rewards_is_their_sum(tmp_path):
    log = [{**ROW, "rewards": one} for one in ([1, 0.5], [0, 0.5], [2, 2], None)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    np.testing.assert_array_equal(rows.reward_N, [1.5, 0.5, 4, np.nan])
    np.testing.assert_array_equal(rows.rewards["rewards.1"], [0.5, 0.5, 2, np.nan])
    second = read_log(tmp_path / "log.jsonl", columns={"reward": "rewards.1"})
    np.testing.assert_array_equal(second.reward_N, [0.5, 0.5, 2, np.nan])
    one = read_log(jsonl(tmp_path / "one.jsonl", [{**ROW, "reward": [k]} for k in (1, 2)]))
    assert (one.reward_N.tolist(), one.rewards) == ([1, 2], {})


def test_a_row_whose_parts_are_no_numbers_is_left_out(tmp_path):
    given = [{"a": 1, "b": 2}, {"a": "high", "b": 2}, 7, {"a": 1, "b": None}]
    rows = read_log(jsonl(tmp_path / "log.jsonl", [{**ROW, "rewards": one} for one in given]))
    assert rows.reward_N.tolist() == [3, 1]
    assert rows.line_N.tolist() == [1, 4]
    assert rows.bad == {"reward is not a number": 1, "reward is not a map of numbers": 1}


def test_a_path_that_is_not_there_is_refused_with_the_nearest_one(tmp_path):
    log = jsonl(tmp_path / "log.jsonl", [{**ROW, "rewards": {"accuracy": 1}}])
    with refuses("rewards.acuracy"):
        read_log(log, columns="reward=rewards.acuracy")


def trl(path, **columns):
    """Four completions to each of six prompts, with these rewards (6, 4) and the advantages of `of`."""
    of = columns.pop("of")
    advantage = (of - of.mean(1, keepdims=True)) / of.std(1, keepdims=True)
    rows = [
        {"step": 1, "prompt": f"p{g}", "completion": f"c{k}", "advantage": advantage[g, k],
         **{name: float(values[g, k]) for name, values in columns.items()}}
        for g in range(6) for k in range(4)
    ]  # fmt: skip
    return read_log(jsonl(path / "log.jsonl", rows))


def test_every_column_of_numbers_of_trl_is_a_reward(tmp_path):
    one, two = np.random.default_rng(0).random((2, 6, 4))
    alone = trl(tmp_path, accuracy=one, of=one)
    assert (alone.reward_N.tolist(), alone.truth_N, alone.rewards) == (one.ravel().tolist(), None, {})
    both = trl(tmp_path, accuracy=one, format=two, of=one + two)
    np.testing.assert_allclose(both.reward_N, (one + two).ravel())
    assert (sorted(both.rewards), both.truth_N) == (["accuracy", "format"], None)
    assert any("the sum of accuracy, format" in note for note in both.notes)
    assert not any("advantages" in note for note in both.notes)
    weighted = trl(tmp_path, accuracy=one, format=two, of=one + 3 * two)
    np.testing.assert_allclose(weighted.reward_N, (one + two).ravel())
    assert any("advantages are not those of this sum" in note for note in weighted.notes)
    assert roles(both)["accuracy"] == ("reward", "number")


def test_a_truth_that_trl_did_not_reward_is_the_truth(tmp_path):
    one, two, truth = np.random.default_rng(0).random((3, 6, 4))
    rows = trl(tmp_path, a=one, b=two, is_correct=truth, of=one + two)
    np.testing.assert_allclose(rows.reward_N, (one + two).ravel())
    assert rows.truth_N.tolist() == truth.ravel().tolist()


# Codings of whole columns.


def test_words_among_numbers_are_rows_left_out_wherever_they_stand(tmp_path):
    log = [{**ROW, "reward": k / 4} for k in range(2910)] + [{**ROW, "reward": "correct"}] * 90
    for given in (log, log[::-1]):
        rows = read_log(jsonl(tmp_path / "log.jsonl", given))
        assert sorted(rows.reward_N.tolist()) == [k / 4 for k in range(2910)]
        assert rows.bad == {"reward is not a number": 90}
        (one,) = [f for f in audit(rows).findings if f.name == "unread"]
        assert (one.severity, one.count, one.total, one.effect) == ("error", 90, 3000, 0.03)
        assert "90 reward is not a number" in one.title
    few = read_log(jsonl(tmp_path / "log.jsonl", log[:2920]))
    assert [f.severity for f in audit(few).findings if f.name == "unread"] == ["warning"]
    none = audit(read_log(jsonl(tmp_path / "log.jsonl", log[:2910])))
    assert none.clean["unread"] == "2,910 rows were read, and none was left out"


def test_words_of_most_rows_are_the_coding_although_the_first_thousand_are_numbers(tmp_path):
    log = [{**ROW, "reward": k % 2} for k in range(1500)] + [
        {**ROW, "reward": "Correct"},
        {**ROW, "reward": "wrong"},
    ] * 999
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert rows.reward_N.tolist() == [0, 1] * 750 + [1, 0] * 999
    assert (rows.bad, roles(rows)["reward"]) == ({}, ("reward", "true/false"))
    log[0]["reward"] = 0.5
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert (len(rows), rows.bad) == (len(log) - 1, {"reward is no value of true/false": 1})


def test_a_column_that_comes_late_is_read_from_the_first_row_on(tmp_path):
    log = [{**ROW, "reward": 1.0, **({"is_correct": k % 2} if k >= 1500 else {})} for k in range(1600)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    np.testing.assert_array_equal(rows.truth_N, [np.nan] * 1500 + [0, 1] * 50)
    log = [{"prompt": "p", "reward": 1.0, **({"response": f"r{k}"} if k >= 1500 else {})} for k in range(1600)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert rows.texts.responses == [""] * 1500 + [f"r{k}" for k in range(1500, 1600)]
    assert read_log(tmp_path / "log.jsonl", columns="response=response").texts.responses[-1] == "r1599"


def test_a_log_whose_first_rows_say_what_it_is_is_read_once(tmp_path, monkeypatch):
    log = jsonl(tmp_path / "log.jsonl", [{**ROW, "reward": k, "is_correct": 1} for k in range(3000)])
    passes = []
    finish = logs.RowReader.check
    monkeypatch.setattr(logs.RowReader, "check", lambda self, root: (passes.append(len(self)), finish(self, root)))
    read_log(log)
    assert passes == [3000]


def test_codings_that_the_user_says(tmp_path):
    log = [{**ROW, "stars": s, "ok": o} for s, o in ((1, "fine"), (5, "poor"), (9, "fine"), (3, "?"))]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log), columns="reward=stars:1..5,truth=ok:fine/poor")
    assert rows.reward_N.tolist() == [1, 5, 3]
    np.testing.assert_array_equal(rows.truth_N, [1, 0, np.nan])
    assert rows.bad == {"reward is no value of 1..5": 1}
    assert any("1 values of truth are not numbers" in note for note in rows.notes)
    assert roles(rows) == {
        "stars": ("reward", "1..5"), "ok": ("truth", "fine/poor"), "prompt": ("prompt", None),
        "response": ("response", None),
    }  # fmt: skip
    with pytest.raises(ConfigError, match="the coding 'x' is none") as refused:
        read_log(tmp_path / "log.jsonl", columns="reward=stars:x")
    assert refused.value.key == "columns"


def test_numbers_in_text_are_numbers(tmp_path):
    log = [{**ROW, "reward": text} for text in ("0.5", " 2 ", "50 %", "nan", "inf", "1e-3", "0x1")]
    rows = read_log(table(tmp_path / "log.csv", log))
    np.testing.assert_array_equal(rows.reward_N, [0.5, 2, 0.5, np.nan, np.nan, 0.001])
    assert rows.bad == {"reward is not a number": 1}
    assert any("1 infinite rewards" in note for note in rows.notes)


# Prompts, conversations and responses.

ASKED = {"role": "user", "content": "q"}
SAID = {"role": "assistant", "content": "a"}
BEFORE = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


@pytest.mark.parametrize(
    ("row", "prompt", "response"),
    [
        ({"prompt": "q", "response": "a", "history": [["hi", "hello"]]}, "hi hello q", "a"),
        ({"prompt": "q", "response": "a", "messages": BEFORE}, "hi hello q", "a"),
        ({"prompt": "q", "response": "a", "messages": [*BEFORE, ASKED, SAID]}, "hi hello q", "a"),
        ({"prompt": "q", "response": "a", "messages": [ASKED, SAID]}, "q", "a"),
        ({"messages": [*BEFORE, ASKED], "completion": "a"}, "hi hello q", "a"),
        ({"messages": [*BEFORE, ASKED, SAID]}, "hi hello q", "a"),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "q", "a"),
        ({"prompt": json.dumps([*BEFORE, ASKED]), "completion": json.dumps([SAID])}, "hi hello q", "a"),
        ({"system": "s", "prompt": "q", "response": "a"}, "s q", "a"),
        ({"context": "c", "question": "q", "answer": "7", "prediction": "a"}, "c\n\nq", "a"),
        ({"prompt": {"raw": "q", "label": "x"}, "response": "a"}, "q", "a"),
        ({"prompt": 7, "response": '{"answer": 4}'}, "7", '{"answer": 4}'),
    ],
)  # fmt: skip
def test_what_was_asked_is_all_that_was_asked(tmp_path, row, prompt, response):
    rows = read_log(jsonl(tmp_path / "log.jsonl", [{**row, "reward": k} for k in range(4)]))
    words = prompt.split(" ")
    names = ("system", "user") if words[0] == "s" else ("user", "assistant", "user")
    written = "\n\n".join(f"{who}: {text}" for who, text in zip(names, words, strict=False))
    assert rows.texts.prompts == [prompt if len(words) == 1 else written] * 4
    assert rows.texts.responses == [response] * 4
    turns = rows.texts.messages
    assert turns is None or [turn["content"] for turn in turns[0]] == [*words, response]


def test_two_prompts_are_refused_with_both(tmp_path):
    log = [{"prompt": "one", "question": "two", "response": "r", "reward": k} for k in range(3)]
    path = jsonl(tmp_path / "log.jsonl", log)
    with refuses("prompt"):
        read_log(path)
    assert read_log(path, columns="prompt=question").texts.prompts == ["two"] * 3
    whole = [{**row, "prompt": "Answer: two"} for row in log]
    assert read_log(jsonl(path, whole)).texts.prompts == ["Answer: two"] * 3


def test_an_answer_is_the_response_unless_all_rows_of_a_prompt_have_it(tmp_path):
    path = jsonl(tmp_path / "log.jsonl", [{"question": f"q{k}", "answer": f"a{k}", "reward": 1} for k in range(4)])
    assert read_log(path).texts.responses == ["a0", "a1", "a2", "a3"]
    gold = [{"question": f"q{k // 2}", "answer": f"a{k // 2}", "reward": k} for k in range(4)]
    assert read_log(jsonl(path, gold)).texts is None
    beside = [{**row, "prediction": f"r{k}"} for k, row in enumerate(gold)]
    rows = read_log(jsonl(path, beside))
    assert (rows.texts.responses, rows.texts.truths) == (["r0", "r1", "r2", "r3"], ["a0", "a0", "a1", "a1"])


def test_lists_beside_a_response_are_no_responses(tmp_path):
    log = [{**ROW, "answers": ["7", "seven"], "label": k % 2, "reward": k} for k in range(4)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert (rows.texts.responses, rows.texts.truths) == (["r"] * 4, ["0", "1", "0", "1"])


# Containers and layouts.

LOG = [{"prompt": f"p{k // 2}", "response": f"r{k}", "reward": k / 4, "is_correct": k % 2} for k in range(8)]
LINES = "".join(json.dumps(row) + "\n" for row in LOG).encode()


def _arrow(path):
    data = pa.Table.from_pylist(LOG)
    with pa.ipc.new_stream(str(path), data.schema) as out:
        out.write_table(data)


def _zip(path):
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("step_1/rollouts.jsonl", LINES)


CONTAINERS = {
    "log.jsonl": lambda path: path.write_bytes(LINES),
    "log.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "log.jsonl.zst": lambda path: path.write_bytes(pa.Codec("zstd").compress(LINES, asbytes=True)),
    "log.zip": _zip,
    "log.arrow": _arrow,
    "log.parquet": lambda path: pq.write_table(pa.Table.from_pylist(LOG), path),
    "log.csv": lambda path: table(path, LOG),
    "log.json": lambda path: path.write_text(json.dumps({"run": {"id": 7}, "results": {"rows": LOG}})),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_log_is_read_the_same_in_every_container(tmp_path, name):
    path = tmp_path / name
    CONTAINERS[name](path)
    for given in (path, tmp_path):
        rows = read_log(given)
        assert rows.reward_N.tolist() == [k / 4 for k in range(8)]
        assert rows.truth_N.tolist() == [0, 1] * 4
        assert rows.texts.prompts == [f"p{k // 2}" for k in range(8)]
        assert rows.texts.responses == [f"r{k}" for k in range(8)]
        assert rows.line_N.tolist() == [*range(1, 9)]
        assert rows.group_N.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert {column: role for column, (role, _) in roles(rows).items()} == {
            "prompt": "prompt", "response": "response", "reward": "reward", "is_correct": "truth",
        }  # fmt: skip


def test_columns_that_are_missing_in_rows_are_those_that_are_null(tmp_path):
    log = [{**ROW, "reward": 1}, {**ROW, "score": 2}, {**ROW, "reward": 3, "score": 4}]
    jsonl(tmp_path / "log.jsonl", log)
    pq.write_table(
        pa.Table.from_pylist([{"score": None, "reward": None, **row} for row in log]), tmp_path / "a.parquet"
    )
    for name in ("log.jsonl", "a.parquet"):
        rows = read_log(tmp_path / name)
        np.testing.assert_array_equal(rows.reward_N, [1, np.nan, 3])
        np.testing.assert_array_equal(rows.rewards["score"], [np.nan, 2, 4])


def test_a_column_of_failures_without_any_says_that_none_failed(tmp_path):
    log = [{**ROW, "reward": k, "reward_failure": None} for k in range(3)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert (rows.failed_N.tolist(), rows.truncated_N) == ([False] * 3, None)


def test_records_with_several_rows_keep_their_line(tmp_path):
    log = [{"prompt": f"p{k}", "completions": ["a", "b"], "rewards": [k, 0.5]} for k in range(2)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert (rows.line_N.tolist(), rows.reward_N.tolist()) == ([1, 1, 2, 2], [0, 0.5, 1, 0.5])
    assert rows.texts.responses == ["a", "b"] * 2


def test_layouts_without_a_response_are_refused_with_the_reason(tmp_path):
    log = [{"custom_id": "a", "response": {"body": {"choices": []}}, "score": 1}]
    with pytest.raises(DataError, match="it has no prompt: join it with the input file on custom_id"):
        read_log(jsonl(tmp_path / "log.jsonl", log))


def test_columns_of_a_data_set_with_rewards_are_a_log(tmp_path):
    log = [{**ROW, "helpfulness": k, "reward": k / 2} for k in range(4)]  # those of HelpSteer2, and a reward
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert (rows.layout, rows.reward_N.tolist()) == ("plain columns", [0, 0.5, 1, 1.5])


def test_files_without_the_column_that_the_user_says_are_left_out(tmp_path):
    jsonl(tmp_path / "a.jsonl", [{**ROW, "quality": 1}])
    jsonl(tmp_path / "b.jsonl", [{**ROW, "reward": 2}])
    rows = read_log(tmp_path, columns="reward=quality")
    assert (rows.files, rows.reward_N.tolist()) == (("a.jsonl",), [1])
    assert any("b.jsonl" in note for note in rows.notes)


def test_a_second_reward_is_read_alike(tmp_path):
    log = [{**ROW, "response": f"r{k}", "rewards": {"a": k, "b": k % 3}} for k in range(9)]
    path = jsonl(tmp_path / "log.jsonl", log)
    other = tmp_path / "other.jsonl.gz"
    other.write_bytes(gzip.compress("".join(json.dumps({**row, "rewards": {"a": 8 - k, "b": 0}}) + "\n"
                                            for k, row in enumerate(log)).encode()))  # fmt: skip
    rows = read_log(path, columns="reward=rewards.a")
    second = read_second(rows, other, columns="reward=rewards.a")
    assert second.reward_N.tolist() == [8 - k for k in range(9)]
    assert second.figures["correlation"].value == pytest.approx(-1)


# What is said.


def test_what_was_taken_for_what_is_said(tmp_path):
    log = [{**ROW, "score": 0.25, "format_reward": 0.5, "model": "m", "is_correct": "yes"}, {"prompt": "x"}]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert read_as_lines(rows, "log.jsonl") == [
        "log.jsonl: prompt is the prompt (for example 'p')",
        "log.jsonl: response is the response (for example 'r')",
        "log.jsonl: score is the reward (number, for example '0.25')",
        "log.jsonl: is_correct is the truth (true/false, for example 'yes')",
        "log.jsonl: format_reward is the further reward (number, for example '0.5')",
        "log.jsonl: not used: model",
        "log.jsonl: 2 rows read, 2 used",
    ]
    assert rows.read_as[2] == {
        "column": "score",
        "role": "reward",
        "coding": "number",
        "example": "0.25",
        "from": "name",
    }
    given = read_log(tmp_path / "log.jsonl", columns="reward=format_reward")
    assert [one["from"] for one in given.read_as if one["column"] == "format_reward"] == ["given"]


def test_columns_that_are_never_filled_together_are_one(tmp_path):
    log = [{"prompt": "p", "reward": k, **({"response": "r"} if k % 2 else {"completion": "c", "response": None})}
           for k in range(6)]  # fmt: skip
    rows = read_log(jsonl(tmp_path / "log.jsonl", log))
    assert rows.texts.responses == ["c", "r"] * 3


def test_rows_of_an_own_function(tmp_path, monkeypatch):
    (tmp_path / "own_rows.py").write_text(
        "def roles(row):\n"
        "    return None if row['skip'] else {'prompt': row['q'], 'response': row['a'], 'reward': row['r'] * 2}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    log = [{"q": f"q{k}", "a": f"a{k}", "r": k, "skip": k == 1} for k in range(4)]
    rows = read_log(jsonl(tmp_path / "log.jsonl", log), columns="own_rows:roles")
    assert rows.reward_N.tolist() == [0, 4, 6]
    assert rows.texts.responses == ["a0", "a2", "a3"]
    assert rows.line_N.tolist() == [1, 3, 4]


@pytest.mark.parametrize("name", ["rewards", "reward_components", "score"])
@pytest.mark.parametrize("container", ["jsonl", "csv"])
def test_a_map_of_rewards_beside_the_reward_is_its_parts(tmp_path, name, container):
    parts = [{"style": 0.25, "right": 1.0}, {"style": 0.5, "right": 0.0}, {"style": 0.0, "right": 1.0, "new": 2}]
    rows = [{**ROW, "reward": 5.0 + k, name: one} for k, one in enumerate(parts)]
    write = jsonl if container == "jsonl" else table
    found = read_log(write(tmp_path / f"log.{container}", rows))
    assert found.reward_N.tolist() == [5.0, 6.0, 7.0]
    assert {key: np.nan_to_num(values, nan=-1).tolist() for key, values in found.rewards.items()} == {
        f"{name}.style": [0.25, 0.5, 0.0], f"{name}.right": [1.0, 0.0, 1.0], f"{name}.new": [-1, -1, 2]
    }  # fmt: skip


def test_the_number_beside_a_map_of_rewards_is_the_total_whatever_it_is_called(tmp_path):
    rows = [{**ROW, "reward": {"a": k, "b": 1}, "total_reward": 10 * k} for k in range(3)]
    found = read_log(jsonl(tmp_path / "log.jsonl", rows))
    assert found.reward_N.tolist() == [0, 10, 20]
    assert found.rewards["reward.a"].tolist() == [0, 1, 2]


def test_two_columns_of_the_true_answer_or_of_truth_are_refused_in_a_log(tmp_path):
    rows = [{**ROW, "reward": 1.0, "correct": True, "passed": k > 1, "target": "4"} for k in range(4)]
    path = jsonl(tmp_path / "log.jsonl", rows)
    with refuses("truth"):
        read_log(path)
    assert read_log(path, columns="truth=passed").truth_N.tolist() == [0, 0, 1, 1]
    path = jsonl(tmp_path / "log.jsonl", [{**row, "passed": True, "gold": "5"} for row in rows])
    with refuses("reference"):
        read_log(path)


def test_files_with_other_columns_have_them_read_or_are_refused_by_name(tmp_path):
    rows = [{"prompt": f"p{k}", "response": "r", "reward": 1.0, "correct": k > 1} for k in range(3)]
    other = [{"question": f"q{k}", "output": "o", "reward": 0.0, "passed": k > 0} for k in range(3)]
    jsonl(tmp_path / "a.jsonl", rows)
    jsonl(tmp_path / "b.jsonl", other)
    found = read_log(tmp_path)
    assert found.texts.prompts == ["p0", "p1", "p2", "q0", "q1", "q2"]
    assert found.texts.responses == ["r"] * 3 + ["o"] * 3
    assert found.truth_N.tolist() == [0, 0, 1, 0, 1, 1]
    scored = [{"prompt": "p", "response": "r", "score": 1.0}] * 3
    jsonl(tmp_path / "c.jsonl", scored)
    with pytest.raises(
        DataError, match=r"a.jsonl has them in reward, c.jsonl in score; pass a file or a folder"
    ) as refused:
        read_log(tmp_path)
    assert refused.value.field == "reward"


def test_rows_of_another_layout_in_one_file_are_left_out_and_counted(tmp_path):
    rows = [{**ROW, "reward": 1.0}] * 40
    found = read_log(jsonl(tmp_path / "log.jsonl", [*rows, {**ROW, "score": 3.0}, {"title": "x", "n": 1}]))
    assert found.reward_N.tolist() == [1.0] * 40
    assert found.bad == {
        "a reward in score, and not in reward": 1, "a row without prompt, response, reward, which the others have": 1
    }  # fmt: skip
    unread = next(one for one in audit(found, seed=0).findings if one.name == "unread")
    assert unread.severity == "error"


def test_the_spread_of_a_reward_is_no_second_reward(tmp_path):
    history = [
        {"step": i, "reward": i / 30, "judge_score": 1 - i / 30, "reward_std": 0.1, "rewards/judge/std": i % 3}
        for i in range(30)
    ]
    assert list(read_log(jsonl(tmp_path / "log.jsonl", history)).rewards) == ["judge_score"]


def test_an_assertion_of_promptfoo_that_failed_is_a_reward(tmp_path):
    asked = {"prompt": {"raw": "p", "label": "x"}, "response": {"output": "r"}}
    results = [
        {**asked, "score": 1, "success": True, "failureReason": 0},
        {**asked, "score": 0, "success": False, "failureReason": 1, "error": "Expected output to contain 56"},
        {**asked, "score": 0, "success": False, "failureReason": 2, "error": "the provider timed out"},
    ]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"results": {"version": 3, "results": results}}), encoding="utf-8")
    rows = read_log(path)
    assert rows.failed_N.tolist() == [False, False, True]
    assert rows.reward_N[:2].tolist() == [1, 0]


def test_a_column_of_texts_and_lists_is_read_as_one_of_both(tmp_path):
    """Its first cell is the text of a map, the second is none; each look at the rows has to say the same."""
    path = tmp_path / "x.csv"
    path.write_text('example_id,reward\n{},1\n"",0\nx,1\n')
    rows = read_log(path)
    assert rows.reward_N.tolist() == [1, 0, 1]
    table = pa.table({"example_id": ["{}", ""], "reward": ["1", "0"], "data": ["", "[[1]]"]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert read_log(tmp_path / "x.parquet").reward_N.tolist() == [1, 0]
