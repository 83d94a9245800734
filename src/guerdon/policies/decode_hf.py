"""Writing token after token with any transformers model: its own forward pass and its own cache.

Slower than `decode_llama`, and for every architecture. It does not know sampling, prompts or text.

    decoder = HFDecoder(policy)
    logits_B_V = decoder.prefill(ids_B_P, real_B_P, room=64)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from guerdon.policies.text import TextPolicy


class HFDecoder:
    """A batch being written; see `decode_llama.LlamaDecoder` for what the methods promise.

    Args:
        policy: whose weights; the adapter is chosen for each step.
    """

    def __init__(self, policy: TextPolicy) -> None:
        self._policy, self._base = policy, policy.base
        self._cache: Any = None
        self._real = torch.zeros(0, 0, dtype=torch.bool)

    def prefill(self, ids_B_P: Tensor, real_B_P: Tensor, *, room: int) -> Tensor:
        """Read prompts padded on the left and return the (B, V) logits of the first token to write."""
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._base.model.config)
        self._real = real_B_P
        return self._forward(ids_B_P, (real_B_P.long().cumsum(-1) - 1).clamp_min(0))

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; a row may come several times, or no more."""
        self._cache.batch_select_indices(rows)
        self._real = self._real[rows]

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to every row and return the (B, V) logits of the next."""
        self._real = torch.cat([self._real, self._real.new_ones(len(tokens_B), 1)], -1)
        return self._forward(tokens_B[:, None], self._real.long().sum(-1, keepdim=True) - 1)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        base = self._base
        base.model.eval()
        eager = "eager" if base.settings.attention == "eager" else "sdpa"
        with (
            base.adapter(self._policy.adapter),
            base.attention(eager),
            torch.autocast(base.device.type, torch.bfloat16, enabled=base.bf16),
        ):
            out = base.model(
                input_ids=ids, attention_mask=self._real.long(), position_ids=positions, past_key_values=self._cache,
                use_cache=True, logits_to_keep=1,
            )  # fmt: skip
        logits: Tensor = out.logits[:, -1].float()
        return logits
