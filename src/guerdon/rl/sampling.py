"""Transitions of a replay as gradient steps take them, and goals in hindsight.

drawn = [DrawnRows(replay, rows_U_n)]
drawn = [in_hindsight(one, rng, share=0.8, strategy="future") for one in drawn]
for batch in gathered(policy, drawn, ("env", "entropy"), terms): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from guerdon.policies.robots.control import ControlPolicy
from guerdon.rewards.source import SourceTerms
from guerdon.rl.replay import Replay
from guerdon.types import BoolArray, FloatArray, IntArray

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
_GATHERED = 1 << 26  # bytes of observations that are gathered at a time


class GoalRewards(NamedTuple):
    """Rewards and ends of the environment for (N, ...) achieved and (N, ...) desired goals.

    Attributes:
        rewards: (N,) of the goals.
        ends: (N,) bool, whether the task ends there.
    """

    rewards: Callable[[np.ndarray, np.ndarray], FloatArray]
    ends: Callable[[np.ndarray, np.ndarray], BoolArray]


@dataclass(frozen=True, eq=False)
class Transitions:
    """N transitions, as a gradient step takes them; H outputs of a critic.

    Attributes:
        x, next_x: observations before and after the action, as networks take them.
        actions: (N, A) in the policy's units; of discrete ones (N, A) numbers of the choices.
        rewards: (N, H), 0 where there is none.
        share: (N, H) `shares` of the rewards that are known.
        goes_on: (N, 1) 0 where the action ended the task, else 1.
        allowed: (N, O) values of discrete actions that are allowed at `next_x`; None: all.
    """

    x: Any
    next_x: Any
    actions: Tensor
    rewards: Tensor
    share: Tensor
    goes_on: Tensor
    allowed: Tensor | None = None


class DrawnRows(NamedTuple):
    """Rows of a replay for U gradient steps.

    Attributes:
        replay: that has them.
        rows: (U, n) rows.
        goals: (U, n) rows whose achieved goal is taken for the desired one, -1 where it is not; None: nowhere.
    """

    replay: Replay
    rows: IntArray
    goals: IntArray | None = None

    def steps(self, part: slice) -> DrawnRows:
        """Those of some gradient steps."""
        return DrawnRows(self.replay, self.rows[part], None if self.goals is None else self.goals[part])

    def moments(self, *, before: bool) -> IntArray:
        """(U, n) rows before or after the actions."""
        return self.replay.rows("before")[self.rows] if before else self.rows

    def observations(self, *, before: bool) -> np.ndarray:
        """(U, n, ...) before or after the actions, with the goals that are taken."""
        found = self.replay.rows("observations")[self.moments(before=before)]
        if self.goals is not None:
            there = self.goals >= 0
            found[DESIRED][there] = self.replay.rows("observations")[ACHIEVED][self.goals[there]]
        return found


def in_hindsight(drawn: DrawnRows, rng: np.random.Generator, *, share: float, strategy: str) -> DrawnRows:
    """With goals that were achieved later in the same episode (HER, Andrychowicz et al. 2017, 1707.01495).

    Args:
        drawn: of an environment with goals.
        rng: draws.
        share: of the transitions, that get such a goal.
        strategy: `future`, any moment from the transition on; or `final`, the last one so far.
    """
    order, starts = drawn.replay.episodes()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    here, last = place[drawn.rows], starts[drawn.replay.rows("episode")[drawn.rows] + 1] - 1
    later = rng.integers(here, last + 1) if strategy == "future" else last
    return drawn._replace(goals=np.where(rng.random(drawn.rows.shape) < share, order[later], -1))


def shares(known: np.ndarray) -> FloatArray:
    """(..., N, H) weight of each row in the mean over those that are known: one over their number, 0 for the others."""
    return np.asarray(known / np.maximum(known.sum(axis=-2, keepdims=True), 1.0), np.float32)


def gathered(
    policy: ControlPolicy,
    drawn: Sequence[DrawnRows],
    outputs: Sequence[str],
    terms: Mapping[str, SourceTerms],
    goal_rewards: GoalRewards | None = None,
) -> Iterator[Transitions]:
    """The transitions of each gradient step, those of all replays side by side.

    Args:
        policy: prepares observations.
        drawn: from each replay.
        outputs: of a critic, by name; those that are no source have no reward.
        terms: how each source counts.
        goal_rewards: the environment's reward for a goal, which is the first output, and whether the task ends there;
            rewards of other sources for it are not known. None: no goal is taken in hindsight.
    """
    one = max(sum(d.replay.rows("observations")[0].nbytes * d.rows.shape[1] for d in drawn), 1)
    each = max(_GATHERED // one, 1)
    for start in range(0, len(drawn[0].rows), each):
        part = slice(start, start + each)
        yield from _gathered(policy, [d.steps(part) for d in drawn], outputs, terms, goal_rewards)


def _gathered(
    policy: ControlPolicy,
    drawn: Sequence[DrawnRows],
    outputs: Sequence[str],
    terms: Mapping[str, SourceTerms],
    goal_rewards: GoalRewards | None,
) -> Iterator[Transitions]:
    device, encoder = policy.device, policy.encoder

    def column(name: str) -> np.ndarray:
        return _whole([d.replay.rows(name)[d.rows] for d in drawn])

    def prepared(*, before: bool) -> list[Any]:
        if encoder.has_backbone and goal_rewards is None:  # its features were computed when the rows were added
            numbers = _whole([d.replay.features(encoder.numbers)[d.moments(before=before)] for d in drawn])
            return list(encoder.normalised(numbers))
        observations = following if not before else _whole([d.observations(before=True) for d in drawn])
        steps, n = observations.shape[:2]
        x = policy.prepare(observations.reshape(steps * n, *observations.shape[2:]))
        if isinstance(x, Tensor):
            return list(torch.split(x, n))
        parts = {name: torch.split(part, n) for name, part in x.items()}
        return [{name: part[k] for name, part in parts.items()} for k in range(steps)]

    following = _whole([d.observations(before=False) for d in drawn])
    x, next_x = prepared(before=True), prepared(before=False)
    over = _whole([d.replay.terminated(d.rows) for d in drawn])
    if goal_rewards is not None:  # with another goal a reward model ends nothing
        taken = _whole([np.full(d.rows.shape, -1) if d.goals is None else d.goals for d in drawn]) >= 0
        goals = following[ACHIEVED][taken], following[DESIRED][taken]
        over = np.where(taken, column("terminated"), over)
        over[taken] |= goal_rewards.ends(*goals)
    goes_on = 1.0 - over.astype(np.float32)[..., None]
    rewards, known = _paid(drawn, outputs, terms, goes_on.shape[:2])
    if goal_rewards is not None:
        rewards[taken, 0], known[taken, 0] = goal_rewards.rewards(*goals), 1.0
        known[taken, 1 : len(terms)] = 0.0  # models judged the goal that was asked for
    usable = encoder.allowed(following.reshape(-1, *following.shape[2:]))
    allowed: Iterable[Any] = repeat(None)
    if usable is not None:
        allowed = torch.from_numpy(np.ascontiguousarray(usable.reshape(*following.shape[:2], -1))).to(device)
    columns = [torch.from_numpy(one).to(device) for one in (column("actions"), rewards, shares(known), goes_on)]
    return (Transitions(*row) for row in zip(x, next_x, *columns, allowed, strict=False))


def _whole(parts: Sequence[np.ndarray]) -> np.ndarray:
    """What was drawn from several replays, side by side."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _paid(
    drawn: Sequence[DrawnRows], outputs: Sequence[str], terms: Mapping[str, SourceTerms], shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """What each source paid, and 1 where it measured or a failure counts as neutral: (*shape, outputs)."""
    rewards, known = (np.full((*shape, len(outputs)), value, np.float32) for value in (0, 1))
    for h, name in enumerate(outputs):
        if name in terms:
            paid = [d.replay.paid[name][d.rows] for d in drawn]
            rewards[..., h] = _whole([one["reward"] for one in paid])
            if terms[name].on_failure != "neutral":
                known[..., h] = 1.0 - _whole([one["failed"] for one in paid])
    return rewards, known
