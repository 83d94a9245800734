"""The line about a study that runs: runs that are complete, last success and time left, for each setting."""

import json

from guerdon.comparison.jobs import Job, JobResult
from guerdon.comparison.study_progress import StudyProgress


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
