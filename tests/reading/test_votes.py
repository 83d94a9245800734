"""Votes in every coding: a perfect judge agrees with all of them, or the file is refused and agrees as it is told to.

No other number comes out: what a refusal names is each reading, of which one is right and its mirror image all wrong.
"""

import re

import pytest
from layout_files import written

from guerdon.episodes.preferences import read_preferences
from guerdon.errors import DataError

SIDES = [(0, "good a", "bad b"), (1, "bad c", "good d"), (1, "bad e", "good f"), (0, "good g", "bad h")] * 2
AB, NUMBERED, FROM_0 = ("response_a", "response_b"), ("response_1", "response_2"), ("response_0", "response_1")
READ = {  # columns of the responses, column of the vote, its values for the first, the second and a tie
    "1 and 2": (NUMBERED, "winner", 1, 2, "tie"),
    "1 and 2 of letters": (AB, "vote", 1, 2, "both"),
    "numbers with a point": (AB, "winner", 1.0, 2.0, None),
    "such numbers as text": (NUMBERED, "winner", "1.0", "2.0", None),
    "letters": (AB, "winner", "A", "B", "tie"),
    "small letters": (NUMBERED, "winner", "a", "b", "TIE"),
    "letters in brackets": (AB, "choice", "(A)", "(B)", None),
    "MT-Bench": (AB, "verdict", "[[A]]", "[[B]]", "tie"),
    "names of columns": (("answer_a", "answer_b"), "preferred", "answer_a", "answer_b", None),
    "names of columns from 0": (FROM_0, "winner", "response_0", "response_1", "tie"),
    "their names in words": (AB, "winner", "Response A", "Response B", "Both bad"),
    "numbered in words": (NUMBERED, "winner", "Response 1", "Response 2", "Equal"),
    "columns without an underscore": (("answer1", "answer2"), "preferred", "answer1", "answer2", None),
    "left and right": (("left", "right"), "winner", "left", "right", "both"),
    "large letters": (AB, "preference", "Left", "RIGHT", "Tie"),
    "Chatbot Arena": (AB, "winner", "model_a", "model_b", "tie (bothbad)"),
    "models in words": (AB, "winner", "Model A", "Model B", "tie (both bad)"),
    "the better one": (AB, "better_response", "response_a", "response_b", "tie"),
    "models in front": (("model_a_answer", "model_b_answer"), "winner", "model_a", "model_b", "tie"),
    "assistants": (AB, "winner", "assistant_a", "assistant_b", "tie"),
    "options": (("option_a", "option_b"), "choice", "Option A", "Option B", "neither"),
    "first and second": (AB, "winner", "first", "second", "neither"),
    "in order": (AB, "winner", "1st", "2nd", None),
    "JudgeBench": (AB, "label", "A>B", "B>A", "A=B"),
    "by far": (AB, "verdict", "A>>B", "B>>A", "A=B"),
    "smaller": (AB, "verdict", "A > B", "A < B", "A = B"),
    "in sentences": (AB, "winner", "A is better", "B is better", "draw"),
    "wins": (AB, "winner", "a_wins", "b_wins", "draw"),
    "signed": (("response1", "response2"), "preference", -3, 2, 0),
    "signs": (AB, "winner", -1, 1, 0),
    "0 and 1 of numbered columns": (FROM_0, "winner", 0, 1, None),
}
SAID = {  # the same, and what the refusal names beside its mirror image
    "0 and 1": (AB, "winner", 0, 1, None, "winner=winner:0/1"),
    "1 and 0": (AB, "winner", 1, 0, None, "winner=winner:1/0"),
    "with a half": (AB, "label", 0.0, 1.0, 0.5, "winner=label:0/1"),
    "truth values": (AB, "winner", True, False, None, "winner=winner:true/false"),
    "truth values the other way": (AB, "winner", False, True, None, "winner=winner:false/true"),
    "1 to 5": (AB, "preference", 1, 5, 3, "winner=preference:1..5"),
    "5 to 1": (AB, "preference", 5, 1, 3, "winner=preference:5..1"),
    "percent": (AB, "preference", 0, 100, 50, "winner=preference:0..100"),
    "probabilities": (AB, "preference", 0.1, 0.9, 0.5, "winner=preference:0.1..0.9"),
    "1 and 2 with 0 for ties": (AB, "winner", 1, 2, 0, "winner=winner:1/2/0"),
    "1 and 2 with 3 for ties": (NUMBERED, "winner", 1, 2, 3, "winner=winner:1/2/3"),
    "other words": (AB, "winner", "x", "y", "tie", "winner=winner:x/y"),
    "colours": (AB, "vote", "red", "blue", None, "winner=vote:red/blue"),
}
HOT = {  # two columns, and their values for the better and the worse response
    "one-hot": (AB, "winner_a", "winner_b", 1, 0),
    "of models": (AB, "winner_model_a", "winner_model_b", 1, 0),
    "truth values": (NUMBERED, "preferred_1", "preferred_2", True, False),
    "votes": (AB, "is_preferred_a", "is_preferred_b", "yes", "no"),
    "scores": (AB, "score_a", "score_b", 0.9, 0.2),
    "ratings": (NUMBERED, "rating_1", "rating_2", 5, 1),
    "ranks": (AB, "rank_a", "rank_b", 1, 2),
    "ranks from 0": (NUMBERED, "rank_1", "rank_2", 0, 1),
}


