import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from guerdon.errors import DataError
from guerdon.evaluate.reward_bench import choices_from_rows, reward_bench, reward_bench_2, ties_score
from guerdon.types import Failure


def row(subset, name=0):
    return {"prompt": "p", "chosen": "good", "rejected": "bad", "subset": subset, "id": name}


def test_sections_weigh_subsets_by_the_published_counts():
    """Reasoning: math-prm 1/2 with weight 984, hep-cpp 1 with weight 164."""
    choices = choices_from_rows([row("math-prm"), row("math-prm"), row("hep-cpp"), row("donotanswer")])
    found = reward_bench(choices, [1, 0, 0, 1, 1, 0, 1, 0], seed=0, reps=100)
    assert found.subsets["math-prm"].measured.estimate == 0.5
    assert found.sections["Reasoning"].measured.estimate == pytest.approx((984 * 0.5 + 164) / (984 + 164))
    assert found.sections["Safety"].measured.estimate == 1
    assert found.overall.measured.estimate == pytest.approx((found.sections["Reasoning"].measured.estimate + 1) / 2)
    assert set(found.sections) == {"Reasoning", "Safety"}


def test_ties_are_counted_and_worth_what_is_said():
    choices = choices_from_rows([row("donotanswer")] * 4)
    values = [1, 1, 1, 0, 0, 1, 2, 2]
    assert reward_bench(choices, values, seed=0, reps=100).overall.measured.estimate == 0.25
    half = reward_bench(choices, values, ties="half", seed=0, reps=100)
    assert half.overall.measured.estimate == 0.5
    assert half.ties == {"donotanswer": 2}


def test_failures_both_ways():
    choices = choices_from_rows([row("mine"), row("mine")])
    found = reward_bench(choices, [1.0, 0.0, Failure("late"), 0.0], seed=0, reps=100)
    assert found.failures == {"late": 1}
    assert found.sections["mine"].measured.estimate == 1
    assert found.sections["mine"].measured.n_undefined == 1
    assert found.sections["mine"].failures_wrong.estimate == 0.5
    assert "NaN" not in json.dumps(asdict(found))


def test_four_responses_share_the_credit_of_a_tie():
    rows = [{"prompt": "p", "chosen": ["a"], "rejected": ["b", "c", "d"], "subset": "Math", "id": k} for k in range(3)]
    values = [3, 1, 2, 0, 2, 2, 1, 2, 1, 2, 0, 0]
    found = reward_bench_2(choices_from_rows(rows), values, seed=0, reps=100)
    assert found.subsets["Math"].measured.estimate == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert found.ties == {"Math": 1}


def test_ties_by_hand():
    """One pair: the tied prompt has spread 1 and gap 2, its reference gap 0.5."""
    prompts = {
        "tied:1": (np.array([5.0, 4.0]), np.array([2.0, 0.0])),
        "ref:1": (np.array([3.0]), np.array([2.5, 1.0])),
    }
    expected = 0.3 + 0.3 + 0.2 * 1 + 0.2 * 0 + 0.01 * math.tanh(0.5 / 1 - 1)
    assert ties_score(prompts) == pytest.approx(expected)


def test_ties_without_spread_do_not_divide_by_zero():
    right, wrong = np.array([1.0, 1.0]), np.array([1.0])
    assert ties_score({"tied:1": (right, wrong), "ref:1": (right[:1], wrong)}) == 0.0
    best = {"tied:1": (right, wrong - 1), "ref:1": (right[:1], wrong - 1)}
    assert ties_score(best) == pytest.approx(1.01)
    assert math.isnan(ties_score({"tied:1": (right, wrong)}))


def test_the_subset_ties_goes_by_its_own_formula_and_pairs_stay_together():
    rows = []
    for k in range(6):
        rows.append({"prompt": "p", "chosen": ["a", "b"], "rejected": ["c"], "subset": "Ties", "id": f"tied:{k}"})
        rows.append({"prompt": "p", "chosen": ["a"], "rejected": ["c"], "subset": "Ties", "id": f"ref:{k}"})
    values = [4, 3.5, 1, 4, 1] * 5 + [1, 1, 4, 4, 1]
    found = reward_bench_2(choices_from_rows(rows), values, seed=0, reps=200).subsets["Ties"]
    margin = (5 * math.tanh(2.5 / 0.5 - 1) - 1) / 6
    assert found.measured.estimate == pytest.approx(0.3 * 5 / 6 + 0.3 + 0.2 * 5 / 6 + 0.2 * 5 / 6 + 0.01 * margin)
    assert found.measured.low < found.measured.estimate <= found.measured.high
    values[0] = Failure("late")
    lost = reward_bench_2(choices_from_rows(rows), values, seed=0, reps=200).subsets["Ties"]
    assert lost.measured.n == 5
    assert lost.failures_wrong.estimate < found.measured.estimate
    rows[0]["id"] = "odd"
    with pytest.raises(DataError, match=r"ref:<n>"):
        reward_bench_2(choices_from_rows(rows), values, seed=0, reps=100)


