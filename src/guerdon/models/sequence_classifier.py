"""A sequence classifier as a reward model for text: one number for a prompt and its response.

Any transformers `AutoModelForSequenceClassification` with one label (its logit), or two (the log-odds of the second).
It is read strictly: a folder that lacks weights is refused.

    values_B, failures = SequenceClassifier("runs/orm").score(prompts, texts, micro=32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from guerdon.errors import CheckpointError, DataError, boundary
from guerdon.policies.text_files import read_pretrained
from guerdon.policies.tokens import pad_id, pad_right, prompt_ids, response_ids, sequence
from guerdon.types import Failure, FloatArray, IntArray
from guerdon.worlds.prompts import Prompt


class SequenceClassifier:
    """A reward model of whole responses.

    Args:
        path: folder or hub id.

    Raises:
        CheckpointError: it cannot be read, lacks weights, or has more than two labels.
    """

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.model = read_pretrained(AutoModelForSequenceClassification, path, "the sequence classifier")
        with boundary(CheckpointError, f"the tokenizer of {path!r} cannot be read"):
            self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.labels = int(self.model.config.num_labels)
        if self.labels > 2:
            raise CheckpointError(f"the sequence classifier {path!r} has {self.labels} labels; a reward needs 1 or 2")
        self.room: int | None = getattr(self.model.config, "max_position_embeddings", None)
        if self.model.config.pad_token_id is None:
            self.model.config.pad_token_id = pad_id(self.tokenizer)
        self.model.eval().requires_grad_(False)
        if torch.cuda.is_available():
            self.model.to("cuda")

    @torch.inference_mode()
    def score(
        self, prompts: Sequence[Prompt], texts: Sequence[str], *, micro: int
    ) -> tuple[FloatArray, dict[int, Failure]]:
        """A logit per response; the model reads the question without the policy's system prompt.

        Args:
            prompts: the questions.
            texts: the responses.
            micro: responses per forward pass.

        Returns:
            (B,) float32 logits, higher is better, 0 where there is none; and the failures by row: characters that its
            tokenizer does not have, more tokens than it has positions for, or a logit that is not finite.
        """
        values = np.zeros(len(texts), dtype=np.float32)
        sequences: dict[int, IntArray] = {}
        failures: dict[int, Failure] = {}
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            try:
                ids = sequence(prompt_ids(self.tokenizer, prompt.messages), response_ids(self.tokenizer, text))
            except DataError as error:
                failures[i] = Failure("unknown_character", str(error))
                continue
            if self.room is not None and len(ids) > self.room:
                failures[i] = Failure("too_long", f"{len(ids)} tokens, the classifier has {self.room} positions")
            else:
                sequences[i] = ids
        readable = list(sequences)
        for start in range(0, len(readable), micro):
            rows = readable[start : start + micro]
            ids_B_L, mask_B_L = pad_right([sequences[i] for i in rows], int(self.model.config.pad_token_id))
            logits = self.model(
                input_ids=torch.from_numpy(ids_B_L).to(self.model.device),
                attention_mask=torch.from_numpy(mask_B_L.astype(np.int64)).to(self.model.device),
            ).logits.float()
            value = logits[:, 0] if self.labels == 1 else logits[:, 1] - logits[:, 0]
            values[rows] = value.cpu().numpy()
        for row in np.flatnonzero(~np.isfinite(values)):
            failures[int(row)] = Failure("non_finite", "the classifier's logit is not finite")
        return np.where(np.isfinite(values), values, np.float32(0)), failures
