"""Policies: the fast actor is the network, densities are a Gaussian's, and nothing is loaded half."""

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.robots.control import build_policy, load_policy, save_policy, start_from_policy
from guerdon.policies.robots.experts import NoisyActor, RandomActor
from guerdon.policies.robots.robot import ControlInputs
from guerdon.settings.policy import CNNPolicySettings, MLPPolicySettings
from tables import refuses

torch.set_num_threads(1)
SPACE = gymnasium.spaces.Box(-1, 1, (3,), np.float32)


def mlp(sources=("env", "model"), seed=0, **options):
    options = {"hidden": (16, 8), **options}
    policy = build_policy(MLPPolicySettings(**options), (5,), SPACE, sources=sources, seed=seed)
    rng = np.random.default_rng(seed)
    with torch.no_grad():  # the last layer starts near zero, which would hide mistakes
        for parameter in policy.parameters():
            parameter.add_(torch.from_numpy(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))
    if policy.normalizer is not None:
        policy.normalizer.update(rng.normal(3, 2, (50, 5)))
        policy.refresh_normalizer()
    return policy


def cnn(**options):
    return build_policy(
        CNNPolicySettings(channels=(4, 8), hidden=(8,), **options), (24, 24, 3), SPACE, sources=("env",), seed=1
    )


def test_actor_and_critic_share_all_layers_but_the_last(tmp_path):
    policy, rng = cnn(shared=True), np.random.default_rng(0)
    frames = rng.integers(0, 256, (7, 24, 24, 3), dtype=np.uint8)
    inputs = policy.prepared(ControlInputs(frames, rng.normal(size=(7, 3)).astype(np.float32)))
    found = policy.evaluate(inputs)
    features = policy.pi[:-1](policy.prepare(frames))
    assert torch.allclose(found.values[:, 0], policy.vf(features))
    assert torch.allclose(policy.values(frames), policy.vf(features))
    assert torch.allclose(found.log_probs[:, 0], policy.head.log_prob(policy.pi[-1](features), inputs.actions))
    whole = policy.evaluate_all(inputs, micro=3)
    assert torch.allclose(whole.values, found.values)
    assert torch.allclose(whole.log_probs, found.log_probs)
    found.values.sum().backward()
    assert policy.pi[0].weight.grad.abs().sum() > 0
    assert policy.pi[-1].weight.grad is None
    save_policy(policy, tmp_path)
    again = load_policy(tmp_path)
    assert np.array_equal(again.mean(frames), policy.mean(frames))
    count = sum(p.numel() for p in cnn().parameters())
    assert sum(p.numel() for p in policy.parameters()) < 0.6 * count
    with refuses("policy.shared"):
        build_policy(CNNPolicySettings(shared=True), (84, 84, 4), SPACE, sources=(), seed=0, algorithm="sac")


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_actor_is_the_network(activation, normalize):
    policy = mlp(activation=activation, normalize_observations=normalize)
    observations = np.random.default_rng(1).normal(3, 5, (40, 5)).astype(np.float32)
    with torch.no_grad():
        expected = policy.action_mean(policy.prepare(observations)).numpy()
    assert np.abs(policy.actor().mean(observations) - expected).max() < 1e-6 * max(1, np.abs(expected).max())
    assert policy.actor().mean(observations.astype(np.float64)).dtype == np.float32


def test_the_pixel_actor_is_the_network():
    policy = cnn()
    frames = np.random.default_rng(0).integers(0, 256, (3, 24, 24, 3), dtype=np.uint8)
    x = policy.prepare(frames)
    assert x.shape == (3, 3, 24, 24)
    assert float(x.max()) <= 1
    with torch.no_grad():
        assert np.allclose(policy.actor().mean(frames), policy.action_mean(x).numpy(), atol=1e-6)
    assert policy.actor().act(frames, np.random.default_rng(0)).values.shape == (3, 3)


