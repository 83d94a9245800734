"""Rows of responses from the records of logs: numbers of all rows, texts of a sample whose groups stay whole.

reader = RowReader(columns, Look(said, layout), sample=50_000, seed=0)
reader.read(part := Part(Path("10.jsonl")), layout, part.rows())
rows = reader.finish("a dump of verl", Path("."), [], {})
"""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from guerdon.auditing.association import strata, stratum_means
from guerdon.auditing.conversations import asked_and_said, conversation_of, messages_of, written
from guerdon.auditing.rows import Codes, Flags, Numbers, Rows, Texts
from guerdon.errors import DataError
from guerdon.files.bounds import BadRecord, TooLarge
from guerdon.reading.chats import ChatError
from guerdon.reading.codings import NUMBER, Coding
from guerdon.reading.containers import HALF_WRITTEN, Part
from guerdon.reading.fields import is_beyond_float
from guerdon.reading.layouts import Row, RowLayout
from guerdon.reading.log_columns import FLAGS, NUMBERS, REWARDS, TEXTS, LogColumns, Look
from guerdon.reading.nested import is_rescored
from guerdon.reading.reader import rows_in
from guerdon.reading.roles import ALL_ROLES
from guerdon.reading.values import MISSING, canonical, is_empty, number_of

LONGEST = 200_000  # characters of a text that are kept
_BYTES = 200_000_000  # of all texts that are kept
_MOST = 99  # columns of further rewards
_RUN = 4096  # rows of one prompt that are sampled together, at most
_RUN_COLUMN = "run"  # names the run that a row is of
_STEP = re.compile(r"(?:^|[/_-])(?:global_?)?step[_-]?(\d+)|(?:^|/)(\d+)\.\w+$")
_CUT = {"length", "max_tokens", "max_output_tokens", "max_length", "model_length", "limit", "true", "1"}
_EXACT = 1 << 53  # whole numbers below it are floats
_INFINITE = re.compile(r"\s*[+-]?inf(inity)?\s*", re.IGNORECASE)
_NAN = float("nan")
_FITS = 0.99  # correlation of advantages with the reward that they are of
CUT = "cannot be read further"
"""In the reason of a file whose rest is lost."""
_Value = TypeVar("_Value")
_REWARD, _STEP_OF, _LENGTH = ("what", "reward"), ("what", "step"), ("what", "length")  # keys of numbers


class _BadRow(ValueError):
    """A row that is left out; its text is the reason."""


def _number(value: Any, what: str) -> float:
    """A number, or a text or a list with one alone; missing ones are NaN."""
    if type(value) is int and abs(value) < _EXACT:
        return float(value)
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if value is None or value != value or (isinstance(value, str) and canonical(value) in MISSING):
        return _NAN
    if isinstance(value, float) or (isinstance(value, str) and _INFINITE.fullmatch(value)):
        return float(value)
    number = number_of(value)
    if number is None:
        raise _BadRow(f"{what} is not a number")
    return number


def _coded(value: Any, coding: Coding, what: str, row: Row) -> float:
    """A number by its coding; missing ones are NaN."""
    if value is None or value != value or (isinstance(value, str) and canonical(value) in MISSING):
        return _NAN
    number = coding.read(value, row)
    if number is None:
        raise _BadRow(f"{what} is no value of {coding.name}")
    return number


def _flag(value: Any, what: str) -> float:
    """1 or 0: whether a response was cut off, or its reward failed; any word of an error says so."""
    if isinstance(value, str):
        word = value.strip().casefold()
        return float(word in _CUT if what == "truncated" else word not in ("", "false", "0", "none", "null"))
    return float(value == 1 if isinstance(value, int | float) else bool(value))


def _null_text(values: Mapping[str, Any]) -> str:
    """The role of the response or the question that is null in a row; empty: there is none.

    Args:
        values: of the roles that the log has.
    """
    answered = "response" if "response" in values else "messages"
    if answered in values and values[answered] is None:
        return answered
    if values.get("prompt") is not None:
        return ""
    is_asked = any(values.get(role) is not None for role in ("prompt", "messages", "history"))
    return "" if is_asked or "prompt" not in values else "prompt"


