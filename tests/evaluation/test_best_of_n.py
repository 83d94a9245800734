import json
from dataclasses import asdict
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_models import scores

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.best_of_n import (
    answer_classes,
    best_of,
    best_of_n,
    majority,
    pass_at,
    same_by,
    same_number_or_text,
    weighted_majority,
)
from guerdon.tasks.verifier import Verifier
from guerdon.types import Score
from tables import refuses


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
    return [i.estimate for i in found.failures_wrong[name].accuracy]


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
    assert found.n == [1, 2, 4, 8]
    assert found.failures_wrong["bon_min"].minus_majority[-1].low > 0
    assert found.failures_wrong["weighted_min"].minus_majority[-1].low > 0
    assert curve(found, "bon_min") == pytest.approx(curve(found, "pass"))  # it puts every right one first
    assert curve(found, "bon_min")[0] == pytest.approx(curve(found, "majority")[0])
    assert found.measured is found.failures_wrong
    again = run(solutions, said)
    assert again == found
    assert "NaN" not in json.dumps(asdict(found))


def test_failures_are_never_chosen_and_given_both_ways():
    solutions = samples("q", ["1", "2"]) + samples("r", ["1", "2"])
    found = run(solutions, scores("late", [0.2], [0.9], [0.1]), ns=(1, 2))
    assert found.failures == {"late": 1}
    # q: alone, the failed one is wrong; together, the wrong one is chosen. r: right
    assert curve(found, "bon_min") == pytest.approx([(0 + 0.5) / 2, (0 + 1) / 2])
    assert curve(found, "weighted_min") == pytest.approx([(0 + 0.5) / 2, (0 + 1) / 2])
    measured = found.measured["bon_min"].accuracy
    assert [i.estimate for i in measured] == pytest.approx([(0 + 0.5) / 2, 1.0])
    assert [i.n_undefined for i in measured] == [0, 1]
    assert curve(found, "pass") == [0.5, 1.0]


def test_unknown_truths_are_left_out_and_counted():
    found = run(samples("q", ["1", "?", "2"]), scores([0.9], [0.9], [0.1]))
    assert (found.unknown, found.samples_per_question, found.n) == (1, [2, 2], [1, 2])
    with pytest.raises(DataError, match="is_correct") as refused:
        run(samples("q", ["?"]), scores([0.9]))
    assert refused.value.field == "is_correct"
    with refuses("ns"):
        run(samples("q", ["1"]), scores([0.9]), ns=(1, 9))


def test_negative_values_choose_but_do_not_vote():
    solutions = samples("q", ["1", "2"])
    found = run(solutions, [Score(total=-1.0), Score(total=-2.0)], ns=(2,))
    assert found.not_weighted == ["min"]
    assert "weighted_min" not in found.measured
    assert curve(found, "bon_min") == [1.0]


def test_more_than_64_samples_vote_by_random_subsets():
    found = run(samples("q", ["1"] * 50 + ["2"] * 30), scores(*[[0.5]] * 80), ns=(1, 80), draws=300)
    assert curve(found, "majority") == pytest.approx([50 / 80, 1.0])


def test_a_question_with_few_samples_is_undefined_beyond_them():
    found = run(samples("q", ["1", "1"]) + samples("r", ["1"]), scores(*[[0.5]] * 3), ns=(1, 2))
    assert [i.n_undefined for i in found.failures_wrong["majority"].accuracy] == [0, 1]


@st.composite
def votes_cases(draw):
    """Classes (some silent), which classes are right, and small values with ties."""
    n = draw(st.integers(1, 7))
    classes = np.array(draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)))
    classes = np.array([-1 if c < 0 else sorted(set(classes[classes >= 0])).index(c) for c in classes])
    k = int(classes.max(initial=-1)) + 1
    right = np.array(draw(st.lists(st.booleans(), min_size=k, max_size=k)), float)
    values = np.array(draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n, max_size=n)))
    correct = np.array([c >= 0 and bool(right[c]) for c in classes])
    return classes, right, values, correct


def over_subsets(n, size, outcome):
    return float(np.mean([outcome(list(pick)) for pick in combinations(range(n), size)]))


def vote(classes, right, weights, pick):
    """The heaviest answer among those picked; ties shared evenly; nobody votes: wrong."""
    present = sorted({classes[i] for i in pick if classes[i] >= 0})
    if not present:
        return 0.0
    sums = {k: sum(weights[i] for i in pick if classes[i] == k) for k in present}
    top = [k for k in present if sums[k] >= max(sums.values()) - 1e-9]
    return float(np.mean([right[k] for k in top]))


