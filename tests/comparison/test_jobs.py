"""Jobs: their order, what happens to the others when one fails, going on, and ending without orphans."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guerdon.comparison import jobs
from guerdon.comparison.jobs import Job, run_jobs


def work(arguments):
    """In place of the verbs of guerdon."""
    verb, *rest = arguments
    if verb == "say":
        with open("said", "a") as file:
            file.write(f"{rest[0]} begins\n{rest[0]} ends\n")
    elif verb == "await":
        while not os.path.exists(rest[0]):
            time.sleep(0.01)
    elif verb == "fail":
        print("some progress")
        sys.exit("guerdon: the reason")
    elif verb == "stay":

        def leave(*_):
            Path("left").write_text("whole")
            sys.exit(130)

        signal.signal(signal.SIGTERM, leave)
        Path("pid.partial").write_text(str(os.getpid()))
        os.replace("pid.partial", "pid")
        while True:
            signal.pause()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "_PRELOAD", ())  # what the jobs of this file do not import


def go(jobs, parallel=2):
    told = []
    results = run_jobs(
        jobs, Path("jobs"), parallel=parallel, say=lambda o, n, total: told.append((o.job.name, n)), work=work
    )
    assert told == [(o.job.name, i + 1) for i, o in enumerate(results)]
    return {o.job.name: o for o in results}


def said():
    return [line.split()[0] for line in Path("said").read_text().splitlines()][::2]


def test_a_job_waits_for_what_it_needs():
    results = go([Job("c", ("say", "c"), ("b",)), Job("b", ("say", "b"), ("a",)), Job("a", ("say", "a"))])
    assert {o.state for o in results.values()} == {"done"}
    assert said() == ["a", "b", "c"]


def test_the_urgent_and_the_long_go_first():
    go([Job("s", ("say", "s"), cost=1), Job("l", ("say", "l"), cost=9), Job("u", ("say", "u"), urgent=True)], 1)
    assert said() == ["u", "l", "s"]


def test_a_failure_takes_only_those_that_need_it():
    jobs = [
        Job("bad", ("fail",), folder=Path("run")),
        Job("child", ("say", "child"), ("bad",)),
        Job("grandchild", ("say", "grandchild"), ("child",)),
        Job("good", ("say", "good")),
    ]
    results = go(jobs)
    assert {name: o.state for name, o in results.items()} == {
        "bad": "failed", "child": "skipped", "grandchild": "skipped", "good": "done",
    }  # fmt: skip
    assert "exit status 1: guerdon: the reason" in results["bad"].message
    assert "bad did not finish" in results["child"].message
    assert "the reason" in json.loads(Path("run/FAILED.json").read_text())["error"]
    assert said() == ["good"]


def test_a_reason_that_the_job_gave_itself_is_kept():
    Path("run").mkdir()
    Path("run/FAILED.json").write_text('{"error": "its own words"}')
    go([Job("bad", ("fail",), folder=Path("run"))])
    assert json.loads(Path("run/FAILED.json").read_text()) == {"error": "its own words"}


def test_going_on_repeats_nothing_and_tries_the_failed_again():
    jobs = [Job("good", ("say", "good")), Job("bad", ("fail",))]
    go(jobs)
    marks = {p: p.stat().st_mtime_ns for p in Path("jobs").glob("good.*")}
    second = go([jobs[0], Job("bad", ("say", "mended"))])
    assert second["good"].message == "finished earlier"
    assert second["bad"].state == "done"
    assert said() == ["good", "mended"]
    assert {p: p.stat().st_mtime_ns for p in Path("jobs").glob("good.*")} == marks


def test_needs_that_no_job_meets_are_named():
    results = go([Job("a", ("say", "a"), ("nobody",)), Job("x", ("say", "x"), ("y",)), Job("y", ("say", "y"), ("x",))])
    assert {o.state for o in results.values()} == {"skipped"}
    assert results["a"].message == "needs nobody"
    assert not Path("said").exists()


@pytest.mark.hostile("kills")
def test_whatever_ends_the_study_ends_its_processes():
    def stop(result, settled, total):
        raise KeyboardInterrupt

    jobs = [Job("stays", ("stay",), folder=Path("run")), Job("first", ("await", "pid")), Job("later", ("say", "l"))]
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, Path("jobs"), parallel=2, say=stop, work=work)
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)
    assert Path("left").read_text() == "whole"  # it had time to leave in order
    assert not Path("said").exists()  # none other was started
    assert not Path("run/FAILED.json").exists()  # an interrupt is not a failure of the run
    assert sorted(p.name for p in Path("jobs").glob("*.done")) in ([], ["first.done"])


@pytest.mark.hostile("kills")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
def test_jobs_end_when_their_study_is_killed():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_jobs; from pathlib import Path; "
        "from guerdon.comparison import jobs; from guerdon.comparison.jobs import Job, run_jobs; jobs._PRELOAD = (); "
        "stays = Job('stays', ('stay',), folder=Path('run')); "
        "run_jobs([stays], Path('jobs'), parallel=1, say=print, work=test_jobs.work)"
    )
    study = subprocess.Popen([sys.executable, "-c", code, str(Path(__file__).parent)])
    wait_for(Path("pid").exists)
    study.kill()
    study.wait()
    job = int(Path("pid").read_text())
    wait_for(lambda: not Path(f"/proc/{job}").exists())
    assert not Path("run/FAILED.json").exists()


def wait_for(true, seconds=120.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)
