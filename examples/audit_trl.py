"""What a TRL script writes for `guerdon audit`: three lines of its own, marked with `audit:`.

    python examples/audit_trl.py runs/trl      # needs: pip install "guerdon[text,trl]"
    guerdon audit runs/trl/completions

TRL writes prompt, completion, every reward and the advantage. What it does not know, whether a response is right and
what the right one was, is added by the reward function; where that is known only for some rows, the others are null.
"""

import sys
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from guerdon.integrations.text import tiny_model


def short_and_right(completions: list[str], answer: list[str], log_extra: Any, **_: Any) -> list[float]:
    """A reward for the right digit and for brevity."""
    right = [a in text for text, a in zip(completions, answer, strict=True)]
    log_extra("is_correct", right)  # audit: the truth, next to the reward
    log_extra("reference", answer)  # audit: what the right answer was
    return [0.5 * r + 0.5 * (len(text) < 3) for text, r in zip(completions, right, strict=True)]


def main(folder: str, steps: int = 8) -> None:
    """Train a tiny model, and log what it answered."""
    model, tokenizer = tiny_model("0123 ?", hidden_size=16)
    asked = [{"prompt": f"{k} ?", "answer": str(k)} for k in range(4)]
    batches = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 4}
    args = GRPOConfig(
        folder,
        log_completions=True,  # audit: completions/completions_*.parquet in the folder
        logging_steps=1,
        max_steps=steps,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        **batches,
    )
    data = Dataset.from_list(asked * 8)
    GRPOTrainer(model, short_and_right, args=args, train_dataset=data, processing_class=tokenizer).train()


if __name__ == "__main__":
    main(sys.argv[1])
