import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from architectures import build
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file
from tiny_models import oracle, tiny_policy

import fake_vllm
from guerdon.errors import ConfigError, DataError, MissingDependencyError
from guerdon.policies.batches import packing
from guerdon.policies.batches.tokens import stop_ids
from guerdon.policies.language import decoding, generate_vllm
from guerdon.policies.language import generate as decode
from guerdon.policies.language.generate import LocalEngine, draw
from guerdon.policies.language.generate_vllm import VLLMEngine
from guerdon.policies.language.text import add_policy
from guerdon.policies.language.text_files import load_policy, outline, save_policy
from guerdon.settings.text_policy import (
    LocalGenerationSettings,
    LoraSettings,
    TextPolicySettings,
    TinyModelSettings,
    VLLMGenerationSettings,
)
from tables import refuses, sample

EOS = 2


def some_prompts(count=7, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(7, 103, rng.integers(1, 9)) for _ in range(count)]


PROMPTS = some_prompts()


def write(policy, n=3, *, limit=20, seed=4, prompts=PROMPTS, greedy=False, **options):
    engine = LocalEngine(policy, LocalGenerationSettings(**options))
    rng = None if greedy else np.random.default_rng(seed)
    return engine.generate(prompts, n, max_new_tokens=limit, rng=rng, greedy=greedy)


def keen(policy, times=6.0):
    """The same policy, likelier to stop, so that rows end at different times."""
    with torch.no_grad():
        policy.base.model.get_output_embeddings().weight[EOS] *= times
    return policy


