"""Calls of a model: the waiting items, put into batches; remembered results; and the thread that scores and learns.

Items of different requests share a batch if they have the same options and similar lengths, so that padding stays
small; the oldest item is always in the next batch, so that none starves. Items whose deadline has passed are returned
without being scored.

Results are remembered by content: a hash of everything that a model may look at (the task, every column of the
episode, its `meta`, the options), without the id and the outcome. A request that is repeated costs nothing. Failures
are not remembered, so that a repeated request tries again.

Calls are in a thread and not in a process: a reward model spends its time in kernels that release the interpreter lock,
frames need no copying, and the weights are in memory once. One thread per model: models need not be thread-safe, and
more threads would share the same cores. The thread is a daemon, so a model that hangs does not keep the server from
ending.

An exception of a model, of whatever class, is logged in full and becomes a `Failure` without its text, for the item
that caused it alone: a batch that raises is halved until that item is found. A batch whose copy of the model was killed
because it did not answer in time is not: each part could take as long again.

    batcher = Batcher(max_items=32, max_wait_s=0.002, length_ratio=4, limit=1024)
    batcher.add([item], now=0.0)
    batch, expired = batcher.take(now=0.002)
    worker = Worker("prm")
    scores = await worker.run(judge_all, model, episodes, JudgeOptions(), "prm")
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from guerdon.errors import ConfigError, GuerdonError, boundary
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, judge
from guerdon.reading.chats import asked_key, unreadable_texts
from guerdon.serve.errors import BadRequest, BrokenModel, Conflict, ModelFailed, ModelHung, NotReady, UpdateFailed
from guerdon.serve.update_store import UpdateId, UpdateResult, UpdateStore, When
from guerdon.types import Episode, Failure, Learnable, RewardModel, Score

ENDED = "has stopped, because the thread that calls it has ended; restart the server"
LONG = 2_000_000  # characters of texts in one batch: deadlines are checked only between batches
SHORT = 256  # characters or bytes below which length does not matter


@dataclass(eq=False)
class Ticket:
    """One request that waits for its results."""

    deadline: float
    done: asyncio.Future[None]
    results: list[ExplainedScore | None]
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.results)

    def settle(self, place: int, explained: ExplainedScore) -> None:
        """Store one result; the last one ends the wait."""
        self.results[place] = explained
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


@dataclass(eq=False)
class Item:
    """One episode to be scored.

    Attributes:
        key: equal for items that must get the same score.
        length: in characters or bytes, which padding depends on.
        arrived: time of arrival, in seconds of the caller's clock.
        waiters: requests that get the result, each with the item's place in it.
    """

    key: bytes
    episode: Episode
    length: int
    options: JudgeOptions
    arrived: float
    waiters: list[tuple[Ticket, int]] = field(default_factory=list)

    @property
    def characters(self) -> int:
        """The length of texts; 0 for frames."""
        return 0 if self.episode.texts is None else self.length

    @property
    def deadline(self) -> float:
        """The latest deadline of its requests."""
        return max((waiter.deadline for waiter, _ in self.waiters), default=-math.inf)


def refuse_item(item: Item, error: NotReady) -> None:
    """Answer the requests of an item with a 503: they may try again."""
    for ticket, _ in item.waiters:
        resolve(ticket.done, error)


class Batcher:
    """Items in the order in which they arrived.

    Args:
        max_items: per batch.
        max_wait_s: how long the oldest item waits for others; not at all while there is a single client.
        length_ratio: in one batch no item is longer or shorter than the oldest by more than this factor.
        limit: items that may wait.
    """

    def __init__(self, *, max_items: int, max_wait_s: float, length_ratio: float, limit: int) -> None:
        self.max_items, self.max_wait_s, self.length_ratio, self.limit = max_items, max_wait_s, length_ratio, limit
        self._items: list[Item] = []
        self._shared = False  # whether there were several clients at the last batch, so that waiting may be worth it

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def has_room(self, n: int) -> bool:
        """Whether `n` more items may wait."""
        return len(self._items) + n <= self.limit

    def add(self, items: Sequence[Item]) -> None:
        """Add items; the caller has checked `has_room`."""
        assert self.has_room(len(items))
        self._shared |= bool(self._items)
        self._items.extend(items)

    def wait_s(self, now: float) -> float:
        """Seconds until a batch should go: 0 if it is full, its oldest item waited enough, or there is one client."""
        if not self._items:
            return math.inf
        if len(self._items) >= self.max_items or not self._shared:
            return 0.0
        return max(0.0, self._items[0].arrived + self.max_wait_s - now)

    def take(self, now: float, most: int | None = None) -> tuple[list[Item], list[Item]]:
        """The next batch, and the items before it whose deadline has passed.

        Args:
            now: the time.
            most: items at most; None: `max_items`.

        Returns:
            Both leave the queue. Items without a waiting request count as expired.
        """
        batch: list[Item] = []
        expired: list[Item] = []
        rest: list[Item] = []
        room, characters = min(self.max_items, most or self.max_items), 0
        for place, item in enumerate(self._items):
            if len(batch) == room:
                rest += self._items[place:]
                break
            if item.deadline <= now:
                expired.append(item)
            elif not batch or (self._fits(batch[0], item) and characters + item.characters <= LONG):
                batch.append(item)
                characters += item.characters
            else:
                rest.append(item)
        self._items = rest
        waiters = (waiter for item in itertools.chain(batch, rest) for waiter, _ in item.waiters)
        first = next(waiters, None)
        self._shared = any(waiter is not first for waiter in waiters)
        return batch, expired

    def withdraw(self, ticket: Ticket) -> list[Item]:
        """The items that only this request waited for; they leave the queue. Others lose it as a waiter."""
        left: list[Item] = []
        for item in self._items:
            if any(waiter is ticket for waiter, _ in item.waiters):
                item.waiters = [waiting for waiting in item.waiters if waiting[0] is not ticket]
                if not item.waiters:
                    left.append(item)
        if left:
            gone = set(left)
            self._items = [item for item in self._items if item not in gone]
        return left

    def drain(self) -> list[Item]:
        """All items; the queue is empty afterwards."""
        items, self._items = self._items, []
        return items

    def _fits(self, first: Item, item: Item) -> bool:
        short, long = sorted((max(first.length, SHORT), max(item.length, SHORT)))
        return item.options == first.options and long <= short * self.length_ratio


def content_key(episode: Episode, options: JudgeOptions) -> bytes:
    """16 bytes that are equal if and only if a model would see the same."""
    chosen = (options.nframes, options.max_pixels, options.prompt, options.score_mode)
    head: list[object] = [episode.task, chosen, episode.texts]
    digest = blake2b(digest_size=16)
    for name in ("frames", "states", "actions", "rewards", "success"):
        array = getattr(episode, name)
        if array is not None:
            head.append((name, array.shape, array.dtype.str))
            digest.update(np.ascontiguousarray(array).data)
    if episode.context or episode.tools:
        head.append(asked_key("", episode.context, episode.tools))
    if episode.meta:
        head.append(json.dumps(episode.meta, sort_keys=True, default=repr))
    digest.update(repr(head).encode("utf-8", "surrogatepass"))
    return digest.digest()


def content_keys(episodes: Sequence[Episode], options: JudgeOptions) -> list[bytes]:
    """`content_key` of each episode."""
    return [content_key(episode, options) for episode in episodes]


def content_bytes(episode: Episode) -> int:
    """Size of an episode in bytes or characters, which the time of hashing and the padding depend on."""
    arrays = (episode.frames, episode.states, episode.actions)
    asked = asked_key(episode.task, episode.context, episode.tools)
    return sum(a.nbytes for a in arrays if a is not None) + len(asked) + sum(map(len, episode.texts or ()))


class ResultCache:
    """The results used last.

    Args:
        size: number of results to keep; 0: none.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._results: OrderedDict[bytes, ExplainedScore] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: bytes) -> ExplainedScore | None:
        """The result for this content, or None."""
        found = self._results.get(key)
        if found is not None:
            self._results.move_to_end(key)
        return found

    def put(self, key: bytes, explained: ExplainedScore) -> None:
        """Keep a result, unless it is a failure."""
        if not self.size or explained.score.failure is not None:
            return
        self._results[key] = explained
        self._results.move_to_end(key)
        if len(self._results) > self.size:
            self._results.popitem(last=False)

    def clear(self) -> None:
        """Remove all: the model has changed."""
        self._results.clear()