def _is_measured(numbers: Mapping[tuple[str, str], float]) -> bool:
    """Whether some reward of a row has a value."""
    return any(value == value for key, value in numbers.items() if key == _REWARD or key[0] == "part")


def _text(value: Any, what: str) -> str:
    """A text, conversations written out; a missing one is empty."""
    if value != value:  # as pandas writes a missing text
        raise _BadRow(f"{what} is NaN, not text")
    return value if isinstance(value, str) else written(value)


def _listed(value: Any, kind: type) -> list[Any]:
    """A list of numbers or texts; empty where it is something else."""
    if not isinstance(value, list | tuple):
        return []
    wanted = (int, float) if kind is float else str
    if not all(isinstance(one, wanted) and not is_beyond_float(one) for one in value):
        return []
    return [kind(one) for one in value]


def _hash(text: str) -> int:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class _Shape(NamedTuple):
    """How rows with the same columns are read.

    Attributes:
        numbers: key and column of each role, and how its cells are read; None: as flags, or as numbers.
        further: key and column of each further reward, and whether it may be a number written as text.
        maps: columns of maps of further rewards.
        other: why the rows are left out; empty: they are not.
    """

    numbers: tuple[tuple[tuple[str, str], str, Coding | None], ...]
    further: tuple[tuple[tuple[str, str], str, bool], ...]
    maps: tuple[str, ...] = ()
    other: str = ""


class _Kept(NamedTuple):
    row: int
    prompt: str
    response: str
    messages: list[dict[str, str]]
    tokens: list[str]
    token_rewards: list[float]
    truth: str

    def size(self) -> int:
        """Bytes in memory, about."""
        texts = sys.getsizeof(self.prompt) + sys.getsizeof(self.response) + sys.getsizeof(self.truth)
        said = sum(len(m["content"]) + 300 for m in self.messages) if self.messages else 0
        return said + texts + 60 * len(self.tokens) + 40 * len(self.token_rewards)


class _Sample:
    """The rows of the groups with the smallest hashes, as many as there is room for."""

    def __init__(self, most: int, seed: int) -> None:
        self.most, self.seed = most, seed
        self.kept: list[tuple[int, _Kept]] = []  # each with the hash of its group
        self.bytes = 0
        self.below = 1 << 64

    def place(self, group: int) -> int:
        """The hash of a group, which is in the sample where it is below `below`."""
        return hash((self.seed, group)) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF

    def add(self, place: int, one: _Kept) -> None:
        """Keep a row of a group in the sample."""
        self.kept.append((place, one))
        self.bytes += one.size()
        if self._is_over(1.25):
            self.trim()

    def _is_over(self, times: float) -> bool:
        """Whether more is kept than so many times what there is room for."""
        return len(self.kept) > self.most * times or self.bytes > _BYTES * times

    def trim(self) -> None:
        """Leave out the groups that there is no room for; where there is room for none, rows of the first."""
        self.kept.sort()
        self.bytes = 0
        for k, (place, one) in enumerate(self.kept):
            if k == self.most or self.bytes + one.size() > _BYTES:
                self.below = place
                self.kept = [pair for pair in self.kept[:k] if pair[0] < place] or self.kept[: max(k, 1)]
                self.bytes = sum(one.size() for _, one in self.kept)
                return
            self.bytes += one.size()

    def texts(self) -> tuple[list[_Kept], bool]:
        """What is kept, in the order of rows, and whether something is not."""
        if self._is_over(1):
            self.trim()
        return sorted(one for _, one in self.kept), self.below < 1 << 64


