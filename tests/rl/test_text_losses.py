import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.rl.losses import aggregation_weights, cispo, gspo, kl_terms, ppo, reinforce

torch.set_num_threads(1)
NUMBERS = st.integers(-12, 12).map(lambda n: n / 8)


@st.composite
def batches(draw):
    """New and old log-probs, advantages and a right-padded mask with possibly empty responses, as numpy."""
    b, t = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    arrays = [draw(hnp.arrays(np.float32, (b, t), elements=NUMBERS)) for _ in range(3)]
    lengths = np.array(draw(st.lists(st.integers(0, t), min_size=b, max_size=b)))
    return *arrays, np.arange(t)[None, :] < lengths[:, None]


def tensors(*arrays):
    return [torch.tensor(a) for a in arrays]


@settings(deadline=None, max_examples=60)
@given(batches())
def test_aggregation_is_the_named_mean(batch):
    values, _, _, mask = batch
    x, m = tensors(values, mask)
    lengths = mask.sum(1)
    full = lengths > 0
    expected = {
        "token": values[mask].mean() if mask.any() else 0.0,
        "sequence": np.mean([values[i][mask[i]].mean() for i in np.flatnonzero(full)]) if full.any() else 0.0,
        "constant": values[mask].sum() / (max(full.sum(), 1) * 7),
    }
    for how, value in expected.items():
        weights = aggregation_weights(m, how, max_length=7)
        assert float((x * weights).sum()) == pytest.approx(float(value), abs=1e-5)
        assert not weights[~m].any()


def test_a_constant_length_needs_the_length():
    with pytest.raises(ValueError, match="max_length"):
        aggregation_weights(torch.ones(1, 2), "constant")


@settings(deadline=None, max_examples=40)
@given(batches(), st.sampled_from(["token", "sequence", "constant"]))
def test_micro_batches_add_up_to_the_gradient_of_the_whole(batch, how):
    new, old, advantages, mask = tensors(*batch)
    weights = aggregation_weights(mask, how, max_length=9)
    whole, parts = new.clone().requires_grad_(), new.clone().requires_grad_()
    terms, _ = ppo(whole, old, advantages, clip_range=0.2, clip_range_high=0.3)
    (terms * weights).sum().backward()
    for row in range(len(new)):
        terms, _ = ppo(parts[row], old[row], advantages[row], clip_range=0.2, clip_range_high=0.3)
        (terms * weights[row]).sum().backward()
    torch.testing.assert_close(whole.grad, parts.grad)


@settings(deadline=None, max_examples=60)
@given(batches(), st.sampled_from([None, 1.5, 3.0]))
def test_ppo_terms_token_by_token(batch, dual):
    new, old, advantages, _ = batch
    terms, numbers = ppo(*tensors(new, old, advantages), clip_range=0.2, clip_range_high=0.28, clip_ratio_c=dual)
    for i, t in np.ndindex(new.shape):
        ratio, a = math.exp(float(new[i, t]) - float(old[i, t])), float(advantages[i, t])
        gain = min(ratio * a, min(max(ratio, 0.8), 1.28) * a)
        if dual is not None and a < 0:
            gain = max(gain, dual * a)
        assert float(terms[i, t]) == pytest.approx(-gain, rel=1e-4, abs=1e-5)
        assert bool(numbers["clip_fraction"][i, t]) == (ratio < 0.8 or ratio > 1.28)


def test_dual_clip_stops_the_gradient_of_an_exploded_ratio():
    new = torch.tensor([math.log(5.0)], requires_grad=True)
    for dual, gradient in ((None, 5.0), (3.0, 0.0)):
        new.grad = None
        terms, _ = ppo(new, torch.zeros(1), -torch.ones(1), clip_range=0.2, clip_range_high=0.2, clip_ratio_c=dual)
        terms.sum().backward()
        assert float(new.grad) == pytest.approx(gradient)


