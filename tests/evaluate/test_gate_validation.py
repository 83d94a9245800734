"""Validation of the gate: statistics by hand, and nothing of a task in its own predictions."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from gate_tables import made_table
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from guerdon.evaluate.gate_card import WORDS
from guerdon.evaluate.gate_table import GateTable
from guerdon.evaluate.gate_validation import (
    LOWER_IS_BETTER,
    brier_score,
    classwise_ece,
    correlation,
    correlation_difference,
    false_passes,
    out_of_task,
    reliability,
    spearman_brown,
    spearman_weighted,
    validate_gate,
    withheld_family,
)

NAMES = ("good", "idle", "rare", "voc")


@pytest.fixture(scope="module")
def table() -> GateTable:
    return made_table()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), min_size=3, max_size=12))
def test_weighted_spearman_is_that_of_repeated_cases(cases: list[tuple[int, int, int]]) -> None:
    x, y, times = (np.array(side, dtype=np.float64) for side in zip(*cases, strict=True))
    repeated = [np.repeat(side, times.astype(int)) for side in (x, y)]
    found = spearman_weighted(x, y, times[None]) if times.sum() else np.array([np.nan])
    if any(len(set(side.tolist())) < 2 for side in repeated):
        assert np.isnan(found[0])
    else:
        assert found[0] == pytest.approx(spearmanr(*repeated).statistic, abs=1e-9)


def test_reliability_of_two_seeds_by_hand() -> None:
    # ranks 1 2 3 4 against 1 3 2 4: r = 1 - 6 * 2 / (4 * 15) = 0.8, twice as long: 1.6 / 1.8
    gains = np.array([[0.1, 0.1], [0.2, 0.3], [0.3, 0.2], [0.4, 0.4]])
    assert reliability(gains) == pytest.approx(1.6 / 1.8)
    assert spearman_brown(0.5, 3) == pytest.approx(0.75)
    assert spearman_brown(-0.2, 3) == 0.0


def test_reliability_of_four_seeds_averages_all_halves() -> None:
    gains = np.random.default_rng(0).standard_normal((9, 4))
    halves = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    r = np.mean([spearmanr(gains[:, a].mean(axis=1), gains[:, b].mean(axis=1)).statistic for a, b in halves])
    assert reliability(gains) == pytest.approx(spearman_brown(float(r), 2))


def test_reliability_needs_two_seeds_and_spread() -> None:
    assert reliability(np.arange(5.0)[:, None]) is None
    assert reliability(np.ones((5, 2))) is None
    assert reliability(np.array([[0.1, np.nan], [0.2, 0.2], [0.3, 0.3]])) is None


def test_false_passes_by_hand() -> None:
    # five help: the highest threshold that passes four of them (0.8) is 0.3; of four that harm, 0.35 and 0.3 pass it
    outcomes = np.array([2, 2, 2, 2, 2, 0, 0, 0, 0, 1])
    scores = np.array([0.9, 0.8, 0.4, 0.3, 0.1, 0.35, 0.3, 0.2, 0.0, 0.95])
    found = false_passes(outcomes, scores)
    assert (found.estimate, found.n) == (0.5, 4)
    assert false_passes(outcomes, scores, recall=0.6).estimate == 0.0
    assert false_passes(outcomes, scores, recall=1.0).estimate == 0.75
    assert false_passes(np.array([1, 2]), np.array([0.1, 0.2])).estimate is None


def test_brier_score_by_hand() -> None:
    outcomes = np.array([0, 2])
    sure = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert brier_score(outcomes, sure) == 0.0
    assert brier_score(outcomes, sure[::-1]) == 2.0
    assert brier_score(outcomes, np.full((2, 3), 1 / 3)) == pytest.approx(2 / 3)


def test_ece_by_hand() -> None:
    # each outcome has probability 0.5, 0.5, 0 in both cases; it comes true in one, one and none of them
    probabilities = np.array([[0.5, 0.5, 0.0]] * 2)
    assert classwise_ece(np.array([0, 1]), probabilities) == pytest.approx(0.0)
    # now the first outcome comes true twice: gaps 0.5, 0.5 and 0
    assert classwise_ece(np.array([0, 0]), probabilities) == pytest.approx(1 / 3)


def test_correlation_leaves_out_what_is_missing() -> None:
    x = np.array([1.0, 2.0, np.nan, 3.0, 4.0])
    found = correlation(x, np.array([1.0, 3.0, 9.0, 2.0, 4.0]), reps=200, seed=0)
    assert found.estimate == pytest.approx(0.8)
    assert (found.n, found.n_undefined) == (4, 1)


def test_a_difference_is_of_the_same_cases() -> None:
    rng = np.random.default_rng(1)
    gains = rng.standard_normal(60)
    good, poor = gains + 0.1 * rng.standard_normal(60), rng.standard_normal(60)
    poor[:10] = np.nan
    found = correlation_difference(good, poor, gains, reps=500, seed=0)
    expected = spearmanr(good[10:], gains[10:]).statistic - spearmanr(poor[10:], gains[10:]).statistic
    assert found.estimate == pytest.approx(expected)
    assert found.low is not None
    assert found.low > 0.5
    assert correlation_difference(good, good, gains, reps=100, seed=0).low == 0.0


def test_the_outcomes_of_a_task_never_enter_its_own_predictions(table: GateTable) -> None:
    inside = table.tasks_N == "robot_task_2"
    changed = replace(table, success_N_S=np.where(inside[:, None], 1 - table.success_N_S, table.success_N_S))
    before, after = (out_of_task(one, NAMES) for one in (table, changed))
    for field in ("gains_N", "probabilities_N_3", "low_N", "high_N", "unknown_N"):
        first, second = getattr(before, field), getattr(after, field)
        assert (first[inside] == second[inside]).all()
        assert field == "unknown_N" or (first[~inside] != second[~inside]).any()


def test_the_features_of_other_models_of_a_task_never_enter_its_predictions(table: GateTable) -> None:
    inside = np.flatnonzero(table.tasks_N == "robot_task_2")
    features = table.features_N_F.copy()
    features[inside[1:]] += 7.0
    before, after = (out_of_task(one, NAMES) for one in (table, replace(table, features_N_F=features)))
    assert before.gains_N[inside[0]] == after.gains_N[inside[0]]
    assert before.unknown_N[inside[0]] == after.unknown_N[inside[0]]


def test_a_table_with_an_answer_in_it_is_predicted(table: GateTable) -> None:
    found = validate_gate(table, reps=300)
    assert found.correlation.estimate is not None
    assert found.correlation.estimate > 0.9
    assert found.best_single == "voc"
    assert found.difference is not None
    assert found.difference.low is not None
    assert found.difference.low > 0
    assert found.false_passes.estimate == 0.0
    assert found.brier < 0.5 * found.brier_constant
    assert found.coverage.estimate is not None
    assert found.coverage.estimate > 0.8
    assert found.known.estimate is not None
    assert found.known.estimate < 0.25
    assert found.ceiling is not None
    assert found.ceiling > 0.95


def test_a_table_without_an_answer_is_not_predicted(table: GateTable) -> None:
    shuffled = np.random.default_rng(0).permutation(len(table))
    found = validate_gate(replace(table, success_N_S=table.success_N_S[shuffled]), reps=300)
    assert found.correlation.estimate is not None
    assert found.correlation.estimate < 0.2
    assert found.brier > 0.85 * found.brier_constant


def test_a_family_of_its_own_is_unknown_when_withheld(table: GateTable) -> None:
    strange = table.families_N == "family_1"
    features = table.features_N_F + np.where(strange[:, None], [6.0, 6.0, 0.0, -6.0], 0.0)
    moved = replace(table, features_N_F=features)
    assert withheld_family(moved, NAMES, "family_1") == (12, 12)
    assert withheld_family(table, NAMES, "family_1")[0] < 6
    # a family that is in the fit, on other tasks, is known
    known = out_of_task(moved, NAMES).unknown_N
    assert known[strange].mean() < 0.5


def test_a_feature_that_a_single_task_has_breaks_nothing(table: GateTable) -> None:
    features = table.features_N_F.copy()
    features[table.tasks_N != "robot_task_2", NAMES.index("voc")] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = out_of_task(replace(table, features_N_F=features), NAMES)
    assert np.isfinite(found.gains_N).all()
    assert not found.unknown_N.all()


def test_validation_needs_three_tasks() -> None:
    with pytest.raises(ValueError, match="needs three"):
        validate_gate(made_table(2, 12))


def test_every_feature_of_which_less_is_better_has_words() -> None:
    assert set(WORDS) >= {name for name in LOWER_IS_BETTER if not name.startswith("probe_")}  # these are made
