"""Published checkpoints: tensor names, shapes and configuration as in the public code.

OpenVLA: `prismatic/extern/hf/modeling_prismatic.py` of openvla/openvla at c8f03f48 and, of OpenVLA-OFT,
moojink/openvla-oft at 213c5ff8, with the vision transformers of timm 0.9. SmolVLA: `policies/smolvla` of
huggingface/lerobot at 7427f318, with the SmolVLM of transformers. The files are made here, small, in those layouts.
"""

import json
import sys

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from vla_models import observations

from guerdon.errors import CheckpointError, ConfigError, MissingDependencyError
from guerdon.policies.pretrained.adapter_files import merged_weights
from guerdon.policies.robots.control import build_policy, load_policy, save_policy
from guerdon.policies.vla import published
from guerdon.policies.vla.policy import quantize
from guerdon.policies.vla.prismatic import PrismaticNetwork
from guerdon.policies.vla.token import TokenVLA
from guerdon.policies.vla.vision import DinoSiglipTowers, ViTSize
from guerdon.settings.vla_policy import VLAPolicySettings
from tables import refuses, sample

torch.set_num_threads(1)
DINO, SIGLIP = "vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"
WIDTH, VOCABULARY, PADDING = 16, 320, 64
STATISTICS = {
    "libero_10_no_noops": {
        "action": {
            "q01": [-0.5, -1.0, -1.0], "q99": [0.5, 1.0, 1.0], "mask": [True, True, False],
            "min": [-1, -1, -1], "max": [1, 1, 1], "mean": [0, 0, 0], "std": [1, 1, 1],
        },
        "proprio": {"q01": [-1.0] * 3, "q99": [3.0] * 3, "min": [-2] * 3, "max": [4] * 3, "mean": [0] * 3},
    },
}  # fmt: skip
SPACE = gymnasium.spaces.Box(-1, 1, (3,), np.float32)


@pytest.fixture
def small_towers(monkeypatch):
    """The published towers at another size; their names and the shape of their parameters stay."""
    sizes = {DINO: ViTSize(8, 4, 8, 3, 2, 16, prefix=5, scaled=True), SIGLIP: ViTSize(8, 4, 12, 3, 2, 20)}
    for name, size in sizes.items():
        monkeypatch.setitem(published.TOWERS, name, size)


def vit(prefix, width, mlp, patches, depth, *, patch=4, dino):
    shapes = {"pos_embed": (1, patches, width), "patch_embed.proj.weight": (width, 3, patch, patch),
              "patch_embed.proj.bias": (width,), "norm.weight": (width,), "norm.bias": (width,)}  # fmt: skip
    if dino:
        shapes |= {"cls_token": (1, 1, width), "reg_token": (1, 4, width)}
    else:
        shapes |= {
            "attn_pool.latent": (1, 1, width),
            "attn_pool.norm.weight": (width,),
            "attn_pool.norm.bias": (width,),
        }
        for name, out, into in (("q", width, width), ("kv", 2 * width, width), ("proj", width, width),
                                ("mlp.fc1", mlp, width), ("mlp.fc2", width, mlp)):  # fmt: skip
            shapes |= {f"attn_pool.{name}.weight": (out, into), f"attn_pool.{name}.bias": (out,)}
    for i in range(depth):
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.weight": (width,), f"blocks.{i}.{name}.bias": (width,)}
        for name, out, into in (("attn.qkv", 3 * width, width), ("attn.proj", width, width), ("mlp.fc1", mlp, width),
                                ("mlp.fc2", width, mlp)):  # fmt: skip
            shapes |= {f"blocks.{i}.{name}.weight": (out, into), f"blocks.{i}.{name}.bias": (out,)}
        if dino:
            shapes |= {f"blocks.{i}.ls1.scale_factor": (width,), f"blocks.{i}.ls2.scale_factor": (width,)}
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


def llama(prefix, width, inside, layers, vocabulary, *, heads=1.0, embedded=True):
    shapes = {f"{prefix}norm.weight": (width,)}
    shapes |= {f"{prefix}embed_tokens.weight": (vocabulary, width)} if embedded else {}
    for i in range(layers):
        kv = int(width * heads)
        for name, shape in {
            "self_attn.q_proj": (width, width), "self_attn.k_proj": (kv, width), "self_attn.v_proj": (kv, width),
            "self_attn.o_proj": (width, width), "mlp.gate_proj": (inside, width), "mlp.up_proj": (inside, width),
            "mlp.down_proj": (width, inside), "input_layernorm": (width,), "post_attention_layernorm": (width,),
        }.items():  # fmt: skip
            shapes[f"{prefix}layers.{i}.{name}.weight"] = shape
    return shapes


