"""Records that hold rows below other keys: what is unknown stays unknown, and no part of a record is dropped."""

from __future__ import annotations

import json

import pytest

from guerdon.reading import nested
from guerdon.reading.nested import atropos, lmsys


def battle(answers, **winner):
    return {
        "id": 1,
        "prompt": '["q1", "q2"]',
        "response_a": json.dumps(answers),
        "response_b": '["b1", "b2"]',
        **winner,
    }


def test_a_battle_has_all_its_turns_or_is_refused():
    found = lmsys(battle(["a1", "a2"], winner_model_a=0, winner_model_b=1, winner_tie=0))[0]
    assert [message["content"] for message in found["first"]] == ["q1", "a1", "q2", "a2"]
    assert found["winner"] == 1
    with pytest.raises(ValueError, match="shorter"):
        lmsys(battle(["a1"], winner_model_a=1, winner_model_b=0, winner_tie=0))


def test_a_battle_without_an_outcome_is_no_tie():
    assert lmsys(battle(["a1", "a2"], winner_model_a=0, winner_model_b=0))[0]["winner"] is None
    assert lmsys(battle(["a1", "a2"], winner_model_a=0, winner_model_b=0, winner_tie=1))[0]["winner"] == 0


def test_the_advantage_of_a_group_is_0_only_where_it_is_known():
    group = {"scores": [1.0, 1.0, 0.0], "messages": [[], [], []], "advantages": [[0.0, 0.0], [], [0.0, 2.0, 4.0]]}
    assert [row["advantage"] for row in atropos(group)] == [0.0, None, 3.0]


def test_why_a_sample_or_a_trace_ended_is_its_limit_or_what_the_last_good_call_says():
    sample = {"output": {"choices": [{"stop_reason": "stop"}]}}
    assert nested._end_of_sample(sample) == "stop"
    assert nested._end_of_sample({**sample, "limit": {"type": "token"}}) == "limit"
    trace = {"calls": [{"finish_reason": "stop"}, {"finish_reason": "tool", "error": "refused"}]}
    assert nested._end_of_trace(trace) == "stop"
    assert nested._end_of_trace({**trace, "stop_condition": "max_turns"}) == "length"


def test_a_reward_stands_beside_scores_and_traces_that_are_text_of_a_table():
    assert nested.rescored_sample({"scores": "{}"}, "m", [0.5]) == {"scores": "{}", "m": 0.5}
    assert nested.rescored_sample({"scores": {"a": 1}}, "m", [0.5])["scores"] == {"a": 1, "m": {"value": 0.5}}
    assert nested.rescored_trace({"traces": "[]"}, "m", [0.5, None]) == {"traces": "[]", "m": [0.5, None]}


def test_the_answer_of_a_call_is_the_message_of_its_first_choice():
    message = {"role": "assistant", "content": "4"}
    assert nested._answered({"choices": [{"message": message}]}) == [message]
    assert nested._answered({"text": "4"}) == "4"


def test_only_turns_that_are_signs_are_labels_of_steps():
    turns = [{"from": "user", "value": "2+2?"}, {"from": "assistant", "value": " + "}]
    assert nested.has_signed_turns({"conversations": turns})
    assert not nested.has_signed_turns({"conversations": [turns[0], {**turns[1], "value": "4"}]})
    assert not nested.has_signed_turns({"messages": "2+2?"})
