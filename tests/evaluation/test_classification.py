from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from guerdon.statistics import classification as cls
from guerdon.statistics.classification import point
from guerdon.statistics.intervals import bootstrap_weighted

sklearn_metrics = pytest.importorskip("sklearn.metrics")

METRICS = {
    "auroc": cls.auroc,
    "auprc": cls.auprc,
    "f1": partial(cls.f1, threshold=0.5),
    "balanced_accuracy": partial(cls.balanced_accuracy, threshold=0.5),
    "accuracy": partial(cls.accuracy, threshold=0.5),
    "false_positive_rate": partial(cls.false_positive_rate, threshold=0.5),
    "brier": cls.brier,
    "ece": cls.ece,
}
tied_probabilities = st.integers(0, 10).map(lambda i: i / 10)
cases = st.lists(st.tuples(st.booleans(), tied_probabilities), min_size=2, max_size=40)


def split(rows):
    labels, scores = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    assume(labels.any() and not labels.all())
    return labels, scores


@given(cases)
def test_scikit_learn_agrees(rows):
    labels, scores = split(rows)
    judged = scores > 0.5
    assert point(cls.auroc, labels, scores) == pytest.approx(sklearn_metrics.roc_auc_score(labels, scores))
    assert point(cls.auprc, labels, scores) == pytest.approx(sklearn_metrics.average_precision_score(labels, scores))
    assert point(METRICS["f1"], labels, scores) == pytest.approx(
        sklearn_metrics.f1_score(labels, judged, zero_division=0)
    )
    assert point(METRICS["balanced_accuracy"], labels, scores) == pytest.approx(
        sklearn_metrics.balanced_accuracy_score(labels, judged)
    )
    assert point(METRICS["accuracy"], labels, scores) == pytest.approx((labels == judged).mean())
    assert point(METRICS["false_positive_rate"], labels, scores) == pytest.approx(judged[~labels].mean())
    assert point(cls.brier, labels, scores) == pytest.approx(sklearn_metrics.brier_score_loss(labels, scores))


@given(cases)
def test_auroc_counts_pairs_and_is_antisymmetric(rows):
    labels, scores = split(rows)
    wins = scores[labels][:, None] - scores[~labels]
    value = point(cls.auroc, labels, scores)
    assert value == pytest.approx(((wins > 0) + 0.5 * (wins == 0)).mean())
    assert point(cls.auroc, ~labels, scores) == pytest.approx(1 - value)
    assert point(cls.auroc, labels, -scores) == pytest.approx(1 - value)
    assert point(cls.auroc, labels, np.exp(3 * scores)) == pytest.approx(value)


@given(cases, st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(rows, random):
    labels, scores = split(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    for metric in METRICS.values():
        assert point(metric, labels[order], scores[order]) == pytest.approx(point(metric, labels, scores))


@given(cases, st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_an_integer_weight_is_a_repeated_row(rows, counts):
    labels, scores = split(rows)
    weights = np.array(counts[: len(rows)])
    kept = np.repeat(labels, weights)
    assume(kept.any() and not kept.all())
    for metric in METRICS.values():
        weighted = metric(labels, scores, weights[None].astype(float))[0]
        assert weighted == pytest.approx(point(metric, kept, np.repeat(scores, weights)))


@pytest.mark.parametrize("label", [True, False])
def test_one_class_only_is_undefined(label):
    labels, scores = np.full(4, label), np.array([0.1, 0.4, 0.6, 0.9])
    for name in ("auroc", "auprc", "f1", "balanced_accuracy"):
        assert point(METRICS[name], labels, scores) is None
    assert (point(METRICS["false_positive_rate"], labels, scores) is None) == label
    assert all(point(metric, [], []) is None for metric in METRICS.values())
    assert cls.roc_points(labels, scores)[0].size == 0


def test_failed_measurements_may_not_slip_in():
    with pytest.raises(ValueError, match="finite"):
        point(cls.auroc, [True, False], [np.nan, 0.0])
    with pytest.raises(ValueError, match="shape"):
        point(cls.auroc, [True, False], [0.0])


def test_a_score_at_the_threshold_is_not_a_success():
    assert point(partial(cls.accuracy, threshold=0.5), [True, False], [0.5, 0.5]) == 0.5
    assert point(partial(cls.false_positive_rate, threshold=0.5), [False], [0.5]) == 0.0


def test_calibration_by_hand():
    labels, scores = [True, False, True, True], [0.95, 0.95, 0.15, 0.0]
    bins = cls.reliability_bins(labels, scores)
    assert [one.n for one in bins] == [1, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert (bins[9].mean_score, bins[9].frequency) == (pytest.approx(0.95), 0.5)
    assert (bins[2].mean_score, bins[2].frequency) == (None, None)
    assert point(cls.ece, labels, scores) == pytest.approx((2 * 0.45 + 0.85 + 1.0) / 4)
    with pytest.raises(ValueError, match="between 0 and 1"):
        cls.reliability_bins([True], [1.5])


@given(cases)
def test_ece_is_the_gap_of_the_diagram(rows):
    labels, scores = split(rows)
    full = [one for one in cls.reliability_bins(labels, scores) if one.n]
    gap = sum(one.n * abs(one.mean_score - one.frequency) for one in full) / len(labels)
    assert point(cls.ece, labels, scores) == pytest.approx(gap)


@given(cases)
def test_the_area_under_the_roc_points_is_the_auroc(rows):
    labels, scores = split(rows)
    x, y = cls.roc_points(labels, scores)
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, pytest.approx(1), pytest.approx(1))
    area = (np.diff(x) * (y[1:] + y[:-1]) / 2).sum()
    assert area == pytest.approx(point(cls.auroc, labels, scores))


@pytest.mark.parametrize("prevalence", [0.2, 0.8])
def test_baselines_are_what_a_blind_model_reaches(prevalence):
    labels = np.arange(100) < 100 * prevalence
    majority = np.full(100, float(prevalence > 0.5))
    base = cls.baselines(prevalence)
    for name in ("auroc", "auprc", "f1", "balanced_accuracy", "accuracy", "false_positive_rate"):
        assert point(METRICS[name], labels, majority) == pytest.approx(base[name])
    for name in ("brier", "ece"):
        assert point(METRICS[name], labels, np.full(100, prevalence)) == pytest.approx(base[name])


def test_the_interval_resamples_episodes():
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.random(20) < 0.5, 30)
    scores = np.clip(labels * 0.2 + np.repeat(rng.random(20) * 0.8, 30), 0, 1)

    def interval(groups):
        return bootstrap_weighted(lambda w: cls.auroc(labels, scores, w), groups, reps=400, seed=0)

    rows, episodes = interval(np.arange(600)), interval(np.repeat(np.arange(20), 30))
    assert rows.estimate == episodes.estimate == pytest.approx(point(cls.auroc, labels, scores))
    assert episodes.high - episodes.low > 3 * (rows.high - rows.low)
