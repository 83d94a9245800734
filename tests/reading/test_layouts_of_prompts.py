"""Every layout of prompts: the question, the true answer and the worked solution, in any container, order and name."""

import json
import random

import pytest
from layout_files import written
from layout_rows import ANSWERS, PROMPTS, UNANSWERED, letter, stdin

from guerdon.errors import DataError
from guerdon.tasks.prompt_files import read_prompts
from tables import refuses

CHOICES = ("MMLU", "MMLU-Pro", "GPQA")
SOLUTIONS = {
    "GSM8K": "So it is.\n#### {}", "MATH": "It is $\\boxed{{{}}}$.", "MATH-500": "It is $\\boxed{{{}}}$.",
    "AIME": "so {}", "OpenMathInstruct-2": "so \\boxed{{{}}}",
}  # fmt: skip
BRIEF = {"role": "system", "content": "Be brief."}
LONG = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Yes?"}]


def case_of(name):
    return next(one for one in (*PROMPTS, *UNANSWERED) if one.name == name)


def right_letter(prompt, answer):
    """The letter in front of the right option, whose order is drawn."""
    (line,) = [line for line in prompt.question.splitlines() if line.endswith(f") {answer}") and line[0] == "("]
    return line[1]


def check_answered(name, prompts, given):
    """Whether each prompt has the question, the true answer and the worked solution that the row was made from."""
    assert [question in p.question for p, (question, _) in zip(prompts, given, strict=True)] == [True] * len(given)
    for prompt, (question, answer) in zip(prompts, given, strict=True):
        tests = json.loads(prompt.ground_truth) if prompt.ground_truth.startswith("{") else {}
        wanted = {
            "HumanEval": lambda a=answer, t=tests: t["test"] == f"def check(g):\n    assert g() == {a!r}\n",
            "MBPP": lambda a=answer, t=tests: t["test_list"] == [f"assert f() == {a!r}"],
            "LiveCodeBench": lambda a=answer, t=tests: t["public_test_cases"] == t["private_test_cases"] == stdin(a),
            "GPQA": lambda a=answer, p=prompt: p.ground_truth == right_letter(p, a),
            "MMLU": lambda a=answer, p=prompt: p.ground_truth == letter(a),
            "MMLU-Pro": lambda a=answer, p=prompt: p.ground_truth == letter(a),
        }
        assert wanted.get(name, lambda a=answer, p=prompt: p.ground_truth == a)()
        assert prompt.solution == (SOLUTIONS[name].format(answer) if name in SOLUTIONS else None)
        if name not in (*CHOICES, "HumanEval"):
            assert prompt.messages == ({"role": "user", "content": question},)


def check_unanswered(name, prompts, given):
    """The same of rows without a true answer: what was asked is all of it, what was answered is a worked solution."""
    before = {"OpenAI, fine-tuning": [BRIEF], "chats in cells of text": LONG, "history": [BRIEF, *LONG]}
    assert len(prompts) == len(given)
    for prompt, (question, answer) in zip(prompts, given, strict=True):
        asked = f"About {answer}.\n\n{question}" if name == "Dolly" else question
        assert prompt.messages == (*before.get(name, []), {"role": "user", "content": asked})
        assert prompt.ground_truth == ""
        assert prompt.solution == (None if name in ("IFEval", "HealthBench") else answer)
        rubric = [{"criterion": answer, "points": 5, "tags": ["x"]}]
        assert prompt.extra_info == ({"rubric": rubric} if name == "HealthBench" else {})


def checked(name, path, given, **how):
    answered = any(case.name == name for case in PROMPTS)
    check = check_answered if answered else check_unanswered
    check(name, read_prompts(path, answered=answered, **how), given)


@pytest.mark.parametrize("name", [case.name for case in (*PROMPTS, *UNANSWERED)])
def test_prompts_are_read_as_they_are_meant_in_every_container(tmp_path, name):
    rows = [case_of(name).make(*one) for one in ANSWERS]
    for ending in (".jsonl", ".jsonl.gz", ".json", ".parquet", ".csv"):
        checked(name, written(tmp_path, f"rows{ending}", rows), ANSWERS)


@pytest.mark.parametrize("name", [case.name for case in (*PROMPTS, *UNANSWERED)])
def test_the_order_of_rows_and_columns_beside_them_change_nothing(tmp_path, name):
    rows = [case_of(name).make(*one) | {"notes": f"n{k}", "zz": k} for k, one in enumerate(ANSWERS)]
    order = random.Random(2).sample(range(len(rows)), len(rows))
    checked(name, written(tmp_path, "rows.jsonl", [rows[k] for k in order]), [ANSWERS[k] for k in order])


