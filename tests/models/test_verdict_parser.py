"""Verdicts: every reply is a value in range or a reason, never a default."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.models.verdict_parser import (
    Verdict,
    final_answer,
    parse_choice,
    parse_completed,
    parse_trend,
    parse_verdict,
)
from guerdon.types import Failure

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
    ("[[72]] then 3", 0.72),
    ("7/10", 0.7),
    ("50-60%", "unclear_number"),
    ("<answer>about 1,000</answer>", "out_of_range"),
    ("<answer>The task is 80% done, 2 steps left</answer>", "several_numbers"),
    ("<think>step 3 of 5", "truncated"),
    ("<answer>None</answer> 40", "no_number"),
    ("unsuccessful", "no_number"),
]
MORE = [
    ("success", "no_number"),
    ("The robot did not fail.", "no_number"),
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
    ("<answer>85</answer><answer>85</answer>", 0.85),
    ("<answer>85</answer><answer>15</answer>", "several_answers"),
    ("<answer>85</answer><think>or 15?", "truncated"),
    ("<answer>85<think>15</think></answer>", "unclear_answer"),
    ("</answer>85", "unclear_answer"),
    ("Score: 85.", 0.85),
    ("Progress:85", 0.85),
    ("**85**", 0.85),
    ("80 percent", 0.8),
    ("８５％", 0.85),
    ("85, that is 85%", 0.85),
    ("7 out of 10", 0.7),
    ("step 3 of 5", "several_numbers"),
    ("50 to 60", "several_numbers"),
    ("[[10]] or [[20]]", "several_numbers"),
    ("[[10]] or 20 or [[10]]", 0.1),
    ("[[many]]", "no_number"),
    ("3/2", "out_of_range"),
    ("0/0", "out_of_range"),
    ("1/2%", "unclear_number"),
    ("101", "out_of_range"),
    ("1e999", "out_of_range"),
    ("9" * 5000, "out_of_range"),
    ("−5", "out_of_range"),
    ("12,5", "unclear_number"),
    ("1.2.3", "unclear_number"),
    ("85points", "unclear_number"),
    ("v2", "unclear_number"),
    ("<50", "unclear_number"),
    ("85–90", "unclear_number"),
    ("10²", "unclear_number"),
    ("½", "unclear_number"),
    ("٨٥", "unclear_number"),
    ("nan", "no_number"),
    ("inf", "no_number"),
]  # fmt: skip


def outcome(found):
    return found.reason if isinstance(found, Failure) else pytest.approx(found.value, abs=1e-12)


@pytest.mark.parametrize(("text", "wanted"), TABLE + MORE)
@pytest.mark.parametrize("scale", ["auto", "percentage"])
def test_a_prompt_for_percentages(text, wanted, scale):
    assert outcome(parse_verdict(text, scale=scale, prompt_scale="percentage")) == wanted


@pytest.mark.parametrize(
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
    assert outcome(parse_verdict(text, scale="percentage", prompt_scale="unit")) == percentage
    assert outcome(parse_verdict(text, scale="unit")) == unit
    assert outcome(parse_verdict(text, scale="auto", prompt_scale="percentage")) == auto_percentage
    assert outcome(parse_verdict(text, scale="auto", prompt_scale="unit")) == auto_unit


def test_a_verdict_says_where_it_comes_from():
    assert parse_verdict("<answer>85%</answer>") == Verdict(0.85, "ok", "85%")
    assert parse_verdict("It is 85% done.") == Verdict(0.85, "fallback", "85%")
    assert parse_verdict("[[72]] then 3") == Verdict(0.72, "ok", "72")
    found = parse_verdict("-0")
    assert math.copysign(1.0, found.value) == 1.0


@pytest.mark.parametrize(
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
        ("Yes and no", "several_answers"),
        ("Yes, it is not completed", "several_answers"),
        ("No. Or yes?", "several_answers"),
        ("yes/no", "no_verdict"),
        ("unsuccessful", "no_verdict"),
        ("It is completed", "no_verdict"),
        ("nothing", "no_verdict"),
        ("10", "no_verdict"),
        ("1/10", "no_verdict"),
        ("1 or 0", "no_verdict"),
        ("", "empty"),
        ("<think>Yes", "truncated"),
    ],
)  # fmt: skip
def test_completed(text, wanted):
    assert outcome(parse_completed(text)) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"trend": "positive"}', ("positive", "ok")),
        ('```json\n{"trend": "Negative", "why": "positive start"}\n```', ("negative", "ok")),
        ("unclear", ("unclear", "ok")),
        ("The trend is positive.", ("positive", "fallback")),
        ("<think>positive or negative</think> negative", ("negative", "ok")),
        ("positive, then negative", "several_answers"),
        ("not positive", "no_verdict"),
        ("It isn't negative", "no_verdict"),
        ('{"trend": "better"}', "no_verdict"),
        ('{"trend": 1}', "no_verdict"),
        ('{"trend": "positive"', "no_verdict"),
        ("[" * 100_000, "no_verdict"),
        ("{" * 100_000, "no_verdict"),
        ("nonpositive", "no_verdict"),
        ("", "empty"),
        ("<think>positive", "truncated"),
    ],
)  # fmt: skip
def test_trend(text, wanted):
    found = parse_trend(text)
    assert (found.reason if isinstance(found, Failure) else found) == wanted


def test_a_choice_has_the_words_it_is_given():
    words = {"first": "negative", "second": "positive"}
    assert parse_choice("Second.", "closer", words) == ("positive", "ok")
    assert parse_choice('{"closer": "first"}', "closer", words) == ("negative", "ok")


PIECES = st.sampled_from(
    [
        "<think>", "</think>", "<answer>", "</answer>", "[[", "]]", "{", "}", '"trend"', ":", " ", "\n", "%", "％", "/",
        ",", "-", "−", "e", ".", "1", "0", "85", "1e9", "1,000", "yes", "No", "not", "positive", "unclear", "out of",
        "²", "٣", "\ud800", "\x00", "İ", "ß", "percent", "success", "unsuccessful", "~", "≈",
    ]
)  # fmt: skip
REPLIES = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=14).map("".join))


def check_all(text):
    for scale in ("auto", "percentage", "unit"):
        found = parse_verdict(text, scale=scale, prompt_scale="percentage")
        assert isinstance(found, Failure) or 0.0 <= found.value <= 1.0
    found = parse_completed(text)
    assert isinstance(found, Failure) or found.value in (0.0, 1.0)
    found = parse_trend(text)
    assert isinstance(found, Failure) or found[0] in ("positive", "negative", "unclear")


@settings(max_examples=400, deadline=None)
@given(REPLIES)
def test_any_string_is_a_value_in_range_or_a_failure(text):
    check_all(text)


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 100), st.sampled_from(["{}", "<answer>{}</answer>", "[[{}]]", "<think>12</think>{}%"]))
def test_a_plain_percentage_comes_back(number, form):
    found = parse_verdict(form.format(number), scale="percentage")
    assert found.value == pytest.approx(number / 100)
    assert found.status == "ok"


@settings(max_examples=150, deadline=None)
@given(st.floats(0, 100).map(str), st.floats(0, 100).map(str))
def test_two_different_numbers_are_no_answer(first, second):
    found = parse_verdict(f"{first} or {second}", scale="percentage")
    assert isinstance(found, Failure) == (float(first) / 100 != float(second) / 100)


def test_50_000_random_strings():
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
    for _ in range(50_000):
        text = "".join(rng.choices(pieces, k=rng.randrange(10)))
        check_all(text)
        values += isinstance(parse_verdict(text), Verdict)
    assert values > 1000  # the fuzz reaches the parser's good side too


@pytest.mark.parametrize("piece", ["x", "1", "<answer>", "[[", "a1 ", "</think>", "1,000", "/", ".", "{", "not "])
@pytest.mark.timeout(100)
def test_long_replies_do_not_take_quadratic_time(piece):
    check_all(piece * 40_000)


def test_final_answers():
    assert final_answer("a <think>b</think> c") == "a   c"
    assert final_answer("a <answer> b </answer> c") == "b"
