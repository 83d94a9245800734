"""Which sequences go through the network together: at most so many rows, and at most so many tokens with padding.

With a limit of tokens, sequences of like length share a pass, so that little of it is padding. Losses of a gradient
step are divided by the counts of the whole step, so its gradient does not depend on how it is cut.

    passes([900, 30, 31], tokens=1000)       # [array([1, 2]), array([0])]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from guerdon.types import IntArray

# At 1.5 billion parameters a pass of so many tokens keeps about 29 GB of activations, 2 GB with gradient_checkpointing
# (arithmetic, not measured); larger passes are hardly faster, as the products are wide enough by then.
TOKENS_ON_GPU = 8192


def token_limit(given: int | None, device: torch.device) -> int | None:
    """`max_tokens_per_pass`, the default of the device filled in; None: no limit."""
    return TOKENS_ON_GPU if given is None and device.type == "cuda" else given


def slices(rows: int, size: int | None) -> list[slice]:
    """Parts of at most `size` rows, in order; None: all in one."""
    step = size or max(rows, 1)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def passes(
    lengths_N: Sequence[int] | IntArray, *, size: int | None = None, tokens: int | None = None, each: int = 1
) -> list[IntArray]:
    """Indices of items that share a forward pass, the like-long together, the shortest first.

    Args:
        lengths_N: tokens of the longest sequence of each item.
        size: most items in a pass; None: any number.
        tokens: most tokens in a pass, padding included; an item that is longer has a pass of its own. None: any number.
        each: sequences of an item (2 for pairs, the group's size for groups).
    """
    lengths = np.asarray(lengths_N, dtype=np.int64)
    order = np.argsort(lengths, kind="stable")
    found: list[IntArray] = []
    start = 0
    for at in range(1, len(order) + 1):
        if at < len(order):
            count = at + 1 - start
            fits = tokens is None or count * each * int(lengths[order[at]]) <= tokens
            if fits and (size is None or count <= size):
                continue
        found.append(order[start:at])
        start = at
    return found
