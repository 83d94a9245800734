"""Collectors as actors of a Ray cluster, which may die: the shards of a rollout are collected again elsewhere.

An actor holds the collectors of some shards. With every rollout it returns the state that the shard has after it, so
that another actor can go on from there with the same episodes: a run whose collectors are killed has the metrics of an
undisturbed one. Where the cluster has no room for a replacement, the others take the shards over until there is.

    shards = [dict(env=..., seed=0), ...]
    collector = RayCollector(study.cluster, ControlCollector, shards, join_control, threads=1, device=device)
    rollout = collector.collect(policy)  # or the policy's tensors
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from guerdon.collect.shards import Join, ShardedCollector, Share, State, unpacked, write_recorded
from guerdon.engines.ray_cluster import LOST, Actors, ClusterWorker, PlacedActor
from guerdon.engines.weight_transfer import Broadcast, WeightReceiver, WeightSender, gpu_of, own_device
from guerdon.episodes.write import EpisodeWriter
from guerdon.settings.cluster import ClusterSettings
from guerdon.types import Episode, Rollout

Make = Callable[..., Any]
"""From plain arguments to the collector of one shard."""


class ShardWorker(ClusterWorker):
    """What runs in an actor: the collectors of some shards, one after another.

    Args:
        make: from the arguments of a shard to its collector.
        shards: the arguments of every shard.
    """

    def __init__(self, make: Make, shards: Sequence[Mapping[str, Any]]) -> None:
        self._make, self._shards = make, shards
        self._collectors: dict[int, Any] = {}
        self._receiver = WeightReceiver()

    def gpu(self) -> str | None:
        """The GPU of this process; None: it has none."""
        return gpu_of(own_device())

    def receive(self, broadcast: Broadcast, rank: int) -> str:
        """Take part in a broadcast of weights; why this failed, and nothing where it succeeded."""
        return self._receiver.receive(broadcast, rank)

    def run(
        self, shard: int, anew: bool, state: State | None, name: str, weights: Any, given: Mapping[str, Any]
    ) -> tuple[Any, State, list[Episode]]:
        """What a method of the collector of a shard returns, the state of the shard after it, and what it recorded.

        Args:
            shard: its number.
            anew: make the collector again and let it go on from `state`; False: it is where the run is.
            state: of the shard; None: it has not begun.
            name: of the method.
            weights: its first argument, or the number of the broadcast that brought it; None: it has none.
            given: its other arguments.
        """
        if anew and shard in self._collectors:
            self._collectors.pop(shard).close()
        if shard not in self._collectors:
            self._collectors[shard] = self._make(**self._shards[shard])
            if state is not None:
                self._collectors[shard].restore(*state)
        collector = self._collectors[shard]
        found = getattr(collector, name)(*(() if weights is None else (self._receiver.weights(weights),)), **given)
        return found, collector.state(), getattr(collector, "recorded", list)()

    def close(self) -> None:
        """Close the collectors."""
        while self._collectors:
            self._collectors.popitem()[1].close()


class RayCollector(ShardedCollector):
    """The shards of a rollout, collected by actors.

    Args:
        cluster: the `cluster` section.
        make: from the arguments of a shard to its collector; importable on every node.
        shards: the arguments of every shard, by name.
        join: makes one rollout of those of all shards.
        share: what shards learn from each other before a rollout; None: nothing.
        writer: of the episodes that they record; None: they record none.
        threads: `runner.threads`.
        device: of the policy that learns.

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
        share: Share | None = None,
        writer: EpisodeWriter | None = None,
        *,
        threads: int,
        device: torch.device,
    ) -> None:
        super().__init__((), join, share, writer)
        self._count = len(shards)
        self._known: list[State | None] = [None] * self._count  # after the last rollout; None: it has not begun
        self._actors = Actors(ShardWorker, (make, list(shards)), "collector", cluster, threads)
        self._sender = WeightSender(self._actors.ray, cluster, device)

    @property
    def replaced(self) -> int:
        """Collectors that were lost and replaced up to now."""
        return self._actors.replaced

    def collect(self, policy: Any, *, version: int = 0, warm_up: bool = False) -> Rollout[Any]:
        """The next rollout: see `Collector.collect`. Its `seconds` are those that it took as a whole."""
        start = time.perf_counter()
        rollout = super().collect(policy, version=version, warm_up=warm_up)
        return replace(rollout, seconds={"collect": time.perf_counter() - start})

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Return to a stored state."""
        self._known = list(unpacked(tensors, values, self._count))
        for actor in self._actors:
            actor.holds.clear()

    def close(self) -> None:
        """End the actors, and the cluster where they started it."""
        self._sender.close()
        self._actors.close()
        super().close()

    def _states(self) -> list[State]:
        if None in self._known:
            self._run("state", range(self._count))
        return [state for state in self._known if state is not None]

    # Calls that survive the loss of actors.

    def _run(self, name: str, shards: Sequence[int], policy: Any = None, **given: Any) -> dict[int, Any]:
        """See `ShardedCollector._run`; the parts of lost actors run again elsewhere.

        Raises:
            ClusterError: no collector is left, or they are lost again and again.
        """
        sent = None if policy is None else self._sender.send(_weights(policy), self._actors.running())
        found: dict[int, Any] = {}
        recorded: dict[int, list[Episode]] = {}
        waiting: dict[Any, tuple[int, PlacedActor]] = {}
        todo, replaced = list(shards), self.replaced
        while todo or waiting:
            for shard, actor in self._assigned(todo, [actor for _, actor in waiting.values()]):
                anew = shard not in actor.holds
                weights = None if sent is None else sent.to(actor)
                call = actor.handle.run.remote(shard, anew, self._known[shard] if anew else None, name, weights, given)
                waiting[call] = shard, actor
                actor.holds.discard(shard)  # until the state after it is here
            todo = []
            for shard, actor, result in self._actors.finished(waiting, replaced):
                if result is LOST:
                    todo.append(shard)
                    continue
                found[shard], self._known[shard] = copy.deepcopy(result[:2])  # what Ray gives is read-only
                recorded[shard] = result[2]
                for other in self._actors:
                    other.holds.discard(shard)
                actor.holds.add(shard)
        if self._writer is not None:
            write_recorded(self._writer, [recorded[shard] for shard in sorted(recorded)])
        return found

    def _assigned(self, shards: Sequence[int], busy: Sequence[PlacedActor]) -> list[tuple[int, PlacedActor]]:
        """An actor for each of these shards: that which holds it, unless others have less to do."""
        if not shards:
            return []
        running = self._actors.running()
        load = {id(actor): sum(one is actor for one in busy) for actor in running}
        most = -(-self._count // len(running))
        chosen = []
        for shard in shards:
            holder = next((a for a in running if shard in a.holds and load[id(a)] < most), None)
            actor = holder or min(running, key=lambda one: load[id(one)])
            load[id(actor)] += 1
            chosen.append((shard, actor))
        return chosen


def _weights(policy: Any) -> dict[str, Tensor]:
    """Everything that a policy stores, on the CPU."""
    tensors = policy if isinstance(policy, Mapping) else policy.tensors()
    return {name: torch.as_tensor(tensor).detach().cpu() for name, tensor in tensors.items()}
