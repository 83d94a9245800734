import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_models import Scripted, solution

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.models.scores import AGGREGATIONS, aggregate, need_steps, paired, score_solutions, solution_value
from guerdon.types import Failure, Score

probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def test_by_hand():
    p = [0.9, 0.5, 0.8]
    assert aggregate(p, "min") == 0.5
    assert aggregate(p, "prod") == pytest.approx(0.36)
    assert aggregate(p, "last") == 0.8
    assert aggregate(p, "mean") == pytest.approx(2.2 / 3)


def test_pure_min_is_the_papers_sum_of_weighted_rewards():
    p = np.array([0.9, 0.4, 0.45])
    r = 2 * p - 1
    w = np.exp(-r / 0.1) / np.exp(-r / 0.1).sum()
    assert 2 * aggregate(p, "pure_min") - 1 == pytest.approx((w * r).sum())


def test_each_solution_has_one_score():
    solutions = [solution("a"), solution("b")]
    scores = [Score(total=0.5), Score(total=1.0)]
    assert [(s.id, score.total) for s, score in paired(solutions, scores)] == [("a", 0.5), ("b", 1.0)]
    for known, found, said in (
        ([], [], "no solution to evaluate on"),
        (solutions, scores[:1], "1 scores for 2 solutions; there must be one each, in order"),
    ):
        with pytest.raises(DataError, match=said):
            paired(known, found)


@settings(deadline=None)
@given(probabilities)
def test_all_stay_between_the_product_and_the_largest(p):
    values = {how: aggregate(p, how) for how in AGGREGATIONS}
    assert values["prod"] <= values["min"] + 1e-12
    assert values["min"] - 1e-12 <= values["pure_min"] <= values["mean"] + 1e-9
    assert all(-1e-12 <= v <= 1 + 1e-12 for v in values.values())


@settings(deadline=None)
@given(st.floats(0, 1))
def test_one_step_is_itself(p):
    assert all(aggregate([p], how) == pytest.approx(p) for how in AGGREGATIONS)


def test_a_product_of_many_steps_and_of_a_zero():
    assert aggregate([0.5] * 500, "prod") == pytest.approx(0.5**500)
    assert aggregate([1.0, 0.0, 1.0], "prod") == 0.0


@pytest.mark.parametrize("bad", [[], [1.2], [-0.1], [np.nan]])
def test_what_is_no_probability_is_refused(bad):
    with pytest.raises(ValueError):
        aggregate(bad, "min")


def test_rounding_of_single_precision_passes():
    assert aggregate(np.array([1.0000001], np.float32), "mean") == 1.0


def test_values_and_failures_of_solutions():
    assert solution_value(Score(total=-3.5), "min") == -3.5
    assert solution_value(Score(failure=Failure("late")), "min") == Failure("late")
    assert solution_value(Score.from_values(np.array([2.0])), "prod").reason == "not_probabilities"
    assert solution_value(Score.from_values(np.zeros(0)), "prod").reason == "no_step"
    assert need_steps([Score(total=1.0)])[0].failure.reason == "no_step_values"


def test_scoring_goes_in_batches_and_keeps_the_order():
    model = Scripted(lambda e: np.full(len(e.texts), len(e.texts) / 10))
    empty = Solution(id="e", question="q", steps=())
    found = score_solutions(model, [solution("a", 1), empty, solution("b", 3), solution("c", 2)], batch_size=2)
    assert model.calls == [1, 2]
    assert found[1].failure.reason == "no_step"
    assert [None if s.steps is None else len(s.steps) for s in found] == [1, None, 3, 2]


def test_a_model_that_loses_a_score_is_an_error():
    class Short(Scripted):
        def score(self, episodes):
            return super().score(episodes)[1:]

    with pytest.raises(DataError, match="1 scores for 2"):
        score_solutions(Short(lambda e: [1.0]), [solution("a", 1), solution("b", 1)])
