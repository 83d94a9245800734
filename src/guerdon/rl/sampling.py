"""Transitions of a replay as gradient steps take them, and goals in hindsight.

drawn = [DrawnRows(replay, rows_U_n)]
drawn = [in_hindsight(one, rng, share=0.8, strategy="future") for one in drawn]
for batch in gathered(policy, drawn, ("env", "entropy"), terms): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from guerdon.errors import ConfigError
from guerdon.policies.robots.control import ControlPolicy
from guerdon.rewards.source import SourceTerms
from guerdon.rl.replay import Replay, info_column
from guerdon.types import BoolArray, FloatArray, IntArray

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
_GATHERED = 1 << 26  # bytes of observations that are gathered at a time


Infos = Mapping[str, np.ndarray]
"""Values of `info` by name, (N, ...) each."""
NO_INFO: Infos = MappingProxyType({})
ENOUGH = 5
"""Real transitions that reached a goal and ended the task, from which on goals in hindsight end it."""


@dataclass(eq=False)
class GoalRewards:
    """Rewards and ends of the environment for (N, ...) achieved and (N, ...) desired goals.

    Attributes:
        rewards: (N,) of the goals, and of what is kept of their infos.
        own_ends: (N,) bool, whether the task ends there; None: the environment does not say so.
        names: of the values of `info` that are kept.
        near: goals that differ from the achieved ones by what rounding may change.
        reached_over, reached_on: real transitions that paid what a reached goal pays, and ended the task, or did not.
    """

    rewards: Callable[..., FloatArray]
    own_ends: Callable[[np.ndarray, np.ndarray, Infos], BoolArray] | None
    names: tuple[str, ...] = ()
    near: Callable[[np.ndarray, np.ndarray], Sequence[np.ndarray]] = lambda achieved, desired: ()
    reached_over: int = 0
    reached_on: int = 0

    def ends(self, achieved_N: np.ndarray, desired_N: np.ndarray, infos: Infos = NO_INFO) -> BoolArray:
        """(N,) whether the task ends: by the environment, or as it always did where a goal was reached."""
        if self.own_ends is not None:
            return self.own_ends(achieved_N, desired_N, infos)
        if self.reached_over < ENOUGH or self.reached_on:
            return np.zeros(len(achieved_N), np.bool_)
        return self._reached(self.rewards(achieved_N, desired_N, infos), desired_N, infos)

    def infos(self, replay: Replay, rows: IntArray) -> Infos:
        """What is kept of these rows."""
        return {name: replay.rows(info_column(name))[rows] for name in self.names}

    def check(self, replay: Replay, rows: IntArray) -> None:
        """Compare real transitions with what the environment says of their goals, and count those that reached one.

        Raises:
            ConfigError: a reward, or the end of the task, is another one.
        """
        if not len(rows):
            return
        shown, infos = replay.observations(rows), self.infos(replay, rows)
        achieved, desired = shown[ACHIEVED], shown[DESIRED]
        paid, ended = replay.paid["env"]["reward"][rows], replay.rows("terminated")[rows]
        wrong = self._differ(paid, achieved, desired, infos, lambda goals: self.rewards(goals, desired, infos))
        if wrong is not None:
            at, found = wrong
            raise ConfigError(
                f"algorithm.goal_relabelling: a step paid {paid[at]:g}, and compute_reward of its goals is {found:g}, "
                "so that rewards for other goals would not be those of the environment: name what it reads of info in "
                "algorithm.keep_info, or give the wrapper that changes rewards or goals a compute_reward of its own",
                key="algorithm.goal_relabelling",
            )
        if self.own_ends is not None:
            ends = self.own_ends
            wrong = self._differ(ended, achieved, desired, infos, lambda goals: ends(goals, desired, infos))
            if wrong is not None:
                at, _ = wrong
                said = "ended" if ended[at] else "did not end"
                raise ConfigError(
                    f"algorithm.goal_relabelling: a step {said} the task, and compute_terminated of its goals says "
                    "otherwise: name what it reads of info in algorithm.keep_info, or give the wrapper that changes "
                    "ends a compute_terminated of its own",
                    key="algorithm.goal_relabelling",
                )
            return
        reached = self._reached(paid, achieved, infos)
        self.reached_over += int((reached & ended).sum())
        self.reached_on += int((reached & ~ended).sum())

    def _differ(
        self,
        real: np.ndarray,
        achieved: np.ndarray,
        desired: np.ndarray,
        infos: Infos,
        of: Callable[[np.ndarray], np.ndarray],
    ) -> tuple[int, float] | None:
        """The first row whose number is another one, also up to the rounding of goals, and that number."""
        found = of(achieved)
        wrong = ~_alike(real, found)
        for goals in self.near(achieved, desired) if wrong.any() else ():
            wrong &= ~_alike(real, of(goals))
        if not wrong.any():
            return None
        at = int(wrong.argmax())
        return at, float(found[at])

    def _reached(self, paid: np.ndarray, goals: np.ndarray, infos: Infos) -> BoolArray:
        """Where what was paid is what a goal pays that is achieved."""
        return _alike(paid, self.rewards(goals, goals, infos))


def _alike(some: np.ndarray, others: np.ndarray) -> BoolArray:
    close = np.isclose(np.asarray(some, np.float64), np.asarray(others, np.float64), rtol=1e-3, atol=1e-5)
    return np.asarray(close)


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
        own: the first so many are drawn from the whole run; those after them are demonstrations, and steps of the run
            that somebody else decided.
    """

    x: Any
    next_x: Any
    actions: Tensor
    rewards: Tensor
    share: Tensor
    goes_on: Tensor
    allowed: Tensor | None = None
    own: int | None = None


