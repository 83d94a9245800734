import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.compute.optimizers import AdamW, FlatAdam
from guerdon.compute.schedules import scheduled
from guerdon.policies.robots.control import ControlPolicy, StateInputs
from guerdon.rl.losses import aggregation_weights, old_kl_terms, policy_loss, ppo, value_errors
from guerdon.rl.update import Batch, update_policy
from guerdon.settings.algorithm import ControlAlgorithmSettings, TextAlgorithmSettings
from guerdon.settings.policy import MLPPolicySettings
from guerdon.worlds.spaces import columns_of_shape

torch.set_num_threads(1)


def test_clipped_surrogate_by_hand():
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    terms, numbers = ppo(ratios.log(), torch.zeros(5), advantages, clip_range=0.2, clip_range_high=0.2)
    np.testing.assert_allclose(terms, [-1.2, 1.5, -0.5, 0.8, -2.2], rtol=1e-6)  # -min(r A, clip(r) A)
    assert numbers["clip_fraction"].tolist() == [1, 1, 1, 1, 0]


def test_the_upper_clip_may_differ():
    ratio = torch.tensor([1.25]).log()
    for high, expected in ((0.2, 1.2), (0.28, 1.25)):
        terms, _ = ppo(ratio, torch.zeros(1), torch.ones(1), clip_range=0.2, clip_range_high=high)
        assert float(terms) == pytest.approx(-expected)


def test_calls_of_a_conversation_share_its_weight():
    mask, streams = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]), torch.tensor([7, 7, 9])
    by_tokens = aggregation_weights(mask, "sequence", streams_B=streams)
    torch.testing.assert_close(by_tokens.sum(-1), torch.tensor([1 / 3, 1 / 6, 1 / 2]))
    by_length = aggregation_weights(mask, "constant", max_length=10, streams_B=streams)
    torch.testing.assert_close(by_length, mask / 20)
    with pytest.raises(ValueError, match="a constant length needs max_length"):
        aggregation_weights(mask, "constant", streams_B=streams)


def test_no_gradient_beyond_the_clip():
    new = torch.tensor([0.5, 0.0], requires_grad=True)
    terms, _ = ppo(new, torch.zeros(2), torch.ones(2), clip_range=0.2, clip_range_high=0.2)
    terms.mean().backward()
    assert new.grad.tolist() == pytest.approx([0.0, -0.5])


def test_value_errors_by_hand():
    values, old = torch.tensor([[1.0, 0.0], [3.0, 5.0]]), torch.tensor([[0.0, 0.0], [2.5, 0.0]])
    returns = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    assert value_errors(values, returns, old, None).tolist() == [[1, 0], [9, 16]]
    # clipped to old +- 0.1: 0.1 and 2.6; the larger error counts
    assert value_errors(values, returns, old, 0.1).tolist() == [[1, 0], [9, 16]]
    clipped = value_errors(values, torch.tensor([[2.0, 0.0], [0.0, 1.0]]), old, 0.1)
    np.testing.assert_allclose(clipped, [[1.9**2, 0], [9, 16]], rtol=1e-6)


def test_kl_by_hand():
    assert float(old_kl_terms(torch.tensor(math.log(2.0)), torch.tensor(0.0))) == pytest.approx(2 - 1 - math.log(2))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=8))
def test_the_kl_is_never_negative(differences):
    assert (old_kl_terms(torch.tensor(differences), torch.zeros(len(differences))) >= -1e-6).all()


@pytest.mark.parametrize("clip_range_value", [None, 0.1])
def test_masked_steps_and_unknown_values_change_nothing(clip_range_value):
    mask, known = torch.tensor([[1.0], [0.0], [1.0]]), torch.tensor([[[1.0]], [[0.0]], [[0.0]]])
    found = []
    for number in (0.0, 50.0):
        torch.manual_seed(0)
        policy = ControlPolicy(MLPPolicySettings(hidden=(4,)), columns_of_shape((2,)), 1, ("env",))
        inputs = StateInputs(torch.randn(3, 2), torch.randn(3, 1))
        hidden = torch.where(mask > 0, 1.0, number)
        columns = {"values": known * 0.1, "returns": torch.where(known > 0, 1.0, number), "value_mask": known}
        batch = Batch(inputs, mask, hidden, torch.zeros(3, 1), **columns)
        settings = ControlAlgorithmSettings(minibatch_size=3, num_epochs=2, clip_range_value=clip_range_value)
        metrics = update_policy(
            policy, FlatAdam(policy, 0.1), batch, settings, np.random.default_rng(0), learning_rate=0.1
        )
        found.append((metrics, policy.tensors()))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(v, found[1][1][k]) for k, v in found[0][1].items())


