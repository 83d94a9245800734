"""What networks take of observations with several parts: chosen keys, normalised numbers, pictures, frozen features."""

import gymnasium
import numpy as np
import pytest
import torch

from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.robots.control import Actor, build_policy, load_policy, save_policy
from guerdon.policies.robots.efficientnet import EfficientNetLite0
from guerdon.policies.robots.encoders import FrozenFeatures
from guerdon.policies.robots.robot import ControlInputs
from guerdon.settings.policy import CNNPolicySettings, MLPPolicySettings, OwnPolicySettings
from guerdon.worlds.spaces import ColumnSpace, ObservedColumn
from tables import cases, refuses

torch.set_num_threads(1)
BOX, CHOICES = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.MultiDiscrete([3, 2])
COLUMNS = (
    ObservedColumn("arm.joints", "vector", (4,)),
    ObservedColumn("arm.gripper", "one_hot", (2,)),
    ObservedColumn("front", "image", (20, 20, 3)),
    ObservedColumn("mission", "text", ()),
    ObservedColumn("wrist", "image", (24, 20, 1)),
    ObservedColumn("action_mask", "mask", (5,)),
)


def rows(count, seed=0, columns=COLUMNS):
    rng, found = np.random.default_rng(seed), np.zeros(count, ColumnSpace(columns).dtype)
    for name in found.dtype.names:
        shape, dtype = found[name].shape, found[name].dtype
        found[name] = rng.integers(0, 256, shape) if dtype == np.uint8 else rng.normal(3, 2, shape)
        if dtype == np.bool_:
            found[name] = rng.random(shape) < 0.6
    found["arm.gripper"] = np.eye(2, dtype=np.float32)[rng.integers(2, size=count)]
    return found


def policy(settings, space=CHOICES, columns=COLUMNS, **more):
    return build_policy(settings, (), space, sources=("env",), seed=1, columns=columns, **more)


def test_an_mlp_sees_the_keys_that_it_names_and_normalises_all_but_one_hot_numbers():
    mine, seen = policy(MLPPolicySettings(keys=["arm"], hidden=(8,))), rows(50)
    mine.observe(ControlInputs(seen, np.zeros((50, 2), np.int64)), np.ones((5, 10), np.bool_))
    x = mine.prepare(seen).numpy()
    assert x.shape == (50, 6)
    assert np.allclose(x[:, :4].mean(0), 0, atol=1e-5)
    assert np.allclose(x[:, :4].std(0), 1, atol=1e-4)
    assert np.array_equal(x[:, 4:], seen["arm.gripper"])
    assert isinstance(mine.actor(), Actor)
    with torch.no_grad():
        assert np.allclose(mine.actor().mean(seen), mine.action_mean(mine.prepare(seen)), atol=1e-5)
    other = seen.copy()
    other["front"] = 0
    assert np.array_equal(mine.mean(other), mine.mean(seen)), "pictures that are not chosen are not seen"


def test_the_order_of_keys_is_that_of_the_numbers():
    one, two = (
        policy(MLPPolicySettings(keys=k)) for k in (["arm.joints", "arm.gripper"], ["arm.gripper", "arm.joints"])
    )
    seen = rows(3)
    assert np.array_equal(one.encoder.numbers(seen)[:, 4:], two.encoder.numbers(seen)[:, :2])


@pytest.mark.parametrize("space", [BOX, CHOICES])
def test_a_cnn_sees_every_picture_and_the_numbers(space):
    form = CNNPolicySettings(channels=(4,), hidden=(8,))
    mine, seen = policy(form, space), rows(6)
    x = mine.prepare(seen)
    assert {k: tuple(v.shape) for k, v in x.items()} == {"front": (6, 3, 20, 20), "wrist": (6, 1, 24, 20), "": (6, 6)}
    for name in ("front", "wrist", "arm.joints", "arm.gripper"):
        other = seen.copy()
        other[name] = 1 - other[name] if name == "arm.gripper" else other[name] // 3
        assert not np.allclose(mine.mean(other), mine.mean(seen)), name
    action = mine.actor().act(seen, np.random.default_rng(0))
    inputs = mine.prepared(ControlInputs(seen, action.values if action.record is None else action.record))
    whole, part = mine.evaluate(inputs, entropy=True), mine.evaluate(inputs.take(np.array([4, 1])))
    assert torch.allclose(whole.log_probs[[4, 1]], part.log_probs, atol=1e-6)
    assert whole.values.shape == (6, 1, 1)
    whole.log_probs.sum().backward()
    assert all(p.grad is not None for name, p in mine.named_parameters() if name.startswith("pi."))


