"""Layouts of preferences as published data sets have them, what is left out, and the split by prompt.

Where the columns were read: HelpSteer3 in the card of nvidia/HelpSteer3 (`overall_preference` -3 to 3, below 0:
response 1 is better); HelpSteer2 in its paper (2410.01257) and converters of its folder `preference`; PKU-SafeRLHF and
SHP in converters on GitHub (`labels` 1: A is better); Chatbot Arena in FastChat's clean_battle_data.py; PPE in scripts
that load lmarena-ai/PPE-Human-Preference-V1; JudgeBench in the README of ScalerLab/JudgeBench; RM-Bench in that of
THU-KEG/RM-Bench; WebGPT comparisons in OpenRLHF's reward data set; Nectar and UltraFeedback in loaders on GitHub; TRL
in docs/source/dataset_formats.md (preference and unpaired preference, explicit and implicit prompts).
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.episodes.preferences import (
    Comparison,
    Votes,
    benchmark_of,
    check_preferences,
    comparison,
    counted_votes,
    is_preference,
    near_duplicates,
    read_preferences,
    responses_in,
    split_prompts,
)
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.reading.data_sets import DataPart
from guerdon.reading.reader import DataReading
from guerdon.types import Failure
from tables import cases, refuses

ASKED = [{"role": "user", "content": "Which colour?"}]


def said(text):
    return [{"role": "assistant", "content": text}]


def reading_of(*rows):
    """Rows as a data set of their own."""
    return DataReading(
        "file", [DataPart("file", "row", None, "", lambda kept: ((f"file:{k + 1}", row) for k, row in enumerate(rows)))]
    )


def read(row, *others):
    """The first of some rows, as it is read among the others."""
    reading = reading_of(row, *others)
    check_preferences(reading)
    return comparison(next(reading.records()), reading.plan)


def texts(found):
    return [(one.question, one.text, rank) for one, rank in zip(found.responses, found.ranks, strict=True)]


BLUE = [("Which colour?", "blue", 0), ("Which colour?", "red", 1)]
RED = [("Which colour?", "blue", 1), ("Which colour?", "red", 0)]
TIE = [("Which colour?", "blue", 0), ("Which colour?", "red", 0)]
Q = {"prompt": "Which colour?"}
TWO = {**Q, "response_1": "blue", "response_2": "red"}
SCORED = {"question": "Which colour?", "answer_0": "blue", "answer_1": "red", "score_0": 1, "score_1": 2}
BATTLE = {"conversation_a": ASKED + said("blue"), "conversation_b": ASKED + said("red")}


@cases(
    ("row", "wanted"),
    [
        ({**Q, "chosen": "blue", "rejected": "red"}, BLUE),
        ({**Q, "chosen": ASKED + said("blue"), "rejected": ASKED + said("red")}, BLUE),
        ({"chosen": ASKED + said("blue"), "rejected": ASKED + said("red")}, BLUE),
        ({"prompt": ASKED, "chosen": said("blue"), "rejected": said("red")}, BLUE),
        ({**Q, "chosen": "Which colour? blue", "rejected": "Which colour? red"},
         [("Which colour?", " blue", 0), ("Which colour?", " red", 1)]),
        ({"chosen": "\n\nHuman: Which colour?\n\nAssistant: blue",
          "rejected": "\n\nHuman: Which colour?\n\nAssistant: red"}, BLUE),
        ({"chosen": "The sky is blue.", "rejected": "The sky is green."},
         [("The sky is", "blue.", 0), ("The sky is", "green.", 1)]),
        ({"chosen": "The sky is blue.", "rejected": "The sky is black."},
         [("The sky is", "blue.", 0), ("The sky is", "black.", 1)]),
        ({"instruction": "Which colour?", "chosen": "blue", "rejected": "red"}, BLUE),
        ({"context": ASKED, "response1": "blue", "response2": "red", "overall_preference": -3}, BLUE),
        ({"context": ASKED, "response1": "blue", "response2": "red", "overall_preference": 1}, RED),
        ({"context": ASKED, "response1": "blue", "response2": "red", "overall_preference": 0}, TIE),
        ({**TWO, "preference_strength": 2}, RED),
        ({**Q, "accepted": "blue", "rejected": "red"}, BLUE),
        ({**Q, "losing_response": "red", "winning_response": "blue"}, BLUE),
        ({**Q, "response_0": "blue", "response_1": "red", "better_response_id": 0, "safer_response_id": 1}, BLUE),
        ({**Q, "response_0": "blue", "response_1": "red", "better_response_id": 1, "safer_response_id": 0}, RED),
        ({**BATTLE, "winner": "model_a"}, BLUE),
        ({**BATTLE, "winner": "model_b"}, RED),
        ({**BATTLE, "winner": "tie"}, TIE),
        ({**BATTLE, "winner": "tie (bothbad)"}, TIE),
        ({**TWO, "winner": "model_a"}, BLUE),
        ({"question": "Which colour?", "response_A": "blue", "response_B": "red", "label": "A>B"}, BLUE),
        ({"question": "Which colour?", "response_A": "blue", "response_B": "red", "label": "B>A"}, RED),
        ({"history": "Which colour?", "human_ref_A": "blue", "human_ref_B": "red", "labels": 1}, BLUE),
        ({"history": "Which colour?", "human_ref_A": "blue", "human_ref_B": "red", "labels": 0}, RED),
        ({"question": {"full_text": "Which colour?"}, "answer_0": "blue", "answer_1": "red", "score_0": 1.0,
          "score_1": -1.0}, BLUE),
        ({"prompt": "\n\nHuman: Which colour?\n\nAssistant: ",
          "answers": [{"answer": "blue", "rank": 1.0}, {"answer": "red", "rank": 2.0}]}, BLUE),
        ({"instruction": "Which colour?",
          "completions": [{"response": "blue", "overall_score": 3.0}, {"response": "red", "overall_score": 7.5}]}, RED),
        ({**Q, "responses": ["blue", "red"], "scores": [1, 1]}, TIE),
        ({"input": "Which colour?", "chosen": "It is blue", "rejected": "It is red"},
         [("Which colour?", "It is blue", 0), ("Which colour?", "It is red", 1)]),
        ({"instruction": "Which", "input": "colour?", "chosen": "blue", "rejected": "red"},
         [("Which\ncolour?", "blue", 0), ("Which\ncolour?", "red", 1)]),
        ({"prompt": "\n\nHuman: Which colour?\n\nAssistant:", "chosen": "blue", "rejected": "red"}, BLUE),
        ({"conversations": [{"from": "human", "value": "Which colour?"}], "chosen": {"from": "gpt", "value": "blue"},
          "rejected": {"from": "gpt", "value": "red"}}, BLUE),
        ({"id": 3, "prompt": '["Which colour?"]', "response_a": '["blue"]', "response_b": '["red"]',
          "winner_model_a": 0, "winner_model_b": 1, "winner_tie": 0}, RED),
        ({"prompt": '["Which colour?"]', "response_a": '["blue"]', "response_b": '["red"]', "winner_model_a": 0,
          "winner_model_b": 0, "winner_tie": 1}, TIE),
        ({**Q, "responses": ["blue", "red"], "ranks": [2, 1]}, RED),
    ],
)  # fmt: skip
def test_layouts(row, wanted):
    found = read(row)
    assert isinstance(found, Comparison), found
    assert texts(found) == wanted
    assert is_preference(reading_of(row).plan)


@pytest.mark.parametrize(
    "row",
    [
        {"system": "Be brief.", "question": "Which colour?", "chosen": "blue", "rejected": "red"},  # Intel
        {"system": "Be brief.", **Q, "chosen": ASKED + said("blue"), "rejected": ASKED + said("red")},
        {"system": "Be brief.", "prompt": ASKED, "chosen": said("blue"), "rejected": said("red")},
        {"system_prompt": "Ignored.", "prompt": [{"role": "system", "content": "Be brief."}, *ASKED],
         "chosen": said("blue"), "rejected": said("red")},
    ],
)  # fmt: skip
def test_system_prompts_are_part_of_the_conversation(row):
    found = read(row)
    assert texts(found) == BLUE
    assert [one["content"] for one in found.responses[0].context] == ["Be brief.", "Which colour?"]


def test_turns_before_the_last_stay_in_the_conversation():
    row = {
        "chosen": "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: Which colour?\n\nAssistant: blue",
        "rejected": "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: Which colour?\n\nAssistant: red",
    }
    found = read(row)
    assert texts(found) == BLUE
    assert [m["content"] for m in found.responses[0].context] == ["hi", "hello", "Which colour?"]


@pytest.mark.parametrize(
    ("more", "margin"),
    [({}, None), ({"margin": 2}, 2.0), ({"score_chosen": 8.5, "score_rejected": 6.0}, 2.5),
     ({"chosen_rating": 5, "rejected_rating": 4}, 1.0), ({"margin": 0.5, "score_chosen": 9, "score_rejected": 1}, 0.5)],
)  # fmt: skip
def test_margins(more, margin):
    assert read({**Q, "chosen": "blue", "rejected": "red", **more}).margin == margin


def test_the_size_of_a_signed_preference_is_a_margin():
    assert read({**TWO, "preference_strength": -3}).margin == 3.0


def test_several_right_responses_share_the_first_rank():
    row = {**Q, "id": 7, "domain": "chat", "chosen": ["a", "b", "c"], "rejected": ["d", "e", "f"]}
    found = read(row)
    assert found.ranks == (0, 0, 0, 1, 1, 1)
    assert (found.id, found.subset) == ("7", "chat")


def test_single_responses():
    assert read({**Q, "completion": "blue", "label": True}).label is True
    assert read({**Q, "completion": said("red"), "label": False}).label is False
    rated = read({**Q, "response": "blue", "helpfulness": 4, "correctness": 3, "verbosity": 0})
    assert rated.attributes == {"helpfulness": 4.0, "correctness": 3.0, "verbosity": 0.0}


@pytest.mark.hostile("files")
@cases(
    ("row", "reason"),
    [
        ({**Q, "chosen": "blue", "rejected": " "}, "empty_answer"),
        ({**Q, "response_0": "a", "response_1": "b", "better_response_id": 2}, "unreadable_winner"),
        ({**Q, "chosen": None, "rejected": None}, "no_value"),
        ({"completion": "blue", "label": True}, "no_prompt"),
        ({**Q, "chosen": "blue", "rejected": "blue "}, "equal_answers"),
        ({"chosen": "blue", "rejected": "red"}, "no_prompt"),
        ({**Q, "chosen": "blue", "rejected": "red", "score_chosen": 1, "score_rejected": 2}, "chosen_scored_lower"),
        ({**Q, "responses": ["blue", "red"], "scores": [1, None]}, "no_rank"),
        ({**Q, "responses": ["blue", "red"], "scores": [1, 10**400]}, "no_rank"),
        ({**Q, "responses": [{"response": "blue", "rank": 1}, "red"]}, "no_rank"),
        ({**Q, "responses": ["blue", {"response": "red", "rank": 1}]}, "no_rank"),
        ({**TWO, "preference_strength": float("inf")}, "unreadable_winner"),
        ({**TWO, "preference_strength": 10**400}, "unreadable_winner"),
        ({**SCORED, "score_0": float("nan")}, "no_value"),
        ({**SCORED, "score_1": -(10**400)}, "unreadable_second_score"),
        (
            {**Q, "chosen": [{"role": "assistant", "content": "x", "images": ["y"]}], "rejected": "red"},
            "unreadable_chat",
        ),
    ],
)
def test_what_says_nothing_is_left_out_with_its_reason(row, reason):
    assert read(row) == reason


@cases(
    ("row", "reasons"),
    [
        ({**Q, "chosen": "blue", "rejected": "red"}, [None, None]),
        ({"chosen": "blue", "rejected": "red"}, ["no_prompt"] * 2),
        ({**Q, "chosen": [{"role": "assistant", "content": "x", "images": ["y"]}], "rejected": "red"},
         ["unreadable_chat", None]),
        ({"prompt": [{"role": "narrator", "content": "x"}], "chosen": "blue", "rejected": "red"},
         ["unreadable_chat"] * 2),
    ],
)  # fmt: skip
def test_responses_are_read_whatever_is_judged(row, reasons):
    reading = reading_of(row)
    check_preferences(reading)
    found, counts = responses_in(next(reading.records()), reading.plan)
    assert [one.reason if isinstance(one, Failure) else None for one in found] == reasons
    assert counts == (1, 1)


def test_a_value_that_few_rows_have_is_left_out_and_many_are_refused():
    known = [{**TWO, "winner": side} for side in ("model_a", "model_b", "tie")]
    assert read({**TWO, "winner": "me"}, *known * 7) == "unreadable_winner"
    with refuses("winner", r"winner holds me, model_a, .* no known coding of a winner") as refused:
        read({**TWO, "winner": "me"}, *known)
    assert "--columns winner=winner:A/B/tie" in str(refused.value)


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        ({"a": 1}, None, "columns: {chosen"), ({**Q, "chosen": 3, "rejected": "red"}, "chosen", "chosen must be text"),
        ({**Q, "responses": ["blue", "red"], "scores": 5}, None, "no preferences are recognised"),
    ],
)  # fmt: skip
def test_other_rows_are_errors_that_name_the_place(row, field, words):
    with refuses(field, words) as caught:
        read(row)
    assert caught.value.where.startswith("file")


def written(folder, rows, name="pairs.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def pair(question, better, worse):
    return {"prompt": question, "chosen": better, "rejected": worse}


def test_contradicting_pairs_are_left_out_and_tell_the_noise(tmp_path):
    rows = [pair(f"q{k}", "a", "b") for k in range(10)] + [pair(f"q{k}", "a", "b") for k in range(2, 10)]
    rows += [pair("q0", "b", "a"), pair("q1", "b", "a")]
    found = read_preferences(written(tmp_path, rows))
    assert found.votes.repeated == 10
    assert len(found.comparisons) == 16  # both rows of each contradicted pair are gone
    assert found.left_out == {"contradicted": 4}
    noise = found.votes.label_noise
    assert 2 * noise * (1 - noise) == pytest.approx(0.2)
    assert read_preferences(written(tmp_path, rows[:10])).votes.label_noise is None


def test_a_majority_is_kept_with_its_share(tmp_path):
    """Seven ways in which votes on one pair differ; the pairs are told apart by their prompt."""
    cast = {"2:1": "aab", "3:2": "babab", "1:1": "ab", "a tie beside": "at", "mostly ties": "tat", "even": "abt",
            "even below ties": "abtt", "all one": "bb", "all ties": "tt"}  # fmt: skip
    rows = [
        {"prompt": name, "response_a": "x", "response_b": "y", "winner": {"t": "tie"}.get(vote, f"model_{vote}")}
        for name, votes in cast.items()
        for vote in votes
    ]
    found = read_preferences(written(tmp_path, rows))
    kept = {}
    for one in found.comparisons:
        kept.setdefault(one.prompt, []).append((one.ranks, round(one.share, 3)))
    first, second, tie = (0, 1), (1, 0), (0, 0)
    assert kept == {
        "2:1": [(first, 0.667)] * 2, "3:2": [(second, 0.6)] * 3, "a tie beside": [(first, 0.5)],
        "mostly ties": [(tie, 0.667)] * 2, "even below ties": [(tie, 0.5)] * 2, "all one": [(second, 1.0)] * 2,
        "all ties": [(tie, 1.0)] * 2,
    }  # fmt: skip
    assert found.left_out == {"outvoted": 1 + 2 + 1 + 1 + 2, "contradicted": 2 + 3}
    assert (found.votes.repeated, found.votes.majorities) == (9, 5)
    # of two votes for a response each: 2:1, 3:2, 1:1, even, even below ties, all one
    assert found.votes.disagreement == pytest.approx((2 / 3 + 0.6 + 1 + 1 + 1 + 0) / 6)
    assert found.votes.mean_share == pytest.approx((2 / 3 + 0.6 + 0.5 + 2 / 3 + 0.5) / 5)


@pytest.mark.parametrize("wrong", [0.05, 0.15, 0.30])
def test_planted_noise_is_found_whatever_the_number_of_votes(wrong):
    rng = np.random.default_rng(11)
    for least, most in ((2, 2), (3, 3), (5, 5), (2, 7)):
        found = []
        for k in range(500):
            for vote in range(rng.integers(least, most + 1)):
                one = of(f"q{k}", vote)
                turned = rng.random() < wrong
                found.append(replace(one, ranks=one.ranks[::-1]) if turned else one)
        errors = abs(counted_votes(found).label_noise - wrong)
        assert errors < (0.02 if least > 2 else 0.035), (least, most)  # two votes a pair tell less


@pytest.mark.parametrize("wrong", [0.05, 0.15, 0.30])
def test_the_interval_of_the_noise_covers_what_was_planted(wrong):
    """400 data sets of 200 pairs with two votes; the standard error is that of the closed form."""
    rng = np.random.default_rng(3)
    differ = 2 * wrong * (1 - wrong)
    found, covered = [], []
    for _ in range(400):
        disagree = int(rng.binomial(200, differ))
        votes = Votes(200, disagree / 200, 200.0)
        low, high = votes.label_noise_interval
        found.append(votes.label_noise)
        covered.append(low <= wrong <= high)
    assert 0.92 <= np.mean(covered) <= 0.98
    error = np.sqrt(differ * (1 - differ) / 200) / (2 * (1 - 2 * wrong))
    assert np.std(found) == pytest.approx(error, rel=0.25)


@pytest.mark.parametrize(("least", "most"), [(2, 2), (3, 3), (2, 6)])
def test_the_interval_covers_with_any_number_of_votes(least, most):
    rng, wrong, covered = np.random.default_rng(4), 0.2, []
    for _ in range(60):
        rows = []
        for k in range(100):
            for vote in range(rng.integers(least, most + 1)):
                one = of(f"q{k}", vote)
                rows.append(replace(one, ranks=one.ranks[::-1]) if rng.random() < wrong else one)
        votes = counted_votes(rows)
        low, high = votes.label_noise_interval
        assert low < votes.label_noise < high
        covered.append(low <= wrong <= high)
        if most == 2:
            assert votes.trials == pytest.approx(100)
    assert np.mean(covered) >= 0.88  # 95 % of 60 is within 0.88 to 1 in 98 of 100 runs


def test_the_interval_is_undefined_without_repeated_votes():
    assert counted_votes([of("q", 0)]).label_noise_interval is None
    all_alike = counted_votes([of(f"q{k}", vote) for k in range(20) for vote in range(2)])
    assert all_alike.label_noise == 0
    low, high = all_alike.label_noise_interval
    assert low == 0
    assert 0 < high < 0.15


def test_votes_of_all_files_count_together(tmp_path):
    """Neither file contradicts itself; together one pair is contradicted, and one has a majority."""
    one = written(tmp_path, [pair("p", "a", "b"), pair("q", "a", "b"), pair("r", "a", "b")], "one.jsonl")
    two = written(tmp_path, [pair("q", "b", "a"), pair("p", "b", "a"), pair("p", "b", "a")], "two.jsonl")
    read_as = []
    found = read_preferences([one, two], read_as=read_as)
    assert [(c.prompt, c.share) for c in found.comparisons] == [("r", 1.0), ("p", 2 / 3), ("p", 2 / 3)]
    assert found.left_out == {"outvoted": 1, "contradicted": 2}
    records = [one.record for one in read_as]
    assert [record["used"] for record in records] == [1, 2]
    assert [record["left_out"] for record in records] == [{"outvoted": 1, "contradicted": 1}, {"contradicted": 1}]
    assert found.votes.disagreement == pytest.approx((2 / 3 + 1) / 2)
    both = written(tmp_path, [pair("p", "a", "b"), pair("p", "b", "a")], "both.jsonl")
    with pytest.raises(DataError, match=r"both\.jsonl: there is no comparison that can be used: 2 contradicted"):
        read_preferences([both])
    empty = written(tmp_path, [pair("p", " ", "b")], "empty.jsonl")
    with pytest.raises(DataError, match=r"empty\.jsonl: there is no comparison that can be used: 1 empty_answer"):
        read_preferences([one, empty])


@pytest.mark.parametrize("more", [
    {"score_chosen": 4, "score_rejected": 4.0}, {"chosen_rating": "3", "rejected_rating": "3"}, {"status": "tie"},
    {"status": "Tie", "chosen_score": 5, "rejected_score": 1}, {"tie": True}, {"is_tie": 1},
])  # fmt: skip
def test_a_better_and_a_worse_response_can_be_tied(more):
    row = {"prompt": "Which colour?", "chosen": "blue", "rejected": "red"}
    untied = {"status": "unchanged", "tie": False, "is_tie": 0, "score_chosen": 4, "score_rejected": 1,
              "chosen_rating": 4, "chosen_score": 4, "rejected_rating": 1, "rejected_score": 1}  # fmt: skip
    other = {key: untied[key] for key in more}
    found = read({**row, **more}, {**row, **other})
    assert texts(found) == TIE
    assert (found.margin, found.label) == (0.0, None)
    assert texts(read({**row, **other}, {**row, **more})) == BLUE


@pytest.mark.parametrize("half", [0.5, "0.5", ".5"])
def test_one_half_is_a_tie_of_every_winner(half):
    row = {"prompt": "Which colour?", "response_0": "blue", "response_1": "red"}
    assert texts(read({**row, "winner": half}, {**row, "winner": 0}, {**row, "winner": 1})) == TIE
    sides = {"prompt": "Which colour?", "response_1": "blue", "response_2": "red"}
    others = [{**sides, "preferred_1": a, "preferred_2": 1 - a} for a in (0, 1)]
    assert texts(read({**sides, "preferred_1": half, "preferred_2": half}, *others)) == TIE
    assert texts(read(*others)) == RED
    scored = {"prompt": "Which colour?", "response_1": "blue", "response_2": "red", "score_1": 2, "score_2": 2}
    assert texts(read(scored)) == TIE
    listed = {"prompt": "Which colour?", "responses": ["blue", "red"], "scores": [half, half]}
    assert texts(read(listed)) == TIE


def test_other_names_of_columns(tmp_path):
    path = written(tmp_path, [{"q": "Which colour?", "left": "blue", "right": "red", "vote": "right"}])
    with pytest.raises(DataError, match="1 no_prompt"):
        read_preferences(path)
    names = {"prompt": "q", "response_1": "left", "response_2": "right", "winner": "vote"}
    found = read_preferences(path, columns=names)
    assert texts(found.comparisons[0]) == RED


@pytest.mark.hostile("files")
def test_a_file_of_unusable_rows_says_why(tmp_path):
    with pytest.raises(DataError, match="1 empty_answer"):
        read_preferences(written(tmp_path, [pair("q", "", "b") | {"chosen": " "}]))


def of(prompt, k=0):
    responses = tuple(Solution(id=f"{prompt}-{k}-{s}", question=prompt, steps=(s,)) for s in "ab")
    return Comparison(f"{prompt}-{k}", responses, (0, 1))


@given(st.lists(st.text("abcdef ghi", min_size=1, max_size=12), min_size=1, max_size=30), st.integers(0, 3))
def test_no_prompt_is_on_both_sides(prompts, seed):
    rows = [of(p, k) for k, p in enumerate(prompts)]
    train, val, gone = split_prompts(rows, 0.4, seed)
    words = lambda k: " ".join(rows[k].prompt.casefold().split()) or rows[k].prompt  # noqa: E731
    assert not {words(k) for k in train} & {words(k) for k in val}
    assert len(train) + len(val) + gone == len(rows)
    assert not set(train) & set(val)


def test_the_split_of_a_prompt_does_not_depend_on_the_others():
    rows = [of(f"question number {k} about topic {k * k}") for k in range(60)]
    _, val, _ = split_prompts(rows, 0.3, 0)
    held = {rows[k].prompt for k in val}
    _, few, _ = split_prompts(rows[:20], 0.3, 0)
    assert {rows[k].prompt for k in few} == held & {one.prompt for one in rows[:20]}
    assert 0 < len(held) < 60


def test_near_duplicates_by_shared_word_triples():
    text = "Write a short poem about the sea in winter and the birds that stay there all year long please"
    assert near_duplicates([text], [text + " now"]) == {text}
    assert near_duplicates([text], [text.upper().replace("SEA", "sea!")]) == {text}
    assert (
        near_duplicates([text], ["Write a short story about the mountains in summer and the goats that live there"])
        == set()
    )


@cases(
    ("source", "row", "wanted"),
    [
        ("allenai/reward-bench", {}, "RewardBench"),
        ("allenai/reward-bench-2", {}, "RewardBench 2"),
        ("data/RM-Bench", {}, "RM-Bench"),
        ("data/chat_filtered.json", {}, "RM-Bench"),
        ("THU-KEG/RM-Bench", {}, "RM-Bench"),
        ("data/dataset=judgebench,response_model=gpt-4o.jsonl", {}, "JudgeBench"),
        ("lmarena-ai/PPE-Human-Preference-V1", {}, "PPE"),
        ("x.jsonl", {**Q, "chosen": ["a", "b", "c"], "rejected": ["d", "e", "f"], "domain": "math"}, "RM-Bench"),
        ("x.jsonl", {"pair_id": "1", "response_A": "a", "response_B": "b", "label": "A>B"}, "JudgeBench"),
        ("x.jsonl", {**TWO, "winner": "tie", "conv_metadata": {}}, "PPE"),
        ("x.jsonl", {**Q, "chosen": "a", "rejected": "b", "subset": "hep-go", "chosen_model": "human"}, "RewardBench"),
        ("x.jsonl", {**Q, "chosen": "a", "rejected": "b", "subset": "mine", "chosen_model": "human"}, None),
        ("x.jsonl", {**Q, "chosen": "a", "rejected": "b", "domain": "math"}, None),
        ("x.jsonl", {**TWO, "winner": "tie"}, None),
        ("apples.jsonl", {}, None),
        ("runs/reward-bench/pairs.jsonl", {}, None),
        ("data/farm-bench.jsonl", {}, None),
    ],
)
def test_test_sets_are_known_by_their_columns_or_their_name(source, row, wanted):
    assert benchmark_of(source, row) == wanted


def test_a_response_to_another_prompt_is_not_used():
    assert read({"prompt": "Which shape?", "chosen": ASKED + said("blue"), "rejected": ASKED + said("red")}) == (
        "unreadable_chat"
    )
