"""Rollouts collected ahead of the learner: which weights act, what the ratio is measured from, and exact resumption."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from guerdon.collect.shards import AheadCollector
from guerdon.errors import CheckpointError, DataError
from guerdon.rl import update as closed_form
from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from rl_clock import clock_study, lines, reader_reward, result, start
from rl_killed import kill_at
from tables import refuses, sample
from text_rl import prime, sum_study
from text_rl import result as text_result
from text_rl import start as start_text

POTENTIAL = reader_reward(shaping="potential", score_every=3)
SETUPS = {
    "gae": {},
    "refitless model": {"reward": {**POTENTIAL, "model": {"model_type": "constant", "value": 0.5}}},
    "grpo": {"algorithm": {"adv_estimator": "grpo", "group_size": 2, "minibatch_size": 8, "num_epochs": 2}},
    "shards": {"runner": {"rollout_shards": 2}},
}


def clock(folder, name, staleness, *, runner=None, **given):
    return clock_study(folder, name=name, runner={**(runner or {}), "max_staleness": staleness}, **given)


def sums(folder, name, staleness, **given):
    runner = {"max_staleness": staleness}
    return sum_study(folder, name=name, runner=runner, algorithm={"adv_estimator": "gae"}, **given)


class Numbers:
    """A collector whose rollouts say which weights acted, and how many there were before."""

    def __init__(self, rollout, fails_at=None):
        self.count, self.rollout, self.fails_at = 0, rollout, fails_at

    def collect(self, weights, *, version, warm_up):
        if self.count == self.fails_at:
            raise DataError("no prompt is left")
        self.count += 1
        metrics = {"weights": float(weights["w"]), "number": float(self.count)}
        return replace(self.rollout, version=version, metrics=metrics)

    def state(self):
        return {"count": torch.tensor(self.count)}, {}

    def restore(self, tensors, values):
        self.count = int(tensors["count"])

    def close(self):
        self.count = -1


class Weights:
    """A policy of one number."""

    def __init__(self, value):
        self.value = value

    def tensors(self):
        return {"w": torch.tensor(float(self.value))}


@pytest.fixture(scope="module")
def rollout(tmp_path_factory):
    loop = start(clock_study(tmp_path_factory.mktemp("clock")))
    found = loop.collector.collect(loop.learner.policy)
    loop.close()
    return found


@pytest.mark.parametrize("staleness", [1, 2, 5])
def test_each_rollout_is_collected_by_weights_that_are_so_many_updates_old(staleness, rollout):
    collector = AheadCollector(lambda: Numbers(rollout), staleness=staleness)
    for k in range(8):
        found = collector.collect(Weights(k), version=k)
        acted = max(0, k - staleness)
        expected = {"weights": acted, "number": k + 1, "staleness": k - acted}
        assert (found.metrics, found.version) == (expected, acted)
        if k == 4:
            tensors, values = collector.state()
    collector.close()
    again = AheadCollector(lambda: Numbers(rollout), staleness=staleness)
    again.restore(tensors, values)
    for k in range(5, 8):
        found = again.collect(Weights(k), version=k)
        assert found.metrics["weights"] == max(0, k - staleness)
        assert found.metrics["number"] == k + 1
    again.close()


def test_rollouts_for_warm_up_come_first(rollout):
    collector = AheadCollector(lambda: Numbers(rollout), staleness=1)
    assert [collector.collect(Weights(0), warm_up=True).metrics["number"] for _ in range(2)] == [1, 2]
    assert collector.collect(Weights(0)).metrics["number"] == 3
    collector.close()


def test_what_goes_wrong_in_the_thread_is_raised_where_its_rollout_is_due(rollout):
    collector = AheadCollector(lambda: Numbers(rollout, fails_at=1), staleness=1)
    collector.collect(Weights(0))
    with pytest.raises(DataError, match="no prompt"):
        collector.collect(Weights(1), version=1)
    collector.close()


def test_a_state_of_a_run_without_staleness_is_refused(rollout):
    collector = AheadCollector(lambda: Numbers(rollout), staleness=1)
    with pytest.raises(CheckpointError, match="max_staleness"):
        collector.restore({}, {"rollouts": 3})
    collector.close()


@pytest.mark.parametrize("setup", sample(SETUPS, "refitless model", "shards"))
def test_a_stale_run_repeats_and_resumes_to_the_same_bytes(setup, tmp_path):
    given = SETUPS[setup]
    for name in ("one", "two"):
        start(clock(tmp_path, name, 2, **given), reader="own").run()
    one, two = (result(clock(tmp_path, name, 2, **given)) for name in ("one", "two"))
    assert one == two
    stale = [row["staleness"] for row in lines(clock(tmp_path, "one", 2, **given)) if row["kind"] == "train"]
    assert stale == [0, 1, *[2] * (len(stale) - 2)]
    study = clock(tmp_path, "cut", 2, **given)
    kill_at(start(study, reader="own"), "iterate", 6)
    start(study, resume=True, reader="own").run()
    assert result(study) == one


def test_a_language_model_acts_beside_the_one_that_learns(tmp_path):
    reward_model = prime(prime_granularity="token")
    for name in ("one", "two"):
        start_text(sums(tmp_path, name, 1, reward_model=reward_model)).run()
    one, two = (text_result(sums(tmp_path, name, 1, reward_model=reward_model)) for name in ("one", "two"))
    assert one == two
    study = sums(tmp_path, "cut", 1, reward_model=reward_model)
    kill_at(start_text(study), "iterate", 3)
    start_text(study, resume=True).run()
    assert text_result(study) == one
    rows = [row for row in lines(study) if row["kind"] == "train"]
    assert rows[0]["approx_kl"] < 1e-10 < 1e-6 < rows[-1]["approx_kl"]


def test_the_ratio_is_measured_from_the_weights_that_acted(tmp_path, monkeypatch):
    """One gradient step on the whole rollout: its loss is -mean(clipped ratio x advantage) by hand."""
    algorithm = {"rollout_steps": 12, "minibatch_size": 24, "num_epochs": 1, "clip_range": 0.2}
    loop = Loop(clock(tmp_path, "ratio", 1, algorithm=algorithm), run_folder(clock(tmp_path, "ratio", 1)))
    learner, seen = loop.learner, []
    loop.iterate()
    rollout = loop.collector.collect(learner.policy, version=learner.version)
    assert (rollout.version, learner.version) == (0, 1)
    with torch.no_grad():
        new = learner.policy.evaluate_all(learner.policy.prepared(rollout.inputs), micro=256).log_probs.reshape(-1)
    old = torch.from_numpy(rollout.log_probs.reshape(-1))
    assert not torch.allclose(new, old), "the policy has moved since"
    measured = {name: source.measure(rollout) for name, source in loop.sources.items()}
    original = closed_form.add_gradients

    def spied(policy, inputs, columns, *more):
        seen.append((columns["old_log_probs"].reshape(-1), columns["advantages"].reshape(-1)))
        return original(policy, inputs, columns, *more)

    monkeypatch.setattr(closed_form, "add_gradients", spied)
    metrics = learner.update(rollout, measured, loop.parts.terms, progress=0.0)
    loop.close()
    ((denominator, advantages),) = seen
    assert np.array_equal(np.sort(denominator.numpy()), np.sort(old.numpy()))
    ratio = (new - old).exp()
    mask = torch.from_numpy(rollout.mask.reshape(-1))
    order = torch.argsort(torch.argsort(old))  # the one gradient step takes rows in their own order
    assert torch.equal(denominator[torch.argsort(denominator)][order], old)
    terms = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    assert metrics["policy_loss"] == pytest.approx(float((terms * mask).sum() / mask.sum()), rel=1e-4, abs=1e-6)


def test_the_first_update_is_that_of_a_synchronous_run(tmp_path):
    for name, staleness in (("sync", 0), ("stale", 1)):
        start(clock(tmp_path, name, staleness)).run()
    sync, stale = (lines(clock(tmp_path, name, n))[0] for name, n in (("sync", 0), ("stale", 1)))
    assert stale.pop("staleness") == 0
    assert stale == sync


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"reward": {**POTENTIAL, "overlap_steps": 3}}, "reward.overlap_steps"),
        ({"env": {"data_collection": {"enabled": True, "save_dir": "x"}}}, "env.data_collection"),
    ],
)
def test_what_does_not_fit_is_refused(given, key, tmp_path):
    with refuses(key):
        clock(tmp_path, "refused", 1, **given)


def test_a_loss_without_a_ratio_is_refused(tmp_path):
    with refuses("algorithm.loss"):
        sum_study(tmp_path, algorithm={"adv_estimator": "reinforce"}, runner={"max_staleness": 1})
