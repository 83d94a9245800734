"""A study in which the true success of an arm is unknown: the report says so, and judges nothing."""

import json

import pytest
from synthetic_study import comparison_table, write_study

from guerdon.comparison.report import write_report
from guerdon.comparison.report_tables import markdown_table
from guerdon.comparison.results import comparison_rows, read_study


def without_success(path):
    """Take success out of a run's lines, as a run in an environment that does not report it writes them."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row.pop("success", None)
        row["hacking_alarm"] = None
        row["success_known"] = 0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_an_arm_without_known_success_has_no_conclusion(tmp_path):
    study = tmp_path / "study"
    write_study(study, lambda task, arm, seed: 0.5, videos=False)
    paths = list((study / "runs").glob("*/B/*/metrics.jsonl"))
    for path in paths:
        without_success(path)
    rows = {row["arm"]: row for row in comparison_table(study) if row["task"] == "all tasks"}
    assert (rows["B"]["final_success"], rows["B"]["area"], rows["B"]["conclusion"]) == (None, None, "no data")
    assert rows["B"]["reached_50"] == 0
    page = write_report(study).read_text()
    assert "no conclusion, true success is unknown in runs of B" in page
    assert "B/seed0: true success is unknown: its environment does not report it" in page
    assert f"In {len(paths)} runs true success is unknown, so no alarm is possible there" in page


def as_returns(path, scale=1000.0):
    """A run's lines as those of an environment that reports no success; its return is the former success, scaled."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["return/env"] = scale * row.pop("success", 0.0)
        row |= {"hacking_alarm": None, "success_known": 0}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def study_of_returns(folder, tasks=None):
    levels = {"A": 0.2, "B": 0.6, "C": 0.2}
    write_study(folder, lambda task, arm, seed: levels[arm] + (0.01 * (seed - 1) if arm == "B" else 0), videos=False)
    for path in (folder / "runs").glob("*/*/*/metrics.jsonl"):
        as_returns(path)
    plan = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(plan | {"tasks": tasks or plan["tasks"][:1]}))
    return folder


def test_a_study_without_known_success_is_about_the_return_of_its_environment(tmp_path):
    folder = study_of_returns(tmp_path / "study")
    rows = {row.arm: row for row in comparison_rows(read_study(folder))}
    assert rows["B"].difference.interval.estimate == pytest.approx(400.0), "not clipped to success"
    assert rows["B"].conclusion == "better"
    assert rows["B"].sentence.startswith(
        "B probably beats A: final return of the environment (true success is unknown) +400.00"
    )
    assert rows["B"].speed is None
    assert rows["A"].final.estimate == pytest.approx(200.0)
    assert rows["C"].conclusion == "no difference shown"
    table = markdown_table(folder)
    assert "final return" in table
    assert "success" not in table.splitlines()[0]
    assert "to 50%" not in table
    page = write_report(folder).read_text()
    assert "Final return" in page
    assert "return of the environment, mean and 95% band" in page
    assert "true success, mean" not in page
    assert "results are about its return" in page
    assert "True success is unknown: the environment does not report it." in page


def test_returns_of_several_tasks_are_not_averaged(tmp_path):
    folder = tmp_path / "study"
    write_study(folder, lambda task, arm, seed: 0.5 + 0.01 * seed if arm == "B" else 0.2, videos=False)
    for path in (folder / "runs").glob("*/*/*/metrics.jsonl"):
        as_returns(path)
    tasks = read_study(folder).tasks
    assert len(tasks) > 1
    rows = comparison_rows(read_study(folder))
    pooled = next(row for row in rows if row.arm == "B" and row.task == "all tasks")
    assert (pooled.conclusion, pooled.difference, pooled.final.estimate) == ("no data", None, None)
    assert "no unit in common" in pooled.sentence
    single = [row for row in rows if row.arm == "B" and row.task in tasks]
    assert [row.conclusion for row in single] == ["better"] * len(tasks)
    page = write_report(folder).read_text()
    assert "mean and 95% band, against environment steps, all tasks" not in page
    assert f"mean and 95% band, against environment steps, {tasks[0]}" in page


def test_one_run_that_knows_success_keeps_a_study_about_success(tmp_path):
    folder = study_of_returns(tmp_path / "study")
    path = next((folder / "runs").glob("*/A/*/metrics.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"success": 0.5}) + "\n" for row in rows))
    found = {row.arm: row for row in comparison_rows(read_study(folder))}
    assert found["B"].conclusion == "no data"
    assert "true success is unknown in runs of B" in found["B"].sentence or "A and B" in found["B"].sentence


def test_a_run_that_stopped_early_is_named_where_it_enters_a_mean(tmp_path):
    folder = tmp_path / "study"
    write_study(folder, lambda task, arm, seed: 0.5, videos=False)
    runs = sorted((folder / "runs").glob("*/B/*"))
    planned = {runs[0]: 200_000, runs[1]: 80_000}  # their last line is of 95,000 steps
    for run, steps in planned.items():
        (run / "config.yaml").write_text(f"seed: 0\nrunner:\n  seed: 0\n  total_steps: {steps}\n  threads: 1\n")
    study = read_study(folder)
    early = [run for run in study.runs if run.stopped_early]
    assert [run.path for run in early] == [runs[0]]
    row = next(row for row in comparison_rows(study) if row.arm == "B")
    assert row.n_stopped == 1
    page = write_report(folder).read_text()
    assert page.count("is marked complete after") >= 1
    assert f"{early[0].name} is marked complete after 95k of 200k environment steps" in page
    assert "1 stopped early" in page
    assert "1 stopped early" in markdown_table(folder)
    (runs[0] / "COMPLETE").unlink()
    assert not any(run.stopped_early for run in read_study(folder).runs), "an unfinished run is in no mean"
