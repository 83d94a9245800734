"""A study of a language model from its supervised start to the report, in real processes."""

import json

import pytest
import yaml

from guerdon.compare.study import plan_study, run_study

STUDY = {
    "name": "Letters",
    "runner": {"total_steps": 16, "eval_every": 8, "eval_episodes": 8, "checkpoint_every": 16, "keep_checkpoints": 0},
    "data": {
        "task": {"family": "swap", "steps": 1, "items": 3},
        "train_size": 64,
        "val_size": 8,
        "max_response_length": 12,
        "train_batch_size": 2,
        "n_samples": 4,
        "filter_accuracy": False,
        "filter_truncated": False,
    },
    "sft": {
        "save_dir": "${work_dir}/sft/${data.task.items}",
        "policy": {"tiny": {"hidden_size": 16, "heads": 2, "layers": 1, "intermediate": 16}},
        "max_steps": 3,
        "val_split": 0,
    },
    "policy": {"type": "text", "path": "${sft.save_dir}/model"},
    "algorithm": {"learning_rate": 1.0e-3},
    "compare": {
        "baseline": "outcome",
        "seeds": [0],
        "tasks": {"four": {"data": {"task": {"family": "swap", "steps": 1, "items": 4}}}},
        "arms": {
            "outcome": {"label": "outcome alone"},
            "prime": {
                "label": "PRIME",
                "config": {"reward_model": {"mini_batch_size": 8, "micro_batch_size": 8}},
            },
        },
    },
}


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({**STUDY, "work_dir": str(tmp_path / "work")}))
    return file


def test_every_run_waits_for_the_supervised_start_of_its_task(study, tmp_path):
    plan = plan_study(study, [])
    jobs = {job.name: job for job in plan.jobs}
    assert set(jobs) == {"four.sft", "four.outcome.seed0", "four.prime.seed0"}
    assert jobs["four.prime.seed0"].needs == jobs["four.outcome.seed0"].needs == ("four.sft",)
    assert plan.configs["four.prime.seed0"].data.task.items == 4  # what the task changes
    assert plan.configs["four.prime.seed0"].policy.path == str(tmp_path / "work" / "sft" / "4" / "model")
    assert plan.configs["four.outcome.seed0"].reward_model is None
    assert float(plan.jobs[0].cost) > 0


def test_from_the_supervised_start_to_the_report(study, tmp_path):
    report, table = run_study(plan_study(study, [], parallel=1))
    assert "| four |" in table
    page = report.read_text(encoding="utf-8")
    assert "responses" in page
    assert "environment steps" not in page
    run = tmp_path / "work" / "runs" / "four" / "prime" / "seed0"
    done = json.loads((run / "COMPLETE").read_text())
    assert (done["unit"], done["step"]) == ("responses", 16)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["kind"] == "train"]
    assert all("reward_model/prime/prm_loss" in row for row in train)
    film = json.loads(next((run / "films").glob("*.json")).read_text())
    first = film["responses"][0]
    assert len(first["tokens"]) == len(first["rewards"]["prime"])
    assert (run / "policy" / "model.safetensors").is_file()
    assert (run / "reward_models" / "prime" / "model.safetensors").is_file()