RAISED = Failure("model_error", "the model could not score this item; see the server's log")
log = logging.getLogger("guerdon.serve")
T = TypeVar("T")


class _Job(NamedTuple):
    """A call, and who waits for its result in which event loop."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    call: Callable[[], Any]

    def tell(self, result: object) -> None:
        """Give the waiting coroutine the result, or the exception to raise; nobody waits in a loop that is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(resolve, self.future, result)


class Worker:
    """Runs functions one after another in a thread of its own.

    Args:
        name: name of the model, for messages.

    Attributes:
        began: when the call of now was begun, in seconds of `time.monotonic`; None while there is none.
        ended: the thread has ended, so that nothing is run any more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.began: float | None = None
        self.ended = False
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._work, name=f"guerdon-{name}", daemon=True).start()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result; it is called in the worker's thread, after all earlier jobs.

        Raises:
            GuerdonError: raised by the function; any other exception becomes the cause of a `ModelFailed`.
            NotReady: the thread has ended.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(loop, future, partial(function, *arguments)))
        if self.ended:
            self._refuse_left()
        return await future

    def stop(self) -> None:
        """End the thread after the jobs that it has already."""
        self._jobs.put(None)

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                self._do(job)
                del job  # release the episodes while waiting
        finally:
            self.ended = True
            self._refuse_left()

    def _do(self, job: _Job) -> None:
        """Make a call, unless nobody waits for it any more; whatever happens, there is a result."""
        if job.future.done():
            return
        self.began = time.monotonic()
        try:
            with boundary(ModelFailed, self._name):
                result: object = job.call()
        except GuerdonError as error:
            result = error
        except BaseException:  # the thread ends, which is known before anybody has the answer
            self.ended = True
            job.tell(self._refusal())
            raise
        finally:
            self.began = None
        job.tell(result)
        del result  # an exception holds this frame

    def _refuse_left(self) -> None:
        """Give every job that will not be run an exception."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None:
                job.tell(self._refusal())

    def _refusal(self) -> NotReady:
        return NotReady(f"the model {self._name!r} {ENDED}")


