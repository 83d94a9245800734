"""The stepping loop: a policy acts in copies of an environment, one record per step of all copies.

Training rollouts, evaluation, videos, collected episodes and an expert's continuations all go through `steps`. A policy
that decides on several actions at once acts through an `ActionQueue`.

    for step in steps(world, act, world.reset().observations):
        step.actions, step.transition.rewards
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from guerdon.collect.episode_capture import Recorder
from guerdon.errors import ConfigError, SimulatorError
from guerdon.policies.robots.robot import Action
from guerdon.processes.progress import log_line, timed
from guerdon.types import BoolArray, FloatArray, IntArray, Segment
from guerdon.worlds.spaces import choices, rgb_of, state_keys, states_of
from guerdon.worlds.transition import FramesDue, Transition
from guerdon.worlds.world import World

VIDEO_LIMIT = 10_000  # steps after which a video of an episode that does not end is cut
VIDEO_SECONDS = 20.0  # of drawing, after which only the end of the episode is added to a video


class Step(NamedTuple):
    """One step of all B copies.

    Attributes:
        observations: (B, ...) what was acted on.
        actions: (B, A) that were executed: what the policy gave, within the bounds of the action space.
        rows: (B,) number of the action within its episode, from 1.
        numbers: (B,) of the episode within its copy, before the step.
        tasks: of the copies, in words, before the step.
        transition: what the actions led to.
    """

    observations: np.ndarray
    actions: np.ndarray
    rows: IntArray
    numbers: IntArray
    tasks: tuple[str, ...]
    transition: Transition


class ActionQueue:
    """An action per step for every copy of a world, from decisions of C actions.

    A decision is due for a copy whose actions are used up and at the first moment of an episode: what the last episode
    left is dropped. All copies where one is due are decided for together, in their order. A copy that resets in a step
    of its own, or rests, has no action and gets zeros.

    Args:
        world: that the actions are for.
        decide: (n, ...) observations, of the copies where a decision is due, to n decisions.
        chunk: C.
        horizon: steps after which every copy is decided for anew; None: never.
        frames_of_ends: the last observation of an episode that a time limit ended is needed, too (a critic's).

    Attributes:
        resting: (B,) bool, copies that need no actions any more; the caller sets it.
        once: (B,) bool, copies that rest as soon as their episode ends; the caller sets it.
        due: (B,) bool, where the last call decided.
        slots: (B,) which of their decision's actions the last call gave, -1 where it gave none.
        record: (n, ...) of the decisions of the last call, for `RobotPolicy.evaluate`; None where it made none.
    """

    def __init__(
        self,
        world: World,
        decide: Callable[[np.ndarray], Action],
        chunk: int,
        *,
        horizon: int | None = None,
        frames_of_ends: bool = False,
    ) -> None:
        self._world, self._decide, self._chunk = world, decide, chunk
        self._horizon, self._frames_of_ends = horizon, frames_of_ends
        space, b = world.action_space, world.num_envs
        self._actions = np.zeros((b, chunk, *(space.shape or ())), dtype=np.float32)
        self._used = np.full(b, chunk)
        self._calls = 0
        self.resting = np.zeros(b, dtype=np.bool_)
        self.once = np.zeros(b, dtype=np.bool_)
        self.due = self.resting
        self.slots: IntArray = np.full(b, -1)
        self.record: np.ndarray | None = None

    def __call__(self, observations_B: np.ndarray) -> FloatArray:
        """(B, A) actions; `observations_B` are read where a decision is due.

        Raises:
            ConfigError: a decision has another shape.
        """
        acting = ~(self._world.resetting | self.resting)
        self.due = acting & ((self._used >= self._chunk) | (self._world.steps_in_episode == 0))
        self.record = None
        if self.due.any():
            action = self._decide(observations_B[self.due])
            self._actions[self.due] = self._checked(action.values)
            self.record = action.values if action.record is None else action.record
            self._used[self.due] = 0
        self.slots = np.where(acting, self._used, -1)
        taken = self._actions[np.arange(len(acting)), np.minimum(self._used, self._chunk - 1)]
        self._used += acting
        self._calls += 1
        if self._calls == self._horizon:
            self._used[:] = self._chunk
        return np.where(acting.reshape(-1, *[1] * (taken.ndim - 1)), taken, np.float32(0))

    def frames_due(self) -> FramesDue:
        """Where the next call decides after the coming step."""
        last = self.once & ~self._world.resetting  # episodes under way that no other follows
        return FramesDue(~self.resting & (self._used >= self._chunk), ~(self.resting | last), self._frames_of_ends)

    def _checked(self, values: np.ndarray) -> np.ndarray:
        count, actions = int(self.due.sum()), self._actions.shape[1:]
        wanted = (count, *actions) if self._chunk > 1 else (count, *actions[1:])
        if values.shape != wanted:
            raise ConfigError(
                f"the policy's act gave values of shape {values.shape} for {count} observations; with chunk "
                f"{self._chunk} they have shape {wanted}"
            )
        return values.reshape(count, *actions)


def steps(
    world: World,
    act: Callable[[np.ndarray], np.ndarray],
    observations_B: np.ndarray,
    *,
    capture: Callable[[IntArray], BoolArray] | None = None,
    frames: Callable[[], FramesDue] | None = None,
) -> Iterator[Step]:
    """Act without end; the caller stops.

    Args:
        world: stepped once for each record.
        act: (B, ...) observations to (B, A) actions.
        observations_B: what the copies show now.
        capture: (B,) numbers of the actions within their episodes to (B,) bool, whether to look at the moment after
            each; terminal moments and the first ones of new episodes are looked at, too. None: nothing is.
        frames: where the next observations need the frames of `ObservationSpec`; None: everywhere, or where an
            `ActionQueue` decides next.
    """
    if frames is None and isinstance(act, ActionQueue):
        frames = act.frames_due
    while True:
        rows, numbers, tasks = world.steps_in_episode + 1, world.episode_ids, world.tasks
        actions = act(observations_B)  # before `capture`, which may depend on what it decided
        wanted = None if capture is None else capture(rows)
        transition = world.step(
            actions,
            capture=wanted,
            capture_ends=capture is not None,
            frames=None if frames is None else frames(),
        )
        yield Step(observations_B, transition.actions, rows, numbers, tasks, transition)
        observations_B = transition.observations


def evaluate(
    world: World,
    act: Callable[[np.ndarray], np.ndarray],
    *,
    episodes: int,
    recorder: Recorder | None = None,
    max_steps: int | None = None,
    first: int = 0,
) -> dict[str, float]:
    """Run episodes from the world's own starts and report true success; no reward model is used.

    Every copy contributes its first episodes in turn, so that short episodes are not over-represented.

    Args:
        world: it is reset, and its resets are decided by its seed.
        act: (B, ...) observations to (B, A) actions, or an `ActionQueue`; an evaluation takes the most likely ones.
        episodes: how many; rounded up to a multiple of the copies.
        recorder: records exactly the episodes that count.
        max_steps: gives up on an environment that never ends an episode; None: 100,000, or enough for its guard.
        first: number of the first episode of each copy, which decides how it starts.

    Returns:
        `success` (share of episodes with success at any step), `success_at_end`, `return/env` (mean), `length`
        (mean), `episodes` and `success_known`: of how many of them the environment reported success, and over which
        the shares are taken. A share of none is absent. `episodes_failed`, where there were any: episodes that a broken
        simulator cut off; they begin again as often as the world tries, and are left out after that. Resets that failed
        count as such, and the episode begins with the next seed. `episodes_intervened`, where there were any: somebody
        else acted in them, so their success and return are not the policy's and are left out. `episodes_at_guard`:
        that only `World.guard` ended.
    """
    per_copy = -(-episodes // world.num_envs)
    guard = world.guard or 0
    max_steps = max_steps or max(100_000, per_copy * (guard + 1))
    world.rewind(first)
    start = world.reset(capture=np.full(world.num_envs, recorder is not None))
    tally = _Tally(world, per_copy, lost=len(start.failed_resets))
    capture = None
    if recorder is not None:
        recorder.begin_all(start)
        capture = recorder.wants
    if isinstance(act, ActionQueue):
        act.once[:] = per_copy == 1
    for step, _ in zip(steps(world, act, start.observations, capture=capture), range(max_steps), strict=False):
        if recorder is not None:
            recorder.watch(step.rows, step.actions, step.transition)
        tally.add(step)
        complete = tally.finished >= per_copy
        if isinstance(act, ActionQueue):
            act.resting, act.once = complete, tally.finished >= per_copy - 1
        if recorder is not None:
            recorder.begin_all(step.transition, skip_B=complete)
        if complete.all():
            break
    if tally.guarded:
        log_line(
            f"[eval] {tally.guarded} of {len(tally.results)} episodes were cut after {guard:,} steps: the environment "
            "has no time limit and ended none of them; set env.max_episode_steps"
        )
    left_out = {"episodes_failed": tally.lost, "episodes_intervened": tally.intervened}
    return _means(tally.results, {**left_out, "episodes_at_guard": tally.guarded})


class _Tally:
    """The episodes of an evaluation: what each copy of a world has reached in the one under way, and those that ended.

    Args:
        world: whose copies act.
        per_copy: the first episodes of each copy count.
        lost: episodes that broke before the first step.

    Attributes:
        finished: (B,) episodes of each copy that have ended or are left out.
        results: success at any step and at the end (None: unknown), return and length of those that count.
        lost: episodes that a broken simulator cut off, or did not begin.
        intervened: those in which somebody else acted.
        guarded: those that only the world's guard ended.
    """

    def __init__(self, world: World, per_copy: int, *, lost: int) -> None:
        self.world, self.per_copy, self.lost = world, per_copy, lost
        self.finished = np.zeros(world.num_envs, dtype=np.int64)
        self.results: list[tuple[bool | None, bool | None, float, int]] = []
        self.intervened = self.guarded = 0
        self._once, self._helped = np.zeros((2, world.num_envs), dtype=np.bool_)
        self._total = np.zeros(world.num_envs)
        self._length = np.zeros(world.num_envs, dtype=np.int64)

    def add(self, step: Step) -> None:
        """Count a step of all copies, and the episodes that end with it."""
        transition = step.transition
        self._once |= transition.success
        self._helped |= transition.intervened
        self._total += transition.rewards
        self._length += transition.mask
        for copy, _ in transition.failed_resets:
            self.lost += bool(self.finished[copy] + transition.done[copy] < self.per_copy)
        for copy in transition.failures:
            self.lost += bool(self.finished[copy] < self.per_copy)
            begins_again = self.world.episode_ids[copy] <= step.numbers[copy]
            self._clear(copy, ended=not begins_again)
        for copy in np.flatnonzero(transition.done).tolist():
            if self.finished[copy] < self.per_copy:
                self._count(copy, transition)
            self._clear(copy, ended=True)

    def _count(self, copy: int, transition: Transition) -> None:
        """Take the result of an episode, or count why it is left out."""
        self.guarded += bool(self.world.guarded[copy])
        if self._helped[copy]:
            self.intervened += 1
            return
        at_end = transition.success_of(copy)
        once = True if self._once[copy] else at_end
        self.results.append((once, at_end, float(self._total[copy]), int(self._length[copy])))

    def _clear(self, copy: int, *, ended: bool) -> None:
        """Begin an episode of a copy, the next one where the last has ended."""
        self._once[copy], self._helped[copy], self._total[copy], self._length[copy] = False, False, 0.0, 0
        self.finished[copy] += ended


def _means(
    results: Sequence[tuple[bool | None, bool | None, float, int]], left_out: Mapping[str, int]
) -> dict[str, float]:
    """What `evaluate` returns, of the results of episodes and the numbers of those that are left out."""
    found: dict[str, float] = {name: float(count) for name, count in left_out.items() if count}
    if not results:
        return {**found, "episodes": 0.0}
    for k, name in enumerate(("success", "success_at_end", "return/env", "length")):
        known = [value for row in results if (value := row[k]) is not None]
        if known:
            found[name] = float(np.mean(known))
    found["success_known"] = float(sum(row[0] is not None for row in results))
    return {**found, "episodes": float(len(results))}


@dataclass(eq=False)
class _VideoEpisode:
    """The episode of a video while it is played: every row in numbers, and a look at some rows.

    Attributes:
        task: in words.
        own: (1, ...) of each row, as the environment itself shows it.
        actions: (A,) that led to each row.
        rewards: the environment's own, for the step to each row.
        success: of each row; None where it is unknown.
        looks: rows that were looked at, and what was seen.
        first_success: its row; 0: there was none.
        every: a row in so many is looked at.
        seconds: of looking.
    """

    task: str
    own: list[np.ndarray]
    actions: list[np.ndarray]
    rewards: list[float]
    success: list[bool | None]
    looks: dict[int, Any]
    first_success: int = 0
    every: int = 1
    seconds: dict[str, float] = field(default_factory=lambda: {"look": 0.0})

    def add(self, row: int, step: Step) -> None:
        """The row that a step led to."""
        transition = step.transition
        self.own.append(transition.own_final[:1])
        self.actions.append(np.array(step.actions[0], dtype=np.float32))
        self.rewards.append(float(transition.rewards[0]))
        self.success.append(transition.success_of(0))
        if transition.success[0] and not self.first_success:
            self.first_success = row

    def look(self, row: int, eye: Any) -> None:
        """Look at a row in the middle of the episode, where it is due."""
        due = row % self.every == 0 and self.seconds["look"] < VIDEO_SECONDS
        needed = row in (self.first_success, VIDEO_LIMIT)
        if (due or needed) and eye is not None:
            with timed(self.seconds, "look"):
                self.looks[row] = eye.look(0)

    def thin_out(self) -> None:
        """From now on look at half as many rows, and forget those between."""
        self.every *= 2
        self.looks = {
            row: look for row, look in self.looks.items() if row % self.every == 0 or row == self.first_success
        }


def video(world: World, act: Callable[[np.ndarray], np.ndarray], *, frames: int) -> tuple[Segment, FloatArray]:
    """One episode in copy 0: about `frames` evenly spaced moments, with the first success among them.

    The length of the episode is not known before its end, so every k-th moment is looked at, with k doubled whenever
    twice as many as wanted are kept. After `VIDEO_SECONDS` of looking only the first success and the end are added.

    Returns:
        The moments, and (F,) the environment's own reward for the step to each (0 at the start).
    """
    episode, last = _played(world, act, frames)
    end = len(episode.own) - 1
    pick = _spread(sorted(episode.looks), frames, episode.first_success)
    looks = [episode.looks[i] for i in pick]
    shown = np.concatenate(episode.own)[pick]
    views = {}
    for column in world.own_columns:
        if column.kind == "image" and column.name:
            views[column.name] = rgb_of(shown[column.name], world.moments)
    for camera in world.cameras[1:]:
        views[camera] = world.render(looks, camera)
    moments = Segment(
        stream=0,
        number=0,
        task=episode.task,
        start=0,
        end=end - 1,
        terminated=bool(last.terminated[0]),
        finished=bool(last.done[0]),
        steps_F=pick - 1,
        rows_F=pick,
        last_F=(pick == end) & last.done[0],
        success_F=tuple(episode.success[i] for i in pick),
        frames_F=world.render(looks),
        states_F=states_of(shown, world.own_columns),
        state_keys=state_keys(world.own_columns),
        actions_F=np.stack(episode.actions)[pick],
        action_values=choices(world.action_space) or (),
        views_F=views,
    )
    return moments, np.array(episode.rewards, dtype=np.float32)[pick]


def _played(world: World, act: Callable[[np.ndarray], np.ndarray], frames: int) -> tuple[_VideoEpisode, Transition]:
    """Play the episode of a video in copy 0; what was seen of it, and its last step."""
    world.rewind()
    only = np.arange(world.num_envs) == 0
    if isinstance(act, ActionQueue):
        act.resting, act.once = ~only, only
    start = world.reset(capture=only)
    no_action = np.zeros(world.action_space.shape or (), dtype=np.float32)
    episode = _VideoEpisode(
        world.tasks[0], [start.own_observations[:1]], [no_action], [0.0], [False], {0: start.first_looks[0]}
    )
    for row, step in enumerate(steps(world, act, start.observations, capture=lambda rows: only & False), start=1):
        transition = step.transition
        if 0 in transition.failures:
            raise SimulatorError(f"the simulator broke during the episode of a video ({transition.failures[0]})")
        episode.add(row, step)
        if transition.done[0]:
            episode.looks[row] = transition.looks[0]
            break
        episode.look(row, world.eye)
        if len(episode.looks) > 2 * frames:
            episode.thin_out()
        if row == VIDEO_LIMIT:
            log_line(f"video: the episode did not end within {row} steps, and the video ends there")
            break
    if episode.seconds["look"] >= VIDEO_SECONDS:
        last = max(r for r in episode.looks if r < row)
        log_line(f"video: drawing took {VIDEO_SECONDS:g} s up to step {last} of {row}; the rest but the end is omitted")
    return episode, transition


def _spread(kept: Sequence[int], frames: int, first: int) -> IntArray:
    """About `frames` of the rows that were looked at, evenly spaced, with the last one, and `first` where it is not 0.

    Args:
        kept: rows in ascending order, from 0 to the last.
        frames: how many.
        first: the row of the first success.
    """
    spaced = np.linspace(0, kept[-1], min(frames, kept[-1] + 1)).round()
    nearest = np.abs(np.array(kept)[:, None] - spaced).argmin(axis=0)
    return np.unique([*np.array(kept)[nearest], *([first] if first else [])])
