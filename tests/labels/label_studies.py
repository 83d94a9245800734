"""A tiny policy that solves two-line sums about half the time, and studies that label what it writes."""

import json

from guerdon.settings.study import Study
from guerdon.train.sft import train_sft_study

TINY = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 64, "alphabet": "01+=?;"}
TASK = {"family": "chain", "steps": 2, "modulus": 2, "low": 0, "high": 1, "ops": "+"}
DATA = {"task": TASK, "train_size": 7, "val_size": 1, "max_response_length": 16, "filter_accuracy": False,
        "filter_truncated": False}  # fmt: skip


def trained(folder):
    """Folder of a policy that knows the form and little of the sums."""
    study = {
        "policy": {"type": "text", "tiny": TINY, "bf16": False}, "data": DATA,
        "sft": {"save_dir": str(folder), "max_steps": 60, "batch_size": 14, "learning_rate": 1e-2, "val_split": 0},
    }  # fmt: skip
    return str(train_sft_study(Study.model_validate(study), resume=False)[0])


def study_of(model, save_dir, **label):
    """A study that labels."""
    given = {"save_dir": str(save_dir), "labeler": "exact", "num_samples": 4, "num_rollouts": 3, "mining": None,
             "solutions": {"min_steps": 1}, **label}  # fmt: skip
    return Study.model_validate(
        {"policy": {"type": "text", "path": model, "bf16": False}, "data": DATA, "generation": {"batch_size": 16},
         "label": given}
    )  # fmt: skip


def rows(folder, name="records.jsonl"):
    """Rows of a file."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]
