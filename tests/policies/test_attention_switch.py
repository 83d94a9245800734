"""The attention of a model is chosen again for every layer that is computed again: without a walk through the model."""

import numpy as np
import pytest
import torch
from architectures import build
from transformers import PreTrainedModel

from guerdon.policies.batches.packing import PACKED_ATTENTION
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.text_files import load_policy
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings

torch.set_num_threads(1)


def small(**more):
    tiny = TinyModelSettings(hidden_size=16, heads=2, kv_heads=2, intermediate=24, layers=6)
    return load_policy(TextPolicySettings(tiny=tiny, bf16=False, attention="sdpa", share_prompts=False, **more), seed=0)


def batch():
    rng = np.random.default_rng(0)
    rows = [rng.integers(7, 50, n) for n in (3, 5, 4)]
    return token_batch(rows, [rng.integers(7, 50, 6) for _ in rows], np.ones(3, dtype=bool), pad_id=0)


@pytest.fixture
def walks(monkeypatch):
    """The attentions that transformers was asked to set."""
    found, inner = [], PreTrainedModel.set_attn_implementation

    def counted(self, name, *args, **options):
        found.append(name)
        return inner(self, name, *args, **options)

    monkeypatch.setattr(PreTrainedModel, "set_attn_implementation", counted)
    return found


def gradients(policy):
    policy.log_probs(batch()).sum().backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters().items()}


def test_layers_that_are_computed_again_walk_through_nothing(walks):
    policy = small(gradient_checkpointing=True, use_remove_padding=True)
    first = gradients(policy)
    walks.clear()
    for p in policy.named_parameters().values():
        p.grad = None
    again = gradients(policy)
    assert walks == [], "both attentions were set in the first pass"
    assert policy.base.model.config._attn_implementation == "sdpa"
    plain = gradients(small(use_remove_padding=True))
    for name, value in plain.items():
        torch.testing.assert_close(again[name], value)
        torch.testing.assert_close(again[name], first[name])


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2"])
def test_every_part_says_what_transformers_would_have_set(family, tmp_path):
    """Also of models with configurations inside their own."""
    model, tokenizer = build(family)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    base = load_policy(TextPolicySettings(path=str(tmp_path), bf16=False), seed=0).base

    def said():
        return [m.config._attn_implementation for m in base.model.modules() if isinstance(m, PreTrainedModel)]

    for name in (PACKED_ATTENTION, "eager", "sdpa", "eager", PACKED_ATTENTION, "sdpa"):
        base._use_attention(name)
        quick = said()
        base.model.set_attn_implementation(name)
        assert quick == said() == [name] * len(quick)
