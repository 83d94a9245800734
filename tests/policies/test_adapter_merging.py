"""Whatever carries an adapter: what is trained is what is stored, written, read, sent and hashed."""

import copy
import json
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
import transformers
from architectures import FAMILIES, OTHERS, build
from safetensors.torch import load_file, save_file
from tiny_models import oracle, random_batch, tiny_policy

from guerdon.endpoints.completions import weights_hash
from guerdon.errors import CheckpointError, ConfigError
from guerdon.files.atomic import COMPLETE
from guerdon.policies.batches.precision import halve_linear
from guerdon.policies.language import text_files
from guerdon.policies.language.generate import LocalEngine, supports
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy, add_policy, reference
from guerdon.policies.language.text_files import check_disk, load_policy, read_model, save_policy, written_bytes
from guerdon.policies.pretrained.reading import ComputedWeight
from guerdon.processes.progress import log_once
from guerdon.settings.text_policy import LocalGenerationSettings, LoraSettings, TextPolicySettings
from tables import first, refuses, sample

BATCH = random_batch(5, seed=3)
ALL = "all-linear"
CASES = {
    "llama_tied": [ALL, ("q_proj", "v_proj"), ("lm_head",), ("embed_tokens",), ("embed_tokens", "lm_head", "q_proj")],
    "llama": [ALL, ("lm_head",), ("embed_tokens", "down_proj"), r".*layers\.1\.mlp\.(up|down)_proj"],
    "qwen2": [ALL],
    "qwen3_moe": [ALL, ("q_proj", "v_proj"), ("gate_proj", "up_proj", "down_proj"), ("gate", "lm_head"),
                  ("down_proj",), ("embed_tokens", "up_proj", "gate_proj")],
    "mixtral": [ALL, ("w1", "w3"), ("w2", "q_proj")],
    "olmoe": [ALL, ("gate_proj", "up_proj", "o_proj")],
    "gpt2": [ALL, ("c_attn",), ("wte",), ("lm_head", "c_fc"), ("wpe",)],
    "gemma": [ALL, ("embed_tokens",), ("lm_head", "v_proj")],
    "gemma3": [ALL, ("embed_tokens", "lm_head")],
    "deepseek": [ALL, ("kv_b_proj", "lm_head"), ("gate_proj", "up_proj", "down_proj")],
    "phi3": [ALL, ("qkv_proj", "gate_up_proj"), ("lm_head",)],
    "phi": [ALL, ("dense", "lm_head")],
    "gpt_neox": [ALL, ("query_key_value", "embed_out", "embed_in")],
}  # fmt: skip
USUAL = {
    "llama_tied": 3,
    "gpt2": 1,
    "qwen3_moe": 1,
}  # how many targets `make test` runs; all: slow
EVERY = [pytest.param(family, target, id=f"{family}-{'+'.join([target] if isinstance(target, str) else target)}",
                      marks=[pytest.mark.slow] * (k >= USUAL.get(family, 0)))
         for family, targets in CASES.items() for k, target in enumerate(targets)]  # fmt: skip


def model_folder(family, folder):
    model, tokenizer = build(family)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def start(folder, target):
    lora = LoraSettings(r=2, alpha=8.0, target_modules=target)
    return load_policy(TextPolicySettings(path=str(folder), bf16=False, lora=lora), seed=1)


def trained(folder, target):
    """A policy after a few steps of an optimizer over what it says that it trains."""
    policy = start(folder, target)
    before = policy.tensors()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (-policy.log_probs(BATCH).sum()).backward()
        optimizer.step()
    assert all(not torch.equal(before[name], tensor) for name, tensor in policy.tensors().items())
    return policy


def scores(policy):
    with torch.no_grad():
        return policy.log_probs(BATCH).cpu().numpy()


def merged_by_peft(policy):
    """Weights by name, merged by peft in a copy."""
    copied = copy.deepcopy(policy.base.peft)
    copied.set_adapter("policy")
    return dict(copied.merge_and_unload(adapter_names=["policy"]).state_dict())


