"""Memory and time of language models on a GPU: sums, sources, and what autograd really keeps."""

import json

import numpy as np
import pytest
import torch

from guerdon.pages.durations import duration
from guerdon.plan import gpu
from guerdon.plan.estimate import START, estimate_run, estimate_train
from guerdon.plan.gpu import layer_bytes, rollout_memory, update_memory
from guerdon.plan.text_size import PUBLISHED, size_of_start
from guerdon.policies.batches.precision import halve_linear
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.text import LOGITS_AT_ONCE as OF_THE_POLICY
from guerdon.policies.language.text_files import load_policy
from guerdon.settings.study import Study
from guerdon.settings.text_policy import LoraSettings, TextPolicySettings, TinyModelSettings

torch.set_num_threads(1)


def kept(layers, tokens, lora):
    """Bytes that autograd keeps for the backward pass, the weights themselves aside."""
    tiny = TinyModelSettings(architecture="qwen2", hidden_size=64, heads=4, kv_heads=2, intermediate=352, layers=layers)
    settings = TextPolicySettings(tiny=tiny, bf16=True, attention="sdpa", lora=lora, share_prompts=False)
    policy = load_policy(settings, seed=0)
    if lora is not None:
        policy.base.halved = halve_linear(policy.base.model)  # as on a GPU
    own = {p.untyped_storage().data_ptr() for p in policy.base.model.parameters()}
    found, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    rng = np.random.default_rng(0)
    rows = 4
    batch = token_batch(
        [rng.integers(7, 90, 8) for _ in range(rows)], [rng.integers(7, 90, tokens // rows - 8) for _ in range(rows)],
        np.ones(rows, dtype=bool), pad_id=0,
    )  # fmt: skip
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.log_probs(batch)
    return sum(found.values()), size_of_start(settings)


@pytest.mark.parametrize("lora", [None, LoraSettings(r=4)], ids=["all weights", "lora"])
def test_a_layer_keeps_what_the_formula_says(lora):
    bytes_ = {(layers, tokens): kept(layers, tokens, lora)[0] for layers in (1, 2) for tokens in (128, 256)}
    measured = (bytes_[2, 256] - bytes_[1, 256] - bytes_[2, 128] + bytes_[1, 128]) / 128
    size = kept(1, 128, lora)[1]
    assert layer_bytes(size.shape, size.rank) == pytest.approx(measured, rel=0.02)


def test_the_numbers_are_those_that_a_gpu_gets():
    assert OF_THE_POLICY["cuda"] == gpu.LOGITS_AT_ONCE


@pytest.mark.parametrize(("billions", "millions"), [(0.5, 494.0), (1.5, 1543.7), (7.0, 7615.6), (72.0, 72706.2)])
def test_published_shapes_have_the_published_parameters(billions, millions):
    assert PUBLISHED[billions].parameters / 1e6 == pytest.approx(millions, rel=1e-3)  # biases are left out


@pytest.mark.parametrize(
    ("path", "millions"),
    [
        ("Qwen/Qwen2.5-Math-1.5B-Instruct", 1544),
        ("Qwen/Qwen2.5-Math-7B-Instruct", 7615),
        ("meta-llama/Llama-3.1-8B", 8000),
        ("somebody/SmolLM2-135M-Instruct", 135),
        ("runs/Qwen3-4b", 4000),
    ],
)
def test_the_size_in_a_name_is_taken_and_said_to_be_assumed(path, millions):
    size = size_of_start(TextPolicySettings(path=path))
    assert size.millions == pytest.approx(millions, rel=0.12)
    assert size.known
    assert "the size in its name" in str(size)


def test_a_configuration_that_is_given_is_no_assumption(tmp_path):
    config = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = size_of_start(TextPolicySettings(path="a/model-7B", config_file=str(tmp_path / "config.json")))
    assert (size.assumed, size.shape.layers) == ("", 2)


@pytest.mark.parametrize("billions", [1.5, 7.0])
def test_parts_of_an_update_by_hand(billions):
    shape = PUBLISHED[billions]
    p, e = shape.parameters, shape.embedding
    whole = update_memory(shape, rank=None, tokens=8192, answered=8192, checkpointing=True)
    assert whole["weights"] + whole["gradients"] + whole["Adam"] == 16 * p
    assert whole["activations"] == 8192 * (4 * shape.layers + 10) * shape.width
    light = update_memory(shape, rank=16, tokens=8192, answered=8192, checkpointing=False)
    trained = shape.adapters(16)
    assert light["weights"] + light["gradients"] + light["Adam"] == 2 * (p - e) + 4 * e + 16 * trained
    assert light["activations"] == 8192 * (shape.layers * layer_bytes(shape, 16) + 10 * shape.width)
    assert rollout_memory(shape, rows=256, length=2560)["cache"] == 4 * shape.keys * shape.layers * 256 * 2560


def study(path, **more):
    data = {"type": "gsm8k", "path": "nowhere", "max_response_length": 2048, "max_prompt_length": 512}
    return Study.model_validate(
        {"policy": {"type": "text", "path": path, **more.pop("policy", {})}, "data": data, **more}
    )


def gigabytes(line):
    return float(line.split(" GB")[0])


def test_a_run_says_memory_by_part_and_time():
    light = estimate_run(study("Qwen/Qwen2.5-Math-7B", policy={"lora": {}, "gradient_checkpointing": True}))
    whole = estimate_run(study("Qwen/Qwen2.5-Math-7B", policy={"gpus": "1 x H200"}))
    assert "fits on one GPU" in light["memory at most"]
    assert "does not fit on one H200" in whole["memory at most"]
    assert "gradient_checkpointing: true" in whole["memory at most"]
    assert whole["memory of weights"].startswith("30.5 GB")
    assert "time of updating on 1 x H200" in whole
    parts = ("weights", "gradients", "Adam", "bfloat16 copies", "activations", "logits, or a layer computed again")
    assert sum(gigabytes(whole[f"memory of {part}"]) for part in parts) == pytest.approx(
        gigabytes(whole["memory at most"]) - 1.0, abs=0.5
    )


@pytest.mark.parametrize("lora", [None, {"r": 16}], ids=["all weights", "lora"])
def test_gpus_share_the_weights(lora):
    """By hand: a part of the base in float32, all of an adapter, two blocks in bfloat16, embeddings in float32."""
    shape, path = PUBLISHED[7.0], "Qwen/Qwen2.5-Math-7B"
    p, e = shape.parameters, shape.embedding
    block, trained = (p - 2 * e) / 28, p / 8 if lora is None else shape.adapters(16)
    weights = 4 * p / 8 + (4 * trained if lora else 0)
    gathered = 2 * block * (2 if lora else 6) + 2 * e * (4 if lora else 8)
    found = estimate_run(study(path, policy={"lora": lora, "gpus": "8 x H100"}, algorithm={"kl_coef": 0.1}))
    parts = {"weights": weights, "gradients": 4 * trained, "Adam": 8 * trained, gpu.GATHERED: gathered,
             gpu.WHOLE: 2 * (p - e) + 4 * e}  # fmt: skip
    parts |= {"the reference of the KL": 4 * p / 8} if lora is None else {}
    for name, size in parts.items():
        assert found[f"memory of {name}"] == f"{size / 1e9:.1f} GB", name
    vllm = {"engine": "vllm", "gpu_memory_utilization": 0.3}
    assert f"memory of {gpu.WHOLE}" not in estimate_run(study(path, policy={"gpus": "8 x H100"}, generation=vllm))


def test_other_models_of_a_run_count():
    prime = {"reward_model": {"mini_batch_size": 64, "micro_batch_size": 64}}
    alone = estimate_run(study("x/y-1.5B", algorithm={"kl_coef": 0.1}))
    paid = estimate_run(study("x/y-1.5B", **prime))
    assert gigabytes(alone["memory of the reference of the KL"]) == pytest.approx(3.6, abs=0.1)
    assert gigabytes(paid["memory of prime's weights, gradients and Adam"]) == pytest.approx(24.7, abs=0.1)
    assert gigabytes(paid["memory of prime's reference"]) == pytest.approx(3.6, abs=0.1)
    shared = estimate_run(study("x/y-1.5B", policy={"lora": {}}, **prime))
    assert "memory of prime's reference" not in shared
    assert gigabytes(shared["memory of prime's weights, gradients and Adam"]) < 0.5


def test_training_a_reward_model_says_its_memory():
    model = {
        "type": "stepwise",
        "save_dir": "s",
        "lora": {"r": 16},
        "max_length": 2048,
        "micro_batch_size": 2,
        "data_path": "x.jsonl",
    }
    given = study("x/y-7B", train={"prm": model})
    found = estimate_train(given)
    assert found["memory of weights"].startswith("16.5 GB")
    head = found["estimated, not measured, for"]
    assert head == "1 x H100; 3510 tokens in a pass (formulas: docs/memory.md)"
    shape = PUBLISHED[7.0]
    one = 3510 * (shape.layers * layer_bytes(shape, 16) + 10 * shape.width)
    assert gigabytes(found["memory of activations"]) == pytest.approx(one / 1e9, abs=0.05)
    operations = found["gradient steps"] * given.train["prm"].batch_size * (100 + 300) * 4 * shape.parameters
    assert found["time on 1 x H100"] == duration(operations / (989e12 * 0.4))


def test_small_models_and_unknown_ones_have_no_such_lines():
    assert "memory of weights" not in estimate_run(study("somebody/model"))
    assert "policy.config_file" in estimate_run(study("somebody/model"))["GPU memory"]


def agent_study(**agent):
    """A tiny policy that answers with 100 tokens at most, and an agent."""
    given = {
        "policy": {"type": "text", "tiny": {"hidden_size": 16, "layers": 1, "heads": 2}},
        "data": {"type": "files", "train_files": "rows.jsonl", "max_response_length": 100, "max_prompt_length": 64},
        "algorithm": {"adv_estimator": "rloo"}, "runner": {"total_steps": 640, "eval_every": 320, "eval_episodes": 8},
    }  # fmt: skip
    return Study.model_validate(given | ({"agent": agent} if agent else {}))


def test_a_conversation_is_estimated_by_its_turns():
    one = estimate_run(agent_study())
    found = estimate_run(agent_study(type="tools", tools=["calculator"], max_turns=5))
    assert one["responses"] == 640
    assert "responses" not in found
    assert (found["conversations"], found["evaluation conversations"]) == (640, 16)
    assert found["calls of the model"] == "at most 3280, 5 in a conversation"
    assert found["tokens of a conversation"].startswith("at most 64 asked and 500 written; unknown: what tools")
    assert found["assumed for the time"].startswith("5 turns, 500 tokens written; not known, and not counted: the time")
    assert found["seconds"] - START == pytest.approx(5 * (one["seconds"] - START))
    short = estimate_run(agent_study(type="tools", tools=["calculator"], max_turns=5, max_tokens=150))
    assert "64 asked and 150 written" in short["tokens of a conversation"]
    assert short["seconds"] - START == pytest.approx(1.5 * (one["seconds"] - START))


def test_memory_on_a_gpu_is_of_the_longest_conversation():
    def memory(**agent):
        given = {"policy": {"gpus": "1 x H200"}, "algorithm": {"adv_estimator": "rloo"}}
        return estimate_run(study("Qwen/Qwen2.5-Math-7B", **given, **({"agent": agent} if agent else {})))

    one, many = memory(), memory(type="tools", tools=["calculator"], max_turns=8)
    kept = [gigabytes(lines["memory of activations"]) for lines in (one, many)]
    assert kept[1] / kept[0] == pytest.approx((512 + 8 * 2048) / 3510, rel=0.01)  # 3510 tokens fit into a pass of it
    assert "16896 tokens in a pass" in many["estimated, not measured, for"]
