"""Runs whose responses vLLM writes, with a stand-in that records what it is told."""

import numpy as np
import pytest
import torch

import fake_vllm
from guerdon.collect.text import TextCollector
from guerdon.errors import GuerdonError
from guerdon.policies.language.generate_vllm import engine_of_process
from guerdon.policies.language.text_files import load_policy
from guerdon.rl.build_text import check_text
from guerdon.rl.learner import importance_weighted
from guerdon.rl.losses import truncated_weights
from guerdon.types import Advantages, Rollout
from tables import refuses
from text_rl import LORA, letter_study, lines, prime, run_folder, start

VLLM = {"engine": "vllm"}


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(fake_vllm.FakeLLM, "vocabulary", 16)
    engine_of_process.cache_clear()
    yield
    engine_of_process.cache_clear()


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_engine_sleeps_while_the_policy_learns_and_wakes_to_its_new_weights(lora, tmp_path, monkeypatch):
    study = letter_study(
        tmp_path, generation=VLLM, policy={"lora": lora}, algorithm={"rollout_is_threshold": 1.5, "entropy_coef": 0.1},
        runner={"total_steps": 48, "eval_every": 1000, "checkpoint_every": 1000},
    )  # fmt: skip
    loop = start(study)
    engine, update = loop.collector.collector.sampler.engine, loop.learner.update
    engine._sleeps = True  # as on a GPU

    def recorded(*given, **options):
        engine._llm.calls.append("update")
        return update(*given, **options)

    monkeypatch.setattr(loop.learner, "update", recorded)
    for _ in range(3):
        loop.iterate()
    names = ["generate" if isinstance(one, list) else one[0] if isinstance(one, tuple) else one
             for one in engine._llm.calls]  # fmt: skip
    loading = "add_lora" if lora else "reload_weights"
    first = [loading, "reset", "version 0", "generate", f"sleep {1 if lora else 2}", "update"]
    again = ["wake weights", loading, "wake kv_cache", "reset", "version {}", *first[3:]]
    assert names == [*first, *(one.format(version) for version in (1, 2) for one in again)]
    loaded = [one[1] for one in engine._llm.calls if one[0] == loading]
    assert any(not torch.equal(tensor, loaded[1][name]) for name, tensor in loaded[0].items())
    loop.run()
    for row in (row for row in lines(study) if row["kind"] == "train"):
        assert row["rollout_gap_mean"] <= row["rollout_gap_p99"] <= row["rollout_gap_max"] + 1e-6
        assert 0 < row["rollout_is_mean"] <= 1.5
        assert 0 <= row["rollout_is_truncated"] <= 1
    assert '"version": 3' in max((run_folder(study) / "films").glob("*.json")).read_text()


@pytest.mark.parametrize("kind", ["gae", "remax", "prime"])
def test_values_greedy_responses_and_reward_models_read_what_the_learner_evaluates(kind, tmp_path):
    given = {"algorithm": {"adv_estimator": "gae" if kind == "gae" else "remax", "num_epochs": 2}}
    study = letter_study(
        tmp_path, generation=VLLM, reward_model=prime() if kind == "prime" else None,
        runner={"total_steps": 32, "eval_every": 1000, "checkpoint_every": 1000}, **given,
    )  # fmt: skip
    loop = start(study)
    rollout = loop.collector.collect(loop.learner.policy)
    found = loop.learner.policy.evaluate_all(rollout.inputs.batch, micro=4)
    np.testing.assert_allclose(rollout.log_probs, found.log_probs.numpy(), atol=1e-5)
    assert (rollout.sampled_log_probs[rollout.mask] == -0.5).all()
    assert bool(rollout.values) == (kind == "gae")
    if kind != "gae":
        assert not (rollout.greedy.log_probs[rollout.greedy.mask] == -0.5).any()
    loop.run()
    assert [row["updates"] for row in lines(study) if row["kind"] == "train"] == [2, 2]


def collector_of(study, shard=0):
    return TextCollector(
        study.data, study.generation, study.text_policy, seed=1, heads=("verifier",), recompute=True, shard=shard
    )


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_collector_of_a_cluster_holds_no_copy_of_the_policy(lora, tmp_path):
    study = letter_study(tmp_path, generation=VLLM, policy={"lora": lora})
    learner = load_policy(study.text_policy, seed=7, value_heads=1)
    first, second = collector_of(study), collector_of(study, 1)
    assert {p.device.type for p in first.policy.base.model.parameters()} == {"meta"}
    engine = first.sampler.engine
    assert engine is second.sampler.engine  # one vLLM in a process, however many parts it collects
    for one in (first, second):
        rollout = one.collect(learner.tensors(), version=5)
        assert (rollout.inputs.versions_B == 5).all()
        assert rollout.version == 5
        assert not rollout.values  # the learner evaluates
        assert (rollout.log_probs[rollout.mask] == -0.5).all()
        assert rollout.inputs.take(np.arange(2)).versions_B.tolist() == [5, 5]
    assert [one[0] for one in engine._llm.calls if isinstance(one, tuple)] == ["add_lora" if lora else "reload_weights"]
    (_, weights) = engine._llm.calls[0]
    trained = {n.replace(".policy", ""): p for n, p in learner.named_parameters().items() if "value_head" not in n}
    for name, tensor in trained.items():
        assert torch.equal(weights[f"base_model.model.{name}" if lora else name], tensor.cpu())
    other = {name: tensor[:1] for name, tensor in learner.tensors().items()}
    with pytest.raises(GuerdonError, match="does not fit this configuration"):
        first.collect(other, version=6)


