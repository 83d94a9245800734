"""Logs of rewards as `Rows`: which files there are, and what wrote them.

rows = read_log(Path("rollouts/"), columns={"reward": "final_score"})
print(rows.layout, len(rows), rows.bad)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.auditing.console_logs import ENDINGS, ConsoleLogs
from guerdon.auditing.rows import Rows
from guerdon.auditing.run_files import MONITOR, MonitorFiles, read_lerobot
from guerdon.auditing.scalar_files import (
    EVENTS,
    METRICS,
    Curves,
    EventFiles,
    MetricFiles,
    is_table,
    read_table,
)
from guerdon.auditing.text_rows import RowReader
from guerdon.auditing.wandb_files import WANDB
from guerdon.errors import DataError
from guerdon.files.bounds import TooLarge
from guerdon.processes.progress import log_line
from guerdon.reading.cells import decoded, decoded_columns, sketches_of, text_kinds
from guerdon.reading.columns import Columns, said_columns
from guerdon.reading.containers import (
    ROWS,
    LinesRead,
    Part,
    grown_rows,
    has_rows,
    other_format,
    parts_of,
    row_ending,
)
from guerdon.reading.data_sets import log_files
from guerdon.reading.layouts import PLAIN, Row, RowLayout, columns_of, layout_of, names_of
from guerdon.reading.log_columns import REWARDS, Look
from guerdon.reading.reader import USUAL_NAMES, looked_at, rows_in, with_names
from guerdon.reading.roles import named
from guerdon.reading.values import Sketch

CONVERSATIONS = "conversations.jsonl"  # of a run of guerdon with an agent
_FIRST = 1000  # rows by which a log is read until all are known
_FIRST_FILES = 50  # files that they are from, at most
_LOOKS = 6  # at all rows, each by what the one before says of the columns
_FIRST_SIZE = 2_000_000  # characters of those of a file
_LOOKED_FOR = (
    "completions of TRL, dumps of verl, traces of verifiers and prime-rl, logs of inspect_ai, rollouts of NeMo-Gym, "
    "events of TensorBoard, console logs of verl, OpenRLHF, TRL and Stable-Baselines3, monitor.csv of it, progress.csv "
    "of it or RLlib, result.json of RLlib, trainer_state.json of transformers, run-*.wandb of Weights & Biases, a "
    f"LeRobot data set, a run of guerdon, and {', '.join(ROWS)} with a column of rewards, also packed"
)


class _Files(NamedTuple):
    """Files of a log by what their names say.

    Attributes:
        events: of TensorBoard.
        monitors: of Stable-Baselines3.
        metrics: of runs of guerdon or prime-rl.
        tables: of scalars, by Stable-Baselines3, RLlib, transformers or Weights & Biases.
        consoles: that may hold what a trainer printed.
        runs: conversations or episodes of a run of guerdon, one file at most.
        others: files of rows and members of archives, whose content says what wrote them; none beside a run.
    """

    events: list[Path]
    monitors: list[Path]
    metrics: list[Path]
    tables: list[Path]
    consoles: list[Path]
    runs: list[Path]
    others: list[Part]


def _files_of(path: Path, said: Columns) -> _Files:
    """The files of a log; where the user says what columns are, tables of scalars are rows."""
    files = log_files(path, EVENTS, WANDB, *ENDINGS)
    events = [f for f in files if EVENTS in f.name]
    monitors = [f for f in files if f.name.endswith(MONITOR)]
    metrics = [f for f in files if f.name == METRICS]
    tables = [] if said.uses else [f for f in files if is_table(f)]
    runs = _run_of(path, files)
    known = {*events, *monitors, *metrics, *tables}
    unknown = [f for f in files if f not in known]
    rows = [f for f in unknown if has_rows(f)]
    consoles = [f for f in unknown if not (has_rows(f) or other_format(f))]
    return _Files(events, monitors, metrics, tables, consoles, runs, _parts(path, [] if runs else rows))


def _run_of(path: Path, files: Sequence[Path]) -> list[Path]:
    """The file with the conversations or episodes of a run of guerdon; none in another log.

    Raises:
        DataError: there are several runs.
    """
    runs = [_of_run(f) for f in files if f.name == "episodes.jsonl" and f.with_name(METRICS).is_file()]
    if len(runs) > 1:
        raise DataError(f"{len(runs)} runs of guerdon; pass one of them, such as {runs[0].parent}", where=path)
    return runs


def _of_run(episodes: Path) -> Path:
    """The file of a run that says most: its conversations, where an agent led them, else its episodes."""
    conversations = episodes.with_name(CONVERSATIONS)
    return conversations if conversations.is_file() and conversations.stat().st_size else episodes


def _parts(path: Path, files: Sequence[Path]) -> list[Part]:
    """The parts of files; in a folder, archives without rows are none of a log."""
    found = []
    for file in files:
        try:
            found += parts_of(file)
        except TooLarge:
            raise
        except DataError:
            if path == file:
                raise
    return found


@dataclass
class _Kind:
    """Files that one tool wrote.

    Attributes:
        name: of the layout.
        parts: with the layout of each.
        first: some of the first rows, with their further rewards.
        texts: columns whose texts are read as lists and maps.
        names: columns of each file.
        records: columns of the first records, where these are nested.
        seen: of these, the ones that are looked at where rows are made of them.
    """

    name: str
    parts: list[tuple[Part, RowLayout]] = field(default_factory=list)
    first: list[tuple[Row, Row]] = field(default_factory=list)
    texts: frozenset[str] = frozenset()
    names: list[set[str]] = field(default_factory=list)
    records: dict[str, Sketch] = field(default_factory=dict)
    seen: frozenset[str] = frozenset()

    def add(self, part: Part, first: _First) -> None:
        """Add a file; of many its rows are known by those of the first ones."""
        self.parts.append((part, first.layout))
        self.texts |= first.texts
        self.names.append({*first.names})
        self.records |= first.records
        self.seen |= first.seen
        if len(self.first) < _FIRST and len(self.parts) <= _FIRST_FILES:
            self.first += first.rows

    @property
    def layout(self) -> RowLayout:
        """That of rows inside other keys, where the files have one."""
        layouts = [layout for _, layout in self.parts]
        return next((one for one in layouts if one.unwrap), layouts[0] if layouts else PLAIN)


Records = Iterable[tuple[Part, RowLayout, Iterable[tuple[int, Any]]]]


def read_log(
    path: Path, *, columns: str | Mapping[str, str] | None = None, sample: int = 50_000, seed: int = 0
) -> Rows:
    """The rows of a log, recognised by its content.

    Args:
        path: a file or a folder of files.
        columns: see `guerdon.reading.columns.said_columns`, where they are not recognised.
        sample: rows whose texts are kept, at most.
        seed: of the sample.

    Raises:
        ConfigError: `columns` cannot be understood.
        DataError: nothing is recognised, logs of several kinds lie in one folder, there is no reward, a column could
            be two things, or `columns` names something that is not there.
    """
    return LogReader(path, columns=columns, sample=sample, seed=seed).read()


class LogReader:
    """Reads a log, and when it is asked again only what is new: files, and lines of files that grew.

    Args:
        path: as `read_log`.
        columns: as `read_log`.
        sample: as `read_log`.
        seed: as `read_log`.
        most: records of each file that are read; None: all.

    Raises:
        ConfigError: as `read_log`.
    """

    def __init__(
        self,
        path: Path,
        *,
        columns: str | Mapping[str, str] | None = None,
        sample: int = 50_000,
        seed: int = 0,
        most: int | None = None,
    ) -> None:
        self.path, self.sample, self.seed, self.most = path, sample, seed, most
        self.given = self.said = said_columns(columns, usual=USUAL_NAMES)
        self.events, self.metrics, self.monitors = EventFiles(path), MetricFiles(), MonitorFiles()
        self.consoles = ConsoleLogs()
        self._all: _Read | None = None

    def read(self) -> Rows:
        """All rows so far.

        Raises:
            DataError: as `read_log`.
        """
        known, self._all = self._all, None
        if known is not None:
            why = self._read_more(known)
            if not why:
                self._all = known
                files = _files_of(self.path, self.given)
                return self._finished(known, files, self._logged(files))
            log_line(f"all of {self.path} is read again: {why}")
        return self._read_all()

    def _read_all(self) -> Rows:
        path = self.path
        if not path.exists():
            raise DataError("there is no such file or folder", where=path)
        if (path / "meta" / "info.json").is_file():
            return read_lerobot(path, {role: one.column for role, one in self.given.uses.items()})
        files = _files_of(path, self.given)
        self.said = said = _as_named(files.others, self.given)
        if not self.events.only_grew(files.events):
            self.events = EventFiles(path)
        notes: list[str] = []
        kind, skipped = _kind_of(path, files, said, notes)
        curves = self._logged(files)
        shown = self.events.shown
        has_scalars = bool(curves or files.metrics)
        printed, _ = self._printed(files, alone=kind is None and not has_scalars)
        if kind is None:
            if not (has_scalars or printed):
                _refuse_other_formats(path)
                raise DataError(f"no log is recognised{_lacks(skipped)}; looked for {_LOOKED_FOR}", where=path)
            kind = _Kind("responses and scalars in TensorBoard" if shown else "scalars")
            kind.first = [(row, {}) for row in shown[:_FIRST]]
        elif skipped:
            notes.append(f"not read, since they have no column of rewards: {', '.join(skipped)[:300]}")
        read = _Read(kind, notes, {part: _state_of(part.path) for part in files.others})
        self._read_rows(read, files)
        if not files.monitors and kind.parts:
            self._all = read
        return self._finished(read, files, curves)

    def _logged(self, files: _Files) -> Curves:
        """The scalars in tables, events and figures of runs."""
        curves: Curves = {}
        for table in files.tables:
            curves |= read_table(table)
        curves |= self.events.read(files.events)
        return curves | self.metrics.read(files.metrics)

    def _finished(self, read: _Read, files: _Files, logged: Curves) -> Rows:
        """The rows as they are, with the scalars that are logged beside them or printed."""
        printed, several = self._printed(files)
        curves = printed | logged
        half = sum(lines.is_half for lines in read.lines.values())
        parts = [part for part, _ in read.kind.parts]
        notes = [*read.notes, *several, *read.batches.notes(len(parts))]
        return read.reader.finish(read.kind.name, self.path, notes, curves, files=parts, half=half)

    def _printed(self, files: _Files, *, alone: bool = False) -> tuple[Curves, list[str]]:
        """The scalars of the console log, and what to say where there are several.

        Args:
            files: of the log.
            alone: there are no other files that are read.

        Raises:
            DataError: there are several, and nothing else.
        """
        found = self.consoles.read(files.consoles)
        if len(found) < 2:
            return dict(next(iter(found.values()), {})), []
        several = f"{len(found)} console logs, such as {next(iter(found)).relative_to(self.path)}; pass one of them"
        if alone:
            raise DataError(several, where=self.path)
        return {}, [f"not read: {several}"]

    def _read_rows(self, read: _Read, files: _Files) -> None:
        """The rows of all files by what their columns are for: as the first rows say, once more where all say else.

        Raises:
            DataError: as `RowReader.check` and `Look.columns`, or the columns say something else in each look.
        """
        kind, said = read.kind, self.said

        def records(into: _Read) -> Records:
            into.lines.clear()
            into.batches = _Batches()
            if files.monitors:
                return ((part, PLAIN, rows) for part, rows in self.monitors.records(files.monitors))
            if self.events.shown and not kind.parts:
                return [(Part(files.events[0]), PLAIN, enumerate(self.events.shown))]
            found = into.new_records(kind.parts)
            return found if self.most is None else ((part, of, islice(rows, self.most)) for part, of, rows in found)

        def first_rows(holds: Callable[[Row], bool]) -> bool:
            return all(holds({**parts, **row}) for row, parts in kind.first)

        look = Look(said, kind.layout, kind.texts)
        for row, parts in kind.first:
            look.meet(row, parts)
            look.add(row, parts)
        columns = look.columns(str(self.path), first_rows, all_seen=False)
        for _ in range(_LOOKS):
            look = Look(said, kind.layout, columns.texts)
            look.records, look.seen = kind.records, kind.seen
            reader = RowReader(columns, look, sample=self.sample, seed=self.seed)
            for part, layout, those in records(read):
                reader.read(part, layout, those)
            reader.check(self.path)
            all_rows = partial(self._all_rows, lambda: records(_Read(kind)), columns.texts)
            found = look.columns(str(self.path), all_rows, all_seen=True)
            if found.key == columns.key:
                read.reader = reader
                return
            columns = found
        raise DataError(
            "what its columns are for depends on how they are read; say it with --columns ROLE=NAME", where=self.path
        )

    def _all_rows(self, records: Callable[[], Records], texts: Collection[str], holds: Callable[[Row], bool]) -> bool:
        """Whether something holds for each row of the log, whose texts in some columns are lists and maps."""
        found = (rows_in(record, layout, self.said, texts) for _, layout, those in records() for _, record in those
                 if isinstance(record, Mapping))  # fmt: skip
        return all(holds(row) for rows in found for row in rows)

    def _read_more(self, read: _Read) -> str:
        """Read what is new; why that cannot be done, empty where it was.

        Raises:
            DataError: as `Look.columns`.
        """
        files = _files_of(self.path, self.given)
        now = {part: _state_of(part.path) for part in files.others}
        changed = {part for part, state in now.items() if state != read.states.get(part)}
        known = {part for part, _ in read.kind.parts}
        why = _why_anew(read, files, changed & known) or self._add_parts(read, files, changed - known)
        if why:
            return why
        for part, layout, those in read.new_records([one for one in read.kind.parts if one[0] in changed]):
            read.reader.read(part, layout, those)
        read.states = now
        records = _Read(read.kind).new_records
        everything = partial(self._all_rows, lambda: records(read.kind.parts), read.reader.of.texts)
        found = read.reader.look.columns(str(self.path), everything, all_seen=True)
        return "" if found.key == read.reader.of.key else "the new rows do not fit what the columns were taken for"

    def _add_parts(self, read: _Read, files: _Files, new: Collection[Part]) -> str:
        """Put new files with rewards among those that are read, in their order; why that cannot be done, or empty."""
        kinds, _ = _kinds(self.path, [part for part in files.others if part in new], self.said)
        if set(kinds) - {read.kind.name}:
            return "there are files of another kind"
        read.kind.parts += [one for kind in kinds.values() for one in kind.parts]
        notes: list[str] = []
        kept = _trained_on(self.path, files.others, notes)
        if not {part for part, _ in read.kind.parts} <= set(kept):
            return "; ".join(notes)
        order = {part: k for k, part in enumerate(files.others)}
        read.kind.parts.sort(key=lambda one: order[one[0]])
        return ""


def _why_anew(read: _Read, files: _Files, changed: Collection[Part]) -> str:
    """Why all of a log is read again, where files that were read are gone or have not only grown; else empty."""
    if files.monitors:
        return "monitor files are read as a whole"
    for part in read.states:
        if part not in files.others:
            return f"{part.name} is gone"
    for part in changed:
        if not read.only_grew(part):
            return f"{part.name} was written anew, and not only further lines"
    return ""


@dataclass
class _Read:
    """What was read of a log.

    Attributes:
        kind: its files, in their order.
        notes: on how it was read.
        states: size and time of all files with rows, also of those without rewards.
        lines: how far files of lines were read.
        batches: those of TRL that were read.
    """

    kind: _Kind
    notes: list[str] = field(default_factory=list)
    states: dict[Part, tuple[int, int]] = field(default_factory=dict)
    lines: dict[Part, LinesRead] = field(default_factory=dict)
    batches: _Batches = field(default_factory=lambda: _Batches())
    reader: RowReader = field(init=False)

    def only_grew(self, part: Part) -> bool:
        """Whether a file has further lines behind those that were read, and is otherwise as it was."""
        lines = self.lines.get(part)
        return lines is not None and part.path.stat().st_size >= lines.offset and lines.still_holds(part.path)

    def new_records(self, parts: Sequence[tuple[Part, RowLayout]]) -> Records:
        """The records of files that were not read yet, each file's when it is its turn."""
        for part, layout in parts:
            if not part.by_line or part.member or row_ending(part.path.name) != part.path.suffix.lower():
                records: Iterable[tuple[int, Any]] | None = part.rows()
                if part.name.startswith("completions_"):
                    records = self.batches.records(part)
            else:
                records = grown_rows(part, self.lines.setdefault(part, LinesRead()))
            if records is not None:
                yield part, layout, records


