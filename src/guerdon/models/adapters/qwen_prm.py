r"""Qwen2.5-Math-PRM (Zhang et al. 2025, 2501.07301) and models of its architecture.

A chat with a fixed system prompt; the answer is the steps, each with `<extra_0>` behind it. A two-layer head says there
how likely the step is right. The example on the model's card drops steps whose probability is exactly 0, and shifts the
rest; here every step keeps its place. The head is written here and its weights are read strictly: the code that lies
with the model is not run. This module does not know files beside the model's own.

    model = load_qwen_prm("Qwen/Qwen2.5-Math-PRM-7B", 8)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from guerdon.models.adapters.batches import layer
from guerdon.models.adapters.notes import read_notes
from guerdon.models.adapters.steps import (
    MARK,
    Marked,
    StepReader,
    chat_text,
    checked_tokenizer,
    ids_and_places,
    read_strictly,
    room_of,
    single_token,
    without_marks,
)
from guerdon.types import FloatArray, RewardModel

MARKER = "<extra_0>"
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


class Qwen2ForProcessRewardModel(Qwen2PreTrainedModel):  # type: ignore[misc]
    """The decoder and a head of two layers with two outputs: wrong, right."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        width = config.hidden_size
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
        self.post_init()


def load_qwen_prm(path: str, micro_batch_size: int) -> RewardModel:
    """Qwen2.5-Math-PRM.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.

    Raises:
        CheckpointError: it cannot be read, is of another kind, or its tokenizer lacks `<extra_0>`.
    """
    read_notes(path, "qwen_prm")
    tokenizer = checked_tokenizer(path, chat=True)
    (marker,) = single_token(tokenizer, MARKER, path)
    model = read_strictly(Qwen2ForProcessRewardModel, path)
    lay = layer(model, tokenizer)

    def form(question: str, steps: Sequence[str]) -> Marked:
        answer = "".join(step + MARK for step in steps)
        roles = {"system": SYSTEM, "user": question, "assistant": answer}
        text = chat_text(tokenizer, [{"role": role, "content": said} for role, said in roles.items()])
        text, ends = without_marks(text, MARKER)
        return Marked(*ids_and_places(tokenizer, text, ends, marker, special=False))

    @torch.inference_mode()
    def read(batch: Sequence[Marked]) -> Sequence[FloatArray]:
        laid = lay(batch)
        hidden = model.model(**laid.inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        return laid.split(model.score(hidden[laid.places_M]).float().softmax(-1)[:, 1])

    return StepReader(
        "qwen_prm", form, read, tokenizer=tokenizer, room=room_of(model), micro_batch_size=micro_batch_size
    )