def same(a, b):
    np.testing.assert_array_equal(a.batch.responses_B_T, b.batch.responses_B_T)
    np.testing.assert_array_equal(a.batch.finished_B, b.batch.finished_B)
    np.testing.assert_allclose(a.log_probs_B_T, b.log_probs_B_T, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("tie", [True, False])
def test_behaviour_log_probs_are_those_of_the_policy(architecture, by_hand, tie, monkeypatch):
    policy = keen(tiny_policy(architecture, tie=tie))
    assert decode.supports(policy)
    if not by_hand:
        monkeypatch.setattr(decode, "supports", lambda policy: False)
    found = write(policy, temperature=1.2)
    assert 0 < found.batch.finished_B.mean() < 1  # some rows ended early, some were cut
    expected, _ = oracle(policy.base.model, found.batch, 1.2)
    np.testing.assert_allclose(found.log_probs_B_T, expected, atol=1e-4)
    for prompt, written in zip(np.repeat(np.arange(len(PROMPTS)), 3), found.batch.prompts, strict=True):
        np.testing.assert_array_equal(written, PROMPTS[prompt])


def test_prompts_read_in_parts_are_read_the_same(monkeypatch):
    policy = keen(tiny_policy("qwen2"))
    whole = write(policy)
    monkeypatch.setattr(decoding, "READ_AT_ONCE", 10)
    same(whole, write(policy))


def test_other_networks_read_prompts_within_the_tokens_of_a_pass(monkeypatch):
    monkeypatch.setattr(decode, "supports", lambda policy: False)
    read, forward = [], decode.HFDecoder._forward
    monkeypatch.setattr(
        decode.HFDecoder, "_forward", lambda self, ids, at: read.append(ids.shape) or forward(self, ids, at)
    )
    whole = write(keen(tiny_policy("qwen2")))
    assert max(rows * length for rows, length in read) > 24
    read.clear()
    same(whole, write(keen(tiny_policy("qwen2", max_tokens_per_pass=24))))
    assert max(rows * length for rows, length in read) == 24


@pytest.mark.parametrize("bf16", [True, False])
def test_fused_attention_and_two_products_agree(bf16):
    policy = tiny_policy("qwen2", bf16=bf16)
    ids = torch.tensor([[0, 0, 9, 12], [30, 8, 40, 41], [7, 99, 14, 20]])
    real = torch.tensor([[False, False, True, True], [True] * 4, [True] * 4])
    logits = []
    for fused in (True, False):
        decoder = decode.LlamaDecoder(policy)
        decoder._fused = fused
        with torch.inference_mode():
            decoder.prefill(ids.to(policy.device), real.to(policy.device), room=3)
            decoder.select(torch.arange(3, device=policy.device))
            for tokens in ([11, 12, 13], [50, 51, 52]):
                found = decoder.step(torch.tensor(tokens, device=policy.device))
            logits.append(found)
    torch.testing.assert_close(*logits, rtol=0, atol=0.3 if bf16 else 1e-4)


def test_threads_choose_kernels_one_at_a_time(monkeypatch):
    """Which kernels may be used is a setting of the process: cuDNN is off in a call, and no other thread changes it."""

    def kernel(*_):
        return torch.backends.cuda.cudnn_sdp_enabled(), packing._KERNELS.locked()

    monkeypatch.setattr(packing.F, "scaled_dot_product_attention", kernel)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    assert packing.fused_attention(SimpleNamespace(is_cuda=True), None, None) == (False, True)
    assert (torch.backends.cuda.cudnn_sdp_enabled(), packing._KERNELS.locked()) == (before, False)


def test_both_decoders_write_the_same():
    policy = keen(tiny_policy("qwen2"))
    by_hand = write(policy)
    decoder = decode.supports
    try:
        decode.supports = lambda policy: False
        same(by_hand, write(policy))
    finally:
        decode.supports = decoder


def test_a_response_depends_on_its_seed_and_row_only():
    policy = keen(tiny_policy())
    whole = write(policy)
    same(whole, write(policy))
    same(whole, write(policy, batch_size=4))
    same(whole, write(policy, batch_size=1))
    assert not np.array_equal(whole.batch.responses_B_T, write(policy, seed=5).batch.responses_B_T)
    rng, other = np.random.default_rng(0), np.random.default_rng(0)
    LocalEngine(policy, LocalGenerationSettings()).generate(PROMPTS, 1, max_new_tokens=5, rng=rng)
    LocalEngine(policy, LocalGenerationSettings()).generate(PROMPTS[::-1], 1, max_new_tokens=5, rng=other)
    assert rng.random() == other.random()  # a generator moves on by the same amount whatever is written


def test_repeated_prompts_are_samples_like_others():
    policy = keen(tiny_policy())
    doubled = write(policy, 1, prompts=[p for p in PROMPTS for _ in range(3)])
    same(doubled, write(policy, 3))


def test_responses_end_at_their_first_stop():
    policy = keen(tiny_policy())
    found = write(policy, 8)
    for response, finished in zip(found.batch.responses(), found.batch.finished_B, strict=True):
        assert (response[:-1] != EOS).all()
        assert (response[-1] == EOS) == finished
        assert finished or len(response) == 20
    assert (found.log_probs_B_T[~found.batch.mask_B_T] == 0).all()
    assert (found.batch.responses_B_T[~found.batch.mask_B_T] == policy.tokenizer.pad_token_id).all()
    everything = write(keen(tiny_policy(), 200.0), 2, limit=300)
    assert everything.batch.responses_B_T.shape[1] < 300  # writing stops with the last row


def test_the_model_may_have_ends_of_its_own():
    policy = keen(tiny_policy())
    policy.base.model.generation_config.eos_token_id = [EOS, *range(50, 103)]
    found = write(policy)
    last = [r[-1] for r, f in zip(found.batch.responses(), found.batch.finished_B, strict=True) if f]
    assert set(last) - {EOS}
    assert all(i == EOS or i >= 50 for i in last)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_greedy_is_what_transformers_writes(architecture):
    policy = tiny_policy(architecture)
    found = write(policy, 1, greedy=True, limit=12)
    for prompt, response in zip(PROMPTS, found.batch.responses(), strict=True):
        out = policy.base.model.generate(
            torch.from_numpy(prompt)[None], do_sample=False, max_new_tokens=12, pad_token_id=0, eos_token_id=EOS
        )
        np.testing.assert_array_equal(out[0, len(prompt) :].numpy(), response)
    with pytest.raises(ValueError, match="generator"):
        LocalEngine(policy, LocalGenerationSettings()).generate(PROMPTS, 1, max_new_tokens=2)


@pytest.mark.parametrize("by_hand", [True, False])
def test_each_adapter_writes_as_it_scores(by_hand, monkeypatch):
    base = tiny_policy("qwen2").base
    views = [add_policy(base, name, LoraSettings(r=2), seed=i) for i, name in enumerate(("policy", "prm"))]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for view in views:
            for p in view.parameters():
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    if not by_hand:
        monkeypatch.setattr(decode, "supports", lambda policy: False)
    written = [write(view, 2) for view in views]
    for view, found in zip(views, written, strict=True):
        with torch.no_grad():
            np.testing.assert_allclose(found.log_probs_B_T, view.log_probs(found.batch).cpu().numpy(), atol=1e-4)
    assert not np.array_equal(written[0].batch.responses_B_T, written[1].batch.responses_B_T)
    assert all(p.requires_grad for view in views for p in view.parameters())


def test_new_weights_are_followed_without_being_told():
    policy = tiny_policy()
    engine = LocalEngine(policy, LocalGenerationSettings())
    engine.generate(PROMPTS, 1, max_new_tokens=4, rng=np.random.default_rng(0))
    keen(policy, -3.0)
    engine.sync()
    found = engine.generate(PROMPTS, 1, max_new_tokens=9, rng=np.random.default_rng(0))
    np.testing.assert_allclose(found.log_probs_B_T, oracle(policy.base.model, found.batch)[0], atol=1e-4)


def test_bf16_writes_close_to_what_it_scores():
    policy = tiny_policy(bf16=True)
    found = write(policy)
    with torch.no_grad():
        scored = policy.log_probs(found.batch).cpu().numpy()
    assert found.log_probs_B_T.dtype == np.float32
    assert np.abs(scored - found.log_probs_B_T).mean() < 0.02


def test_what_cannot_be_written_is_refused():
    policy = tiny_policy()
    with pytest.raises(DataError, match="4096 positions"):
        write(policy, limit=5000)
    with pytest.raises(DataError, match="no tokens"):
        write(policy, prompts=[np.zeros(0, np.int64)])
    policy.tokenizer.eos_token = None
    policy.base.model.generation_config.eos_token_id = None
    with pytest.raises(ConfigError, match="ever end"):
        LocalEngine(policy, LocalGenerationSettings())


def test_seeds_of_a_server_are_those_of_each_prompt():
    def own():
        return [np.random.default_rng(seed) for seed in (1, 2)]

    assert generate_vllm._seeds(None, 2) == [0, 0]
    assert (
        generate_vllm._seeds(np.random.default_rng(1), 2) == np.random.default_rng(1).integers(2**31, size=2).tolist()
    )
    assert generate_vllm._seeds(own(), 2) == [int(rng.integers(2**31)) for rng in own()]


def chosen_by_hand(logits, u, temperature, top_k, top_p):
    """Masses of the tokens that may be drawn, in float64, in vocabulary order where nothing is left out."""
    mass = np.exp(logits / temperature - (logits / temperature).max())
    mass /= mass.sum()
    order = np.arange(len(mass)) if not 0 < top_k < len(mass) and top_p == 1 else np.argsort(-mass, kind="stable")
    mass = mass[order]
    if top_k:
        mass[top_k:] = 0
    before = np.cumsum(mass) - mass
    mass[before >= top_p * mass.sum()] = 0
    return order, mass, u * mass.sum()


@settings(deadline=None, max_examples=80)
@given(
    hnp.arrays(np.float32, st.integers(2, 12), elements=st.integers(-32, 32).map(lambda i: i / 8), unique=True),
    st.floats(0, 1, width=32, exclude_max=True),
    st.sampled_from([0.5, 1.0, 1.7]),
    st.integers(0, 6),
    st.sampled_from([0.317, 0.829, 1.0]),
)
def test_one_number_becomes_one_token(logits, u, temperature, top_k, top_p):
    token, log_prob = draw(
        torch.from_numpy(logits)[None], torch.tensor([u]), temperature=temperature, top_k=top_k, top_p=top_p
    )
    order, mass, point = chosen_by_hand(logits.astype(np.float64), u, temperature, top_k, top_p)
    k = int(np.flatnonzero(order == int(token))[0])
    below = np.cumsum(mass)[k] - mass[k]
    assert below - 1e-5 <= point <= below + mass[k] + 1e-5
    scaled = logits.astype(np.float64) / temperature
    assert float(log_prob) == pytest.approx(scaled[int(token)] - np.log(np.exp(scaled).sum()), abs=1e-5)


def test_tokens_without_mass_are_never_drawn():
    logits = torch.full((4, 5), -1e9)
    logits[:, 2] = 0.0
    token, log_prob = draw(logits, torch.tensor([0.0, 0.25, 0.5, 1 - 2**-24]))
    assert token.tolist() == [2, 2, 2, 2]
    assert log_prob.tolist() == [0.0] * 4


def test_frequencies_follow_the_distribution():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    n = 20_000
    token, _ = draw(logits.expand(n, 4), torch.from_numpy(np.random.default_rng(0).random(n, np.float32)))
    expected = torch.softmax(logits, 0).numpy()
    assert np.abs(np.bincount(token.numpy(), minlength=4) / n - expected).max() < 4 * 0.5 / np.sqrt(n)


def test_without_vllm_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingDependencyError, match="engine to local"):
        VLLMEngine(tiny_policy(), VLLMGenerationSettings())


