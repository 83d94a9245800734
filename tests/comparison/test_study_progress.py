"""The line about a study that runs: runs that are complete, last success and time left, for each setting."""

import json
import re

import pytest

from guerdon.comparison.jobs import Job, JobResult
from guerdon.comparison.study_progress import StudyProgress
from guerdon.processes import progress as processes


def write(folder, *rows, rest=""):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + rest)


def result(kind, step, **more):
    return {"kind": kind, "step": step, **more}


def test_each_setting_has_a_line_and_the_time_left_follows_the_jobs_that_ended(tmp_path):
    runs = {f"t.{arm}.seed{seed}": tmp_path / "runs" / "t" / arm / f"seed{seed}" for arm in "AB" for seed in (0, 1)}
    jobs = [Job("t.train", ("train",)), *(Job(name, ("run",), folder=folder) for name, folder in runs.items())]
    seconds = {"t.train": 10.0} | dict.fromkeys(runs, 20.0)
    estimates = {name: {"seconds": value} for name, value in seconds.items()}
    progress = StudyProgress(jobs, estimates, dict.fromkeys(runs, 1000.0), parallel=2)
    assert progress.text == "A 0/2 runs\nB 0/2 runs\nabout 45 s left"

    progress.settle(JobResult(jobs[0], "done", seconds=20.0))  # twice as long as expected
    assert progress.text.endswith("about 1 min 20 s left")
    write(
        runs["t.A.seed0"],
        result("eval", 500, success=0.25),
        result("train", 1000, success=1),
        result("eval", 1000, success=0.5),
    )
    progress.settle(JobResult(jobs[1], "done", seconds=40.0))
    write(runs["t.A.seed1"], result("eval", 500, success=1.0), rest='{"kind": "eval", "st')
    assert progress.text == "A 1/2 runs, success 0.75\nB 0/2 runs\nabout 50 s left"  # 20 + 40 + 40 on two cores

    write(runs["t.B.seed0"], result("eval", 1000, **{"return/env": 12.0}))
    progress.settle(JobResult(jobs[3], "failed", seconds=1.0))
    assert "B 0/2 runs, 1 failed, return 12.00" in progress.text


def test_the_time_left_is_not_shown_where_nothing_limits_it(tmp_path):
    progress = StudyProgress([Job("t.label", ("label",))], {"t.label": {"seconds": None}}, {}, parallel=1)
    assert progress.text == ""


def test_a_job_without_a_folder_is_not_begun_until_it_ends(tmp_path):
    jobs = [Job("t.A.seed0", ("run",))]
    progress = StudyProgress(jobs, {"t.A.seed0": {"seconds": 20.0}}, {"t.A.seed0": 1000.0}, parallel=1)
    assert progress.text.endswith("about 20 s left")


@pytest.mark.parametrize("width", [80, 120])
def test_the_lines_of_a_long_name_fit_into_a_terminal_beside_the_bar(width, tmp_path, capsys, monkeypatch):
    name = "a_setting_whose_name_says_everything_that_it_changes_in_the_study_and_why"
    folders = [tmp_path / "runs" / "t" / name / f"seed{seed}" for seed in range(12)]
    jobs = [Job(f"t.{name}.{folder.name}", ("run",), folder=folder) for folder in folders]
    study = StudyProgress(jobs, {job.name: {"seconds": 9.0} for job in jobs}, {}, parallel=2)
    for job in jobs[:11]:
        study.settle(JobResult(job, "failed", seconds=9.0))
    write(folders[0], result("eval", 1, success=0.41))
    monkeypatch.setattr(processes, "_animated", lambda: True)
    for variable, value in {"COLUMNS": str(width), "LINES": "24", "TERM": "xterm", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    bar = processes.ProgressBar(12, what="jobs", clock=False)
    bar.advance(11, study.text)
    bar.write_line(f"[11/12] t.{name}.seed10: done in 9 s")
    bar.close()
    printed = capsys.readouterr().err
    assert printed.rindex("\x1b[2K") > printed.rindex("11/12")  # the last frame, of an earlier moment, is erased
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown)]
    assert any(re.search(r"…\S+ 0/12 runs, 11 failed, success 0\.41 .*11/12$", line) for line in lines), lines
    assert all(len(line) <= width for line in lines if name not in line)
    assert f"[11/12] t.{name}.seed10: done in 9 s" in lines  # whole, so that it can be copied
