"""What comes out of judgements: a copy of a data set with outcomes, or rows with labels, which the other commands read.

for path in export(session): ...
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from guerdon.annotate.consensus import Label, labels_of
from guerdon.annotate.items import Items
from guerdon.annotate.session import Session
from guerdon.auditing.labels import LABELS
from guerdon.auditing.rows import Numbers
from guerdon.episodes import index
from guerdon.episodes.layout import INFO_PATH, STATS_PATH, SUCCESS
from guerdon.episodes.solution_formats import to_record
from guerdon.episodes.solutions import until_first_error
from guerdon.errors import DataError, boundary
from guerdon.files import atomic
from guerdon.files.json_files import json_line
from guerdon.files.parquet_bounds import BoundedParquet
from guerdon.statistics.intervals import defined

EPISODES = "labels"
_WINNERS = {1.0: "model_a", 0.0: "model_b", 0.5: "tie"}  # as PPE names them


def export(session: Session) -> Path:
    """Write the labels of a folder anew.

    Returns:
        The file or folder that was written.

    Raises:
        DataError: the data cannot be read.
        OSError: it cannot be written.
    """
    labels = labels_of(session)
    if session.items.kind == "episodes":
        return _write_episodes(session, {place: label for place, (_, label) in labels.items()})
    rows = {"responses": _responses, "pairs": _pairs, "steps": _steps}[session.items.kind](session, labels)
    file = session.folder / LABELS
    atomic.write_bytes(file, b"".join(map(json_line, rows)))
    return file


_Labels = Mapping[int, tuple[int, Label]]


def judged_by(session: Session) -> tuple[str, Numbers] | None:
    """The values that stand beside the labels, with their name: of the first model, else the reward of the data."""
    values = {**session.models, **session.items.rewards}
    return next(iter(values.items()), None)


def _of_draw(session: Session, place: int, labels: _Labels) -> dict[str, Any]:
    """What every row of labels has of its item and of its draw; nulls where it could not be drawn."""
    number, label = labels.get(place, (None, Label()))
    ask = None if number is None else session.judgements.asks[number]
    return {
        "row": session.items.rows[place], "item": session.items.ids[place],
        "draw": None if ask is None else ask.draw, "draw_probability": None if ask is None else ask.probability,
        "pool": None if ask is None else len(session.judgements.asks),
        "judgements": label.judgements, "agreed": label.agreed, "no_label": label.reason or None,
    }  # fmt: skip


def _prompt(items: Items, place: int, *, as_messages: bool) -> Any:
    """What was asked: as messages where that is so of some item, else as text."""
    show = items.shows[place]
    if not as_messages:
        return show["prompt"]
    turns = show["messages"] or [("user", show["prompt"])]
    return [{"role": role, "content": content} for role, content in turns]


def _responses(session: Session, labels: _Labels) -> Iterator[dict[str, Any]]:
    """All responses, labelled or not: in CJE's columns, and in those of KTO where a response is right or wrong."""
    items, judge = session.items, judged_by(session)
    chats = any(show["messages"] for show in items.shows)
    for place, show in enumerate(items.shows):
        label = labels.get(place, (0, Label()))[1]
        value = None if np.isnan(label.value) else label.value
        score = None if judge is None or np.isnan(judge[1][place]) else float(judge[1][place])
        row = {
            "prompt": _prompt(items, place, as_messages=chats), "response": show["response"],
            "judge_score": score, "oracle_label": value,
        }  # fmt: skip
        if session.rubric is not None:
            row |= _of_criteria(session, place, label)
        elif session.setup["scale"] is None and value is not None:
            row |= {"completion": show["response"], "label": value == 1.0}
        yield row | _of_draw(session, place, labels)


def _of_criteria(session: Session, place: int, label: Label) -> dict[str, Any]:
    """What people say of each criterion, how many of them agree, and what the first judge of the data says."""
    judge = next(iter(session.judges.values.values()), {})
    names = [one.name for one in session.rubric.criteria] if session.rubric else []
    labels = {name: label.criteria.get(name, Label()) for name in names}
    return {
        "criteria": {name: defined(one.value) for name, one in labels.items()},
        "criteria_agreed": {name: one.agreed for name, one in labels.items()},
        "judge_criteria": {name: defined(values[place]) for name, values in judge.items()} or None,
    }


