"""The queue of one model: bounded, first come first served, and put into batches of like items.

Items of different requests share a batch when they ask the same question and are of similar length, so that padding
stays small; the oldest item always goes in the next batch, so that nobody starves. Items whose deadline has passed
are handed back instead of being scored. It holds no clock, no thread and no model.

    batcher = Batcher(max_items=32, max_wait_s=0.002, length_ratio=4, limit=1024)
    batcher.add([item], now=0.0)
    batch, expired = batcher.take(now=0.002)
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.types import Episode

LONG = 2_000_000  # characters of texts in one batch: whether an item is still wanted is looked at between batches
SHORT = 256  # characters or bytes below which length does not matter


class Waiter(Protocol):
    """Who wants the result of an item, until when."""

    deadline: float


W = TypeVar("W", bound=Waiter)


@dataclass(eq=False)
class Item(Generic[W]):
    """One episode to be judged.

    Attributes:
        key: equal for items that must get the same judgement.
        length: in characters or bytes, what padding goes by.
        arrived: when it came, in seconds of the caller's clock.
        waiters: who gets the result, each with the place that it has there.
    """

    key: bytes
    episode: Episode
    options: JudgeOptions
    length: int
    arrived: float
    waiters: list[tuple[W, int]] = field(default_factory=list)

    @property
    def characters(self) -> int:
        """The length where it is text."""
        return 0 if self.episode.texts is None else self.length

    @property
    def deadline(self) -> float:
        """When the last waiter gives up."""
        return max((waiter.deadline for waiter, _ in self.waiters), default=-math.inf)


@dataclass(eq=False)
class Ticket:
    """One request that waits for its results."""

    deadline: float
    done: asyncio.Future[None]
    results: list[ExplainedScore | None]
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.results)

    def settle(self, place: int, judgement: ExplainedScore) -> None:
        """Put a result in its place; the last one ends the wait."""
        self.results[place] = judgement
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


class Batcher(Generic[W]):
    """Items in the order in which they came.

    Args:
        max_items: per batch.
        max_wait_s: how long the oldest item waits for company; not at all while a single client asks.
        length_ratio: in one batch no item is longer or shorter than the oldest by more than this factor.
        limit: items that may wait.
    """

    def __init__(self, *, max_items: int, max_wait_s: float, length_ratio: float, limit: int) -> None:
        self.max_items, self.max_wait_s, self.length_ratio, self.limit = max_items, max_wait_s, length_ratio, limit
        self._items: list[Item[W]] = []
        self._company = False  # whether others asked at the time of the last batch, so that waiting may be worth it

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item[W]]:
        return iter(self._items)

    def has_room(self, n: int) -> bool:
        """Whether `n` more items may wait."""
        return len(self._items) + n <= self.limit

    def add(self, items: Sequence[Item[W]]) -> None:
        """Let items wait; the caller asked `has_room` first."""
        assert self.has_room(len(items))
        self._company |= bool(self._items)
        self._items.extend(items)

    def wait_s(self, now: float) -> float:
        """Seconds until a batch should go: 0 when it is full, its oldest item waited enough, or nobody else asks."""
        if not self._items:
            return math.inf
        if len(self._items) >= self.max_items or not self._company:
            return 0.0
        return max(0.0, self._items[0].arrived + self.max_wait_s - now)

    def take(self, now: float, most: int | None = None) -> tuple[list[Item[W]], list[Item[W]]]:
        """The next batch, and the items before it whose time is over.

        Args:
            now: the time.
            most: items at most; None: `max_items`.

        Returns:
            Both leave the queue. Items that nobody waits for any more count as expired.
        """
        batch: list[Item[W]] = []
        expired: list[Item[W]] = []
        rest: list[Item[W]] = []
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
        self._company = any(waiter is not first for waiter in waiters)
        return batch, expired

    def drain(self) -> list[Item[W]]:
        """Everything that waits; the queue is empty afterwards."""
        items, self._items = self._items, []
        return items

    def _fits(self, first: Item[W], item: Item[W]) -> bool:
        short, long = sorted((max(first.length, SHORT), max(item.length, SHORT)))
        return item.options == first.options and long <= short * self.length_ratio
