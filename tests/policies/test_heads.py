"""Heads: samples have the densities that they are given, masks hold in both, and a tanh at its bound stays finite."""

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from guerdon.policies.robots.heads import ActionUnits, Categorical, Gaussian, Squashed
from guerdon.worlds.spaces import action_bounds, choices

RNG = np.random.default_rng


def tensor(array):
    return torch.from_numpy(np.asarray(array, np.float32))


def test_a_gaussian_draws_what_its_density_says():
    head = Gaussian(torch.nn.Parameter(torch.tensor([-0.5, 0.3])), ActionUnits(np.float32([1, 0]), np.float32([2, 1])))
    mean = np.tile(np.float32([[0.4, -2.0]]), (50_000, 1))
    action = head.act(mean, RNG(0))
    assert np.allclose(action.values, [1, 0] + np.float32([2, 1]) * action.record)
    assert np.allclose(action.record.std(0), np.exp([-0.5, 0.3]), rtol=0.02)
    frozen = head.frozen()(mean[:9], RNG(3), False, None)
    assert np.allclose(frozen.record, head.act(mean[:9], RNG(3)).record, atol=1e-6)
    expected = stats.norm([0.4, -2.0], np.exp([-0.5, 0.3])).logpdf(action.record[:5]).sum(1)
    assert np.allclose(head.log_prob(tensor(mean[:5]), tensor(action.record[:5])).detach(), expected, atol=1e-4)
    with torch.no_grad():
        head.log_std.fill_(-9.0)
    assert not np.allclose(head.frozen()(mean[:9], RNG(3), False, None).record, frozen.record), "a copy, not the policy"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 1000), st.booleans())
def test_a_categorical_is_a_softmax_over_what_is_allowed(counts, seed, masked):
    rng, head = RNG(seed), Categorical(tuple(counts))
    logits = rng.normal(0, 2, (1, sum(counts))).astype(np.float32)
    allowed = rng.random((1, sum(counts))) < 0.6 if masked else None
    starts = np.cumsum([0, *counts[:-1]])
    parts, likely = [], []
    for start, n in zip(starts, counts, strict=True):
        part, own = logits[0, start : start + n].astype(float), np.ones(n, bool)
        if masked and allowed[0, start : start + n].any():
            own = allowed[0, start : start + n]
        weights = np.where(own, np.exp(part - part.max()), 0)
        parts.append(weights / weights.sum())
        likely.append(int(np.argmax(np.where(own, part, -np.inf))))
    drawn = head.act(
        np.repeat(logits, 20_000, 0), rng, False, None if allowed is None else np.repeat(allowed, 20_000, 0)
    )
    assert drawn.values.dtype == np.int64
    for k, p in enumerate(parts):
        share = np.bincount(drawn.values[:, k], minlength=len(p)) / 20_000
        assert np.abs(share - p).max() < 5 * np.sqrt(0.25 / 20_000)
        assert (share[p == 0] == 0).all(), "a value that is not allowed is never taken"
    assert head.act(logits, rng, True, allowed).values.tolist() == [likely]
    mask = None if allowed is None else torch.from_numpy(allowed)
    wanted = sum(np.log(p[drawn.values[0, k]]) for k, p in enumerate(parts))
    found = head.log_prob(tensor(logits), torch.from_numpy(drawn.values[:1]), mask)
    assert found.tolist() == pytest.approx([wanted], abs=1e-5)
    entropy = -sum((p[p > 0] * np.log(p[p > 0])).sum() for p in parts)
    assert head.entropy(tensor(logits), mask).tolist() == pytest.approx([entropy], abs=1e-5)


def test_gradients_through_masks_are_numbers():
    head, logits = Categorical((3, 2)), torch.zeros(2, 5, requires_grad=True)
    allowed = torch.tensor([[True, False, True, False, True], [False] * 5])  # the last: an episode that is over
    loss = head.log_prob(logits, torch.tensor([[2, 1], [1, 0]]), allowed).sum() + head.entropy(logits, allowed).sum()
    loss.backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 1] == 0
    assert logits.grad[0, 3] == 0


def test_a_network_that_gives_no_numbers_shows_in_the_action():
    values = Categorical((3,)).act(np.float32([[0, 1, 0], [np.nan, 0, 0]]), RNG(0)).values
    assert np.isfinite(values[0]).all()
    assert np.isnan(values[1]).all()


def test_a_squashed_gaussian_has_the_density_of_its_actions():
    head, outputs = Squashed(1), np.float32([[0.3, -0.4]])  # mean 0.3, log deviation -0.4

    def density(action):
        record = torch.tensor([[np.arctanh(action)]], dtype=torch.float64)
        return float(head.log_prob(torch.from_numpy(outputs).double(), record).exp())

    total, _ = integrate.quad(density, -1 + 1e-9, 1 - 1e-9)
    assert total == pytest.approx(1.0, abs=1e-3)
    action = head.act(np.repeat(outputs, 50_000, 0), RNG(1))
    below, _ = integrate.quad(density, -1 + 1e-9, 0.5)
    assert (action.values < 0.5).mean() == pytest.approx(below, abs=0.01)
    assert np.allclose(action.values, np.tanh(action.record))
    noise = torch.randn(7, 1)
    values, log_probs = head.sample(tensor(np.repeat(outputs, 7, 0)), noise)
    mean, std = 0.3, np.exp(-0.4)
    again = head.log_prob(tensor(np.repeat(outputs, 7, 0)), mean + float(std) * noise)
    assert torch.allclose(log_probs, again, atol=1e-5)
    assert torch.allclose(values, (mean + float(std) * noise).tanh(), atol=1e-6)


def test_a_squashed_action_at_its_bound_has_a_finite_density_and_gradient():
    head, outputs = Squashed(2, ActionUnits(np.float32([5, 0]), np.float32([5, 1]))), torch.full((1, 4), 2.0)
    outputs[:, :2] = 30.0
    action = head.act(outputs.numpy(), RNG(0), True)
    assert action.values.tolist() == [[10.0, 1.0]], "the bounds of the environment"
    outputs.requires_grad_()
    head.log_prob(outputs, torch.from_numpy(action.record)).sum().backward()
    assert torch.isfinite(outputs.grad).all()
    assert torch.isfinite(head.log_prob(outputs, torch.from_numpy(action.record))).all()


def test_spaces_of_actions():
    box, discrete = gymnasium.spaces.Box(-2, 1, (3,)), gymnasium.spaces.MultiDiscrete([4, 2])
    assert choices(box) is None
    assert choices(discrete) == (4, 2)
    assert [b.tolist() for b in action_bounds(discrete)] == [[0, 0], [3, 1]]
    assert [b.tolist() for b in action_bounds(box)] == [[-2] * 3, [1] * 3]