def _state_of(file: Path) -> tuple[int, int]:
    """Size and time of a file; of one that is gone meanwhile none."""
    try:
        found = file.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


class _Batches:
    """Leaves out the files in which TRL logged the batch of the file before again."""

    def __init__(self) -> None:
        self._before, self.again = "", 0

    def records(self, part: Part) -> Iterable[tuple[int, Any]] | None:
        """The records of a file; None where they are those of the file before."""
        records, batch = _batch(part)
        is_again = bool(batch) and batch == self._before
        self.again += is_again
        self._before = batch
        return None if is_again else records

    def notes(self, files: int) -> list[str]:
        """What to say of what was left out."""
        return [f"TRL logged batches again: {self.again} of {files} files are left out"] if self.again else []


def _kind_of(path: Path, files: _Files, said: Columns, notes: list[str]) -> tuple[_Kind | None, dict[str, str]]:
    """Files with rows that one tool wrote, None where there are none; and those without rewards, as `_kinds`."""
    others = _trained_on(path, files.others, notes)
    kinds, skipped = _kinds(path, others, said)
    if not kinds:  # a column that the user said may be in none of them, which is said when they are read
        kinds, skipped = _kinds(path, others, replace(said, uses={}))
    for name, those in (("monitor files of Stable-Baselines3", files.monitors), ("a run of guerdon", files.runs)):
        if those:
            kinds[name] = _known_kind(name, [Part(one) for one in those], said)
    if len(kinds) > 1:
        found = "; ".join(
            f"{len(kind.parts)} with {name} ({kind.parts[0][0].relative_to(path)})" for name, kind in kinds.items()
        )
        raise DataError(f"files of several kinds: {found}; pass a folder or a file of one kind", where=path)
    return next(iter(kinds.values()), None), skipped


