import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score
from text_models import exact, noisy, scores, solution

from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.step_benchmarks import (
    best_threshold,
    first_below,
    first_errors,
    generated_bench,
    harmonic,
    prm_bench,
    process_bench,
    step_labels,
    step_table,
    true_first_error,
)
from guerdon.evaluation.metrics import classification_metrics
from guerdon.models.scores import score_solutions
from guerdon.settings.data import ChainSettings, SwapSettings
from guerdon.types import Score


def item(name, first, subset="gsm8k"):
    return solution(name, 3, first, meta={"subset": subset})


GOOD, FIRST, SECOND, LAST = [0.9, 0.9, 0.9], [0.1, 0.9, 0.9], [0.9, 0.1, 0.9], [0.9, 0.9, 0.1]


def test_process_bench_by_hand():
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
    assert bench.average_f1["measured"].estimate == pytest.approx(2 / 7)
    assert (bench.threshold, bench.threshold_source) == (0.5, "fixed")
    assert bench.average_f1["measured_without_tuned"] is None


def test_a_value_at_the_threshold_is_right():
    assert first_below([0.5, 0.5], 0.5) == -1
    assert first_below(np.array([0.7, np.nextafter(np.float32(0.5), np.float32(0))], np.float32), 0.5) == 1


def test_zero_on_both_sides_is_zero_and_a_missing_side_is_undefined():
    assert harmonic(np.array([0.0]), np.array([0.0]))[0] == 0
    assert np.isnan(harmonic(np.array([np.nan]), np.array([1.0]))[0])
    bench = process_bench([item("a", 1), item("b", -1, "math")], scores(SECOND, GOOD), seed=0, reps=100)
    assert bench.subsets["gsm8k"].measured["accuracy_erroneous"].estimate == 1
    assert bench.subsets["gsm8k"].measured["f1"].estimate is None
    assert bench.average_f1["measured"].estimate is None


def test_process_bench_failures_are_counted_and_given_both_ways():
    solutions = [item("a", 1), item("b", 1), item("c", -1), item("d", -1)]
    bench = process_bench(solutions, scores(SECOND, "too_long", GOOD, "late"), seed=0, reps=200)
    one = bench.subsets["gsm8k"]
    assert one.failures == {"late": 1, "too_long": 1}
    assert (one.measured["f1"].estimate, one.measured["f1"].n, one.measured["f1"].n_undefined) == (1.0, 2, 2)
    assert (one.failures_wrong["f1"].estimate, one.failures_wrong["f1"].n) == (0.5, 4)
    assert bench.average_f1["measured"].estimate == 1.0
    assert bench.average_f1["failures_wrong"].estimate == 0.5


def test_a_model_without_values_of_steps_fails_everywhere():
    bench = process_bench([item("a", 1), item("b", -1)], [Score(total=1.0)] * 2, seed=0, reps=100)
    assert bench.subsets["gsm8k"].failures == {"no_step_values": 2}
    assert bench.average_f1["measured"].estimate is None
    assert bench.average_f1["failures_wrong"].estimate == 0.0


def test_unknown_first_errors_are_left_out_and_counted():
    bench = process_bench([item("a", 1), item("b", -1), item("c", None)], scores(SECOND, GOOD, GOOD), seed=0, reps=100)
    assert (bench.unknown, bench.subsets["gsm8k"].n) == (1, 2)
    with pytest.raises(DataError, match="first error") as refused:
        process_bench([item("c", None)], scores(GOOD), seed=0)
    assert refused.value.field == "first_error"


def test_the_threshold_is_chosen_on_one_subset_and_recorded():
    rows = [[0.9, 0.75, 0.9], [0.9, 0.85, 0.9]]  # the error lies at 0.75, what is right at 0.85
    solutions = [item("a", 1), item("b", -1), item("c", 1, "math"), item("d", -1, "math")]
    said = scores(rows[0], rows[1], rows[1], rows[1])
    bench = process_bench(solutions, said, tune_on="gsm8k", seed=0, reps=100)
    assert bench.threshold == pytest.approx(0.8, abs=1e-6)
    assert bench.subsets["gsm8k"].measured["f1"].estimate == 1
    assert bench.subsets["math"].measured["f1"].estimate == 0
    assert (bench.average_f1["measured"].estimate, bench.average_f1["measured_without_tuned"].estimate) == (0.5, 0.0)
    assert bench.threshold_source == "best F1 on gsm8k"
    with pytest.raises(DataError, match=r"aime.*gsm8k, math") as refused:
        process_bench(solutions, said, tune_on="aime", seed=0)
    assert refused.value.field == "tune_on"
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
    assert one == two
    assert one.average_f1["measured"].low < one.average_f1["measured"].estimate < one.average_f1["measured"].high
    assert "NaN" not in json.dumps(asdict(one))
    perfect = process_bench(bench_set, score_solutions(exact(), bench_set), seed=0, reps=200)
    assert perfect.average_f1["measured"].estimate == 1.0
    assert 0.9 < perfect.average_f1["measured"].low < 1.0


