import json
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.config.loading import to_plain, validate
from guerdon.errors import CheckpointError, DataError
from guerdon.settings.base import Settings
from guerdon.settings.data import (
    ChainSettings,
    DataSettings,
    FilesDataSettings,
    GeneratedDataSettings,
    GSM8KDataSettings,
    PromptsDataSettings,
    SwapSettings,
)
from guerdon.tasks.prompt_files import load_prompts, read_dataset, read_gsm8k, read_prompts
from guerdon.tasks.prompts import (
    Prompt,
    PromptStream,
    check_contamination,
    conversation_hash,
    hold_out,
    insert_system_prompt,
    question_hash,
)
from guerdon.tasks.reasoning import step_truth
from memory_rows import prompt_from_row
from tables import cases, refuses

EURUS = {
    "data_source": "numina_olympiads",
    "prompt": [
        {"role": "system", "content": "Use the actions [ASSESS] and [OUTPUT]."},
        {"role": "user", "content": "What is 6 times 7?"},
    ],
    "ability": "math",
    "reward_model": {"ground_truth": "42", "style": "rule"},
    "extra_info": {"index": 3, "split": "train"},
}
GSM8K = [
    {"question": "Tom has 2 boxes of 3. How many?", "answer": "2*3 = <<2*3=6>>6 in all.\n#### 6"},
    {
        "question": "A car costs $1,000 and $200 more. How much?",
        "answer": "1000+200 = <<1000+200=1200>>1200.\n#### 1,200",
    },
]


def prompts_of(*questions):
    return [
        Prompt(id=q, messages=({"role": "user", "content": q},), ground_truth="1", data_source="test")
        for q in questions
    ]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_rows_of_the_seed_read_the_same_from_jsonl_and_parquet(tmp_path):
    lines = write_lines(tmp_path / "train.jsonl", [EURUS])
    pq.write_table(pa.Table.from_pylist([EURUS]), tmp_path / "train.parquet")
    (prompt,) = read_prompts(lines)
    assert read_prompts(tmp_path / "train.parquet") == (prompt,)
    assert prompt.messages == tuple(EURUS["prompt"])
    assert (prompt.ground_truth, prompt.data_source, prompt.ability) == ("42", "numina_olympiads", "math")
    assert dict(prompt.extra_info) == {"index": 3, "split": "train"}
    assert prompt.question == "What is 6 times 7?"
    assert prompt.id == question_hash(prompt.messages)


@cases(
    ("row", "gold", "solution"),
    [
        ({"question": "1+1?", "answer": "2"}, "2", None),
        ({"problem": "1+1?", "answer": 2}, "2", None),
        ({"query": "1+1?", "final_answer": "2", "solution": "It is 2."}, "2", "It is 2."),
        ({"prompt": "1+1?", "ground_truth": 2.5}, "2.5", None),
        ({"problem": "1+1?", "solution": "So \\boxed{2}."}, "2", "So \\boxed{2}."),
        ({"question": "1+1?", "answer": "So\n#### 2"}, "2", "So\n#### 2"),
        ({"question": "1+1?", "answer": "So \\boxed{\\frac{4}{2}}."}, "\\frac{4}{2}", "So \\boxed{\\frac{4}{2}}."),
        ({"question": "1+1?", "answer": "0"}, "0", None),
        ({"question": "1+1?", "answer": 0}, "0", None),
    ],
)
def test_plain_questions_and_answers_in_several_spellings(row, gold, solution):
    prompt = prompt_from_row(row, "file:1", "mine")
    assert (prompt.question, prompt.ground_truth, prompt.solution, prompt.data_source) == (
        "1+1?",
        gold,
        solution,
        "mine",
    )


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("line", "field", "why"),
    [
        ('{"question": "a", "answer": "1"', None, "not JSON"),
        ("[1]", None, "a row must be a map"),
        ('{"question": "a", "solution": "no mark"}', "reference", "no true answer"),
        ('{"question": "a", "answer": true}', "answer", "must be text or a number"),
        ('{"prompt": [{"role": "user"}], "answer": "1"}', None, "needs role and content"),
        ('{"prompt": [{"role": "robot", "content": "a"}], "answer": "1"}', None, "one of the roles"),
        ('{"prompt": [{"role": "assistant", "content": "a"}], "answer": "1"}', None, "end with the user's turn"),
        ('{"question": "a", "answer": "1", "extra_info": [1]}', "extra_info", "must be a map"),
    ],
)
def test_a_bad_row_is_an_error_with_its_file_and_line(tmp_path, line, field, why):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "fine", "answer": "1"}\n\n' + line + "\n")
    with pytest.raises(DataError, match=re.escape(f"{path}:3") + ".*" + re.escape(why)) as refused:
        read_prompts(path)
    assert refused.value.field == field


