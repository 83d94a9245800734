"""Contamination: how many of the questions in an evaluation a reward model was trained on.

`guerdon train` writes `questions.json`, hashes of its questions, next to a model. A model without that file counts as
trained on none of them.

    hashes = training_question_hashes(Path("runs/prm/method1_HE"))
    contamination(solutions, hashes)                 # {"seen": 3, "questions": 40}
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError, boundary
from guerdon.worlds.prompts import question_hash

QUESTIONS = "questions.json"


def training_question_hashes(folder: Path) -> frozenset[str]:
    """Hashes of the questions that the model below a folder was trained on; none without its list.

    Args:
        folder: of a training: the one that holds the model's `final_checkpoint`.

    Raises:
        DataError: its list of questions cannot be read.
    """
    path = folder / QUESTIONS
    if not path.is_file():
        return frozenset()
    with boundary(DataError, f"{path} cannot be read; train the model again, or remove the file"):
        return frozenset(map(str, json.loads(path.read_text(encoding="utf-8"))["train"]))


def contamination(solutions: Sequence[Solution], hashes: Collection[str]) -> dict[str, int]:
    """How many different questions there are, and how many of them the model was trained on."""
    questions = {question_hash([{"role": "user", "content": solution.question}]) for solution in solutions}
    return {"seen": len(questions & set(hashes)), "questions": len(questions)}


def contamination_warnings(record: Mapping[str, Any]) -> list[str]:
    """A line for each set of an evaluation's record that holds questions which the model was trained on."""
    return [
        f"{name}: {one['seen']} of {one['questions']} questions are among those that the model was trained on; its "
        "figures there do not hold for new ones"
        for name, one in record.get("seen_in_training", {}).items()
        if one["seen"]
    ]