def agreement(path, columns=None):
    """How many comparisons a perfect judge agrees with, of how many; and the ties."""
    found = read_preferences(path, columns=columns).comparisons
    judged = [one for one in found if len(set(one.ranks)) > 1]
    agreed = [one.responses[one.ranks.index(0)].text.startswith("good") for one in judged]
    return sum(agreed), len(judged), len(found) - len(judged)


def voted(columns, vote, first, second, tie):
    rows = [
        {"prompt": f"p{k}", columns[0]: a, columns[1]: b, vote: (first, second)[side]}
        for k, (side, a, b) in enumerate(SIDES)
    ]
    return [*rows, {**rows[0], "prompt": "a tie", vote: tie}] if tie is not None else rows


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
@pytest.mark.parametrize("name", READ)
def test_votes_with_one_reading(tmp_path, name, ending):
    *how, tie = READ[name]
    path = written(tmp_path, f"votes{ending}", voted(*how, tie))
    assert agreement(path) == (len(SIDES), len(SIDES), int(tie is not None))


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
@pytest.mark.parametrize("name", SAID)
def test_votes_with_several_readings_are_refused_with_each(tmp_path, name, ending):
    *how, tie, wanted = SAID[name]
    path = written(tmp_path, f"votes{ending}", voted(*how, tie))
    with pytest.raises(DataError) as refused:
        read_preferences(path)
    assert refused.value.field == "winner"
    named = re.findall(r"--columns (\S+)", str(refused.value))
    assert wanted in named
    assert agreement(path, wanted) == (len(SIDES), len(SIDES), int(tie is not None))
    if len(named) == 2:
        (mirror,) = [one for one in named if one != wanted]
        assert agreement(path, mirror) == (0, len(SIDES), int(tie is not None))


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
@pytest.mark.parametrize("name", HOT)
def test_a_column_for_each_response(tmp_path, name, ending):
    columns, one, other, better, worse = HOT[name]
    rows = [
        {"prompt": f"p{k}", columns[0]: a, columns[1]: b, one: (better, worse)[side], other: (worse, better)[side]}
        for k, (side, a, b) in enumerate(SIDES)
    ]
    assert agreement(written(tmp_path, f"votes{ending}", rows)) == (len(SIDES), len(SIDES), 0)


def test_a_stored_coding_reads_the_other_words_for_the_same(tmp_path):
    """What a model was trained on says A>B; the data that it is evaluated on has A>>B, too."""
    path = written(tmp_path, "votes.jsonl", voted(AB, "verdict", "A>>B", "B>>A", "A=B"))
    assert agreement(path, "winner=verdict:a>b/b>a") == (len(SIDES), len(SIDES), 1)
    assert agreement(path, "winner=verdict:b>a/a>b") == (0, 0, 1)  # the other way round only what was said
