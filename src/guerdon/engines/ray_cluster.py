"""A connection to a Ray cluster, and actors of one kind on it, which may be lost and are replaced.

class Scorer(ClusterWorker):
def work(self, item): ...

actors = Actors(Scorer, (), "reward_worker", cluster, threads=1)  # as many as cluster.reward_workers says
for place, result in actors.results(items, lambda handle, item: handle.work.remote(item)):
...
actors.close()
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from guerdon.config.modules import MODULES_FOLDER
from guerdon.errors import ClusterError, ConfigError, GuerdonError, boundary, needs
from guerdon.processes.progress import doing, log_line
from guerdon.settings.cluster import ClusterSettings

LOST = object()  # in place of the result of a call whose actor was lost
LOOK_EVERY = 1.0  # seconds between looks at what goes on while actors work
_CLOSING = 30.0  # seconds that actors get to close what they hold
_AT_A_TIME = 2  # items that an actor is given, so that it has the next one at once


def connected(address: str, *, show_logs: bool = True) -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether this call connected it.

    Args:
        address: `cluster.address`.
        show_logs: print what actors and tasks print.

    Raises:
        ConfigError: it cannot be reached.
        MissingDependencyError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported: a run reports nothing
    with needs("engine: ray needs Ray: pip install 'guerdon[ray]'"):
        import ray
    if ray.is_initialized():
        return ray, False
    if address == "local":
        address = os.environ.get("RAY_ADDRESS", address)  # set in jobs of a cluster
    local = {"include_dashboard": False} if address == "local" else {}
    interrupt = signal.getsignal(signal.SIGTERM)
    refused = f"the Ray cluster of cluster.address {address} cannot be reached"
    with doing("connecting to a Ray cluster"), boundary(ConfigError, refused, key="cluster.address"):
        ray.init(address=address, logging_level=logging.WARNING, log_to_driver=show_logs, **local)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)  # Ray's own handler aborts the process
    return ray, True


def losses() -> tuple[type[Exception], ...]:
    """What Ray raises where an actor or a task, its node, or what it returned is lost."""
    from ray import exceptions

    return (
        exceptions.RayActorError,
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
        exceptions.ObjectFetchTimedOutError,
        exceptions.OutOfMemoryError,
    )


def free_port(host: str = "") -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def raise_cause(error: Any) -> NoReturn:
    """Raise what code on the cluster raised: an expected error as in one process, another one with Ray's traceback."""
    if isinstance(error.cause, GuerdonError):
        raise error.cause from None
    raise error


class ClusterWorker:
    """What runs in an actor: the base of the kinds of `Actors`."""

    def enter(self, folder: str, modules: Sequence[str], users_modules: str | None, threads: int) -> int:
        """Make the process like that of the run, where the machine has its folders: the first call of an actor.

        Args:
            folder: relative paths are resolved from here.
            modules: folders that modules are imported from.
            users_modules: the folder that `guerdon.config.modules.users_modules` searches; None: there is none.
            threads: of torch.

        Returns:
            The process of the actor; Ray answers as soon as it has a place.
        """
        if Path(folder).is_dir():
            os.chdir(folder)
        sys.path += [path for path in modules if path not in sys.path and Path(path).is_dir()]
        if users_modules is not None:
            os.environ[MODULES_FOLDER] = users_modules
        torch.set_num_threads(threads)
        return os.getpid()

    def close(self) -> None:
        """Release what it holds."""


PACKED = ("collector", "reward_worker")
"""Kinds of actors that have a place in the placement group of `strategy: pack`."""


def reserved(cluster: ClusterSettings, kind: str) -> dict[str, float]:
    """What each actor of a kind (`collector`, `reward_worker`, `learner`, `label_worker`) reserves, by name."""
    own = {"CPU": getattr(cluster, f"{kind}_cpus"), "GPU": getattr(cluster, f"{kind}_gpus")}
    return {**own, **getattr(cluster, f"{kind}_resources", {})}


