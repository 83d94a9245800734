"""Outcomes of recordings that do not say them: a file with the columns `episode` and `success`.

outcomes = read_outcomes("labels.csv")
for episode in read_episodes("recordings", outcomes=outcomes):
print(episode.id, episode.outcome)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guerdon.episodes.index import Entry
from guerdon.errors import DataError
from guerdon.reading.cells import sketches_of
from guerdon.reading.codings import TRUTH, Coding, label_codings
from guerdon.reading.containers import good_rows
from guerdon.reading.values import canonical

EPISODE, SUCCESS = "episode", "success"
_SHOWN = 10  # numbers in a message


@dataclass(frozen=True)
class Outcomes:
    """Which episodes of a data set succeeded, as a file says.

    Attributes:
        path: of the file.
        known: number (or id) of an episode, as text, to whether it succeeded.
        at_end: whether the last row of a success is the moment of it, where no row is marked.
    """

    path: str
    known: dict[str, bool]
    at_end: bool = False

    def given_to(self, entries: Sequence[Entry], lost: Collection[int], root: Path) -> list[Entry]:
        """The episodes of a data set with these outcomes.

        Args:
            entries: that can be read.
            lost: numbers of those that cannot; the file may name them.
            root: of the data set.

        Raises:
            DataError: the file lacks one of them, names others, or contradicts what the data set says.
        """
        keys = [key for entry in entries if (key := self._key(entry)) is not None]
        other = [key for key in self.known if key not in {*keys, *map(str, lost)}]
        if other:
            raise DataError(
                f"{root} has no episode {_listed(other)}; remove these rows", where=self.path, field=EPISODE
            )
        missing = [entry.id for entry in entries if self._key(entry) is None]
        if missing:
            raise DataError(
                f"the success of episode {_listed(missing)} of {root} is missing", where=self.path, field=SUCCESS
            )
        found = [replace(one, outcome=self.of(one), outcome_known=True) for one in entries]
        changed = [
            new.id for old, new in zip(entries, found, strict=True)
            if old.outcome_known and old.outcome is not None and old.outcome != new.outcome
        ]  # fmt: skip
        if changed:
            raise self.contradicts(changed, root)
        return found

    def of(self, entry: Entry) -> bool:
        """Whether an episode succeeded."""
        return self.known[str(self._key(entry))]

    def contradicts(self, episodes: Sequence[str], root: Path) -> DataError:
        """The refusal of outcomes that differ from those in the data."""
        return DataError(
            f"{root} itself says otherwise of episode {_listed(episodes)}: leave out the file, or correct the data set",
            where=self.path,
            field=SUCCESS,
        )

    def _key(self, entry: Entry) -> str | None:
        """What the file calls an episode: its number, or its id."""
        return next((key for key in (str(entry.index), canonical(entry.id)) if key in self.known), None)


def read_outcomes(path: str, *, at_end: bool = False) -> Outcomes:
    """Read a file of outcomes: CSV, JSON, JSONL or Parquet.

    The words of `success` are read over the whole column: true/false, 1/0, yes/no, success/failure and others.

    Args:
        path: of the file.
        at_end: see `Outcomes`.

    Raises:
        DataError: it cannot be read, has other columns, names an episode twice, or leaves a success open.
    """
    rows = [(place, row) for place, row in good_rows(Path(path)) if isinstance(row, dict)]
    of_episode, of_success = _columns_of(path, [row for _, row in rows])
    episodes = [canonical(row.get(of_episode)) for _, row in rows]
    _check_once(path, episodes, [place for place, _ in rows])
    coding = _coding(path, [{SUCCESS: row.get(of_success)} for _, row in rows])
    values = [coding.read(row.get(of_success), row) for _, row in rows]
    open_ = [episode for episode, value in zip(episodes, values, strict=True) if value is None]
    if open_:
        raise DataError(
            f"the success of episode {_listed(open_)} is empty or not {coding.name}; complete it, or remove these "
            "episodes from the data set",
            where=path,
            field=SUCCESS,
        )
    return Outcomes(path, {key: bool(value) for key, value in zip(episodes, values, strict=True)}, at_end)


def outcomes_in(files: Sequence[str | None], *, at_end: bool) -> list[Outcomes | None]:
    """The outcomes of several data sets, None where no file is named; see `read_outcomes`."""
    return [None if path is None else read_outcomes(path, at_end=at_end) for path in files]


def _columns_of(path: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The names of the columns of the episode and of its success, in any case.

    Raises:
        DataError: one is missing.
    """
    names = {name.strip().casefold(): name for row in rows for name in row}
    absent = [name for name in (EPISODE, SUCCESS) if name not in names]
    if absent:
        has = ", ".join(names.values()) or "no rows"
        raise DataError(f"lacks the column {' and '.join(absent)}; it has {has}", where=path, field=absent[0])
    return names[EPISODE], names[SUCCESS]


def _check_once(path: str, episodes: Sequence[str], places: Sequence[str]) -> None:
    """Refuse an episode that is named twice, or not at all."""
    first: dict[str, str] = {}
    for episode, place in zip(episodes, places, strict=True):
        if episode in ("", "none", "null", "nan"):
            raise DataError(f"{place} names no episode", where=path, field=EPISODE)
        if episode in first:
            raise DataError(
                f"episode {episode} is there twice, {first[episode]} and {place}", where=path, field=EPISODE
            )
        first[episode] = place


def _coding(path: str, rows: Iterable[dict[str, Any]]) -> Coding:
    """How the column of success is read.

    Raises:
        DataError: in no way, or in two ways.
    """
    sketch = sketches_of(rows)[SUCCESS]
    found = label_codings(sketch, "is_success")
    if len(found) == 1:
        return found[0]
    if not found and any(TRUTH.read(value, {}) is not None for value in sketch.values or ()):
        return TRUTH  # the other words are open, and named with their episodes
    shown = sketch.shown_values()
    if not found:
        raise DataError(f"{SUCCESS} holds {shown}: write true and false", where=path, field=SUCCESS)
    readings = " or ".join(one.name for one in found)
    raise DataError(
        f"{SUCCESS} holds {shown}, which may mean {readings} (success/failure): write true and false",
        where=path,
        field=SUCCESS,
    )


def _listed(episodes: Sequence[str]) -> str:
    """Numbers in a message, the first ones of many."""
    more = f" and {len(episodes) - _SHOWN} more" if len(episodes) > _SHOWN else ""
    return ", ".join(map(str, episodes[:_SHOWN])) + more
