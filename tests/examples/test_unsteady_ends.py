"""The script that repeats runs, evaluates averages of their weights, and counts what they kept."""

import csv
import importlib.util
from pathlib import Path

import pytest
import torch

from guerdon.config.loading import to_yaml
from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from rl_clock import clock_study, start

FILE = Path(__file__).parents[2] / "studies" / "unsteady_ends.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("unsteady_ends", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_averages_are_of_the_weights_after_each_update_and_act_nowhere_else(script, tmp_path):
    plain = start(clock_study(tmp_path, name="plain"))
    loop = script.AveragingLoop(study := clock_study(tmp_path, name="averaging"), run_folder(study))
    policy, whole = loop.learner.policy, Loop.iterate
    first = {name: value.clone() for name, value in policy.named_parameters()}
    wanted = {decay: dict(first) for decay in script.DECAYS}

    def iterate(self):
        whole(self)
        for decay, average in wanted.items():
            for name, value in policy.named_parameters():
                average[name] = decay * average[name] + (1 - decay) * value.detach()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "iterate", iterate)
        loop.run()
    plain.run()
    for name, value in plain.learner.policy.state_dict().items():
        assert torch.equal(loop.learner.policy.state_dict()[name], value)
    for decay, average in loop.averages.items():
        for name, value in wanted[decay].items():
            torch.testing.assert_close(average.tensors()[name], value.detach())
    assert any(not torch.equal(value, first[name]) for name, value in wanted[0.8].items())


def test_a_run_is_repeated_with_other_keys(script, tmp_path):
    job = tmp_path / "clock.P.seed0.yaml"
    job.write_text(to_yaml(clock_study(tmp_path)))
    script.measure(tmp_path / "ends.csv", job, ["runner.total_steps=60"])
    with (tmp_path / "ends.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert {tuple(row[:2]) for row in rows} == {("runner.total_steps=60", "clock.P.seed0")}
    assert [row[2:4] for row in rows] == [["72", name] for name in ("last", "average 0.8", "average 0.95")]


def test_what_is_counted(script, tmp_path, capsys):
    runs = {"a": [0.0, 1.0, 0.5], "b": [0.96, 0.2, 0.9], "c": [0.1, 0.2, 0.3]}
    with (tmp_path / "ends.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            ["as in the file", job, step, "last", value]
            for job, curve in runs.items()
            for step, value in enumerate(curve)
        )
    script.report(tmp_path / "ends.csv")
    assert capsys.readouterr().out.splitlines()[2] == "| as in the file | last | 2 of 3 | 1 of 2 | 0.57 |"


def test_the_runs_that_were_measured_give_the_table_of_the_results(script, capsys):
    script.report(FILE.with_suffix(".csv"))
    assert capsys.readouterr().out in (FILE.parents[1] / "docs" / "results" / "robots.md").read_text(encoding="utf-8")