@pytest.fixture
def vllm(monkeypatch):
    fake_vllm.install(monkeypatch)


def test_vllm_speaks_through_the_same_interface(vllm):
    policy = tiny_policy()
    engine = VLLMEngine(policy, VLLMGenerationSettings(temperature=0.9, top_p=0.8))
    assert policy.base.model.config.tie_word_embeddings
    found = engine.generate(PROMPTS, 2, max_new_tokens=8, rng=np.random.default_rng(0))
    assert len(found.batch) == 2 * len(PROMPTS)
    assert found.batch.finished_B.all()
    assert found.batch.responses()[1].tolist() == [*(PROMPTS[0][0] + np.arange(3)) % 103, EOS]
    assert (found.log_probs_B_T[found.batch.mask_B_T] == -0.5).all()  # what vLLM says, of the top 0.8 too
    assert engine._llm.options["logprobs_mode"] == "processed_logprobs"
    asked = engine._llm.calls[-1][0]
    assert (asked.n, asked.temperature, asked.top_p, asked.stop_token_ids) == (2, 0.9, 0.8, [EOS])
    for how in ({}, {"rng": np.random.default_rng(0), "greedy": True}):
        with pytest.raises(ValueError, match="a generator to sample with, or greedy=True"):
            engine.generate(PROMPTS, 1, max_new_tokens=2, **how)
    cut = engine.generate(PROMPTS, 1, max_new_tokens=2, greedy=True)
    assert not cut.batch.finished_B.any()
    assert engine._llm.calls[-1][0].temperature == 0


