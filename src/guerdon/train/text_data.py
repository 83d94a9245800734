"""Solutions on disk as lessons for a reward model of text: token ids, targets, weights, and the held-out questions.

Questions are split by a hash of their text, so no question is ever on both sides. Solutions that cannot be used (no
label, too long, an unknown character) are left out and counted. What a step is trained towards:

| settings | target of a step | its weight |
|---|---|---|
| `labels: hard` | 0 or 1; other labels need a `threshold`, and are 1 from there on | 1, or abs(reward) |
| `labels: soft` | the label | 1, or abs(reward) |
| `rewards: target` | (1 + reward) / 2: SE gives soft targets, HE 0 in every wrong solution | 1 |

With `rewards: weight` (the default) the magnitude of SE counts: later steps weigh up to twice as much as the first;
that of HE is 1 everywhere. A step without a label or reward has weight 0.

    data = read_data(settings, study.label)
    train, val = split_questions(data.solutions, 0.1, seed=0)
    lessons = make_lessons(model, [data.solutions[i] for i in train], settings)
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from guerdon.episodes.solution_files import RECORDS, published_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError, boundary
from guerdon.labels.data_set import CARD
from guerdon.labels.data_set import target as target_of_reward
from guerdon.models.text.text_inputs import Reading, unread
from guerdon.models.text.text_model import TextRewardModel
from guerdon.processes.progress import doing
from guerdon.settings.label import LabelSettings
from guerdon.settings.train import StepwiseTrainSettings, TextTrainSettings, VerdictTrainSettings
from guerdon.tasks.prompts import conversation_hash
from guerdon.train.lessons import Lessons
from guerdon.train.reward_trainer import RewardTrainer
from guerdon.types import Failure, FloatArray, IntArray


@dataclass(frozen=True)
class TextData:
    """Solutions, and what the cards of `guerdon label` say about them: what all models but those of preferences learn.

    Attributes:
        solutions: of all files, in order.
        method: labelling method of the folders they come from, where all agree; else None.
        reward: `HE` or `SE`, where all agree; else None.
        labelers: labelers named by the cards.
        left_out: number of rows without a rated step, by reason.
    """

    solutions: tuple[Solution, ...]
    method: int | None
    reward: str | None
    labelers: tuple[str, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    rows_left_out: ClassVar = "rows without a rated step"

    @classmethod
    def read(cls, settings: TextTrainSettings, label: LabelSettings | None) -> TextData:
        """See `read_data`."""
        return read_data(settings, label)

    @property
    def folder(self) -> str | None:
        """`method1_HE` and the like; None where the data did not come from `guerdon label`."""
        return None if self.method is None or self.reward is None else f"method{self.method}_{self.reward}"

    @property
    def separator(self) -> str:
        """The most frequent end of a step."""
        counts = Counter(s.separator for s in self.solutions)
        return counts.most_common(1)[0][0] if counts else ""

    def lessons(self, model: TextRewardModel, settings: TextTrainSettings) -> tuple[Lessons, Lessons]:
        """What is trained on, and what is held out: see `split_questions` and `make_lessons`.

        Raises:
            DataError: as these; or the settings use rewards, and the data has none.
        """
        _check_rewards(settings, self.solutions)
        rows, held = split_questions(self.solutions, settings.val_split, settings.seed)
        train, val = (make_lessons(model, [self.solutions[i] for i in part], settings) for part in (rows, held))
        return train, val

    def warning(self, train: Lessons, model: TextRewardModel) -> str | None:
        """See `one_class_warning`."""
        return one_class_warning(train, "answers" if model.learns_outcomes else "labelled steps")

    def trainer(
        self, model: TextRewardModel, train: Lessons, val: Lessons, settings: TextTrainSettings, folder: Path
    ) -> RewardTrainer:
        """What trains on these lessons."""
        return RewardTrainer(model, train, val, settings, folder)

    def counts(self, train: Lessons, val: Lessons) -> dict[str, int]:
        """How many labels are trained on."""
        right, wrong = train.classes()
        labels = int(sum((weight > 0).sum() for weight in train.weights))
        return {"labels": labels, "labels_right": right, "labels_wrong": wrong}

    def facts(self) -> dict[str, Any]:
        """What the card of a model says of its data."""
        return {"method": self.method, "reward": self.reward, "labelers": list(self.labelers)}


def _check_rewards(settings: TextTrainSettings, solutions: Sequence[Solution]) -> None:
    """Refuse `rewards` that the configuration sets and the data lacks."""
    use = getattr(settings, "rewards", "ignore")
    needed = use == "target" or (use == "weight" and "rewards" in settings.model_fields_set)
    if needed and not any(reward is not None for s in solutions for reward in s.rewards):
        raise DataError(
            f"rewards: {use} needs rewards of steps, and the data has none: label it with --reward HE or SE, or set "
            "rewards: ignore"
        )


def data_paths(settings: TextTrainSettings, label: LabelSettings | None) -> tuple[str, ...]:
    """Paths of the solutions: `data_path`, or what the `label` section writes.

    Raises:
        ConfigError: there is neither.
    """
    if settings.data_paths:
        return settings.data_paths
    if label is None:
        raise ConfigError(f"train ({settings.type}) needs data_path, or a label section whose data set it takes")
    return (str(Path(label.save_dir) / label.dataset),)


@doing("reading the data")
def read_data(settings: TextTrainSettings, label: LabelSettings | None) -> TextData:
    """The solutions that the settings name: files or folders in any format that is read, and hub ids.

    Raises:
        ConfigError: there is neither `data_path` nor a `label` section.
        DataError: they cannot be read.
    """
    paths = data_paths(settings, label)
    left_out: Counter[str] = Counter()
    solutions = tuple(published_solutions(paths, left_out, train=True))
    cards = [_card(Path(path)) for path in paths]
    kinds = {(card.get("method"), card.get("reward")) for card in cards}
    method, reward = kinds.pop() if len(kinds) == 1 else (None, None)
    labelers = tuple(sorted({str(card["labeler"]) for card in cards if card.get("labeler")}))
    return TextData(solutions, method, reward, labelers, dict(left_out))


def split_questions(solutions: Sequence[Solution], val_split: float, seed: int) -> tuple[IntArray, IntArray]:
    """Indices to train on and to hold out; all solutions of a question are on one side.

    Whether a question is held out depends on its text and the seed alone, not on the other data;
    at least one question is on each side.

    Raises:
        DataError: a share is to be held out and there is only one question.
    """
    names = [hash_of(s) for s in solutions]
    rank = {name: hashlib.sha256(f"{seed}/{name}".encode()).digest() for name in set(names)}
    kinds = sorted(rank, key=lambda name: rank[name])
    if val_split == 0:
        return np.arange(len(names)), np.zeros(0, dtype=np.int64)
    if len(kinds) < 2:
        raise DataError("one question is too few to hold some out: give more, or set val_split: 0")
    below = sum(int.from_bytes(rank[name]) < val_split * 2**256 for name in kinds)
    held = set(kinds[: int(np.clip(below, 1, len(kinds) - 1))])
    inside = np.array([name in held for name in names])
    return np.flatnonzero(~inside), np.flatnonzero(inside)


@doing("preparing the data")
def make_lessons(model: TextRewardModel, solutions: Sequence[Solution], settings: TextTrainSettings) -> Lessons:
    """Solutions as the model reads them, with targets; what cannot be used is counted.

    Raises:
        DataError: a label is neither 0 nor 1 where hard ones are wanted and no threshold is given.
    """
    made: list[Any] = []
    counts: Counter[str] = Counter()
    for index, solution in enumerate(solutions):
        lesson = _lesson(model, solution, settings, counts)
        if isinstance(lesson, str):
            counts[lesson] += 1
        else:
            made.append((*lesson, index, hash_of(solution)))
    readings, targets, weights, indices, questions = ([row[c] for row in made] for c in range(5))
    return Lessons(readings, targets, weights, indices, questions, dict(counts))


def _lesson(
    model: TextRewardModel, solution: Solution, settings: TextTrainSettings, counts: Counter[str]
) -> tuple[Reading, FloatArray, FloatArray] | str:
    """One solution as a lesson, or the reason why it is left out."""
    if not solution.steps:
        return "no_step"
    if model.learns_outcomes:
        if solution.is_correct is None:
            return "unknown_outcome"
        reading = model.reading_of(solution.as_episode())
        if isinstance(reading, Failure):
            return reading.reason
        return reading, np.array([float(solution.is_correct)], dtype=np.float32), np.ones(1, dtype=np.float32)
    target, weight = step_targets(solution, settings)
    if not weight.any():
        return "no_label"
    try:
        reading = model.read(solution.question, solution.steps, context=solution.context, tools=solution.tools)
    except DataError as error:
        return unread(error).reason
    room = model.room
    fitting = len(reading.ends_S) if room is None else int((reading.ends_S + 1 + reading.tail <= room).sum())
    if fitting < len(solution.steps):
        if not weight[:fitting].any():
            return "too_long"
        counts["cut"] += 1
        counts["cut_steps"] += int((weight[fitting:] > 0).sum())
        reading = Reading(reading.ids[: reading.ends_S[fitting - 1] + 1], reading.start, reading.ends_S[:fitting],
                          reading.tail)  # fmt: skip
        target, weight = target[:fitting], weight[:fitting]
    empty = ~reading.own_S & (weight > 0)
    if empty.any():  # a label of a step without a token of its own would be read at another step's
        counts["empty_steps"] += int(empty.sum())
        weight = np.where(empty, np.float32(0), weight)
        if not weight.any():
            return "no_label"
    return reading, target, weight


def one_class_warning(lessons: Lessons, what: str) -> str | None:
    """A warning about lessons in which everything is right, or everything wrong; None where there is both.

    Args:
        lessons: to train on.
        what: what their targets are about, in words.
    """
    right, wrong = lessons.classes()
    if not right + wrong or (right and wrong):
        return None
    only, other = ("right", "wrong") if right else ("wrong", "right")
    return (
        f"all {right + wrong} {what} to train on are {only}, none is {other}: the model can only learn to call "
        f"everything {only}; give it some that are {other}, or look at how they were labelled"
    )


def step_targets(solution: Solution, settings: TextTrainSettings) -> tuple[FloatArray, FloatArray]:
    """(S,) targets in [0, 1] and (S,) weights; a weight of 0 where there is nothing to learn.

    Raises:
        DataError: a label is neither 0 nor 1 where hard ones are wanted and no threshold is given.
    """
    settings = cast(StepwiseTrainSettings | VerdictTrainSettings, settings)
    n = len(solution.steps)
    targets, weights = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    rewards = solution.rewards or (None,) * n
    if settings.rewards == "target":
        for k, reward in enumerate(rewards):
            if reward is not None:
                targets[k], weights[k] = target_of_reward(reward), 1.0
        return targets, weights
    for k, label in enumerate(solution.labels):
        if label is None:
            continue
        targets[k] = _target(solution, k, label, settings)
        reward = rewards[k] if settings.rewards == "weight" else None
        weights[k] = 1.0 if reward is None else abs(reward)
    return targets, weights


def _target(solution: Solution, k: int, label: float, settings: StepwiseTrainSettings | VerdictTrainSettings) -> float:
    if settings.labels == "soft":
        return label
    if settings.threshold is not None:
        return float(label >= settings.threshold)
    if label not in (0.0, 1.0):
        raise DataError(
            f"solution {solution.id}: labels[{k}] is {label:g}, which is neither right nor wrong: train with labels: "
            "soft, or give a threshold from which a label counts as right"
        )
    return label


def hash_of(solution: Solution) -> str:
    """Name of what a solution answers, by its text."""
    return conversation_hash(solution.question, solution.context, solution.tools)


def _card(path: Path) -> dict[str, Any]:
    """The card of a folder that `guerdon label` wrote; empty for other files."""
    folder = path.parent if path.name == RECORDS else path
    file = folder / CARD
    if not file.is_file():
        return {}
    with boundary(DataError, f"{file} cannot be read"):
        card = json.loads(file.read_text(encoding="utf-8"))
    return card if isinstance(card, dict) else {}
