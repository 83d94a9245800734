"""Which questions a reward model was trained on: a list beside its folder, written and read by one key.

`questions.json` has the names of the questions to train on (`train`) and of those held out (`held_out`), and says by
which key they are named (`key`). An evaluation compares them with the names of its own questions.

    write_questions(folder, train=[question_name(one) for one in solutions], held_out=[])
    question_name(solution) in trained_questions(folder)        # True
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError, boundary
from guerdon.files.atomic import write_json
from guerdon.tasks.prompts import conversation_hash

FILE = "questions.json"
KEY = "conversation_hash"


def question_name(solution: Solution) -> str:
    """Name of what a solution answers: its `conversation_hash`."""
    return conversation_hash(solution.question, solution.context, solution.tools)


def write_questions(folder: Path, *, train: Iterable[str], held_out: Iterable[str]) -> None:
    """Write the list of a training.

    Args:
        folder: of the training: the one that holds the model's `final_checkpoint`.
        train: `question_name` of what is trained on; repeated ones are written once.
        held_out: of what is held out.
    """
    write_json(folder / FILE, {"key": KEY, "train": sorted(set(train)), "held_out": sorted(set(held_out))})


def trained_questions(folder: Path) -> frozenset[str]:
    """Names of the questions that the model of a training was trained on; none without its list.

    Args:
        folder: of the training: the one that holds the model's `final_checkpoint`.

    Raises:
        DataError: the list cannot be read, or names questions by another key.
    """
    path = folder / FILE
    if not path.is_file():
        return frozenset()
    with boundary(DataError, f"{path} cannot be read; train the model again, or remove the file"):
        listed = json.loads(path.read_text(encoding="utf-8"))
        names, key = [str(one) for one in listed["train"]], listed.get("key")
    if key is None:
        return frozenset(name for one in names for name in _older_names(one))
    if key != KEY:
        raise DataError(f"{path} names questions by {key!r}, and this guerdon knows {KEY}; remove the file, or update")
    return frozenset(names)


def _older_names(listed: str) -> tuple[str, str, str]:
    """The names that an entry without a key can stand for.

    It is a name, or of preferences what was asked as `Solution.asked`: a lone question, or a conversation as JSON.
    """
    of_conversation = hashlib.sha256(listed.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return listed, conversation_hash(listed), of_conversation
