"""Sizes of published models from their configurations: parameters, active ones, caches, adapters.

The numbers of each configuration are those of the `config.json` that its publisher shows with the weights; those that
do not change a shape (of rotary embeddings, initialisation, tokens) are left out.
"""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from guerdon.pages.durations import duration
from guerdon.plan.estimate import estimate_run
from guerdon.plan.gpu import rollout_memory, update_memory
from guerdon.plan.text_size import PUBLISHED, counted_shape, read_config, shape_by_model, size_of_start
from guerdon.settings.study import Study
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings

QWEN3_30B = {  # Qwen/Qwen3-30B-A3B
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {  # mistralai/Mixtral-8x7B-v0.1
    "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = {  # openai/gpt-oss-20b
    "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
DEEPSEEK = {  # deepseek-ai/DeepSeek-V2-Lite
    "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "tie_word_embeddings": False,
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV2ForCausalLM"},
}  # fmt: skip
GLM = {  # zai-org/GLM-4.5-Air
    "model_type": "glm4_moe", "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
    "head_dim": 128, "n_shared_experts": 1, "n_routed_experts": 128, "num_experts_per_tok": 8,
    "first_k_dense_replace": 1, "attention_bias": True, "use_qk_norm": False, "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_NEXT = {  # Qwen/Qwen3-Next-80B-A3B-Instruct
    "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "num_experts": 512,
    "num_experts_per_tok": 10, "decoder_sparse_step": 1, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "mlp_only_layers": [], "tie_word_embeddings": False,
}  # fmt: skip
BOTH, OUTPUT, NEITHER = 1, 0, -1  # embeddings that the publisher counts as active: input and output, the output alone
PUBLISHED_SIZES = [  # all parameters, the active ones (1e9)
    (QWEN3_30B, 30.53, 3.3, BOTH),
    (MIXTRAL, 46.70, 12.9, BOTH),
    (GPT_OSS, 20.91, 3.61, OUTPUT),  # the model card, table 1
    (DEEPSEEK, 15.71, 2.4, OUTPUT),
    (GLM, 106.85, 12.0, NEITHER),
    (QWEN3_NEXT, 79.67, 3.0, NEITHER),  # rounded: 3.25
]


def size(config, folder, **lora):
    (folder / "config.json").write_text(json.dumps(config))
    adapter = LoraSettings(**lora) if lora else None
    return size_of_start(TextPolicySettings(path="a/model", config_file=str(folder / "config.json"), lora=adapter))


@pytest.mark.parametrize(
    ("config", "billions", "active", "embedded"), PUBLISHED_SIZES, ids=[one[0]["model_type"] for one in PUBLISHED_SIZES]
)
def test_mixtures_have_their_published_sizes(config, billions, active, embedded, tmp_path):
    found = size(config, tmp_path)
    assert found.millions / 1e3 == pytest.approx(billions, abs=0.01)
    counted_as_published = (found.active + embedded * found.shape.embedding / 1e6) / 1e3
    assert counted_as_published == pytest.approx(active, rel=0.09 if config is QWEN3_NEXT else 0.03)
    assert (found.assumed, found.known) == ("", True)
    assert str(found) == f"{found.millions:.0f}M, {found.active:.0f}M of them active for a token"


def test_active_parameters_by_hand(tmp_path):
    """Of Qwen3-30B-A3B: attention, norms of queries and keys, 8 of 128 experts, routers, norms, the output matrix."""
    attention = 2048 * 128 * (32 + 4 + 4 + 32) + 2 * 128
    layer = attention + 8 * 3 * 2048 * 768 + 2048 * 128 + 2 * 2048
    found = size(QWEN3_30B, tmp_path, r=4).shape
    assert found.active == 48 * layer + 2048 + 151936 * 2048
    assert found.adapters(4) == 4 * 48 * (4 * 2048 + 128 * (32 + 4 + 4 + 32)), "experts in one tensor have none"


def test_memory_is_that_of_all_parameters_and_time_that_of_active_ones(tmp_path):
    found = size(QWEN3_30B, tmp_path)
    parts = update_memory(found.shape, rank=None, tokens=1, answered=1, checkpointing=True)
    assert parts["weights"] == pytest.approx(4 * 30.53e9, rel=1e-3)
    data = {"type": "gsm8k", "path": "nowhere", "max_response_length": 2048, "max_prompt_length": 512}
    policy = {"type": "text", "path": "a/model", "config_file": str(tmp_path / "config.json"), "gpus": "8 x H100"}
    given = {"policy": policy, "data": data, "runner": {"total_steps": 51_200}}
    learned = estimate_run(Study.model_validate(given))["time of updating on 8 x H100"]
    operations = 8 * found.shape.active * 51_200 * (100 + 300)  # 6 to learn, 2 for the log-probabilities before
    assert learned == duration(operations / (8 * 989e12 * 0.4))


SMALL = {
    "llama": {}, "qwen2": {}, "mixtral": {"num_local_experts": 4}, "gpt_oss": {"num_local_experts": 4, "head_dim": 16},
    "deepseek_v2": {
        "moe_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "kv_lora_rank": 8, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12,
        "num_key_value_heads": 4, "first_k_dense_replace": 1,
    },
    "qwen3_next": {
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4, "head_dim": 16,
        "num_experts_per_tok": 2, "linear_key_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_value_head_dim": 8,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SMALL)
def test_keys_and_values_are_those_that_transformers_keeps(kind):
    """Bytes in bfloat16 of the cache of real models, small ones; states of fixed size are not counted."""
    given = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
             "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
             "pad_token_id": 0, **SMALL[kind]}  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **given))
    shape = counted_shape(json.dumps({"model_type": kind, **given}))
    kept = {}
    for length in (5, 9):
        cache = model(torch.ones(1, length, dtype=torch.long), use_cache=True).past_key_values
        layers = [layer for layer in cache.layers if isinstance(getattr(layer, "keys", None), torch.Tensor)]
        kept[length] = sum(layer.keys.numel() + layer.values.numel() for layer in layers)
    grown = (kept[9] - kept[5]) / 4
    assert rollout_memory(shape, rows=1, length=1)["cache"] == 2 * grown
    assert shape.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "mamba2", "gemma3_text", "qwen2_5_vl_text", "falcon_h1"])
