"""A rollout in shards: parts that are collected apart, each with copies or prompts and random numbers of its own.

`runner.rollout_shards` is part of what decides a run's numbers. Who collects the shards is not: one process after
another, or the collectors of a cluster. Each shard has a collector of its own kind; their rollouts are joined in order.

    collector = ShardedCollector([ControlCollector(...), ControlCollector(..., shard=1)], join_control)
    rollout = collector.collect(policy)  # the streams of the first shard, then those of the second
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from guerdon.collect.rollout_progress import PartsProgress, reported_to
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import CheckpointError
from guerdon.policies.robots.robot import ControlInputs
from guerdon.processes.clock import counted
from guerdon.types import BoolArray, Chunks, Episode, Failure, FloatArray, Metrics, Rollout, Segment

State = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and JSON-able values of a collector."""

Share = Callable[[Sequence[State]], Mapping[str, Any]]
"""From the states of all shards, in order, to arguments of `collect`: what each learns from the others."""

Join = Callable[[Sequence[Rollout[Any]]], Rollout[Any]]
"""The rollouts of all shards, in order, as one."""


class ShardedCollector:
    """The shards of a rollout in this process, one after another.

    Evaluations and videos are those of the first shard.

    Args:
        collectors: of the shards, in order.
        join: makes one rollout of theirs.
        share: what they learn from each other before a rollout; None: nothing.
        writer: of the episodes that they record; None: they record none.
    """

    def __init__(
        self,
        collectors: Sequence[Any],
        join: Join,
        share: Share | None = None,
        writer: EpisodeWriter | None = None,
    ) -> None:
        self.collectors, self._join, self._share, self._writer = tuple(collectors), join, share, writer
        self._count = len(collectors)

    def policy_shape(self) -> Any:
        """What a policy of the environment must fit."""
        return self._run("policy_shape", [0])[0]

    def evaluate(self, policy: Any, *, episodes: int, **given: Any) -> dict[str, float]:
        """True success, by the first shard: see `Collector.evaluate`."""
        found: dict[str, float] = self._run("evaluate", [0], policy, episodes=episodes, **given)[0]
        return found

    def show(self, policy: Any, **given: Any) -> Any:
        """What the collector of the first shard has to show for the report."""
        return self._run("show", [0], policy, **given)[0]

    def collect(self, policy: Any, *, version: int = 0, warm_up: bool = False) -> Rollout[Any]:
        """The next rollout: see `Collector.collect`."""
        shared = {} if self._share is None or self._count == 1 else self._share(self._states())
        found = self._run("collect", range(self._count), policy, version=version, warm_up=warm_up, **shared)
        return self._join([found[shard] for shard in range(self._count)])

    def state(self) -> State:
        """The states of all shards."""
        if self._writer is not None:
            self._writer.flush()
        return packed(self._states())

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Return to a stored state."""
        for one, state in zip(self.collectors, unpacked(tensors, values, self._count), strict=True):
            one.restore(*state)

    def close(self) -> None:
        """Close all shards."""
        for one in self.collectors:
            one.close()
        if self._writer is not None:
            self._writer.close()

    def _states(self) -> list[State]:
        return [one.state() for one in self.collectors]

    def _run(self, name: str, shards: Sequence[int], policy: Any = None, **given: Any) -> dict[int, Any]:
        """What a method of the collectors of these shards returns, by shard; the episodes they recorded are written."""
        acting = () if policy is None else (policy,)
        found, progress = {}, PartsProgress()
        for shard in shards:
            with reported_to(partial(progress.take, shard)):
                found[shard] = getattr(self.collectors[shard], name)(*acting, **given)
        if self._writer is not None:
            write_recorded(self._writer, [one.recorded() for one in self.collectors])
        return found


def write_recorded(writer: EpisodeWriter, recorded: Iterable[Sequence[Episode]]) -> None:
    """Write the episodes of all shards, in order, but for those that were written before a kill."""
    for own in recorded:
        for episode in own:
            if episode.id not in writer:
                writer.add(episode)


def packed(states: Sequence[State]) -> State:
    """The states of all shards as one; that of a single shard as it is."""
    if len(states) == 1:
        return states[0]
    tensors = {f"{k}.{name}": tensor for k, (own, _) in enumerate(states) for name, tensor in own.items()}
    return tensors, {"shards": [values for _, values in states]}


def unpacked(tensors: Mapping[str, Tensor], values: Mapping[str, Any], count: int) -> list[State]:
    """The states that `packed` made one of.

    Raises:
        CheckpointError: they are of another number of shards.
    """
    if count == 1:
        return [(dict(tensors), dict(values))]
    if len(values.get("shards", ())) != count:
        raise CheckpointError(f"the checkpoint is not of a run with runner.rollout_shards {count}")
    parts: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for name, tensor in tensors.items():
        shard, _, own = name.partition(".")
        parts[int(shard)][own] = tensor
    return list(zip(parts, values["shards"], strict=True))


def share_results(states: Sequence[State]) -> dict[str, Any]:
    """What the curricula of all shards (`env.use_curriculum`) have seen since the last rollout, for `collect`."""
    return {"results": [values["curriculum"]["results"] for _, values in states]}


Weights = dict[str, Tensor]


class _Pending(NamedTuple):
    """A rollout that was begun, or will be: the weights that collect it, and what comes of it."""

    weights: Weights
    version: int
    found: Future[tuple[Rollout[Any], State]]


class AheadCollector:
    """A collector that is always some rollouts ahead of the learner: they are collected while it updates.

    With `runner.max_staleness` s, rollout k is collected by the weights after k - s updates (the first ones by those of
    the start). Which weights collect which rollout does not depend on how fast anything is, so that a run repeats bit
    for bit. One thread collects, one rollout after another; the world is made in it and never used in another one.
    Evaluations and videos wait for the rollouts that were begun.

    Args:
        build: makes the collector that acts. It gets weights, never the policy that learns.
        staleness: updates between the weights that collect a rollout and those that learn from it, at least 1.
    """

    def __init__(self, build: Callable[[], Any], *, staleness: int) -> None:
        self._staleness = staleness
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="guerdon.collect.shards")
        self._collector = self._thread.submit(build).result()
        self._pending: deque[_Pending] = deque()
        self._state: State | None = None  # after the last rollout that was handed over

    def policy_shape(self) -> Any:
        """What a policy of the environment must fit."""
        return self._call("policy_shape")

    def collect(self, policy: Any, *, version: int = 0, warm_up: bool = False) -> Rollout[Any]:
        """The oldest rollout that was not learned from yet; others are begun with the policy as it is now.

        Its metric `staleness` is the number of updates since the weights that collected it. Its `seconds` are those
        that the caller waited.

        Args:
            policy: what acts, some rollouts from now.
            version: of its weights.
            warm_up: only reward models learn from it; such rollouts are collected at once, before all others.
        """
        start = perf_counter()
        if warm_up:
            with counted("wait"):
                rollout, self._state = self._thread.submit(self._collected, policy.tensors(), version, warm_up).result()
            return replace(rollout, seconds={"wait": perf_counter() - start})
        with counted("weights"):
            weights = policy.tensors()
        while len(self._pending) <= self._staleness:
            self._begin(weights, version)
        with counted("wait"):
            rollout, self._state = self._pending.popleft().found.result()
        metrics = {**rollout.metrics, "staleness": float(version - rollout.version)}
        return replace(rollout, metrics=metrics, seconds={"wait": perf_counter() - start})

    def evaluate(self, policy: Any, *, episodes: int, **given: Any) -> dict[str, float]:
        """True success: see `Collector.evaluate`."""
        found: dict[str, float] = self._call("evaluate", policy.tensors(), episodes=episodes, **given)
        return found

    def show(self, policy: Any, **given: Any) -> Any:
        """What the collector has to show for the report."""
        return self._call("show", policy.tensors(), **given)

    def state(self) -> State:
        """The state after the last rollout that was handed over, and the weights that collect those under way.

        A run that goes on from there collects these again.
        """
        tensors, values = self._call("state") if self._state is None else self._state
        known = {one.version: one.weights for one in self._pending}
        held = {f"weights.{version}.{name}": t for version, own in known.items() for name, t in own.items()}
        under = {f"collector.{name}": tensor for name, tensor in tensors.items()}
        return {**under, **held}, {"collector": values, "versions": [one.version for one in self._pending]}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Return to a stored state, and begin the rollouts that were under way.

        Raises:
            CheckpointError: it is of a run without `runner.max_staleness`.
        """
        if "versions" not in values:
            raise CheckpointError("the checkpoint is not of a run with runner.max_staleness")
        parts: dict[str, Weights] = {}
        for name, tensor in tensors.items():
            part, _, own = name.removeprefix("weights.").partition(".")
            parts.setdefault(part, {})[own] = tensor
        self._state = parts.get("collector", {}), values["collector"]
        self._call("restore", *self._state)
        self._pending.clear()
        for version in values["versions"]:
            self._begin(parts[str(version)], version)

    def close(self) -> None:
        """End the thread, after the rollout that it is in, and close the collector."""
        for one in self._pending:
            one.found.cancel()
        self._pending.clear()
        self._call("close")
        self._thread.shutdown()

    def _begin(self, weights: Weights, version: int) -> None:
        self._pending.append(_Pending(weights, version, self._thread.submit(self._collected, weights, version)))

    def _collected(self, weights: Weights, version: int, warm_up: bool = False) -> tuple[Rollout[Any], State]:
        rollout = self._collector.collect(weights, version=version, warm_up=warm_up)
        return rollout, self._collector.state()

    def _call(self, name: str, *args: Any, **given: Any) -> Any:
        """What a method of the collector returns, called in the thread of its world."""
        return self._thread.submit(lambda: getattr(self._collector, name)(*args, **given)).result()