def _known_kind(name: str, parts: Sequence[Part], said: Columns) -> _Kind:
    """Files whose names say what they are."""
    if name == "a run of guerdon":
        kind = _Kind(name)
        for part in parts:
            kind.add(part, _first_rows(part, said, _FIRST))
        if kind.layout is not PLAIN:
            kind.name = kind.layout.name
        return kind
    return _Kind(name, [(part, PLAIN) for part in parts])


def _refuse_other_formats(path: Path) -> None:
    """Say of the first file with rows in a format that is not read what to make of it."""
    for file in filter(other_format, [path, *path.rglob("*")]):
        parts_of(file)


def _lacks(skipped: Mapping[str, str]) -> str:
    """What to say of the first file that has rows, but no rewards."""
    for name, found in skipped.items():
        return f"; {name} has no column of rewards among {found[:300]}: pass --columns reward=NAME"
    return ""


def _kinds(path: Path, parts: Sequence[Part], said: Columns) -> tuple[dict[str, _Kind], dict[str, str]]:
    """Files with rewards by what wrote them, and those without by name with the columns that they have."""
    kinds: dict[str, _Kind] = {}
    skipped: dict[str, str] = {}
    for part in parts:
        try:
            first = _first_rows(part, said, max(20, _FIRST // len(parts)))
        except TooLarge:
            raise
        except DataError:
            if path == part.path:
                raise
            continue
        is_log = first.layout.name != PLAIN.name or _has_rewards(first.names, said)
        if is_log or (not first.names and path == part.path):
            kinds.setdefault(first.layout.name, _Kind(first.layout.name)).add(part, first)
        elif first.names:
            skipped[part.name] = ", ".join(first.names)
    return _merged(kinds, parts), skipped


def _merged(kinds: dict[str, _Kind], parts: Sequence[Part]) -> dict[str, _Kind]:
    """The kinds, where files that lack a column of a tool's layout are of that, if they have all that it reads.

    So are the shards of a run whose later ones have a further column. Where the reward is the sum of the columns of
    numbers, a further column changes it, and the files stay apart.
    """
    plain, others = kinds.get(PLAIN.name), [kind for name, kind in kinds.items() if name != PLAIN.name]
    if plain is None or len(others) != 1 or others[0].layout.unwrap or others[0].layout.parts == "sum":
        return kinds
    (kind,), layout = others, others[0].layout
    read = {column.partition(":")[0] for column in layout.roles.values()}
    if not read or not all(read <= names and not names & {*layout.without} for names in plain.names):
        return kinds
    order = {part: k for k, part in enumerate(parts)}
    kind.parts += [(part, layout) for part, _ in plain.parts]
    kind.parts.sort(key=lambda one: order[one[0]])
    kind.first = [*kind.first, *plain.first][:_FIRST]
    kind.texts |= plain.texts
    return {kind.name: kind}


def _has_rewards(columns: Iterable[str], said: Columns) -> bool:
    """Whether columns are of a log: one is of rewards, or the user says what is."""
    there = list(columns)
    given = [one.column for role, one in said.uses.items() if role in REWARDS]
    if said.function is not None or any(name in there or name.partition(".")[0] in there for name in given):
        return True
    return not given and any(named(role, there) for role in REWARDS)


class _First(NamedTuple):
    """What the first records of a file say.

    Attributes:
        layout: of the file.
        names: of columns.
        texts: columns whose texts are read as lists and maps.
        rows: some of them, each with the further rewards that it has in a map of its own.
        records: columns of the records, where these are nested.
        seen: of these, the ones that are looked at where rows are made of them.
    """

    layout: RowLayout
    names: dict[str, None]
    texts: frozenset[str]
    rows: list[tuple[Row, Row]]
    records: dict[str, Sketch]
    seen: frozenset[str]


def _layout_of(filled: Iterable[str], names: Iterable[str], said: Columns) -> RowLayout:
    """The layout of a log by its columns; one without a value counts where no other layout is found.

    Args:
        filled: columns that have values.
        names: all columns; a run of guerdon may not know of any success.
        said: by the user.
    """
    if said.function is not None:
        return PLAIN
    own = {column: name for name, column in said.renamed.items()}
    there, empty = ({own.get(name, name) for name in columns} for columns in (filled, names))
    found = layout_of(there, kind="log")
    return layout_of(there | empty, kind="log") if found is PLAIN else found


def _as_named(parts: Sequence[Part], said: Columns) -> Columns:
    """What the user said, as names of columns of the layout that the first file has under these, where it has one."""
    names = said.as_names(USUAL_NAMES)
    if names.renamed == said.renamed or not parts:
        return said
    try:
        layout = _first_rows(parts[0], said, _FIRST).layout
        if layout is not PLAIN and layout.unwrap is None:
            return said
        if layout is PLAIN:
            layout = _first_rows(parts[0], names, _FIRST).layout
        first = islice((one for _, one in parts[0].rows() if isinstance(one, Mapping)), _FIRST)
        return said if layout is PLAIN else said.as_names(names_of(layout), columns_of(first))
    except DataError:  # said when all files are read
        return said


def _first_rows(part: Part, said: Columns, most: int) -> _First:
    """The first records of a file, of which rows are kept as far as they are not large.

    Raises:
        DataError: the file cannot be read, or is of a kind that has no rewards or no responses.
    """
    names, filled, kept = _first_records(part, most)
    kinds = text_kinds(sketches_of(with_names(kept, said)))
    filled |= columns_of(decoded(record, kinds) for record in kept)
    layout = _layout_of(filled, names, said)
    if layout.refused:
        raise DataError(f"{layout.name}: {layout.refused}", where=part.where)
    texts = decoded_columns(kinds, layout, said)
    rows: list[tuple[Row, Row]] = []
    for record in kept:
        try:
            found = rows_in(record, layout, said, texts)
        except (TypeError, AttributeError, LookupError, ValueError):  # counted when all rows are read
            continue
        rows += [(row, row.get("parts") or {} if layout.unwrap else {}) for row in found]
    own = {name: None for row, _ in rows for name in row}
    seen = frozenset(looked_at(kept, layout, said, texts))
    sketches = sketches_of(kept) if layout.unwrap else {}
    top = {name: sketches[name] for record in kept for name in record if name in sketches}
    return _First(layout, names | own, texts, rows, top, seen)


def _first_records(part: Part, most: int) -> tuple[dict[str, None], set[str], list[Row]]:
    """Of the first records of a file the names of columns, those with a value, and the records, as far as not large.

    Raises:
        DataError: the file cannot be read.
    """
    names, filled, kept, size = dict[str, None](), set[str](), list[Row](), 0
    for record in islice((one for _, one in part.rows() if isinstance(one, Mapping)), most):
        names |= dict.fromkeys(record)
        filled.update(name for name, cell in record.items() if cell is not None)
        size += len(repr(record)) if size < _FIRST_SIZE else 0
        if size < _FIRST_SIZE or not kept:
            kept.append(record)
    return names, filled, kept


def _trained_on(path: Path, parts: Sequence[Part], notes: list[str]) -> list[Part]:
    """Of what prime-rl writes twice, the rollouts that were trained on."""
    kept = list(parts)
    for preferred, other in (("effective", "all"), ("train", "eval")):
        folders = [set(one.path.relative_to(path).parts[:-1]) for one in kept]
        if any(preferred in names for names in folders) and any(other in names for names in folders):
            kept = [part for part, names in zip(kept, folders, strict=True) if other not in names]
            notes.append(f"files in folders {preferred} are read, and those in folders {other} are not")
    return kept


def _batch(part: Part) -> tuple[Iterable[tuple[int, Any]], str]:
    """The records of a file, and a hash of them without their step; an empty one where they are too many to be kept."""
    digest = blake2b()
    try:
        records = list(part.rows(kept=True))
    except DataError:
        return part.rows(), ""
    for _, row in records:
        if isinstance(row, Mapping):
            digest.update(repr({**row, "step": None}).encode("utf-8", "surrogatepass"))
    return records, digest.hexdigest()
