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
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from guerdon.collect.rollout_progress import PartsProgress, RolloutProgress, reported_to
from guerdon.collect.shards import Join, ShardedCollector, Share, State, unpacked, write_recorded
from guerdon.engines.ray_cluster import LOST, Actors, ClusterWorker, PlacedActor, losses
from guerdon.engines.ray_progress import Board, Reports
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import ClusterError, GuerdonError, boundary
from guerdon.processes.clock import counted
from guerdon.processes.progress import log_line
from guerdon.settings.cluster import ClusterSettings
from guerdon.types import Episode, Rollout

# ---------------------------------------------------------------------------------------------------------------------
# Weights from the learner to the collectors by a broadcast, in a process group beside that of the learners.
#
# Such a group is torch's (`ProcessGroupGloo`, `ProcessGroupNCCL`) on a store of the process of the run, under a
# prefix of its own, so that it can be formed anew whenever a collector is lost or added. Weights cross in buckets of
# one size, each with a checksum at its end. What fails, takes too long or arrives altered costs the collectors
# concerned a way through the object store, and the run nothing else.
#
#     sender = WeightSender(ray, study.cluster, device)
#     sent = sender.send(policy.tensors(), actors)        # each actor has a WeightReceiver
#     actor.handle.run.remote(sent.to(actor))             # receiver.weights(argument) there
# ---------------------------------------------------------------------------------------------------------------------


_CPU = torch.device("cpu")
_BUCKET = 2**26  # bytes of weights that cross together; two such parts are in memory at a time
_WORDS = 2**20  # of a checksum at a time
_PAUSE = 0.001  # seconds between looks at what is on its way
_LOOK = 1.0  # seconds between looks at the process's own part
_ATTEMPTS = 3  # broadcasts in a row that fail before the run tries no more
_NCCL_LIMIT = timedelta(days=30)  # of torch; the one that counts is cluster.weight_timeout
_ERRORS_OF_NCCL = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


@dataclass(frozen=True)
class Broadcast:
    """What the members of a process group know of one broadcast.

    Attributes:
        number: of the broadcast.
        group: number of the group.
        size: its members; the first one sends.
        backend: gloo or nccl.
        host, port: of the store.
        timeout: seconds.
        layout: name, type and shape of every tensor.
        bucket: bytes of weights that cross together.
    """

    number: int
    group: int
    size: int
    backend: str
    host: str
    port: int
    timeout: float
    layout: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]
    bucket: int

    @property
    def failed(self) -> str:
        """The key of the store that is set when the group has failed."""
        return f"weights/{self.group}/failed"


@dataclass(frozen=True)
class Received:
    """In place of weights that an actor has received: the number of their broadcast."""

    number: int


class SentWeights:
    """Weights that some actors have received. The others read them from the object store, where they are put then."""

    def __init__(self, ray: Any, tensors: Mapping[str, Tensor], number: int, holders: Collection[PlacedActor]) -> None:
        self._ray, self._tensors, self._number, self._holders = ray, tensors, number, holders
        self._stored: Any = None

    def to(self, actor: PlacedActor) -> Any:
        """The argument of a call of this actor."""
        if actor in self._holders:
            return Received(self._number)
        if self._stored is None:
            self._stored = self._ray.put(self._tensors)
        return self._stored


class WeightReceiver:
    """The weights that an actor has received; it has those of the last broadcast."""

    def __init__(self) -> None:
        self._member: _Member | None = None
        self._number, self._tensors = 0, dict[str, Tensor]()

    def receive(self, broadcast: Broadcast, rank: int) -> str:
        """Take part in a broadcast; why this failed, and nothing where it succeeded."""
        self._tensors = {}  # before there is memory for others
        member, self._member = self._member, None
        if member is not None and member.group != broadcast.group:
            member.leave()
            member = None

        def work() -> tuple[_Member, dict[str, Tensor]]:
            own = member or _Member(broadcast, rank, own_device() if broadcast.backend == "nccl" else _CPU)
            found = {
                name: torch.empty(shape, dtype=dtype, device=own.device) for name, dtype, shape in broadcast.layout
            }
            own.broadcast(found.values(), broadcast)
            return own, found

        attempt = _Attempt(work)
        attempt.wait(broadcast.timeout)
        if attempt.result is not None:
            self._member, self._tensors = attempt.result
            self._number = broadcast.number
        return attempt.why

    def weights(self, given: Any) -> Any:
        """The weights of an argument that `SentWeights.to` returned."""
        if not isinstance(given, Received):
            return given
        if given.number != self._number:
            raise ClusterError(f"a collector has weights {self._number} and was asked to act by {given.number}")
        return self._tensors


