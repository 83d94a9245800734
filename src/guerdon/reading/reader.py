"""The rows of a data set, read: which column is for what was decided once over all of them, and is shown.

reading = read("votes.csv", columns="winner=vote:1/2")
reading.read_as()                       # [{"column": "question", "role": "prompt", "coding": null, ...}, ...]
for record in reading.records():        # a row by roles, or why it is left out
    print(record.roles["prompt"], record.roles["winner"])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from guerdon.errors import DataError, boundary
from guerdon.files.bounds import BadRecord
from guerdon.reading.cells import decoded, decoded_columns, look_at, sketches_of, text_kinds
from guerdon.reading.codings import Coding
from guerdon.reading.columns import NOTHING, Columns, said_columns
from guerdon.reading.data_sets import DataPart, data_parts, split_word
from guerdon.reading.layouts import LAYOUTS, PLAIN, Row, RowLayout, columns_of, layout_of, names_of
from guerdon.reading.plan import Use, cell_of, plan_of, read_as
from guerdon.reading.roles import PAIRS_OF_NAMES, Role
from guerdon.reading.values import MISSING, Sketch, canonical, is_empty

USUAL_NAMES = frozenset(name for layout in LAYOUTS for name in names_of(layout)) | PAIRS_OF_NAMES
_LOOKED_AT = 100  # rows from whose columns a first layout is taken
_TRIED = 5  # records by which it is seen which columns unwrapping them reads
_LOOKS = 3  # at all rows, until all of them say which of their texts are lists and maps


class NoValueError(DataError):
    """A row that lacks what is needed of it, and is left out."""


class Record(NamedTuple):
    """A row that was read.

    Attributes:
        where: its place.
        row: as it is in the file.
        roles: values by role.
        name: of its part, and its number there.
        subset: its part of the data; empty: it has none.
        left_out: why it cannot be used; empty: it can.
        part: of the data that it is in.
        error: of a row that cannot be read, which has neither columns nor roles.
    """

    where: str
    row: Row
    roles: Mapping[str, Any]
    name: str
    subset: str = ""
    left_out: str = ""
    part: DataPart | None = None
    error: DataError | None = None


class DataReading:
    """A data set whose columns are understood.

    Args:
        data: what messages call it.
        parts: of the data.
        columns: what the user said.
        stored: what a model was trained on: columns by role, with codings.
        train: whether rows whose column `split` names another split than `train` are left out, where one names it, and
            rows that stand in several parts count once.

    Attributes:
        plan: what each column is for.
        sketches: of each column.
        rows: how many there are, unwrapped.
        several: whether a record of the data holds more rows than one.
        bad: records that are no rows, by reason.

    Raises:
        DataError: there is no row, or a column that the user said is not there.
    """

    def __init__(
        self,
        data: str,
        parts: Sequence[DataPart],
        columns: Columns = NOTHING,
        stored: Columns = NOTHING,
        *,
        train: bool = False,
    ) -> None:
        self.data, self.parts, self.train = data, parts, train
        self.bad: Counter[str] = Counter()
        self.rows = 0
        self.several = False
        self.sketches: dict[str, Sketch] = {}
        first = list(islice(_records(parts), _LOOKED_AT))
        self.columns, self._layout = _layout_said(first, parts, columns, stored)
        said = self.columns.over(stored)
        kinds = text_kinds(sketches_of(with_names(first, self.columns)))
        self._texts = decoded_columns(kinds, self._layout, said)
        for _ in range(_LOOKS):
            self._look()
            if self._layout is PLAIN and columns.function is None:
                self._layout = self._later_layout()
            texts, self._texts = self._texts, self._texts_by_all(said)
            if texts == self._texts:
                break
        plan = plan_of(data, self.sketches, self._layout, self.all_rows, self.columns, stored)
        seen = looked_at(first, self._layout, self.columns, self._texts)
        nested_rows = self._layout.unwrap is not None or self._layout.whole is not None
        self._of_records = sketches_of(first) if nested_rows else {}
        top = dict.fromkeys(name for record in first for name in record) if nested_rows else ()
        unread = [name for name in top if name not in self.sketches]
        self.plan = replace(plan, unused=tuple(name for name in (*plan.unused, *unread) if name not in seen))

    def _later_layout(self) -> RowLayout:
        """The layout of all columns, whose first cells may be null; one that unwraps rows shows in its first ones."""
        found = layout_of({name for name, sketch in self.sketches.items() if sketch.filled})
        return PLAIN if found.unwrap or found.whole or found.refused else found

    def _texts_by_all(self, said: Columns) -> frozenset[str]:
        """Columns that are decoded, by all of their cells; those that rows are unwrapped from are by the first ones."""
        if self._layout.unwrap is not None or self._layout.whole is not None:
            return self._texts
        return decoded_columns(text_kinds(self.sketches, self._texts), self._layout, said)

    def _look(self) -> None:
        """Count what the cells of every row are."""
        previous = ""
        self.bad.clear()
        self.sketches.clear()
        self.rows = 0
        for _, _, record, row in self._mapped(self._layout, self.bad):
            self.several = self.several or record == previous
            previous = record
            look_at(row, self.sketches)
            self.rows += 1

    def _mapped(self, layout: RowLayout, bad: Counter[str] | None = None) -> Iterator[tuple[DataPart, str, str, Row]]:
        """Part, place, name and columns of every row that can be read, unwrapped where the layout says so.

        Args:
            layout: of the rows.
            bad: counts the records that are no rows, by reason.
        """
        for part, where, name, row in self._all(layout, bad):
            if not isinstance(row, DataError):
                yield part, where, name, row

    def _all(
        self, layout: RowLayout, bad: Counter[str] | None = None
    ) -> Iterator[tuple[DataPart, str, str, Row | DataError]]:
        """As `_mapped`; a row that cannot be read is an error in its place."""
        bad = Counter() if bad is None else bad
        for part in self.parts:
            if layout.whole is not None:
                maps = [one for _, one in self._maps(part, bad) if not isinstance(one, DataError)]
                rows = layout.whole([decoded(one, self._texts) for one in maps])
                yield from ((part, part.where, f"{part.name}-{number}", row) for number, row in enumerate(rows))
                continue
            for number, (where, record) in enumerate(self._maps(part, bad)):
                if isinstance(record, DataError):
                    yield part, where, f"{part.name}-{number}", record
                    continue
                for row in self._unwrapped(layout, record, bad):
                    yield part, where, f"{part.name}-{number}", row

    def _maps(self, part: DataPart, bad: Counter[str]) -> Iterator[tuple[str, Row | DataError]]:
        """The rows of a part; those that cannot be read are counted."""
        for where, record in part.rows(kept=False):
            if isinstance(record, Mapping):
                yield where, record
                continue
            bad[record.why if isinstance(record, BadRecord) else "a row that is no map of columns"] += 1
            kind = type(record).__name__
            no_map = DataError(f"a row must be a map of keys, this is {kind}", where=where)
            yield where, record if isinstance(record, DataError) else no_map

    def _unwrapped(self, layout: RowLayout, record: Row, bad: Counter[str]) -> Sequence[Row]:
        """The rows in a record; none of one that is not like its layout, which is counted."""
        try:
            return rows_in(record, layout, self.columns, self._texts)
        except (TypeError, AttributeError, LookupError, ValueError):
            if layout.unwrap is None:
                raise
            bad[f"a row that is not like {layout.name}"] += 1
            return []

    def first(self, most: int) -> DataReading:
        """The same of about so many of its first rows, of which all rows say what the columns are for."""
        found = copy(self)
        found.parts = [part.first(max(most // len(self.parts), 1)) for part in self.parts]
        return found

    def records_in(self, row: Row, where: str, name: str) -> list[Record]:
        """What stands in one row of the data: itself, or those that it unwraps to; none where a function gives None.

        Args:
            row: as it is in the data.
            where: its place.
            name: of its records.

        Raises:
            NoValueError: nothing is in a column that its layout needs.
            DataError: it is not like the layout of the data.
        """
        layout = self.plan.layout
        null = [key for key in layout.keys if row.get(key.partition(".")[0]) is None]
        said = f"{', '.join(null)} is null" if null else f"not like {layout.name}"
        with boundary(NoValueError if null else DataError, f"{where}: {said}"):
            rows = rows_in(row, layout, self.columns, self._texts)
        found = ((one, *self._roles(one)) for one in rows)
        return [Record(where, one, roles, name, left_out=left_out) for one, roles, left_out in found]

    def records(self, *, bad: bool = False) -> Iterator[Record]:
        """The rows by roles, in order; those that cannot be used have a reason.

        Args:
            bad: with the rows that cannot be read, which have an error.
        """
        own = "subset" in self.plan.uses
        has_train = self._has_train()
        seen: dict[int, DataPart] = {}  # the part in which a row was seen first
        for part, where, name, row in self._all(self.plan.layout):
            subset = part.subset or ""
            if isinstance(row, DataError):
                if bad:
                    yield Record(where, {}, {}, name, subset, "unreadable", part, row)
                continue
            roles, left_out = self._roles(row)
            if self.train and _is_of_other_split(roles.get("split"), has_train=has_train):
                continue
            if self.train and len(self.parts) > 1 and seen.setdefault(hash(repr(row)), part) is not part:
                continue
            subset = str(roles["subset"]) if own and roles.get("subset") else subset
            yield Record(where, row, roles, name, subset, left_out, part)

    def _has_train(self) -> bool:
        """Whether the column `split` names the split to train on."""
        use = self.plan.uses.get("split")
        values = self.sketches[use.column].values if use else None
        return any(split_word(value) == "train" for value in values or ())

    def _roles(self, row: Row) -> tuple[dict[str, Any], str]:
        """The values of a row by role, and why it is left out."""
        found: dict[str, Any] = {}
        left_out = ""
        for role, use in self.plan.uses.items():
            cell = cell_of(row, use.column)
            if role in self.plan.instead and is_empty(cell):
                cell = self._instead(role, row)
            if role == "step_labels" and use.coding is not None:
                cell = _coded_list(use.coding, cell, row)
            elif use.coding is not None:
                value = None if _is_missing(cell) else use.coding.read(cell, row)
                if value is None and not _is_missing(cell):
                    left_out = left_out or f"{role}: no value of {use.coding.name}"
                cell = value
            found[role] = cell
        return found, left_out

    def _instead(self, role: Role, row: Row) -> Any:
        """The cell of the first further column of a role that is filled; None: there is none."""
        cells = (cell_of(row, column) for column in self.plan.instead.get(role, ()))
        return next((cell for cell in cells if not is_empty(cell)), None)

    def all_rows(self, holds: Callable[[Row], bool]) -> bool:
        """Whether something holds for every row."""
        return all(holds(row) for _, _, _, row in self._mapped(self._layout))

    def read_as(self) -> list[dict[str, Any]]:
        """As the function `read_as`."""
        ratings = [Use("rating", name, None, "name") for name in self.plan.ratings]
        return read_as(
            [*self.plan.uses.values(), *ratings, *self.plan.beside],
            self.plan.unused,
            {**self._of_records, **self.sketches},
            renamed=self.columns.renamed,
            instead=self.plan.instead,
        )

    def mapping(self) -> dict[str, str]:
        """What `read` takes as `stored`: a column by role, or by the name that a layout has for it, with its coding."""
        found = dict(self.columns.renamed)
        for role, use in self.plan.uses.items():
            if use.column not in found and role not in found:
                coding = "" if use.coding is None or use.coding.of_row else f":{use.coding.name}"
                found[role] = f"{use.column}{coding}"
        return found

    def need_rows(self) -> None:
        """Refuse data without a row.

        Raises:
            DataError: with what stands there instead.
        """
        if self.rows:
            return
        first = next((row for part in self.parts for _, row in part.rows()), None)
        if isinstance(first, DataError):
            raise first
        why = ", ".join(f"{n} x {reason}" for reason, n in self.bad.items())
        raise DataError(f"no row can be read: {why}" if why else "there is no row in it", where=self.data)

    def need(self, *roles: Role) -> None:
        """Refuse data in which one of these could be two things.

        Raises:
            DataError: with both, and the `--columns` for each.
        """
        self.plan.need(self.data, *roles)


def read(
    data: str,
    *,
    columns: str | Mapping[str, str] | None = None,
    stored: Mapping[str, str] | None = None,
    train: bool = False,
    parts: Sequence[DataPart] | None = None,
    first: int | None = None,
) -> DataReading:
    """Read a data set.

    Args:
        data: a file, a folder, PATH:SPLIT or a hub id.
        columns: see `said_columns`.
        stored: the same, of the data that a model was trained on; of columns that are not there nothing is taken.
        train: without the parts of other splits than `train`.
        parts: of the data, where some are wanted, or they are in memory; None: all.
        first: about so many rows alone, from the beginning of each part: what kind of data it is, not how its values
            are coded; None: all rows.

    Raises:
        ConfigError: as `said_columns`.
        DataError: as `data_parts` and `DataReading`.
    """
    said_by_user, by_model = (said_columns(one or None, usual=USUAL_NAMES) for one in (columns, stored))
    wanted = data_parts(data, train=train) if parts is None else parts
    if first is not None:
        wanted = [part.first(max(first // len(wanted), 1)) for part in wanted]
    return DataReading(data, wanted, said_by_user, by_model, train=train)


def rows_in(record: Row, layout: RowLayout, columns: Columns, texts: Collection[str] = ()) -> Sequence[Row]:
    """The rows in a record, with the names of columns that the layout has.

    Args:
        record: of a file.
        layout: of the file.
        columns: said by the user.
        texts: columns whose texts are read as the lists and maps that they are.

    Raises:
        AttributeError, LookupError, TypeError, ValueError: it is not like the layout.
    """
    if columns is NOTHING and layout.unwrap is None and not texts:
        return [record]
    rows = list(with_names([record], columns))
    if texts:
        rows = [decoded(one, texts) for one in rows]
    return rows if layout.unwrap is None else [row for one in rows for row in layout.unwrap(one)]


class _Watched(dict[str, Any]):
    """A record that keeps which of its columns were looked at."""

    def __init__(self, record: Row, seen: set[str]) -> None:
        super().__init__(record)
        self.seen = seen

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The cell of a column."""
        self.seen.add(name)
        return super().get(name, default)


