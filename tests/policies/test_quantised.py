"""Weights in fewer bits: floats when they are read, read by the package of their arithmetic, or refused at once."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import transformers
from architectures import build
from safetensors.torch import load_file, save_file
from tiny_models import oracle, random_batch

from guerdon.errors import CheckpointError, MissingDependencyError
from guerdon.policies.language import text_files
from guerdon.policies.language.generate import LocalEngine
from guerdon.policies.language.text_files import check_form, load_policy, outline, read_classifier, save_policy
from guerdon.policies.pretrained import quantised
from guerdon.policies.pretrained.adapters import kernels_to_floats
from guerdon.policies.pretrained.quantised import FORMS, check_trains, form_of
from guerdon.policies.pretrained.reading import read_config
from guerdon.rl.build_text import build_learning, check_text
from guerdon.settings.study import Study
from guerdon.settings.text_policy import LocalGenerationSettings, LoraSettings, TextPolicySettings
from tables import cases, refuses

BATCH = random_batch(4, seed=1)
EXACT = 1e-5


def settings(folder, **options):
    return TextPolicySettings(path=str(folder), bf16=False, device="cpu", **options)


def stored_as(folder, **quantization):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))


def folder_of(family, folder, model=None):
    own, tokenizer = build(family)
    (model or own).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def in_fp8(folder, block=8):
    """Linear layers of a folder in fp8, each block with its scale."""
    out = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if "proj.weight" not in name:
            out[name] = weight
            continue
        rows, columns = weight.shape
        blocks = weight.reshape(rows // block, block, columns // block, block)
        scales = blocks.abs().amax((1, 3)).clamp_min(1e-6) / 448
        out[name] = (blocks / scales[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
        out[f"{name}_scale_inv"] = scales
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    stored_as(folder, quant_method="fp8", weight_block_size=[block, block], activation_scheme="dynamic")
    return folder


def gpt_oss(folder):
    """A gpt-oss whose experts are stored in mxfp4, as the published ones are."""
    _, tokenizer = build("llama")
    config = transformers.GptOssConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=12,
        layer_types=["sliding_attention", "full_attention"], max_position_embeddings=256, eos_token_id=1,
        pad_token_id=0, bos_token_id=1, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.GptOssForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    generator, out = torch.Generator().manual_seed(1), {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            out[name] = weight
            continue
        experts, width, rows = weight.shape
        shape = (experts, rows, width // 32)
        out[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        out[f"{name}_scales"] = torch.randint(120, 126, shape, generator=generator, dtype=torch.uint8)
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    stored_as(folder, quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])
    return folder


FLOATS = {
    "fp8": (lambda f: in_fp8(folder_of("llama", f)), "FineGrainedFP8Config"),
    "fp8, mixture": (lambda f: in_fp8(folder_of("qwen3_moe", f)), "FineGrainedFP8Config"),
    "mxfp4": (gpt_oss, "Mxfp4Config"),
}


@pytest.mark.parametrize("name", FLOATS)
def test_what_becomes_floats_is_trained_and_saved_as_any_other(name, tmp_path):
    make, config = FLOATS[name]
    folder = make(tmp_path / "model")
    whole = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=getattr(transformers, config)(dequantize=True)
    )
    wanted = dict(whole.named_parameters())
    policy = load_policy(settings(folder), seed=0)
    own = dict(policy.base.model.named_parameters())
    assert own.keys() == wanted.keys()
    assert all(torch.equal(own[key], value) for key, value in wanted.items())
    np.testing.assert_allclose(policy.log_probs(BATCH).detach(), oracle(whole, BATCH)[0], atol=EXACT)
    model, weights = text_files._mapped(str(folder))  # one weight at a time, as several learners read it
    for key, _ in model.named_parameters():
        assert torch.equal(weights[key].to(torch.float32, copy=True), wanted[key]), key
    assert not hasattr(outline(settings(folder)).base.model.config, "quantization_config")
    policy.log_probs(BATCH).sum().backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter -= 1e-3 * parameter.grad if parameter.grad is not None else 0
    trained = policy.log_probs(BATCH).detach()
    save_policy(policy, tmp_path / "written")
    assert "quantization_config" not in json.loads((tmp_path / "written" / "config.json").read_text())
    again = load_policy(settings(tmp_path / "written"), seed=0)
    np.testing.assert_allclose(again.log_probs(BATCH).detach(), trained, atol=EXACT)


def test_an_adapter_on_what_becomes_floats_is_read_again(tmp_path):
    folder = gpt_oss(tmp_path / "model")
    policy = load_policy(settings(folder, lora=LoraSettings(r=2, target_modules=("q_proj", "v_proj"))), seed=0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(std=0.1)
    wanted = policy.log_probs(BATCH).detach()
    save_policy(policy, tmp_path / "adapter")
    found = load_policy(settings(tmp_path / "adapter"), seed=0).log_probs(BATCH).detach()
    np.testing.assert_allclose(found, wanted, atol=EXACT)


def test_a_classifier_in_fp8_has_floats_too(tmp_path):
    model, _ = build("llama")
    model.config.num_labels = 1
    classifier = transformers.AutoModelForSequenceClassification.from_config(model.config)
    classifier.save_pretrained(tmp_path)
    in_fp8(tmp_path)
    found = read_classifier(transformers.AutoModelForSequenceClassification, str(tmp_path), "the classifier")
    assert {p.dtype for p in found.parameters()} == {torch.float32}
    for (name, own), before in zip(found.named_parameters(), classifier.parameters(), strict=True):
        torch.testing.assert_close(own, before, atol=0.05 * float(before.abs().max()), rtol=0.05, msg=name)


ABSENT = [form for form in FORMS if form.module is not None and find_spec(form.module) is None]


@pytest.mark.parametrize("form", ABSENT, ids=lambda form: form.method)
def test_what_needs_a_package_is_refused_before_prompts_are_read(form, tmp_path):
    folder = folder_of("llama", tmp_path / "model")
    stored_as(folder, quant_method=form.method, bits=4, group_size=32)
    data = {"type": "files", "train_files": str(tmp_path / "nothing.jsonl"), "max_response_length": 8}
    study = Study.model_validate({"policy": {"type": "text", "path": str(folder), "lora": {}}, "data": data})
    for refuse in (
        lambda: check_form(settings(folder), trained=False),
        lambda: outline(settings(folder)),
        lambda: load_policy(settings(folder), seed=0),
        lambda: check_text(study),
        lambda: build_learning(study, fresh=True),
    ):
        with pytest.raises(
            MissingDependencyError, match=f"needs {form.package}: pip install {form.package}; or name"
        ) as e:
            refuse()
        assert "download" not in str(e.value)


@pytest.mark.hostile("models")
@cases("method", ("modelopt", "nothing", None))
def test_a_form_that_is_not_known_is_refused_by_its_name(method, tmp_path_factory):
    folder = folder_of("llama", tmp_path_factory.mktemp("model"))
    stored_as(folder, **({"bits": 4} if method is None else {"quant_method": method}))
    for refuse in (check_form, outline, lambda given: load_policy(given, seed=0)):
        with pytest.raises(CheckpointError, match=f"stored by {method!r}, which guerdon does not read") as error:
            refuse(settings(folder))
        assert "download" not in str(error.value)


def test_all_weights_are_trained_only_of_what_is_floats(tmp_path, monkeypatch):
    """Where the package is there: an adapter is trained, all weights are not."""
    folder = folder_of("llama", tmp_path / "model")
    stored_as(folder, quant_method="gptq", bits=4)
    monkeypatch.setattr(quantised, "find_spec", lambda name: object())
    check_form(settings(folder), trained=False)
    check_form(settings(folder, lora=LoraSettings()))
    with refuses("policy.path", r"stored by gptq, .*: set lora, or name"):
        check_form(settings(folder))
    form = form_of(read_config(str(folder), "the model"), "the model")
    check_trains(form, adapter=True, where="policy.path")
    check_trains(None, adapter=False, where="policy.path")


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_is_scored_with_and_carries_adapters(bits, tmp_path):
    """As transformers and the package's own arithmetic read it."""
    pytest.importorskip("bitsandbytes")
    plain = folder_of("llama", tmp_path / "plain")
    config = transformers.BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=config, dtype=torch.float32)
    folder = folder_of("llama", tmp_path / "model", model)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).dequantize()
    _carries(folder, whole, tmp_path)


