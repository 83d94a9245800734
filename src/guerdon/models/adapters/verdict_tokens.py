r"""Language models whose verdict on a step is a token: Math-Shepherd and RLHFlow, P(+) against P(-) as the next token.

Math-Shepherd (Wang et al. 2023, 2312.08935; `peiyi9979/math-shepherd-mistral-7b-prm`) is a plain language model: the
question, a space, and the steps, each with ` ки` behind it and a new line between them. Its data number the steps
("Step 1: ..."); a step that does not begin so gets its number. The value is read after `ки`.

RLHFlow (`RLHFlow/Llama3.1-8B-PRM-Deepseek-Data` and `-Mistral-Data`) is a chat: the user writes a step (the first one
behind the question and a space), the assistant answers `+` or `-`. The value is read where the answer is about to be
given, all earlier answers being `+`; one chat with all steps gives all values at once.

    model = load_math_shepherd("peiyi9979/math-shepherd-mistral-7b-prm", 8)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from guerdon.models.adapters import read_notes
from guerdon.models.adapters.steps import (
    MARK,
    Reading,
    StepReader,
    StepTokens,
    chat_text,
    checked_tokenizer,
    ids_and_places,
    numbered,
    pack,
    pad,
    read_base,
    room_of,
    single_token,
    without_marks,
)
from guerdon.policies.packing import PACKED_ATTENTION, Layout
from guerdon.policies.shared_base import SharedBase
from guerdon.types import FloatArray, RewardModel

MARKER = "ки"  # of Math-Shepherd
RIGHT, WRONG = "+", "-"


def load_math_shepherd(path: str, micro_batch_size: int) -> RewardModel:
    """Math-Shepherd's reward model.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.

    Raises:
        CheckpointError: it cannot be read, or its tokenizer lacks the marker or the verdicts.
    """
    read_notes(path, "math_shepherd")
    tokenizer = checked_tokenizer(path, chat=False)
    (marker,) = single_token(tokenizer, MARKER, path)
    right, wrong = single_token(tokenizer, "+ -", path, count=2)
    base = read_base(path, tokenizer)

    def form(question: str, steps: Sequence[str]) -> StepTokens:
        written = "\n".join(f"{step} {MARK}" for step in numbered(steps))
        text, ends = without_marks(f"{question} {written}", MARKER)
        return StepTokens(*ids_and_places(tokenizer, text, ends, marker, special=True))

    return StepReader(
        "math_shepherd", form, _verdicts(base, right, wrong),
        tokenizer=tokenizer, room=room_of(base.model), micro_batch_size=micro_batch_size,
    )  # fmt: skip


def load_rlhflow(path: str, micro_batch_size: int) -> RewardModel:
    """A reward model of RLHFlow.

    Args:
        path: folder or hub id.
        micro_batch_size: solutions per forward pass.

    Raises:
        CheckpointError: it cannot be read, or its tokenizer lacks a chat template or the verdicts.
    """
    read_notes(path, "rlhflow")
    tokenizer = checked_tokenizer(path, chat=True)
    (right,), (wrong,) = (single_token(tokenizer, verdict, path) for verdict in (RIGHT, WRONG))
    base = read_base(path, tokenizer)

    def form(question: str, steps: Sequence[str]) -> StepTokens:
        turns = [f"{question} {steps[0]}", *steps[1:]]
        chat = [{"role": r, "content": said} for turn in turns for r, said in (("user", turn), ("assistant", MARK))]
        text, ends = without_marks(chat_text(tokenizer, chat), RIGHT)
        ids, places = ids_and_places(tokenizer, text, ends, right, special=False)
        return StepTokens(ids, places - 1)  # the token before an answer predicts it

    return StepReader(
        "rlhflow", form, _verdicts(base, right, wrong),
        tokenizer=tokenizer, room=room_of(base.model), micro_batch_size=micro_batch_size,
    )  # fmt: skip


def _verdicts(base: SharedBase, right: int, wrong: int) -> Reading:
    """A reading: the probability of one token against another, as the next one behind each place."""

    @torch.inference_mode()
    def read(batch: Sequence[StepTokens]) -> Sequence[FloatArray]:
        laid = pack(batch, base.device) if base.packs else pad(batch, base.tokenizer, base.device)
        given, attention = laid.inputs, PACKED_ATTENTION if base.packs else None
        where, places = given.get("position_ids"), laid.places_M
        layout = Layout(given["input_ids"], where, places, places, given.get("packing"), attention=attention)
        hidden = base.hidden(layout)
        logits = base.logits(hidden[places])[:, [right, wrong]]
        return laid.split(logits.float().softmax(-1)[:, 0])

    return read
