"""Over-optimisation in a report: the truth of runs over their measured KL, and what a study without a turn says."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from studies.preference_table import paired, table
from synthetic_study import write_study

from guerdon.comparison.report import write_report
from guerdon.comparison.report_gold import arm_curve, gold_panels
from guerdon.comparison.results import read_study
from guerdon.evaluation.benchmarks.over_optimisation import best_of_n_gold

DISTANCES = np.linspace(0, 4, 20)  # sqrt(KL) at each of a run's 20 updates


def study_of_truth(folder, truth, *, length=8.0):
    """Runs whose truth is a function of the arm and of sqrt(KL), scaled by the seed."""
    write_study(folder, lambda task, arm, seed: 0.5, tasks=["letters"], videos=False, cards=False)
    for path in (folder / "runs").glob("*/*/*/metrics.jsonl"):
        arm, scale = path.parent.parent.name, 1 + 0.05 * int(path.parent.name[-1])
        rows, updates = [json.loads(line) for line in path.read_text().splitlines()], iter(DISTANCES)
        for row in rows:
            row.pop("success")
            row |= {"hacking_alarm": None, "success_known": 0, "truth": 0.0}
            if row["kind"] == "train":
                d = float(next(updates))
                row |= {"truth": scale * truth[arm](d), "kl": d * d / length, "length": length}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


TURNS, RISES = (lambda d: 1 + d * (4 - d)), (lambda d: 1 + d)


def test_the_turning_point_of_an_arm(tmp_path):
    study = read_study(study_of_truth(tmp_path / "study", {"A": TURNS, "B": RISES, "C": TURNS}))
    found = arm_curve(study.select(arm="A"))
    assert found.sqrt_kl == pytest.approx(DISTANCES), "the KL of a token times the tokens of a response"
    assert found.start.estimate == pytest.approx(1.05)
    top = max(DISTANCES * (4 - DISTANCES))
    assert found.turn.place.estimate == pytest.approx(2, abs=0.11)
    assert found.turn.rise.estimate == pytest.approx(1.05 * top)
    assert found.turn.fall.estimate == pytest.approx(-1.05 * top)
    (panel,) = gold_panels(study)
    assert panel.conclusion == "Under A the truth first rises and then falls: over-optimisation."
    page = write_report(study.path).read_text()
    assert panel.conclusion in page
    assert "A: highest at sqrt(KL) 1.89" in page


def test_the_table_of_results_pairs_arms_by_seed(tmp_path):
    """B turns at the end, 4.0 - 1.89 later than A; its highest truth is 5, A's 1 + 1.89 * 2.11, times 1.05."""
    folder = study_of_truth(tmp_path / "study", {"A": TURNS, "B": RISES, "C": TURNS})
    lines = table(folder).splitlines()
    assert lines[2].startswith("| A | 3 | 1.05 ")
    found = paired(read_study(folder), "B")
    assert found["turn"].estimate == pytest.approx(4 - DISTANCES[9])
    assert found["highest truth"].estimate == pytest.approx(1.05 * (RISES(4) - TURNS(DISTANCES[9])))
    assert found["final truth of greedy answers"].estimate == 0
    assert "C minus A, turn: 0.00" in lines


def test_a_study_without_a_turn_says_that_it_shows_nothing(tmp_path):
    study = read_study(study_of_truth(tmp_path / "study", {"A": RISES, "B": TURNS, "C": TURNS}))
    (panel,) = gold_panels(study)
    assert panel.conclusion.startswith("This study shows nothing about over-optimisation on letters")
    assert panel.conclusion in write_report(study.path).read_text()


def test_best_of_n_of_a_card_stands_beside_the_runs(tmp_path):
    folder = study_of_truth(tmp_path / "study", {"A": TURNS, "B": RISES, "C": TURNS})
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 16))
    best = best_of_n_gold(list(values), list(values - values**2), [1, 2, 4, 8, 16])
    card = {
        "model": {"name": "rm"},
        "aggregation": "last",
        "over_optimisation": {k: asdict(v) for k, v in best.items()},
    }
    path = folder / "models" / "letters" / "rm"
    path.mkdir(parents=True)
    (path / "evaluation.json").write_text(json.dumps(card))
    (panel,) = gold_panels(read_study(folder))
    line = next(line for line in panel.lines if line.startswith("best of n: rm"))
    assert f"{best['gold'].turn.rise.estimate:+.2f}" in line
    assert "best of n: rm" in panel.svg
    assert "gold reward, best of most samples minus one sample" in write_report(folder).read_text()


def test_a_study_without_a_truth_or_a_kl_has_no_such_section(tmp_path):
    write_study(tmp_path / "plain", lambda task, arm, seed: 0.5, videos=False)
    assert gold_panels(read_study(tmp_path / "plain")) == []
    assert "Over-optimisation" not in write_report(tmp_path / "plain").read_text()
    study = study_of_truth(tmp_path / "study", {"A": TURNS, "B": RISES, "C": TURNS})
    for path in (study / "runs").glob("*/*/*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "kl"}) + "\n" for row in rows))
    assert gold_panels(read_study(study)) == []
