"""Reward workers: the metrics of one process for any number of them, also when they die or hang."""

import pytest
from pydantic import ValidationError
from ray_studies import judged, on_ray, ordered, recorded, robots, words

from guerdon.errors import CheckpointError
from guerdon.rl.loop import Loop
from guerdon.rl.run import run
from tables import refuses

ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def study(folder, name, text, **more):
    kind = words if text else robots
    return kind(folder, name, reward=judged(ordered(folder, "kill", 0), text=text), **more)


@pytest.mark.parametrize("text", [False, True], ids=["robots", "text"])
def test_any_number_of_workers_gives_the_metrics_of_one_process(text, tmp_path):
    expected = recorded(run(study(tmp_path, "local", text))[0])
    for workers in (1, 3):
        placed = on_ray(1, reward_workers=workers, reward_worker_cpus=0.25)
        assert recorded(run(study(tmp_path, f"ray{workers}", text, **placed))[0]) == expected
    assert (tmp_path / "local" / "failures.jsonl").read_text().count("as ordered") > 5
    failures = [(tmp_path / name / "failures.jsonl").read_bytes() for name in ("local", "ray1", "ray3")]
    assert len(set(failures)) == 1


@pytest.mark.parametrize(("order", "count"), [("kill", 3), ("stop", 2)])
def test_workers_that_die_or_hang_change_no_number(order, count, tmp_path):
    expected = recorded(run(study(tmp_path, "local", text=False))[0])
    orders = ordered(tmp_path, order, count)
    placed = on_ray(1, reward_workers=2, reward_worker_cpus=0.5, task_timeout=10)
    (tmp_path / "ray").mkdir()
    loop = Loop(study(tmp_path, "ray", False, **placed), tmp_path / "ray")
    loop.run()
    assert recorded(tmp_path / "ray") == expected
    assert not list(orders.iterdir()), "every order was carried out"
    assert (loop.parts.reward_models._actors.replaced, loop.collector.replaced) == (count, 0)


def test_collectors_ahead_and_workers_give_the_metrics_of_one_process(tmp_path):
    runner = {"max_staleness": 1}
    expected = recorded(run(study(tmp_path, "local", False, runner=runner))[0])
    orders = ordered(tmp_path, "kill", 1)
    placed = on_ray(2, collector_cpus=0.5, reward_workers=2, reward_worker_cpus=0.25)
    assert recorded(run(study(tmp_path, "ray", False, runner=runner, **placed))[0]) == expected
    assert not list(orders.iterdir())


def test_workers_without_room_are_refused(tmp_path):
    placed = on_ray(1, reward_workers=2, reward_worker_resources={"judge": 1}, start_timeout=1)
    with refuses("cluster.reward_workers", "1 judge each"):
        run(study(tmp_path, "none", False, **placed))


def test_a_model_that_cannot_be_loaded_is_refused_as_in_one_process(tmp_path):
    reward = judged(tmp_path) | {"model": {"model_type": "resnet", "checkpoint_path": str(tmp_path / "none")}}
    messages = []
    for more in ({}, on_ray(1, reward_workers=1)):
        with pytest.raises(CheckpointError) as found:
            run(robots(tmp_path, f"wrong{len(messages)}", reward=reward, **more))
        messages.append(str(found.value))
    assert messages[0] == messages[1]


def test_more_workers_than_parts_are_refused(tmp_path):
    with pytest.raises(ValidationError, match=r"reward\.scoring_shards"):
        study(tmp_path, "none", False, **on_ray(1, reward_workers=5))
