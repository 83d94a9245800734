"""Multiple-choice rows, with texts of our own.

Columns as EleutherAI/lm-evaluation-harness reads them (in lm_eval/tasks: hellaswag/utils.py, sciq/sciq.yaml,
winogrande/preprocess_winogrande.py, logiqa/utils_logiqa.py, medmcqa/utils_medmcqa.py, mathqa/utils.py, siqa/siqa.yaml,
super_glue/copa/utils.py, openbookqa/openbookqa.yaml, piqa/piqa.yaml); GPQA as openai/simple-evals reads its CSV; AQuA
as in google-deepmind/AQuA's README.md; MMLU-Pro as in TIGER-AI-Lab/MMLU-Pro's evaluate_from_local.py.
"""

import json
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.errors import DataError
from guerdon.settings.data import FilesDataSettings
from guerdon.tasks.choices import read_choices
from guerdon.tasks.prompt_files import load_prompts, read_prompts
from guerdon.tasks.prompts import UnreadableGoldError
from guerdon.tasks.verifier import Verifier
from memory_rows import prompt_from_row
from tables import cases

FISH = ("Which of these lives in water?", ["an oak", "a trout", "a hawk", "a fox"])
SHOWN = "Which of these lives in water?\n\n(A) an oak\n(B) a trout\n(C) a hawk\n(D) a fox"
Q, OPTIONS = FISH
LETTERED = dict(zip("ABCD", OPTIONS, strict=True))
LABELLED = {"text": OPTIONS, "label": ["A", "B", "C", "D"]}

SAME = {  # layouts of one question: all of them show the same text, and the answer is B
    "MMLU": {"question": Q, "subject": "biology", "choices": OPTIONS, "answer": 1},
    "MMLU with gaps, by pandas": {"question": Q, "choices": OPTIONS, "answer": 1.0},
    "options in extra_info": {"question": Q, "answer": "B", "extra_info": {"options": OPTIONS, "index": 7}},
    "verl, options in extra_info": {"prompt": [{"role": "user", "content": Q}], "reward_model": {"ground_truth": "B"},
             "extra_info": {"choices": LETTERED, "split": "train"}},
    "options in metadata": {"question": Q, "answer": 1, "metadata": {"candidates": OPTIONS}},
    "candidates": {"question": Q, "candidates": OPTIONS, "label": 1},
    "candidate_answers": {"question": Q, "candidate_answers": OPTIONS, "answer": "a trout"},
    "MMLU, letter": {"question": Q, "choices": OPTIONS, "answer": "B"},
    "MMLU-Pro": {"question": Q, "options": OPTIONS, "answer": "B", "answer_index": 1, "cot_content": ""},
    "ARC": {"id": "Mercury_1", "question": Q, "choices": LABELLED, "answerKey": "B"},
    "ARC, numbered": {"question": Q, "choices": {"text": OPTIONS, "label": ["1", "2", "3", "4"]}, "answerKey": "2"},
    "ARC's own file": {
        "question": {"stem": Q, "choices": [{"text": t, "label": n} for t, n in zip(OPTIONS, "ABCD", strict=True)]},
        "answerKey": "B",
    },
    "CommonsenseQA": {"question": Q, "question_concept": "water", "choices": LABELLED, "answerKey": "B"},
    "OpenBookQA": {"question_stem": Q, "choices": LABELLED, "answerKey": " B"},
    "AQuA": {"question": Q, "options": [f"{n}){t}" for n, t in zip("ABCD", OPTIONS, strict=True)], "correct": "B"},
    "AGIEval": {"passage": None, "question": Q, "options": [f"({n}){t}" for n, t in zip("ABCD", OPTIONS, strict=True)],
                "label": "B", "answer": None},
    "MathQA": {"Problem": Q, "options": "a ) an oak , b ) a trout , c ) a hawk , d ) a fox", "correct": "b"},
    "MedQA": {"question": Q, "answer": "a trout", "options": LETTERED, "answer_idx": "B"},
    "MedMCQA": {"question": Q, "opa": OPTIONS[0], "opb": OPTIONS[1], "opc": OPTIONS[2], "opd": OPTIONS[3], "cop": 1},
    "C-Eval": {"id": 0, "question": Q, **LETTERED, "answer": "B", "explanation": ""},
    "MMMLU": {"Question": Q, **LETTERED, "Answer": "B", "Subject": "biology"},
    "LogiQA": {"query": Q, "options": OPTIONS, "correct_option": 1},
    "LogiQA, letter": {"question": Q, "options": OPTIONS, "label": "b"},
    "ReClor": {"question": Q, "answers": OPTIONS, "label": 1},
    "text of the option": {"question": Q, "choices": OPTIONS, "answer": "A trout"},
    "letter with the text": {"question": Q, "choices": OPTIONS, "answer": "(B) a trout"},
    "one in a list": {"question": Q, "choices": OPTIONS, "answer": ["B"]},
    "keys and values": {
        "question": Q, "options": [{"key": n, "value": t} for n, t in zip("ABCD", OPTIONS, strict=True)], "answer": "B",
    },
    "a list in CSV": {"question": Q, "choices": str(OPTIONS), "answer": "1"},
    "a list in JSON": {"question": Q, "choices": json.dumps(OPTIONS), "answer": "B"},
    "numbered columns": {"question": Q, **{f"option_{k}": t for k, t in enumerate(OPTIONS, 1)}, "answer": "B"},
    "verl": {"prompt": [{"role": "user", "content": Q}], "choices": OPTIONS, "reward_model": {"ground_truth": "B"}},
    "a list of options": {"question": Q, "option_list": OPTIONS, "correct_index": 1},
    "answer options": {"question": Q, "answer_options": OPTIONS, "answer_letter": "B", "correctAnswer": "a trout"},
    "right answer as text": {"question": Q, "choices": OPTIONS, "correct_answer": "a trout"},
    "gold": {"question": Q, "choices": OPTIONS, "gold": 1},
    "marked": {"question": Q, "choices": OPTIONS, "answer": "Trouts are fish.\n#### B"},
}  # fmt: skip