@cases(
    ("line", "reason"),
    [
        ('{"text": "a", "answer": "1"}', "no_prompt"), ('{"question": null, "answer": "1"}', "no_prompt"),
        ('{"question": " ", "answer": "1"}', "no_prompt"), ('{"question": "a"}', "no_true_answer"),
        ('{"question": "a", "answer": " "}', "no_true_answer"),
        ('{"question": "a", "reward_model": {"style": "rule"}}', "no_true_answer"),
    ],
)  # fmt: skip
def test_a_row_without_a_question_or_an_answer_is_left_out(tmp_path, line, reason):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "fine", "answer": "1"}\n' + line + "\n")
    read_as = []
    assert [one.question for one in read_prompts(path, read_as=read_as)] == ["fine"]
    assert read_as[0].record["left_out"] == {reason: 1}
    path.write_text(line + "\n")
    with pytest.raises(DataError):
        read_prompts(path)


@pytest.mark.hostile("files")
def test_files_that_cannot_be_read_say_why(tmp_path):
    (tmp_path / "bytes.jsonl").write_bytes(b'\n{"question": "\xff", "answer": "1"}')
    (tmp_path / "map.json").write_text('{"question": "a", "answer": "1"}')
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    for name, why in [
        ("bytes.jsonl", "bytes.jsonl:2: not JSON"),
        ("map.json", "a JSON object without a list of rows"),
        ("broken.parquet", "cannot be read as Parquet"),
        ("empty.jsonl", "/empty.jsonl: there is no prompt in it"),
        ("rows.xlsx", "rows are read from .jsonl"),
        ("absent.jsonl", "there is no such file"),
    ]:
        with pytest.raises(DataError, match=re.escape(why)):
            read_prompts(tmp_path / name)


def test_tables_with_a_header_are_read_as_text(tmp_path):
    for name, mark in (("rows.csv", ","), ("rows.tsv", "\t")):
        path = tmp_path / name
        rows = [("question", "answer"), ('"half, and ""so""?"', "0.50"), ("one?", "007"), ("", "")]
        path.write_text("\ufeff" + "\r\n".join(mark.join(row) for row in rows), encoding="utf-8")
        assert [(p.question, p.ground_truth) for p in read_prompts(path)] == [
            ('half, and "so"?', "0.50"),
            ("one?", "007"),
        ]
    path.with_suffix(".csv").write_text("question,A,B,C,answer\nWhich?,one,two,three,B\n")
    (prompt,) = read_prompts(path.with_suffix(".csv"))
    assert (prompt.question, prompt.ground_truth) == ("Which?\n\n(A) one\n(B) two\n(C) three", "B")


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("question,answer\na,b,1\n", "row 0: 3 cells under 2 columns"),
        ("question,question\na,1\n", "must name every column once"),
        ("question,\na,1\n", "must name every column once"),
        ('question,answer\n"a,1\n', "unexpected end of data"),
        ("a,1\nb,2\n", "row 0: no question; expected one of"),
        ("question,answer\n\"[{'role': 'user', 'content': 'a'}]\",1\nb,2\n", "chat messages written as text"),
        ("", "there is no prompt in it"),
    ],
)
def test_tables_that_cannot_be_read_say_why(text, why, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(why)):
        read_prompts(path)


def test_a_list_of_rows_in_json_and_repeated_questions_get_ids_of_their_own(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"question": "a", "answer": "1"}] * 3 + [{"question": "b", "answer": "1", "id": 7}]))
    ids = [prompt.id for prompt in read_prompts(path)]
    assert ids == [ids[0], f"{ids[0]}-2", f"{ids[0]}-3", "7"]