@pytest.mark.parametrize(("family", "target"), EVERY)
def test_what_was_trained_is_what_is_written_and_read(tmp_path, family, target):
    folder = model_folder(family, tmp_path / "start")
    policy = trained(folder, target)
    expected = scores(policy)
    assert np.abs(expected - scores(reference(policy.base))).max() > 0.5
    np.testing.assert_allclose(expected, oracle(adapted(policy), BATCH)[0], atol=1e-4)
    by_peft, ours = merged_by_peft(policy), dict(policy.merged_weights())
    for name, weight in ours.items():
        torch.testing.assert_close(weight, by_peft[name], atol=3e-6, rtol=0)
    plain, untied = read_model(str(folder))[0], not policy.base.model.config.tie_word_embeddings
    assert ours.keys() == plain.state_dict().keys() - (set() if untied else {head_of(plain)})
    assert scores(policy) == pytest.approx(expected, abs=1e-6)  # merging changed nothing
    with policy.base.adapter(None):
        assert scores(reference(policy.base)) == pytest.approx(oracle(plain, BATCH)[0], abs=1e-4)

    written = save_policy(policy, tmp_path / "merged", merged=True)
    assert (written / COMPLETE).is_file()
    again, report = transformers.AutoModelForCausalLM.from_pretrained(written, output_loading_info=True)
    assert not any(report[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    np.testing.assert_allclose(expected, oracle(again, BATCH)[0], atol=1e-4)
    assert weights_hash(TextPolicy(SharedBase(again, policy.tokenizer, policy.base.settings))) == weights_hash(policy)

    apart = save_policy(policy, tmp_path / "adapter")
    np.testing.assert_allclose(expected, oracle(read_model(str(apart))[0], BATCH)[0], atol=1e-4)
    import peft

    theirs = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(folder), str(apart))
    np.testing.assert_allclose(expected, oracle(theirs.eval(), BATCH)[0], atol=1e-4)

    resumed = start(folder, target)
    resumed.load_tensors(policy.tensors())
    np.testing.assert_allclose(expected, scores(resumed), atol=1e-5)
    assert weights_hash(resumed) == weights_hash(policy) != weights_hash(reference(policy.base))

    found = LocalEngine(policy, LocalGenerationSettings()).generate(
        BATCH.prompts, 1, max_new_tokens=6, rng=np.random.default_rng(0)
    )
    assert supports(policy) == (family in ("llama", "llama_tied", "qwen2"))
    with torch.no_grad():
        np.testing.assert_allclose(found.log_probs_B_T, policy.log_probs(found.batch).cpu().numpy(), atol=1e-4)


def head_of(model):
    return next(n for n, m in model.named_modules() if m is model.get_output_embeddings()) + ".weight"


def adapted(policy):
    """The network of a policy, to be called as transformers' own."""

    def call(ids):
        with policy.base.adapter(policy.adapter):
            return SimpleNamespace(logits=policy.base.model(ids.to(policy.device)).logits)

    return call


@pytest.mark.parametrize(
    ("family", "targets"),
    first(
        [
            ("llama_tied", (ALL, ("lm_head", "q_proj"))),
            ("llama_tied", (("embed_tokens",), ALL)),
            ("qwen3_moe", (ALL, ALL)),
            ("qwen3_moe", (("q_proj",), ALL)),
            ("mixtral", (("w1", "w3", "w2"), ("w1", "w3", "w2", "lm_head"))),
            ("gpt2", (ALL, ("wte", "c_attn"))),
        ],
        1,
        several=True,
    ),
)
def test_two_adapters_on_one_base_are_merged_apart(tmp_path, family, targets):
    model, tokenizer = build(family)
    before = dict(copy.deepcopy(model).named_parameters())
    base = SharedBase(model, tokenizer, TextPolicySettings(bf16=False))
    pair = [add_policy(base, name, LoraSettings(r=2, target_modules=target), seed=i)
            for i, (name, target) in enumerate(zip(("policy", "prm"), targets, strict=True))]  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in (p for policy in pair for p in policy.parameters()):
            p.copy_(0.2 * torch.randn(p.shape, generator=generator))
    assert not pair[0].named_parameters().keys() & pair[1].named_parameters().keys()
    assert {id(p) for p in model.parameters() if p.requires_grad} == {id(p) for x in pair for p in x.parameters()}
    both = [scores(policy) for policy in pair]
    assert np.abs(both[0] - both[1]).max() > 0.1
    for i, policy in enumerate(pair):
        written = save_policy(policy, tmp_path / str(i), merged=True)
        np.testing.assert_allclose(both[i], oracle(read_model(str(written))[0], BATCH)[0], atol=1e-4)
        folder = save_policy(policy, tmp_path / f"apart{i}")
        np.testing.assert_allclose(both[i], oracle(read_model(str(folder))[0], BATCH)[0], atol=1e-4)
    frozen = dict(reference(base).merged_weights())
    assert all(torch.equal(frozen[name], weight) for name, weight in before.items())


@pytest.mark.parametrize("target", first([ALL, ("lm_head", "q_proj")], 1))
def test_a_folder_in_bfloat16_is_merged_and_written_in_float32(tmp_path, target):
    model, tokenizer = build("llama_tied")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    assert json.loads((tmp_path / "start" / "config.json").read_text())["dtype"] == "bfloat16"
    policy = trained(tmp_path / "start", target)
    written = save_policy(policy, tmp_path / "merged", merged=True)
    assert {tensor.dtype for tensor in load_file(written / "model.safetensors").values()} == {torch.float32}
    assert json.loads((written / "config.json").read_text())["dtype"] == "float32"
    again = transformers.AutoModelForCausalLM.from_pretrained(written)
    np.testing.assert_allclose(scores(policy), oracle(again, BATCH)[0], atol=1e-4)


def test_weights_that_were_rounded_are_written_in_float32_and_said_to_be_rounded(tmp_path, capsys):
    policy = trained(model_folder("llama", tmp_path / "start"), ("q_proj",))
    exact = {name: weight.cpu().clone() for name, weight in policy.merged_weights()}
    policy.base.halved = halve_linear(policy.base.model)  # as on a GPU that computes in bfloat16
    written = load_file(save_policy(policy, tmp_path / "rounded_once", merged=True) / "model.safetensors")
    assert "rounded_once" in (said := capsys.readouterr().err)
    assert "bfloat16" in said
    for name, weight in exact.items():
        assert written[name].dtype == torch.float32
        atol = 2**-8 if "proj" in name or name == "lm_head.weight" else 0
        torch.testing.assert_close(written[name], weight, atol=atol, rtol=2**-8 if atol else 0)


def test_embeddings_are_untied_where_an_adapter_is_on_one_of_them_and_nowhere_else(tmp_path, capsys):
    folder = model_folder("llama_tied", tmp_path / "start")
    log_once.cache_clear()
    for target, tied in ((ALL, True), (("q_proj",), True), (("lm_head",), False), (("embed_tokens",), False)):
        model = start(folder, target).base.model
        assert model.config.tie_word_embeddings == tied
        assert ("each has its own" in capsys.readouterr().err) == (target == ("lm_head",))  # said once
        plain = [getattr(x, "base_layer", x).weight for x in (model.get_input_embeddings(), model.lm_head)]
        assert (plain[0] is plain[1]) == tied
        assert torch.equal(*plain)


def test_a_weight_that_other_layers_share_is_refused():
    model, tokenizer = build("llama")
    one, other = (layer.self_attn for layer in model.model.layers)
    other.q_proj.weight = one.q_proj.weight
    base = SharedBase(model, tokenizer, TextPolicySettings(bf16=False))
    with refuses("lora.target_modules", r"layers.0.self_attn.q_proj.*layers.1.*same weight"):
        add_policy(base, "policy", LoraSettings(r=2, target_modules=("q_proj",)), seed=0)


def test_what_an_adapter_trains_besides_is_refused_by_name():
    import peft

    base = tiny_policy().base
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["norm"])
    with pytest.raises(ConfigError, match=r"trains model\.layers\.0\.input_layernorm\..*merge_and_unload"):
        base.put_adapter("policy", lambda model: peft.get_peft_model(model, config, adapter_name="policy"))


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("drop", ["model.layers.1.self_attn.o_proj.weight", "lm_head.weight"])
def test_a_folder_that_lacks_a_weight_is_never_complete(tmp_path, monkeypatch, family, drop):
    policy = start(model_folder(family, tmp_path / "start"), ALL)
    whole, kept = SharedBase.stored, tmp_path / "merged"
    kept.mkdir()
    (kept / "older").write_text("stays")
    lacking = lambda *given: {name: weight for name, weight in whole(*given).items() if name != drop}  # noqa: E731
    monkeypatch.setattr(SharedBase, "stored", lacking)
    with pytest.raises(CheckpointError, match=f"such as {drop}"):
        save_policy(policy, kept, merged=True)
    assert [p.name for p in tmp_path.iterdir() if p.name != "start"] == ["merged"]
    assert (kept / "older").read_text() == "stays"
    odd = {"model.layers.0.mlp.gate.bias": torch.zeros(3)}
    monkeypatch.setattr(SharedBase, "stored", lambda *given: whole(*given) | odd)
    with pytest.raises(CheckpointError, match=r"mlp\.gate\.bias"):
        save_policy(policy, kept, merged=True)


