"""Episodes as what a vision-language model learns from: questions about rows, and their true answers.

The question is the one that the model is asked later, the answer is the simulator's truth in words (`Yes`, `No`, or a
whole percentage). Rows of one episode stay on one side of the split. This module does not know models or training.

    examples = vlm_examples(episodes, settings)
    examples.question(3), examples.answers[3]      # ..., "Yes"
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from guerdon.episodes.targets import no_labels, progress_targets, success_labels
from guerdon.errors import DataError
from guerdon.models.vlm_prompts import PROMPTS, Asked
from guerdon.models.vlm_questions import Question, limit_pixels, make_question
from guerdon.settings.vlm import VLMTrainSettings
from guerdon.train.frames import held_out, sample_rows
from guerdon.types import BoolArray, ByteArray, Episode, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class VLMExamples:
    """N rows of episodes with their truth.

    Attributes:
        frames: of each episode, (T, H, W, 3) uint8, made smaller already.
        asked: the words for each episode.
        episode: (N,) int64, index into `frames`.
        row: (N,) int64, the row that is judged.
        targets: (N,) float32 in [0, 1].
        positive: (N,) bool: a row of success (completed), or a row of a successful episode (progress).
        held: (N,) bool: held out for validation.
        settings: what the examples are for.
        skipped: episodes left out because they had no frames, no task or no label.
    """

    frames: tuple[ByteArray, ...]
    asked: tuple[Asked, ...]
    episode: IntArray
    row: IntArray
    targets: FloatArray
    positive: BoolArray
    held: BoolArray
    settings: VLMTrainSettings
    skipped: int

    def __len__(self) -> int:
        return len(self.row)

    def question(self, i: int) -> Question:
        """What is asked about example `i`."""
        s, episode, row = self.settings, int(self.episode[i]), int(self.row[i])
        frames = self.frames[episode]
        seen = frames[: row + 1] if s.input == "video" else frames[row : row + 1]
        return make_question(self.asked[episode], seen, nframes=s.nframes, max_pixels=s.max_pixels, fps=s.fps)

    def answer(self, i: int) -> str:
        """The true answer to it."""
        target = float(self.targets[i])
        return answer_words(target, self.settings)


def answer_words(target: float, settings: VLMTrainSettings) -> str:
    """A truth in [0, 1] as the model is to write it."""
    if settings.question == "completed":
        return "Yes" if target > 0.5 else "No"
    return str(round(100 * target))


def vlm_examples(episodes: Iterable[Episode], settings: VLMTrainSettings) -> VLMExamples:
    """Questions and answers about all episodes.

    Args:
        episodes: read one by one; those without frames, task or the labels needed are counted and skipped.
        settings: what is learned, from which rows.

    Raises:
        DataError: no usable episode, or nothing but success or failure.
    """
    prompt = PROMPTS[settings.prompt_name]
    frames, asked, counts, rows, targets, positive, ids, skipped = [], [], [], [], [], [], [], 0
    for episode in episodes:
        target_T = _truth(episode, settings)
        if target_T is None or episode.frames is None or not len(episode) or not episode.task.strip():
            skipped += 1
            continue
        known = np.flatnonzero(np.isfinite(target_T))  # of some rows nobody knows
        chosen = known[sample_rows(len(known), settings.num_samples_per_episode, settings.seed, episode.id)]
        if not len(chosen):
            skipped += 1
            continue
        success = target_T[chosen] > 0.5 if settings.question == "completed" else np.nanmax(target_T) > 0
        frames.append(limit_pixels(episode.frames, settings.max_pixels))
        asked.append(prompt.fill(episode.task))
        rows.append(chosen)
        targets.append(target_T[chosen])
        positive.append(np.broadcast_to(success, len(chosen)))
        counts.append(len(chosen))
        ids.append(episode.id)
    if not ids:
        raise DataError(no_labels(skipped, "frames, a task and success labels"))
    good_N = np.concatenate(positive)
    if not good_N.any() or (settings.question == "completed" and good_N.all()):
        raise DataError(f"{len(ids)} episodes show only one outcome: a reward model needs success and failure")
    owner = np.repeat(np.arange(len(ids)), counts)
    succeeded = np.zeros(len(ids), bool)
    succeeded[owner[good_N]] = True
    return VLMExamples(
        frames=tuple(frames),
        asked=tuple(asked),
        episode=owner,
        row=np.concatenate(rows),
        targets=np.concatenate(targets).astype(np.float32),
        positive=good_N,
        held=held_out(ids, succeeded, settings.val_split, settings.seed)[owner],
        settings=settings,
        skipped=skipped,
    )


def _truth(episode: Episode, settings: VLMTrainSettings) -> FloatArray | None:
    """(T,) truth of every row, NaN where nobody knows."""
    if settings.question == "progress":
        return progress_targets(episode, horizon=settings.horizon)
    labels = success_labels(episode)
    return None if labels is None else labels.astype(np.float32)
