"""Short runs of every kind repeat their records: see `record.py` for the rule of comparison and for recording anew."""

import copy
import json

import pytest
from record import CONTROL, QUICK, RUNS, TEXT, compare, measured, recorded, signature, write


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Models and prompts that the runs share."""
    return tmp_path_factory.mktemp("golden")


def check(name, shared):
    kind = "control" if name in CONTROL else "text"
    golden = recorded(kind)
    exact = golden["machine"] == signature()
    problems = compare(measured(name, shared), golden["runs"][name], exact=exact)
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


def test_writing_records_and_reading_them_changes_nothing(tmp_path, monkeypatch):
    import record

    runs = recorded("text")["runs"]
    before = (record.HERE / "text.json").read_text()
    monkeypatch.setattr(record, "HERE", tmp_path)
    write("text", runs)
    assert recorded("text") == {"machine": signature(), "runs": runs}
    same = json.loads(before)["machine"] == signature()
    assert not same or (tmp_path / "text.json").read_text() == before
