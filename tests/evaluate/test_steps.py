import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from text_models import noisy, scores, solution

from guerdon.evaluate.aggregate import score_solutions
from guerdon.evaluate.generated_bench import generated_bench
from guerdon.evaluate.steps import calibration, first_errors, step_labels, step_metrics, step_table, true_first_error
from guerdon.settings.data import ChainSettings


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
    assert found.erroneous == {"exact": 1, "early": 1, "late": 1, "missed": 1, "failed": 1}
    assert found.correct == {"clean": 1, "false_alarm": 1, "failed": 1}
    assert found.unknown == 1
    share = found.to_dict()["erroneous"]["exact"]
    assert share["count"] == 1
    assert share["share"]["low"] < 0.2 < share["share"]["high"]


def test_figures_of_steps_agree_with_scikit_learn():
    bench = generated_bench([ChainSettings(steps=5)], 80, 0)
    said = score_solutions(noisy(0.3), bench)
    said[0] = scores("late")[0]
    table = step_table(bench, said)
    metrics = step_metrics(table, reps=100, seed=0)
    assert metrics["auroc"].interval.estimate == pytest.approx(roc_auc_score(table.labels, table.scores))
    assert metrics["auroc"].interval.n_undefined == len(bench[0].steps)
    assert metrics["brier"].interval.estimate == pytest.approx(np.mean((table.scores - table.labels) ** 2))
    assert sum(one.n for one in calibration(table)) == len(table.labels)


def test_solutions_of_one_question_are_resampled_together():
    table = step_table(
        [solution("a", 2, -1, question="q"), solution("b", 2, -1, question="q"), solution("c", 2, -1)],
        scores([1, 1], [1, 1], [1, 1]),
    )
    assert table.groups.tolist() == [0, 0, 0, 0, 1, 1]


def test_no_reliability_of_what_is_no_probability():
    table = step_table([solution("a", 2, -1)], scores([-1.0, 3.0]))
    assert calibration(table) == []
    assert step_metrics(table, reps=100, seed=0)["ece"].interval.estimate is None
