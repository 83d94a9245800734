"""Steps of verl's own GRPO trainer on the work of `text_sides.py`, and the reward function that it is given.

verl (0.9.1 was read) generates by the servers of vLLM or SGLang, which need a GPU: without one, its data are written,
its configuration is composed and checked by verl, and the reason is raised.

    run_verl(model_folder, SIZES["0.4M"])
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from text_sides import RATE, SEED, SIZES, Size, data_section


@cache
def _problems() -> tuple[Any, Any, Any]:
    """Prompts, their verifier, and the settings of both."""
    from guerdon.settings.data import GeneratedDataSettings
    from guerdon.tasks.prompt_files import load_prompts
    from guerdon.tasks.verifier import verifier_from

    data = GeneratedDataSettings.model_validate(data_section(SIZES["0.4M"]))
    return load_prompts(data)[0], verifier_from(data), data


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """What verl calls for each response; the ground truth is the number of its prompt."""
    from guerdon.tasks.verifier import outcome

    prompts, verifier, data = _problems()
    found = outcome(verifier.check_batch([solution_str], [prompts[int(ground_truth)]])[0], data.unparsable)
    return found if isinstance(found, float) else 0.0


def options(model: str, size: Size, file: str) -> list[str]:
    """Keys of verl's configuration: GRPO without a KL, all of a batch in a gradient step, AdamW on all weights."""
    tokens, lora = 1024 + size.length, size.lora or 0
    given = {
        "algorithm.adv_estimator": "grpo", "data.train_files": file, "data.val_files": file, "data.seed": SEED,
        "data.train_batch_size": size.prompts, "data.max_prompt_length": 1024, "data.max_response_length": size.length,
        "reward.custom_reward_function.path": __file__, "reward.num_workers": 1, "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.model.lora_rank": lora, "actor_rollout_ref.model.lora_alpha": 2 * lora or 16,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False, "actor_rollout_ref.actor.optim.lr": RATE,
        "actor_rollout_ref.actor.use_kl_loss": False, "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_mini_batch_size": size.prompts, "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": max(8192, tokens),
        "actor_rollout_ref.rollout.n": size.samples, "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": size.samples,
        "actor_rollout_ref.rollout.max_model_len": tokens, "actor_rollout_ref.rollout.agent.num_workers": 1,
        "trainer.logger": "[file]", "trainer.n_gpus_per_node": 1, "trainer.val_before_train": False,
        "trainer.total_training_steps": size.warm + size.steps, "trainer.resume_mode": "disable",
    }  # fmt: skip
    return [f"{key}={value}" for key, value in given.items()]


def run_verl(model: str, size: Size) -> dict[str, Any]:
    """Tokens written and seconds of steps after the warm-up, from verl's own log."""
    import torch
    from datasets import Dataset
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "prompts.parquet", Path(folder) / "log.jsonl"
        Dataset.from_list([
            {"data_source": "chain", "prompt": [dict(m) for m in prompt.messages],
             "reward_model": {"style": "rule", "ground_truth": str(i)}, "extra_info": {"index": i}}
            for i, prompt in enumerate(_problems()[0])
        ]).to_parquet(file)  # fmt: skip
        keys = options(model, size, str(file))
        if not torch.cuda.is_available() or find_spec("vllm") is None:
            from hydra import compose, initialize_config_module

            with initialize_config_module("verl.trainer.config", version_base=None):
                config = compose("ppo_trainer", keys)
            validate_config(config, need_reference_policy(config), need_critic(config))
            raise RuntimeError(
                "verl takes the configuration; its trainer generates by vLLM on a GPU, which is not here"
            )
        subprocess.run(
            [sys.executable, "-m", "verl.trainer.main_ppo", *keys, f"hydra.run.dir={folder}"], check=True,
            env=os.environ | {"VERL_FILE_LOGGER_PATH": str(log)}, stdout=sys.stderr,
        )  # fmt: skip
        steps = [json.loads(line)["data"] for line in log.read_text().splitlines()][size.warm :][: size.steps]
    rows = size.prompts * size.samples
    return {
        "seconds": sum(step["perf/time_per_step"] for step in steps), "samples": rows * size.steps,
        "tokens": rows * steps[-1]["response_length/mean"], "updates": size.steps,
    }  # fmt: skip
