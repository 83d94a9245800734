"""`guerdon run --profile N`: the same numbers, traces that can be read, and a table that adds up."""

import gzip
import json
import threading
from contextlib import suppress

import pytest
import torch
from test_own_policy import token_study
from test_run_together import file_of

from guerdon.comparison.single_run import RunStage
from guerdon.compute import profiling
from guerdon.processes import clock
from guerdon.processes.clock import PartsClock, counted
from guerdon.processes.progress import timed
from guerdon.rl.profile import COLUMNS, row_of, table
from guerdon.rl.run import run, run_folder
from learners import assert_alike, run_together
from tables import refuses
from text_rl import LORA, letter_study, prime

torch.set_num_threads(1)
FEW = {"total_steps": 48, "eval_every": 48, "checkpoint_every": 48}


def profile_of(study):
    folder = run_folder(study) / "profile"
    return json.loads((folder / "times.json").read_text()), folder


def check_table(found, processes, iterations):
    assert (found["iterations"], len(found["processes"])) == (iterations, processes)
    for row in found["processes"]:
        assert sum(row[name] for name in COLUMNS) == pytest.approx(row["wall"])
        assert all(row[name] >= -1e-9 for name in COLUMNS)


def operators(file):
    with gzip.open(file) as stream:
        return {event.get("name") for event in json.load(stream)["traceEvents"]}


@pytest.mark.usefixtures("no_gpu")
def test_a_run_of_a_language_model_is_profiled_and_has_the_same_numbers(tmp_path, capfd):
    plain, profiled = (letter_study(tmp_path, name=name, runner=FEW) for name in ("plain", "profiled"))
    run(plain)
    run(profiled, profile=2)
    assert_alike(plain, profiled, within=0)
    found, folder = profile_of(profiled)
    check_table(found, 1, 2)
    row = found["processes"][0]
    assert row["collect"] > 0
    assert row["update"] > 0
    assert row["waiting"] == 0
    assert "evaluate" in found["parts"][0]
    assert {"aten::mm", "aten::embedding"} <= operators(folder / "trace_process0.json.gz")
    said = capfd.readouterr().err
    assert (folder / "times.txt").read_text() in said
    assert not [path.name for path in folder.iterdir() if "partial" in path.name]
    assert not profiling.recording()


@pytest.mark.usefixtures("no_gpu")
def test_a_run_of_a_robot_is_profiled(tmp_path):
    study = token_study(tmp_path, name="robot")
    run(study, profile=1)
    found, folder = profile_of(study)
    check_table(found, 1, 1)
    assert found["processes"][0]["collect"] > 0
    assert operators(folder / "trace_process0.json.gz")


@pytest.mark.usefixtures("no_gpu")
def test_rollouts_ahead_are_waited_for(tmp_path):
    study = letter_study(tmp_path, runner={**FEW, "max_staleness": 1})
    run(study, profile=2)
    found, _ = profile_of(study)
    check_table(found, 1, 2)
    assert "wait" in found["parts"][0]
    assert "generate" not in found["parts"][0], "another thread collects"


@pytest.mark.parametrize("iterations", [-1, 101])
def test_numbers_that_cannot_be_profiled_are_refused_before_the_start(iterations, tmp_path):
    study = letter_study(tmp_path)
    for refused in (lambda: run(study, profile=iterations), lambda: RunStage(profile=iterations).check(study)):
        with refuses("--profile", f"--profile {iterations}: choose a number of iterations from 1 to 100"):
            refused()
    assert not run_folder(study).exists()


@pytest.mark.usefixtures("no_gpu")
def test_a_run_that_is_too_short_says_why_there_is_no_profile(tmp_path, capfd):
    study = letter_study(tmp_path, runner={**FEW, "total_steps": 16})
    run(study, profile=3)
    assert "no profile: the run had 1 more iterations, and the first one is left out" in capfd.readouterr().err
    run(study, resume=True, profile=1)
    assert "no profile" in capfd.readouterr().err
    assert not (run_folder(study) / "profile").exists()


@pytest.mark.usefixtures("no_gpu")
def test_a_run_that_ends_before_has_fewer_iterations(tmp_path):
    study = letter_study(tmp_path, runner=FEW)
    run(study, profile=50)
    check_table(profile_of(study)[0], 1, 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["prime_lora", "robot"])
def test_every_process_has_a_row_and_a_trace(kind, tmp_path):
    given = {"policy": {"lora": LORA}, "reward_model": prime(mini=8, micro=4), "runner": FEW}
    study = token_study(tmp_path) if kind == "robot" else letter_study(tmp_path, **given)
    run_together("-m", "guerdon", "run", file_of(study, tmp_path), "--profile", "1")
    found, folder = profile_of(study)
    check_table(found, 2, 1)
    first, second = found["processes"]
    assert first["collect"] > 0
    assert second["update"] > 0
    assert second["waiting"] > 0, "while the first one collects"
    assert sorted(path.name for path in folder.glob("trace*")) == [
        "trace_process0.json.gz", "trace_process1.json.gz",
    ]  # fmt: skip
    assert operators(folder / "trace_process1.json.gz")


# The clock.


@pytest.fixture
def ticks(monkeypatch):
    """Time that passes when a test says so."""
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_each_second_is_in_one_part(ticks):
    own = PartsClock()
    ticks(1)
    with counted("update"):
        ticks(2)
        with counted("waiting"):
            ticks(3)
        ticks(4)
    with counted("evaluate", closed=True):
        ticks(5)
        with counted("waiting"):
            ticks(6)
    with suppress(ZeroDivisionError), counted("score"):
        ticks(7)
        raise ZeroDivisionError
    own.stop()
    ticks(8)
    assert own.seconds == {"update": 6, "waiting": 3, "evaluate": 11, "score": 7}
    assert own.wall == 28


def test_other_threads_and_other_times_are_not_counted(ticks):
    own = PartsClock()

    def work():
        with counted("generate"):
            ticks(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    own.stop()
    seconds = {}
    with counted("score"), timed(seconds, "score"):
        ticks(1)
    assert (own.seconds, seconds) == ({}, {"score": 1})


def test_columns_by_hand():
    parts = {"wall": 10.0, "generate": 2.0, "verify": 1.0, "score": 0.5, "refit": 0.25, "called update": 1.0,
             "wait": 0.5, "waiting": 1.0, "weights": 0.75, "video": 0.5}  # fmt: skip
    row = row_of(parts)
    assert row == {"collect": 3.0, "score": 0.5, "update": 1.25, "weights": 0.75, "waiting": 1.5, "other": 3.0,
                   "wall": 10.0}  # fmt: skip
    text = table([{"process": 0, **row}], 4)
    assert text.splitlines()[0] == "seconds of 4 iterations"
    assert "3.000 ( 30%)" in text.splitlines()[2]
