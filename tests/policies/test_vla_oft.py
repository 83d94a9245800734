"""OpenVLA-OFT with its L1 regression head and with FiLM, against formulas written here.

Names, shapes and formulas are those of moojink/openvla-oft at 213c5ff8: `prismatic/models/action_heads.py`
(`L1RegressionActionHead`), `prismatic/models/film_vit_wrapper.py`, `prismatic/extern/hf/modeling_prismatic.py`
(`predict_action`, `_unnormalize_actions`), `vla-scripts/finetune.py` (`save_training_checkpoint`: names of files, the
alpha of adapters) and `experiments/robot/openvla_utils.py` (`load_component_state_dict`, prompts). Weights are made up.
"""

import json
import math
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_vla_checkpoints import (
    STATISTICS,
    WIDTH,
    filled,
    openvla_shapes,
    read,
    small_towers,  # noqa: F401
    write_openvla,
)
from torch.nn import functional
from vla_models import observations, policy_of

from guerdon.collect.collect import collect
from guerdon.episodes.read import read_episodes
from guerdon.errors import CheckpointError, ConfigError
from guerdon.policies.pretrained.pickled import import_model
from guerdon.policies.robots.control import load_policy, save_policy
from guerdon.policies.robots.robot import ControlInputs
from guerdon.policies.vla.regression import laplace_log_prob
from guerdon.policies.vla.vision import HALF, IMAGENET, normalised
from guerdon.settings.study import Study
from rl_clock import lines, start
from tables import refuses

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("small_towers")
CHUNK, ACTIONS = 4, 3
L1 = {"family": "regression", "num_action_chunks": CHUNK}


def head_shapes(width=WIDTH, actions=ACTIONS):
    shapes = {"model.layer_norm1": (width * actions,), "model.layer_norm2": (width,)}
    shapes |= {f"model.mlp_resnet_blocks.{i}.ffn.0": (width,) for i in range(2)}
    shapes |= {f"model.mlp_resnet_blocks.{i}.ffn.1": (width, width) for i in range(2)}
    shapes |= {"model.fc1": (width, width * actions), "model.fc2": (actions, width)}
    return {f"module.{name}.{leaf}": shape if leaf == "weight" else shape[:1]
            for name, shape in shapes.items() for leaf in ("weight", "bias")}  # fmt: skip


def proprio_shapes(measured=3):
    return {"module.fc1.weight": (WIDTH, measured), "module.fc1.bias": (WIDTH,), "module.fc2.weight": (WIDTH, WIDTH),
            "module.fc2.bias": (WIDTH,)}  # fmt: skip


def oft(folder, *, head=None, proprio=None, film=None, suffix="150000_checkpoint.pt", **changes):
    """A folder as `save_training_checkpoint` writes it: shards of safetensors, and pickles of the other parts."""
    write_openvla(folder, filled(openvla_shapes()), **changes)
    for name, part in (("action_head", head), ("proprio_projector", proprio), ("vision_backbone", film)):
        if part is not None:
            torch.save(part, folder / f"{name}--{suffix}")
    return folder


def imported(tmp_path, **parts):
    folder = tmp_path / f"new{len(list(tmp_path.iterdir()))}"
    import_model(oft(tmp_path / "downloaded", **parts), folder)
    return folder


def l1_head(hidden_N_K_h, stored):
    """`L1RegressionActionHead.predict_action`."""
    weight = {name.removeprefix("module.model."): tensor for name, tensor in stored.items()}

    def layer(kind, name, x):
        both = weight[f"{name}.weight"], weight[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], *both) if kind == "norm" else functional.linear(x, *both)

    x = hidden_N_K_h.reshape(len(hidden_N_K_h), CHUNK, -1)
    x = torch.relu(layer("linear", "fc1", layer("norm", "layer_norm1", x)))
    for i in range(2):
        name = f"mlp_resnet_blocks.{i}.ffn"
        x = torch.relu(layer("linear", f"{name}.1", layer("norm", f"{name}.0", x))) + x
    return layer("linear", "fc2", layer("norm", "layer_norm2", x))


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("suffix", ["150000_checkpoint.pt", "latest_checkpoint.pt"])
def test_the_l1_head_predicts_the_chunk(suffix, tmp_path):
    head, projector = filled(head_shapes(), 1), filled(proprio_shapes(), 2)
    folder = imported(tmp_path, head=head, proprio=projector, suffix=suffix)
    assert {one.name for one in folder.glob("*.safetensors")} == {
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "action_head.safetensors",
        "proprio_projector.safetensors",
    }  # fmt: skip
    policy = read(folder, heads=("env",), measured=3, use_proprio=True, **L1)
    seen = observations(2, tasks=("Open it",))
    inputs = policy.inputs(seen).to(policy.device)
    with torch.no_grad():
        wanted = l1_head(policy.model(policy.pixels(inputs), inputs, CHUNK * ACTIONS).cpu(), head)
    low, high = (np.array(STATISTICS["libero_10_no_noops"]["action"][name]) for name in ("q01", "q99"))
    moved = np.array([True, True, False])  # the mask: the gripper's number is as predicted
    unnormalised = np.where(moved, 0.5 * (wanted.numpy() + 1) * (high - low + 1e-8) + low, wanted.numpy())
    assert policy.act(seen, np.random.default_rng(0), greedy=True).values == pytest.approx(unnormalised, abs=1e-5)
    assert np.abs(wanted.numpy()).max() > 1, "numbers beyond the bounds are not cut off"


