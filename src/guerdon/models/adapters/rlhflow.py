r"""RLHFlow's process reward models: `RLHFlow/Llama3.1-8B-PRM-Deepseek-Data` and `-Mistral-Data`.

A chat: the user writes a step (the first one behind the question and a space), the assistant answers `+` or `-`. The
value is the probability of `+` against `-` where the answer is about to be given, all earlier answers being `+`. One
chat with all steps gives all values at once. This module does not know how such models are trained.

    model = load_rlhflow("RLHFlow/Llama3.1-8B-PRM-Deepseek-Data", 8)
"""

from __future__ import annotations

from collections.abc import Sequence

from guerdon.models.adapters.notes import read_notes
from guerdon.models.adapters.steps import (
    MARK,
    Marked,
    StepReader,
    chat_text,
    checked_tokenizer,
    ids_and_places,
    room_of,
    single_token,
    without_marks,
)
from guerdon.models.adapters.verdicts import read_base, verdicts
from guerdon.types import RewardModel

RIGHT, WRONG = "+", "-"


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

    def form(question: str, steps: Sequence[str]) -> Marked:
        turns = [f"{question} {steps[0]}", *steps[1:]]
        chat = [{"role": r, "content": said} for turn in turns for r, said in (("user", turn), ("assistant", MARK))]
        text, ends = without_marks(chat_text(tokenizer, chat), RIGHT)
        ids, places = ids_and_places(tokenizer, text, ends, right, special=False)
        return Marked(ids, places - 1)  # the token before an answer predicts it

    return StepReader(
        "rlhflow", form, verdicts(base, right, wrong),
        tokenizer=tokenizer, room=room_of(base.model), micro_batch_size=micro_batch_size,
    )  # fmt: skip
