r"""Math-Shepherd's process reward model (Wang et al. 2023, 2312.08935): `peiyi9979/math-shepherd-mistral-7b-prm`.

A plain language model: the question, a space, and the steps, each with ` ки` behind it and a new line between them.
What it says after `ки`, of `+` and `-` alone, is the value. Its data number the steps ("Step 1: ..."); a step that does
not begin so gets its number. This module does not know how such models are trained.

    model = load_math_shepherd("peiyi9979/math-shepherd-mistral-7b-prm", 8)
"""

from __future__ import annotations

from collections.abc import Sequence

from guerdon.models.adapters.notes import read_notes
from guerdon.models.adapters.steps import (
    MARK,
    Marked,
    StepReader,
    checked_tokenizer,
    ids_and_places,
    room_of,
    single_token,
    without_marks,
)
from guerdon.models.adapters.verdicts import numbered, read_base, verdicts
from guerdon.types import RewardModel

MARKER = "ки"


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

    def form(question: str, steps: Sequence[str]) -> Marked:
        written = "\n".join(f"{step} {MARK}" for step in numbered(steps))
        text, ends = without_marks(f"{question} {written}", MARKER)
        return Marked(*ids_and_places(tokenizer, text, ends, marker, special=True))

    return StepReader(
        "math_shepherd", form, verdicts(base, right, wrong),
        tokenizer=tokenizer, room=room_of(base.model), micro_batch_size=micro_batch_size,
    )  # fmt: skip
