"""A source of reward: one named stream of rewards, kept apart from the others until the advantage estimator.

Ground truth (the verifier's outcome), reward models of every kind and models that learn during a run are sources
alike. The loop calls `learn` before or after `measure`, as `learn_before` says. A failed measurement is marked, and the
learner applies the source's `on_failure`.

    for source in sources.values():
        rewards[source.name] = source.measure(rollout)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple

import numpy as np
from torch import Tensor

from guerdon.rewards.shaping import threshold_reward
from guerdon.settings.reward_source import (
    OnFailure,
    RobotSource,
    ShareSettings,
    SourceSettings,
    TextSource,
    WeightSchedule,
)
from guerdon.types import (
    Advantages,
    BoolArray,
    Failure,
    Inputs,
    Metrics,
    RawScores,
    RewardModel,
    Rewards,
    Rollout,
    last_valid,
)

_DECAY = 0.9  # of the running means of a learned weight, per update


@dataclass
class ShareWeight:
    """A weight that is learned during the run: it keeps the source's share of the whole signal.

    Let M be the running mean of the absolute size of the source's advantages, before its weight, over the steps at
    which they are known; and O the running mean of the sum of the other sources' sizes, each times its weight. After
    every update the weight becomes

        weight = share / (1 - share) * O / M,

    within its limits, so that weight * M is `share` of the whole. While O or M is 0 (nobody earned anything yet) it
    stays. An update in which a source is known at no step, because all of its measurements failed, is left out of the
    means. The weight of an update comes from the updates before it.

    Attributes:
        settings: the rule.
        value: the weight from now on; at first that of the start.
        own, others: M and O.
    """

    settings: ShareSettings
    value: float
    own: float = field(default=0.0, init=False)
    others: float = field(default=0.0, init=False)

    def observe(self, own: float, others: float) -> None:
        """Take in the sizes of an update.

        Args:
            own: mean absolute size of the source, without its weight.
            others: sum of those of the other sources, with their weights.
        """
        s = self.settings
        self.own = _DECAY * self.own + (1 - _DECAY) * own
        self.others = _DECAY * self.others + (1 - _DECAY) * others
        if self.own > 0 and self.others > 0:  # both are short of the mean by the same factor
            wanted = s.share / (1 - s.share) * self.others / self.own
            self.value = float(np.clip(wanted, s.min_weight, s.max_weight))

    def state_dict(self) -> dict[str, float]:
        """Plain values."""
        return {name: getattr(self, name) for name in ("value", "own", "others")}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Return to stored values."""
        for name in ("value", "own", "others"):
            setattr(self, name, float(state[name]))


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


@dataclass
class FallingWeight:
    """A weight that falls as the policy succeeds and never rises (`reward_weight_schedule: success`).

    With s the share of recent training episodes that succeeded, the share of the weight that is left is

        min over the run so far of (schedule_to - s) / (schedule_to - schedule_from),

    between 0 and 1: with the defaults, 1 - s where s was highest.

    Attributes:
        until: the share up to which the whole weight is left (`schedule_from`).
        zero_from: that from which on none is (`schedule_to`).
        left: the share of the weight that is left.
    """

    until: float
    zero_from: float
    left: float = field(default=1.0, init=False)

    def observe(self, success: float | None) -> None:
        """Take in the share of recent episodes that succeeded; None: it is not known yet."""
        if success is not None:
            reached = (self.zero_from - success) / (self.zero_from - self.until)
            self.left = min(self.left, max(reached, 0.0))


@dataclass(frozen=True)
class SourceTerms:
    """How a source counts in the advantage.

    Attributes:
        name: in logs, metrics and checkpoints.
        gamma: discount per step.
        coefficient: weight of its advantage.
        schedule: how the weight changes over the run.
        on_failure: what a missing measurement means.
        share: the weight, where it is learned; `coefficient` is its start.
        falling: how much of the weight is left, where it falls with success.
    """

    name: str
    gamma: float = 1.0
    coefficient: float = 1.0
    schedule: WeightSchedule | Literal["success"] = "constant"
    on_failure: OnFailure = "drop"
    share: ShareWeight | None = None
    falling: FallingWeight | None = None

    @classmethod
    def of(cls, name: str, settings: SourceSettings, *, gamma: float) -> SourceTerms:
        """Those of an entry of `reward.sources`; `gamma` where it has no discount of its own."""
        own = gamma if settings.gamma is None else settings.gamma
        learned, start = settings.adaptive_weight, settings.reward_weight
        share = None if learned is None else ShareWeight(learned, start)
        falling = None
        if isinstance(settings, RobotSource) and settings.falls:
            falling = FallingWeight(settings.schedule_from, settings.schedule_to)
        return cls(name, own, start, settings.reward_weight_schedule, settings.on_failure, share, falling)

    @property
    def over(self) -> bool:
        """Whether the weight has fallen to 0 for good, so that nothing needs its rewards."""
        return self.falling is not None and self.falling.left == 0.0

    def weight(self, progress: float) -> float:
        """The weight when so much of the run is over, from 0 to 1."""
        if self.share is not None:
            return self.share.value
        if self.falling is not None:
            return self.coefficient * self.falling.left
        factor = {"constant": 1.0, "linear_decay": 1.0 - progress, "linear_warmup": progress}[self.schedule]
        return self.coefficient * max(0.0, factor)


