"""One model as it is served: its queue, its worker, its results, and how it is changed under way.

Everything but the calls of the model happens on the event loop, so there is nothing to lock. A model has one lane,
or as many as there are copies of it: a lane makes one call after another. Updates come between two batches (what
learns has one lane); an exchange for a freshly loaded model too, and what another lane judges meanwhile is said by the
old one, to those who asked before. This module does not know HTTP.

    served = Served("prm", ModelSource(load), batch, limits, metrics)
    served.start()
    judgements = await served.judge(episodes, JudgeOptions(), deadline_s=10)
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from guerdon.errors import GuerdonError
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.serve.batcher import Batcher, Item, Ticket
from guerdon.serve.cache import ResultCache, content_bytes, content_key
from guerdon.serve.calls import BrokenModel, Learned, Learning, judge_all, learn
from guerdon.serve.errors import BadRequest, Busy, DeadlineExceeded, NotReady, ReloadFailed
from guerdon.serve.metrics import RESULTS, Metrics
from guerdon.serve.source import ModelSource
from guerdon.serve.update_store import UpdateStore
from guerdon.serve.worker import Worker
from guerdon.settings.serve import BatchSettings, LimitSettings
from guerdon.types import Episode, Learnable, RewardModel

WAITING_UPDATES = 4
HASH_HERE = 1 << 18  # bytes that may be hashed on the event loop, in about a quarter of a millisecond
log = logging.getLogger("guerdon.serve")
T = TypeVar("T")


class Served:
    """A model with its queue.

    Args:
        name: what clients call it.
        source: where it comes from.
        batch: how items are put together.
        limits: how long requests may take.
        metrics: what is counted.
    """

    def __init__(
        self, name: str, source: ModelSource, batch: BatchSettings, limits: LimitSettings, metrics: Metrics
    ) -> None:
        self.name, self.source, self._limits, self._metrics = name, source, limits, metrics
        self.model: RewardModel | None = None
        self.problem = "is being loaded"
        self.store: UpdateStore | None = None
        self.batcher: Batcher[Ticket] = Batcher(
            max_items=batch.max_items,
            max_wait_s=batch.max_wait_ms / 1000,
            length_ratio=batch.length_ratio,
            limit=batch.queue_items,
        )
        self.cache = ResultCache(batch.cache_items)
        self._pending: dict[bytes, Item[Ticket]] = {}  # waiting or being judged, by content
        self._worked_last = False
        self._busy = 0  # lanes that have a batch
        self._working: set[Item[Ticket]] = set()  # what is being judged
        self._jobs: deque[tuple[Callable[[], Awaitable[None]], asyncio.Future[Any]]] = deque()
        self._seconds_per_item = 0.01
        self._refused = 0
        self._reloading = False
        self._queue = metrics.queue.labels(name)
        self._counts = {result: metrics.items.labels(name, result) for result in RESULTS}
        self.loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Load the model and work on its queue from then on; needs a running event loop."""
        self._wake, self._hurry = asyncio.Event(), asyncio.Event()
        self._workers = [Worker(self.name) for _ in range(self.source.lanes)]
        self._worker = self._workers[0]
        self.loading = asyncio.create_task(self._load())
        self._loops = [asyncio.create_task(self._work(worker)) for worker in self._workers]
        for loop in self._loops:
            loop.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Give up what waits, and let the worker end."""
        for task in (*self._loops, self.loading):
            if task is not None:
                task.cancel()
        for worker in self._workers:
            worker.stop()
        self.abandon()
        if self.store is not None:
            self.store.close()

    def abandon(self) -> None:
        """Tell everybody who waits that nothing will come any more."""
        self.model, self.problem = None, "is about to end"
        self._give_up()

    def ready_model(self) -> RewardModel:
        """The model.

        Raises:
            NotReady: it is being loaded, or cannot be used.
        """
        if self.model is None:
            raise self._not_ready()
        return self.model

    def _not_ready(self) -> NotReady:
        return NotReady(f"the model {self.name!r} {self.problem}")

    async def judge(
        self, episodes: Sequence[Episode], options: JudgeOptions, deadline_s: float
    ) -> list[ExplainedScore]:
        """One judgement per episode, in order; equal episodes are judged once.

        Raises:
            Busy: there is no room for those that are not known yet; nothing was queued.
            DeadlineExceeded: not all were there in time.
            NotReady: the model is not loaded.
        """
        self.ready_model()
        if not episodes:
            return []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        sizes = [content_bytes(episode) for episode in episodes]
        if sum(sizes) > HASH_HERE:
            keys = await asyncio.to_thread(_keys, episodes, options)
        else:
            keys = _keys(episodes, options)
        self.ready_model()
        ticket = Ticket(deadline, loop.create_future(), [None] * len(episodes))
        self._submit(ticket, episodes, keys, sizes, options)
        try:
            async with asyncio.timeout_at(deadline):
                await ticket.done
        except TimeoutError:
            raise DeadlineExceeded(f"not scored within {deadline_s:g} s") from None
        return [judgement for judgement in ticket.results if judgement is not None]

    async def update(self, wanted: Learning) -> Learned:
        """Let the model learn, and keep its state.

        Raises:
            BadRequest: it does not learn, or an episode has no outcome.
            Busy: too many updates wait already.
            DeadlineExceeded: it was not begun in time, and never will be.
            Conflict: the number was used for something else, or may have been.
            UpdateFailed: it was not learnt or not kept; the model is as before.
            NotReady: the model is not loaded.
        """
        model, store = self.ready_model(), self.store
        if not isinstance(model, Learnable):
            raise BadRequest(f"the model {self.name!r} does not learn while it is served", param="model")
        if store is None:
            raise BadRequest(f"the model {self.name!r} has no update_dir, so it does not learn here", param="model")
        if len(self._jobs) >= WAITING_UPDATES:
            self._metrics.updates.labels(self.name, "refused").inc()
            raise Busy(f"{WAITING_UPDATES} updates of {self.name!r} wait already", 1.0)
        return await self._between_batches(lambda: self._learn(store, wanted), self._limits.deadline_s)

    async def reload(self) -> None:
        """Load the model again beside the old one, then exchange them between two batches.

        Raises:
            Busy: it is being loaded again already.
            ReloadFailed: it cannot be loaded; the old one goes on.
        """
        if self.loading is None or not self.loading.done():
            raise self._not_ready()
        if self._reloading:
            raise Busy(f"the model {self.name!r} is being loaded again already", 1.0)
        self._reloading = True
        loader = Worker(f"{self.name}-reload")
        try:
            fresh = await loader.run(self.source.load)
            await self._between_batches(lambda: self._exchange(fresh))
        except ReloadFailed:
            raise
        except GuerdonError as error:
            log.error("reload of %s failed", self.name, exc_info=error)
            raise ReloadFailed(f"the model {self.name!r} could not be loaded again; the old one goes on") from error
        finally:
            self._reloading = False
            loader.stop()

    def overload(self) -> float | None:
        """When to come again, from a refusal on until there is room for as much (at most half of the queue)."""
        if self._refused and self.batcher.has_room(self._refused):
            self._refused = 0
        return self._wait_s() if self._refused else None

    def _wait_s(self) -> float:
        """When the queue will be empty, as fast as it went lately."""
        return min(max(len(self.batcher) * self._seconds_per_item, 1.0), 60.0)

    def _count(self, result: str, n: int) -> None:
        if n:
            self._counts[result].inc(n)

    def _submit(
        self,
        ticket: Ticket,
        episodes: Sequence[Episode],
        keys: Sequence[bytes],
        sizes: Sequence[int],
        options: JudgeOptions,
    ) -> None:
        """Put what is not known yet into the queue, all of it or nothing."""
        now = asyncio.get_running_loop().time()
        known = [self.cache.get(key) for key in keys]
        new: dict[bytes, Item[Ticket]] = {}
        for place, key in enumerate(keys):
            if known[place] is None and key not in self._pending and key not in new:
                new[key] = Item(key, episodes[place], options, sizes[place], now)
        if not self.batcher.has_room(len(new)):
            self._count("refused", len(episodes))
            self._refused = min(len(new), max(1, self.batcher.limit // 2))
            raise Busy(f"{len(self.batcher)} items wait for {self.name!r}; come again later", self._wait_s())
        for place, (key, judgement) in enumerate(zip(keys, known, strict=True)):
            if judgement is not None:
                ticket.settle(place, judgement)
            else:
                (new.get(key) or self._pending[key]).waiters.append((ticket, place))
        cached = sum(judgement is not None for judgement in known)
        self._count("cached", cached)
        self._count("shared", len(episodes) - cached - len(new))
        if new:
            self._pending |= new
            self.batcher.add(list(new.values()))
            self._queue.set(len(self.batcher))
            self._wake.set()
            if len(self.batcher) >= self.batcher.max_items:
                self._hurry.set()

    async def _load(self) -> None:
        """Build the model and bring it to its newest state; both in the worker, which keeps its thread's state."""
        model = await self._worker.run(self.source.load)
        if self.source.update_dir is not None:
            if not isinstance(model, Learnable):
                raise BadRequest(f"the model {self.name!r} cannot learn while it is served: remove update_dir")
            self.store = UpdateStore(self.source.update_dir, keep=self.source.keep_updates)
            await self._worker.run(self.store.resume, model)
        self.model = model
        self._metrics.ready.labels(self.name).set(1)

    async def _work(self, worker: Worker) -> None:
        """Take batch after batch; with several lanes there are several of this, and nothing learns."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._wake.wait()
            self._hurry.clear()
            if self._jobs and not (self._worked_last and self.batcher):  # updates and batches take turns
                job, _ = self._jobs.popleft()
                await job()
                self._worked_last = True
                continue
            if not self.batcher:
                self._wake.clear()
                continue
            wait = self.batcher.wait_s(clock())
            if wait > 0:
                try:
                    async with asyncio.timeout(wait):
                        await self._hurry.wait()
                except TimeoutError:
                    pass
                continue
            await self._next_batch(clock(), worker)
            self._worked_last = False

    async def _next_batch(self, now: float, worker: Worker) -> None:
        share = math.ceil(len(self.batcher) / (self.source.lanes - self._busy))  # the other free lanes take the rest
        batch, expired = self.batcher.take(now, share)
        self._queue.set(len(self.batcher))
        for item in expired:
            self._forget(item)
        self._count("expired", len(expired))
        if not batch:
            return
        model = self.ready_model()
        start = time.perf_counter()
        self._busy += 1
        self._working.update(batch)
        try:
            episodes = [item.episode for item in batch]
            judgements = await worker.run(judge_all, model, episodes, batch[0].options, self.name)
        except NotReady as error:
            for item in batch:
                self._forget(item)
                self._refuse_waiters(item, error)
            return
        finally:
            self._busy -= 1
            self._working.difference_update(batch)
        seconds = time.perf_counter() - start
        self._seconds_per_item += 0.2 * (seconds / len(batch) / self.source.lanes - self._seconds_per_item)
        self._metrics.batch_items.labels(self.name).observe(len(batch))
        self._metrics.batch_seconds.labels(self.name).observe(seconds)
        for item, judgement in zip(batch, judgements, strict=True):
            self._settle(item, judgement, remember=model is self.model)

    def _forget(self, item: Item[Ticket]) -> None:
        """Nobody can wait for this item any more; another one of the same content may have come since a reload."""
        if self._pending.get(item.key) is item:
            del self._pending[item.key]

    def _refuse_waiters(self, item: Item[Ticket], error: NotReady) -> None:
        """Answer those who wait for an item with a 503: they may come again."""
        for ticket, _ in item.waiters:
            if not ticket.done.done():
                ticket.done.set_exception(error)

    def _settle(self, item: Item[Ticket], judgement: ExplainedScore, *, remember: bool) -> None:
        failure = judgement.score.failure
        if failure is not None:
            self._metrics.failed(self.name, failure.reason)
        self._count("scored" if failure is None else "failed", 1)
        self._forget(item)
        if remember:  # another lane may have exchanged the model meanwhile
            self.cache.put(item.key, judgement)
        for ticket, place in item.waiters:
            ticket.settle(place, judgement)

    async def _learn(self, store: UpdateStore, wanted: Learning) -> Learned:
        try:
            done = await self._worker.run(learn, self.ready_model(), store, wanted, self.name)
        except BrokenModel as error:
            self._break("was left unusable by an update; reload it, or restart the server", error)
            raise
        except GuerdonError:
            self._metrics.updates.labels(self.name, "failed").inc()
            raise
        self._metrics.updates.labels(self.name, "repeated" if done.repeated else "learnt").inc()
        if not done.repeated:
            self.cache.clear()  # what waits is scored by the new weights, what was scored is not what they say
        return done

    async def _exchange(self, fresh: RewardModel) -> None:
        """Put a freshly loaded model in the place of the old one; one that learns goes on from its newest state."""
        if self.store is not None:
            if not isinstance(fresh, Learnable):
                raise ReloadFailed(f"what was loaded for {self.name!r} does not learn; the old one goes on")
            try:
                await self._worker.run(self.store.resume, fresh)
            except GuerdonError as error:
                log.error("the newest state of %s does not fit what was loaded", self.name, exc_info=error)
                raise ReloadFailed(
                    f"the learnt state of {self.name!r} does not fit what was loaded; the old one goes on"
                ) from error
        self.model = fresh
        self._pending = {item.key: item for item in self.batcher}  # what other lanes judge is said by the old model
        self._metrics.ready.labels(self.name).set(1)
        self.cache.clear()

    async def _between_batches(self, work: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """Do something between two batches of a lane; with one lane, no call of the model is under way then.

        Raises:
            DeadlineExceeded: it was not begun within these seconds.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def give_up() -> None:
            if not future.done():
                future.set_exception(DeadlineExceeded(f"not begun within {seconds:g} s; nothing was learnt"))

        timer = None if seconds is None else loop.call_later(seconds, give_up)

        async def job() -> None:
            if timer is not None:
                timer.cancel()
            if future.done():  # nobody waits for it any more
                return
            try:
                result = await work()
            except (GuerdonError, asyncio.CancelledError) as error:
                if not future.done():
                    future.set_exception(error if isinstance(error, GuerdonError) else self._not_ready())
                if not isinstance(error, GuerdonError):
                    raise
            else:
                if not future.done():
                    future.set_result(result)

        self._jobs.append((job, future))
        self._wake.set()
        self._hurry.set()
        return await future

    def _break(self, problem: str, error: BaseException) -> None:
        """Answer nothing any more: better no score than one of a model in an unknown state."""
        log.error("the model %s %s", self.name, problem, exc_info=error)
        self.model, self.problem = None, problem
        self._metrics.ready.labels(self.name).set(0)
        self._give_up()

    def _give_up(self) -> None:
        """Tell everybody who waits that nothing will come."""
        for item in {*self._pending.values(), *self._working}:
            self._refuse_waiters(item, self._not_ready())
        for _, future in self._jobs:
            if not future.done():
                future.set_exception(self._not_ready())
        self.batcher.drain()
        self._pending.clear()
        self._jobs.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break("has stopped: a fault of the server, see its log", error)


def _keys(episodes: Sequence[Episode], options: JudgeOptions) -> list[bytes]:
    return [content_key(episode, options) for episode in episodes]
