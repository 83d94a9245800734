import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.policies.control import ControlPolicy
from guerdon.rl.learner import Batch, FlatAdam, _losses, scheduled
from guerdon.rl.losses import approx_kl, masked_mean, ppo_clip_loss, value_loss
from guerdon.rl.text_learner import _policy_terms
from guerdon.settings.policy import AlgorithmSettings, MLPPolicySettings
from guerdon.settings.text_algorithm import TextAlgorithmSettings

torch.set_num_threads(1)


def test_clipped_surrogate_by_hand():
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    loss, clipped = ppo_clip_loss(ratios.log(), torch.zeros(5), advantages, torch.ones(5), clip_low=0.2, clip_high=0.2)
    # min(r A, clip(r) A): 1.2, -1.5, 0.5, -0.8, 2.2
    assert float(loss) == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2.2) / 5)
    assert float(clipped) == pytest.approx(0.8)


def test_the_upper_clip_may_differ():
    ratio = torch.tensor([1.25]).log()
    for high, expected in ((0.2, 1.2), (0.28, 1.25)):
        loss, _ = ppo_clip_loss(ratio, torch.zeros(1), torch.ones(1), torch.ones(1), clip_low=0.2, clip_high=high)
        assert float(loss) == pytest.approx(-expected)


def test_no_gradient_beyond_the_clip():
    new = torch.tensor([0.5, 0.0], requires_grad=True)
    loss, _ = ppo_clip_loss(new, torch.zeros(2), torch.ones(2), torch.ones(2), clip_low=0.2, clip_high=0.2)
    loss.backward()
    assert new.grad.tolist() == pytest.approx([0.0, -0.5])


def test_value_loss_by_hand():
    values = torch.tensor([[1.0, 0.0], [3.0, 5.0]])
    returns = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    old = torch.tensor([[0.0, 0.0], [2.5, 0.0]])
    assert float(value_loss(values, returns, mask, old, None)) == pytest.approx(0.5 * ((1 + 9) / 2 + 0))
    # clipped to old +- 0.1: 0.1 and 2.6; the larger error counts
    assert float(value_loss(values, returns, mask, old, 0.1)) == pytest.approx(0.5 * ((1 + 9) / 2 + 0))
    returns = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert float(value_loss(values, returns, mask, old, 0.1)) == pytest.approx(0.5 * ((1.9**2 + 9) / 2 + 0))


def test_kl_by_hand_and_never_negative():
    new, old = torch.tensor([math.log(2.0), 0.0]), torch.zeros(2)
    assert float(approx_kl(new, old, torch.tensor([1.0, 0.0]))) == pytest.approx(2 - 1 - math.log(2))
    assert float(masked_mean(torch.ones(2), torch.zeros(2))) == 0.0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=8), st.data())
def test_masked_entries_change_nothing(differences, data):
    new = torch.tensor(differences)
    mask = torch.tensor([float(data.draw(st.booleans())) for _ in differences])
    other = torch.where(mask > 0, new, new + 1.0)
    old, advantages = torch.zeros_like(new), torch.linspace(-1, 1, len(new))
    for a, b in ((new, other),):
        first = ppo_clip_loss(a, old, advantages, mask, clip_low=0.2, clip_high=0.2)
        second = ppo_clip_loss(b, old, advantages, mask, clip_low=0.2, clip_high=0.2)
        assert float(first[0]) == float(second[0])
    assert float(approx_kl(new, old, mask)) >= -1e-6


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
        assert optimizer.step(0.5, 0.1) == pytest.approx(float(norm), rel=1e-5)
    for a, b in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    before = optimizer.flat.clone()
    optimizer.zero_grad()
    (flat(x).sum() * math.nan).backward()
    assert optimizer.step(0.5, 0.1) is None
    assert torch.equal(before, optimizer.flat)


def test_learning_rate_schedules():
    assert [scheduled(2.0, "constant", p) for p in (0, 1)] == [2.0, 2.0]
    assert [scheduled(2.0, "linear", p) for p in (0, 0.5, 1.5)] == [2.0, 1.0, 0.0]
    np.testing.assert_allclose([scheduled(2.0, "cosine", p) for p in (0, 0.5, 1)], [2, 1, 0], atol=1e-12)


# Ratios 5, 0.5, 5 and advantages -2, -2 and 2: max(10, 2.4), max(1, 1.6) and -min(10, 2.4); c = 3 caps the first
DUAL_CLIP = [(None, [10.0, 1.6, -2.4]), (3.0, [6.0, 1.6, -2.4])]


@pytest.mark.parametrize(("c", "expected"), DUAL_CLIP)
def test_clip_ratio_c_reaches_the_loss_of_a_control_policy(c, expected):
    policy = ControlPolicy(MLPPolicySettings(), (2,), 1, ())
    x, actions = torch.zeros(3, 2), torch.tensor([[0.1], [0.2], [0.3]])
    old = policy.log_prob(x, actions).detach() - torch.tensor([5.0, 0.5, 5.0]).log()
    none = torch.zeros(3, 0)
    batch = Batch(x, actions, old, torch.tensor([-2.0, -2.0, 2.0]), torch.ones(3), none, none, none)
    _, facts = _losses(policy, batch, AlgorithmSettings(normalize_advantages=False, clip_ratio_c=c))
    assert facts["policy_loss"] == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert facts["clip_fraction"] == 1


@pytest.mark.parametrize(("c", "expected"), DUAL_CLIP)
def test_clip_ratio_c_reaches_the_loss_of_a_language_model(c, expected):
    new, advantages = torch.tensor([[5.0, 0.5, 5.0]]).log(), torch.tensor([[-2.0, -2.0, 2.0]])
    settings = TextAlgorithmSettings(num_epochs=2, clip_ratio_c=c)
    terms, _ = _policy_terms(new, torch.zeros(1, 3), advantages, torch.ones(1, 3), settings)
    np.testing.assert_allclose(terms[0], expected, rtol=1e-5)
