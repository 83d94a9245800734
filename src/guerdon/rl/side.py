"""What the loop asks of the side it trains: robots in a simulator, or a language model at its tasks.

The loop knows the order of things; a side knows what acting, scoring and learning mean for its policy. This module
holds the contract alone.

    happened = side.roll_out(phase)
    measured = side.score(happened, phase)
    rollout, learned = side.update(happened, measured, progress=0.1, phase=phase)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from guerdon.rl.records import RewardedRollout
from guerdon.types import Metrics, Rewards

Happened = Any  # what a side's roll_out gives, handed back to the same side
Refits = dict[str, Metrics]


class Times(Protocol):
    """Times what is done inside it, under a name."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """A context whose seconds are added to `name`."""
        ...


class Side(Protocol):
    """One kind of policy with its world, its reward sources and its memory.

    Attributes:
        unit: what `runner.total_steps` counts, in words.
        learned: names of the reward models among the sources.
        on_failure: source name to what a failed measurement means.
        notes: lines for the person watching, said once at the start.
    """

    unit: str
    learned: tuple[str, ...]
    on_failure: Mapping[str, str]
    notes: list[str]

    def begin(self) -> None:
        """Start from nothing: called once for a run that does not go on with another."""
        ...

    def roll_out(self, phase: Times) -> Happened:
        """Let the policy act."""
        ...

    def seconds(self, happened: Happened) -> Mapping[str, float]:
        """Time that acting took, by its parts, where it was not timed by `phase`."""
        ...

    def steps(self, happened: Happened) -> int:
        """How many units of `runner.total_steps` it took."""
        ...

    def refit(self, when: Literal["before", "after"], happened: Happened, phase: Times) -> Refits:
        """Refit the reward models that are to be refitted at this point."""
        ...

    def score(self, happened: Happened, phase: Times) -> dict[str, Rewards]:
        """What every reward source says."""
        ...

    def update(
        self, happened: Happened, measured: Mapping[str, Rewards], *, progress: float, phase: Times
    ) -> tuple[RewardedRollout, dict[str, float | None]]:
        """Learn from it; `progress` is the share of the run that is over."""
        ...

    def record(self, rollout: RewardedRollout, step: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """One row per finished episode, and what they and the history say in sum."""
        ...

    def alarm(self) -> str:
        """Which learned return rises while true success does not, with numbers; empty where none does."""
        ...

    def evaluate(self, step: int) -> dict[str, float]:
        """True success of the policy as it is; nothing of the run changes by it."""
        ...

    def film(self, folder: Path, step: int) -> None:
        """Keep a picture of what the policy does now, for the report."""
        ...

    @property
    def skipped_in_a_row(self) -> int:
        """Updates skipped in a row up to now, because they were not finite; of the learner that skipped most."""
        ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that decides what comes next: tensors and JSON-able values."""
        ...

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        ...

    def save(self, folder: Path) -> None:
        """Write the policy, and the reward models that were refitted, at the end of a run."""
        ...

    def close(self) -> None:
        """Close worlds, files and processes."""
        ...