class RowReader:
    """Collects the rows of the files of a log.

    Args:
        columns: what they are for.
        look: counts what the cells are.
        sample: rows whose texts are kept, at most.
        seed: of the sample.
    """

    def __init__(self, columns: LogColumns, look: Look, *, sample: int, seed: int) -> None:
        self.of, self.look, self.sample = columns, look, _Sample(sample, seed)
        self.files: list[Part] = []
        self.places: dict[Part, int] = {}
        self.columns: dict[tuple[str, str], array[float]] = {}  # by kind (`what` or `part`) and name
        self.codes = {what: array("q") for what in ("file", "line", "prompt", "group", "run")}
        self.runs: dict[str, int] = {}  # places of the names in the column `run`
        self.bad, self.odd = Counter[str](), Counter[str]()  # rows that are left out, by reason; values, by column
        self.summed: dict[str, None] = {}  # parts of a reward that is their sum
        self.long = self.infinite = 0
        self._file = -1  # the place of the file that is read
        self._last, self._start, self._moment = "", 0, (-1, _NAN)  # prompt, first row, file and step of a run of rows
        self._code = _hash("")
        self._named = "", _hash("")  # the log's own name of the last group, and its hash
        self._ends: dict[int, tuple[str, int, tuple[int, float], int]] = {}  # these of each file, at its last row
        self.has_responses = "response" in columns.uses
        self._is_plain = self.has_responses and columns.only_prompt
        self._texts_at = [role for role in columns.uses if role in TEXTS]
        self._is_sum = columns.is_sum
        self._has_tokens = "token_rewards" in columns.uses or "tokens" in columns.uses
        self._elsewhere: dict[int, str] = {}  # columns of rewards by file, where they are not those of the others

    def __len__(self) -> int:
        return len(self.codes["file"])

    def read(self, part: Part, layout: RowLayout, records: Iterable[tuple[int, Any]]) -> None:
        """Add the rows of a file, or further ones of a file that grew; what cannot be read is counted.

        Raises:
            TooLarge: the file holds more than is allowed.
        """
        first = 0 if part.by_line else 1
        if part in self.places:
            self._file = self.places[part]
            self._last, self._start, self._moment, self._code = self._ends[self._file]
        else:
            self._file = self.places[part] = len(self.files)
            self.files.append(part)
        shapes: dict[tuple[str, ...], _Shape] = {}
        try:
            for line, record in records:
                if not isinstance(record, Mapping):
                    self.bad[_why(record)] += 1
                    continue
                try:
                    for row in rows_in(record, layout, self.look.said, self.of.texts):
                        self._read(line + first, row, row.get("parts") if layout.unwrap else None, shapes)
                except _BadRow as error:
                    self.bad[str(error)] += 1
                except ChatError:
                    self.bad["turns before the question cannot be read"] += 1
                except (TypeError, AttributeError, LookupError, ValueError):
                    self.bad[f"a row that is not like {layout.name}"] += 1
        except TooLarge:
            raise
        except DataError as error:  # of the file as a whole
            self.bad[f"{part.name} {CUT} ({str(error).rpartition(': ')[2]})"] += 1
        self._ends[self._file] = self._last, self._start, self._moment, self._code

    def _read(self, line: int, row: Row, parts: Row | None, shapes: dict[tuple[str, ...], _Shape]) -> None:
        """Look at a row of the last file, and add it."""
        names = tuple(row) if parts is None else (*row, *parts)
        shape = shapes.get(names)
        if shape is None:
            if len(shapes) >= _MOST:
                shapes.clear()
            shape = shapes[names] = self._shape(names, parts)
            self.look.meet(row, parts or {})
        self.look.add(row, parts or {})
        if shape.other:
            raise _BadRow(shape.other)
        self._add(line, row, parts, shape)

    def _shape(self, names: tuple[str, ...], parts: Row | None) -> _Shape:
        """How rows with these columns are read."""
        there = {*names}
        numbers = []
        for role in NUMBERS:
            use = self.of.uses.get(role)
            if use is None or (role == "reward" and self.of.form != "number"):
                continue
            columns = (use.column, *self.of.instead.get(role, ()))
            if any(column in there or column.partition(".")[0] in there for column in columns):
                numbers.append((("what", role), use.column, use.coding))
        all_text = self.files[self._file].is_table
        further = [(("part", n), n, all_text or self.of.may_be_text(n)) for n in self.of.further(names, parts)]
        maps = tuple(name for name in self.of.maps if name in there and parts is None)
        return _Shape(tuple(numbers), tuple(further), maps, self._other(there) if parts is None else "")

    def _other(self, names: set[str]) -> str:
        """Why rows with these columns are none of this log; empty: they are."""
        columns = [use.column for role, use in self.of.uses.items() if role in (*TEXTS, *REWARDS)]
        if self._texts_at and not any(column in names or column.partition(".")[0] in names for column in columns):
            return f"a row without {', '.join(columns)[:100]}, which the others have"
        return ""

    def _add(self, line: int, row: Row, parts: Row | None, shape: _Shape) -> None:
        """Add a row of the last file."""
        inner = parts or {}
        numbers = self._numbers(row, parts, shape)
        token_rewards, tokens = self._of_tokens(row, inner)
        if token_rewards and _REWARD not in numbers:
            numbers[_REWARD] = float(sum(token_rewards))
        asked, said = self._texts_of(row, inner, numbers)
        prompt, response = _text(asked, "prompt"), _text(said, "response")
        if abs(numbers.get(_REWARD, _NAN)) == float("inf"):
            numbers[_REWARD] = _NAN
            self.infinite += 1
        if not numbers.get(_LENGTH, _NAN) >= 0:
            numbers[_LENGTH] = float(len(response))
        n = len(self)
        self._append(n, numbers)
        group = self._group_of(n, prompt, numbers.get(_STEP_OF, _NAN), self.of.cell(row, inner, "group"))
        self.codes["file"].append(self._file)
        self.codes["line"].append(line)
        self.codes["prompt"].append(self._code)
        self.codes["group"].append(group)
        self.codes["run"].append(self._run_of(row))
        place = self.sample.place(group)
        if place < self.sample.below:
            self.long += len(prompt) > LONGEST or len(response) > LONGEST
            truth = written(self.of.cell(row, inner, "reference"))[:LONGEST]
            turns = _turns(asked, said)
            one = _Kept(n, self._last[:LONGEST], response[:LONGEST], turns, tokens, token_rewards, truth)
            self.sample.add(place, one)

    def _of_tokens(self, row: Row, parts: Row) -> tuple[list[float], list[str]]:
        """Reward and text of each token of a row; empty where the log has none."""
        if not self._has_tokens:
            return [], []
        rewards, tokens = self.of.cell(row, parts, "token_rewards"), self.of.cell(row, parts, "tokens")
        return _listed(rewards, float), _listed(tokens, str)

    def _run_of(self, row: Row) -> int:
        """The place of the name in the column `run`, -1 where there is none."""
        name = row.get(_RUN_COLUMN)
        if not isinstance(name, str | int) or name == "":
            return -1
        return self.runs.setdefault(str(name), len(self.runs))

    def _texts_of(self, row: Row, parts: Row, numbers: Mapping[tuple[str, str], float]) -> tuple[Any, Any]:
        """Prompt and response of a row with these numbers, each text or messages.

        Raises:
            _BadRow: there is a reward for a response, or for a question, that is null: an empty text was not logged.
        """
        values: dict[str, Any] = {role: self.of.cell(row, parts, role) for role in self._texts_at}
        for role, value in values.items():
            if value != value:  # as pandas writes a missing text
                raise _BadRow(f"{role} is NaN, not text")
        missing = _null_text(values)
        is_there = missing and self.of.uses[ALL_ROLES[missing]].column.partition(".")[0] in (*row, *parts)
        if is_there and _is_measured(numbers):
            raise _BadRow(f"{missing} is null")
        if self._is_plain:
            return values.get("prompt"), values["response"]
        has_response = "response" in self.of.uses
        asked, said = asked_and_said(values, has_response=has_response)
        self.has_responses |= bool(said)
        return asked, said

    def _numbers(self, row: Row, parts: Row | None, shape: _Shape) -> dict[tuple[str, str], float]:
        """The numbers of a row by kind and name: its further rewards, and those of the roles `NUMBERS`."""
        found, inner = self._further(row, parts, shape), parts or {}
        if self._is_sum:
            found[_REWARD] = self._sum_of_columns(found)
        elif self.of.form in ("map", "list"):
            found |= self._composed(row, inner)
        for key, column, coding in shape.numbers:
            role = key[1]
            if role in self.of.instead:
                value = self.of.cell(row, inner, ALL_ROLES[role])
            elif column in row:
                value = row[column]
            else:
                value = self.of.value(row, inner, column)
            is_number = coding is NUMBER or coding is None
            if not (is_number and type(value) is float and role not in FLAGS):
                value = self._value(value, role, coding, row)
            found[key] = value
        if self.of.other_rewards and not math.isfinite(found.get(_REWARD, _NAN)):
            self._check_reward(row)
        return found

    def _sum_of_columns(self, further: Mapping[tuple[str, str], float]) -> float:
        """The reward that is the sum of all columns of numbers, but for what may be one itself or was scored again."""
        maybe = self.of.maybe_reward
        return self._sum({n: value for (_, n), value in further.items() if n != maybe and not is_rescored(n)})

    def _further(self, row: Row, parts: Row | None, shape: _Shape) -> dict[tuple[str, str], float]:
        """The further rewards of a row: in columns of their own, and in maps."""
        found: dict[tuple[str, str], float] = {}
        values = row if parts is None else parts
        for key, column, or_text in shape.further:
            value = values.get(column)
            if isinstance(value, float | int):
                found[key] = _number(value, column)
            elif or_text and isinstance(value, str) and (number := number_of(value)) is not None:
                found[key] = number
        for column in shape.maps:
            numbers = {name: number_of(one) for name, one in self.of.map_of(row, parts or {}, column).items()}
            found |= {("part", f"{column}.{name}"): one for name, one in numbers.items() if one is not None}
        return found

    def _check_reward(self, row: Row) -> None:
        """Refuse a row whose reward is in another column than that of the others.

        Raises:
            _BadRow: it is one.
        """
        other = next((column for column in self.of.other_rewards if not is_empty(row.get(column))), None)
        if other is not None:
            self._elsewhere[len(self.files) - 1] = other
            raise _BadRow(f"a reward in {other}, and not in {self.of.uses['reward'].column}")

    def _composed(self, row: Row, parts: Row) -> dict[tuple[str, str], float]:
        """The parts of a reward that is a map or a list, and the reward: its total, or the sum."""
        cell, front = self.of.cell(row, parts, "reward"), self.of.uses["reward"].column
        if cell is None:
            return {_REWARD: _NAN}
        kind: Any = Mapping if self.of.form == "map" else list | tuple
        if not isinstance(cell, kind):
            raise _BadRow(f"reward is not a {self.of.form} of numbers")
        named = cell.items() if isinstance(cell, Mapping) else enumerate(cell)
        numbers = {f"{front}.{name}": _number(value, "reward") for name, value in named}
        total = numbers.get(f"{front}.{self.of.total}", _NAN) if self.of.total else self._sum(numbers)
        return {**{("part", name): value for name, value in numbers.items()}, _REWARD: total}

    def _sum(self, named: Mapping[str, float]) -> float:
        """The sum of the numbers that are not missing; NaN where all are."""
        known = {name: value for name, value in named.items() if value == value}
        self.summed.update(dict.fromkeys(known if len(self.summed) <= _MOST else ()))
        return sum(known.values()) if known else _NAN

    def _append(self, n: int, numbers: Mapping[tuple[str, str], float]) -> None:
        """Numbers of row n in their columns; rows before it that lack one have NaN."""
        for key, value in numbers.items():
            column = self.columns.get(key)
            if column is None:
                if len(self.columns) > _MOST and key[0] == "part":
                    continue
                column = self.columns[key] = array("d")
            if len(column) < n:
                column.extend([_NAN] * (n - len(column)))
            column.append(value)

    def _group_of(self, n: int, prompt: str, step: float, group: Any) -> int:
        """The code of the group of row n: the log's own of a step, or of rows of one prompt that follow each other."""
        file, has_step = self._file, step == step
        same = prompt == self._last
        if not same:
            self._last, self._code = prompt, _hash(prompt)
        if group is not None:
            name = str(group)
            if name != self._named[0]:
                self._named = name, _hash(name)
            return hash((self._named[1], step if has_step else -2 - file))
        moment = (file, step if has_step else -1.0)
        if not same or not prompt or moment != self._moment or n - self._start >= _RUN:
            self._start, self._moment = n, moment
        return self._start

    def _value(self, value: Any, what: str, coding: Coding | None, row: Row) -> float:
        """A number or flag; only a reward that is none makes a row bad."""
        if what in FLAGS:
            return _flag(value, what)
        try:
            return _number(value, what) if coding is NUMBER or coding is None else _coded(value, coding, what, row)
        except _BadRow:
            if what == "reward":
                raise
            self.odd[what] += 1
            return _NAN

    def finish(
        self, layout: str, root: Path, notes: Sequence[str], curves: Mapping[str, tuple[Codes, Numbers]],
        *, files: Sequence[Part] = (), half: int = 0,
    ) -> Rows:  # fmt: skip
        """All that was read so far; more can be read afterwards.

        Args:
            layout: what wrote the log, in words.
            root: the log, to which names of files are relative.
            notes: about the log.
            curves: logged scalars.
            files: all of them in their order, where they may have been read in another one.
            half: files that end in a half-written line, which was not read.
        """
        n = len(self)
        parts_in_order, order = self._order(files)
        code = {what: np.array(values, np.int64)[order] for what, values in self.codes.items()}
        columns = {key: np.array(c + array("d", [_NAN] * (n - len(c))))[order] for key, c in self.columns.items()}
        given = {name: values for (kind, name), values in columns.items() if kind == "what"}
        parts = {name: values for (kind, name), values in columns.items() if kind == "part"}
        names = tuple(str(part.relative_to(root)) for part in parts_in_order)
        place = np.array([parts_in_order.index(part) for part in self.files], np.int64)
        file_N, prompt_N = place[code["file"]], strata(code["prompt"])
        step_N, more = self._steps(given.get("step"), names, file_N), list(notes)
        group_N, grouped_by = self._groups(prompt_N, step_N, code["group"], file_N, more)
        texts = self._texts(n, np.argsort(order), more)
        self._decide_sum(given, parts, group_N)
        reward_N = given.get("reward", np.full(n, _NAN))
        rewards = _further_rewards(parts, reward_N, given.get("truth", reward_N))
        more += self._remarks(names, given, group_N)
        if step_N is not None and "step" not in given:
            more.append("steps are those in the names of the files")
        has_length = "length" in self.of.uses or texts is not None
        return Rows(
            layout=layout,
            files=names,
            file_N=file_N,
            line_N=code["line"],
            reward_N=reward_N,
            rewards=rewards,
            truth_N=_known(given.get("truth")),
            step_N=step_N,
            **self._prompts(prompt_N, code["prompt"]),
            group_N=group_N,
            grouped_by=grouped_by,
            length_N=given.get("length") if has_length else None,
            truncated_N=_flags(given.get("truncated")),
            failed_N=_flags(given.get("failed")),
            advantage_N=_known(given.get("advantage")),
            texts=texts,
            curves=dict(curves),
            bad=dict(self.bad + Counter({HALF_WRITTEN: half})),
            notes=tuple(more),
            read_as=self.look.read_as(self.of, summed=list(self.summed), further=list(rewards)),
            run_N=code["run"] if self.runs else None,
            runs=tuple(self.runs),
        )

    def _prompts(self, prompt_N: Codes, key_N: Codes) -> dict[str, Any]:
        """The columns of prompts, where the log says what was asked."""
        return {"prompt_N": prompt_N, "prompt_key_N": key_N} if self.of.asks else {}

    def _order(self, files: Sequence[Part]) -> tuple[list[Part], Codes]:
        """The files in their order, and the places of the rows in it."""
        file_N = np.array(self.codes["file"], np.int64)
        ordered = [part for part in files if part in self.places] or self.files
        if ordered == self.files and (np.diff(file_N) >= 0).all():
            return self.files, np.arange(len(self))
        rank = np.empty(len(self.files), np.int64)
        rank[[self.places[part] for part in ordered]] = np.arange(len(ordered))
        return ordered, np.argsort(rank[file_N], kind="stable")

    def _decide_sum(self, given: dict[str, Numbers], parts: Mapping[str, Numbers], group_N: Codes | None) -> None:
        """Add a column to the reward that is called like a truth, unless the advantages are those of the others."""
        name = self.of.maybe_reward
        if name not in parts:
            return
        others, own = given["reward"], np.where(np.isinf(parts[name]), _NAN, parts[name])
        fit = _fit(others, given["advantage"], group_N) if "advantage" in given else None
        if fit is not None and fit > _FITS:
            return
        given["reward"] = np.where(np.isnan(others), own, others + np.nan_to_num(own))
        given.pop("truth", None)
        self.summed[name] = None

    def _remarks(self, names: Sequence[str], given: Mapping[str, Numbers], group_N: Codes | None) -> list[str]:
        """What to know of the files, of a summed reward, and of values that count as missing."""
        found = []
        folders = sorted({re.sub(r"\d+", "N", name.rpartition("/")[0]) for name in names})
        if len(folders) > 1:
            found.append(f"files of {len(folders)} folders are read as one log: {', '.join(folders)[:200]}")
        if len(self.summed) > 1:
            found.append(
                f"the reward is the sum of {', '.join(sorted(self.summed))}, each with weight 1; "
                "--columns reward=NAME takes one of them"
            )
        fit = _fit(given["reward"], given["advantage"], group_N) if self.summed and "advantage" in given else None
        if fit is not None and fit <= _FITS:
            found.append("the logged advantages are not those of this sum: pass the reward as a column of its own")
        for what, count in self.odd.items():
            found.append(f"{count} values of {what} are not numbers and count as missing")
        if self.infinite:
            found.append(f"{self.infinite} infinite rewards count as missing")
        return found

    def check(self, root: Path) -> None:
        """Refuse a log of which nothing could be read, or whose files have their rewards in different columns.

        Raises:
            DataError: it is one.
        """
        read = set(self.codes["file"])
        elsewhere = {self.files[k].name: column for k, column in self._elsewhere.items() if k not in read}
        if elsewhere and read:
            first = next(self.files[k].name for k in sorted(read))
            named = ", ".join(f"{name} in {column}" for name, column in list(elsewhere.items())[:5])
            raise DataError(
                f"files with rewards in other columns: {first} has them in {self.of.uses['reward'].column}, {named}; "
                "pass a file or a folder of one kind",
                where=root,
                field=self.of.uses["reward"].column,
            )
        if self.files and not len(self):
            bad = ", ".join(f"{count} {why}" for why, count in self.bad.most_common(5))
            raise DataError(f"no row could be read: {bad or 'there is none'}", where=root)

    def _steps(self, step_N: Numbers | None, names: Sequence[str], file_N: Codes) -> Codes | None:
        if step_N is not None and np.isfinite(step_N).any():
            return np.where(np.abs(step_N) < 2**53, step_N, -1).astype(np.int64)
        in_names = [_STEP.findall(name) for name in names]
        if len(names) < 2 or not all(in_names):
            return None
        return np.array([int(found[-1][0] or found[-1][1]) for found in in_names])[file_N]

    def _groups(
        self, prompt_N: Codes, step_N: Codes | None, code_N: Codes, file_N: Codes, notes: list[str]
    ) -> tuple[Codes | None, str]:
        codes = strata(code_N)
        use = self.of.uses.get("group")
        if use is not None and (use.source == "given" or codes.max() < len(codes) - 1):
            return codes, "the log's groups" if use.column == "group" else f"the column {use.column}"
        if not self.of.asks or not len(prompt_N):
            return None, ""
        new = np.ones(len(prompt_N), bool)
        new[1:] = np.diff(prompt_N) != 0
        for other in (step_N, file_N):
            if other is not None:
                new[1:] |= np.diff(other) != 0
        sizes = np.diff([*np.flatnonzero(new), len(new)])
        usual = int(np.bincount(sizes).argmax())
        if usual > 1 and not (sizes % usual).any():  # groups of one prompt may follow each other
            new[(np.arange(len(new)) - np.repeat(np.flatnonzero(new), sizes)) % usual == 0] = True
        group_N = np.cumsum(new) - 1
        moments = prompt_N * len(self.files) + file_N
        moments = moments if step_N is None else moments * (step_N.max() + 2) + step_N
        if group_N[-1] + 1 > 1.5 * len(np.unique(moments)):
            notes.append("rows of one prompt are not adjacent: pass --columns group=NAME where the log has groups")
        if group_N[-1] + 1 == len(group_N):
            return None, ""
        return group_N, "adjacent rows of one prompt"

    def _texts(self, n: int, place_N: Codes, notes: list[str]) -> Texts | None:
        kept, partial = self.sample.texts()
        row_M = place_N[[one.row for one in kept]] if kept else np.zeros(0, np.int64)
        kept = [kept[m] for m in np.argsort(row_M)]
        if not self.has_responses:
            return None
        if partial:
            notes.append(f"texts are those of {len(kept)} of {n} rows, drawn at random with whole groups")
        if self.long:
            notes.append(f"{self.long} texts are longer than {LONGEST} characters and are cut there")
        return Texts(
            row_M=np.sort(row_M),
            prompts=[one.prompt for one in kept],
            responses=[one.response for one in kept],
            messages=_conversations(kept),
            tokens=_if_any([one.tokens for one in kept]),
            token_rewards=_if_any([one.token_rewards for one in kept]),
            truths=_if_any([one.truth for one in kept]),
        )