def labelled(name, category, wrong, steps=3):
    return solution(name, steps, meta={"category": category, "error_steps": wrong})


def test_prm_bench_by_hand():
    """Counts over two categories: TP 3, FP 1, TN 1, FN 1: F1 3/4, F1 of wrong steps 1/2, PRMScore 5/8."""
    solutions = [labelled("a", "circular", [2]), labelled("b", "deception", [0]), labelled("c", "correct", [])]
    bench = prm_bench(solutions, scores([0.9, 0.2, 0.1], [0.9, 0.9, 0.9], [0.1, 0.1, 0.1]), seed=0, reps=100)
    assert bench.measured["f1"].estimate == pytest.approx(3 / 4)
    assert bench.measured["f1_wrong"].estimate == pytest.approx(1 / 2)
    assert bench.measured["prm_score"].estimate == pytest.approx(5 / 8)
    assert bench.categories["correct"]["accuracy_right"].estimate == 0
    assert bench.categories["correct"]["prm_score"].estimate is None
    assert bench.thresholds == {"validity": 0.5, "redundancy": None}


def test_solutions_that_are_all_right_have_f1_as_their_score():
    """The published rule: PRMScore of `multi_solutions` is F1; here TP 4, FN 2, so 8 / 10."""
    several = [labelled("a", "multi_solutions", []), labelled("b", "multi_solutions", [])]
    values = scores([0.9, 0.2, 0.9], [0.9, 0.9, 0.5], [0.1, 0.9, 0.9])
    bench = prm_bench([*several, labelled("c", "deception", [0])], values, seed=0, reps=100)
    found = bench.categories["multi_solutions"]
    assert found["prm_score"] == found["f1"]
    assert found["f1"].estimate == pytest.approx(0.8)
    assert found["f1_wrong"].estimate is None
    assert bench.categories["deception"]["prm_score"].estimate == 1
    # pooled: TP 6, FN 2, TN 1: F1 12/14, F1 of wrong steps 1/2
    assert bench.measured["prm_score"].estimate == pytest.approx((12 / 14 + 1 / 2) / 2)
    alone = prm_bench(several, values[:2], seed=0, reps=100)
    assert alone.measured["prm_score"].estimate == pytest.approx(0.8)


def test_it_agrees_with_scikit_learn_on_pooled_steps():
    rng = np.random.default_rng(0)
    wrong = [sorted(rng.choice(6, size=2, replace=False).tolist()) for _ in range(30)]
    values = rng.random((30, 6)).round(2)
    bench = prm_bench(
        [labelled(str(k), "deception", w, 6) for k, w in enumerate(wrong)], scores(*values), seed=0, reps=100
    )
    truth = np.array([[k not in w for k in range(6)] for w in wrong]).ravel()
    said = (values > 0.5).ravel()
    assert bench.measured["f1"].estimate == pytest.approx(f1_score(truth, said))
    assert bench.measured["f1_wrong"].estimate == pytest.approx(f1_score(~truth, ~said))


def test_redundancy_is_asked_where_the_category_is_about_it():
    solutions = [labelled("a", "redundency", [1]), labelled("b", "deception", [1])]
    valid, redundant = scores([0.9, 0.9, 0.9], [0.9, 0.1, 0.9]), scores([0.1, 0.2, 0.15], [0.9, 0.9, 0.9])
    with_it = prm_bench(solutions, valid, redundant, seed=0, reps=100)
    assert with_it.measured["prm_score"].estimate == 1.0
    assert with_it.thresholds == {"validity": 0.5, "redundancy": 0.15}
    assert prm_bench(solutions, valid, seed=0, reps=100).measured["prm_score"].estimate < 1