def test_the_mask_holds_when_acting_and_when_evaluating():
    """So that the first ratio of an update is exactly 1."""
    mine, seen = policy(MLPPolicySettings(keys=["arm"])), rows(400)
    with torch.no_grad():
        mine.pi[-1].weight.normal_()
    action = mine.actor().act(seen, np.random.default_rng(0))
    some = np.stack([seen["action_mask"][:, :3].any(1), seen["action_mask"][:, 3:].any(1)], 1)
    offsets = np.array([0, 3])
    taken = np.take_along_axis(seen["action_mask"], action.values + offsets, 1)
    assert taken[some].all(), "where anything is allowed, what is taken is allowed"
    found = mine.evaluate(mine.prepared(ControlInputs(seen, action.values)))
    assert torch.isfinite(found.log_probs).all()
    blind = seen.copy()
    blind["action_mask"] = True
    free = mine.evaluate(mine.prepared(ControlInputs(blind, action.values)))
    assert (found.log_probs >= free.log_probs - 1e-6).all()
    assert (found.log_probs > free.log_probs + 1e-3).any()


@pytest.mark.parametrize("space", [BOX, CHOICES])
def test_a_saved_policy_comes_back_with_its_columns_and_actions(tmp_path, space):
    mine, seen = policy(CNNPolicySettings(channels=(4,), hidden=(8,), keys=["front", "arm"]), space), rows(5)
    mine.observe(ControlInputs(seen, np.zeros((5, 2))), np.ones((1, 5), np.bool_))
    save_policy(mine, tmp_path)
    again = load_policy(tmp_path)
    assert again.card == mine.card
    assert np.array_equal(again.mean(seen), mine.mean(seen))
    again.check_fits((), space, COLUMNS)
    for columns, actions in ((COLUMNS[:-1], space), (COLUMNS, gymnasium.spaces.MultiDiscrete([2, 2]))):
        with pytest.raises(CheckpointError, match="made for"):
            again.check_fits((), actions, columns)


@pytest.mark.parametrize(
    ("settings", "key", "text"),
    [
        (
            MLPPolicySettings(keys=["arm", "hand"]),
            "policy.keys",
            "no key 'hand'; this environment shows arm.joints",
        ),
        (MLPPolicySettings(keys=["mission"]), "policy.keys", "mission is text"),
        (CNNPolicySettings(keys=["arm"]), "policy.type", "takes pictures"),
        (CNNPolicySettings(channels=(2, 2, 2)), "policy.channels", "pictures of 20x20"),
        (MLPPolicySettings(keys=["arm"], log_std_init=-1.0), "policy.log_std_init", "actions are discrete"),
    ],
)
def test_what_a_policy_cannot_see_is_refused(settings, key, text):
    with refuses(key, text):
        policy(settings)