def test_actors_do_not_follow_later_updates():
    policy = mlp()
    actor, observations = policy.actor(), np.ones((2, 5), np.float32)
    before = actor.mean(observations)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    policy.normalizer.update(np.full((9, 5), 100.0))
    policy.refresh_normalizer()
    assert np.array_equal(actor.mean(observations), before)


def test_density_and_entropy_are_a_gaussians():
    policy = mlp()
    observations = np.random.default_rng(2).normal(3, 2, (30, 5)).astype(np.float32)
    actions = torch.from_numpy(np.random.default_rng(3).normal(0, 2, (30, 3)).astype(np.float32))
    x = policy.prepare(observations)
    normal = torch.distributions.Normal(policy.action_mean(x), policy.log_std.exp())
    assert torch.allclose(
        policy.head.log_prob(policy.action_mean(x), actions), normal.log_prob(actions).sum(-1), atol=1e-5
    )
    assert torch.allclose(policy.head.entropy(policy.action_mean(x)), normal.entropy().sum(-1)[0], atol=1e-5)


def test_samples_have_the_stated_mean_and_spread():
    policy = mlp()
    observations = np.ones((20_000, 5), np.float32)
    sample = policy.actor().act(observations, np.random.default_rng(0)).values
    mean, std = policy.actor().mean(observations)[0], policy.log_std.detach().exp().numpy()
    assert np.abs(sample.mean(0) - mean).max() < 5 * std.max() / np.sqrt(20_000)
    assert np.allclose(sample.std(0), std, rtol=0.05)


def test_the_seed_decides_the_weights_and_nothing_else_is_touched():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    a, b, c = (build_policy(MLPPolicySettings(), (5,), SPACE, sources=("env",), seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.pi[0].weight, c.pi[0].weight)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 4), st.sampled_from(["tanh", "relu"]), st.booleans())
def test_a_saved_policy_comes_back(tmp_path_factory, sources, activation, normalize):
    names = tuple(f"s{i}" for i in range(sources))
    policy = mlp(names, activation=activation, normalize_observations=normalize)
    folder = tmp_path_factory.mktemp("policy")
    save_policy(policy, folder)
    again = load_policy(folder)
    observations = np.random.default_rng(0).normal(3, 2, (7, 5)).astype(np.float32)
    assert np.array_equal(again.actor().mean(observations), policy.actor().mean(observations))
    assert {k: v.tolist() for k, v in again.tensors().items()} == {k: v.tolist() for k, v in policy.tensors().items()}
    assert again.sources == names


def test_a_start_without_the_critic_leaves_it_alone():
    policy, other = mlp(), mlp(("something", "else", "entirely"), seed=5)
    before = [p.clone() for p in other.vf.parameters()]
    other.load_tensors(policy.tensors(), critic=False)
    assert all(torch.equal(a, b) for a, b in zip(before, other.vf.parameters(), strict=True))
    observations = np.ones((2, 5), np.float32)
    assert np.array_equal(other.actor().mean(observations), policy.actor().mean(observations))
    with pytest.raises(CheckpointError, match="vf"):
        other.load_tensors(policy.tensors())


@pytest.mark.parametrize(("options", "spread"), [({}, 0.25), ({"log_std_init": -1.5}, -1.5)])
def test_a_start_keeps_the_spread_unless_the_settings_name_one(options, spread, tmp_path):
    policy = mlp()
    policy.head.log_std.data.fill_(0.25)
    save_policy(policy, tmp_path)
    other = mlp(seed=5, **options)
    assert start_from_policy(other, tmp_path) == f"policy starts from {tmp_path}"
    assert other.head.log_std.tolist() == [spread] * 3
    assert torch.equal(other.pi[0].weight, policy.pi[0].weight)


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        ({"hidden": (16, 9)}, {}, "policy.hidden"),
        ({"activation": "relu"}, {}, "policy.activation=tanh"),
        ({"normalize_observations": False}, {}, "policy.normalize_observations=true"),
        ({}, {"normalize_observations": False}, "policy.normalize_observations=false"),
    ],
)
def test_what_does_not_fit_is_refused_and_says_what_to_set(mine, theirs, text):
    policy = mlp(**mine)
    before = {k: v.clone() for k, v in policy.tensors().items()}
    with pytest.raises(CheckpointError, match=text):
        policy.load_tensors(mlp(**theirs).tensors())
    assert all(torch.equal(v, before[k]) for k, v in policy.tensors().items()), "refused before anything is changed"


