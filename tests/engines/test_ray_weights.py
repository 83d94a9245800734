"""Weights that collectors of a Ray cluster receive by broadcasts: the metrics of one process, whatever fails."""

import pytest
from ray_studies import on_ray, ordered, recorded, robots, words

import mortal_receiver
from guerdon.rl.loop import Loop
from guerdon.rl.run import run
from scripted import SHAPE

ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BY_BROADCAST = "collectors receive weights by broadcasts of gloo"
FAILED = "a broadcast of weights reached"


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


TINY = {"type": "text", "tiny": {**SHAPE, "alphabet": "0123456789+-*=?;"}, "bf16": False}
KINDS = {
    "robots": (robots, {}),
    "ahead": (robots, {"runner": {"max_staleness": 1}}),
    "text": (words, {}),
    "lora": (words, {"policy": {**TINY, "lora": {"r": 2}}}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_broadcasts_has_the_metrics_of_one_process(kind, tmp_path, capfd):
    study, given = KINDS[kind]
    expected = recorded(run(study(tmp_path, "local", **given))[0])
    placed = study(tmp_path, "ray", **given, **on_ray(2, weight_transfer="collective"))
    assert recorded(run(placed)[0]) == expected
    said = capfd.readouterr().err
    assert f"2 {BY_BROADCAST}" in said
    assert FAILED not in said


def test_several_learners_send_the_weights_that_they_have_together(tmp_path, capfd):
    learners = {"learners": 2, "learner_cpus": 0.5}
    expected = recorded(run(words(tmp_path, "stored", **on_ray(1, **learners)))[0])
    found = recorded(run(words(tmp_path, "sent", **on_ray(1, **learners, weight_transfer="collective")))[0])
    assert found == expected
    said = capfd.readouterr().err
    assert said.count(f"1 {BY_BROADCAST}") == 1
    assert FAILED not in said


@pytest.mark.parametrize("order", ["kill", "stop"])
def test_a_collector_lost_during_a_broadcast_changes_no_number(order, tmp_path, capfd):
    """The others do not wait for the time limit when one is killed, and for no longer when one hangs."""
    env = {"task": f"mortal_receiver:{mortal_receiver.ID}", "kwargs": {"folder": str(tmp_path / "orders")}}
    orders = ordered(tmp_path, order, 0)
    expected = recorded(run(robots(tmp_path, "local", env=env))[0])
    ordered(tmp_path, order, 1)
    limits = {"kill": {"weight_timeout": 900}, "stop": {"weight_timeout": 5, "task_timeout": 20}}[order]
    study = robots(tmp_path, "ray", env=env, **on_ray(2, weight_transfer="collective", **limits))
    (tmp_path / "ray").mkdir()
    loop = Loop(study, tmp_path / "ray")
    loop.run()
    assert recorded(tmp_path / "ray") == expected
    assert not list(orders.iterdir())
    assert loop.collector.replaced == 1
    said = capfd.readouterr().err
    assert said.count(FAILED) == 1
    assert "the next update forms a new group" in said
    assert loop.collector._sender.groups >= 2


def test_broadcasts_that_fail_again_and_again_are_given_up(tmp_path, capfd, monkeypatch):
    expected = recorded(run(robots(tmp_path, "local"))[0])
    monkeypatch.setattr("guerdon.engines.ray_collector.TCPStore", _closed_store)
    assert recorded(run(robots(tmp_path, "ray", **on_ray(2, weight_transfer="collective", weight_timeout=2)))[0]) == (
        expected
    )
    said = capfd.readouterr().err
    assert said.count(FAILED) == 3
    assert said.count("no other broadcast is tried in this run") == 1


def _closed_store(*args, is_master, **options):
    """The store of the run, which the process of the run cannot reach itself."""
    from torch.distributed import TCPStore

    if not is_master:
        raise RuntimeError("the store cannot be reached")
    return TCPStore(*args, is_master=is_master, **options)


def test_without_gpus_nothing_is_broadcast_unless_it_is_asked_for(tmp_path, capfd):
    run(robots(tmp_path, "ray", **on_ray(1)))
    assert BY_BROADCAST not in capfd.readouterr().err
