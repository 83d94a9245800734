"""Averaged weights of a policy (Polyak & Juditsky 1992), which keep what noisy updates reached.

average = PolicyAverage(policy, decay=0.8)
average.follow()            # after each update
with average.acting():      # the policy has the averaged weights
evaluate(policy)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from guerdon.types import Policy


class PolicyAverage:
    """An exponential moving average of everything that a policy stores: weights and statistics of observations.

    Args:
        policy: learns; its weights now are the first average.
        decay: share of the average that an update keeps; about 1 / (1 - decay) updates count.
    """

    def __init__(self, policy: Policy[Any, Any], decay: float) -> None:
        self._policy, self._decay = policy, decay
        self._average = self._weights()

    def follow(self) -> None:
        """Take in the weights after an update."""
        for name, value in self._weights().items():
            average = self._average[name]
            self._average[name] = average.lerp(value, 1 - self._decay) if value.is_floating_point() else value

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Inside the block the policy has the averaged weights."""
        own = self._weights()
        self._policy.load_tensors(self._average)
        try:
            yield
        finally:
            self._policy.load_tensors(own)

    def tensors(self) -> dict[str, Tensor]:
        """The averaged weights, by name."""
        return self._average

    def load_tensors(self, stored: Mapping[str, Tensor]) -> None:
        """Return to what `tensors` gave."""
        self._average = {name: value.to(self._average[name].device) for name, value in stored.items()}

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._policy.tensors().items()}
