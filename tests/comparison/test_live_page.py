"""The report of work that goes on: a process writes it, the work is the same with and without, and it ends with it."""

import time

import pytest
import yaml
from synthetic_study import rising, write_run, write_study

from guerdon.comparison import live_page as live
from guerdon.comparison.live_page import live_page, write_pages
from guerdon.comparison.report import write_report, write_single_report
from guerdon.comparison.single_run import RunStage
from guerdon.settings.study import read_study_file


class Over(Exception):
    pass


@pytest.fixture
def unfinished(tmp_path):
    """A study of which A has one complete run, B one that is at work, and nothing else is there."""
    there = {("A", 0), ("B", 0)}
    study = write_study(
        tmp_path / "study", lambda task, arm, seed: 0.5 if (arm, seed) in there else None, tasks=("t",), cards=False,
        run_options=lambda task, arm, seed: {"complete": arm == "A"}, videos=False,
    )  # fmt: skip
    (study / "runs/t/B/seed0/config.yaml").write_text(yaml.safe_dump({"runner": {"total_steps": 200_000}}))
    return study


def test_the_page_says_what_is_missing_and_warns_of_nothing_that_is_to_come(unfinished):
    (unfinished / "jobs").mkdir()
    for name in ("t.train.rm.yaml", "t.train.rm.done", "t.evaluate.rm.yaml", "t.C.seed2.yaml"):
        (unfinished / "jobs" / name).touch()
    page = write_report(unfinished, every=30.0).read_text()
    assert "<li>Preparation that is not done: t.evaluate.rm</li>" in page
    assert 'data-every="30.0"' in page
    for line in (
        "A: 1 of 3 runs complete",
        "B: 0 of 3 runs complete, 1 at work (95k of 200k)",
        "C: 0 of 3 runs complete",
    ):
        assert f"<li>{line}</li>" in page
    warnings = page[page.index('<section id="warnings"') :]
    for early in ("is missing", "is unfinished", "runs are complete", "Few seeds"):
        assert early not in warnings
        assert early in write_report(unfinished).read_text()
    assert 'id="written"' not in write_report(unfinished).read_text()
    run = unfinished / "runs/t/B/seed0"
    page = write_single_report(run, every=30.0).read_text()
    assert "It is at 95k of 200k environment steps, and needs about " in page
    assert 'id="written"' not in write_single_report(run).read_text()


def test_a_process_writes_the_page_and_ends_with_the_work(unfinished, monkeypatch, capfd):
    monkeypatch.setattr(live, "FIRST_S", 0.0)
    page = unfinished / "report.html"

    def work():
        with live_page(unfinished):
            while not page.exists():
                time.sleep(0.05)
            assert 'id="written"' in page.read_text()
            raise Over

    with pytest.raises(Over):
        work()
    assert 'id="written"' not in page.read_text(), "work that was cut off leaves a page that does not reload itself"
    assert not list(unfinished.glob(".*partial"))
    assert not (unfinished / "gate.jsonl").exists()
    assert capfd.readouterr().err == f"report: {page}, from the first evaluation on\n"
    inner = unfinished / "runs" / "t" / "A" / "seed0"
    with live_page(inner):  # which the page of its study shows
        pass
    assert not capfd.readouterr().err


def test_short_work_starts_no_process(unfinished, monkeypatch):
    monkeypatch.setattr(live, "start_child", None)
    with live_page(unfinished):
        pass
    assert not (unfinished / "report.html").exists()


def test_a_page_that_cannot_be_written_is_one_warning(unfinished, monkeypatch, capsys):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        (unfinished / "runs/t/A/seed0/metrics.jsonl").open("a").write('{"kind": "train", "step": 1}\n')
        if len(waits) == 4:
            raise Over

    def full(folder, every):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live.time, "sleep", sleep)
    monkeypatch.setattr(live, "_write", full)
    with pytest.raises(Over):
        write_pages(unfinished)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert said.startswith(f"WARNING: {unfinished}/report.html is not up to date: ")
    assert "No space left on device" in said
    assert waits == [live.EVERY_S] * 4


def test_pages_take_at_most_their_share_of_a_core(unfinished, monkeypatch):
    waits, clock = [], iter(range(0, 1000, 3))  # each page takes 3 s

    def sleep(seconds):
        waits.append(seconds)
        raise Over

    monkeypatch.setattr(live.time, "sleep", sleep)
    monkeypatch.setattr(live.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(live, "_write", lambda folder, every: None)
    with pytest.raises(Over):
        write_pages(unfinished)
    assert waits == [pytest.approx(3 / live.SHARE - 3)]


def test_nothing_is_written_before_the_first_evaluation(tmp_path, monkeypatch):
    write_run(tmp_path / "run", success=rising(0.5))
    metrics = tmp_path / "run" / "metrics.jsonl"
    rows = metrics.read_text().splitlines()
    metrics.write_text("\n".join(row for row in rows if '"train"' in row))

    def sleep(seconds):
        raise Over

    monkeypatch.setattr(live.time, "sleep", sleep)
    monkeypatch.setattr(live, "_write", None)
    with pytest.raises(Over):
        write_pages(tmp_path / "run")


def test_a_run_has_the_same_numbers_with_and_without_its_page(tmp_path, monkeypatch, capfd):
    study = {
        "name": "tiny",
        "env": {"type": "gymnasium", "task": "tiny_world:Dot-v1", "num_envs": 2, "max_episode_steps": 10},
        "policy": {"type": "mlp", "hidden": [8]},
        "algorithm": {"rollout_steps": 10, "minibatch_size": 10, "num_epochs": 1},
        "runner": {"total_steps": 200, "eval_every": 20, "eval_episodes": 2, "logger": {"tensorboard": False}},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    found = []
    for first in (0.0, 1000.0):
        monkeypatch.setattr(live, "FIRST_S", first)
        words = [f"runner.logger.log_path={tmp_path}", f"runner.logger.experiment_name=from{first:g}"]
        folder, _, page = RunStage().work(read_study_file(tmp_path / "study.yaml", words))
        assert f"report: {folder}/report.html, from the first evaluation on" in capfd.readouterr().err
        assert 'id="written"' not in page.read_text()
        found.append([(folder / name).read_bytes() for name in ("metrics.jsonl", "episodes.jsonl")])
    assert found[0] == found[1]