def resolve(future: asyncio.Future[Any], result: object) -> None:
    """Give a future its result, or the exception to raise, unless it is done."""
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def refuse_alone(episodes: Sequence[Episode], name: str) -> None:
    """Refuse a request in which a model that compares has nothing to compare.

    Raises:
        BadRequest: no two episodes have the same prompt.
    """
    if len({asked_key(one.task, one.context, one.tools) for one in episodes}) == len(episodes):
        raise BadRequest(
            f"the model {name!r} compares responses to the same prompt, and every item has another one: send all "
            "responses to a prompt in one request",
            param="items",
        )


def judge_all(
    model: RewardModel, episodes: Sequence[Episode], options: JudgeOptions, name: str
) -> list[ExplainedScore]:
    """One explained score per episode, in order. An episode at which the model raises is a `Failure("model_error")`.

    All episodes are, where the model compares them. Those of a call that did not end in time, and was ended, are a
    `Failure("model_hung")`.

    Raises:
        NotReady: no copy of the model can be called now, which is not the fault of the episodes.
    """
    unread = unreadable_texts(episodes)
    if unread:
        rest = [one for i, one in enumerate(episodes) if i not in unread]
        found = iter(judge_all(model, rest, options, name) if rest else ())
        return [ExplainedScore(Score(failure=unread[i])) if i in unread else next(found) for i in range(len(episodes))]
    try:
        with boundary(ModelFailed, f"the model {name} raised on {len(episodes)} items"):
            return _checked(judge(model, list(episodes), options), episodes)
    except NotReady:
        raise
    except ModelHung as error:
        log.error("%s", error)
        return [ExplainedScore(Score(failure=Failure("model_hung", str(error))))] * len(episodes)
    except GuerdonError as error:
        if isinstance(error, ConfigError) and options != JudgeOptions():  # the client's own option: it may read why
            return [ExplainedScore(Score(failure=Failure("bad_option", str(error))))] * len(episodes)
        if len(episodes) == 1 or model.info.compares:
            log.error("%s", error, exc_info=error)
            return [ExplainedScore(Score(failure=RAISED))] * len(episodes)
        log.warning("%s; they are scored in smaller parts", error)
    half = len(episodes) // 2
    return judge_all(model, episodes[:half], options, name) + judge_all(model, episodes[half:], options, name)