# Joining.

STEPS = ("mask", "terminated", "truncated", "success", "success_known", "rewards", "failed")
"""Fields of a rollout that are (B, T), whatever its decisions are."""


def joined(parts: Sequence[Rollout[Any]], inputs: Callable[[Sequence[Rollout[Any]]], Any]) -> Rollout[Any]:
    """Several rollouts of one policy as one, in order; shorter ones are padded with masked steps.

    Args:
        parts: of one version and kind of policy; no two of them have a group in common.
        inputs: of the policy, joined.
    """
    first = parts[0]
    steps = max(part.mask.shape[1] for part in parts)
    starts = np.cumsum([0, *(len(part.mask) for part in parts)]).tolist()
    steps_of_values: int | None = steps
    log_prob_width = steps
    chunks = None
    if first.chunks is not None:
        steps_of_values = None  # (R,) of decisions, which have no steps
        chunks = _chunks(parts, steps)
        log_prob_width = chunks.size * chunks.tokens
    return Rollout(
        **{name: _stacked(_each(parts, name), steps) for name in (*STEPS, "actions")},
        inputs=inputs(parts),
        log_probs=_stacked(_each(parts, "log_probs"), log_prob_width),
        sampled_log_probs=_stacked(_each(parts, "sampled_log_probs"), log_prob_width),
        values=_of_sources(_each(parts, "values"), steps_of_values),
        next_values=_of_sources(_each(parts, "next_values"), steps_of_values),
        chunks=chunks,
        group_ids=_stacked(_each(parts, "group_ids"), None),
        intervened=_where(_each(parts, "intervened"), parts, steps),
        life_lost=_where(_each(parts, "life_lost"), parts, steps),
        failures=_failures(parts, starts),
        segments=_placed(_each(parts, "segments"), starts),
        videos=_videos(parts, starts),
        ends=_ends(parts, starts),
        greedy=_greedy(parts, inputs),
        kept=_of_sources(_each(parts, "kept"), steps),
        steps=sum(part.steps for part in parts),
        measured=sum(part.measured for part in parts),
        metrics=_metrics(parts),
        averaged_over=_summed(_each(parts, "averaged_over"), first.averaged_over),
        seconds=_summed(_each(parts, "seconds"), dict.fromkeys(name for part in parts for name in part.seconds)),
        fresh=all(part.fresh for part in parts),
        version=first.version,
        conversations=first.conversations,
        states=_states(parts, steps),
    )


