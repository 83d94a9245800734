from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from guerdon.statistics.intervals import conclusion, iqm
from guerdon.statistics.learning_curves import StepsToThreshold, area_under_curve, curve_band, first_reach
from guerdon.statistics.training_runs import (
    holm,
    paired_difference,
    paired_differences,
    probability_of_improvement,
    sign_flip_p_value,
    stratified_bootstrap,
    stratified_t_interval,
    stratified_t_p_value,
)

tables = arrays(np.float64, (2, 4), elements=st.floats(0, 1))


def test_the_t_interval_of_one_task_is_students():
    scores = np.random.default_rng(0).normal(size=(1, 7))
    ours = stratified_t_interval(scores)
    theirs = stats.ttest_1samp(scores[0], 0).confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_the_p_value_belongs_to_the_interval():
    scores = np.random.default_rng(3).normal(0.5, 1, size=(2, 5))
    p = stratified_t_p_value(scores)
    touching = stratified_t_interval(scores, level=1 - p)
    assert touching.low == pytest.approx(0, abs=1e-9)
    assert stratified_t_p_value(scores[:1]) == pytest.approx(stats.ttest_1samp(scores[0], 0).pvalue)
    assert stratified_t_p_value([[0.3], [0.4]]) is None
    assert stratified_t_p_value([[0.3, 0.3]]) is None


def test_the_t_interval_of_two_tasks_is_welchs():
    x, y = np.random.default_rng(1).normal(size=(2, 5))
    ours = stratified_t_interval(np.array([x, -y]))  # mean(x, -y) = (mean x - mean y) / 2
    theirs = stats.ttest_ind(x, y, equal_var=False).confidence_interval()
    assert (2 * ours.low, 2 * ours.high) == pytest.approx((theirs.low, theirs.high))


def test_missing_runs_are_left_out_and_counted():
    ragged = np.array([[0.2, 0.4, np.nan], [0.6, 0.8, 1.0]])
    for interval in (stratified_t_interval(ragged), stratified_bootstrap(ragged, seed=0)):
        assert interval.estimate == pytest.approx((0.3 + 0.8) / 2)
        assert (interval.n, interval.n_undefined) == (5, 1)
    one_run = stratified_t_interval([[0.5], [0.7]])
    assert (one_run.estimate, one_run.low) == (0.6, None)
    nothing = stratified_bootstrap(np.full((2, 3), np.nan), seed=0)
    assert (nothing.estimate, nothing.low, nothing.n_undefined) == (None, None, 6)


def test_equal_scores_have_no_t_interval():
    assert stratified_t_interval([[0.1 + 0.2, 0.3, 0.3]]).low is None


def test_stratified_resampling_keeps_tasks_apart():
    apart = stratified_bootstrap([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], seed=0)
    assert (apart.low, apart.estimate, apart.high) == (0.5, 0.5, 0.5)


def test_stratified_bootstrap_against_every_resample():
    scores = np.array([[0.1, 0.5, 0.9], [0.2, 0.3, 0.8]])
    picks = list(product(range(3), repeat=3))
    means = [scores[0, list(a)].mean() / 2 + scores[1, list(b)].mean() / 2 for a in picks for b in picks]
    ours = stratified_bootstrap(scores, reps=40_000, seed=0)
    assert (ours.low, ours.high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.012)
    pooled = stratified_bootstrap(scores, average="iqm", seed=0)
    assert pooled.estimate == pytest.approx(float(iqm(scores.reshape(-1))))


@given(arrays(np.float64, st.integers(1, 8), elements=st.floats(-1, 1).map(lambda v: round(v, 3))))
def test_sign_flip_p_is_the_share_of_patterns_at_least_as_extreme(differences):
    patterns = np.array(list(product([-1, 1], repeat=len(differences))))
    expected = (abs((patterns * differences).mean(1)) >= abs(differences.mean()) - 1e-12).mean()
    assert sign_flip_p_value(differences[None]) == pytest.approx(expected)


def test_sign_flip_for_many_pairs_agrees_with_the_exact_test():
    differences = np.random.default_rng(3).normal(0.4, 1, size=(1, 20))
    exact = stats.permutation_test(
        (differences[0],), np.mean, permutation_type="samples", n_resamples=50_000, rng=0
    ).pvalue
    assert sign_flip_p_value(differences) == pytest.approx(exact, abs=0.01)
    assert sign_flip_p_value(np.full((1, 2), np.nan)) is None


def test_the_demo_study_can_show_a_difference_and_three_pairs_alone_cannot():
    learned, plain = (
        np.array([[0.9, 1.0, 0.95], [0.7, 0.9, 0.8]]),
        np.array([[0.0, 0.1, 0.0], [0.0, 0.0, 0.05]]),
    )
    found = paired_difference(learned, plain, seed=0)
    assert conclusion(found.interval) == "better"
    assert (found.p_value, found.smallest_p, found.n_tasks) == (2 / 64, 2 / 64, 2)
    assert conclusion(paired_difference(plain, learned, seed=0).interval) == "worse"
    assert paired_difference(learned[:1], plain[:1], seed=0).smallest_p == 0.25


