"""Which of the questions that a reward model is judged on it was trained on, by the hashes that lie beside its weights.

`guerdon train` writes `questions.json` beside a model; a model of others has none, and then nobody knows. This module
does not know how models are judged.

    learnt = questions_learnt(Path("runs/prm/method1_HE"))
    seen_in_training(solutions, learnt)                 # {"seen": 3, "questions": 40}
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


def questions_learnt(folder: Path) -> frozenset[str]:
    """Hashes of the questions that the model below a folder was trained on; none where it does not say.

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


def seen_in_training(solutions: Sequence[Solution], learnt: Collection[str]) -> dict[str, int]:
    """How many different questions there are, and how many of them the model was trained on."""
    asked = {question_hash([{"role": "user", "content": solution.question}]) for solution in solutions}
    return {"seen": len(asked & set(learnt)), "questions": len(asked)}


def warnings_of(record: Mapping[str, Any]) -> list[str]:
    """A line for each set of an evaluation's record that holds questions which the model was trained on."""
    return [
        f"{name}: {one['seen']} of {one['questions']} questions are among those that the model was trained on; its "
        "figures there do not say what it is worth on new ones"
        for name, one in record.get("seen_in_training", {}).items()
        if one["seen"]
    ]
