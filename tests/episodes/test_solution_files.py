"""Step-labelled solutions in the formats of the field: published conventions, round trips, bad rows."""

import gc
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guerdon.episodes.solution_files import published_solutions, read_solutions, solutions_in, write_solutions
from guerdon.episodes.solution_formats import (
    NotExpressibleError,
    from_record,
    labels_of_rewards,
    to_math_shepherd,
    to_prm800k,
    to_process_bench,
    to_record,
    to_training,
    to_trl,
)
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.reading.layouts import columns_of, layout_of
from guerdon.reading.shown import stored_columns
from memory_rows import reading_of
from tables import cases, refuses

SEED = {  # the sample of the seed's guide, whose solution is shortened
    "question": "If x + y = 10 and x - y = 4, what is x?",
    "solution": "Let me solve this system...",
    "steps": [
        "We have two equations: x + y = 10 and x - y = 4",
        "Adding the equations: 2x = 14",
        "Therefore: x = 7",
    ],
    "step_rewards": [1.0, 1.0, 1.0],
    "is_correct": True,
    "ground_truth_answer": "7",
}
PRM800K = {
    "labeler": "340d", "timestamp": "2023-01-22", "generation": 9, "is_quality_control_question": False,
    "question": {
        "problem": "Add 1 and 1.", "ground_truth_answer": "2", "pre_generated_steps": ["a", "b"],
        "pre_generated_answer": "3",
    },
    "label": {
        "steps": [
            {"completions": [{"text": "good", "rating": 1, "flagged": False}], "human_completion": None,
             "chosen_completion": 0},
            {"completions": [{"text": "bad", "rating": -1}, {"text": "neutral", "rating": 0}],
             "human_completion": None, "chosen_completion": 1},
            {"completions": None, "human_completion": {"text": "by hand", "rating": None}, "chosen_completion": None},
            {"completions": [{"text": "fine", "rating": 1}, {"text": "wrong", "rating": -1}],
             "human_completion": None, "chosen_completion": None},
        ],
        "total_time": 100, "finish_reason": "found_error",
    },
}  # fmt: skip
SHEPHERD = {
    "input": "Janet has 3 eggs. How many? Step 1: 1+1=2 ки\nStep 2: 2+2=5 ки\nStep 3: The answer is: 5 ки",
    "label": "Janet has 3 eggs. How many? Step 1: 1+1=2 +\nStep 2: 2+2=5 -\nStep 3: The answer is: 5 -",
    "task": "GSM8K",
}

WORDS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="к"), max_size=12)
SEPARATORS = st.sampled_from(["", "\n", "\n\n", ";", "ab"])


@st.composite
def solutions(draw, *, soft=True, labelled=False):
    """Any solution, or one whose labels are hard and not all missing."""
    separator = draw(SEPARATORS)
    steps = tuple(
        draw(st.lists(st.builds(lambda body, end: body + end, WORDS, st.sampled_from([separator, ""])), min_size=1))
    )
    n = len(steps)
    values = st.sampled_from([0.0, 1.0, None]) | (st.floats(0, 1) if soft else st.nothing())
    labels = draw(st.just(()) if not labelled and draw(st.booleans()) else st.tuples(*[values] * n))
    if labelled and all(v is None for v in labels):
        labels = (1.0, *labels[1:])
    rewards = draw(st.just(()) | st.tuples(*[st.none() | st.floats(-1, 1)] * n))
    return Solution(
        id=draw(st.text("abc-123", min_size=1)), question=draw(WORDS), steps=steps, labels=labels, rewards=rewards,
        is_correct=draw(st.none() | st.booleans()), ground_truth=draw(st.none() | WORDS),
        answer=draw(st.none() | WORDS),
        separator=separator,
        meta=draw(st.dictionaries(st.text("xyz", min_size=1), st.none() | st.integers(-9, 9) | WORDS, max_size=3)),
    )  # fmt: skip


def solution_from_row(row, where, name):
    """One row as a solution."""
    ((_, found),) = solutions_in(reading_of([row], name, where=where))
    if isinstance(found, DataError):
        raise found
    return found


LAYOUTS = {
    "seed": "solutions of guerdon", "trl": "TRL, steps", "prm800k": "PRM800K", "math_shepherd": "Math-Shepherd",
}  # fmt: skip


