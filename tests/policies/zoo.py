"""Tiny models with random weights of many families, as transformers makes them from their configurations.

Each entry is a model_type of transformers: the name of its configuration and what is small in it. `NOT_PLAIN` are those
that keep more than keys and values: recurrent layers, convolutions, shared keys.
"""

from typing import Any

import torch
from tiny_models import enliven

from guerdon.policies.language.tiny_text import build_tokenizer
from guerdon.policies.pretrained.reading import caps_attention
from guerdon.settings.text_policy import TinyModelSettings

WINDOW = 12
_WIDE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                         "intermediate_size": 48, "max_position_embeddings": 256}  # fmt: skip
_HEAD = {**_WIDE, "head_dim": 8}
_EXPERTS = {**_HEAD, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_LATENT = {"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
           "v_head_dim": 8, "head_dim": 4}  # fmt: skip
_DELTA = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip
_MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
ZOO: dict[str, tuple[str, dict[str, Any]]] = {
    "apertus": ("ApertusConfig", _WIDE),
    "arcee": ("ArceeConfig", _WIDE),
    "bitnet": ("BitNetConfig", _WIDE),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "codegen": ("CodeGenConfig", {**_GPT, "rotary_dim": 4, "n_ctx": 256}),
    "cohere": ("CohereConfig", _WIDE),
    "cohere2": ("Cohere2Config", {**_HEAD, **_LOCAL}),
    "deepseek_v2": ("DeepseekV2Config", {**_EXPERTS, **_LATENT, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                                         "n_shared_experts": 1, "first_k_dense_replace": 1}),
    "deepseek_v3": ("DeepseekV3Config", {**_EXPERTS, **_LATENT, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                                         "n_shared_experts": 1, "first_k_dense_replace": 1}),
    "dots1": ("Dots1Config", {**_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
                              "first_k_dense_replace": 1}),
    "ernie4_5": ("Ernie4_5Config", _HEAD),
    "ernie4_5_moe": ("Ernie4_5_MoeConfig", {**_WIDE, "moe_intermediate_size": 16, "moe_num_experts": 4, "moe_k": 2,
                                            "moe_num_shared_experts": 1, "moe_layer_start_index": 1}),
    "exaone4": ("Exaone4Config", {**_WIDE, **_LOCAL}),
    "falcon": ("FalconConfig", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "gemma": ("GemmaConfig", _HEAD),
    "gemma2": ("Gemma2Config", {**_HEAD, **_LOCAL, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0,
                                "final_logit_softcapping": 3.0}),
    "gemma3_text": ("Gemma3TextConfig", {**_HEAD, **_LOCAL, "query_pre_attn_scalar": 8}),
    "glm": ("GlmConfig", _HEAD),
    "glm4": ("Glm4Config", _HEAD),
    "glm4_moe": ("Glm4MoeConfig", {**_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                                   "n_shared_experts": 1, "first_k_dense_replace": 1}),
    "gpt2": ("GPT2Config", _GPT),
    "gpt_bigcode": ("GPTBigCodeConfig", _GPT),
    "gpt_neo": ("GPTNeoConfig", {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 256,
                                 "attention_types": [[["global", "local"], 1]], "window_size": WINDOW}),
    "gpt_neox": ("GPTNeoXConfig", {k: v for k, v in _WIDE.items() if k != "num_key_value_heads"}),
    "gpt_oss": ("GptOssConfig", {**_HEAD, **_LOCAL, "num_local_experts": 4, "num_experts_per_tok": 2,
                                 "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "gptj": ("GPTJConfig", {**_GPT, "rotary_dim": 4}),
    "granite": ("GraniteConfig", _WIDE),
    "granitemoe": ("GraniteMoeConfig", {**_WIDE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "helium": ("HeliumConfig", _HEAD),
    "hunyuan_v1_dense": ("HunYuanDenseV1Config", _HEAD),
    "llama": ("LlamaConfig", _WIDE),
    "llama4_text": ("Llama4TextConfig", {**_HEAD, "intermediate_size_mlp": 48, "num_local_experts": 4,
                                         "num_experts_per_tok": 1, "attention_chunk_size": WINDOW,
                                         "no_rope_layers": [1, 0]}),
    "ministral": ("MinistralConfig", {**_HEAD, **_LOCAL}),
    "mistral": ("MistralConfig", {**_WIDE, "sliding_window": WINDOW}),
    "mixtral": ("MixtralConfig", {**_WIDE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "mpt": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256}),
    "nemotron": ("NemotronConfig", _WIDE),
    "olmo": ("OlmoConfig", _WIDE),
    "olmo2": ("Olmo2Config", _WIDE),
    "olmo3": ("Olmo3Config", {**_WIDE, **_LOCAL}),
    "olmoe": ("OlmoeConfig", {**_WIDE, "num_experts": 4, "num_experts_per_tok": 2}),
    "opt": ("OPTConfig", {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                          "max_position_embeddings": 256, "word_embed_proj_dim": 32}),
    "persimmon": ("PersimmonConfig", {k: v for k, v in _WIDE.items() if k != "num_key_value_heads"}),
    "phi": ("PhiConfig", {**_WIDE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                       "partial_rotary_factor": 0.5}}),
    "phi3": ("Phi3Config", _WIDE),
    "phimoe": ("PhimoeConfig", {**_WIDE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2Config", _WIDE),
    "qwen2_moe": ("Qwen2MoeConfig", {**_WIDE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                                     "shared_expert_intermediate_size": 16}),
    "qwen3": ("Qwen3Config", _HEAD),
    "qwen3_moe": ("Qwen3MoeConfig", {**_EXPERTS, "num_experts": 4}),
    "seed_oss": ("SeedOssConfig", _HEAD),
    "smollm3": ("SmolLM3Config", {**_WIDE, "no_rope_layers": [1, 0]}),
    "stablelm": ("StableLmConfig", _WIDE),
    "starcoder2": ("Starcoder2Config", {**_WIDE, "sliding_window": WINDOW}),
    "vaultgemma": ("VaultGemmaConfig", {**_HEAD, **_LOCAL, "query_pre_attn_scalar": 8}),
    # more than keys and values
    "bamba": ("BambaConfig", {**_WIDE, **_MAMBA, "mamba_n_heads": 4, "mamba_d_head": 16, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", {**_HEAD, **_MAMBA, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64}),
    "falcon_mamba": ("FalconMambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}),
    "gemma3n_text": ("Gemma3nTextConfig", {**_HEAD, "num_hidden_layers": 4, "sliding_window": WINDOW,
                                           "layer_types": ["sliding_attention", "full_attention"] * 2,
                                           "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8,
                                           "vocab_size_per_layer_input": 103, "laurel_rank": 4, "altup_num_inputs": 2,
                                           "activation_sparsity_pattern": [0.0] * 4}),
    "gemma4_text": ("Gemma4TextConfig", {**_HEAD, "num_hidden_layers": 4, "sliding_window": WINDOW,
                                         "layer_types": ["sliding_attention", "full_attention"] * 2,
                                         "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8,
                                         "vocab_size_per_layer_input": 103, "global_head_dim": 8}),
    "granitemoehybrid": ("GraniteMoeHybridConfig", {**_WIDE, **_MAMBA, "mamba_n_heads": 4, "mamba_d_head": 16,
                                                    "layer_types": ["mamba", "attention"], "num_local_experts": 4,
                                                    "num_experts_per_tok": 2, "shared_intermediate_size": 16}),
    "jamba": ("JambaConfig", {**_WIDE, "num_experts": 2, "num_experts_per_tok": 1, "attn_layer_offset": 1,
                              "attn_layer_period": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
                              "mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False}),
    "lfm2": ("Lfm2Config", {**_WIDE, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "lfm2_moe": ("Lfm2MoeConfig", {**_WIDE, "layer_types": ["conv", "full_attention"], "num_experts": 4,
                                   "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_dense_layers": 1}),
    "mamba": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}),
    "mamba2": ("Mamba2Config", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 4,
                                "head_dim": 16, "n_groups": 1, "chunk_size": 8}),
    "minimax": ("MiniMaxConfig", {**_HEAD, "layer_types": ["linear_attention", "full_attention"], "block_size": 8,
                                  "num_local_experts": 4, "num_experts_per_tok": 2}),
    "nemotron_h": ("NemotronHConfig", {**_HEAD, "hybrid_override_pattern": "M*-", "num_hidden_layers": 3,
                                       "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1,
                                       "chunk_size": 8}),
    "olmo_hybrid": ("OlmoHybridConfig", {**_WIDE, **_DELTA}),
    "qwen3_5_text": ("Qwen3_5TextConfig", {**_HEAD, **_DELTA}),
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", {**_HEAD, **_DELTA, "num_experts": 4, "num_experts_per_tok": 2,
                                                  "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
    "qwen3_next": ("Qwen3NextConfig", {**_HEAD, **_DELTA, "num_experts": 4, "num_experts_per_tok": 2,
                                       "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
    "recurrent_gemma": ("RecurrentGemmaConfig", {**_WIDE, "num_hidden_layers": 3, "attention_window_size": WINDOW,
                                                 "lru_width": 32}),
    "rwkv": ("RwkvConfig", {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32,
                            "intermediate_size": 48, "context_length": 256}),
    "zamba2": ("Zamba2Config", {**_WIDE, "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"],
                                "mamba_d_state": 8, "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 16,
                                "chunk_size": 8, "num_mem_blocks": 1, "use_mamba_kernels": False,
                                "adapter_rank": 4}),
}  # fmt: skip
NOT_PLAIN = tuple(ZOO)[list(ZOO).index("bamba") :]


def make(model_type: str, *, seed: int = 0, **changes: Any) -> tuple[Any, Any]:
    """A model with lively weights in evaluation mode, and a tokenizer of characters."""
    import transformers

    tokenizer = build_tokenizer(TinyModelSettings())
    name, options = ZOO[model_type]
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
    config = getattr(transformers, name)(vocab_size=len(tokenizer), **special, **{**options, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if caps_attention(model):
        model.set_attn_implementation("eager")
    kept = {
        n: p.detach().clone() for n, p in model.named_parameters() if n.endswith(("A_log", "dt_bias", "time_decay"))
    }
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1 and float(p.std()) == 0:  # of what is not drawn, such as biases of experts
                p.normal_(std=0.02, generator=torch.Generator().manual_seed(p.numel()))
    enliven(model, seed)
    with torch.no_grad():
        for n, p in model.named_parameters():  # decays have a sign and a size of their own
            if n in kept:
                p.copy_(kept[n])
    return model.eval(), tokenizer


_TEXT = {**_HEAD, "vocab_size": 103}
_M_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
SEVERAL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # text, pictures
    "gemma3": ("Gemma3Config", {**_TEXT, **_LOCAL, "query_pre_attn_scalar": 8},
               {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
                "image_size": 28, "patch_size": 14}),
    "llama4": ("Llama4Config", {**_TEXT, **ZOO["llama4_text"][1]},
               {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
                "image_size": 28, "patch_size": 14, "vision_output_dim": 16, "projector_input_dim": 16,
                "projector_output_dim": 16}),
    "mistral3": ("Mistral3Config", {**_TEXT, "model_type": "mistral"},
                 {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
                  "image_size": 28, "patch_size": 14, "model_type": "pixtral"}),
    "qwen2_vl": ("Qwen2VLConfig", {**_TEXT, **_M_ROPE},
                 {"embed_dim": 16, "hidden_size": 32, "depth": 1, "num_heads": 2, "patch_size": 14}),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", {**_TEXT, **_M_ROPE},
                   {"hidden_size": 16, "out_hidden_size": 32, "depth": 1, "num_heads": 2, "intermediate_size": 16,
                    "patch_size": 14, "fullatt_block_indexes": [0]}),
    "qwen3_vl": ("Qwen3VLConfig", {**_TEXT, **_M_ROPE},
                 {"hidden_size": 16, "out_hidden_size": 32, "depth": 1, "num_heads": 2, "intermediate_size": 16,
                  "patch_size": 14, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}),
    "qwen3_5": ("Qwen3_5Config", {**_TEXT, **_DELTA},
                {"hidden_size": 16, "out_hidden_size": 32, "depth": 1, "num_heads": 2, "intermediate_size": 16,
                 "patch_size": 14, "num_position_embeddings": 16}),
}  # fmt: skip


def make_several(model_type: str, *, seed: int = 0) -> tuple[Any, Any]:
    """As `make`, of a model of text and pictures."""
    import transformers

    tokenizer = build_tokenizer(TinyModelSettings())
    name, text, pictures = SEVERAL[model_type]
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
    kinds = ("image_token", "video_token", "vision_start_token", "vision_end_token", "boi_token", "eoi_token")
    tokens = {f"{kind}_id": 95 + k for k, kind in enumerate(kinds)}
    tokens |= {"image_token_index": 95, "boi_token_index": 99, "eoi_token_index": 100}
    kind = getattr(transformers, name)
    config = kind(text_config={**text, **special}, vision_config=pictures, **tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    kept = {n: p.detach().clone() for n, p in model.named_parameters() if n.endswith(("A_log", "dt_bias"))}
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1 and float(p.std()) == 0:
                p.normal_(std=0.02, generator=torch.Generator().manual_seed(p.numel()))
    enliven(model, seed)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n in kept:
                p.copy_(kept[n])
    return model.eval(), tokenizer
