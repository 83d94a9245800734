"""The cloning term of SAC and targets without entropy: gradients against autograd, the filter, and runs."""

import numpy as np
import pytest
import torch
from test_off_policy import both, demonstrations, learner, study

from guerdon.rl.sac_step import cloning_gradient
from guerdon.rl.sampling import Transitions
from guerdon.settings.off_policy import DQNSettings, SACSettings
from rl_clock import lines, result, start
from tables import first, refuses

ALPHA, OWN = 0.3, 10
WEIGHTS = torch.tensor([1.0, 0.5, 0.0])


def batch(own=OWN, rows=16):
    """Transitions of three actions, of which those from `own` on were demonstrated, and noise for both observations."""
    rng = np.random.default_rng(1)
    x, next_x, rewards = (torch.from_numpy(rng.standard_normal((rows, n)).astype(np.float32)) for n in (5, 5, 3))
    actions = torch.from_numpy(rng.uniform(-1, 1, (rows, 3)).astype(np.float32))
    rewards[:, 2] = 0.0
    given = torch.full((rows, 3), 1 / rows), torch.from_numpy((rng.random((rows, 1)) < 0.7).astype(np.float32))
    return Transitions(x, next_x, actions, rewards, *given, own=own), rng.standard_normal((2 * rows, 3), np.float32)


def values_of(critic, x, actions):
    """(M, N, H) by the formula of the networks, with gradient."""
    found = []
    for m in range(critic.heads.members):
        h = torch.cat([x, actions], 1)
        for k in range(3):
            h = h @ critic.heads.weights[k][m] + critic.heads.biases[k][m]
            h = h.tanh() if k < 2 else h
        found.append(h)
    return torch.stack(found)


def followed(one, values, weights):
    sums = values @ weights
    return sums.mean(0) if one.settings.num_subsample_critics else sums.min(0).values


def test_the_gradient_by_hand():
    """Two rows of one number, the second left out: d/dm 3 ((tanh m - a)^2 + 0) / 2 = 3 (tanh m - a)(1 - tanh(m)^2)."""
    mean = np.array([[0.5], [1.0]])
    greedy, shown = np.tanh(mean), np.array([[-0.25], [1.0]])
    found = cloning_gradient(greedy, shown, np.array([1.0, 0.0]), 3.0)
    assert found == pytest.approx(np.array([[3.0 * (greedy[0, 0] + 0.25) * (1 - greedy[0, 0] ** 2)], [0.0]]))


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("more", [{}, {"bc_q_filter": True}, {"backup_entropy": False, "bc_q_filter": True}])
def test_the_step_of_the_policy_is_that_of_autograd(tmp_path, plain, more):
    one = learner(tmp_path, temperature_init=ALPHA, demonstrations="x", bc_weight=0.7, **more)
    one._computes_plainly = plain
    given, noise = batch()
    backup = more.get("backup_entropy", True)
    weights = torch.tensor([1.0, 0.5, ALPHA * backup])
    outputs = one.policy.pi(given.x)
    actions, log_probs = one.head.sample(outputs, torch.from_numpy(noise[:16]))
    value = followed(one, values_of(one.critic, given.x, actions), weights)
    shown = given.actions[OWN:]
    kept = torch.ones(len(shown))
    if "bc_q_filter" in more:
        of_shown = followed(one, values_of(one.critic, given.x[OWN:], shown), weights)
        kept = (of_shown > value[OWN:]).float()
        assert 0 < kept.mean() < 1
    apart = (outputs[OWN:, :3].tanh() - shown) ** 2
    term = 0.7 * value.detach().abs().mean() * (apart * kept[:, None]).mean()
    expected = torch.autograd.grad((ALPHA * log_probs - value).mean() + term, list(one.policy.pi.parameters()))
    facts = one._step(given, noise, WEIGHTS, act=True)
    for p, wanted in zip(one.policy.pi.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, wanted, atol=1e-6)
    assert float(facts["bc_loss"]) == pytest.approx(apart.mean().item(), rel=1e-5)
    assert facts.get("bc_kept") == (pytest.approx(kept.mean().item()) if "bc_q_filter" in more else None)
    assert float(facts["temperature"]) == pytest.approx(ALPHA)