def test_compressed_tensors_are_scored_with_and_carry_adapters(tmp_path):
    pytest.importorskip("compressed_tensors")
    folder = folder_of("llama", tmp_path / "model")
    out = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        out[name] = weight
        if "_proj.weight" in name:
            scale = weight.abs().amax(1, keepdim=True) / 127
            out[name], out[f"{name}_scale"] = (weight / scale).round().to(torch.int8), scale
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    stored_as(
        folder, quant_method="compressed-tensors", format="int-quantized", ignore=["lm_head"],
        quantization_status="compressed", config_groups={"group_0": group},
    )  # fmt: skip
    how = transformers.CompressedTensorsConfig(dequantize=True)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=how)
    _carries(folder, whole, tmp_path)


def packed(numbers, axis):
    """Numbers below 16, eight to an int32 along an axis, the first one in the lowest bits."""
    parts = numbers.to(torch.int64).movedim(axis, 0)
    parts = parts.reshape(parts.shape[0] // 8, 8, *parts.shape[1:])
    words = sum(parts[:, k] << 4 * k for k in range(8))
    return (words - (words >> 31 << 32)).to(torch.int32).movedim(0, axis).contiguous()


class Kernel(torch.nn.Module):
    """A linear layer as packages have it: no `weight`, only what it computes."""

    in_features, out_features = 1030, 3

    def __init__(self):
        super().__init__()
        self.qweight, self.bias = torch.zeros(1, dtype=torch.int32), torch.randn(3)
        self.hidden = torch.randn(3, 1030)

    def forward(self, rows):
        return rows @ self.hidden.T + self.bias


def test_weights_of_a_kernel_become_floats():
    torch.manual_seed(0)
    model = torch.nn.Sequential(Kernel(), torch.nn.ReLU())
    kernel = model[0]
    kernels_to_floats(model)
    assert type(model[0]) is torch.nn.Linear
    torch.testing.assert_close(model[0].weight, kernel.hidden, atol=1e-6, rtol=0)
    torch.testing.assert_close(model[0].bias, kernel.bias, atol=0, rtol=0)


GROUP = 32  # columns that have a scale in common


def rounded(weight):
    """Whole numbers 0 to 15 by column and row, eight of them standing for 0, and the scales of each group."""
    rows, columns = weight.shape
    groups = weight.T.reshape(columns // GROUP, GROUP, rows)
    scales = (groups.abs().amax(1) / 7).clamp_min(1e-6).half()
    numbers = (groups / scales[:, None].float()).round().clamp(-8, 7) + 8
    return numbers.reshape(columns, rows), scales


def gptq(weight):
    numbers, scales = rounded(weight)
    zeros = torch.full(scales.shape, 7)  # the files hold one less
    group_of = torch.arange(len(numbers)) // GROUP
    return {"qweight": packed(numbers, 0), "qzeros": packed(zeros, 1), "scales": scales,
            "g_idx": group_of.to(torch.int32)}  # fmt: skip


def awq(weight):
    numbers, scales = rounded(weight)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # of the eight in a word

    def interleaved(values):
        return packed(values.unflatten(1, (-1, 8))[:, :, order].flatten(1), 1)

    return {"qweight": interleaved(numbers), "qzeros": interleaved(torch.full(scales.shape, 8)), "scales": scales}


STORED = {
    gptq: {"quant_method": "gptq", "desc_act": False, "sym": True, "checkpoint_format": "gptq"},
    awq: {"quant_method": "awq", "zero_point": True, "version": "gemm"},
}


def in_few_bits(folder, form):
    """Linear layers of a folder in 4 bits, as a form stores them."""
    out = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if "_proj.weight" in name:
            base = name.removesuffix("weight")
            out |= {f"{base}{leaf}": tensor for leaf, tensor in form(weight).items()}
        else:
            out[name] = weight
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    stored_as(folder, bits=4, group_size=GROUP, **STORED[form])
    return folder


@pytest.mark.parametrize("form", [gptq, awq])
def test_kernels_are_scored_with_and_carry_adapters(tmp_path, form):
    """As transformers and the package's kernel compute it, also with an adapter on all linear layers, also merged."""
    pytest.importorskip("gptqmodel")
    config = build("llama")[0].config
    config.hidden_size, config.intermediate_size, config.head_dim = 64, 64, 16
    torch.manual_seed(0)
    plain = transformers.AutoModelForCausalLM.from_config(config)
    folder = in_few_bits(folder_of("llama", tmp_path / "model", plain), form)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    _carries(folder, whole, tmp_path)


def _carries(folder, whole, tmp_path):
    """A policy of a folder gives the numbers of a model, and an adapter on it is read again, merged."""
    policy = load_policy(settings(folder, lora=LoraSettings(r=2)), seed=0)
    with torch.no_grad():
        np.testing.assert_allclose(policy.log_probs(BATCH), oracle(whole, BATCH)[0], atol=EXACT)
    with refuses("policy.path"):
        check_form(settings(folder))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(std=0.1)
        wanted = policy.log_probs(BATCH)
    engine = LocalEngine(policy, LocalGenerationSettings())
    found = engine.generate(list(BATCH.prompts), 1, max_new_tokens=4, rng=np.random.default_rng(0))
    with torch.no_grad():
        np.testing.assert_allclose(found.log_probs_B_T, policy.log_probs(found.batch), atol=EXACT)
    save_policy(policy, tmp_path / "adapter")
    again = load_policy(settings(tmp_path / "adapter"), seed=0).log_probs(BATCH).detach()
    np.testing.assert_allclose(again, wanted, atol=EXACT)