def test_gsm8k(tmp_path):
    write_lines(tmp_path / "train.jsonl", GSM8K)
    first, second = read_gsm8k(tmp_path)
    assert (first.ground_truth, second.ground_truth) == ("6", "1,200")
    assert first.solution == GSM8K[0]["answer"]
    assert (first.data_source, first.ability) == ("openai/gsm8k", "math")
    with pytest.raises(DataError, match=r"test\.jsonl: there is no such file; the folder of GSM8K has train\.jsonl"):
        read_gsm8k(tmp_path, "test")
    write_lines(tmp_path / "test.jsonl", [{"question": "a", "answer": "6"}])
    with pytest.raises(DataError, match=r"test\.jsonl:1: a row of GSM8K") as refused:
        read_gsm8k(tmp_path, "test")
    assert refused.value.field == "answer"


def test_data_sets_of_the_datasets_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([EURUS])
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "both")
    rows.save_to_disk(tmp_path / "one")
    (tmp_path / "plain").mkdir()
    write_lines(tmp_path / "plain" / "train.jsonl", GSM8K)
    for name, split in [("both", "train"), ("both", "test"), ("one", "train")]:
        (prompt,) = read_dataset(str(tmp_path / name), split)
        assert (prompt.ground_truth, prompt.messages) == ("42", tuple(EURUS["prompt"]))
    assert [p.ground_truth for p in read_dataset(str(tmp_path / "plain"), "train")] == ["6", "1,200"]
    for name, why in [("both", "has no split 'dev', only train, test"), ("one", "without splits"), ("plain", "dev")]:
        with pytest.raises(DataError, match=why) as refused:
            read_dataset(str(tmp_path / name), "dev")
        assert refused.value.field == "data.path"


def test_the_system_prompt_is_inserted_and_no_user_turn_is_lost():
    user = {"role": "user", "content": "q"}
    old = {"role": "system", "content": "old"}
    new = {"role": "system", "content": "new"}
    assert insert_system_prompt([user], "new") == (new, user)
    assert insert_system_prompt([old, user], "new") == (new, user)
    assert insert_system_prompt([old, user], None) == (old, user)
    assert insert_system_prompt([old, user], "") == ({"role": "system", "content": ""}, user)
    assert insert_system_prompt([], "new") == (new,)


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text()), max_size=4), st.text())
def test_whatever_the_messages_all_turns_of_others_stay(turns, text):
    messages = [{"role": role, "content": content} for role, content in turns]
    others = [m for m in messages[:1] if m["role"] != "system"] + messages[1:]
    assert list(insert_system_prompt(messages, text)) == [{"role": "system", "content": text}, *others]


def test_the_hash_of_a_question_sees_the_question_only():
    plain = [{"role": "user", "content": "What is  6*7?\n"}]
    assert question_hash(plain) == question_hash(
        insert_system_prompt([{"role": "user", "content": "what is 6*7?"}], "s")
    )
    assert question_hash(plain) != question_hash([{"role": "user", "content": "What is 6*8?"}])
    assert question_hash([{"role": "user", "content": "\ud800"}])  # a lone surrogate is not a reason to stop


def test_contamination_is_found_and_counted():
    check_contamination(prompts_of("a", "b"), prompts_of("c"))
    with pytest.raises(DataError, match="2 validation questions are also in the training data, the first is B"):
        check_contamination(prompts_of("a", "b", "c"), prompts_of("B", "x", " c"))


def test_holding_out_keeps_questions_together_and_ignores_the_order():
    prompts = prompts_of(*(f"q{i % 20}" for i in range(60)))
    train, held = hold_out(prompts, 10)
    assert len(held) >= 10
    assert Counter(p.question for p in (*train, *held)) == Counter(p.question for p in prompts)
    check_contamination(train, held)
    again = hold_out(prompts[::-1], 10)[1]
    assert {p.question for p in again} == {p.question for p in held}
    assert {p.question for p in hold_out(prompts, 10, seed=1)[1]} != {p.question for p in held}
    assert hold_out(prompts, 0) == (tuple(prompts), ())
    with pytest.raises(DataError, match="leaves none to train on") as refused:
        hold_out(prompts, 60)
    assert refused.value.field == "data.val_size"


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.lists(st.integers(0, 7), max_size=8), st.integers(0, 8), st.integers(0, 3))
def test_a_resumed_stream_deals_out_what_an_uninterrupted_one_would(n, sizes, cut, seed):
    prompts = prompts_of(*map(str, range(n)))
    whole = PromptStream(prompts, seed=seed)
    dealt = [[p.id for p in whole.take(size)] for size in sizes]
    first = PromptStream(prompts, seed=seed)
    for size in sizes[:cut]:
        first.take(size)
    second = PromptStream(prompts, seed=seed)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [[p.id for p in second.take(size)] for size in sizes[cut:]] == dealt[cut:]
    flat = [name for batch in dealt for name in batch]
    for start in range(0, len(flat) - n + 1, n):  # every pass has every prompt once
        assert sorted(flat[start : start + n]) == sorted(map(str, range(n)))


