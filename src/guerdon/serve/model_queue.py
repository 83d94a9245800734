"""A served model: its queue, threads that call it, remembered results, updates and reloads.

Everything but the calls of a model happens on the event loop, so nothing needs a lock. A model has one lane, or as many
as there are copies of it; a lane makes one call after another. Updates happen between two batches (a model that learns
has one lane). So does the exchange of a reloaded model; what another lane scores meanwhile comes from the old one.

    queue = ModelQueue("prm", ModelLoader(load), BatchSettings(), LimitSettings(), Metrics())
    queue.start(); await queue.loading
    scores = await queue.judge(episodes, JudgeOptions(), deadline_s=10)
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from guerdon.errors import GuerdonError
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.serve.backends import ModelLoader, card_forecast
from guerdon.serve.errors import BadRequest, BrokenModel, Busy, DeadlineExceeded, NotReady, ReloadFailed
from guerdon.serve.metrics import RESULTS, Metrics
from guerdon.serve.update_store import UpdateId, UpdateResult, UpdateStore, When
from guerdon.serve.worker import (
    ENDED,
    Batcher,
    Item,
    ResultCache,
    Ticket,
    Worker,
    content_bytes,
    content_keys,
    judge_all,
    learn,
    refuse_alone,
    refuse_item,
    resolve,
)
from guerdon.settings.serve import BatchSettings, LimitSettings
from guerdon.types import Episode, Learnable, RewardInfo, RewardModel

WAITING_UPDATES = 4
TIMER_S = 0.001  # by which a timer may be early
HASH_HERE = 1 << 18  # bytes that may be hashed on the event loop, in about a quarter of a millisecond
log = logging.getLogger("guerdon.serve")
T = TypeVar("T")


class ModelQueue:
    """One served model.

    Args:
        name: its name for clients.
        loader: how it is loaded.
        batch: limits of batches.
        limits: limits of requests.
        metrics: counters.
        keep: called with the name, the episodes and the scores of each request; None: not.

    Attributes:
        model: None while it is loaded or unusable.
        forecast: on its card, whether it will help RL; None where there is none.
    """

    def __init__(
        self, name: str, loader: ModelLoader, batch: BatchSettings, limits: LimitSettings, metrics: Metrics,
        keep: Callable[[str, Sequence[Episode], Sequence[ExplainedScore]], None] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.loader, self.limits, self._metrics, self._keep = name, loader, limits, metrics, keep
        self.model: RewardModel | None = None
        self.forecast: dict[str, Any] | None = None
        self._without = "is being loaded"  # why there is no model
        self.store: UpdateStore | None = None
        self.batcher = Batcher(
            max_items=batch.max_items,
            max_wait_s=batch.max_wait_ms / 1000,
            length_ratio=batch.length_ratio,
            limit=batch.queue_items,
        )
        self.cache = ResultCache(batch.cache_items)
        self._pending: dict[bytes, Item] = {}  # waiting or being scored, by content
        self._scoring: set[Item] = set()
        self._busy = 0  # lanes that have a batch
        self._comparing = 0  # items of requests whose model compares
        self._jobs: deque[tuple[Callable[[], Awaitable[None]], asyncio.Future[Any]]] = deque()
        self._job_was_last = False
        self._reloading: asyncio.Task[None] | None = None
        self._seconds_per_item = 0.01
        self._refused = 0
        self._queue = metrics.queue.labels(name)
        self._counts = {result: metrics.items.labels(name, result) for result in RESULTS}
        self._overdue = metrics.overdue.labels(name)
        metrics.ready.labels(name).set_function(lambda: float(self.problem is None))
        self.loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Load the model and serve its queue from then on; needs a running event loop."""
        self._wake, self._hurry = asyncio.Event(), asyncio.Event()
        self._workers = [Worker(self.name) for _ in range(self.loader.lanes)]
        self.loading = asyncio.create_task(self._load())
        self._loops = [asyncio.create_task(self._serve(worker)) for worker in self._workers]
        self._loops.append(asyncio.create_task(self._watch()))
        for loop in self._loops:
            loop.add_done_callback(self._ended)

    def stop(self) -> None:
        """Refuse waiting requests and let the workers end."""
        for task in (*self._loops, self.loading):
            if task is not None:
                task.cancel()
        for worker in self._workers:
            worker.stop()
        self.abandon()
        if self.store is not None:
            self.store.close()

    def abandon(self) -> None:
        """Refuse waiting requests."""
        self.model, self._without = None, "is shutting down"
        self._refuse_all(self._without)

    def loaded_model(self) -> RewardModel:
        """The model.

        Raises:
            NotReady: it is being loaded, or unusable.
        """
        problem = self.problem
        if self.model is None or problem is not None:
            raise self._not_ready(problem)
        return self.model

    @property
    def problem(self) -> str | None:
        """Why the model cannot be asked now, as the end of a sentence; None: it can."""
        if self.model is None:
            return self._without
        if any(worker.ended for worker in self._workers):
            return ENDED
        late = [age for worker in self._workers if (age := self._late(worker)) is not None]
        if len(late) < len(self._workers):
            return None
        limit = self.limits.deadline_s
        return f"has not ended a call for {max(late):.0f} s, which is longer than limits.deadline_s ({limit:g} s)"

    def _late(self, worker: Worker) -> float | None:
        """Seconds that the call of now has taken, if that is more than a request may take."""
        began = worker.began
        age = 0.0 if began is None else time.monotonic() - began
        return age if age > self.limits.deadline_s else None

    @property
    def info(self) -> RewardInfo:
        """The model's declaration of its scores; raises like `loaded_model`."""
        return self.loaded_model().info

    @property
    def separator(self) -> str | None:
        """The end of steps in the model's training data, if it declares one; raises like `loaded_model`."""
        return getattr(getattr(self.loaded_model(), "card", None), "separator", None) or None

    @property
    def learns(self) -> bool:
        """Whether the model can be updated here."""
        return self.store is not None and isinstance(self.model, Learnable)

    @asynccontextmanager
    async def deadline(self, deadline_s: float | None = None) -> AsyncIterator[Callable[[], float]]:
        """The time limit of one request: when it is over, what waits is cancelled, and what has not begun never does.

        Args:
            deadline_s: seconds from now, at most `limits.deadline_s`; None: that.

        Yields:
            A function that returns the seconds left.

        Raises:
            DeadlineExceeded: the block did not end in time.
        """
        seconds = min(math.inf if deadline_s is None else deadline_s, self.limits.deadline_s)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            async with asyncio.timeout_at(end):
                yield lambda: end - loop.time()
        except (TimeoutError, DeadlineExceeded):
            raise DeadlineExceeded(f"not scored within {seconds:g} s") from None

    async def judge(
        self, episodes: Sequence[Episode], options: JudgeOptions, *, deadline_s: float | None = None
    ) -> list[ExplainedScore]:
        """One explained score per episode, in order; those that cannot be scored carry a `Failure`.

        Args:
            episodes: equal content is scored once, and not again while it is remembered.
            options: choices of the client.
            deadline_s: seconds, at most `limits.deadline_s`; None: that.

        Raises:
            Busy: the queue has no room for the new ones (429); nothing was queued.
            DeadlineExceeded: not all were scored in time (504).
            NotReady: the model is being loaded or unusable (503).
            BadRequest: the model compares, and no two episodes have the same prompt (422).
        """
        compares = self.info.compares
        if not episodes:
            return []
        found = await self._judged(episodes, options, deadline_s, compares=compares)
        if self._keep is not None:
            self._keep(self.name, episodes, found)
        return found

    async def _judged(
        self, episodes: Sequence[Episode], options: JudgeOptions, deadline_s: float | None, *, compares: bool
    ) -> list[ExplainedScore]:
        async with self.deadline(deadline_s) as left:
            if compares:
                return await self._compare(episodes, options)
            sizes = [content_bytes(episode) for episode in episodes]
            here = sum(sizes) <= HASH_HERE
            keys = content_keys(episodes, options) if here else await asyncio.to_thread(content_keys, episodes, options)
            self.loaded_model()
            loop = asyncio.get_running_loop()
            now = loop.time()
            ticket = Ticket(now + left(), loop.create_future(), [None] * len(episodes))
            self._submit(ticket, [Item(*one, options, now) for one in zip(keys, episodes, sizes, strict=True)])
            try:
                await ticket.done
            finally:  # it is cancelled if the time is over or the client has disconnected
                if ticket.left:
                    self._withdraw(ticket, "expired" if left() <= TIMER_S else "cancelled")
        return [explained for explained in ticket.results if explained is not None]

    async def _compare(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """The scores of a model that compares: a request is one call, and nothing of other requests is in it."""
        refuse_alone(episodes, self.name)
        n = len(episodes)
        if self._comparing + n > self.batcher.limit:
            raise Busy(f"{self._comparing} items wait for {self.name!r}; try again later", self._wait_s())
        self._comparing += n
        try:
            found = await self._workers[0].run(judge_all, self.loaded_model(), episodes, options, self.name)
        finally:
            self._comparing -= n
        for one in found:
            self._count_one(one)
        return found

    async def learn(
        self, episodes: Sequence[Episode], when: When = "after", update: UpdateId | None = None
    ) -> UpdateResult:
        """Let the model learn from episodes with an outcome, keep its new state, and score them before or after.

        Args:
            episodes: with outcomes.
            when: learn before or after they are scored.
            update: client and number: sent again it gets the same result, and nothing is learned twice.

        Raises:
            BadRequest: the model does not learn, or an episode has no outcome (422).
            Busy: too many updates wait (429).
            DeadlineExceeded: it was not begun in time, and never will be (504).
            Conflict: the number belongs to another update, or may have been learned (409).
            UpdateFailed: it was not learned or not kept; the model is as before (500).
            NotReady: the model is being loaded or unusable (503).
        """
        model, store = self.loaded_model(), self.store
        if not isinstance(model, Learnable):
            raise BadRequest(f"the model {self.name!r} does not learn while it is served", param="model")
        if store is None:
            raise BadRequest(f"the model {self.name!r} has no update_dir, so it does not learn here", param="model")
        if len(self._jobs) >= WAITING_UPDATES:
            self._metrics.updates.labels(self.name, "refused").inc()
            raise Busy(f"{WAITING_UPDATES} updates of {self.name!r} wait already", 1.0)
        begun = False

        async def work() -> UpdateResult:
            nonlocal begun
            begun = True
            return await self._learn(store, episodes, when, update)

        try:
            return await self._between_batches(work, self.limits.deadline_s)
        except asyncio.CancelledError:
            if not begun:
                self._metrics.updates.labels(self.name, "cancelled").inc()
            raise

    async def reload(self) -> None:
        """Load the model again next to the old one, then exchange them between two batches; no request is lost.

        What has begun goes on when the client disconnects.

        Raises:
            Busy: it is being loaded again already (429).
            NotReady: it was never loaded, or has not ended its calls in time, so that it cannot be exchanged (503).
            ReloadFailed: it cannot be loaded; the old one stays (500).
        """
        if self.loading is None or not self.loading.done():
            raise self._not_ready(self._without)
        self._refuse_no_lane()
        if self._reloading is not None and not self._reloading.done():
            raise Busy(f"the model {self.name!r} is being loaded again already", 1.0)
        self._reloading = asyncio.create_task(self._reload())
        await asyncio.shield(self._reloading)

    async def _reload(self) -> None:
        worker = Worker(f"{self.name}-reload")
        try:
            fresh = await worker.run(self.loader.load)
            self.forecast = await worker.run(card_forecast, self.loader, self.name)
            await self._between_batches(lambda: self._exchange(fresh))
        except ReloadFailed:
            raise
        except GuerdonError as error:
            log.error("reload of %s failed", self.name, exc_info=error)
            raise ReloadFailed(f"the model {self.name!r} could not be loaded again; the old one stays") from error
        finally:
            worker.stop()

    def overload(self) -> float | None:
        """Seconds after which to try again, from a refusal on until as much (at most half the queue) has room."""
        if self._refused and self.batcher.has_room(self._refused):
            self._refused = 0
        return self._wait_s() if self._refused else None

    def _wait_s(self) -> float:
        """Seconds until the queue is empty, at the recent speed."""
        return min(max(len(self.batcher) * self._seconds_per_item, 1.0), 60.0)

    def _not_ready(self, problem: str | None) -> NotReady:
        return NotReady(f"the model {self.name!r} {problem}")

    def _count(self, result: str, n: int) -> None:
        if n:
            self._counts[result].inc(n)

    def _submit(self, ticket: Ticket, items: Sequence[Item]) -> None:
        """Queue what is not known yet, all of it or nothing."""
        known = [self.cache.get(item.key) for item in items]
        new: dict[bytes, Item] = {}
        for item, explained in zip(items, known, strict=True):
            if explained is None and item.key not in self._pending:
                new.setdefault(item.key, item)
        if not self.batcher.has_room(len(new)):
            self._count("refused", len(items))
            self._refused = min(len(new), max(1, self.batcher.limit // 2))
            raise Busy(f"{len(self.batcher)} items wait for {self.name!r}; try again later", self._wait_s())
        for place, (item, explained) in enumerate(zip(items, known, strict=True)):
            if explained is not None:
                ticket.settle(place, explained)
            else:
                (new.get(item.key) or self._pending[item.key]).waiters.append((ticket, place))
        cached = sum(explained is not None for explained in known)
        self._count("cached", cached)
        self._count("shared", len(items) - cached - len(new))
        if new:
            self._pending |= new
            self.batcher.add(list(new.values()))
            self._queue.set(len(self.batcher))
            self._wake.set()
            if len(self.batcher) >= self.batcher.max_items:
                self._hurry.set()

    def _withdraw(self, ticket: Ticket, result: str) -> None:
        """Nobody waits for a request any more: what has not begun, and nobody else waits for, is never scored."""
        items = self.batcher.withdraw(ticket)
        for item in items:
            self._forget(item)
        self._count(result, len(items))
        self._queue.set(len(self.batcher))

    async def _load(self) -> None:
        """Load the model and restore its newest state, both in the worker, which keeps its thread's state."""
        model = await self._workers[0].run(self.loader.load)
        if self.loader.update_dir is not None:
            if not isinstance(model, Learnable):
                raise BadRequest(f"the model {self.name!r} cannot learn while it is served: remove update_dir")
            store = partial(UpdateStore, self.loader.update_dir, keep=self.loader.keep_updates)
            self.store = await self._workers[0].run(store)
            await self._workers[0].run(self.store.resume, model)
        self.forecast = await self._workers[0].run(card_forecast, self.loader, self.name)
        self.model = model

    async def _watch(self) -> None:
        """Count and log calls that take longer than a request may; refuse what waits where all lanes are in one."""
        pause = min(1.0, max(self.limits.deadline_s / 10, 0.01))
        known: dict[Worker, float] = {}  # when the last such call was begun
        while True:
            await asyncio.sleep(pause)
            if self.model is None:  # loading has no limit
                continue
            late = {w: w.began for w in self._workers if self._late(w) is not None}
            new = {w: began for w, began in late.items() if began is not None and began != known.get(w)}
            if not new:
                continue
            known |= new
            self._overdue.inc(len(new))
            log.error("the model %s has not ended a call within %g s", self.name, self.limits.deadline_s)
            if (problem := self.problem) is not None:
                self._refuse_all(problem)

    async def _serve(self, worker: Worker) -> None:
        """Take batch after batch; one task of this per lane."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._wake.wait()
            self._hurry.clear()
            if self._jobs and not (self._job_was_last and self.batcher):  # updates and batches alternate
                job, _ = self._jobs.popleft()
                await job()
                self._job_was_last = True
            elif not self.batcher:
                self._wake.clear()
            elif (wait := self.batcher.wait_s(clock())) > 0:
                try:
                    async with asyncio.timeout(wait):
                        await self._hurry.wait()
                except TimeoutError:
                    pass
            else:
                await self._next_batch(clock(), worker)
                self._job_was_last = False

    async def _next_batch(self, now: float, worker: Worker) -> None:
        share = math.ceil(len(self.batcher) / (self.loader.lanes - self._busy))  # the other free lanes take the rest
        batch, expired = self.batcher.take(now, share)
        self._queue.set(len(self.batcher))
        for item in expired:
            self._forget(item)
        self._count("expired", len(expired))
        if not batch:
            return
        model = self.loaded_model()
        start = time.perf_counter()
        self._busy += 1
        self._scoring.update(batch)
        try:
            scores = await worker.run(judge_all, model, [item.episode for item in batch], batch[0].options, self.name)
        except NotReady as error:
            for item in batch:
                self._forget(item)
                refuse_item(item, error)
            return
        finally:
            self._busy -= 1
            self._scoring.difference_update(batch)
        seconds = time.perf_counter() - start
        self._seconds_per_item += 0.2 * (seconds / len(batch) / self.loader.lanes - self._seconds_per_item)
        self._metrics.batch_items.labels(self.name).observe(len(batch))
        self._metrics.batch_seconds.labels(self.name).observe(seconds)
        for item, explained in zip(batch, scores, strict=True):
            self._settle(item, explained, remember=model is self.model)

    def _forget(self, item: Item) -> None:
        """Let no further request join this item; another one of the same content may have come since a reload."""
        if self._pending.get(item.key) is item:
            del self._pending[item.key]

    def _count_one(self, explained: ExplainedScore) -> None:
        failure = explained.score.failure
        if failure is not None:
            self._metrics.failed(self.name, failure.reason)
        self._count("scored" if failure is None else "failed", 1)

    def _settle(self, item: Item, explained: ExplainedScore, *, remember: bool) -> None:
        self._count_one(explained)
        self._forget(item)
        if remember:  # another lane may have exchanged the model meanwhile
            self.cache.put(item.key, explained)
        for ticket, place in item.waiters:
            ticket.settle(place, explained)

    async def _learn(
        self, store: UpdateStore, episodes: Sequence[Episode], when: When, update: UpdateId | None
    ) -> UpdateResult:
        try:
            model = self.loaded_model()
            done = await self._workers[0].run(learn, model, store, episodes, when, update, self.name)
        except BrokenModel as error:
            self._break("was left unusable by an update; reload it, or restart the server", error)
            raise
        except GuerdonError:
            self._metrics.updates.labels(self.name, "failed").inc()
            raise
        self._metrics.updates.labels(self.name, "repeated" if done.repeated else "learnt").inc()
        if not done.repeated:
            self.cache.clear()  # the old scores are not those of the new weights
        return done

    async def _exchange(self, fresh: RewardModel) -> None:
        """Replace the model by a freshly loaded one; one that learns continues from its newest state."""
        if self.store is not None:
            if not isinstance(fresh, Learnable):
                raise ReloadFailed(f"what was loaded for {self.name!r} does not learn; the old one stays")
            try:
                await self._workers[0].run(self.store.resume, fresh)
            except GuerdonError as error:
                log.error("the newest state of %s does not fit what was loaded", self.name, exc_info=error)
                raise ReloadFailed(
                    f"the learned state of {self.name!r} does not fit what was loaded; the old one stays"
                ) from error
        old, self.model = self.model, fresh
        if len(self._workers) == 1 and (close := getattr(old, "close", None)) is not None:
            await self._workers[0].run(close)
        self._pending = {item.key: item for item in self.batcher}  # other lanes may still score with the old model
        self.cache.clear()

    async def _between_batches(self, work: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """Do something between two batches of a lane; with one lane, no call of the model is running then.

        Raises:
            DeadlineExceeded: it was not begun within these seconds.
            NotReady: no lane comes to a next batch.
        """
        self._refuse_no_lane()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        late = DeadlineExceeded(f"not begun within {seconds or 0:g} s; nothing was learned")
        timer = None if seconds is None else loop.call_later(seconds, resolve, future, late)

        async def job() -> None:
            if timer is not None:
                timer.cancel()
            if future.done():  # too late, or its request was cancelled
                return
            try:
                resolve(future, await work())
            except GuerdonError as error:
                resolve(future, error)
            except asyncio.CancelledError:
                resolve(future, self._not_ready(self._without))
                raise

        self._jobs.append((job, future))
        self._wake.set()
        self._hurry.set()
        try:
            return await future
        finally:  # if it was cancelled or is too late, it makes room for others
            if timer is not None:
                timer.cancel()
            if (job, future) in self._jobs:
                self._jobs.remove((job, future))

    def _break(self, problem: str, error: BaseException) -> None:
        """Answer nothing more: no score is better than one of a model in an unknown state."""
        log.error("the model %s %s", self.name, problem, exc_info=error)
        self.model, self._without = None, problem
        self._refuse_all(problem)

    def _refuse_no_lane(self) -> None:
        """Refuse what needs a lane that comes to its next batch.

        Raises:
            NotReady: there is a model, and none of its lanes does.
        """
        problem = self.problem
        if self.model is not None and problem is not None:
            raise self._not_ready(problem)

    def _refuse_all(self, problem: str) -> None:
        for item in {*self._pending.values(), *self._scoring}:
            refuse_item(item, self._not_ready(problem))
        for _, future in self._jobs:
            resolve(future, self._not_ready(problem))
        self.batcher.drain()
        self._queue.set(0)
        self._pending.clear()
        self._jobs.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break("has stopped: a fault of the server, see its log", error)
