"""How far a rollout of Ray's collectors is reaches the line of progress while it is collected."""

import json
import os

import held_corridor
import pytest
from ray_studies import on_ray, recorded, robots

from guerdon.collect import rollout_progress
from guerdon.collect.rollout_progress import RolloutProgress
from guerdon.engines import ray_cluster
from guerdon.engines.ray_progress import Board, Reports, _Written
from guerdon.rl.loop import Loop
from guerdon.rl.run import run, run_folder
from text_rl import letter_study

ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def held(folder, name, **more):
    """One rollout of ten steps of four copies, in two shards."""
    (folder / "pipes").mkdir(exist_ok=True)
    env = {
        "task": f"{held_corridor.__name__}:{held_corridor.ID}", "native_reward": "dense",
        "kwargs": {"folder": str(folder / "pipes")},
    }  # fmt: skip
    return robots(folder, name, env=env, runner=ONE, **more)


ONE = {"total_steps": 16, "eval_every": 16, "checkpoint_every": 16}


def looped(study, folder):
    folder.mkdir(parents=True)
    loop = Loop(study, folder)
    loop.run()
    return loop


def lines(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("word", ["go", "kill"])
def test_the_run_hears_of_a_rollout_that_is_not_over(word, tmp_path, monkeypatch):
    expected = recorded(run(held(tmp_path, "local"))[0])
    pipes = tmp_path / "pipes"
    for shard in range(2):
        os.mkfifo(pipes / f"hold{shard}")
    said = []

    def tell(text):
        said.append(text)
        if text.startswith("this rollout: steps 24, episodes 4, "):  # both collectors wait
            for pipe in sorted(pipes.glob("taken-*")):
                pipe.write_text(word if pipe.name == "taken-hold0" else "go")
                pipe.unlink()

    monkeypatch.setattr(rollout_progress, "tell", tell)
    monkeypatch.setattr(ray_cluster, "LOOK_EVERY", 0.01)
    loop = looped(held(tmp_path, "ray", **on_ray(2)), tmp_path / "ray")
    assert recorded(tmp_path / "ray") == expected
    assert loop.collector.replaced == (word == "kill")
    rows = lines(tmp_path / "ray", "episodes")
    found = [row["return/env"] for row in rows]
    assert said[-1] == str(RolloutProgress(40, 8, sum(found)))
    early = [str(RolloutProgress(24, 4, sum(some))) for some in (found[::2], found[:4])]
    assert set(early) & set(said)
    assert all(int(text.split()[3].strip(",")) <= 40 for text in said), "no part is counted twice"


@pytest.mark.parametrize("agent", [False, True])
def test_language_models_report_what_they_have_answered(agent, tmp_path, monkeypatch):
    """Also conversations; a part of the rollout that is there already is shown while others are collected."""
    said = []
    monkeypatch.setattr(rollout_progress, "tell", said.append)
    led = {"agent": {"type": "agent_parts:Counting", "max_turns": 3, "params": {"paid": False}}} if agent else {}
    study = letter_study(tmp_path, name="ray", runner={**ONE, "rollout_shards": 2}, **led, **on_ray(2))
    looped(study, run_folder(study))
    right = lines(run_folder(study), "metrics")[0]["accuracy_before_filter"]
    assert said[-1] == str(RolloutProgress(16, 16, 16 * right))
    assert any(text.startswith("this rollout: steps 8, episodes 8, ") for text in said)


def test_what_is_written_before_a_late_question_stays():
    board = _Written()
    board.write(2, RolloutProgress(steps=3))
    assert board.read(1) == {2: RolloutProgress(steps=3)}
    assert board.read(2) == {2: RolloutProgress(steps=3)}
    assert board.read(3) == {}


def test_a_lost_board_starts_again():
    board = Board(ray)
    try:
        ray.get(board.handle.write.remote(1, RolloutProgress(steps=3)))
        ray.kill(board.handle, no_restart=False)
        reports, found = Reports(board.handle, 2), {}
        while not found:
            reports(RolloutProgress(steps=5), False)
            found = board.known([2])
            ray.wait([board._answer], timeout=10)
        assert found == {2: RolloutProgress(steps=5)}
    finally:
        board.close()