class DrawnRows(NamedTuple):
    """Rows of a replay for U gradient steps.

    Attributes:
        replay: that has them.
        rows: (U, n) rows.
        goals: (U, n) rows whose achieved goal is taken for the desired one, -1 where it is not; None: nowhere.
        shown: somebody else than the policy decided all of these steps.
    """

    replay: Replay
    rows: IntArray
    goals: IntArray | None = None
    shown: bool = False

    def steps(self, part: slice) -> DrawnRows:
        """Those of some gradient steps."""
        return self._replace(rows=self.rows[part], goals=None if self.goals is None else self.goals[part])

    def moments(self, *, before: bool) -> IntArray:
        """(U, n) rows before or after the actions."""
        return self.replay.rows("before")[self.rows] if before else self.rows

    def observations(self, *, before: bool) -> np.ndarray:
        """(U, n, ...) before or after the actions, with the goals that are taken."""
        found = self.replay.observations(self.moments(before=before))
        if self.goals is not None:
            there = self.goals >= 0
            found[DESIRED][there] = self.replay.observations(self.goals[there])[ACHIEVED]
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
    one = max(sum(d.replay.observation_bytes * d.rows.shape[1] for d in drawn), 1)
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
        infos = _infos(drawn, goal_rewards, taken)
        over[taken] |= goal_rewards.ends(*goals, infos)
    goes_on = 1.0 - over.astype(np.float32)[..., None]
    rewards, known = _paid(drawn, outputs, terms, goes_on.shape[:2])
    if goal_rewards is not None:
        rewards[taken, 0], known[taken, 0] = goal_rewards.rewards(*goals, infos), 1.0
        known[taken, 1 : len(terms)] = 0.0  # models judged the goal that was asked for
    usable = encoder.allowed(following.reshape(-1, *following.shape[2:]))
    allowed: Iterable[Any] = repeat(None)
    if usable is not None:
        allowed = torch.from_numpy(np.ascontiguousarray(usable.reshape(*following.shape[:2], -1))).to(device)
    columns = [torch.from_numpy(one).to(device) for one in (column("actions"), rewards, shares(known), goes_on)]
    own = sum(d.rows.shape[1] for d in drawn if not d.shown)
    return (Transitions(*row) for row in zip(x, next_x, *columns, allowed, repeat(own), strict=False))


def _infos(drawn: Sequence[DrawnRows], goal_rewards: GoalRewards, taken: BoolArray) -> Infos:
    """What is kept of the infos of the transitions whose goal is another one."""
    each = [goal_rewards.infos(d.replay, d.rows) for d in drawn]
    return {name: _whole([one[name] for one in each])[taken] for name in goal_rewards.names}


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
            if terms[name].over:  # its output has no loss
                known[..., h] = 0.0
            elif terms[name].on_failure != "neutral":
                known[..., h] = 1.0 - _whole([one["failed"] for one in paid])
    return rewards, known