@pytest.mark.parametrize("lora", [False, True])
def test_vllm_gives_the_memory_of_a_gpu_back_until_it_gets_new_weights(vllm, lora):
    policy = tiny_policy(bf16=True)
    policy = add_policy(policy.base, "policy", LoraSettings(r=3), seed=0) if lora else policy
    policy.base.device = torch.device("cuda")  # what the engine looks at; nothing is computed
    engine = VLLMEngine(policy, VLLMGenerationSettings(), max_length=40)
    assert engine._llm.options["enable_sleep_mode"]
    assert engine._llm.options["max_model_len"] == 40
    assert engine._llm.options.get("max_lora_rank") == (8 if lora else None)
    engine.rest()
    engine.rest()
    engine.sync(version=4)
    asleep, weights, given, cache, reset, version = engine._llm.calls
    assert (asleep, weights) == (("sleep 1", "wake weights") if lora else ("sleep 2", "wake weights"))
    assert given[0] == ("add_lora" if lora else "reload_weights")
    assert lora or {w.dtype for w in given[1].values()} == {torch.bfloat16}
    assert (cache, reset, version) == ("wake kv_cache", "reset", "version 4")
    engine.sync(version=4)  # it has them
    assert len(engine._llm.calls) == 6
    engine.sync(version=5)
    assert engine._llm.calls[6][0] == given[0]
    engine.rest()
    engine.sync(version=5)  # it gave them up
    assert engine._llm.calls[-4][0] == given[0]