@settings(max_examples=80, deadline=None)
@given(votes_cases())
def test_closed_forms_equal_all_subsets(case):
    classes, right, values, correct = case
    total = len(classes)
    every = majority(classes, right, total)
    ones = np.ones(total)
    for n in range(1, total + 1):
        assert pass_at(correct, n) == pytest.approx(over_subsets(total, n, lambda p: correct[p].any()))

        def chosen(p):
            return correct[p][values[p] == values[p].max()].mean()

        assert best_of(values, correct, n) == pytest.approx(over_subsets(total, n, chosen))
        assert every[n - 1] == pytest.approx(over_subsets(total, n, lambda p: vote(classes, right, ones, p)))
        found = weighted_majority(classes, right, values, n, draws=10**6, rng=np.random.default_rng(0))
        assert found == pytest.approx(over_subsets(total, n, lambda p: vote(classes, right, values, p)))


@settings(max_examples=60, deadline=None)
@given(votes_cases())
def test_laws(case):
    classes, right, _, correct = case
    total = len(classes)
    rng = np.random.default_rng(0)
    passed = [pass_at(correct, n) for n in range(1, total + 1)]
    assert passed[0] == pytest.approx(correct.mean())
    assert all(b >= a - 1e-12 for a, b in pairwise(passed))
    assert majority(classes, right, 1)[0] == pytest.approx(correct.mean())
    assert best_of(np.arange(total), correct, 1) == pytest.approx(correct.mean())
    for n in range(1, total + 1):
        assert best_of(correct.astype(float), correct, n) == pytest.approx(passed[n - 1])
        assert best_of(np.full(total, 0.3), correct, n) == pytest.approx(correct.mean())
        same = weighted_majority(classes, right, np.full(total, 0.1), n, draws=10**6, rng=rng)
        assert same == pytest.approx(majority(classes, right, total)[n - 1])


def test_random_subsets_come_close_and_are_reproducible():
    rng = np.random.default_rng(1)
    classes, right = rng.integers(0, 4, 20), np.array([1.0, 0, 0, 0])
    exact = majority(classes, right, 20)[7]
    one, two = (
        weighted_majority(classes, right, np.ones(20), 8, draws=4000, rng=np.random.default_rng(5)) for _ in range(2)
    )
    assert one == two
    assert one == pytest.approx(exact, abs=4 * 0.5 / np.sqrt(4000))


def test_many_samples_stay_exact():
    """64 samples, half right, the others all different: two votes suffice."""
    classes = np.array([0] * 32 + list(range(1, 33)))
    right = np.zeros(33)
    right[0] = 1
    every = majority(classes, right, 64)
    assert every[0] == pytest.approx(0.5)
    assert every[1] == pytest.approx(31 / 63 * 32 / 64 + 2 * 0.5 * 32 / 64 * 32 / 63)
    assert every[63] == pytest.approx(1.0)
    assert (every <= 1 + 1e-9).all()


@pytest.mark.parametrize("n", [0, 4])
def test_impossible_n_is_refused(n):
    for call in (
        lambda: pass_at([True] * 3, n),
        lambda: best_of([1, 2, 3], [True] * 3, n),
        lambda: majority([0, 0, 0], [1.0], n),
    ):
        with pytest.raises(ValueError, match="between 1 and the number"):
            call()


def test_negative_weights_are_refused_and_unmeasured_samples_are_last():
    with pytest.raises(ValueError, match="negative"):
        weighted_majority([0, 1], [1.0, 0], [-1, 1], 1, draws=9, rng=np.random.default_rng(0))
    assert best_of([-np.inf, 0.1, 0.2], [False, False, True], 2) == pytest.approx(2 / 3)


def test_answers_are_grouped_by_what_they_mean():
    answers = ["1/2", "0.5", None, "2", "  ", "50%", "two", "Two."]
    assert answer_classes(answers, same_number_or_text) == [0, 0, -1, 1, -1, 0, 2, 2]
    with Verifier("exact") as verifier:
        assert answer_classes(["x", "X", "y"], same_by(verifier)) == [0, 0, 1]


def test_a_verifier_groups_symbolic_answers():
    pytest.importorskip("math_verify")
    with Verifier("math", workers=1) as verifier:
        same = same_by(verifier)
        assert answer_classes([r"3\sqrt{13}", r"\sqrt{117}", "3"], same) == [0, 0, 1]
