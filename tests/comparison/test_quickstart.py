"""The quickstart of a language model: a reward that helps, one that is gamed, and the alarm that tells them apart."""

import pytest

from guerdon.comparison.results import comparison_rows, number, read_study
from guerdon.comparison.study import plan_study, quickstart_file, run_study

SHORT = [
    "data.train_size=64", "data.val_size=4", "data.train_batch_size=2", "sft.max_steps=2", "label.num_samples=24",
    "train.judge.max_steps=2", "train.weak.max_steps=1", "evaluate.best_of_n={questions: 2, n: 2}", "compare.seeds=[0]",
    "runner.total_steps=16", "runner.eval_every=8", "runner.eval_episodes=4",
    "compare.arms.C.config.runner.total_steps=16",
    *(f"compare.arms.{arm}.config.reward.max_failure_rate=1" for arm in "BC"),  # of a policy that may write nothing yet
]  # fmt: skip


@pytest.fixture
def quickstart(tmp_path):
    def run(*changes):
        report, table = run_study(plan_study(quickstart_file(text=True), [f"work_dir={tmp_path}", *changes]))
        assert report.is_file()
        assert all(f"| {arm}: " in table for arm in "ABC")
        return read_study(tmp_path)

    return run


def alarms(study, arm):
    runs = [[number(row, "hacking_alarm") for row in run.trains] for run in study.select(arm=arm, status="complete")]
    assert len(runs) == len(study.seeds)
    return runs


def test_a_short_one_runs_every_stage(quickstart, capfd):
    study = quickstart(*SHORT)
    assert [run.status for run in study.runs] == ["complete"] * 3
    assert {card.name.partition("/")[0] for card in study.cards} == {"judge", "weak"}
    for arm, source in (("B", "judge"), ("C", "weak")):
        (run,) = study.select(arm=arm)
        assert all(number(row, f"return/{source}") is not None for row in run.trains)
    started = capfd.readouterr().err
    assert started.startswith("3 train, 1 label, 2 evaluate, 3 run: about ")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_reward_helps_and_the_other_is_caught(quickstart):
    study = quickstart()
    conclusions = {row.arm: row.conclusion for row in comparison_rows(study)}
    assert conclusions["B"] == "better"
    assert conclusions["C"] == "worse"
    assert sum(not any(run) for run in alarms(study, "B")) > len(study.seeds) / 2
    assert sum(run[-1] == 1 for run in alarms(study, "C")) > len(study.seeds) / 2
