"""Learners as actors of a Ray cluster: the numbers of one learner, and no hang and no other number when one dies."""

import json
import os
import signal
from pathlib import Path

import pytest
from pydantic import ValidationError
from ray_studies import on_ray, recorded, words

from guerdon.compute import distributed
from guerdon.errors import ClusterError, DataError
from guerdon.rl.learner import OnPolicyLearner
from guerdon.rl.run import run, run_folder
from learners import assert_alike
from tables import refuses

ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


LEARNERS = {"learners": 2, "learner_cpus": 0.5}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def end_elsewhere():
    """In all processes: those that follow are killed."""
    if not distributed.is_first():
        os.kill(os.getpid(), signal.SIGKILL)


def fail_elsewhere():
    """In all processes: those that follow meet an error, while the first one waits for them."""
    if not distributed.is_first():
        raise DataError("there is no file /data/prompts")
    distributed.wait()


def both(tmp_path, **more):
    prime = {"mini_batch_size": 8, "micro_batch_size": 4, "prime_model": {"optim": {"lr": 1e-2}}}
    return (words(tmp_path, name, reward_model=prime, **given) for name, given in (("alone", {}), ("ray", more)))


def test_learners_on_a_cluster_learn_what_one_learns(tmp_path):
    alone, placed = both(tmp_path, **on_ray(1, **LEARNERS))
    run(alone)
    run(placed)
    assert_alike(alone, placed)


def disturbed(monkeypatch, what, *updates):
    """Before these updates of a run, counted from 1 over all attempts, do `what` in all learners."""
    learn, done = OnPolicyLearner.update, []

    def update(self, *args, **options):
        if distributed.peers() == 1:  # not the part that all carry out
            done.append(None)
            if len(done) in updates:
                distributed.everywhere(what)
        return learn(self, *args, **options)

    monkeypatch.setattr(OnPolicyLearner, "update", update)


def test_a_run_whose_learners_are_killed_goes_on_by_itself(tmp_path, monkeypatch, capfd):
    alone, undisturbed = both(tmp_path, **on_ray(1, **LEARNERS))
    run(undisturbed)
    killed = undisturbed.model_copy(update={"runner": alone.runner})
    disturbed(monkeypatch, end_elsewhere, 1, 4)
    run(killed)
    assert recorded(run_folder(killed)) == recorded(run_folder(undisturbed))
    lines = [line for line in capfd.readouterr().err.splitlines() if "a learner was lost" in line]
    first, second = [line.rsplit("from ")[-1] for line in lines]
    assert first == "the start of the run"
    assert Path(second).parent == run_folder(killed) / "checkpoints"
    assert not (run_folder(killed) / "FAILED.json").exists()


def test_learners_that_are_lost_again_and_again_end_the_run(tmp_path, monkeypatch):
    alone, placed = both(tmp_path, **on_ray(1, **LEARNERS, max_replacements=1))
    run(alone)
    with monkeypatch.context() as during:
        disturbed(during, end_elsewhere, 3, 4)
        with pytest.raises(ClusterError, match=r"lost 2 times since one checkpoint.*--resume"):
            run(placed)
    assert json.loads((run_folder(placed) / "FAILED.json").read_text())["kind"] == "ProcessLostError"
    run(placed, resume=True)
    assert_alike(alone, placed)


def test_an_error_that_one_learner_meets_alone_ends_the_run_with_its_text(tmp_path, monkeypatch):
    _, placed = both(tmp_path, **on_ray(1, **LEARNERS))
    disturbed(monkeypatch, fail_elsewhere, 2)
    with pytest.raises(ClusterError, match="process 1 alone met an error: there is no file /data/prompts"):
        run(placed)


@pytest.mark.timeout(900)
def test_an_error_of_collectors_does_not_wait_for_the_loss_of_a_learner(tmp_path, monkeypatch):
    def collect(*args, **options):
        raise ClusterError("more than 0 collectors were lost")

    _, placed = both(tmp_path, **on_ray(1, **LEARNERS))
    monkeypatch.setattr("guerdon.engines.ray_collector.RayCollector.collect", collect)
    monkeypatch.setattr("guerdon.engines.ray_learners._NOTICE", 3600.0)
    with pytest.raises(ClusterError, match="more than 0 collectors were lost"):
        run(placed)


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValidationError, match="learner_cpus"):
        words(tmp_path, "run", engine="ray", cluster={"learner_cpus": 2})
    with refuses("cluster.learners", "room for 0 of 1 further learners"):
        run(words(tmp_path, "run", **on_ray(1, learners=2, learner_cpus=64, start_timeout=1)))
    with refuses("cluster.learner_gpus", "all learners compute on a GPU, or none does"):
        run(words(tmp_path, "run", **on_ray(1, **LEARNERS, learner_gpus=1)))
