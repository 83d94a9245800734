"""The update of a language model: pieces add up, formulas hold, masks and missing values do nothing."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from guerdon.compute.optimizers import AdamW
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.text_files import load_policy
from guerdon.rl.update import Batch, steps_per_update, update_policy
from guerdon.settings.algorithm import TextAlgorithmSettings
from guerdon.settings.text_policy import TextPolicySettings
from text_rl import LETTERS, tiny

torch.set_num_threads(1)
SETTINGS = TextPolicySettings.model_validate(tiny(LETTERS))


def policy_of(value_heads=0):
    policy = load_policy(SETTINGS, seed=0, value_heads=value_heads)
    return policy


def responses(n=6, seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.integers(7, 7 + len(LETTERS), k) for k in rng.integers(1, 6, n)]
    prompts = [rng.integers(7, 7 + len(LETTERS), 3) for _ in range(n)]
    batch = token_batch(prompts, rows, np.ones(n, bool), pad_id=0)
    advantages = torch.where(
        torch.from_numpy(batch.mask_B_T), torch.from_numpy(rng.normal(size=batch.mask_B_T.shape)), 0.0
    )
    return batch, advantages.float()


def algorithm(**given):
    return TextAlgorithmSettings(learning_rate=1e-2, max_grad_norm=1e9, **given)


def sgd(policy, learning_rate=1e-2):
    """Plain gradient descent behind the learner's interface."""
    optimizer = AdamW(policy.parameters(), learning_rate)
    optimizer.optimizer = torch.optim.SGD(policy.parameters(), lr=learning_rate)
    return optimizer


def taught(batch, advantages, old=None, **columns):
    return Batch(batch, torch.from_numpy(batch.mask_B_T).float(), advantages, old, **columns)


def updated(policy, batch, settings, *, optimizer=None, seed=0, learning_rate=1e-2):
    return update_policy(
        policy, optimizer or sgd(policy), batch, settings, np.random.default_rng(seed),
        learning_rate=learning_rate, max_length=8,
    )  # fmt: skip


def same(one, other, **close):
    for name, value in one.tensors().items():
        torch.testing.assert_close(value, other.tensors()[name], **close)


OLD = {"num_epochs": 1, "minibatch_size": 6}


@pytest.mark.parametrize("agg", ["token", "sequence", "constant"])
@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo", "reinforce"])
def test_micro_batches_add_up_to_the_step_they_belong_to(loss, agg):
    batch, advantages = responses()
    policies = [policy_of(), policy_of()]
    found = [
        updated(
            p, taught(batch, advantages), algorithm(loss=loss, loss_agg=agg, entropy_coef=0.1, micro_batch_size=micro)
        )
        for p, micro in zip(policies, (None, 2), strict=True)
    ]
    same(*policies, rtol=1e-5, atol=1e-6)
    for key in ("policy_loss", "grad_norm", "entropy"):
        assert found[0][key] == pytest.approx(found[1][key], rel=1e-4, abs=1e-6)
    assert found[0]["updates"] == 1
    start = policy_of()
    assert any(not torch.equal(v, start.tensors()[k]) for k, v in policies[0].tensors().items())


@pytest.mark.parametrize("loss", ["ppo", "cispo", "reinforce"])
def test_the_first_step_follows_advantage_times_score(loss):
    batch, advantages = responses()
    policy, by_hand = policy_of(), policy_of()
    updated(policy, taught(batch, advantages), algorithm(loss=loss, loss_agg="token"))
    expected = -(by_hand.log_probs(batch) * advantages.to(by_hand.device)).sum() / int(batch.mask_B_T.sum())
    expected.backward()
    with torch.no_grad():
        for p in by_hand.parameters():
            p -= 1e-2 * p.grad
    same(policy, by_hand, rtol=1e-5, atol=1e-7)


def test_a_ratio_that_left_the_clip_range_has_no_gradient_in_ppo_but_in_cispo():
    batch, _ = responses()
    advantages = torch.from_numpy(batch.mask_B_T).float()
    old = policy_of().evaluate_all(batch, micro=4, temperature=1.0).log_probs - 1.0  # every ratio is e
    for loss, moves in (("ppo", False), ("gspo", False), ("cispo", True)):
        policy = policy_of()
        metrics = updated(policy, taught(batch, advantages, old), algorithm(loss=loss, **OLD))
        assert metrics["clip_fraction"] == pytest.approx(1)
        assert metrics["approx_kl"] > 0
        start = policy_of().tensors()
        assert any(not torch.equal(v, start[k]) for k, v in policy.tensors().items()) == moves


@pytest.mark.parametrize("kl_type", ["k2", "k3"])
def test_the_kl_in_the_loss_pulls_towards_the_reference(kl_type):
    batch, _ = responses()
    nothing = torch.zeros(batch.mask_B_T.shape)
    target = torch.where(
        torch.from_numpy(batch.mask_B_T), policy_of().evaluate_all(batch, micro=8, temperature=1.0).log_probs + 0.5, 0.0
    )
    pulled = taught(batch, nothing, ref_log_probs=target)
    policy = policy_of()
    optimizer = sgd(policy)
    gaps = []
    for _ in range(4):
        settings = algorithm(kl_coef=1.0, kl_type=kl_type)
        gaps.append(updated(policy, pulled, settings, optimizer=optimizer)["kl"])
    assert all(b < a for a, b in pairwise(gaps))
    at_home = policy_of()
    itself = taught(batch, nothing, ref_log_probs=at_home.evaluate_all(batch, micro=8, temperature=1.0).log_probs)
    metrics = updated(at_home, itself, algorithm(kl_coef=1.0, kl_type=kl_type))
    assert metrics["kl"] == pytest.approx(0, abs=1e-9)
    same(at_home, policy_of(), rtol=0, atol=1e-7)


