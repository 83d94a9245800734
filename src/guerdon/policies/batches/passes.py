"""Which sequences go through the network together: at most so many rows, and at most so many tokens with padding.

With a limit of tokens, sequences of like length share a pass, so that little of it is padding. Losses of a gradient
step are divided by the counts of the whole step, so its gradient does not depend on how it is cut.

    passes([900, 30, 31], tokens=1000)       # [array([1, 2]), array([0])]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from guerdon.settings.gpus import tokens_per_pass
from guerdon.types import IntArray


def token_limit(given: int | None, model: Any, device: torch.device) -> int | None:
    """`max_tokens_per_pass`, the default of the device for this model of transformers filled in; None: no limit."""
    if given is not None or device.type != "cuda":
        return given
    config = model.config.get_text_config()
    return tokens_per_pass(config.num_hidden_layers, config.hidden_size)


def slices(rows: int, size: int | None) -> list[slice]:
    """Parts of at most `size` rows, in order; None: all in one."""
    step = size or max(rows, 1)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def passes(
    lengths_N: Sequence[int] | IntArray,
    *,
    size: int | None = None,
    tokens: int | None = None,
    each: int = 1,
    apart: int | None = None,
) -> list[IntArray]:
    """Indices of items that share a forward pass, the like-long together, the shortest first.

    Args:
        lengths_N: tokens of the longest sequence of each item.
        size: most items in a pass; None: any number.
        tokens: most tokens in a pass, padding included; an item that is longer has a pass of its own. None: any number.
        each: sequences of an item (2 for pairs, the group's size for groups).
        apart: items longer than this share no pass with others; None: any may.
    """
    lengths = np.asarray(lengths_N, dtype=np.int64)
    order = np.argsort(lengths, kind="stable")
    found: list[IntArray] = []
    start = 0
    for at in range(1, len(order) + 1):
        if at < len(order):
            count = at + 1 - start
            fits = tokens is None or count * each * int(lengths[order[at]]) <= tokens
            last, newest = int(lengths[order[at - 1]]), int(lengths[order[at]])
            fits = fits and not (apart is not None and last <= apart < newest)
            if fits and (size is None or count <= size):
                continue
        found.append(order[start:at])
        start = at
    return found