def test_broken_folders_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="is not a policy folder"):
        load_policy(tmp_path)
    save_policy(mlp(), tmp_path / "run" / "policy")
    with pytest.raises(CheckpointError, match=r"do you mean .*policy"):
        load_policy(tmp_path / "run")
    weights = tmp_path / "run" / "policy" / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_policy(weights.parent)
    save_policy(mlp(), tmp_path / "other")
    (tmp_path / "other" / "policy.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_policy(tmp_path / "other")


def test_worlds_that_do_not_fit_are_named():
    policy = mlp()
    policy.check_fits((5,), SPACE)
    with pytest.raises(CheckpointError, match=r"\(5,\) and 3 actions"):
        policy.check_fits((6,), SPACE)
    with refuses("policy.type"):
        build_policy(CNNPolicySettings(), (5,), SPACE, sources=(), seed=0)
    assert build_policy(MLPPolicySettings(), (24, 24, 3), SPACE, sources=(), seed=0).encoder.size == 24 * 24 * 3
    with pytest.raises(ConfigError, match="without a critic"):
        mlp(()).value(torch.zeros(1, 5))


def test_an_observation_that_is_no_number_shows_in_the_action():
    """It is not hidden by clipping or normalisation, so that the world can refuse the action."""
    observations = np.ones((2, 5), np.float32)
    observations[1, 2] = np.nan
    actions = mlp().actor().act(observations, np.random.default_rng(0)).values
    assert np.isfinite(actions[0]).all()
    assert np.isnan(actions[1]).all()


def test_random_actions_are_held_and_within_bounds():
    actor, rng = RandomActor(np.array([-2.0, 0.0]), np.array([1.0, 3.0]), hold=4), np.random.default_rng(0)
    actions = np.stack([actor.act(np.zeros((3, 7)), rng) for _ in range(40)])
    assert actions.shape == (40, 3, 2)
    assert (actions >= [-2, 0]).all()
    assert (actions <= [1, 3]).all()
    changes = np.abs(np.diff(actions, axis=0)).sum(axis=(1, 2)) > 0
    assert list(np.flatnonzero(changes)) == [3, 7, 11, 15, 19, 23, 27, 31, 35]


def test_noise_is_added_to_the_most_likely_action():
    policy, observations = mlp(), np.ones((5000, 5), np.float32)
    mean = policy.actor().mean(observations)
    assert np.array_equal(NoisyActor(policy, 0.0).act(observations, np.random.default_rng(0)), mean)
    noise = NoisyActor(policy, 0.4).act(observations, np.random.default_rng(0)) - mean
    assert noise.std() == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize(
    ("height", "width", "channels"), [(36, 40, (2, 2, 2)), (20, 36, (2, 2)), (8, 8, (2,)), (5, 9, ())]
)
def test_pictures_that_convolutions_do_not_fit_are_refused(height, width, channels):
    form = CNNPolicySettings(channels=channels, hidden=(4,))
    policy = build_policy(form, (height, width, 3), SPACE, sources=("env",), seed=0)
    seen = np.zeros((2, height, width, 3), np.uint8)
    assert policy.actor().act(seen, np.random.default_rng(0)).values.shape == (2, 3)
    if channels:
        with refuses("policy.channels", rf"pictures of {height - 1}x{width}: take larger ones"):
            build_policy(form, (height - 1, width, 3), SPACE, sources=("env",), seed=0)
