r"""Token classifiers as TRL's `PRMTrainer` trained them (its experimental part, TRL 1.12).

The beginning-of-sequence token, where the tokenizer has one, the question, and the steps, each tokenised by itself with
the tokens of the separator behind it. The probability of the second label at the last of those is the value. TRL does
not store the separator: a new line, or what `separator` in `adapter.json` says. This module does not need TRL.

    model = load_trl("runs/trl_prm", 8)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

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
)
from guerdon.types import FloatArray, RewardModel

SEPARATOR = "\n"


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
    separator = notes.separator or SEPARATOR
    tokenizer = checked_tokenizer(path, chat=False)
    closing = np.asarray(tokenizer.encode(separator, add_special_tokens=False), dtype=np.int64)
    if not len(closing) or (tokenizer.unk_token_id is not None and (closing == tokenizer.unk_token_id).any()):
        raise CheckpointError(f"the tokenizer of {path!r} has no token for the separator {separator!r}")
    model = read_strictly(AutoModelForTokenClassification, path)
    if model.config.num_labels != 2:
        raise CheckpointError(
            f"the token classifier {path!r} has {model.config.num_labels} labels; wrong and right are 2"
        )
    lay = layer(model, tokenizer)

    def form(question: str, steps: Sequence[str]) -> Marked:
        first = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
        asked, *written = pieces_of(tokenizer, [question, *steps])
        lengths = [len(first) + len(asked), *(len(ids) + len(closing) for ids in written)]
        pieces = [np.array(first, dtype=np.int64), asked, *(part for ids in written for part in (ids, closing))]
        return Marked(np.concatenate(pieces), np.cumsum(lengths)[1:] - 1)

    @torch.inference_mode()
    def read(batch: Sequence[Marked]) -> Sequence[FloatArray]:
        laid = lay(batch)
        logits = model(**laid.inputs).logits.flatten(0, 1)
        return laid.split(logits[laid.places_M].float().softmax(-1)[:, 1])

    return StepReader("trl", form, read, tokenizer=tokenizer, room=room_of(model), micro_batch_size=micro_batch_size)
