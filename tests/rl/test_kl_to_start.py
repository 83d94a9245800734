"""The KL of a robot's policy from the one that its run started from: gradient, schedule, resume."""

import shutil

import numpy as np
import pytest
import torch

from guerdon.policies.robots.control import save_policy
from guerdon.rl.run import run_folder
from guerdon.types import Rewards
from rl_clock import clock_study, interrupted, lines, result, start
from tables import refuses

PPO = {"rollout_steps": 12, "minibatch_size": 24, "num_epochs": 1}


@pytest.fixture
def clone(tmp_path):
    """A policy of the clock; that of another seed than runs have."""
    loop = start(clock_study(tmp_path, name="before", runner={"seed": 5}))
    save_policy(loop.learner.policy, tmp_path / "clone")
    loop.close()
    return str(tmp_path / "clone")


def study(tmp_path, clone, name="run", *, algorithm=None, **runner):
    policy = {"type": "mlp", "hidden": [8], "checkpoint": clone}
    return clock_study(
        tmp_path, name=name, policy=policy, algorithm={**PPO, **(algorithm or {})}, runner=runner,
        env={"native_reward": "dense"},
    )  # fmt: skip


def test_the_gradient_is_that_of_half_the_squared_gap(tmp_path, clone):
    """Nothing is rewarded, so that the loss is the KL alone; at the reference its gradient is 0."""
    loop = start(study(tmp_path, clone, algorithm={"kl_coef": 0.7, "value_coef": 0.0, "entropy_coef": 0.0}))
    learner, rollout = loop.learner, loop.collector.collect(loop.learner.policy)
    nothing = np.zeros(rollout.mask.shape, np.float32)
    rollout.values.update(env=nothing)
    rollout.next_values.update(env=nothing)
    paid = {"env": Rewards(nothing, np.zeros(rollout.mask.shape, np.bool_))}
    taken = []
    learner.optimizer.step = lambda *given: taken.append(learner.optimizer.flat.grad.clone()) or 0.0
    metrics = learner.update(rollout, paid, loop.parts.terms, progress=0.0)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-9)
    assert taken[0].abs().max() < 1e-6
    policy, reference = learner.policy, learner.reference
    with torch.no_grad():
        policy.pi[-1].bias += torch.tensor([0.3, -0.2])
        policy.head.log_std += 0.1
    learner.optimizer.zero_grad()
    inputs = policy.prepared(rollout.inputs)
    with torch.no_grad():
        before = reference.evaluate(reference.prepared(rollout.inputs)).log_probs
    gap = (policy.evaluate(inputs).log_probs - before) * torch.from_numpy(rollout.mask).reshape(-1, 1)
    loss = 0.7 * 0.5 * (gap**2).sum() / rollout.mask.sum()
    loss.backward()
    wanted = learner.optimizer.flat.grad.clone()
    assert wanted.abs().max() > 0.1
    metrics = learner.update(rollout, paid, loop.parts.terms, progress=0.0)
    assert metrics["kl"] == pytest.approx(loss.item() / 0.7, rel=1e-5)
    assert torch.allclose(taken[1], wanted, atol=1e-6)
    loop.close()


def test_it_falls_and_is_not_computed_at_the_end(tmp_path, clone):
    algorithm = {"kl_coef": 2.0, "kl_schedule": "linear"}
    one = study(tmp_path, clone, algorithm=algorithm, total_steps=192, schedule_steps=96)
    assert one.schedules == ["algorithm.kl_schedule"]
    start(one).run()
    rows = [row for row in lines(one) if row["kind"] == "train"]
    assert [row["kl_coef"] for row in rows] == pytest.approx([2.0, 1.5, 1.0, 0.5, 0, 0, 0, 0])
    assert [("kl" in row) for row in rows] == [True] * 4 + [False] * 4


def test_it_keeps_the_policy_near_its_start(tmp_path, clone):
    """A step succeeds where the first number of the action is large, so that PPO raises it."""
    moved, algorithm = {}, {**PPO, "num_epochs": 8, "learning_rate": 0.02}
    for coef in (0.0, 20.0):
        one = clock_study(
            tmp_path, name=str(coef), policy={"type": "mlp", "hidden": [8], "checkpoint": clone},
            algorithm={**algorithm, "kl_coef": coef}, env={"native_reward": "sparse", "kwargs": {"push": 0.3}},
            runner={"total_steps": 480},
        )  # fmt: skip
        loop = start(one)
        shown = np.stack([np.arange(8), np.zeros(8)], 1).astype(np.float32)

        def action(policy, shown=shown):
            return policy.pi(policy.prepare(shown))[:, 0].mean().item()

        before = action(loop.learner.policy)
        loop.run()
        moved[coef] = action(loop.learner.policy) - before
    assert moved[0.0] > 0.5
    assert abs(moved[20.0]) < 0.2 * moved[0.0]


def test_a_killed_run_goes_on_to_the_same_bytes_where_the_clone_is_gone(tmp_path, clone):
    algorithm = {"kl_coef": 0.5, "kl_schedule": "cosine"}
    whole, cut = (study(tmp_path, clone, name, algorithm=algorithm) for name in ("whole", "cut"))
    start(whole).run()
    interrupted(cut, "update", 4)
    shutil.rmtree(clone)
    start(cut, resume=True).run()
    assert result(cut) == result(whole)


def test_from_another_run_it_is_the_policy_of_that_run(tmp_path, clone):
    first = study(tmp_path, clone, "first", total_steps=48)
    start(first).run()
    again = clock_study(
        tmp_path, name="again", algorithm={**PPO, "kl_coef": 0.5}, runner={"resume_dir": str(run_folder(first))}
    )
    loop = start(again)
    for name, value in loop.learner.reference.tensors().items():
        assert torch.equal(value, loop.learner.policy.tensors()[name]), name
    loop.close()


def test_without_it_no_byte_is_another(tmp_path, clone):
    runs = []
    for name, keys in (("left_out", {}), ("given", {"kl_coef": 0.0})):
        one = study(tmp_path, clone, name, algorithm=keys)
        start(one).run()
        runs.append(result(one))
    assert runs[0] == runs[1]


def test_what_cannot_be_is_refused(tmp_path):
    with refuses("algorithm.kl_coef"):
        clock_study(tmp_path, algorithm={**PPO, "kl_coef": 0.1})
    with refuses("kl_schedule"):
        study(tmp_path, "clone", algorithm={"kl_schedule": "linear"})
