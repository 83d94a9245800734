"""Frames of a rollout that reward models look at, as one `Segment` for every episode.

Each moment is looked at once: after a step of the rollout, or at the first moment of the episode that begins after
that step (step -1 before the rollout's first step). Pictures are drawn when the rollout is over, or earlier by `draw`.

    observed = ObservedFrames(world, [Observes(every=5, first=True)])
    observed.begin(start)
    for t, step in zip(range(250), steps(world, act, start.observations, capture=observed.capture)):
        observed.add(t, step)
    segments = observed.segments(mask_B_T, terminated_B_T, done_B_T, lost_B_T)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from guerdon.collect.continuations import UNREACHED, Continuations
from guerdon.collect.stepping import Step
from guerdon.compute.generators import VIDEOS
from guerdon.types import BoolArray, ByteArray, FloatArray, IntArray, Observes, Segment
from guerdon.worlds.spaces import choices, rgb_of, state_keys, states_of
from guerdon.worlds.transition import Transition
from guerdon.worlds.world import World


class ObservedRow(NamedTuple):
    """One look at one copy of the environment.

    Attributes:
        stream: which copy.
        step: step of the rollout that led here; for a first moment, the step before it (-1 at the very start).
        number: of the episode in this copy.
        row: steps since the episode began; 0 is its first moment.
        last: the terminal moment of the episode.
        success: ground truth at this moment; None where it is unknown.
        look: what the world's eye kept.
        state: (S,) float32, the numbers that the environment shows at that moment.
        action: (A,) float32 that led there; zeros at a first moment.
        steps_left: continuation label, as in `Segment`; nan where there is none.
        views: (H, W, 3) pictures by key, of those that models choose; what is rendered is added when it is drawn.
        picture: (H, W, 3) where it is drawn already.
    """

    stream: int
    step: int
    number: int
    row: int
    last: bool
    success: bool | None
    look: Any = None
    state: FloatArray = np.zeros(0, np.float32)
    action: FloatArray = np.zeros(0, np.float32)
    views: Mapping[str, ByteArray] = MappingProxyType({})
    steps_left: float = np.nan
    picture: ByteArray | None = None

    @property
    def step_inside(self) -> int:
        """A step at or after which the row's episode goes on: its own, or the one after a first moment."""
        return self.step if self.row else self.step + 1


class SeenRows(NamedTuple):
    """F rows of one episode, drawn before the rollout is over.

    Attributes:
        stream, number, task, rows_F, last_F, frames_F, states_F, state_keys, actions_F, action_values, views_F: as in
            `Segment`.
    """

    stream: int
    number: int
    task: str
    rows_F: IntArray
    last_F: BoolArray
    frames_F: ByteArray
    states_F: FloatArray
    state_keys: tuple[tuple[str, int], ...]
    actions_F: FloatArray
    action_values: tuple[int, ...]
    views_F: Mapping[str, ByteArray]


