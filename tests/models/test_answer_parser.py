"""Answers: every reply is a value in range or a reason, never a default."""

import json
import math
from pathlib import Path

import pytest
from answer_forms import parse_choice, parse_completed, parse_number
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.models.vlm.answer_parser import (
    ParsedAnswer,
)
from guerdon.types import Failure
from tables import cases

TREND = {word: word for word in ("positive", "negative", "unclear")}


def parse_trend(text):
    return parse_choice(text, "trend", TREND)


# What a well-known parser made of these: 1.0, .01, .005, .015, 1, 1, .85, 0, .72, .10, 0, 0, .02, .05, .40, 1.0.
TABLE = [
    ("1", 0.01),
    ("1%", 0.01),
    ("0.5%", 0.005),
    ("1.5", 0.015),
    ("100", 1.0),
    ("1e2", 1.0),
    ("≈85", 0.85),
    ("-5", "out_of_range"),
    ("[[72]] then 3", "unclear_answer"),
    ("7/10", 0.7),
    ("50-60%", "no_number"),
    ("<answer>about 1,000</answer>", "out_of_range"),
    ("<answer>The task is 80% done, 2 steps left</answer>", "no_number"),
    ("<think>step 3 of 5", "truncated"),
    ("<answer>None</answer> 40", "unclear_answer"),
    ("unsuccessful", "no_number"),
]
MORE = [
    ("success", "no_number"),
    ("", "empty"),
    ("   \n", "empty"),
    (":", "no_number"),
    ("Thought process:", "no_number"),
    ("<answer></answer>", "empty"),
    ("<answer>85", "truncated"),
    ("<think>first 20, then 40</think>", "empty"),
    ("<think>first 20, then 40</think>85", 0.85),
    ("first 20, then 40</think><answer>85</answer>", 0.85),
    ("<think>I would say <answer>10</answer></think><answer>85</answer>", 0.85),
    ("<THINK>20</THINK>\n<Answer> 85% </ANSWER>", 0.85),
    ("<think>85", "truncated"),
    ("85 <think>or 15?</think>", "empty"),
    ("<answer>85</answer><answer>85</answer>", 0.85),
    ("<answer>85</answer><answer>15</answer>", "several_answers"),
    ("<answer>85</answer><think>or 15?", "truncated"),
    ("<answer>85<think>15</think></answer>", "unclear_answer"),
    ("</answer>85", "unclear_answer"),
    ("Score: 85.", 0.85),
    ("Score: 85\nConfidence: 90%", 0.85),
    ("Score: 85\nScore: 90", "several_answers"),
    ("Score: 40\nFinal answer: 85", 0.85),
    ("Final answer: 85\nActually no, it is 20.", "no_number"),
    ("Final answer: 85 or 90", "no_number"),
    ("For example: <answer>85</answer>", "unclear_answer"),
    ("80 percent", 0.8),
    ("８５％", 0.85),
    ("7 out of 10", 0.7),
    ("3/5", "no_number"),
    ("step 3 of 5", "no_number"),
    ("[[10]] or [[20]]", "unclear_answer"),
    ("[[many]]", "no_number"),
    ("101", "out_of_range"),
    ("1e999", "out_of_range"),
    ("9" * 400, "out_of_range"),
    ("9" * 5000, "no_number"),
    ("−5", "out_of_range"),
    ("12,5", "no_number"),
    ("85points", "no_number"),
    ("<50", "no_number"),
    ("85–90", "no_number"),
    ("10²", "no_number"),
    ("½", "no_number"),
    ("~~85~~", "no_number"),
    ("2**5", "no_number"),
    ("$85", "no_number"),
    ("nan", "no_number"),
    ("85. The drawer is nearly closed.", 0.85),
    ("100. The drawer is nearly closed.", "no_number"),
    ("1. The robot moved.", "no_number"),
    ('{"score": 85, "reason": "3 of 4 blocks"}', 0.85),
    ('{"score": 85, "out_of": 200}', "no_number"),
    ("Based on the last frame, the task is 85% complete.", 0.85),
    ("Based on the first frame, the task is 85% complete.", "no_number"),
    ("85\nNote: this is a guess.", "no_number"),
    ('I cannot see the images. {"score": 85}', "no_number"),
    ("Progress since the last check: 5%", "no_number"),
    ('{"score": 85', "unclear_answer"),
    ('[{"score": 85}]', "unclear_answer"),
    ("85 The task is 85% complete", 0.85),
    ("85 The task is 15% complete", "several_answers"),
    ("The progress is <answer>85</answer>", 0.85),
    ("Answer: " * 5 + "85", "unclear_answer"),
    ("Answer: " * 4 + "85", 0.85),
]  # fmt: skip


ROWS = [json.loads(line) for line in Path(__file__).with_name("answer_outputs.jsonl").read_text("utf-8").splitlines()]


def outcome(found):
    return found.reason if isinstance(found, Failure) else pytest.approx(found.value, abs=1e-12)