def linear(observation_shape, outputs):
    """A network as a user writes it."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(int(np.prod(observation_shape)), outputs))


def bare(observation_shape, outputs):
    return torch.nn.Linear(observation_shape[0], outputs)


@cases("keys, shape", [(["front"], (3, 20, 20)), (["arm"], (6,))])
def test_networks_of_ones_own_take_one_picture_with_channels_first_or_numbers(keys, shape):
    mine, seen = policy(OwnPolicySettings(type="test_encoders:linear", keys=keys), BOX), rows(4)
    assert mine.prepare(seen).shape == (4, *shape)
    assert mine.pi[1].in_features == np.prod(shape)
    assert mine.mean(seen).shape == (4, 2)


def test_networks_of_ones_own_do_not_take_parts():
    for keys in (["front", "wrist"], ["front", "arm"]):
        with refuses("policy.keys", r"take one picture, or numbers: choose with policy\.keys \(front"):
            policy(OwnPolicySettings(type="test_encoders:linear", keys=keys), BOX)


def test_auxiliary_heads_need_a_last_layer_behind_others():
    mine = policy(OwnPolicySettings(type="test_encoders:linear", keys=["arm"]), BOX, auxiliary=("next",))
    assert (mine.aux.in_features, mine.aux.out_features) == (6, 1)
    with refuses("algorithm.auxiliary_losses", "policy.type test_encoders:bare makes another"):
        policy(OwnPolicySettings(type="test_encoders:bare", keys=["arm"]), BOX, auxiliary=("next",))


@cases("keys, names", [(["front", "wrist"], ["front", "wrist"]), (["front", "wrist", "arm"], ["", "front", "wrist"])])
def test_parts_keep_their_bytes_until_they_are_scaled(keys, names):
    encoder, seen = policy(CNNPolicySettings(keys=keys, channels=(4,), hidden=(8,))).encoder, rows(3)
    wanted, bytes_of = encoder.prepare(seen), encoder.unscaled(seen)
    assert sorted(wanted) == sorted(bytes_of) == names
    assert (bytes_of["front"].dtype, tuple(bytes_of["front"].shape)) == (torch.uint8, (3, 20, 20, 3))
    found = encoder.scaled(bytes_of)
    for name in names:
        torch.testing.assert_close(found[name], wanted[name], atol=0, rtol=0)


def test_keys_of_an_array_are_refused():
    with refuses("policy.keys", "one array, without keys"):
        build_policy(MLPPolicySettings(keys=["a"]), (4,), BOX, sources=(), seed=0)


def test_a_policy_that_would_observe_nothing_is_refused():
    with pytest.raises(ConfigError, match="the policy would observe nothing"):
        build_policy(MLPPolicySettings(), (0,), BOX, sources=(), seed=0)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("backbone")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(EfficientNetLite0().state_dict(), folder / "model.safetensors")
    return str(folder)


def test_a_frozen_backbone_looks_once_at_each_picture(backbone, monkeypatch):
    form = CNNPolicySettings(backbone=backbone, hidden=(8,), keys=["front", "wrist", "arm"])
    mine, seen = policy(form), rows(4)
    seen["front"][3] = seen["front"][0]
    looked, computed = [], FrozenFeatures._computed
    monkeypatch.setattr(FrozenFeatures, "_computed", lambda self, f: looked.append(len(f)) or computed(self, f))
    before = mine.mean(seen)
    assert before.shape == (4, 5)
    assert looked == [3, 4], "equal pictures pass once"
    mine.prepared(ControlInputs(seen, np.zeros((4, 2), np.int64)))
    assert looked == [3, 4], "the rollout's update takes what acting saw"
    names = [name for name, _ in mine.named_parameters()]
    assert not any("conv" in name for name in names), "the backbone is no part of the weights"
    mine.observe(ControlInputs(seen, np.zeros((4, 2))), np.ones((1, 4), np.bool_))
    mine.mean(seen)
    assert sum(looked) > 7, "features are not kept for ever"
    mine.encoder.compute_pictures_alone(keep=True)
    mine.observe(ControlInputs(seen, np.zeros((4, 2))), np.ones((1, 4), np.bool_))
    looked.clear()
    mine.mean(seen)
    assert not looked, "but with goals in hindsight they are"


def test_a_frozen_resnet(tmp_path):
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    ResNetModel(ResNetConfig(depths=[1, 1], hidden_sizes=[8, 16], layer_type="basic")).save_pretrained(tmp_path)
    mine = build_policy(
        CNNPolicySettings(backbone=str(tmp_path), hidden=(8,)), (32, 40, 3), BOX, sources=("env",), seed=0
    )
    frames = np.random.default_rng(0).integers(0, 256, (3, 32, 40, 3), dtype=np.uint8)
    assert mine.prepare(frames).shape == (3, 16)
    assert mine.actor().act(frames, np.random.default_rng(0)).values.shape == (3, 2)