def test_models_of_other_shapes_are_counted(kind):
    """Fused queries, no attention, tied embeddings, other names of the widths: whatever the configuration makes."""
    config = AutoConfig.for_model(kind)
    found, why = shape_by_model({"model_type": kind})
    assert why == ""
    with torch.device("meta"):
        causal = type(config) in AutoModelForCausalLM._model_mapping
        if causal:
            whole = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
            assert found.parameters == whole
    assert found.active == found.parameters
    assert found.layers == config.num_hidden_layers


def test_what_cannot_be_counted_says_why(tmp_path):
    unknown = {"model_type": "their_own", "num_hidden_layers": 2}
    found = size(unknown, tmp_path)
    assert not found.known
    assert "transformers makes no model of type their_own" in found.assumed
    widths = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100}
    found = size({**unknown, **widths}, tmp_path)
    assert found.known
    assert found.assumed.startswith("the matrices of a Llama of its widths, because transformers makes no model")
    assert "num_experts" not in found.assumed
    found = size({**widths, "num_experts": 8}, tmp_path)
    assert found.assumed == "the matrices of a Llama of its widths, because its configuration names no model_type"
    assert size(widths, tmp_path).assumed == ""


def test_whether_embeddings_are_one_matrix_stands_outside_of_the_language_part(tmp_path):
    text = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48}
    for tied in (True, False):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({"model_type": "llava", "tie_word_embeddings": tied, "text_config": text}))
        assert read_config(file)["tie_word_embeddings"] == tied


@pytest.mark.parametrize(("billions", "config"), [
    (1.5, {"hidden_size": 1536, "num_hidden_layers": 28, "intermediate_size": 8960, "num_attention_heads": 12,
           "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}),
    (7.0, {"hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "num_attention_heads": 28,
           "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False}),
])  # fmt: skip
def test_shapes_taken_by_name_are_those_of_the_model_but_for_biases(billions, config):
    counted, named = shape_by_model({"model_type": "qwen2", **config})[0], PUBLISHED[billions]
    biases = 28 * (counted.queries + 2 * counted.keys)
    assert counted.parameters == named.parameters + biases
    assert counted.adapters(8) == named.adapters(8)
    assert (counted.queries, counted.keys, counted.inner) == (named.queries, named.keys, named.inner)