def again(solution, form):
    """Through one row of JSON and back."""
    write = {"seed": to_record, "trl": to_trl, "prm800k": to_prm800k, "math_shepherd": to_math_shepherd}[form]
    row = json.loads(json.dumps(write(solution)))
    assert layout_of(columns_of([row]), [row]).name == LAYOUTS[form]
    return solution_from_row(row, "x:1", "x")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(solutions())
def test_the_seeds_records_lose_nothing(solution):
    assert again(solution, "seed") == solution


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(solutions(labelled=True))
def test_stepwise_supervision_loses_nothing(solution):
    assert again(solution, "trl") == solution


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(solutions(labelled=True, soft=False))
def test_prm800k_loses_nothing_of_hard_labels(solution):
    assert again(solution, "prm800k") == solution


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(solutions(labelled=True, soft=False))
def test_math_shepherd_loses_nothing_where_labels_have_no_gap(solution):
    known = [v is not None for v in solution.labels]
    if known == sorted(known, reverse=True):
        assert again(solution, "math_shepherd") == solution
    else:
        with pytest.raises(NotExpressibleError, match="no label"):
            to_math_shepherd(solution)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("form", ["seed", "trl", "prm800k"])
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@given(found=st.lists(solutions(labelled=True, soft=False), min_size=2, max_size=4))
def test_files_hold_several_kinds_of_solutions(found, form, ending, tmp_path_factory):
    path = tmp_path_factory.mktemp("x") / f"file{ending}"
    written = write_solutions(path, found, form)
    assert list(read_solutions(path)) == found
    assert (written.rows, written.left_out) == (len(found), {})


def test_parquet_mixes_soft_and_hard_labels(tmp_path):
    found = (Solution("a", "q", ("x", "y"), (1.0, None)), Solution("b", "q", ("x",), (0.25,)))
    write_solutions(tmp_path / "x.parquet", found, "trl")
    assert read_solutions(tmp_path / "x.parquet") == found


def test_the_seeds_sample_reads_as_written():
    found = solution_from_row(SEED, "x:1", "x-0")
    assert found.steps == (*(s + "\n" for s in SEED["steps"][:2]), SEED["steps"][2])
    assert (found.labels, found.rewards, found.is_correct, found.ground_truth) == ((1.0,) * 3, (1.0,) * 3, True, "7")
    assert found.meta["solution_as_given"] == SEED["solution"]
    row = to_record(found)
    assert {k: row[k] for k in SEED if k != "solution"} == {k: v for k, v in SEED.items() if k != "solution"}


def test_the_seeds_training_form_is_its_own():
    found = solution_from_row(SEED, "x:1", "x-0")
    row = to_training(found)[1]
    assert row["input_text"] == (
        "### Question:\nIf x + y = 10 and x - y = 4, what is x?\n\n### Partial Solution:\n"
        "We have two equations: x + y = 10 and x - y = 4\nAdding the equations: 2x = 14\n\n### Evaluate this step:\n"
    )
    assert (row["target_text"], row["reward_value"]) == ("CORRECT (+1)", 1.0)


def test_training_rows_come_back_as_solutions(tmp_path):
    one = Solution("a", "Q\nq?", ("x=1.\n\n", "y=2.\n\n", "z=3"), (1.0, 0.0, 1.0), (0.7, -0.8, 1.0), separator="\n\n")
    two = Solution("b", "Q\nq?", ("x=1;", "y=3;"), (1.0, 0.0), (0.75, -1.0))
    written = write_solutions(tmp_path / "t.jsonl", [one, two], "training")
    assert (written.rows, written.solutions) == (5, 2)
    for read, given_ in zip(read_solutions(tmp_path / "t.jsonl"), (one, two), strict=True):
        assert (read.id, read.question, read.steps) == (given_.id, given_.question, given_.steps)
        assert (read.labels, read.rewards) == (given_.labels, given_.rewards)


def test_training_rows_without_ids_are_told_apart_by_their_text():
    rows = [{k: v for k, v in row.items() if k not in ("id", "step")} for row in to_training(
        Solution("a", "q", ("one ", "two"), (1.0, 1.0), (1.0, 1.0))) + to_training(
        Solution("b", "q", ("other",), (0.0,), (-1.0,)))]  # fmt: skip
    found = [s for _, s in solutions_in(reading_of(rows, "f"))]
    assert [s.steps for s in found] == [("one ", "two"), ("other",)]
    assert [s.id for s in found] == ["f-1", "f-3"]


