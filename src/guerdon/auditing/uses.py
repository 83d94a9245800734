"""Which commands can use a data set, and why the others cannot: each is asked with its own reader.

The columns are those of all rows; the rows that are tried are the first ones.

    for command, use in uses_of("rows.jsonl", read("rows.jsonl")).items():
        print(command, use.what or use.why_not)     # train preferences
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from guerdon.auditing.logs import LogReader
from guerdon.episodes.preferences import none_usable, refuse_test_sets, source_in
from guerdon.episodes.solution_files import solutions_in
from guerdon.episodes.solution_formats import NoLabelsError
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError, GuerdonError
from guerdon.evaluation.benchmarks.labelled import labelled_in
from guerdon.evaluation.benchmarks.reward_bench import choices_in
from guerdon.evaluation.by_path import Kind, kind_of_rows
from guerdon.evaluation.scoring.responses import scored_responses
from guerdon.reading.data_sets import data_parts
from guerdon.reading.reader import DataReading, read
from guerdon.tasks.prompt_files import prompts_of_rows
from guerdon.tasks.prompts import Prompt, system_prompt_of

FIRST_ROWS = 1000
"""Rows that are tried."""


class CommandUse(NamedTuple):
    """What a command can do with a data set.

    Attributes:
        what: it takes of the rows; empty: it refuses them.
        why_not: it refuses them; empty: it does not.
    """

    what: str
    why_not: str = ""


def uses_of(data: str, reading: DataReading, columns: str | None = None) -> dict[str, CommandUse]:
    """What each command can do with a data set.

    Args:
        data: as it was read.
        reading: of it.
        columns: as it was read with.
    """
    asked = _Data(data, reading, columns)
    found = {}
    for command, of in _COMMANDS.items():
        try:
            found[command] = CommandUse(of(asked))
        except GuerdonError as error:
            found[command] = CommandUse("", str(error))
    return found


@dataclass(frozen=True)
class _Data:
    """A data set that commands are asked about."""

    data: str
    whole: DataReading
    columns: str | None

    @cached_property
    def rows(self) -> DataReading:
        """The first rows."""
        return self.whole.first(FIRST_ROWS)

    @cached_property
    def to_train(self) -> DataReading:
        """The first rows to train on.

        Raises:
            DataError: all are of other splits.
        """
        parts = data_parts(self.data, train=True)
        same = [one.where for one in parts] == [one.where for one in self.whole.parts]
        found = self.whole if same else read(self.data, columns=self.columns, parts=parts)
        found = found.first(FIRST_ROWS)
        found.train = True
        return found


def _audit(asked: _Data) -> str:
    LogReader(Path(asked.data), columns=asked.columns, most=FIRST_ROWS).read()
    return "the rewards of a log"


def _score(asked: _Data) -> str:
    """Responses; every row must be readable, since a copy of it is written."""
    if not Path(asked.data).exists():
        raise DataError("there is no such file or folder, of which a copy is written", where=asked.data)
    for part in asked.whole.parts if asked.whole.bad else ():
        part.good_rows()
    responses_of = scored_responses(asked.rows)
    for part in asked.rows.parts:
        for number, (where, row) in enumerate(part.rows()):
            responses_of(row, where, f"{number}")
    return "its responses"


_JUDGED: Mapping[Kind, str] = {
    "pairs": "preferences", "labels": "labels of responses", "process_bench": "labels of steps",
    "prm_bench": "labels of steps",
}  # fmt: skip


def _evaluate(asked: _Data) -> str:
    kind = kind_of_rows(asked.rows)
    if kind == "pairs":
        choices_in(asked.rows)
    elif kind == "labels":
        labelled = labelled_in(asked.rows)
        if "reward" not in asked.rows.plan.uses:
            labelled.responses()
    else:
        _solutions(asked.rows)
    return _JUDGED[kind]


def _train(asked: _Data) -> str:
    kind = kind_of_rows(asked.to_train)
    if kind in ("pairs", "labels"):
        source = source_in(asked.to_train)
        refuse_test_sets({asked.data: source.benchmark} if source.benchmark else {})
        if not source.comparisons:
            raise none_usable(source.left_out, asked.data)
        return _JUDGED[kind]
    found = _solutions(asked.to_train)
    if not any(label is not None for one in found for label in one.labels):
        raise DataError("no step has a label", where=asked.data)
    return _JUDGED[kind]


def _solutions(reading: DataReading) -> list[Solution]:
    """The solutions of rows.

    Raises:
        DataError: there is none, or a row cannot be understood.
    """
    found, left_out = [], Counter[str]()
    for _, one in solutions_in(reading):
        if isinstance(one, Solution):
            found.append(one)
        elif isinstance(one, NoLabelsError):
            left_out[one.reason] += 1
        else:
            raise one
    if not found:
        raise none_usable(left_out, reading.data)
    return found


def _run(asked: _Data) -> str:
    _prompts(asked.to_train, answered=False)
    return "its prompts"


def _search(asked: _Data) -> str:
    system_prompt_of(_prompts(asked.rows, answered=False))
    return "its prompts"


def _label(asked: _Data) -> str:
    """Solutions in steps, or questions whose true answers are known."""
    if asked.whole.plan.layout.kind == "steps" or asked.whole.plan.has("steps"):
        _solutions(asked.rows)
        return "its steps"
    _prompts(asked.to_train, answered=True)
    return "its questions and true answers"


def _prompts(reading: DataReading, *, answered: bool) -> list[Prompt]:
    """The prompts of rows.

    Raises:
        DataError: there is none, or a row cannot be understood.
    """
    found = prompts_of_rows(reading, reading.data, answered=answered)
    found.check(reading.data)
    return found.prompts


_COMMANDS: Mapping[str, Callable[[_Data], str]] = {
    "audit": _audit, "score": _score, "evaluate": _evaluate, "train": _train, "run": _run, "search": _search,
    "label": _label,
}  # fmt: skip