def test_draws_are_around_the_prediction_and_stored_policies_act_alike(tmp_path):
    folder = imported(tmp_path, head=filled(head_shapes(), 1))
    policy = read(folder, heads=("env",), use_lora=True, lora_rank=2, initial_scale=0.2, **L1)
    seen = observations(2)
    action = policy.act(seen, np.random.default_rng(3))
    mean = policy._predicted(policy.inputs(seen).to(policy.device))[0].detach().cpu()
    record = torch.from_numpy(action.record).view(2, CHUNK, ACTIONS)
    drawn = np.random.default_rng(3).laplace(size=(2, CHUNK, ACTIONS))
    assert record.numpy() == pytest.approx(mean.numpy() + 0.2 * drawn, abs=1e-5)
    found = policy.evaluate(policy.prepared(ControlInputs(seen, action.record)), entropy=True)
    laplace = torch.distributions.Laplace(mean, 0.2)
    assert torch.allclose(found.log_probs.cpu(), laplace.log_prob(record).flatten(1), atol=1e-4)
    assert torch.allclose(found.entropy.cpu(), laplace.entropy().flatten(1), atol=1e-6)
    assert policy.log_scale.requires_grad
    assert not policy.model.action_head.fc2.weight.requires_grad, "a frozen start"
    with torch.no_grad():
        policy.log_scale.copy_(torch.tensor([-1.0, -2.0, -3.0]))
    save_policy(policy, tmp_path / "saved")
    assert "log_scale" in policy.tensors()
    again = load_policy(tmp_path / "saved").act(seen, np.random.default_rng(0))
    assert np.array_equal(again.values, policy.act(seen, np.random.default_rng(0)).values)


def test_the_gradient_of_the_scale_is_that_of_the_density():
    x, mean = torch.tensor([0.3, -1.0]), torch.tensor([0.1, -1.5])
    log_scale = torch.tensor([math.log(0.1), math.log(2.0)], requires_grad=True)
    laplace_log_prob(x, mean, log_scale).sum().backward()
    assert log_scale.grad.tolist() == pytest.approx([0.2 / 0.1 - 1, 0.5 / 2 - 1], abs=1e-6)


def test_cloning_is_l1_regression():
    policy, seen = policy_of(family="regression"), observations(3)
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 3, 2)).astype(np.float32)
    with torch.no_grad():
        errors = (
            (policy._predicted(policy.inputs(seen).to(policy.device))[0] - policy.normalise(actions)).abs().mean(-1)
        )
        mask = np.array([[True, True, True], [True, False, False], [True, True, False]])
        found = policy.imitation_loss(seen, actions, mask)
    wanted = [errors[0].mean(), errors[1, 0], errors[2, :2].mean()]
    assert found.tolist() == pytest.approx([float(one) for one in wanted], abs=1e-6)