def test_a_solution_ends_with_its_file(tmp_path):
    for name in ("a", "b"):
        one = Solution("same", "q", ("one ", "two")[: 1 + (name == "b")], (1.0, 1.0)[: 1 + (name == "b")],
                       (1.0, 1.0)[: 1 + (name == "b")])  # fmt: skip
        write_solutions(tmp_path / f"{name}.jsonl", [one], "training")
    assert [len(one.steps) for one in read_solutions(tmp_path)] == [1, 2]


@cases(
    ("write", "changes", "reason"),
    [
        (to_training, {"question": "q\n\n### Partial Solution:\nx"}, "mark_in_text"),
        (
            to_training,
            {"context": ({"role": "system", "content": "s"}, {"role": "user", "content": "q"})},
            "conversation",
        ),
        (to_process_bench, {"labels": (None, 0.0)}, "unlabelled"),
        (to_process_bench, {"labels": ()}, "unlabelled"),
    ],
)
def test_what_a_format_has_no_form_for_is_refused_with_its_reason(write, changes, reason):
    plain = Solution("a", "q", ("one ", "two"), (1.0, 0.0), (1.0, -1.0))
    assert write(plain)
    with pytest.raises(NotExpressibleError) as refused:
        write(replace(plain, **changes))
    assert refused.value.reason == reason


@cases(
    ("changes", "field"),
    [
        ({"labels": (1.0,)}, "labels"), ({"rewards": (0.5,) * 3}, "rewards"), ({"labels": (1.0, 1.5)}, "labels"),
        ({"rewards": (-1.5, 0.0)}, "rewards"),
    ],
)  # fmt: skip
def test_values_of_a_solution_are_one_for_each_step_and_within_their_range(changes, field):
    with refuses(field):
        Solution("a", "q", ("one ", "two"), **changes)


def test_a_solution_without_steps_cannot_be_scored():
    with refuses("steps"):
        Solution("a", "q", ()).as_episode()


def test_steps_without_label_have_no_training_row():
    found = Solution("a", "q", ("1\n", "2\n", "3"), (1.0, 0.0, None), (1.0, -1.0, None))
    assert [row["step"] for row in to_training(found)] == [0, 1]


@pytest.mark.parametrize(
    ("rewards", "is_correct", "labels"),
    [
        ((1.0, -1.0), True, (1.0, 0.0)),
        ((-1.0, -1.0), False, (None, None)),  # HE of a wrong solution says nothing about its steps
        ((-1.0, -1.0), None, (None, None)),
        ((1.0, -1.0), None, (1.0, 0.0)),  # a step is paid, so the solution was right
        ((0.75, -1.0), False, (1.0, 0.0)),  # SE
        ((0.75, None), False, (1.0, None)),
        ((), True, ()),
    ],
)
def test_labels_are_what_rewards_say_for_certain(rewards, is_correct, labels):
    assert labels_of_rewards(rewards, is_correct) == labels


def test_a_foreign_record_is_cut_where_its_steps_stand():
    row = {"question": "q", "solution": "Well. First, a. Then b!  End", "steps": ["First, a.", "Then b!"]}
    assert from_record(row, "x:1", "x").steps == ("Well. First, a. ", "Then b!  End")


def test_prm800k_ratings_and_choices():
    found = solution_from_row(PRM800K, "p:1", "p-0")
    assert found.steps == ("good\n", "neutral\n", "by hand\n", "wrong")
    assert found.labels == (1.0, 1.0, 1.0, 0.0)  # what a person wrote to go on from is right
    assert found.meta["ratings"] == [1, 0, 1, -1]
    assert (found.meta["finish_reason"], found.answer, found.ground_truth) == ("found_error", "3", "2")
    assert [s["completions"][0]["rating"] for s in to_prm800k(found)["label"]["steps"]] == [1, 0, 1, -1]
    assert again(found, "prm800k") == found


@pytest.mark.parametrize("reason", ["found_error", "solution", "bad_problem", "give_up"])
def test_prm800k_finish_reasons(reason):
    label = {**PRM800K["label"], "finish_reason": reason}
    assert solution_from_row({**PRM800K, "label": label}, "p:1", "p").meta["finish_reason"] == reason