def openvla_shapes(width=WIDTH, inside=24, layers=2, towers=((8, 16, 4, 3), (12, 20, 4, 3))):
    """Names and shapes; of each tower its width, inner width, patches and depth."""
    (dino, dino_mlp, *first), (siglip, siglip_mlp, *second) = towers
    both = dino + siglip
    linear = {"fc1": (4 * both, both), "fc2": (width, 4 * both), "fc3": (width, width)}
    return {
        **vit("vision_backbone.featurizer.", dino, dino_mlp, *first, dino=True),
        **vit("vision_backbone.fused_featurizer.", siglip, siglip_mlp, *second, dino=False),
        **{f"projector.{name}.weight": shape for name, shape in linear.items()},
        **{f"projector.{name}.bias": shape[:1] for name, shape in linear.items()},
        **llama("language_model.model.", width, inside, layers, VOCABULARY + PADDING),
        "language_model.lm_head.weight": (VOCABULARY + PADDING, width),
    }


def filled(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_tokenizer(folder, words):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    table = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", "▁", *words])}
    core = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def write_openvla(folder, tensors, *, statistics=STATISTICS, **changes):
    """Two shards with their index, as `save_pretrained` writes them."""
    folder.mkdir(exist_ok=True)
    config = {
        "model_type": "openvla", "architectures": ["OpenVLAForActionPrediction"],
        "arch_specifier": "no-align+fused-gelu-mlp",
        "vision_backbone_id": "dinosiglip-vit-so-224px", "use_fused_vision_backbone": True, "image_sizes": [8, 8],
        "timm_model_ids": [DINO, SIGLIP], "timm_override_act_layers": [None, None], "llm_backbone_id": "llama2-7b-pure",
        "image_resize_strategy": "resize-naive", "pad_token_id": 32000, "pad_to_multiple_of": PADDING,
        "n_action_bins": 256, "norm_stats": statistics,
        "text_config": {
            "model_type": "llama", "vocab_size": VOCABULARY + PADDING, "hidden_size": WIDTH, "intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0,
        },
        **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, keys in shards.items():
        save_file({key: tensors[key].contiguous() for key in keys}, folder / file)
    index = {"metadata": {}, "weight_map": {key: file for file, keys in shards.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_tokenizer(
        folder, ["in:", "In:", "What", "action", "should", "the", "robot", "take", "to", "open", "it?", "Out:"]
    )
    return folder


def read(folder, *, space=SPACE, measured=0, heads=(), **keys):
    settings = VLAPolicySettings.model_validate({"type": "vla", "vla_path": str(folder), "value_hidden": [4], **keys})
    return build_policy(settings, (5,), space, sources=heads, seed=0, proprioception_size=measured)


@pytest.mark.parametrize(
    "keys", [{"num_action_chunks": 4}, {"num_action_chunks": 1, "parallel_decoding": False}], ids=["oft", "openvla"]
)
def test_openvla_and_oft(keys, tmp_path, small_towers):
    tensors = filled(openvla_shapes())
    folder = write_openvla(tmp_path / "vla", tensors)
    policy, seen = read(folder, heads=("env",), **keys), observations(2, tasks=("Open it",))
    own = {name: tensor.cpu() for name, tensor in policy.model.state_dict().items()}
    assert torch.equal(own["language_model.layers.1.mlp.up_proj.weight"],
                       tensors["language_model.model.layers.1.mlp.up_proj.weight"])  # fmt: skip
    assert torch.equal(own["vision_backbone.fused_featurizer.blocks.1.attn.qkv.bias"],
                       tensors["vision_backbone.fused_featurizer.blocks.1.attn.qkv.bias"])  # fmt: skip
    head = tensors["language_model.lm_head.weight"]
    for token in (VOCABULARY - 1, VOCABULARY - 100, VOCABULARY - 256):  # bin 0 is the last token before the padding
        assert torch.equal(own["action_head.weight"][VOCABULARY - 1 - token], head[token])
    ids = policy.encode("Open It?")
    assert ids[-1] == 3, "the empty token that OpenVLA's prompts end with"
    assert 1 not in ids
    action = policy.act(seen, np.random.default_rng(0))
    assert action.values.shape == ((2, 4, 3) if policy.chunk > 1 else (2, 3))
    assert action.record.shape == (2, 3 * policy.chunk)
    save_policy(policy, tmp_path / "saved")
    assert np.array_equal(load_policy(tmp_path / "saved").act(seen, np.random.default_rng(0)).values, action.values)


def test_adapters_on_a_checkpoint_are_stored_without_it(tmp_path, small_towers):
    folder = write_openvla(tmp_path / "vla", filled(openvla_shapes()))
    policy, seen = read(folder, heads=("env",), use_lora=True, lora_rank=2, num_action_chunks=2), observations(2)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".lora_B." in name:
                parameter.normal_()
    stored = policy.tensors()
    assert all(".lora_" in name or name.startswith(("vf.", "action_", "proprio_")) for name in stored)
    save_policy(policy, tmp_path / "saved")
    other = load_policy(tmp_path / "saved")
    assert np.array_equal(
        other.act(seen, np.random.default_rng(0)).values, policy.act(seen, np.random.default_rng(0)).values
    )
    plain = read(folder, num_action_chunks=2)
    assert not np.array_equal(
        plain.act(seen, np.random.default_rng(0), greedy=True).values,
        policy.act(seen, np.random.default_rng(0), greedy=True).values,
    )


def adapter_by_peft(folder, tensors, targets, **changes):
    """An adapter as peft writes it, on modules of these names; and their weights with it merged in, by peft."""
    import peft

    root = torch.nn.Module()
    for name, weight in tensors.items():
        path, _, leaf = name.rpartition(".")
        if leaf != "weight" or weight.ndim not in (2, 4):
            continue
        *parents, last = path.split(".")
        place = root
        for parent in parents:
            if parent not in dict(place.named_children()):
                place.add_module(parent, torch.nn.Module())
            place = place.get_submodule(parent)
        out, into, *kernel = weight.shape
        layer = torch.nn.Conv2d(into, out, kernel, bias=False) if kernel else torch.nn.Linear(into, out, bias=False)
        layer.weight.data = weight.clone()
        place.add_module(last, layer)
    model = peft.get_peft_model(root, peft.LoraConfig(r=3, lora_alpha=8, target_modules=targets, **changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.normal_()
    model.save_pretrained(folder)
    return {name: value for name, value in model.merge_and_unload().state_dict().items() if name in tensors}


@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=str)
def test_an_adapter_on_weights_in_bfloat16_is_merged_in_float32(options, tmp_path):
    generator = torch.Generator().manual_seed(0)
    weights = {f"{name}.weight": torch.randn(6, 6, generator=generator).bfloat16() for name in ("up_proj", "other")}
    floats = {name: weight.float() for name, weight in weights.items()}
    by_peft = adapter_by_peft(tmp_path, floats, ["up_proj"], **options)
    merged = merged_weights(weights, tmp_path)
    assert {name: weight.dtype for name, weight in merged.items()} == {
        "up_proj.weight": torch.float32, "other.weight": torch.bfloat16,
    }  # fmt: skip
    assert all(torch.equal(weight.float(), by_peft[name]) for name, weight in merged.items())
    assert not torch.equal(by_peft["up_proj.weight"], floats["up_proj.weight"])


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "options",
    sample(
        [
            {}, {"use_rslora": True}, {"use_dora": True}, {"init_lora_weights": "pissa"},
            {"init_lora_weights": "olora"}, {"rank_pattern": {"up_proj": 2}, "alpha_pattern": {"q_proj": 5}},
        ],
        {}, {"use_dora": True},
    ),
    ids=str,
)  # fmt: skip
def test_adapters_of_peft_are_merged(options, tmp_path, small_towers):
    tensors = filled(openvla_shapes())
    folder = write_openvla(tmp_path / "vla", tensors)
    targets = ["up_proj", "q_proj", "qkv", "lm_head", "fc2"]
    if "init_lora_weights" not in options:  # peft has these for linear layers only
        targets.append("patch_embed.proj")
    merged = adapter_by_peft(tmp_path / "lora", tensors, targets, **options)
    keys = {"num_action_chunks": 2, "load_adapter_checkpoint": str(tmp_path / "lora"), "heads": ("env",)}
    policy, seen = read(folder, **keys), observations(2)
    own = policy.model.state_dict()
    changed = 0
    for name, value in own.items():
        published = name.replace("language_model.", "language_model.model.", 1)
        if name == "action_head.weight":
            wanted = merged["language_model.lm_head.weight"][VOCABULARY - 256 : VOCABULARY].flip(0)
        else:
            wanted = merged.get(published, tensors[published])
            changed += not torch.equal(wanted, tensors[published])
        assert torch.allclose(value, wanted, atol=1e-5), name
    assert changed > 5
    (tmp_path / "lora" / "dataset_statistics.json").write_text(
        json.dumps({"libero_10_no_noops": {"action": {"q01": [0] * 3, "q99": [4] * 3}}})
    )
    policy = read(folder, use_lora=True, lora_rank=2, **keys)
    assert policy.executed(torch.ones(1, 2, 3))[0, 0] == pytest.approx([4, 4, 4]), (
        "those that the adapter was made with"
    )
    save_policy(policy, tmp_path / "saved")
    assert np.array_equal(
        load_policy(tmp_path / "saved").act(seen, np.random.default_rng(0)).values,
        policy.act(seen, np.random.default_rng(0)).values,
    )


@pytest.mark.hostile("models")
def test_adapters_that_do_not_fit_are_refused(tmp_path, small_towers):
    tensors = filled(openvla_shapes())
    folder = write_openvla(tmp_path / "vla", tensors)
    lora = tmp_path / "lora"
    adapter_by_peft(lora, tensors, ["up_proj"])
    config, stored = json.loads((lora / "adapter_config.json").read_text()), lora / "adapter_model.safetensors"
    weights = load_file(stored)
    first = min(weights)
    cases = {
        "does not fit its model: .*lora_magnitude": ({**config, "use_dora": True}, weights),
        "does not fit|LOHA": ({**config, "peft_type": "LOHA"}, weights),
        "has the type P_TUNING": ({**config, "peft_type": "P_TUNING"}, weights),
        "init_lora_weights 'corda'": ({**config, "init_lora_weights": "corda"}, weights),
        "does not fit its model: 1 weights": (config, {k: v for k, v in weights.items() if k != first}),
        "does not fit its model": (config, {k.replace("layers.1", "layers.9"): v for k, v in weights.items()}),
        "size mismatch|other shapes": (config, {**weights, first: torch.zeros(3, 5)}),
        "is not finite": (config, {**weights, first: torch.full_like(weights[first], float("nan"))}),
    }
    for said, (changed, tensors) in cases.items():
        (lora / "adapter_config.json").write_text(json.dumps(changed))
        save_file(tensors, stored)
        with pytest.raises(CheckpointError, match=said):
            read(folder, load_adapter_checkpoint=str(lora))
    stored.unlink()
    with pytest.raises(CheckpointError, match=r"no adapter at .*adapter_model\.safetensors"):
        read(folder, load_adapter_checkpoint=str(lora))


QUANTIZED = {"heads": ("env",), "use_lora": True, "lora_rank": 2, "num_action_chunks": 2}


def test_frozen_weights_may_be_in_4_bits(tmp_path, small_towers):
    pytest.importorskip("bitsandbytes")
    folder, seen = write_openvla(tmp_path / "vla", filled(openvla_shapes())), observations(2)
    exact, settings = read(folder, **QUANTIZED), {**QUANTIZED, "use_quantization": True, "vla_path": str(folder)}
    settings = VLAPolicySettings(value_hidden=(4,), **{k: v for k, v in settings.items() if k != "heads"})
    parts = published.read_openvla(settings, actions=3, proprio_size=0)
    quantize(parts.network, TokenVLA.heads_left_alone, torch.float32)
    policy = TokenVLA(settings, *parts, ("env",)).to("cpu")
    frozen = policy.model.language_model.layers[0].mlp.up_proj.base_layer.weight
    assert frozen.dtype == torch.uint8
    assert frozen.numel() == WIDTH * 24 // 2
    assert policy.model.action_head.weight.dtype == torch.float32
    record = exact.act(seen, np.random.default_rng(0)).record
    found = policy.evaluate(policy.inputs(seen, record))
    assert torch.allclose(found.log_probs, exact.evaluate(exact.inputs(seen, record)).log_probs, atol=0.5)
    found.log_probs.sum().backward()
    assert all(p.grad is not None for name, p in policy.named_parameters() if ".lora_B." in name)
    assert policy.tensors().keys() == exact.tensors().keys(), "what is frozen is not stored"


def test_4_bits_need_a_gpu_and_bitsandbytes(tmp_path, small_towers, monkeypatch):
    folder = write_openvla(tmp_path / "vla", filled(openvla_shapes()))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refuses("policy.use_quantization"):
        read(folder, use_quantization=True, **QUANTIZED)
    monkeypatch.setitem(sys.modules, "bitsandbytes.nn", None)
    with pytest.raises(MissingDependencyError, match="pip install bitsandbytes"):
        quantize(torch.nn.Linear(2, 2), (), torch.float32)


def test_frozen_weights_may_be_in_bfloat16(tmp_path, small_towers):
    folder, seen = write_openvla(tmp_path / "vla", filled(openvla_shapes())), observations(2)
    keys = {"heads": ("env",), "use_lora": True, "lora_rank": 2, "num_action_chunks": 2}
    policy, exact = read(folder, bf16=True, **keys), read(folder, **keys)
    kinds = {parameter.dtype for parameter in policy.parameters() if not parameter.requires_grad}
    assert kinds == {torch.bfloat16}
    assert {parameter.dtype for parameter in policy.parameters() if parameter.requires_grad} == {torch.float32}
    record = exact.act(seen, np.random.default_rng(0)).record
    found = policy.evaluate(policy.inputs(seen, record))
    assert torch.allclose(found.log_probs, exact.evaluate(exact.inputs(seen, record)).log_probs, atol=0.2)
    (found.log_probs.sum() + found.values.sum()).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in policy.vf.parameters())
    save_policy(policy, tmp_path / "saved")
    again = load_policy(tmp_path / "saved").act(seen, np.random.default_rng(0))
    assert np.array_equal(again.values, policy.act(seen, np.random.default_rng(0)).values)


@pytest.mark.usefixtures("no_gpu")
def test_actions_are_unnormalised_by_the_quantiles_but_for_masked_numbers(tmp_path, small_towers):
    more = {**STATISTICS, "bridge": {"action": {"q01": [0] * 3, "q99": [1] * 3}}}
    folder = write_openvla(tmp_path / "vla", filled(openvla_shapes()), statistics=more)
    policy = read(folder, unnorm_key="libero_10", num_action_chunks=2)
    normalised = torch.tensor([[[-1.0, 0.5, -1.0], [1.0, 1.0, 0.3]]])
    assert policy.executed(normalised) == pytest.approx(np.array([[[-0.5, 0.5, -1.0], [0.5, 1.0, 0.3]]]), abs=1e-6)
    with refuses("policy.unnorm_key", "several"):
        read(folder)
    with refuses("policy.unnorm_key", "'libero_90' is none"):
        read(folder, unnorm_key="libero_90")
    with pytest.raises(ConfigError, match="have 3 action numbers, the environment has 7"):
        read(folder, unnorm_key="bridge", space=gymnasium.spaces.Box(-1, 1, (7,), np.float32))
    (folder / "dataset_statistics.json").write_text(
        json.dumps({"bridge": {"action": {"q01": [0] * 3, "q99": [4] * 3}}})
    )
    assert read(folder, unnorm_key="bridge").executed(torch.ones(1, 8, 3))[0, 0] == pytest.approx([4, 4, 4])


@pytest.mark.usefixtures("no_gpu")
def test_proprioception_of_oft(tmp_path, small_towers):
    folder = write_openvla(tmp_path / "vla", filled(openvla_shapes()))
    (folder / "proprio_projector--150000_checkpoint.pt").write_bytes(b"a pickle, which is not opened")
    with pytest.raises(CheckpointError, match=r"proprio_projector--150000_checkpoint\.pt is a pickle.* guerdon import"):
        read(folder, measured=3, use_proprio=True)
    (folder / "proprio_projector--150000_checkpoint.pt").unlink()
    with pytest.raises(
        CheckpointError, match=r"has no proprio_projector\.safetensors; set policy\.use_proprio to false"
    ):
        read(folder, measured=3, use_proprio=True)
    shapes = {"fc1.weight": (WIDTH, 3), "fc1.bias": (WIDTH,), "fc2.weight": (WIDTH, WIDTH), "fc2.bias": (WIDTH,)}
    save_file(filled({f"module.{k}": v for k, v in shapes.items()}), folder / "proprio_projector.safetensors")
    policy = read(folder, measured=3, use_proprio=True, num_action_chunks=2)
    seen = observations(1)
    seen["proprioception"] = [-1.0, 1.0, 9.0]
    assert policy.inputs(seen).proprio[0].tolist() == pytest.approx([-1, 0, 1], abs=1e-6), "cut off at 1"
    other = observations(1)
    other["proprioception"] = [3.0, 3.0, 3.0]
    before, after = (policy.model(policy.pixels(i), i, 6) for i in (policy.inputs(seen), policy.inputs(other)))
    assert not torch.equal(before, after)


@pytest.mark.hostile("models")
def test_what_is_not_the_published_layout_is_refused(tmp_path, small_towers):
    tensors = filled(openvla_shapes())
    lost = "language_model.model.layers.1.mlp.up_proj.weight"
    without = {k: t for k, t in tensors.items() if k != lost}
    extra = {**tensors, "language_model.model.extra": torch.zeros(2)}
    cases = {
        "lacks 1 weights, such as language_model.layers.1.mlp.up_proj.weight": without,
        "lacks 1 weights, such as action_head.weight": {k: t for k, t in tensors.items() if "lm_head" not in k},
        "has 1 unknown weights, such as language_model.extra": extra,
        "has 1 weights of another shape, such as projector.fc3.bias": {**tensors, "projector.fc3.bias": torch.zeros(3)},
        "is not finite": {**tensors, "projector.fc3.bias": torch.full((WIDTH,), float("nan"))},
    }  # fmt: skip
    for i, (said, changed) in enumerate(cases.items()):
        with pytest.raises(CheckpointError, match=said):
            read(write_openvla(tmp_path / str(i), changed))
    folder = write_openvla(tmp_path / "vla", tensors, timm_model_ids=["vit_huge"])
    with pytest.raises(CheckpointError, match="vit_huge"):
        read(folder)
    with refuses("policy.family", r"set policy\.family to token or regression"):
        read(folder, family="flow")
    write_openvla(tmp_path / "vla", tensors, model_type="llava")
    with pytest.raises(CheckpointError, match="'llava'; known are openvla, smolvla"):
        read(folder)
    write_openvla(tmp_path / "vla", tensors)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no model-00002-of-00002"):
        read(folder)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read(tmp_path)


def test_the_published_sizes():
    """openvla-7b has 7,541,237,184 parameters, and OpenVLA's adapters of rank 32 have 110,828,288.

    Those are on the output embedding, on the convolutions that cut patches, and on layers that take no part, too.
    """
    from accelerate import init_empty_weights
    from transformers import LlamaConfig

    config = LlamaConfig(vocab_size=32064, pad_token_id=32000)
    with init_empty_weights(include_buffers=False):
        towers = DinoSiglipTowers([published.TOWERS[DINO], published.TOWERS[SIGLIP]])
        network = PrismaticNetwork(towers, config, vocabulary=32000, bins=256, image_size=224, fused=True)
    unused = published.openvla_unused(network)
    own = sum(parameter.numel() for parameter in network.parameters())
    rest = sum(int(np.prod(shape)) for shape in unused.values()) + (32064 - 256) * 4096
    assert own + rest == 7_541_237_184
    linear = [m for n, m in network.named_modules() if isinstance(m, torch.nn.Linear) and n != "action_head"]
    adapters = sum(32 * (m.in_features + m.out_features) for m in linear)
    shapes = [s for name, s in unused.items() if name.endswith("weight") and len(s) == 2]
    patches = sum(32 * (3 * 14 * 14 + published.TOWERS[name].width) for name in (DINO, SIGLIP))
    assert adapters + sum(32 * sum(s) for s in shapes) + 32 * (4096 + 32064) + patches == 110_828_288
    assert network.vision_backbone.featurizer.size.patches == 256


# SmolVLA.

VISION, TEXT, EXPERT, WORDS = 8, 16, 12, 40


def smolvla_shapes():
    deep = 2
    vision = {"embeddings.patch_embedding.weight": (VISION, 3, 4, 4), "embeddings.patch_embedding.bias": (VISION,),
              "embeddings.position_embedding.weight": (16, VISION)}  # fmt: skip
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        vision |= {
            f"encoder.layers.0.self_attn.{name}.weight": (VISION, VISION),
            f"encoder.layers.0.self_attn.{name}.bias": (VISION,),
        }
    vision |= {"encoder.layers.0.mlp.fc1.weight": (10, VISION), "encoder.layers.0.mlp.fc1.bias": (10,)}
    vision |= {"encoder.layers.0.mlp.fc2.weight": (VISION, 10), "encoder.layers.0.mlp.fc2.bias": (VISION,)}
    for name in ("encoder.layers.0.layer_norm1", "encoder.layers.0.layer_norm2", "post_layernorm"):
        vision |= {f"{name}.weight": (VISION,), f"{name}.bias": (VISION,)}
    text = llama("", TEXT, 20, deep, WORDS, heads=0.5)
    expert = llama("", EXPERT, 256, deep, 0, embedded=False)
    kv, q = 8, 16  # one head of keys of 8, two heads of queries
    for i in range(deep):
        into = EXPERT if i % 2 == 0 else kv
        attention = {"q_proj": (q, EXPERT), "o_proj": (EXPERT, q), "k_proj": (kv, into), "v_proj": (kv, into)}
        expert |= {f"layers.{i}.self_attn.{name}.weight": shape for name, shape in attention.items()}
    vlm = "model.vlm_with_expert.vlm.model."
    linear = {"state_proj": (TEXT, 32), "action_in_proj": (EXPERT, 32), "action_out_proj": (32, EXPERT),
              "action_time_mlp_in": (EXPERT, 2 * EXPERT), "action_time_mlp_out": (EXPERT, EXPERT)}  # fmt: skip
    return {
        **{f"{vlm}vision_model.{name}": shape for name, shape in vision.items()},
        f"{vlm}connector.modality_projection.proj.weight": (TEXT, 4 * VISION),
        **{f"{vlm}text_model.{name}": shape for name, shape in text.items()},
        "model.vlm_with_expert.vlm.lm_head.weight": (WORDS, TEXT),
        **{f"model.vlm_with_expert.lm_expert.{name}": shape for name, shape in expert.items()},
        **{f"model.{name}.weight": shape for name, shape in linear.items()},
        **{f"model.{name}.bias": shape[:1] for name, shape in linear.items()},
    }


SMOLVLA_STATISTICS = {"action.mean": torch.tensor([0.0, 1.0, 2.0]), "action.std": torch.tensor([1.0, 2.0, 0.5]),
                      "observation.state.mean": torch.ones(3), "observation.state.std": 2 * torch.ones(3)}  # fmt: skip


def write_smolvla(folder, tensors, *, statistics=SMOLVLA_STATISTICS, **changes):
    folder.mkdir(exist_ok=True)
    config = {
        "type": "smolvla", "chunk_size": 6, "n_action_steps": 6, "max_state_dim": 32, "max_action_dim": 32,
        "resize_imgs_with_padding": [16, 16], "tokenizer_max_length": 48, "num_steps": 10,
        "freeze_vision_encoder": True, "train_expert_only": True, "train_state_proj": True,
        "vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct", "add_image_special_tokens": False,
        "attention_mode": "cross_attn", "prefix_length": -1, "num_expert_layers": -1, "num_vlm_layers": 2,
        "self_attn_every_n_layers": 2, "expert_width_multiplier": 0.75, "min_period": 0.004, "max_period": 4.0,
        **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    if statistics:
        save_file(statistics, folder / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    return folder


def write_vlm(folder, *, text=None, vision=None):
    from transformers import SmolVLMConfig

    SmolVLMConfig(
        text_config={
            "model_type": "llama", "hidden_size": TEXT, "intermediate_size": 20, "num_hidden_layers": 3, "head_dim": 8,
            "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": WORDS, "pad_token_id": 0, **(text or {}),
        },
        vision_config={
            "hidden_size": VISION, "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 16, "patch_size": 4, **(vision or {}),
        }, scale_factor=2,
    ).save_pretrained(folder)  # fmt: skip
    write_tokenizer(folder, ["open", "it", "close", "the", "window"])
    return folder


@pytest.mark.usefixtures("no_gpu")
def test_smolvla(tmp_path):
    tensors = filled(smolvla_shapes())
    vlm = write_vlm(tmp_path / "vlm")
    folder = write_smolvla(tmp_path / "vla", tensors)
    keys = {"family": "flow", "num_steps": 2, "num_action_chunks": 4, "use_proprio": True, "measured": 3}
    policy = read(folder, heads=("env",), vlm_path=str(vlm), **keys)
    own, prefix = policy.model.state_dict(), "model.vlm_with_expert."
    assert torch.equal(own["expert.layers.1.self_attn.k_proj.weight"],
                       tensors[f"{prefix}lm_expert.layers.1.self_attn.k_proj.weight"])  # fmt: skip
    assert torch.equal(own["see.connector.modality_projection.proj.weight"],
                       tensors[f"{prefix}vlm.model.connector.modality_projection.proj.weight"])  # fmt: skip
    trained = {name for name, parameter in policy.model.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith(("see.", "text.")) for name in trained), "train_expert_only"
    assert any(name.startswith("expert.") for name in trained)
    seen = observations(2)
    action = policy.act(seen, np.random.default_rng(0))
    assert action.values.shape == (2, 4, 3)
    assert action.record.shape == (2, 3, 4, 32), "the numbers that pad an action are part of the path"
    assert policy.executed(torch.ones(1, 4, 3))[0, 0] == pytest.approx([1, 3, 2.5])
    assert policy.inputs(seen).proprio.numpy() == pytest.approx((seen["proprioception"] - 1) / 2)
    found = policy.evaluate(policy.inputs(seen, action.record))
    assert found.log_probs.shape == (2, 4)
    save_policy(policy, tmp_path / "saved")
    assert np.array_equal(load_policy(tmp_path / "saved").act(seen, np.random.default_rng(0)).values, action.values)
    assert not any(name.startswith(("model.see.", "model.text.")) for name in policy.tensors())
    older = {f"unnormalize_outputs.buffer_{k}": t for k, t in SMOLVLA_STATISTICS.items() if k.startswith("action")}
    older |= {
        f"normalize_inputs.buffer_observation_state.{k}": SMOLVLA_STATISTICS[f"observation.state.{k}"]
        for k in ("mean", "std")
    }
    other = read(write_smolvla(tmp_path / "old", {**tensors, **older}, statistics={}), vlm_path=str(vlm), **keys)
    assert np.array_equal(other.act(seen, np.random.default_rng(0)).values, action.values)


@pytest.mark.usefixtures("no_gpu")
def test_smolvla_acts_as_lerobot_does(tmp_path):
    """What LeRobot's `VLAFlowMatching.sample_actions` at 7427f318 makes of these weights, pictures and noise."""
    vlm = str(write_vlm(tmp_path / "vlm"))
    keys = {"family": "flow", "num_steps": 3, "num_action_chunks": 6, "use_proprio": True, "measured": 3}
    folder = write_smolvla(tmp_path / "vla", filled(smolvla_shapes()))
    policy = read(folder, vlm_path=vlm, num_images_in_input=2, **keys)
    inputs = policy.inputs(observations(3, tasks=("open it", "close the window"), cameras=2))
    x = torch.randn(3, 6, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        prefix = policy.model.read(policy.pixels(inputs), inputs)
        for step in range(3):
            velocity, _ = policy.model.velocity(prefix, x, torch.full((3,), 1 - step / 3))
            x = x - velocity / 3
    assert x[:, 5, :3].numpy() == pytest.approx(
        np.array([[0.1217223, -0.2640710, -1.1031299], [-0.1009055, 0.6162619, 0.3326150],
                  [0.0623885, 1.0847347, 0.0874146]]), abs=1e-5,
    )  # fmt: skip


@pytest.mark.hostile("models")
def test_smolvla_that_does_not_fit_is_refused(tmp_path):
    tensors, vlm = filled(smolvla_shapes()), str(write_vlm(tmp_path / "vlm"))
    keys = {"family": "flow", "num_action_chunks": 4, "use_proprio": True, "measured": 3}
    folder = write_smolvla(tmp_path / "vla", tensors)
    with pytest.raises(CheckpointError, match=r"set policy\.vlm_path"):
        read(folder, **keys)
    with refuses("policy.use_proprio"):
        read(folder, **{**keys, "use_proprio": False, "vlm_path": vlm})
    with refuses("policy.num_action_chunks"):
        read(folder, **{**keys, "num_action_chunks": 7, "vlm_path": vlm})
    with refuses("policy.family"):
        read(folder)
    with pytest.raises(ConfigError, match=r"have 3 observation\.state numbers, the environment has 4"):
        read(folder, **{**keys, "measured": 4, "vlm_path": vlm})
    without = {k: t for k, t in tensors.items() if "action_out_proj.bias" not in k}
    with pytest.raises(CheckpointError, match=r"lacks 1 weights, such as action_out_proj\.bias"):
        read(write_smolvla(tmp_path / "less", without), vlm_path=vlm, **keys)
    extra = {**tensors, "model.vlm_with_expert.lm_expert.extra": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"has 1 unknown weights, such as expert\.extra"):
        read(write_smolvla(tmp_path / "more", extra), vlm_path=vlm, **keys)
