"""Rows of the gate's table from a study's folder."""

import json
import shutil

import pytest
import yaml
from synthetic_study import write_study

from guerdon.comparison.report import write_report
from guerdon.comparison.report_cards import gate_rows
from guerdon.comparison.results import read_study
from guerdon.evaluation.gate.gate_table import read_gate_table

FINALS = {"A": (0.2, 0.4, 0.3), "B": (0.5, 0.3, 0.6), "C": (0.1, 0.1, 0.1)}
FEATURES = {"auroc": 0.9, "voc": None, "ece": 0.1}


def finals(task, arm, seed):
    return None if (task, arm, seed) == ("t", "B", 1) else FINALS[arm][seed] + (0.1 if task == "u" else 0.0)


@pytest.fixture
def study(tmp_path):
    """Arm B uses the model of the study, arm C two models, the baseline A none."""
    folder = write_study(tmp_path / "study", finals, tasks=("t", "u"), videos=False)
    for path in folder.glob("runs/*/*/seed*/config.yaml"):
        task, arm = path.parts[-4:-2]
        one = {"model": {"checkpoint_path": f"work/models/{task}/resnet"}}
        sources = {"A": {}, "B": {"resnet": one}, "C": {"resnet": one, "other": one}}[arm]
        path.write_text(yaml.safe_dump({"reward": {"use_reward_model": bool(sources), "sources": sources}}))
    for task in ("t", "u"):
        card = folder / "models" / task / "resnet" / "evaluation.json"
        card.write_text(json.dumps({"forecast": {"features": FEATURES}}))
    return folder


def test_a_row_for_each_arm_with_one_evaluated_model(study):
    first, second = gate_rows(read_study(study))
    assert first == {
        "model": "Which reward teaches a robot?/t/B", "kind": "robot", "task": "t", "family": "B", "seeds": [0, 1, 2],
        "baseline": [0.2, None, 0.3], "success": [0.5, None, 0.6],
        "exploited": [False, None, False],
        "feature.auroc": 0.9, "feature.voc": None, "feature.ece": 0.1,
    }  # fmt: skip
    assert (second["task"], second["baseline"]) == ("u", pytest.approx([0.3, 0.5, 0.4]))


def test_the_file_beside_the_report_is_a_table(study):
    write_report(study)
    table = read_gate_table(study / "gate.jsonl")
    assert table.tasks_N.tolist() == ["t", "u"]
    assert table.gains_N == pytest.approx([0.3, (0.3 - 0.1 + 0.3) / 3])
    assert table.names == ("auroc", "ece", "voc")
    assert table.exploited_N.tolist() == [0, 0]


def test_a_run_with_a_hacking_alarm_was_exploited(study):
    log = study / "runs/u/B/seed2/metrics.jsonl"
    log.write_text(log.read_text().replace('"hacking_alarm": 0', '"hacking_alarm": 1', 1))
    assert gate_rows(read_study(study))[1]["exploited"] == [False, False, True]
    write_report(study)
    assert read_gate_table(study / "gate.jsonl").exploited_N == pytest.approx([0, 1 / 3])


def test_no_row_without_a_card_or_where_the_baseline_has_a_model(study):
    shutil.rmtree(study / "models" / "t")
    assert [row["task"] for row in gate_rows(read_study(study))] == ["u"]
    for path in study.glob("runs/u/A/seed*/config.yaml"):
        model = {"model": {"model_type": "constant"}}
        path.write_text(yaml.safe_dump({"reward": {"use_reward_model": True, "sources": {"c": model}}}))
    assert gate_rows(read_study(study)) == []
    write_report(study)
    assert not (study / "gate.jsonl").exists()


def test_no_row_where_no_run_of_the_arm_has_a_success(study):
    for seed in range(3):
        (study / f"runs/u/B/seed{seed}/COMPLETE").unlink()
    assert [row["task"] for row in gate_rows(read_study(study))] == ["t"]
