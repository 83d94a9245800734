"""Learners as actors of a Ray cluster: the numbers of one learner, and no hang when one dies."""

import json
import os

import pytest
from pydantic import ValidationError
from ray_studies import on_ray, words

from guerdon import distributed
from guerdon.errors import ClusterError, ConfigError
from guerdon.rl.learner import Learner
from guerdon.rl.run import run, run_folder
from learners import assert_alike

ray = pytest.importorskip("ray", reason="needs guerdon[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


LEARNERS = {"learners": 2, "learner_cpus": 0.5}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def end_elsewhere():
    """In all processes: those that follow are gone."""
    if not distributed.is_first():
        os._exit(9)


def both(tmp_path, **more):
    prime = {"mini_batch_size": 8, "micro_batch_size": 4, "prime_model": {"optim": {"lr": 1e-2}}}
    return (words(tmp_path, name, reward_model=prime, **given) for name, given in (("alone", {}), ("ray", more)))


def test_learners_on_a_cluster_learn_what_one_learns(tmp_path):
    alone, placed = both(tmp_path, **on_ray(1, **LEARNERS))
    run(alone)
    run(placed)
    assert_alike(alone, placed)


def test_a_run_that_lost_a_learner_goes_on(tmp_path, monkeypatch):
    alone, placed = both(tmp_path, **on_ray(1, **LEARNERS))
    run(alone)
    learn, updates = Learner.update, []

    def update_without_the_others(self, *args, **options):
        updates.append(None)
        if len(updates) == 3:
            distributed.everywhere(end_elsewhere)
        return learn(self, *args, **options)

    with monkeypatch.context() as during:
        during.setattr(Learner, "update", update_without_the_others)
        with pytest.raises(ClusterError, match="has ended"):
            run(placed)
    assert json.loads((run_folder(placed) / "FAILED.json").read_text())["kind"] == "ClusterError"
    run(placed, resume=True)
    assert_alike(alone, placed)


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValidationError, match="learner_cpus"):
        words(tmp_path, "run", engine="ray", cluster={"learner_cpus": 2})
    with pytest.raises(ConfigError, match="no room for 1 of 1 learners"):
        run(words(tmp_path, "run", **on_ray(1, learners=2, learner_cpus=64, start_timeout=1)))
    with pytest.raises(ConfigError, match="all learners compute on a GPU, or none does"):
        run(words(tmp_path, "run", **on_ray(1, **LEARNERS, learner_gpus=1)))