def test_passes_differ_and_a_stream_over_other_prompts_is_refused():
    prompts = prompts_of(*map(str, range(50)))
    stream = PromptStream(prompts, seed=1)
    first, second = ([p.id for p in stream.take(50)] for _ in range(2))
    assert first != second
    state = stream.state_dict()
    with pytest.raises(CheckpointError, match="fingerprint"):
        PromptStream(prompts_of(*map(str, range(1, 51))), seed=1).load_state_dict(state)
    with pytest.raises(CheckpointError, match="seed is 2, it was 1"):
        PromptStream(prompts, seed=2).load_state_dict(state)
    with pytest.raises(CheckpointError, match="impossible"):
        PromptStream(prompts, seed=1).load_state_dict({**state, "position": 51})
    with pytest.raises(DataError, match="no prompt"):
        PromptStream([])


def test_load_prompts_from_every_kind_of_source(tmp_path):
    train, validation = load_prompts(GeneratedDataSettings(train_size=20, val_size=5, task=ChainSettings(steps=3)))
    assert (len(train), len(validation)) == (20, 5)
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    rows = [{"question": f"What is {i}+1?", "answer": f"#### {i + 1}"} for i in range(12)]
    write_lines(folder / "train.jsonl", rows[:10])
    write_lines(folder / "test.jsonl", rows[10:])
    train, validation = load_prompts(GSM8KDataSettings(path=str(folder), val_size=4, system_prompt="Think."))
    assert (len(train), len(validation)) == (6, 4)
    assert all([m["role"] for m in p.messages] == ["system", "user"] for p in (*train, *validation))
    train, validation = load_prompts(GSM8KDataSettings(path=str(folder), val_split="test"))
    assert (len(train), len(validation)) == (10, 2)
    both = (str(folder / "train.jsonl"), str(folder / "test.jsonl"))
    train, validation = load_prompts(FilesDataSettings(train_files=both, val_size=0))
    assert (len(train), validation) == (12, ())
    with pytest.raises(DataError, match="2 validation questions are also in the training data"):
        load_prompts(FilesDataSettings(train_files=both, val_files=both[1]))


def test_a_generated_problem_keeps_its_truth_through_a_file_and_a_system_prompt(tmp_path):
    settings = GeneratedDataSettings(train_size=1, val_size=0, task=SwapSettings(steps=3), system_prompt="Go.")
    (prompt,), _ = load_prompts(settings)
    row = {
        "id": prompt.id,
        "prompt": list(prompt.messages),
        "data_source": prompt.data_source,
        "reward_model": {"ground_truth": prompt.ground_truth},
        "extra_info": dict(prompt.extra_info),
        "solution": prompt.solution,
        "ability": prompt.ability,
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "p.parquet")
    (again,) = read_prompts(tmp_path / "p.parquet")
    assert again == prompt
    assert step_truth(again, prompt.solution).complete


class Section(Settings):
    data: DataSettings


