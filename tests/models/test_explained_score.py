"""The JSON form of an explained score: nothing is lost on the way."""

import json

import numpy as np
import pytest

from guerdon.models.explained_score import ExplainedScore, joined_status
from guerdon.types import Failure, Score

SCORES = [
    ExplainedScore(Score(steps=np.array([0.1, 1 / 3, -2.5e-8], dtype=np.float32), total=0.1 + 0.2), "72", 31, True),
    ExplainedScore(Score(total=1.0, criteria={"answers": 1 / 3}), "Yes", 4, parse_status="fallback"),
    ExplainedScore(Score(total=0.5, spread=0.1 + 0.2)),
    ExplainedScore(Score(failure=Failure("no_number", "no answer in 'maybe'")), "maybe", 9),
]


@pytest.mark.parametrize("explained", SCORES)
def test_json_keeps_every_bit(explained):
    back = ExplainedScore.from_json(json.loads(json.dumps(explained.to_json(), allow_nan=False)))
    assert (back.text, back.tokens, back.truncated, back.parse_status) == (
        explained.text,
        explained.tokens,
        explained.truncated,
        explained.parse_status,
    )
    assert (back.score.total, back.score.failure) == (explained.score.total, explained.score.failure)
    assert (back.score.criteria, back.score.spread) == (explained.score.criteria, explained.score.spread)
    if explained.score.steps is None:
        assert back.score.steps is None
    else:
        assert back.score.steps.dtype == np.float32
        assert back.score.steps.tobytes() == explained.score.steps.tobytes()


def test_a_score_is_measured_or_failed_and_always_finite():
    for given, words in (
        ({}, "never both and never neither"),
        ({"total": 1.0, "failure": Failure("late")}, "never both and never neither"),
        ({"total": float("inf")}, "never NaN or infinite"),
        ({"steps": np.float32([0, np.nan])}, "never NaN or infinite"),
    ):
        with pytest.raises(ValueError, match=words):
            Score(**given)


def test_a_score_is_shown_in_one_line():
    assert repr(Score(steps=np.float32([0.5, 0.25]), total=1.0)) == "Score(T=2, steps 0.25 to 0.5, last 0.25, total 1)"
    assert repr(Score(total=2 / 3, spread=0.125)) == "Score(total 0.6667, spread 0.125)"
    assert repr(Score(failure=Failure("late"))) == "Score(failure=late)"


def test_one_fallback_makes_the_whole_a_fallback():
    assert joined_status(["ok", None, "fallback"]) == "fallback"
    assert joined_status([None, "ok"]) == "ok"
    assert joined_status([None]) is None
