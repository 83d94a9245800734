"""Several processes that torchrun did not start: refused by name, with what to do; jobs of a study are none of them."""

import os

import pytest

from guerdon.compute import distributed
from guerdon.errors import ConfigError
from guerdon.processes.launchers import LAUNCHERS, alone, refuse_other_launchers


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in ("WORLD_SIZE", *LAUNCHERS):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_several_tasks_without_torchrun_are_refused(name, monkeypatch):
    monkeypatch.setenv(name, "8")
    with pytest.raises(ConfigError, match=rf"{LAUNCHERS[name]} started 8 processes \({name}\).* torchrun"):
        refuse_other_launchers()
    with pytest.raises(ConfigError, match="torchrun"), distributed.joined():
        pytest.fail("the block is not reached")
    monkeypatch.setenv("WORLD_SIZE", "1")
    refuse_other_launchers()


@pytest.mark.parametrize("value", ["1", "0", "", "2(x3)", "-4"])
def test_one_task_and_what_is_no_number_are_nothing(value, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", value)
    with distributed.joined():
        assert distributed.launched() == 1


def test_the_variables_of_a_batch_script_say_nothing(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "8")
    refuse_other_launchers()


def test_a_job_of_a_study_is_no_task(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("KEPT", "1")
    found = alone(os.environ)
    assert "SLURM_STEP_NUM_TASKS" not in found
    assert found["KEPT"] == "1"


@pytest.mark.parametrize("value", ["two", "", "0", "-1", "2.0"])
def test_a_number_of_processes_that_is_none_is_refused(value, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", value)
    with pytest.raises(ConfigError, match=f"WORLD_SIZE is '{value}'"):
        distributed.launched()
