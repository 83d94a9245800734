"""TRL's side of `prm.py`, in an environment of its own: `PRMTrainer` went out of TRL after 1.12. It needs no guerdon.

    python benchmarks/prm_trl.py --what=ids --model=M --rows=rows.jsonl --separator=';'
    python benchmarks/prm_trl.py --what=train --model=M --rows=r.jsonl --tests=a.jsonl --separator=';' --budget=9

Prints one line of JSON behind a mark.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from typing import Any

from clocked import Clocked

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

MARK = "measured: "


def read_rows(path: str) -> list[dict[str, Any]]:
    """JSON lines."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def tokenized(rows: list[dict[str, Any]], tokenizer: Any, separator: str) -> list[dict[str, Any]]:
    """Rows as TRL tokenises them."""
    from trl.experimental.prm import PRMTrainer

    return [PRMTrainer.tokenize_row(row, tokenizer, separator, None, None, False, False) for row in rows]


def train(options: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    """Train for a time or a number of steps, then judge the rows of each of the tests."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForTokenClassification
    from trl.experimental.prm import PRMConfig, PRMTrainer

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    clock = Clocked(options.warm, options.budget)
    model = AutoModelForTokenClassification.from_pretrained(
        options.model, num_labels=2, dtype=torch.float32, attn_implementation="sdpa"
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = PRMConfig(
            output_dir=folder, per_device_train_batch_size=options.batch, learning_rate=options.rate,
            max_steps=options.steps, lr_scheduler_type="constant",
            weight_decay=0.0, max_grad_norm=1.0, max_length=None, step_separator=options.separator,
            bf16=options.bf16, use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=False, logging_strategy="no", save_strategy="no", report_to="none",
            disable_tqdm=True, seed=options.seed, optim="adamw_torch_fused", dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = PRMTrainer(
            model=model, args=arguments, processing_class=tokenizer,
            train_dataset=Dataset.from_list(read_rows(options.rows)), callbacks=[clock],
        )  # fmt: skip
        trainer.train()
    seconds, core = clock.spent()
    model.eval()

    def judged(path: str) -> list[list[float]]:
        probabilities = []
        for row in tokenized(read_rows(path), tokenizer, options.separator):
            logits = model(input_ids=torch.tensor([row["input_ids"]], device=model.device)).logits[0]
            places = [i for i, label in enumerate(row["labels"]) if label != -100]
            probabilities.append(logits[places].float().softmax(-1)[:, 1].tolist())
        return probabilities

    with torch.inference_mode():
        probabilities = [judged(path) for path in options.tests.split(",")]
    taken = len(clock.marks)
    return {
        "seconds": seconds, "core_seconds": core, "steps": taken, "solutions": options.batch * (taken - options.warm),
        "probabilities": probabilities,
    }  # fmt: skip


def main() -> None:
    """One measurement, printed on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=["ids", "train"], required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--tests", help="files of rows that are judged at the end, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--separator", required=True)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10**6)
    parser.add_argument("--budget", type=float, default=0.0)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    if options.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.core})
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.model)
    if options.what == "ids":
        found = tokenized(read_rows(options.rows), tokenizer, options.separator)
        result: Any = [
            {
                "ids": row["input_ids"],
                "places": [i for i, label in enumerate(row["labels"]) if label != -100],
                "labels": [bool(label) for label in row["labels"] if label != -100],
            }
            for row in found
        ]
    else:
        result = train(options, tokenizer)
    print(MARK + json.dumps(result))


if __name__ == "__main__":
    main()