@cases(
    ("given", "key"),
    [
        ({"type": "files"}, "data.train_files"),
        ({"type": "gsm8k"}, "data.path"),
        ({"path": "x"}, "data.path"),
        (
            {"type": "files", "train_files": "a.jsonl", "task": {"family": "chain"}},
            "data.task",
        ),
        ({"type": "files", "train_files": "a", "val_files": "b", "val_size": 9}, "data.val_size"),
        ({"verifier": "math"}, "data.verifier"),
        ({"unparsable": "wrong"}, "data.unparsable"),
        ({"type": "gsm8k", "path": "x", "verifier": "numeric", "verifier_timeout": 3}, "data.verifier_timeout"),
        ({"type": "gsm8k", "path": "x", "verifier": "exact", "verifier_tolerance": 0.1}, "data.verifier_tolerance"),
        ({"filter_accuracy": False, "accuracy_lower_bound": 0.1}, "data.accuracy_lower_bound"),
        ({"filter_accuracy": False, "filter_truncated": False, "shortfall": "fill"}, "data.shortfall"),
        ({"filter_accuracy": False, "filter_truncated": False, "oversample_factor": 2}, "data.oversample_factor"),
        ({"n_samples": 1}, "data.accuracy_lower_bound"),
        ({"accuracy_lower_bound": 0.8, "accuracy_upper_bound": 0.2}, "data.accuracy_lower_bound"),
        ({"oversample_factor": 0.5}, "data.oversample_factor"),
        ({"task": {"family": "chain", "low": 5, "high": 4}}, "data.task.low"),
        ({"task": {"family": "chain", "ops": "++"}}, "data.task.ops"),
        ({"task": {"family": "chain", "steps": 3, "min_steps": 4}}, "data.task.min_steps"),
        ({"task": {"family": "register", "steps": 25}}, "data.task.inputs"),
        ({"task": {"family": "swap", "modulus": 7}}, "data.task.modulus"),
        ({"n_sample": 4}, "data.n_sample"),
    ],
)
def test_knobs_that_do_nothing_or_do_not_fit_are_refused(given, key):
    with refuses(key):
        validate(Section, {"data": given}, origin="study.yaml")


def test_the_section_of_the_seed_loads_as_it_stands_and_survives_being_written():
    section = {
        "n_samples": 4,
        "filter_accuracy": True,
        "filter_truncated": True,
        "accuracy_lower_bound": 0.2,
        "accuracy_upper_bound": 0.8,
        "oversample_factor": 1,
        "system_prompt": None,
    }
    loaded = validate(Section, {"data": section}, origin="seed").data
    defaults = GeneratedDataSettings()
    assert all(getattr(loaded, key) == getattr(defaults, key) for key in section)
    for other in (loaded, GSM8KDataSettings(path="x", verifier="exact", filter_accuracy=False)):
        assert validate(Section, {"data": to_plain(other)}, origin="again").data == other


@pytest.mark.hostile("files")
def test_fuzzed_rows_are_read_or_refused_never_more():
    rng = np.random.default_rng(0)
    values = [
        None,
        "",
        "a",
        1,
        True,
        [],
        {},
        [{"role": "user", "content": "q"}],
        {"ground_truth": "1"},
        "#### ",
        "\\boxed{",
    ]
    keys = ["prompt", "question", "answer", "solution", "reward_model", "extra_info", "id", "data_source"]
    read, refusals = 0, []
    for _ in range(800):
        row = {key: values[rng.integers(len(values))] for key in keys if rng.random() < 0.6}
        try:
            prompt = prompt_from_row(row, "f:1", "s")
        except DataError as error:
            refusals.append(str(error))
        else:
            read += 1
            assert prompt.question
            assert prompt.ground_truth
    assert read > 20
    assert all(text.startswith("f:1") for text in refusals)


