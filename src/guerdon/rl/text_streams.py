"""What a source of reward is for language models: responses in, a stream of rewards per token out.

A stream is `(B, T)` rewards, where they are paid, and on which responses they are missing. This module holds the
contract; it does not know any reward model.

    stream, _, metrics = source.measure(Asked(answered, old_log_probs_B_T), None)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from guerdon.rl.responses import Responses
from guerdon.rl.text_steps import Cut
from guerdon.types import BoolArray, Failure, FloatArray

Facts = dict[str, float | None]


@dataclass(frozen=True, eq=False)
class Judged:
    """What a model said of each step, before any shaping.

    Attributes:
        cuts: the steps of each response.
        values: of the steps of each response; None where there is no measurement.
        threshold: a step below it is called wrong.
    """

    cuts: tuple[Cut, ...]
    values: tuple[FloatArray | None, ...]
    threshold: float


@dataclass(frozen=True, eq=False)
class Stream:
    """One source's rewards of B responses.

    Attributes:
        rewards_B_T: 0 where nothing is paid.
        pays_B_T: where the baseline is subtracted; None: every valid token.
        failures: row to why there is no measurement.
        judged: values of steps, of a model that judges steps.
    """

    rewards_B_T: FloatArray
    pays_B_T: BoolArray | None = None
    failures: dict[int, Failure] = field(default_factory=dict)
    judged: Judged | None = None

    @property
    def failed_B(self) -> BoolArray:
        """(B,) bool."""
        failed = np.zeros(len(self.rewards_B_T), dtype=np.bool_)
        failed[list(self.failures)] = True
        return failed


@dataclass(frozen=True, eq=False)
class Asked:
    """Responses to be scored, and what the policy that acted says of them.

    Attributes:
        answered: the responses.
        old_B_T: (B, T) log-probabilities of the policy that acted, where the reward model compares with them.
    """

    answered: Responses
    old_B_T: Tensor | None = None


class ProcessReward(Protocol):
    """A source of reward beside the verifier."""

    def measure(self, asked: Asked, greedy: Asked | None) -> tuple[Stream, Stream | None, Facts]:
        """Rewards of the responses, and of greedy ones in the same unit; an online model learns from the outcomes."""
        ...

    def look(self, asked: Asked) -> Stream:
        """Rewards of the responses, without learning anything."""
        ...

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that changes."""
        ...

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        ...


class FixedReward:
    """A source that never changes."""

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Nothing changes."""
        return {}, {}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Nothing changes."""