def looked_at(records: Iterable[Row], layout: RowLayout, columns: Columns, texts: Collection[str]) -> set[str]:
    """Columns of nested records that are looked at where their rows are made; none where records are rows.

    Args:
        records: the first ones.
        layout: of them.
        columns: said by the user.
        texts: columns whose texts are read as the lists and maps that they are.
    """
    seen = set[str]()
    rows = [_Watched(decoded(one, texts), seen) for one in with_names(islice(records, _TRIED), columns)]
    with suppress(TypeError, AttributeError, LookupError, ValueError):
        if layout.whole is not None:
            list(layout.whole(rows))
        if layout.unwrap is not None:
            list(map(layout.unwrap, rows))
    return seen


def with_names(records: Iterable[Row], columns: Columns) -> Iterator[Row]:
    """Records with the names of columns that a layout has, or what the user's function makes of them."""
    own = {column: name for name, column in columns.renamed.items()}
    for record in records:
        row = {own.get(name, name): cell for name, cell in record.items()} if own else record
        found = row if columns.function is None else columns.function(row)
        if found is not None:
            yield found


def _is_of_other_split(value: Any, *, has_train: bool) -> bool:
    """Whether a row is of another split than the one that is trained on."""
    if not isinstance(value, str) or not value.strip():
        return False
    split = split_word(value)
    return has_train if split is None else split != "train"


