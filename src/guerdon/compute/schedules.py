"""How a learning rate falls during training.

rate = scheduled(1e-3, "cosine", progress=0.5)
"""

from __future__ import annotations

import math
from typing import Literal


def scheduled(base: float, schedule: Literal["constant", "linear", "cosine"], progress: float) -> float:
    """Learning rate after a share `progress` of the run: constant, linear to 0, or half a cosine to 0."""
    if schedule == "linear":
        return base * max(0.0, 1.0 - progress)
    if schedule == "cosine":
        return base * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return base
