"""Sharded policies: the losses and weights of one process, an even share of its memory, and files for any number."""

import json

import architectures
import numpy as np
import peft
import pytest
import test_vla_pi0 as pi0
import torch
import transformers
from safetensors.torch import load_file
from test_vla_checkpoints import adapter_by_peft

from guerdon.policies.language.text_files import load_policy, save_policy
from guerdon.settings.text_policy import TextPolicySettings
from learners import TESTS, run_together
from sharded_steps import main

torch.set_num_threads(1)
pytestmark = pytest.mark.timeout(1800)

TOKENS = {"tiny": {"n_action_bins": 16}}
VIT = {"tiny": {"n_action_bins": 16, "vision": "vit"}}
FLOW = {"family": "flow", "num_steps": 2}
LORA = {"use_lora": True, "lora_rank": 2}
QUICK = [
    ["flow", "vla", {**FLOW, "optimizer": "sgd", "noise_method": "flow_noise"}],
    ["own_loss", "text", {"optimizer": "sgd", "family": "qwen2", "loss": "own_losses:cispo", "micro": 2}],
]
EXACT = [
    ["oft", "vla", {**VIT, "optimizer": "sgd"}],
    ["oft_one_after_the_other", "vla", {**TOKENS, "optimizer": "sgd", "parallel_decoding": False, "micro": 2}],
    ["regression", "vla", {"optimizer": "sgd", "family": "regression"}],
    ["qwen2", "text", {"optimizer": "sgd", "family": "qwen2"}],
    ["gemma", "text", {"optimizer": "sgd", "family": "gemma", "value_heads": 1}],
]
ADAPTED = [
    ["oft_adamw", "vla", {**TOKENS, "gradient_checkpointing": True, "cpu_offload": True}],
    ["oft_lora", "vla", {**VIT, **LORA}],
    ["flow_adamw", "vla", {**FLOW, "gradient_checkpointing": True}],
    ["flow_lora", "vla", {**FLOW, **LORA, "gradient_checkpointing": True}],
    ["qwen2_adamw", "text", {"family": "qwen2", "gradient_checkpointing": True, "cpu_offload": True}],
    ["gemma_lora", "text", {"family": "gemma", "lora": {"r": 2}}],
]
HALF = [
    ["oft_half", "vla", {**TOKENS, "bf16": True}],
    ["oft_vit_half", "vla", {**VIT, "bf16": True}],
    ["flow_lora_half", "vla", {**FLOW, **LORA, "bf16": True}],
    ["qwen2_half", "text", {"family": "qwen2", "bf16": True}],
    ["gpt2_half", "text", {"family": "gpt2", "bf16": True, "optimizer": "sgd"}],
    ["gemma_lora_half", "text", {"family": "gemma", "lora": {"r": 2}, "bf16": True, "gradient_checkpointing": True}],
]
BOUNDS = {name: (1e-5, 1e-5) for name, *_ in QUICK + EXACT} | {name: (1e-5, 1e-4) for name, *_ in ADAPTED}
BOUNDS |= {name: (1e-2, 4e-2) for name, *_ in HALF}  # four steps of AdamW move a weight by at most 4e-2
DEEP = {"hidden_size": 64, "layers": 16, "heads": 4, "words": 48, "vision": "vit"}
LARGE = [
    ["oft_large", "vla", {"tiny": {**DEEP, "n_action_bins": 16}, "steps": 2}],
    ["flow_large", "vla", {**FLOW, "num_steps": 1, "tiny": {**DEEP, "layers": 12}, "steps": 2}],
]
SCRIPT = TESTS / "sharded_steps.py"


def facts_of(folder, name, count):
    return [json.loads((folder / f"{name}_{rank}.json").read_text()) for rank in range(count)]


def compare(one, other, name, count):
    """Losses of every step, and weights and states of optimisers at the end, within the bounds of a training."""
    losses, weights = BOUNDS[name]
    (alone,), together = facts_of(one, name, 1), facts_of(other, name, count)
    for facts in together:
        np.testing.assert_allclose(facts["losses"], alone["losses"], atol=losses, rtol=losses, err_msg=name)
    for part in ("", "_optimizer"):
        first, second = (load_file(folder / f"{name}{part}.safetensors") for folder in (one, other))
        assert first.keys() == second.keys()
        for key, tensor in first.items():
            torch.testing.assert_close(
                tensor, second[key], atol=weights, rtol=weights, msg=lambda m, k=f"{name} {part} {key}": f"{k}: {m}"
            )


