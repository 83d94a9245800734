"""Log-probabilities of given tokens from hidden states, without holding more logits than a chunk at a time.

Logits are float32 whatever the network computes in. While gradients are wanted and there are several chunks, a
chunk's logits are made again on the way back instead of being kept. This module knows no model and no batch.

    log_probs_N, entropy_N = token_log_probs(hidden_N_H, model.lm_head, targets_N, temperature=1.0, entropy=True)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2**24


def token_log_probs(
    hidden_N_H: Tensor,
    head: Callable[[Tensor], Tensor],
    targets_N: Tensor,
    *,
    vocabulary: int,
    temperature: float = 1.0,
    entropy: bool = False,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[Tensor, Tensor | None]:
    """Log softmax(head(h) / temperature)[target] of each position.

    Args:
        hidden_N_H: last hidden states, or whatever `head` takes.
        head: hidden states (N, H) to logits (N, vocabulary).
        targets_N: token ids.
        vocabulary: number of logits.
        temperature: divides the logits.
        entropy: also return the entropy of the distribution, in nats.
        logits_at_once: how many logits to hold.

    Returns:
        (N,) float32 log-probabilities, and (N,) float32 entropies or None.
    """
    size = max(1, logits_at_once // vocabulary)
    again = torch.is_grad_enabled() and len(targets_N) > size
    parts: list[tuple[Tensor, Tensor | None]] = []
    for start in range(0, max(len(targets_N), 1), size):
        chunk = (hidden_N_H[start : start + size], head, targets_N[start : start + size], temperature, entropy)
        parts.append(checkpoint(_of_chunk, *chunk, use_reentrant=False) if again else _of_chunk(*chunk))
    if len(parts) == 1:
        return parts[0]
    found = [e for _, e in parts if e is not None]
    return torch.cat([p for p, _ in parts]), torch.cat(found) if found else None


def _of_chunk(
    hidden_N_H: Tensor, head: Callable[[Tensor], Tensor], targets_N: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    logits = head(hidden_N_H).float()
    if temperature != 1.0:
        logits = logits / temperature
    total = logits.logsumexp(-1)
    log_probs = logits.gather(-1, targets_N[:, None]).squeeze(-1) - total
    if not entropy:
        return log_probs, None
    return log_probs, total - (logits.softmax(-1) * logits).sum(-1)