def test_what_stands_in_padding_does_not_matter():
    batch, advantages = responses()
    other = advantages.clone()
    other[~torch.from_numpy(batch.mask_B_T)] = 7.0
    one, two = policy_of(), policy_of()
    updated(one, taught(batch, advantages), algorithm())
    updated(two, taught(batch, other), algorithm())
    same(one, two, rtol=0, atol=0)


def test_an_empty_response_changes_nothing():
    batch, advantages = responses()
    longer = token_batch(
        [*batch.prompts, np.array([7])], [*batch.responses(), np.array([], np.int64)], np.ones(7, bool), pad_id=0
    )
    one, two = policy_of(), policy_of()
    for agg in ("token", "sequence", "constant"):
        updated(one, taught(batch, advantages), algorithm(loss_agg=agg))
        updated(
            two, taught(longer, torch.cat([advantages, torch.zeros(1, advantages.shape[1])])), algorithm(loss_agg=agg)
        )
    same(one, two, rtol=1e-4, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_no_step():
    batch, advantages = responses()
    advantages[0, 0] = float("inf")
    policy = policy_of()
    metrics = updated(policy, taught(batch, advantages), algorithm(minibatch_size=3))
    assert metrics["skipped_updates"] == 1
    assert metrics["updates"] == 1
    assert np.isfinite(metrics["policy_loss"])
    assert all(torch.isfinite(v).all() for v in policy.tensors().values())


def test_each_value_head_learns_its_own_source_where_it_is_known():
    batch, _ = responses(seed=3)
    mask = torch.from_numpy(batch.mask_B_T).float()
    policy = policy_of(value_heads=2)
    told = taught(
        batch,
        torch.zeros(batch.mask_B_T.shape),
        returns=torch.stack([mask * 0.7, mask * -0.4], -1),
        value_mask=torch.stack([mask, torch.zeros_like(mask)], -1),
    )
    optimizer = AdamW(policy.parameters(), 3e-2)
    settings = algorithm(adv_estimator="gae")
    losses = [updated(policy, told, settings, optimizer=optimizer, learning_rate=3e-2)["value_loss"] for _ in range(60)]
    assert losses[-1] < 0.02 * losses[0]
    with torch.no_grad():
        values = policy.evaluate(batch).values.cpu()
    assert (values[..., 0] - 0.7 * mask).abs().max() < 0.1
    assert not policy.value_head.weight[1].any()
    assert float(policy.value_head.bias[1].detach()) == 0


@pytest.mark.parametrize(("epochs", "size", "steps"), [(1, None, 1), (3, None, 3), (1, 4, 2), (2, 4, 4), (1, 9, 1)])
def test_as_many_steps_as_announced(epochs, size, steps):
    batch, advantages = responses()
    settings = algorithm(num_epochs=epochs, minibatch_size=size)
    assert steps_per_update(settings, len(batch)) == steps
    old = policy_of().evaluate_all(batch, micro=3, temperature=1.0).log_probs
    assert updated(policy_of(), taught(batch, advantages, old), settings)["updates"] == steps


def test_the_gap_between_training_and_rollout_is_measured():
    batch, advantages = responses()
    mask = torch.from_numpy(batch.mask_B_T)
    here = policy_of().evaluate_all(batch, micro=8, temperature=1.0).log_probs
    behaviour = torch.where(mask, here + 0.25, 0.0)
    behaviour[0, 0] += 0.5
    expected = float((behaviour - here).abs()[mask].mean())
    for old, settings in ((None, algorithm()), (here, algorithm(num_epochs=2))):
        metrics = updated(policy_of(), taught(batch, advantages, old, behaviour=behaviour), settings)
        assert metrics["rollout_gap_mean"] == pytest.approx(expected, rel=1e-4)
        assert metrics["rollout_gap_max"] == pytest.approx(0.75, rel=1e-4)


def test_a_stored_optimiser_goes_on_to_the_same_bits():
    batch, advantages = responses()
    policy = policy_of()
    optimizer = AdamW(policy.parameters(), 1e-2, 0.1)
    for _ in range(2):
        updated(policy, taught(batch, advantages), algorithm(), optimizer=optimizer)
    other = policy_of()
    other.load_tensors(policy.tensors())
    theirs = AdamW(other.parameters(), 1e-2, 0.1)
    theirs.load_tensors(optimizer.tensors())
    for p, o in ((policy, optimizer), (other, theirs)):
        updated(p, taught(batch, advantages), algorithm(), optimizer=o)
    same(policy, other, rtol=0, atol=0)
    fresh = policy_of()
    plain = sgd(fresh)
    plain.optimizer = torch.optim.AdamW(fresh.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        updated(fresh, taught(batch, advantages), algorithm(), optimizer=plain)
    same(policy, fresh, rtol=1e-4, atol=1e-6)