def test_a_step_at_the_threshold_is_not_above_it():
    bench = prm_bench([labelled("a", "deception", [0], 2)], scores([0.5, 0.51]), seed=0, reps=100)
    assert bench.measured["prm_score"].estimate == 1.0


def test_prm_bench_failures_are_counted_and_given_both_ways():
    solutions = [labelled("a", "circular", [1]), labelled("b", "circular", [1])]
    bench = prm_bench(solutions, scores([0.9, 0.1, 0.9], "late"), seed=0, reps=100)
    assert bench.failures == {"late": 1}
    assert bench.measured["prm_score"].estimate == 1
    assert bench.measured["prm_score"].n_undefined == 1
    assert bench.failures_wrong["accuracy_right"].estimate == 0.5
    assert bench.failures_wrong["accuracy_wrong"].estimate == 0.5
    assert "NaN" not in json.dumps(asdict(bench))


def test_rows_that_are_no_prm_bench_are_refused():
    with pytest.raises(DataError, match="category"):
        prm_bench([solution("a", 2, -1)], scores([1, 1]), seed=0)
    with pytest.raises(DataError, match="other than correct") as refused:
        prm_bench([labelled("a", "correct", [])], scores([1, 1, 1]), seed=0)
    assert refused.value.field == "category"


def test_labels_and_classification_are_read_too():
    one = solution("a", 2, labels=(1.0, 0.0), meta={"classification": "deception"})
    assert prm_bench([one], scores([0.9, 0.1]), seed=0, reps=100).measured["prm_score"].estimate == 1


def test_what_is_known_of_steps():
    assert step_labels(solution("a", 4, 1)) == [True, False, None, None]
    assert step_labels(solution("a", 2, -1)) == [True, True]
    assert step_labels(solution("a", 2)) == [None, None]
    assert step_labels(solution("a", 3, labels=(0.9, None, 0.2))) == [True, None, False]
    assert step_labels(solution("a", 3, meta={"error_steps": [0, 2]})) == [False, True, False]
    assert true_first_error(solution("a", 2, labels=(1.0, 0.0))) == 1


def test_first_errors_by_hand():
    solutions = [solution(str(k), 3, 1) for k in range(5)] + [solution(str(k), 3, -1) for k in range(5, 8)]
    solutions.append(solution("x", 3))
    low = [0.1, 0.9, 0.9], [0.9, 0.1, 0.9], [0.9, 0.9, 0.1], [0.9, 0.9, 0.9]
    said = scores(*low, "late", low[3], low[0], "late", low[0])
    found = first_errors(solutions, said, 0.5)
    counts = {kind: {what: one["count"] for what, one in found[kind].items()} for kind in ("erroneous", "correct")}
    assert counts["erroneous"] == {"exact": 1, "early": 1, "late": 1, "missed": 1, "failed": 1}
    assert counts["correct"] == {"clean": 1, "false_alarm": 1, "failed": 1}
    assert found["unknown"] == 1
    share = found["erroneous"]["exact"]
    assert share["count"] == 1
    assert share["share"]["low"] < 0.2 < share["share"]["high"]


def test_figures_of_steps_agree_with_scikit_learn():
    bench = generated_bench([ChainSettings(steps=5)], 80, 0)
    said = score_solutions(noisy(0.3), bench)
    said[0] = scores("late")[0]
    table = step_table(bench, said)
    metrics = classification_metrics(table, threshold=None, probabilities=True, reps=100, seed=0)
    assert metrics["auroc"].estimate == pytest.approx(roc_auc_score(table.labels, table.scores))
    assert metrics["auroc"].n_undefined == len(bench[0].steps)
    assert metrics["brier"].estimate == pytest.approx(np.mean((table.scores - table.labels) ** 2))
    assert sum(one.n for one in table.reliability()) == len(table.labels)


def test_solutions_of_one_question_are_resampled_together():
    table = step_table(
        [solution("a", 2, -1, question="q"), solution("b", 2, -1, question="q"), solution("c", 2, -1)],
        scores([1, 1], [1, 1], [1, 1]),
    )
    assert table.groups.tolist() == [0, 0, 0, 0, 1, 1]


def test_no_reliability_of_what_is_no_probability():
    table = step_table([solution("a", 2, -1)], scores([-1.0, 3.0]))
    assert table.reliability() == []
    metrics = classification_metrics(table, threshold=None, probabilities=True, reps=100, seed=0)
    assert metrics["ece"].estimate is None