class WeightSender:
    """Sends weights to actors, by broadcasts where `cluster.weight_transfer` wants them and they are possible.

    Args:
        ray: the package, connected.
        cluster: the `cluster` section.
        device: of the policy that learns.

    Attributes:
        groups: that were formed up to now.
    """

    def __init__(self, ray: Any, cluster: ClusterSettings, device: torch.device) -> None:
        self._ray, self._cluster, self._device = ray, cluster, device
        gpus = device.type == "cuda" and cluster.collector_gpus > 0
        self._wanted = cluster.weight_transfer == "collective" or (cluster.weight_transfer == "auto" and gpus)
        self._store: Any = None
        self._member: _Member | None = None
        self._actors: list[PlacedActor] = []  # that the group was formed for
        self._backend = ""  # of the group; empty: there is none, because some have no GPU of their own
        self.groups = self._number = self._failures = 0
        self._said = set[str]()

    def send(self, tensors: Mapping[str, Tensor], actors: Sequence[PlacedActor]) -> SentWeights:
        """Send weights to these actors, which are in no call, and wait until they have them.

        Args:
            tensors: on any device.
            actors: each with a method `receive(broadcast, rank)`, and `gpu()`, its GPU or None.
        """
        self._number += 1
        holders = self._broadcast(tensors, list(actors)) if self._wanted else set()
        return SentWeights(self._ray, tensors, self._number, holders)

    def close(self) -> None:
        """Leave the group."""
        self._leave()
        self._store = None

    def _broadcast(self, tensors: Mapping[str, Tensor], actors: list[PlacedActor]) -> set[PlacedActor]:
        """The actors that have received the weights."""
        if self._store is None:
            host = self._ray.util.get_node_ip_address()
            self._store = host, TCPStore(host, 0, is_master=True, wait_for_workers=False)
        if actors != self._actors:
            self._leave()
            try:
                self._backend = self._choose_backend(actors)
            except (*losses(), self._ray.exceptions.GetTimeoutError) as error:
                return self._failed(set(), len(actors), type(error).__name__)
            self._actors, self.groups = actors, self.groups + 1
        if not self._backend:
            return set()
        host, store = self._store
        layout = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
        broadcast = Broadcast(
            self._number, self.groups, len(actors) + 1, self._backend, host, store.port, self._cluster.weight_timeout,
            layout, _BUCKET,
        )  # fmt: skip
        member = self._member

        def work() -> _Member:
            own = member or _Member(broadcast, 0, self._device if broadcast.backend == "nccl" else _CPU)
            own.broadcast(tensors.values(), broadcast)
            return own

        sending = {actor.handle.receive.remote(broadcast, k + 1): actor for k, actor in enumerate(actors)}
        attempt = _Attempt(work)
        until = time.monotonic() + broadcast.timeout
        holders, why = self._received(sending, attempt, until)
        if why:
            store.set(broadcast.failed, why)  # for those that wait
            return self._failed(holders, len(actors), why)
        attempt.wait(max(until - time.monotonic(), 1.0))
        if attempt.result is None:
            return self._failed(holders, len(actors), attempt.why)
        self._member, self._failures = attempt.result, 0
        self._say(f"{len(actors)} collectors receive weights by broadcasts of {self._backend}")
        return holders

    def _received(
        self, sending: dict[Any, PlacedActor], attempt: _Attempt, until: float
    ) -> tuple[set[PlacedActor], str]:
        """The actors that have received the weights, and why the first other one has not."""
        holders: set[PlacedActor] = set()
        while sending:
            calls = self._ray.wait(list(sending), num_returns=1, timeout=_LOOK)[0]
            if calls:
                try:
                    why: str = self._ray.get(calls[0])
                except losses() as error:
                    why = f"one was lost, {type(error).__name__}"
            else:
                late = time.monotonic() > until
                why = f"{len(sending)} had nothing after {self._cluster.weight_timeout:g} s" if late else attempt.why
            if why:
                return holders, why
            if calls:
                holders.add(sending.pop(calls[0]))
        return holders, ""

    def _choose_backend(self, actors: Sequence[PlacedActor]) -> str:
        """Of the group of these actors: empty where there is none.

        Also notices those that were lost since their last call.
        """
        found = self._ray.get([actor.handle.gpu.remote() for actor in actors], timeout=self._cluster.weight_timeout)
        gpus = [gpu_of(self._device), *found]
        if None not in gpus and len(set(gpus)) == len(gpus):
            return "nccl"
        if self._cluster.weight_transfer == "collective":
            return "gloo"
        lacks = "some collectors have no GPU" if None in gpus else "several processes share a GPU"
        self._say(
            f"weights reach the collectors through the object store: {lacks}, and NCCL needs one for each process"
        )
        return ""

    def _failed(self, holders: set[PlacedActor], count: int, why: str) -> set[PlacedActor]:
        """Give the group up, and after several failures the broadcasts."""
        self._leave()
        self._failures += 1
        self._wanted = self._failures < _ATTEMPTS
        then = "the next update forms a new group" if self._wanted else "no other broadcast is tried in this run"
        log_line(
            f"a broadcast of weights reached {len(holders)} of {count} collectors ({why}): the others get them through "
            f"the object store, and {then}"
        )
        return holders

    def _leave(self) -> None:
        if self._member is not None:
            self._member.leave()
        self._member, self._actors = None, []

    def _say(self, line: str) -> None:
        """Write a line once in a run."""
        if line not in self._said:
            self._said.add(line)
            log_line(line)