def test_math_shepherd_as_published():
    found = solution_from_row(SHEPHERD, "m:1", "m-0")
    assert found.question == "Janet has 3 eggs. How many?"
    assert found.steps == ("Step 1: 1+1=2\n", "Step 2: 2+2=5\n", "Step 3: The answer is: 5")
    assert found.labels == (1.0, 0.0, 0.0)
    row = to_math_shepherd(found)
    assert {key: row[key] for key in SHEPHERD} == SHEPHERD


@pytest.mark.parametrize(("label", "expected"), [(-1, (1.0, 1.0, 1.0)), (0, (0.0, None, None)), (2, (1.0, 1.0, 0.0))])
def test_process_bench_counts_from_zero(label, expected):
    row = {"id": "gsm8k-0", "generator": "Qwen", "problem": "q", "steps": ["a", "b", "c"],
           "final_answer_correct": label == -1, "label": label}  # fmt: skip
    found = solution_from_row(row, "b:1", "b")
    assert (found.id, found.labels, found.first_error, found.is_correct) == ("gsm8k-0", expected, label, label == -1)
    assert found.text == "a\n\nb\n\nc"
    written = to_process_bench(found)
    assert {key: written[key] for key in row} == row
    assert solution_from_row(written, "b:1", "b") == found


def test_prmbench_counts_from_one():
    row = {"idx": "confidence_1", "original_question": "q", "modified_question": "q'", "original_process": ["x"],
           "modified_process": ["a", "b", "c"], "modified_steps": [2], "error_steps": [2, 3], "reason": "why",
           "question": "q", "classification": "confidence"}  # fmt: skip
    found = solution_from_row(row, "b:1", "b")
    assert (found.question, found.labels, found.first_error) == ("q'", (1.0, 0.0, 0.0), 1)
    assert found.meta["classification"] == "confidence"
    assert solution_from_row({**row, "error_steps": []}, "b:1", "b").first_error == -1


def test_stepwise_supervision_as_published():
    found = solution_from_row({"prompt": "q", "completions": ["a", "b"], "labels": [True, False]}, "t:1", "t")
    assert (found.steps, found.labels) == (("a\n", "b"), (1.0, 0.0))
    assert to_trl(found)["labels"] == [True, False]
    soft = solution_from_row({"prompt": "q", "completions": ["a", "b"], "labels": [0.8, 0]}, "t:1", "t")
    assert soft.labels == (0.8, 0.0)  # not cut to whole numbers
    masked = {"prompt": "q", "completions": ["a", "b"], "labels": [1, 0], "label_mask": [True, False]}
    assert solution_from_row(masked, "t:1", "t").labels == (1.0, None)


