"""A sequence classifier as an outcome reward model: one number for a whole solution, read at its end.

Trained pointwise (binary cross-entropy on whether the answer is right; the score is a probability) or on pairs of a
right and a wrong solution of the same question (Bradley and Terry 1952; the score is a logit, of which only
differences mean anything). This module does not know training or files.

    model = OutcomeModel(load_policy(settings, seed=0), TextModelCard("outcome", "chat", "bradley_terry"))
    model.score([solution.as_episode()])[0].total
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from guerdon.models.text_inputs import Reading, hidden_at, read_steps
from guerdon.models.text_model import TextRewardModel
from guerdon.types import RewardInfo


class OutcomeModel(TextRewardModel):
    """A number per solution."""

    per_step = False
    learns_outcomes = True
    meaning = "the answer is right"

    def _read(self, question: str, steps: Sequence[str]) -> Reading:
        """The chat form with the end-of-sequence token, where the score is read."""
        return read_steps(self.tokenizer, question, steps, closed=True)

    def logits(self, readings: Sequence[Reading]) -> Tensor:
        """One logit per solution."""
        return self.lesson_logits(readings)

    def lesson_logits(self, readings: Sequence[Reading], *, body: bool = True) -> Tensor:
        """As `logits`."""
        assert self.head is not None
        with torch.set_grad_enabled(body and torch.is_grad_enabled()):
            hidden = hidden_at(self.policy, readings, [np.array([len(r.ids) - 1]) for r in readings])
        return self.head(hidden).squeeze(-1)  # type: ignore[no-any-return]

    def value(self, logits: np.ndarray) -> np.ndarray:
        """A probability; of a model trained on pairs, the logit itself."""
        return logits if self.card.loss == "bradley_terry" else super().value(logits)

    @property
    def info(self) -> RewardInfo:
        """Probabilities, or logits of any size."""
        info = super().info
        return replace(info, range=(-math.inf, math.inf)) if self.card.loss == "bradley_terry" else info
