import json

import numpy as np
import pytest
from text_models import scores

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluate.answers import same_number_or_text
from guerdon.evaluate.best_of_n import best_of_n
from guerdon.types import Score


def samples(question, answers, gold="1"):
    return [
        Solution(
            f"{question}{k}", question, ("s;",), is_correct=None if a == "?" else same_number_or_text(gold, a), answer=a
        )
        for k, a in enumerate(answers)
    ]


def mixed(questions=40, n=8, seed=0):
    """Questions with a right answer that few samples reach, and values that know it most of the time."""
    rng = np.random.default_rng(seed)
    solutions, values = [], []
    for q in range(questions):
        answers = ["1" if x < 0.35 else str(2 + int(x * 4)) for x in rng.random(n)]
        solutions += samples(f"q{q}", answers)
        values += [np.clip(0.7 * (a == "1") + 0.2 * rng.random(), 0, 1) for a in answers]
    return solutions, scores(*([v] for v in values))


def curve(found, name):
    return [i.estimate for i in found.failures_wrong[name].intervals]


def run(solutions, said, **given):
    given = {"aggregations": ("min",), "reps": 200, "seed": 0, **given}
    return best_of_n(solutions, said, same_number_or_text, **given)


def test_by_hand():
    """One right of three; the model puts it second: best of 2 is right where the first is not among them, 1/3."""
    found = run(samples("q", ["2", "1", "3"]), scores([0.9], [0.5], [0.1]), ns=(1, 2, 3))
    assert curve(found, "pass") == pytest.approx([1 / 3, 2 / 3, 1])
    assert curve(found, "bon_min") == pytest.approx([1 / 3, 1 / 3, 0])
    assert curve(found, "majority") == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert curve(found, "weighted_min") == pytest.approx([1 / 3, 1 / 3, 0])


def test_equal_answers_pool_their_votes():
    found = run(samples("q", ["1", "1.0", "2/2", "2", "2"]), scores(*[[0.5]] * 5), ns=(5,))
    assert curve(found, "majority") == [1.0]


def test_a_good_model_beats_majority_and_the_interval_says_so():
    solutions, said = mixed()
    found = run(solutions, said)
    assert found.ns == (1, 2, 4, 8)
    assert found.failures_wrong["bon_min"].minus_majority[-1].low > 0
    assert found.failures_wrong["weighted_min"].minus_majority[-1].low > 0
    assert curve(found, "bon_min") == pytest.approx(curve(found, "pass"))  # it puts every right one first
    assert curve(found, "bon_min")[0] == pytest.approx(curve(found, "majority")[0])
    assert found.measured is found.failures_wrong
    again = run(solutions, said)
    assert again.to_dict() == found.to_dict()
    assert "NaN" not in json.dumps(found.to_dict())


def test_failures_are_never_chosen_and_given_both_ways():
    solutions = samples("q", ["1", "2"]) + samples("r", ["1", "2"])
    found = run(solutions, scores("late", [0.2], [0.9], [0.1]), ns=(1, 2))
    assert found.failures == {"late": 1}
    # q: alone, the failed one is wrong; together, the wrong one is chosen. r: right
    assert curve(found, "bon_min") == pytest.approx([(0 + 0.5) / 2, (0 + 1) / 2])
    assert curve(found, "weighted_min") == pytest.approx([(0 + 0.5) / 2, (0 + 1) / 2])
    measured = found.measured["bon_min"].intervals
    assert [i.estimate for i in measured] == pytest.approx([(0 + 0.5) / 2, 1.0])
    assert [i.n_undefined for i in measured] == [0, 1]
    assert curve(found, "pass") == [0.5, 1.0]


def test_unknown_truths_are_left_out_and_counted():
    found = run(samples("q", ["1", "?", "2"]), scores([0.9], [0.9], [0.1]))
    assert (found.unknown, found.samples, found.ns) == (1, (2, 2), (1, 2))
    with pytest.raises(DataError, match="is_correct"):
        run(samples("q", ["?"]), scores([0.9]))
    with pytest.raises(DataError, match="best-of-9"):
        run(samples("q", ["1"]), scores([0.9]), ns=(1, 9))


def test_negative_values_choose_but_do_not_vote():
    solutions = samples("q", ["1", "2"])
    found = run(solutions, [Score(total=-1.0), Score(total=-2.0)], ns=(2,))
    assert found.not_weighted == ("min",)
    assert "weighted_min" not in found.measured
    assert curve(found, "bon_min") == [1.0]


def test_more_than_64_samples_vote_by_random_subsets():
    found = run(samples("q", ["1"] * 50 + ["2"] * 30), scores(*[[0.5]] * 80), ns=(1, 80), draws=300)
    assert curve(found, "majority") == pytest.approx([50 / 80, 1.0])


def test_a_question_with_few_samples_is_undefined_beyond_them():
    found = run(samples("q", ["1", "1"]) + samples("r", ["1"]), scores(*[[0.5]] * 3), ns=(1, 2))
    assert [i.n_undefined for i in found.failures_wrong["majority"].intervals] == [0, 1]
