"""Who is asked what next, and what people said: all of it in append-only files, so that a kill loses nothing.

An item is in the hands of a person from when it is handed out until it is judged; after `HELD_S` without a judgement it
goes to the next who asks. A judgement is on the disk before it is acknowledged, and its key makes a repeated request
harmless. A judgement that is taken back stays in the log, with a row that says so.

    with closing(Judgements(Path("rollouts.labels"), "responses", asks, people=[""])) as judgements:
        (ticket,) = judgements.next("", 1)
        judgements.judge("", {"key": "a1b2c3d4", "item": ticket, "judgement": "right"})
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from guerdon.annotate.criteria import LEAST_JUDGED, shares_of
from guerdon.annotate.items import Kind
from guerdon.files.append_log import AppendLog
from guerdon.models.judges.rubric import Rubric

LOG = "judgements.jsonl"
HANDED = "handed.jsonl"
HELD_S = 600.0  # how long an item is kept for the person that it was handed to
APART = 20  # other items between two judgements of one person on one item
SKIP, CANNOT_TELL, DISCARD, RATED = "skip", "cannot_tell", "discard", "rated"
FIELDS = ("judgement", "row", "step", "scores", "note", "seconds")  # of a judgement
_AGAIN = ".2"  # end of the name under which an item is handed to one person a second time
_WORDS: Mapping[Kind, Mapping[str, float]] = {
    "episodes": {"success": 1.0, "failure": 0.0, CANNOT_TELL: np.nan, DISCARD: np.nan},
    "responses": {"right": 1.0, "wrong": 0.0, CANNOT_TELL: np.nan},
    "pairs": {"first": 1.0, "second": 0.0, "equal": 0.5, CANNOT_TELL: np.nan},
    "steps": {"wrong": np.nan, "right": -1.0, CANNOT_TELL: np.nan},
}  # with their numbers; that of a wrong step is its place


def words_of(kind: Kind, scale: int | None, rubric: Rubric | None = None) -> tuple[str, ...]:
    """The judgements of a kind of items; of responses on a scale its numbers."""
    if rubric is not None:
        return (RATED, CANNOT_TELL)
    if scale is not None:
        return (*map(str, range(1, scale + 1)), CANNOT_TELL)
    return tuple(_WORDS[kind])


class Ask(NamedTuple):
    """An item in the order in which they are asked.

    Attributes:
        id: of the item.
        place: in the items of the data; None: it is not there any more.
        draw: from 1.
        probability: with which it was drawn of those that were left.
        twice: it is judged by two people, or twice by the only one.
        swapped: the second response of a pair is shown first.
    """

    id: str
    place: int | None
    draw: int
    probability: float
    twice: bool
    swapped: bool


@dataclass(frozen=True)
class Judgement:
    """What a person said of an item, or that it was skipped.

    Attributes:
        key: made by the page.
        person: empty where there is only one.
        ticket: the name under which the item was handed out.
        number: of the item in the order in which they are asked.
        word: of the judgement.
        value: as a number, see `Items.truth`; NaN: it is none.
        row: of an episode, the moment of success; None: the last one.
        step: the first wrong one.
        scores: by criterion of a rubric the number of a choice, from 1; None: it cannot be told.
        note: a comment.
        seconds: that it took.
    """

    key: str
    person: str
    ticket: str
    number: int
    word: str
    value: float
    row: int | None = None
    step: int | None = None
    scores: Mapping[str, int | None] | None = None
    note: str = ""
    seconds: float | None = None


class KeyConflictError(Exception):
    """A key was used for something else before."""


class NoSuchItemError(Exception):
    """There is no such item, or no judgement of this person that could be taken back."""


class NotHandedError(Exception):
    """The item was not handed to this person; `judged`: it was, and has a judgement already."""

    def __init__(self, *, judged: bool) -> None:
        super().__init__()
        self.judged = judged


class Judgements:
    """The judgements of a folder, and the queue of each person.

    Args:
        folder: receives the files.
        kind: of the items.
        asks: the items in the order in which they are asked.
        people: names; one empty name where there is only one person.
        rubric: by which responses are judged.
        stored: what every row of the log has besides.
        clock: seconds, for how long items are held.

    Attributes:
        given: by number of the item, the judgements that count.
        orphans: names of items of the log that the data does not have any more.
        taken_back: how many judgements were.
        skipped: draws that some person skipped and nobody judged.

    Raises:
        DataError: a file cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        asks: Sequence[Ask],
        people: Sequence[str],
        *,
        rubric: Rubric | None = None,
        stored: Mapping[str, Any] | None = None,
        clock: Any = time.monotonic,
    ) -> None:
        self.kind, self.asks, self.people, self.clock = kind, asks, list(people), clock
        self.rubric, self.stored = rubric, dict(stored or {})
        self.given: list[list[Judgement]] = [[] for _ in asks]
        self.orphans: dict[str, int] = {}
        self.taken_back = 0
        self._number = {ask.id: k for k, ask in enumerate(asks)}
        self._history: dict[str, list[Judgement]] = {person: [] for person in people}
        self._handed: dict[str, set[str]] = {person: set() for person in people}
        self._hands: dict[str, dict[str, None]] = {person: {} for person in people}
        self._later: dict[str, dict[str, None]] = {person: {} for person in people}  # skipped, asked at the end
        self._holders: dict[int, dict[str, float]] = {}  # until when, by item and person
        self._answers: dict[str, tuple[str, Any, str | None]] = {}  # person, content and ticket by key
        self._begun: dict[int, int] = {}  # judgements before the first one of an item, of the only person
        self._undone: dict[str, Judgement] = {}  # by key
        self._lowest = 0  # all items before it have their judgements
        missing = [self._missing(number) for number in range(len(asks))]
        self._lacking, self._open = sum(missing), sum(map(bool, missing))  # judgements, and items that lack one
        self._own_open = dict.fromkeys(people, 0)  # of these, those that a person has judged
        self._log, self._handed_log = AppendLog(folder / LOG), AppendLog(folder / HANDED)
        for row in self._handed_log.rows:
            self._take(row["person"], row["items"])
        for row in self._log.rows:
            self._replay(row)
        for person, hands in self._hands.items():  # a page may still show them: nobody else gets them at once
            for number in [found for found in map(self.number_of, hands) if found is not None]:
                self._holders.setdefault(number, {})[person] = clock() + HELD_S
        self._log.rows, self._handed_log.rows = [], []

    def close(self) -> None:
        """Close the files."""
        self._log.close()
        self._handed_log.close()

    @property
    def alone(self) -> bool:
        """Whether there is only one person."""
        return len(self.people) == 1

    @property
    def skipped(self) -> int:
        """Items that somebody skipped and nobody judged."""
        tickets = [ticket for those in self._later.values() for ticket in list(those)]  # others may skip meanwhile
        later = {self.number_of(ticket) for ticket in tickets}
        return sum(not self.given[number] for number in later if number is not None)

    def number_of(self, ticket: str) -> int | None:
        """The number of an item that was handed out under this name; None: there is none, or it is gone."""
        number = self._number.get(ticket.removesuffix(_AGAIN))
        return None if number is None or self.asks[number].place is None else number

    def done(self, person: str) -> int:
        """How many judgements of a person count."""
        return sum(one.word != SKIP for one in self._history[person])

    def left(self, person: str) -> int:
        """How many judgements this person can still give."""
        return self._lacking if self.alone else self._open - self._own_open[person]

    # ---- what is asked next

    def next(self, person: str, count: int) -> list[str]:
        """The names of the next items of a person: those in their hands, then new ones, then those they skipped.

        Raises:
            DataError: it cannot be written.
        """
        now, hands = self.clock(), self._hands[person]
        for ticket in [one for one in hands if self._is_lost(one, person, now)]:
            del hands[ticket]
        found = list(hands)[:count]
        new = self._new(person, count - len(found), now)
        if new:
            self._handed_log.append({"person": person, "items": new})
            self._take(person, new)
        found += new
        found += self._skipped(person, count - len(found), now)
        for ticket in found:
            self._holders.setdefault(self._number[ticket.removesuffix(_AGAIN)], {})[person] = now + HELD_S
        return found

    def _skipped(self, person: str, count: int, now: float) -> list[str]:
        """Names of items that a person has skipped and that still lack a judgement."""
        found = [(ticket, self.number_of(ticket)) for ticket in self._later[person]]
        return [one for one, k in found if k is not None and self._wanted(k, person, now) > 0][:count]

    def _take(self, person: str, tickets: Sequence[str]) -> None:
        """Items that a person gets into their hands."""
        if person not in self._hands:
            return
        for ticket in tickets:
            self._handed[person].add(ticket)
            if self.number_of(ticket) is not None:
                self._hands[person][ticket] = None

    def _is_lost(self, ticket: str, person: str, now: float) -> bool:
        """Whether an item in the hands of a person has gone to others, since it was not judged for long."""
        number = self.number_of(ticket)
        if number is None:
            return True
        own = self._holders.get(number, {}).get(person, 0.0)
        return not self.alone and own <= now and self._wanted(number, person, now) <= 0

    def _new(self, person: str, count: int, now: float) -> list[str]:
        """Names of items that this person may judge and has not in their hands; of the only person none too soon."""
        found: list[str] = []
        for gap in (APART, 0) if self.alone else (APART,):
            for number in range(self._lowest, len(self.asks)):
                if len(found) >= count:
                    return found
                ticket = self._ticket(number, person, now, gap)
                if ticket is not None and ticket not in found:
                    found.append(ticket)
        return found

    def _ticket(self, number: int, person: str, now: float, gap: int) -> str | None:
        """The name under which an item is handed to a person now; None: it is not."""
        ask, given = self.asks[number], self.given[number]
        if ask.place is None or len(given) >= 1 + ask.twice:
            return None
        ticket = ask.id
        if self.alone and given:
            if self.done(person) - self._begun[number] < gap:
                return None
            ticket += _AGAIN
        elif any(one.person == person for one in given) or self._wanted(number, person, now) <= 0:
            return None
        is_there = ticket in self._hands[person] or ticket in self._later[person]
        return None if is_there else ticket

    def _wanted(self, number: int, person: str, now: float) -> int:
        """How many judgements an item lacks, without those that other people are about to give."""
        others = sum(until > now and who != person for who, until in self._holders.get(number, {}).items())
        return self._missing(number) - others

    def _missing(self, number: int) -> int:
        ask = self.asks[number]
        return 0 if ask.place is None else max(1 + ask.twice - len(self.given[number]), 0)

    # ---- what people say

    def judge(self, person: str, content: Mapping[str, Any]) -> str:
        """Keep a judgement.

        Args:
            person: who gives it.
            content: `key`, `item` (the name under which it was handed out), and `FIELDS` where they are known.

        Returns:
            The name of the item.

        Raises:
            KeyConflictError: the key was used for something else.
            NoSuchItemError: there is no such item.
            NotHandedError: it was not handed to this person, or has a judgement already.
            DataError: it cannot be written.
        """
        key, ticket = content["key"], content["item"]
        kept = {name: content.get(name) for name in ("item", *FIELDS)}
        if key in self._answers:
            return str(self._answer(person, key, kept))
        number = self.number_of(ticket)
        if number is None:
            raise NoSuchItemError
        if any(one.person == person and one.ticket == ticket for one in self.given[number]):
            raise NotHandedError(judged=True)
        if ticket not in self._handed[person]:
            raise NotHandedError(judged=False)
        ask = self.asks[number]
        row = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "person": person, "key": key, **kept,
            "item": ask.id, "draw": ask.draw, "draw_probability": ask.probability, "pool": len(self.asks),
        }  # fmt: skip
        row |= {"again": True} if ticket != ask.id else {}
        row |= {"swapped": ask.swapped} if self.kind == "pairs" else {}
        self._log.append(row | self.stored)
        self._replay(row)
        return str(ticket)

    def undo(self, person: str, key: str, which: str | None) -> Judgement | None:
        """Take a judgement back; the item is in the hands of the person again.

        Args:
            person: whose judgement.
            key: of the request.
            which: the key of the judgement; None: the last one that counts.

        Returns:
            What was taken back; None: there is nothing.

        Raises:
            KeyConflictError: the key was used for something else.
            NoSuchItemError: this person has no judgement of that key.
            DataError: it cannot be written.
        """
        if key in self._answers:
            return self._undone.get(str(self._answer(person, key, {"undo": which})))
        history = self._history[person]
        one = next((one for one in reversed(history) if which in (None, one.key)), None)
        if one is None and which is not None:
            raise NoSuchItemError
        if one is None:
            return None
        row = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "person": person, "key": key,
            "item": self.asks[one.number].id, "undo": one.key, "asked": which,
        }  # fmt: skip
        self._log.append(row)
        self._replay(row)
        return one

    def _answer(self, person: str, key: str, content: Mapping[str, Any]) -> str | None:
        """What was answered to a request before.

        Raises:
            KeyConflictError: that was another request.
        """
        who, known, answer = self._answers[key]
        if who != person or known != content:
            raise KeyConflictError
        return answer

    def _replay(self, row: Mapping[str, Any]) -> None:
        """What follows from a row of the log."""
        person, key = row["person"], row["key"]
        if "undo" in row:
            self._answers[key] = (person, {"undo": row.get("asked")}, row["undo"])
            self._take_back(person, row["undo"])
            return
        ticket = row["item"] + (_AGAIN if row.get("again") else "")
        kept = {name: row.get(name) for name in FIELDS}
        self._answers[key] = (person, {"item": ticket, **kept}, ticket)
        number = self.number_of(ticket)
        if number is None:
            self.orphans[row["item"]] = self.orphans.get(row["item"], 0) + 1
            return
        word, scores = row["judgement"], row.get("scores")
        value = self._value(number, word, row.get("step"), scores)
        said = Judgement(
            key, person, ticket, number, word, value, row.get("row"), row.get("step"), scores, row.get("note") or "",
            row.get("seconds"),
        )  # fmt: skip
        self._history.setdefault(person, []).append(said)
        self._hands.get(person, {}).pop(ticket, None)
        self._holders.get(number, {}).pop(person, None)
        if said.word == SKIP:
            self._later.setdefault(person, {})[ticket] = None
            return
        self._later.get(person, {}).pop(ticket, None)
        self._begun.setdefault(number, self.done(person))
        self._change(number, [*self.given[number], said])

    def _take_back(self, person: str, key: str) -> None:
        """What follows from a judgement that is taken back; of an item that is gone nothing."""
        history = self._history.get(person, [])
        one = next((one for one in reversed(history) if one.key == key), None)
        if one is None:
            return
        history.remove(one)
        self._undone[key] = one
        self.taken_back += 1
        self._later.get(person, {}).pop(one.ticket, None)
        rest = [other for other in self.given[one.number] if other.key != key]
        if not rest:
            self._begun.pop(one.number, None)
        self._change(one.number, rest)
        self._handed.setdefault(person, set()).add(one.ticket)
        self._hands[person] = {one.ticket: None, **self._hands.get(person, {})}
        self._holders.setdefault(one.number, {})[person] = self.clock() + HELD_S

    def _change(self, number: int, given: list[Judgement]) -> None:
        """Replace the judgements of an item, and count what is missing."""
        self._count(number, -1)
        self.given[number] = given
        self._count(number, 1)
        self._lowest = min(self._lowest, number)
        while self._lowest < len(self.asks) and not self._missing(self._lowest):
            self._lowest += 1

    def _count(self, number: int, sign: int) -> None:
        missing = self._missing(number)
        self._lacking += sign * missing
        self._open += sign * (missing > 0)
        for one in self.given[number] if missing else ():
            self._own_open[one.person] = self._own_open.get(one.person, 0) + sign

    def _value(self, number: int, word: str, step: int | None, scores: Mapping[str, int | None] | None) -> float:
        """A judgement as a number; of a pair it is about the response that the data has first."""
        if self.rubric is not None:
            total = self.rubric.total(shares_of(self.rubric, scores), LEAST_JUDGED)
            return np.nan if total is None else total
        if word.isdigit():
            return float(word)
        if self.kind == "steps" and word == "wrong" and step is not None:
            return float(step)
        value = _WORDS[self.kind].get(word, np.nan)
        return 1 - value if self.asks[number].swapped and self.kind == "pairs" else value
