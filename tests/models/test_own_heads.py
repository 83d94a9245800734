"""Published models that no adapter reads are refused in one line that has the reason and what to do."""

import json

import pytest

from guerdon.errors import CheckpointError
from guerdon.models.text.adapters.own_heads import why_not
from guerdon.models.text.text_load import load_text_model
from tables import cases

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def custom(name, kind="llama"):
    return {"architectures": [name], "model_type": kind, "auto_map": {"AutoModel": f"modeling_custom.{name}"}}


@cases(
    ("folder", "config", "reason"),
    [
        ("ArmoRM-Llama3-8B-v0.1", custom("LlamaForRewardModelWithGating"), "the head of ArmoRM weighs the values"),
        ("QRM-Llama3.1-8B-v2", custom("LlamaForRewardModelWithGating"), "the head of QRM predicts quantiles"),
        ("QRM-Gemma-2-27B", custom("Gemma2ForRewardModelWithGating", "gemma2"), "the head of QRM predicts quantiles"),
        ("internlm2-7b-reward", custom("InternLM2ForRewardModel", "internlm2"), "the head of InternLM2-Reward reads"),
        ("renamed", custom("InternLM2ForRewardModel", "internlm2"), "the head of InternLM2-Reward reads"),
        ("Eurus-RM-7b", custom("EurusRewardModel", "mistral"), "the head of Eurus-RM is a regression layer"),
        ("PairRM-hf", custom("DebertaV2PairRM", "deberta-v2"), "the head of PairRM compares"),
        ("PairRM", {"model_type": "deberta"}, "the head of PairRM compares"),
        ("Llama-3.1-Nemotron-70B-Reward-HF", LLAMA, "the head of Nemotron is an output of the language model"),
        ("renamed", custom("LlamaForRewardModelWithGating"), "code of its own (LlamaForRewardModelWithGating)"),
        ("UltraRM-13b", custom("LlamaRewardModel"), "code of its own (LlamaRewardModel)"),
        ("prometheus-7b-v2.0", LLAMA, "model_type judge with prompt: prometheus_absolute or prometheus_relative"),
        ("JudgeLM-7B-v1.0", LLAMA, "model_type judge with prompt: judgelm"),
        ("Skywork-Critic-Llama-3.1-8B", LLAMA, "model_type judge with prompt: skywork_critic"),
        ("RM-R1-Qwen2.5-Instruct-7B", LLAMA, "model_type judge with prompt: rm_r1"),
        ("RM-R1-DeepSeek-Distilled-Qwen-14B", LLAMA, "model_type judge with prompt: rm_r1_reasoning"),
        ("autoj-13b", LLAMA, "Auto-J judges in words"),
    ],
)
def test_it_is_refused_with_its_reason(folder, config, reason, tmp_path):
    home = tmp_path / folder
    home.mkdir(exist_ok=True)
    (home / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as refused:
        load_text_model(str(home))
    said = str(refused.value)
    assert said.startswith(f"no reward model can be read at {home}: ")
    assert reason in said
    assert "\n" not in said


def test_plain_language_models_have_no_such_reason():
    for name in ("Llama-3.1-8B-Instruct", "Nemotron-Mini-4B-Instruct", "internlm2-chat-7b", "Qwen2.5-7B"):
        assert why_not(LLAMA, name) is None
