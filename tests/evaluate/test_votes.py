from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.evaluate.answers import answer_classes, same_by, same_number_or_text
from guerdon.evaluate.votes import best_of, majority, pass_at, weighted_majority
from guerdon.worlds.verifier import Verifier


@st.composite
def samples(draw):
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
@given(samples())
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
@given(samples())
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