def test_with_a_subset_of_critics_the_value_is_the_mean_of_all(tmp_path):
    given, noise = batch()
    keys = {"num_critics": 3, "num_subsample_critics": 2, "demonstrations": "x", "bc_weight": 0.7, "bc_q_filter": True}
    one = learner(tmp_path, temperature_init=ALPHA, **keys)
    weights = torch.tensor([1.0, 0.5, ALPHA])
    actions, _ = one.head.sample(one.policy.pi(given.x), torch.from_numpy(noise[:16]))
    chosen = followed(one, values_of(one.critic, given.x, actions), weights)[OWN:]
    kept = followed(one, values_of(one.critic, given.x[OWN:], given.actions[OWN:]), weights) > chosen
    assert float(one._step(given, noise, WEIGHTS, act=True)["bc_kept"]) == pytest.approx(kept.float().mean().item())


@pytest.mark.parametrize("plain", [True, False])
def test_a_batch_without_demonstrations_has_no_such_term(tmp_path, plain):
    steps = []
    for name, keys in (("with", {"demonstrations": "x", "bc_weight": 0.7}), ("without", {})):
        one = learner(tmp_path / name, **keys)
        one._computes_plainly = plain
        given, noise = batch(own=16)
        assert "bc_loss" not in one._step(given, noise, WEIGHTS, act=True)
        steps.append(one.optimizers["policy"].flat.grad.clone())
    assert torch.equal(*steps)


@pytest.mark.parametrize("plain", [True, False])
def test_targets_without_the_entropy_of_later_steps(tmp_path, plain):
    """The smaller critic by the sources alone, its rewards and discounts, and no loss of the output of the entropy."""
    one = learner(tmp_path, temperature_init=ALPHA, backup_entropy=False)
    one._computes_plainly = plain
    given, noise = batch()
    actions, _ = one.head.sample(one.policy.pi(given.next_x), torch.from_numpy(noise[16:]))
    later = values_of(one.target, given.next_x, actions).detach()
    sums = later[..., 0] + 0.5 * later[..., 1]
    chosen = sums.argmin(0)
    targets = given.rewards[:, :2] + 0.9 * given.goes_on * later[chosen, torch.arange(16), :2]
    errors = values_of(one.critic, given.x, given.actions)[..., :2] - targets
    loss = 0.5 * (errors**2).mean(1).sum()
    expected = torch.autograd.grad(loss, list(one.critic.heads.parameters()))
    facts = one._step(given, noise, WEIGHTS, act=False)
    assert float(facts["critic_loss"]) == pytest.approx(loss.item(), rel=1e-5)
    for p, wanted in zip(one.critic.heads.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, wanted, atol=1e-6)


# Runs.


def test_the_defaults_change_no_byte(tmp_path):
    path = demonstrations(tmp_path / "shown")
    runs = []
    for name, keys in (("left_out", {}), ("given", {"bc_weight": 0.0, "backup_entropy": True})):
        one = study(tmp_path, name, algorithm={"demonstrations": path, **keys}, total_steps=80)
        start(one).run()
        runs.append(result(one))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    "keys", first([{"bc_weight": 2.0, "bc_q_filter": True}, {"bc_weight": 0.4, "backup_entropy": False}], 1)
)
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, keys):
    path = demonstrations(tmp_path / "shown")
    whole = both(tmp_path, algorithm={"demonstrations": path, **keys})
    rows = [row for row in lines(whole) if row["kind"] == "train" and row["updates"]]
    assert all(row["bc_loss"] >= 0 for row in rows)
    assert all(("bc_kept" in row) == ("bc_q_filter" in keys) for row in rows)
    assert all(("q/entropy" in row) == ("backup_entropy" not in keys) for row in rows)


def test_with_a_large_weight_the_policy_does_what_was_shown(tmp_path):
    path = demonstrations(tmp_path / "shown")  # both numbers are 0.5
    far = {}
    for weight in (0.0, 50.0):
        algorithm = {"demonstrations": path, "bc_weight": weight}
        loop = start(study(tmp_path, str(weight), algorithm=algorithm, total_steps=400))
        loop.run()
        shown = loop.learner.demonstrations
        x = loop.learner.policy.prepare(shown.observations(shown.rows("before")[shown.transitions]))
        far[weight] = (loop.learner.policy.pi(x)[:, :2].tanh() - 0.5).abs().mean().item()
    assert far[50.0] < 0.1 < far[0.0]


def test_keys_that_would_do_nothing_are_refused():
    with refuses("bc_weight"):
        SACSettings(bc_weight=0.4)
    with refuses("bc_q_filter"):
        SACSettings(demonstrations="x", bc_q_filter=True)
    with refuses("bc_weight"):
        DQNSettings(demonstrations="x", bc_weight=0.4)