@cases("row", SAME.values(), ids=SAME)
def test_every_layout_of_one_question_shows_the_same_text_and_has_the_letter_as_answer(row):
    prompt = prompt_from_row(row, "f:1", "s")
    assert (prompt.question, prompt.ground_truth) == (SHOWN, "B")


OWN = [
    (
        {"ind": 4, "activity_label": "Baking", "ctx_a": "He stirs.", "ctx_b": "then he", "ctx": "He stirs. then he",
         "endings": ["sleeps", "kneads", "sings"], "source_id": "x", "label": "1"},
        "Baking: He stirs. then he\n\nHow does the text go on?\n\n(A) sleeps\n(B) kneads\n(C) sings", "B",
    ),
    (
        {"sentence": "The cup broke as the _ was hard.", "option1": "cup", "option2": "floor", "answer": "2"},
        "The cup broke as the _ was hard.\n\nWhich option fits in the place of _?\n\n(A) cup\n(B) floor", "B",
    ),
    ({"goal": "Open a jar.", "sol1": "Twist it.", "sol2": "Lick it.", "label": 0},
     "Open a jar.\n\n(A) Twist it.\n(B) Lick it.", "A"),
    ({"context": "Ann fell.", "question": "How is she?", "answerA": "hurt", "answerB": "rich", "answerC": "blue",
      "label": "1"}, "Ann fell.\n\nHow is she?\n\n(A) hurt\n(B) rich\n(C) blue", "A"),
    ({"premise": "It is wet.", "choice1": "It rained.", "choice2": "It is flat.", "question": "cause", "label": 0},
     "It is wet.\n\nWhat was the cause of this?\n\n(A) It rained.\n(B) It is flat.", "A"),
    ({"article": "Bo has a dog.", "question": "Bo has a _ .", "options": ["cat", "dog"], "answer": "B"},
     "Bo has a dog.\n\nBo has a _ .\n\n(A) cat\n(B) dog", "B"),
    ({"passage": "Ice is cold.", "question": "is ice hot", "answer": False},
     "Ice is cold.\n\nis ice hot\n\n(A) yes\n(B) no", "B"),
    ({"startphrase": "He", "ending0": "a", "ending1": "b", "ending2": "c", "ending3": "d", "label": 3},
     "He\n\n(A) a\n(B) b\n(C) c\n(D) d", "D"),
    ({"article": "A.", "question": "Q?", "options": ["w", "x", "y"], "gold_label": 3},
     "A.\n\nQ?\n\n(A) w\n(B) x\n(C) y", "C"),
    ({"question": "Is 7 prime?", "choices": ["True", "False"], "answer": True},
     "Is 7 prime?\n\n(A) True\n(B) False", "A"),
    ({"question": "Pick.\nA. one\nB. two", "choices": ["one", "two"], "answer": "B"}, "Pick.\nA. one\nB. two", "B"),
]  # fmt: skip