def test_vllm_gets_all_weights_after_an_update(vllm):
    policy = tiny_policy()
    engine = VLLMEngine(policy, VLLMGenerationSettings())
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1)
    engine.sync()
    (method, weights), reset, _ = engine._llm.calls
    assert (method, reset) == ("reload_weights", "reset")
    assert set(weights) == {*(n for n, _ in policy.base.model.named_parameters()), "lm_head.weight"}
    assert all(torch.equal(weights[n], p.cpu()) for n, p in policy.base.model.named_parameters())
    assert torch.equal(weights["lm_head.weight"], policy.base.model.get_input_embeddings().weight.cpu())


@pytest.mark.parametrize("held", [True, False], ids=["here", "sent"])
@pytest.mark.parametrize(
    "family",
    sample(
        ["llama_tied", "qwen3_moe", "gpt2", "gemma", "deepseek", "phi3", "gpt_neox"], "llama_tied", "qwen3_moe", "gpt2"
    ),
)
def test_vllm_gets_what_the_folder_of_a_model_holds(family, held, vllm, tmp_path):
    """Experts one by one, a head that is shared, and what is stored without being trained, under the names of files."""
    model, tokenizer = build(family)
    for folder in (model, tokenizer):
        folder.save_pretrained(tmp_path / "start")
    section = TextPolicySettings(path=str(tmp_path / "start"), bf16=False)
    policy = load_policy(section, seed=0)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1)
    engine = VLLMEngine(policy if held else outline(section), VLLMGenerationSettings())
    engine.sync(None if held else policy.tensors(), 1)
    assert engine._stops == stop_ids(policy.tokenizer, policy.base.model.generation_config).tolist()
    (_, sent), *_ = engine._llm.calls
    stored = load_file(save_policy(policy, tmp_path / "written") / "model.safetensors")
    head = next(n for n, m in model.named_modules() if m is model.get_output_embeddings())
    assert sent.keys() - stored.keys() <= {f"{head}.weight"}
    assert all(torch.equal(sent[name], tensor) for name, tensor in stored.items())


@pytest.mark.parametrize("tie", [False, True])
def test_workers_in_other_processes_read_the_same_weights_from_files(vllm, monkeypatch, tie):
    monkeypatch.setattr(generate_vllm, "_BUCKET", 3000)
    monkeypatch.setattr(generate_vllm, "usable_cores", lambda: 2)
    monkeypatch.setattr(generate_vllm, "visible_gpus", list)
    policy = tiny_policy(tie=tie)
    engine = VLLMEngine(policy, VLLMGenerationSettings(tensor_parallel_size=2))
    assert engine._llm.options["distributed_executor_backend"] == "mp"
    engine.sync(version=1)
    (method, files, weights), *_ = engine._llm.calls
    assert method == "reload_from"
    assert files > 5
    assert weights.keys() == {*dict(policy.base.model.named_parameters()), "lm_head.weight"}
    assert all(torch.equal(weights[n], p.cpu()) for n, p in policy.base.model.named_parameters())