BAD = [
    ({"question": "q"}, None, "no known format"),
    ([1], None, "a row must be a map"),
    ({**SEED, "step_rewards": [1.0]}, "step_rewards", "1 step_rewards for 3 steps"),
    ({**SEED, "step_rewards": [1.0, 1.0, 3.0]}, "step_rewards", "allowed: -1 to 1"),
    ({**SEED, "step_rewards": [1.0, 1.0, float("nan")]}, "step_rewards", "allowed: -1 to 1"),
    ({**SEED, "is_correct": "yes"}, "is_correct", "is_correct must be true or false"),
    ({**SEED, "steps": ["a", 3]}, "steps", "texts only"),
    ({**SEED, "meta": '["a"]'}, "meta", "meta must be a map"),
    ({**SEED, "meta": '"text"'}, "meta", "meta must be a map"),
    ({**SEED, "step_labels": [1, 10**400, 0]}, "step_labels", "must hold numbers"),
    ({**SEED, "step_ends": [3, 2, 27]}, "step_ends", "do not cut"),
    ({**SEED, "step_ends": [3, 4, 5]}, "step_ends", "do not cut"),
    ({"prompt": "q", "completions": ["a"], "labels": [True, True]}, "labels", "2 labels for 1 completions"),
    ({"prompt": "q", "completions": ["a"], "labels": [2]}, "labels", "allowed: 0 to 1"),
    ({"prompt": "q", "completions": ["a"], "labels": ["+"]}, "labels", "must hold numbers"),
    ({"prompt": "q", "completions": ["a"], "labels": [1], "label_mask": []}, "label_mask", "label_mask"),
    ({**SHEPHERD, "label": SHEPHERD["label"].replace("2+2=5 -", "2+2=5 ?")}, "label", "step 2"),
    ({**SHEPHERD, "label": SHEPHERD["label"] + "x"}, "label", "end differently"),
    ({"input": "no marker", "label": "no marker"}, None, "no known format"),
    ({"input": "q a ки", "label": "q a +"}, "input", "Step 1"),
    ({**PRM800K, "label": {**PRM800K["label"], "finish_reason": "tired"}}, "finish_reason", "finish_reason"),
    ({**PRM800K, "label": {"steps": [], "finish_reason": "bad_problem"}}, None, "no step is rated"),
    (
        {"question": {"problem": "q"}, "label": {"steps": [{"completions": [{"text": "x", "rating": 2}]}]}},
        "rating",
        "rating 2",
    ),
    (
        {"question": {"problem": "q"}, "label": {"steps": [{"completions": [], "chosen_completion": 3}]}},
        "chosen_completion",
        "of 0 compl",
    ),
    ({"question": {"problem": "q"}, "label": {"steps": [{"completions": None}]}}, None, "neither"),
    ({"problem": "q", "steps": ["a"], "label": 1}, "label", "label 1"),
    ({"problem": "q", "steps": ["a"], "label": True}, "label", "label must be"),
    ({"modified_process": ["a"], "error_steps": [0], "question": "q"}, "error_steps", "from 1"),
    ({"input_text": "free text", "target_text": "CORRECT (+1)", "reward_value": 1}, "input_text", "### Question"),
    ({**to_training(from_record(SEED, "x", "x"))[0], "target_text": "MAYBE"}, "target_text", "MAYBE"),
    ({**to_training(from_record(SEED, "x", "x"))[0], "reward_value": 1.5}, "reward_value", "allowed: -1 to 1"),
]


