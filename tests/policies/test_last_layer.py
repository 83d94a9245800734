"""The last layer at the tokens that are read gives the values that it gives at all tokens, in every family."""

import numpy as np
import pytest
import torch
import transformers

from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.policies.batches.last_layer import LastLayer
from guerdon.policies.language.tiny_text import character_tokenizer
from guerdon.types import Episode

torch.set_num_threads(1)
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "initializer_range": 0.1, "max_position_embeddings": 128, "head_dim": 8,
}  # fmt: skip
FAMILIES = {
    "Llama": {}, "Qwen2": {}, "Qwen3": {}, "Gemma2": {}, "Olmo2": {}, "Phi3": {},
    "Mixtral": {"num_local_experts": 3}, "Qwen3Moe": {"num_experts": 3, "moe_intermediate_size": 16},
}  # fmt: skip


def judge_of(family, folder):
    tokenizer = character_tokenizer("ab")
    config = getattr(transformers, f"{family}Config")(
        **{**SHAPE, **FAMILIES[family]}, vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return SequenceClassifier(str(folder), micro_batch_size=4)


def episodes():
    rng = np.random.default_rng(0)

    def text(n):
        return "".join(rng.choice(list("ab"), n))

    asked = [text(30), text(20), "a"]
    return [Episode(id=str(k), task=asked[k % 3], texts=(text(rng.integers(0, 12)),)) for k in range(12)]


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_of_the_whole_layer_and_of_transformers(family, tmp_path):
    if not hasattr(transformers, f"{family}ForSequenceClassification"):
        pytest.skip(f"this transformers has no {family}ForSequenceClassification")
    judge = judge_of(family, tmp_path)
    if not judge._compact:
        pytest.skip(f"{family} is read with padding")
    values = [one.total for one in judge.score(episodes())]
    for one, value in zip(episodes(), values, strict=True):
        with torch.no_grad():
            alone = judge.model(input_ids=torch.from_numpy(judge._read(one))[None]).logits[0, 0]
        assert value == pytest.approx(float(alone), abs=1e-5)
    assert np.ptp(values) > 1e-3
    judge._last = None
    np.testing.assert_allclose([one.total for one in judge.score(episodes())], values, atol=1e-6)


def test_usual_families_have_such_a_layer_and_it_is_left_as_it_was(tmp_path):
    judge = judge_of("Llama", tmp_path)
    assert judge._last is not None
    assert judge._last.index == 1
    layer = judge.model.model.layers[-1]
    x = torch.randn(1, 5, 32)
    with torch.no_grad():
        whole = layer.mlp(x)
        with judge._last.only(torch.tensor([1, 3])):
            part = layer.mlp(x)
        torch.testing.assert_close(part[:, [1, 3]], whole[:, [1, 3]])
        assert not part[:, [0, 2, 4]].any()
        torch.testing.assert_close(layer.mlp(x), whole, atol=0, rtol=0)


def test_a_network_with_other_parts_has_none():
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=9)
    assert LastLayer.of(transformers.GPT2ForSequenceClassification(config)) is None