def test_buffers_that_belong_to_a_folder_are_written(tmp_path):
    """DeepSeek's router corrects its scores by a buffer, which is not a parameter."""
    model, tokenizer = build("deepseek")
    corrections = [b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]
    assert corrections
    for correction in corrections:
        correction.copy_(torch.tensor([0.5, -0.3, 0.9, 0.1]))
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    policy = trained(tmp_path / "start", ("q_b_proj", "o_proj", "down_proj"))
    written = save_policy(policy, tmp_path / "merged", merged=True)
    again = transformers.AutoModelForCausalLM.from_pretrained(written)
    np.testing.assert_allclose(scores(policy), oracle(again, BATCH)[0], atol=1e-4)


def test_a_disk_that_is_too_small_is_found_out_first(tmp_path, monkeypatch):
    folder = model_folder("llama", tmp_path / "start")
    policy, whole = start(folder, ("q_proj",)), load_policy(TextPolicySettings(path=str(folder), bf16=False), seed=0)
    numbers = sum(t.numel() for t in load_file(folder / "model.safetensors").values())
    adapter = sum(p.numel() for p in policy.parameters())
    assert sum(written_bytes(whole).values()) == 4 * numbers * 4  # the model, and it with two moments
    assert sum(written_bytes(policy, merged=True).values()) == 4 * numbers + 12 * adapter
    assert sum(written_bytes(policy).values()) == 16 * adapter
    for merged, of in ((True, policy), (False, policy), (False, whole)):
        name = "adapter_model.safetensors" if of is policy and not merged else "model.safetensors"
        size = (save_policy(of, tmp_path / "written", merged=merged) / name).stat().st_size
        counted = sum(written_bytes(of, merged=merged, checkpoint=False).values())
        assert counted == pytest.approx(size, abs=8000)  # beside the names
        assert counted <= size
    asked = []
    monkeypatch.setattr(text_files.shutil, "disk_usage", lambda path: asked.append(path) or SimpleNamespace(free=1000))
    check_disk(tmp_path / "a" / "b", {"one": 600, "two": 400})
    assert asked == [tmp_path]
    with pytest.raises(ConfigError, match=r"free.*at least \(one 6e-07 GB, two 4.01e-07 GB\).*another disk"):
        check_disk(tmp_path / "a" / "b", {"one": 600, "two": 401})