class RewardSource(Generic[Inputs]):
    """One stream of rewards. Sources that hold no state only implement `score`.

    Args:
        terms: how it counts.

    Attributes:
        ready: False during its warm-up: the source learns from rollouts, and is not measured.
        policy_waits: the policy does not learn during the warm-up; False: it learns from the other sources.
        learn_before: `learn` is called before `measure`, not after it.
        needs_log_probs: it compares with the log-probabilities of the policy that acted.
    """

    ready = True
    policy_waits = True
    learn_before = False
    needs_log_probs = False

    def __init__(self, terms: SourceTerms) -> None:
        self.name, self.terms = terms.name, terms

    def measure(self, rollout: Rollout[Inputs], *, learn: bool = True) -> Rewards:
        """Rewards of the rollout and of its greedy responses.

        Args:
            rollout: what happened.
            learn: let a model that learns from the forward pass that scores take its steps; False: no weight changes.
        """
        own = self.score(rollout)
        return own if rollout.greedy is None else with_greedy(own, self.score(rollout.greedy))

    def score(self, rollout: Rollout[Inputs]) -> Rewards:
        """Rewards of the rollout without its greedy responses."""
        raise NotImplementedError

    def learn(self, rollout: Rollout[Inputs]) -> Metrics:
        """Let the model learn from the rollout."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that changes: tensors and JSON-able values."""
        return {}, {}

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""

    def reset_streams(self) -> None:
        """Drop what open episodes left: the world begins new ones."""

    def close(self) -> None:
        """End what runs beside the loop."""

    def save(self, folder: Path) -> None:
        """Write the model as the run left it, where the run changed it."""

    @property
    def skipped_in_a_row(self) -> int:
        """Updates skipped in a row up to now, because they were not finite."""
        return 0


class GroundTruth(RewardSource[Any]):
    """What the collector measured: the environment's own reward, or the verifier's outcome.

    Args:
        terms: how it counts.
        at_end: it is paid at the end of each row (an outcome), but for conversations whose turns are paid.
        clipped: the policy learns from its sign, as usual in Atari games; returns are those of the environment.
    """

    def __init__(self, terms: SourceTerms, *, at_end: bool = False, clipped: bool = False) -> None:
        super().__init__(terms)
        self._at_end, self._clipped = at_end, clipped

    def measure(self, rollout: Rollout[Any], *, learn: bool = True) -> Rewards:
        """Read it; failures of responses that are not part of the rollout count, too."""
        last = last_valid(rollout.mask)
        at_end = self._at_end and not (rollout.conversations and (rollout.rewards[~last] != 0).any())
        return Rewards(
            np.sign(rollout.rewards) if self._clipped else rollout.rewards,
            rollout.failed,
            returned=rollout.rewards if self._clipped else None,
            paid=last if at_end else None,
            failures=rollout.failures,
            measured=rollout.measured,
            greedy=None if rollout.greedy is None else self.measure(rollout.greedy),
        )


class ModelReward(RewardSource[Inputs]):
    """A reward model as a source: one entry of `reward.sources`.

    Args:
        terms: how it counts.
        model: scores episodes.
        settings: how its values become rewards.
    """

    def __init__(self, terms: SourceTerms, model: RewardModel, settings: RobotSource | TextSource) -> None:
        super().__init__(terms)
        self.model, self.settings = model, settings

    @property
    def threshold(self) -> float:
        """The one threshold: the configuration's, else the model's own, else a half."""
        given, own = self.settings.reward_threshold, self.model.info.success_threshold
        if given is not None:
            return given
        return 0.5 if own is None else own

    def thresholded(self, values: np.ndarray) -> np.ndarray:
        """Values as one of two rewards."""
        s = self.settings
        return threshold_reward(
            values, threshold=self.threshold, success=s.success_reward, fail=s.effective_fail_reward
        )


def with_greedy(rewards: Rewards, greedy: Rewards) -> Rewards:
    """The rewards of a rollout together with those of its greedy responses; measurements and failures are added."""
    failures = tuple((len(rewards.values) + row, step, why) for row, step, why in greedy.failures)
    return replace(
        rewards,
        greedy=greedy,
        failures=rewards.failures + failures,
        measured=rewards.measured + greedy.measured,
    )


def response_rewards(values: np.ndarray, mask: BoolArray, failures: Mapping[int, Failure], **more: Any) -> Rewards:
    """Rewards of responses, each measured once.

    Args:
        values: (B, T), 0 in the rows that failed.
        mask: (B, T) which tokens there are.
        failures: of the rows whose measurement is missing.
        **more: further fields of `Rewards`.
    """
    failed = np.zeros(mask.shape, dtype=np.bool_)
    failed[list(failures)] = True
    reasons = tuple((row, 0, why) for row, why in failures.items())
    return Rewards(values.astype(np.float32), failed, failures=reasons, measured=len(values), **more)


class RawRow(NamedTuple):
    """What a model said of one moment; see `RawScores`."""

    row: int
    step: int
    value: float
    last: bool = False
    reused: bool = False


def raw_scores(found: Sequence[tuple[int, int, float] | RawRow], threshold: float) -> RawScores:
    """Single moments as arrays."""
    rows = [RawRow(*one) for one in found]
    return RawScores(
        np.array([one.row for one in rows], dtype=np.int64),
        np.array([one.step for one in rows], dtype=np.int64),
        np.array([one.value for one in rows], dtype=np.float32),
        threshold,
        np.array([one.last for one in rows], dtype=np.bool_),
        np.array([one.reused for one in rows], dtype=np.bool_),
    )