def test_a_row_keeps_its_tools_and_every_turn(tmp_path):
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    turns = [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    rows = [
        {"prompt": turns, "answer": "2", "tools": json.dumps([{"name": "add"}])},
        {"prompt": turns[:2], "answer": "2"},
        {"prompt": turns[:2], "answer": "2", "tools": []},
        {"question": "1+1?", "answer": "2"},
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second, third, lone = read_prompts(path)
    assert [m["role"] for m in first.messages] == ["system", "user", "assistant", "tool"]
    assert first.tools == ({"type": "function", "function": {"name": "add"}},)
    assert (first.question, first.context) == ("1+1?", first.messages)
    assert (second.tools, second.context, lone.context) == ((), second.messages, ())
    assert (second.id, third.id, lone.id) == (lone.id.removesuffix("-3"), f"{second.id}-2", f"{second.id}-3")
    assert first.id.partition("-")[0] != second.id
    path.write_text(json.dumps({"question": "1+1?", "answer": "2", "tools": [3]}) + "\n")
    with refuses("tools"):
        read_prompts(path)


def test_what_the_data_section_puts_before_a_question_is_not_part_of_it(tmp_path):
    ask, own = {"role": "user", "content": "1+1?"}, {"role": "system", "content": "own"}
    rows = [{"prompt": [own, {**ask, "content": f"{k}+1?"}], "answer": "2", "solution": "so 2"} for k in range(6)]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def first(**given):
        return load_prompts(FilesDataSettings(train_files=str(path), val_size=1, **given))[0][0]

    kept, replaced, shown = first(), first(system_prompt="new"), first(shots=2)
    assert kept.context == kept.messages
    assert replaced.messages[0]["content"] == "new"
    assert replaced.context == ()  # the row's own system turn is the policy's no more, and nobody's
    assert len(shown.messages) == 6
    assert [m["role"] for m in shown.context] == ["system", "user"]


def test_conversations_that_differ_anywhere_have_names_of_their_own():
    last = {"role": "user", "content": "so?"}
    contexts = [
        (),
        ({"role": "system", "content": "a"}, last),
        ({"role": "system", "content": "b"}, last),
        ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, last),
        ({"role": "user", "content": "x"}, {"role": "assistant", "content": "z"}, last),
        ({"role": "user", "content": "w"}, {"role": "assistant", "content": "y"}, last),
    ]
    tool = {"type": "function", "function": {"name": "f"}}
    names = {conversation_hash("so?", context, tools) for context in contexts for tools in ((), (tool,))}
    assert len(names) == 12
    assert conversation_hash("so?") == question_hash([last]) == "7d9fcc4d93fb7170"
    chats = {question_hash(context) for context in contexts[2:]}
    assert len(chats) == 4  # of the last three each, and the lone one after a system turn
    assert question_hash(contexts[1]) == question_hash(contexts[2]) == question_hash([last])


def test_the_columns_of_the_data_section_are_those_of_its_files(tmp_path):
    path = write_lines(tmp_path / "exam.jsonl", [{"task": f"{k}+1?", "key": k + 1, "answer": "no"} for k in range(6)])
    for columns in ({"prompt": "task", "reference": "key"}, "prompt=task,reference=key"):
        train, held_out = load_prompts(FilesDataSettings(train_files=str(path), val_size=2, columns=columns))
        found = {p.question: p.ground_truth for p in (*train, *held_out)}
        assert found == {f"{k}+1?": str(k + 1) for k in range(6)}
    asked = PromptsDataSettings(path=str(path), val_size=2, columns="prompt=task")
    assert {p.question for part in load_prompts(asked) for p in part} == {f"{k}+1?" for k in range(6)}
    with refuses("taks"):
        load_prompts(FilesDataSettings(train_files=str(path), columns="prompt=taks"))


def test_what_the_data_section_was_read_as_is_kept(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", [{"question": f"{k}+1?", "answer": str(k + 1)} for k in range(4)])
    read_as = []
    load_prompts(FilesDataSettings(train_files=str(path), val_size=1), read_as=read_as)
    assert [one.columns for one in read_as] == [{"prompt": "question", "reference": "answer"}]
    assert (read_as[0].record["rows"], read_as[0].record["used"]) == (4, 4)


def test_options_under_other_names_are_read_once_they_are_said(tmp_path):
    rows = [
        {"frage": "2+2?", "wahl": ["3", "4"], "richtig": 1, "thema": "a"},
        {"frage": "2+3?", "wahl": ["5", "4"], "richtig": 0, "thema": "b"},
    ]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    first, second = read_prompts(path, columns="prompt=frage,options=wahl,reference=richtig")
    assert (first.question, first.ground_truth) == ("2+2?\n\n(A) 3\n(B) 4", "B")
    assert (second.question, second.ground_truth) == ("2+3?\n\n(A) 5\n(B) 4", "A")


def test_an_answer_in_another_column_counts_where_the_first_is_null(tmp_path):
    rows = [{"question": "a", "answer": "1", "target": None}, {"question": "b", "answer": None, "target": "2"}]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    assert [p.ground_truth for p in read_prompts(path)] == ["1", "2"]


def test_prompts_of_preferences_are_what_their_responses_answer(tmp_path):
    talk = "\n\nHuman: Name a colour?\n\nAssistant:"
    rows = [{"chosen": f"{talk} Red.", "rejected": f"{talk} Seven."}]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    (prompt,) = read_prompts(path, answered=False)
    assert prompt.messages == ({"role": "user", "content": "Name a colour?"},)
