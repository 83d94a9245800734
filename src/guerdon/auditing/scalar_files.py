"""Scalars of runs: of TensorBoard, W&B, `metrics.jsonl`, `progress.csv`, `result.json`, `trainer_state.json`.

curves = EventFiles(Path("runs/a")).read([Path("runs/a/events.out.tfevents.1.host")])
curves = read_table(Path("out/checkpoint-100/trainer_state.json"))
steps, values = curves["train/reward"]
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.auditing.rows import Codes, Numbers
from guerdon.auditing.wandb_files import WANDB, wandb_rows
from guerdon.errors import DataError, boundary
from guerdon.files.bounds import RECORD, TooLarge, Unparsed, bounded_lines, json_of, read_json, table_rows, too_long
from guerdon.reading.containers import LinesRead, Part, grown_rows
from guerdon.reading.fields import is_beyond_float

EVENTS, METRICS = "events.out.tfevents", "metrics.jsonl"
PROGRESS, RESULT, STATE = "progress.csv", "result.json", "trainer_state.json"
_ITERATION = "training_iteration"
_MARKS = {PROGRESS: ("time/total_timesteps", _ITERATION), RESULT: (f'"{_ITERATION}"',), STATE: ('"log_history"',)}
"""Tables of Stable-Baselines3 and RLlib, of RLlib, of the `Trainer` of transformers: what each of them holds."""
_HEAD = 100_000  # bytes in which that stands
_SHOWN = re.compile(r"Sample:(?:\\n|\n)(.*)(?:\\n|\n){2}Reward: (\S+)$", re.DOTALL)

STEPS = 1 << 63
"""Of int64, one more than a step can be."""

Curves = dict[str, tuple[Codes, Numbers]]


class MetricFiles:
    """Numbers of files `metrics.jsonl` of guerdon or prime-rl, of which only what was added is read."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[LinesRead, dict[str, list[tuple[float, float]]]]] = {}

    def read(self, files: Sequence[Path]) -> Curves:
        """All numbers, by the kind of row and their name."""
        curves: Curves = {}
        for file in files:
            lines, _ = self._known.get(file, (LinesRead(), None))
            if file.stat().st_size < lines.offset or not lines.still_holds(file):
                del self._known[file]
            lines, found = self._known.setdefault(file, (LinesRead(), {}))
            for _, row in grown_rows(Part(file), lines):
                _add_metrics(row, found)
            curves |= curves_of_points(found)
        return curves


def _add_metrics(row: Any, found: dict[str, list[tuple[float, float]]]) -> None:
    """Add the numbers of a row to those of their names."""
    step = row.get("step") if isinstance(row, Mapping) else None
    if not isinstance(step, int) or abs(step) >= STEPS:
        return
    kind = f"{row['kind']}/" if isinstance(row.get("kind"), str) else ""
    for name, value in row.items():
        is_number = isinstance(value, int | float) and not is_beyond_float(value)
        if name not in ("step", "time", "kind") and is_number:
            found.setdefault(f"{kind}{name}", []).append((step, value))


def is_table(file: Path) -> bool:
    """Whether a file is a table of scalars, with a row for each time that they were logged."""
    if file.suffix == WANDB:
        return True
    marks = _MARKS.get(file.name)
    if marks is None:
        return False
    with boundary(DataError, "cannot be read", where=str(file)), file.open("rb") as opened:
        head = opened.read(_HEAD)
    return any(mark.encode() in head for mark in marks)


def read_table(file: Path) -> Curves:
    """The scalars of a table: by timesteps of Stable-Baselines3, iterations of RLlib, steps of the others.

    Raises:
        DataError: it cannot be read. Rows of which this is true, such as a half-written one, are left out.
    """
    rows = {PROGRESS: _progress_rows, RESULT: _result_rows, STATE: _state_rows}.get(file.name, wandb_rows)
    points: dict[str, list[tuple[float, float]]] = {}
    with boundary(DataError, "cannot be read as a table of scalars", where=str(file)):
        for step, row in rows(file):
            if not abs(step) < STEPS:
                continue
            for name, value in row.items():
                points.setdefault(name, []).append((step, value))
    return curves_of_points(points)


