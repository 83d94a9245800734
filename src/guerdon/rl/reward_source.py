"""A source of reward: one named stream of rewards, kept apart from the others until the advantage estimator.

Ground truth (the verifier's outcome), reward models of every kind and models that learn during a run are sources
alike. The loop calls `learn` before or after `measure`, as `learn_before` says.

    for source in sources.values():
        rewards[source.name] = source.measure(rollout)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from torch import Tensor

from guerdon.rl.advantages import last_valid
from guerdon.types import BoolArray, Metrics, RawScores, Rewards, Rollout

R = TypeVar("R", contravariant=True)  # rollouts
OnFailure = Literal["drop", "neutral", "raise"]
Schedule = Literal["constant", "linear_decay", "linear_warmup"]


@dataclass(frozen=True)
class SourceTerms:
    """How a source counts in the advantage.

    Attributes:
        name: in logs, metrics and checkpoints.
        gamma: discount per step.
        coefficient: weight of its advantage.
        schedule: how the weight changes over the run.
        on_failure: what a missing measurement means.
    """

    name: str
    gamma: float = 1.0
    coefficient: float = 1.0
    schedule: Schedule = "constant"
    on_failure: OnFailure = "drop"

    def weight(self, progress: float) -> float:
        """The weight when so much of the run is over, from 0 to 1."""
        factor = {"constant": 1.0, "linear_decay": 1.0 - progress, "linear_warmup": progress}[self.schedule]
        return self.coefficient * max(0.0, factor)


class RewardSource(Generic[R]):
    """One stream of rewards. Sources that hold no state only implement `measure`.

    Args:
        terms: how it counts.

    Attributes:
        ready: False during its warm-up: the source learns from rollouts, and is not measured.
        learn_before: `learn` is called before `measure`, not after it.
        needs_log_probs: it compares with the log-probabilities of the policy that acted.
    """

    ready = True
    learn_before = False
    needs_log_probs = False

    def __init__(self, terms: SourceTerms) -> None:
        self.name, self.terms = terms.name, terms

    def measure(self, rollout: R, *, learn: bool = True) -> Rewards:
        """Rewards of the rollout and of its greedy responses.

        Args:
            rollout: what happened.
            learn: let a model that learns from the forward pass that scores take its steps; False: no weight changes.
        """
        raise NotImplementedError

    def learn(self, rollout: R) -> Metrics:
        """Let the model learn from the rollout."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that changes: tensors and JSON-able values."""
        return {}, {}

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""

    def reset_streams(self) -> None:
        """Drop what open episodes left: the world begins new ones."""

    def save(self, folder: Path) -> None:
        """Write the model as the run left it, where the run changed it."""

    @property
    def skipped_in_a_row(self) -> int:
        """Updates skipped in a row up to now, because they were not finite."""
        return 0


class GroundTruth(RewardSource[Rollout[Any]]):
    """What the collector measured: the environment's own reward, or the verifier's outcome.

    Args:
        terms: how it counts.
        at_end: it is paid at the end of each row (an outcome).
    """

    def __init__(self, terms: SourceTerms, *, at_end: bool = False) -> None:
        super().__init__(terms)
        self._at_end = at_end

    def measure(self, rollout: Rollout[Any], *, learn: bool = True) -> Rewards:
        """Read it; failures of responses that are not part of the rollout count, too."""
        return Rewards(
            rollout.rewards,
            rollout.failed,
            paid=last_valid(rollout.mask) if self._at_end else None,
            failures=rollout.failures,
            measured=rollout.measured,
            greedy=None if rollout.greedy is None else self.measure(rollout.greedy),
        )


def with_greedy(rewards: Rewards, greedy: Rewards | None) -> Rewards:
    """The rewards of a rollout together with those of its greedy responses; measurements and failures are added."""
    if greedy is None:
        return rewards
    failures = tuple((len(rewards.values) + row, step, why) for row, step, why in greedy.failures)
    return replace(
        rewards,
        greedy=greedy,
        failures=rewards.failures + failures,
        measured=rewards.measured + greedy.measured,
    )


def raw_scores(found: Sequence[tuple[int, int, float]], threshold: float) -> RawScores:
    """Streams, steps and values of single moments as arrays."""
    rows, steps, values = zip(*found, strict=True) if found else ((), (), ())
    return RawScores(
        np.array(rows, dtype=np.int64), np.array(steps, dtype=np.int64), np.array(values, dtype=np.float32), threshold
    )


def failed_rows(rows: list[int], mask_B_T: BoolArray) -> BoolArray:
    """(B, T) bool, True in the whole of these rows."""
    failed = np.zeros(mask_B_T.shape, dtype=np.bool_)
    failed[rows] = True
    return failed