def compared(tmp_path, trainings, count):
    """The same steps by this process and by others."""
    main(tmp_path / "1", trainings)
    run_together(SCRIPT, tmp_path / str(count), json.dumps(trainings), count=count)
    for name, *_ in trainings:
        compare(tmp_path / "1", tmp_path / str(count), name, count)


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path):
    compared(tmp_path, QUICK, 2)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_take_the_steps_of_one(count, tmp_path):
    compared(tmp_path, [*QUICK, *EXACT, *ADAPTED, *HALF], count)
    for name, *_ in [*EXACT, *HALF]:
        blocks = "torch.bfloat16" if name.endswith("_half") else "torch.float32"
        assert {tuple(facts["gathered"]) for facts in facts_of(tmp_path / str(count), name, count)} == {(blocks,)}, name


@pytest.mark.slow
def test_shapes_that_do_not_divide(tmp_path):
    """48 + 16 rows of embeddings and 2 layers of width 16 for three processes."""
    compared(tmp_path, [*QUICK, *EXACT[:1]], 3)


@pytest.mark.slow
def test_four_processes_hold_a_third_of_one_at_most(tmp_path):
    BOUNDS.update({name: (1e-5, 1e-4) for name, *_ in LARGE})
    compared(tmp_path, LARGE, 4)
    for name, *_ in LARGE:
        (alone,), together = facts_of(tmp_path / "1", name, 1), facts_of(tmp_path / "4", name, 4)
        weights = load_file(tmp_path / "1" / f"{name}.safetensors")
        total = sum(tensor.nbytes for tensor in weights.values())
        embedding = max(t.nbytes for key, t in weights.items() if "embed_tokens" in key)
        assert embedding < 0.05 * total
        assert alone["held"] == pytest.approx(4 * total, rel=0.01)  # weights, gradients and two moments
        assert max(facts["held"] for facts in together) < 0.35 * alone["held"]
        assert min(facts["held"] for facts in together) > 0.25 * alone["held"]


@pytest.mark.slow
def test_no_process_holds_a_model_that_is_read(tmp_path):
    """Language models and pi0, whose files are mapped: a block is in memory at a time, and the own part.

    So it is with the adapters that they start from, stacked experts, and an adapter on a shared embedding.
    """
    deep = {"num_hidden_layers": 16, "hidden_size": 64, "intermediate_size": 128, "tie_word_embeddings": True}
    architectures.save("qwen2", tmp_path / "qwen2", **deep)
    start = load_policy(TextPolicySettings(path=str(tmp_path / "qwen2"), bf16=False, lora={"r": 2, "alpha": 8}), seed=1)
    with torch.no_grad():
        for weight in start.named_parameters().values():
            weight.normal_(std=0.05)
    save_policy(start, tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    architectures.save("qwen3_moe", tmp_path / "moe", num_hidden_layers=16)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "qwen2")
    both = peft.LoraConfig(r=2, target_modules=["lm_head", "embed_tokens"], init_lora_weights=False)
    peft.get_peft_model(model, both).save_pretrained(tmp_path / "embedding")
    folder = pi0.lerobot(tmp_path / "vla", "pi0")
    read = {"folder": str(tmp_path), "vla_path": str(folder), "num_steps": 2}
    adapter_by_peft(tmp_path / "dora", load_file(folder / "model.safetensors"), ["q_proj", "fc1"], use_dora=True)
    adapted = {**read, "load_adapter_checkpoint": str(tmp_path / "dora")}
    trainings = [
        ["read_text", "text", {"path": str(tmp_path / "qwen2")}],
        ["read_adapter", "text", {"path": str(tmp_path / "adapter")}],
        ["read_moe", "text", {"path": str(tmp_path / "moe")}],
        ["read_embedding", "text", {"path": str(tmp_path / "embedding")}],
        ["read_pi0", "vla", read],
        ["read_pi0_adapter", "vla", adapted],
        ["read_pi0_lora", "vla", {**read, **LORA}],
        ["read_pi0_lora_half", "vla", {**read, **LORA, "bf16": True}],
    ]
    BOUNDS.update({name: (1e-5, 1e-4) for name, *_ in trainings[:-1]} | {trainings[-1][0]: (1e-2, 4e-2)})
    pi0.tokenizer(tmp_path)
    compared(tmp_path, trainings, 2)
    built = {name: max(facts["built"] for facts in facts_of(tmp_path / "2", name, 2)) for name, *_ in trainings}
    for name in ("read_text", "read_adapter", "read_moe", "read_embedding"):
        total = sum(tensor.nbytes for tensor in load_file(tmp_path / "1" / f"{name}.safetensors").values())
        assert built[name] < 0.8 * total, name
    assert built["read_pi0_adapter"] < 1.01 * built["read_pi0"]
