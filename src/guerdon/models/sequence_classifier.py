"""A sequence classifier as a reward model for text: one number for a prompt and its response.

Any transformers `AutoModelForSequenceClassification` with one label (its logit), or two (the log-odds of the second).
It is read strictly: a folder that lacks weights is refused. This module does not know RL.

    SequenceClassifier("runs/orm").score(prompts, texts, micro=32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from guerdon.errors import CheckpointError, boundary
from guerdon.policies.tokens import pad_id, pad_right, prompt_ids, response_ids, sequence
from guerdon.types import FloatArray
from guerdon.worlds.prompts import Prompt


class SequenceClassifier:
    """A judge of whole responses.

    Args:
        path: folder or hub id.

    Raises:
        CheckpointError: it cannot be read, lacks weights, or has more than two labels.
    """

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        with boundary(CheckpointError, f"the sequence classifier {path!r} cannot be read"):
            self.model, report = AutoModelForSequenceClassification.from_pretrained(
                path, dtype=torch.float32, output_loading_info=True
            )
            self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        missing = sorted(report["missing_keys"])
        if missing:
            raise CheckpointError(
                f"the sequence classifier {path!r} lacks {len(missing)} weights, such as {missing[0]}: it was not "
                "trained as a classifier"
            )
        self.labels = int(self.model.config.num_labels)
        if self.labels > 2:
            raise CheckpointError(f"the sequence classifier {path!r} has {self.labels} labels; a reward needs 1 or 2")
        self.model.config.pad_token_id = pad_id(self.tokenizer)
        self.model.eval().requires_grad_(False)
        if torch.cuda.is_available():
            self.model.to("cuda")

    @torch.inference_mode()
    def score(self, prompts: Sequence[Prompt], texts: Sequence[str], *, micro: int) -> FloatArray:
        """(B,) float32 logits, higher is better.

        Args:
            prompts: what was asked.
            texts: the responses.
            micro: responses per forward pass.
        """
        rows = [
            sequence(prompt_ids(self.tokenizer, p.messages), response_ids(self.tokenizer, t))
            for p, t in zip(prompts, texts, strict=True)
        ]
        values = np.zeros(len(rows), dtype=np.float32)
        for start in range(0, len(rows), micro):
            ids, mask = pad_right(rows[start : start + micro], pad_id(self.tokenizer))
            logits = self.model(
                input_ids=torch.from_numpy(ids).to(self.model.device),
                attention_mask=torch.from_numpy(mask.astype(np.int64)).to(self.model.device),
            ).logits.float()
            value = logits[:, 0] if self.labels == 1 else logits[:, 1] - logits[:, 0]
            values[start : start + micro] = value.cpu().numpy()
        return values
