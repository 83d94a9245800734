"""The budget of a judge in a study: shared out among its runs, or its labellings, whatever was spent before."""

import json

import pytest
import yaml

from guerdon.comparison.study import _write_configs, plan_study
from guerdon.config.loading import load
from guerdon.errors import ConfigError
from guerdon.settings.study import Study


def source(**given):
    judge = {"api": "openai", "model": "m", "usd_per_million_in": 1.0, "usd_per_million_out": 1.0}
    return {"model": {"model_type": "judge", "mode": "listwise", "max_usd": 12.0, "judge": judge, **given},
            "shaping": "raw"}  # fmt: skip


def study_file(folder, seeds=(0, 1), **sources):
    judged = {"reward": {"use_reward_model": True, "sources": sources or {"j": source()}}}
    study = {
        "work_dir": str(folder / "out"),
        "policy": {"type": "text", "tiny": {}},
        "data": {"task": {"family": "chain", "steps": 2}, "train_size": 24, "val_size": 4, "n_samples": 4},
        "compare": {"baseline": "A", "seeds": list(seeds), "arms": {
            "A": {"label": "outcome"}, **{name: {"label": "judged", "config": judged} for name in "BC"},
        }},
    }  # fmt: skip
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def budgets(plan, name="j"):
    return {
        job.removeprefix("chain."): config.reward.sources[name].model.max_usd
        for job, config in plan.configs.items()
        if name in config.reward.sources
    }


def spend(folder, run, *rows):
    path = folder / "out" / "runs" / "chain" / run / "judge" / "j" / "calls.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_budget_is_shared_out_among_the_runs_that_are_judged(tmp_path):
    plan = plan_study(study_file(tmp_path), [])
    assert budgets(plan) == {"B.seed0": 3.0, "B.seed1": 3.0, "C.seed0": 3.0, "C.seed1": 3.0}
    assert plan.study.compare.arms["B"].config["reward"]["sources"]["j"]["model"]["max_usd"] == 12.0
    two = plan_study(study_file(tmp_path, j=source(), other=source(max_usd=4.0), free=source(max_usd=None)), [])
    assert set(budgets(two).values()) == {3.0}
    assert set(budgets(two, "other").values()) == {1.0}
    assert set(budgets(two, "free").values()) == {None}
    kept = plan_study(study_file(tmp_path, j=source(cache_dir=str(tmp_path / "shared"))), [])
    assert set(budgets(kept).values()) == {12.0}, "the folder has one budget"


def test_what_was_spent_counts_and_what_is_left_is_shared_out_again(tmp_path):
    path = study_file(tmp_path)
    _write_configs(first := plan_study(path, []))
    spend(
        tmp_path, "B/seed0",
        {"begun": 0, "role": "judge", "usd_at_most": 2.0}, {"ended": 0, "role": "judge", "failure": "", "usd": 0.5},
        {"begun": 1, "role": "judge", "usd_at_most": 0.5},
    )  # fmt: skip  # a call that was cut off counts with its most
    spend(tmp_path, "C/seed1", {"begun": 0, "role": "judge", "usd_at_most": 1.0},
          {"ended": 0, "role": "judge", "failure": "", "usd": 2.0, "usd_at_most": 0.0})  # fmt: skip
    (tmp_path / "out" / "jobs" / "chain.B.seed0.done").write_text("")
    again = budgets(plan_study(path, []))
    going = {name: usd for name, usd in again.items() if name != "B.seed0"}
    assert going == pytest.approx({"B.seed1": 3.0, "C.seed0": 3.0, "C.seed1": 5.0})
    assert sum(going.values()) + 1.0 == pytest.approx(12.0), "all of them together never cost more"
    more = plan_study(study_file(tmp_path, seeds=(0, 1, 2, 3)), [])  # seeds were added
    spent = {"C.seed1": 2.0}
    assert {name: usd - spent.get(name, 0) for name, usd in budgets(more).items() if name != "B.seed0"} == (
        pytest.approx(dict.fromkeys(budgets(more).keys() - {"B.seed0"}, 9.0 / 7))
    )
    _write_configs(more)  # a finished job with another budget is the same job
    stored = load(Study, tmp_path / "out" / "jobs" / "chain.C.seed1.yaml")
    assert stored.reward.sources["j"].model.max_usd == pytest.approx(2.0 + 9.0 / 7)
    changed = study_file(tmp_path, j=source(votes=2, judge={**source()["model"]["judge"], "temperature": 1.0}))
    with pytest.raises(ConfigError, match="configured differently"):
        _write_configs(plan_study(changed, []))
    assert first.folder == more.folder


def test_where_all_is_spent_no_run_gets_more(tmp_path):
    path = study_file(tmp_path, seeds=(0,))
    spend(tmp_path, "B/seed0", {"ended": 0, "role": "judge", "failure": "", "usd": 12.5})
    assert max(budgets(plan_study(path, [])).values()) <= 12.5 + 1e-6
    assert budgets(plan_study(path, []))["C.seed0"] <= 1e-6


def labelled_file(folder, save_dir, tasks=("chain", "swap", "register")):
    judge = {"api": "openai", "model": "m", "usd_per_million_in": 1.0, "usd_per_million_out": 1.0}
    study = {
        "work_dir": str(folder / "out"),
        "policy": {"type": "text", "tiny": {}},
        "data": {"task": {"family": "chain", "steps": 2}, "train_size": 24, "val_size": 4},
        "label": {"save_dir": save_dir, "max_usd": 9.0, "judge": judge},
        "train": {"steps": {"type": "stepwise", "save_dir": str(folder / "out" / "rm" / "${data.task.family}")}},
        "compare": {
            "baseline": "A", "seeds": [0], "arms": {"A": {"label": "outcome"}},
            "tasks": {task: {"data": {"task": {"family": task, "steps": 2}}} for task in tasks},
        },
    }  # fmt: skip
    path = folder / "labelled.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def label_budgets(plan):
    return {name.removesuffix(".label"): one.label.max_usd for name, one in plan.configs.items() if ".label" in name}


def test_the_budget_of_labels_is_shared_out_among_the_tasks(tmp_path):
    path = labelled_file(tmp_path, str(tmp_path / "out" / "labels" / "${data.task.family}"))
    _write_configs(plan := plan_study(path, []))
    assert label_budgets(plan) == {"chain": 3.0, "swap": 3.0, "register": 3.0}
    assert plan.study.label.max_usd == 9.0
    assert {one.label.max_usd for name, one in plan.configs.items() if "label" not in name} == {9.0}
    calls = tmp_path / "out" / "labels" / "swap" / "cache" / "calls.jsonl"
    calls.parent.mkdir(parents=True)
    calls.write_text(json.dumps({"begun": 0, "role": "judge", "usd_at_most": 1.0}) + "\n")
    (tmp_path / "out" / "jobs" / "swap.label.done").write_text("")
    assert label_budgets(plan_study(path, [])) == {"chain": 4.0, "swap": 9.0, "register": 4.0}  # what is done stays


def test_tasks_that_label_into_one_folder_have_its_budget(tmp_path):
    path = labelled_file(tmp_path, str(tmp_path / "out" / "labels"))
    assert set(label_budgets(plan_study(path, [])).values()) == {9.0}
