"""Ten families of causal language models, tiny and with random weights, as transformers writes them to a folder.

Windows are shorter than the texts of the tests, and what a family has beside the plain decoder of Llama is there:
soft-capped attention and logits, local and global layers, a bias of the output layer, learned positions, parallel
blocks, partly rotated heads, layers without positions, dropout by default.
"""

import json
from pathlib import Path

import torch
from tiny_models import enliven

from guerdon.policies.language.tiny_text import CHAT_TEMPLATE, build_tokenizer
from guerdon.policies.pretrained.reading import caps_attention
from guerdon.settings.text_policy import TinyModelSettings

WINDOW = 12
_WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 48, "max_position_embeddings": 256}  # fmt: skip
_MIXED = {"head_dim": 8, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "llama": ("LlamaConfig", _WIDE),
    "qwen2": ("Qwen2Config", _WIDE),
    "qwen3": ("Qwen3Config", {**_WIDE, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**_WIDE, **_MIXED, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0,
                                "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3TextConfig", {**_WIDE, **_MIXED, "query_pre_attn_scalar": 8}),
    "mistral": ("MistralConfig", {**_WIDE, "sliding_window": WINDOW}),
    "phi": ("PhiConfig", {**_WIDE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                       "partial_rotary_factor": 0.5}}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "gpt_neox": ("GPTNeoXConfig", {k: v for k, v in _WIDE.items() if k != "num_key_value_heads"}),
    "smollm3": ("SmolLM3Config", {**_WIDE, "no_rope_layers": [1, 0]}),
}  # fmt: skip
_EXPERTS = {**_WIDE, "num_experts_per_tok": 2}
OTHERS = {  # where adapters sit in other places: stacked experts, fused products, tied embeddings
    "llama_tied": ("LlamaConfig", {**_WIDE, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3MoeConfig", {**_EXPERTS, "head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16}),
    "mixtral": ("MixtralConfig", {**_EXPERTS, "num_local_experts": 4}),
    "olmoe": ("OlmoeConfig", {**_EXPERTS, "num_experts": 4}),
    "deepseek": ("DeepseekV3Config", {**_EXPERTS, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1,
                                      "num_key_value_heads": 4, "topk_group": 1, "first_k_dense_replace": 1,
                                      "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
                                      "qk_nope_head_dim": 4, "v_head_dim": 8, "n_shared_experts": 1}),
    "gemma": ("GemmaConfig", {**_WIDE, "head_dim": 8}),
    "phi3": ("Phi3Config", _WIDE),
}  # fmt: skip
WITHOUT_TEMPLATE = ("phi", "gpt2", "gpt_neox")  # as their published tokenizers are


def build(family: str, *, seed: int = 0, tokenizer=None, **changes):
    """A model of a family with lively weights, and a tokenizer of characters; the model is in evaluation mode."""
    import transformers

    tokenizer = build_tokenizer(TinyModelSettings()) if tokenizer is None else tokenizer
    name, options = {**FAMILIES, **OTHERS}[family]
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
    config = getattr(transformers, name)(vocab_size=len(tokenizer), **special, **{**options, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if caps_attention(model):  # of which transformers 5.17 has a wrong default
        model.set_attn_implementation("eager")
    enliven(model, seed)
    with torch.no_grad():
        if (bias := getattr(model.get_output_embeddings(), "bias", None)) is not None:
            bias.copy_(torch.linspace(-1, 1, len(bias)))
    return model.eval(), tokenizer


def save(family: str, folder: Path, **options) -> tuple[Path, Path | None]:
    """A folder of a family, and for families without a chat template the file of one; else None."""
    model, tokenizer = build(family, **options)
    model.save_pretrained(folder)
    if family not in WITHOUT_TEMPLATE:
        tokenizer.save_pretrained(folder)
        return folder, None
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    template = folder.parent / f"{folder.name}.jinja"
    template.write_text(CHAT_TEMPLATE, encoding="utf-8")
    assert not json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    return folder, template