@settings(deadline=None, max_examples=60)
@given(batches(), st.sampled_from([0.05, 0.5]))
def test_gspo_is_its_sequence_objective_in_value_and_gradient(batch, clip):
    new, old, advantages, mask = batch
    per_response = advantages[:, 0]  # one advantage per response
    leaf = torch.tensor(new, requires_grad=True)
    spread = torch.tensor(per_response)[:, None].expand(new.shape)
    terms, numbers = gspo(
        leaf, torch.tensor(old), spread, torch.tensor(mask).float(), clip_range=clip, clip_range_high=2 * clip
    )
    loss = (terms * aggregation_weights(torch.tensor(mask), "sequence")).sum()
    loss.backward()
    value, gradient, responses = 0.0, np.zeros(new.shape), max(int(mask.any(1).sum()), 1)
    for i in np.flatnonzero(mask.any(1)):
        n, a = int(mask[i].sum()), float(per_response[i])
        s = math.exp(float((new[i] - old[i])[mask[i]].astype(np.float64).mean()))
        clipped = min(max(s, 1 - clip), 1 + 2 * clip)
        value -= min(s * a, clipped * a) / responses
        if s == clipped or s * a < clipped * a:
            gradient[i, mask[i]] = -a * s / n / responses
        assert bool(numbers["clip_fraction"][i, 0]) == (s != clipped)
    assert float(loss.detach()) == pytest.approx(value, rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(leaf.grad.numpy(), gradient, rtol=1e-3, atol=1e-5)


def test_gspo_tokens_keep_their_own_advantage():
    new = torch.tensor([[0.2, -0.1, 7.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    terms, _ = gspo(new, torch.zeros(1, 3), torch.tensor([[1.0, -2.0, 9.0]]), mask, clip_range=1.0, clip_range_high=1.0)
    (terms * mask).sum().backward()
    s = math.exp(0.05)
    np.testing.assert_allclose(terms.detach()[0, :2], [-s, 2 * s], rtol=1e-6)
    np.testing.assert_allclose(new.grad, [[-s, 2 * s, 0]], rtol=1e-6)


def test_cispo_weighs_but_never_drops_a_token():
    ratios = torch.tensor([5.0, 0.1, 1.1])
    advantages = torch.tensor([1.0, -2.0, 3.0])
    new = ratios.log().requires_grad_()
    terms, numbers = cispo(new, torch.zeros(3), advantages, clip_range=0.5, clip_range_high=1.0)
    terms.sum().backward()
    np.testing.assert_allclose(new.grad, [-2.0, 1.0, -3.3], rtol=1e-5)
    np.testing.assert_allclose(terms.detach(), new.grad * new.detach(), rtol=1e-5)
    assert numbers["clip_fraction"].tolist() == [1, 1, 0]


@settings(deadline=None, max_examples=30)
@given(batches())
def test_on_the_acting_policy_all_losses_have_reinforces_gradient(batch):
    new, _, _, mask = tensors(*batch)
    same = torch.tensor(np.where(batch[3], batch[2][:, :1], 0))  # one advantage per response
    weights = aggregation_weights(mask, "sequence")
    gradients = []
    for terms_of in (
        lambda x: reinforce(x, same)[0],
        lambda x: ppo(x, new, same, clip_range=0.2, clip_range_high=0.2, clip_ratio_c=3.0)[0],
        lambda x: cispo(x, new, same, clip_range=0.2, clip_range_high=0.2)[0],
        lambda x: gspo(x, new, same, mask, clip_range=0.2, clip_range_high=0.2)[0],
    ):
        leaf = new.clone().requires_grad_()
        (terms_of(leaf) * weights).sum().backward()
        gradients.append(leaf.grad)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])
    assert not gradients[0][~mask].any()


@settings(deadline=None, max_examples=40)
@given(batches())
def test_padding_content_never_matters(batch):
    new, old, advantages, mask = tensors(*batch)
    other = [torch.where(mask, x, x + 1.5) for x in (new, old, advantages)]
    weights = aggregation_weights(mask, "token")
    clips = {"clip_range": 0.2, "clip_range_high": 0.3}
    for loss in (
        lambda n, o, a: ppo(n, o, a, clip_ratio_c=3.0, **clips)[0],
        lambda n, o, a: gspo(n, o, a, mask, **clips)[0],
        lambda n, o, a: cispo(n, o, a, **clips)[0],
        lambda n, o, a: reinforce(n, a)[0],
        lambda n, o, a: kl_terms(n, o, "k3"),
    ):
        first, second = ((loss(*x) * weights).sum() for x in ((new, old, advantages), other))
        assert float(first) == float(second)


def test_kl_estimators_by_hand():
    policy, ref = torch.tensor([math.log(0.6), math.log(0.4)]), torch.tensor([math.log(0.3), math.log(0.7)])
    k1, k2, k3 = (kl_terms(policy, ref, name) for name in ("k1", "k2", "k3"))
    gap = np.log([0.6 / 0.3, 0.4 / 0.7])
    np.testing.assert_allclose(k1, gap, rtol=1e-5)
    np.testing.assert_allclose(k2, gap**2 / 2, rtol=1e-5)
    np.testing.assert_allclose(k3, np.exp(-gap) - 1 + gap, rtol=1e-5)
    exact, p = 0.6 * gap[0] + 0.4 * gap[1], np.array([0.6, 0.4])
    assert float((torch.tensor(p) * k1).sum()) == pytest.approx(exact, rel=1e-5)  # unbiased
    assert float((torch.tensor(p) * k3).sum()) == pytest.approx(exact, rel=1e-5)
    assert (k3 >= 0).all()


def test_in_the_loss_only_k2_has_the_gradient_of_the_kl_and_k1_has_none():
    logits, ref = (
        torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64),
        torch.log_softmax(torch.tensor([0.0, 0.5, -1.0]), 0),
    )
    exact = logits.clone().requires_grad_()
    log_p = exact.log_softmax(0)
    (log_p.exp() * (log_p - ref)).sum().backward()
    expected = {}
    for name in ("k1", "k2", "k3"):
        leaf = logits.clone().requires_grad_()
        log_p = leaf.log_softmax(0)
        (log_p.exp().detach() * kl_terms(log_p, ref.double(), name)).sum().backward()
        expected[name] = leaf.grad
    torch.testing.assert_close(expected["k2"], exact.grad, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(expected["k1"], torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    assert not torch.allclose(expected["k3"], exact.grad, rtol=1e-2)
