"""The waiting items of one model, put into batches of similar items; and the results that are remembered.

Items of different requests share a batch if they have the same options and similar lengths, so that padding stays
small; the oldest item is always in the next batch, so that none starves. Items whose deadline has passed are returned
without being scored. There is no clock, no thread and no model here.

Results are remembered by content: a hash of everything that a model may look at (the task, every column of the
episode, its `meta`, the options), without the id and the outcome. A request that is repeated costs nothing. Failures
are not remembered, so that a repeated request tries again.

    batcher = Batcher(max_items=32, max_wait_s=0.002, length_ratio=4, limit=1024)
    batcher.add([item], now=0.0)
    batch, expired = batcher.take(now=0.002)
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from guerdon.episodes.chats import asked_key
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.types import Episode

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
