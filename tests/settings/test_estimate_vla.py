"""Estimates for vision-language-action policies: formulas by hand, the shipped configurations."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from guerdon.config import load
from guerdon.settings.estimate import estimate
from guerdon.settings.estimate_vla import estimate_vla, vla_bytes
from guerdon.settings.study import Study
from guerdon.settings.vla_policy import VLAPolicySettings

CONFIGS = Path(__file__).parents[2] / "configs"
RUNS = {"A": "runA", "B": "runB_qwen", "C": "runC_primo"}


def study(name, *overrides):
    return load(Study, CONFIGS / f"{name}.yaml", overrides)


def test_openvla_has_seven_and_a_half_billion_parameters_of_sixteen_bytes():
    found = estimate_vla(study("libero_10_grpo_openvlaoft_runA"))
    parameters = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 32064 * 4096 + 0.80e9
    assert found["estimated, not measured, for"] == f"8 x H100; P = {parameters / 1e9:.3g}e9, S = {256 + 35 + 7 * 8}"
    assert found["memory of weights, gradients and moments"] == f"{16 * parameters / 1e9:.1f} GB = 16 P"
    activations = 34 * 347 * 4096 * 32 * 32
    assert found["memory of activations"].startswith(f"{activations / 1e9:.1f} GB")
    assert "does not fit on one GPU of 80 GB; 66 GB with policy.use_lora" in found["memory"]
    decisions = 4096000 // 8
    operations = parameters * 347 * (decisions * (4 + 6) + 2 * (10 * 500 * 512) // 8)
    assert operations / (8 * 989e12 * 0.4) == pytest.approx(79.5 * 60, rel=0.01)
    assert found["time on the GPUs"].startswith("1 h 19 min")


def test_adapters_need_less_memory_and_no_gradients_of_frozen_weights():
    found = estimate_vla(study("libero_10_grpo_openvlaoft_runA", "policy.use_lora=true"))
    adapters = 32 * 32 * (8 * 4096 + 3 * (4096 + 11008))
    assert f"2 P + 16 T with T = {adapters / 1e9:.3g}e9" in found["memory of weights, gradients and moments"]
    assert "fits on one GPU" in found["memory"]
    assert "P S (8 x 512000 D" in found["time on the GPUs"]
    assert vla_bytes(study("libero_10_grpo_openvlaoft_runA", "policy.use_lora=true")) == (4 * adapters, 12 * adapters)


def test_the_shape_is_that_of_the_checkpoint_where_it_is_here(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"text_config": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 10}}
        )
    )
    parameters = 2 * (4 * 64**2 + 3 * 64 * 128) + 2 * 10 * 64 + 0.80e9
    here = study("libero_10_grpo_openvlaoft_runA", f"policy.vla_path={tmp_path}")
    assert f"P = {parameters / 1e9:.3g}e9" in estimate_vla(here)["estimated, not measured, for"]
    assert vla_bytes(here)[0] == 4 * parameters


@pytest.mark.parametrize("gpus", ["8 H100", "0 x H100", "8 x TPU", "x H100"])
def test_gpus_that_are_not_known_are_refused(gpus):
    with pytest.raises(ValidationError, match="8 x H100"):
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
    assert alone.reward.sources["remote"].remote.fail_on_request_error
    assert "memory" in estimate(alone, "run")