@pytest.mark.parametrize("name", [case.name for case in (*PROMPTS, *UNANSWERED) if case.columns])
@pytest.mark.parametrize("as_text", [True, False])
def test_prompts_under_other_names_are_read_once_they_are_said(tmp_path, name, as_text):
    case = case_of(name)
    rows = [case.make(*one) for one in ANSWERS]
    own = {column: f"c{k}" for k, column in enumerate(rows[0])}
    path = written(tmp_path, "rows.jsonl", [{own[column]: cell for column, cell in row.items()} for row in rows])
    said = {role: own[column] for role, _, column in (one.partition("=") for one in case.columns.split(","))}
    columns = ",".join(f"{role}={column}" for role, column in said.items()) if as_text else said
    checked(name, path, ANSWERS, columns=columns)


def test_a_row_without_a_true_answer_is_left_out_and_counted(tmp_path, capsys):
    rows = [{"question": f"What is {k}+1?", "answer": None if k == 3 else str(k + 1)} for k in range(40)]
    path = written(tmp_path, "rows.csv", rows)
    assert [p.ground_truth for p in read_prompts(path)] == [str(k + 1) for k in range(40) if k != 3]
    assert f"{path}: 40 rows read, 39 used, 1 left out (1 no_true_answer)" in capsys.readouterr().err


def test_ifeval_has_no_verifier_and_the_refusal_says_so(tmp_path):
    row = case_of("IFEval").make("Write without commas.", "")
    with pytest.raises(DataError, match="the instructions of IFEval are checked by a program of its own"):
        read_prompts(written(tmp_path, "rows.jsonl", [row]))


def test_rows_with_pictures_sound_or_video_are_left_out_and_counted(tmp_path, capsys):
    picture = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "x"}}]
    rows = [
        {"prompt": "1+1?", "answer": "2", "image": None},
        {"prompt": "What is this?", "answer": "a cat", "image": "cat.png"},
        {"prompt": [{"role": "user", "content": picture}], "answer": "a dog", "image": None},
    ]
    path = written(tmp_path, "rows.jsonl", rows)
    assert [p.question for p in read_prompts(path)] == ["1+1?"]
    assert f"{path}: 3 rows read, 1 used, 2 left out (2 has_images)" in capsys.readouterr().err


def test_tools_and_a_system_prompt_reach_the_prompt(tmp_path):
    row = {"question": "1+1?", "answer": "2", "system": "Use tools.", "tools": json.dumps([{"name": "add"}])}
    (prompt,) = read_prompts(written(tmp_path, "rows.jsonl", [row]))
    assert prompt.messages == ({"role": "system", "content": "Use tools."}, {"role": "user", "content": "1+1?"})
    assert prompt.tools == ({"type": "function", "function": {"name": "add"}},)


def test_two_questions_in_a_row_are_refused_with_both(tmp_path):
    rows = [
        {"question": "1+1?", "problem": "2+2?", "answer": "2"},
        {"question": "3+1?", "problem": "4?", "answer": "4"},
    ]
    path = written(tmp_path, "rows.jsonl", rows)
    with refuses("prompt"):
        read_prompts(path)
    assert [p.question for p in read_prompts(path, columns="prompt=problem")] == ["2+2?", "4?"]


def test_shards_of_train_alone_are_trained_on_and_a_column_of_splits_is_obeyed(tmp_path):
    for name, question in [("train-00000-of-00002", "a"), ("train-00001-of-00002", "b"), ("test-00000-of-00001", "c")]:
        written(tmp_path / "hub", f"{name}.parquet", [{"question": question, "answer": "1"}])
    assert [p.question for p in read_prompts(tmp_path / "hub", train=True)] == ["a", "b"]
    assert [p.question for p in read_prompts(f"{tmp_path / 'hub'}:test")] == ["c"]
    rows = [
        {"question": q, "answer": "1", "split": split} for q, split in [("a", "train"), ("b", "val"), ("c", "test")]
    ]
    path = written(tmp_path, "rows.jsonl", rows)
    assert [p.question for p in read_prompts(path, train=True)] == ["a"]
    assert [p.question for p in read_prompts(path)] == ["a", "b", "c"]