def said(row):
    """What is read from a labelled output: a value or None."""
    if row["asked"] == "number":
        found = parse_number(row["output"], scale=row["scale"], prompt_scale=row["scale"])
    else:
        found = (parse_completed if row["asked"] == "completed" else parse_trend)(row["output"])
    if isinstance(found, Failure):
        return None
    return found.value


def same(value, expected):
    return value == expected if isinstance(expected, str) else value == pytest.approx(expected, abs=1e-9)


def test_labelled_outputs():
    read = [(row, said(row)) for row in ROWS]
    invented = [
        (row, v) for row, v in read if v is not None and (row["expected"] is None or not same(v, row["expected"]))
    ]
    missed = [row for row, value in read if row["clear"] and value is None]
    clear = sum(row["clear"] for row in ROWS)
    assert not invented, "\n".join(f"{row} was read as {value}" for row, value in invented)
    assert len(missed) <= 0.05 * clear, "\n".join(map(str, missed))


@cases(("text", "wanted"), TABLE + MORE)
@cases("scale", ["auto", "percentage"])
def test_a_prompt_for_percentages(text, wanted, scale):
    assert outcome(parse_number(text, scale=scale, prompt_scale="percentage")) == wanted


@cases(
    ("text", "percentage", "unit", "auto_percentage", "auto_unit"),
    [
        ("1", 0.01, 1.0, 0.01, 1.0),
        ("1.0", 0.01, 1.0, 0.01, 1.0),
        ("0.5", 0.005, 0.5, 0.5, 0.5),
        ("0", 0.0, 0.0, 0.0, 0.0),
        ("85", 0.85, "out_of_range", 0.85, 0.85),
        ("1.5", 0.015, "out_of_range", 0.015, 0.015),
        ("50%", 0.5, 0.5, 0.5, 0.5),
        ("1%", 0.01, 0.01, 0.01, 0.01),
        ("7/10", 0.7, 0.7, 0.7, 0.7),
        ("-0.5", "out_of_range", "out_of_range", "out_of_range", "out_of_range"),
        ("200%", "out_of_range", "out_of_range", "out_of_range", "out_of_range"),
    ],
)  # fmt: skip
def test_scales(text, percentage, unit, auto_percentage, auto_unit):
    assert outcome(parse_number(text, scale="percentage", prompt_scale="unit")) == percentage
    assert outcome(parse_number(text, scale="unit")) == unit
    assert outcome(parse_number(text, scale="auto", prompt_scale="percentage")) == auto_percentage
    assert outcome(parse_number(text, scale="auto", prompt_scale="unit")) == auto_unit


def test_an_answer_says_where_it_comes_from():
    assert parse_number("<answer>85%</answer>") == ParsedAnswer(0.85, "ok", "85%")
    assert parse_number("It is 85% done.") == ParsedAnswer(0.85, "fallback", "it is 85% done.")
    assert parse_number("85. The drawer is nearly closed.").status == "fallback"
    assert parse_number("The drawer is nearly closed.\nScore: 85").status == "ok"
    assert parse_number("<answer>It is 85% done.</answer>").status == "fallback"
    assert parse_completed("Yes, the task is completed.").status == "ok"
    assert parse_completed("Yes, the drawer is closed.").status == "fallback"
    assert parse_completed("The task is completed.").status == "fallback"
    found = parse_number("-0")
    assert math.copysign(1.0, found.value) == 1.0


@cases(
    ("text", "wanted"),
    [
        ("Yes", 1.0),
        ("yes.", 1.0),
        ("**No**", 0.0),
        ("TRUE", 1.0),
        (" false\n", 0.0),
        ("1", 1.0),
        ("0", 0.0),
        ("'1'", 1.0),
        ("Yes, the task is completed.", 1.0),
        ("No, it is not completed.", 0.0),
        ("<think>Yes? It is open.</think>No", 0.0),
        ("<answer>Yes</answer>", 1.0),
        ("Yes and no", "no_judgement"),
        ("Yes, the robot has placed the bowl on the plate.", 1.0),
        ("Yes, the robot has given up.", "no_judgement"),
        ("Yes, the drawer is barely closed.", "no_judgement"),
        ("Yes, the drawer is closed in the goal image.", "no_judgement"),
        ("No, the cup is on the table.", 0.0),
        ("No, there are no steps left.", "no_judgement"),
        ("No, the robot did not drop it.", "no_judgement"),
        ("In the goal image, the task is completed.", "no_judgement"),
        ("Yes, it is not completed", "several_answers"),
        ("No. Or yes?", "no_judgement"),
        ("yes/no", "no_judgement"),
        ("unsuccessful", "no_judgement"),
        ("It is completed", 1.0),
        ("It is being completed", "no_judgement"),
        ("No doubt it is completed", "no_judgement"),
        ("No, it is completed", "several_answers"),
        ('{"completed": true, "score": 40}', "several_answers"),
        ("nothing", "no_judgement"),
        ("10", "no_judgement"),
        ("1/10", "no_judgement"),
        ("1 or 0", "no_judgement"),
        ("", "empty"),
        ("<think>Yes", "truncated"),
    ],
)  # fmt: skip
def test_completed(text, wanted):
    assert outcome(parse_completed(text)) == wanted


