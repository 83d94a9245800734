"""Averaged weights of a policy, which keep what noisy updates reached.

    average = PolicyAverage(policy, decay=0.8)
    average.follow()                # after each rollout
    with average.acting():          # the policy has the averaged weights
        evaluate(policy)

The policy itself learns and collects with its last weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from guerdon.errors import ConfigError
from guerdon.policies.robot import RobotPolicy


class PolicyAverage:
    """An exponential moving average of a policy's weights; what else it stores, such as statistics, is current.

    Args:
        policy: learns; its weights now are the first average.
        decay: share of the average that a rollout leaves; about 1 / (1 - decay) rollouts count, and the start with
            decay ** rollouts.
    """

    def __init__(self, policy: RobotPolicy, decay: float) -> None:
        self._policy, self._decay = policy, decay
        self._learned = {name for name, _ in policy.named_parameters()}
        self._average = self._weights()
        if not self._learned & self._average.keys():
            raise ConfigError(
                "algorithm.ema_decay needs a policy whose tensors have the names of its parameters: remove it"
            )

    def follow(self) -> None:
        """Take in the weights after the updates of a rollout.

        Raises:
            ConfigError: the policy stores other tensors than before.
        """
        now, before = self._weights(), self._average
        shapes = [{name: value.shape for name, value in one.items()} for one in (now, before)]
        if shapes[0] != shapes[1]:
            changed = min(name for name in now.keys() | before.keys() if shapes[0].get(name) != shapes[1].get(name))
            raise ConfigError(
                f"algorithm.ema_decay needs a policy whose tensors keep their names and shapes, unlike {changed}: "
                "remove it"
            )
        for name, value in now.items():
            self._average[name] = before[name].lerp(value, 1 - self._decay) if name in self._learned else value

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Inside the block the policy has the averaged weights."""
        own = self._weights()
        try:
            self._policy.load_tensors(self._average)
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
