"""The verdict on a reward model: predictor, probabilities, reasons, unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gate_tables import made_rows, made_table
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.errors import DataError
from guerdon.evaluate.gate import (
    STRONGEST,
    FeatureSpace,
    Weights,
    common_features,
    error_bounds,
    fit_gate,
    fit_ordinal,
    gate_verdict,
    ordinal_probabilities,
    too_small,
)
from guerdon.evaluate.gate_table import GateTable, gate_table, outcomes

NAMES = ("good", "idle", "rare", "voc")


@pytest.fixture(scope="module")
def table() -> GateTable:
    return made_table()


def features(value: float) -> dict[str, float | None]:
    return {"good": value, "voc": value, "idle": 0.0, "rare": value}


def test_outcomes_at_the_margin() -> None:
    assert outcomes([-0.06, -0.05, -0.049, 0.0, 0.049, 0.35 - 0.3, 0.2]).tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_a_gain_is_the_mean_over_seeds_with_both_runs() -> None:
    row = made_rows(1, 1)[0] | {"baseline": [0.5, None, 0.1], "success": [0.7, 0.9, 0.2]}
    table = gate_table([("here", row)])
    assert table.gains_N == pytest.approx([0.15])
    assert np.isnan(table.gains_N_S[0, 1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": None}, "no task"),
        ({"kind": "car"}, "robot or text"),
        ({"success": [0.1]}, "one of each per seed"),
        ({"success": [0.1, 2.0, 0.3]}, "within 0..1"),
        ({"feature.good": "high"}, "a number or null"),
    ],
)
def test_a_bad_row_is_refused_with_its_place(change: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        gate_table([("table.jsonl:7", made_rows(1, 1)[0] | change)])
    assert "table.jsonl:7" in str(caught.value)


def test_a_reward_model_has_one_row() -> None:
    row = made_rows(1, 1)[0]
    with pytest.raises(DataError, match="is in a already"):
        gate_table([("a", row), ("b", row)])


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
    outcomes_N = np.repeat([0, 1, 2], [10, 20, 30])
    chances = ordinal_probabilities(np.zeros(1), fit_ordinal(np.zeros(60), outcomes_N))[0]
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
    outcomes_N = np.random.default_rng(seed).integers(0, 3, len(scores))
    chances = ordinal_probabilities(np.sort(new), fit_ordinal(np.array(scores), outcomes_N))
    assert chances.min() >= 0
    assert chances.sum(axis=1) == pytest.approx(np.ones(len(new)))
    assert (np.diff(chances[:, 2]) >= -1e-12).all()
    assert (np.diff(chances[:, 0]) <= 1e-12).all()


def test_error_bounds_by_hand() -> None:
    # 39 errors: k = floor(0.05 * 40) = 2, the second smallest and the second largest
    assert error_bounds(np.arange(-19, 20) / 100) == pytest.approx((-0.18, 0.18))
    assert error_bounds(np.array([0.1, 0.2])) == (0.0, 0.2)


def test_distance_in_feature_space_by_hand() -> None:
    space = FeatureSpace(np.zeros(2), np.ones(2), np.array([[0.0, 0.0], [0.0, 2.0], [4.0, np.nan]]))
    # mean over both features of squares, then over the three points; the third shares one feature
    expected = (0 + np.sqrt(2) + 4) / 3
    assert space.distances(np.zeros((1, 2)))[0] == pytest.approx(expected)
    assert np.isinf(space.distances(np.full((1, 2), np.nan))[0])
    allowed = np.array([[True, False, False]])
    assert np.isinf(space.distances(np.zeros((1, 2)), allowed)[0])  # fewer than three neighbours are left


def test_the_verdict_follows_the_feature_that_decides(table: GateTable) -> None:
    bad, good = (gate_verdict(features(value), "robot", table) for value in (-0.8, 0.8))
    assert (bad.answer, good.answer) == ("harms", "helps")
    assert bad.probabilities is not None
    assert bad.probabilities["harms"] > 0.9
    assert bad.gain is not None
    assert bad.gain.estimate == pytest.approx(-0.24, abs=0.06)  # 0.3 times the quality
    assert bad.gain.high is not None
    assert bad.gain.high < 0
    assert {reason.split(":")[0] for reason in bad.reasons} == {"good", "rare", "voc"}
    assert all("lowers the expected gain by" in reason for reason in bad.reasons)
    assert all("raises the expected gain by" in reason for reason in good.reasons)


def test_reasons_use_the_words_for_a_feature(table: GateTable) -> None:
    verdict = gate_verdict(features(0.8), "robot", table, words={"good": "how good it is"})
    assert any(reason.startswith("how good it is: 0.8, above ") for reason in verdict.reasons)


def test_a_model_unlike_all_others_is_unknown(table: GateTable) -> None:
    verdict = gate_verdict(features(0.5) | {"good": 60.0, "voc": -40.0}, "robot", table)
    assert verdict.answer == "unknown"
    assert verdict.probabilities is None
    assert verdict.gain is None
    assert "unlike" in verdict.reasons[0]


def test_a_table_that_is_too_small_gives_no_number(table: GateTable) -> None:
    small = made_table(2, 6)
    for one, kind in ((small, "robot"), (table, "text"), (table.of("text"), "robot")):
        verdict = gate_verdict(features(0.5), kind, one)
        assert (verdict.answer, verdict.probabilities, verdict.gain) == ("unknown", None, None)
        assert "needs 20 on 3" in verdict.reasons[0]
    assert too_small(table) is None
    only_helped = table.take(table.outcomes_N == 2)
    assert "0 that harmed" in (too_small(only_helped) or "")


def test_few_measured_features_give_no_number(table: GateTable) -> None:
    verdict = gate_verdict({"good": 0.5, "voc": None, "idle": float("nan")}, "robot", table)
    assert verdict.answer == "unknown"
    assert "only 1 of the 4 features" in verdict.reasons[0]


def test_a_feature_that_was_not_measured_is_not_used(table: GateTable) -> None:
    without = gate_verdict(features(0.8) | {"voc": None}, "robot", table)
    assert without.answer == "helps"
    assert not any(reason.startswith("voc") for reason in without.reasons)


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(32)))
def test_the_order_of_rows_changes_nothing(order: list[int]) -> None:
    table = made_table(4, 8)
    new = np.array([[0.3, 0.1, np.nan, -0.2], [-0.9, 0.0, 0.4, 0.8]])
    first, second = (fit_gate(one, NAMES) for one in (table, table.take(order)))
    assert second.gains(new) == pytest.approx(first.gains(new), abs=1e-9)
    assert second.probabilities(new) == pytest.approx(first.probabilities(new), abs=1e-4)
    assert second.errors == pytest.approx(first.errors)
    assert second.farthest == pytest.approx(first.farthest)


def test_weights_are_the_covariances_within_tasks_by_hand() -> None:
    x = np.array([[1.0, 5.0], [2.0, 5.0], [11.0, 5.0], [12.0, 5.0]])  # ranks -3/8 -1/8 1/8 3/8, and a constant
    found = Weights.fit(x, np.array([0.1, 0.3, 0.1, 0.3]), np.array(["a", "a", "b", "b"]))
    # within a task the ranks are -1/8 and 1/8: in units of their deviation -1 and 1, as the gains but for their scale
    assert found.weights_C == pytest.approx([1.0, 0.0])
    assert found.scores(x) == pytest.approx([-3.0, -1.0, 1.0, 3.0])


def test_a_difference_between_tasks_is_no_reason_to_weigh_a_feature(table: GateTable) -> None:
    task = np.array([int(name[-1]) for name in table.tasks_N])
    features = table.features_N_F.copy()
    features[:, NAMES.index("idle")] = task
    shifted = replace(table, features_N_F=features, baseline_N_S=0.1 + 0.05 * task[:, None] + 0 * table.baseline_N_S)
    weights = fit_gate(shifted, NAMES).weights.weights_C
    assert weights[NAMES.index("idle")] == pytest.approx(0.0, abs=1e-9)
    assert weights[NAMES.index("good")] > 0.3


def test_ranks_make_the_predictor_blind_to_the_scale_of_a_feature(table: GateTable) -> None:
    def curved(x: np.ndarray) -> np.ndarray:
        return np.exp(3 * x)

    bent = replace(table, features_N_F=curved(table.features_N_F))
    new = table.columns(NAMES)[:5]
    assert fit_gate(bent, NAMES).gains(curved(new)) == pytest.approx(fit_gate(table, NAMES).gains(new))


def test_a_feature_that_differs_by_rounding_is_not_used_and_separates_nothing() -> None:
    rows = [row | {"feature.same": 1e-9 * i} for i, row in enumerate(made_rows())]
    assert "same" not in common_features(gate_table((str(i), row) for i, row in enumerate(rows)))
    space = FeatureSpace.of(np.array([[1e-9 * i, float(i)] for i in range(8)]))
    distances = space.distances(np.array([[0.0, 4.0], [5e-7, 4.0]]))
    assert distances[0] == pytest.approx(distances[1], abs=1e-6)


def test_only_the_strongest_features_have_a_weight() -> None:
    rng = np.random.default_rng(0)
    rows = [row | {f"feature.noise{k}": float(rng.standard_normal()) for k in range(9)} for row in made_rows()]
    table = gate_table((str(i), row) for i, row in enumerate(rows))
    names = common_features(table)
    weights = fit_gate(table, names).weights.weights_C
    assert len(names) > STRONGEST
    assert np.count_nonzero(weights) == STRONGEST
    assert abs(weights[names.index("good")]) == np.abs(weights).max()
