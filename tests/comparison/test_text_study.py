"""A study of a language model from its supervised start to the report, in real processes."""

import json

import pytest
import yaml

from guerdon.comparison.study import plan_study, run_study
from guerdon.evaluation.suites.text_suite import attacks_that_fooled

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
        "max_steps": 150,
        "val_split": 0,
    },
    "policy": {"type": "text", "path": "${sft.save_dir}/model"},
    "algorithm": {"learning_rate": 1.0e-3},
    "label": {
        "save_dir": "${work_dir}/labels/${data.task.items}",
        "labeler": "exact",
        "mining": None,
        "num_samples": 48,
        "num_rollouts": 2,
        "solutions": {"min_steps": 1},
    },
    "train": {
        "judge": {
            "type": "stepwise",
            "save_dir": "${work_dir}/models/four/judge",
            "max_steps": 3,
            "batch_size": 8,
        },
    },
    "evaluate": {
        "aggregation": "min",
        "reps": 100,
        "generated": {"families": [{"family": "swap", "steps": 2, "items": 4}], "size": 12},
        "attacks": {"questions": 6},
    },
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
            "judged": {
                "label": "a trained judge of steps",
                "config": {
                    "reward": {
                        "use_reward_model": True,
                        "sources": {
                            "judge": {
                                "model": {"model_type": "text", "checkpoint_path": "${train.judge.save_dir}"},
                                "reward_mode": "per_step",
                                "shaping": "signed",
                            },
                        },
                    },
                },
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
    runs = {f"four.{arm}.seed0" for arm in ("outcome", "prime", "judged")}
    assert set(jobs) == {"four.sft", "four.label", "four.train.judge", "four.evaluate.judge", *runs}
    assert jobs["four.prime.seed0"].needs == jobs["four.outcome.seed0"].needs == ("four.sft",)
    assert plan.configs["four.prime.seed0"].data.task.items == 4  # what the task changes
    assert plan.configs["four.prime.seed0"].policy.path == str(tmp_path / "work" / "sft" / "4" / "model")
    assert plan.configs["four.outcome.seed0"].reward_model is None
    assert float(plan.jobs[0].cost) > 0


def test_a_judge_is_labelled_for_trained_and_attacked_before_it_pays(study):
    jobs = {job.name: job for job in plan_study(study, []).jobs}
    assert jobs["four.label"].needs == ("four.sft",)
    assert jobs["four.train.judge"].needs == ("four.sft", "four.label")
    assert jobs["four.evaluate.judge"].needs == ("four.train.judge",)
    assert jobs["four.judged.seed0"].needs == ("four.sft", "four.evaluate.judge")
    assert jobs["four.evaluate.judge"].arguments[2:] == ("--only", "judge")
    assert all(job.cost > 0 for job in jobs.values())


def test_what_a_judge_is_trained_on_decides_what_comes_before_it(study):
    """Data of its own needs no labelling; a second judge that starts from the first waits for it."""
    own = ["train.judge.data_path=elsewhere.jsonl"]
    jobs = {job.name: job for job in plan_study(study, own).jobs}
    assert jobs["four.train.judge"].needs == ("four.sft",)
    second = ["train.second.type=verdict", "train.second.save_dir=second", "train.second.path=${train.judge.save_dir}"]
    jobs = {job.name: job for job in plan_study(study, second).jobs}
    assert jobs["four.train.second"].needs == ("four.sft", "four.evaluate.judge", "four.label")
    hub = [
        "evaluate.models.hub=someone/prm",
        "compare.arms.judged.config.reward.sources.judge.model.checkpoint_path=someone/prm",
    ]
    jobs = {job.name: job for job in plan_study(study, hub).jobs}
    assert jobs["four.evaluate.hub"].needs == ()
    assert jobs["four.judged.seed0"].needs == ("four.sft", "four.evaluate.hub")


@pytest.mark.slow
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
    video = json.loads(next((run / "films").glob("*.json")).read_text())
    first = video["responses"][0]
    assert len(first["tokens"]) == len(first["rewards"]["prime"])
    assert (run / "policy" / "model.safetensors").is_file()
    assert (run / "reward_models" / "prime" / "model.safetensors").is_file()
    judged = tmp_path / "work" / "runs" / "four" / "judged" / "seed0"
    video = json.loads(next((judged / "films").glob("*.json")).read_text())
    assert all(row["judged"]["judge"]["values"] for row in video["responses"])
    card = tmp_path / "work" / "models" / "four" / "judge" / "method1_HE" / "evaluation.json"
    fooled = attacks_that_fooled(card.parent)
    warnings = json.loads((judged / "run.json").read_text()).get("warnings", [])
    assert len(warnings) == bool(fooled)
    assert all(f"reward judge: these attacks fooled its model: {', '.join(fooled)}" in w for w in warnings)
    assert "judge/method1_HE" in page
    assert "attack padded" in page
    assert "first error: " in page