def _each(parts: Sequence[Rollout[Any]], name: str) -> list[Any]:
    """A field of every part."""
    return [getattr(part, name) for part in parts]


def _stacked(arrays: Sequence[np.ndarray | None], steps: int | None) -> Any:
    """The rows of all parts, padded to so many steps (None: as they are); None where no part has them."""
    there = [array for array in arrays if array is not None]
    if not there:
        return None
    if steps is not None:
        there = [_padded(array, steps) for array in there]
    return np.concatenate(there)


def _of_sources(parts: Sequence[Mapping[str, FloatArray]], steps: int | None) -> dict[str, FloatArray]:
    """The rows of all parts by their source, as `_stacked`."""
    return {source: _stacked([part[source] for part in parts], steps) for source in parts[0]}


def _where(flags: Sequence[BoolArray | None], parts: Sequence[Rollout[Any]], steps: int) -> Any:
    """Flags of the steps of all parts, False in parts that do not report them; None where none reports them."""
    if all(one is None for one in flags):
        return None
    whole = [np.zeros_like(part.mask) if one is None else one for one, part in zip(flags, parts, strict=True)]
    return _stacked(whole, steps)


def _states(parts: Sequence[Rollout[Any]], steps: int) -> Any:
    """Numbers of states, which are compared within a group alone; -1 in parts that name none, None where none does."""
    if all(part.states is None for part in parts):
        return None
    known = [np.full(part.mask.shape, -1) if part.states is None else part.states for part in parts]
    return np.concatenate([_padded(one, steps, -1) for one in known])


def _failures(parts: Sequence[Rollout[Any]], starts: Sequence[int]) -> tuple[tuple[int, int, Failure], ...]:
    """Failures with their rows in the joined rollout; those of no row keep their negative number."""
    found = []
    for part, start in zip(parts, starts, strict=False):
        for row, step, why in part.failures:
            found.append((row if row < 0 else start + row, step, why))
    return tuple(found)