def test_identical_differences_need_six_pairs_of_one_sign():
    ones, zeros = np.ones((2, 3)), np.zeros((2, 3))
    assert conclusion(paired_difference(ones, zeros, seed=0).interval) == "better"
    assert conclusion(paired_difference(ones[:1], zeros[:1], seed=0).interval) == "no difference shown"
    rounding = paired_difference([[0.3, 0.4, 0.5]], [[0.1, 0.2, 0.3]], seed=0)
    assert rounding.interval.low is None
    same = paired_difference(ones, ones, seed=0)
    assert (same.interval.estimate, same.interval.low, same.p_value) == (0.0, None, 1.0)


def test_holm_by_hand():
    # 4 x .005, 3 x .01, 2 x .03, 1 x .04 raised to the one before it; None is not a comparison
    assert holm([0.01, 0.04, None, 0.03, 0.005]) == pytest.approx([0.03, 0.06, None, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


def test_holms_intervals_by_hand():
    # Three arms with 3 pairs of one task: t = 5.196, 3.464 and 10.39 with 2 degrees of freedom, whose distribution has
    # closed forms: p = 1 - t / sqrt(2 + t^2) = .0351, .0742, .0091, and the quantile at q is
    # (2q - 1) sqrt(2 / (4 q (1 - q))).
    arms = [[[0.2, 0.3, 0.4]], [[0.1, 0.2, 0.3]], [[0.5, 0.6, 0.7]]]
    alone = paired_differences(arms, [[0.0, 0.0, 0.0]], seed=0)
    found = paired_differences(arms, [[0.0, 0.0, 0.0]], seed=0, correction="holm")
    assert [conclusion(one.interval) for one in alone] == ["better", "no difference shown", "better"]
    # .0091 <= .05 / 3, but .0351 > .05 / 2: the second and the third stay at that level
    assert [one.level for one in found] == pytest.approx([0.975, 0.975, 1 - 0.05 / 3])
    assert [conclusion(one.interval) for one in found] == ["no difference shown", "no difference shown", "better"]
    error = 0.1 / np.sqrt(3)
    for one, mean, q in zip(found, (0.3, 0.2, 0.6), (0.9875, 0.9875, 1 - 0.05 / 6), strict=True):
        half = (2 * q - 1) * np.sqrt(2 / (4 * q * (1 - q))) * error
        assert (one.interval.low, one.interval.high) == pytest.approx((mean - half, mean + half))
    assert [one.p_value for one in alone] == [0.25, 0.25, 0.25]
    assert [one.p_value for one in found] == [0.75, 0.75, 0.75]
    assert [one.family for one in found] == [3, 3, 3]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_an_interval_excludes_0_exactly_where_holm_rejects(seed, m):
    rng = np.random.default_rng(seed)
    arms, baseline = rng.normal(rng.uniform(0, 2, (m, 1, 1)), 1, (m, 2, 4)), rng.normal(size=(2, 4))
    p_values = [stratified_t_p_value(arm - baseline) for arm in arms]
    found = paired_differences(arms, baseline, seed=0, correction="holm")
    for one, alone, p in zip(found, paired_differences(arms, baseline, seed=0), holm(p_values), strict=True):
        assert (conclusion(one.interval) != "no difference shown") == (p <= 0.05)
        assert one.interval.high - one.interval.low >= (alone.interval.high - alone.interval.low) * (1 - 1e-9)


def test_holm_leaves_one_comparison_and_those_without_a_test_alone():
    baseline = np.zeros((1, 3))
    (alone,) = paired_differences([[[0.1, 0.2, 0.4]]], baseline, seed=0)
    tested, missing = paired_differences(
        [[[0.1, 0.2, 0.4]], np.full((1, 3), np.nan)], baseline, seed=0, correction="holm"
    )
    assert tested == alone
    assert (missing.interval.estimate, missing.p_value) == (None, None)


def test_holm_orders_differences_without_width_by_the_sign_flip_test():
    arms = [np.full((1, 6), 0.5), np.full((1, 6), 0.25)]  # p = 2 / 64 each: above .05 / 2
    alone = paired_differences(arms, np.zeros((1, 6)), seed=0)
    found = paired_differences(arms, np.zeros((1, 6)), seed=0, correction="holm")
    assert [conclusion(one.interval) for one in alone] == ["better", "better"]
    assert [conclusion(one.interval) for one in found] == ["no difference shown", "no difference shown"]
    assert [one.p_value for one in found] == [0.0625, 0.0625]


def test_an_incomplete_pair_is_dropped_and_counted():
    found = paired_difference([[1.0, 0.5, 0.9]], [[0.0, np.nan, 0.2]], seed=0)
    assert found.interval.estimate == pytest.approx(0.85)
    assert (found.interval.n, found.interval.n_undefined) == (2, 1)
    with pytest.raises(ValueError, match="same"):
        paired_difference([[1.0]], [[1.0, 2.0]], seed=0)


@settings(max_examples=30)
@given(tables, tables)
def test_comparisons_are_antisymmetric(x, y):
    there, back = paired_difference(x, y, seed=0), paired_difference(y, x, seed=0)
    assert there.interval.estimate == pytest.approx(-back.interval.estimate)
    assert there.p_value == back.p_value
    if there.interval.low is not None:
        assert there.interval.low == pytest.approx(-back.interval.high)
    p, q = (probability_of_improvement(a, b, reps=50, seed=0).estimate for a, b in ((x, y), (y, x)))
    assert p + q == pytest.approx(1)
    assert 0 <= p <= 1


def test_probability_of_improvement_is_mann_whitney_over_pairs():
    x, y = np.array([[1.0, 2, 2], [0, 0, 1]]), np.array([[0.0, 2, 3, 1], [0, 1, 1, 0]])
    expected = np.mean([stats.mannwhitneyu(a, b).statistic / 12 for a, b in zip(x, y, strict=True)])
    found = probability_of_improvement(x, y, seed=0)
    assert found.estimate == pytest.approx(expected)
    assert found.low < expected < found.high
    assert probability_of_improvement(x, np.full((2, 3), np.nan), seed=0).estimate is None
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement(x, y[:1], seed=0)


def test_area_is_the_mean_height():
    steps = [0, 10, 40]
    assert area_under_curve(steps, [0.5, 0.5, 0.5]) == pytest.approx(0.5)
    assert area_under_curve(steps, [0, 1, 1]) == pytest.approx((5 + 30) / 40)
    areas = area_under_curve(steps, [[0, 1, 1], [0, np.nan, 1]])
    assert areas[0] == pytest.approx(0.875)
    assert np.isnan(areas[1])
    assert np.isnan(area_under_curve([0], [1.0]))
    with pytest.raises(ValueError, match="increase"):
        area_under_curve([0, 0], [1, 1])


def test_steps_to_threshold_counts_those_that_never_arrive():
    curves = [[0, 0.5, 0.2], [0, 0.1, 0.7], [0, 0.1, 0.2], [np.nan, np.nan, 0.9]]
    found = StepsToThreshold(tuple(first_reach([0, 100, 200], curve, 0.5) for curve in curves))
    assert found.steps == (100, 200, None, 200)
    assert (found.reached, found.n, found.median) == (3, 4, 200)
    assert StepsToThreshold((first_reach([0, 100, 200], curves[2], 0.5),)).median is None
    assert StepsToThreshold(()).median is None


def test_a_band_is_the_interval_of_each_point():
    scores = np.random.default_rng(5).random((2, 3, 6))
    scores[0, 1, 4:] = np.nan
    band = curve_band(scores, seed=7, reps=300)
    assert [point.n for point in band] == [6, 6, 6, 6, 5, 5]
    assert band[2] == stratified_bootstrap(scores[:, :, 2], seed=7, reps=300)


def coverage(interval, draw, truth, rounds, rng):
    """Share of intervals that hold the truth among those that exist, and the share that exist."""
    found = [interval(draw(rng)) for _ in range(rounds)]
    bounds = [(i.low, i.high) for i in found if i.low is not None]
    return np.mean([low <= truth <= high for low, high in bounds]), len(bounds) / rounds


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (4, 5)])
@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda rng, shape: rng.normal(0.3, 1.0, shape), 0.3),
        (lambda rng, shape: rng.normal(0, 1, shape) * np.resize([0.1, 1.0], shape[0])[:, None], 0.0),
        (lambda rng, shape: rng.beta(0.5, 0.5, shape) - rng.beta(0.3, 1.0, shape), 0.5 - 0.3 / 1.3),
        (lambda rng, shape: rng.choice([-1.0, 0.0, 1.0], p=[0.25, 0.5, 0.25], size=shape), 0.0),
    ],
    ids=["normal", "unequal spread", "U-shaped", "all or nothing"],
)
def test_the_interval_of_the_conclusion_covers_as_promised(shape, draw, truth):
    rng = np.random.default_rng(11)

    def of_difference(table):
        return paired_difference(table, np.zeros_like(table), seed=0).interval

    covered, exist = coverage(of_difference, lambda r: draw(r, shape), truth, 2000, rng)
    assert covered >= 0.92
    assert exist >= 0.8


@pytest.mark.slow
def test_the_bootstrap_of_three_seeds_undercovers_as_documented():
    rng = np.random.default_rng(12)
    covered, _ = coverage(
        lambda table: stratified_bootstrap(table, reps=500, seed=0),
        lambda r: r.normal(size=(2, 3)),
        0.0,
        2000,
        rng,
    )
    assert 0.75 < covered < 0.85
