r"""Skywork-o1-Open-PRM (`Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B` and `-1.5B`).

The beginning-of-sequence text, the question and a new line; then the lines of the solution, each tokenised by itself
and closed by the token of a new line. A value head on the last hidden state says at that token how right things are;
its sigmoid is the value. A step of several lines has the value of its last line. The head is written here and its
weights are read strictly. This module does not know how such models are trained.

    model = load_skywork("Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B", 8)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from guerdon.errors import CheckpointError
from guerdon.models.adapters.batches import layer
from guerdon.models.adapters.notes import read_notes
from guerdon.models.adapters.steps import (
    Marked,
    StepReader,
    checked_tokenizer,
    pieces_of,
    read_strictly,
    room_of,
    single_token,
)
from guerdon.types import FloatArray, RewardModel

LINE = "\n"


class _ValueHead(nn.Module):
    """One number from a hidden state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.summary = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., H) to (..., 1)."""
        out: Tensor = self.summary(hidden)
        return out


class Qwen2ForPrmModel(Qwen2PreTrainedModel):  # type: ignore[misc]
    """The decoder and a value head."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.v_head = _ValueHead(config.hidden_size)
        self.post_init()


def load_skywork(path: str, micro_batch_size: int) -> RewardModel:
    """Skywork-o1-Open-PRM.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.

    Raises:
        CheckpointError: it cannot be read, is of another kind, or its tokenizer lacks a beginning of sequences or the
            token of a new line.
    """
    read_notes(path, "skywork")
    tokenizer = checked_tokenizer(path, chat=False)
    (line,) = single_token(tokenizer, LINE, path)
    if tokenizer.bos_token is None:
        raise CheckpointError(f"the tokenizer of {path!r} has no beginning-of-sequence token, which this family needs")
    model = read_strictly(Qwen2ForPrmModel, path)
    lay = layer(model, tokenizer)

    def form(question: str, steps: Sequence[str]) -> Marked:
        lines = [step.split(LINE) for step in steps]
        asked, *written = pieces_of(
            tokenizer, [f"{tokenizer.bos_token}{question}{LINE}", *(text for of_step in lines for text in of_step)]
        )
        pieces = [asked, *(np.append(ids, np.int64(line)) for ids in written)]
        ends = np.cumsum([len(piece) for piece in pieces])
        return Marked(np.concatenate(pieces), ends[np.cumsum([len(of_step) for of_step in lines])] - 1)

    @torch.inference_mode()
    def read(batch: Sequence[Marked]) -> Sequence[FloatArray]:
        laid = lay(batch)
        hidden = model.model(**laid.inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        return laid.split(model.v_head(hidden[laid.places_M]).float()[:, 0].sigmoid())

    return StepReader(
        "skywork", form, read, tokenizer=tokenizer, room=room_of(model), micro_batch_size=micro_batch_size
    )