def _pairs(session: Session, labels: _Labels) -> Iterator[dict[str, Any]]:
    """The pairs of which somebody said more than that they cannot tell, in PPE's columns."""
    items = session.items
    chats = any(show["messages"] for show in items.shows)
    for place, (_, label) in sorted(labels.items()):
        if not np.isnan(label.value):
            first, second = items.shows[place]["responses"]
            yield {
                "prompt": _prompt(items, place, as_messages=chats), "response_1": first, "response_2": second,
                "winner": _WINNERS[label.value], **_of_draw(session, place, labels),
            }  # fmt: skip


def _steps(session: Session, labels: _Labels) -> Iterator[dict[str, Any]]:
    """The solutions with a first wrong step, or none, as `guerdon label` writes them."""
    from dataclasses import replace

    for place, (_, label) in sorted(labels.items()):
        if not np.isnan(label.value):
            one = session.items.solutions[place]
            marked = replace(one, labels=until_first_error(int(label.value), len(one.steps)), rewards=())
            yield {**to_record(marked), **_of_draw(session, place, labels)}


# ---- episodes


def _write_episodes(session: Session, labels: Mapping[int, Label]) -> Path:
    """A copy of the data set with the outcomes that people gave; the others are as before."""
    items, target = session.items, session.folder / EPISODES
    partial, old = target.with_name(f".{EPISODES}.partial"), target.with_name(f".{EPISODES}.old")
    shutil.rmtree(partial, ignore_errors=True)
    given = {
        entry.index: _success(label, entry.length)
        for place, entry in enumerate(items.entries)
        if (label := labels.get(place)) is not None and not np.isnan(label.value)
    }
    before = {
        entry.index: bool(truth) for entry, truth in zip(items.entries, items.truth, strict=True) if not np.isnan(truth)
    }

    def copy(source: str, copied: str) -> str:
        """A file that an earlier copy has is taken from there."""
        mine = target / Path(source).relative_to(Path(items.data))
        if mine.suffix == ".mp4" and mine.is_file() and _same(Path(source), mine):
            os.link(mine, copied)
            return copied
        return str(shutil.copy2(source, copied))

    try:
        shutil.copytree(items.data, partial, copy_function=copy)
        _add_success(partial, given)
        _add_outcomes(partial, given, before)
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        partial.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _same(one: Path, other: Path) -> bool:
    """Whether a copy has the size and the time of its original."""
    a, b = one.stat(), other.stat()
    return (a.st_size, a.st_mtime_ns) == (b.st_size, b.st_mtime_ns)


def _success(label: Label, length: int) -> NDArray[np.bool_]:
    """(T,) whether the task is done in each row."""
    moment = length - 1 if label.row is None else label.row
    return (np.arange(length) >= moment) & (label.value == 1.0)


