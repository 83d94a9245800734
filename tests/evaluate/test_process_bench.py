import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_models import exact, noisy, scores, solution

from guerdon.errors import DataError
from guerdon.evaluate.aggregate import score_solutions
from guerdon.evaluate.generated_bench import generated_bench
from guerdon.evaluate.process_bench import best_threshold, harmonic, process_bench
from guerdon.evaluate.steps import first_below
from guerdon.settings.data import ChainSettings, SwapSettings
from guerdon.types import Score


def item(name, first, subset="gsm8k"):
    return solution(name, 3, first, meta={"subset": subset})


GOOD, FIRST, SECOND, LAST = [0.9, 0.9, 0.9], [0.1, 0.9, 0.9], [0.9, 0.1, 0.9], [0.9, 0.9, 0.1]


def test_by_hand():
    """Two subsets: F1 of 2 * (1/2 * 2/3) / (1/2 + 2/3) = 4/7 and of 0; their mean is 2/7."""
    solutions = [item("a", 0), item("b", 1), item("c", -1), item("d", -1), item("e", -1)]
    solutions += [item("f", 2, "math"), item("g", -1, "math")]
    said = scores(FIRST, FIRST, GOOD, GOOD, LAST, GOOD, GOOD)
    bench = process_bench(solutions, said, seed=0, reps=200)
    gsm8k = bench.subsets["gsm8k"].measured
    assert gsm8k["accuracy_erroneous"].estimate == 0.5
    assert gsm8k["accuracy_correct"].estimate == pytest.approx(2 / 3)
    assert gsm8k["f1"].estimate == pytest.approx(4 / 7)
    assert bench.subsets["math"].measured["f1"].estimate == 0.0
    assert bench.average.estimate == pytest.approx(2 / 7)
    assert (bench.threshold, bench.tuned_on, bench.average_untuned) == (0.5, None, None)


def test_a_value_at_the_threshold_is_right():
    assert first_below([0.5, 0.5], 0.5) == -1
    assert first_below(np.array([0.7, np.nextafter(np.float32(0.5), np.float32(0))], np.float32), 0.5) == 1


def test_zero_on_both_sides_is_zero_and_a_missing_side_is_undefined():
    assert harmonic(np.array([0.0]), np.array([0.0]))[0] == 0
    assert np.isnan(harmonic(np.array([np.nan]), np.array([1.0]))[0])
    bench = process_bench([item("a", 1), item("b", -1, "math")], scores(SECOND, GOOD), seed=0, reps=100)
    assert bench.subsets["gsm8k"].measured["accuracy_erroneous"].estimate == 1
    assert bench.subsets["gsm8k"].measured["f1"].estimate is None
    assert bench.average.estimate is None


def test_failures_are_counted_and_given_both_ways():
    solutions = [item("a", 1), item("b", 1), item("c", -1), item("d", -1)]
    bench = process_bench(solutions, scores(SECOND, "too_long", GOOD, "late"), seed=0, reps=200)
    one = bench.subsets["gsm8k"]
    assert one.failures == {"late": 1, "too_long": 1}
    assert (one.measured["f1"].estimate, one.measured["f1"].n, one.measured["f1"].n_undefined) == (1.0, 2, 2)
    assert (one.failures_wrong["f1"].estimate, one.failures_wrong["f1"].n) == (0.5, 4)
    assert bench.average.estimate == 1.0
    assert bench.average_failures_wrong.estimate == 0.5


def test_a_model_without_values_of_steps_fails_everywhere():
    bench = process_bench([item("a", 1), item("b", -1)], [Score(total=1.0)] * 2, seed=0, reps=100)
    assert bench.subsets["gsm8k"].failures == {"no_step_values": 2}
    assert bench.average.estimate is None
    assert bench.average_failures_wrong.estimate == 0.0


def test_unknown_first_errors_are_left_out_and_counted():
    bench = process_bench([item("a", 1), item("b", -1), item("c", None)], scores(SECOND, GOOD, GOOD), seed=0, reps=100)
    assert (bench.unknown, bench.subsets["gsm8k"].n) == (1, 2)
    with pytest.raises(DataError, match="first error"):
        process_bench([item("c", None)], scores(GOOD), seed=0)


def test_the_threshold_is_chosen_on_one_subset_and_recorded():
    rows = [[0.9, 0.75, 0.9], [0.9, 0.85, 0.9]]  # the error lies at 0.75, what is right at 0.85
    solutions = [item("a", 1), item("b", -1), item("c", 1, "math"), item("d", -1, "math")]
    said = scores(rows[0], rows[1], rows[1], rows[1])
    bench = process_bench(solutions, said, tune_on="gsm8k", seed=0, reps=100)
    assert bench.threshold == pytest.approx(0.8, abs=1e-6)
    assert bench.subsets["gsm8k"].measured["f1"].estimate == 1
    assert bench.subsets["math"].measured["f1"].estimate == 0
    assert (bench.average.estimate, bench.average_untuned.estimate) == (0.5, 0.0)
    assert bench.to_dict()["threshold_source"] == "best F1 on gsm8k"
    with pytest.raises(DataError, match=r"aime.*gsm8k, math"):
        process_bench(solutions, said, tune_on="aime", seed=0)
    with pytest.raises(DataError, match="with and without"):
        process_bench(solutions[:1], said[:1], tune_on="gsm8k", seed=0)
    with pytest.raises(ValueError, match="not both"):
        process_bench(solutions, said, tune_on="gsm8k", threshold=0.5, seed=0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), min_size=2, max_size=4), st.integers(-1, 1)),
        min_size=2,
        max_size=10,
    ).filter(lambda rows: len({first >= 0 for _, first in rows}) == 2)
)
def test_no_threshold_on_a_grid_beats_the_chosen_one(rows):
    said, firsts = scores(*(values for values, _ in rows)), [first for _, first in rows]

    def f1(threshold):
        hits = {True: [], False: []}
        for score, first in zip(said, firsts, strict=True):
            hits[first >= 0].append(first_below(score.steps, threshold) == first)
        a, b = np.mean(hits[True]), np.mean(hits[False])
        return 0.0 if a + b == 0 else 2 * a * b / (a + b)

    assert f1(best_threshold(said, firsts)) >= max(f1(t) for t in np.linspace(0, 1, 41)) - 1e-9


def test_intervals_cover_and_are_reproducible():
    bench_set = generated_bench([ChainSettings(steps=4), SwapSettings(steps=4)], 60, 0)
    said = score_solutions(noisy(0.25), bench_set)
    one, two = (process_bench(bench_set, said, seed=3, reps=300) for _ in range(2))
    assert one.to_dict() == two.to_dict()
    assert one.average.low < one.average.estimate < one.average.high
    assert "NaN" not in json.dumps(one.to_dict())
    perfect = process_bench(bench_set, score_solutions(exact(), bench_set), seed=0, reps=200)
    assert perfect.average.estimate == 1.0
    assert 0.9 < perfect.average.low < 1.0