@cases(("row", "question", "gold"), OWN)
def test_layouts_with_a_question_of_their_own(row, question, gold):
    prompt = prompt_from_row(row, "f:1", "s")
    assert (prompt.question, prompt.ground_truth) == (question, gold)


def apart(right, *wrong):
    """Layouts in which the right answer stands first."""
    return [
        {"Question": Q, "Correct Answer": right, **{f"Incorrect Answer {k}": w for k, w in enumerate(wrong, 1)}},
        {
            "question": Q,
            **{f"distractor{k}": w for k, w in enumerate(wrong, 1)},
            "correct_answer": right,
            "support": "s",
        },
        {"question": Q, "mc1_targets": {"choices": [right, *wrong], "labels": [1, *[0] * len(wrong)]}},
        {"question": Q, "mc1_targets": {right: 1, **dict.fromkeys(wrong, 0)}, "mc2_targets": {right: 1}},
        {"question": Q, "correct_answer": right, "incorrect_answers": list(wrong)},
    ]


@given(
    st.lists(st.text("abcd ", min_size=1).map(str.strip).filter(bool), min_size=2, max_size=8, unique=True),
    st.integers(0, 9),
)
def test_where_the_right_answer_stands_first_the_order_is_drawn_and_depends_on_no_position(texts, seed):
    found = [read_choices(row, "f:1", seed=seed) for row in apart(*texts)]
    assert len({one.options for one in found}) == 1  # the seed, the question and the options alone
    swapped = read_choices(apart(*texts[1:], texts[0])[0], "f:1", seed=seed)
    assert swapped.options == found[0].options
    for one in found:
        assert sorted(one.options) == sorted(texts)
        assert one.options["ABCDEFGH".index(one.answer)] == texts[0]


def test_the_letters_of_shuffled_answers_are_even_and_change_with_the_seed():
    rows = [{**apart("r", "x", "y", "z")[0], "Question": f"Question {k}?"} for k in range(800)]
    letters = [read_choices(row, "f:1").answer for row in rows]
    assert all(150 < n < 250 for n in Counter(letters).values())  # 200 expected, 12 the standard deviation
    assert [read_choices(row, "f:1").answer for row in rows] == letters
    assert [read_choices(row, "f:1", seed=1).answer for row in rows] != letters


@cases(
    ("row", "field", "why"),
    [
        ({"question": Q, "choices": OPTIONS, "answer": 4}, "answer", "names none of the 4 options (counted from 0)"),
        ({"question": Q, "choices": OPTIONS, "answer": "9" * 5000}, "answer", ""),
        ({"question": Q, "A": "1", "B": "2", "C": "3", "answer": 2}, "answer", "first option is not known"),
        ({"question": Q, "options": OPTIONS, "answer": "A", "answer_index": 1}, None, "answer A, answer_index B"),
        ({"question": Q, "options": OPTIONS, "answer": ["A", "B"]}, "answer", "must be a letter, a number or the text"),
        ({"question": Q, "choices": [{"message": "m"}], "answer": "A"}, "choices", "f:1: choices: options in a layout"),
        ({"question": Q, "options": {"low": 1, "high": 3}, "answer": "2"}, "options", ""),
        ({"question": Q, "choice": ["a", "b"], "answer": "a"}, "choice", ""),
        ({"question": Q, "answerChoices": ["a", "b"], "answer": "B"}, "answerChoices", ""),
        ({"question": Q, "mcq_options": ["a", "b"], "answer": 1}, "mcq_options", ""),
        ({"question": Q, "possible_answers": ["a", "b"], "answer": 1}, "possible_answers", ""),
        ({"question": Q, "choices": "a or b", "answer": "a"}, "choices", "found question, choices, answer; write"),
        ({"question": Q, "mc2_targets": {"choices": ["a", "b"], "labels": [1, 1]}}, "mc2_targets", ""),
        ({"question": Q, "mc1_targets": {"choices": ["a", "b"], "labels": [1, 1]}}, "mc1_targets", "2 right answers"),
        ({"question": Q, "choices": ["a", " "], "answer": 0}, None, "option B is empty"),
        ({"question": Q, "choices": list(map(str, range(100, 130))), "answer": 0}, None, "30 options; a question has"),
        ({"choices": OPTIONS, "answer": 0}, "prompt", "no question"),
    ],
)  # fmt: skip
def test_options_in_no_known_layout_are_refused_with_the_columns(row, field, why):
    with pytest.raises(DataError, match=re.escape(why) or None) as refused:
        prompt_from_row(row, "f:1", "s")
    assert (refused.value.where, refused.value.field) == ("f:1", field)
    assert not isinstance(refused.value, UnreadableGoldError)


