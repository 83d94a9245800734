"""Losses of reward models of text: binary cross-entropy with hard or soft targets, and pairs of right and wrong.

Terms, not means: whoever trains divides by the weight of the whole batch, however it is cut into forward passes. This
module does not know models, tokens or files.

    (bce_terms(logits_N, targets_N) * weights_N).sum() / weights_N.sum()
    pair_terms(logits_right_P, logits_wrong_P).mean()
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from torch import Tensor
from torch.nn import functional


def bce_terms(logits_N: Tensor, targets_N: Tensor) -> Tensor:
    """-t log p - (1 - t) log(1 - p) with p = sigma(logit), (N,); t is any probability."""
    return functional.binary_cross_entropy_with_logits(logits_N, targets_N.to(logits_N.dtype), reduction="none")


def pair_terms(right_P: Tensor, wrong_P: Tensor) -> Tensor:
    """-log sigma(right - wrong) of each pair, (P,).

    On the logits of a head this is the model of Bradley and Terry; on beta times summed log-ratios it is DPO
    (Rafailov et al. 2023, 2305.18290).
    """
    return -functional.logsigmoid(right_P - wrong_P)


def pairs(groups: Sequence[Hashable], right: Sequence[bool | None], seed: int) -> list[tuple[int, int]]:
    """Pairs (right, wrong) within groups: every solution of a mixed group is in at least one, none in more than needed.

    Args:
        groups: solutions of the same question share one.
        right: whether the answer is right; None where nobody knows: in no pair.
        seed: of who meets whom.

    Returns:
        max(right, wrong) pairs for each group that has both.
    """
    members: dict[Hashable, tuple[list[int], list[int]]] = {}
    for i, (group, value) in enumerate(zip(groups, right, strict=True)):
        if value is not None:
            members.setdefault(group, ([], []))[0 if value else 1].append(i)
    found: list[tuple[int, int]] = []
    for number, (good, bad) in enumerate(members.values()):
        if not good or not bad:
            continue
        rng = np.random.default_rng([seed, number])
        a, b = rng.permutation(good), rng.permutation(bad)
        found += [(int(a[k % len(a)]), int(b[k % len(b)])) for k in range(max(len(a), len(b)))]
    return found