def _next(success_T: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The column `next.success`: what the action of a row leads to; that of the last one to nothing else."""
    return np.append(success_T[1:], success_T[-1])


def _add_success(root: Path, given: Mapping[int, NDArray[np.bool_]]) -> None:
    """Write `next.success` into the rows of a data set; row groups stay as they are.

    Raises:
        DataError: a file cannot be read.
    """
    described = json.loads((root / INFO_PATH).read_text(encoding="utf-8"))
    is_new = SUCCESS not in described["features"]
    for file in sorted((root / "data").rglob("*.parquet")):
        with boundary(DataError, f"{file} cannot be read"):
            stored = BoundedParquet(file)
            tables = [stored.table(row_groups=[number]) for number in range(len(stored.groups))]
        tables = [_with_success(table, given, is_new=is_new) for table in tables]
        file.unlink()
        with pq.ParquetWriter(file, tables[0].schema, use_dictionary=False, write_page_checksum=True) as writer:
            for table in tables:
                writer.write_table(table)
    if is_new:
        described["features"][SUCCESS] = {"dtype": "bool", "shape": [1], "names": None}
        atomic.write_json(root / INFO_PATH, described)


def _with_success(table: pa.Table, given: Mapping[int, NDArray[np.bool_]], *, is_new: bool) -> pa.Table:
    """Rows with the column of success, null where it was not there and nobody said anything."""
    episodes, frames = (table[name].to_pylist() for name in ("episode_index", "frame_index"))
    has = SUCCESS in table.column_names
    values = table[SUCCESS].to_pylist() if has else [None] * len(table)
    columns = {number: _next(success_T) for number, success_T in given.items()}
    for k, (episode, frame) in enumerate(zip(episodes, frames, strict=True)):
        if episode in columns:
            values[k] = _like(values[k], bool(columns[episode][frame]))
    if not has:
        return table.replace_schema_metadata().append_column(SUCCESS, pa.array(values, pa.bool_()))
    place = table.column_names.index(SUCCESS)
    kind = table.schema.field(SUCCESS).type
    return table.set_column(place, table.schema.field(SUCCESS), pa.array(values, kind))


def _like(before: Any, value: bool) -> Any:
    """A value in the form of the one that it replaces: in a list, or as a number."""
    if isinstance(before, list):
        return [_like(before[0] if before else None, value)]
    return value if before is None or isinstance(before, bool) else type(before)(value)


def _add_outcomes(root: Path, given: Mapping[int, NDArray[np.bool_]], before: Mapping[int, bool]) -> None:
    """Write `guerdon/outcome` into the index of a data set, and the statistics of `next.success`.

    Raises:
        DataError: a file cannot be read.
    """
    for file in index.index_files(root):
        with boundary(DataError, f"{file} cannot be read"):
            table = BoundedParquet(file).table()
        numbers = table["episode_index"].to_pylist()
        outcomes = [bool(given[number][-1]) if number in given else before.get(number) for number in numbers]
        columns: dict[str, list[Any]] = {index.OUTCOME: outcomes}
        if index.SUCCESS_AT_RESET in table.column_names:
            were = table[index.SUCCESS_AT_RESET].to_pylist()
            columns[index.SUCCESS_AT_RESET] = [
                bool(given[number][0]) if number in given else was for number, was in zip(numbers, were, strict=True)
            ]
        columns |= _statistics(table, numbers, given)
        for name, values in columns.items():
            table = _with_column(table, name, values)
        atomic.write_parquet(file, table)
    merged = index.merge([{SUCCESS: one[SUCCESS]} for one in index.load_episode_stats(root) if _has_stats(one)])
    stats = root / STATS_PATH
    if merged and stats.is_file():
        known = json.loads(stats.read_text(encoding="utf-8"))
        known[SUCCESS] = {name: value.tolist() for name, value in merged[SUCCESS].items()}
        text = json.dumps(dict(sorted(known.items())), indent=4, ensure_ascii=False)
        atomic.write_text(stats, text)


def _has_stats(stats: index.Stats) -> bool:
    """Whether an episode has statistics of `next.success`."""
    return SUCCESS in stats and all(value.ndim and value.dtype != object for value in stats[SUCCESS].values())


def _statistics(table: pa.Table, numbers: list[int], given: Mapping[int, NDArray[np.bool_]]) -> dict[str, list[Any]]:
    """Statistics of `next.success` by column: of labelled episodes new ones, where the index has those of others."""
    if not any(name.startswith("stats/") for name in table.column_names):
        return {}
    found: dict[str, list[Any]] = {}
    for name in index.NAMES:
        column = f"stats/{SUCCESS}/{name}"
        before = table[column].to_pylist() if column in table.column_names else [None] * len(table)
        found[column] = [
            index.vector_stats(_next(given[number]))[name].tolist() if number in given else was
            for number, was in zip(numbers, before, strict=True)
        ]
    return found


def _with_column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    """A table with a column in the place of the one of this name, or as the last one."""
    if name in table.column_names:
        field = table.schema.field(name)
        return table.set_column(table.column_names.index(name), field, pa.array(values, field.type))
    kind = pa.list_(pa.int64() if name.endswith("/count") else pa.float64())
    return table.append_column(name, pa.array(values, pa.bool_() if name == index.OUTCOME else kind))