@dataclass(eq=False)
class PlacedActor:
    """An actor of the cluster.

    Attributes:
        handle: of Ray.
        ready: resolves to its process when the actor has a place.
        running: whether it has one.
        holds: parts of the work whose newest state is there.
        heard: when it last returned something, of the calls that it is in now; None: it is in none.
    """

    handle: Any
    ready: Any
    running: bool = False
    holds: set[int] = field(default_factory=set)
    heard: float | None = None


@dataclass
class _Group:
    """The placement group of a run with `strategy: pack`, which its kinds of actors share.

    Its n-th bundle has room for the n-th collector and the n-th reward worker.
    """

    cluster: ClusterSettings
    group: Any
    users: int = 0


_groups: list[_Group] = []


class Actors:
    """Actors of one kind. A lost one is replaced; until the cluster has room for another one there are fewer.

    They are connected to the cluster, which starts with them where there is none, until `close`.

    Args:
        worker: class of the actors.
        build: its arguments, which are sent to the cluster once.
        kind: `collector` and so on, whose number and needs the `cluster` section says.
        cluster: the `cluster` section.
        threads: `runner.threads`.
        here: how many of the kind are not actors, but this process.

    Attributes:
        ray: the package, connected.
        replaced: actors that were lost and replaced up to now.

    Raises:
        ConfigError: the cluster cannot be reached, or has no room.
        ClusterError: they cannot be started.
        MissingDependencyError: Ray is not installed.
    """

    def __init__(
        self,
        worker: type[ClusterWorker],
        build: Sequence[Any],
        kind: str,
        cluster: ClusterSettings,
        threads: int,
        *,
        here: int = 0,
    ) -> None:
        self.ray, self._owned = connected(cluster.address)
        self._worker, self._kind, self._cluster = worker, kind, cluster
        self._name = f"{'further ' if here else ''}{kind.replace('_', ' ')}"
        self._build = [self.ray.put(one) for one in build]
        self._process = (str(Path.cwd()), list(sys.path), os.environ.get(MODULES_FOLDER), threads)
        self._losses = losses()
        self.replaced = 0
        self._actors: list[PlacedActor] = []
        self._group = self._join_group() if kind in PACKED and cluster.strategy == "pack" else None
        try:
            for place in range(getattr(cluster, f"{kind}s") - here):
                self._actors.append(self._start(place))
            with doing(f"starting {len(self._actors)} {self._name}s"):
                self._wait_for_all()
        except GuerdonError:
            self.close()
            raise

    def __iter__(self) -> Iterator[PlacedActor]:
        return iter(self._actors)

    def running(self) -> list[PlacedActor]:
        """The actors that have a place, waiting for the first one where there is none.

        Raises:
            ClusterError: none has got a place within `cluster.start_timeout`.
        """
        before = sum(actor.running for actor in self._actors)
        self.look_for_ready(0.0)
        until = time.monotonic() + self._cluster.start_timeout
        while not any(actor.running for actor in self._actors) and time.monotonic() < until:
            self.look_for_ready(until - time.monotonic())  # what gets a place may be lost at once
        running = [actor for actor in self._actors if actor.running]
        if not running:
            raise ClusterError(
                f"every {self._name} is lost, and the cluster had no room for another one within "
                f"{self._cluster.start_timeout:g} s (cluster.start_timeout). Add nodes, then continue the work "
                "(run, train: --resume; label: the same command)"
            )
        if len(running) > before:
            log_line(f"{len(running)} of {len(self._actors)} {self._name}s are at work")
        return running

    def look_for_ready(self, timeout: float) -> None:
        """Notice actors that got a place; wait so many seconds for the first of them."""
        starting = {actor.ready: actor for actor in self._actors if not actor.running}
        if not starting:
            return
        for ready in self.ray.wait(list(starting), num_returns=1, timeout=timeout)[0]:
            actor = starting.pop(ready)
            try:
                self.ray.get(ready)
                actor.running = True
            except self._losses as error:
                self._replace(actor, error)
            self.look_for_ready(0.0)

    def _replace(self, actor: PlacedActor, error: Exception, before: int | None = None) -> None:
        """Start another actor instead of a lost one; the loss of several calls is one.

        Raises:
            ClusterError: more than `cluster.max_replacements` were lost since `replaced` was `before`.
        """
        if actor not in self._actors:
            return
        self.ray.kill(actor.handle)
        place = self._actors.index(actor)
        self._actors[place] = self._start(place)
        self.replaced += 1
        left, name = sum(one.running for one in self._actors), self._name
        log_line(
            f"a {name} was lost ({type(error).__name__}): its part is done again, {left} of {len(self._actors)} "
            f"{name}s are at work, a replacement is starting"
        )
        if before is not None and self.replaced - before > self._cluster.max_replacements:
            raise ClusterError(
                f"more than {self._cluster.max_replacements} {name}s were lost during one part of the work, the last "
                f"one with {error}. Continue from the last checkpoint (run, train: --resume; label: the same command), "
                "or allow more (cluster.max_replacements)"
            ) from error

    def finished(
        self,
        waiting: dict[Any, tuple[Any, PlacedActor]],
        before: int,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[tuple[Any, PlacedActor, Any]]:
        """Wait for the next calls that end, and take them out of `waiting`.

        Args:
            waiting: Ray's references of calls to what each is about and its actor.
            before: `replaced` when this part of the work began.
            meanwhile: is called every `LOOK_EVERY` seconds of the wait; None: nothing is.

        Returns:
            What a call was about, its actor and its result; `LOST` where the actor was lost, or hangs: it is replaced.

        Raises:
            GuerdonError: what the call itself raised.
            ClusterError: more than `cluster.max_replacements` actors were lost since `before`.
        """
        limit = self._cluster.task_timeout
        now = time.monotonic()
        busy = {id(actor): actor for _, actor in waiting.values()}
        for actor in busy.values():
            if actor.heard is None:
                actor.heard = now
        until = min(actor.heard + limit for actor in busy.values() if actor.heard is not None)
        found: list[tuple[Any, PlacedActor, Any]] = []
        for call in self._ended(list(waiting), until, meanwhile):
            about, actor = waiting.pop(call)
            actor.heard = None
            try:
                found.append((about, actor, self.ray.get(call)))
            except self.ray.exceptions.RayTaskError as error:
                raise_cause(error)
            except self._losses as error:
                found.append((about, actor, LOST))
                self._replace(actor, error, before)
        return found or self._hung(waiting, list(busy.values()), before)

    def _ended(self, calls: list[Any], until: float, meanwhile: Callable[[], None] | None) -> list[Any]:
        """The first of some calls that ends; none where none did before a time."""
        while True:
            left = max(0.0, until - time.monotonic())
            ended: list[Any] = self.ray.wait(calls, timeout=left if meanwhile is None else min(left, LOOK_EVERY))[0]
            if ended or meanwhile is None or time.monotonic() >= until:
                return ended
            meanwhile()

    def _hung(
        self, waiting: dict[Any, tuple[Any, PlacedActor]], busy: Sequence[PlacedActor], before: int
    ) -> list[tuple[Any, PlacedActor, Any]]:
        """As `finished`, of the actors that gave no result in time."""
        limit = self._cluster.task_timeout
        now = time.monotonic()
        hung = [actor for actor in busy if actor.heard is not None and actor.heard + limit <= now]
        for actor in hung:
            late = TimeoutError(f"no result for {limit:g} s (cluster.task_timeout)")
            self._replace(actor, late, before)
        found: list[tuple[Any, PlacedActor, Any]] = []
        for call, (about, actor) in list(waiting.items()):
            if actor in hung:
                del waiting[call]
                found.append((about, actor, LOST))
        return found

    def results(self, items: Sequence[Any], call: Callable[[Any, Any], Any]) -> Iterator[tuple[int, Any]]:
        """What `call` returns for each item, with the place of the item, as they are finished.

        Every actor has up to two items at a time. Those of a lost actor are done again by others: a call must return
        the same when it is repeated.

        Args:
            items: in any number.
            call: from the handle of an actor and an item to Ray's reference of the result.

        Raises:
            ClusterError: no actor is left, or they are lost again and again.
        """
        todo = list(range(len(items)))[::-1]
        waiting: dict[Any, tuple[int, PlacedActor]] = {}
        before = self.replaced
        while todo or waiting:
            busy = [actor for _, actor in waiting.values()]
            free = [(k, one) for one in self.running() for k in range(busy.count(one), _AT_A_TIME)]
            for _, chosen in sorted(free, key=lambda one: one[0])[: len(todo)]:  # one each before a second one
                place = todo.pop()
                waiting[call(chosen.handle, items[place])] = place, chosen
            for place, _, result in self.finished(waiting, before):
                if result is LOST:
                    todo.append(place)
                else:
                    yield place, result

    def close(self) -> None:
        """End the actors, and the cluster where they started it."""
        try:
            closing = [actor.handle.close.remote() for actor in self._actors if actor.running]
            if closing:
                self.ray.wait(closing, num_returns=len(closing), timeout=_CLOSING)
        finally:
            for actor in self._actors:
                self.ray.kill(actor.handle)
            self._actors = []
            if self._group is not None:
                self._leave_group(self._group)
            if self._owned:
                self.ray.shutdown()

    def _join_group(self) -> _Group:
        """The placement group of the run; its first kind of actors creates it."""
        found = next((one for one in _groups if one.cluster is self._cluster), None)
        if found is None:
            from ray.util import placement_group

            found = _Group(self._cluster, placement_group(_bundles(self._cluster), strategy="PACK"))
            _groups.append(found)
        found.users += 1
        return found

    def _leave_group(self, group: _Group) -> None:
        """Remove the placement group, where this kind of actors is its last."""
        group.users -= 1
        if not group.users:
            _groups.remove(group)
            self.ray.util.remove_placement_group(group.group)

    def _start(self, place: int) -> PlacedActor:
        """Ask the cluster for an actor with this number."""
        needs = reserved(self._cluster, self._kind)
        strategy: Any = "SPREAD" if self._cluster.strategy == "spread" else "DEFAULT"
        if self._group is not None:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            strategy = PlacementGroupSchedulingStrategy(self._group.group, placement_group_bundle_index=place)
        remote = self.ray.remote(self._worker).options(
            num_cpus=needs.pop("CPU"),
            num_gpus=needs.pop("GPU"),
            resources=needs,
            scheduling_strategy=strategy,
            max_restarts=0,  # a new actor, which may have another place, takes its part
        )
        handle = remote.remote(*self._build)
        return PlacedActor(handle, handle.enter.remote(*self._process))

    def _wait_for_all(self) -> None:
        """Refuse to begin with fewer actors than were asked for."""
        refs = [actor.ready for actor in self._actors]
        ready = self.ray.wait(refs, num_returns=len(refs), timeout=self._cluster.start_timeout)[0]
        if len(ready) < len(refs):
            has = self.ray.cluster_resources()
            needs = reserved(self._cluster, self._kind)
            raise ConfigError(
                f"the cluster has room for {len(ready)} of {len(refs)} {self._name}s (cluster.{self._kind}s), which "
                + "need "
                + " and ".join(f"{n:g} {name} each (it has {has.get(name, 0):g})" for name, n in needs.items() if n)
                + ": ask for fewer or smaller ones, or add nodes",
                key=f"cluster.{self._kind}s",
            )
        try:
            self.ray.get(refs)
        except self.ray.exceptions.RayTaskError as error:
            raise_cause(error)
        except self._losses as error:
            raise ClusterError(f"the {self._name}s cannot be started on the cluster: {error}") from error
        for actor in self._actors:
            actor.running = True


def _bundles(cluster: ClusterSettings) -> list[dict[str, float]]:
    """What the n-th collector and the n-th reward worker reserve together."""
    bundles: list[dict[str, float]] = [{} for _ in range(max(cluster.collectors, cluster.reward_workers))]
    for kind in PACKED:
        for bundle in bundles[: getattr(cluster, f"{kind}s")]:
            for key, amount in reserved(cluster, kind).items():
                bundle[key] = bundle.get(key, 0.0) + amount
    return [{key: amount for key, amount in one.items() if amount} for one in bundles]
