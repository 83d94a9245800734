import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from guerdon.statistics.intervals import (
    Interval,
    bootstrap_ci,
    bootstrap_weighted,
    conclusion,
    iqm,
    mean,
    widen_at_edge,
    wilson_interval,
)
from guerdon.statistics.proportion import difference_bounds

numbers = st.lists(st.floats(-100, 100), min_size=1, max_size=25)


@given(numbers)
def test_iqm_is_the_trimmed_mean(values):
    assert iqm(values) == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)


def test_iqm_reduces_the_last_axis_and_keeps_nan():
    table = np.array([[0.0, 1, 2, 100], [5, 5, 5, 5], [1, 2, np.nan, 3]])
    np.testing.assert_array_equal(iqm(table), [1.5, 5, np.nan])
    assert np.isnan(iqm([]))


def test_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(0).exponential(size=60)
    ours = bootstrap_ci(values, mean, reps=20_000, seed=0)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    assert ours.estimate == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.01)


@settings(max_examples=25)
@given(numbers, st.integers(0, 5))
def test_bootstrap_is_a_function_of_its_seed_and_holds_the_data_range(values, seed):
    one, two = (bootstrap_ci(values, mean, reps=200, seed=seed) for _ in range(2))
    assert one == two
    if one.low is not None:
        assert min(values) - 1e-9 <= one.low <= one.high <= max(values) + 1e-9


def test_clusters_widen_the_interval_of_rows_that_repeat_each_other():
    per_episode = np.random.default_rng(1).normal(size=12)
    values, groups = np.repeat(per_episode, 50), np.repeat(np.arange(12), 50)
    naive = bootstrap_ci(values, mean, seed=0)
    clustered = bootstrap_weighted(lambda w: w @ values / w.sum(axis=1), groups, reps=2000, seed=0)
    episodes = bootstrap_ci(per_episode, mean, seed=0)
    assert clustered.high - clustered.low > 4 * (naive.high - naive.low)
    assert clustered.high - clustered.low == pytest.approx(episodes.high - episodes.low, rel=0.1)
    assert clustered.n == 600


def test_weights_say_the_same_as_drawing_rows():
    rng = np.random.default_rng(2)
    groups = rng.integers(0, 15, size=200)
    values = rng.normal(size=200) + groups
    members = [values[groups == g] for g in range(15)]
    drawn = [np.concatenate([members[g] for g in rng.integers(0, 15, size=15)]).mean() for _ in range(8000)]
    weighted = bootstrap_weighted(lambda w: w @ values / w.sum(axis=1), groups, reps=8000, seed=1)
    assert weighted.estimate == pytest.approx(values.mean())
    assert weighted.low == pytest.approx(np.quantile(drawn, 0.025), abs=0.15)
    assert weighted.high == pytest.approx(np.quantile(drawn, 0.975), abs=0.15)


def test_chunks_do_not_change_the_interval(monkeypatch):
    values = np.random.default_rng(3).normal(size=40)
    whole = bootstrap_ci(values, mean, reps=500, seed=4)
    heavy = bootstrap_weighted(lambda w: w @ values / w.sum(axis=1), np.arange(40), reps=500, seed=4)
    monkeypatch.setattr("guerdon.statistics.intervals._CHUNK", 1000)
    assert bootstrap_ci(values, mean, reps=500, seed=4) == whole
    again = bootstrap_weighted(lambda w: w @ values / w.sum(axis=1), np.arange(40), reps=500, seed=4)
    assert (again.low, again.high) == pytest.approx((heavy.low, heavy.high))


def test_undefined_is_none_and_counted():
    assert bootstrap_ci([], mean, seed=0) == Interval(None, None, None, 0)
    assert bootstrap_ci([np.nan, np.nan], mean, seed=0) == Interval(None, None, None, 0, 2)
    assert bootstrap_ci([1.0, np.nan], mean, seed=0) == Interval(1.0, None, None, 1, 1)
    one_cluster = bootstrap_weighted(lambda w: w @ [1.0, 2.0] / w.sum(axis=1), ["a", "a"], reps=100, seed=0)
    assert one_cluster == Interval(1.5, None, None, 2)
    mostly_undefined = bootstrap_ci([0.0, 1.0], lambda v: np.where(v.mean(-1) == 0.5, 1.0, np.nan), seed=0)
    assert mostly_undefined.estimate == 1.0
    assert mostly_undefined.low is None


def test_an_interval_never_holds_nan():
    with pytest.raises(ValueError, match="undefined is None"):
        Interval(float("nan"), None, None, 0)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.1, 0.3, "better"),
        (-0.3, -0.1, "worse"),
        (-0.1, 0.3, "no difference shown"),
        (0.0, 0.3, "no difference shown"),
        (None, None, "no difference shown"),
    ],
)
def test_conclusion_needs_an_interval_that_excludes_zero(low, high, said):
    assert conclusion(Interval(0.1, low, high, 6)) == said


@pytest.mark.parametrize("n", [1, 3, 10, 50])
def test_wilson_agrees_with_scipy(n):
    for k in range(n + 1):
        ours = wilson_interval(k, n)
        theirs = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert wilson_interval(0, 0) == Interval(None, None, None, 0)
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(n + 1, n)


def test_a_perfect_score_keeps_its_doubt():
    perfect = bootstrap_ci(np.ones(10), mean, seed=0)
    assert (perfect.low, perfect.high) == (1, 1)
    widened = widen_at_edge(perfect, 10)
    assert (widened.estimate, widened.low, widened.high) == (1, wilson_interval(10, 10).low, 1)
    assert widen_at_edge(Interval(0.0, 0.0, 0.0, 5), 5).high == wilson_interval(0, 5).high
    for unchanged in (Interval(0.5, 0.5, 0.5, 9), Interval(1.0, 0.9, 1.0, 9), Interval(None, None, None, 0)):
        assert widen_at_edge(unchanged, 9) == unchanged
    assert widen_at_edge(perfect, 0) == perfect


def test_difference_of_shares_has_newcombes_bounds():
    assert difference_bounds((48, 80), (56, 70)) == pytest.approx((0.0524, 0.3339), abs=5e-5)  # Newcombe 1998, table II
    assert difference_bounds((3, 10), (3, 10)) == pytest.approx(
        [-bound for bound in difference_bounds((3, 10), (3, 10))[::-1]]
    )
    assert difference_bounds((0, 10), (10, 10))[1] == 1.0
    narrow, wide = (difference_bounds((5, 50), (20, 50), level=level) for level in (0.95, 0.999))
    assert wide[0] < narrow[0] < 0.3 < narrow[1] < wide[1]