def test_vllm_loads_an_adapter_as_one(vllm, tmp_path):
    policy = add_policy(tiny_policy().base, "policy", LoraSettings(r=2), seed=0)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1)
    engine = VLLMEngine(policy, VLLMGenerationSettings())
    for version in (3, 4):
        engine.sync(version=version)
        found = engine.generate(PROMPTS, 2, max_new_tokens=4, rng=np.random.default_rng(0))
        assert (found.versions_B == version).all()
    (first, stored), *_ = engine._llm.calls
    assert first == "add_lora"
    assert engine._llm.loras == [1, 2]  # another number each time, or vLLM would keep the first
    assert engine._llm.requests == ["policy 1", "policy 2"]
    save_policy(policy, tmp_path / "saved")
    assert load_file(tmp_path / "saved" / "adapter_model.safetensors").keys() == stored.keys()
    for name, tensor in load_file(tmp_path / "saved" / "adapter_model.safetensors").items():
        assert torch.equal(stored[name], tensor)
    base = Path(engine._llm.options["model"])
    plain = load_file(base / "model.safetensors")
    assert torch.equal(plain["model.norm.weight"], policy.base.model.get_submodule("model.norm").weight.cpu())
    assert json.loads((base / "adapter" / "adapter_config.json").read_text())["r"] == 2


@pytest.mark.skipif(not torch.cuda.is_available() or find_spec("vllm") is None, reason="needs a GPU and vLLM")
@pytest.mark.parametrize("lora", [None, LoraSettings(r=4)], ids=["all weights", "an adapter"])
def test_vllm_on_a_gpu_sleeps_and_wakes_to_the_policys_weights(lora):
    policy = load_policy(TextPolicySettings(tiny=TinyModelSettings(), lora=lora, device="cuda"), seed=0)
    engine = VLLMEngine(policy, VLLMGenerationSettings(gpu_memory_utilization=0.05), max_length=64)
    free, gaps = [], []
    for version in range(3):
        engine.sync(version=version)
        awake = torch.cuda.mem_get_info()[0]
        found = engine.generate(PROMPTS, 4, max_new_tokens=16, rng=np.random.default_rng(version))
        assert (found.versions_B == version).all()
        engine.rest()
        free.append(torch.cuda.mem_get_info()[0] - awake)
        with torch.no_grad():
            own = policy.log_probs(found.batch).cpu().numpy()
            gaps.append(np.abs(own - found.log_probs_B_T)[found.batch.mask_B_T].mean())
            for parameter in policy.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    assert min(free) > 2**30, "keys and values are given back"
    assert max(gaps) < 0.05, "bfloat16 on both sides"


def test_what_vllm_cannot_do_is_refused_before_it_starts(vllm, monkeypatch):
    policy = tiny_policy()
    monkeypatch.setattr(generate_vllm, "usable_cores", lambda: 3)
    monkeypatch.setattr(generate_vllm, "visible_gpus", list)
    with refuses("generation.tensor_parallel_size"):
        VLLMEngine(policy, VLLMGenerationSettings(tensor_parallel_size=3))
    with refuses("generation.tensor_parallel_size", r"starts 4 processes, and this process has 3 core\(s\)"):
        VLLMEngine(policy, VLLMGenerationSettings(tensor_parallel_size=4))
    monkeypatch.setattr(generate_vllm, "visible_gpus", lambda: ["0"])
    with refuses("generation.tensor_parallel_size"):
        VLLMEngine(policy, VLLMGenerationSettings(tensor_parallel_size=2))
    adapted = add_policy(policy.base, "policy", LoraSettings(r=600), seed=0)
    with refuses("policy.lora.r"):
        VLLMEngine(adapted, VLLMGenerationSettings())
    with refuses("dtype"):
        VLLMGenerationSettings(engine_kwargs={"dtype": "float16"})
    engine = VLLMEngine(tiny_policy(), VLLMGenerationSettings(engine_kwargs={"enforce_eager": True}))
    assert engine._llm.options["enforce_eager"]
