"""Collectors as actors of a Ray cluster, which may die: the shards of a rollout are collected again elsewhere.

An actor holds the collectors of some shards. With every rollout it returns the state that the shard has after it, so
that another actor can go on from there with the same episodes: a run whose collectors are killed has the metrics of an
undisturbed one. Where the cluster has no room for a replacement, the others take the shards over until there is.

    collector = RayCollector(study.cluster, ControlCollector, [dict(env=..., seed=0), ...], join_control, threads=1)
    rollout = collector.collect(policy)  # or the policy's tensors
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guerdon.collect.shards import Join, State, packed, unpacked
from guerdon.errors import ClusterError, ConfigError, GuerdonError, MissingDependencyError
from guerdon.progress import log_line
from guerdon.settings.cluster import ClusterSettings
from guerdon.types import Rollout

_CLOSING = 30.0  # seconds that actors get to close their simulators

Make = Callable[..., Any]
"""From plain arguments to the collector of one shard."""


class ShardWorker:
    """What runs in an actor: the collectors of some shards, one after another.

    Args:
        make: from the arguments of a shard to its collector.
        shards: the arguments of every shard.
        folder: relative paths are resolved from here, where the machine has this folder.
        modules: folders that modules are imported from, as in the process of the learner.
        threads: of torch, as there.
    """

    def __init__(
        self, make: Make, shards: Sequence[Mapping[str, Any]], folder: str, modules: Sequence[str], threads: int
    ) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)
        sys.path += [path for path in modules if path not in sys.path and Path(path).is_dir()]
        torch.set_num_threads(threads)
        self._make, self._shards = make, shards
        self._collectors: dict[int, Any] = {}

    def pid(self) -> int:
        """The process of this actor; it answers as soon as the actor has a place."""
        return os.getpid()

    def run(
        self, shard: int, anew: bool, state: State | None, name: str, weights: Any, given: Mapping[str, Any]
    ) -> tuple[Any, State]:
        """What a method of the collector of a shard returns, and the state of the shard after it.

        Args:
            shard: its number.
            anew: make the collector again and let it go on from `state`; False: it is where the run is.
            state: of the shard; None: it has not begun.
            name: of the method.
            weights: its first argument; None: it has none.
            given: its other arguments.
        """
        if anew and shard in self._collectors:
            self._collectors.pop(shard).close()
        if shard not in self._collectors:
            self._collectors[shard] = self._make(**self._shards[shard])
            if state is not None:
                self._collectors[shard].restore(*state)
        collector = self._collectors[shard]
        found = getattr(collector, name)(*(() if weights is None else (weights,)), **given)
        return found, collector.state()

    def close(self) -> None:
        """Close the collectors."""
        while self._collectors:
            self._collectors.popitem()[1].close()


@dataclass(eq=False)
class _Actor:
    """An actor of the cluster.

    Attributes:
        handle: of Ray.
        ready: resolves when the actor has a place.
        running: whether it has one.
        holds: shards whose collectors there are where the run is.
    """

    handle: Any
    ready: Any
    running: bool = False
    holds: set[int] = field(default_factory=set)


class RayCollector:
    """The shards of a rollout, collected by actors.

    Args:
        cluster: the `cluster` section.
        make: from the arguments of a shard to its collector; importable on every node.
        shards: the arguments of every shard, by name.
        join: makes one rollout of those of all shards.
        threads: `runner.threads`.

    Attributes:
        replaced: collectors that were lost and replaced up to now.

    Raises:
        ConfigError: the cluster cannot be reached, or has no room.
        MissingDependencyError: Ray is not installed.
    """

    def __init__(
        self,
        cluster: ClusterSettings,
        make: Make,
        shards: Sequence[Mapping[str, Any]],
        join: Join,
        *,
        threads: int,
    ) -> None:
        self._cluster, self._join, self._count = cluster, join, len(shards)
        self._ray, self._owned = _connected(cluster.address)
        self._losses = _losses()
        self._build = (make, self._ray.put(list(shards)), str(Path.cwd()), list(sys.path), threads)
        self._states: list[State | None] = [None] * self._count  # after the last rollout; None: it has not begun
        self._actors: list[_Actor] = []
        self.replaced = 0
        try:
            self._actors = [self._start() for _ in range(cluster.collectors)]
            self._wait_for_all()
        except GuerdonError:
            self.close()
            raise

    def policy_shape(self) -> Any:
        """What a policy of the environment must fit."""
        return self._run("policy_shape", [0])[0]

    def collect(self, policy: Any, *, version: int = 0, warm_up: bool = False) -> Rollout[Any]:
        """The next rollout: see `Collector.collect`. Its `seconds` are those that it took as a whole."""
        start = time.perf_counter()
        given = {"version": version, "warm_up": warm_up}
        found = self._run("collect", range(self._count), policy, given)
        rollout = self._join([found[shard] for shard in range(self._count)])
        return replace(rollout, seconds={"collect": time.perf_counter() - start})

    def evaluate(self, policy: Any, *, episodes: int, step: int = 0) -> dict[str, float]:
        """True success, by the collector of the first shard: see `Collector.evaluate`."""
        found: dict[str, float] = self._run("evaluate", [0], policy, {"episodes": episodes, "step": step})[0]
        return found

    def film(self, policy: Any, **given: Any) -> Any:
        """What the collector of the first shard films."""
        return self._run("film", [0], policy, given)[0]

    def state(self) -> State:
        """The states of all shards after the last rollout."""
        if None in self._states:
            self._run("state", range(self._count))
        return packed([state for state in self._states if state is not None])

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Return to a stored state."""
        self._states = list(unpacked(tensors, values, self._count))
        for actor in self._actors:
            actor.holds.clear()

    def close(self) -> None:
        """End the actors, and the cluster where this run started it."""
        try:
            closing = [actor.handle.close.remote() for actor in self._actors if actor.running]
            if closing:
                self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSING)
        finally:
            for actor in self._actors:
                self._ray.kill(actor.handle)
            self._actors = []
            if self._owned:
                self._ray.shutdown()

    # Calls that survive the loss of actors.

    def _run(
        self, name: str, shards: Sequence[int], policy: Any = None, given: Mapping[str, Any] | None = None
    ) -> dict[int, Any]:
        """What a method of the collectors of these shards returns, by shard; those of lost actors run again elsewhere.

        Raises:
            ClusterError: no collector is left, or they are lost again and again.
        """
        weights = None if policy is None else self._ray.put(_weights(policy))
        found: dict[int, Any] = {}
        waiting: dict[Any, tuple[int, _Actor]] = {}
        todo, replaced = list(shards), self.replaced
        while todo or waiting:
            for shard, actor in self._assigned(todo, [actor for _, actor in waiting.values()]):
                anew = shard not in actor.holds
                state = self._states[shard] if anew else None
                call = actor.handle.run.remote(shard, anew, state, name, weights, given or {})
                waiting[call] = shard, actor
                actor.holds.discard(shard)  # until the state after it is here
            todo = []
            for call in self._ray.wait(list(waiting), num_returns=1)[0]:
                shard, actor = waiting.pop(call)
                try:
                    found[shard], state = copy.deepcopy(self._ray.get(call))  # what Ray gives is read-only
                except self._ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, GuerdonError):
                        raise error.cause from None
                    raise
                except self._losses as error:
                    todo.append(shard)
                    self._replace(actor, error)
                    if self.replaced - replaced > self._cluster.max_replacements:
                        raise ClusterError(
                            f"more than {self._cluster.max_replacements} collectors were lost during one rollout, the "
                            f"last one with {error}. Go on from the last checkpoint with --resume, or allow more "
                            "(cluster.max_replacements)"
                        ) from error
                else:
                    self._states[shard] = state
                    for other in self._actors:
                        other.holds.discard(shard)
                    actor.holds.add(shard)
        return found

    def _assigned(self, shards: Sequence[int], busy: Sequence[_Actor]) -> list[tuple[int, _Actor]]:
        """An actor for each of these shards: that which holds it, unless others have less to do."""
        if not shards:
            return []
        running = self._running()
        load = {id(actor): sum(one is actor for one in busy) for actor in running}
        most = -(-self._count // len(running))
        chosen = []
        for shard in shards:
            holder = next((a for a in running if shard in a.holds and load[id(a)] < most), None)
            actor = holder or min(running, key=lambda one: load[id(one)])
            load[id(actor)] += 1
            chosen.append((shard, actor))
        return chosen

    def _running(self) -> list[_Actor]:
        """The actors that have a place, waiting for the first one where there is none.

        Raises:
            ClusterError: none has got a place within `cluster.start_timeout`.
        """
        before = sum(actor.running for actor in self._actors)
        self._look_for_ready(0.0)
        if not any(actor.running for actor in self._actors):
            self._look_for_ready(self._cluster.start_timeout)
        running = [actor for actor in self._actors if actor.running]
        if not running:
            raise ClusterError(
                f"every collector is lost, and the cluster had no room for another one within "
                f"{self._cluster.start_timeout:g} s (cluster.start_timeout). Add nodes, then go on with --resume"
            )
        if len(running) > before:
            log_line(f"{len(running)} of {len(self._actors)} collectors are at work")
        return running

    def _look_for_ready(self, timeout: float) -> None:
        """Notice actors that got a place; wait so many seconds for the first of them."""
        starting = {actor.ready: actor for actor in self._actors if not actor.running}
        if not starting:
            return
        for ready in self._ray.wait(list(starting), num_returns=1, timeout=timeout)[0]:
            actor = starting.pop(ready)
            try:
                self._ray.get(ready)
                actor.running = True
            except self._losses as error:
                self._replace(actor, error)
            self._look_for_ready(0.0)

    def _replace(self, actor: _Actor, error: Exception) -> None:
        """Start another actor instead of a lost one; the loss of several calls is one."""
        if actor not in self._actors:
            return
        self._ray.kill(actor.handle)
        self._actors[self._actors.index(actor)] = self._start()
        self.replaced += 1
        left = sum(one.running for one in self._actors)
        log_line(
            f"a collector was lost ({type(error).__name__}): its shards are collected again, {left} of "
            f"{len(self._actors)} collectors are at work, a replacement is starting"
        )

    def _start(self) -> _Actor:
        """Ask the cluster for an actor."""
        wanted = self._cluster
        remote = self._ray.remote(ShardWorker).options(
            num_cpus=wanted.collector_cpus,
            num_gpus=wanted.collector_gpus,
            resources=dict(wanted.collector_resources),
            scheduling_strategy=wanted.strategy.upper(),
            max_restarts=0,  # a new actor, which may have another place, takes its part
        )
        handle = remote.remote(*self._build)
        return _Actor(handle, handle.pid.remote())

    def _wait_for_all(self) -> None:
        """Refuse to begin with fewer collectors than were asked for.

        Raises:
            ConfigError: the cluster has no room for them.
            ClusterError: they cannot be started.
        """
        wanted, refs = self._cluster, [actor.ready for actor in self._actors]
        ready = self._ray.wait(refs, num_returns=len(refs), timeout=wanted.start_timeout)[0]
        if len(ready) < len(refs):
            has = self._ray.cluster_resources()
            needs = {"CPU": wanted.collector_cpus, "GPU": wanted.collector_gpus, **wanted.collector_resources}
            raise ConfigError(
                f"the cluster has room for {len(ready)} of {len(refs)} collectors (cluster.collectors), which need "
                + " and ".join(f"{n:g} {name} each (it has {has.get(name, 0):g})" for name, n in needs.items() if n)
                + ": ask for fewer or smaller ones, or add nodes"
            )
        try:
            self._ray.get(refs)
        except self._losses as error:
            raise ClusterError(f"the collectors cannot be started on the cluster: {error}") from error
        for actor in self._actors:
            actor.running = True


def _weights(policy: Any) -> dict[str, Tensor]:
    """Everything that a policy stores, on the CPU."""
    tensors = policy if isinstance(policy, Mapping) else policy.tensors()
    return {name: torch.as_tensor(tensor).detach().cpu() for name, tensor in tensors.items()}


def _connected(address: str) -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether this started it.

    Raises:
        ConfigError: it cannot be reached.
        MissingDependencyError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported: a run reports nothing
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("engine: ray needs Ray: pip install 'guerdon[ray]'") from error
    if ray.is_initialized():
        return ray, False
    local = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, logging_level=logging.WARNING, **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the Ray cluster of cluster.address {address} cannot be reached: {error}") from error
    return ray, True


def _losses() -> tuple[type[Exception], ...]:
    """What Ray raises where an actor, its node, or what it returned is lost."""
    from ray import exceptions

    return (
        exceptions.RayActorError,
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
        exceptions.ObjectFetchTimedOutError,
        exceptions.OutOfMemoryError,
    )