@pytest.mark.parametrize(("normalization", "names"), [("bounds_q99", ("q01", "q99")), ("bounds", ("min", "max"))])
def test_both_kinds_of_bounds(normalization, names, tmp_path):
    statistics = {"aloha_fold": {part: {"q01": [-1, 0, -2], "q99": [1, 3, 2], "min": [-2, -1, -4], "max": [4, 3, 2]}
                                 for part in ("action", "proprio")}}  # fmt: skip
    folder = imported(tmp_path, head=filled(head_shapes(), 1), proprio=filled(proprio_shapes()), statistics=statistics)
    policy = read(folder, measured=3, use_proprio=True, normalization=normalization, **L1)
    low, high = (np.array(statistics["aloha_fold"]["action"][name], np.float32) for name in names)
    for normal, wanted in ((-1.0, low), (1.0, high), (0.0, (low + high) / 2)):
        assert policy.executed(torch.full((1, CHUNK, 3), normal, device=policy.device))[0, 0] == pytest.approx(
            wanted, abs=1e-5
        )
    seen = observations(1)
    seen["proprioception"] = low + 0.75 * (high - low)
    assert policy.inputs(seen).proprio[0].tolist() == pytest.approx([0.5] * 3, abs=1e-5)


def test_a_run_starts_from_the_head_and_its_policy_collects(tmp_path):
    one = {"action": {"q01": [-1.0], "q99": [1.0], "mask": [False]}}
    folder = imported(
        tmp_path, head=filled(head_shapes(actions=1), 1), film=filled(film_shapes(), 4), statistics={"dot": one}
    )
    given = {
        "env": {"type": "gymnasium", "task": "tiny_world:Dot-v1", "task_text": "open the robot", "num_envs": 2,
                "max_episode_steps": 10, "native_reward": "dense", "frame_size": [8, 8]},
        "policy": {"type": "vla", "vla_path": str(folder), "value_hidden": [8], "use_lora": True, "lora_rank": 2, **L1},
        "algorithm": {"rollout_steps": 20, "minibatch_size": 4, "num_epochs": 1},
        "runner": {"total_steps": 40, "eval_every": 40, "eval_episodes": 2, "film_frames": 2,
                   "logger": {"log_path": str(tmp_path), "experiment_name": "run", "tensorboard": False}},
    }  # fmt: skip
    study = Study.model_validate(given)
    run = start(study)
    before = run.learner.policy.log_scale.detach().clone()
    run.run()
    assert not torch.equal(run.learner.policy.log_scale, before), "the scale is learned"
    assert any(row.get("value_loss") is not None for row in lines(study))
    mixture = [{"type": "checkpoint", "checkpoint": str(tmp_path / "run" / "policy"), "noise": 0.0}]
    section = {"save_dir": str(tmp_path / "data"), "episodes": 2, "frame_every": 1, "mixture": mixture}
    collect(Study.model_validate({**given, "collect": section}))
    assert [len(episode.actions) for episode in read_episodes(tmp_path / "data")] == [11, 11]


# FiLM.


def film_shapes(depth=3):
    """As the state of `FiLMedPrismaticVisionBackbone`: blocks inside a wrapper with two more layers."""
    shapes = {}
    for name, shape in openvla_shapes().items():
        if name.startswith("vision_backbone."):
            head, blocks, rest = name.partition(".blocks.")
            index, _, inside = rest.partition(".")
            shapes[f"{head}.blocks.{index}.block.{inside}" if blocks else name] = shape
    for tower, width in (("featurizer", 8), ("fused_featurizer", 12)):
        for i in range(depth):
            for layer in ("scale", "shift"):
                shapes[f"vision_backbone.{tower}.blocks.{i}.{layer}.weight"] = (width, WIDTH)
                shapes[f"vision_backbone.{tower}.blocks.{i}.{layer}.bias"] = (width,)
    return shapes


def tower(stored, name, pictures, words, *, prefix, heads=2):
    """Features of the last block but one of a vision transformer of timm, modulated after each attention."""
    weight = {key.partition(f".{name}.")[2]: tensor for key, tensor in stored.items() if f".{name}." in key}

    def linear(key, x):
        return functional.linear(x, weight[f"{key}.weight"], weight[f"{key}.bias"])

    def norm(key, x):
        return functional.layer_norm(x, x.shape[-1:], weight[f"{key}.weight"], weight[f"{key}.bias"], 1e-6)

    x = functional.conv2d(pictures, weight["patch_embed.proj.weight"], weight["patch_embed.proj.bias"], stride=4)
    x = x.flatten(2).transpose(1, 2) + weight["pos_embed"]
    if prefix:
        x = torch.cat([weight["cls_token"].expand(len(x), -1, -1), weight["reg_token"].expand(len(x), -1, -1), x], 1)
    for i in range(2):
        inside = f"blocks.{i}.block"
        q, k, v = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in linear(f"{inside}.attn.qkv", norm(f"{inside}.norm1", x)).chunk(3, -1)
        )
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        scale1, scale2 = (weight.get(f"{inside}.ls{j}.scale_factor", torch.ones(1)) for j in (1, 2))
        x = x + scale1 * linear(f"{inside}.attn.proj", (scores @ v).transpose(1, 2).flatten(2))
        gamma, beta = linear(f"blocks.{i}.scale", words), linear(f"blocks.{i}.shift", words)
        x = x * (1 + gamma[:, None]) + beta[:, None]
        x = x + scale2 * linear(
            f"{inside}.mlp.fc2", functional.gelu(linear(f"{inside}.mlp.fc1", norm(f"{inside}.norm2", x)))
        )
    return x[:, prefix:]


