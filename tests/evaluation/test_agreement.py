"""Agreement of raters against published examples and scikit-learn, and the coverage of corrected means."""

import math

import krippendorff
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.labelled import agreement, corrected_mean

nan = math.nan
KRIPPENDORFF = [  # Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section C: 4 observers, 12 units
    [1, 2, 3, 3, 2, 1, 4, 1, 2, nan, nan, nan],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, nan, 3],
    [nan, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, nan],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, nan],
]


@pytest.mark.parametrize(
    ("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849), ("ratio", 0.797)]
)
def test_alpha_of_krippendorffs_own_example(level, alpha):
    found = agreement(KRIPPENDORFF, level=level, reps=50, seed=0)
    assert round(found.alpha.estimate, 3) == alpha
    assert found.alpha.low < alpha < found.alpha.high
    assert found.kappa is None
    assert (found.alpha.n, found.alpha.n_undefined) == (11, 1)  # the last unit has one rating


def test_two_raters_by_hand():
    found = agreement([[1, 1, 0, 0, 1, nan], [1, 0, 0, 0, 1, 1]], reps=200, seed=1)
    assert found.percent.estimate == 4 / 5
    assert found.kappa.estimate == pytest.approx((0.8 - 0.48) / (1 - 0.48))  # 3/5 x 2/5 + 2/5 x 3/5 by chance
    assert found.percent.low < 0.8 < found.percent.high


def test_raters_who_always_say_the_same_have_no_kappa_and_no_alpha():
    found = agreement([[1, 1, 1], [1, 1, 1]], reps=20, seed=0)
    assert found.percent.estimate == 1
    assert found.kappa.estimate is None
    assert found.alpha.estimate is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=30))
def test_kappa_is_scikit_learns_and_alpha_the_librarys(pairs):
    ratings = np.array(pairs, dtype=float).T
    found = agreement(ratings, reps=2, seed=0)
    if len(np.unique(ratings)) > 1:
        assert found.kappa.estimate == pytest.approx(cohen_kappa_score(*ratings), abs=1e-12)
        alpha = krippendorff.alpha(ratings, level_of_measurement="nominal")
        assert found.alpha.estimate == pytest.approx(alpha, abs=1e-12)


def test_agreement_needs_two_ratings_of_something():
    with pytest.raises(DataError, match="two raters"):
        agreement([[1, 0]], seed=0)
    with pytest.raises(DataError, match="there is none"):
        agreement([[1, nan], [nan, 0]], seed=0)


def test_a_corrected_mean_by_hand():
    judge, labels = [1.0, 1.0, 0.0, 1.0, 0.5], [nan, nan, nan, 0.0, 0.5]
    found = corrected_mean(judge, labels)
    assert found.corrected.estimate == pytest.approx(2 / 3 - 1 / 2)
    assert found.labelled.estimate == 0.25
    assert found.judge.estimate == pytest.approx(0.7)


def test_corrected_intervals_cover_the_truth_and_a_biased_judges_own_do_not():
    rng, covered, judged, widths = np.random.default_rng(0), 0, 0, []
    for _ in range(600):
        labels = (rng.random(400) < 0.4).astype(float)
        judge = np.clip(0.25 + 0.7 * labels + rng.normal(0, 0.15, 400), 0, 1.5)  # too kind by 0.13
        shown = np.where(np.arange(400) < 60, labels, nan)
        found = corrected_mean(judge, shown)
        covered += found.corrected.low <= 0.4 <= found.corrected.high
        judged += found.judge.low <= 0.4 <= found.judge.high
        widths.append((found.corrected.high - found.corrected.low, found.labelled.high - found.labelled.low))
    assert 0.93 <= covered / 600 <= 0.97  # a binomial of 0.95 lies there with probability 0.98
    assert judged == 0
    corrected, labelled = np.mean(widths, axis=0)
    assert corrected < 0.75 * labelled


def test_too_few_labels_are_refused():
    with pytest.raises(DataError, match="there are 1 and 3"):
        corrected_mean([0, 1, 1, 0], [0, nan, nan, nan])
