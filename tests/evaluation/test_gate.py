"""The forecast on a reward model: predictor, probabilities, reasons, unknown."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from gate_tables import made_rows, made_table
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from guerdon.errors import DataError
from guerdon.evaluation.gate.forecast import (
    FEATURES,
    correlation,
    distances,
    error_bounds,
    false_passes,
    fit_gate,
    fit_ordinal,
    gate_forecast,
    ordinal_probabilities,
    out_of_task,
    ranks_among,
    spearman_by_row,
    too_small,
    usable_features,
)
from guerdon.evaluation.gate.gate_table import GateTable, effects, gate_table

NAMES = ("bon16", "epic")


@pytest.fixture(scope="module")
def table() -> GateTable:
    return made_table()


def features(value: float) -> dict[str, float | None]:
    return {"bon16": value, "epic": -value, "idle": 0.0}


def test_effects_at_the_margin() -> None:
    assert effects([-0.06, -0.05, -0.049, 0.0, 0.049, 0.35 - 0.3, 0.2]).tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_a_gain_is_the_mean_over_seeds_with_both_runs() -> None:
    row = made_rows(1, 1)[0] | {"baseline": [0.5, None, 0.1], "success": [0.7, 0.9, 0.2]}
    table = gate_table([("here", row)])
    assert table.gains_N == pytest.approx([0.15])
    assert np.isnan(table.gains_N_S[0, 1])


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"task": None}, "task", "no task"),
        ({"kind": "car"}, "kind", "robot or text"),
        ({"success": [0.1]}, "baseline", "one of each per seed"),
        ({"success": [0.1, 2.0, 0.3]}, "success", "within 0..1"),
        ({"feature.bon16": "high"}, "feature.bon16", "a number or null"),
    ],
)
def test_a_bad_row_is_refused_with_its_place(change: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        gate_table([("table.jsonl:7", made_rows(1, 1)[0] | change)])
    assert (caught.value.where, caught.value.field) == ("table.jsonl:7", field)


def test_a_reward_model_has_one_row() -> None:
    row = made_rows(1, 1)[0]
    with pytest.raises(DataError, match="is in a already") as refused:
        gate_table([("a", row), ("b", row)])
    assert refused.value.field == "model"


def test_a_row_without_any_pair_of_runs_is_left_out() -> None:
    rows = made_rows(1, 2)
    rows[0]["success"] = [None, None, None]
    assert gate_table(enumerate_places(rows)).models_N.tolist() == ["robot_0_1"]


def enumerate_places(rows: list[dict[str, object]]) -> list[tuple[str, dict[str, object]]]:
    return [(f"row {i}", row) for i, row in enumerate(rows)]


def test_ordinal_probabilities_by_hand() -> None:
    # slope 2, cuts -1 and 1, at score 0: sigma(-1), sigma(1) - sigma(-1), 1 - sigma(1)
    low = 1 / (1 + np.e)
    assert ordinal_probabilities(np.zeros(1), (2.0, -1.0, 1.0))[0] == pytest.approx([low, 1 - 2 * low, low])
    # at score 0.5 the first cut is 2 away and the second is met
    assert ordinal_probabilities(np.array([0.5]), (2.0, -1.0, 1.0))[0, 2] == pytest.approx(0.5)


def test_the_ordered_logistic_model_recovers_its_parameters() -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal(20_000)
    truth = (1.5, -1.0, 0.7)
    drawn = (rng.random((20_000, 1)) > np.cumsum(ordinal_probabilities(scores, truth), axis=1)).sum(axis=1)
    assert fit_ordinal(scores, drawn) == pytest.approx(truth, abs=0.06)


def test_scores_without_information_give_the_frequencies() -> None:
    effects_N = np.repeat([0, 1, 2], [10, 20, 30])
    chances = ordinal_probabilities(np.zeros(1), fit_ordinal(np.zeros(60), effects_N))[0]
    assert chances == pytest.approx(np.array([10 + 1 / 3, 20 + 1 / 3, 30 + 1 / 3]) / 61, abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(
    scores=st.lists(st.floats(-1, 1), min_size=4, max_size=30),
    new=st.lists(st.floats(-50, 50), min_size=1, max_size=5),
    seed=st.integers(0, 100),
)
def test_probabilities_are_a_distribution_and_rise_with_the_score(
    scores: list[float], new: list[float], seed: int
) -> None:
    effects_N = np.random.default_rng(seed).integers(0, 3, len(scores))
    chances = ordinal_probabilities(np.sort(new), fit_ordinal(np.array(scores), effects_N))
    assert chances.min() >= 0
    assert chances.sum(axis=1) == pytest.approx(np.ones(len(new)))
    assert (np.diff(chances[:, 2]) >= -1e-12).all()
    assert (np.diff(chances[:, 0]) <= 1e-12).all()


def test_error_bounds_by_hand() -> None:
    # 39 errors: k = floor(0.05 * 40) = 2, the second smallest and the second largest
    assert error_bounds(np.arange(-19, 20) / 100) == pytest.approx((-0.18, 0.18))
    assert error_bounds(np.array([0.1, 0.2])) == (0.0, 0.2)


def test_ranks_among_known_values_by_hand() -> None:
    known = np.array([[1.0, np.nan], [2.0, 5.0], [2.0, np.nan]])
    found = ranks_among(np.array([[2.0, 5.0], [9.0, 0.0], [np.nan, np.nan]]), known)
    assert found == pytest.approx(np.array([[(1 + 3) / 6 - 0.5, 0.0], [0.5, -0.5], [0.0, 0.0]]))
    assert ranks_among(np.ones((1, 1)), np.full((3, 1), np.nan)).tolist() == [[0.0]]


def test_distance_in_feature_space_by_hand() -> None:
    # quartiles of the first feature 0, 0, 2 and of the second 0.5, 1, 1.5: units of 2 and 1, over 1.349
    known, unit = np.array([[0.0, 0.0], [0.0, 2.0], [4.0, np.nan]]), 1.349
    # mean over both features of squares, then over the three points; the third shares one feature
    expected = unit * (1 + 1) / np.sqrt(2) / 3 + unit * 4 / 2 / 3
    assert distances(np.array([[0.0, 1.0]]), known)[0] == pytest.approx(expected)
    assert np.isinf(distances(np.full((1, 2), np.nan), known)[0])
    allowed = np.array([[True, False, False]])
    assert np.isinf(distances(np.zeros((1, 2)), known, allowed)[0])  # fewer than three neighbours are left


def test_the_forecast_follows_the_feature_that_decides(table: GateTable) -> None:
    bad, good = (gate_forecast(features(value), "robot", table) for value in (-0.8, 0.8))
    assert (bad.answer, good.answer) == ("harms", "helps")
    assert bad.probabilities is not None
    assert bad.probabilities["harms"] > 0.9
    assert bad.gain is not None
    assert bad.gain.estimate == pytest.approx(-0.24, abs=0.06)  # 0.3 times the quality
    assert bad.gain.high is not None
    assert bad.gain.high < 0
    assert {reason.split(":")[0] for reason in bad.reasons} == {words for _, words in FEATURES["robot"].values()}
    assert all("lowers the expected gain by" in reason for reason in bad.reasons)
    assert all("raises the expected gain by" in reason for reason in good.reasons)


def test_a_reason_says_where_the_model_stands(table: GateTable) -> None:
    (of_16,) = (r for r in gate_forecast(features(0.8), "robot", table).reasons if "highest return of 16" in r)
    assert ": 0.8, above 88 % of the 48 known reward models; raises the expected gain by 0." in of_16


def test_each_kind_has_its_own_features() -> None:
    both = made_rows() + made_rows(kind="text")
    table = gate_table(enumerate_places(both))
    steps: dict[str, float | None] = {"row_auroc": 0.8, "auroc": 0.8, "epic": 0.8}
    assert gate_forecast(steps, "text", table).answer == "helps"
    assert gate_forecast(steps, "robot", table).answer == "harms"  # far from the true reward


def test_a_model_unlike_all_others_is_unknown(table: GateTable) -> None:
    forecast = gate_forecast(features(0.5) | {"bon16": 60.0, "epic": 40.0}, "robot", table)
    assert forecast.answer == "unknown"
    assert forecast.probabilities is None
    assert forecast.gain is None
    assert "unlike" in forecast.reasons[0]


def test_a_table_that_is_too_small_gives_no_number(table: GateTable) -> None:
    small = made_table(2, 6)
    for one, kind in ((small, "robot"), (table, "text"), (table.of("text"), "robot")):
        forecast = gate_forecast(features(0.5), kind, one)
        assert (forecast.answer, forecast.probabilities, forecast.gain) == ("unknown", None, None)
        assert "needs 20 on 3" in forecast.reasons[0]
    assert too_small(table) is None
    only_helped = table.take(table.effects_N == 2)
    assert "0 that harmed" in (too_small(only_helped) or "")


def test_without_any_feature_there_is_no_number(table: GateTable) -> None:
    forecast = gate_forecast({"bon16": None, "epic": float("nan"), "idle": 0.5, "rare": 0.5}, "robot", table)
    assert forecast.answer == "unknown"
    assert "none of epic, bon16 is measured" in forecast.reasons[0]


@pytest.mark.parametrize("missing", NAMES)
def test_a_feature_that_was_not_measured_is_not_used(table: GateTable, missing: str) -> None:
    without = gate_forecast(features(0.8) | {missing: None}, "robot", table)
    assert without.answer == "helps"
    assert len(without.reasons) == 1
    assert FEATURES["robot"][missing][1] not in without.reasons[0]


def test_the_forecast_says_how_well_it_did_on_tasks_left_out(table: GateTable) -> None:
    checked = gate_forecast(features(0.8), "robot", table).validated
    assert checked is not None
    assert (checked["models"], checked["tasks"]) == (48, 6)
    assert 0.8 < checked["correlation"]["low"] < checked["correlation"]["estimate"] <= checked["correlation"]["high"]
    assert checked["false_passes"]["estimate"] == 0.0


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(32)))
def test_the_order_of_rows_changes_nothing(order: list[int]) -> None:
    table = made_table(4, 8)
    new = np.array([[0.3, np.nan], [-0.9, 0.4]])
    first, second = (fit_gate(one, NAMES, "robot") for one in (table, table.take(order)))
    assert second.gains(new) == pytest.approx(first.gains(new), abs=1e-9)
    assert second.probabilities(new) == pytest.approx(first.probabilities(new), abs=1e-4)
    assert second.errors == pytest.approx(first.errors)
    assert second.farthest == pytest.approx(first.farthest)


def test_a_score_is_the_mean_of_ranks_by_hand(table: GateTable) -> None:
    predictor = fit_gate(table, NAMES, "robot")
    new = np.array([[0.3, -0.4], [0.3, np.nan]])
    ranks = [(table.columns([name])[:, 0] < value).mean() - 0.5 for name, value in zip(NAMES, new[0], strict=True)]
    assert predictor.scores(new) == pytest.approx([(ranks[0] - ranks[1]) / 2, ranks[0] / 2])
    assert fit_gate(table, ["bon16"], "robot").scores(new[:, :1]) == pytest.approx([ranks[0], ranks[0]])


def test_a_difference_between_tasks_is_no_gain_of_a_score(table: GateTable) -> None:
    """Within a task neither feature says anything; between tasks both rise with the gain."""
    task = np.array([int(name[-1]) for name in table.tasks_N], dtype=np.float64)
    shown = np.where(np.array([name in NAMES for name in table.names]), task[:, None], 0.0)
    shown[:, table.names.index("epic")] *= -1
    shifted = replace(table, features_N_F=shown, baseline_N_S=0.6 - 0.05 * task[:, None] + 0 * table.baseline_N_S)
    assert fit_gate(shifted, NAMES, "robot").slope == pytest.approx(0.0, abs=1e-6)
    assert fit_gate(table, NAMES, "robot").slope > 0.3


def test_ranks_make_the_predictor_blind_to_the_scale_of_a_feature(table: GateTable) -> None:
    def curved(x: np.ndarray) -> np.ndarray:
        return np.exp(3 * x)

    bent = replace(table, features_N_F=curved(table.features_N_F))
    new = table.columns(NAMES)[:5]
    plain = fit_gate(table, NAMES, "robot").gains(new)
    assert fit_gate(bent, NAMES, "robot").gains(curved(new)) == pytest.approx(plain)


def test_a_feature_that_differs_by_rounding_is_not_used_and_separates_nothing() -> None:
    rows = [row | {"feature.epic": 1e-9 * i} for i, row in enumerate(made_rows())]
    assert usable_features(gate_table(enumerate_places(rows)), "robot") == ["bon16"]
    known = np.array([[1e-9 * i, float(i)] for i in range(8)])
    found = distances(np.array([[0.0, 4.0], [5e-7, 4.0]]), known)
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_a_feature_that_most_reward_models_lack_is_not_used(table: GateTable) -> None:
    assert usable_features(table, "robot") == ["bon16", "epic"]
    rows = [row | {"feature.epic": 0.1 * i if i % 3 == 0 else None} for i, row in enumerate(made_rows())]
    assert usable_features(gate_table(enumerate_places(rows)), "robot") == ["bon16"]


def test_the_effects_of_a_task_never_enter_its_own_predictions(table: GateTable) -> None:
    inside = table.tasks_N == "robot_task_2"
    changed = replace(table, success_N_S=np.where(inside[:, None], 1 - table.success_N_S, table.success_N_S))
    before, after = (out_of_task(one, NAMES, "robot") for one in (table, changed))
    for field in ("gains_N", "probabilities_N_3", "low_N", "high_N", "unknown_N"):
        first, second = getattr(before, field), getattr(after, field)
        assert (first[inside] == second[inside]).all()
        assert field == "unknown_N" or (first[~inside] != second[~inside]).any()


def test_the_features_of_other_models_of_a_task_never_enter_its_predictions(table: GateTable) -> None:
    inside = np.flatnonzero(table.tasks_N == "robot_task_2")
    features = table.features_N_F.copy()
    features[inside[1:]] += 7.0
    before, after = (out_of_task(one, NAMES, "robot") for one in (table, replace(table, features_N_F=features)))
    assert before.gains_N[inside[0]] == after.gains_N[inside[0]]
    assert before.unknown_N[inside[0]] == after.unknown_N[inside[0]]


def test_a_feature_that_a_single_task_has_breaks_nothing(table: GateTable) -> None:
    features = table.features_N_F.copy()
    features[table.tasks_N != "robot_task_2", table.names.index("epic")] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = out_of_task(replace(table, features_N_F=features), NAMES, "robot")
    assert np.isfinite(found.gains_N).all()
    assert not found.unknown_N.all()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=12))
def test_spearman_of_rows(cases: list[tuple[int, int]]) -> None:
    x, y = (np.array(side, dtype=np.float64) for side in zip(*cases, strict=True))
    found = spearman_by_row(np.stack([x, x]), np.stack([y, -y]))
    if any(len(set(side.tolist())) < 2 for side in (x, y)):
        assert np.isnan(found).all()
    else:
        expected = spearmanr(x, y).statistic
        assert found == pytest.approx([expected, -expected], abs=1e-9)


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
    found = correlation(good, gains, reps=500, seed=0, minus_N=poor)
    expected = spearmanr(good[10:], gains[10:]).statistic - spearmanr(poor[10:], gains[10:]).statistic
    assert found.estimate == pytest.approx(expected)
    assert found.low is not None
    assert found.low > 0.5
    assert correlation(good, gains, reps=100, seed=0, minus_N=good).low == 0.0


def test_false_passes_by_hand() -> None:
    # five help: the highest threshold that passes four of them (0.8) is 0.3; of four that harm, 0.35 and 0.3 pass it
    effects = np.array([2, 2, 2, 2, 2, 0, 0, 0, 0, 1])
    scores = np.array([0.9, 0.8, 0.4, 0.3, 0.1, 0.35, 0.3, 0.2, 0.0, 0.95])
    found = false_passes(effects, scores)
    assert (found.estimate, found.n) == (0.5, 4)
    assert false_passes(effects, scores, recall=0.6).estimate == 0.0
    assert false_passes(effects, scores, recall=1.0).estimate == 0.75
    assert false_passes(np.array([1, 2]), np.array([0.1, 0.2])).estimate is None