def _progress_rows(file: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """The step and the numbers of each row of a `progress.csv`."""
    with file.open(newline="") as lines:
        table = table_rows(lines, ",", strict=False)
        names = next(table, [])
        if isinstance(names, Unparsed):
            raise DataError(f"the line with the names of the columns is {names}", where=file)
        for cells in table:
            if isinstance(cells, Unparsed):
                continue
            row = _numbers(dict(zip(names, cells, strict=False)))
            yield next((row[name] for name in _MARKS[PROGRESS] if name in row), math.nan), row


def _numbers(cells: Mapping[str, str]) -> dict[str, float]:
    """The cells that hold a number."""
    found = {}
    for name, cell in cells.items():
        with suppress(ValueError):
            found[name] = float(cell)
    return found


def _result_rows(file: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """The iteration and the numbers of each line of a `result.json` of RLlib, but for those of the configuration."""
    with file.open("rb") as lines:
        for line in bounded_lines(lines):
            if isinstance(line, Unparsed):
                continue
            try:
                row = json_of(line)
            except Unparsed:
                continue
            if isinstance(row, dict):
                row.pop("config", None)
                numbers = dict(_inner_numbers(row))
                yield numbers.get(_ITERATION, math.nan), numbers


def _state_rows(file: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """The step and the numbers of each row of the history of a `Trainer`, by their tags in TensorBoard."""
    with file.open("rb") as opened:
        state = read_json(opened, file)
    history = state.get("log_history") if isinstance(state, dict) else None
    for row in history if isinstance(history, list) else ():
        if isinstance(row, dict):
            numbers = dict(_inner_numbers(row))
            step = numbers.pop("step", math.nan)
            yield step, {trainer_tag(name): value for name, value in numbers.items()}


def _inner_numbers(row: Mapping[str, Any], front: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a map and in maps inside it, with slashes between the keys."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _inner_numbers(value, f"{front}{name}/")
        elif isinstance(value, int | float) and not is_beyond_float(value):
            yield f"{front}{name}", float(value)


def trainer_tag(name: str) -> str:
    """The tag in TensorBoard of what the `Trainer` of transformers logs.

    >>> trainer_tag("eval_reward"), trainer_tag("rewards/accuracy_reward/mean")
    ('eval/reward', 'train/rewards/accuracy_reward/mean')
    """
    return f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"


class EventFiles:
    """Scalars of TensorBoard by their tag, and the responses that OpenRLHF shows there.

    Args:
        root: of the log: tags of files in its folders have the folder in front, where there are several.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shown: list[dict[str, Any]] = []
        self._loaders: dict[Path, Any] = {}
        self._found: dict[tuple[Path, str], list[tuple[float, float]]] = {}
        self._sizes: dict[Path, int] = {}

    def only_grew(self, files: Sequence[Path]) -> bool:
        """Whether the files that were read are still there, and none is shorter."""
        return all(file in files and file.stat().st_size >= size for file, size in self._sizes.items())

    def read(self, files: Sequence[Path]) -> Curves:
        """All scalars, of which those that were not there before are read; what is half-written is left out.

        Raises:
            DataError: a file is none of events.
        """
        if files:
            from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        for file in files:
            with boundary(DataError, "cannot be read as events of TensorBoard", where=str(file)):
                _check_events(file)
                self._sizes[file] = file.stat().st_size
                loader = self._loaders.setdefault(file, EventFileLoader(str(file)))
                for event in loader.Load():
                    self._add(file, event)
        several = len({folder for folder, _ in self._found}) > 1
        named: dict[str, list[tuple[float, float]]] = {}
        for (folder, tag), points in self._found.items():
            front = f"{folder.relative_to(self.root)}/" if several and folder != self.root else ""
            named.setdefault(f"{front}{tag}", []).extend(points)
        return curves_of_points(named)

    def _add(self, file: Path, event: Any) -> None:
        from tensorboard.util.tensor_util import make_ndarray

        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                number = float(make_ndarray(value.tensor).reshape(-1)[0])
                self._found.setdefault((file.parent, value.tag), []).append((event.step, number))
            elif value.tag.startswith("train/generated_samples"):
                said = b"".join(value.tensor.string_val).decode("utf-8", "replace")
                if sample := _SHOWN.match(said):
                    self.shown.append({"step": event.step, "response": sample[1], "reward": sample[2]})


def _check_events(file: Path) -> None:
    """Refuse events that are too long to be read; each has its length in front of it.

    Raises:
        TooLarge: one is longer than `RECORD`.
    """
    with file.open("rb") as opened:
        while len(head := opened.read(12)) == 12:
            (size,) = struct.unpack_from("<Q", head)
            if size > RECORD:
                raise TooLarge(f"{file}: an event is {too_long(RECORD)}; remove it, or the file")
            opened.seek(size + 4, 1)


def curves_of_points(found: Mapping[str, list[tuple[float, float]]]) -> Curves:
    """Each curve in the order of its steps; of what was logged again after a restart the last."""
    curves = {}
    for name, points in sorted(found.items()):
        steps, values = zip(*sorted(dict(points).items()), strict=True)
        curves[name] = (np.asarray(steps, np.int64), np.asarray(values, np.float64))
    return curves
