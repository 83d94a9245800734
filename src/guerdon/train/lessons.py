"""What a reward model of text is trained on: token ids with targets and weights, and the items of its loss.

lessons = Lessons(readings, targets, weights, solutions, questions)
items_to_train(lessons, settings)       # [(0,), (1,), ...], or pairs
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from guerdon.errors import DataError
from guerdon.models.text.text_inputs import Reading
from guerdon.models.text.text_losses import pairs
from guerdon.settings.train import TextTrainSettings
from guerdon.types import FloatArray

PAIRED = ("bradley_terry", "dpo")  # losses over pairs: they order solutions and give no probability
Item = tuple[int, ...]  # one lesson, or a right and a wrong one


@dataclass(frozen=True, eq=False)
class Lessons:
    """N solutions as a model is trained on them.

    Attributes:
        readings: token ids.
        targets: probability to train towards, of each step or of the whole solution.
        weights: weight of each target in the loss; 0 where there is none.
        solutions: index of each in the solutions they were made from.
        questions: hash of each question.
        counts: numbers of solutions left out, by reason; those under `cut` are shortened, not left out.
    """

    readings: list[Reading]
    targets: list[FloatArray]
    weights: list[FloatArray]
    solutions: list[int]
    questions: list[str]
    counts: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.readings)

    def items_for(self, settings: TextTrainSettings) -> list[Item]:
        """What the loss is a mean over: lessons, or pairs of a right and a wrong one of the same question."""
        if getattr(settings, "loss", None) not in PAIRED:
            return [(i,) for i in range(len(self))]
        right = [bool(target[0] >= 0.5) for target in self.targets]
        return [tuple(pair) for pair in pairs(self.questions, right, settings.seed)]

    def classes(self) -> tuple[int, int]:
        """Numbers of targets that are right (one half and above) and wrong."""
        known = [target[weight > 0] >= 0.5 for target, weight in zip(self.targets, self.weights, strict=True)]
        right = sum(int(one.sum()) for one in known)
        return right, sum(len(one) for one in known) - right

    def digest(self) -> str:
        """A hash of everything that a model is trained on."""
        digest = hashlib.sha256()
        for reading, target, weight, question in zip(
            self.readings, self.targets, self.weights, self.questions, strict=True
        ):
            digest.update(np.array([len(reading.ids), reading.start, len(reading.ends_S)], dtype="<i8").tobytes())
            digest.update(reading.ids.astype("<i8").tobytes() + reading.ends_S.astype("<i8").tobytes())
            digest.update(target.astype("<f4").tobytes() + weight.astype("<f4").tobytes() + question.encode())
        return digest.hexdigest()


def items_to_train(lessons: Lessons, settings: TextTrainSettings) -> list[Item]:
    """What the loss of a training is a mean over.

    Raises:
        DataError: there is nothing to train on: no lesson, or no pair.
    """
    items = lessons.items_for(settings)
    if not items:
        raise DataError(_nothing_to_train(lessons, settings))
    return items


def _nothing_to_train(lessons: Lessons, settings: TextTrainSettings) -> str:
    """Why there is no item to train on."""
    left = ", ".join(f"{n} {why}" for why, n in sorted(lessons.counts.items())) or "none was left out"
    if len(lessons) and settings.type != "preference":
        return (
            f"none of {len(lessons)} training solutions pairs a right with a wrong one of the same question, which "
            f"loss {getattr(settings, 'loss', '')} needs ({left})"
        )
    return f"there is no solution left to train {settings.type} on ({left})"
