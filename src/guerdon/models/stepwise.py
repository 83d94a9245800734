"""A token classifier as a process reward model: how likely each step is right, read at the last token of the step.

A linear layer on the last hidden states of a language model, trained with binary cross-entropy on the logits (hard
labels 0 and 1, or soft ones between). One forward pass gives all steps; the value of a step depends on nothing behind
it. This module does not know training or files.

    model = StepwiseModel(load_policy(settings, seed=0), TextModelCard("stepwise", "chat", "bce"))
    model.score([solution.as_episode()])[0].steps        # (S,) probabilities
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from guerdon.models.text_inputs import Reading, hidden_at, read_steps
from guerdon.models.text_model import TextRewardModel


class StepwiseModel(TextRewardModel):
    """A probability per step."""

    def _read(self, question: str, steps: Sequence[str]) -> Reading:
        """The chat form."""
        return read_steps(self.tokenizer, question, steps)

    def logits(self, readings: Sequence[Reading]) -> Tensor:
        """One logit per step, solution by solution."""
        return self.lesson_logits(readings)

    def lesson_logits(self, readings: Sequence[Reading], *, body: bool = True) -> Tensor:
        """As `logits`."""
        assert self.head is not None
        with torch.set_grad_enabled(body and torch.is_grad_enabled()):
            hidden = hidden_at(self.policy, readings, [r.ends_S for r in readings])
        return self.head(hidden).squeeze(-1)  # type: ignore[no-any-return]