def _coded_list(coding: Coding, cell: Any, row: Row) -> Any:
    """The values of a list; one that is not of the coding stays as it is, for its reader to refuse."""
    if not isinstance(cell, list | tuple):
        return cell
    values = [None if _is_missing(one) else coding.read(one, row) for one in cell]
    return [one if value is None and not _is_missing(one) else value for one, value in zip(cell, values, strict=True)]


def _is_missing(cell: Any) -> bool:
    """Whether a cell of a coded column says nothing."""
    return cell is None or cell != cell or (isinstance(cell, str) and canonical(cell) in MISSING)


def _layout_of(rows: Iterable[Row], parts: Sequence[DataPart]) -> RowLayout:
    """The layout of the columns that the first rows have together.

    Args:
        rows: the first ones.
        parts: of the data.

    Raises:
        DataError: it is one that is not read.
    """
    first = list(rows)
    kinds = text_kinds(sketches_of(first))
    first = [decoded(row, kinds) for row in first]
    layout = layout_of(columns_of(first), first)
    if layout.refused:
        raise DataError(f"{layout.name}: {layout.refused}", where=parts[0].where)
    return layout


def _layout_said(
    first: Sequence[Row], parts: Sequence[DataPart], columns: Columns, stored: Columns
) -> tuple[Columns, RowLayout]:
    """The columns with the names that a layout is recognised by, and the layout of the first records.

    A role that was said, by the user or when a model was trained, may be the name of a layout's column: `label=x`.
    """
    if columns.function is not None:
        return columns, PLAIN
    layout = _layout_of(with_names(first, columns), parts)
    if layout.unwrap is not None or layout.whole is not None:
        return columns.as_names(names_of(layout), columns_of(first)), layout
    for one in (columns, columns.over(stored)):
        names = one.as_names(USUAL_NAMES)
        if layout is PLAIN and names.renamed != columns.renamed:
            layout = _layout_of(with_names(first, names), parts)
            own = one.as_names(names_of(layout))
            uses = {role: said for role, said in columns.uses.items() if role in own.uses}
            columns = columns if layout is PLAIN else Columns(uses, own.renamed)
    return columns, layout


def _records(parts: Iterable[DataPart]) -> Iterator[Row]:
    return (record for part in parts for _, record in part.rows(kept=False) if isinstance(record, Mapping))