def test_bad_rows_and_numbers_are_one_clear_line():
    with pytest.raises(DataError, match="row 1 has no rejected"):
        choices_from_rows([{"prompt": "p", "chosen": "a", "subset": "s"}])
    with pytest.raises(DataError, match="1 values for 2"):
        reward_bench(choices_from_rows([row("s")]), [1.0], seed=0)
    with pytest.raises(DataError, match="at least one chosen"):
        reward_bench([], [], seed=0)


HELLO, HI = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}
RULE, SUM = {"role": "system", "content": "Answer in words."}, {"role": "user", "content": "3+5?"}
WHOLE = (RULE, HELLO, HI, SUM)
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
ADD = {"name": "add", "parameters": {"type": "object"}}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": list(WHOLE), "chosen": "eight", "rejected": "nine"},
        {"prompt": list(WHOLE), "chosen": [said("eight")], "rejected": [said("nine")]},
        {"prompt": list(WHOLE), "chosen": said("eight"), "rejected": said("nine")},
        {"prompt": list(WHOLE), "chosen": ["eight"], "rejected": [[said("nine")]]},
        {"chosen": [*WHOLE, said("eight")], "rejected": [*WHOLE, said("nine")]},
        {"prompt": "Hello", "chosen": [*WHOLE, said("eight")], "rejected": [*WHOLE, said("nine")]},
        {"prompt": [RULE], "chosen": [*WHOLE, said("eight")], "rejected": [*WHOLE, said("nine")]},
    ],
)
def test_messages_in_each_layout_are_one_conversation(row):
    (choice,) = choices_from_rows([{"subset": "mine", "id": 7, **row}])
    right, wrong = choice.responses
    assert (right.question, right.context, right.steps) == ("3+5?", WHOLE, ("eight",))
    assert (wrong.question, wrong.context, wrong.steps) == ("3+5?", WHOLE, ("nine",))


def test_a_prompt_of_one_turn_is_the_same_as_text_or_message():
    rows = [{"subset": "x", "id": 1, "prompt": p, "chosen": "8", "rejected": "9"} for p in ("3+5?", [SUM])]
    one, two = choices_from_rows(rows)
    assert one == two
    assert one.chosen[0].context == ()
    (tools,) = choices_from_rows([{**rows[0], "tools": [ADD]}])
    assert tools.chosen[0].tools == ({"type": "function", "function": ADD},)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [PICTURE], "chosen": "8"},
        {"prompt": "3+5?", "chosen": [said("8", tool_calls=[{"function": ADD}])]},
        {"prompt": "2+2?", "chosen": [SUM, said("8")]},
        {"prompt": [HELLO], "chosen": [SUM, said("8")]},
        {"prompt": "3+5?", "chosen": [SUM]},
        {"prompt": [SUM, HI], "chosen": "8"},
    ],
)
def test_what_cannot_be_read_is_a_failure_and_the_other_rows_stay(row):
    good = {"prompt": "3+5?", "chosen": "8", "rejected": "9", "subset": "x"}
    choices = choices_from_rows([{**good, **row}, good])
    called = isinstance(row["chosen"], list) and "tool_calls" in row["chosen"][-1]
    reason = "no_response" if called else "unreadable_chat"
    assert choices[0].chosen[0].reason == reason
    values = [r if isinstance(r, Failure) else float(r.text == "8") for c in choices for r in c.responses]
    found = reward_bench(choices, values, reps=10, seed=0)
    assert found.overall.measured.estimate == 1.0
    assert found.overall.failures_wrong.estimate == 0.5
    assert found.failures[reason] >= 1


@pytest.mark.parametrize("value", [3, [], [3], [{"role": "assistant", "content": "8"}, "8"], None])
def test_a_response_that_is_neither_text_nor_messages_is_an_error(value):
    with pytest.raises(DataError, match="row 1"):
        choices_from_rows([{"prompt": "p", "chosen": value, "rejected": "9", "subset": "x"}])
    with pytest.raises(DataError, match="row 1 has no prompt"):
        choices_from_rows([{"chosen": "8", "rejected": "9", "subset": "x"}])