class _Member:
    """This process in a group.

    Args:
        broadcast: the first of the group.
        rank: of this process.
        device: where its tensors must be.
    """

    def __init__(self, broadcast: Broadcast, rank: int, device: torch.device) -> None:
        self.group, self.device, self._sends = broadcast.group, device, rank == 0
        limit = timedelta(seconds=broadcast.timeout)
        self._store = TCPStore(broadcast.host, broadcast.port, is_master=False, timeout=limit)
        place = PrefixStore(f"weights/{broadcast.group}", self._store)
        if broadcast.backend == "nccl":
            self._backend = [_nccl(place, rank, broadcast.size)]
        else:
            self._backend = [dist.ProcessGroupGloo(place, rank, broadcast.size, limit)]

    def broadcast(self, tensors: Iterable[Tensor], broadcast: Broadcast) -> None:
        """Fill tensors with the bytes of those of the first member, a bucket while the one before it is on its way.

        Raises:
            ClusterError: it failed, what arrived was altered, or another member says so; this one has left the group
                then.
        """
        backend = self._backend[0]
        until = time.monotonic() + broadcast.timeout
        options = dist.BroadcastOptions()
        options.rootRank = 0
        before: tuple[Tensor, list[Tensor], Any] | None = None
        gpu = self.device.type == "cuda"
        try:
            with boundary(ClusterError, "broadcast"), torch.cuda.device(self.device) if gpu else nullcontext():
                for parts in buckets(tensors, broadcast.bucket):
                    bucket = packed(parts, self.device) if self._sends else room_for(parts, self.device)
                    work = backend.broadcast([bucket], options)
                    if before is not None:
                        self._finish(*before, broadcast, until)
                    before = bucket, parts, work
                if before is not None:
                    self._finish(*before, broadcast, until)
        except ClusterError:
            del backend
            self.leave()
            self._store.set(broadcast.failed, "another member failed")
            raise

    def _finish(self, bucket: Tensor, parts: list[Tensor], work: Any, broadcast: Broadcast, until: float) -> None:
        self._wait(work, broadcast, until)
        if not self._sends:
            unpack(bucket, parts)

    def leave(self) -> None:
        """Give the group up without waiting for what is on its way."""
        threading.Thread(target=_abandon, args=(self._backend,), daemon=True).start()

    def _wait(self, work: Any, broadcast: Broadcast, until: float) -> None:
        while not work.is_completed():
            if self._store.check([broadcast.failed]):
                raise ClusterError(self._store.get(broadcast.failed).decode())
            if time.monotonic() > until:
                raise ClusterError(f"it took longer than {broadcast.timeout:g} s")
            time.sleep(_PAUSE)
        work.wait()  # raises what went wrong


