"""Records that hold rows below other keys: what is unknown stays unknown, and no part of a record is dropped."""

from __future__ import annotations

import json

import pytest

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