def _ends(parts: Sequence[Rollout[Any]], starts: Sequence[int]) -> tuple[tuple[int, int, np.ndarray], ...]:
    """Ends of episodes with their streams in the joined rollout."""
    found = []
    for part, start in zip(parts, starts, strict=False):
        for stream, step, shown in part.ends:
            found.append((start + stream, step, shown))
    return tuple(found)


def _placed(parts: Sequence[Sequence[Segment]], starts: Sequence[int]) -> tuple[Segment, ...]:
    """Segments with their streams in the joined rollout."""
    found = []
    for segments, start in zip(parts, starts, strict=False):
        for segment in segments:
            found.append(replace(segment, stream=start + segment.stream))
    return tuple(found)


def _videos(parts: Sequence[Rollout[Any]], starts: Sequence[int]) -> tuple[Segment, ...] | None:
    """The videos of all parts; None where the first part keeps none."""
    if parts[0].videos is None:
        return None
    return _placed([part.videos or () for part in parts], starts)


def _greedy(parts: Sequence[Rollout[Any]], inputs: Callable[[Sequence[Rollout[Any]]], Any]) -> Rollout[Any] | None:
    """The greedy rollouts of the parts that have one, joined."""
    known = [part.greedy for part in parts if part.greedy is not None]
    return joined(known, inputs) if known else None


def _summed(parts: Sequence[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    """Sums of numbers by name; a part that lacks one has 0 of it."""
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def with_own_groups(parts: Sequence[Rollout[Any]]) -> list[Rollout[Any]]:
    """The rollouts of all shards with their groups numbered on from shard to shard."""
    first, numbered = 0, []
    for part in parts:
        if part.group_ids is None:
            return list(parts)
        names, place = np.unique(part.group_ids, return_inverse=True)
        numbered.append(replace(part, group_ids=first + place.astype(np.int64)))
        first += len(names)
    return numbered


def join_control(parts: Sequence[Rollout[ControlInputs]]) -> Rollout[ControlInputs]:
    """The rollouts of one policy in several shards of copies as one."""
    return parts[0] if len(parts) == 1 else joined(with_own_groups(parts), _control_inputs)


def _control_inputs(parts: Sequence[Rollout[ControlInputs]]) -> ControlInputs:
    """The inputs of all parts: (B * T, ...) rows are padded as (B, T, ...), decisions have no padding."""
    steps, pairs = max(part.mask.shape[1] for part in parts), [vars(part.inputs) for part in parts]

    def flat(name: str) -> np.ndarray:
        if parts[0].chunks is not None:
            return np.concatenate([one[name] for one in pairs])
        grids = [
            one[name].reshape(*part.mask.shape, *one[name].shape[1:]) for one, part in zip(pairs, parts, strict=True)
        ]
        found = np.concatenate([_padded(grid, steps) for grid in grids])
        return found.reshape(-1, *found.shape[2:])

    return ControlInputs(flat("observations"), flat("actions"))


def _padded(array: np.ndarray, steps: int, value: Any = 0) -> np.ndarray:
    """(B, steps, ...) of (B, T, ...), filled up at the end."""
    if array.shape[1] == steps:
        return array
    found = np.full((len(array), steps, *array.shape[2:]), value, dtype=array.dtype)
    found[:, : array.shape[1]] = array
    return found


def _chunks(parts: Sequence[Rollout[ControlInputs]], steps: int) -> Chunks:
    """The decisions of all parts, numbered on from part to part."""
    first, decisions, slots = 0, [], []
    known = [part.chunks for part in parts if part.chunks is not None]
    for part, own in zip(parts, known, strict=True):
        decisions.append(_padded(np.where(own.decision >= 0, own.decision + first, -1), steps, -1))
        slots.append(_padded(own.slot, steps, -1))
        first += len(part.inputs)
    size = max(own.size for own in known)
    return Chunks(np.concatenate(decisions), np.concatenate(slots), size, known[0].tokens)


def _metrics(parts: Sequence[Rollout[Any]]) -> Metrics:
    """Counts are added; means and shares are averaged over what they are of."""
    joined: Metrics = {}
    for name in parts[0].metrics:
        known = [
            (value, part.averaged_over.get(name)) for part in parts if (value := part.metrics.get(name)) is not None
        ]
        weights = [weight for _, weight in known if weight is not None]
        if not weights:
            joined[name] = sum(value for value, _ in known) if known else None
        elif total := sum(weights):
            joined[name] = sum(value * (weight or 0.0) for value, weight in known) / total
        else:
            joined[name] = None
    return joined
