"""What all reward models of text here share: reading solutions, scoring them in batches of like length, their weights.

A kind of model says how it reads a solution and what its logits are (`stepwise.py`, `verdict.py`, `outcome.py`,
`implicit_text.py`). What does not fit is a `Failure`, never cut in silence. This module does not know how they learn.

    model = load_text_model("runs/prm/final_checkpoint")      # guerdon.models.text_load
    score = model.score([Episode(id="1", task="3+5=?", texts=("3+5=8;",))])[0]
    score.steps                                               # (1,) probabilities
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guerdon.errors import CheckpointError, ConfigError, DataError
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.models.text_card import TextModelCard, new_head, write_folder
from guerdon.models.text_inputs import Reading, buckets, close_steps
from guerdon.policies.text import TextPolicy
from guerdon.types import Episode, Failure, RewardInfo, Score

_HEAD = "head."


class TextRewardModel(ABC):
    """A reward model of text; see its kinds.

    Args:
        policy: the language model; its adapter or all of its weights are what is trained.
        card: what it is.
        head: for kinds that have one: a trained head; None makes a fresh one.
        micro_batch_size: solutions per forward pass when scoring.

    Raises:
        ConfigError: a head on a model whose logits are not a linear layer of its hidden states.
    """

    has_head = True
    per_step = True
    learns_outcomes = False  # trained on whole solutions being right, instead of labels of steps
    form = "chat"  # how it reads, see `TextModelCard`
    meaning = "the step is right"  # what a target of 1 means

    def __init__(
        self, policy: TextPolicy, card: TextModelCard, *, head: nn.Linear | None = None, micro_batch_size: int = 16
    ) -> None:
        self.policy, self.card, self.micro_batch_size = policy, card, micro_batch_size
        self.head: nn.Linear | None = None
        if self.has_head:
            if not policy.base.plain_head:
                raise ConfigError(
                    f"{type(policy.base.model).__name__} gives no hidden states that a head could read; take another "
                    "architecture, or type: verdict"
                )
            width = int(policy.base.model.get_input_embeddings().weight.shape[1])
            fresh = new_head(width, int(card.learning.get("seed", 0))) if head is None else head
            self.head = fresh.to(policy.device)

    @classmethod
    def start(cls, policy: TextPolicy, card: TextModelCard, fresh: Callable[[], TextPolicy]) -> TextRewardModel:
        """The model before its first gradient step.

        Args:
            policy: the language model with what is to be trained.
            card: what the model is.
            fresh: makes a second language model like the first.
        """
        return cls(policy, card)

    # what a kind says

    @abstractmethod
    def _read(self, question: str, steps: Sequence[str]) -> Reading:
        """A solution as this kind reads it, its steps closed as in training."""

    @abstractmethod
    def logits(self, readings: Sequence[Reading]) -> Tensor:
        """Logits of what is scored: one per step, solution by solution; or one per solution."""

    @abstractmethod
    def lesson_logits(self, readings: Sequence[Reading], *, body: bool = True) -> Tensor:
        """Logits of what is trained; where `body` is false, without gradients below the head."""

    def value(self, logits: np.ndarray) -> np.ndarray:
        """Scores from logits: probabilities, unless a kind says otherwise."""
        return np.asarray(torch.sigmoid(torch.from_numpy(logits)).numpy())

    # what all kinds do

    def read(self, question: str, steps: Sequence[str]) -> Reading:
        """A solution as this model reads it; line breaks between steps are those that it was trained with.

        Raises:
            DataError: a character the tokenizer does not know.
        """
        return self._read(question, close_steps(steps, self.card.separator))

    @property
    def info(self) -> RewardInfo:
        """A probability per step."""
        return RewardInfo(
            name=self.card.kind,
            range=(0.0, 1.0),
            granularity="step" if self.per_step else "total",
            modality="text",
            causal=self.per_step,
            frames_needed=0,
            success_threshold=self.card.threshold,
        )

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the language model."""
        return self.policy.tokenizer

    @property
    def room(self) -> int | None:
        """Tokens that it can read: its limit, or the positions it has."""
        positions = getattr(self.policy.base.model.config, "max_position_embeddings", None)
        limits = [n for n in (self.card.max_length, positions) if n is not None]
        return min(limits, default=None)

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order; `episode.task` is the question, `episode.texts` are the steps."""
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """Scores with the number of tokens read; nothing is ever left out, so `truncated` stays False."""
        found: list[ExplainedScore | None] = [None] * len(episodes)
        rows: list[int] = []
        readings: list[Reading] = []
        for i, episode in enumerate(episodes):
            reading = self.reading_of(episode)
            if isinstance(reading, Failure):
                found[i] = ExplainedScore(Score(failure=reading))
            else:
                rows.append(i)
                readings.append(reading)
        for group in buckets(readings, self.micro_batch_size):
            chosen = [readings[k] for k in group]
            with torch.inference_mode():
                values = self.value(self.logits(chosen).float().cpu().numpy())
            at = 0
            for k, reading in zip(group, chosen, strict=True):
                n = len(reading.ends_S) if self.per_step else 1
                found[rows[k]] = ExplainedScore(self._score(values[at : at + n]), tokens=len(reading))
                at += n
        return [judged for judged in found if judged is not None]

    def reading_of(self, episode: Episode) -> Reading | Failure:
        """An episode as this model reads it, or why it cannot."""
        if not episode.texts:
            return Failure("no_step", "the episode has no text")
        try:
            reading = self.read(episode.task, episode.texts)
        except DataError as error:
            return Failure("unknown_character", str(error))
        if self.per_step and not reading.own_S.all():
            return Failure("empty_text", "a step has no token of its own, so there is nothing to judge")
        if self.room is not None and reading.reach > self.room:
            return Failure("too_long", f"{reading.reach} tokens, the model reads {self.room}")
        return reading

    def _score(self, values: np.ndarray) -> Score:
        if self.per_step:
            return Score.from_values(values)
        total = float(values[0])
        if not np.isfinite(total):
            return Score(failure=Failure("non_finite", "the model's logit is not finite"))
        return Score(total=total)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """What is trained: an adapter or all weights, and the head."""
        head = {} if self.head is None else dict(self.head.named_parameters())
        return self.policy.named_parameters() | {_HEAD + name: p for name, p in head.items()}

    def tensors(self) -> dict[str, Tensor]:
        """A copy of what is trained."""
        return {name: p.detach().cpu().clone() for name, p in self.named_parameters().items()}

    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Return to what `tensors` gave.

        Raises:
            CheckpointError: names or shapes do not fit.
        """
        self.policy.load_tensors({name: t for name, t in state.items() if not name.startswith(_HEAD)})
        if self.head is not None:
            own = {name.removeprefix(_HEAD): t for name, t in state.items() if name.startswith(_HEAD)}
            try:
                self.head.load_state_dict(own, strict=True)
            except RuntimeError as error:
                raise CheckpointError(f"the stored head does not fit this reward model: {error}") from error

    def write(self, folder: Path, **changes: Any) -> Path:
        """Write the model in one piece.

        Args:
            folder: replaced if it exists.
            **changes: fields of the card that are other than this model's.
        """
        return write_folder(
            folder, self.policy, replace(self.card, **changes), head=self.head, ref=self.stored_reference
        )

    @property
    def stored_reference(self) -> TextPolicy | None:
        """A second language model that has to be stored with this one."""
        return None
