"""A weight of a source of reward that is learned during the run: it keeps the source's share of the whole signal.

Let M be the running mean of the absolute size of a source's advantages, before its weight, over the steps at which they
are known; and O the running mean of the sum of the other sources' sizes, each times its weight. After
every update the weight becomes

    weight = share / (1 - share) * O / M,

within its limits, so that weight * M is `share` of the whole. While O or M is 0 (nobody earned anything yet) it stays.
An update in which a source is known at no step, because all of its measurements failed, is left out of the means. The
weight of an update comes from the updates before it.

    weight = ShareWeight(ShareSettings(share=0.2), start=0.1)
    weight.observe(own=0.5, others=0.3)
    weight.value                                    # 0.2 / 0.8 * 0.3 / 0.5 = 0.15
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from guerdon.settings.reward import ShareSettings
from guerdon.types import Advantages, BoolArray

_DECAY = 0.9  # of the running means, per update


class ShareWeight:
    """The weight of one source.

    Args:
        settings: the rule.
        start: the weight before anything is known.

    Attributes:
        value: the weight from now on.
    """

    def __init__(self, settings: ShareSettings, start: float) -> None:
        self.settings, self.value = settings, start
        self._own, self._others = 0.0, 0.0

    def observe(self, own: float, others: float) -> None:
        """Take in the sizes of an update.

        Args:
            own: mean absolute size of the source, without its weight.
            others: sum of those of the other sources, with their weights.
        """
        s = self.settings
        self._own = _DECAY * self._own + (1 - _DECAY) * own
        self._others = _DECAY * self._others + (1 - _DECAY) * others
        if self._own > 0 and self._others > 0:  # both are short of the mean by the same factor
            wanted = s.share / (1 - s.share) * self._others / self._own
            self.value = float(np.clip(wanted, s.min_weight, s.max_weight))

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"value": self.value, "own": self._own, "others": self._others}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Return to stored values."""
        self.value, self._own, self._others = float(state["value"]), float(state["own"]), float(state["others"])


def observe_shares(
    shares: Mapping[str, ShareWeight],
    weights: Mapping[str, float],
    found: Advantages,
) -> None:
    """Take the sizes of an update into every learned weight.

    Args:
        shares: source to its learned weight.
        weights: source to the weight that it had in the update.
        found: advantages of the update.
    """
    for name, share in shares.items():
        if name not in weights:  # it warms up
            continue
        sizes = {other: _size(found.per_source[other], found.known[other]) for other in weights}
        known = {other: size for other, size in sizes.items() if size is not None}
        if len(known) == len(sizes):
            rest = sum(abs(weights[other]) * size for other, size in known.items() if other != name)
            share.observe(known[name], rest)


def _size(values_B_T: np.ndarray, known_B_T: BoolArray) -> float | None:
    """Mean absolute value where it is known; None where nothing is."""
    return float(np.abs(values_B_T[known_B_T].astype(np.float64)).mean()) if known_B_T.any() else None
