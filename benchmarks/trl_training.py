"""TRL's trainers with a guerdon reward model, beside the same trainer with the same reward as a plain function.

    python benchmarks/trl_training.py                # needs: pip install "guerdon[text,trl]"; four minutes on one core
    python benchmarks/trl_training.py --arms grpo,rloo_tokens --seeds 0

A tiny model is trained to answer with lines of "7" alone. The reward is the share of such lines; it cannot be measured
for answers with a "0", which is None for TRL. `success` is the share of 256 sampled answers all of whose lines are "7".
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from guerdon.integrations.text import TextScorer, step_source
from guerdon.integrations.trl import TokenAdvantageTrainer, TokenRLOOTrainer, reward_function
from guerdon.policies.language.tiny_text import build_model, build_tokenizer
from guerdon.settings.text_policy import TinyModelSettings
from guerdon.types import Episode, Failure, RewardInfo, Score

ARMS = ("grpo", "grpo_native", "grpo_tokens", "rloo", "rloo_native", "rloo_tokens")
SETTINGS = TinyModelSettings(alphabet="7012345 ?\n", hidden_size=32, layers=1, heads=2)
TOKENS = 4


class Sevens:
    """A value for each line; the measurement fails for answers that contain a 0."""

    info = RewardInfo("sevens", (0.0, 1.0), granularity="step", modality="text", frames_needed=0)

    def score(self, episodes: list[Episode]) -> list[Score]:
        """One Score per answer."""
        failed = Score(failure=Failure("unreadable", "a 0"))
        scores = [Score.from_values(np.array([float(line.strip() == "7") for line in e.texts])) for e in episodes]
        return [failed if "0" in "".join(e.texts) else one for e, one in zip(episodes, scores, strict=True)]


def native(completions: list[str], **_: object) -> list[float | None]:
    """The same reward as a function of TRL: the mean over lines."""
    rewards: list[float | None] = []
    for text in completions:
        lines = [line.strip() for line in text.split("\n") if line.strip()] or [text.strip()]
        rewards.append(None if "0" in text else float(np.mean([line == "7" for line in lines])))
    return rewards


def right(completions: list[str], **_: object) -> list[float]:
    """1 for a right answer."""
    return [float(set(text.split()) == {"7"}) for text in completions]


def success(model: Any, tokenizer: Any, answers: int = 256) -> float:
    """The share of right answers among sampled ones."""
    prompt = torch.tensor([tokenizer("?")["input_ids"]] * answers)
    torch.manual_seed(1)
    model.eval()
    with torch.no_grad():
        found = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=True, max_new_tokens=TOKENS, top_k=0,
            pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
    return float(np.mean(right(tokenizer.batch_decode(found[:, prompt.shape[1] :], skip_special_tokens=True))))


def train(arm: str, seed: int, steps: int = 60) -> tuple[float, float]:
    """Success before and after."""
    kind, _, how = arm.partition("_")
    tokenizer = build_tokenizer(SETTINGS)
    model = build_model(SETTINGS, tokenizer, seed=seed)
    before = success(model, tokenizer)
    extra: dict[str, Any] = {}
    if how == "tokens":
        source = step_source("sevens", Sevens(), splitter="newline", reward_mode="per_token")
        extra = {"sources": [source], "algorithm": {"adv_estimator": "rloo"}}
        trainers, functions = {"grpo": TokenAdvantageTrainer, "rloo": TokenRLOOTrainer}, [right]
    else:
        trainers = {"grpo": GRPOTrainer, "rloo": RLOOTrainer}
        scorer = TextScorer(Sevens(), aggregation="mean", splitter="newline")
        functions = [native if how == "native" else reward_function(scorer)]
    config = {"grpo": GRPOConfig, "rloo": RLOOConfig}[kind](
        tempfile.mkdtemp(), max_steps=steps, seed=seed, use_cpu=True, per_device_train_batch_size=32, num_generations=8,
        max_completion_length=TOKENS, learning_rate=5e-3, report_to="none", save_strategy="no", beta=0.0,
        disable_tqdm=True, logging_strategy="no", gradient_checkpointing=False,
    )  # fmt: skip
    trainer = trainers[kind](
        model, reward_funcs=functions, args=config, train_dataset=Dataset.from_dict({"prompt": ["?"] * 64}),
        processing_class=tokenizer, **extra,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return before, success(trainer.model, tokenizer)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default=",".join(ARMS), help="comma-separated, of " + ", ".join(ARMS))
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--steps", type=int, default=60, help="updates")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print("| trainer | " + " | ".join(f"seed {seed}" for seed in seeds) + " |")
    print("| --- |" + " --- |" * len(seeds))
    for arm in options.arms.split(","):
        found = [train(arm, seed, options.steps) for seed in seeds]
        print(f"| {arm} | " + " | ".join(f"{a:.2f} -> {b:.2f}" for a, b in found) + " |", flush=True)


if __name__ == "__main__":
    main()
