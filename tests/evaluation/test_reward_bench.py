"""Rules of preference benchmarks against hand-computed values and the arithmetic of their scripts.

Read in: THU-KEG/RM-Bench (README.md: columns, averages; scripts/utils.py: compute_accuracy); ScalerLab/JudgeBench
(README.md: columns; run_judge.py: sources; utils/metrics.py: accuracy over all pairs). The columns of PPE in scripts
that load lmarena-ai/PPE-Human-Preference-V1 and keep the winners model_a and model_b.
"""

import json
import math
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest

from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.reward_bench import (
    choices_from_rows,
    preference_figures,
    reward_bench,
    reward_bench_2,
    ties_score,
)
from guerdon.types import Failure
from tables import refuses


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
    with pytest.raises(DataError, match=r"ref:<n>") as refused:
        reward_bench_2(choices_from_rows(rows), values, seed=0, reps=100)
    assert refused.value.field == "id"


def test_bad_rows_and_numbers_are_one_clear_line():
    left_out = Counter()
    rows = [row("s"), {**row("s"), "rejected": None}, {**row("s"), "chosen": []}, {**row("s"), "prompt": None}]
    assert len(choices_from_rows(rows, left_out=left_out)) == 1
    assert left_out == {"no_value": 2, "no_prompt": 1}
    with pytest.raises(DataError, match="no preferences are recognised, found prompt, chosen, subset"):
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


@pytest.mark.parametrize("value", [3, [3], [{"role": "assistant", "content": "8"}, "8"]])
def test_a_response_that_is_neither_text_nor_messages_is_an_error(value):
    with refuses("chosen", "row 1"):
        choices_from_rows([{"prompt": "p", "chosen": value, "rejected": "9", "subset": "x"}])


def rm_row(domain, k):
    return {
        "id": f"{domain}-{k}", "prompt": f"p{k}", "domain": domain,
        "chosen": ["a", "b", "c"], "rejected": ["d", "e", "f"],
    }  # fmt: skip


def test_rm_bench_averages_as_its_script_does():
    """A 3 x 3 matrix of accuracies per domain; its upper triangle is hard, its diagonal normal, the rest easy."""
    rng = np.random.default_rng(3)
    sizes = {"chat": 3, "code": 5, "math": 2, "safety-refuse": 4, "safety-response": 1}
    rows = [rm_row(domain, k) for domain, n in sizes.items() for k in range(n)]
    scores = rng.integers(0, 4, size=(len(rows), 2, 3)).astype(float)
    wanted = {}
    for domain in ("chat", "code", "math", "safety"):
        own = [s for row, s in zip(rows, scores, strict=True) if row["domain"].startswith(domain)]
        matrix = np.mean([[[float(a > b) for b in rejected] for a in chosen] for chosen, rejected in own], axis=0)
        wanted[domain] = {
            "hard": np.triu(matrix, 1).sum() / 3, "normal": np.trace(matrix) / 3, "easy": np.tril(matrix, -1).sum() / 3,
        }  # fmt: skip
    name, found = preference_figures(choices_from_rows(rows), scores.ravel().tolist(), seed=0, reps=100)
    assert name == "RM-Bench"
    estimates = {key: share.measured.estimate for key, share in found.sections.items()}
    for domain, levels in wanted.items():
        assert estimates[domain] == pytest.approx(np.mean(list(levels.values())))
    for level in ("easy", "normal", "hard"):
        assert estimates[level] == pytest.approx(np.mean([wanted[d][level] for d in wanted]))
    assert found.overall.measured.estimate == pytest.approx(np.mean([estimates[d] for d in wanted]))
    assert found.overall.measured.estimate == pytest.approx(
        np.mean([estimates[level] for level in ("easy", "normal", "hard")])
    )
    assert set(found.subsets) == set(sizes)
    assert found.overall.measured.low < found.overall.measured.estimate < found.overall.measured.high


def test_a_style_that_decides_is_easy_in_one_direction_and_hard_in_the_other():
    choices = choices_from_rows([rm_row("chat", 0), rm_row("math", 1)])
    found = preference_figures(choices, [0, 1, 2, 0, 1, 2] * 2, seed=0, reps=100)[1]
    estimates = {key: share.measured.estimate for key, share in found.sections.items()}
    assert estimates == {"chat": pytest.approx(1 / 3), "math": pytest.approx(1 / 3), "easy": 1, "normal": 0, "hard": 0}
    failed = preference_figures(choices, [Failure("late"), 1, 2, 0, 1, 2, 3, 3, 3, 0, 0, 0], seed=0, reps=100)[1]
    assert failed.overall.measured.estimate is None  # a domain without a measured prompt
    assert failed.overall.failures_wrong.estimate == 0.5


def test_files_of_one_domain_of_rm_bench_are_known_by_their_name():
    row = {"prompt": "p", "chosen": ["a", "b", "c"], "rejected": ["d", "e", "a"]}
    choices = choices_from_rows([row], "RM-Bench/data/safety-refuse_filtered.json", "safety-refuse_filtered")
    assert (choices[0].benchmark, choices[0].subset) == ("RM-Bench", "safety-refuse")
    name, found = preference_figures(choices, [3, 3, 3, 1, 1, 3], seed=0, reps=100)
    assert (name, found.sections["safety"].measured.estimate) == ("RM-Bench", pytest.approx(6 / 9))
    (other,) = choices_from_rows([{**row, "subset": "s"}], "mine.json", "mine")
    assert (other.benchmark, other.subset) == ("", "s")


