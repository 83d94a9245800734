"""The data set of reward models: what was measured of each before RL, and what it did in RL. One row per reward model.

A Parquet file, or JSON lines, with the columns `model`, `kind` (`robot` or `text`), `task`, `family` (how its quality
was graded), `baseline` and `success` (lists with an entry per seed: final true success of the run with the 0/1 reward
and of the run with the reward model; null or NaN where a run is missing), `feature.<name>` (null: not measurable), and,
if it is known, `exploited` (a list, too: whether the hacking alarm was raised in the run with the reward model).

    table = read_gate_table("gate.parquet")
    print(len(table), table.tasks, [EFFECTS[i] for i in table.effects_N])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guerdon.errors import DataError
from guerdon.reading.containers import good_rows
from guerdon.reading.fields import RowFields
from guerdon.statistics.intervals import Float64

Effect = Literal["harms", "no effect", "helps"]
EFFECTS: tuple[Effect, ...] = ("harms", "no effect", "helps")
MARGIN = 0.05
"""A reward model helps or harms if it changes the mean true success over its seeds by at least this."""

PACKAGED = Path(__file__).with_name("gate.parquet")
"""The table that guerdon is delivered with."""

PREFIX = "feature."
Names = NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class GateTable:
    """Reward models with their features and effects.

    Attributes:
        models_N: names, each once.
        kinds_N: `robot` or `text`.
        tasks_N: the task that it was used in.
        families_N: how its quality was graded.
        baseline_N_S: final true success, 0..1, of the 0/1 reward per seed; NaN where a run is missing.
        success_N_S: the same with the reward model, same seeds.
        names: of the features.
        features_N_F: float64; NaN where a feature is not measurable.
        exploited_N: share of the seeds whose run raised the hacking alarm; NaN where it is not known.
    """

    models_N: Names
    kinds_N: Names
    tasks_N: Names
    families_N: Names
    baseline_N_S: Float64
    success_N_S: Float64
    names: tuple[str, ...]
    features_N_F: Float64
    exploited_N: Float64

    def __len__(self) -> int:
        return len(self.models_N)

    @property
    def tasks(self) -> list[str]:
        """The tasks, in alphabetical order."""
        return sorted(set(self.tasks_N.tolist()))

    @property
    def gains_N_S(self) -> Float64:
        """Success with the reward model minus success with the 0/1 reward, by seed."""
        return self.success_N_S - self.baseline_N_S

    @cached_property
    def gains_N(self) -> Float64:
        """(N,) mean gain over the seeds that have both runs."""
        return np.asarray(np.nanmean(self.gains_N_S, axis=1))

    @cached_property
    def effects_N(self) -> NDArray[np.int64]:
        """(N,) index into `EFFECTS`."""
        return effects(self.gains_N)

    def take(self, rows: ArrayLike) -> GateTable:
        """The rows of a mask (N,) or of indices."""
        at = np.asarray(rows)
        columns = {one.name: getattr(self, one.name)[at] for one in fields(self) if one.name != "names"}
        return GateTable(**columns, names=self.names)

    def of(self, kind: str) -> GateTable:
        """The reward models for robots (`robot`) or for text (`text`)."""
        return self.take(self.kinds_N == kind)

    def columns(self, names: Sequence[str]) -> Float64:
        """(N, F) the features of these names."""
        return self.features_N_F[:, [self.names.index(name) for name in names]]


def effects(gains_N: ArrayLike, margin: float = MARGIN) -> NDArray[np.int64]:
    """(N,) index into `EFFECTS`: 0 harms (gain at most -margin), 2 helps (at least margin), 1 no effect."""
    gains = np.asarray(gains_N, dtype=np.float64)
    rounding = 1e-9  # 0.35 - 0.3 is 0.05
    return np.asarray(1 + (gains >= margin - rounding) - (gains <= rounding - margin), dtype=np.int64)


def read_gate_table(path: str | Path) -> GateTable:
    """Read a table; rows without any seed that has both runs are left out.

    Raises:
        DataError: the file cannot be read, a row lacks a column or is inconsistent, or a model is there twice.
    """
    return gate_table(good_rows(Path(path)))


def gate_table(rows: Iterable[tuple[str, Any]]) -> GateTable:
    """The table of rows, each with its place for error messages.

    Raises:
        DataError: a row lacks a column or is inconsistent, or a model is there twice.
    """
    found: list[dict[str, Any]] = []
    places: dict[str, str] = {}
    for where, raw in rows:
        row = RowFields(raw, where)
        one = _runs(row, where)
        model = one["model"]
        if model in places:
            raise DataError(
                f"{model} is in {places[model]} already; a reward model has one row", where=where, field="model"
            )
        places[model] = where
        one |= _measured(row, raw)
        if np.isfinite(one["success"] - one["baseline"]).any():
            found.append(one)

    def texts(column: str) -> Names:
        return np.array([one[column] for one in found], dtype=np.str_)

    names = sorted({name for one in found for name in one if name.startswith(PREFIX)})
    features = np.full((len(found), len(names)), np.nan)
    for i, one in enumerate(found):
        features[i] = [one.get(name, np.nan) for name in names]
    return GateTable(
        texts("model"),
        texts("kind"),
        texts("task"),
        texts("family"),
        baseline_N_S=_padded([one["baseline"] for one in found]),
        success_N_S=_padded([one["success"] for one in found]),
        names=tuple(name.removeprefix(PREFIX) for name in names),
        features_N_F=np.where(np.isfinite(features), features, np.nan),
        exploited_N=np.array([one["exploited"] for one in found], dtype=np.float64),
    )


def _runs(row: RowFields, where: str) -> dict[str, Any]:
    """What a row says about the runs: the columns of texts, `baseline` and `success`."""
    one: dict[str, Any] = {column: row.text(column) for column in ("model", "kind", "task", "family")}
    one |= {column: _shares(row, column, where) for column in ("baseline", "success")}
    if len(one["baseline"]) != len(one["success"]):
        raise DataError(
            f"{len(one['baseline'])} values of baseline and {len(one['success'])} of success; give one of "
            "each per seed, null where a run is missing",
            where=where,
            field="baseline",
        )
    if one["kind"] not in ("robot", "text"):
        raise DataError(f"kind is {one['kind']!r}; it is robot or text", where=where, field="kind")
    return one


def _measured(row: RowFields, columns: Iterable[str]) -> dict[str, Any]:
    """The features of a row, and in `exploited` the share of its seeds with an alarm, NaN where none is known."""
    found = {n: row.get(n, (int, float), "a number or null", np.nan) for n in columns if n.startswith(PREFIX)}
    alarms = [alarm for alarm in row.get("exploited", list, "a list, one of each seed", []) if alarm is not None]
    return {**found, "exploited": float(np.mean(alarms)) if alarms else np.nan}


def _padded(rows: Sequence[Float64]) -> Float64:
    """(N, S) rows of different length, filled up with NaN."""
    filled = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        filled[i, : len(row)] = row
    return filled


def _shares(row: RowFields, column: str, where: str) -> Float64:
    """The success rates of a row by seed; NaN where a run is missing."""
    values = np.array([np.nan if v is None else v for v in row.numbers(column)], dtype=np.float64)
    if not (np.isnan(values) | ((values >= 0) & (values <= 1))).all():
        raise DataError(f"{column} holds success rates, each within 0..1 or null", where=where, field=column)
    return values
