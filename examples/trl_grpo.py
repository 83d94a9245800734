"""GRPO in TRL with one advantage per token, from a guerdon reward model of steps and an exact reward.

Every line of an answer shall be "7". The reward model judges each line, and fails now and then; a failed measurement
stays out of every baseline.

    python examples/trl_grpo.py         # needs: pip install "guerdon[text,trl]"
"""

import tempfile

import numpy as np
from datasets import Dataset
from trl import GRPOConfig

from guerdon import Episode, Failure, RewardInfo, Score
from guerdon.integrations.text import step_source, tiny_model
from guerdon.integrations.trl import TokenAdvantageTrainer


class Sevens:
    """A value for each line; the measurement fails for answers that contain a 0."""

    info = RewardInfo("sevens", (0.0, 1.0), granularity="step", modality="text", frames_needed=0)

    def score(self, episodes: list[Episode]) -> list[Score]:
        """One Score per answer."""
        failed = Score(failure=Failure("unreadable", "a 0"))
        scores = [Score.from_values(np.array([float(line.strip() == "7") for line in e.texts])) for e in episodes]
        return [failed if "0" in "".join(e.texts) else one for e, one in zip(episodes, scores, strict=True)]


def right(completions: list[str], **_: object) -> list[float]:
    """1 for a right answer."""
    return [float(set(text.split()) == {"7"}) for text in completions]


def main(steps: int = 60, seed: int = 0) -> list[float]:
    """Train, and return the share of right answers per step."""
    model, tokenizer = tiny_model("70123 ?\n", hidden_size=32, seed=seed)
    batches = {"per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 4}
    others = {"learning_rate": 5e-3, "logging_steps": 1, "report_to": "none", "save_strategy": "no"}
    trainer = TokenAdvantageTrainer(
        model,
        reward_funcs=[right],
        sources=[step_source("sevens", Sevens(), splitter="newline", reward_mode="per_token")],
        algorithm={"adv_estimator": "rloo"},
        args=GRPOConfig(tempfile.mkdtemp(), max_steps=steps, seed=seed, use_cpu=True, **batches, **others),
        train_dataset=Dataset.from_dict({"prompt": ["?"] * 64}),
        processing_class=tokenizer,
    )
    trainer.train()
    return [row["rewards/right/mean"] for row in trainer.state.log_history if "rewards/right/mean" in row]


if __name__ == "__main__":
    found = main()
    print(f"right answers: {np.mean(found[:5]):.2f} -> {np.mean(found[-5:]):.2f}")
