"""Packed or side by side: the same values, and only networks that look back are packed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertForTokenClassification,
    Gemma2Config,
    Gemma2ForTokenClassification,
    MistralConfig,
    MistralForTokenClassification,
    NemotronConfig,
    NemotronForTokenClassification,
    Qwen2Config,
    Qwen2ForTokenClassification,
)

from guerdon.models.text.adapters.families import layer, pack, pad
from guerdon.models.text.text_inputs import Reading, split_steps
from guerdon.policies.batches.packing import packs
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.policies.pretrained.reading import caps_attention

SHAPE = {
    "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "num_labels": 2, "max_position_embeddings": 64, "initializer_range": 0.25, "pad_token_id": 0,
}  # fmt: skip
CAUSAL = {
    "qwen2": (Qwen2ForTokenClassification, Qwen2Config, {"num_key_value_heads": 2}),
    "window": (MistralForTokenClassification, MistralConfig, {"num_key_value_heads": 2, "sliding_window": 5}),
    "caps_its_scores": (
        Gemma2ForTokenClassification, Gemma2Config,
        {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 0.5},
    ),
}  # fmt: skip
OTHERS = {
    "looks_both_ways": (BertForTokenClassification, BertConfig, {}),
    "hands_nothing_on": (NemotronForTokenClassification, NemotronConfig, {"num_key_value_heads": 2}),
}
TOKENIZER = byte_tokenizer()


def network(kind):
    torch.manual_seed(0)
    kind, config, more = kind
    model = kind(config(**SHAPE, **more)).eval()
    if caps_attention(model):  # as models are read
        model.set_attn_implementation("eager")
    return model


def marked(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Reading(rng.integers(1, 200, size=n), 0, np.sort(rng.choice(n, size=min(n, 3), replace=False))) for n in lengths
    ]


def values(model, batch, laid):
    inputs, places_M = laid
    with torch.inference_mode():
        logits = model(**inputs).logits.flatten(0, 1)
    return split_steps(batch, logits[places_M].softmax(-1)[:, 1].numpy())


@pytest.fixture(scope="module", params=CAUSAL)
def causal(request):
    plain, packed = network(CAUSAL[request.param]), network(CAUSAL[request.param])
    lay = layer(packed, TOKENIZER)
    return plain, packed, lay


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_packed_is_what_each_is_alone(causal, lengths, seed):
    plain, packed, lay = causal
    batch = marked(lengths, seed)
    laid = lay(batch)
    assert laid[0]["input_ids"].shape == (1, sum(lengths))
    together = values(packed, batch, laid)
    side_by_side = values(plain, batch, pad(batch, TOKENIZER, torch.device("cpu")))
    for one, ours, theirs in zip(batch, together, side_by_side, strict=True):
        alone = values(plain, [one], pad([one], TOKENIZER, torch.device("cpu")))[0]
        np.testing.assert_allclose(ours, alone, atol=1e-5)
        np.testing.assert_allclose(theirs, alone, atol=1e-5)


@pytest.mark.parametrize("kind", OTHERS)
def test_others_are_padded(kind):
    model = network(OTHERS[kind])
    batch = marked([5, 17, 9])
    laid = layer(model, TOKENIZER)(batch)
    assert laid[0]["attention_mask"].sum(1).tolist() == [5, 17, 9]
    for one, ours in zip(batch, values(model, batch, laid), strict=True):
        alone = values(model, [one], pad([one], TOKENIZER, torch.device("cpu")))[0]
        np.testing.assert_allclose(ours, alone, atol=1e-5)


def test_a_network_with_a_mask_of_its_own_is_not_packed():
    model = network(CAUSAL["qwen2"])
    assert packs(model)
    assert model.config._attn_implementation == "sdpa"
    body = model.model.forward

    def with_a_mask(input_ids, **more):
        """Every token sees itself only, whatever the attention."""
        return body(input_ids.view(-1, 1), **{k: v for k, v in more.items() if k == "use_cache"})

    model.model.forward = with_a_mask
    assert not packs(model)


def test_places_are_those_of_each_solution():
    batch = [Reading(np.arange(4), 0, np.array([1, 3])), Reading(np.arange(3), 0, np.array([2]))]
    assert pack(batch, torch.device("cpu"))[1].tolist() == [1, 3, 6]
    assert pad(batch, TOKENIZER, torch.device("cpu"))[1].tolist() == [1, 3, 6]
    assert pack(batch, torch.device("cpu"))[0]["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2]]
