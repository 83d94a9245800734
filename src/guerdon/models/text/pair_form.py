"""The plain form of encoders without a chat template: what was asked and the response, as the tokenizer joins a pair.

These are the ids of `tokenizer([question], [response])`, as cards of such reward models have them (DeBERTa, RoBERTa,
ModernBERT): `[CLS] question [SEP] response [SEP]` and its like. A conversation of more turns is its turns with their
roles, a blank line between them; models of others are given a question alone.

    form = PairForm(tokenizer, turns=False)
    form.ids("3+5=?", "8")                # those of tokenizer(["3+5=?"], ["8"])
    form.types(form.ids("3+5=?", "8"))    # 0 for the question, 1 for the response
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import CheckpointError
from guerdon.policies.batches.tokens import pad_right, piece_ids
from guerdon.reading.chats import ChatError, beyond_question
from guerdon.types import IntArray, Message, Tool


def is_encoder(config: Any) -> bool:
    """Whether a configuration of transformers is that of an encoder, which reads a text in both directions."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    causal = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not causal


def positions_of(model: Any) -> int | None:
    """Tokens that an encoder has positions for; None: no limit.

    RoBERTa and its like count from behind the number of their token for padding.
    """
    room = getattr(model.config, "max_position_embeddings", None)
    tables = [getattr(part, "position_embeddings", None) for part in model.modules()]
    fillers = [getattr(table, "padding_idx", None) for table in tables]
    offsets = [filler + 1 for filler in fillers if filler is not None]
    return None if room is None else int(room) - max(offsets, default=0)


class PairForm:
    """How a tokenizer joins two texts.

    Args:
        tokenizer: a transformers tokenizer.
        turns: write conversations of more than a question as text; else they are refused.

    Raises:
        CheckpointError: the tokenizer does not say where the texts of a pair begin and end.
    """

    def __init__(self, tokenizer: Any, *, turns: bool) -> None:
        self.tokenizer, self.turns = tokenizer, turns
        both = tokenizer("a", "b")
        segments = both.sequence_ids(0) if getattr(both, "is_fast", False) else []
        if 0 not in segments or 1 not in segments:
            raise CheckpointError(
                f"the tokenizer {type(tokenizer).__name__} has no chat template and does not say how it joins a "
                "question and a response: save it with a chat template (tokenizer.chat_template)"
            )
        ids = np.array(both["input_ids"], dtype=np.int64)
        first, second = (np.flatnonzero(np.array(segments) == k) for k in (0, 1))
        self._before, self._behind = ids[: first[0]], ids[second[-1] + 1 :]
        self._between = ids[first[-1] + 1 : second[0]]
        types = both.get("token_type_ids")
        self._types = None if types is None else (types[first[0]], types[first[-1] + 1 : second[0]], types[second[0]])

    def ids(self, question: str, answer: str, context: Sequence[Message] = (), tools: Sequence[Tool] = ()) -> IntArray:
        """The ids of a question and a response; control tokens in them are plain text.

        Raises:
            ChatError: the form has no place for the conversation.
            DataError: a character that the tokenizer does not know, or a control token that it cannot read as text.
        """
        asked, answered = piece_ids(self.tokenizer, [self._asked(question, context, tools), answer])
        return np.concatenate([self._before, asked, self._between, answered, self._behind])

    def types(self, ids: IntArray) -> IntArray | None:
        """The token types of ids of this form, as the tokenizer gives them; None: it gives none."""
        if self._types is None:
            return None
        asked, between, answered = self._types
        start = len(self._before)
        width = len(self._between)
        found = np.full(len(ids), answered, dtype=np.int64)
        end = next(k for k in range(start, len(ids)) if np.array_equal(ids[k : k + width], self._between))
        found[:end] = asked
        found[end : end + width] = between
        return found

    def _asked(self, question: str, context: Sequence[Message], tools: Sequence[Tool]) -> str:
        more = beyond_question(context, tools)
        if not more:
            return question
        if tools or not self.turns or any(message.get("tool_calls") for message in context):
            raise ChatError(f"the plain form of an encoder without a chat template has no place for {more}")
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in context)


def encoder_inputs(form: PairForm | None, sequences: Sequence[IntArray], fill: int, device: Any) -> dict[str, Tensor]:
    """Ids, mask and, where the form has them, token types of sequences that are filled up on the right.

    Args:
        form: that the sequences have; None: that of a chat template.
        sequences: of ids.
        fill: the id for padding.
        device: where the tensors are to be.
    """
    ids_B_L, mask_B_L = pad_right(sequences, fill)
    found = {"input_ids": ids_B_L, "attention_mask": mask_B_L.astype(np.int64)}
    types = [] if form is None else [form.types(ids) for ids in sequences]
    if known := [one for one in types if one is not None]:
        found["token_type_ids"] = pad_right(known, 0)[0]
    return {name: torch.from_numpy(values).to(device) for name, values in found.items()}