@cases(
    "row",
    [
        {"question": Q, "choices": OPTIONS, "answer": -1},  # a test split without answers
        {"question": Q, "choices": OPTIONS, "answer": None},
        {"question": Q, "choices": OPTIONS, "answer": float("nan")},
        {"question": Q, "choices": OPTIONS},
        {"ctx": Q, "endings": OPTIONS, "label": ""},
        {"question": Q, "choices": LABELLED, "answerKey": ""},
        {"question": Q, "choices": OPTIONS, "answer": "F"},
        {"question": Q, "choices": OPTIONS, "answer": "a whale"},
        {"question": Q, "choices": ["1", "2", "3"], "answer": "2"},  # the second, or the third
        {"question": Q, "animals": OPTIONS, "answer": "B"},  # in no known layout
        {"question": Q, "animals": dict(zip("ABCD", OPTIONS, strict=True)), "answer": "(B)"},
        {"question": Q, "animals": OPTIONS, "answer": 1},
        {"question": Q, "extra_info": {"shown": {"animals": OPTIONS}}, "answer": "B"},
        {"question": Q, "a": OPTIONS[0], "b": OPTIONS[1], "c": OPTIONS[2], "answer": "b"},
        apart("a", "a", "b")[0],
        {**apart("a", "b", "c")[0], "Correct Answer": None},
    ],
)
def test_a_gold_that_names_no_option_is_unreadable(row):
    with pytest.raises(UnreadableGoldError) as refused:
        prompt_from_row(row, "f:1", "s")
    assert refused.value.where == "f:1"


def test_a_search_asks_questions_with_options_and_without_an_answer():
    for row in ({"question": Q, "choices": OPTIONS}, {**apart(*OPTIONS)[1], "correct_answer": None}):
        prompt = prompt_from_row(row, "f:1", "s", answered=False)
        assert prompt.ground_truth == ""
        assert "\n(B) " in prompt.question


@cases(
    "row",
    [
        {"question": "3 + 5?", "a": "3", "b": "5", "c": "1", "answer": "8"},
        {"question": "x?", "A": 1.5, "B": 2.0, "C": 3.0, "answer": "8"},
        {"question": "x?", "choices": None, "options": [], "answer": "8"},
        {"question": "x?", "choices": {"text": [], "label": []}, "answer": "8"},
        {"question": "x?", "answer": "8", "incorrect_answers": ["7"]},
        {"question": "x?", "answer": "8", "tool_choice": "auto", "num_options": 4, "options_seen": []},
        {"question": "x?", "answer": "8", "label": "easy", "text": "y"},
        {"question": "Which letter?", "answer": "B", "tags": ["algebra", "easy"], "steps": ["one", "two"]},
        {"question": "Which?\n(A) 3\n(B) 5", "answer": "B", "figures": ["one", "two"]},
        {"question": "x?", "answer": 1, "numbers": ["3", "4"], "names": ["x", "y"]},
        {"question": "x?", "answer": "8", "candidates": ["It is 8, because " * 40, "It is 7, because " * 40]},
        {"question": "x?", "answer": "8", "extra_info": {"index": 3, "answer": "so #### 8", "split": "train"}},
    ],
)
def test_rows_without_options_stay_as_they_are(row):
    prompt = prompt_from_row(row, "f:1", "s")
    assert (prompt.question, prompt.ground_truth) == (row["question"], str(row["answer"]))


def test_files_with_choices_are_read_alike_and_verified_by_their_letters(tmp_path):
    rows = [{**SAME["MMLU"], "question": f"{k}: {Q}", "answer": k % 4} for k in range(8)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    prompts = read_prompts(tmp_path / "q.jsonl")
    assert [p.messages for p in read_prompts(tmp_path / "q.parquet")] == [p.messages for p in prompts]
    train, val = load_prompts(FilesDataSettings(train_files=(str(tmp_path / "q.jsonl"),), val_size=3))
    assert (len(train), len(val)) == (5, 3)
    with Verifier("auto") as verifier:
        for letter in "ABCD":
            for prompt in prompts[:4]:
                right = verifier.check(f"It is \\boxed{{{letter}}}.", prompt).correct
                assert right is (letter == prompt.ground_truth)
