"""Short runs of every kind repeat their records: see `record.py` for the rule of comparison and for recording anew."""

import copy
import json

import pytest
from record import CONTROL, QUICK, REFIT_FIRST, RUNS, TEXT, compare, made_here, measured, recorded, signature, write


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Models and prompts that the runs share."""
    return tmp_path_factory.mktemp("golden")


def check(name, shared):
    kind = "control" if name in CONTROL else "text"
    golden = recorded(kind)
    found = measured(name, shared)
    problems = compare(found, golden["runs"][name], exact=made_here(golden, name), refit_first=name in REFIT_FIRST)
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("name", QUICK)
def test_a_run_repeats_its_record(name, shared):
    check(name, shared)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROL | TEXT)
def test_every_run_repeats_its_record(name, shared):
    check(name, shared)


def test_every_run_has_a_record_and_every_record_a_run():
    for kind, runs in RUNS.items():
        assert list(recorded(kind)["runs"]) == list(runs)


def test_no_two_runs_are_the_same():
    for kind in RUNS:
        rows = [json.dumps(run["metrics"]) for run in recorded(kind)["runs"].values()]
        assert len(rows) == len(set(rows))


def test_the_rule_of_comparison():
    golden = recorded("control")["runs"]["ppo_native"]
    assert compare(golden, golden, exact=True) == compare(golden, golden, exact=False) == []
    found = copy.deepcopy(golden)
    found["metrics"][0]["policy_loss"] += 1e-9
    assert [line.split(":")[0] for line in compare(found, golden, exact=True)] == ["row 0, policy_loss"]
    assert compare(found, golden, exact=False) == []
    found["metrics"][0]["entropy"] *= 1 + 2e-4
    assert [line.split(":")[0] for line in compare(found, golden, exact=False)] == ["row 0, entropy"]
    found = copy.deepcopy(golden)
    found["metrics"][1]["entropy"], found["weights"]["policy"] = 0.0, "0"
    assert compare(found, golden, exact=False) == []
    assert [line.split(":")[0] for line in compare(found, golden, exact=True)] == [
        "weights of policy", "row 1, entropy",
    ]  # fmt: skip
    found["metrics"].pop()
    del found["metrics"][0]["success"]
    lines = compare(found, golden, exact=True)
    assert any("rows of metrics" in line for line in lines)
    assert any("row 0, success: absent" in line for line in lines)


def test_a_run_that_refits_first_promises_what_is_measured_before_that():
    golden = recorded("control")["runs"]["ppo_progress_refit_before"]
    found = copy.deepcopy(golden)
    for key in ("return/progress", "return/combined", "policy_loss", "value_loss", "grad_norm"):
        found["metrics"][0][key] *= 1.01
    assert compare(found, golden, exact=False, refit_first=True) == []
    assert len(compare(found, golden, exact=False)) == len(compare(found, golden, exact=True, refit_first=True)) == 5
    found["metrics"][0]["return/env"] *= 1.01
    found["metrics"][0]["reward_model/progress/fresh_mae"] *= 1.01
    del found["metrics"][0]["grad_norm"]
    assert [line.split(":")[0] for line in compare(found, golden, exact=False, refit_first=True)] == [
        "row 0, grad_norm", "row 0, return/env", "row 0, reward_model/progress/fresh_mae",
    ]  # fmt: skip


def test_the_runs_that_refit_first_are_those_of_image_models_updated_before(tmp_path):
    def refits_first(make):
        sources = make(tmp_path).reward.sources or {}
        return any(getattr(source.model, "update", "none") == "before" for source in sources.values())

    assert {name for name, make in CONTROL.items() if refits_first(make)} == set(REFIT_FIRST)


def test_writing_records_and_reading_them_changes_nothing(tmp_path, monkeypatch):
    import record

    runs = recorded("text")["runs"]
    before = (record.HERE / "text.json").read_text()
    monkeypatch.setattr(record, "HERE", tmp_path)
    write("text", runs)
    assert recorded("text") == {"machine": signature(), "runs": runs}
    same = json.loads(before)["machine"] == signature()
    assert not same or (tmp_path / "text.json").read_text() == before
