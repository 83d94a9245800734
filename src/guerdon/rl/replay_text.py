"""The most recent responses with their outcomes, kept to learn from again. This module does not know models.

replay = TextReplay(size=1024)
replay.add(batch, acc_B, known_B, ref_B_T)
batch, acc_B, ref_B_T = replay.draw(64, rng)
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from guerdon.policies.tokens import TokenBatch, token_batch
from guerdon.types import IntArray


class _Row(NamedTuple):
    prompt: IntArray
    response: IntArray
    finished: bool
    acc: float
    ref: np.ndarray  # log-probabilities of the reference, one per token


class TextReplay:
    """The newest `size` responses."""

    def __init__(self, size: int) -> None:
        self._rows: deque[_Row] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, batch: TokenBatch, acc_B: Tensor, known_B: Tensor, ref_B_T: Tensor) -> None:
        """Take in the responses whose outcome is known, with log-probabilities of the reference."""
        for i, response in enumerate(batch.responses()):
            if bool(known_B[i]):
                ref = ref_B_T[i, : len(response)].numpy().copy()
                finished = bool(batch.finished_B[i])
                self._rows.append(_Row(batch.prompts[i], response.copy(), finished, float(acc_B[i]), ref))

    def draw(self, n: int, rng: np.random.Generator) -> tuple[TokenBatch, Tensor, Tensor]:
        """`n` different responses, their outcomes, and log-probabilities of the reference."""
        picked = [self._rows[i] for i in rng.choice(len(self._rows), size=n, replace=False)]
        batch = token_batch(
            [r.prompt for r in picked], [r.response for r in picked], np.array([r.finished for r in picked]), pad_id=0
        )
        ref = torch.zeros(batch.mask_B_T.shape)
        for i, row in enumerate(picked):
            ref[i, : len(row.ref)] = torch.from_numpy(row.ref)
        return batch, torch.tensor([r.acc for r in picked], dtype=torch.float32), ref

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tokens and log-probabilities as tensors, the rest as plain values."""
        tensors = {
            "prompts": _flat([r.prompt for r in self._rows], np.int64),
            "responses": _flat([r.response for r in self._rows], np.int64),
            "ref": _flat([r.ref for r in self._rows], np.float32),
        }
        return tensors, {
            "lengths": [[len(r.prompt), len(r.response)] for r in self._rows],
            "finished": [r.finished for r in self._rows],
            "acc": [r.acc for r in self._rows],
        }

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self._rows.clear()
        prompts, responses, refs = (tensors[k].numpy() for k in ("prompts", "responses", "ref"))
        p = r = 0
        for (n, length), finished, acc in zip(values["lengths"], values["finished"], values["acc"], strict=True):
            end = r + length
            row = _Row(prompts[p : p + n].copy(), responses[r:end].copy(), finished, acc, refs[r:end].copy())
            self._rows.append(row)
            p, r = p + n, end


def _flat(arrays: list[np.ndarray], dtype: type) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype))
