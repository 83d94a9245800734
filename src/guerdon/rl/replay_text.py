"""Earlier responses with their outcomes, kept to learn from again: a reservoir in which every rollout is as likely.

This module does not know models.

    replay = TextReplay(size=1024)
    replay.add(batch, acc_B, known_B, None, rng)
    batch, acc_B, ref_B_T = replay.draw(64, rng)
"""

from __future__ import annotations

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
    ref: np.ndarray  # log-probabilities of the reference, or empty


class TextReplay:
    """At most `size` responses; reservoir sampling (Vitter 1985) decides who stays."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._rows: list[_Row] = []
        self._seen = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, batch: TokenBatch, acc_B: Tensor, known_B: Tensor, ref_B_T: Tensor | None, rng: np.random.Generator
    ) -> None:
        """Take in the responses whose outcome is known; `ref_B_T` where the reference will have changed."""
        for i, response in enumerate(batch.responses()):
            if not bool(known_B[i]):
                continue
            ref = np.empty(0, dtype=np.float32) if ref_B_T is None else ref_B_T[i, : len(response)].numpy().copy()
            row = _Row(batch.prompts[i], response.copy(), bool(batch.finished_B[i]), float(acc_B[i]), ref)
            self._seen += 1
            if len(self._rows) < self.size:
                self._rows.append(row)
                continue
            place = int(rng.integers(self._seen))
            if place < self.size:
                self._rows[place] = row

    def draw(self, n: int, rng: np.random.Generator) -> tuple[TokenBatch, Tensor, Tensor | None]:
        """`n` different responses, their outcomes, and log-probabilities of the reference where they were kept."""
        picked = [self._rows[i] for i in rng.choice(len(self._rows), size=n, replace=False)]
        batch = token_batch(
            [r.prompt for r in picked], [r.response for r in picked], np.array([r.finished for r in picked]), pad_id=0
        )
        acc = torch.tensor([r.acc for r in picked], dtype=torch.float32)
        if not any(len(r.ref) for r in picked):
            return batch, acc, None
        ref = torch.zeros(batch.mask_B_T.shape)
        for i, row in enumerate(picked):
            ref[i, : len(row.ref)] = torch.from_numpy(row.ref)
        return batch, acc, ref

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tokens as tensors, counts as plain values."""
        tensors = {
            "prompts": _flat([r.prompt for r in self._rows], np.int64),
            "responses": _flat([r.response for r in self._rows], np.int64),
            "ref": _flat([r.ref for r in self._rows], np.float32),
        }
        return tensors, {
            "seen": self._seen,
            "lengths": [[len(r.prompt), len(r.response), len(r.ref)] for r in self._rows],
            "finished": [r.finished for r in self._rows],
            "acc": [r.acc for r in self._rows],
        }

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self._seen, self._rows = int(values["seen"]), []
        places = np.zeros(3, dtype=np.int64)
        columns = [tensors[k].numpy() for k in ("prompts", "responses", "ref")]
        for lengths, finished, acc in zip(values["lengths"], values["finished"], values["acc"], strict=True):
            parts = [c[p : p + n].copy() for c, p, n in zip(columns, places, lengths, strict=True)]
            places += np.array(lengths)
            self._rows.append(_Row(parts[0], parts[1], bool(finished), float(acc), parts[2]))


def _flat(arrays: list[np.ndarray], dtype: type) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype))
