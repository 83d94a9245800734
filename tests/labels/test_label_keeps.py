"""`guerdon label` into the same folder again: what is there is not lost, and a cap buys labels."""

import json
import os

import pytest
from judge_server import FakeClock, judge_server, judgements, steps_asked
from label_studies import rows, study_of

from guerdon.endpoints.endpoint import GUESSES, MAX_FAILED_GUESSES
from guerdon.errors import ConfigError, TooManyFailuresError
from guerdon.labels.label import label
from guerdon.network.retry import Clock

PRICES = {"usd_per_million_in": 10.0, "usd_per_million_out": 100.0}


def fake():
    clock = FakeClock()
    return Clock(clock.now, clock.sleep)


def judge(text):
    """Writes a solution that differs between questions, and calls every step right."""
    steps = steps_asked(text)
    return judgements([1] * len(steps)) if steps else f"{text[:3]}=1;1+1=0;"


def judge_of(server, **given):
    return {"api": "openai", "model": "m", "base_url": server.url + "/v1", "max_tokens": 50, "concurrency": 1,
            "retries": 0, **PRICES, **given}  # fmt: skip


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def dead():
    """A judge that is not there."""
    with judge_server() as server:
        pass
    return server


@pytest.fixture
def full(policy, tmp_path):
    """A data set whose judge is gone since, and its folder."""
    with judge_server(judge) as server:
        done = label(study_of(policy, tmp_path, labeler="judge", judge=judge_of(server)), clock=fake())
    assert len(rows(done.folder)) > 8
    return done.folder


def test_a_dead_judge_replaces_nothing(policy, tmp_path, dead, full):
    before = contents(full)
    other = judge_of(dead, max_tokens=60)  # no reply in the cache fits
    with pytest.raises(
        TooManyFailuresError, match=r"connection: .*refused.* keeps its \d+ labelled solutions.* only 0 "
    ):
        label(study_of(policy, tmp_path, labeler="judge", judge=other), clock=fake())
    assert contents(full) == before


def test_a_cap_replaces_nothing(policy, tmp_path, full):
    before = contents(full)
    with judge_server(judge) as server:
        other = judge_of(server, max_tokens=60)
        spent = json.loads(before["card.json"])["ledger"]["judge"]["usd"]
        capped = study_of(policy, tmp_path, labeler="judge", judge=other, max_usd=spent + 0.03)
        done = label(capped, clock=fake())
        assert 0 < done.card["solutions"]["labelled"] < done.kept == len(rows(full))
        assert "stopped by max_usd" in done.summary
        assert f"keeps its {done.kept} labelled solutions" in done.kept_or_written
    assert contents(full) == before


