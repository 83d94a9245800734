import json

import numpy as np
import pytest
from sklearn.metrics import f1_score
from text_models import scores, solution

from guerdon.errors import DataError
from guerdon.evaluate.prm_bench import prm_bench


def item(name, category, wrong, steps=3):
    return solution(name, steps, meta={"category": category, "error_steps": wrong})


def test_by_hand():
    """Counts over two categories: TP 3, FP 1, TN 1, FN 1: F1 3/4, F1 of wrong steps 1/2, PRMScore 5/8."""
    solutions = [item("a", "circular", [2]), item("b", "deception", [0]), item("c", "correct", [])]
    bench = prm_bench(solutions, scores([0.9, 0.2, 0.1], [0.9, 0.9, 0.9], [0.1, 0.1, 0.1]), seed=0, reps=100)
    assert bench.measured["f1"].estimate == pytest.approx(3 / 4)
    assert bench.measured["f1_wrong"].estimate == pytest.approx(1 / 2)
    assert bench.measured["prm_score"].estimate == pytest.approx(5 / 8)
    assert bench.categories["correct"]["accuracy_right"].estimate == 0
    assert bench.categories["correct"]["prm_score"].estimate is None
    assert bench.thresholds == (0.5, None)


def test_it_agrees_with_scikit_learn_on_pooled_steps():
    rng = np.random.default_rng(0)
    wrong = [sorted(rng.choice(6, size=2, replace=False).tolist()) for _ in range(30)]
    values = rng.random((30, 6)).round(2)
    bench = prm_bench([item(str(k), "deception", w, 6) for k, w in enumerate(wrong)], scores(*values), seed=0, reps=100)
    truth = np.array([[k not in w for k in range(6)] for w in wrong]).ravel()
    said = (values > 0.5).ravel()
    assert bench.measured["f1"].estimate == pytest.approx(f1_score(truth, said))
    assert bench.measured["f1_wrong"].estimate == pytest.approx(f1_score(~truth, ~said))


def test_redundancy_is_asked_where_the_category_is_about_it():
    solutions = [item("a", "redundency", [1]), item("b", "deception", [1])]
    valid, redundant = scores([0.9, 0.9, 0.9], [0.9, 0.1, 0.9]), scores([0.1, 0.2, 0.15], [0.9, 0.9, 0.9])
    with_it = prm_bench(solutions, valid, redundant, seed=0, reps=100)
    assert with_it.measured["prm_score"].estimate == 1.0
    assert with_it.thresholds == (0.5, 0.15)
    assert prm_bench(solutions, valid, seed=0, reps=100).measured["prm_score"].estimate < 1


def test_a_step_at_the_threshold_is_not_above_it():
    bench = prm_bench([item("a", "deception", [0], 2)], scores([0.5, 0.51]), seed=0, reps=100)
    assert bench.measured["prm_score"].estimate == 1.0


def test_failures_are_counted_and_given_both_ways():
    solutions = [item("a", "circular", [1]), item("b", "circular", [1])]
    bench = prm_bench(solutions, scores([0.9, 0.1, 0.9], "late"), seed=0, reps=100)
    assert bench.failures == {"late": 1}
    assert bench.measured["prm_score"].estimate == 1
    assert bench.measured["prm_score"].n_undefined == 1
    assert bench.failures_wrong["accuracy_right"].estimate == 0.5
    assert bench.failures_wrong["accuracy_wrong"].estimate == 0.5
    assert "NaN" not in json.dumps(bench.to_dict())


def test_rows_that_are_no_prm_bench_are_refused():
    with pytest.raises(DataError, match="category"):
        prm_bench([solution("a", 2, -1)], scores([1, 1]), seed=0)
    with pytest.raises(DataError, match="other than correct"):
        prm_bench([item("a", "correct", [])], scores([1, 1, 1]), seed=0)


def test_labels_and_classification_are_read_too():
    one = solution("a", 2, labels=(1.0, 0.0), meta={"classification": "deception"})
    assert prm_bench([one], scores([0.9, 0.1]), seed=0, reps=100).measured["prm_score"].estimate == 1
