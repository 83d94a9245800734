"""Which task every episode plays and how it begins: in turn, or by a curriculum that follows true success.

Two curricula, as in the VLA guide's repository. Over tasks: s is a running mean of a task's success, and the next task
is drawn with p proportional to exp(-(s - 0.5)^2 / tau). Over the starts of a task: r is the share of a start's episodes
that succeeded, its weight is (1 / (|r - 0.5| + 1e-9))^(1 / temp), and no start has less than min_prob / n. Both prefer
what succeeds half of the time, from which a policy learns most.

    starts = Curriculum(["push the cube", "stack the cubes"], names=["push", "stack"], seed=0, over="tasks")
    start = starts.next(0)
    starts.report(start, success=True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from guerdon.compute.generators import STARTING, generator
from guerdon.types import BoolArray, FloatArray, IntArray, Metrics

FRONTIER = 0.5  # the success that both curricula prefer
_LEAST = 1e-9  # distance from it
RECOMPUTED = 10  # episodes after which the probabilities of starts are computed anew


class Start(NamedTuple):
    """How an episode begins.

    Attributes:
        task: its number among the tasks of the world.
        number: of the start, which the environment is reset with; None: drawn by the world's seed.
    """

    task: int
    number: int | None


Result = tuple[int, int | None, bool]
"""The task and the start of an episode that is over, and its true success."""


class Starts(Protocol):
    """Decides how episodes begin."""

    texts: tuple[str, ...]  # the tasks, in words

    def next(self, turn: int) -> Start:
        """The start of the next episode, or group of episodes, which is the `turn`-th."""

    def report(self, start: Start, success: bool) -> None:
        """An episode is over: its true success."""


class Rotation:
    """Every task in turn; each has its starts 0, 1, 2, ..., or starts drawn by the world's seed.

    Args:
        texts: the tasks, in words.
        ordered: starts are numbered.
    """

    def __init__(self, texts: Sequence[str], *, ordered: bool = False) -> None:
        self.texts, self._ordered = tuple(texts), ordered

    def next(self, turn: int) -> Start:
        """The start of the `turn`-th episode."""
        number, task = divmod(turn, len(self.texts))
        return Start(task, number if self._ordered else None)

    def report(self, start: Start, success: bool) -> None:
        """Nothing is learned from it."""


def task_probabilities(success_K: FloatArray, tau: float) -> FloatArray:
    """(K,) p proportional to exp(-(s - 0.5)^2 / tau)."""
    distances = (success_K - FRONTIER) ** 2
    scores: FloatArray = np.exp(-(distances - distances.min()) / tau)  # the nearest has 1: none is lost to underflow
    return np.asarray(scores / scores.sum())


def state_probabilities(rates_N: FloatArray, temp: float, min_prob: float) -> FloatArray:
    """(N,) p proportional to (1 / (|r - 0.5| + 1e-9))^(1 / temp); at least min_prob / N, then normalised again."""
    logs = -np.log(np.abs(rates_N - FRONTIER) + _LEAST) / temp
    weights: FloatArray = np.exp(logs - logs.max())
    floored = np.maximum(weights / weights.sum(), min_prob / len(rates_N))
    return np.asarray(floored / floored.sum())


class Curriculum:
    """Draws tasks, starts, or both by what has succeeded so far; with replacement.

    Args:
        texts: the tasks, in words.
        names: of the tasks, for the log.
        seed: of the run.
        over: what is drawn by success. `states`: starts; tasks come in turn. `tasks`: tasks; starts are drawn by the
            world's seed, or the next ones of the task where they are numbered.
        ema_alpha: share of the old running mean that stays with each result; it begins at 0.5.
        tau: how sharply tasks with a success of one half are preferred.
        states: starts of each task, N.
        temp: how little starts with a success of one half are preferred. A start that was never played counts as one
            that never succeeded.
        min_prob: share of the draws that goes to all starts alike.
        ordered: starts are numbered.
        shard, shards: which part of the copies of a run it serves (`runner.rollout_shards`). A part draws by what all
            parts reported before the rollout, and its own in it; of the numbered starts it has every n-th.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        names: Sequence[str],
        seed: int,
        over: Literal["tasks", "states", "both"],
        ema_alpha: float = 0.99,
        tau: float = 0.02,
        states: int = 50,
        temp: float = 1.0,
        min_prob: float = 0.0,
        ordered: bool = False,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self.texts = tuple(texts)
        self.names = tuple(names)
        self._ordered = ordered
        self._shard, self._shards = shard, shards
        self._over_tasks = over in ("tasks", "both")
        self._over_states = over in ("states", "both")
        self._alpha, self._tau, self._temp, self._min_prob = ema_alpha, tau, temp, min_prob
        self._rng = generator(seed, STARTING)
        self.sampled: IntArray = np.zeros(len(texts), dtype=np.int64)
        self.success: FloatArray = np.full(len(texts), FRONTIER)
        self.episodes: IntArray = np.zeros((len(texts), states), dtype=np.int64)  # reported, of each start
        self.successes: IntArray = np.zeros_like(self.episodes)
        self._reported = 0
        self._state_probabilities = self._of_states()
        self.results: list[Result] = []  # of this part, since `take`; of several parts only
        self._taken = self._learned()  # by the results of all parts

    @property
    def probabilities(self) -> FloatArray:
        """(K,) of drawing each task next."""
        if self._over_tasks:
            return task_probabilities(self.success, self._tau)
        return np.full(len(self.texts), 1.0 / len(self.texts))

    def next(self, turn: int) -> Start:
        """The start of the next episode, or group of episodes, which is the `turn`-th."""
        task = turn % len(self.texts)
        if self._over_tasks:
            task = int(self._rng.choice(len(self.texts), p=self.probabilities))
        number = self._shard + self._shards * int(self.sampled[task]) if self._ordered else None
        if self._over_states:
            number = int(self._rng.choice(self.episodes.shape[1], p=self._state_probabilities[task]))
        self.sampled[task] += 1
        return Start(task, number)

    def report(self, start: Start, success: bool) -> None:
        """An episode is over: its true success."""
        if self._shards > 1:
            self.results.append((start.task, start.number, bool(success)))
        self._learn(start, success)

    def take(self, results: Sequence[Sequence[Result]]) -> None:
        """Learn from the results of all parts since the last time, instead of its own alone.

        Args:
            results: of each part, in order; the same for all of them.
        """
        self._unlearn(self._taken)
        for part in results:
            for task, number, success in part:
                self._learn(Start(task, number), success)
        self.results, self._taken = [], self._learned()

    def _learn(self, start: Start, success: bool) -> None:
        kept = self._alpha * self.success[start.task]
        self.success[start.task] = kept + (1.0 - self._alpha) * float(success)
        if self._over_states and start.number is not None:
            self.episodes[start.task, start.number] += 1
            self.successes[start.task, start.number] += success
            self._reported += 1
            if self._reported % RECOMPUTED == 0:
                self._state_probabilities = self._of_states()

    def metrics(self) -> Metrics:
        """For every task: episodes begun, success, and the probability of being drawn next; starts that were played."""
        found: Metrics = {}
        for k, (name, probability) in enumerate(zip(self.names, self.probabilities.tolist(), strict=True)):
            found[f"curriculum/{name}/sampled"] = int(self.sampled[k])
            if self._over_tasks:
                found[f"curriculum/{name}/success"] = float(self.success[k])
                found[f"curriculum/{name}/probability"] = probability
            if self._over_states:
                played = self.episodes[k] > 0
                rates = self.successes[k][played] / self.episodes[k][played]
                found[f"curriculum/{name}/states_played"] = int(played.sum())
                found[f"curriculum/{name}/state_success"] = float(rates.mean()) if len(rates) else None
        return found

    def state_dict(self) -> dict[str, Any]:
        """Plain values of everything that decides later draws."""
        return {
            "rng": self._rng.bit_generator.state,
            "sampled": self.sampled.tolist(),
            **self._learned(),
            **({} if self._shards == 1 else {"results": list(self.results), "taken": self._taken}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self._rng.bit_generator.state = state["rng"]
        self.sampled = np.array(state["sampled"], dtype=np.int64)
        self._unlearn(state)
        if self._shards > 1:
            self.results = [(task, number, success) for task, number, success in state["results"]]
            self._taken = state["taken"]

    def _learned(self) -> dict[str, Any]:
        """Plain values of what reports have changed."""
        return {
            "success": self.success.tolist(),
            "episodes": self.episodes.tolist(),
            "successes": self.successes.tolist(),
            "reported": self._reported,
            "state_probabilities": self._state_probabilities.tolist(),
        }

    def _unlearn(self, state: Mapping[str, Any]) -> None:
        """Return to such values."""
        self.success = np.array(state["success"], dtype=np.float64)
        self.episodes = np.array(state["episodes"], dtype=np.int64)
        self.successes = np.array(state["successes"], dtype=np.int64)
        self._reported = int(state["reported"])
        self._state_probabilities = np.array(state["state_probabilities"], dtype=np.float64)

    def _of_states(self) -> FloatArray:
        """(K, N) probabilities of the starts of every task."""
        rates = self.successes / np.maximum(self.episodes, 1)
        return np.stack([state_probabilities(one, self._temp, self._min_prob) for one in rates])


class Playing:
    """The starts of the episodes that the copies of a world are in.

    Copies of one group have one start, until all of them begin again together; of their episodes the first is
    reported, as those that follow it are none of the rollout.

    Args:
        starts: decides how episodes begin.
        copies: B.
        group_size: neighbouring copies that begin alike.
        first, among: number of the first copy in the run, and how many copies the run has; by default these.
    """

    def __init__(
        self, starts: Starts, copies: int, group_size: int, *, first: int = 0, among: int | None = None
    ) -> None:
        self.starts, self._group_size = starts, group_size
        self._first, self._among = first // group_size, (copies if among is None else among) // group_size  # groups
        self._now = [Start(0, None)] * copies
        self._once = np.zeros(copies, dtype=np.bool_)  # whether the episode has succeeded
        self._counts = np.ones(copies, dtype=np.bool_)  # whether it is reported

    @property
    def texts(self) -> tuple[str, ...]:
        """The task of each copy, in words."""
        return tuple(self.starts.texts[one.task] for one in self._now)

    @property
    def tasks(self) -> list[int]:
        """The number of each copy's task."""
        return [one.task for one in self._now]

    def number(self, index: int) -> int | None:
        """Of the start of a copy."""
        return self._now[index].number

    def begin_all(self, episodes_B: IntArray) -> None:
        """Every copy begins an episode with this number."""
        size = self._group_size
        groups = len(self._now) // size
        drawn = [self.starts.next(int(episodes_B[g * size]) * self._among + self._first + g) for g in range(groups)]
        self._now = [drawn[i // size] for i in range(len(self._now))]
        self._once[:], self._counts[:] = False, True

    def begin(self, copies_B: BoolArray, episodes_B: IntArray) -> None:
        """Some copies begin their next episodes, with these numbers."""
        if self._group_size == 1:
            for i in np.flatnonzero(copies_B).tolist():
                self._now[i] = self.starts.next(int(episodes_B[i]) * self._among + self._first + i)

    def step(self, success_B: BoolArray, known_B: BoolArray, done_B: BoolArray, failed_B: BoolArray) -> None:
        """Take in a step: true success of the episodes that it ended is reported, where it is known."""
        self._once |= success_B
        for i in np.flatnonzero(done_B & self._counts & (known_B | self._once)).tolist():
            self.starts.report(self._now[i], bool(self._once[i]))
        over = done_B | failed_B
        self._once &= ~over
        if self._group_size > 1:
            self._counts &= ~over

    def state_dict(self) -> dict[str, Any]:
        """Plain values, without those of `starts`."""
        numbers = [-1 if one.number is None else one.number for one in self._now]
        return {"starts": list(zip(self.tasks, numbers, strict=True)), "once": self._once.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored values."""
        self._now = [Start(int(task), None if number < 0 else int(number)) for task, number in state["starts"]]
        self._once = np.array(state["once"], dtype=np.bool_)