@pytest.mark.parametrize("family", ["regression", "token"])
def test_film_modulates_the_towers_by_the_mean_of_the_instruction(family, tmp_path):
    film = filled(film_shapes(), 4)
    folder = imported(tmp_path, film=film, head=filled(head_shapes(), 1) if family == "regression" else None)
    policy = read(folder, family=family, num_action_chunks=CHUNK, num_images_in_input=2)
    inputs = policy.inputs(observations(2, tasks=("open it?", "take the robot"), cameras=2)).to(policy.device)
    pixels, seen = policy.pixels(inputs), []
    policy.model.vision_backbone.register_forward_hook(lambda _module, _given, found: seen.append(found.cpu()))
    with torch.no_grad():
        policy.model(pixels, inputs, CHUNK * ACTIONS)
    table = load_both(folder)["language_model.model.embed_tokens.weight"]
    words = []
    for task in ("open it?", "take the robot"):
        ids = [1, *policy.encode(task), 2]  # begin of text, prompt, stop: the embeddings that are no actions
        words += [table[ids].mean(0)] * 2  # two cameras
    words, pixels = torch.stack(words), pixels.cpu()
    wanted = torch.cat([
        tower(film, "featurizer", normalised(pixels, IMAGENET), words, prefix=5),
        tower(film, "fused_featurizer", normalised(pixels, HALF), words, prefix=0),
    ], dim=-1)  # fmt: skip
    assert torch.allclose(seen[0], wanted, atol=1e-4)


def load_both(folder):
    return {k: t for file in folder.glob("model-*.safetensors") for k, t in load_file(file).items()}


@pytest.mark.parametrize("rank", [3, 32])
def test_adapters_of_a_film_backbone_are_merged(rank, tmp_path):
    """`_apply_film_to_vla` puts adapters on the backbone with alpha min(rank, 16) before it reads the state."""
    film = filled(film_shapes(), 4)
    generator, adapted, merged = torch.Generator().manual_seed(0), {}, {}
    for name, tensor in film.items():
        path, _, leaf = name.rpartition(".")
        if leaf == "weight" and tensor.ndim in (2, 4) and path.endswith((".qkv", ".proj", ".fc1", ".fc2")):
            down = torch.randn((rank, *tensor.shape[1:]), generator=generator)
            up = torch.randn((len(tensor), rank, *(1,) * (tensor.ndim - 2)), generator=generator)
            adapted |= {f"{path}.base_layer.weight": tensor, f"{path}.lora_A.default.weight": down,
                        f"{path}.lora_B.default.weight": up}  # fmt: skip
            product = torch.einsum("or,r...->o...", up.reshape(len(tensor), rank), down)
            merged[name] = tensor + min(rank, 16) / rank * product
        elif f"{path}.base_layer.weight" in adapted and leaf == "bias":
            adapted[f"{path}.base_layer.bias"] = merged[name] = tensor
        else:
            adapted[name] = merged[name] = tensor
    for name in [n for n in adapted if n.endswith(".bias") and f"{n[:-5]}.base_layer.weight" in adapted]:
        adapted[f"{name[:-5]}.base_layer.bias"] = adapted.pop(name)
    assert any(".patch_embed.proj.lora_A." in name for name in adapted)
    policies = [read(imported(tmp_path, film=one, head=filled(head_shapes(), 1)), **L1) for one in (adapted, merged)]
    first, second = (policy.model.state_dict() for policy in policies)
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)


# What does not fit.