@pytest.mark.hostile("files")
@pytest.mark.parametrize(("row", "field", "reason"), BAD, ids=[reason for *_, reason in BAD])
def test_a_bad_row_has_a_line_and_a_reason(row, field, reason, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(SEED)}\n\n{json.dumps(row)}\n{json.dumps(SEED)}\n")
    with refuses(field, reason) as error:
        read_solutions(path)
    assert error.value.where.startswith(f"{path}:3")
    bad = []
    assert len(read_solutions(path, bad=bad)) == 2
    assert len(bad) == 1
    assert f"{path}:3: " in bad[0]


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"{oops\n", r"x\.jsonl:1: not JSON"),
        ("x.jsonl", b"\xff\n", r"x\.jsonl:1: not JSON"),
        ("x.jsonl", b"[" * 100_000, r"x\.jsonl:1: nested deeper than 200 levels"),
        ("x.jsonl", b"\n", "no solution"),
        ("x.parquet", b"PAR1 no", "cannot be read as Parquet"),
        ("x.json", b"{}", "a JSON object without a list of rows"),
        ("x.txt", b"", "are read from"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    gc.collect()  # a finaliser that runs deep inside a nested document could not report anything
    with pytest.raises(DataError, match=message):
        read_solutions(tmp_path / name)


@pytest.mark.hostile("files")
def test_missing_files_and_files_without_a_good_row(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_solutions(tmp_path / "none.jsonl")
    (tmp_path / "x.jsonl").write_text("{}\n{}\n")
    with pytest.raises(DataError, match=r"all of its 2 rows are bad, the first: .*x\.jsonl:1"):
        read_solutions(tmp_path / "x.jsonl", bad=[])


def test_what_cannot_be_said_is_left_out_and_counted(tmp_path):
    soft = Solution("s", "q", ("a",), (0.5,))
    hard = Solution("h", "q", ("a",), (1.0,))
    none = Solution("n", "q", ("a",))
    marked = Solution("m", "где ки", ("a",), (1.0,))
    written = write_solutions(tmp_path / "m.jsonl", [soft, hard, none, marked], "math_shepherd")
    assert (written.solutions, written.left_out) == (1, {"soft_label": 1, "unlabelled": 1, "mark_in_text": 1})
    with pytest.raises(DataError, match="can express none of the solutions; solution s"):
        write_solutions(tmp_path / "p.jsonl", [soft], "prm800k")
    with pytest.raises(DataError, match="written as"):
        write_solutions(tmp_path / "p.csv", [hard])


def test_a_file_may_mix_formats(tmp_path):
    path = tmp_path / "mixed.jsonl"
    training = to_training(from_record(SEED, "x", "x"))
    path.write_text("".join(json.dumps(row) + "\n" for row in [SEED, *training, SHEPHERD, PRM800K]))
    assert [len(s.steps) for s in read_solutions(path)] == [3, 3, 3, 4]


def test_half_a_character_survives_in_json(tmp_path):
    odd = Solution("a", "q\ud83d", ("x",), (1.0,))
    write_solutions(tmp_path / "x.jsonl", [odd])
    assert read_solutions(tmp_path / "x.jsonl") == (odd,)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


MARKED = [
    {"task": "1+1?", "parts": ["It is 2."], "marks": ["ok"], "kind": "easy", "split": "train"},
    {"task": "2+2?", "parts": ["It is 4.", "No, 5."], "marks": ["ok", "no"], "kind": "hard", "split": "train"},
    {"task": "3+3?", "parts": ["It is 7."], "marks": ["no"], "kind": "hard", "split": "test"},
    {"task": "4+4?", "parts": ["It is 8.", "Yes."], "marks": ["ok", None], "kind": "easy", "split": "train"},
]
SAID = {"prompt": "task", "steps": "parts", "step_labels": "marks:ok/no"}


def test_columns_that_are_said_are_those_of_every_row_and_are_stored(tmp_path):
    path, read_as, left_out = write_rows(tmp_path / "mine.jsonl", MARKED), [], Counter()
    found = published_solutions([path], left_out, columns=SAID, read_as=read_as)
    assert [(s.question, [step.strip() for step in s.steps], s.labels) for s in found] == [
        ("1+1?", ["It is 2."], (1.0,)),
        ("2+2?", ["It is 4.", "No, 5."], (1.0, 0.0)),
        ("3+3?", ["It is 7."], (0.0,)),
        ("4+4?", ["It is 8.", "Yes."], (1.0, None)),
    ]
    stored = stored_columns(read_as)
    assert stored == {**SAID, "split": "split"}
    assert published_solutions([path], left_out, stored=stored) == found
    other = write_rows(tmp_path / "other.jsonl", [{"problem": "q", "steps": ["a"], "step_labels": [1]}])
    (one,) = published_solutions([other], left_out, stored=stored)  # it has none of these columns
    assert (one.question, one.labels) == ("q", (1.0,))
    assert read_as[0].record["used"] == read_as[0].record["rows"] == 4


def test_only_rows_of_train_are_trained_on_and_a_subset_may_be_a_column(tmp_path):
    path = write_rows(tmp_path / "mine.jsonl", MARKED)
    found = published_solutions([path], Counter(), columns={**SAID, "subset": "kind"}, train=True)
    assert [(s.question, s.meta["subset"]) for s in found] == [("1+1?", "easy"), ("2+2?", "hard"), ("4+4?", "easy")]
    without = published_solutions([path], Counter(), columns=SAID, train=True)
    assert {s.meta["subset"] for s in without} == {"mine"}


def test_a_label_that_is_not_of_the_coding_is_an_error_with_its_place(tmp_path):
    path = write_rows(tmp_path / "mine.jsonl", [*MARKED[:2], {**MARKED[2], "marks": ["perhaps"]}])
    with refuses("step_labels", r"mine\.jsonl:3: step_labels must hold numbers"):
        read_solutions(path, columns=SAID)
    bad = []
    assert len(read_solutions(path, columns=SAID, bad=bad)) == 2
    assert len(bad) == 1


def test_a_column_that_is_not_there_is_refused_with_the_nearest(tmp_path):
    with refuses("part", r"--columns steps=part: there is no such column; did you mean .*parts"):
        read_solutions(write_rows(tmp_path / "mine.jsonl", MARKED), columns="prompt=task,steps=part")


def test_one_step_label_column_may_be_other_than_that_of_the_layout(tmp_path):
    rows = [{"prompt": "q", "completions": ["a", "b"], "labels": [True, True], "checked": [1, 0]}] * 2
    path = write_rows(tmp_path / "trl.jsonl", rows)
    assert read_solutions(path)[0].labels == (1.0, 1.0)
    assert read_solutions(path, columns="step_labels=checked")[0].labels == (1.0, 0.0)
