"""Reward models of text with a linear head on the last hidden states of a language model.

A new head needs a class here (at which tokens the head reads a solution, what its logits mean; how the solution becomes
ids, where that is not a chat) and its settings in `settings/train.py`.

    model = StepwiseModel(load_policy(settings, seed=0), TextModelCard("stepwise", "chat", "bce"))
    model.score([solution.as_episode()])[0].steps        # (S,) probabilities
    model = OutcomeModel(load_policy(settings, seed=0), TextModelCard("outcome", "chat", "bradley_terry"))
    model.score([solution.as_episode()])[0].total
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from guerdon.models.text.text_model import TextRewardModel
from guerdon.types import RewardInfo


class StepwiseModel(TextRewardModel):
    """A token classifier as a process reward model: how likely each step is right, read at the step's last token.

    Trained with binary cross-entropy (hard labels 0 and 1, or soft ones between). One forward pass gives all steps; the
    value of a step depends on nothing behind it.
    """

    reads_conversations = True


class OutcomeModel(TextRewardModel):
    """A sequence classifier as an outcome reward model: one number for a whole solution, read at its end.

    Trained pointwise (binary cross-entropy on whether the answer is right; the score is a probability) or on pairs of a
    right and a wrong solution of the same question (Bradley and Terry 1952; the score is a logit, of which only
    differences mean anything).
    """

    reads_conversations = True
    per_step = False
    learns_outcomes = True
    meaning = "the answer is right"

    def value(self, logits: np.ndarray) -> np.ndarray:
        """A probability; of a model trained on pairs, the logit itself."""
        return logits if self.card.loss == "bradley_terry" else super().value(logits)

    @property
    def info(self) -> RewardInfo:
        """Probabilities, or logits of any size."""
        info = super().info
        return replace(info, range=(-math.inf, math.inf)) if self.card.loss == "bradley_terry" else info