@pytest.mark.parametrize(
    ("family", "options"),
    first(
        [
            ("qwen2", {}),
            ("qwen2", {"bias": "all"}),
            ("gpt2", {}),
            ("llama", {"use_rslora": True, "alpha_pattern": {"q_proj": 3}, "rank_pattern": {"v_proj": 1}}),
        ],
        2,
        several=True,
    ),
)
def test_a_matrix_is_merged_when_it_is_read(family, options, tmp_path):
    """As peft merges the whole model, for learners that share it."""
    adapter_of(family, tmp_path, **options)
    model, weights = text_files._mapped(str(tmp_path / "adapter"))
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    whole, before = (dict(read_model(str(tmp_path / name))[0].named_parameters()) for name in ("adapter", "base"))
    assert whole.keys() <= weights.keys()
    for name, parameter in whole.items():
        assert torch.equal(weights[name].float(), parameter), name
    assert sum(not torch.equal(parameter, before[name]) for name, parameter in whole.items()) >= 4
    assert sum(isinstance(weight, ComputedWeight) for weight in weights.values()) >= 4


def test_an_adapter_on_an_adapter_is_merged_when_it_is_read(tmp_path):
    adapter_of("qwen2", tmp_path)
    (tmp_path / "second").mkdir()
    for file in (tmp_path / "adapter").iterdir():
        (tmp_path / "second" / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "second" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(tmp_path / "adapter")
    (tmp_path / "second" / "adapter_config.json").write_text(json.dumps(config))
    _, weights = text_files._mapped(str(tmp_path / "second"))
    for name, parameter in read_model(str(tmp_path / "second"))[0].named_parameters():
        assert torch.equal(weights[name].float(), parameter), name


def adapter_of(family, folder, **options):
    """The folder `adapter` of one that changes its model, which is in the folder `base`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder(family, folder / "base"))
    config = {"r": 2, "lora_alpha": 6, "target_modules": ALL, "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**{**config, **options}))
    adapted.save_pretrained(folder / "adapter")


def test_an_adapter_of_loftq_is_merged_when_it_is_read(tmp_path, monkeypatch):
    """On weights rounded as when it was made; peft rounds on a GPU, so a rule of the CPU is in its place."""

    def rounded(weight, num_bits, reduced_rank, num_iter):
        return (weight * 4).round() / 4, torch.zeros(reduced_rank, weight.shape[1]), weight[:, :reduced_rank].clone()

    monkeypatch.setattr("peft.tuners.lora.layer.loftq_init", rounded)
    monkeypatch.setattr("guerdon.policies.pretrained.adapter_files.find_spec", lambda name: True)
    adapter_of("qwen2", tmp_path, init_lora_weights="loftq", loftq_config=peft.LoftQConfig())
    _, weights = text_files._mapped(str(tmp_path / "adapter"))
    whole, before = (dict(read_model(str(tmp_path / name))[0].named_parameters()) for name in ("adapter", "base"))
    for name, parameter in whole.items():
        assert torch.equal(weights[name].float(), parameter), name
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(whole[name], before[name])


@pytest.mark.parametrize("family", sample([*FAMILIES, *OTHERS], "llama", "gpt2", "qwen3_moe"))
def test_weights_are_read_as_transformers_reads_them(family, tmp_path):
    """One at a time, whatever their names in the files; stacked experts are stacked when they are read."""
    folder = model_folder(family, tmp_path / "model")
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outlined, weights = text_files._mapped(str(folder))
    assert outlined.config._attn_implementation == read_model(str(folder))[0].config._attn_implementation
    for name, parameter in whole.named_parameters():
        assert outlined.get_parameter(name).is_meta
        assert torch.equal(weights[name].float(), parameter), name


def test_embeddings_with_other_values_than_the_output_are_two(tmp_path):
    """Though the configuration says that they are one, as transformers reads them."""
    folder = model_folder("llama_tied", tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"] + 1
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outlined, weights = text_files._mapped(str(folder))
    assert torch.equal(whole.lm_head.weight, stored["lm_head.weight"])
    assert torch.equal(weights["lm_head.weight"], whole.lm_head.weight)
    assert outlined.lm_head.weight is not outlined.model.embed_tokens.weight


@pytest.mark.parametrize("lost", ["experts.1.up_proj", ".up_proj"])
def test_experts_that_are_not_all_there_are_one_line(lost, tmp_path):
    folder = model_folder("qwen3_moe", tmp_path / "model")
    stored = {name: weight for name, weight in load_file(folder / "model.safetensors").items() if lost not in name}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"the language model .*model. cannot be read: "):
        text_files._mapped(str(folder))


def in_8_bits(folder, block=8):
    """A folder whose linear layers are stored in fp8, each block with its scale."""
    stored, out = load_file(folder / "model.safetensors"), {}
    for name, weight in stored.items():
        rows, columns = weight.shape if weight.ndim == 2 else (1, 1)
        if "proj" not in name or rows % block or columns % block:
            out[name] = weight
            continue
        blocks = weight.reshape(rows // block, block, columns // block, block)
        scales = blocks.abs().amax((1, 3)).clamp_min(1e-6) / 448
        out[name] = (blocks / scales[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
        out[f"{name}_scale_inv"] = scales
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    stored_as(folder, {"quant_method": "fp8", "weight_block_size": [block, block], "activation_scheme": "dynamic"})
    return folder


def stored_as(folder, quantization):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))


@pytest.mark.parametrize("family", ["llama_tied", "qwen2", "qwen3_moe"])
def test_weights_in_8_bits_are_read_as_transformers_reads_them(family, tmp_path):
    folder = in_8_bits(model_folder(family, tmp_path / "model"))
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model, weights = text_files._mapped(str(folder))
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in whole.named_parameters()}
    for name, value in whole.named_parameters():
        assert torch.equal(weights[name].to(torch.float32, copy=True), value), name
    policy = load_policy(TextPolicySettings(path=str(folder), bf16=False, device="cpu"), seed=0)  # in one process
    save_policy(policy, tmp_path / "written")
    assert "quantization_config" not in json.loads((tmp_path / "written" / "config.json").read_text())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "written")
    for name, value in whole.named_parameters():
        assert torch.equal(dict(again.named_parameters())[name], value), name


def test_weights_in_4_bits_are_refused_for_several_learners(tmp_path):
    folder = model_folder("llama", tmp_path / "model")
    stored_as(folder, {"quant_method": "gptq", "bits": 4})
    with pytest.raises(CheckpointError, match=r"model': weights that are stored by gptq cannot be shared by several"):
        text_files._mapped(str(folder))
