"""Rollouts collected while the learner updates, by weights that are a fixed number of updates old.

With `runner.max_staleness` s, rollout k is collected by the weights after k - s updates (the first ones by those of the
start). Which weights collect which rollout does not depend on how fast anything is, so that a run repeats bit for bit.
One thread collects, one rollout after another; the world is made in it and never used in another one.

    collector = AheadCollector(lambda: ControlCollector(...), staleness=1)
    rollout = collector.collect(learner.policy, version=learner.version)  # collected while the last update was made
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor

from guerdon.collect.shards import State
from guerdon.errors import CheckpointError
from guerdon.types import Rollout

Weights = dict[str, Tensor]


class _Pending(NamedTuple):
    """A rollout that was begun, or will be: the weights that collect it, and what comes of it."""

    weights: Weights
    version: int
    found: Future[tuple[Rollout[Any], State]]


class AheadCollector:
    """A collector that is always some rollouts ahead of the learner.

    Evaluations and films wait for the rollouts that were begun.

    Args:
        build: makes the collector that acts. It gets weights, never the policy that learns.
        staleness: updates between the weights that collect a rollout and those that learn from it, at least 1.
    """

    def __init__(self, build: Callable[[], Any], *, staleness: int) -> None:
        self._staleness = staleness
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="guerdon-collect-ahead")
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
            rollout, self._state = self._thread.submit(self._collected, policy.tensors(), version, warm_up).result()
            return replace(rollout, seconds={"wait": perf_counter() - start})
        weights = policy.tensors()
        while len(self._pending) <= self._staleness:
            self._begin(weights, version)
        rollout, self._state = self._pending.popleft().found.result()
        metrics = {**rollout.metrics, "staleness": float(version - rollout.version)}
        return replace(rollout, metrics=metrics, seconds={"wait": perf_counter() - start})

    def evaluate(self, policy: Any, *, episodes: int, step: int = 0) -> dict[str, float]:
        """True success: see `Collector.evaluate`."""
        found: dict[str, float] = self._call("evaluate", policy.tensors(), episodes=episodes, step=step)
        return found

    def film(self, policy: Any, **given: Any) -> Any:
        """What the collector films."""
        return self._call("film", policy.tensors(), **given)

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
