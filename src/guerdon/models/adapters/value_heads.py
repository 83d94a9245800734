r"""Models with a head that gives the value of a step: Qwen2.5-Math-PRM, Skywork-o1-Open-PRM, and TRL's `PRMTrainer`.

Qwen2.5-Math-PRM (Zhang et al. 2025, 2501.07301): a chat with a fixed system prompt; the answer is the steps, each with
`<extra_0>` behind it, where a two-layer head gives P(right). The example on the model's card drops steps whose
probability is exactly 0 and shifts the rest; here every step keeps its place.

Skywork-o1-Open-PRM (`Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B` and `-1.5B`): the beginning-of-sequence text, the
question and a new line; then the lines of the solution, each tokenised by itself and closed by the token of a new line,
where the sigmoid of a value head is read. A step of several lines has the value of its last line.

TRL (experimental part of TRL 1.12): the beginning-of-sequence token, where the tokenizer has one, the question, and the
steps, each tokenised by itself with the tokens of the separator behind it, at the last of which P(second label) is
read. TRL does not store the separator: a new line, or `separator` in `adapter.json`.

Heads are written here and their weights are read strictly: code in a model's folder is not run.

    model = load_qwen_prm("Qwen/Qwen2.5-Math-PRM-7B", 8)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from guerdon.errors import CheckpointError
from guerdon.models.adapters import read_notes
from guerdon.models.adapters.steps import (
    MARK,
    Form,
    StepReader,
    StepTokens,
    chat_text,
    checked_tokenizer,
    ids_and_places,
    layer,
    pieces_of,
    read_strictly,
    room_of,
    single_token,
    without_marks,
)
from guerdon.types import FloatArray, RewardModel

MARKER = "<extra_0>"  # of Qwen2.5-Math-PRM
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
LINE = "\n"


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

    def form(question: str, steps: Sequence[str]) -> StepTokens:
        answer = "".join(step + MARK for step in steps)
        roles = {"system": SYSTEM, "user": question, "assistant": answer}
        text = chat_text(tokenizer, [{"role": role, "content": said} for role, said in roles.items()])
        text, ends = without_marks(text, MARKER)
        return StepTokens(*ids_and_places(tokenizer, text, ends, marker, special=False))

    def values(inputs: dict[str, Any], places_M: Tensor) -> Any:
        hidden = model.model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        return model.score(hidden[places_M]).float().softmax(-1)[:, 1]

    return _reader("qwen_prm", form, values, model, tokenizer, micro_batch_size)


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

    def form(question: str, steps: Sequence[str]) -> StepTokens:
        lines = [step.split(LINE) for step in steps]
        asked, *written = pieces_of(
            tokenizer, [f"{tokenizer.bos_token}{question}{LINE}", *(text for of_step in lines for text in of_step)]
        )
        pieces = [asked, *(np.append(ids, np.int64(line)) for ids in written)]
        ends = np.cumsum([len(piece) for piece in pieces])
        return StepTokens(np.concatenate(pieces), ends[np.cumsum([len(of_step) for of_step in lines])] - 1)

    def values(inputs: dict[str, Any], places_M: Tensor) -> Any:
        hidden = model.model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        return model.v_head(hidden[places_M]).float()[:, 0].sigmoid()

    return _reader("skywork", form, values, model, tokenizer, micro_batch_size)


def load_trl(path: str, micro_batch_size: int) -> RewardModel:
    """A token classifier of TRL.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.

    Raises:
        CheckpointError: it cannot be read, has another number of labels than two, or its tokenizer cannot write the
            separator.
    """
    from transformers import AutoModelForTokenClassification

    notes = read_notes(path, "trl", {"separator"})
    separator = notes.separator or LINE
    tokenizer = checked_tokenizer(path, chat=False)
    closing = np.asarray(tokenizer.encode(separator, add_special_tokens=False), dtype=np.int64)
    if not len(closing) or (tokenizer.unk_token_id is not None and (closing == tokenizer.unk_token_id).any()):
        raise CheckpointError(f"the tokenizer of {path!r} has no token for the separator {separator!r}")
    model = read_strictly(AutoModelForTokenClassification, path)
    if model.config.num_labels != 2:
        raise CheckpointError(
            f"the token classifier {path!r} has {model.config.num_labels} labels; wrong and right are 2"
        )

    def form(question: str, steps: Sequence[str]) -> StepTokens:
        first = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
        asked, *written = pieces_of(tokenizer, [question, *steps])
        lengths = [len(first) + len(asked), *(len(ids) + len(closing) for ids in written)]
        pieces = [np.array(first, dtype=np.int64), asked, *(part for ids in written for part in (ids, closing))]
        return StepTokens(np.concatenate(pieces), np.cumsum(lengths)[1:] - 1)

    def values(inputs: dict[str, Any], places_M: Tensor) -> Any:
        return model(**inputs).logits.flatten(0, 1)[places_M].float().softmax(-1)[:, 1]

    return _reader("trl", form, values, model, tokenizer, micro_batch_size)


def _reader(
    name: str, form: Form, values: Callable[[dict[str, Any], Tensor], Any], model: Any, tokenizer: Any, micro: int
) -> RewardModel:
    """The reward model whose values at the places (M,) of a batch are those of a head."""
    lay = layer(model, tokenizer)

    @torch.inference_mode()
    def read(batch: Sequence[StepTokens]) -> Sequence[FloatArray]:
        laid = lay(batch)
        return laid.split(values(laid.inputs, laid.places_M))

    return StepReader(name, form, read, tokenizer=tokenizer, room=room_of(model), micro_batch_size=micro)