def test_responses_of_other_weights_than_those_asked_for_are_refused(tmp_path, monkeypatch):
    study = letter_study(tmp_path, generation=VLLM)
    weights = load_policy(study.text_policy, seed=7, value_heads=1).tensors()
    collector = collector_of(study)
    monkeypatch.setattr(fake_vllm.FakeLLM, "set_weight_version", lambda self, version: setattr(self, "version", "3"))
    with pytest.raises(GuerdonError, match=r"weights \[3\] wrote responses that weights 4 were to write"):
        collector.collect(weights, version=4)


def test_truncated_importance_weights_turn_an_expectation_over_the_sampler_into_one_over_the_policy():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    values = torch.tensor([1.0, -2.0, 4.0])
    exact = truncated_weights(p.log(), q.log(), 100.0)
    torch.testing.assert_close((q * exact * values).sum(), (p * values).sum())
    capped = truncated_weights(p.log(), q.log(), 2.0)
    torch.testing.assert_close(capped, torch.tensor([2.0, 1.0, 0.4]))
    torch.testing.assert_close((q * capped * values).sum(), torch.tensor(0.4 * 1 - 0.3 * 2 + 0.2 * 4))


def test_advantages_are_weighted_and_the_truncated_share_is_counted():
    mask = np.array([[True, True, True], [True, False, False]])
    log_probs = np.where(mask, np.log([[0.5, 0.3, 0.2], [0.6, 1, 1]]), 0).astype(np.float32)
    sampled = np.where(mask, np.log([[0.2, 0.3, 0.5], [0.1, 1, 1]]), 0).astype(np.float32)
    no = np.zeros(mask.shape, dtype=bool)
    rollout = Rollout(
        None, log_probs, mask, no, no, no, no, np.zeros(mask.shape), no, sampled_log_probs=sampled
    )  # fmt: skip
    advantages = np.where(mask, np.array([[1, 1, -1], [2, 0, 0]]), 0).astype(np.float32)
    found, facts = importance_weighted(Advantages(advantages, advantages, {}, {}), rollout, 2.0)
    np.testing.assert_allclose(found.advantages, [[2, 1, -0.4], [4, 0, 0]], rtol=1e-6)
    assert facts == {"rollout_is_mean": pytest.approx((2 + 1 + 0.4 + 2) / 4), "rollout_is_truncated": 0.5}


RAY = {"engine": "ray", "cluster": {"collectors": 2}}
REFUSED = {
    "two of them here": ({"runner": {"rollout_shards": 2}}, "runner.rollout_shards", "would need vLLM twice"),
    "ahead of the learner here": ({"runner": {"max_staleness": 1}}, "runner.max_staleness", "would need vLLM twice"),
    "ahead without weights": (
        {"runner": {"rollout_shards": 2, "max_staleness": 1}, **RAY}, "runner.max_staleness",
        "needs algorithm.rollout_is_threshold"
    ),
    "fewer GPUs than processes": (
        {
            "runner": {"rollout_shards": 2}, "engine": "ray", "cluster": {"collectors": 2, "collector_gpus": 1},
            "generation": {**VLLM, "tensor_parallel_size": 2},
        },
        "generation.tensor_parallel_size",
        "needs so many GPUs in every collector, and cluster.collector_gpus is 1",
    ),
    "weights of the local engine": (
        {"generation": {"engine": "local"}, "algorithm": {"rollout_is_threshold": 2.0}},
        "algorithm.rollout_is_threshold",
        "would do nothing with generation.engine local",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_vllm_is_refused_in_one_line(case, tmp_path):
    given, key, message = REFUSED[case]
    with refuses(key, message):
        letter_study(tmp_path, **{"generation": VLLM, **given})


def test_ahead_with_weights_is_accepted(tmp_path):
    runner = {"rollout_shards": 2, "max_staleness": 1}
    study = letter_study(tmp_path, generation=VLLM, runner=runner, algorithm={"rollout_is_threshold": 2.0}, **RAY)
    assert study.runner.max_staleness == 1


def test_heads_that_cannot_be_shared_out_are_refused_before_a_cluster_is_asked(tmp_path):
    given = {**VLLM, "tensor_parallel_size": 3}
    study = letter_study(tmp_path, generation=given, runner={"rollout_shards": 2}, **RAY)
    with refuses("generation.tensor_parallel_size", "does not divide the 2 attention heads"):
        check_text(study)
    with refuses("generation.tensor_parallel_size"):
        start(study)
