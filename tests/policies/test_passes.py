"""Forward passes of a limited number of tokens, and weights that nobody trains in bfloat16."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import oracle, random_batch, tiny_policy
from transformers import Qwen2Config

from guerdon.policies.batches.passes import passes, slices, token_limit
from guerdon.policies.batches.precision import halve_linear, product_of_cast
from guerdon.policies.language import decoding
from guerdon.policies.language import generate as decode
from guerdon.policies.language.generate import LocalEngine
from guerdon.policies.language.text import add_policy, reference, token_log_probs
from guerdon.settings.text_policy import LocalGenerationSettings, LoraSettings
from pretend_cuda import pretended

LENGTHS = st.lists(st.integers(1, 50), max_size=30)


@given(LENGTHS, st.none() | st.integers(1, 8), st.none() | st.integers(1, 120), st.integers(1, 3))
def test_every_item_is_in_one_pass_within_the_limits(lengths, size, tokens, each):
    found = passes(lengths, size=size, tokens=tokens, each=each)
    assert sorted(np.concatenate([*found, np.zeros(0, np.int64)]).tolist()) == list(range(len(lengths)))
    width = [max(lengths[i] for i in rows) for rows in found]
    assert width == sorted(width)
    for rows, longest in zip(found, width, strict=True):
        assert size is None or len(rows) <= size
        assert tokens is None or len(rows) == 1 or len(rows) * each * longest <= tokens
    for rows, after in pairwise(found):  # the next item would not have fitted
        longest = lengths[after[0]]
        assert len(rows) == size or (tokens is not None and (len(rows) + 1) * each * longest > tokens)


def test_without_a_limit_rows_stay_in_their_order():
    assert slices(5, 2) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert slices(5, None) == [slice(0, 5)]
    assert slices(0, None) == []


def test_a_gpu_has_a_limit_of_its_own():
    def limit(given, device, layers=28, width=1536):
        config = Qwen2Config(num_hidden_layers=layers, hidden_size=width)
        return token_limit(given, SimpleNamespace(config=config), torch.device(device))

    assert limit(None, "cpu") is None
    assert limit(None, "cuda") == 8192
    assert limit(None, "cuda", width=3584) == 3510
    assert limit(None, "cuda", layers=80, width=8192) == 2048
    assert limit(None, "cuda", layers=30, width=576) == 8192 * 28 * 1536 // (30 * 576)
    assert limit(None, "cuda", layers=2, width=64) == 65_536
    assert limit(7, "cuda") == limit(7, "cpu") == 7


def test_groups_stay_together():
    policy, batch = tiny_policy(max_tokens_per_pass=30), random_batch(12)
    groups = np.repeat([5, 3, 9, 4], 3)
    found = policy.passes(batch, np.arange(12), None, groups_N=groups)
    assert sorted(np.concatenate(found).tolist()) == list(range(12))
    assert len(found) > 1
    where = {int(row): k for k, rows in enumerate(found) for row in rows}
    assert all(len({where[row] for row in np.flatnonzero(groups == group)}) == 1 for group in groups)


@pytest.mark.parametrize("limit", [1, 25, 60])
def test_log_probabilities_do_not_depend_on_the_limit(limit):
    policy, batch = tiny_policy(max_tokens_per_pass=limit), random_batch(9)
    assert len(policy.passes(batch, np.arange(9), None)) > 1
    found = policy.evaluate_all(batch, micro=1024, temperature=1.0)
    np.testing.assert_allclose(found.log_probs.numpy(), oracle(policy.base.model, batch)[0], atol=1e-4)


@pytest.mark.parametrize("tie", [True, False])
def test_frozen_matrices_in_bfloat16_change_no_bit(tie):
    policy, batch = tiny_policy(tie=tie, bf16=True, share_prompts=False), random_batch()
    base = policy.base
    with torch.no_grad():
        before = policy.log_probs(batch)
        base.model.requires_grad_(False)
        assert halve_linear(base.model)
        assert torch.equal(policy.log_probs(batch), before)
    dtypes = {name: p.dtype for name, p in base.model.named_parameters()}
    assert dtypes["model.layers.0.mlp.up_proj.weight"] == torch.bfloat16
    assert dtypes["model.embed_tokens.weight"] == dtypes["model.norm.weight"] == torch.float32
    assert base.model.get_output_embeddings().weight.dtype == (torch.float32 if tie else torch.bfloat16)


def test_an_adapter_on_halved_weights_learns_the_same():
    batch, found = random_batch(), []
    for halve in (False, True):
        base = tiny_policy(bf16=True, share_prompts=False).base
        if halve:
            base.model.requires_grad_(False)
            base.halved = halve_linear(base.model)
        policy = add_policy(base, "policy", LoraSettings(r=2), seed=0)
        assert {p.dtype for p in policy.parameters()} == {torch.float32}
        (policy.log_probs(batch).sum() / 50).backward()
        found.append({name: p.grad for name, p in policy.named_parameters().items()})
        assert base.packs
        assert policy.merged(base.model.get_submodule("model.layers.0.mlp.up_proj")).dtype == torch.float32
    assert all(torch.equal(found[0][name], gradient) for name, gradient in found[1].items())


def test_an_adapter_stays_float32_when_its_base_becomes_a_reference(request):
    if request.config.getoption("--pretend-cuda", False):
        pytest.skip("this test pretends by itself")
    with pretended():
        policy = add_policy(tiny_policy(bf16=True).base, "policy", LoraSettings(r=2), seed=0)
        reference(policy.base)
        assert policy.base.halved
        assert {p.dtype for p in policy.parameters()} == {torch.float32}
        layer = policy.base.model.get_submodule("model.layers.0.mlp.up_proj")
        assert layer.base_layer.weight.dtype == torch.bfloat16


def test_what_is_trained_stays_float32():
    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    layer[1].requires_grad_(False)
    assert halve_linear(layer)
    assert [p.weight.dtype for p in layer] == [torch.float32, torch.bfloat16]
    assert not halve_linear(layer)


def test_a_matrix_cast_once_gives_the_products_and_gradients_of_autocast():
    generator = torch.Generator().manual_seed(0)
    head, targets = torch.nn.Linear(16, 40, bias=False), torch.randint(40, (23,), generator=generator)
    states = torch.randn(23, 16, generator=generator)

    def autocast(x):
        with torch.autocast("cpu", torch.bfloat16):
            return head(x)

    found = []
    cast = head.weight.detach().bfloat16()
    for product in (autocast, lambda x: product_of_cast(x, head.weight, cast)):
        head.weight.grad, hidden = None, states.clone().requires_grad_()
        log_probs, entropy = token_log_probs(hidden, product, targets, vocabulary=40, entropy=True, logits_at_once=200)
        (log_probs.sum() + entropy.sum()).backward()
        found.append((log_probs.detach(), hidden.grad, head.weight.grad))
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_pieces_of_logits_with_the_matrix_cast_once(monkeypatch):
    batch, found = random_batch(), []
    for at_once in (2**24, 500):
        policy = tiny_policy(bf16=True)
        monkeypatch.setattr("guerdon.policies.language.text.LOGITS_AT_ONCE", {"cpu": at_once})
        scores = policy.evaluate(batch, entropy=True)
        ((scores.log_probs + scores.entropy).sum() / 50).backward()
        found.append((scores.log_probs, {n: p.grad for n, p in policy.named_parameters().items()}))
    torch.testing.assert_close(found[0][0], found[1][0])
    for name, gradient in found[0][1].items():  # summed piece by piece in float32 instead of in bfloat16 at once
        torch.testing.assert_close(gradient, found[1][1][name], rtol=0.02, atol=2e-3 * float(gradient.abs().max()))


@pytest.mark.parametrize("bf16", [False, True])
def test_the_cache_of_transformers_in_memory_that_is_there(bf16, monkeypatch):
    from transformers import DynamicCache

    policy = tiny_policy(bf16=bf16)
    monkeypatch.setattr(decode, "supports", lambda policy: False)
    prompts = [np.arange(7, 7 + n) for n in (3, 9, 5)]
    written = []
    for make in (decoding._cache, lambda config, room: DynamicCache(config=config)):
        monkeypatch.setattr(decoding, "_cache", make)
        engine = LocalEngine(policy, LocalGenerationSettings(batch_size=4))
        written.append(engine.generate(prompts, 3, max_new_tokens=30, rng=np.random.default_rng(0)))
    assert np.array_equal(written[0].batch.responses_B_T, written[1].batch.responses_B_T)
    assert np.array_equal(written[0].log_probs_B_T, written[1].log_probs_B_T)