def judge_row(source, label, k=0):
    return {
        "pair_id": f"{source}-{k}", "original_id": "1", "source": source, "question": "q", "response_model": "m",
        "response_A": "a", "response_B": "b", "label": label,
    }  # fmt: skip


def test_judge_bench_pools_pairs_and_names_its_sources():
    rows = [judge_row("mmlu-pro-law", "A>B"), judge_row("mmlu-pro-law", "B>A", 1), judge_row("mmlu-pro-math", "A>B"),
            judge_row("livebench-math", "B>A"), judge_row("livecodebench", "A>B")]  # fmt: skip
    choices = choices_from_rows(rows)
    assert [choice.chosen[0].text for choice in choices] == ["a", "b", "a", "b", "a"]
    values = [1, 0, 1, 0, 0, 1, 2, 1, 1, 1]  # right, right, wrong, right, a tie
    name, found = preference_figures(choices, values, seed=0, reps=100)
    assert name == "JudgeBench"
    assert found.overall.measured.estimate == pytest.approx(3 / 5)
    estimates = {key: share.measured.estimate for key, share in found.sections.items()}
    assert estimates == {"mmlu-pro": pytest.approx(2 / 3), "livebench-math": 1, "livecodebench": 0}
    assert preference_figures(choices, values, ties="half", seed=0, reps=100)[1].overall.measured.estimate == 0.7


def test_ppe_leaves_out_the_votes_for_neither():
    rows = [
        {"question_id": f"{k}", "model_a": "x", "model_b": "y", "winner": winner, "language": language, "prompt": "p",
         "response_1": "a", "response_2": "b", "conv_metadata": {"turns": 1}}
        for k, (winner, language) in enumerate([("model_a", "English"), ("model_b", "English"), ("tie", "English"),
                                                ("tie (bothbad)", "German"), ("model_b", "German")])
    ]  # fmt: skip
    left_out = Counter()
    choices = choices_from_rows(rows, left_out=left_out)
    assert left_out == {"tie": 2}
    name, found = preference_figures(choices, [1, 0, 0, 1, 3, 2], seed=0, reps=100)
    assert name == "PPE"
    assert found.overall.measured.estimate == pytest.approx(2 / 3)
    assert {key: share.measured.estimate for key, share in found.subsets.items()} == {"English": 0.5, "German": 1}


def test_other_layouts_are_read_and_what_says_nothing_is_counted():
    pairs = [
        {"prompt": "p", "chosen": "good", "rejected": "bad"},
        {"prompt": "p", "chosen": "same", "rejected": "same"},
    ]
    signed = [{"context": [{"role": "user", "content": "p"}], "response1": "bad", "response2": "good",
               "overall_preference": n} for n in (2, -3, 0)]  # fmt: skip
    ranked = [{"prompt": "p", "responses": ["bad", "good", "worse"], "scores": [2, 3, 1]}]
    for rows, chosen, lost in (
        (pairs, [["good"]], {"equal_answers": 1}),
        (signed, [["good"], ["bad"]], {"tie": 1}),
        (ranked, [["good"]], {}),
    ):
        left_out = Counter()
        choices = choices_from_rows(rows, "mine.jsonl", "mine", left_out)
        assert left_out == lost
        assert [[r.text for r in c.chosen] for c in choices] == chosen
        assert {c.subset for c in choices} == {"mine"}
    found = preference_figures(choices_from_rows(signed[:2]), [1, 0, 0, 1], seed=0, reps=100)[1]
    assert found.overall.measured.estimate == 0.5
    with pytest.raises(DataError, match="no preferences are recognised"):
        choices_from_rows([{"prompt": "p", "answer": "a"}])


def test_best_of_k_of_ppe_is_right_where_the_best_value_is_that_of_a_right_response():
    rows = [
        {"question_id": "1", "prompt": "p", "response_1": "a", "response_2": "b", "response_3": "c",
         "scores": [True, False, True], "model_name": "m"},
        {"question_id": "2", "prompt": "q", "response_1": "d", "response_2": "e", "response_3": "f",
         "scores": [False, False, True], "model_name": "m"},
        {"question_id": "3", "prompt": "r", "response_1": "g", "response_2": "h", "response_3": "i",
         "scores": [True, True, True], "model_name": "m"},
    ]  # fmt: skip
    left_out = Counter()
    choices = choices_from_rows(rows, "math_best_of_k.jsonl", "math_best_of_k", left_out)
    assert left_out == {"tie": 1}  # all are right
    assert [[one.text for one in choice.chosen] for choice in choices] == [["a", "c"], ["f"]]
    assert [[one.text for one in choice.rejected] for choice in choices] == [["b"], ["d", "e"]]
    values = [1, 5, 3, 9, 9, 0]  # of a, c, b: c is best; of f, d, e: f and d share the best value
    name, found = preference_figures(choices, values, seed=0, reps=100)
    assert name == "PPE"
    assert found.overall.measured.estimate == pytest.approx((1 + 1 / 2) / 2)


def test_prompts_are_found_as_in_training():
    rows = [
        {"system": "S", "question": "Q?", "chosen": "a", "rejected": "b", "subset": "mine"},
        {"system": "S", "question": "Q?", "chosen": "a", "rejected": "b"},
    ]
    for one in choices_from_rows(rows):
        assert one.chosen[0].question == "Q?"
        assert [m["content"] for m in one.chosen[0].context] == ["S", "Q?"]