def _turns(asked: Any, said: Any) -> list[dict[str, str]]:
    """The conversation of a row; none where it is a text and a text."""
    if isinstance(asked, str) and isinstance(said, str):
        return []
    before, after = messages_of(asked), messages_of(said)
    if not before and not after:
        return []
    return [*(before or conversation_of(asked, "user")), *(after or conversation_of(said, "assistant"))]


def _if_any(values: list[_Value]) -> list[_Value] | None:
    """Values of all rows; None where no row has one."""
    return values if any(values) else None


def _conversations(kept: Sequence[_Kept]) -> list[list[dict[str, str]]] | None:
    """The turns of each row, prompt and response where it has none; None where no row has some."""
    if not any(one.messages for one in kept):
        return None
    found = []
    for one in kept:
        asked = {"role": "user", "content": one.prompt}
        said = {"role": "assistant", "content": one.response}
        found.append(one.messages or [asked, said])
    return found


def _further_rewards(parts: Mapping[str, Numbers], reward_N: Numbers, truth_N: Numbers) -> dict[str, Numbers]:
    """Columns of further rewards that have a number, but for copies of the reward and of truth."""
    found = {}
    for name, values in parts.items():
        copied = any(np.array_equal(values, one, equal_nan=True) for one in (reward_N, truth_N))
        if np.isfinite(values).any() and not copied:
            found[name] = values
    return found


def _why(record: Any) -> str:
    """Why a record that is no map cannot be read."""
    if isinstance(record, BadRecord):
        return record.why
    return "not JSON" if isinstance(record, DataError) else "not a map of columns"


def _fit(rewards_N: Numbers, advantages_N: Numbers, group_N: Codes | None) -> float | None:
    """How far advantages are rewards less their mean, times a number, in each group: 1 where they are.

    None where that cannot be seen.
    """
    known = np.isfinite(rewards_N + advantages_N)
    if group_N is None or not known.any():
        return None
    group = strata(group_N[known])

    def unit(values: Numbers) -> Numbers:
        centred = values - stratum_means(values, group)
        spread = np.sqrt(stratum_means(centred**2, group))
        return np.where(spread > 1e-6, centred / np.maximum(spread, 1e-6), np.nan)

    products = unit(rewards_N[known]) * unit(advantages_N[known])
    return float(np.nanmean(products)) if np.isfinite(products).any() else None


def _known(values: Numbers | None) -> Numbers | None:
    """The column, where it has a value."""
    return values if values is not None and np.isfinite(values).any() else None


def _flags(values: Numbers | None) -> Flags | None:
    return None if values is None else values > 0