def buckets(tensors: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    """The bytes of tensors, cut into parts, of which at most `size` bytes are together."""
    parts, room = list[Tensor](), size
    for tensor in tensors:
        left = tensor.reshape(-1).view(torch.uint8)
        while len(left):
            part = left[:room]
            left = left[room:]
            parts.append(part)
            room -= len(part)
            if not room:
                yield parts
                parts, room = [], size
    if parts:
        yield parts


def room_for(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """A bucket: zeros up to a multiple of eight bytes, and eight more."""
    size = sum(len(part) for part in parts)
    return torch.zeros(-(-size // 8) * 8 + 8, dtype=torch.uint8, device=device)


def packed(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """A bucket with these bytes and their checksum."""
    bucket, start = room_for(parts, device), 0
    for part in parts:
        bucket[start : start + len(part)].copy_(part)
        start += len(part)
    words = bucket.view(torch.int64)
    words[-1] = checksum(words[:-1])
    return bucket


def unpack(bucket: Tensor, parts: Sequence[Tensor]) -> None:
    """Fill parts from a bucket.

    Raises:
        ClusterError: its checksum does not hold.
    """
    words, start = bucket.view(torch.int64), 0
    if not torch.equal(checksum(words[:-1]), words[-1]):
        raise ClusterError("a part of the weights arrived altered")
    for part in parts:
        part.copy_(bucket[start : start + len(part)])
        start += len(part)


def checksum(words: Tensor) -> Tensor:
    """A sum of 64-bit words with odd factors, modulo 2^64: a change of any one of them changes it."""
    factors = torch.arange(1, 2 * min(len(words), _WORDS), 2, device=words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for part in torch.split(words, _WORDS):
        total = total * 31 + (part * factors[: len(part)]).sum()
    return total


class _Attempt:
    """Work in a thread, which is left behind when it does not end: forming a group cannot be interrupted.

    Attributes:
        result: of the work; None as long as there is none.
        why: it has none.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.why = ""
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Until the work has ended, at most so long."""
        self._thread.join(seconds)
        if self.result is None and not self.why:
            self.why = f"it took longer than {seconds:g} s"

    def _run(self) -> None:
        try:
            with boundary(ClusterError, "the group"):
                self.result = self._work()
        except GuerdonError as error:
            self.why = str(error)[:200]


def own_device() -> torch.device:
    """The GPU of this process, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def gpu_of(device: torch.device) -> str | None:
    """The GPU that a device is, by a name that no other one has; None: it is none."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def _nccl(store: Any, rank: int, size: int) -> Any:
    """A group in which the loss of a member does not end the processes of the others, as it does by default."""
    before = os.environ.get(_ERRORS_OF_NCCL)
    os.environ[_ERRORS_OF_NCCL] = "0"
    try:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _NCCL_LIMIT
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        if before is None:
            del os.environ[_ERRORS_OF_NCCL]
        else:
            os.environ[_ERRORS_OF_NCCL] = before


def _abandon(backend: list[Any]) -> None:
    """Destroy the only reference to a backend, which may wait until its calls have timed out."""
    while backend:
        backend.pop().abort()


# ---------------------------------------------------------------------------------------------------------------------


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
        self,
        shard: int,
        anew: bool,
        state: State | None,
        name: str,
        weights: Any,
        given: Mapping[str, Any],
        reports: Reports,
    ) -> tuple[Any, State, list[Episode], RolloutProgress | None]:
        """What a method of the collector of a shard returns, and the state of the shard after it.

        Then come the episodes that it recorded, and how far it said at last that a rollout is.

        Args:
            shard: its number.
            anew: make the collector again and let it go on from `state`; False: it is where the run is.
            state: of the shard; None: it has not begun.
            name: of the method.
            weights: its first argument, or the number of the broadcast that brought it; None: it has none.
            given: its other arguments.
            reports: hears how far a rollout is.
        """
        if anew and shard in self._collectors:
            self._collectors.pop(shard).close()
        if shard not in self._collectors:
            self._collectors[shard] = self._make(**self._shards[shard])
            if state is not None:
                self._collectors[shard].restore(*state)
        collector = self._collectors[shard]
        acting = () if weights is None else (self._receiver.weights(weights),)
        with reported_to(reports):
            found = getattr(collector, name)(*acting, **given)
        return found, collector.state(), getattr(collector, "recorded", list)(), reports.last

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
        self._board = Board(self._actors.ray)
        self._calls = 0  # that were made up to now

    @property
    def replaced(self) -> int:
        """Collectors that were lost and replaced up to now."""
        return self._actors.replaced

    def collect(self, policy: Any, *, version: int = 0, warm_up: bool = False) -> Rollout[Any]:
        """The next rollout: see `Collector.collect`. Its `seconds` are those that it took as a whole."""
        start = time.perf_counter()
        with counted("collect"):
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
        self._board.close()
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
        with counted("weights"):
            sent = None if policy is None else self._sender.send(_weights(policy), self._actors.running())
        found: dict[int, Any] = {}
        recorded: dict[int, list[Episode]] = {}
        waiting: dict[Any, tuple[tuple[int, int], PlacedActor]] = {}  # to the shard and the number of a call
        progress = PartsProgress()

        def look() -> None:
            shards = {number: shard for (shard, number), _ in waiting.values()}
            for number, known in self._board.known(shards).items():
                progress.take(shards[number], known)

        todo, replaced = list(shards), self.replaced
        while todo or waiting:
            for shard, actor in self._assigned(todo, [actor for _, actor in waiting.values()]):
                self._calls += 1
                reports = Reports(self._board.handle, self._calls)
                anew = shard not in actor.holds
                state = self._known[shard] if anew else None
                weights = None if sent is None else sent.to(actor)
                call = actor.handle.run.remote(shard, anew, state, name, weights, given, reports)
                waiting[call] = (shard, self._calls), actor
                actor.holds.discard(shard)  # until the state after it is here
            todo = []
            for (shard, _), actor, result in self._actors.finished(waiting, replaced, look):
                if result is LOST:
                    todo.append(shard)
                    progress.known.pop(shard, None)
                    continue
                found[shard], self._known[shard] = copy.deepcopy(result[:2])  # what Ray gives is read-only
                recorded[shard] = result[2]
                if result[3] is not None:
                    progress.take(shard, result[3])
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