def _checked(scores: list[ExplainedScore], episodes: Sequence[Episode]) -> list[ExplainedScore]:
    """The scores, if there is one per episode; values for another number of rows become a `Failure`."""
    if len(scores) != len(episodes):
        raise ModelFailed(f"{len(scores)} scores for {len(episodes)} episodes")
    checked = []
    for explained, episode in zip(scores, episodes, strict=True):
        steps = explained.score.steps
        if steps is not None and steps.shape != (len(episode),):
            detail = f"{steps.shape} values for {len(episode)} rows"
            explained = ExplainedScore(Score(failure=Failure("wrong_length", detail)), explained.text)
        checked.append(explained)
    return checked


def learn(
    model: RewardModel, store: UpdateStore, episodes: Sequence[Episode], when: When, update: UpdateId | None, name: str
) -> UpdateResult:
    """Score and learn in the requested order, and write the new state before the result is returned.

    Args:
        model: learns.
        store: keeps its states.
        episodes: with outcomes.
        when: learn before or after the episodes are scored.
        update: client and number; an update that was learned before gets its old result, and nothing is learned twice.
        name: of the model.

    Raises:
        BadRequest: there is no episode, or one has no outcome.
        Conflict: the number belongs to another update, or may have been learned.
        UpdateFailed: it was not learned or not kept; the model is in its last kept state again.
        BrokenModel: and that state could not be restored either.
    """
    learner = cast(Learnable, model)
    content = _content_of(episodes, when)
    if update is not None and (known := store.answer(update)) is not None:
        if known["content"] != content:
            raise Conflict(
                f"update {update.number} of this client had other content; give each update a number of its own",
                param="number",
            )
        scores = [ExplainedScore.from_json(record) for record in known["judgements"]]
        return UpdateResult(scores, known["metrics"], known["updates"], repeated=True)
    scores = judge_all(model, episodes, JudgeOptions(), name) if when == "after" else []
    try:
        with boundary(ModelFailed, f"the model {name} raised while learning from {len(episodes)} items"):
            learned = learner.learn(list(episodes))
            metrics = {key: float(value) for key, value in learned.items() if value is not None}
            if when == "before":
                scores = judge_all(model, episodes, JudgeOptions(), name)
            kept = [explained.to_json() for explained in scores]
            answer = {"content": content, "metrics": metrics, "judgements": kept, "updates": store.updates + 1}
            store.commit(learner, update, answer)
    except GuerdonError as error:
        log.error("%s", error, exc_info=error)
        _restore(learner, store, name)
        raise UpdateFailed(f"the model {name!r} did not learn this; it is as it was before") from error
    return UpdateResult(scores, metrics, store.updates)


def _content_of(episodes: Sequence[Episode], when: When) -> str:
    """A hash of what is learned.

    Raises:
        BadRequest: there is no episode, or one has no outcome.
    """
    lacking = [i for i, episode in enumerate(episodes) if episode.outcome is None]
    if lacking or not episodes:
        where = f"items[{lacking[0]}] has none" if lacking else "there are no items"
        raise BadRequest(f"a model learns from items with an outcome, and {where}", param="items")
    digest = blake2b(when.encode(), digest_size=16)
    for episode in episodes:
        digest.update(content_key(episode, JudgeOptions()) + repr(episode.outcome).encode())
    return digest.hexdigest()


def _restore(learner: Learnable, store: UpdateStore, name: str) -> None:
    """Return to the last state that was kept."""
    try:
        with boundary(ModelFailed, f"the model {name} cannot return to its last state"):
            store.resume(learner)
    except GuerdonError as error:
        log.error("%s", error, exc_info=error)
        raise BrokenModel(f"the model {name!r} did not learn this and cannot be used any more") from error