@cases(
    ("text", "wanted"),
    [
        ('{"trend": "positive"}', ("positive", "ok")),
        ('```json\n{"trend": "Negative", "why": "positive start"}\n```', ("negative", "ok")),
        ("unclear", ("unclear", "ok")),
        ("The trend is positive.", ("positive", "fallback")),
        ("negative. The robot comes nearer.", "no_judgement"),
        ("positive. It is not nearer.", "no_judgement"),
        ("positive. The robot comes nearer.", ("positive", "fallback")),
        ("<think>positive or negative</think> negative", ("negative", "ok")),
        ("positive, then negative", "no_judgement"),
        ("not positive", "no_judgement"),
        ("It isn't negative", "no_judgement"),
        ('{"trend": "better"}', "no_judgement"),
        ('{"trend": 1}', "no_judgement"),
        ('{"trend": "positive"', "unclear_answer"),
        ("[" * 100_000, "too_long"),
        ("{" * 10_000, "unclear_answer"),
        ("nonpositive", "no_judgement"),
        ("", "empty"),
        ("<think>positive", "truncated"),
    ],
)  # fmt: skip
def test_trend(text, wanted):
    found = parse_trend(text)
    assert (found.reason if isinstance(found, Failure) else (found.value, found.status)) == wanted


def test_a_choice_has_the_words_it_is_given():
    words = {"first": "negative", "second": "positive"}
    assert parse_choice("Second.", "closer", words) == ParsedAnswer("positive", "ok", "second.")
    found = parse_choice('{"closer": "first"}', "closer", words)
    assert (found.value, found.status) == ("negative", "ok")


PIECES = st.sampled_from(
    [
        "<think>", "</think>", "<answer>", "</answer>", "[[", "]]", "{", "}", '"trend"', ":", " ", "\n", "%", "％", "/",
        ",", "-", "−", "e", ".", "1", "0", "85", "1e9", "1,000", "yes", "No", "not", "positive", "unclear", "out of",
        "²", "٣", "\ud800", "\x00", "İ", "ß", "percent", "success", "unsuccessful", "~", "≈",
        "Final answer: ", "Score: ", "The task is ", " complete.",
        ", because the ", "\\boxed{", "**", "'", '{"score": ',
        "```", "\ue000", "\ue001", "百分之", "second", ". ", "Reason: ",
    ]
)  # fmt: skip
REPLIES = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=14).map("".join))


def check_all(text):
    for scale in ("auto", "percentage", "unit"):
        found = parse_number(text, scale=scale, prompt_scale="percentage")
        assert isinstance(found, Failure) or 0.0 <= found.value <= 1.0
    found = parse_completed(text)
    assert isinstance(found, Failure) or found.value in (0.0, 1.0)
    found = parse_trend(text)
    assert isinstance(found, Failure) or found.value in ("positive", "negative", "unclear")
    found = parse_choice(text, "nearer", {"first": "negative", "second": "positive", "same": "unclear"})
    assert isinstance(found, Failure) or found.value in ("positive", "negative", "unclear")


@pytest.mark.hostile("verdicts")
@settings(max_examples=400, deadline=None)
@given(REPLIES)
def test_any_string_is_a_value_in_range_or_a_failure(text):
    check_all(text)


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 100), st.sampled_from(["{}", "<answer>{}</answer>", "[[{}]]", "<think>12</think>{}%"]))
def test_a_plain_percentage_comes_back(number, form):
    found = parse_number(form.format(number), scale="percentage")
    assert found.value == pytest.approx(number / 100)
    assert found.status == "ok"


@pytest.mark.hostile("verdicts")
@settings(max_examples=150, deadline=None)
@given(st.floats(0, 100).map(str), st.floats(0, 100).map(str))
def test_two_numbers_are_no_answer(first, second):
    found = parse_number(f"{first} or {second}", scale="percentage")
    assert isinstance(found, Failure)


@pytest.mark.hostile("verdicts")
@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_random_strings(count):
    import random

    rng = random.Random(0)
    pieces = ["<think>", "</think>", "<answer>", "</answer>", "[[", "]]", "yes", "no", "positive", "trend", "success"]
    pieces += [
        *"0123456789%./,-+~e \n:;{}\"'",
        "out of",
        "percent",
        "１",
        "％",
        "²",
        "≈",
        "\U0001f916",
        "\udfff",
        "\x00",
    ]
    values = 0
    for _ in range(count):
        text = "".join(rng.choices(pieces, k=rng.randrange(10)))
        check_all(text)
        values += isinstance(parse_number(text), ParsedAnswer)
    assert values > count / 50  # the fuzz reaches the parser's good side too


@pytest.mark.hostile("verdicts")
@pytest.mark.parametrize("piece", ["x", "1", "<answer>", "[[", "a1 ", "</think>", "1,000", "/", ".", "{", "not "])
@pytest.mark.timeout(100)
def test_long_replies_do_not_take_quadratic_time(piece):
    check_all(piece * 40_000)
