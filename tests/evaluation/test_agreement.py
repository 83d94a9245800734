"""Agreement of raters against published examples and scikit-learn, and the coverage of corrected means."""

import math
from dataclasses import replace

import krippendorff
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.labelled import agreement, corrected_mean
from tables import first

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
    found = corrected_mean(judge, labels)  # the score falls where the label rises: it counts 0 times
    assert (found.tuning, found.corrected.estimate) == (0.0, 0.25)
    assert found.labelled.estimate == 0.25
    assert found.judge.estimate == pytest.approx(0.7)
    judge[3:] = 0.2, 0.6  # cov 0.05, n / N 2 / 3
    found = corrected_mean(judge, labels)
    tuning = 0.05 / (5 / 3 * np.var(judge, ddof=1))
    assert found.tuning == pytest.approx(tuning)
    assert found.corrected.estimate == pytest.approx(tuning * 2 / 3 + 0.25 - tuning * 0.4)
    flat = corrected_mean([0.3] * 5, labels)
    assert (flat.tuning, replace(flat.corrected, n=2)) == (0.0, flat.labelled)
    equal = corrected_mean(judge, [nan, nan, nan, 1.0, 1.0])
    assert (equal.corrected.estimate, equal.corrected.low, equal.labelled.high) == (1.0, None, None)


PPI = (  # ppi-python 0.2.3, numpy 2: tuning and estimate of the data of `tuned_sets`, of each set by
    # e, a, b = (ppi_mean_pointestimate(y, f, u, lam=lam).item() for lam in (None, 0, 1)); print((e - a) / (b - a), e)
    (0.11848442726393067, 1.9425557729808265),
    (1.0, 2.0705306822362446),
    (0.5383757774298193, 1.9528155198705646),
    (0.07878165422342334, 1.9389124410458782),
    (0.0, 1.8110848861312803),
    (1.0, 1.9803077381986314),
)


def tuned_sets():
    """Labels, scores of the same items, and scores of the others: useless, good, short, steep, contrary, flat."""
    rng = np.random.default_rng(65)
    for n, more, slope, noise in (
        (20, 300, 0.0, 1.0), (20, 300, 0.5, 0.5), (50, 80, 0.9, 0.1), (9, 4, 3.0, 0.2), (30, 500, -0.7, 0.3),
        (40, 400, 0.2, 0.05),
    ):  # fmt: skip
        y = rng.normal(2, 1, n + more)
        f = slope * y + noise * rng.normal(0, 1, n + more)
        yield y[:n], f[:n], f[n:]


def test_power_tuning_is_that_of_ppi_python():
    for (y, f, u), (tuning, estimate) in zip(tuned_sets(), PPI, strict=True):
        found = corrected_mean([*f, *u], [*y, *[nan] * len(u)])
        assert found.tuning == pytest.approx(tuning, abs=1e-10)
        assert found.corrected.estimate == pytest.approx(estimate, abs=1e-10)
        order = np.random.default_rng(0).permutation(len(f) + len(u))
        mixed = corrected_mean(np.array([*f, *u])[order], np.array([*y, *[nan] * len(u)])[order])
        assert mixed.corrected.estimate == pytest.approx(estimate, abs=1e-10)


def simulated(n, correlation, repeats):
    """How many intervals cover the truth, and median widths of corrected and labelled means; 400 items more.

    Scores that say nothing are five times as wide as the labels.
    """
    rng, covered, widths = np.random.default_rng(n), 0, []
    for _ in range(repeats):
        labels = rng.normal(0, 1, n + 400)
        judge = correlation * labels + np.sqrt(1 - correlation**2) * rng.normal(0, 1, n + 400)
        judge = judge if correlation else 5 * judge
        found = corrected_mean(judge, np.where(np.arange(n + 400) < n, labels, nan))
        covered += found.corrected.low <= 0 <= found.corrected.high
        widths.append([one.high - one.low for one in (found.corrected, found.labelled)])
    return covered, *np.median(widths, axis=0)


@pytest.mark.parametrize("runs", first([150, 700], 1))
def test_tuned_intervals_of_few_labels_cover_the_truth_and_no_judge_makes_them_wider(runs):
    found = {correlation: simulated(20, correlation, runs) for correlation in (0.0, 0.5, 0.9)}
    assert 0.93 <= sum(covered for covered, _, _ in found.values()) / (3 * runs) <= 0.97
    assert all(corrected <= labelled for _, corrected, labelled in found.values())
    assert found[0.9][1] < 0.6 * found[0.9][2]


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 50, 200])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_tuned_intervals_cover_the_truth(n, correlation):
    covered, corrected, labelled = simulated(n, correlation, 4000)
    assert 0.93 <= covered / 4000 <= 0.97
    assert corrected <= labelled


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