def test_what_is_in_the_cache_is_rebuilt_though_the_judge_is_dead(policy, tmp_path, dead, full):
    n = len(rows(full))
    (full / "records.jsonl").unlink()
    replies = tmp_path / "cache" / "replies.jsonl"
    lines = replies.read_bytes().splitlines(keepends=True)
    replies.write_bytes(b"".join(lines[n // 2 + 1 :]))
    study = study_of(policy, tmp_path, labeler="judge", judge=judge_of(dead), max_failure_rate=0.2)
    with pytest.raises(TooManyFailuresError):
        label(study, clock=fake())
    assert len(rows(full)) == n - n // 2 - 1
    card = json.loads((full / "card.json").read_text())
    assert card["solutions"]["not_asked"] + sum(card["solutions"]["failed"].values()) == n // 2 + 1


@pytest.mark.parametrize("skip", [False, True])
def test_a_folder_belongs_to_its_labeler_and_judge(policy, tmp_path, dead, full, skip):
    before = contents(full)
    for reward in ("HE", "SE") if skip else ("HE",):
        with pytest.raises(
            ConfigError, match=r"labels with labeler judge, and this is labeler exact: set label.save_dir"
        ):
            label(study_of(policy, tmp_path, reward=reward), skip_generation=skip)
        another = judge_of(dead, model="another")
        with pytest.raises(ConfigError, match="labels with judge m, and this is judge another"):
            label(study_of(policy, tmp_path, labeler="judge", judge=another, reward=reward), skip_generation=skip)
    assert contents(full) == before


@pytest.mark.hostile("kills")
def test_writing_that_is_cut_off_loses_no_file_and_keeps_the_folder_s_identity(policy, tmp_path, dead, full):
    before = contents(full)
    blocked = full / f".trl.jsonl.{os.getpid()}.partial"
    blocked.mkdir()  # what is written after the records cannot be
    study = study_of(policy, tmp_path, labeler="judge", judge=judge_of(dead))
    with pytest.raises(IsADirectoryError):
        label(study, clock=fake())
    blocked.rmdir()
    assert {name: data for name, data in contents(full).items() if name != "card.json"} == {
        name: data for name, data in before.items() if name != "card.json"
    }
    with pytest.raises(ConfigError, match="labels with judge m, and this is judge another"):
        label(study_of(policy, tmp_path, labeler="judge", judge=judge_of(dead, model="another")), clock=fake())
    label(study, clock=fake())
    assert json.loads((full / "card.json").read_text())["files"]["trl"]["rows"] == len(rows(full))


def test_a_smaller_data_set_that_was_asked_for_is_written(policy, tmp_path, dead, full):
    fewer = study_of(policy, tmp_path, labeler="judge", judge=judge_of(dead), num_samples=2)
    assert len(rows(label(fewer, clock=fake()).folder)) < 8


@pytest.mark.parametrize("max_usd", [0.04, 0.1, 0.2])
def test_a_cap_buys_solutions_with_their_labels(policy, tmp_path, max_usd):
    with judge_server(judge) as server:
        given = {"method": 2, "num_samples": 40, "num_rollouts": 1, "labeler": "judge", "max_usd": max_usd,
                 "judge": judge_of(server, concurrency=8)}  # fmt: skip
        study = study_of(policy, tmp_path, **given)
        task = study.data.task.model_copy(update={"modulus": 10, "high": 9})
        data = study.data.model_copy(update={"train_size": 40, "task": task})
        study = study.model_copy(update={"data": data})
        done = label(study, clock=fake())
        ledger = done.card["ledger"]
        assert done.stopped == "max_usd"
        spent = sum(row["usd"] for row in ledger.values())
        assert spent <= max_usd
        written, labelled = ledger["solve"]["calls"], len(rows(done.folder))
        assert labelled == written == done.card["solutions"]["labelled"] > 0
        assert labelled >= (max_usd - 0.03) // 0.006  # .003 a reply; the most that one solution may cost is left
        assert done.card["solutions"]["not_asked"] == 40 - labelled


def test_a_cap_that_buys_nothing_says_why(policy, tmp_path):
    with judge_server(judge) as server:
        study = study_of(policy, tmp_path, method=2, labeler="judge", max_usd=0.001, judge=judge_of(server))
        done = label(study, clock=fake())
        assert not server.requests
        assert "raise max_usd, or lower judge.max_tokens" in done.summary


def test_a_dead_judge_that_should_write_the_solutions_is_named(policy, tmp_path, dead):
    study = study_of(policy, tmp_path, method=2, labeler="judge", judge=judge_of(dead))
    with pytest.raises(
        TooManyFailuresError, match=r"12 of 12 measurements failed \(12 connection: 127.0.0.1:\d+: .*refused"
    ):
        label(study, clock=fake())


def test_nobody_waits_for_the_slowest_and_the_order_stays(policy, tmp_path):
    """One request at a time, and the first is sent away: all others are answered before it, in whatever group."""
    found = []
    for script in ([], [(503, {})]):
        with judge_server(judge, script) as server:
            folder, how = tmp_path / str(len(found)), judge_of(server, retries=1)
            study = study_of(policy, folder, labeler="judge", judge=how, num_rollouts=6)
            found.append((folder / "prm_dataset_method1_HE" / "records.jsonl", label(study, clock=fake())))
            asked = [body["messages"][-1]["content"] for body in server.requests]
    assert len(asked) > 4 * 4  # more than a group
    assert asked[-1] == asked[0]
    assert asked[0] not in asked[1:-1]
    assert found[0][0].read_bytes() == found[1][0].read_bytes()


def test_method_2_stops_at_a_dead_judge_after_the_first_answers(policy, tmp_path):
    with judge_server(script=[(400, {})] * 999) as server:
        study = study_of(policy, tmp_path, method=2, labeler="judge", judge=judge_of(server), num_rollouts=20)
        with pytest.raises(TooManyFailuresError, match=r"20 rejected: 400: as told") as stopped:
            label(study, clock=fake())
        assert (
            20 <= len(server.requests) <= 20 + MAX_FAILED_GUESSES * len(GUESSES)
        )  # the first ones are tried without settings, too
    assert stopped.value.exit_code == 3
    assert "min_steps" not in str(stopped.value)
