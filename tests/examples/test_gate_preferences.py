"""More rows of the gate's text table: pairs of graded quality, scripted judges, and a tiny cell from start to rows."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import yaml

from guerdon.comparison.study import plan_study, run_study
from guerdon.episodes.solutions import Solution
from guerdon.evaluation.gate.gate_table import gate_table, read_gate_table
from guerdon.settings.data import ChainSettings, GeneratedDataSettings
from guerdon.tasks.prompt_files import load_prompts
from guerdon.types import Episode

ROOT = Path(__file__).parents[2]
SCRIPT, STUDY = ROOT / "studies" / "gate_preferences.py", ROOT / "studies" / "gate_preferences.yaml"
study_of = runpy.run_path(str(SCRIPT))


def solution(i, correct, question=0):
    return Solution(f"s{i}", f"question {question}", (f"{i}+1;", "2;"), is_correct=correct)


def degraded(name, pairs, strength):
    change, _ = study_of["DEGRADED"][name]
    return change(pairs, strength, np.random.default_rng(0))


PAIRS = [(solution(2 * k, True, k), solution(2 * k + 1, False, k)) for k in range(1000)]


def test_a_pair_is_a_right_and_a_wrong_solution_to_the_same_question_each_used_once():
    solutions = [solution(0, True), solution(1, False), solution(2, True), solution(3, None), solution(4, False, 1)]
    assert study_of["pairs_of"](solutions) == [(solutions[0], solutions[1])]


def test_degraded_pairs():
    assert degraded("pairs_exact", PAIRS, 0.0) == PAIRS
    noisy = degraded("pairs_noise", PAIRS, 0.3)
    assert sum(better.is_correct is False for better, _ in noisy) == pytest.approx(300, abs=50)
    assert {frozenset((a.id, b.id)) for a, b in noisy} == {frozenset((a.id, b.id)) for a, b in PAIRS}
    assert len(degraded("pairs_few", PAIRS, 0.98)) == 20
    (better, worse) = degraded("pairs_length", PAIRS[:1], 1.0)[0]
    assert (better.steps, worse) == (("1+1;", "2;", "1+1;", "1+1;"), PAIRS[0][0])


@pytest.mark.parametrize("error", [0.0, 0.35, 1.0])
def test_a_scripted_judge_is_wrong_as_often_as_it_says_and_about_the_same_responses(error):
    judge = study_of["ScriptedJudge"](error)
    told = [Episode(f"e{k}", "q", texts=(f"{k};", "4;"), outcome=k % 2 == 0) for k in range(2000)]
    values = [one.total for one in judge.score(told)]
    wrong = [value != (k % 2 == 0) for k, value in enumerate(values)]
    assert np.mean(wrong) == pytest.approx(error, abs=0.04)
    assert values == [one.total for one in judge.score(told)]


def test_a_scripted_judge_knows_the_answers_of_generated_problems_as_a_run_asks_about_them():
    judge = study_of["ScriptedJudge"](0.0)
    data = GeneratedDataSettings(task=ChainSettings(steps=3, ops="+-"), train_size=20, val_size=2)
    for prompt in load_prompts(data)[0]:
        right = tuple(f"{line};" for line in prompt.solution.rstrip(";").split(";"))
        wrong = (*right[:-1], f"{right[-1][:-2]}{(int(right[-1][-2]) + 1) % 10};")
        meta = {**prompt.extra_info, "ground_truth": prompt.ground_truth}  # as rewards/text_sources.py gives it
        told = [Episode("e", prompt.question, texts=texts, meta=meta) for texts in (right, wrong)]
        assert [one.total for one in judge.score(told)] == [1.0, 0.0]
    assert judge.score([Episode("e", "q", texts=("4",))])[0].failure.reason == "no_truth"


def curve(*right):
    return {
        "best_of_n": {"n": [1, 2, 4], "failures_wrong": {"bon_min": {"accuracy": [{"estimate": r} for r in right]}}}
    }


def test_the_turning_point_is_where_most_answers_are_right():
    turning = study_of["turning"]
    assert turning(curve(0.5, 0.6, 0.4)) == pytest.approx({"bon_turn": np.sqrt(np.log(2) - 0.5), "bon_gain": -0.1})
    assert turning(curve(0.5, 0.4, 0.3))["bon_turn"] == 0.0
    assert turning(curve(0.1, 0.2, 0.3)) == pytest.approx({"bon_turn": np.sqrt(np.log(4) - 0.75), "bon_gain": 0.2})


def test_forecasts_of_a_feature_that_is_the_gain_and_of_one_that_is_noise():
    rng = np.random.default_rng(0)
    rows = []
    for k, gain in enumerate(rng.uniform(-0.4, 0.4, 60)):
        row = {"model": f"m{k}", "kind": "text", "task": "abc"[k % 3], "family": "f", "baseline": [0.5]}
        features = {"auroc": rng.uniform(), "bon_turn": gain, "bon_gain": rng.uniform()}
        rows.append({**row, "success": [0.5 + gain], **{f"feature.{n}": v for n, v in features.items()}})
    said = study_of["forecasts"](gate_table([(f"row {k}", row) for k, row in enumerate(rows)]))
    assert any(line.startswith("bon_turn: correlation with the change +1.00") for line in said)
    (added,) = (line.split("added to auroc ")[1] for line in said if line.startswith("bon_turn"))
    assert float(added.split()[0]) > 0.4
    assert len(said) == 3


def test_every_model_of_the_study_is_the_only_reward_of_an_arm():
    plan = plan_study(STUDY, [])
    tasks, arms = plan.study.compare.tasks, set(plan.study.compare.arms) - {"verifier"}
    assert len(tasks) * len(arms) >= 20
    assert set(plan.study.train) == {arm for arm in arms if arm.startswith("pairs")} == set(study_of["DEGRADED"])
    for task in tasks:
        for arm in arms:
            run = plan.configs[f"{task}.{arm}.seed0"]
            assert run.reward.combine_mode == "replace"
            (source,) = run.reward.sources.values()
            if arm in plan.study.train:
                assert source.model.checkpoint == f"runs/gate_preferences/models/{task}/{arm}"
            else:
                assert f"judge_{100 * source.model.params['error']:.0f}" == arm


@pytest.fixture
def cell(tmp_path):
    """One task, three arms and one seed of the study, at a size of seconds."""
    study = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    study["work_dir"] = str(tmp_path / "work")
    study["data"] |= {"train_size": 40, "val_size": 4, "max_response_length": 16, "train_batch_size": 2}
    study["sft"] |= {"max_steps": 100, "learning_rate": 1.0e-2}
    study["sft"]["policy"]["tiny"] = {"hidden_size": 32, "layers": 1, "intermediate": 32}
    study["label"] |= {"num_samples": 40}
    study["label"]["solutions"]["min_steps"] = 1
    study["train"] = {"pairs_exact": study["train"]["pairs_exact"] | {"max_steps": 4, "save_steps": 4, "batch_size": 4}}
    study["evaluate"] |= {"reps": 100}
    study["runner"] |= {"total_steps": 16, "eval_every": 16, "eval_episodes": 4}
    compare = study["compare"]
    arms = {name: compare["arms"][name] for name in ("verifier", "pairs_exact", "judge_10")}
    chain = {"data": {"task": {"family": "chain", "steps": 2, "ops": "+-"}}}
    study["compare"] |= {"tasks": {"chain": chain}, "seeds": [0], "arms": arms}
    file = tmp_path / "gate_preferences.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


@pytest.mark.slow
def test_a_cell_from_the_start_to_rows_of_a_model_and_a_judge(cell, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(study_of["prepare"].__globals__, "SAMPLES", (4, 4))
    monkeypatch.syspath_prepend(str(ROOT))
    study_of["main"](["prepare", "--study", str(cell)])
    pairs = (tmp_path / "work" / "models" / "chain" / "labels" / "pairs_exact.jsonl").read_text().splitlines()
    assert json.loads(pairs[0]).keys() == {"prompt", "chosen", "rejected"}
    run_study(plan_study(cell, [], parallel=1))
    capsys.readouterr()
    study_of["main"](["rows", "--study", str(cell)])
    assert "2 reward models in" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "work" / "gate.jsonl").read_text().splitlines()]
    assert {row["family"] for row in rows} == {"pairs_exact", "judge_10"}
    for row in rows:
        assert row["feature.row_auroc"] is None
        assert 0 <= row["feature.auroc"] <= 1
        assert row["feature.bon_turn"] >= 0
    assert len(read_gate_table(tmp_path / "work" / "gate.jsonl")) == 2