class ObservedFrames:
    """Collects the rows that reward models look at; `segments` draws them and begins the next rollout.

    Args:
        world: what is looked at; its camera draws.
        observes: what each reward model needs.
        continuations: labels rows with an expert's steps to success, where `observes` asks for labels.
        share: of the episodes that are looked at; the first one of all is, whatever the share.
        seed: draws these episodes, by copy and number.
    """

    def __init__(
        self,
        world: World,
        observes: Sequence[Observes],
        continuations: Continuations | None = None,
        *,
        share: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.world, self.observes, self._continuations = world, tuple(observes), continuations
        self._share, self._seed = share, seed
        self._parts = state_keys(world.own_columns), choices(world.action_space) or ()
        self._own_pictures = {c.name for c in world.own_columns if c.kind == "image" and c.name}
        self._named = self._own_pictures | set(world.cameras)
        self._rows: list[ObservedRow] = []
        self._tasks_T: list[tuple[str, ...]] = []  # of the copies, at every step
        self._shown: list[ObservedRow] = []  # those before them

    def capture(
        self, rows_B: IntArray, last_B: BoolArray | None = None, *, numbers_B: IntArray | None = None
    ) -> BoolArray:
        """(B,) bool, whether any reward model looks at the moment after an action.

        Args:
            rows_B: number of the action within its episode.
            last_B: where it ends the episode; None: such moments are looked at for another reason.
            numbers_B: of the episodes; None: those under way.
        """
        wanted = np.zeros(len(rows_B), dtype=np.bool_)
        for o in self.observes:
            wanted |= o.selects(rows_B, last_B)
        return wanted & self._drawn(self.world.episode_ids if numbers_B is None else numbers_B)

    def begin(self, transition: Transition) -> None:
        """Forget what was observed: every copy begins an episode, before the first step of a rollout."""
        self._rows, self._shown, self._tasks_T = [], [], []
        self._add_first(-1, self.world.episode_ids, transition)

    def add(self, t: int, step: Step, over_B: BoolArray | None = None) -> None:
        """Take in step t of the rollout.

        Args:
            t: its number.
            step: taken with looks wherever `capture` asked for one, and at ends.
            over_B: where copies play one episode each: those whose episode was over before the step.
        """
        transition, done = step.transition, step.transition.done
        self._tasks_T.append(step.tasks)
        for i in transition.failures:
            lost = (i, step.numbers[i])
            self._rows = [row for row in self._rows if (row.stream, row.number) != lost]
            self._shown = [row for row in self._shown if (row.stream, row.number) != lost]
        wanted = self.capture(step.rows, done, numbers_B=step.numbers)
        if over_B is not None:
            wanted &= ~over_B
        for i, look in transition.looks.items():
            if wanted[i]:
                row, last, success = int(step.rows[i]), bool(done[i]), transition.success_of(i)
                left = np.nan if last else self._steps_left(i, row, success)
                state, views = self._own(transition.own_final, i)
                action = np.array(step.actions[i], dtype=np.float32)
                self._rows.append(
                    ObservedRow(i, t, int(step.numbers[i]), row, last, success, look, state, action, views, left)
                )
        if over_B is None:  # a copy that resets in a step of its own (NEXT_STEP) already carries the new number
            self._add_first(t, step.numbers + (done | transition.failed), transition)

    def segments(
        self, mask_B_T: BoolArray, terminated_B_T: BoolArray, done_B_T: BoolArray, lost_B_T: BoolArray
    ) -> tuple[Segment, ...]:
        """Draw the rows of a rollout that is over and cut them at the ends of episodes; see `cut_into_segments`."""
        frames = self._pictures(self._rows)
        if self._shown:
            earlier = np.stack([row.picture for row in self._shown if row.picture is not None])
            frames = np.concatenate([earlier, frames])
        rows, self._rows, self._shown = [*self._shown, *self._with_views(self._rows)], [], []
        tasks, self._tasks_T = [*self._tasks_T, self.world.tasks], []
        return cut_into_segments(rows, frames, tasks, mask_B_T, terminated_B_T, done_B_T, lost_B_T, self._parts)

    def draw(self) -> list[SeenRows]:
        """Draw what was observed since the last call; it is part of `segments` all the same.

        Returns:
            The rows of each episode, by copy and number.
        """
        rows, self._rows = self._with_views(self._rows), []
        rows = [row._replace(look=None, picture=frame) for row, frame in zip(rows, self._pictures(rows), strict=True)]
        self._shown += rows
        tasks = [*self._tasks_T, self.world.tasks]
        episodes: dict[tuple[int, int], list[ObservedRow]] = {}
        for row in rows:
            episodes.setdefault((row.stream, row.number), []).append(row)
        return [
            SeenRows(
                stream,
                number,
                tasks[own[0].step_inside][stream],
                np.array([row.row for row in own], dtype=np.int64),
                np.array([row.last for row in own], dtype=np.bool_),
                np.stack([row.picture for row in own if row.picture is not None]),
                **_columns_of(own, *self._parts),
            )
            for (stream, number), own in sorted(episodes.items())
        ]

    def _pictures(self, rows: Sequence[ObservedRow]) -> ByteArray:
        """(N, H, W, 3) of rows that are not drawn yet; of one pixel where nothing needs pictures."""
        if any(o.frames and not self._named.intersection(o.views) for o in self.observes):
            return self.world.render([row.look for row in rows])
        return np.zeros((len(rows), 1, 1, 3), dtype=np.uint8)

    def _with_views(self, rows: Sequence[ObservedRow]) -> list[ObservedRow]:
        """Rows that are not drawn yet, with what cameras show that models choose by name."""
        found = list(rows)
        for name in sorted(self._keys & set(self.world.cameras)):
            views = self.world.render([row.look for row in rows], name)
            found = [row._replace(views={**row.views, name: v}) for row, v in zip(found, views, strict=True)]
        return found

    @property
    def draws(self) -> bool:
        """Whether the world has to draw: models look at more than what the environment itself shows."""
        return any(o.frames and not self._own_pictures.intersection(o.views) for o in self.observes)

    @property
    def _keys(self) -> set[str]:
        """Pictures that models choose by name."""
        return {key for o in self.observes for key in o.views}

    def _own(self, observations_B: np.ndarray, index: int) -> tuple[FloatArray, dict[str, ByteArray]]:
        """The state of a copy, and the pictures that models choose among what its environment shows."""
        row = observations_B[index : index + 1]
        views = {k: rgb_of(row[k], self.world.moments)[0].copy() for k in sorted(self._keys & self._own_pictures)}
        return states_of(row, self.world.own_columns)[0], views

    def _add_first(self, t: int, numbers_B: IntArray, transition: Transition) -> None:
        """Take in the first moments of episodes with these numbers, which begin after step t."""
        if any(o.first for o in self.observes):
            drawn = self._drawn(numbers_B)
            for i, look in transition.first_looks.items():
                if not drawn[i]:
                    continue
                state, views = self._own(transition.own_observations, i)
                none = np.zeros(self.world.action_space.shape or (), dtype=np.float32)
                self._rows.append(ObservedRow(i, t, int(numbers_B[i]), 0, False, False, look, state, none, views))

    def _drawn(self, numbers_B: IntArray) -> BoolArray:
        """(B,) whether the episodes of these numbers are among those that are looked at."""
        if self._share >= 1:
            return np.ones(len(numbers_B), dtype=np.bool_)
        drawn = [_draw(self._seed, i, int(n)) < self._share for i, n in enumerate(numbers_B)]
        drawn[0] |= int(numbers_B[0]) == 0
        return np.array(drawn, dtype=np.bool_)

    def _steps_left(self, stream: int, row: int, success: bool | None) -> float:
        """What an expert needs from where a copy stands now; nan where no label is wanted."""
        if self._continuations is None or not any(o.labels(row, stream) for o in self.observes):
            return np.nan
        if success:
            return 0.0
        state = self.world.save_state(stream)
        if state is None:  # its simulator broke: the next step says that the episode is lost
            return np.nan
        left = self._continuations.steps_left(state)
        return np.inf if left == UNREACHED else left


@lru_cache(maxsize=4096)
def _draw(seed: int, stream: int, number: int) -> float:
    """A number in [0, 1) of an episode."""
    return float(np.random.default_rng([seed, VIDEOS, stream, number]).random())


def cut_into_segments(
    rows: Sequence[ObservedRow],
    frames_N: ByteArray,
    tasks_T: Sequence[Sequence[str]],
    mask_B_T: BoolArray,
    terminated_B_T: BoolArray,
    done_B_T: BoolArray,
    lost_B_T: BoolArray | None = None,
    parts: tuple[tuple[tuple[str, int], ...], tuple[int, ...]] = ((), ()),
) -> tuple[Segment, ...]:
    """Cut a rollout at the ends of episodes and give every stretch its rows.

    Args:
        rows: in order of time within each copy.
        frames_N: their pictures, in the same order.
        tasks_T: the task of each copy, in words, at every step and after the last.
        mask_B_T: False where no step was taken.
        terminated_B_T: the task ended.
        done_B_T: the episode ended.
        lost_B_T: the episode was lost; None: none was.
        parts: `Segment.state_keys` and `Segment.action_values`.

    Returns:
        One segment for every episode that took a step, was looked at or was lost, by copy and time. An episode that
        only just began (a first moment after the last step) has `end < start`.
    """
    if lost_B_T is None:
        lost_B_T = np.zeros_like(done_B_T)
    rows_of: list[list[int]] = [[] for _ in range(len(mask_B_T))]
    for n, row in enumerate(rows):
        rows_of[row.stream].append(n)
    segments = []
    for stream, members in enumerate(rows_of):
        for first, end, moment in _stretches(done_B_T[stream] | lost_B_T[stream]):
            picked = [n for n in members if first <= rows[n].step_inside <= moment]
            taken = np.flatnonzero(mask_B_T[stream, first : end + 1])
            finished = moment == end  # the stretch that goes on has a moment after its last step
            lost = finished and bool(lost_B_T[stream, end])
            if not picked and not len(taken) and not lost:
                continue
            segments.append(
                Segment(
                    stream=stream,
                    task=tasks_T[first][stream],
                    start=first + int(taken[0]) if len(taken) else end + 1,
                    end=end,
                    terminated=finished and bool(terminated_B_T[stream, end]),
                    finished=finished,
                    lost=lost,
                    frames_F=frames_N[picked],
                    **_fields_of([rows[n] for n in picked], parts),
                )
            )
    return tuple(segments)


def _fields_of(
    own: Sequence[ObservedRow], parts: tuple[tuple[tuple[str, int], ...], tuple[int, ...]]
) -> dict[str, Any]:
    """What the rows of one episode say, without pictures of the first camera: fields of `Segment`."""
    left = np.array([row.steps_left for row in own], dtype=np.float32)
    return {
        "number": own[0].number if own else None,
        "steps_F": np.array([row.step for row in own], dtype=np.int64),
        "rows_F": np.array([row.row for row in own], dtype=np.int64),
        "last_F": np.array([row.last for row in own], dtype=np.bool_),
        "success_F": tuple(row.success for row in own),
        "steps_left_F": None if np.isnan(left).all() else left,
        **_columns_of(own, *parts),
    }


def _stretches(ended_T: BoolArray) -> Iterator[tuple[int, int, int]]:
    """First and last step and last moment of each stretch; the unfinished one has a moment after its last step."""
    start = 0
    for end in np.flatnonzero(ended_T).tolist():
        yield start, end, end
        start = end + 1
    yield start, len(ended_T) - 1, len(ended_T)


def _columns_of(
    own: Sequence[ObservedRow], keys: tuple[tuple[str, int], ...], values: tuple[int, ...]
) -> dict[str, Any]:
    """What rows of one episode show besides the pictures of the first camera: fields of `Segment` and of `SeenRows`."""
    columns: dict[str, Any] = {
        "states_F": np.zeros((0, 0), np.float32),
        "state_keys": keys,
        "actions_F": np.zeros((0, 0), np.float32),
        "action_values": values,
        "views_F": {},
    }
    if own:
        columns["states_F"] = np.stack([row.state for row in own])
        columns["actions_F"] = np.stack([row.action for row in own])
        for name in own[0].views:
            columns["views_F"][name] = np.stack([row.views[name] for row in own])
    return columns