def test_flat_adam_is_adam_and_skips_what_is_not_finite():
    torch.manual_seed(0)
    plain, flat = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    flat.load_state_dict(plain.state_dict())
    reference = torch.optim.Adam(plain.parameters(), lr=0.1, eps=1e-5)
    optimizer = FlatAdam(flat, 0.1)
    x = torch.randn(5, 3)
    for _ in range(3):
        reference.zero_grad()
        plain(x).square().mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        reference.step()
        optimizer.zero_grad()
        flat(x).square().mean().backward()
        assert optimizer.step(0.0, 0.5, 0.1) == pytest.approx(float(norm), rel=1e-5)
    for a, b in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    before = optimizer.flat.clone()
    optimizer.zero_grad()
    (flat(x).sum() * math.nan).backward()
    assert optimizer.step(0.0, 0.5, 0.1) is None
    assert torch.equal(before, optimizer.flat)


def test_learning_rate_schedules():
    assert [scheduled(2.0, "constant", p) for p in (0, 1)] == [2.0, 2.0]
    assert [scheduled(2.0, "linear", p) for p in (0, 0.5, 1.5)] == [2.0, 1.0, 0.0]
    np.testing.assert_allclose([scheduled(2.0, "cosine", p) for p in (0, 0.5, 1)], [2, 1, 0], atol=1e-12)


# Ratios 5, 0.5, 5 and advantages -2, -2 and 2: max(10, 2.4), max(1, 1.6) and -min(10, 2.4); c = 3 caps the first
DUAL_CLIP = [(None, [10.0, 1.6, -2.4]), (3.0, [6.0, 1.6, -2.4])]


@pytest.mark.parametrize(("c", "expected"), DUAL_CLIP)
def test_clip_ratio_c_reaches_the_loss_of_a_control_policy(c, expected):
    policy = ControlPolicy(MLPPolicySettings(), columns_of_shape((2,)), 1, ())
    inputs = StateInputs(torch.zeros(3, 2), torch.tensor([[0.1], [0.2], [0.3]]))
    old = policy.evaluate(inputs).log_probs.detach() - torch.tensor([[5.0], [0.5], [5.0]]).log()
    batch = Batch(inputs, torch.ones(3, 1), torch.tensor([[-2.0], [-2.0], [2.0]]), old)
    settings = ControlAlgorithmSettings(normalize_advantages=False, clip_ratio_c=c, num_epochs=1)
    facts = update_policy(policy, FlatAdam(policy, 0.0), batch, settings, np.random.default_rng(0), learning_rate=0.0)
    assert facts["policy_loss"] == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert facts["clip_fraction"] == 1


@pytest.mark.parametrize(("c", "expected"), DUAL_CLIP)
def test_clip_ratio_c_reaches_the_loss_of_a_language_model(c, expected):
    new, advantages = torch.tensor([[5.0, 0.5, 5.0]]).log(), torch.tensor([[-2.0, -2.0, 2.0]])
    settings = TextAlgorithmSettings(num_epochs=2, clip_ratio_c=c)
    terms, _ = policy_loss(settings)(new, torch.zeros(1, 3), advantages, torch.ones(1, 3))
    np.testing.assert_allclose(terms[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "kind", [lambda m: FlatAdam(m, 1e-3), lambda m: AdamW([*m.parameters()], 1e-3)], ids=["flat", "AdamW"]
)
def test_adam_leaves_no_denormal_numbers(kind):
    """A unit that died has a gradient of 0 for good; its mean would stay denormal, where a CPU is slow."""
    module = torch.nn.Linear(4, 1, bias=False)
    optimizer = kind(module)
    if module.weight.grad is None:
        module.weight.grad = torch.zeros_like(module.weight)
    optimizer.step(0.0, max_norm=1.0)
    state = getattr(optimizer, "_moments", None) or optimizer.optimizer.state[module.weight]
    state["exp_avg"].fill_(1e-39)
    before = module.weight.clone()
    optimizer.step(0.0, max_norm=1.0)
    assert not state["exp_avg"].any()
    assert torch.equal(module.weight, before)
    assert torch.tensor(1e-39).mul(1.0) != 0  # elsewhere they are as they were
