"""The reward against reference answers: what a run's verifier rejects or accepts, and what decides nothing."""

from dataclasses import replace

import numpy as np
import pytest

from guerdon.auditing import references
from guerdon.auditing.checks import audit
from guerdon.auditing.log_view import View
from guerdon.auditing.references import read_references
from guerdon.auditing.rows import Rows, Texts

NUMBERS = [(str(k), f"So the answer is {k}.", f"So the answer is {k + 7}.") for k in range(11, 71)]
LETTERS = [(letter, f"The answer is ({letter}).", "The answer is (E).") for letter in "ABCD" * 15]
WORDS = [(city, f"The answer is {city}.", "The answer is Oslo.") for city in ["Paris", "Rome", "Lima", "Quito"] * 15]
MATHS = [(f"\\sqrt{{{k}}}", f"It is \\boxed{{\\sqrt{{{k}}}}}.", "It is \\boxed{\\sqrt{2}}.") for k in (3, 5, 7, 11, 13)]


def log(answers, *, size=6, steps=2, seed=0):
    """Two steps over the same prompts; half of the responses are right, and the reward is 1 for them."""
    rng = np.random.default_rng(seed)
    n = len(answers) * size * steps
    prompt = np.tile(np.repeat(np.arange(len(answers)), size), steps)
    right = rng.random(n) < 0.5
    return Rows(
        layout="test",
        files=("log.jsonl",),
        file_N=np.zeros(n, np.int64),
        line_N=np.arange(1, n + 1),
        reward_N=right.astype(float),
        step_N=np.repeat(np.arange(steps), n // steps),
        prompt_N=prompt,
        group_N=np.repeat(np.arange(n // size), size),
        texts=Texts(
            np.arange(n),
            [f"Question {k}?" for k in prompt],
            [answers[k][1 if one else 2] for k, one in zip(prompt, right, strict=True)],
            truths=[answers[k][0] for k in prompt],
        ),
    )


def judged(rows, name):
    result = audit(rows)
    found = {one.name: one for one in result.findings}
    return found.get(name), result


def rejecting(rows, share, *, what=1.0, seed=3):
    """The reward of a share of the rows with a value turned round."""
    hit = (rows.reward_N == what) & (np.random.default_rng(seed).random(len(rows)) < share)
    return replace(rows, reward_N=np.where(hit, 1 - rows.reward_N, rows.reward_N))


@pytest.mark.parametrize("answers", [NUMBERS, LETTERS, WORDS])
@pytest.mark.parametrize("with_truth", [False, True])
def test_right_answers_that_are_not_paid_are_found_with_their_share(answers, with_truth):
    rows = log(answers)
    truth = rows.reward_N.copy()
    faulty = rejecting(rows, 0.3)
    finding, _ = judged(replace(faulty, truth_N=truth if with_truth else None), "unpaid_right")
    assert finding.severity == "error"
    assert finding.interval[0] < 0.3 < finding.interval[1]
    assert finding.total == int(truth.sum())
    assert finding.rows
    assert all(truth[row] == 1 and faulty.reward_N[row] == 0 for row in finding.rows)


@pytest.mark.parametrize("answers", [NUMBERS, LETTERS])
def test_wrong_answers_that_are_paid_are_found_also_where_the_truth_copies_the_reward(answers):
    faulty = rejecting(log(answers), 0.25, what=0.0)
    finding, _ = judged(replace(faulty, truth_N=faulty.reward_N.copy()), "paid_wrong")
    assert finding.severity == "error"
    assert finding.interval[0] < 0.25 < finding.interval[1]


def test_credit_for_a_part_is_no_pay_for_a_wrong_answer():
    """Wrong answers get 0.8 to 0.9 and right ones 1; then right ones are so rare that nothing tells the two apart."""
    rows = log(NUMBERS)
    right = rows.reward_N == 1
    credit = 0.8 + 0.1 * np.random.default_rng(0).random(len(rows))
    unread = np.arange(len(rows)) % 10 == 0
    partial = replace(rows, reward_N=np.where(right, 1.0, np.where(unread, 0.0, credit)))
    finding, result = judged(partial, "paid_wrong")
    assert finding is None
    assert "paid_wrong" in result.clean
    full = np.where(np.arange(len(rows)) % 3 == 0, 1.0, partial.reward_N)
    assert judged(replace(rows, reward_N=full), "paid_wrong")[0].severity == "error"
    only_wrong = replace(partial, reward_N=np.where(right & ~unread, credit, partial.reward_N))
    few = np.flatnonzero(~right)
    texts = replace(rows.texts, responses=[rows.texts.responses[few[0]]] * len(rows), truths=["100"] * len(rows))
    finding, result = judged(replace(only_wrong, texts=texts), "paid_wrong")
    assert finding is None
    assert "partial credit" in result.undecided["paid_wrong"]


@pytest.mark.parametrize("answers", [NUMBERS, LETTERS, WORDS])
@pytest.mark.parametrize("share", [0.0, 0.02])
def test_a_verifier_that_is_wrong_now_and_then_is_clean(answers, share):
    _, result = judged(rejecting(log(answers), share), "unpaid_right")
    assert not {"unpaid_right", "paid_wrong"} & {one.name for one in result.findings}
    assert "a finding from 4% on" in result.clean["unpaid_right"]


def test_severity_follows_the_lower_end():
    finding, _ = judged(rejecting(log(NUMBERS), 0.11), "unpaid_right")
    assert finding.interval[0] < 0.1 < finding.effect + 0.05
    assert finding.severity == "warning"


def test_a_rule_of_the_format_or_of_the_length_is_no_rejection():
    rows = log(NUMBERS)
    boxed = np.random.default_rng(1).random(len(rows)) < 0.6
    texts = [f"{text} \\boxed{{{text.split()[-1][:-1]}}}" if box else text
             for text, box in zip(rows.texts.responses, boxed, strict=True)]  # fmt: skip
    rule = replace(rows, reward_N=rows.reward_N * boxed, texts=replace(rows.texts, responses=texts))
    _, result = judged(rule, "unpaid_right")
    assert "without \\boxed" in result.clean["unpaid_right"]
    too_long = ~boxed
    limit = replace(rows, reward_N=rows.reward_N * ~too_long, length_N=np.where(too_long, 900.0, 100.0))
    assert judged(limit, "unpaid_right")[0] is None
    cut = replace(rows, reward_N=rows.reward_N * ~too_long, truncated_N=too_long)
    assert judged(cut, "unpaid_right")[0] is None


def test_answers_that_a_tolerance_or_another_name_allows_are_no_wrong_ones():
    near = [(f"{k}.5", f"The answer is {k}.5.", f"The answer is {k}.52.") for k in range(20, 80)]
    assert judged(rejecting(log(near), 0.5, what=0.0), "paid_wrong")[0] is None
    assert judged(rejecting(log(WORDS), 0.5, what=0.0), "paid_wrong")[0] is None
    percent = [(f"0.{k}", f"The answer is 0.{k}.", f"The answer is {k}.") for k in range(20, 80)]
    assert judged(rejecting(log(percent), 0.5, what=0.0), "paid_wrong")[0] is None


def test_a_reward_that_is_no_verdict_is_not_compared():
    rows = log(NUMBERS)
    noisy = replace(rows, reward_N=rows.reward_N + np.random.default_rng(2).standard_normal(len(rows)))
    _, result = judged(noisy, "unpaid_right")
    assert result.unchecked["unpaid_right"].startswith("needs a reward that says right or wrong")
    cost = replace(rows, reward_N=rows.reward_N - 0.2 * np.random.default_rng(2).random(len(rows)))
    assert "unpaid_right" in judged(cost, "unpaid_right")[1].clean


@pytest.mark.parametrize(
    ("reference", "reason"),
    [("assert add(1, 2) == 3", "programs or tests"), ("A long text about it. " * 20, "long texts")],
)
def test_references_that_cannot_be_read_are_said_to_be_there(reference, reason):
    rows = log([(reference, "a", "b")] * 20)
    assert reason in audit(rows).unchecked["unpaid_right"]
    half = log([(reference, "a", "b")] * 20 + NUMBERS)
    assert f"{reason}" in audit(half).clean["unpaid_right"]


def test_a_list_of_references_is_right_by_any_of_them():
    rows = log([(f'["{k}", "{k + 7}"]', f"So the answer is {k}.", f"So the answer is {k + 7}.") for k in range(11, 31)])
    read = read_references(rows, most=100)  # of 240 rows, whole groups of 6
    assert read.kinds == {"numbers": 96}
    assert (read.right_K == 1).all()
    assert read_references(log([('["Paris", "18"]', "It is 18.", "The answer is Oslo.")]), most=9).kinds == {
        "plain text": 6
    }


SAID = [  # a reference, a response, whether it is right (None: not known), and the answer that it states
    ("12", " ", False, ""),
    ("12", "No idea.", False, ""),
    ("1,200", "Let us see, 1200 or 7", None, ""),
    ("0", "The answer is 5.", False, "5"),
    ("C", "It might be b, or not.", False, ""),
    ("B", "It might be b, or not.", None, ""),
    ("Paris", "The answer is Paris.", True, "Paris"),
    ("Paris", "Some city.", False, ""),
    ("yes", "The answer is yes.", True, "yes"),
    ("yes", "The answer is no.", False, "no"),
    ("yes", "The answer is perhaps.", None, "perhaps"),
    ("Paris", "\\boxed{Rome} or \\boxed{Lima}", False, ""),
    ("\\sqrt{3}", " ", False, ""),
    ("[2, 3)", "It is \\boxed{[2, 3)}.", True, "[2, 3)"),
    ("\\sqrt{3}", "It is \\boxed{\\sqrt{3}}.", True, "\\sqrt{3}"),
]


def test_what_a_response_states_is_right_wrong_or_not_known():
    rows = log([(truth, said, said) for truth, said, _, _ in SAID], size=1, steps=1)
    read = read_references(rows, most=100)
    right = [None if np.isnan(one) else bool(one) for one in read.right_K]
    assert [(*one[:2], *found) for one, found in zip(SAID, zip(right, read.stated, strict=True), strict=True)] == SAID
    assert read.kinds == {"numbers": 4, "letters": 2, "plain text": 6, "LaTeX": 3}


def test_references_that_are_no_answers_are_counted_by_reason():
    unread = {"empty": "####", "lists of answers in LaTeX": '["\\\\sqrt{2}", "2"]'}
    read = read_references(log([(one, "It is 2.", "It is 2.") for one in unread.values()], size=1), most=100)
    assert read.unread == {"empty": 2, "lists of answers in LaTeX": 2}
    assert read.left_out == "2 empty, 2 lists of answers in LaTeX"
    assert read_references(log([(" ", "a", "b")]), most=9) is None


def test_of_rows_without_groups_every_second_one_is_read():
    rows = log(NUMBERS[:10], size=1, steps=2)
    read = read_references(replace(rows, group_N=None, prompt_N=None), most=10)
    assert read.row_K.tolist() == list(range(0, 20, 2))


def test_a_reward_of_a_few_values_says_right_by_the_one_that_right_answers_have():
    rows = log(NUMBERS)
    right, third = rows.reward_N == 1, np.arange(len(rows)) % 3
    rows = replace(rows, reward_N=np.where(right, 1 - 0.25 * (third == 0), 0.25 * third))
    finding, _ = judged(rows, "paid_wrong")
    assert finding is None
    lying = replace(rows, reward_N=np.where(~right & (third == 0), 1.0, rows.reward_N))
    finding, _ = judged(lying, "paid_wrong")
    assert finding.count == (~right & (third == 0)).sum()


def test_too_few_answers_decide_nothing():
    rows = log(NUMBERS[:3], size=3)
    result = audit(rows)
    known = {**result.unchecked, **result.clean, **getattr(result, "undecided", {})}
    assert "needs 30" in known["unpaid_right"]


def test_latex_is_read_by_a_process_and_said_where_math_verify_is_missing(monkeypatch):
    rows = log(MATHS * 8, steps=1)
    finding, _ = judged(rejecting(rows, 0.5), "unpaid_right")
    assert finding.severity == "error"
    assert "LaTeX" in finding.title
    monkeypatch.setattr(references.importlib.util, "find_spec", lambda _: None)
    assert "math-verify" in audit(rows).unchecked["unpaid_right"]


def test_an_answer_is_looked_for_behind_the_reasoning_of_a_long_response():
    said = "<think>" + "so the answer is 5. " * 900 + "</think> The answer is 11."
    assert references.tail_of(said) == " The answer is 11."
    assert View.whole(log(NUMBERS)).references.kinds == {"numbers": 720}


def test_an_answer_in_words_without_a_mark_is_not_said_to_be_missing():
    """A part of the reward pays for a box; a quarter of the right answers are in words of another language instead."""
    rows = log([(str(k), f"Respuesta: {k}", f"La respuesta es \\boxed{{{k + 7}}}.") for k in range(11, 71)])
    boxed = np.random.default_rng(5).random(len(rows)) < 0.75
    responses = [
        f"La respuesta es \\boxed{{{truth}}}." if is_right and in_box else response
        for response, truth, is_right, in_box in zip(
            rows.texts.responses, rows.texts.truths, rows.reward_N, boxed, strict=True
        )
    ]
    has_box = np.array(["boxed" in response for response in responses])
    rows = replace(rows, texts=replace(rows.texts, responses=responses), reward_N=rows.reward_N + 0.2 * has_box)
    assert not View.whole(rows).signs["state no answer"].any()
    finding, result = judged(rows, "failures")
    assert finding is None, finding.title
    assert "failures" in result.clean