def test_heads_that_do_not_fit_the_family_are_refused(tmp_path):
    head = filled(head_shapes(), 1)
    folder = oft(tmp_path / "pickled", head=head)
    with pytest.raises(CheckpointError, match=r"action_head--150000_checkpoint\.pt is a pickle.*guerdon import"):
        read(folder, **L1)
    with refuses("policy.family"):
        read(imported(tmp_path, head=head), num_action_chunks=CHUNK)
    with refuses("policy.family", r"has no action_head\.safetensors"):
        read(write_openvla(tmp_path / "tokens", filled(openvla_shapes())), **L1)
    noise = {"noise_predictor.mlp_resnet.fc1.weight": torch.ones(2, 2)}
    with pytest.raises(CheckpointError, match="diffusion head, which is not supported"):
        read(imported(tmp_path, head=noise), **L1)
    folder = oft(tmp_path / "diffusion", head=noise)
    (folder / "noisy_action_projector--150000_checkpoint.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="diffusion head, which is not supported"):
        read(folder, **L1)
    for key, keys in {
        "parallel_decoding": {"family": "regression", "parallel_decoding": False},
        "initial_scale": {"initial_scale": 0.1},
        "tiny.n_action_bins": {"family": "regression", "tiny": {"n_action_bins": 16}},
        "normalization": {"normalization": "bounds"},
    }.items():
        with refuses(key):
            policy_of(**keys)


def test_parts_that_are_incomplete_or_of_another_shape_are_refused(tmp_path):
    head, film = filled(head_shapes(), 1), filled(film_shapes(), 4)
    less = {name: tensor for name, tensor in head.items() if "fc1.bias" not in name}
    with pytest.raises(CheckpointError, match=r"lacks 1 weights, such as action_head\.fc1\.bias"):
        read(imported(tmp_path, head=less), **L1)
    with pytest.raises(CheckpointError, match=r"of another shape, such as action_head\.fc1\.weight with \(16, 112\)"):
        read(imported(tmp_path, head=filled(head_shapes(actions=7), 1)), **L1)
    with pytest.raises(CheckpointError, match=r"action\.mask must be 7 times true or false"):
        read(imported(tmp_path, head=head), space=gymnasium.spaces.Box(-1, 1, (7,), np.float32), **L1)
    less = {name: tensor for name, tensor in film.items() if not name.endswith("featurizer.blocks.1.scale.bias")}
    with pytest.raises(
        CheckpointError, match=r"lacks 2 weights, such as vision_backbone\.featurizer\.blocks\.1\.scale"
    ):
        read(imported(tmp_path, head=head, film=less), **L1)
    folder = imported(tmp_path, head=head)
    (folder / "action_head.safetensors").write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match=r"action_head\.safetensors cannot be read"):
        read(folder, **L1)
    save_file({"model.fc1.bias": torch.full((WIDTH,), float("inf"))}, folder / "action_head.safetensors")
    with pytest.raises(CheckpointError, match="not finite"):
        read(folder, **L1)


def test_the_width_of_the_language_model_may_be_llamas_default(tmp_path):
    """The configuration of openvla-7b names neither hidden_size nor the number of layers."""
    text = {"model_type": "llama", "vocab_size": 384, "pad_token_id": 0}
    folder = imported(tmp_path, head=filled(head_shapes()), film=filled(film_shapes()), text_config=text)
    with pytest.raises(CheckpointError, match=r"of another shape, such as .*with \(16,.*for \(4096,"):
        read(folder, **L1)


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (Path(self.marker),)


def test_an_import_takes_one_file_of_each_part_and_runs_no_code(tmp_path):
    folder = oft(tmp_path / "downloaded", head=filled(head_shapes()))
    torch.save(filled(head_shapes(), 1), folder / "action_head--50000_checkpoint.pt")
    with pytest.raises(ConfigError, match=r"several action_head: .*150000.*50000.*; keep one of them"):
        import_model(folder, tmp_path / "new")
    (folder / "action_head--50000_checkpoint.pt").unlink()
    torch.save({"a": Evil(tmp_path / "marker")}, folder / "vision_backbone--150000_checkpoint.pt")
    with pytest.raises(CheckpointError, match="cannot be read as weights alone"):
        import_model(folder, tmp_path / "new")
    assert not (tmp_path / "marker").exists()
    assert not (tmp_path / "new").exists()
    (folder / "vision_backbone--150000_checkpoint.pt").unlink()
    assert import_model(folder, tmp_path / "new") == ["action_head.safetensors"]
    index = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {one.name for one in (tmp_path / "new").glob("model-*.safetensors")}
